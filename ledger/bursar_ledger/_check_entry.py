"""Checks of one entry by itself: its hash, its form, and the price of its events at its own order."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

from ._bounds_check import failure_units, price_range
from ._entries import EntryKind, body_hash, encoded
from ._events import decode_events, decode_fraction

Fields = dict[str, Any]

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that a forged body may raise where an honest one is expected."""

_DECODER = json.JSONDecoder()


class Examined(NamedTuple):
    """Entry and what was found in it.

    Attributes:
        fields: the body, decoded, without what is looked at nowhere else; None if it cannot be.
        problems: findings, without the number.
    """

    number: int
    hash: bytes
    fields: Fields | None
    problems: tuple[str, ...]


def examine(number: int, body: str, stored_hash: bytes, *, reprice: bool) -> Examined:
    """Look at one row of the table of entries; `reprice` also prices a debit again."""
    problems, fields = [], None
    try:
        text = body.encode()
        if body_hash(text) != stored_hash:
            problems.append("the body does not have the recorded hash; one of the two was changed")
        decoded, _ = _DECODER.raw_decode(body)  # what comes after the value is not canonical
        if encoded(decoded) != text:
            problems.append("the body is not in canonical form")
        if decoded["number"] != number:
            problems.append(f"the body says that it is entry {decoded['number']}")
        if reprice and decoded["kind"] == EntryKind.DEBIT:
            problems.extend(_price_problems(decoded["details"]))
        fields = {**_light(decoded), "details": _light(decoded["details"])}
    except UNREADABLE as error:
        problems.append(unreadable(error))
    return Examined(number, stored_hash, fields, tuple(problems))


def unreadable(error: Exception) -> str:
    """Return the finding for a body that does not have the fields of its kind."""
    return f"the body cannot be read ({type(error).__name__}: {error})"


def _light(fields: Fields) -> Fields:
    # Every body that is decoded brings strings of its own; with common ones, many entries are sent on as few bytes.
    return {sys.intern(name): value for name, value in fields.items() if name not in _HEAVY}


_HEAVY = frozenset({"events", "manifest", "method", "number", "parameters", "reason", "request_hash", "time"})


def _price_problems(details: Fields) -> list[str]:
    gaussian, others = decode_events(details["events"])
    low, high = price_range(gaussian, others, decode_fraction(details["order"]))
    problems = []
    if not low <= details["cost_units"] <= high:
        problems.append(f"the debit is {details['cost_units']} units, but its events cost {low}")
    failure = failure_units(others)
    if details["delta_units"] != failure:
        problems.append(f"the debit is {details['delta_units']} units of delta, but its events may fail with {failure}")
    return problems
