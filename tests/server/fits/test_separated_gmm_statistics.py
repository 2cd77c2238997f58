"""A row of any bits is counted once or not at all, on the side of a split where exact arithmetic has it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bursar_server.fits.mixtures.statistics import BallFrame, Moments, Weights
from bursar_server.fits.separated_gmm import _kernel
from bursar_server.fits.separated_gmm._search import (
    BINS,
    PENALTY,
    RADIUS_UNIT,
    BallFamily,
    RadiusFamily,
    ReachFamily,
    SplitFamily,
)
from bursar_server.fits.separated_gmm._statistics import (
    EVERYBODY,
    NOWHERE,
    Round,
    Sample,
    Slab,
    View,
    ball_statistic,
    distance_statistic,
    histogram_statistic,
    lattice_directions,
    lattice_frame,
    lattice_point,
    one_cell,
    round_statistic,
    slab_statistic,
)
from bursar_server.vault import CHUNK, ArrayRows, Statistic, exact_sum
from tests.server.fits.running import Array

D = 3
FRAME = BallFrame(np.array([1.0, -2.0, 0.5]), np.array([10.0, 3.0, 1e-3]))
ORIGIN = lattice_point(np.array([0.2, -0.1, 0.05]))
WILD = [0.0, -0.0, 5e-324, 1e-310, 1.0, -1.0, 1e6, 1e99, 1e101, 1e308, -1e308, math.inf, -math.inf, math.nan]
BITS = st.one_of(st.floats(allow_nan=True, allow_infinity=True, width=64), st.sampled_from(WILD), st.floats(-12, 12))
ROW = st.tuples(*[BITS] * D)


def generator(seed: int) -> Any:
    """Numpy's, of a public seed."""
    return np.random.default_rng(seed)  # noqa: TID251 - rows of a test


