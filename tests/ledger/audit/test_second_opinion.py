"""dp-accounting as a second opinion: what it is asked agrees with our prices, and what is wrong trips it."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_amounts import epsilon_of
from bursar_ledger import (
    COST_UNIT,
    ApproximateEvent,
    Budget,
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
    cost_units,
)
from bursar_ledger._events import encode_event, encode_fraction
from bursar_ledger.audit._history import Losses, history
from bursar_ledger.audit._open import Row
from bursar_ledger.audit._oracle import bounds, second_opinion, tighter_epsilon
from bursar_ledger.audit._spend import nominal_epsilon

COUNTS = st.integers(1, 1000)
SCALES = st.fractions(Fraction(1, 4), 10**7, max_denominator=1000)
EXACT = (
    st.builds(GaussianEvent, st.integers(1, 2**50), SCALES, COUNTS)
    | st.builds(LaplaceEvent, st.integers(1, 10**6), SCALES, COUNTS, st.integers(1, 20))
    | st.builds(PureEvent, st.fractions(Fraction(1, 10**6), 20, max_denominator=10**6), COUNTS)
    | st.builds(SelectionEvent, st.integers(1, 1000), SCALES, COUNTS)
    | st.builds(ConcentratedEvent, st.fractions(Fraction(1, 10**6), 20, max_denominator=10**6), COUNTS)
)
EVENTS = EXACT | st.builds(ApproximateEvent, EXACT, st.just(Fraction(1, 10**9)), COUNTS)
ORDERS = st.fractions(Fraction(17, 16), 200, max_denominator=2**10)


def _row(kind: str, details: dict[str, Any]) -> Row:
    return Row(3, "", b"", False, {"kind": kind, "details": details})


def _debit(events: list[Event], order: Fraction, cost: int) -> Row:
    encoded = [encode_event(event) for event in events]
    return _row("debit", {"events": encoded, "order": encode_fraction(order), "cost_units": cost})


@given(st.lists(EVENTS, min_size=1, max_size=5), ORDERS)
def test_right_prices_agree(events: list[Event], order: Fraction) -> None:
    """Our price is dp-accounting's, or between its bounds, for every release and order."""
    opinion = second_opinion([_debit(events, order, cost_units(events, order))])
    assert opinion.problems == []
    assert opinion.debits + opinion.left_out == 1


def test_a_pure_epsilon_beyond_all_exponents_is_its_own_divergence() -> None:
    """The exponential would overflow there."""
    assert bounds([PureEvent(Fraction(5000), 2)], 9.0) == (10_000, 10_000)


@given(
    st.lists(
        st.builds(GaussianEvent, st.integers(1, 2**50), SCALES)
        | st.builds(PureEvent, st.fractions(Fraction(1, 100), 5, max_denominator=1000)),
        min_size=1,
        max_size=5,
    ),
    st.fractions(2, 60, max_denominator=16),
    st.sampled_from([Fraction(1, 2), 1 - Fraction(1, 10**6), 1 + Fraction(1, 10**6), Fraction(2)]),
)
def test_wrong_prices_do_not(events: list[Event], order: Fraction, factor: Fraction) -> None:
    """A millionth too little or too much is seen, where the price is more than a few units."""
    right = cost_units(events, order)
    wrong = math.floor(right * factor)
    if abs(wrong - right) > 10:
        assert len(second_opinion([_debit(events, order, wrong)]).problems) == 1


@given(st.builds(LaplaceEvent, st.integers(1, 1000), st.fractions(1, 1000, max_denominator=100)), ORDERS)
def test_laplace_prices_lie_between_the_bounds(event: LaplaceEvent, order: Fraction) -> None:
    """The continuous curve bounds the discrete one from below, randomised response from above; and not far off."""
    low, high = bounds([event], float(order))
    price = cost_units([event], order) / COST_UNIT
    assert low * (1 - 1e-9) - 1e-11 <= price <= high * (1 + 1e-9) + 1e-11
    assert len(second_opinion([_debit([event], order, math.floor(low * 0.99 * COST_UNIT) - 20)]).problems) == 1


def test_a_discrete_laplace_price_is_above_the_continuous_one() -> None:
    """So an auditor who took the continuous curve for the truth would raise a false alarm."""
    low, high = bounds([LaplaceEvent(1, Fraction(1))], 9.0)
    assert low < cost_units([LaplaceEvent(1, Fraction(1))], Fraction(9)) / COST_UNIT <= high * (1 + 1e-9)
    assert low == pytest.approx(0.92050140875993, rel=1e-12)  # Mironov 2017, Prop. 6
    assert high == pytest.approx(0.96084229423514, rel=1e-12)  # one step of a unit scale is randomised response


