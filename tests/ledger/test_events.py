"""Events: checked when made, written and read back without loss."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar_ledger import ConcentratedEvent, Event, GaussianEvent, LaplaceEvent, PureEvent, SelectionEvent
from bursar_ledger._entries import canonical
from bursar_ledger._events import (
    GaussianNumbers,
    decode_event,
    decode_fraction,
    encode_event,
    encode_fraction,
    gaussian_numbers,
)
from tests.each import each

COUNTS = st.integers(1, 2**70)
SCALES = st.fractions(min_value=Fraction(1, 10**30)).filter(lambda f: f > 0)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(GaussianEvent, COUNTS, SCALES, COUNTS),
    st.builds(LaplaceEvent, COUNTS, SCALES, COUNTS, COUNTS),
    st.builds(PureEvent, SCALES, COUNTS),
    st.builds(SelectionEvent, COUNTS, SCALES, COUNTS),
    st.builds(ConcentratedEvent, SCALES, COUNTS),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(EVENTS)
def test_events_survive_the_round_trip(event: Event) -> None:
    """The event is read as the ledger wrote it."""
    assert decode_event(json.loads(canonical(encode_event(event)))) == event


@given(st.fractions())
def test_fractions_survive_the_round_trip(value: Fraction) -> None:
    """Rational numbers are written exactly."""
    assert decode_fraction(encode_fraction(value)) == value


HARDLY_EVENTS = st.dictionaries(st.sampled_from(["scale", "count", "l2_squared", "mechanism", "groups"]), JSON).map(
    lambda changes: {"mechanism": "gaussian", "l2_squared": 3, "scale": "7/2", "count": 4, **changes}
)


def short_form(value: Any) -> GaussianNumbers | None:
    """Return what `gaussian_numbers` has to say of an event, by way of the event."""
    try:
        event = decode_event(value)
    except (TypeError, ValueError):
        return None
    if not isinstance(event, GaussianEvent):
        return None
    return GaussianNumbers(event.l2_squared, event.count, event.scale.numerator, event.scale.denominator)


@given(EVENTS.map(encode_event) | HARDLY_EVENTS)
def test_the_short_form_of_an_event_is_that_of_the_event(value: dict[str, Any]) -> None:
    """The auditor's shortcut reads Gaussian events alike, and nothing else."""
    assert gaussian_numbers(value) == short_form(value)


@each(
    "change",
    [
        {"mechanism": "laplace"},
        {"mechanism": "Gaussian"},
        {"groups": 1},
        {"delta": None},
        {"l2_squared": 0},
        {"l2_squared": -1},
        {"l2_squared": True},
        {"l2_squared": 1.0},
        {"l2_squared": "1"},
        {"count": 0},
        {"count": -2},
        {"count": True},
        {"count": 2.0},
        {"count": None},
        *[
            {"scale": text}
            for text in ("0/1", "-7/2", "14/4", "07/2", "7/02", "7/0", "7", "3.5", "7/2 ", "-0/1", "1_0/3")
        ],
        {"scale": 3},
        {"scale": 3.5},
        {"scale": ["7/2"]},
        {"scale": "1" * 1001 + "/2"},
    ],
)
def test_the_short_form_takes_no_event_that_is_none(change: dict[str, Any]) -> None:
    """An event that decode_event refuses is left to it, so that it names what is wrong."""
    value = {"mechanism": "gaussian", "l2_squared": 3, "scale": "7/2", "count": 4}
    assert gaussian_numbers(value) == (3, 4, 7, 2)
    assert gaussian_numbers({**value, **change}) is None
    with pytest.raises((TypeError, ValueError)):
        decode_event({**value, **change})


@pytest.mark.parametrize("value", [None, 1, "gaussian", [], {}, [["mechanism", "gaussian"]]])
def test_the_short_form_takes_objects_only(value: object) -> None:
    """Other JSON is no event."""
    assert gaussian_numbers(value) is None


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


def test_what_contains_itself_has_no_text() -> None:
    """A list inside itself ends as an error, not in a loop."""
    endless: list[object] = [1]
    endless.append({"again": endless})
    with pytest.raises(ValueError, match="JSON"):
        canonical(endless)


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
