"""Events and fractions as JSON values, and back. Auditors' tools read these forms, so they never change."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from ._events import (
    ApproximateEvent,
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
)

_EVENTS: dict[str, type[Any]] = {
    "gaussian": GaussianEvent,
    "laplace": LaplaceEvent,
    "pure": PureEvent,
    "selection": SelectionEvent,
    "concentrated": ConcentratedEvent,
    "approximate": ApproximateEvent,
}
_FRACTION = re.compile(r"(-?[0-9]{1,1000})/([0-9]{1,1000})")
_GAUSSIAN = frozenset({"mechanism", "l2_squared", "scale", "count"})
_NAMES = {kind: name for name, kind in _EVENTS.items()}


def encode_fraction(value: Fraction | int) -> str:
    """Encode a rational number as "numerator/denominator" in lowest terms."""
    return f"{value.numerator}/{value.denominator}"


@functools.lru_cache(maxsize=1024)  # a ledger has few fractions, and an audit reads them in every entry
def decode_fraction(text: str) -> Fraction:
    """Decode what `encode_fraction` wrote.

    Raises:
        ValueError: any other form (a decimal, an exponent, not in lowest terms).
    """
    numbers = _ratio(text)
    if numbers is None:
        raise ValueError(f"expected a fraction in lowest terms, got {text!r}")
    return Fraction(*numbers)


def _ratio(text: str) -> tuple[int, int] | None:
    """Return numerator and denominator, if `text` is what `encode_fraction` writes; else None."""
    # Fraction() alone would also take "1e999999999", and hours over it.
    found = _FRACTION.fullmatch(text)
    if found is None:
        return None
    above, below = int(found[1]), int(found[2])
    # Written again, zeros in front and "-0" are seen.
    return (above, below) if below and math.gcd(above, below) == 1 and f"{above}/{below}" == text else None


def encode_event(event: Event) -> dict[str, object]:
    """Encode an event as a JSON object: "mechanism", and its fields with fractions as "numerator/denominator"."""
    kind = type(event)
    fields = {name: encode(getattr(event, name)) for name, (encode, _) in _FIELDS[kind].items()}
    return {"mechanism": _NAMES[kind], **fields}


def decode_event(value: Mapping[str, Any]) -> Event:
    """Decode what `encode_event` wrote.

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


class GaussianNumbers(NamedTuple):
    """Gaussian event as four integers: `times` is its count, numerator / denominator its scale in lowest terms."""

    l2_squared: int
    times: int
    numerator: int
    denominator: int


def gaussian_numbers(value: object) -> GaussianNumbers | None:
    """Return the integers of a Gaussian event that `decode_event` accepts; None for any other value.

    Almost all events of an audit are Gaussian, and this takes a third of the time.
    """
    if type(value) is not dict or value.keys() != _GAUSSIAN or value["mechanism"] != "gaussian":
        return None
    l2_squared, count, scale = value["l2_squared"], value["count"], value["scale"]
    # True is an int, too.
    if type(l2_squared) is not int or type(count) is not int or type(scale) is not str:
        return None
    numbers = _ratio(scale)
    if numbers is None or not (l2_squared > 0 and count > 0 and numbers[0] > 0):
        return None
    return GaussianNumbers(l2_squared, count, *numbers)


def decode_events(values: Iterable[Any]) -> tuple[list[GaussianNumbers], list[Event]]:
    """Decode a debit's events, checked as by `decode_event`: the Gaussian ones as numbers, and the others."""
    gaussian, others = list[GaussianNumbers](), list[Event]()
    for value in values:
        if (numbers := gaussian_numbers(value)) is not None:
            gaussian.append(numbers)
        else:
            others.append(decode_event(value))
    return gaussian, others


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
