"""Orders: what somebody asks for, what it costs, and what is done for it under its debit.

The service has them from its callers, and the command line from whoever sits at the machine; both plan, pay and run in
this one way.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message

from bursar_ledger import (
    BudgetExhaustedError,
    DatasetState,
    DebitRequest,
    Ledger,
    Limits,
    Price,
    Remaining,
    RestRequest,
    UnknownEntryError,
    price,
)
from bursar_proto.v1 import fit_pb2
from bursar_server.computing import NothingReadError, Run
from bursar_server.config import RequestLimits
from bursar_server.datasets import Datasets
from bursar_server.errors import NotAvailableError, ReleaseLostError
from bursar_server.fits import InvalidRequestError, Plan
from bursar_server.fits._seam import Fit, Released
from bursar_server.fitting import InProcess, Job, NoRows, Runner
from bursar_server.limiting import check_fit
from bursar_server.requests import FitRequest, check_known, check_real
from bursar_server.runs import PaidRun
from bursar_server.vault import EngineSettings, LocalEngine

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_LAST_ENTRY = 2**62
"""Beyond every ledger, and within SQLite's integers."""
_ANY_NUMBER = 2**63
_NO_LIMITS = RequestLimits()
"""Those of the software alone."""

AnyFit = Fit[Any, Any, Any]
"""A fitting method, whatever its request, plan and model are."""


RESPONSES: Mapping[str, type[Any]] = {
    "FitDPEM": fit_pb2.FitDPEMResponse,
    "FitSeparatedGMM": fit_pb2.FitSeparatedGMMResponse,
    "FitGradientEM": fit_pb2.FitGradientEMResponse,
    "FitSketchKMeans": fit_pb2.FitSketchKMeansResponse,
    "FitMRF": fit_pb2.FitMRFResponse,
}
"""What each method answers with: a receipt, progress or a model."""

_SPEND, _LEFT, _ROWS = "spend", "what_is_left", "public_rows"
"""In a debit's parameters: the rho that was left, and the public number of rows; so that it can be planned again."""


@dataclass(frozen=True)
class Order:
    """What somebody asked for, and what that is worth.

    Attributes:
        method: name of the RPC.
        principal: who asks.
        request: as it was sent.
        hash: what makes two requests the same.
        state: of the dataset.
        rows: the public number of rows, None if there is none.
        plan: what the request releases; given the rho to be spent, where that is what is left, else None, and `rows`.
    """

    method: str
    principal: str
    request: FitRequest
    hash: bytes
    state: DatasetState
    rows: int | None
    plan: Callable[[float | None, int | None], Plan]

    @property
    def rest(self) -> bool:
        """Whether it spends what is left."""
        return _spends_the_rest(self.request)

    def debit(self, rho: float | None = None) -> DebitRequest:
        """What the ledger is asked for. Raises InvalidRequestError."""
        plan = self.plan(rho, self.rows)
        resolved = {_ROWS: self.rows, **({} if rho is None else {_SPEND: {_LEFT: rho}})}
        return DebitRequest(**self._names, events=plan.events, parameters={**plan.parameters, **resolved})

    def debit_of_the_rest(self) -> RestRequest:
        """Likewise, for what turns out to be left when it is debited."""
        return RestRequest(**self._names, plan=lambda available: self.debit(available.rho))

    def free_plan(self) -> Plan | None:
        """The plan of a request that releases nothing new; None for one that has to pay. Raises InvalidRequestError.

        A request without a spend is free or wrong.
        """
        if self.request.HasField("spend"):
            return None
        plan = self.plan(None, self.rows)
        return None if plan.events else plan

    def plan_again(self, paid: DebitRequest) -> Plan:
        """The plan that was paid for. Raises ReleaseLostError if it would be another one now."""
        recorded: Mapping[str, Any] = paid.parameters
        rho = recorded[_SPEND][_LEFT] if self.rest else None
        try:
            # A newer snapshot may have another number of rows, which would make it another plan.
            plan = self.plan(rho, recorded.get(_ROWS, self.rows))
        except InvalidRequestError as error:  # the rules of a newer version
            raise ReleaseLostError from error
        if plan.events != paid.events:
            raise ReleaseLostError
        return plan

    @property
    def _names(self) -> dict[str, Any]:
        return {
            "dataset": self.state.name,
            "principal": self.principal,
            "request_id": self.request.request_id,
            "request_hash": self.hash,
            "method": self.method,
        }


