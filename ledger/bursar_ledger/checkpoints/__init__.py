"""Signed checkpoints: size and head of a ledger, signed, and kept where its operator cannot change them.

A hash chain shows that a file is in itself consistent, and not that it is the whole or the newest: an old copy that is
put back verifies. A checkpoint that lies elsewhere does not go back with it. `docs/checkpoints.md` has the whole story.

LedgerError
├── NoteError     a text is not the note, checkpoint or key that it should be
└── PlaceError    a place cannot be read or written now
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Protocol

from .._entries import read_entry
from .._opening import connect
from .._store import translated
from ..errors import LedgerUnavailableError
from .signed_notes import Checkpoint, Note, NoteError, SigningKey, VerifierKey, open_note, sign
from .stores import FilePlace, GitPlace, Place, PlaceError, StdoutPlace, parse_place

__all__ = [
    "ChainKey",
    "Checkpoint",
    "Comparison",
    "FilePlace",
    "GitPlace",
    "Note",
    "NoteError",
    "Place",
    "PlaceError",
    "SigningKey",
    "StdoutPlace",
    "VerifierKey",
    "check_place",
    "checkpoint_of",
    "compare",
    "open_note",
    "origin_of",
    "parse_place",
    "sign",
    "verifier_keys",
]

_SHOWN = 5
"""Findings of one kind that are listed; the others are counted."""


@dataclass(frozen=True)
class ChainKey:
    """Key that a ledger's chain names.

    Attributes:
        entry: number of its `checkpoint_key` entry.
        key: the public key.
        until: number of the entry that put another key in its place, up to which it signs; None if it is in force.
    """

    entry: int
    key: VerifierKey
    until: int | None


@dataclass(frozen=True)
class Comparison:
    """Result of comparing a ledger with the notes of one place.

    Attributes:
        place: its name.
        problems: one line a finding, with the place and the entries; empty if all is well.
        notes: how many notes the place has.
        witnessed: number of the newest entry that a note vouches for, 0 if none does. Up to it, history is what it was
            when it was signed.
        entries: number of the ledger's newest entry.
    """

    place: str
    problems: tuple[str, ...]
    notes: int
    witnessed: int
    entries: int

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.problems


class _Open(Protocol):
    """Methods of an open ledger that are needed here."""

    @property
    def ledger_id(self) -> str: ...

    def newest(self) -> tuple[int, bytes]: ...


def origin_of(ledger_id: str) -> str:
    """Return the first line of a ledger's checkpoints, and the name of the keys that sign them."""
    return f"bursar/{ledger_id}"


def checkpoint_of(ledger: _Open) -> Checkpoint:
    """Return the size and head of an open ledger, with the time in an extension line."""
    size, head = ledger.newest()
    return Checkpoint(origin_of(ledger.ledger_id), size, head, (f"time {datetime.now(UTC).isoformat('T', 'seconds')}",))


def verifier_keys(ledger: str | os.PathLike[str]) -> tuple[ChainKey, ...]:
    """Return the keys that the chain of a ledger file names, oldest first.

    Raises:
        NoteError: an entry holds none.
        LedgerUnavailableError: the file cannot be read as a ledger.
    """
    with _history(ledger) as history:
        return history.keys


def check_place(
    ledger: str | os.PathLike[str], place: Place, key: VerifierKey | None = None, *, since: int = 0
) -> Comparison:
    """`compare` with what a place holds; a place that cannot be read is a problem."""
    try:
        notes = place.read()
    except PlaceError as error:
        return Comparison(place.name, (f"{error}; nothing there can be compared",), 0, 0, 0)
    return compare(ledger, notes, key, place=place.name, since=since)


