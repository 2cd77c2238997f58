"""Tables of the largest size, whose rows all add the most to one number: no sum of any fit leaves 64 bits.

Real plans, sessions and noise, over rows that are made as they are read. FitDPEM's first release once put 2^63 into a
count of 2^27 rows: it came out as -2^63, and its neighbour's as 2^63 - 2^36, 13 million standard deviations apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent, cost_units
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import dpem, gradient_em, mrf, separated_gmm, sketch
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.vault import (
    CHUNK,
    MAX_ROWS,
    ExactNoise,
    LocalEngine,
    Meter,
    PartRelease,
    PartSearch,
    Rows,
    Session,
    Statistic,
    SyntheticBudget,
    _statistic,
    exact_sum,
    sensitivity,
)
from bursar_server.vault._engine import Engine, Task, spans_of
from tests.each import each
from tests.server.fits import fielding, gradient, running, separated, sketching
from tests.server.fits.catalogue import CATALOGUE, Entry, contribution, rows

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE
ORDER = Fraction(9)
ODD = 12345
"""The slot in which D and D' differ."""

T = TypeVar("T")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Equal:
    """A table whose rows are all the same, but for one slot. In no memory.

    Attributes:
        row: (n_columns,) of all slots.
        odd: the row in the slot `ODD`; None: it is absent.
        slots: see `Rows`.
    """

    row: Array
    odd: Array | None
    slots: int = MAX_ROWS

    def read(self, first: int, block: Array, present: NDArray[np.bool_]) -> None:
        """See `Rows`."""
        block[:] = self.row[:, None]
        present[:] = np.arange(first, first + CHUNK) < self.slots
        if first <= ODD < first + CHUNK:
            present[ODD - first] = self.odd is not None
            block[:, ODD - first] = self.row if self.odd is None else self.odd


def neighbours(row: Array, other: Array, adjacency: Adjacency, slots: int = MAX_ROWS) -> tuple[Equal, Equal]:
    """D, whose rows are all alike, and D', which has another row, or none, in one slot."""
    return Equal(row, row, slots), Equal(row, other if adjacency is RO else None, slots)


