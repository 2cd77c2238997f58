"""Sensitivities against brute force, and noise that costs at most the spend."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent, SelectionEvent, cost_units
from bursar_server.vault import (
    Bounds,
    GaussianNoise,
    LaplaceNoise,
    SelectionNoise,
    Sensitivity,
    event_of,
    gaussian_for,
    laplace_for,
    pure_selection_for,
    selection_for,
    sensitivity,
)

Vector = tuple[int, ...]
AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE


def l1(a: Vector, b: Vector) -> int:
    """L1 distance."""
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


def l2_squared(a: Vector, b: Vector) -> int:
    """Squared L2 distance."""
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def total(rows: tuple[Vector, ...]) -> Vector:
    """Sum of contributions."""
    return tuple(map(sum, zip(*rows, strict=True)))


def bounds_of(contributions: list[Vector]) -> Bounds:
    """The tight bounds of a statistic whose rows can contribute exactly these vectors."""
    null = (0,) * len(contributions[0])
    pairs = list(itertools.product(contributions, repeat=2))
    return Bounds(
        l1=max(l1(v, null) for v in contributions),
        l2_squared=max(l2_squared(v, null) for v in contributions),
        l1_distance=max(l1(a, b) for a, b in pairs),
        l2_squared_distance=max(l2_squared(a, b) for a, b in pairs),
    )


statistics = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(-4, 4)] * width), min_size=2, max_size=4, unique=True)
)


@given(statistics, st.integers(1, 2), st.sampled_from([AR, RO]))
def test_sensitivity_is_the_brute_force_maximum(contributions: list[Vector], cap: int, adjacency: Adjacency) -> None:
    """The largest change over all contents of a unit, null rows included, is the declared one, in both norms."""
    null = (0,) * len(contributions[0])
    claimed = sensitivity(bounds_of(contributions), adjacency, cap)
    contents = [total(rows) for rows in itertools.product([*contributions, null], repeat=cap)]
    others = [null] if adjacency is AR else contents
    assert claimed.l1 == max(l1(a, b) for a in contents for b in others)
    assert claimed.l2_squared == max(l2_squared(a, b) for a in contents for b in others)


def test_a_null_row_counts_under_replace_one() -> None:
    """Contributions near one another but far from zero: replacing one by the null row is the worst that can happen."""
    assert sensitivity(bounds_of([(10, 0), (10, 1)]), RO, 1) == Sensitivity(l1=11, l2_squared=101)


def vectors(least: int) -> st.SearchStrategy[list[Vector]]:
    """Statistics whose rows contribute integers from `least` to 4."""
    return st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.tuples(*[st.integers(least, 4)] * width).filter(any), min_size=2, max_size=4, unique=True
        )
    )


@given(vectors(0), st.integers(1, 2), st.sampled_from([AR, RO]))
def test_what_comes_and_what_leaves_are_two_groups(contributions: list[Vector], cap: int, adjacency: Adjacency) -> None:
    """No neighbour exceeds the claim where nothing is negative: in L2, in L1, and in each group of coordinates."""
    null = (0,) * len(contributions[0])
    bounds = bounds_of(contributions)
    claimed = sensitivity(replace(bounds, non_negative=True), adjacency, cap)
    plain = sensitivity(bounds, adjacency, cap)
    contents = [total(rows) for rows in itertools.product([*contributions, null], repeat=cap)]
    for a, b in itertools.product(contents, [null] if adjacency is AR else contents):
        change = [x - y for x, y in zip(a, b, strict=True)]
        parts = [sum(x for x in change if x > 0), -sum(x for x in change if x < 0)]
        assert l2_squared(a, b) <= claimed.l2_squared
        assert sum(parts) <= claimed.l1_total
        assert sum(part > 0 for part in parts) <= claimed.groups or sum(parts) <= claimed.l1
        assert max(parts) <= claimed.l1
    assert (claimed.l1_total, claimed.l2_squared) <= (plain.l1_total, plain.l2_squared)


@pytest.mark.parametrize(
    ("adjacency", "cap", "expected"),
    [
        (AR, 1, Sensitivity(l1=1, l2_squared=1)),
        (AR, 3, Sensitivity(l1=3, l2_squared=9)),
        (RO, 1, Sensitivity(l1=1, l2_squared=2, groups=2)),
        (RO, 3, Sensitivity(l1=3, l2_squared=18, groups=2)),
    ],
)
@pytest.mark.parametrize("distances", [(2, 2), (2, 4), (9, 9)])
def test_a_tables_sensitivity(
    adjacency: Adjacency, cap: int, expected: Sensitivity, distances: tuple[int, int]
) -> None:
    """One cell per row: one cell rises, or one rises and one falls; distances declared too large change nothing."""
    assert sensitivity(Bounds(1, 1, *distances, non_negative=True), adjacency, cap) == expected


@pytest.mark.parametrize(("non_negative", "groups"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("cap", [1, 5])
def test_bounds_of_a_whole_unit_are_not_multiplied(cap: int, non_negative: bool, groups: int) -> None:
    """The number of a unit's rows does not matter where they share one weight."""
    bounds = Bounds(2**20, 2**40, 2**21, 2**41, non_negative=non_negative, per_unit=True)
    assert sensitivity(bounds, AR, cap) == Sensitivity(2**20, 2**40)
    assert sensitivity(bounds, RO, cap) == Sensitivity(2**21 // groups, 2**41, groups)


@given(st.data(), st.integers(1, 4))
def test_rows_that_share_one_weight_stay_within_the_bounds_of_a_unit(data: st.DataObject, cap: int) -> None:
    """Tables of rows that weigh trunc(2^20 / K) each, K of them: all that one person has changes them no further."""
    bounds = Bounds(2**20, 2**40, 2**21, 2**41, non_negative=True, per_unit=True)
    sums = []
    for _ in range(2):
        cells = data.draw(st.lists(st.integers(0, 2), max_size=cap))
        sums.append([cells.count(cell) * (2**20 // max(1, len(cells))) for cell in range(3)])
    for adjacency, pair in ((AR, (sums[0], [0, 0, 0])), (RO, sums)):
        claimed, (a, b) = sensitivity(bounds, adjacency, cap), map(tuple, pair)
        assert l1(a, b) <= claimed.l1_total
        assert l2_squared(a, b) <= claimed.l2_squared


def test_distances_below_the_norms_are_kept_as_one_group() -> None:
    """Contributions near one another: the split into two groups of the norm would claim too much, so it is not made."""
    bounds = replace(bounds_of([(10, 0), (10, 1)]), non_negative=True)
    assert sensitivity(bounds, RO, 1) == Sensitivity(l1=11, l2_squared=101)


def test_two_groups_are_as_private_as_one_twice_as_large_and_cheaper() -> None:
    """Cells of a table cost less than a vector of their length at the same pure epsilon, hence the same noise."""
    cells, vector = (sensitivity(Bounds(1, 1, 2, 2, non_negative=known), RO, 1) for known in (True, False))
    noise = laplace_for(cells, Fraction(1, 8))
    assert noise == laplace_for(vector, Fraction(1, 8)) == LaplaceNoise(16.0)
    costs = [cost_units([event_of(changed, noise)], Fraction(9)) for changed in (cells, vector)]
    assert costs[0] < 0.6 * costs[1]


@pytest.mark.parametrize("cap", [0, -1])
def test_a_unit_owns_at_least_one_row(cap: int) -> None:
    """A cap below one would price a release at nothing."""
    with pytest.raises(ValueError, match="unit_cap"):
        sensitivity(Bounds(1, 1, 1, 1), AR, cap)


@pytest.mark.parametrize("field", ["l1", "l2_squared", "l1_distance", "l2_squared_distance"])
@pytest.mark.parametrize("value", [0, -1])
def test_bounds_are_positive(field: str, value: int) -> None:
    """A bound of zero would be a release without noise."""
    with pytest.raises(ValueError, match="must be positive"):
        replace(Bounds(1, 1, 1, 1), **{field: value})  # type: ignore[arg-type] # a field that is a number


spends = st.fractions(min_value=Fraction(1, 10**6), max_value=10**3).filter(bool)
squares = st.integers(1, 2**80)


@given(squares, spends)
def test_gaussian_noise_is_the_least_that_the_spend_covers(square: int, rho: Fraction) -> None:
    """The release costs at most rho, and at the next smaller scale it would cost more."""
    noise = gaussian_for(Sensitivity(l1=1, l2_squared=square), rho)
    below = Fraction(math.nextafter(noise.scale, 0.0))
    assert square / (2 * Fraction(noise.scale) ** 2) <= rho < square / (2 * below**2)


@given(st.integers(1, 2**45), spends.filter(lambda e: e >= Fraction(1, 1000)))
def test_laplace_noise_is_the_least_that_the_spend_covers(l1_bound: int, epsilon: Fraction) -> None:
    """The release is epsilon-private, and at the next smaller scale it would not be."""
    noise = laplace_for(Sensitivity(l1=l1_bound, l2_squared=1), epsilon)
    below = Fraction(math.nextafter(noise.scale, 0.0))
    assert l1_bound / Fraction(noise.scale) <= epsilon < l1_bound / below


@given(st.integers(1, 2**40), st.integers(1, 3), spends.filter(lambda e: e >= Fraction(1, 1000)))
def test_laplace_noise_covers_every_group(l1_bound: int, groups: int, epsilon: Fraction) -> None:
    """The epsilon of a release is the sum of its groups'."""
    noise = laplace_for(Sensitivity(l1_bound, 1, groups), epsilon)
    below = Fraction(math.nextafter(noise.scale, 0.0))
    assert groups * l1_bound / Fraction(noise.scale) <= epsilon < groups * l1_bound / below


@given(st.integers(1, 2**40), st.integers(1, 2), spends.filter(lambda e: e >= Fraction(1, 1000)))
def test_noise_of_a_choice_is_the_least_that_the_spend_covers(l1_bound: int, groups: int, spend: Fraction) -> None:
    """The bounded range eta has eta^2 / 8 <= rho, or eta <= epsilon, and not at the next smaller scale."""
    changed = Sensitivity(l1_bound, 1, groups)

    def eta(scale: float) -> Fraction:
        event = event_of(changed, SelectionNoise(scale))
        assert isinstance(event, SelectionEvent)
        return event.bounded_range

    concentrated, pure = selection_for(changed, spend).scale, pure_selection_for(changed, spend).scale
    assert eta(concentrated) ** 2 / 8 <= spend < eta(math.nextafter(concentrated, 0.0)) ** 2 / 8
    assert eta(pure) <= spend < eta(math.nextafter(pure, 0.0))


@pytest.mark.parametrize("noise_for", [gaussian_for, laplace_for, selection_for, pure_selection_for])
@pytest.mark.parametrize("spend", [Fraction(0), Fraction(-1), Fraction(5e-324), Fraction(10**400)])
def test_a_spend_without_noise_is_refused(noise_for: type, spend: Fraction) -> None:
    """Nothing, less than nothing, too little and absurdly much: each is refused with the reason, none overflows."""
    with pytest.raises(ValueError, match=r"must be positive|too little is spent"):
        noise_for(Sensitivity(l1=2**36, l2_squared=2**72), spend)


def test_events_say_what_was_done() -> None:
    """An event holds the sensitivity in the norm of its noise and the scale exactly as the sampler gets it."""
    changed = Sensitivity(l1=5, l2_squared=7)
    assert event_of(changed, GaussianNoise(0.1)) == GaussianEvent(7, Fraction(0.1))
    assert event_of(changed, LaplaceNoise(0.1)) == LaplaceEvent(5, Fraction(0.1))
    assert event_of(changed, SelectionNoise(0.1)) == SelectionEvent(5, Fraction(0.1))
    two = replace(changed, groups=2)
    assert event_of(two, LaplaceNoise(0.1)) == LaplaceEvent(5, Fraction(0.1), groups=2)
    assert event_of(two, SelectionNoise(0.1)) == SelectionEvent(10, Fraction(0.1))