def compare(
    ledger: str | os.PathLike[str],
    notes: Sequence[str],
    key: VerifierKey | None = None,
    *,
    place: str = "checkpoints",
    since: int = 0,
) -> Comparison:
    """Compare every note of a place with a ledger file whose chain is verified (`verify`).

    A key that the chain names beside the pinned one counts once a checkpoint under a key that counts agrees with the
    ledger and reaches the entry that names it; and it counts up to the entry that replaced it. So an auditor who
    pinned the newest key can read the old notes, one who pinned an old key can follow the rotation, and a forged chain
    cannot bring its own key along.

    Args:
        ledger: the file; it is only read.
        notes: all notes of the place, oldest first.
        key: the pinned key, from the auditor's own records. None takes the newest that the chain names, which shows
            less: a forger of both file and place has it, too.
        place: its name, for the messages.
        since: notes of smaller sizes are passed over, but for the last one.

    Raises:
        NoteError: a `checkpoint_key` entry of the ledger holds no key.
        LedgerUnavailableError: the file cannot be read as a ledger.
    """
    with _history(ledger) as history:
        return _compared(history, notes, key, place, since)


class _History:
    """Ledger file as one consistent read."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        genesis = db.execute("SELECT number, body, hash FROM entries WHERE number = 1").fetchone()
        if genesis is None:
            raise LedgerUnavailableError("the file holds no entries; it is not a ledger")
        self.ledger_id = str(read_entry(*genesis).details["ledger_id"])
        self.size = int(db.execute("SELECT max(number) FROM entries").fetchone()[0])
        self.keys = self._keys()

    def hash_at(self, number: int) -> bytes | None:
        row = self._db.execute("SELECT hash FROM entries WHERE number = ?", [number]).fetchone()
        return bytes(row[0]) if row else None

    def _keys(self) -> tuple[ChainKey, ...]:
        sql = "SELECT number, body, hash FROM entries WHERE kind = 'checkpoint_key' ORDER BY number"
        found = []
        for row in self._db.execute(sql).fetchall():
            try:
                found.append((row[0], VerifierKey.parse(str(read_entry(*row).details.get("verifier_key")))))
            except NoteError as error:
                raise NoteError(f"entry {row[0]} holds no verifier key: {error}") from error
        ends = [*(number for number, _ in found[1:]), None]
        return tuple(ChainKey(number, key, until) for (number, key), until in zip(found, ends, strict=False))


@contextlib.contextmanager
def _history(path: str | os.PathLike[str]) -> Iterator[_History]:
    try:
        with translated(), contextlib.closing(connect(Path(path), read_only=True)) as db:
            # A server may append meanwhile: keys, size and hashes have to be of one moment.
            db.execute("BEGIN")
            try:
                yield _History(db)
            finally:
                db.rollback()
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerUnavailableError(f"the file cannot be read as a ledger: {type(error).__name__}") from error


@dataclass(frozen=True)
class _Signed:
    """Note of this ledger whose signature verifies.

    Attributes:
        label: names it in messages.
        size: the entry that it is of.
        key: key that signed it.
        until: up to which entry that key may sign; None if it is in force.
        agrees: whether the ledger has this hash at this size.
    """

    label: str
    size: int
    key: VerifierKey
    until: int | None
    agrees: bool

    @property
    def late(self) -> bool:
        """True if its key had been replaced by then."""
        return self.until is not None and self.size > self.until


def _compared(
    history: _History, notes: Sequence[str], pinned: VerifierKey | None, place: str, since: int
) -> Comparison:
    signed: list[_Signed] = []
    unread: list[str] = []
    keys = _candidates(history, pinned)
    for index, note in enumerate(notes, 1):
        if index < len(notes) and _is_before(note, since):
            continue
        try:
            signed.append(_signed(history, index, note, keys))
        except NoteError as error:
            unread.append(f"note {index}: {error}")
    late, timely = [s for s in signed if s.late], [s for s in signed if not s.late]
    trusted = _trusted(history, timely, pinned)
    counted = [s for s in timely if s.key in trusted]
    doubtful = [s for s in timely if s.key not in trusted]
    witnessed = max((s.size for s in counted if s.agrees), default=0)
    problems = (
        *_key_problems(history, pinned),
        *_absence(history, notes),
        *_shortened(unread),
        *_shortened([f"{s.label} is signed by a key that entry {s.until} had replaced" for s in late]),
        *_shortened([f"{s.label} is signed by a key that no trusted checkpoint vouches for" for s in doubtful]),
        *_dropped(history, counted),
        *_differing(history, counted, witnessed),
    )
    return Comparison(place, tuple(f"{place}: {text}" for text in problems), len(notes), witnessed, history.size)


def _key_problems(history: _History, pinned: VerifierKey | None) -> list[str]:
    if pinned is None or any(chain.key == pinned for chain in history.keys):
        return []
    named = f"the newest is {history.keys[-1].key}" if history.keys else "it names none"
    return [
        f"the ledger does not name the key {pinned}; {named}. "
        "Either this is another or an older ledger, or that is the wrong key"
    ]


def _absence(history: _History, notes: Sequence[str]) -> list[str]:
    # What comes up to the first key is written before there can be a note.
    if notes or (history.keys and history.size <= history.keys[0].entry):
        return []
    return [
        f"there is no checkpoint, but the ledger has {history.size} entries. Is the disk mounted, was the history "
        "deleted? Put it back; only if the place is new, begin it with: bursar-admin checkpoint write"
    ]


def _candidates(history: _History, pinned: VerifierKey | None) -> dict[VerifierKey, int | None]:
    """Return the keys that may have signed, with the last entry that each may sign for."""
    last = {chain.key: chain.until for chain in history.keys}  # of a key that came twice, its second time
    return {**({pinned: None} if pinned else {}), **last}


def _signed(history: _History, index: int, note: str, keys: Mapping[VerifierKey, int | None]) -> _Signed:
    parsed = Note.parse(note)
    checkpoint = Checkpoint.parse(parsed.text)
    origin = origin_of(history.ledger_id)
    if checkpoint.origin != origin:
        raise NoteError(f"it is a checkpoint of {checkpoint.origin}, and this ledger is {origin}")
    try:
        key = parsed.signed_by(tuple(keys))
    except NoteError as error:
        raise NoteError(f"it says that it is of entry {checkpoint.size}, but {error}") from error
    label = f"note {index} ({checkpoint.time or 'no time'}, entry {checkpoint.size})"
    agrees = history.hash_at(checkpoint.size) == checkpoint.head
    return _Signed(label, checkpoint.size, key, keys[key], agrees)


def _is_before(note: str, size: int) -> bool:
    try:
        return size > 0 and Checkpoint.parse(Note.parse(note).text).size < size
    except NoteError:
        return False


def _trusted(history: _History, timely: Sequence[_Signed], pinned: VerifierKey | None) -> set[VerifierKey]:
    """Return the keys to be believed: the pinned one, and those named in history that a believed key vouches for."""
    reach: dict[VerifierKey, int] = {}
    for s in timely:
        if s.agrees:
            reach[s.key] = max(reach.get(s.key, 0), s.size)
    trusted = {pinned or history.keys[-1].key} if pinned or history.keys else set()
    # Round by round: only history that a believed key signed says which key is to be believed next.
    grown = True
    while grown:
        known = max((reach.get(key, 0) for key in trusted), default=0)
        vouched = {chain.key for chain in history.keys if chain.entry <= known}
        grown = not vouched <= trusted
        trusted |= vouched
    return trusted


def _dropped(history: _History, counted: Sequence[_Signed]) -> list[str]:
    far = max(counted, key=lambda s: s.size, default=None)
    if far is None or far.size <= history.size:
        return []
    gone = _range(history.size + 1, far.size, "entry {} was", "entries {} to {} were")
    return [
        f"the ledger ends at entry {history.size}, but {far.label} reaches further: {gone} dropped, "
        "or an older copy of the ledger was put back"
    ]


def _differing(history: _History, counted: Sequence[_Signed], witnessed: int) -> list[str]:
    other = [s for s in counted if s.size <= history.size and not s.agrees]
    if not other:
        return []
    first = min(other, key=lambda s: s.size)
    # A chain that agrees at an entry agrees before it, so what agrees lies below what does not.
    entries = _range(witnessed + 1, first.size, "entry {}", "one of entries {} to {}")
    agreed = f"up to entry {witnessed} it agrees" if witnessed else "no checkpoint before agrees"
    return [f"history differs from what was signed: {entries} is not what it was for {first.label}; {agreed}"]


def _range(first: int, last: int, one: str, several: str) -> str:
    return one.format(first) if first == last else several.format(first, last)


def _shortened(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"and {more} more like the line before"] if more > 0 else [])]
