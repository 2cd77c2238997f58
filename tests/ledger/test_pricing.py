"""Prices against brute force, closed forms and each other."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bursar_amounts import float_down, float_up, lower, precise, to_decimal, upper
from bursar_ledger import (
    COST_UNIT,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    cost_units,
    laplace_rdp,
    price,
    pure_rdp,
    rdp,
)
from tests.each import each

ORDERS = [Fraction(5, 4), Fraction(2), Fraction("8.926"), Fraction(32)]
FRACTIONS = st.fractions(min_value=Fraction(1, 1000), max_value=1000, max_denominator=1000)
ORDER = st.fractions(min_value=Fraction(1001, 1000), max_value=200, max_denominator=1000)


def divergence(log_p: NDArray[np.float64], log_q: NDArray[np.float64], order: float) -> float:
    """D_order(P||Q) of two log mass functions on the same points."""
    log_p, log_q = log_p - np.logaddexp.reduce(log_p), log_q - np.logaddexp.reduce(log_q)
    return float(np.logaddexp.reduce(order * log_p + (1 - order) * log_q)) / (order - 1)


@each("order", ORDERS)
@each("scale", [Fraction(1, 2), Fraction(7, 3), Fraction(20)])
@each("shift", [1, 2, 7])
def test_laplace_is_the_brute_force_divergence(order: Fraction, scale: Fraction, shift: int) -> None:
    """The closed form is the divergence of the discrete Laplace law from its shifted self."""
    x = np.arange(-3000, 3001)
    brute = divergence(-abs(x) / float(scale), -abs(x - shift) / float(scale), float(order))
    assert float(laplace_rdp(order, shift, scale)) == pytest.approx(brute, rel=1e-9)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shift", [1, 10**39, 10**41])
def test_beyond_the_largest_scale_laplace_costs_what_any_such_mechanism_may(order: Fraction, shift: int) -> None:
    """The price at the dataset's order is no less than the exact curve one step below that scale."""
    beyond = laplace_rdp(order, shift, Fraction(10**40 + 1))
    assert beyond == pure_rdp(order, Fraction(shift, 10**40 + 1))
    assert beyond >= laplace_rdp(order, shift, Fraction(10**40)) * (1 - Fraction(1, 10**20))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("shift", "scale"), [(1, Fraction(1, 2)), (3, Fraction(5, 2)), (10, Fraction(40))])
def test_gaussian_is_the_brute_force_divergence(order: Fraction, shift: int, scale: Fraction) -> None:
    """Integer shifts of the discrete Gaussian cost what the continuous one costs, at orders between integers less."""
    # Far enough out: the sum weighs points around order * shift.
    x = np.arange(-20 - 33 * shift - 20 * math.ceil(scale), 20 + 33 * shift + 20 * math.ceil(scale))
    s2 = 2 * float(scale) ** 2
    brute = divergence(-(x**2) / s2, -((x - shift) ** 2) / s2, float(order))
    ours = float(rdp(GaussianEvent(shift**2, scale), order))
    assert brute <= ours * (1 + 1e-9)
    if order.denominator == 1:
        assert ours == pytest.approx(brute, rel=1e-9)


@pytest.mark.parametrize("order", ORDERS)
def test_pure_is_randomised_response(order: Fraction) -> None:
    """The pure price is attained by randomised response."""
    log_p = np.array([0.75, 0.0])
    brute = divergence(log_p, log_p[::-1], float(order))
    assert float(pure_rdp(order, Fraction(3, 4))) == pytest.approx(brute, rel=1e-12)


@pytest.mark.parametrize(
    ("order", "u", "value"),
    [
        ("2", "1", 0.619123629999),
        ("8", "0.1", 0.035676773434),
        ("8", "1", 0.910198801177),
        ("32", "0.05", 0.029460504453),
    ],
)
def test_laplace_tends_to_the_continuous_curve_from_above(order: str, u: str, value: float) -> None:
    """Mironov's curve is the limit for large scales and lies below the discrete curve."""
    scale = 10**9
    fine = float(laplace_rdp(Fraction(order), int(Fraction(u) * scale), Fraction(scale)))
    coarse = float(laplace_rdp(Fraction(order), max(1, int(Fraction(u) * 20)), Fraction(20)))
    assert fine == pytest.approx(value, abs=1e-12)
    assert coarse > value or int(Fraction(u) * 20) == 0


@pytest.mark.parametrize(
    ("order", "epsilon", "value"),
    [
        ("2", "1", 0.735325664056),
        ("8", "0.1", 0.036716659701),
        ("22", "0.25", 0.222575334538),
        ("8.9", "1", 0.960346628234),
        ("8.9", "3", 2.993849702332),
    ],
)
def test_pure_golden_values(order: str, epsilon: str, value: float) -> None:
    """The pure curve has its tabulated values."""
    assert float(pure_rdp(Fraction(order), Fraction(epsilon))) == pytest.approx(value, abs=1e-12)


@given(ORDER, FRACTIONS, st.integers(1, 100))
def test_laplace_lies_between_one_split_and_any_pure_mechanism(order: Fraction, scale: Fraction, l1: int) -> None:
    """Moving one coordinate by all is the worst case, and no Laplace release costs more than a pure one."""
    whole = laplace_rdp(order, l1, scale)
    assert l1 * laplace_rdp(order, 1, scale) <= whole + Fraction(l1, 10**38)
    assert whole <= pure_rdp(order, l1 / scale) + Fraction(1, 10**38)
    assert whole <= l1 / scale * (1 + Fraction(1, 10**30))


