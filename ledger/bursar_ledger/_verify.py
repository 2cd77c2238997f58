"""Verification of a ledger file, without the server and without the data."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from sqlite_utils import Database

from ._canonical import NO_ENTRY
from ._replay import DatasetTotals, Replay
from ._schema import schema_problems
from ._store import connect


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        problems: one line a finding, naming the entry; empty if all is well.
        entries: number of the newest entry.
        head: its hash; compare it with a copy kept elsewhere, since a file that was rolled back verifies, too.
        datasets: promises and sums as computed from the entries.
    """

    problems: tuple[str, ...]
    entries: int
    head: bytes
    datasets: tuple[DatasetTotals, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def verify(path: str | os.PathLike[str]) -> Verification:
    """Checks schema, chain, sums, caps and released bytes, and prices every debit again; changes nothing."""
    try:
        db = connect(Path(path), read_only=True)
    except sqlite3.Error as error:
        return Verification((f"the file cannot be opened: {error}",), 0, NO_ENTRY, ())
    with contextlib.closing(db):
        return check(db, reprice=True)


def check(db: Database, *, reprice: bool) -> Verification:
    """`verify` on an open connection, as one consistent read; `reprice` also prices every debit again."""
    replay = Replay(reprice)
    try:
        db.execute("BEGIN")
        try:
            _read(db, replay)
        finally:
            db.rollback()
    except (sqlite3.Error, UnicodeError) as error:
        replay.problems.append(f"after entry {replay.number}: the file cannot be read as a ledger: {error}")
    return Verification(tuple(replay.problems), replay.number, replay.head, tuple(replay.datasets.values()))


def _read(db: Database, replay: Replay) -> None:
    replay.problems.extend(schema_problems(db))
    damage = [row[0] for row in db.execute("PRAGMA integrity_check(10)")]
    replay.problems.extend(f"file: {line}" for line in damage if line != "ok")
    for row in db.execute("SELECT number, body, hash FROM entries ORDER BY number"):
        replay.take(*row)
    for row in db.execute("SELECT debit, content FROM releases ORDER BY debit"):
        replay.take_release(*row)
    replay.finish()
