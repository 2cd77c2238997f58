"""Budgets, the conversion behind them, and what is left."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_amounts import best_order, divergence_cap, epsilon_of, rho_of
from bursar_ledger import (
    COST_UNIT,
    DELTA_UNIT,
    Budget,
    ConcentratedEvent,
    GaussianEvent,
    PureEvent,
    Remainder,
    cost_units,
)

GOLDEN = [
    (0.5, 1e-5, 0.008505531, 31.7726, 0.27024258),
    (0.5, 1e-6, 0.006641524, 40.0458, 0.26596501),
    (0.5, 1e-9, 0.003953191, 65.6805, 0.25964775),
    (1, 1e-5, 0.030556595, 17.8087, 0.54417353),
    (1, 1e-6, 0.024355970, 21.9845, 0.53545474),
    (1, 1e-9, 0.014973058, 34.8651, 0.52203721),
    (2, 1e-5, 0.108256364, 10.2133, 1.10564978),
    (2, 1e-6, 0.088152688, 12.3239, 1.08638866),
    (2, 1e-9, 0.056130502, 18.8024, 1.05539080),
    (3, 1e-5, 0.224249168, 7.5077, 1.68359610),
    (3, 1e-6, 0.185069841, 8.9261, 1.65194443),
    (3, 1e-9, 0.120582429, 13.2646, 1.59948199),
    (5, 1e-6, 0.463064990, 6.0924, 2.82117887),
    (8, 1e-6, 1.052358005, 4.4228, 4.65433708),
    (8, 1e-9, 0.732833287, 6.0809, 4.45624960),
]
EPSILON, DELTA = st.floats(0.01, 50), st.floats(1e-15, 0.1)


@pytest.mark.parametrize(("epsilon", "delta", "rho", "order", "cap"), GOLDEN)
def test_golden_caps(epsilon: float, delta: float, rho: float, order: float, cap: float) -> None:
    """Order and caps have their tabulated values with nothing set aside for approximate releases."""
    budget = Budget(epsilon, delta, Fraction(0))
    assert rho_of(epsilon, delta) == pytest.approx(rho, abs=6e-10)
    assert float(budget.order) == pytest.approx(order, abs=6e-5)
    # The tabulated cap belongs to the order before rounding: d cap / d order is rho.
    assert budget.cap_cost_units / COST_UNIT == pytest.approx(cap, abs=2e-8 + rho * 1e-6)
    assert budget.cap_cost_units / COST_UNIT / float(budget.order) == pytest.approx(rho, abs=6e-10)
    assert budget.cap_delta_units == 0


@given(EPSILON, DELTA)
def test_conversion_there_and_back(epsilon: float, delta: float) -> None:
    """The rho for an epsilon converts to no more than that epsilon, and to hardly less."""
    back = epsilon_of(rho_of(epsilon, delta), delta)
    assert back <= epsilon * (1 + 1e-12)
    assert back == pytest.approx(epsilon, rel=1e-6)


@given(EPSILON, DELTA)
def test_the_rho_of_a_spend_is_rounded_down(epsilon: float, delta: float) -> None:
    """It fits into the cap as an exact fraction, so that a spend never costs a unit more than was asked for."""
    order = best_order(Fraction(epsilon), Fraction(delta))
    units = math.floor(COST_UNIT * divergence_cap(Fraction(epsilon), Fraction(delta), order))
    assert COST_UNIT * order * Fraction(rho_of(epsilon, delta)) <= units


@given(EPSILON, DELTA)
def test_the_order_is_the_best_one(epsilon: float, delta: float) -> None:
    """No order of a dense grid allows a larger rho."""
    grid = 1 + np.exp(np.linspace(math.log(1e-3), math.log(1e7), 2000))
    caps = epsilon - np.log1p(-1 / grid) + np.log(grid * delta) / (grid - 1)
    assert rho_of(epsilon, delta) >= float(np.max(caps / grid)) * (1 - 1e-9)


def exact_log_delta(budget: Budget) -> float:
    """Return the logarithm of Canonne, Kamath and Steinke's delta at the total's epsilon and cap, in floating point."""
    a, cap = float(budget.order), budget.cap_cost_units / COST_UNIT
    return (a - 1) * (cap - budget.epsilon) - math.log(a - 1) + a * math.log1p(-1 / a)


@given(EPSILON, DELTA)
def test_a_cap_implies_the_promise(epsilon: float, delta: float) -> None:
    """Canonne, Kamath and Steinke's delta at the cap is at most the delta that was promised for it."""
    budget = Budget(epsilon, delta)
    assert exact_log_delta(budget) == pytest.approx(math.log(delta), abs=1e-9 + 2.0 * float(budget.order) / COST_UNIT)
    assert exact_log_delta(budget) <= math.log(delta) + 1e-9
    assert budget.cap_delta_units == 0


