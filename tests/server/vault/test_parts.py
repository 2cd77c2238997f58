"""Forests: who is in a part, what paths pay, and a per-record odometer over random forests on neighbouring tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bursar_ledger import COST_UNIT, Adjacency, ConcentratedEvent, GaussianEvent, cost_units, rdp
from bursar_server.vault import (
    CHUNK,
    ArrayRows,
    Bounds,
    Factor,
    Forest,
    GaussianNoise,
    LaplaceNoise,
    LocalEngine,
    Meter,
    Node,
    OpenDPNoise,
    OverspendError,
    PartRelease,
    PartSearch,
    PathMeter,
    Rows,
    Rule,
    ScoreBounds,
    Scores,
    SelectionNoise,
    Session,
    Statistic,
    SyntheticBudget,
    gaussian_for,
    part_cost,
    part_sensitivity,
    search_noise_for,
    sensitivity,
)
from bursar_server.vault import _parts as parts
from tests.each import each
from tests.server.vault.doubles import Best, Echo, Untouchable

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE
ORDER = Fraction(9)
Generator = np.random.Generator  # noqa: TID251 - public randomness of tests
Row = tuple[int, int] | None
"""(place, content) of a row; None is the null row."""
Vector = tuple[int, ...]


class Untouchables(Untouchable):
    """Rows, noise and draws of which no one may ask anything."""

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """Fail: a candidate was drawn."""
        pytest.fail("a candidate was drawn")


def table(rows: Sequence[Row]) -> ArrayRows:
    """Two columns: place and content."""
    numbers = np.array([row or (0, 0) for row in rows], dtype=np.float64).reshape(-1, 2).T
    return ArrayRows(np.ascontiguousarray(numbers), np.array([row is not None for row in rows], dtype=np.bool_))


def forest_on(
    rows: Rows,
    rho: Fraction = Fraction(1),
    *,
    adjacency: Adjacency = AR,
    unit_cap: int = 1,
    source: Any = None,
    search_source: Any = None,
    threads: int = 1,
    tap: Callable[[PartRelease | PartSearch], None] = lambda operation: None,
) -> Forest:
    """A forest of a session that has enough."""
    session = Session(
        rows=rows,
        columns=2,
        adjacency=adjacency,
        unit_cap=unit_cap,
        meter=Meter(SyntheticBudget(ORDER, 2**80)),
        source=source or Echo(),
        search_source=search_source or Best(),
        engine=LocalEngine(threads),
        part_tap=tap,
    )
    return session.forest(rho)


# Rules, statistics and families of these tests; each says what it does to one row, too, in plain Python


@dataclass(frozen=True, eq=False)
class Places:
    """Label by place: how many of the cuts are at most the place."""

    cuts: tuple[int, ...]

    @property
    def ways(self) -> int:
        """See `Rule`."""
        return len(self.cuts) + 1

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """See `Rule`."""
        labels[:] = sum((block[0] >= cut).astype(np.int16) for cut in self.cuts)

    def label(self, row: tuple[int, int]) -> int:
        """Return the label of one row."""
        return sum(row[0] >= cut for cut in self.cuts)


def inside(node: Node, row: Row) -> bool:
    """Return whether a row is in a node, by the rules on its way."""
    if row is None:
        return False
    here: Node | None = node
    while here is not None and here.rule is not None:
        assert isinstance(here.rule, Places)
        if here.rule.label(row) != here.label:
            return False
        here = here.parent
    return True


def statistic_of(contributions: Sequence[Vector], *, non_negative: bool = False) -> Statistic:
    """A statistic to which a row of content i contributes the i-th vector; its tight bounds."""
    matrix = np.array(contributions, dtype=np.int64)

    def kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        out += matrix[block[1, present].astype(np.int64)].sum(axis=0)

    zero = (0,) * matrix.shape[1]
    bounds = Bounds(
        l1=max(sum(map(abs, v)) for v in contributions),
        l2_squared=max(squared(v, zero) for v in contributions),
        l1_distance=max(1, *(sum(abs(x - y) for x, y in zip(a, b, strict=True)) for a, b in pairs(contributions))),
        l2_squared_distance=max(1, *(squared(a, b) for a, b in pairs(contributions))),
        non_negative=non_negative,
    )
    return Statistic(
        "vectors", kernel, (Factor("one", 4),), (matrix.shape[1],), bounds, int(np.abs(matrix).max(initial=1))
    )


def pairs(vectors: Sequence[Vector]) -> list[tuple[Vector, Vector]]:
    """All ordered pairs."""
    return [(a, b) for a in vectors for b in vectors]


def squared(a: Sequence[int], b: Sequence[int]) -> int:
    """Squared L2 distance."""
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


CONTENTS = 6
VECTORS = (
    statistic_of([(3, 0), (0, 3), (-3, 0), (0, -3), (2, 2), (-2, 2)]),
    statistic_of([(5, 1), (5, 0), (5, 1), (4, 3), (5, 0), (5, 1)]),
    statistic_of([(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)], non_negative=True),
    statistic_of([(1,), (1,), (1,), (1,), (1,), (1,)], non_negative=True),
)
"""Directions that oppose one another, contents near one another and far from zero, a table of counts, a count."""
SLACK = 2
STARTS, STOPS = np.array(list(itertools.combinations(range(1, CONTENTS), 2))).T


@dataclass(frozen=True)
class Slabs:
    """Slabs of contents, in an order of each group; a slab with many inside, many outside, few on its rim is good.

    A row that comes adds one to the least of three counts at most, or `SLACK` to what is taken off.
    """

    cap: int = 3
    batch: int = 2

    @property
    def bounds(self) -> ScoreBounds:
        """See `Family`."""
        return ScoreBounds(1 + SLACK, 2 * (1 + SLACK))

    @property
    def groups(self) -> int:
        """Three orders."""
        return 3

    def statistic(self, first: int, stop: int) -> Statistic:
        """Counts of contents in each order."""
        turned = np.stack([turn(group) for group in range(first, stop)])

        def kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
            counts = np.bincount(block[1, present].astype(np.int64), minlength=CONTENTS)
            out += counts[turned].ravel()

        return Statistic("contents", kernel, (Factor("one", 1),), turned.shape, Bounds(3, 3, 6, 6), 1)

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the scores of all slabs [start, stop) with a rim of one content on each side."""
        below = np.concatenate([[0], np.cumsum(sums)])
        rim, within = sums[STARTS - 1] + sums[STOPS], below[STOPS] - below[STARTS]
        fewest = np.minimum(np.minimum(within, sums.sum() - rim - within), self.cap)
        return np.asarray(fewest - SLACK * rim, dtype=np.int64)


