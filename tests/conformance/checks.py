"""Checks that every fit has to pass, whatever its method: each takes a `Case` and returns what is wrong, or None.

The checks know the seam of a fit (`plan`, `run`, a session) and nothing of any method, so that a new fit is checked by
its requests alone. `test_catalogue.py` runs them over all fits; `test_planted.py` shows that each sees the bugs that it
is there for.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray

from bursar import ServerError, _convert
from bursar._fits import BY_NAME
from bursar_ledger import (
    Adjacency,
    DebitRequest,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
    cost_units,
)
from bursar_proto.v1 import catalog_pb2, types_pb2
from bursar_server.fits import BoundedColumn, CodedColumn, Plan, PublicTable
from bursar_server.fits._seam import UNIT_ROWS
from bursar_server.vault import (
    CHUNK,
    ArrayRows,
    BlockEstimator,
    ExactNoise,
    ExactSearch,
    FitBudget,
    Forest,
    Meter,
    Noise,
    OverspendError,
    PartRelease,
    PartSearch,
    Scores,
    SelectionNoise,
    Session,
    Statistic,
    SyntheticBudget,
    exact_sum,
    sensitivity,
    transformed,
)

ORDER = Fraction(9)
"""Renyi order at which cases are priced; the checks hold at any."""

SLOTS = 61
"""Rows of a plain table."""

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A request that a fit is asked, and the public table that it is about.

    Attributes:
        name: for the test's name.
        fit: a module or value with `plan` and `run`.
        request: the message of its RPC.
        table: the public facts of the dataset.
        released: the model that the request may start from; None if there is none.
    """

    name: str
    fit: Any
    request: Any
    table: PublicTable
    released: Message | None = None

    def planned(self) -> Plan:
        """Return a new plan of the request."""
        made: Plan = self.fit.plan(self.request, self.table, lambda entry: self.released)
        return made

    @cached_property
    def plan(self) -> Plan:
        """The plan of the request, made once."""
        return self.planned()

    @cached_property
    def deaf(self) -> Mapping[str, Seen | Exception]:
        """Return the output of runs whose releases do not depend on rows, by table; plain rows come first."""
        return {name: attempt(self, rows, Deaf()) for name, rows in every_table(self)}


# --- tables -------------------------------------------------------------------------------------------------

ODD = (np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, -0.0, 0.5, 1e6, -3.0)
"""Values that a column may hold and that arithmetic may trip over."""


def uniform(seed: str, size: int) -> Array:
    """Numbers in [0, 1) that are the same in every version and on every machine."""
    drawn = np.frombuffer(hashlib.shake_256(seed.encode()).digest(8 * size), dtype="<u8")
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bell(seed: str, size: int) -> Array:
    """Numbers around 0 with variance 1, by additions and products alone."""
    return np.asarray((uniform(seed, 4 * size).reshape(4, size).sum(axis=0) - 2.0) * 1.7320508075688772)


def plain_column(column: BoundedColumn | CodedColumn | None, slots: int, cap: int) -> Array:
    """Values of a column around two places within its bounds; None is the column of a unit's number of rows."""
    if column is None:
        return np.floor(uniform("unit", slots) * cap) + 1.0
    if isinstance(column, CodedColumn):
        return np.floor(uniform(column.name, slots) * len(column.categories))
    width = column.upper - column.lower
    return np.asarray(column.lower + width * (0.25 + 0.5 * (np.arange(slots) % 2) + 0.05 * bell(column.name, slots)))


def plain_rows(case: Case, slots: int = SLOTS) -> ArrayRows:
    """Rows that a schema expects, with the columns of a case's plan."""
    columns: tuple[BoundedColumn | CodedColumn, ...] = (*case.table.numeric, *case.table.categorical)
    known = {column.name: column for column in columns}
    values = [
        plain_column(None if name == UNIT_ROWS else known[name], slots, case.table.unit_cap)
        for name in case.plan.columns
    ]
    return ArrayRows(np.array(values).reshape(len(values), slots))


def odd_tables(case: Case) -> Iterator[tuple[str, ArrayRows]]:
    """Tables of other sizes, odd and even, with rows that no import would store, by what is odd about them."""
    d = len(case.plan.columns)
    yield "no rows", ArrayRows(np.zeros((d, 0)))
    yield "one row", ArrayRows(plain_rows(case, 1).columns)
    yield "null rows, more than a block", ArrayRows(np.ones((d, CHUNK + 2)), np.zeros(CHUNK + 2, dtype=np.bool_))
    yield "no numbers", ArrayRows(np.full((d, 30), np.nan))
    yield "large numbers", ArrayRows(np.where(np.arange(31) % 2, 1e308, -1e308) * np.ones((d, 1)))
    mixed = np.array(ODD)[(np.arange(40 * d) * 7 % len(ODD)).reshape(d, 40)]
    yield "a mixture", ArrayRows(mixed)
    yield "rows far outside", ArrayRows(1e5 * plain_rows(case).columns)


