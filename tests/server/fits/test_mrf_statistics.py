"""Tables against plain numpy, their bounds against any bits and any unit, their noise against the exact law."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent
from bursar_models.mrf import Variable
from bursar_server.fits.mrf._statistics import (
    Layout,
    blocks_of,
    firsts_statistic,
    table_bounds,
    table_statistic,
    tables_statistic,
    transitions_statistic,
)
from bursar_server.vault import CHUNK, Statistic, event_of, gaussian_for, laplace_for, sensitivity
from tests.server.fits.fielding import AR, PURE, RHO, RO, cliques, people, plan, summed, variables
from tests.server.fits.running import Array, session
from tests.server.vault.goodness import ALPHA, Pmf, bins_of, gaussian_pmf, laplace_pmf

NAN, INF = math.nan, math.inf
ODD = [0.0, -0.0, 5e-324, -1e-310, 0.999, 1.0, -1.0, 2.0, 3.0, 2.0**31, 2.0**63, 1e30, -1e308, 1.8e308, INF, -INF, NAN]
UNIT = 2**20

MIXED = (
    Variable("a", ("p", "q", "r")),
    Variable("x", ("low", "mid", "high", "top"), (-1.0, 0.0, 0.5, 2.0, 4.0)),
    Variable("b", ("p", "q")),
    Variable("one", ("only",)),
    Variable("gap", ("low", "high", "null"), (0.0, 1.0, 2.0)),
)
PATH = variables(3, 3, 3, 3, 3)


def state(variable: Variable, x: float) -> int:
    """The state of a number, from its definition."""
    if variable.nullable and math.isnan(x):
        return len(variable.states) - 1
    if variable.edges:
        return sum(edge <= x for edge in variable.edges[1:-1])
    return int(x) if 0 <= x < len(variable.states) else 0


def divisor(layout: Layout, row: Any) -> int:
    """K of a row."""
    return min(int(min(row[-1], 2.0**26)), 2**26) if layout.shares and row[-1] >= 1 else 1


def table(layout: Layout, clique: tuple[int, ...], X: Array) -> NDArray[np.int64]:
    """A table from its definition."""
    found = np.zeros(layout.shape(clique), dtype=np.int64)
    for row in X:
        found[tuple(state(layout.variables[i], row[i]) for i in clique)] += layout.unit // divisor(layout, row)
    return found


def chain(layout: Layout, null: int | None, X: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First states and pooled transitions from their definition."""
    size = layout.sizes[0]
    firsts, pooled = np.zeros(size, dtype=np.int64), np.zeros((size, size), dtype=np.int64)
    for row in X:
        path = [state(variable, x) for variable, x in zip(layout.variables, row, strict=False)]
        steps = [(a, b) for a, b in pairwise(path) if (a, b) != (null, null)]
        if steps:
            firsts[path[0]] += layout.unit // divisor(layout, row)
        for step in steps:
            pooled[step] += UNIT // (len(steps) * divisor(layout, row))
    return firsts, pooled


