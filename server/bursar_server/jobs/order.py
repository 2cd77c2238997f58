"""Orders: a fit request with its plan, its cost, and its work under a debit.

Callers of the service and the local command line share this one way to plan, charge and run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from google.protobuf.message import Message

from bursar_ledger import (
    Budget,
    BudgetExhaustedError,
    Cost,
    DatasetState,
    Debit,
    DebitRequest,
    DebitStatus,
    Ledger,
    LedgerUnavailableError,
    Remainder,
    RestRequest,
    SpendingLimits,
    UnknownEntryError,
    price,
)
from bursar_server import log
from bursar_server.config import RequestLimits
from bursar_server.fits import JSON, AnyFit, InvalidFieldsError, Plan, Released
from bursar_server.fits.contract import METHODS, FitRequest
from bursar_server.jobs.errors import NotAvailableError, ReleaseLostError, RowsUnavailableError
from bursar_server.jobs.job import NoRoomError, NotBegunError, NothingReadError, Run
from bursar_server.jobs.limits import WARNINGS, check_fit, check_known, check_real, check_useful, judged
from bursar_server.jobs.paid import PaidRun, RequestKey, Work
from bursar_server.jobs.runner import InProcess, Job, NoRows, Reserved, Runner, run_for_free
from bursar_server.tables import ShortageError, TableError
from bursar_server.tables.catalogue import Datasets
from bursar_server.vault import EngineSettings, LocalEngine

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_LAST_ENTRY = 2**62
"""Number beyond every ledger entry, within SQLite's integers."""
_ANY_NUMBER = 2**63
"""Times that a free request is affordable: more than any client counts to."""
_NO_LIMITS = RequestLimits()
"""Limits of the software alone."""

_SPEND, _LEFT, _ROWS = "spend", "what_is_left", "public_rows"
"""Keys of a debit's parameters that make it plannable again: the rho that was left, the public number of rows."""