def every_table(case: Case) -> Iterator[tuple[str, ArrayRows]]:
    """Yield plain rows, and the odd tables."""
    yield "plain rows", plain_rows(case)
    yield from odd_tables(case)


# --- noise --------------------------------------------------------------------------------------------------


class Silent:
    """Releases sums as they are, and chooses the best."""

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        return sums

    def argmax(self, scores: Integers, noise: SelectionNoise) -> int:
        """See `NoiseSource`."""
        return int(scores.argmax())

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """See `SearchSource`."""
        return scores.locate(scores.counts(1).top, 0)


class Deaf:
    """Releases and choices that rows have no part in: another pattern for each, of the size of the noise."""

    def __init__(self) -> None:
        self._number = 0

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        self._number += 1
        drawn = 4.0 * noise.scale * bell(f"deaf {self._number}", sums.size)
        return np.rint(drawn).astype(np.int64).reshape(sums.shape)

    def argmax(self, scores: Integers, noise: SelectionNoise) -> int:
        """See `NoiseSource`."""
        self._number += 1
        return self._number % scores.size

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """See `SearchSource`."""
        self._number += 1
        return 0, self._number % 3


class Huge(Silent):
    """Releases sums with the largest noise that they may get, and chooses the last."""

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        return sums + np.where(np.arange(sums.size) % 2, 2**61, -(2**61)).reshape(sums.shape)

    def argmax(self, scores: Integers, noise: SelectionNoise) -> int:
        """See `NoiseSource`."""
        return scores.size - 1


class Exact(ExactNoise, ExactSearch):
    """The noise and the searches of a server."""


# --- runs ---------------------------------------------------------------------------------------------------


class Counting(Meter):
    """A meter that also notes what it was charged."""

    def __init__(self, budget: FitBudget) -> None:
        super().__init__(budget)
        self.charged: list[Event] = []

    def charge(self, event: Event) -> None:
        """See `Meter`."""
        super().charge(event)
        self.charged.append(event)


class Watched(Session):
    """A session whose taps see what is summed over the table's rows, and not what is summed over blocks' estimates."""

    def blocks(self, rho: Fraction, estimator: BlockEstimator) -> Forest:
        """See `Session`."""
        tap, self._part_tap = self._part_tap, lambda operation: None
        try:
            return super().blocks(rho, estimator)
        finally:
            self._part_tap = tap


@dataclass
class Seen:
    """Output of a run.

    Attributes:
        model: it returned.
        charged: to the meter, in order.
        statistics: that were summed over rows for a release, a choice or a search, in order.
        steps: it reported.
    """

    model: Message | None = None
    charged: list[Event] = field(default_factory=list)
    statistics: list[Statistic] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the statistics."""
        return [(statistic.name, statistic.shape) for statistic in self.statistics]

    @property
    def told(self) -> tuple[bytes, list[tuple[int, int]]]:
        """Return what an analyst gets: the model's bytes and the steps."""
        content: bytes = b"" if self.model is None else self.model.SerializeToString(deterministic=True)
        return content, self.steps


def run(case: Case, rows: ArrayRows, source: Any) -> Seen:
    """Run the plan of a case on rows under its own debit."""
    seen = Seen()
    meter = Counting(SyntheticBudget(ORDER, cost_units(case.plan.events, ORDER)))

    def part_tap(operation: PartRelease | PartSearch) -> None:
        if isinstance(operation, PartRelease):
            seen.statistics.append(operation.statistic)
        else:
            seen.statistics.append(operation.family.statistic(0, 1))

    session = Watched(
        rows=transformed(rows, case.plan.transforms),
        columns=len(rows.columns),
        adjacency=case.table.adjacency,
        unit_cap=case.table.unit_cap,
        meter=meter,
        source=source,
        search_source=source,
        progress=lambda step, steps: seen.steps.append((step, steps)),
        tap=lambda release: seen.statistics.append(release.statistic),
        choice_tap=lambda choice: seen.statistics.append(choice.candidates.statistic),
        part_tap=part_tap,
    )
    seen.model = case.fit.run(case.plan, session)
    seen.charged = meter.charged
    return seen


def attempt(case: Case, rows: ArrayRows, source: Any) -> Seen | Exception:
    """Run a case; return what it raised if it did."""
    try:
        return run(case, rows, source)
    except Exception as error:
        return error


# --- checks -------------------------------------------------------------------------------------------------