@given(EPSILON, DELTA, st.fractions(Fraction(1, 1000), Fraction(999, 1000), max_denominator=1000))
def test_a_share_for_failures_is_no_part_of_the_conversion(epsilon: float, delta: float, share: Fraction) -> None:
    """The part of delta for approximate releases is taken off before divergences are converted."""
    budget = Budget(epsilon, delta, share)
    assert exact_log_delta(budget) <= math.log(delta * (1 - share)) + 1e-9
    assert budget.cap_delta_units <= DELTA_UNIT * Fraction(delta) * share < budget.cap_delta_units + 1


@pytest.mark.parametrize(
    ("epsilon", "delta", "gained"),
    [(0.1, 1e-6, 0.0120), (1, 1e-6, 0.0094), (3, 1e-6, 0.0080), (3, 1e-9, 0.0054), (10, 1e-5, 0.0072)],
)
def test_a_tenth_of_delta_that_is_kept_costs_a_percent_of_rho(epsilon: float, delta: float, gained: float) -> None:
    """No fit makes releases that may fail, so a total that keeps delta for them loses rho and gains nothing."""

    def rho(budget: Budget) -> float:
        return budget.cap_cost_units / COST_UNIT / float(budget.order)

    assert rho(Budget(epsilon, delta)) == pytest.approx(rho_of(epsilon, delta), rel=1e-9)
    assert rho(Budget(epsilon, delta)) / rho(Budget(epsilon, delta, Fraction(1, 10))) - 1 == pytest.approx(
        gained, abs=6e-5
    )


def test_caps_do_not_depend_on_floats_of_this_machine() -> None:
    """The cap is the exact value at the order, rounded down: a cap one unit larger would break the promise."""
    budget = Budget(3, 1e-6)
    exact = divergence_cap(Fraction(3), Fraction(1e-6), budget.order)
    assert budget.cap_cost_units <= exact * COST_UNIT < budget.cap_cost_units + 1
    assert budget.order.denominator.bit_count() == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (math.nan, 1e-6),
        (3, math.nan),
        (-1, 1e-6),
        (0, 1e-6),
        (math.inf, 1e-6),
        (2.0**21, 1e-6),
        (3, 0),
        (3, -1e-6),
        (3, 1),
        (3, math.inf),
        (3, 1e-6, Fraction(1)),
        (3, 1e-6, Fraction(-1, 10)),
        (3, 1e-6, 0.1),
        (1e-13, 1e-30),
    ],
)
def test_impossible_budgets_are_refused(arguments: Any) -> None:
    """NaN, negative, infinite and empty budgets cannot be made."""
    with pytest.raises(ValueError, match=r"must|too small"):
        Budget(*arguments)


@pytest.mark.parametrize("value", [math.nan, -1.0, 0.0, math.inf])
def test_conversions_refuse_what_is_no_privacy_loss(value: float) -> None:
    """NaN, negative, zero and infinite arguments are named."""
    with pytest.raises(ValueError, match="epsilon must be"):
        rho_of(value, 1e-6)
    with pytest.raises(ValueError, match="rho must be"):
        epsilon_of(value, 1e-6)
    with pytest.raises(ValueError, match="delta must lie"):
        rho_of(1.0, value)


