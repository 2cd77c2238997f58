"""Interactions that are zCDP as a whole: their price, what is written of them, and what auditors make of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar_amounts import epsilon_of
from bursar_ledger import (
    COST_UNIT,
    ApproximateEvent,
    BudgetExhaustedError,
    ConcentratedEvent,
    DebitRequest,
    GaussianEvent,
    Ledger,
    PureEvent,
    cost_units,
    price,
    rdp,
    verify,
)
from bursar_ledger._bounds_check import price_range
from bursar_ledger._events import decode_event, decode_events, encode_event
from bursar_ledger.audit._entry_text import event_in_words
from bursar_ledger.audit._history import Losses
from bursar_ledger.audit._oracle import _convex, bounds, tighter_epsilon
from bursar_ledger.audit._spend import nominal_epsilon

RHOS = st.fractions(Fraction(1, 10**9), 100, max_denominator=10**9)
ORDERS = st.fractions(Fraction(1001, 1000), 200, max_denominator=1000)
EVENTS = st.builds(ConcentratedEvent, RHOS, st.integers(1, 100))
WRITTEN = {"mechanism": "concentrated", "rho": "7/200", "count": 1}


@given(EVENTS, ORDERS, st.integers(2, 20))
def test_the_price_is_order_times_rho_exactly(event: ConcentratedEvent, order: Fraction, factor: int) -> None:
    """The price is exact at every order, so at any total; twice costs twice, and a failure inside costs no more."""
    assert rdp(event, order) == event.count * order * event.rho
    assert rdp(dataclasses.replace(event, rho=event.rho * factor), order) == factor * rdp(event, order)
    assert rdp(ApproximateEvent(event, Fraction(1, 10**9), factor), order) == factor * rdp(event, order)


@given(st.integers(1, 1000), st.fractions(1, 1000, max_denominator=100), ORDERS)
def test_it_costs_what_a_gaussian_release_of_this_rho_costs(square: int, scale: Fraction, order: Fraction) -> None:
    """A Gaussian release is the example of zCDP, to the unit."""
    event = ConcentratedEvent(Fraction(square) / (2 * scale**2))
    assert price([event], order) == price([GaussianEvent(square, scale)], order)


@given(st.lists(EVENTS, min_size=1, max_size=4), ORDERS)
def test_the_auditor_prices_it_as_the_server_to_the_unit(events: list[ConcentratedEvent], order: Fraction) -> None:
    """Nothing is rounded on either side, so there is no room between."""
    low, high = price_range(*decode_events(map(encode_event, events)), order)
    assert low == cost_units(events, order) == high


@given(EVENTS, ORDERS)
def test_a_second_opinion_has_the_same_price(event: ConcentratedEvent, order: Fraction) -> None:
    """dp-accounting knows zCDP, too."""
    low, high = bounds([event], float(order))
    assert low == high == pytest.approx(cost_units([event], order) / COST_UNIT, rel=1e-9, abs=2 / COST_UNIT)


def test_the_auditor_refuses_other_prices() -> None:
    """A thousandth of rho less, or half of the interactions."""
    order, event = Fraction(9), ConcentratedEvent(Fraction(1, 30), 2)
    low, high = price_range([], [event], order)
    for wrong in (ConcentratedEvent(Fraction(999, 30_000), 2), ConcentratedEvent(Fraction(1, 30))):
        assert not low <= cost_units([wrong], order) <= high


def test_what_is_written_is_what_auditors_read() -> None:
    """The words in a ledger keep their meaning for ever."""
    event = ConcentratedEvent(Fraction(7, 200))
    assert encode_event(event) == WRITTEN
    assert decode_event(WRITTEN) == event
    assert event_in_words(event) == (
        "1 interaction within rho = 0.035 = 7/200 of zero-concentrated privacy, of which its parts, chosen one after "
        "another, take their shares"
    )
    assert event_in_words(ConcentratedEvent(Fraction(1, 4), 3)).startswith("3 interactions within rho = 0.25 of")


@pytest.mark.parametrize(
    "changes",
    [
        {"rho": "0/1"},
        {"rho": "-7/200"},
        {"rho": "14/400"},
        {"rho": None},
        {"count": 0},
        {"count": "1"},
        {"epsilon": "1/1"},
        {"scale": "1/1"},
        {"mechanism": "Concentrated"},
        {"mechanism": "pure"},
    ],
)
def test_malformed_ones_are_refused(changes: dict[str, Any]) -> None:
    """Numbers are positive and exact, fields are those of the mechanism."""
    with pytest.raises((TypeError, ValueError), match=r"must|fields|fraction|expected"):
        decode_event({**WRITTEN, **changes})


@pytest.mark.parametrize("rho", [Fraction(0), Fraction(-1), 0.5, math.nan, True])
def test_impossible_ones_cannot_be_made(rho: Any) -> None:
    """Rho is a positive fraction; orders are above one."""
    with pytest.raises(ValueError, match=r"ConcentratedEvent\.rho must be a positive Fraction"):
        ConcentratedEvent(rho)
    with pytest.raises(ValueError, match="order must be above 1"):
        rdp(ConcentratedEvent(Fraction(1)), Fraction(1))


def test_it_is_debited_stored_and_verified(ledger: Ledger, ask: Callable[..., DebitRequest], path: Path) -> None:
    """Exactly what is left can be spent on one, and nothing after it; the file verifies."""
    left, order = ledger.dataset("people").remaining.cost_units, ledger.dataset("people").order
    event = ConcentratedEvent(Fraction(left) / (COST_UNIT * order))
    assert ledger.debit(ask("a", events=(event,))).price.cost_units == left
    with pytest.raises(BudgetExhaustedError):
        ledger.debit(ask("b", events=(ConcentratedEvent(Fraction(1, 10**15)),)))
    ledger.close()
    assert verify(path).ok


@pytest.mark.parametrize("rho", [0.001, 0.0244, 0.5])
def test_the_loss_distribution_of_zcdp_lies_between_a_gaussian_and_the_conversion(rho: float) -> None:
    """It is at least as bad as the Gaussian release of this rho, and as good as the best order but for its grid."""
    delta = Fraction(1, 10**6)
    losses = Losses(others=Counter({ConcentratedEvent(Fraction(rho) / 4): 4}))
    found, gaussian = tighter_epsilon(losses, delta), tighter_epsilon(Losses(gaussian=2 * rho), delta)
    assert found is not None
    assert gaussian is not None
    assert gaussian < found == pytest.approx(epsilon_of(rho, 1e-6), rel=0.01)
    assert epsilon_of(rho, 1e-6) <= nominal_epsilon(losses, 1e-6, Fraction(20)) * (1 + 1e-9)


def test_the_loss_distribution_composes_with_others() -> None:
    """Half of it Gaussian: in between. With a pure release beside it: at most its epsilon more, and not less."""
    delta, rho = Fraction(1, 10**6), Fraction(1, 50)
    half = Losses(gaussian=float(rho), others=Counter({ConcentratedEvent(rho / 2): 1}))
    alone = Losses(others=Counter({ConcentratedEvent(rho): 1}))
    beside = Losses(others=Counter({ConcentratedEvent(rho): 1, PureEvent(Fraction(1, 10)): 1}))
    figures = [tighter_epsilon(one, delta) for one in (Losses(gaussian=2 * float(rho)), half, alone, beside)]
    assert None not in figures
    gaussian, between, whole, more = (figure or 0.0 for figure in figures)
    assert gaussian < between < whole < more < whole + 0.1 + 1e-3


def test_a_hull_is_convex_and_lies_below() -> None:
    """It touches the curve, is never above it, and has rising slopes in e^epsilon, for any curve."""
    curve = [1.0, 0.9, 0.95, 0.6, 0.5, 0.45, 0.1, 0.3, 0.05, 0.04]
    hull = _convex(list(curve), -4, 0.25)
    places = [math.exp((i - 4) * 0.25) for i in range(len(curve))]
    slopes = [(b - a) / (y - x) for a, b, x, y in zip(hull, hull[1:], places, places[1:], strict=False)]
    assert all(below <= above + 1e-15 for below, above in zip(hull, curve, strict=True))
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(slopes))
    assert sum(below == above for below, above in zip(hull, curve, strict=True)) >= 3
