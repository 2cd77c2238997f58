"""FitService: plan, debit, receipt, run, release, or a refusal that is counted. The only way from rows to the wire."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc

from bursar_ledger import BudgetExhaustedError, DatasetRetiredError, DebitRequest, Ledger, RestRequest, price
from bursar_ledger.refusals import FILE, Refusals
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server import log
from bursar_server.access.auth import caller
from bursar_server.config import RequestLimits
from bursar_server.fits import AnyFit, Plan
from bursar_server.fits.contract import METHODS, PREVIEW, SERVICE, FitRequest, Method
from bursar_server.jobs.job import Follower, Run, Step, leave_with
from bursar_server.jobs.limits import previewed
from bursar_server.jobs.order import Order, Orders
from bursar_server.jobs.paid import Runs
from bursar_server.jobs.runner import Runner
from bursar_server.tables.catalogue import Datasets
from bursar_server.vault import EngineSettings
from bursar_server.wire import messages

_MOST_FITS_LEFT = 2**32 - 1
"""Largest number of the field `fits_left`, a uint32."""


class _CallerLeftError(Exception):
    """Error: the caller left before the debit, so nothing is debited."""


class FitService:
    """Service for every fit of the contract; a method without a registered fit answers UNIMPLEMENTED."""

    def __init__(
        self,
        *,
        fits: Mapping[str, AnyFit],
        datasets: Datasets,
        ledger: Ledger,
        runs: Runs,
        follower: Follower,
        engine: EngineSettings | None = None,
        runner: Runner | None = None,
        most: RequestLimits | None = None,
        events: log.Events,
    ) -> None:
        self._events = events
        self._orders = Orders(
            fits=fits, datasets=datasets, ledger=ledger, engine=engine, runner=runner, most=most or RequestLimits()
        )
        self._ledger = ledger
        self._runs = runs
        self._follower = follower

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all methods of the service, for a gRPC server."""
        fits = {
            method.name: grpc.unary_stream_rpc_method_handler(
                functools.partial(self._fit, method),
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
            for method in METHODS.values()
        }
        preview = grpc.unary_unary_rpc_method_handler(
            self.preview,
            request_deserializer=fit_pb2.PreviewRequest.FromString,
            response_serializer=fit_pb2.PreviewResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, {**fits, PREVIEW: preview})

    def preview(self, request: fit_pb2.PreviewRequest, context: grpc.ServicerContext) -> fit_pb2.PreviewResponse:
        """Answer with the plan and the price of a fit, as a debit made now would have them; debit nothing."""
        method, asked = previewed(request)
        quote = self._orders.quote(self._orders.order(method.name, caller().name, asked))
        plan, limits = quote.plan, quote.limits
        return fit_pb2.PreviewResponse(
            price=messages.price(quote.price, quote.budget),
            remaining=messages.remaining(limits.dataset, quote.budget),
            available=messages.remaining(limits.available, quote.budget),
            affordable=quote.times >= 1,
            fits_left=min(quote.times, _MOST_FITS_LEFT),
            noise=plan.noise,
            iterations=plan.iterations,
            expected=[messages.expected(name, value) for name, value in plan.expected.items()],
            sum_units=plan.sum_units,
            warnings=plan.warnings,
            useless=plan.useless,
            preflight=plan.preflight,
            memory=plan.memory,
        )

    def _fit(self, method: Method, request: FitRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        order = self._orders.order(method.name, caller().name, request)
        response = method.response
        plan = order.free_plan()
        if plan is None:
            receipt, run = self._paid(order, context)
        else:
            receipt, run = self._free(order, plan)
            leave_with(context, run)
        if run is None:
            return  # the caller left before the debit
        yield response(receipt=receipt)
        for event in self._follower.follow(run, context.is_active):
            yield (
                response(progress=types_pb2.Progress(step=event.step, steps=event.steps))
                if isinstance(event, Step)
                else event
            )

    def _paid(self, order: Order, context: grpc.ServicerContext) -> tuple[types_pb2.Receipt | None, Run | None]:
        """Return the receipt of a debit and its run: the debit of now, or an earlier one of the same request."""

        def ask() -> DebitRequest | RestRequest:
            asked = self._orders.ask(order)
            if not context.is_active():
                raise _CallerLeftError
            return asked

        try:
            with refusals_told(self._events, dataset=order.state.name, principal=order.principal, method=order.method):
                admission = self._runs.admit(order.key, ask, lambda: self._orders.reserve(order))
        except _CallerLeftError:
            return None, None
        if not admission.paid_now:
            context.set_trailing_metadata((("bursar-replayed", "true"),))
        run = admission.run
        return messages.receipt(run.debit, order.state), run

    def _free(self, order: Order, plan: Plan) -> tuple[types_pb2.Receipt, Run]:
        """Return the receipt of a free request and its run. Neither the ledger nor the data are involved."""
        self._orders.check(order, plan)
        paid = self._ledger.debit_entry(plan.of_entry) if plan.of_entry else None
        limits, budget = self._ledger.limits(order.state.name, order.principal), order.state.budget
        receipt = types_pb2.Receipt(
            dataset=order.state.name,
            request_id=order.request.request_id,
            entry=plan.of_entry,
            price=messages.price(price((), order.state.order), budget),
            remaining=messages.remaining(limits.dataset, budget),
            allowance_remaining=None if limits.allowance is None else messages.remaining(limits.allowance, budget),
            ledger_head=b"" if paid is None else paid.head,
            adjacency=messages.ADJACENCIES[order.state.adjacency],
            free=True,
            warnings=plan.warnings,
        )
        return receipt, self._runs.compute(order.principal, lambda run: self._orders.computed(order, plan, run))


_NAMES = {"dataset": "total", "allowance": "allowance", "call": "maximum per call"}
"""Limits by the ledger's names -> auditors' names."""


@contextlib.contextmanager
def refusals_told(events: log.Events, *, dataset: str, principal: str, method: str) -> Iterator[None]:
    """Report a refused debit of the block. The exception propagates."""
    try:
        yield
    except BudgetExhaustedError as error:
        asked, left = error.requested.rho, error.remaining.rho
        events.tell(log.Refused(dataset, principal, method, _NAMES[error.limit], asked, left))
        raise
    except DatasetRetiredError:
        events.tell(log.Refused(dataset, principal, method, "retired"))
        raise


@contextlib.contextmanager
def refusals_counted(ledger: Path, events: log.Events) -> Iterator[None]:
    """Count refusals in a file beside the ledger until the block ends, for auditors; without such a file count nothing.

    The counts depend on request and ledger, and on no row: a refusal comes before a debit, and rows are read after it.
    """
    try:
        refusals = Refusals(ledger.with_name(FILE))
    except (sqlite3.Error, OSError) as error:
        log.failure(error)
        yield
        return

    def hear(event: log.Event) -> None:
        if not isinstance(event, log.Refused):
            return
        try:
            refusals.note(
                analyst=event.principal,
                dataset=event.dataset,
                method=event.method,
                refused_by=event.by,
                rho_asked=event.rho_asked,
                rho_left=event.rho_left,
            )
        except sqlite3.Error as error:
            log.failure(error)  # the refusal itself is reported; only the count is wrong

    with contextlib.closing(refusals), events.heard_by(hear):
        yield
