"""Sensitivities against brute force, and noise that costs at most the spend."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent
from bursar_server.vault import (
    Bounds,
    GaussianNoise,
    LaplaceNoise,
    Sensitivity,
    event_of,
    gaussian_for,
    laplace_for,
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
    """Over all contents of a unit, null rows included, the largest change is the declared one, in both norms."""
    null = (0,) * len(contributions[0])
    claimed = sensitivity(bounds_of(contributions), adjacency, cap)
    contents = [total(rows) for rows in itertools.product([*contributions, null], repeat=cap)]
    others = [null] if adjacency is AR else contents
    assert claimed.l1 == max(l1(a, b) for a in contents for b in others)
    assert claimed.l2_squared == max(l2_squared(a, b) for a in contents for b in others)


def test_a_null_row_counts_under_replace_one() -> None:
    """Contributions near one another but far from zero: replacing one by the null row is the worst that can happen."""
    assert sensitivity(bounds_of([(10, 0), (10, 1)]), RO, 1) == Sensitivity(l1=11, l2_squared=101)


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


@pytest.mark.parametrize("noise_for", [gaussian_for, laplace_for])
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