@dataclass(frozen=True)
class Quote:
    """What an order would cost now.

    Attributes:
        plan: what it would release.
        price: of that.
        limits: that the price has to fit into.
    """

    plan: Plan
    price: Price
    limits: Limits

    @property
    def times(self) -> int:
        """How many orders of this price fit into the limits, one after the other; what is free always does."""
        if not self.plan.events:
            return _ANY_NUMBER
        if self.limits.call is not None and not _times(self.price, self.limits.call):
            return 0
        parts = (self.limits.dataset, self.limits.allowance)
        return min(_times(self.price, limit) for limit in parts if limit is not None)

    def check(self) -> None:
        """Raises BudgetExhaustedError naming a limit that the price does not fit into; the ledger decides it again."""
        for name, limit in _named(self.limits):
            if not _times(self.price, limit):
                raise BudgetExhaustedError(self.price, limit, name)


class Orders:
    """Takes orders for fits by the name of their RPC.

    Args:
        fits: the registry, by name of the RPC.
        datasets: public facts and, under a debit only, rows.
        ledger: of earlier debits and releases, and of what is left. Nothing here writes to it.
        engine: reads rows, for one fit at a time.
        runner: runs the fits; where it is called, if nothing else is said.
        most: the owner's limits on what is new; what was paid for before is not measured again.
    """

    def __init__(
        self,
        *,
        fits: Mapping[str, AnyFit],
        datasets: Datasets,
        ledger: Ledger,
        engine: EngineSettings | None = None,
        runner: Runner | None = None,
        most: RequestLimits = _NO_LIMITS,
    ) -> None:
        self._most = most
        self._fits = fits
        self._datasets = datasets
        self._ledger = ledger
        self._engine = engine or LocalEngine()
        self._runner = runner or InProcess(fits)

    def order(self, method: str, principal: str, request: FitRequest) -> Order:
        """What `principal` asks for.

        Raises:
            NotAvailableError: there is no such fit.
            InvalidRequestError: the request has fields that nobody knows here, or something made up in it.
            UnknownDatasetError: there is no such dataset.
        """
        fit = self._fits.get(method)
        if fit is None:
            raise NotAvailableError(f"{method} is not available in this version of the server")
        check_known(request)
        check_real(request)
        state = self._datasets.state(request.dataset)
        table = self._datasets.table(state)
        released = self._released(method, state.name, principal)

        # Kept, so that what was planned before the debit is not planned again after it, nor, as long as nobody came
        # between, while others wait for the decision.
        @functools.cache
        def plan(rho: float | None, rows: int | None) -> Plan:
            made: Plan = fit.plan(_resolved(request, rho), replace(table, rows=rows), released)
            if made.events:
                self._datasets.check_columns(state, made.columns)
            return made

        return Order(method, principal, request, _request_hash(method, principal, request), state, table.rows, plan)

    def quote(self, order: Order) -> Quote:
        """Plan, price and limits, exactly those of a debit made now. Reads no row, changes nothing.

        Raises:
            InvalidRequestError: naming every field that is wrong.
            DatasetRetiredError, SnapshotError: nothing new can be released.
            EngineError: nobody can read the rows now.
            BudgetExhaustedError: the order spends what is left, and nothing is.
        """
        limits = self._ledger.limits(order.state.name, order.principal)
        plan = order.free_plan()
        if plan is None:
            self._datasets.check(order.state)
            self._engine.check()
            plan = order.plan(_rest(limits) if order.rest else None, order.rows)
        self.check(order, plan)
        return Quote(plan, price(plan.events, order.state.order), limits)

    def asked(self, order: Order) -> DebitRequest | RestRequest:
        """What to ask the ledger for: what was debited before, whatever became of the dataset, or something new.

        Raises as `quote` does, and InvalidRequestError for a request_id that is none.
        """
        if not _REQUEST_ID.fullmatch(order.request.request_id):
            text = "must have 1 to 64 characters of [A-Za-z0-9_.:-]; a fresh UUID for every new request will do"
            raise InvalidRequestError(("request_id", text))
        earlier = self._ledger.find(order.principal, order.request.request_id)
        if earlier is not None:
            # The ledger refuses another hash than the one that paid.
            return replace(earlier.request, request_hash=order.hash)
        self._datasets.check(order.state)
        self._engine.check()
        if not order.rest:
            self.check(order, order.plan(None, order.rows))
            return order.debit()
        limits = self._ledger.limits(order.state.name, order.principal)
        self.check(order, order.plan(_rest(limits), order.rows))
        return order.debit_of_the_rest()

    def check(self, order: Order, plan: Plan) -> None:
        """Whether the owner's limits allow what is planned. Raises InvalidRequestError."""
        check_fit(self._most, order.request, plan, order.rows)

    def release(self, order: Order, run: PaidRun) -> bytes:
        """What a worker does under a debit: the first moment at which rows are opened."""
        plan = order.plan_again(self._ledger.debit_entry(run.debit.entry).request)
        try:
            rows = self._datasets.rows(order.state, plan.columns)
        except Exception as error:
            raise NothingReadError from error
        table = self._datasets.table(order.state)
        job = Job(
            method=order.method,
            plan=replace(plan, of_entry=run.debit.entry),
            rows=rows,
            adjacency=table.adjacency,
            unit_cap=table.unit_cap,
            # What was debited, not what the plan would cost now: the order may have changed between the two.
            order=run.debit.price.order,
            debited_units=run.debit.price.cost_units,
            engine=self._engine,
        )
        return self._answer(job, run)

    def computed(self, order: Order, plan: Plan, run: Run) -> bytes:
        """What a worker does for nothing: there are no rows, and the meter lets no release pass."""
        table = self._datasets.table(order.state)
        job = Job(
            method=order.method,
            plan=plan,
            rows=NoRows(),
            adjacency=table.adjacency,
            unit_cap=table.unit_cap,
            order=order.state.order,
            debited_units=0,
            engine=LocalEngine(),
        )
        return self._answer(job, run)

    def _released(self, method: str, dataset: str, principal: str) -> Released:
        @functools.cache
        def released(entry: int) -> Message | None:
            # The caller's own only: what others asked is their secret, though their models hold no one's data.
            try:
                paid = self._ledger.debit_entry(min(entry, _LAST_ENTRY)).request
            except UnknownEntryError:
                return None
            asked = (paid.method, paid.dataset, paid.principal)
            release = self._ledger.release(entry) if asked == (method, dataset, principal) else None
            message = RESPONSES[method].FromString(release or b"")
            model: Message | None = message.model if message.HasField("model") else None
            return model

        return released

    def _answer(self, job: Job, run: Run) -> bytes:
        """Run a fit; what is stored and sent of it. Raises what is none of its models, whoever made it."""
        response = RESPONSES[job.method]()
        response.model.SetInParent()
        response.model.ParseFromString(self._runner.run(job, run.advance))
        answer: bytes = response.SerializeToString(deterministic=True)
        return answer


