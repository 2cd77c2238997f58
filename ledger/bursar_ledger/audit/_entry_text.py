"""One entry in full, for people: what was done, what it cost, and what a receipt for it must say."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from bursar_amounts import DELTA_UNIT

from .._canonical import body_hash
from .._codec import decode_event, decode_fraction
from .._events import ApproximateEvent, ConcentratedEvent, Event, GaussianEvent, LaplaceEvent, SelectionEvent
from .._kinds import EntryKind
from .._pricing import price
from ._columns import Line, amount, rho, summary
from ._formats import json_text
from ._open import Fields, Row
from ._sentences import story
from ._text import counted, number, visible

_LABEL = 18
"""Characters of the column of labels."""


def entry_in_words(row: Row, line: Line) -> Iterator[str]:
    """Yield the lines of `show`. Fields that are missing or of another type are shown as they are."""
    agrees = body_hash(row.body.encode("utf-8", "surrogatepass")) == row.hash
    yield f"entry {row.number}: {visible(line.kind or 'unreadable')}"
    yield visible(story(row, line).text)
    yield from _labelled(
        [
            ("time", f"{line.time} (the server's clock; informational)"),
            ("actor", line.actor),
            ("dataset", line.dataset),
            ("account", line.account if line.account != line.dataset else None),
            ("what", summary(row, line) or None),
        ]
    )
    try:
        yield from _debit_in_words(row, line) if line.kind == EntryKind.DEBIT else _details(row.details)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        yield f"the details cannot be read ({type(error).__name__}: {visible(error)}); as they are:"
        yield from _details(row.details)
    yield ""
    yield from _labelled(
        [
            ("hash", row.hash.hex()),
            ("", "SHA-256 of the body agrees" if agrees else "THE BODY HAS ANOTHER SHA-256; run verify"),
            ("previous hash", (row.fields or {}).get("previous")),
        ]
    )
    if line.kind == EntryKind.DEBIT:
        yield ""
        yield f"Every receipt for this debit says: entry {row.number}, ledger_head {row.hash.hex()}"


def event_in_words(event: Event) -> str:
    """Describe mechanism, sensitivity, scale and count of an event."""
    if isinstance(event, ApproximateEvent):
        inner = event_in_words(event.event)
        return f"{_times(event.count)} with a failure probability of at most {number(float(event.delta))}: {inner}"
    if isinstance(event, GaussianEvent):
        ratio = float(event.scale) / float(event.l2_squared) ** 0.5
        return (
            f"{_times(event.count)} with discrete Gaussian noise: squared L2 sensitivity {event.l2_squared}, "
            f"sigma {_exact(event.scale)} (lattice units; sigma is {number(ratio)} sensitivities)"
        )
    if isinstance(event, LaplaceEvent):
        groups = f" in each of {event.groups} groups of coordinates" if event.groups > 1 else ""
        return (
            f"{_times(event.count)} with discrete Laplace noise: L1 sensitivity {event.l1}{groups}, "
            f"scale {_exact(event.scale)} (lattice units; epsilon {number(float(event.l1 / Fraction(event.scale)))})"
        )
    if isinstance(event, SelectionEvent):
        return (
            f"{counted(event.count, 'choice')} by the exponential mechanism (Gumbel noise): sensitivity of a score "
            f"{event.sensitivity}, scale {_exact(event.scale)} (epsilon {number(float(event.bounded_range))} of each)"
        )
    if isinstance(event, ConcentratedEvent):
        return (
            f"{counted(event.count, 'interaction')} within rho = {_exact(event.rho)} of zero-concentrated privacy, "
            "of which its parts, chosen one after another, take their shares"
        )
    return f"{_times(event.count)} with pure epsilon = {_exact(event.epsilon)}"


def _debit_in_words(row: Row, line: Line) -> Iterator[str]:
    details = row.details
    order = decode_fraction(details["order"])
    yield from _labelled(
        [
            ("method", details["method"]),
            ("request_id", details["request_id"]),
            ("request hash", details["request_hash"]),
            ("release", "stored" if row.released else "none stored: the fit runs, was interrupted, or failed"),
        ]
    )
    yield ""
    yield f"released under it, priced at Renyi order {number(float(order))}:"
    for event in _together(map(decode_event, details["events"])):
        each = price([event], order)
        failure = f", {_delta(each.delta_units)} of delta" if each.delta_units else ""
        yield f"  {event_in_words(event)}"
        yield f"    costs {amount(row, line, each.cost_units)}: rho {number(each.rho)}{failure}"
    yield ""
    yield from _labelled(_amounts(row, line))
    if details["parameters"]:
        yield ""
        yield "parameters:"
        yield from _json(details["parameters"])


def _together(events: Iterable[Event]) -> Iterator[Event]:
    """Yield each kind of event once, with how often it happened in all."""
    counts = Counter[Event]()
    for event in events:
        counts[dataclasses.replace(event, count=1)] += event.count
    yield from (dataclasses.replace(event, count=times) for event, times in counts.items())


def _amounts(row: Row, line: Line) -> Iterable[tuple[str, str]]:
    details = row.details
    spent, cap = details["spent_cost_units"], details["cap_cost_units"]
    yield "debited", _amount(row, line, details["cost_units"])
    yield "spent with it", _amount(row, line, spent)
    yield "left after it", _amount(row, line, max(cap - spent, 0), is_left=True)
    if details["delta_units"]:
        yield "delta debited", f"{_delta(details['delta_units'])} ({details['delta_units']} units)"
        yield "delta left", _delta(details["cap_delta_units"] - details["spent_delta_units"])
    if details.get("allowance_cost_units") is not None:
        yield "analyst's part", _amount(row, line, details.get("analyst_spent_cost_units", 0))
        yield "analyst's limit", _amount(row, line, details["allowance_cost_units"], is_left=True)
    if details.get("call_cost_units") is not None:
        yield "largest call", _amount(row, line, details["call_cost_units"], is_left=True)


def _amount(row: Row, line: Line, units: int, *, is_left: bool = False) -> str:
    details = f"rho {number(rho(units, row.details['order']))}, {units} units"
    return f"{amount(row, line, units, is_left=is_left)} of the lifetime budget; {details}"


def _delta(units: int) -> str:
    return number(units / DELTA_UNIT)


def _details(details: Fields) -> Iterator[str]:
    if details:
        yield ""
        yield "details:"
        yield from _json(details)


def _json(value: Any) -> Iterator[str]:
    return (f"  {line}" for line in json_text(value, indent=2).splitlines())


def _labelled(pairs: Iterable[tuple[str, object]]) -> Iterator[str]:
    return (f"{label:<{_LABEL}}{visible(value)}" for label, value in pairs if value is not None)


def _times(count: int) -> str:
    return counted(count, "release")


def _exact(value: Fraction | int) -> str:
    """Return a rational as people write it where that is exact, else as a fraction with its value."""
    if Fraction(float(value)) == value:
        return f"{float(value):.17g}".removesuffix(".0")
    return f"{number(float(value), 8)} = {value}"
