"""Events and fractions as JSON values, and back. What is written here is read by auditors' tools for ever."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ._events import ApproximateEvent, Event, GaussianEvent, LaplaceEvent, PureEvent

_EVENTS: dict[str, type[Any]] = {
    "gaussian": GaussianEvent,
    "laplace": LaplaceEvent,
    "pure": PureEvent,
    "approximate": ApproximateEvent,
}
_FRACTION = re.compile(r"-?[0-9]{1,1000}/[0-9]{1,1000}")
_NAMES = {kind: name for name, kind in _EVENTS.items()}


def encode_fraction(value: Fraction | int) -> str:
    """A rational number as "numerator/denominator" in lowest terms."""
    return f"{value.numerator}/{value.denominator}"


def decode_fraction(text: str) -> Fraction:
    """The rational number that `encode_fraction` wrote.

    Raises:
        ValueError: any other form (a decimal, an exponent, not in lowest terms).
    """
    # Fraction() alone would also take "1e999999999", and hours over it.
    value = Fraction(text) if _FRACTION.fullmatch(text) else None
    if value is None or encode_fraction(value) != text:
        raise ValueError(f"expected a fraction in lowest terms, got {text!r}")
    return value


def encode_event(event: Event) -> dict[str, object]:
    """An event as a JSON object: "mechanism", and its fields with fractions as "numerator/denominator"."""
    fields = {f.name: _encode_field(f, getattr(event, f.name)) for f in dataclasses.fields(event)}
    return {"mechanism": _NAMES[type(event)], **fields}


def decode_event(value: Mapping[str, Any]) -> Event:
    """The event that `encode_event` wrote.

    Raises:
        ValueError: an unknown mechanism, or fields that are missing, unknown or out of range.
    """
    fields = dict(value)
    name = fields.pop("mechanism", None)
    if name not in _EVENTS:
        raise ValueError(f"mechanism must be one of {', '.join(_EVENTS)}, got {name!r}")
    kind = _EVENTS[name]
    declared = dataclasses.fields(kind)
    if set(fields) != {f.name for f in declared}:
        raise ValueError(
            f"a {name} event has the fields {', '.join(f.name for f in declared)}, got {', '.join(fields)}"
        )
    event: Event = kind(**{f.name: _decode_field(f, fields[f.name]) for f in declared})
    return event


def _encode_field(field: dataclasses.Field[Any], value: Any) -> object:
    if field.name == "event":
        return encode_event(value)
    return int(value) if field.type == "int" else encode_fraction(value)


def _decode_field(field: dataclasses.Field[Any], value: Any) -> object:
    if field.name == "event":
        if not isinstance(value, dict):
            raise ValueError("the event of an approximate event must be an object")
        return decode_event(value)
    return value if field.type == "int" else decode_fraction(value)