@dataclass(frozen=True)
class Order:
    """Fit request, with the facts that decide its cost.

    Attributes:
        hash: hash that identifies equal requests.
        rows: public number of rows, None if there is none.
        plan: function that returns the request's plan from the rho to be spent, if that is the remaining budget, else
            None, and `rows`. Cached, so that the plan of a debit is in hand when its fit runs.
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
        """Return whether it spends what is left."""
        return _spends_the_rest(self.request)

    @property
    def key(self) -> RequestKey:
        """Identity of the order."""
        return RequestKey(self.principal, self.request.request_id, self.hash)

    def debit(self, rho: float | None = None) -> DebitRequest:
        """Return the debit to request from the ledger. Raises InvalidFieldsError."""
        plan = self.plan(rho, self.rows)
        # Recorded with the debit, so that the same plan can be made again after a restart.
        resolved: dict[str, JSON] = {_ROWS: self.rows, **({} if rho is None else {_SPEND: {_LEFT: rho}})}
        if plan.warnings:
            resolved[WARNINGS] = list(plan.warnings)
        return DebitRequest(**self._names, events=plan.events, parameters={**plan.parameters, **resolved})

    def debit_of_the_rest(self) -> RestRequest:
        """Return the debit of the budget that remains at the debit. Raises InvalidFieldsError."""
        return RestRequest(**self._names, plan=lambda available: self.debit(available.rho))

    def free_plan(self) -> Plan | None:
        """Return the plan of a request that releases nothing new; None if it must be charged.

        Raises InvalidFieldsError.

        A request without a budget is free or wrong.
        """
        if self.request.HasField("spend"):
            return None
        plan = self.plan(None, self.rows)
        return None if plan.events else plan

    def plan_of(self, debit: Debit) -> Plan:
        """Return the plan that was charged: the one in hand for a present debit, else it is planned again.

        Raises:
            ReleaseLostError: the plan would differ now.
        """
        recorded: Mapping[str, Any] = debit.request.parameters
        rho = recorded[_SPEND][_LEFT] if self.rest else None
        if debit.status is DebitStatus.NEW:
            return self.plan(rho, self.rows)
        try:
            # A newer snapshot may have another number of rows, which would make it another plan.
            plan = self.plan(rho, recorded.get(_ROWS, self.rows))
        except InvalidFieldsError as error:  # the rules of a newer version
            raise ReleaseLostError from error
        # Events, not the whole plan: they are what was charged, and what the meter will allow.
        if plan.events != debit.request.events:
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
    """Present cost of an order.

    Attributes:
        budget: total of the dataset, of which people read the cost as a part.
    """

    plan: Plan
    price: Cost
    limits: SpendingLimits
    budget: Budget

    @property
    def times(self) -> int:
        """Number of orders of this cost that fit into the limits, one after the other; a free one always fits."""
        if not self.plan.events:
            return _ANY_NUMBER
        if self.limits.call is not None and not _times(self.price, self.limits.call):
            return 0
        parts = (self.limits.dataset, self.limits.allowance)
        return min(_times(self.price, limit) for limit in parts if limit is not None)

    def check(self) -> None:
        """Raise BudgetExhaustedError naming a limit that the cost exceeds; the ledger checks it again at the debit."""
        for name, limit in _named(self.limits):
            if not _times(self.price, limit):
                raise BudgetExhaustedError(self.price, limit, self.budget, name)


class Orders:
    """Maker of orders for fits, by the name of their RPC.

    The ledger is not written to here. The owner's limits `most` apply to new requests only, not to charged ones. Fits
    run in this process unless there is a runner.
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
        """Return the order of a principal's request.

        Raises:
            NotAvailableError: there is no such fit.
            InvalidFieldsError: the request has unknown fields, or contains a synthetic result.
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

        # Cached: the plan made before the debit is used after it, and, as long as no other debit came between, inside
        # the ledger's decision, where others wait.
        @functools.cache
        def plan(rho: float | None, rows: int | None) -> Plan:
            facts = replace(table, rows=rows)
            made: Plan = fit.plan(_resolved(request, rho), facts, released)
            return judged(made, facts)

        return Order(method, principal, request, _request_hash(method, principal, request), state, table.rows, plan)

    def quote(self, order: Order) -> Quote:
        """Return plan, cost and limits, exactly those of a debit made now. Reads no row, changes nothing.

        Raises:
            InvalidFieldsError: a field is wrong; names every such field.
            DatasetRetiredError, RowsUnavailableError: nothing new can be released.
            EngineError: the rows cannot be read now.
            BudgetExhaustedError: the order spends the remaining budget, and none remains.
        """
        # Read once: check, plan and answer then speak of one state of the ledger.
        limits = self._ledger.limits(order.state.name, order.principal)
        plan = order.free_plan()
        if plan is None:
            with _rows_needed():
                self._datasets.check(order.state)
            self._engine.check()
            plan = order.plan(_rest(limits, order.state.budget) if order.rest else None, order.rows)
        self.check(order, plan)
        return Quote(plan, price(plan.events, order.state.order), limits, order.state.budget)

    def ask(self, order: Order) -> DebitRequest | RestRequest:
        """Return the debit to request from the ledger, for an order that was not debited before.

        It requires rows that are as they were registered, which may be read as a whole for that.

        Raises as `quote` does, and InvalidFieldsError for an invalid request_id.
        """
        if not _REQUEST_ID.fullmatch(order.request.request_id):
            text = "must have 1 to 64 characters of [A-Za-z0-9_.:-]; a fresh UUID for every new request will do"
            raise InvalidFieldsError(("request_id", text))
        with _rows_needed():
            self._datasets.check(order.state)
        self._engine.check()
        rho = _rest(self._ledger.limits(order.state.name, order.principal), order.state.budget) if order.rest else None
        plan = order.plan(rho, order.rows)
        self.check(order, plan)
        if order.request.refuse_useless:
            check_useful(plan)
        # Last, since it may read the whole table: a request that is refused anyway must not cost that.
        with _rows_needed():
            self._datasets.compare(order.state)
        return order.debit_of_the_rest() if order.rest else order.debit()

    def check(self, order: Order, plan: Plan) -> None:
        """Check that the owner's limits allow the plan. Raises InvalidFieldsError."""
        check_fit(self._most, order.request, plan, order.rows)

    @contextlib.contextmanager
    def reserve(self, order: Order) -> Iterator[Work]:
        """Reserve the resources of this process for an order, and yield the work that a worker runs under a debit.

        Raises:
            NoRoomError: this process lacks the resources.
        """
        with self._runner.reserve() as reserved:
            yield lambda run: self._release(order, run, reserved)

    def _release(self, order: Order, run: PaidRun, reserved: Reserved) -> bytes:
        """Run a fit under its debit: the first moment at which rows are opened."""
        try:
            self._ledger.check_files()  # a debit that is lost with them would be drawn again
        except LedgerUnavailableError as error:
            raise NotBegunError from error
        plan = order.plan_of(run.debit)
        try:
            rows = self._datasets.rows(run.debit, plan.columns)
        except (LedgerUnavailableError, ShortageError) as error:
            raise NotBegunError from error
        except Exception as error:
            raise NothingReadError from error
        table = self._datasets.table(order.state)
        job = Job(
            method=order.method,
            plan=replace(plan, of_entry=run.debit.entry),
            rows=rows,
            adjacency=table.adjacency,
            unit_cap=table.unit_cap,
            engine=self._engine,
        )
        return _answer(job, reserved.run(job, run.advance))

    def computed(self, order: Order, plan: Plan, run: Run) -> bytes:
        """Run a free plan: there are no rows, and the meter refuses every release."""
        table = self._datasets.table(order.state)
        job = Job(
            method=order.method,
            plan=plan,
            rows=NoRows(order.state.order),
            adjacency=table.adjacency,
            unit_cap=table.unit_cap,
            engine=LocalEngine(),
        )
        return _answer(job, run_for_free(self._runner, job, run))

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
            # The empty release of a failed fit parses, too: as an answer without a model.
            message = METHODS[method].response.FromString(release or b"")
            model: Message | None = message.model if message.HasField("model") else None
            return model

        return released