def turn(group: int) -> NDArray[np.int64]:
    """The order of contents of a group."""
    return (np.arange(CONTENTS) * (1, 5, 1)[group] + (0, 0, 2)[group]) % CONTENTS


def scores_of(family: Slabs, contents: Sequence[int]) -> NDArray[np.int64]:
    """All scores on rows with these contents, computed directly."""
    counts = np.bincount(np.array(contents, dtype=np.int64), minlength=CONTENTS)
    return np.concatenate([family.scores(group, counts[turn(group)]) for group in range(family.groups)])


# Lemma 1: one operation on one part


def slots(adjacency: Adjacency, cap: int) -> Iterator[tuple[list[Row], list[Row]]]:
    """Contents of a unit's slots before and after; place 1 is in the part, place 0 is not."""
    rows: list[Row] = [None, (0, 0), *((1, content) for content in range(CONTENTS))]
    rng = np.random.default_rng([7, cap])  # noqa: TID251 - public contents of a test
    mixed = [[[rows[i] for i in rng.integers(0, len(rows), cap)] for _ in range(2)] for _ in range(60 * (cap - 1))]
    for before, after in [*([[a] * cap, [b] * cap] for a in rows for b in rows), *mixed]:
        if adjacency is RO:
            yield before, after
        else:
            yield before, [None] * cap
            yield [None] * cap, after


def share(before: Sequence[Row], after: Sequence[Row], adjacency: Adjacency) -> Fraction:
    """The part of an operation's price that a unit's slots account for: u of the proof."""
    touched = sum(row is not None and row[0] == 1 for row in (*before, *after))
    return Fraction(touched, len(before) * (2 if adjacency is RO else 1))


@each("adjacency", [AR, RO])
@each("cap", [1, 2, 3])
@each("statistic", VECTORS, ids=["opposed", "near", "table", "count"])
def test_a_release_tells_what_the_units_share_of_its_price_allows(
    statistic: Statistic, cap: int, adjacency: Adjacency
) -> None:
    """The squared change is at most u times the sensitivity, over contents of a unit in the part and outside."""
    claimed, largest = part_sensitivity(statistic.bounds, adjacency, cap), Fraction(0)
    for before, after in slots(adjacency, cap):
        change = np.subtract(*(part_sum(statistic, rows) for rows in (before, after)))
        part = share(before, after, adjacency)
        assert int((change**2).sum()) <= part * claimed.l2_squared
        assert int(np.abs(change).sum()) <= claimed.l1_total
        if part:
            largest = max(largest, int((change**2).sum()) / (part * claimed.l2_squared))
    assert largest == 1


def part_sum(statistic: Statistic, rows: Sequence[Row]) -> NDArray[np.int64]:
    """The sum over rows in place 1."""
    out = np.zeros(statistic.size, dtype=np.int64)
    seen = table([row for row in rows if row is not None and row[0] == 1])
    statistic.kernel(seen.columns, np.ones(seen.slots, dtype=np.bool_), out)
    return out


def units(cap: int, contents: int, adjacency: Adjacency) -> Iterator[tuple[list[int | None], list[int | None]]]:
    """All contents of a unit's rows in a part before and after, slot by slot; None: not in the part, or null."""
    rows = [None, *range(contents)]
    for before in itertools.product(rows, repeat=cap):
        for after in itertools.product(rows if adjacency is RO else [None], repeat=cap):
            yield list(before), list(after)


def portion(before: Sequence[int | None], after: Sequence[int | None], adjacency: Adjacency) -> Fraction:
    """U of the proof."""
    touched = sum(row is not None for row in (*before, *after))
    return Fraction(touched, len(before) * (2 if adjacency is RO else 1))


CONTRIBUTIONS = st.integers(1, 2).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(-3, 3)] * width).filter(any), min_size=1, max_size=3, unique=True)
)


@settings(max_examples=40)
@given(CONTRIBUTIONS, st.booleans(), st.integers(1, 2), st.sampled_from([AR, RO]))
def test_no_contributions_tell_more(
    contributions: list[Vector], non_negative: bool, cap: int, adjacency: Adjacency
) -> None:
    """No unit, in the part or not, changes its sum by more than its share, whatever rows contribute."""
    vectors = [tuple(map(abs, v)) for v in contributions] if non_negative else contributions
    claimed = part_sensitivity(statistic_of(vectors, non_negative=non_negative).bounds, adjacency, cap)
    zero = (0,) * len(vectors[0])
    for before, after in units(cap, len(vectors), adjacency):
        inside = ([zero, *(vectors[i] for i in rows if i is not None)] for rows in (before, after))
        ours, theirs = ([sum(column) for column in zip(*rows, strict=True)] for rows in inside)
        assert squared(ours, theirs) <= portion(before, after, adjacency) * claimed.l2_squared