def plan_is_public(case: Case) -> str | None:
    """Two plans of one request are alike, and the ledger can keep their parameters."""
    first, second = case.planned(), case.planned()
    for part in ("columns", "events", "iterations", "noise", "expected", "parameters"):
        if getattr(first, part) != getattr(second, part):
            return f"two plans of the same request have other {part}"
    if first.events:
        DebitRequest("people", "ann", "r", bytes(32), "Fit", first.events, first.parameters)
    columns: tuple[BoundedColumn | CodedColumn, ...] = (*case.table.numeric, *case.table.categorical)
    names = {column.name for column in columns} | {UNIT_ROWS}
    return None if set(first.columns) <= names else f"columns that the table has not: {first.columns}"


def price_is_the_spend(case: Case) -> str | None:
    """The events cost no more than was offered, and all but a millionth of it."""
    spend = case.request.spend if case.request.HasField("spend") else None
    if spend is None:
        return "a request without a spend has a price" if case.plan.events else None
    if not case.plan.events:
        return "a request with a spend costs nothing"
    if spend.HasField("rho"):
        offered, cost = Fraction(spend.rho), Fraction(cost_units(case.plan.events, ORDER), 2**40) / ORDER
        slack = Fraction(len(case.plan.events) + 1, 2**40)
    else:
        offered, cost = Fraction(spend.epsilon), sum((pure_epsilon(event) for event in case.plan.events), Fraction(0))
        slack = Fraction(0)
    if cost > offered + slack:
        return f"costs {float(cost)} where {float(offered)} was offered"
    return None if cost >= offered * (1 - Fraction(1, 10**6)) else f"costs {float(cost)} of {float(offered)} alone"


def pure_epsilon(event: Event) -> Fraction:
    """The pure epsilon of an event."""
    if isinstance(event, LaplaceEvent):
        return Fraction(event.count * event.groups * event.l1) / event.scale
    if isinstance(event, SelectionEvent):
        return 2 * event.count * Fraction(event.sensitivity) / event.scale
    if isinstance(event, PureEvent):
        return Fraction(event.epsilon)
    raise TypeError(f"{type(event).__name__} has no pure epsilon")


def releases_are_the_debit(case: Case) -> str | None:
    """Check that the meter is charged what the plan says on any table, release by release, and nothing else."""
    planned = flat(case.plan.events)
    for name, seen in case.deaf.items():
        if isinstance(seen, OverspendError):
            return f"{name}: more is released than the plan says"
        if isinstance(seen, Seen) and flat(seen.charged) != planned:
            return f"{name}: {len(seen.charged)} charges are not the {len(planned)} events of the plan"
    return None


def flat(events: Iterable[Event]) -> list[Event]:
    """Events one by one, in their order: an event that counts n times is n events."""
    singles: list[Event] = []
    for event in events:
        if isinstance(event, GaussianEvent | LaplaceEvent | SelectionEvent):
            singles += [replace(event, count=1)] * event.count
        else:
            singles.append(event)
    return singles


def total(case: Case) -> str | None:
    """No rows and no noise make a fit fail: a model that the SDK takes comes back, finite, after the same steps.

    Progress has left when a run is cut off, and is drawn again: so it must not depend on what was released.
    """
    runs = {
        **{
            f"{name}, {source.__name__.lower()} noise": attempt(case, rows, source())
            for source in (Exact, Silent, Huge)
            for name, rows in every_table(case)
        },
        **case.deaf,
    }
    wrongs = {name: incomplete(case, seen) for name, seen in runs.items()}
    steps = {tuple(seen.steps) for seen in runs.values() if isinstance(seen, Seen)}
    different = "the progress depends on releases" if len(steps) > 1 else None
    return next((f"{name}: {wrong}" for name, wrong in wrongs.items() if wrong), different)


def incomplete(case: Case, seen: Seen | Exception) -> str | None:
    """Return what is wrong with what left a run."""
    if isinstance(seen, Exception):
        return f"{type(seen).__name__}: {seen}"
    if not isinstance(seen.model, Message):
        return "no model"
    infinite = next((path for path, value in numbers(seen.model) if not math.isfinite(value)), None)
    if infinite is not None:
        return f"{infinite} is not finite"
    return refused_by_the_sdk(case, seen.model) or steps_of(seen.steps, case.plan.iterations)


def refused_by_the_sdk(case: Case, model: Message) -> str | None:
    """Return why the SDK would refuse a stored model: shapes, weights and covariances that are none, above all."""
    answer = catalog_pb2.GetReleaseResponse(n_components=getattr(case.request, "n_components", 0))
    fields = answer.DESCRIPTOR.oneofs_by_name["model"].fields
    name = next(one.name for one in fields if one.message_type is model.DESCRIPTOR)
    getattr(answer, name).CopyFrom(model)
    receipt = types_pb2.Receipt(adjacency=types_pb2.ADJACENCY_REPLACE_ONE)
    try:
        BY_NAME[name].stored(answer, _convert.receipt_from(receipt, replayed=True))
        if "decoded" in model.DESCRIPTOR.fields_by_name and model.HasField("decoded"):
            _convert.mixture_from(model.decoded, None)  # type: ignore[attr-defined] # the field is there
    except ServerError as error:
        return str(error)
    return None


