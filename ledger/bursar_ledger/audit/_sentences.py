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

from bursar_amounts import exact_text

from .._entries import EntryKind, by_kind
from .._events import (
    ApproximateEvent,
    ConcentratedEvent,
    Event,
    ExactEvent,
    GaussianEvent,
    LaplaceEvent,
    SelectionEvent,
    decode_event,
    decode_fraction,
)
from .._types import EVERYONE
from ._columns import Line, cost_text, read_time
from ._language import figure, language, say, say_day, say_number, say_percent, say_word
from ._open import Fields, Row

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
        if times > 1 and self.first != self.last:
            times_from = "{count} times from {first} to {last}, {what}"
            return say(times_from, count=times, first=self.first, last=self.last, what=self.what)
        if times > 1:
            text = "{count} times on {day}, {what}" if self.last else "{count} times, {what}"
            return say(text, count=times, day=self.last, what=self.what)
        return say("On {day}, {what}" if self.last else "At an unknown time, {what}", day=self.last, what=self.what)


def story(row: Row, line: Line) -> Story:
    """Return the sentence about one entry."""
    try:
        what = _KINDS[line.kind or ""](row.details, line)
    except _WRONG:
        what = say("something was written that cannot be read: fields are missing or of another type.")
    reason = row.details.get("reason")
    day = day_of(line.time)
    what = say("{what} Reason given: {reason}", what=what, reason=str(reason)) if reason else what
    return Story((row.number,), day, day, what)


def folded(stories: Iterable[Story]) -> Iterator[Story]:
    """Yield stories with neighbours that say the same put together, in the order in which they come."""
    for what, group in itertools.groupby(stories, key=lambda one: one.what):
        same = sorted(group, key=lambda one: one.entries)
        numbers = tuple(entry for one in same for entry in one.entries)
        yield Story(numbers, same[0].first, same[-1].last, what)


def day_of(time: str | None) -> str:
    """Return the day of an RFC 3339 time, such as 12 March 2026; "" if it cannot be read."""
    moment = read_time(time)
    return "" if moment is None else say_day(moment)


def request_in_words(method: object, parameters: Mapping[str, Any]) -> str:
    """Return what a request asked for: "a mixture of 4 groups by visits and diseases"."""
    columns = parameters.get("columns")
    try:
        what = _METHODS[str(method)](parameters)
    except _WRONG:
        what = say("a result of {method}", method=str(method))
    if not isinstance(columns, list) or not columns:
        return what
    return say("{what} by {columns}", what=what, columns=listed(columns))


def method_in_words(method: object) -> str:
    """Return what requests of a method ask for; the method's name if it is not known."""
    name = str(method)
    return say(_NAMES[name]) if name in _NAMES else name


def noise_in_words(events: Sequence[Any]) -> str:
    """Return the noise of a request, equal releases counted: "Gaussian, 8 times one person's influence (20 times)"."""
    kinds = _noise(json.dumps(events), language())
    named = [say("{noise} ({count} times)", noise=what, count=n) if n > 1 else what for what, n in kinds[:_NAMED]]
    others = [say("{count} other kinds", count=len(kinds) - _NAMED)] if len(kinds) > _NAMED else []
    return say(", and ").join(named + others)


def listed(names: Sequence[object], most: int = _NAMED) -> str:
    """Return names as a list in a sentence; beyond the first ones they are counted."""
    shown = [str(name) for name in names]
    if len(shown) > most:
        shown = [*shown[:most], say("{count} more", count=len(shown) - most)]
    return say("{first} and {last}", first=", ".join(shown[:-1]), last=shown[-1]) if len(shown) > 1 else "".join(shown)


@functools.lru_cache(maxsize=4096)
def _noise(events: str, spoken: str) -> tuple[tuple[str, int], ...]:
    kinds = Counter[str]()
    for event in map(decode_event, json.loads(events)):
        kinds[_kind_of_noise(event)] += event.count
    return tuple(kinds.items())


def _kind_of_noise(event: Event) -> str:
    if isinstance(event, ApproximateEvent):
        failing = "{noise}, with a probability of failure of {delta}"
        return say(failing, noise=_exact(event.event), delta=say_number(float(event.delta), 2))
    return _exact(event)


def _exact(event: ExactEvent) -> str:
    if isinstance(event, GaussianEvent):
        ratio = float(event.scale) / float(event.l2_squared) ** 0.5
        return say("Gaussian, {ratio} times the most that one person can change", ratio=say_number(ratio, 3))
    if isinstance(event, LaplaceEvent):
        ratio = float(event.scale) / event.l1
        return say("Laplace, {ratio} times the most that one person can change", ratio=say_number(ratio, 3))
    if isinstance(event, SelectionEvent):
        epsilon = say_number(float(event.bounded_range), 3)
        return say("that of a random choice with epsilon {epsilon}", epsilon=epsilon)
    if isinstance(event, ConcentratedEvent):
        return say("that of several steps with one bound for all of them")
    return say("that of a mechanism with epsilon {epsilon}", epsilon=say_number(float(event.epsilon), 3))


def _debit(details: Fields, line: Line) -> str:
    return say(
        "an analyst ({analyst}) asked for {what} of {dataset}; it cost {cost} of the lifetime budget; the noise was "
        "{noise}; {released}.",
        analyst=line.actor,
        what=request_in_words(line.method, details["parameters"]),
        dataset=line.dataset,
        cost=cost_text(line),
        noise=noise_in_words(details["events"]),
        released=say("the release was delivered") if line.released else say("no release is stored"),
    )


def _release(details: Fields, line: Line) -> str:
    if details.get("lost"):
        return say("the release of entry {entry} was recorded as lost.", entry=str(details["debit"]))
    delivered = "the release of entry {entry} was delivered: {size} bytes."
    return say(delivered, entry=str(details["debit"]), size=int(details["size"]))