@settings(max_examples=40)
@given(st.data(), st.integers(1, 2), st.sampled_from([AR, RO]))
def test_no_scores_tell_more(data: st.DataObject, cap: int, adjacency: Adjacency) -> None:
    """Random scores, not linear in the rows, with the ranges of single rows that brute force finds for them."""
    weights = st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=2, max_size=4)
    first, second = (np.array(data.draw(weights)) for _ in range(2))
    counts = [np.array(pair) for pair in itertools.product(range(4), repeat=2)]

    def scores(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(np.minimum((first @ rows)[:, None], (second @ rows)[None, :]).ravel())

    def spread(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
        return int(np.ptp(scores(a) - scores(b)))

    rows = np.eye(2, dtype=np.int64)
    one = max(spread(n + row, n) for n in counts for row in rows)
    other = max(spread(n + rows[0], n + rows[1]) for n in counts)
    assert other <= 2 * one
    if not other:
        return
    bounds = ScoreBounds(one, other)
    variance = Fraction(search_noise_for(bounds, adjacency, cap, Fraction(1)).scale) ** 2
    others = np.array(data.draw(st.tuples(st.integers(0, 3 - cap), st.integers(0, 3 - cap))))
    for before, after in units(cap, 2, adjacency):
        a, b = (others + sum((rows[i] for i in unit if i is not None), 0 * others) for unit in (before, after))
        assert Fraction(spread(a, b) ** 2) / (8 * variance) <= portion(before, after, adjacency)


@pytest.mark.parametrize("adjacency", [AR, RO])
@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_search_tells_what_the_units_share_of_its_price_allows(cap: int, adjacency: Adjacency) -> None:
    """The squared range of scores' changes is at most u W^2, over contents of a unit and of the part's rows."""
    rng = np.random.default_rng([8, cap])  # noqa: TID251 - public rows of a test
    family, largest = Slabs(), Fraction(0)
    scale = search_noise_for(family.bounds, adjacency, cap, Fraction(1)).scale
    for others in [[], [0], [3, 3], *(rng.integers(0, CONTENTS, n).tolist() for n in (2, 4, 6))]:
        for before, after in slots(adjacency, cap):
            both = (others + [row[1] for row in rows if row and row[0] == 1] for rows in (before, after))
            change = np.subtract(*(scores_of(family, contents) for contents in both))
            spread, part = int(np.ptp(change)), share(before, after, adjacency)
            cost = Fraction(spread**2) / (8 * Fraction(scale) ** 2)
            assert cost <= part
            largest = max(largest, cost / part if part else Fraction(0))
    assert largest > (0.99 if cap == 1 else 0.4)


@pytest.mark.parametrize(("adjacency", "expected"), [(AR, 3), (RO, 6)])
def test_the_ranges_of_the_example_are_what_brute_force_finds(adjacency: Adjacency, expected: int) -> None:
    """Scores of the kind "least of counts, less twice another" move apart by three, or by six in a replacement."""
    family, found = Slabs(), 0
    for n in range(5):
        for rows in itertools.combinations_with_replacement(range(CONTENTS), n):
            ours = scores_of(family, rows)
            for row in range(CONTENTS):
                added = scores_of(family, (*rows, row))
                if adjacency is AR:
                    found = max(found, int(np.ptp(added - ours)))
                else:
                    for other in range(row):  # the range is the same both ways
                        found = max(found, int(np.ptp(scores_of(family, (*rows, other)) - added)))
    assert found == expected


@pytest.mark.parametrize(
    ("bounds", "adjacency", "cap", "expected"),
    [
        (Bounds(3, 9, 6, 36), AR, 1, 9),
        (Bounds(3, 9, 6, 36), RO, 1, 36),
        (Bounds(3, 9, 6, 36), RO, 2, 144),
        (Bounds(3, 9, 3, 9), RO, 1, 18),
        (Bounds(1, 1, 1, 1, non_negative=True), RO, 3, 18),
        (Bounds(3, 9, 6, 36, non_negative=True), RO, 1, 18),
        (Bounds(3, 9, 6, 36, non_negative=True), AR, 3, 81),
    ],
)
def test_parts_are_priced_by_at_least_twice_the_norm(
    bounds: Bounds, adjacency: Adjacency, cap: int, expected: int
) -> None:
    """A row that comes alone costs half of the price under REPLACE_ONE; ADD_REMOVE_ONE changes nothing."""
    priced = part_sensitivity(bounds, adjacency, cap)
    assert priced.l2_squared == expected
    assert part_cost(bounds, adjacency, cap, GaussianNoise(3.0)) == Fraction(expected, 18)
    whole = sensitivity(bounds, adjacency, cap)
    assert replace(priced, l2_squared=whole.l2_squared) == whole


@pytest.mark.parametrize(("adjacency", "cap", "expected"), [(AR, 1, 9), (AR, 2, 36), (RO, 1, 36), (RO, 3, 324)])
def test_searches_are_priced_by_their_range(adjacency: Adjacency, cap: int, expected: int) -> None:
    """(range / scale)^2 / 8, with the range of a replacement, or sqrt(2) times that of one row."""
    assert part_cost(ScoreBounds(3, 6), adjacency, cap, SelectionNoise(2.0)) == Fraction(expected, 32)
    level = part_cost(ScoreBounds(3, 2), adjacency, cap, SelectionNoise(2.0))
    assert level == Fraction(9 * cap**2 * (2 if adjacency is RO else 1), 32)


@given(st.integers(1, 50), st.integers(1, 4), st.sampled_from([AR, RO]), st.fractions(Fraction(1, 10**6), 10))
def test_noise_of_a_search_is_the_least_that_the_spend_covers(
    one: int, cap: int, adjacency: Adjacency, rho: Fraction
) -> None:
    """The cost is at most rho, and more at the next smaller scale."""
    bounds = ScoreBounds(one, 2 * one)
    noise = search_noise_for(bounds, adjacency, cap, rho)
    below = SelectionNoise(math.nextafter(noise.scale, 0.0))
    assert part_cost(bounds, adjacency, cap, noise) <= rho < part_cost(bounds, adjacency, cap, below)


def test_bounds_of_a_whole_unit_are_refused() -> None:
    """They bound the sum over all rows of a unit, not over those in a part."""
    shared = replace(VECTORS[3], bounds=replace(VECTORS[3].bounds, per_unit=True))
    with pytest.raises(ValueError, match="per_unit"):
        part_sensitivity(shared.bounds, RO, 2)
    forest = forest_on(Untouchables(), source=Untouchables())
    with pytest.raises(ValueError, match="per_unit"):
        forest.noisy_sum(forest.tree(), shared, GaussianNoise(100.0))


@pytest.mark.parametrize("cap", [0, -1])
def test_a_unit_owns_at_least_one_row(cap: int) -> None:
    """A cap below one would price an operation at nothing."""
    for adjacency in (AR, RO):
        with pytest.raises(ValueError, match="unit_cap"):
            part_sensitivity(VECTORS[0].bounds, adjacency, cap)
        with pytest.raises(ValueError, match="unit_cap"):
            search_noise_for(ScoreBounds(1, 2), adjacency, cap, Fraction(1))


def test_other_noise_has_no_price_on_a_part() -> None:
    """Laplace noise, or the noise of a search on a sum: refused before anything is read."""
    forest = forest_on(Untouchables(), source=Untouchables())
    root = forest.tree()
    for noise in (LaplaceNoise(1e9), SelectionNoise(1e9)):
        with pytest.raises(TypeError, match="a part takes"):
            forest.noisy_sum(root, VECTORS[0], noise)  # type: ignore[arg-type] # the wrong kind
    assert forest.left(root) == 1


# The odometer: random forests on neighbouring tables


@dataclass
class Forester:
    """Grows a forest at random and releases at random, with what is left on each node, or a part of it."""

    rng: Generator
    adjacency: Adjacency
    cap: int
    seen: list[PartRelease | PartSearch] = field(default_factory=list)

    def work(self, rows: Rows, rho: Fraction, steps: int = 14) -> None:
        """Every operation is seen by the tap."""
        forest = forest_on(rows, rho, adjacency=self.adjacency, unit_cap=self.cap, tap=self.seen.append)
        nodes = [forest.tree()]
        for step in range(steps):
            node = nodes[self.rng.integers(len(nodes))]
            action = self.rng.integers(8)
            if action == 0 and step < steps // 2:
                nodes.append(forest.tree())
            elif action <= 3:
                cuts = np.unique(self.rng.integers(1, 8, self.rng.integers(1, 3))).tolist()
                nodes += forest.split(node, Places(tuple(cuts)))
            else:
                # The first half of the steps leaves something for the second.
                portion = Fraction(1, int(self.rng.integers(3, 6))) if step < steps // 2 else Fraction(1)
                self.operate(forest, node, portion * forest.left(node))
        for node in nodes:
            self.operate(forest, node, forest.left(node))

    def operate(self, forest: Forest, node: Node, rho: Fraction) -> None:
        """One operation for rho."""
        if rho < Fraction(1, 10**6):
            return
        if self.rng.integers(3) == 0:
            forest.search(node, Slabs(), search_noise_for(Slabs().bounds, self.adjacency, self.cap, rho))
            return
        statistic = VECTORS[self.rng.integers(len(VECTORS))]
        noise = gaussian_for(part_sensitivity(statistic.bounds, self.adjacency, self.cap), rho)
        forest.noisy_sum(node, statistic, noise)


def told(operation: PartRelease | PartSearch, rows: Sequence[Row], others: Sequence[Row]) -> Fraction:
    """Rho that an operation really tells of two tables: from the true change, by rules asked row by row."""
    here, there = ([row for row in one if inside(operation.node, row)] for one in (rows, others))
    variance = Fraction(operation.noise.scale) ** 2
    if isinstance(operation, PartRelease):
        change = np.subtract(*(full_sum(operation.statistic, one) for one in (here, there)))
        return int((change**2).sum()) / (2 * variance)
    assert isinstance(operation.family, Slabs)
    contents = ([row[1] for row in one if row is not None] for one in (here, there))
    change = np.subtract(*(scores_of(operation.family, one) for one in contents))
    return int(np.ptp(change)) ** 2 / (8 * variance)


def full_sum(statistic: Statistic, rows: Sequence[Row]) -> NDArray[np.int64]:
    """The sum over all rows."""
    out, seen = np.zeros(statistic.size, dtype=np.int64), table(rows)
    statistic.kernel(seen.columns, np.ones(seen.slots, dtype=np.bool_), out)
    return out


def neighbours(rng: Generator, adjacency: Adjacency, cap: int) -> tuple[list[Row], list[Row]]:
    """Two tables that differ in one unit's slots; sometimes nobody else is there."""
    others: list[Row] = [some_row(rng) for _ in range(rng.integers(0, 6))]
    ours: list[Row] = [some_row(rng) for _ in range(cap)]
    theirs: list[Row] = [some_row(rng) for _ in range(cap)] if adjacency is RO else [None] * cap
    if rng.integers(2):  # all rows of the unit in one place, or null
        ours, theirs = ([rows[0]] * cap for rows in (ours, theirs))
    if adjacency is RO and rng.integers(4) == 0:
        theirs = [None] * cap
    return others + ours, others + theirs


def some_row(rng: Generator) -> tuple[int, int]:
    """Anything anywhere."""
    place, content = rng.integers(0, 8), rng.integers(0, CONTENTS)
    return int(place), int(content)


def odometer(adjacency: Adjacency, cap: int, runs: int, rho: Fraction = Fraction(1, 3)) -> list[Fraction]:
    """Return what the whole transcript of each of some random forests tells of a random pair, as a part of rho."""
    found = []
    for run in range(runs):
        rng = np.random.default_rng([9, cap, run])  # noqa: TID251 - public randomness of a test
        forester = Forester(rng, adjacency, cap)
        rows, others = neighbours(rng, adjacency, cap)
        forester.work(table(rows), rho)
        found += [
            sum((told(one, a, b) for one in forester.seen), Fraction(0)) / rho
            for a, b in [(rows, others), *(neighbours(rng, adjacency, cap) for _ in range(6))]
        ]
    return found


@pytest.mark.parametrize("adjacency", [AR, RO])
@pytest.mark.parametrize("cap", [1, 2, 3])
def test_no_transcript_tells_more_than_the_forest_was_charged(adjacency: Adjacency, cap: int) -> None:
    """The true cost of all operations on a true pair is at most rho, exactly, whatever a fit does."""
    found = odometer(adjacency, cap, runs=25)
    assert max(found) <= 1
    assert max(found) > (0.5 if cap == 1 else 0.15)  # the pairs do come near


def test_prices_without_the_square_root_of_two_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: parts priced like whole tables under REPLACE_ONE; a row that moves pays on two paths in full."""

    def plain(bounds: Any, adjacency: Adjacency, cap: int, noise: Any) -> Fraction:
        if isinstance(bounds, ScoreBounds):
            return Fraction((cap * bounds.range_one) ** 2) / (8 * Fraction(noise.scale) ** 2)
        return sensitivity(bounds, AR, cap).l2_squared / (2 * Fraction(noise.scale) ** 2)

    monkeypatch.setattr(parts, "part_cost", plain)
    monkeypatch.setattr(f"{__name__}.part_sensitivity", lambda bounds, adjacency, cap: sensitivity(bounds, AR, cap))
    found = told_of_one_move(RO)
    assert found > 1


def told_of_one_move(adjacency: Adjacency) -> Fraction:
    """A row moves from one child to the other, and each child's count is released with all it has."""
    rows: list[Row] = [(0, 0)]
    others: list[Row] = [(5, 0)]
    forester = Forester(np.random.default_rng(1), adjacency, 1)  # noqa: TID251 - public randomness of a test
    forest = forest_on(table(rows), Fraction(1), adjacency=adjacency, tap=forester.seen.append)
    for child in forest.split(forest.tree(), Places((3,))):
        noise = gaussian_for(part_sensitivity(VECTORS[3].bounds, adjacency, 1), forest.left(child))
        forest.noisy_sum(child, VECTORS[3], noise)
    return sum((told(one, rows, others) for one in forester.seen), Fraction(0))


def test_a_row_that_moves_pays_half_on_each_path() -> None:
    """The same move tells rho and no more with the rule; and it is attained."""
    found = told_of_one_move(RO)
    assert 1 - Fraction(1, 10**12) < found <= 1


def test_levels_that_are_charged_once_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a meter that forgets what ancestors spent, so that every level has the whole of rho."""
    monkeypatch.setattr(PathMeter, "left", lambda self, node: self._rho - self._own[node])
    assert max(odometer(AR, 1, runs=5)) > 1


def test_phases_that_do_not_add_up_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a meter that gives every tree the whole of rho."""

    def alone(self: PathMeter, node: Node) -> Fraction:
        spent, here = self._worst[node], node
        while here.parent is not None:
            here = here.parent
            spent += self._own[here]
        return self._rho - spent

    monkeypatch.setattr(PathMeter, "left", alone)
    forester = Forester(np.random.default_rng(1), AR, 1)  # noqa: TID251 - public randomness of a test
    forest = forest_on(table([(0, 0)]), tap=forester.seen.append)
    for root in (forest.tree(), forest.tree()):
        forester.operate(forest, root, forest.left(root))
    assert sum((told(one, [(0, 0)], [None]) for one in forester.seen), Fraction(0)) > 1


# The meter of paths


def dearest(children: dict[Node | None, list[tuple[Node, ...]]], own: dict[Node, Fraction], through: Node) -> Fraction:
    """The dearest way through a node, by trying one child in each division."""

    def ways(node: Node | None) -> Iterator[tuple[Fraction, frozenset[Node]]]:
        inside = [list(itertools.chain.from_iterable(map(ways, division))) for division in children.get(node, [])]
        for combination in itertools.product(*inside):
            cost = sum((one for one, _ in combination), own.get(node, Fraction(0)) if node else Fraction(0))
            here = frozenset({node} if node else ())
            yield cost, here.union(*(nodes for _, nodes in combination))

    return max(cost for cost, nodes in ways(None) if through in nodes)


@settings(max_examples=50)
@given(st.data())
def test_the_meter_finds_the_dearest_path(data: st.DataObject) -> None:
    """Random forests with several trees and divisions: what is left is rho less the dearest way through the node."""
    meter, rho = PathMeter(Fraction(10)), Fraction(10)
    children: dict[Node | None, list[tuple[Node, ...]]] = {}
    own: dict[Node, Fraction] = {}

    def grow(parent: Node | None, number: int) -> None:
        made = tuple(Node(parent=parent) for _ in range(number))
        meter.grow(parent, made)
        children.setdefault(parent, []).append(made)
        own.update(dict.fromkeys(made, Fraction(0)))

    grow(None, 1)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.sampled_from([None, *own]))
        grow(at, 1 if at is None else data.draw(st.integers(2, 3)))
        node = data.draw(st.sampled_from(list(own)))
        cost = data.draw(st.fractions(Fraction(1, 4), 4, max_denominator=4))
        if cost <= rho - dearest(children, own, node):
            meter.charge([(node, cost)])
            own[node] += cost
        else:
            with pytest.raises(OverspendError):
                meter.charge([(node, cost)])
    for node in own:
        assert meter.left(node) == rho - dearest(children, own, node)


@dataclass(frozen=True)
class Paid:
    """A root with two children, of which the first has two; some of it spent."""

    forest: Forest
    root: Node
    a: Node
    b: Node
    a0: Node
    a1: Node

    @classmethod
    def on(cls, rows: Rows, source: object) -> Paid:
        """Made of a rho of 1."""
        forest = forest_on(rows, source=source, search_source=source)
        root = forest.tree()
        a, b = forest.split(root, Places((4,)))
        return cls(forest, root, a, b, *forest.split(a, Places((2,))))

    def spend(self, node: Node, rho: Fraction) -> None:
        """A release of a count at this price exactly: rho is 1 / (2 sigma^2), sigma a power of two."""
        self.forest.noisy_sum(node, VECTORS[3], noise_at(rho))


def noise_at(rho: Fraction) -> GaussianNoise:
    """Return the noise at which a count costs rho under ADD_REMOVE_ONE; rho is 1/2, 1/8, 1/32, ..."""
    noise = GaussianNoise(math.sqrt(1 / (2 * rho)))
    assert part_cost(VECTORS[3].bounds, AR, 1, noise) == rho
    return noise


def test_what_is_left_is_left_on_every_path() -> None:
    """A parent's spend counts below it, a child's above it, a sibling's not at all; another tree's everywhere."""
    paid = Paid.on(table([(1, 0)]), Echo())
    paid.spend(paid.root, Fraction(1, 8))
    assert {paid.forest.left(node) for node in (paid.root, paid.a, paid.b, paid.a0, paid.a1)} == {Fraction(7, 8)}
    paid.spend(paid.a0, Fraction(1, 2))
    left = [paid.forest.left(node) for node in (paid.root, paid.a, paid.b, paid.a0, paid.a1)]
    assert left == [Fraction(3, 8), Fraction(3, 8), Fraction(7, 8), Fraction(3, 8), Fraction(7, 8)]
    paid.spend(paid.b, Fraction(1, 2))
    paid.spend(paid.b, Fraction(1, 8))
    left = [paid.forest.left(node) for node in (paid.root, paid.a, paid.b, paid.a0, paid.a1)]
    assert left == [Fraction(1, 4), Fraction(3, 8), Fraction(1, 4), Fraction(3, 8), Fraction(7, 8)]
    again = paid.forest.tree()
    assert paid.forest.left(again) == Fraction(1, 4)
    paid.spend(again, Fraction(1, 8))
    assert paid.forest.left(again) == Fraction(1, 8)
    assert paid.forest.left(paid.a1) == Fraction(3, 4)


def test_divisions_of_one_node_add_up() -> None:
    """A row is in one child of each division, so it pays for both; children of one division are alternatives."""
    paid = Paid.on(table([(1, 0)]), Echo())
    c, d = paid.forest.split(paid.root, Places((6,)))
    paid.spend(paid.a, Fraction(1, 2))
    assert [paid.forest.left(node) for node in (paid.root, paid.b, c, d)] == [
        Fraction(1, 2),
        Fraction(1),
        Fraction(1, 2),
        Fraction(1, 2),
    ]


OPERATIONS: list[tuple[str, Callable[[Paid, Node], object]]] = [
    ("a sum", lambda paid, node: paid.forest.noisy_sum(node, VECTORS[3], noise_at(Fraction(1, 2)))),
    ("a search", lambda paid, node: paid.forest.search(node, Slabs(), SelectionNoise(1.0))),
    (
        "the last of several sums",
        lambda paid, node: paid.forest.noisy_sums(
            [(paid.b, VECTORS[3], noise_at(Fraction(1, 2))), (node, VECTORS[3], noise_at(Fraction(1, 2)))]
        ),
    ),
    (
        "several sums that fit one by one",
        lambda paid, node: paid.forest.noisy_sums([(paid.a, VECTORS[3], noise_at(Fraction(1, 8)))] * 4),
    ),
]


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
@pytest.mark.parametrize("before", ["above", "below", "in another tree"])
def test_an_operation_beyond_a_path_reads_nothing(
    name: str, operation: Callable[[Paid, Node], object], before: str
) -> None:
    """No row, noise, draw or charge follows, whether ancestors, descendants or another phase spent it."""
    touched = Untouchables()
    paid = Paid.on(touched, touched)
    spent = {"above": paid.root, "below": paid.a0, "in another tree": paid.forest.tree()}[before]
    paid.forest._meter.charge([(spent, Fraction(5, 8))])
    nodes = (paid.root, paid.a, paid.b, paid.a0, paid.a1, spent)
    left = [paid.forest.left(node) for node in nodes]
    with pytest.raises(OverspendError, match="paths have"):
        operation(paid, paid.a)
    assert [paid.forest.left(node) for node in nodes] == left


def test_exactly_what_is_left_can_be_spent() -> None:
    """And nothing after it."""
    paid = Paid.on(table([(1, 0)]), Echo())
    paid.spend(paid.a, Fraction(1, 2))
    paid.spend(paid.a1, Fraction(1, 2))
    assert paid.forest.left(paid.a1) == 0
    with pytest.raises(OverspendError):
        paid.spend(paid.root, Fraction(1, 2**21))


# Who is in a part


ROWS: list[Row] = [(place, content) for place in range(8) for content in range(CONTENTS)] * 3 + [None] * 7


@settings(max_examples=25)
@given(st.permutations(range(len(ROWS))), st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_a_sum_over_a_part_is_that_of_its_rows(order: list[int], cuts: list[int]) -> None:
    """Rows inside are summed in every order; those outside and null rows contribute nothing."""
    rows = [ROWS[i] for i in order]
    forest = forest_on(table(rows), Fraction(100))
    root = forest.tree()
    children = forest.split(root, Places(tuple(cuts)))
    nodes = [root, *children, *forest.split(children[0], Places((3,))), *forest.split(root, Places((2, 5)))]
    asked = [(node, statistic, GaussianNoise(10.0)) for node in nodes for statistic in VECTORS]
    for (node, statistic, _), found in zip(asked, forest.noisy_sums(asked), strict=True):
        mine = [row for row in rows if inside(node, row)]
        assert (found == full_sum(statistic, mine) * statistic.lattice).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_do_not_depend_on_threads_or_order(threads: int) -> None:
    """Five blocks, shuffled or not, in one or several threads: the same sums, the same search, exactly."""
    rng = np.random.default_rng(3)  # noqa: TID251 - public rows of a test
    columns = np.stack([rng.integers(0, 8, 4 * CHUNK + 11), rng.integers(0, CONTENTS, 4 * CHUNK + 11)]).astype(float)
    present = np.asarray(rng.random(columns.shape[1]) < 0.9, dtype=np.bool_)

    def results(order: NDArray[np.int64], threads: int) -> tuple[list[list[float]], tuple[int, int]]:
        rows = ArrayRows(np.ascontiguousarray(columns[:, order]), present[order])
        forest = forest_on(rows, Fraction(1000), threads=threads)
        children = forest.split(forest.tree(), Places((2, 5)))
        asked = [(node, statistic, GaussianNoise(1.0)) for node in children for statistic in VECTORS]
        return [one.tolist() for one in forest.noisy_sums(asked)], forest.search(
            children[1], Slabs(), SelectionNoise(9.0)
        )

    plain = np.arange(columns.shape[1])
    assert results(plain, 1) == results(rng.permutation(plain), threads)


def test_several_sums_take_one_pass_and_ask_each_rule_once_a_block() -> None:
    """Rows are read once for all releases of a call, and rules are not asked again for every child."""
    asked: list[str] = []

    class Watched(Places):
        def __call__(self, block: Any, present: Any, labels: Any) -> None:
            asked.append("rule")
            super().__call__(block, present, labels)

    class Read(ArrayRows):
        def read(self, first: int, block: Any, present: Any) -> None:
            asked.append("rows")
            super().read(first, block, present)

    whole = table(ROWS)
    forest = forest_on(Read(whole.columns, whole.present), Fraction(100))
    root = forest.tree()
    a, b = forest.split(root, Watched((4,)))
    nodes = [root, a, b, *forest.split(a, Watched((2,)))]
    forest.noisy_sums([(node, statistic, GaussianNoise(10.0)) for node in nodes for statistic in VECTORS])
    assert sorted(asked) == ["rows", "rule", "rule"]


@dataclass(frozen=True)
class Rubbish:
    """Labels of every kind, from rows with numbers of every kind."""

    ways: int = 3

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """See `Rule`."""
        labels[:] = np.resize(np.array([0, 1, 2, 3, -1, 32767, -32768], dtype=np.int16), labels.shape)


def test_labels_out_of_range_are_none_and_every_row_is_somewhere() -> None:
    """Anything but 1 and 2 is 0; children have each row once, whatever the columns hold."""
    rows = ArrayRows(np.resize(np.array([np.nan, np.inf, -np.inf, 1e300, -0.0]), (2, 70)))
    forest = forest_on(rows, Fraction(100))

    def kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        out += int(present.sum())

    count = replace(VECTORS[3], kernel=kernel)
    children = forest.split(forest.tree(), Rubbish())
    found = [forest.noisy_sum(child, count, GaussianNoise(1.0)).item() / count.lattice for child in children]
    assert found == [50, 10, 10]


@pytest.mark.parametrize("rows", [[], [None] * 5, [(7, 0)]])
def test_empty_parts_are_parts(rows: Sequence[Row]) -> None:
    """A part without rows, of a table with and without rows: sums of zero, and a search ends as any other."""
    forest = forest_on(table(rows), Fraction(100), source=Echo(), search_source=None)
    empty = forest.split(forest.tree(), Places((6,)))[0]
    assert [one.tolist() for one in forest.noisy_sums([(empty, s, GaussianNoise(1.0)) for s in VECTORS])] == [
        [0.0] * statistic.size for statistic in VECTORS
    ]
    assert forest.search(empty, Slabs(), SelectionNoise(1.0)) == (0, 0)


def test_a_search_finds_the_best_of_a_part() -> None:
    """The first slab with the largest score on the part's own rows wins without noise; others would spoil it."""
    inner = [(0, 2)] * 5 + [(0, 5)] * 5
    spoil = [(7, 1)] * 50 + [(7, 3)] * 50
    seen: list[PartRelease | PartSearch] = []
    forest = forest_on(table(inner + spoil), tap=seen.append)
    children = forest.split(forest.tree(), Places((4,)))
    group, index = forest.search(children[0], Slabs(), SelectionNoise(50.0))
    scores = scores_of(Slabs(), [2] * 5 + [5] * 5)
    assert scores[group * 10 + index] == scores.max() == 3
    assert scores_of(Slabs(), [1] * 50 + [3] * 50 + [2] * 5 + [5] * 5)[group * 10 + index] < 3
    assert seen == [seen[0]]
    assert isinstance(seen[0], PartSearch)
    assert (seen[0].node, seen[0].chosen) == (children[0], (group, index))
    assert seen[0].rho == Fraction(9, 8 * 2500) == 1 - forest.left(children[0])


def test_the_tap_sees_releases_after_noise() -> None:
    """The fit is given the tapped release in real units; it names the part and the price."""
    seen: list[PartRelease | PartSearch] = []
    forest = forest_on(table(ROWS), source=OpenDPNoise(), tap=seen.append)
    root = forest.tree()
    given = forest.noisy_sum(root, VECTORS[0], GaussianNoise(8.0))
    (one,) = seen
    assert isinstance(one, PartRelease)
    assert (given == one.noisy * VECTORS[0].lattice).all()
    assert (one.node, one.statistic, one.noise, one.rho) == (root, VECTORS[0], GaussianNoise(8.0), Fraction(9, 128))


# The session


def test_a_forest_is_charged_when_it_is_bought() -> None:
    """One event for all of it, whatever comes of it; what it does not cover makes no forest."""
    meter = Meter(SyntheticBudget(ORDER, cost_units([ConcentratedEvent(Fraction(1, 3))], ORDER) + 2**30))
    touched = Untouchables()
    session = Session(
        rows=touched, columns=2, adjacency=AR, unit_cap=1, meter=meter, source=touched, search_source=touched
    )
    session.forest(Fraction(1, 3))
    assert 0 <= meter.unspent - Fraction(2**30, COST_UNIT) < Fraction(1, COST_UNIT)
    left = meter.unspent
    with pytest.raises(OverspendError):
        session.forest(Fraction(1, 3))
    assert meter.unspent == left
    session.forest(left / ORDER)
    assert meter.unspent == 0


def test_a_forest_and_other_releases_are_charged_side_by_side() -> None:
    """Operations of a forest cost the session nothing more, and releases beside it do."""
    meter = Meter(SyntheticBudget(ORDER, 2**50))
    session = Session(rows=table(ROWS), columns=2, adjacency=AR, unit_cap=1, meter=meter, source=Echo())
    forest = session.forest(Fraction(1))
    session.noisy_sum(VECTORS[3], GaussianNoise(5.0))
    forest.noisy_sum(forest.tree(), VECTORS[3], GaussianNoise(5.0))
    spent = rdp(ConcentratedEvent(Fraction(1)), ORDER) + rdp(GaussianEvent(1, Fraction(5)), ORDER)
    assert meter.unspent == Fraction(2**50, COST_UNIT) - spent


@pytest.mark.parametrize("rho", [Fraction(0), Fraction(-1), 0.5])
def test_a_forest_of_nothing_is_refused(rho: Any) -> None:
    """Rho is a positive fraction."""
    session = Session(
        rows=table([]), columns=2, adjacency=AR, unit_cap=1, meter=Meter(SyntheticBudget(ORDER, 2**50)), source=Echo()
    )
    with pytest.raises(ValueError, match="rho must be a positive"):
        session.forest(rho)


def test_nodes_of_another_forest_are_refused() -> None:
    """Every operation does so, before anything is charged or read."""
    mine, other = (forest_on(Untouchables(), source=Untouchables()) for _ in range(2))
    node = other.tree()
    calls: list[Callable[[], object]] = [
        lambda: mine.split(node, Places((1,))),
        lambda: mine.left(node),
        lambda: mine.noisy_sum(node, VECTORS[0], GaussianNoise(99.0)),
        lambda: mine.noisy_sums(
            [(mine.tree(), VECTORS[0], GaussianNoise(99.0)), (node, VECTORS[0], GaussianNoise(99.0))]
        ),
        lambda: mine.search(node, Slabs(), SelectionNoise(99.0)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="node: expected one that this forest made"):
            call()
    assert mine.left(mine.tree()) == other.left(node) == 1


@pytest.mark.parametrize("ways", [1, 0, -1, 2**15 + 1])
def test_a_rule_divides_into_two_or_more(ways: int) -> None:
    """Labels are 16-bit integers."""
    rule: Rule = Rubbish(ways)
    forest = forest_on(table([]))
    with pytest.raises(ValueError, match=r"rule\.ways"):
        forest.split(forest.tree(), rule)


def test_a_family_without_groups_is_refused() -> None:
    """The refusal comes before anything is charged."""
    forest = forest_on(Untouchables(), source=Untouchables())
    root = forest.tree()
    with pytest.raises(ValueError, match="family: expected"):
        forest.search(root, Slabs(batch=0), SelectionNoise(99.0))
    assert forest.left(root) == 1


@dataclass(eq=False)
class Asked:
    """A rule that counts how often it is asked."""

    rule: Places
    times: int = 0

    @property
    def ways(self) -> int:
        """See `Rule`."""
        return self.rule.ways

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """See `Rule`."""
        self.times += 1
        self.rule(block, present, labels)


@pytest.mark.parametrize(("most", "cuts", "noted"), [(2**20, 3, 1), (CHUNK, 3, 2), (0, 3, 2), (2**20, 200, 2)])
def test_a_rule_is_asked_once_where_its_labels_fit(
    most: int, cuts: int, noted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for each of two blocks; in each of two passes where labels do not fit. The sums are the same."""
    monkeypatch.setattr(parts, "MOST_LABELS", most)
    rows: list[Row] = [(i % 251, i % CONTENTS) for i in range(CHUNK + 100)]
    forest = forest_on(table(rows), Fraction(100))
    rule = Asked(Places(tuple(range(1, cuts + 1))))
    children = forest.split(forest.tree(), rule)
    for _ in range(2):
        sums = forest.noisy_sums([(child, VECTORS[3], GaussianNoise(1.0)) for child in children[:4]])
        expected = [
            sum(inside_of == label for inside_of in map(rule.rule.label, filter(None, rows))) for label in range(4)
        ]
        assert [int(one[0] / VECTORS[3].lattice) for one in sums] == expected
    assert rule.times == 2 * noted