@settings(max_examples=25)
@given(st.integers(0, 2**44), EPSILON, DELTA)
def test_what_is_left_can_be_spent(units: int, epsilon: float, delta: float) -> None:
    """Requests sized by the two figures for people fit, and the next larger pure request does not."""
    order = Budget(epsilon, delta).order
    left = Remainder(units, 0, units, 0, order)
    assert Fraction(left.rho) * order * COST_UNIT <= units
    assert left.rho == pytest.approx(float(units / (COST_UNIT * order)), rel=1e-15)
    if left.pure_epsilon:
        assert cost_units([PureEvent(Fraction(left.pure_epsilon))], order) <= units
    assert cost_units([PureEvent(Fraction(math.nextafter(left.pure_epsilon, math.inf)))], order) > units


def test_a_gaussian_request_for_the_whole_budget_fits_exactly() -> None:
    """A scale computed from the rho that is left costs no more than what is left."""
    budget = Budget(3, 1e-6)
    left = Remainder(budget.cap_cost_units, 0, budget.cap_cost_units, 0, budget.order)
    event = GaussianEvent(1, Fraction(math.nextafter(math.sqrt(1 / (2 * left.rho)), math.inf)))
    assert left.cost_units - 1000 <= cost_units([event], budget.order) <= left.cost_units


@given(EPSILON, DELTA)
def test_a_request_for_all_of_a_new_total_takes_all_of_it(epsilon: float, delta: float) -> None:
    """(epsilon, delta) as a total and as the spend of one request are the same number of units."""
    budget = Budget(epsilon, delta)
    request = ConcentratedEvent(Fraction(rho_of(epsilon, delta)))
    assert cost_units([request], budget.order) == budget.cap_cost_units


def bernoulli_divergence(mass: float, loss: float, order: float) -> float:
    """D_order of (mass, 1 - mass) from (mass e^-loss, the rest)."""
    q = mass * math.exp(-loss)
    return math.log(mass**order * q ** (1 - order) + (1 - mass) ** order * (1 - q) ** (1 - order)) / (order - 1)


def test_an_order_chosen_afterwards_breaks_the_promise_and_the_fixed_one_does_not() -> None:
    """The question whether some order of two still allows the next step is no filter: it spends 1.9 delta here.

    A rare outcome (mass 2.591e-4, loss 0.9347) is followed by a step that only the higher order allows, the common
    outcome by one that only the lower allows. The fixed order refuses both.
    """
    epsilon, delta = 3.0, 1e-5
    first, after_rare, after_common = (2.591e-4, 0.9347), (0.5686, 2.1345), (6.27e-5, 3.1677)

    def total(order: float, *steps: tuple[float, float]) -> float:
        return sum(bernoulli_divergence(*step, order) for step in steps)

    def fits(order: float, *steps: tuple[float, float]) -> bool:
        slack = 2e-4  # the parameters above are rounded
        return (
            total(order, *steps) <= float(divergence_cap(Fraction(epsilon), Fraction(delta), Fraction(order))) + slack
        )

    assert fits(14.348, first, after_rare)
    assert not fits(5.758, first, after_rare)
    assert fits(5.758, first, after_common)
    assert not fits(14.348, first, after_common)
    spent = 0.0
    for (mass, loss), (m, extra) in (
        (first, after_rare),
        ((1 - first[0], math.log((1 - first[0]) / (1 - first[0] * math.exp(-first[1])))), after_common),
    ):
        spent += mass * m * max(0.0, 1 - math.exp(epsilon - loss - extra))
    assert spent > 1.9 * delta
    budget = Budget(epsilon, delta, Fraction(0))
    for steps in ((first, after_rare), (first, after_common)):
        assert total(float(budget.order), *steps) * COST_UNIT > budget.cap_cost_units