DIRECTIONS = lattice_directions(generator(1).standard_normal((5, D)))
BASIS = lattice_directions(np.linalg.qr(generator(2).standard_normal((D, D)))[0][:2])
KEYS = generator(3).integers(0, 2**63, D + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
AS_IT_IS = View(ORIGIN, np.zeros((0, D)))
WIDTH = 2.0**36
CENTRES = generator(4).standard_normal((3, 2)) * 2.0**27


def everybody() -> Sample:
    """All rows."""
    return Sample(KEYS, EVERYBODY)


def statistics() -> list[tuple[Statistic, int]]:
    """Every count, with the number of its tables."""
    edges = np.array([-1e12, -1e11, 2e11, 1e12])
    return [
        (slab_statistic(FRAME, ORIGIN, DIRECTIONS[0], edges), 1),
        (histogram_statistic(FRAME, AS_IT_IS, DIRECTIONS, 16, WIDTH, everybody()), 5),
        (histogram_statistic(FRAME, View(ORIGIN, BASIS), DIRECTIONS[:, :2], 16, WIDTH, everybody()), 5),
        (histogram_statistic(FRAME, AS_IT_IS, DIRECTIONS, 16, WIDTH, Sample(KEYS, EVERYBODY // 2)), 5),
        (distance_statistic(FRAME, AS_IT_IS, np.zeros((1, D)), 1 << 14, 40, everybody()), 1),
        (distance_statistic(FRAME, View(ORIGIN, BASIS), CENTRES, 17200, 40, Sample(KEYS, EVERYBODY // 2)), 3),
        (round_statistic(FRAME, View(ORIGIN, BASIS), CENTRES[0], np.array([2.0**50, 2.0**54])), 1),
    ]


def summed(statistic: Statistic, rows: Array, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what rows (n, d) at these places of a block add, shape as the statistic's."""
    block, present = np.full((D, CHUNK), np.nan), np.zeros(CHUNK, dtype=np.bool_)
    block[:, places], present[places] = rows.T, True
    out = np.zeros(statistic.size, dtype=np.int64)
    statistic.kernel(block, present, out)
    return out.reshape(statistic.shape)


def points(rows: Array) -> list[list[int]]:
    """Rows on the lattice."""
    block, present = np.zeros((D, CHUNK)), np.ones(CHUNK, dtype=np.bool_)
    block[:, : len(rows)] = rows.T
    p, valid = np.empty((D, _kernel.SLICE)), np.empty(_kernel.SLICE)
    made: list[list[int]] = []
    for first in range(0, len(rows), _kernel.SLICE):
        _kernel._points(block, first, present, lattice_frame(FRAME), p, valid)
        made += [[int(x) for x in column] for column in p.T]
    return made[: len(rows)]


@settings(max_examples=60)
@given(ROW, st.integers(0, CHUNK - 1))
def test_a_row_of_any_bits_counts_in_one_cell_of_each_table(row: tuple[float, ...], place: int) -> None:
    """Or in none; and wherever it is."""
    rows = np.array([row])
    for statistic, tables in statistics():
        here = summed(statistic, rows, np.array([place]))
        assert np.array_equal(here, summed(statistic, rows, np.array([0])))
        assert here.min() >= 0
        per_table = here.reshape(tables, -1).sum(axis=1)
        assert np.all(per_table <= 1)
        assert here.sum() <= statistic.bounds.l1
        assert np.sum(here**2) <= statistic.bounds.l2_squared
        if not np.all(np.isfinite(rows)):
            assert here.sum() == 0


@settings(max_examples=15)
@given(st.lists(ROW, min_size=2, max_size=12), st.randoms())
def test_rows_add_up_whatever_stands_beside_them(rows: list[tuple[float, ...]], random: Any) -> None:
    """The sum over rows in any places is the sum of what each adds alone: samples included."""
    X = np.array(rows)
    places = np.array(random.sample(range(CHUNK), len(X)))
    for statistic, _ in statistics():
        alone = sum((summed(statistic, x[None], np.array([0])) for x in X), np.zeros(statistic.shape, dtype=np.int64))
        assert np.array_equal(summed(statistic, X, places), alone)


def test_bounds_are_those_of_disjoint_cells() -> None:
    """One row in T tables: norms T, distances 2 T, by going through all of them for two cells."""
    bounds = one_cell(2)
    cells = [np.zeros(4, dtype=np.int64)] + [
        np.eye(4, dtype=np.int64)[a] + np.eye(4, dtype=np.int64)[b] for a in (0, 1) for b in (2, 3)
    ]
    assert bounds.l1 == max(c.sum() for c in cells)
    assert bounds.l2_squared == max((c**2).sum() for c in cells)
    assert bounds.l1_distance == max(np.abs(a - b).sum() for a in cells for b in cells)
    assert bounds.l2_squared_distance == max(((a - b) ** 2).sum() for a in cells for b in cells)
    assert bounds.non_negative


def near_the_ball(n: int) -> Array:
    """Rows about the public ball, some outside of it."""
    return np.asarray(FRAME.centre + FRAME.scale * generator(5).standard_normal((n, D)) * 0.5)


def test_a_rule_is_what_integers_say() -> None:
    """Labels, counts and bins equal those of exact integer arithmetic, at edges that rows hit exactly, too."""
    X = near_the_ball(600)
    P = points(X)
    q, origin = [int(x) for x in DIRECTIONS[0]], [int(x) for x in ORIGIN]
    v = [sum(a * (b - c) for a, b, c in zip(q, p, origin, strict=True)) for p in P]
    ordered = sorted(v)
    low, high = ordered[150], ordered[400]  # rows lie on the edges themselves
    block, present = np.zeros((D, CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
    block[:, :600], present[:600] = X.T, True
    labels = np.zeros(CHUNK, dtype=np.int16)
    Slab(FRAME, ORIGIN, DIRECTIONS[0], float(low), float(high))(block, present, labels)
    assert labels[:600].tolist() == [int(low <= x < high) for x in v]
    edges = [ordered[100], low, high, ordered[500]]
    counts = summed(slab_statistic(FRAME, ORIGIN, DIRECTIONS[0], np.array(edges, dtype=float)), X, np.arange(600))
    outside = sum(x < edges[0] or x >= edges[3] for x in v)
    assert counts.tolist() == [250, outside, 600 - 250 - outside]
    histogram = summed(histogram_statistic(FRAME, AS_IT_IS, DIRECTIONS[:1], 16, WIDTH, everybody()), X, np.arange(600))
    bins = [min(max(x // 2**36 + 8, 0), 15) for x in v]
    assert histogram[0].tolist() == [bins.count(b) for b in range(16)]


def test_projections_are_what_integers_say() -> None:
    """Points projected on a basis and then on a direction: floor after the first, exact after the second."""
    X = near_the_ball(300)
    origin = [int(x) for x in ORIGIN]
    expected = []
    for p in points(X):
        y = [sum(int(b) * (x - o) for b, x, o in zip(row, p, origin, strict=True)) // 2**16 for row in BASIS]
        v = sum(int(u) * x for u, x in zip(DIRECTIONS[1, :2], y, strict=True))
        expected.append(min(max(v // 2**36 + 8, 0), 15))
    statistic = histogram_statistic(FRAME, View(ORIGIN, BASIS), DIRECTIONS[1:2, :2], 16, WIDTH, everybody())
    assert summed(statistic, X, np.arange(300))[0].tolist() == [expected.count(b) for b in range(16)]


@given(st.lists(st.one_of(BITS, st.just(1.0)), min_size=128, max_size=128))
def test_directions_are_integers_of_bounded_sum(u: list[float]) -> None:
    """All numbers are tried in the most columns that a fit has."""
    with np.errstate(all="ignore"):
        direction = lattice_directions(np.array([u]))[0]
    assert np.all(direction == np.trunc(direction))
    assert np.sum(np.abs(direction)) <= _kernel.MAX_DIRECTION
    assert _kernel.MAX_DIRECTION * 2 ** (_kernel.POINT_BITS + 1) // 2**16 * _kernel.MAX_DIRECTION < 2**53


def test_a_direction_across_the_basis_is_the_projection() -> None:
    """Splitting by one product with the columns is what was found in the projected space, up to rounding."""
    view = View(ORIGIN, BASIS)
    seen_direction = lattice_directions(DIRECTIONS[2:3, :2])[0]
    direction, longer = view.across(seen_direction)
    p = lattice_point(np.array([-0.3, 0.5, 0.1])) - ORIGIN
    seen = float(seen_direction @ np.floor(BASIS @ p * 2.0**-16))
    assert float(direction @ p) == pytest.approx(seen * longer, abs=1e-3 * view.unit)


def test_a_sample_is_about_its_part_of_the_rows() -> None:
    """A third of distinct rows, whatever their order; a false alarm in 1e9."""
    X = near_the_ball(6000)
    statistic = histogram_statistic(FRAME, AS_IT_IS, DIRECTIONS[:1], 16, WIDTH, Sample(KEYS, EVERYBODY // 3))
    sampled = int(summed(statistic, X, np.arange(6000)).sum())
    assert abs(sampled - 2000) < 6.5 * math.sqrt(6000 * 2 / 9)


def test_distances_ascend() -> None:
    """A row at a released radius counts on the right side of it."""
    family = RadiusFamily(FRAME, AS_IT_IS, 0.01, 2.0, 0, 0)
    X = near_the_ball(500)
    sums = summed(family.statistic(0, 1), X, np.arange(500))[0]
    distances = [math.dist(p, ORIGIN.tolist()) / _kernel.POINT for p in points(X)]
    for index in range(0, family.steps - 1, 7):
        assert sums[: index + 1].sum() == sum(r < family.radius(index) for r in distances)
    assert family.radius(0) >= 0.01
    assert family.radius(family.steps - 1) > 2.0


def test_a_ball_is_where_its_histogram_has_it() -> None:
    """Labels, counts and steps of one centre agree, and are what plain arithmetic says."""
    X, view = near_the_ball(600), View(ORIGIN, BASIS)
    family = BallFamily(FRAME, view, CENTRES, 2.0**24, 2.0**29, 40, 3, everybody())
    sums = summed(family.statistic(0, 3), X, np.arange(600))
    index = len(family.scores(1, sums[1])) // 2
    edges = family.edges(index)
    counts = summed(round_statistic(FRAME, view, CENTRES[1], edges), X, np.arange(600))
    block, present = np.zeros((D, CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
    block[:, :600], present[:600] = X.T, True
    labels = np.zeros(CHUNK, dtype=np.int16)
    Round(FRAME, view, CENTRES[1], float(edges[0]))(block, present, labels)
    seen = np.floor((np.array(points(X)) - ORIGIN) @ BASIS.T * 2.0**-16)
    squares = np.sum((seen - CENTRES[1]) ** 2, axis=1)
    assert 0 < counts[0] == labels[:600].sum() == np.sum(squares < edges[0])
    assert counts[1] == np.sum(squares >= edges[1])
    steps = (squares.view(np.int64) >> 48) - (np.array([2.0**48]).view(np.int64)[0] >> 48)
    assert sums[1].tolist() == np.bincount(np.clip(steps, 0, family.steps - 1), minlength=family.steps).tolist()
    plain = max(0, min(int(counts[0]), int(counts[1]), 40) - PENALTY * int(counts[2]))
    assert family.scores(1, sums[1])[index] - plain in (0, 3, 6)


def test_moments_of_a_ball_are_those_of_all_rows() -> None:
    """One component has all of every row, to the last unit."""
    X = near_the_ball(400)
    weights = Weights(1.0, 1.0, 1.0)
    statistic = ball_statistic(FRAME, np.zeros(D), 1.0, Moments.SPHERICAL, weights)
    assert summed(statistic, X, np.arange(400))[0] * statistic.lattice == 400


def split_family(cap: int, bonus: int) -> SplitFamily:
    """Candidates over one direction."""
    return SplitFamily(FRAME, AS_IT_IS, DIRECTIONS[:1], WIDTH, 5, cap, bonus, everybody())


def test_scores_are_what_they_say() -> None:
    """A plain count agrees for every twentieth candidate."""
    family = split_family(40, 3)
    sums = generator(6).integers(0, 4, BINS)
    scores = family.scores(0, sums)
    for index in range(0, len(scores), 20):
        edges = np.clip(family.edges(index) / WIDTH + BINS // 2, 0, BINS).astype(int)
        inside = int(sums[edges[1] : edges[2]].sum())
        between = int(sums[edges[0] : edges[3]].sum()) - inside
        outside = int(sums.sum()) - inside - between
        plain = max(0, min(inside, outside, 40) - PENALTY * between)
        assert scores[index] - plain in (0, 3, 6)
        assert np.all(np.diff(family.edges(index)) >= 0)
        assert np.abs(family.edges(index)).max() <= NOWHERE


def test_range_of_split_scores_is_what_is_paid_for() -> None:
    """One row more or less moves scores apart by 3 at most, and does; one for another by 6 at most, and does."""
    draw = generator(7)
    one, replaced = 0, 0
    for trial in range(400):
        family = split_family(int(draw.integers(1, 60)), int(draw.integers(0, 5)))
        cells = draw.integers(0, BINS, 8) if trial % 2 else np.array([40, 80, 255, 300, 500])
        sums = np.bincount(draw.choice(cells, draw.integers(0, 80)), minlength=BINS)
        a, b = draw.choice(cells, 2)
        base = family.scores(0, sums)
        added = family.scores(0, sums + np.eye(BINS, dtype=np.int64)[a]) - base
        other = family.scores(0, sums + np.eye(BINS, dtype=np.int64)[b]) - base
        one = max(one, int(added.max() - added.min()))
        replaced = max(replaced, int((added - other).max() - (added - other).min()))
    assert one == split_family(1, 0).bounds.range_one
    assert replaced == split_family(1, 0).bounds.range_replaced


@pytest.mark.parametrize(("kind", "moved"), [(RadiusFamily, 2 * RADIUS_UNIT), (ReachFamily, RADIUS_UNIT)])
def test_range_of_radius_scores_is_what_is_paid_for(kind: type[RadiusFamily | ReachFamily], moved: int) -> None:
    """One row more, less, or for another moves scores apart by two rows at most (or by one), and does."""
    draw = generator(8)
    one, replaced = 0, 0
    for _ in range(400):
        family = kind(FRAME, AS_IT_IS, 0.1, 1.0, int(draw.integers(0, 20)), int(draw.integers(0, 9)))
        sums = draw.integers(0, 3, family.steps)
        cell = np.eye(family.steps, dtype=np.int64)
        a, b = draw.integers(0, family.steps, 2)
        base = family.scores(0, sums)
        added, other = family.scores(0, sums + cell[a]) - base, family.scores(0, sums + cell[b]) - base
        one = max(one, int(added.max() - added.min()))
        replaced = max(replaced, int((added - other).max() - (added - other).min()))
    assert one == family.bounds.range_one == moved
    assert replaced == family.bounds.range_replaced


def test_a_reach_is_the_smallest_that_leaves_out_no_more_than_it_may() -> None:
    """Rows beyond it may be near or far, and perhaps no radius leaves out about as many."""
    draw = generator(9)
    for trial in range(50):
        family = ReachFamily(FRAME, AS_IT_IS, 0.1, 1.0, 40, 1)
        sums = draw.integers(0, 4, family.steps) * (draw.random(family.steps) < 0.2)
        sums[-1] += 30 * (trial % 2)
        beyond = sums.sum() - np.cumsum(sums)
        assert int(np.argmax(family.scores(0, sums))) == int(np.argmax(beyond <= 40))


def test_edges_that_do_not_ascend_are_refused() -> None:
    """A row could count on both sides of them."""
    with pytest.raises(ValueError, match="ascend"):
        round_statistic(FRAME, AS_IT_IS, ORIGIN, np.array([2.0, 1.0]))
    with pytest.raises(ValueError, match="ascend"):
        slab_statistic(FRAME, ORIGIN, DIRECTIONS[0], np.array([0.0, 2.0, 1.0, 3.0]))


@pytest.mark.parametrize("least", [0, 5, BINS // 2, BINS // 2 + 1, 10**9])
def test_there_is_always_a_candidate(least: int) -> None:
    """However small the ball is that a part was found in: a search among none could not end."""
    family = replace(split_family(40, 3), least=least)
    assert family.scores(0, np.ones(BINS, dtype=np.int64)).size > 0


def places(block: Any, present: Any, keys: Any, threshold: int) -> tuple[int, int]:
    """Return how many places of a block a search goes through, and how many rows they stand for."""
    kept, marks = np.zeros((D, CHUNK + _kernel.SLICE)), np.zeros(CHUNK + _kernel.SLICE, dtype=np.int64)
    basis = (np.zeros(D), np.zeros((0, D)))
    count = _kernel._keep(block, present, lattice_frame(FRAME), basis, (keys, np.uint64(threshold)), kept, marks)
    return count, int(marks[:count].sum())


def test_a_search_works_as_much_on_an_empty_part_as_on_a_full_one() -> None:
    """An equal number of places is looked at whichever part is asked for: no time tells how many rows it has."""
    block = generator(3).normal(size=(D, CHUNK))
    for threshold in (2**62, 2**64 - 1):
        shares = [np.arange(CHUNK) < share * CHUNK for share in (0.0, 0.1, 1.0)]
        counts, weights = zip(*(places(block, present, KEYS, threshold) for present in shares), strict=True)
        assert counts[0] == counts[1] <= counts[2] <= 1.03 * counts[0]
        assert weights[0] == 0 < weights[1] < weights[2] <= counts[2]


@pytest.mark.parametrize("threshold", [2**50, 2**58, 2**60])
def test_a_search_does_not_work_more_on_rows_that_are_equal(threshold: int) -> None:
    """An analyst can choose keys by which one point is in the sample, or null rows are: no time tells their number."""
    drawn, everyone = generator(4), np.ones(CHUNK, dtype=np.bool_)
    block = drawn.normal(size=(D, CHUNK))
    usual, _ = places(block, everyone, KEYS, threshold)
    points = drawn.normal(size=(D, CHUNK))
    keys = KEYS
    for _ in range(1000):  # until one of the points is in the sample
        found = points.T[_taken(points, keys, threshold)]
        if len(found):
            break
        keys = keys + np.uint64(2)
    equal = np.tile(found[0][:, None], (1, CHUNK))
    half = np.where(np.arange(CHUNK) % 2 == 0, equal, block)
    for rows, present, marked in (
        (equal, everyone, CHUNK),
        (half, everyone, CHUNK // 2),
        (equal, ~everyone, 0),
        (np.full_like(block, np.nan), everyone, 0),
        (np.zeros_like(block), ~everyone, 0),
    ):
        count, weight = places(rows, present, keys, threshold)
        assert abs(count - usual) <= 0.25 * usual + 4
        assert marked <= weight <= marked + usual


def _taken(points: Any, keys: Any, threshold: int) -> Any:
    taken, found = np.zeros(_kernel.SLICE, dtype=np.int64), []
    p, valid = np.empty((D, _kernel.SLICE)), np.empty(_kernel.SLICE)
    present = np.ones(points.shape[1], dtype=np.bool_)
    for first in range(0, points.shape[1], _kernel.SLICE):
        _kernel._points(points, first, present, lattice_frame(FRAME), p, valid)
        _kernel._sampled(p, valid, keys, np.uint64(threshold), taken)
        found.append(taken > 0)
    return np.concatenate(found)


@pytest.mark.parametrize("threshold", [2**57, 2**62, 2**64 - 1])
def test_equal_rows_count_as_often_as_they_are_there(threshold: int) -> None:
    """Rows that share a place in a search have their number in every histogram: that of the same rows one by one."""
    drawn = generator(5)
    few = drawn.normal(size=(D, 40))
    block = few[:, drawn.integers(0, 40, CHUNK)]
    block[:, ::7] = drawn.normal(size=(D, len(block[0, ::7])))
    present = drawn.random(CHUNK) < 0.9
    statistic = histogram_statistic(FRAME, AS_IT_IS, DIRECTIONS, BINS, WIDTH, Sample(KEYS, threshold))
    together = exact_sum(statistic, ArrayRows(block, present), D)
    alone = sum(
        exact_sum(statistic, ArrayRows(np.ascontiguousarray(block[:, some]), present[some]), D)
        for some in np.array_split(np.arange(CHUNK), 512)
    )
    assert together.sum() > 0
    assert np.array_equal(together, alone)
