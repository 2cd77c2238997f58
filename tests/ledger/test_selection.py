"""Choices by the exponential mechanism: their price against exact divergences, closed forms and other bounds."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bursar_ledger import (
    COST_UNIT,
    ApproximateEvent,
    GaussianEvent,
    PureEvent,
    SelectionEvent,
    cost_units,
    price,
    pure_rdp,
    rdp,
    selection_rdp,
)
from bursar_ledger._bounds_check import price_range
from bursar_ledger._events import decode_event, decode_events, encode_event
from tests.each import each

FloatArray = NDArray[np.float64]
RANGES = st.fractions(Fraction(1, 1000), 50, max_denominator=1000)
ORDERS = st.fractions(Fraction(1001, 1000), 200, max_denominator=1000)
EVENTS = st.builds(
    SelectionEvent, st.integers(1, 1000), st.fractions(1, 10**5, max_denominator=1000), st.integers(1, 100)
)
SELECTION = {"mechanism": "selection", "sensitivity": 3, "scale": "7/2", "count": 4}


def probabilities(scores: FloatArray, scale: float) -> FloatArray:
    """Logarithm of the law of the largest of scores with Gumbel noise, (..., candidates)."""
    return np.asarray(scores / scale - np.logaddexp.reduce(scores / scale, axis=-1, keepdims=True))


def divergence(log_p: FloatArray, log_q: FloatArray, order: float) -> FloatArray:
    """D_order(P||Q) of log mass functions along the last axis."""
    return np.asarray(np.logaddexp.reduce(order * log_p + (1 - order) * log_q, axis=-1) / (order - 1))


def tight(order: float, eta: float) -> float:
    """The largest divergence that a bounded range eta allows: the formula at the end of the proof."""
    r, ra = math.exp(-eta), math.exp(-order * eta)
    x = (order - 1) * (1 - ra) / (order * (r - ra))
    return math.log(x) + math.log((1 - ra) / (order * (1 - r))) / (order - 1)


@pytest.mark.parametrize("order", [1.25, 2.0, 8.926, 40.0])
@pytest.mark.parametrize(("sensitivity", "scale"), [(1, 400), (3, 20), (20, 25), (7, 2)])
def test_no_pair_of_neighbours_diverges_by_more_than_the_price(order: float, sensitivity: int, scale: int) -> None:
    """Random scores and changes, some of which go all the way: at most the worst case's formula, which is below."""
    rng = np.random.default_rng([27, sensitivity, scale])  # noqa: TID251 - public scores of a test
    event = SelectionEvent(sensitivity, Fraction(scale))
    most = tight(order, float(event.bounded_range))
    paid = float(rdp(event, Fraction(order)))
    assert most <= paid * (1 + 1e-12)
    largest = 0.0
    for candidates in (2, 3, 10, 100):
        ours = rng.integers(-4 * scale, 4 * scale, size=(4000, candidates), endpoint=True)
        changes = rng.integers(-sensitivity, sensitivity, size=ours.shape, endpoint=True)
        ends = sensitivity * rng.choice([-1, 1], size=ours.shape)
        theirs = ours + np.where(rng.random((4000, 1)) < 0.5, ends, changes)
        p, q = (probabilities(scores.astype(np.float64), float(scale)) for scores in (ours, theirs))
        found = np.maximum(divergence(p, q, order), divergence(q, p, order))
        assert found.max() <= most * (1 + 1e-9)
        largest = max(largest, float(found.max()))
    assert largest > 0.6 * most  # the search does find pairs that are near


def worst_pair(order: float, sensitivity: int, scale: int) -> tuple[FloatArray, FloatArray]:
    """Integer scores of two candidates that move against each other, from where that tells most."""
    eta = 2 * sensitivity / scale
    ra = math.exp(-order * eta)
    x = (order - 1) * (1 - ra) / (order * (math.exp(-eta) - ra))
    second = (1 - math.exp(-eta) * x) / (x * -math.expm1(-eta))  # Q of the candidate that P likes better
    lead = round(scale * math.log(second / (1 - second)))
    return np.array([lead + sensitivity, -sensitivity], np.float64), np.array([lead, 0], np.float64)


@each("order", [1.25, 2.0, 8.926, 40.0])
@each("reach", [0.01, 0.3, 1.0, 4.0, 30.0])
def test_two_candidates_that_move_against_each_other_are_the_worst_case(order: float, reach: float) -> None:
    """They attain the formula; the price is near it while order * eta is small, and at most 1.7 times for any."""
    sensitivity = 10**6
    scale = round(2 * sensitivity * order / reach)
    event = SelectionEvent(sensitivity, Fraction(scale))
    ours, theirs = (probabilities(scores, float(scale)) for scores in worst_pair(order, sensitivity, scale))
    found, paid = float(divergence(ours, theirs, order)), float(rdp(event, Fraction(order)))
    assert found == pytest.approx(tight(order, float(event.bounded_range)), rel=1e-6)
    assert found <= paid * (1 + 1e-9)  # the rounding of this test's floats
    assert paid <= found * (1.02 if reach <= 1 else 1.7)


def test_half_of_the_range_would_be_too_little() -> None:
    """A bounded range of sensitivity / scale holds only where all scores move to one side: charging it is seen."""
    ours, theirs = (probabilities(scores, 100.0) for scores in worst_pair(9.0, 5, 100))
    assert float(divergence(ours, theirs, 9.0)) > 3 * float(selection_rdp(Fraction(9), Fraction(5, 100)))