def steps_of(steps: list[tuple[int, int]], iterations: int) -> str | None:
    """Return what is wrong with the steps that a run reported."""
    if not steps or steps[-1] != (iterations, iterations):
        return f"{steps[-1:]} at last where {iterations} steps were planned"
    if any(of != iterations for _, of in steps):
        return "another number of steps than was planned"
    return None if [step for step, _ in steps] == sorted({step for step, _ in steps}) else "steps out of order"


def numbers(message: Message, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every floating-point number of a message, by the path of its field."""
    for descriptor, value in message.ListFields():
        where = f"{path}{descriptor.name}"
        several = list(value) if descriptor.is_repeated else [value]
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for one in several:
                yield from numbers(one, f"{where}.")
        elif descriptor.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            yield from ((where, float(one)) for one in several)


def messages(message: Message) -> Iterator[Message]:
    """Yield every message within a message."""
    for descriptor, value in message.ListFields():
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if descriptor.is_repeated else (value,):
                yield one
                yield from messages(one)


def rows_decide_nothing(case: Case) -> str | None:
    """Check that under the same releases all tables have the same model, steps, charges and shapes, bit for bit."""
    first: Seen | None = None
    for name, seen in case.deaf.items():
        if isinstance(seen, Exception):
            return f"{name}: {type(seen).__name__}"
        first = first or seen
        if seen.steps != first.steps:
            return f"{name}: the progress differs"
        if seen.shapes != first.shapes or seen.charged != first.charged:
            return f"{name}: the releases differ in form"
        if seen.told != first.told:
            return f"{name}: the model differs"
    return None


def twins_are_close(case: Case) -> str | None:
    """No unit changes a sum by more than its release was priced for, by unbounded integers."""
    rows = plain_rows(case)
    seen = case.deaf["plain rows"]
    statistics = seen.statistics if isinstance(seen, Seen) else []
    for name, one, other in twins(case, rows):
        for statistic in statistics:
            claimed = sensitivity(statistic.bounds, case.table.adjacency, case.table.unit_cap)
            read = (transformed(table, case.plan.transforms) for table in (one, other))
            change = np.subtract(*(exact_sum(statistic, table, len(rows.columns)) for table in read))
            change = change.ravel().astype(object)
            if np.sum(change**2) > claimed.l2_squared or np.sum(np.abs(change)) > claimed.l1_total:
                return f"{name}: {statistic.name} changes by more than is claimed"
    return None


def twins(case: Case, rows: ArrayRows) -> Iterator[tuple[str, ArrayRows, ArrayRows]]:
    """Yield neighbouring tables: all rows of one unit are odd, and absent or opposite in the other table."""
    d, cap = len(rows.columns), case.table.unit_cap
    counted = case.plan.columns[-1:] == (UNIT_ROWS,)
    for value in (*ODD, 0.25, 1.0, 2.0):
        for i in range(d + 1):
            unit = np.full(d, value) if i == d else np.where(np.arange(d) == i, value, rows.columns[:, 0])
            if counted:
                unit[-1] = cap
            one, other = rows.columns.copy(), rows.columns.copy()
            one[:, :cap] = unit[:, None]
            other[:, :cap] = np.append(-unit[:-1], unit[-1:])[:, None] if counted else -unit[:, None]
            absent = np.arange(rows.slots) >= cap
            replaced = case.table.adjacency is Adjacency.REPLACE_ONE
            yield f"{value} in {i}", ArrayRows(one), ArrayRows(other) if replaced else ArrayRows(one, absent)


def free_of_charge(case: Case) -> str | None:
    """A request that starts from a release has no events, charges nothing, and gives the same model again."""
    if case.plan.events:
        return "a request without a spend has a price"
    nothing = ArrayRows(np.zeros((len(case.plan.columns), 0)))
    first, second = (run(case, nothing, Silent()) for _ in range(2))
    if first.charged or first.statistics:
        return "a free request made a release"
    return None if first.told == second.told else "the same request has two models"


CHECKS: Mapping[str, Callable[[Case], str | None]] = {
    check.__name__: check
    for check in (
        plan_is_public,
        price_is_the_spend,
        releases_are_the_debit,
        rows_decide_nothing,
        total,
        twins_are_close,
    )
}
"""Checks that every charged request has to pass, by name."""
