"""What is wrong with one entry, seen by itself: its hash, its form, and the price of its events at its own order."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ._canonical import body_hash, encoded
from ._codec import decode_event, decode_fraction
from ._reprice import failure_units, price_range

Fields = dict[str, Any]

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What a forged body may raise where an honest one is expected."""


@dataclass(frozen=True)
class Examined:
    """An entry and what was found in it.

    Attributes:
        number: of the entry.
        hash: as stored.
        fields: the body, decoded, without what only a price or a manifest needs; None if it cannot be.
        problems: findings, without the number.
    """

    number: int
    hash: bytes
    fields: Fields | None
    problems: tuple[str, ...]


def examine(number: int, body: str, stored_hash: bytes, *, reprice: bool) -> Examined:
    """Looks at one row of the table of entries; `reprice` also prices a debit again."""
    problems, fields = [], None
    try:
        text = body.encode()
        if body_hash(text) != stored_hash:
            problems.append("the body does not have the recorded hash; one of the two was changed")
        decoded = json.loads(body)
        if encoded(decoded) != text:
            problems.append("the body is not in canonical form")
        if decoded["number"] != number:
            problems.append(f"the body says that it is entry {decoded['number']}")
        if reprice and decoded["kind"] == "debit":
            problems.extend(_price_problems(decoded["details"]))
        for heavy in ("events", "parameters", "manifest"):
            decoded["details"].pop(heavy, None)
        fields = decoded
    except UNREADABLE as error:
        problems.append(unreadable(error))
    return Examined(number, stored_hash, fields, tuple(problems))


def unreadable(error: Exception) -> str:
    """The finding for a body that is not what its kind has."""
    return f"the body cannot be read ({type(error).__name__}: {error})"


def _price_problems(details: Fields) -> list[str]:
    events = [decode_event(event) for event in details["events"]]
    low, high = price_range(events, _order(details["order"]))
    problems = []
    if not low <= details["cost_units"] <= high:
        problems.append(f"the debit is {details['cost_units']} units, but its events cost {low}")
    failure = failure_units(events)
    if details["delta_units"] != failure:
        problems.append(f"the debit is {details['delta_units']} units of delta, but its events may fail with {failure}")
    return problems


@functools.lru_cache(maxsize=1024)
def _order(text: str) -> Fraction:
    return decode_fraction(text)