@settings(max_examples=50)
@given(ORDERS, RANGES)
def test_the_worst_case_lies_below_both_bounds(order: Fraction, eta: Fraction) -> None:
    """The tight curve is at most order eta^2 / 8 and at most the pure curve, and the price is the lesser of these."""
    most = tight(float(order), float(eta))
    zcdp, pure = order * eta**2 / 8, pure_rdp(order, eta)
    assert most <= float(min(zcdp, pure)) * (1 + 1e-9) + 1e-15 / float(order - 1)  # the logarithms near 1
    assert selection_rdp(order, eta) == min(zcdp, pure)


def test_small_ranges_cost_a_gaussian_and_large_ones_their_epsilon() -> None:
    """Sensitivity D at scale b is priced as Gaussian noise of that ratio, exactly; a range of 67 as at most that."""
    order = Fraction("8.926")
    assert rdp(SelectionEvent(3, Fraction(100)), order) == rdp(GaussianEvent(9, Fraction(100)), order)
    assert price([SelectionEvent(1, Fraction(4))], Fraction(2)).cost_units == COST_UNIT // 16
    large = SelectionEvent(100, Fraction(3))
    assert rdp(large, order) == rdp(PureEvent(Fraction(200, 3)), order) < Fraction(200, 3)


@given(EVENTS, ORDERS, st.integers(2, 20))
def test_more_noise_costs_less_and_counts_multiply(event: SelectionEvent, order: Fraction, factor: int) -> None:
    """Prices fall with the scale, rise with the sensitivity, and a choice made twice costs twice."""
    paid = rdp(event, order)
    assert rdp(dataclasses.replace(event, scale=event.scale * factor), order) < paid
    assert rdp(dataclasses.replace(event, sensitivity=event.sensitivity * factor), order) > paid
    assert rdp(dataclasses.replace(event, count=event.count * factor), order) == factor * paid
    scaled = dataclasses.replace(event, sensitivity=event.sensitivity * factor, scale=event.scale * factor)
    assert rdp(scaled, order) == paid
    assert rdp(ApproximateEvent(event, Fraction(1, 10**9), factor), order) == factor * paid


@pytest.mark.parametrize("eta", [Fraction(1, 10**60), Fraction(10**30), Fraction(10) ** 300])
@pytest.mark.parametrize("order", [1 + Fraction(1, 2**20), Fraction(2**40)])
def test_the_price_is_a_total_function(eta: Fraction, order: Fraction) -> None:
    """No range, however large or small, overflows or is priced at nothing."""
    assert 0 < selection_rdp(order, eta) <= eta * (1 + Fraction(1, 10**30))
    assert cost_units([SelectionEvent(eta.numerator, 2 * Fraction(eta.denominator))], order) >= 1


@pytest.mark.slow
@given(st.lists(EVENTS, min_size=1, max_size=4), ORDERS)
def test_the_auditor_prices_choices_as_the_server(events: list[SelectionEvent], order: Fraction) -> None:
    """Two derivations agree in the last unit."""
    low, high = price_range(*decode_events(map(encode_event, events)), order)
    assert low <= cost_units(events, order) <= high <= low + 1


@pytest.mark.parametrize("scale", [Fraction(40), Fraction(1, 2)])
def test_the_auditor_refuses_other_prices_of_choices(scale: Fraction) -> None:
    """Half the range, one choice for two, a Laplace price: none of them is within the auditor's range."""
    order, event = Fraction(9), SelectionEvent(1, scale, 2)
    low, high = price_range([], [event], order)
    for wrong in (
        SelectionEvent(1, 2 * scale, 2),
        SelectionEvent(1, scale),
        SelectionEvent(1, scale * (1 + Fraction(1, 10**6)), 2),
        PureEvent(1 / scale, 2),
    ):
        assert not low <= cost_units([wrong], order) <= high


def test_what_is_written_of_a_choice_is_what_auditors_read() -> None:
    """The words in a ledger keep their meaning for ever."""
    event = SelectionEvent(3, Fraction(7, 2), 4)
    assert encode_event(event) == SELECTION
    assert decode_event(SELECTION) == event


@pytest.mark.parametrize(
    "changes",
    [
        {"sensitivity": 0},
        {"sensitivity": -1},
        {"sensitivity": True},
        {"sensitivity": 1.5},
        {"sensitivity": None},
        {"scale": "0/1"},
        {"scale": "-7/2"},
        {"scale": "14/4"},
        {"count": 0},
        {"count": "4"},
        {"l1": 3},
        {"groups": 1},
        {"mechanism": "Selection"},
        {"mechanism": "laplace"},
    ],
)
def test_malformed_choices_are_refused(changes: dict[str, Any]) -> None:
    """Numbers are positive and exact, fields are those of the mechanism, and its name is one that is known."""
    with pytest.raises(ValueError, match=r"must|fields|fraction"):
        decode_event({**SELECTION, **changes})


def test_impossible_choices_cannot_be_made() -> None:
    """Sensitivity, scale and range are positive; orders are above one."""
    with pytest.raises(ValueError, match=r"SelectionEvent\.sensitivity must be a positive int"):
        SelectionEvent(0, Fraction(1))
    with pytest.raises(ValueError, match=r"SelectionEvent\.scale must be a positive Fraction"):
        SelectionEvent(1, math.nan)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bounded_range must be positive"):
        selection_rdp(Fraction(2), Fraction(0))
    with pytest.raises(ValueError, match="order must be above 1"):
        rdp(SelectionEvent(1, Fraction(1)), Fraction(1))
