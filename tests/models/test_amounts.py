"""Amounts as people read them: an epsilon is never too small, and percents can be asked for."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import bursar
from bursar_amounts import (
    COST_UNIT,
    Part,
    bound_text,
    epsilon_of,
    epsilon_text,
    exact_text,
    odds_factor,
    percent_text,
    rho_of,
    total_text,
)
from bursar_ledger import (
    Budget,
    ConcentratedEvent,
    ExactEvent,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
    cost_units,
    rdp,
)

EVENTS: st.SearchStrategy[ExactEvent] = st.one_of(
    st.builds(PureEvent, st.fractions(Fraction(1, 1000), 30)),
    st.builds(SelectionEvent, st.just(1), st.fractions(Fraction(1, 10), 50)),
    st.builds(LaplaceEvent, st.integers(1, 40), st.fractions(Fraction(1, 50), 200)),
    st.builds(GaussianEvent, st.integers(1, 40), st.fractions(Fraction(1, 50), 200)),
    st.builds(ConcentratedEvent, st.fractions(Fraction(1, 1000), 10)),
)
ORDERS = st.fractions(Fraction(11, 10), 300, max_denominator=2**20)


@given(EVENTS, ORDERS, ORDERS)
def test_divergence_over_order_does_not_rise(event: ExactEvent, one: Fraction, other: Fraction) -> None:
    """A sum's cost at one order bounds it at all larger ones, for every kind of event."""
    low, high = sorted((one, other))
    assert rdp(event, high) / high <= rdp(event, low) / low * (1 + Fraction(1, 10**30))


def _exact_epsilon(epsilon: float, times: int, delta: float) -> float:
    """Return the least epsilon at `delta` of so many randomised responses, from their whole privacy loss."""
    right = 1 / (1 + math.exp(-epsilon))
    losses = [
        (math.comb(times, k) * right**k * (1 - right) ** (times - k), (2 * k - times) * epsilon)
        for k in range(times + 1)
    ]
    low, high = 0.0, times * epsilon
    for _ in range(100):
        middle = (low + high) / 2
        excess = sum(mass * -math.expm1(middle - loss) for mass, loss in losses if loss > middle)
        low, high = (low, middle) if excess <= delta else (middle, high)
    return high


PURE = [
    (Budget(total, delta), epsilon, times)
    for total in (0.3, 1.0, 3.0, 8.0)
    for delta in (1e-9, 1e-6, 1e-3)
    for epsilon in (0.05, 0.3, 1.0, 3.0, 6.0)
    for times in (1, 4, 20)
]


def test_an_epsilon_is_never_shown_too_small() -> None:
    """Pure events have a known exact loss; orders below the account's would show too little."""
    wrong = 0
    for budget, epsilon, times in PURE:
        units = cost_units([PureEvent(Fraction(epsilon), times)], budget.order)
        part = Part(units, budget.cap_cost_units, budget.order, Fraction(budget.delta))
        exact = _exact_epsilon(epsilon, times, budget.delta)
        assert part.epsilon >= exact * (1 - 1e-9)
        assert float(epsilon_text(part.epsilon)) >= part.epsilon * (1 - 1e-9)
        wrong += epsilon_of(part.rho, budget.delta) < exact * (1 - 1e-9)
    assert wrong > 10


@given(st.floats(0.01, 50), st.floats(1e-12, 0.01))
def test_a_whole_budget_is_its_epsilon(epsilon: float, delta: float) -> None:
    """And nothing is nothing."""
    budget = Budget(epsilon, delta)
    whole = Part(budget.cap_cost_units, budget.cap_cost_units, budget.order, Fraction(delta))
    assert epsilon * (1 - 1e-6) - 1e-9 <= whole.epsilon <= epsilon
    assert (whole.share, whole.percent) == (1.0, "100%")
    assert str(Part(0, budget.cap_cost_units, budget.order, Fraction(delta))) == "epsilon 0 (0%)"


@given(st.floats(1e-9, 1e7))
def test_epsilons_are_rounded_up(epsilon: float) -> None:
    """They have three digits; a billionth more than those is not shown."""
    assert epsilon * (1 - 1e-9) <= float(epsilon_text(epsilon)) <= epsilon * 1.0101


@pytest.mark.parametrize("delta", [1e-9, 1e-6])
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.5, 1.0, 2.0, 5.0])
def test_what_was_asked_for_is_shown_as_asked(epsilon: float, delta: float) -> None:
    """A price is rounded up to units, and is no "epsilon 1.01" for it."""
    budget = Budget(10.0, delta)
    units = math.ceil(rho_of(epsilon, delta) * budget.order * COST_UNIT) + 1
    price = Part(units, budget.cap_cost_units, budget.order, Fraction(delta))
    assert price.epsilon > epsilon
    assert epsilon_text(price.epsilon) == f"{epsilon:g}"