@given(st.builds(SelectionEvent, st.integers(1, 1000), st.fractions(1, 1000, max_denominator=100)), ORDERS)
def test_prices_of_choices_lie_between_the_bounds(event: SelectionEvent, order: Fraction) -> None:
    """Two level candidates bound a choice from below; zCDP or randomised response at the whole range from above."""
    low, high = bounds([event], float(order))
    charged = cost_units([event], order) / COST_UNIT
    assert low * (1 - 1e-9) - 1e-11 <= charged <= high * (1 + 1e-9) + 1e-11
    for wrong in (math.floor(low * 0.99 * COST_UNIT) - 1000, math.ceil(high * 1.01 * COST_UNIT) + 1000):
        assert len(second_opinion([_debit([event], order, wrong)]).problems) == 1


def test_a_choice_whose_range_is_beyond_all_exponents_lies_between_half_of_it_and_all() -> None:
    """The exponential would overflow there."""
    assert bounds([SelectionEvent(2500, Fraction(1), 2)], 9.0) == (5_000, 10_000)


@pytest.mark.slow
@given(st.floats(0.05, 50), st.sampled_from([1e-5, 1e-6, 1e-9]), st.fractions(0, Fraction(1, 2), max_denominator=10))
def test_right_caps_agree_and_larger_ones_do_not(epsilon: float, delta: float, share: Fraction) -> None:
    """Every budget's cap converts back to its promise; one that is a thousandth larger does not."""
    budget = Budget(epsilon, delta, share)
    details = {
        "epsilon": epsilon,
        "delta": delta,
        "delta_fail_share": encode_fraction(share),
        "order": encode_fraction(budget.order),
        "cap_cost_units": budget.cap_cost_units,
    }
    right = second_opinion([_row("registration", details), _row("budget", details)])
    assert (right.promises, right.problems) == (2, [])
    larger = {**details, "cap_cost_units": math.ceil(budget.cap_cost_units * 1.001) + 10}
    assert len(second_opinion([_row("budget", larger)]).problems) == 1


