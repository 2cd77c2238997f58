"""One entry in full, for people: what was done, what it cost, and what a receipt for it must say."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from bursar_amounts import DELTA_UNIT

from .._entries import EntryKind, body_hash
from .._events import (
    ApproximateEvent,
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    SelectionEvent,
    decode_event,
    decode_fraction,
)
from .._pricing import price
from ._columns import Line, amount, rho
from ._formats import json_text
from ._language import figure, language, say, say_count, say_number, say_word
from ._open import Fields, Row
from ._sentences import story
from ._text import visible

_LABEL = {"en": 18, "de": 24, "fr": 26}
"""Characters of the column of labels, by language."""


def entry_in_words(row: Row, line: Line) -> Iterator[str]:
    """Yield the lines of `show`. Fields that are missing or of another type are shown as they are."""
    agrees = body_hash(row.body.encode("utf-8", "surrogatepass")) == row.hash
    kind = say_word(line.kind or "unreadable")
    yield visible(say("entry {number}: {kind}", number=str(row.number), kind=kind))
    yield visible(story(row, line).text)
    yield from _labelled(
        [
            (say("time"), say("{time} (the server's clock; informational)", time=line.time)),
            (say("actor"), line.actor),
            (say("dataset"), line.dataset),
            (say("account"), line.account if line.account != line.dataset else None),
        ]
    )
    try:
        yield from _debit_in_words(row, line) if line.kind == EntryKind.DEBIT else _details(row.details)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {visible(error)}"
        yield say("the details cannot be read ({error}); as they are:", error=reason)
        yield from _details(row.details)
    yield ""
    yield from _labelled(
        [
            (say("hash"), row.hash.hex()),
            ("", say("SHA-256 of the body agrees" if agrees else "THE BODY HAS ANOTHER SHA-256; run verify")),
            (say("previous hash"), (row.fields or {}).get("previous")),
        ]
    )
    if line.kind == EntryKind.DEBIT:
        yield ""
        receipt = "Every receipt for this debit says: entry {number}, ledger_head {hash}"
        yield say(receipt, number=str(row.number), hash=row.hash.hex())


def event_in_words(event: Event) -> str:
    """Describe mechanism, sensitivity, scale and count of an event."""
    if isinstance(event, ApproximateEvent):
        return say(
            "{releases} with a failure probability of at most {delta}: {event}",
            releases=_times(event.count),
            delta=say_number(float(event.delta)),
            event=event_in_words(event.event),
        )
    if isinstance(event, GaussianEvent):
        ratio = float(event.scale) / float(event.l2_squared) ** 0.5
        return say(
            "{releases} with discrete Gaussian noise: squared L2 sensitivity {sensitivity}, sigma {scale} (lattice "
            "units; sigma is {ratio} sensitivities)",
            releases=_times(event.count),
            sensitivity=str(event.l2_squared),
            scale=_exact(event.scale),
            ratio=say_number(ratio),
        )
    if isinstance(event, LaplaceEvent):
        return say(
            "{releases} with discrete Laplace noise: L1 sensitivity {sensitivity}{groups}, scale {scale} (lattice "
            "units; epsilon {epsilon})",
            releases=_times(event.count),
            sensitivity=str(event.l1),
            groups=say(" in each of {count} groups of coordinates", count=event.groups) if event.groups > 1 else "",
            scale=_exact(event.scale),
            epsilon=say_number(float(event.l1 / Fraction(event.scale))),
        )
    if isinstance(event, SelectionEvent):
        return say(
            "{choices} by the exponential mechanism (Gumbel noise): sensitivity of a score {sensitivity}, scale "
            "{scale} (epsilon {epsilon} of each)",
            choices=say_count(event.count, "{count} choice", "{count} choices"),
            sensitivity=str(event.sensitivity),
            scale=_exact(event.scale),
            epsilon=say_number(float(event.bounded_range)),
        )
    if isinstance(event, ConcentratedEvent):
        return say(
            "{interactions} within rho = {rho} of zero-concentrated privacy, of which its parts, chosen one after "
            "another, take their shares",
            interactions=say_count(event.count, "{count} interaction", "{count} interactions"),
            rho=_exact(event.rho),
        )
    pure = "{releases} with pure epsilon = {epsilon}"
    return say(pure, releases=_times(event.count), epsilon=_exact(event.epsilon))


def _debit_in_words(row: Row, line: Line) -> Iterator[str]:
    details = row.details
    order = decode_fraction(details["order"])
    yield from _labelled(
        [
            (say("method"), details["method"]),
            (say("request_id"), details["request_id"]),
            (say("request hash"), details["request_hash"]),
            (
                say("release"),
                say("stored" if row.released else "none stored: the fit runs, was interrupted, or failed"),
            ),
        ]
    )
    yield ""
    yield say("released under it, priced at Renyi order {order}:", order=say_number(float(order)))
    for event in _together(map(decode_event, details["events"])):
        each = price([event], order)
        cost = "costs {amount}: rho {rho}, {delta} of delta" if each.delta_units else "costs {amount}: rho {rho}"
        fields = {"amount": amount(row, line, each.cost_units), "rho": say_number(each.rho)}
        yield f"  {event_in_words(event)}"
        yield f"    {say(cost, delta=_delta(each.delta_units), **fields)}"
    yield ""
    yield from _labelled(_amounts(row, line))
    if details["parameters"]:
        yield ""
        yield say("parameters:")
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
    yield say("debited"), _amount(row, line, details["cost_units"])
    yield say("spent with it"), _amount(row, line, spent)
    yield say("left after it"), _amount(row, line, max(cap - spent, 0), is_left=True)
    if details["delta_units"]:
        units = str(details["delta_units"])
        yield say("delta debited"), say("{delta} ({units} units)", delta=_delta(details["delta_units"]), units=units)
        yield say("delta left"), _delta(details["cap_delta_units"] - details["spent_delta_units"])
    if details.get("allowance_cost_units") is not None:
        yield say("analyst's part"), _amount(row, line, details.get("analyst_spent_cost_units", 0))
        yield say("analyst's limit"), _amount(row, line, details["allowance_cost_units"], is_left=True)
    if details.get("call_cost_units") is not None:
        yield say("largest call"), _amount(row, line, details["call_cost_units"], is_left=True)


def _amount(row: Row, line: Line, units: int, *, is_left: bool = False) -> str:
    return say(
        "{amount} of the lifetime budget; rho {rho}, {units} units",
        amount=amount(row, line, units, is_left=is_left),
        rho=say_number(rho(units, row.details["order"])),
        units=str(units),
    )


def _delta(units: int) -> str:
    return say_number(units / DELTA_UNIT)


def _details(details: Fields) -> Iterator[str]:
    if details:
        yield ""
        yield say("details:")
        yield from _json(details)


def _json(value: Any) -> Iterator[str]:
    return (f"  {line}" for line in json_text(value, indent=2).splitlines())


def _labelled(pairs: Iterable[tuple[str, object]]) -> Iterator[str]:
    width = _LABEL[language()]
    return (f"{label:<{width}}{visible(value)}" for label, value in pairs if value is not None)


def _times(count: int) -> str:
    return say_count(count, "{count} release", "{count} releases")


def _exact(value: Fraction | int) -> str:
    """Return a rational as people write it where that is exact, else as a fraction with its value."""
    if Fraction(float(value)) == value:
        return figure(f"{float(value):.17g}".removesuffix(".0"))
    return f"{say_number(float(value), 8)} = {value}"
