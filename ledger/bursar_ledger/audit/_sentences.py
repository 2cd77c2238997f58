"""Ledger entries as sentences for readers who are not programmers: who did what when, what it cost, which noise.

Texts and numbers may be a forger's. Whatever cannot be read becomes a sentence that says so; pages escape all of it.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bursar_amounts import percent_text

from .._codec import decode_event, decode_fraction
from .._events import (
    ApproximateEvent,
    ConcentratedEvent,
    Event,
    ExactEvent,
    GaussianEvent,
    LaplaceEvent,
    SelectionEvent,
)
from .._kinds import EntryKind, by_kind
from .._types import EVERYONE
from ._columns import Line, cost_text, read_time
from ._open import Fields, Row
from ._text import number

_NAMED = 5
"""Columns and kinds of noise that a sentence names; the others are counted."""
_WRONG = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, IndexError)


@dataclass(frozen=True)
class Story:
    """One or several equal entries in a sentence.

    Attributes:
        entries: their numbers, in order.
        first: day of the first of them, "" if its time cannot be read.
        last: day of the last of them.
        what: the sentence without its beginning; equal for equal events.
    """

    entries: tuple[int, ...]
    first: str
    last: str
    what: str

    @property
    def text(self) -> str:
        """The whole sentence."""
        times = len(self.entries)
        when = f"On {self.last}" if self.last else "At an unknown time"
        if times > 1:
            when = f"{times:,} times" + (f" from {self.first} to {self.last}" if self.first != self.last else "")
            when += "" if self.first != self.last or not self.last else f" on {self.last}"
        return f"{when}, {self.what}"


def story(row: Row, line: Line) -> Story:
    """Return the sentence about one entry."""
    try:
        what = _KINDS[line.kind or ""](row.details, line)
    except _WRONG:
        what = "something was written that cannot be read: fields are missing or of another type."
    reason = row.details.get("reason")
    day = day_of(line.time)
    return Story((row.number,), day, day, f"{what} Reason given: {reason}" if reason else what)


def folded(stories: Iterable[Story]) -> Iterator[Story]:
    """Yield stories with neighbours that say the same put together, in the order in which they come."""
    for what, group in itertools.groupby(stories, key=lambda one: one.what):
        same = sorted(group, key=lambda one: one.entries)
        numbers = tuple(entry for one in same for entry in one.entries)
        yield Story(numbers, same[0].first, same[-1].last, what)


def day_of(time: str | None) -> str:
    """Return the day of an RFC 3339 time, such as 12 March 2026; "" if it cannot be read."""
    moment = read_time(time)
    return "" if moment is None else f"{moment.day} {moment:%B %Y}"


def request_in_words(method: object, parameters: Mapping[str, Any]) -> str:
    """Return what a request asked for: "a mixture of 4 groups by visits and diseases"."""
    columns = parameters.get("columns")
    try:
        what = _METHODS[str(method)](parameters)
    except _WRONG:
        what = f"a result of {method}"
    return f"{what} by {listed(columns)}" if isinstance(columns, list) and columns else what


def noise_in_words(events: Sequence[Any]) -> str:
    """Return the noise of a request, equal releases counted: "Gaussian, 8 times one person's influence (20 times)"."""
    kinds = _noise(json.dumps(events))
    named = [what + (f" ({times:,} times)" if times > 1 else "") for what, times in kinds[:_NAMED]]
    return ", and ".join(named + ([f"{len(kinds) - _NAMED} other kinds"] if len(kinds) > _NAMED else []))


def listed(names: Sequence[object], most: int = _NAMED) -> str:
    """Return names as a list in a sentence; beyond the first ones they are counted."""
    shown = [str(name) for name in names]
    if len(shown) > most:
        shown = [*shown[:most], f"{len(shown) - most:,} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


@functools.lru_cache(maxsize=4096)
def _noise(events: str) -> tuple[tuple[str, int], ...]:
    kinds = Counter[str]()
    for event in map(decode_event, json.loads(events)):
        kinds[_kind_of_noise(event)] += event.count
    return tuple(kinds.items())


def _kind_of_noise(event: Event) -> str:
    if isinstance(event, ApproximateEvent):
        return f"{_exact(event.event)}, with a probability of failure of {number(float(event.delta), 2)}"
    return _exact(event)


def _exact(event: ExactEvent) -> str:
    if isinstance(event, GaussianEvent):
        ratio = float(event.scale) / float(event.l2_squared) ** 0.5
        return f"Gaussian, {number(ratio, 3)} times the most that one person can change"
    if isinstance(event, LaplaceEvent):
        return f"Laplace, {number(float(event.scale) / event.l1, 3)} times the most that one person can change"
    if isinstance(event, SelectionEvent):
        return f"that of a random choice with epsilon {number(float(event.bounded_range), 3)}"
    if isinstance(event, ConcentratedEvent):
        return "that of several steps with one bound for all of them"
    return f"that of a mechanism with epsilon {number(float(event.epsilon), 3)}"


def _debit(details: Fields, line: Line) -> str:
    released = "the release was delivered" if line.released else "no release is stored"
    return (
        f"an analyst ({line.actor}) asked for {request_in_words(line.method, details['parameters'])} of "
        f"{line.dataset}; it cost {cost_text(line)} of the lifetime budget; the noise was "
        f"{noise_in_words(details['events'])}; {released}."
    )


def _release(details: Fields, line: Line) -> str:
    if details.get("lost"):
        return f"the release of entry {details['debit']} was recorded as lost."
    return f"the release of entry {details['debit']} was delivered: {int(details['size']):,} bytes."


def _genesis(details: Fields, line: Line) -> str:
    return f"{line.actor} began the ledger."


def _registration(details: Fields, line: Line) -> str:
    if details["account"] != line.dataset:
        return (
            f"{line.actor} registered {line.dataset}, of the same people as {details['account']}, whose budget it uses."
        )
    return f"{line.actor} registered {line.dataset} with a lifetime budget of {_budget_of(details)}."


def _budget(details: Fields, line: Line) -> str:
    before = details["previous"]
    verb = "raised" if details["epsilon"] > before["epsilon"] else "changed"
    verb = "lowered" if details["epsilon"] < before["epsilon"] else verb
    return (
        f"{line.actor} {verb} the lifetime budget of {line.dataset} from {_budget_of(before)} to {_budget_of(details)}."
    )


def _budget_of(details: Fields) -> str:
    return f"epsilon {float(details['epsilon']):g} and delta {float(details['delta']):g}"


def _snapshot(details: Fields, line: Line) -> str:
    return f"{line.actor} put new rows of the same people into {line.dataset}."


def _retirement(details: Fields, line: Line) -> str:
    if details.get("withdrawn", False):
        return f"{line.actor} withdrew {line.dataset}, which was registered by mistake and never used."
    return f"{line.actor} retired {line.dataset}: it answers no more new requests."


def _destruction(details: Fields, line: Line) -> str:
    return f"{line.actor} destroyed the {details['destroyed']} of {line.dataset}."


def _allowance(details: Fields, line: Line) -> str:
    whose = "all other analysts" if details["analyst"] == EVERYONE else str(details["analyst"])
    if details["share"] is None:
        return f"{line.actor} lifted the limit of {whose} on {line.dataset}."
    return f"{line.actor} limited {whose} to {_share(details)} of the lifetime budget of {line.dataset}."


def _call_limit(details: Fields, line: Line) -> str:
    if details["share"] is None:
        return f"{line.actor} lifted the limit for one request about {line.dataset}."
    return f"{line.actor} limited each request about {line.dataset} to {_share(details)} of the lifetime budget."


def _share(details: Fields) -> str:
    return percent_text(decode_fraction(details["share"]), is_left=True)


def _issued(details: Fields, line: Line) -> str:
    until = f" until {day_of(details['expires']) or details['expires']}" if "expires" in details else ""
    only = f", to {listed(details['datasets'])} only" if "datasets" in details else ""
    return f"{line.actor} gave {details['credential']} access as {details['role']}{until}{only}."


def _revoked(details: Fields, line: Line) -> str:
    return f"{line.actor} ended the access of {details['credential']}."


def _checkpoint_key(details: Fields, line: Line) -> str:
    return f"{line.actor} named the key that signs checkpoints."


def _upgrade(details: Fields, line: Line) -> str:
    return f"{line.actor} upgraded the format of the ledger."


_KINDS: Mapping[str, Callable[[Fields, Line], str]] = by_kind(
    {
        EntryKind.GENESIS: _genesis,
        EntryKind.REGISTRATION: _registration,
        EntryKind.SNAPSHOT: _snapshot,
        EntryKind.RETIREMENT: _retirement,
        EntryKind.DESTRUCTION: _destruction,
        EntryKind.BUDGET: _budget,
        EntryKind.ALLOWANCE: _allowance,
        EntryKind.CALL_LIMIT: _call_limit,
        EntryKind.DEBIT: _debit,
        EntryKind.RELEASE: _release,
        EntryKind.CREDENTIAL_ISSUED: _issued,
        EntryKind.CREDENTIAL_REVOKED: _revoked,
        EntryKind.CHECKPOINT_KEY: _checkpoint_key,
        EntryKind.UPGRADE: _upgrade,
    }
)


def _groups(parameters: Mapping[str, Any]) -> str:
    count = parameters["n_components"]
    if "least_components" in parameters:
        count = f"{parameters['least_components']} to {count}"
    return f"{count} clusters" if parameters.get("mode") == "kmeans" else f"a mixture of {count} groups"


def _separated(parameters: Mapping[str, Any]) -> str:
    return f"a mixture of {parameters['n_components']} well separated groups"


def _gradient(parameters: Mapping[str, Any]) -> str:
    model = str(parameters["model"])
    if model.endswith("mixture"):
        return _groups(parameters)
    if model == "missing_covariates":
        return f"a regression of {parameters['target']} with missing values"
    return f"a mixture of {parameters['n_components']} regressions of {parameters['target']}"


def _sketch(parameters: Mapping[str, Any]) -> str:
    return f"a sketch for {parameters['n_clusters']} clusters"


def _field(parameters: Mapping[str, Any]) -> str:
    return "a table of how often categories occur together"


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "FitDPEM": _groups,
    "FitSeparatedGMM": _separated,
    "FitGradientEM": _gradient,
    "FitSketchKMeans": _sketch,
    "FitMRF": _field,
}