@pytest.mark.parametrize(
    "row",
    [
        _row("debit", {}),
        _row("debit", {"events": 3, "order": "9/1", "cost_units": 1}),
        _row("debit", {"events": [], "order": "1/1", "cost_units": 1}),
        _row("debit", {"events": [{"mechanism": "pure", "epsilon": f"{10**400}/1", "count": 1}], "order": "9/1",
                       "cost_units": 1}),
        _row("budget", {"cap_cost_units": "1"}),
        _row("budget", {"cap_cost_units": 1, "order": "1001/1000", "delta": 1e-6, "delta_fail_share": "0/1"}),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_counted(row: Row) -> None:
    """And never guessed at; `verify` judges whether it is right."""
    opinion = second_opinion([row])
    assert (opinion.left_out, opinion.debits, opinion.promises, opinion.problems) == (1, 0, 0, [])


@settings(max_examples=25)
@given(st.floats(1e-3, 2), st.sampled_from([1e-5, 1e-6, 1e-9]), st.integers(2, 60))
def test_nominal_epsilon_of_gaussians_is_that_of_zcdp(rho: float, delta: float, order: int) -> None:
    """The difference is what trying a few orders costs; never below."""
    nominal = nominal_epsilon(Losses(gaussian=2 * rho), delta, Fraction(order))
    exact = epsilon_of(rho, delta)
    assert nominal >= exact * (1 - 1e-9)
    if order == round(1 + (math.log(1 / delta) / rho) ** 0.5):
        assert nominal <= exact * 1.02


def test_the_loss_distribution_is_tighter_than_renyi_and_knows_the_closed_forms() -> None:
    """Gaussian: its analytic curve; pure: the epsilon itself; failures: they use up delta."""
    gaussian = Losses(gaussian=0.04)
    tight = tighter_epsilon(gaussian, Fraction(1, 10**6))
    assert tight is not None
    assert tight < nominal_epsilon(gaussian, 1e-6, Fraction(20))
    assert _gaussian_delta(tight, 0.2) == pytest.approx(1e-6, rel=1e-2)
    pure = tighter_epsilon(Losses(others=Counter({PureEvent(Fraction(1, 2)): 1})), Fraction(1, 10**9))
    assert pure == pytest.approx(0.5, abs=1e-3)
    laplace = tighter_epsilon(Losses(others=Counter({LaplaceEvent(5, Fraction(10)): 1})), Fraction(1, 10**9))
    assert laplace == pytest.approx(0.5, abs=1e-3)
    limit = tighter_epsilon(Losses(others=Counter({LaplaceEvent(10**9, Fraction(2 * 10**9)): 1})), Fraction(1, 10**9))
    assert limit == pytest.approx(0.5, abs=1e-3)
    assert tighter_epsilon(Losses(gaussian=0.04, failures=Fraction(1, 10**6)), Fraction(1, 10**6)) == math.inf
    assert tighter_epsilon(Losses(), Fraction(1, 10**6)) == 0
    less = tighter_epsilon(Losses(gaussian=0.04, failures=Fraction(9, 10**7)), Fraction(1, 10**6))
    assert less == pytest.approx(tighter_epsilon(gaussian, Fraction(1, 10**7)))


def _binomial_delta(epsilon: float, eta: float, count: int) -> float:
    """Delta of `count` choices between two level candidates, of which one is e^(eta/2) times as likely afterwards."""
    p = 1 / (1 + math.exp(-eta / 2))
    masses = [(math.comb(count, k), p**k * (1 - p) ** (count - k), p ** (count - k) * (1 - p) ** k)
              for k in range(count + 1)]  # fmt: skip
    return math.fsum(ways * max(ours - math.exp(epsilon) * theirs, 0.0) for ways, ours, theirs in masses)


@pytest.mark.parametrize(("eta", "count"), [(0.5, 1), (0.1, 100), (0.02, 400)])
def test_the_loss_distribution_of_choices_bounds_real_ones(eta: float, count: int) -> None:
    """One choice: the closed form of its delta. Many: above repeated choices between two, and not far."""
    event, delta = SelectionEvent(1, Fraction(2 / eta)), 1e-6
    losses = Losses(others=Counter({event: count}))
    found = tighter_epsilon(losses, Fraction(delta))
    assert found is not None
    assert _binomial_delta(found, eta, count) <= delta
    if count == 1:
        assert -math.expm1((found - eta) / 2) == pytest.approx((delta * -math.expm1(-eta)) ** 0.5, rel=0.1)
    else:
        assert _binomial_delta(found * 0.8, eta, count) > delta


def test_ten_thousand_debits_are_composed_in_one_go() -> None:
    """Equal events are counted, not composed one by one: a thousand times as many take no longer."""

    def debits(count: int) -> list[Row]:
        events: list[Event] = [GaussianEvent(1, Fraction(10**4), 10), LaplaceEvent(1, Fraction(10**6))]
        details = {
            "events": [encode_event(event) for event in events],
            "account": "people",
            **dict.fromkeys(("cost_units", "delta_units", "spent_cost_units", "spent_delta_units"), 1),
            "cap_cost_units": 10,
        }
        first = {
            **details,
            "adjacency": "replace_one",
            "epsilon": 1.0,
            "delta": 1e-6,
            "delta_fail_share": "0/1",
            "order": "9/1",
            "cap_delta_units": 1,
        }
        fields = {"dataset": "people", "actor": "ann", "time": ""}
        rows = [Row(1, "", b"", False, {**fields, "kind": "registration", "details": first})]
        return rows + [
            Row(n, "", b"", True, {**fields, "kind": "debit", "details": details}) for n in range(2, count + 2)
        ]

    losses = history(debits(10_000)).accounts["people"].losses
    assert losses.gaussian == pytest.approx(1e5 / 1e8)
    assert losses.others == Counter({LaplaceEvent(1, Fraction(10**6)): 10_000})
    epsilon = tighter_epsilon(losses, Fraction(1, 10**6))
    assert epsilon is not None
    assert 0 < epsilon < nominal_epsilon(losses, 1e-6, Fraction(9))


def _gaussian_delta(epsilon: float, mu: float) -> float:
    """Delta of one Gaussian release of sensitivity mu and scale 1 (Balle and Wang 2018, Theorem 8)."""

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)


def test_rows_that_were_not_understood_do_not_stop_the_others() -> None:
    """A forged entry is left to `verify`; the ones after it are compared."""
    good = _debit(
        [GaussianEvent(1, Fraction(4))], Fraction(9), cost_units([GaussianEvent(1, Fraction(4))], Fraction(9))
    )
    opinion = second_opinion([Row(1, "x", b"", False, None), _row("debit", {"events": json.loads("[[]]")}), good])
    assert (opinion.debits, opinion.problems) == (1, [])