def _genesis(details: Fields, line: Line) -> str:
    return say("{who} began the ledger.", who=line.actor)


def _registration(details: Fields, line: Line) -> str:
    if details["account"] != line.dataset:
        joined = "{who} registered {dataset}, of the same people as {account}, whose budget it uses."
        return say(joined, who=line.actor, dataset=line.dataset, account=str(details["account"]))
    registered = "{who} registered {dataset} with a lifetime budget of {budget}."
    return say(registered, who=line.actor, dataset=line.dataset, budget=_budget_of(details))


def _budget(details: Fields, line: Line) -> str:
    before = details["previous"]
    text = "{who} changed the lifetime budget of {dataset} from {before} to {budget}."
    if details["epsilon"] > before["epsilon"]:
        text = "{who} raised the lifetime budget of {dataset} from {before} to {budget}."
    elif details["epsilon"] < before["epsilon"]:
        text = "{who} lowered the lifetime budget of {dataset} from {before} to {budget}."
    return say(text, who=line.actor, dataset=line.dataset, before=_budget_of(before), budget=_budget_of(details))


def _budget_of(details: Fields) -> str:
    epsilon, delta = (figure(exact_text(float(details[name]))) for name in ("epsilon", "delta"))
    return say("epsilon {epsilon} and delta {delta}", epsilon=epsilon, delta=delta)


def _snapshot(details: Fields, line: Line) -> str:
    return say("{who} put new rows of the same people into {dataset}.", who=line.actor, dataset=line.dataset)


def _retirement(details: Fields, line: Line) -> str:
    if details.get("withdrawn", False):
        withdrew = "{who} withdrew {dataset}, which was registered by mistake and never used."
        return say(withdrew, who=line.actor, dataset=line.dataset)
    return say("{who} retired {dataset}: it answers no more new requests.", who=line.actor, dataset=line.dataset)


def _destruction(details: Fields, line: Line) -> str:
    what = say_word(str(details["destroyed"]))
    return say("{who} destroyed the {what} of {dataset}.", who=line.actor, what=what, dataset=line.dataset)


def _allowance(details: Fields, line: Line) -> str:
    whose = say("all other analysts") if details["analyst"] == EVERYONE else str(details["analyst"])
    if details["share"] is None:
        lifted = "{who} lifted the limit of {whose} on {dataset}."
        return say(lifted, who=line.actor, whose=whose, dataset=line.dataset)
    limited = "{who} limited {whose} to {share} of the lifetime budget of {dataset}."
    return say(limited, who=line.actor, whose=whose, share=_share(details), dataset=line.dataset)


def _call_limit(details: Fields, line: Line) -> str:
    if details["share"] is None:
        return say("{who} lifted the limit for one request about {dataset}.", who=line.actor, dataset=line.dataset)
    limited = "{who} limited each request about {dataset} to {share} of the lifetime budget."
    return say(limited, who=line.actor, dataset=line.dataset, share=_share(details))


def _share(details: Fields) -> str:
    return say_percent(decode_fraction(details["share"]), is_left=True)


def _issued(details: Fields, line: Line) -> str:
    expires = details.get("expires")
    until = say(" until {day}", day=day_of(expires) or str(expires)) if "expires" in details else ""
    only = say(", to {datasets} only", datasets=listed(details["datasets"])) if "datasets" in details else ""
    whose, role = str(details["credential"]), str(details["role"])
    gave = "{who} gave {whose} access as {role}{until}{only}."
    return say(gave, who=line.actor, whose=whose, role=role, until=until, only=only)


def _revoked(details: Fields, line: Line) -> str:
    return say("{who} ended the access of {whose}.", who=line.actor, whose=str(details["credential"]))


def _checkpoint_key(details: Fields, line: Line) -> str:
    return say("{who} named the key that signs checkpoints.", who=line.actor)


def _upgrade(details: Fields, line: Line) -> str:
    return say("{who} upgraded the format of the ledger.", who=line.actor)


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
    groups = str(parameters["n_components"])
    if "least_components" in parameters:
        groups = say("{least} to {most}", least=str(parameters["least_components"]), most=groups)
    return say(
        "{groups} clusters" if parameters.get("mode") == "kmeans" else "a mixture of {groups} groups", groups=groups
    )


def _separated(parameters: Mapping[str, Any]) -> str:
    return say("a mixture of {groups} well separated groups", groups=str(parameters["n_components"]))


def _gradient(parameters: Mapping[str, Any]) -> str:
    model = str(parameters["model"])
    if model.endswith("mixture"):
        return _groups(parameters)
    if model == "missing_covariates":
        return say("a regression of {target} with missing values", target=str(parameters["target"]))
    groups, target = str(parameters["n_components"]), str(parameters["target"])
    return say("a mixture of {groups} regressions of {target}", groups=groups, target=target)


def _sketch(parameters: Mapping[str, Any]) -> str:
    return say("a sketch for {groups} clusters", groups=str(parameters["n_clusters"]))


def _field(parameters: Mapping[str, Any]) -> str:
    return say("a table of how often categories occur together")


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "FitDPEM": _groups,
    "FitSeparatedGMM": _separated,
    "FitGradientEM": _gradient,
    "FitSketchKMeans": _sketch,
    "FitMRF": _field,
}

_NAMES = {
    "FitDPEM": "a mixture or clusters",
    "FitSeparatedGMM": "a mixture of well separated groups",
    "FitGradientEM": "a mixture or a regression",
    "FitSketchKMeans": "a sketch for clusters",
    "FitMRF": "a table of how often categories occur together",
}