@given(ORDER, FRACTIONS)
def test_pure_stays_below_its_two_bounds(order: Fraction, epsilon: Fraction) -> None:
    """D_a <= min(epsilon, a epsilon^2 / 2)."""
    assert pure_rdp(order, epsilon) <= min(epsilon, order * epsilon**2 / 2) * (1 + Fraction(1, 10**30))


@given(ORDER, FRACTIONS, FRACTIONS)
def test_more_noise_never_costs_more(order: Fraction, one: Fraction, other: Fraction) -> None:
    """Prices fall with the scale."""
    small, large = sorted((one, other))
    for event in (GaussianEvent, LaplaceEvent):
        assert cost_units([event(3, large)], order) <= cost_units([event(3, small)], order)


@given(ORDER, st.lists(FRACTIONS, min_size=1, max_size=5), st.integers(1, 4))
def test_prices_do_not_depend_on_order_or_grouping(order: Fraction, scales: list[Fraction], count: int) -> None:
    """A list of events costs the same reversed, and `count` costs what repetition costs."""
    events = [GaussianEvent(2, s) for s in scales]
    assert price(events, order) == price(events[::-1], order)
    repeated = [GaussianEvent(2, s, count) for s in scales]
    assert price(repeated, order) == price(events * count, order)


def test_groups_and_counts_multiply() -> None:
    """C cells that change by one cost C times one cell, not one cell that changes by C."""
    one = rdp(LaplaceEvent(1, Fraction(18)), Fraction(9))
    assert rdp(LaplaceEvent(1, Fraction(18), count=3, groups=20), Fraction(9)) == 60 * one
    assert rdp(PureEvent(Fraction(1, 2), count=7), Fraction(9)) == 7 * pure_rdp(Fraction(9), Fraction(1, 2))
    assert 20 * one < rdp(LaplaceEvent(20, Fraction(18)), Fraction(9)) / 3


def test_the_sum_is_rounded_up_once() -> None:
    """Three thirds of a unit are one unit, and the smallest release costs one."""
    order = Fraction(2)
    third = GaussianEvent(1, Fraction(1), 1)
    assert cost_units([third], order) == COST_UNIT
    sliver = LaplaceEvent(1, Fraction(10**39))
    assert cost_units([sliver], order) == 1
    assert cost_units([GaussianEvent(1, Fraction(2**19))] * 8, Fraction(4)) == 8 * 8


@pytest.mark.parametrize("epsilon", [Fraction(1, 10**60), Fraction(10**30), Fraction(10) ** 300])
@pytest.mark.parametrize("order", [1 + Fraction(1, 2**20), Fraction(2**40)])
def test_prices_are_total_functions(epsilon: Fraction, order: Fraction) -> None:
    """No privacy parameter, however large or small, overflows or is priced at nothing."""
    for value in (
        pure_rdp(order, epsilon),
        laplace_rdp(order, 1, 1 / epsilon),
        laplace_rdp(order, 10**9, 10**9 / epsilon),
    ):
        assert 0 < value <= epsilon * (1 + Fraction(1, 10**30)) + Fraction(2, 10**40)


@pytest.mark.parametrize("order", [Fraction(1), Fraction(0), Fraction(-3)])
def test_orders_must_be_above_one(order: Fraction) -> None:
    """Orders at which the divergence has no such formula are refused."""
    for event in (GaussianEvent(1, Fraction(1)), LaplaceEvent(1, Fraction(1)), PureEvent(Fraction(1))):
        with pytest.raises(ValueError, match="order must be above 1"):
            rdp(event, order)


def test_arguments_must_be_positive() -> None:
    """The curves refuse sensitivities and scales that are not positive."""
    with pytest.raises(ValueError, match="epsilon"):
        pure_rdp(Fraction(2), Fraction(0))
    with pytest.raises(ValueError, match="l1"):
        laplace_rdp(Fraction(2), 0, Fraction(1))
    with pytest.raises(ValueError, match="scale"):
        laplace_rdp(Fraction(2), 1, Fraction(-1))


def test_unknown_events_are_refused() -> None:
    """An event without a price cannot be debited."""
    with pytest.raises(TypeError, match="no price is known"):
        rdp("gaussian", Fraction(2))  # type: ignore[arg-type]


@given(st.fractions(max_denominator=10**30))
def test_roundings_have_their_direction(x: Fraction) -> None:
    """Floats and margins lie on the promised side of the exact value, as close as they can."""
    assert Fraction(float_down(x)) <= x <= Fraction(float_up(x))
    assert float_up(x) <= math.nextafter(float_down(x), math.inf)
    with precise():
        digits = to_decimal(x)
    assert lower(digits) < x < upper(digits)
    assert upper(digits) - lower(digits) <= 3 * (abs(x) + 1) / 10**40


def test_roundings_leave_the_range_of_floats_in_their_direction() -> None:
    """Infinity is above the largest float, and that float below."""
    assert (float_up(Fraction(10**400)), float_down(Fraction(10**400))) == (math.inf, sys.float_info.max)
    assert (float_up(Fraction(-(10**400))), float_down(Fraction(-(10**400)))) == (-sys.float_info.max, -math.inf)


def test_rho_is_the_cost_at_order_one() -> None:
    """A price shows the zCDP parameter, rounded up."""
    event = GaussianEvent(1, Fraction(4))
    shown = price([event], Fraction("8.9")).rho
    assert 1 / 32 <= shown < 1 / 32 + 1e-11
