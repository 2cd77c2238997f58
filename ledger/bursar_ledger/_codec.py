"""Events and fractions as JSON values, and back. What is written here is read by auditors' tools for ever."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ._events import ApproximateEvent, Event, GaussianEvent, LaplaceEvent, PureEvent

_EVENTS: dict[str, type[Any]] = {
    "gaussian": GaussianEvent,
    "laplace": LaplaceEvent,
    "pure": PureEvent,
    "approximate": ApproximateEvent,
}
_FRACTION = re.compile(r"(-?[0-9]{1,1000})/([0-9]{1,1000})")
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
    found = _FRACTION.fullmatch(text)
    if found is not None and (denominator := int(found[2])):
        value = Fraction(int(found[1]), denominator)
        if encode_fraction(value) == text:
            return value
    raise ValueError(f"expected a fraction in lowest terms, got {text!r}")


def encode_event(event: Event) -> dict[str, object]:
    """An event as a JSON object: "mechanism", and its fields with fractions as "numerator/denominator"."""
    kind = type(event)
    fields = {name: encode(getattr(event, name)) for name, (encode, _) in _FIELDS[kind].items()}
    return {"mechanism": _NAMES[kind], **fields}


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
    declared = _FIELDS[kind]
    if fields.keys() != declared.keys():
        raise ValueError(f"a {name} event has the fields {', '.join(declared)}, got {', '.join(fields)}")
    event: Event = kind(**{name: decode(fields[name]) for name, (_, decode) in declared.items()})
    return event


def _decode_inner(value: Any) -> Event:
    if not isinstance(value, dict):
        raise ValueError("the event of an approximate event must be an object")
    return decode_event(value)


_Coding = tuple[Callable[[Any], object], Callable[[Any], object]]
_CODINGS: dict[str, _Coding] = {
    "int": (int, lambda value: value),
    "Fraction": (encode_fraction, decode_fraction),
    "ExactEvent": (encode_event, _decode_inner),
}
_FIELDS: dict[type[Any], dict[str, _Coding]] = {
    # Annotations are strings here. Looked up once: an audit decodes millions of events.
    kind: {field.name: _CODINGS[str(field.type)] for field in dataclasses.fields(kind)}
    for kind in _EVENTS.values()
}
