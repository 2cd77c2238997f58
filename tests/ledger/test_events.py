"""Events: checked when made, written and read back without loss."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar_ledger import Event, GaussianEvent, LaplaceEvent, PureEvent
from bursar_ledger._canonical import canonical
from bursar_ledger._codec import decode_event, decode_fraction, encode_event, encode_fraction

COUNTS = st.integers(1, 2**70)
SCALES = st.fractions(min_value=Fraction(1, 10**30)).filter(lambda f: f > 0)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(GaussianEvent, COUNTS, SCALES, COUNTS),
    st.builds(LaplaceEvent, COUNTS, SCALES, COUNTS, COUNTS),
    st.builds(PureEvent, SCALES, COUNTS),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(EVENTS)
def test_events_survive_the_round_trip(event: Event) -> None:
    """What the ledger writes about an event is the event."""
    assert decode_event(json.loads(canonical(encode_event(event)))) == event


@given(st.fractions())
def test_fractions_survive_the_round_trip(value: Fraction) -> None:
    """Rational numbers are written exactly."""
    assert decode_fraction(encode_fraction(value)) == value


@given(JSON)
def test_one_value_has_one_text(value: Any) -> None:
    """Reading and writing canonical JSON gives the same bytes."""
    text = canonical(value)
    assert canonical(json.loads(text)) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, [{None: 1}], {1, 2}, b"bytes", object()])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    """NaN, infinities, keys that are not strings and foreign types have no canonical text."""
    with pytest.raises(ValueError, match=r"JSON|mappings"):
        canonical(value)


@pytest.mark.parametrize("text", ["2/4", "1", "0.5", "1/0x2", "1e999999999", " 1/2", "1/2\n", "+1/2"])
def test_fractions_have_one_form(text: str) -> None:
    """Other spellings of a rational number are refused."""
    with pytest.raises(ValueError, match="lowest terms"):
        decode_fraction(text)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: GaussianEvent(0, Fraction(1)), "l2_squared"),
        (lambda: GaussianEvent(1, Fraction(-1)), "scale"),
        (lambda: GaussianEvent(1, float("nan")), "scale"),  # type: ignore[arg-type]
        (lambda: GaussianEvent(1, 1.5), "scale"),  # type: ignore[arg-type]
        (lambda: GaussianEvent(1.0, Fraction(1)), "l2_squared"),  # type: ignore[arg-type]
        (lambda: LaplaceEvent(1, Fraction(1), count=True), "count"),
        (lambda: LaplaceEvent(1, Fraction(1), groups=0), "groups"),
        (lambda: PureEvent(Fraction(0)), "epsilon"),
    ],
)
def test_events_hold_positive_exact_numbers(make: Any, name: str) -> None:
    """The message names the field that was wrong."""
    with pytest.raises(ValueError, match=rf"\.{name} must be a positive"):
        make()


@pytest.mark.parametrize(
    "value",
    [
        {"mechanism": "exponential", "epsilon": "1/1", "count": 1},
        {"mechanism": "pure", "epsilon": "1/1"},
        {"mechanism": "pure", "epsilon": "1/1", "count": 1, "delta": "1/2"},
        {"mechanism": "pure", "epsilon": "1/1", "count": "1"},
        {"mechanism": "pure", "epsilon": "-1/1", "count": 1},
        {},
    ],
)
def test_forged_events_are_refused(value: dict[str, Any]) -> None:
    """Unknown mechanisms and fields, missing fields and wrong types are not read as something else."""
    with pytest.raises(ValueError, match=r"must be|has the fields"):
        decode_event(value)