@given(st.floats(1e-9, 1.0))
def test_percents_are_rounded_up_if_they_cost_and_down_if_they_are_left(share: float) -> None:
    """An amount that is shown as left can be requested."""
    cost, left = percent_text(share), percent_text(share, is_left=True)
    if share < 1e-5:
        assert cost == left == "<0.001%"
        return
    above, below = (float(text.removesuffix("%")) / 100 for text in (cost, left))
    assert below * (1 - 1e-8) <= share <= above * (1 + 1e-8)
    assert above <= share * 1.0101
    assert below >= share * 0.99


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (0.1, "10%"), (0.07, "7%"), (Fraction(1, 3), "33.4%"), (1, "100%"), (12.3, "1230%")]
)
def test_percents_that_people_type_are_shown_as_typed(share: float, text: str) -> None:
    """A float that is a little more than ten percent is ten percent."""
    assert percent_text(share) == text


@example(5844416901749, 1.0 - 2.0**-53)
@given(st.integers(10**6, 2**44), st.floats(0.0, 1.0))
def test_what_is_shown_as_left_can_be_asked_for(budget: int, share: float) -> None:
    """A spend in percent is rounded down to whole units; half of an odd number of them is 50%."""
    units = int(share * budget)
    text = Part(units, budget, Fraction(9), Fraction(0), is_left=True).percent
    if not text.startswith("<"):
        assert math.floor(Fraction(text.removesuffix("%")) * budget / 100) <= units
    for parts in (2, 20, 100):
        assert Part(budget // parts, budget, Fraction(9), Fraction(0), is_left=True).percent == f"{100 // parts}%"
    assert percent_text(None) == "-"


@given(st.floats(1e-6, 700.0))
@example(5.0)
def test_odds_never_change_by_more_than_is_said(epsilon: float) -> None:
    """The factor has three digits, and is rounded up: of epsilon 5 it is 149, not 148."""
    said = odds_factor(epsilon)
    assert float(f"{said:.3g}") == said
    assert math.exp(epsilon) * (1 - 1e-12) <= said <= 1.01 * math.exp(epsilon)


@given(st.floats(1e-300, 1e9), st.integers(2, 6))
@example(1.0000004, 6)
@example(1.1e-06, 6)
def test_a_total_is_shown_exactly_and_a_bound_on_its_own_side(value: float, digits: int) -> None:
    """Six digits to nearest would show a total of 1.0000004 as 1."""
    assert float(exact_text(value)) == value
    low, high = (float(bound_text(value, digits, is_left=is_left)) for is_left in (True, False))
    assert low <= value <= high * (1 + 2e-9)
    assert high - low <= 1.01 * value * 10 ** (1 - digits)


def test_a_total_is_shown_in_few_digits_where_they_are_all() -> None:
    """Noughts after the point are left out."""
    assert total_text(3.0, 1e-6) == "(3, 1e-06)"
    assert total_text(1.0000004, 1e-6) == "(1.0000004, 1e-06)"
    assert (bound_text(math.inf), bound_text(Fraction(2, 3)), bound_text(0.0)) == ("infinite", "0.667", "0")


def test_a_part_without_a_delta_has_no_epsilon() -> None:
    """An older server sends it so: infinite is never too small."""
    assert str(Part(COST_UNIT, 2 * COST_UNIT, Fraction(9), Fraction(0))) == "epsilon infinite (50%)"


def test_an_absurd_amount_is_shown_as_infinite() -> None:
    """A refusal says so beyond every float, and does not fail."""
    assert str(Part(10**400, 2 * COST_UNIT, Fraction(9), Fraction(1, 10**6))) == "epsilon infinite (?%)"


def test_a_spend_is_converted_without_a_server() -> None:
    """The epsilon that it implies is computed, and back."""
    assert bursar.convert(bursar.rho(0.01), 1e-6) == epsilon_of(0.01, 1e-6)
    assert bursar.convert(bursar.pure(0.5), 1e-6) == 0.5
    assert bursar.convert(bursar.pure(5.0), 1e-2) < 5.0 or epsilon_of(12.5, 1e-2) > 5.0
    assert bursar.rho_of(1, 1e-6) == rho_of(1, 1e-6)
    assert bursar.convert(bursar.epsilon_delta(1, 1e-6), 1e-6) == pytest.approx(1, rel=1e-6)
    with pytest.raises(bursar.InvalidRequestError, match="delta"):
        bursar.convert(bursar.rho(1), 1.0)
    with pytest.raises(bursar.InvalidRequestError, match="epsilon"):
        bursar.rho_of(-1, 1e-6)
    with pytest.raises(bursar.InvalidRequestError, match="no positive rho"):
        bursar.rho_of(1e-12, 1e-13)
    for spend in (bursar.percent(10), bursar.what_is_left()):
        with pytest.raises(bursar.InvalidRequestError, match="spend: must be"):
            bursar.convert(spend, 1e-6)  # type: ignore[arg-type]