@dataclass(frozen=True)
class Doubling:
    """An engine for `Equal` rows: sums one of the equal blocks, doubles it as often as there are others, and adds up.

    All of it by the task itself, which adds parts up in 64 bits as it does for every engine. Sums modulo 2^64 do not
    depend on the order, so a sum that would not fit wraps here as it does block by block, a thousand times as fast;
    `test_every_block_read_gives_the_same` compares the two.
    """

    threads: int = 1

    def run(self, task: Task[T], rows: Rows, columns: int) -> T:
        """See `Engine`."""
        firsts = [first for span in spans_of(rows.slots, 1) for first in span]
        odd = sorted({ODD // CHUNK * CHUNK, firsts[-1]})
        parts = [task.part(rows, columns, range(first, first + 1, CHUNK)) for first in odd]
        equal = next(first for first in firsts if first not in odd)
        part, times = task.part(rows, columns, range(equal, equal + 1, CHUNK)), len(firsts) - len(odd)
        while times:
            if times % 2:
                parts.append(part)
            part, times = task.whole([part, part]), times // 2
        return task.whole(parts)


def problem(statistic: Statistic, tables: Sequence[Equal], adjacency: Adjacency, engine: Engine) -> str | None:
    """Return what is wrong with the exact sums of a statistic over D and D', by unbounded integers; None: nothing."""
    sums = []
    for table in tables:
        usual = contribution(statistic, table.row).astype(object)
        odd = 0 * usual if table.odd is None else contribution(statistic, table.odd).astype(object)
        expected = (table.slots - 1) * usual + odd
        sums.append(exact_sum(statistic, table, len(table.row), engine=engine).ravel().astype(object))
        if not np.array_equal(sums[-1], expected):
            return f"{statistic.name}: {sums[-1][sums[-1] != expected][0]} for {expected[sums[-1] != expected][0]}"
    change = sums[0] - sums[1]
    claimed = sensitivity(statistic.bounds, adjacency, 1)
    if not (np.sum(change**2) <= claimed.l2_squared and np.sum(np.abs(change)) <= claimed.l1_total):
        return f"{statistic.name}: the sums of neighbours are further apart than claimed"
    return None


def adversarial(entry: Entry, statistic: Statistic, coordinate: int) -> tuple[Array, Array]:
    """The row that adds the most to a coordinate, and the one that adds the least."""
    generator = np.random.default_rng(1)  # noqa: TID251 - rows of a test
    found = list(rows(entry, generator))
    added = [int(contribution(statistic, row)[coordinate]) for row in found]
    return found[int(np.argmax(added))], found[int(np.argmin(added))]


@pytest.mark.slow
@each("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_no_statistic_overflows_on_the_largest_table(entry: Entry) -> None:
    """Rows are tried that add the most, or the least, to the first number and to the last, under both adjacencies."""
    statistic = entry.made(np.random.default_rng(0))  # noqa: TID251 - parameters of a test
    for coordinate in (0, statistic.size - 1):
        most, least = adversarial(entry, statistic, coordinate)
        for row, other in ((most, least), (least, most)):
            for adjacency in (AR, RO):
                tables = neighbours(row, other, adjacency)
                assert problem(statistic, tables, adjacency, Doubling()) is None


# --- whole fits ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A fit with its plan for a public table, and two rows.

    Attributes:
        module: of the fit.
        plan: by the adjacency and the public number of rows.
        row, other: (columns,) in the data's units.
    """

    module: Any
    plan: Callable[[Adjacency, int | None], Any]
    row: tuple[float, ...]
    other: tuple[float, ...]


def corners(module: Any, helper: Any, *, table: Any = None, d: int = 2, bound: float = 10.0, **fields: Any) -> Fit:
    """A fit on columns in [-bound, bound], of rows in one corner, the odd one in the corner across."""

    def planned(adjacency: Adjacency, slots: int | None) -> Any:
        public = (table or helper.table)(d, bound=bound, adjacency=adjacency, rows=slots)
        return helper.plan(public, **fields)

    return Fit(module, planned, (bound,) * d, (-bound,) * d)


def gradients(*, half: float | None = None, nullable: int = 0, **fields: Any) -> Fit:
    """FitGradientEM on two columns and perhaps a target, whose rows have all numbers."""

    def planned(adjacency: Adjacency, slots: int | None) -> Any:
        public = gradient.table(2, target=half, nullable=nullable, adjacency=adjacency, rows=slots)
        return gradient.plan(public, **fields)

    row = (8.0, 8.0) if half is None else (8.0, -8.0, half)
    return Fit(gradient_em, planned, row, tuple(-number for number in row))


def tables(**fields: Any) -> Fit:
    """FitMRF on categorical columns."""

    def planned(adjacency: Adjacency, slots: int | None) -> Any:
        return fielding.plan(fielding.people(adjacency=adjacency, rows=slots), **fields)

    return Fit(mrf, planned, (1.0, 2.0, 1.0, 2.0), (0.0, 0.0, 0.0, 0.0))


LITTLE = types_pb2.Spend(rho=0.1)
PURE = types_pb2.Spend(epsilon=2.0)
KMEANS, DIAG, TIED = fit_pb2.MODE_KMEANS, fit_pb2.COVARIANCE_TYPE_DIAG, fit_pb2.COVARIANCE_TYPE_TIED
TRUNCATED, DP_EM, RADIAL = (getattr(fit_pb2, f"GRADIENT_VARIANT_{name}") for name in ("TRUNCATED", "DP_EM", "RADIAL"))
PARTS = fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE
LINES: dict[str, Any] = {"target": "y", "spend": LITTLE, "iterations": 2}

FITS = {
    "dpem, the default": corners(dpem, running, n_components=2, spend=LITTLE),
    "dpem, k-means": corners(dpem, running, n_components=2, spend=LITTLE, mode=KMEANS, iterations=4),
    "dpem, diagonal": corners(dpem, running, n_components=2, spend=LITTLE, covariance_type=DIAG, iterations=4),
    "dpem, tied, pure": corners(dpem, running, n_components=2, spend=PURE, covariance_type=TIED, iterations=4),
    "gradient EM, symmetric": gradients(spend=LITTLE, iterations=2),
    "gradient EM, box": gradients(spend=LITTLE, iterations=2, variant=TRUNCATED, scale=1e-4),
    "gradient EM, mixture": gradients(spend=PURE, iterations=2, model=gradient.MIXTURE, variant=RADIAL),
    "gradient EM, regressions": gradients(half=8.0, model=gradient.REGRESSIONS, **LINES),
    "gradient EM, missing": gradients(half=8.0, nullable=1, model=gradient.MISSING, **LINES),
    "gradient EM, missing, box": gradients(
        half=8.0, nullable=1, model=gradient.MISSING, variant=TRUNCATED, scale=1e-5, **LINES
    ),
    "sketch, with a pilot": corners(sketch, sketching, new_sketch={"n_frequencies": 16}, spend=LITTLE, n_clusters=0),
    "sketch, one bit, pure": corners(
        sketch, sketching, spend=PURE, n_clusters=0, new_sketch={"sigma": 0.1, "signature": fit_pb2.SIGNATURE_ONE_BIT}
    ),
    "sketch, masked": corners(
        sketch, sketching, spend=LITTLE, n_clusters=0, new_sketch={"sigma": 0.1, "frequencies_per_row": 7}
    ),
    "tables": tables(spend=LITTLE),
    "tables of a tree": tables(tree=fit_pb2.SelectTree(), columns=["a", "b", "c", "d"], spend=LITTLE),
    "separated": corners(separated_gmm, separated, bound=100.0, spend=LITTLE, n_components=2),
    "separated, easy": corners(
        separated_gmm, separated, bound=100.0, spend=LITTLE, n_components=2, variant=fit_pb2.SEPARATED_VARIANT_EASY
    ),
    "separated, parts": corners(separated_gmm, separated, bound=100.0, spend=LITTLE, n_components=2, variant=PARTS),
}

LONG = {"separated, parts", "dpem, k-means", "tables", "tables of a tree"}
"""A second to a minute each: thousands of blocks of rows are read."""


@dataclass(frozen=True)
class Released:
    """A release of either kind: what was summed, what left, and by how much it may differ.

    Attributes:
        statistic: of it.
        noisy: flat, in lattice units.
        room: most that any number of two neighbours' releases differs by, but for one time in 10^50.
    """

    statistic: Statistic
    noisy: Any
    room: float


def whole_run(fit: Fit, adjacency: Adjacency, table: Equal) -> list[Released]:
    """Run a fit under real noise; returns its releases."""
    made = fit.plan(adjacency, table.slots if adjacency is RO else None)
    seen: list[Released] = []

    def tap(release: Any) -> None:
        if isinstance(release, PartRelease | PartSearch) and not made_of_rows(release, len(table.row)):
            return
        if isinstance(release, PartSearch):
            seen.append(Released(release.family.statistic(0, 1), np.zeros(0), 0.0))
        elif isinstance(release, PartRelease):
            seen.append(Released(release.statistic, release.noisy.ravel().astype(object), 40.0 * release.noise.scale))
        else:
            event = release.event
            assert isinstance(event, GaussianEvent | LaplaceEvent)
            change = event.l2_squared**0.5 if isinstance(event, GaussianEvent) else float(event.groups * event.l1)
            room = change + (40.0 if isinstance(event, GaussianEvent) else 300.0) * release.noise.scale
            seen.append(Released(release.statistic, release.noisy.ravel().astype(object), room))

    session = Session(
        rows=table,
        columns=len(table.row),
        adjacency=adjacency,
        unit_cap=1,
        meter=Meter(SyntheticBudget(ORDER, cost_units(made.events, ORDER))),
        source=ExactNoise(),
        engine=Doubling(),
        tap=tap,
        choice_tap=lambda choice: seen.append(Released(choice.candidates.statistic, np.zeros(0), 0.0)),
        part_tap=tap,
    )
    fit.module.run(made, session)
    return seen


def made_of_rows(operation: PartRelease | PartSearch, columns: int) -> bool:
    """Return whether an operation is on rows, and not on the answers of blocks, which have other columns."""
    made: Any = operation.family if isinstance(operation, PartSearch) else operation.statistic.kernel
    return len(made.frame.centre) == columns


def apart(fit: Fit, adjacency: Adjacency, slots: int = MAX_ROWS) -> list[str]:
    """Run on D and D'; returns what is wrong with releases, sums and scores."""
    row, other = np.array(fit.row), np.array(fit.other)
    pair = neighbours(row, other, adjacency, slots)
    here, there = (whole_run(fit, adjacency, table) for table in pair)
    found = [problem(one.statistic, pair, adjacency, Doubling()) for one in (*here, *there)]
    first, neighbour = here[0], there[0]  # later ones depend on noise, which differs
    if first.noisy.size and max(np.abs(first.noisy - neighbour.noisy)) > first.room:
        found.append(f"{first.statistic.name}: the first releases of neighbours are too far apart")
    return [sentence for sentence in found if sentence]


@pytest.mark.parametrize("adjacency", [AR, RO], ids=lambda one: one.value)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in FITS])
def test_fits_release_what_they_claim_on_the_largest_table(name: str, adjacency: Adjacency) -> None:
    """Sums of every release, search and choice are exact from plan to noise, and so are the first distances."""
    assert apart(FITS[name], adjacency) == []


@pytest.mark.parametrize("adjacency", [AR, RO], ids=lambda one: one.value)
@pytest.mark.parametrize("name", ["dpem, the default", "dpem, k-means"])
def test_a_table_of_one_row_more_is_found(name: str, adjacency: Adjacency) -> None:
    """The planted bug, which was there: with 2^27 rows the count of the first release leaves 64 bits."""
    nothing = replace(FITS[name], other=(np.nan, np.nan))  # a null row under either adjacency
    found = apart(nothing, adjacency, MAX_ROWS + 1)
    assert any("-9223372036854775808 for 9223372036854775808" in sentence for sentence in found)
    assert any("first releases of neighbours are too far apart" in sentence for sentence in found)


def test_more_rows_than_a_sum_has_room_for_are_refused_by_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest statistics cannot be made for 2^27 rows; half of their lattice can."""
    monkeypatch.setattr(_statistic, "MAX_ROWS", 2**27)
    with pytest.raises(ValueError, match="134217728 rows add up to less than 2\\^63, got 68719476736"):
        one_component(1.0)
    assert one_component(0.5).largest == 2**35


def one_component(weight: float) -> Statistic:
    """FitDPEM's statistic of one component that has all of every row, with all weights alike."""
    zero, one = np.zeros((1, 1)), np.ones((1, 1, 1))
    step = EStep(True, np.zeros(1), zero, one, True, zero, one)
    return moment_statistic(BallFrame(zero[0], one[0, 0]), step, Moments.DIAG, Weights(weight, weight, weight))


OF_EACH_FIT = ("moment_statistic", "sketch_statistic", "table_statistic", "gradient_statistic", "slab_statistic")
FIRSTS = {entry.function.__name__: entry for entry in reversed(CATALOGUE)}
"""One statistic of each function."""


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH_FIT)
def test_every_block_read_gives_the_same(name: str) -> None:
    """One statistic of each fit, block by block through all 134,217,727 slots by the engine that fits have.

    About ten seconds each on two calm processors. All statistics are added up by one task, so one of a fit is enough.
    """
    entry = FIRSTS[name]
    statistic = entry.made(np.random.default_rng(0))  # noqa: TID251 - parameters of a test
    most, least = adversarial(entry, statistic, 0)
    assert problem(statistic, neighbours(most, least, AR), AR, LocalEngine(2)) is None
