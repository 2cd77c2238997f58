"""Verdict on a ledger: consistent, consistent and witnessed, or not right, with causes and what is still certain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ._checks import Findings
from ._language import say, say_count, say_finding

_ENTRY = re.compile(r"entry (\d+): ")
_AFTER = re.compile(r"after entry (\d+): ")
_PARTICULARS = re.compile(r"\d+|'[^']*'|(?<=table |index )\w+|(?<=trigger )\w+")
"""Numbers and names: findings that differ in these only are of one kind."""
_SHOWN = 5
"""Kinds of findings that a cause lists; the others are counted."""


class Standing(Enum):
    """The three verdicts."""

    CONSISTENT = "consistent"
    """Nothing contradicts anything else in the file."""
    WITNESSED = "consistent and witnessed"
    """Checkpoints under the pinned key agree, too."""
    WRONG = "not right"
    """Something was found."""


@dataclass(frozen=True)
class Cause:
    """One thing that is wrong.

    Attributes:
        text: a sentence.
        findings: what shows it; findings of one kind are one line, with how many there are.
    """

    text: str
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Verdict on a ledger.

    Attributes:
        standing: which of the three.
        text: the verdict in one line.
        causes: what is wrong, the first wrong entry first; empty unless it is not right.
        certain: number of the newest entry whose figures hold: the newest one unless something is not right.
        still_certain: sentences about what holds all the same; empty unless it is not right.
    """

    standing: Standing
    text: str
    causes: tuple[Cause, ...]
    certain: int
    still_certain: tuple[str, ...]


def verdict(found: Findings) -> Verdict:
    """Return the verdict on a ledger that was examined."""
    newest = found.verification.entries
    if found.problems:
        certain = _certain(found)
        return Verdict(Standing.WRONG, say("not right"), causes(found.problems), certain, tuple(_holds(found, certain)))
    if found.key is None or not found.witnessed:
        return Verdict(Standing.CONSISTENT, say("consistent"), (), newest, ())
    locations = sum(comparison.witnessed == found.witnessed for comparison in found.comparisons)
    text = say_count(
        locations,
        "consistent, and witnessed up to entry {entry} by {count} location with the pinned key",
        "consistent, and witnessed up to entry {entry} by {count} locations with the pinned key",
        entry=found.witnessed,
    )
    return Verdict(Standing.WITNESSED, text, (), newest, ())


def causes(problems: Iterable[str]) -> tuple[Cause, ...]:
    """Group findings by what caused them: the first wrong entry, what follows, missing entries, the file."""
    return tuple(_causes(list(problems)))


def _causes(problems: Sequence[str]) -> Iterator[Cause]:
    numbered = [(number, problem) for problem in problems if (number := _wrong_entry(problem)) is not None]
    schema = [problem for problem in problems if problem.startswith("schema: ")]
    file = [problem for problem in problems if problem.startswith("file: ")]
    named = {*schema, *file, *(problem for _, problem in numbered)}
    others = [problem for problem in problems if problem not in named]
    if numbered:
        first, last = min(numbered)[0], max(numbered)[0]
        follow = [problem for number, problem in numbered if number > first]
        named_first = [problem for number, problem in numbered if number == first]
        yield Cause(say("The first wrong entry is {entry}.", entry=first), _folded(named_first))
        if follow:
            text = say_count(
                len(follow),
                "{count} finding up to entry {last} may follow from that: later entries build on earlier ones.",
                "{count} findings up to entry {last} may follow from that: later entries build on earlier ones.",
                last=last,
            )
            yield Cause(text, _folded(follow))
    if others:
        yield Cause(say("This is not the whole ledger, or not the one that was witnessed."), _folded(others))
    if schema:
        text = say_count(
            len(schema),
            "The file lacks its own safeguards: {count} table, index or trigger is missing, changed or foreign, so "
            "entries could be changed.",
            "The file lacks its own safeguards: {count} tables, indexes or triggers are missing, changed or foreign, "
            "so entries could be changed.",
        )
        yield Cause(text, _folded(schema))
    if file:
        yield Cause(say("The file is damaged: SQLite finds errors in its pages."), _folded(file))


def _wrong_entry(problem: str) -> int | None:
    if match := _ENTRY.match(problem):
        return int(match[1])
    return int(match[1]) + 1 if (match := _AFTER.match(problem)) else None


def _folded(findings: Sequence[str]) -> tuple[str, ...]:
    """Return one line for each kind of finding: the first one, and how many more differ in numbers and names only."""
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(_PARTICULARS.sub("", finding), []).append(finding)
    lines = [_with_more(say_finding(one), len(more)) for one, *more in list(kinds.values())[:_SHOWN]]
    rest = len(kinds) - _SHOWN
    if rest > 0:
        lines.append(say_count(rest, "and {count} finding of other kinds", "and {count} findings of other kinds"))
    return tuple(lines)


def _with_more(finding: str, more: int) -> str:
    return say("{finding} (and {count} more of this kind)", finding=finding, count=more) if more else finding


def _certain(found: Findings) -> int:
    """Return the newest entry before everything that is wrong, and that no location's notes contradict."""
    if found.key_problems:
        return 0
    wrong = [number for number in map(_wrong_entry, found.problems) if number is not None]
    contradicted = [comparison.witnessed for comparison in found.comparisons if comparison.notes and not comparison.ok]
    if found.since is not None:
        contradicted += [found.since.agrees] if found.since.problems else []
    return max(min([found.verification.entries, *(number - 1 for number in wrong), *contradicted]), 0)


def _holds(found: Findings, certain: int) -> Iterator[str]:
    if not certain:
        yield say("Nothing: no entry is certain, and no figure of this ledger should be used.")
        return
    yield say(
        "Entries 1 to {last}: each follows from the one before it, and every price and sum in them was computed again. "
        "All figures shown count these entries and no others.",
        last=certain,
    )
    seen = min(certain, found.witnessed)
    if seen and found.key is not None:
        yield say("Entries 1 to {last} are also what was signed with the pinned key at the time.", last=seen)
    yield say("Whatever was released later may not be covered by the budget.")