def _answer(job: Job, made: bytes) -> bytes:
    """Return the bytes of a fit's model that are stored and sent. Raises if they are not a model of the fit."""
    # Parsed again: the bytes come from a process that reads rows, and must be a model before they are stored.
    response = METHODS[job.method].response()
    response.model.SetInParent()
    response.model.ParseFromString(made)
    answer: bytes = response.SerializeToString(deterministic=True)
    return answer


@contextlib.contextmanager
def _rows_needed() -> Iterator[None]:
    try:
        yield
    except ShortageError as error:
        raise NoRoomError from error.__cause__
    except TableError as error:
        log.failure(error)  # it names files: for the operator
        raise RowsUnavailableError(str(error)) from error


def _spends_the_rest(request: FitRequest) -> bool:
    return request.spend.WhichOneof("amount") == "remaining"


def _resolved(request: FitRequest, rho: float | None) -> FitRequest:
    """Return the request with an amount in place of the remaining budget."""
    if rho is None:
        return request
    resolved: FitRequest = _copy(request)
    resolved.spend.rho = rho
    return resolved


def _copy(request: FitRequest) -> Any:
    copy = type(cast(Message, request))()
    copy.ParseFromString(request.SerializeToString())
    return copy


def _rest(limits: SpendingLimits, budget: Budget) -> float:
    """Return the largest rho that one request may cost now. Raises BudgetExhaustedError if there is none."""
    for name, limit in _named(limits):
        if limit.cost_units < 1:
            raise BudgetExhaustedError(Cost(1, 0, limit.order), limit, budget, name)
    return limits.available.rho


def _named(limits: SpendingLimits) -> tuple[tuple[str, Remainder], ...]:
    """Return the existing limits, by the ledger's names."""
    found = (("dataset", limits.dataset), ("allowance", limits.allowance), ("call", limits.call))
    return tuple((name, limit) for name, limit in found if limit is not None)


def _times(cost: Cost, limit: Remainder) -> int:
    times = limit.cost_units // max(cost.cost_units, 1)
    return min(times, limit.delta_units // cost.delta_units) if cost.delta_units else times


_NOT_RELEASED = frozenset({"request_id", "decode_on_client", "estimate_on_client", "refuse_useless"})
"""Fields that do not affect the release, so they are not part of a request's identity."""


def _request_hash(method: str, principal: str, request: FitRequest) -> bytes:
    """Return the SHA-256 over method, principal and the fields that affect the release: the request's identity."""
    body: Message = _copy(request)
    for name in _NOT_RELEASED.intersection(body.DESCRIPTOR.fields_by_name):
        body.ClearField(name)
    parts = (method.encode(), principal.encode(), body.SerializeToString(deterministic=True))
    # Lengths first, so that no two different triples have one text.
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
