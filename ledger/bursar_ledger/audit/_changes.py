"""Changes of a ledger since an earlier visit, of which a copy of the ledger or the head was kept."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from pathlib import Path

import click

from .._entries import REQUESTS, EntryKind
from ..refusals import Refusal
from ._columns import lines, read_time
from ._language import say, say_count, say_percent
from ._open import UnreadableError, noted_refusals, opened, rows
from ._sentences import Story, day_of, folded, story

_HEAD = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_KEPT = re.compile(r"size +([0-9]{1,18})\s+head +([0-9a-f]{64})")


@dataclass(frozen=True)
class Visit:
    """The ledger as it was at an earlier visit."""

    entries: int
    head: bytes
    copy: Path | None = None


@dataclass(frozen=True)
class Since:
    """Comparison of a ledger with an earlier visit.

    Attributes:
        visit: the earlier visit.
        problems: one line if history is not the one that was seen then.
        agrees: number of the newest entry that is known to be what it was.
    """

    visit: Visit
    problems: tuple[str, ...]
    agrees: int


@dataclass(frozen=True)
class Changes:
    """Changes since an earlier visit, in sentences.

    Attributes:
        summary: how much is new, and what each analyst spent.
        refusals: new refusals; None if no file says so.
    """

    since: str
    summary: tuple[str, ...]
    events: tuple[Story, ...]
    refusals: tuple[Refusal, ...] | None


def read_visit(text: str) -> Visit:
    """Return the visit that a text names: SIZE:HEAD, a file with what `checkpoint` printed, or a copy of the ledger.

    Raises:
        click.BadParameter: it is none of them.
    """
    if match := _HEAD.fullmatch(text):
        return Visit(int(match[1]), bytes.fromhex(match[2]))
    path = Path(text)
    try:
        if len(text) < 1000 and path.is_file():
            with path.open("rb") as file:
                beginning = file.read(10_000).decode("utf-8", "replace")
            if match := _KEPT.search(beginning):
                return Visit(int(match[1]), bytes.fromhex(match[2]))
            with opened(path) as db:
                number, digest = db.execute("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1").fetchone()
                return Visit(int(number), bytes(digest), path)
    except (OSError, TypeError, ValueError, UnreadableError) as error:
        raise click.BadParameter(f"the earlier visit cannot be read: {error}") from error
    raise click.BadParameter(
        "expected a copy of the ledger, a file with what bursar-audit checkpoint printed, or SIZE:HEAD such as "
        "57:ab12... with all 64 digits of the head"
    )


def compare_visit(ledger: Path, visit: Visit) -> Since:
    """Say whether a ledger goes on from an earlier visit."""
    with opened(ledger) as db:
        newest = db.execute("SELECT max(number) FROM entries").fetchone()[0] or 0
        stored = db.execute("SELECT hash FROM entries WHERE number = ?", [visit.entries]).fetchone()
        if visit.copy is not None:
            agrees = _first_difference(ledger, visit.copy, visit.entries) - 1
        else:
            agrees = visit.entries if stored is not None and bytes(stored[0]) == visit.head else 0
    if agrees >= visit.entries:
        return Since(visit, (), visit.entries)
    if newest < visit.entries and (agrees == newest or visit.copy is None):
        gone = visit.entries - newest
        text = f"the ledger ends at entry {newest:,}: {gone:,} of the entries of your last visit are missing"
    elif visit.copy is None:
        text = f"history was rewritten: entry {visit.entries} or one before it is not what it was at your last visit"
    else:
        text = f"history was rewritten: entry {agrees + 1} is not what it was at your last visit"
    return Since(visit, (text,), agrees)


def changes(ledger: Path, since: Since, certain: int) -> Changes:
    """Return what is new after an earlier visit, up to the newest entry that is certain."""
    seen = since.visit.entries
    with opened(ledger) as db:
        # The account of an entry may stand in its registration only, but a sentence names the dataset.
        read = [(row, line) for row, line, _ in lines(rows(db, first=seen, last=max(certain, seen)))]
    moment = next((line.time for row, line in read if row.number == seen), None)
    new = [(row, line) for row, line in read if row.number > seen]
    spent: dict[tuple[str, str], list[float]] = {}
    for _, line in new:
        if line.kind == EntryKind.DEBIT:
            spent.setdefault((line.actor or "", line.dataset or ""), []).append(line.share or 0.0)
    first, last = (new[0][0].number, new[-1][0].number) if new else (0, 0)
    summary = [say("Entries {first} to {last} are new.", first=first, last=last) if new else say("No entry is new.")]
    summary += [
        say_count(
            len(shares),
            "{analyst} made {count} paid request to {dataset}, for {share} of the lifetime budget.",
            "{analyst} made {count} paid requests to {dataset}, for {share} of the lifetime budget.",
            analyst=who,
            dataset=dataset,
            share=say_percent(sum(shares)),
        )
        for (who, dataset), shares in sorted(spent.items())
    ]
    if not any(line.kind in (EntryKind.BUDGET, EntryKind.REGISTRATION) for _, line in new):
        summary.append(say("No lifetime budget is new or changed."))
    events = folded(story(row, line) for row, line in new if line.kind not in REQUESTS)
    day = day_of(moment)
    return Changes(
        say("entry {entry} of {day}" if day else "entry {entry}", entry=seen, day=day),
        tuple(summary),
        tuple(events),
        _refused_since(noted_refusals(ledger), since.visit, read_time(moment)),
    )


def _first_difference(ledger: Path, copy: Path, last: int) -> int:
    """Return the number of the first entry of a copy that the ledger does not have, or has otherwise."""
    with opened(ledger) as now, opened(copy) as then:
        for one, other in zip_longest(rows(then, last=last), rows(now, last=last)):
            if (
                one is None
                or other is None
                or (one.number, one.hash, one.body)
                != (
                    other.number,
                    other.hash,
                    other.body,
                )
            ):
                return min(row.number for row in (one, other) if row is not None)
    return last + 1


def _refused_since(
    noted: tuple[Refusal, ...] | None, visit: Visit, moment: datetime | None
) -> tuple[Refusal, ...] | None:
    """Return refusals beyond those beside the copy; without them, those that came after the visit's entry."""
    if noted is None:
        return None
    before = noted_refusals(visit.copy) if visit.copy is not None else None
    if before is None:
        last = [(one, read_time(str(one.last))) for one in noted]
        return tuple(one for one, time in last if moment is None or time is None or time >= moment)
    times = {_kind(one): one.times for one in before}
    more = [(one, one.times - times.get(_kind(one), 0)) for one in noted]
    return tuple(dataclasses.replace(one, times=count) for one, count in more if count)


def _kind(one: Refusal) -> tuple[str, str, str, str]:
    return one.analyst, one.dataset, one.method, one.refused_by