def _spends_the_rest(request: FitRequest) -> bool:
    return request.spend.WhichOneof("amount") == "remaining"


def _resolved(request: FitRequest, rho: float | None) -> FitRequest:
    """The request with an amount where it asks for what is left."""
    if rho is None:
        return request
    resolved = type(request).FromString(request.SerializeToString())
    resolved.spend.rho = rho
    return resolved


def _rest(limits: Limits) -> float:
    """The largest rho that one request may cost now. Raises BudgetExhaustedError if that is nothing."""
    for name, limit in _named(limits):
        if limit.cost_units < 1:
            raise BudgetExhaustedError(Price(1, 0, limit.order), limit, name)
    return limits.available.rho


def _named(limits: Limits) -> tuple[tuple[str, Remaining], ...]:
    """The limits that there are, by the ledger's names of them."""
    found = (("dataset", limits.dataset), ("allowance", limits.allowance), ("call", limits.call))
    return tuple((name, limit) for name, limit in found if limit is not None)


def _times(cost: Price, limit: Remaining) -> int:
    times = limit.cost_units // max(cost.cost_units, 1)
    return min(times, limit.delta_units // cost.delta_units) if cost.delta_units else times


_NOT_RELEASED = frozenset({"request_id", "decode_on_client", "estimate_on_client"})
"""Fields that say nothing of what is released, so that they are no part of what makes two requests the same."""


def _request_hash(method: str, principal: str, request: FitRequest) -> bytes:
    """SHA-256 over method, principal and what the request says of the release: what makes two requests the same."""
    body: Message = type(request).FromString(request.SerializeToString())
    for name in _NOT_RELEASED.intersection(body.DESCRIPTOR.fields_by_name):
        body.ClearField(name)
    parts = (method.encode(), principal.encode(), body.SerializeToString(deterministic=True))
    # Lengths first, so that no two different triples have one text.
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