def awkward_rows(n: int, columns: int, seed: int = 0) -> Array:
    """Rows (n, columns), most of them states, some of them anything."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    X = np.where(generator.random((n, columns)) < 0.5, generator.integers(0, 4, (n, columns)), 0.25)
    X += np.where(generator.random((n, columns)) < 0.3, generator.normal(0, 2, (n, columns)), 0.0)
    return np.where(generator.random((n, columns)) < 0.05, generator.choice(ODD, (n, columns)), X)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("clique", [(0,), (1,), (3,), (4,), (0, 1), (2, 1), (4, 1), (1, 0, 2), (3, 2, 4, 1, 0)])
def test_tables_are_those_of_the_definition(clique: tuple[int, ...], shares: bool) -> None:
    """Categories and bins, in any order of the axes, with and without shares; rows that are null count nowhere."""
    layout = Layout(MIXED, shares)
    X, present = awkward_rows(CHUNK + 500, len(layout.columns)), np.arange(CHUNK + 500) % 7 > 0
    found = summed(table_statistic(layout, clique), X, present)
    assert np.array_equal(found, table(layout, clique, X[present]))


def test_bins_are_closed_on_the_left_and_the_last_on_both_sides() -> None:
    """Edges are as in `Variable.encode`; outside numbers go to the nearest bin, missing ones to the first."""
    x = np.array([-9.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.9, 2.0, 3.9, 4.0, 9.0, INF, -INF])
    layout = Layout(MIXED[1:2], shares=False)
    one_by_one = [int(summed(table_statistic(layout, (0,)), np.array([[value]])).argmax()) for value in x]
    assert one_by_one == MIXED[1].encode(list(x)).tolist()
    assert summed(table_statistic(layout, (0,)), np.array([[NAN]])).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("bins", [1, 2, 3, 4, 5, 8, 37])
def test_any_number_of_bins_is_searched(bins: int) -> None:
    """Values at, between, below and above all edges are tried."""
    edges = np.cumsum(1.0 + np.arange(bins + 1) % 3)
    variable = Variable("x", tuple(map(str, range(bins))), tuple(edges))
    x = np.concatenate([edges, edges - 0.5, edges + 0.5, [-1e9, 1e9]])
    found = summed(table_statistic(Layout((variable,), shares=False), (0,)), x[:, None])
    assert found.tolist() == np.bincount(variable.encode(list(x)), minlength=bins).tolist()


@pytest.mark.parametrize("shares", [False, True])
def test_many_tables_are_the_tables(shares: bool) -> None:
    """One pass over the rows gives what as many releases would, block by block."""
    layout, cliques = Layout(MIXED, shares), [(0, 1), (2, 3), (1, 2, 3), (0,), (0, 1, 2, 3), (0, 3)]
    X = awkward_rows(300, len(layout.columns))
    flat = summed(tables_statistic(layout, cliques), X)
    blocks = blocks_of(layout, cliques)
    assert blocks[0][0] == 0
    assert blocks[-1][1] == flat.size
    for clique, (start, stop) in zip(cliques, blocks, strict=True):
        table, empty = flat[start : stop - 1], flat[stop - 1]
        assert np.array_equal(table.reshape(layout.shape(clique)), summed(table_statistic(layout, clique), X))
        assert empty == 0


@pytest.mark.parametrize("null", [None, 0, 2])
@pytest.mark.parametrize("shares", [False, True])
def test_chains_are_those_of_the_definition(null: int | None, shares: bool) -> None:
    """First states and transitions; those from null to null are left out, and paths of nothing else altogether."""
    layout = Layout(PATH, shares)
    X = awkward_rows(2000, len(layout.columns))
    X[:50, :5] = 0.0 if null is None else null
    present = np.arange(len(X)) % 5 > 0
    firsts, pooled = chain(layout, null, X[present])
    assert np.array_equal(summed(firsts_statistic(layout, null), X, present), firsts)
    assert np.array_equal(summed(transitions_statistic(layout, null), X, present), pooled)


def test_a_path_counts_once_however_much_of_it_is_null() -> None:
    """One observation at the end of many nulls weighs as much as a full path, within truncation."""
    layout, null = Layout(variables(*[3] * 24), shares=False), 2
    late = np.array([[*[2.0] * 23, 1.0]])
    full = np.tile([0.0, 1.0], 12)[None]
    never = np.full((1, 24), 2.0)
    totals = [int(summed(transitions_statistic(layout, null), X).sum()) for X in (late, full, never)]
    assert totals[0] == UNIT
    assert UNIT - 23 < totals[1] <= UNIT
    assert totals[2] == 0
    assert not summed(firsts_statistic(layout, null), never).any()


def statistics(shares: bool) -> list[tuple[Statistic, int]]:
    """One of every kind over five columns of three states, and the number of tables in it."""
    layout = Layout(PATH, shares)
    return [
        (table_statistic(layout, (0, 2)), 1),
        (tables_statistic(layout, [(0, 1), (1, 2, 4), (2, 3)]), 3),
        (firsts_statistic(layout, 1), 1),
        (transitions_statistic(layout, 1), 1),
        (transitions_statistic(layout, None), 1),
    ]


@pytest.mark.parametrize("shares", [False, True])
def test_sums_depend_on_nothing_but_rows(shares: bool) -> None:
    """Threads, order of rows, their slots and neighbours change nothing."""
    X = awkward_rows(2 * CHUNK, 5 + shares)
    shuffle = np.random.default_rng(2).permutation(len(X))  # noqa: TID251 - a test's
    for statistic, _ in statistics(shares):
        sums = summed(statistic, X)
        assert np.array_equal(sums, summed(statistic, X, threads=2))
        assert np.array_equal(sums, summed(statistic, X[shuffle]))
        alone = sum(summed(statistic, X, np.arange(len(X)) == slot) for slot in range(20))
        assert np.array_equal(alone, summed(statistic, X[:20]))


numbers = st.one_of(st.sampled_from(ODD), st.floats(width=64))


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.lists(numbers, min_size=6, max_size=6), min_size=2, max_size=2), shares=st.booleans())
def test_no_bits_pass_a_bound(rows: list[list[float]], shares: bool) -> None:
    """Norms of rows and distances of two rows, in exact integers, whatever the rows hold, K included."""
    first, second = (np.array([row[: 5 + shares]]) for row in rows)
    for statistic, _ in statistics(shares):
        bounds = statistic.bounds
        v, w = (summed(statistic, row).ravel() for row in (first, second))
        for one in (v, w):
            assert one.min() >= 0
            assert one.sum() <= bounds.l1
            assert one @ one <= bounds.l2_squared
        assert np.abs(v - w).sum() <= bounds.l1_distance
        assert (v - w) @ (v - w) <= bounds.l2_squared_distance


@settings(max_examples=100, deadline=None)
@given(
    paths=st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=40),
    other=st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=40),
)
def test_the_rows_of_a_unit_share_one_weight(paths: list[list[int]], other: list[list[int]]) -> None:
    """However many rows a unit has, together they are within the bounds, and so are two units apart."""
    units = [np.array([[*path, len(rows)] for path in rows], dtype=np.float64) for rows in (paths, other)]
    for statistic, tables in statistics(shares=True):
        bounds = statistic.bounds
        assert bounds.per_unit
        v, w = (summed(statistic, X).ravel() for X in units)
        for one, X in ((v, units[0]), (w, units[1])):
            assert one.sum() <= bounds.l1 == tables * UNIT
            assert one @ one <= bounds.l2_squared == tables * UNIT**2
            if "table" in statistic.name:
                assert one.sum() > tables * (UNIT - len(X))  # nothing is lost but what truncation takes
        assert np.abs(v - w).sum() <= bounds.l1_distance
        assert (v - w) @ (v - w) <= bounds.l2_squared_distance


@pytest.mark.parametrize("shares", [False, True])
def test_bounds_are_reached(shares: bool) -> None:
    """Two constant paths attain every norm and every distance."""
    rows = [np.array([[*[value] * 5, 1.0][: 5 + shares]]) for value in (0.0, 2.0)]
    for statistic, _ in statistics(shares):
        bounds = statistic.bounds
        v, w = (summed(statistic, row).ravel() for row in rows)
        assert v.sum() == bounds.l1
        assert v @ v == bounds.l2_squared
        assert np.abs(v - w).sum() == bounds.l1_distance
        assert (v - w) @ (v - w) == bounds.l2_squared_distance


@pytest.mark.parametrize(
    ("adjacency", "shares", "cap", "l1", "l2_squared", "groups"),
    [
        (AR, False, 1, 1, 1, 1),
        (RO, False, 1, 1, 2, 2),
        (AR, False, 5, 5, 25, 1),
        (RO, False, 5, 5, 50, 2),
        (AR, True, 5, UNIT, UNIT**2, 1),
        (RO, True, 5, UNIT, 2 * UNIT**2, 2),
    ],
)
def test_the_price_of_a_table(
    adjacency: Adjacency, shares: bool, cap: int, l1: int, l2_squared: int, groups: int
) -> None:
    """Bernstein et al. 2017, proposition 3, for one table: L1 1 added or removed, 2 replaced; shares cost one row."""
    changed = sensitivity(table_bounds(Layout(PATH, shares)), adjacency, cap)
    gaussian = event_of(changed, gaussian_for(changed, Fraction(1, 2)))
    laplace = event_of(changed, laplace_for(changed, Fraction(1, 2)))
    assert isinstance(gaussian, GaussianEvent)
    assert isinstance(laplace, LaplaceEvent)
    assert gaussian.l2_squared == l2_squared
    assert (laplace.l1, laplace.groups) == (l1, groups)
    # rho = l2_squared / (2 s^2), epsilon = groups l1 / b
    assert float(gaussian.scale) == pytest.approx(math.sqrt(l2_squared))
    assert float(laplace.scale) == pytest.approx(2 * groups * l1)


@cache
def noise_of_a_release(pure: bool) -> tuple[NDArray[np.int64], float]:
    """Noise on the cells of tables of 20 rows, and the scale that the ledger was told."""
    made = plan(people(c=60, d=60, rows=20), spend=PURE if pure else RHO, cliques=cliques("cd"))
    (event,), (measurement,) = made.events, made.settings.measurements
    assert isinstance(event, LaplaceEvent if pure else GaussianEvent)
    X = np.tile([[3.0, 7.0]], (20, 1))
    released = [measurement.release(session(made, X), 1).counts for _ in range(3)]
    exact = table(made.settings.layout, (0, 1), X)
    return np.concatenate([(counts - exact).ravel() for counts in released]).astype(np.int64), float(event.scale)


@pytest.mark.parametrize("factor", [1.0, 0.7, 1.3])
@pytest.mark.parametrize(("pmf", "pure"), [(gaussian_pmf, False), (laplace_pmf, True)])
def test_a_release_has_the_noise_that_was_paid_for(pmf: Pmf, pure: bool, factor: float) -> None:
    """Chi-square of released cells against the exact law; noise 30 % smaller or larger than claimed is rejected."""
    samples, scale = noise_of_a_release(pure)
    claimed, actual = (bins_of(pmf, scale * f) for f in (factor, 1.0))
    assert (claimed.p_value(samples) < ALPHA) == (factor != 1.0)
    assert actual.p_value(samples) > ALPHA
