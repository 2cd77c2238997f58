"""Read-only access to a ledger file: rows as they are stored. `verify` judges them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import click

from .._entries import EntryKind
from .._opening import connect
from .._schema import check_version
from ..errors import LedgerVersionError
from ..refusals import FILE, Refusal, read_refusals

Fields = dict[str, Any]

BUDGETS = (EntryKind.REGISTRATION, EntryKind.BUDGET)
"""Kinds of entries that say which account a dataset spends, and what its budget is."""

DIFFERENT = 1
"""Exit status: the ledger was read, and something in it is not right."""
UNREADABLE = 3
"""Exit status: there is nothing to judge: no file, not a ledger, a ledger of a newer version."""


class UnreadableError(click.ClickException):
    """Raised when a file is not a ledger that this version can read."""

    exit_code = UNREADABLE


@dataclass(frozen=True)
class Row:
    """Row of the table of entries.

    Attributes:
        number: number of the entry.
        body: the text that was hashed.
        hash: as stored.
        released: whether bytes are stored as released under it, if it is a debit.
        fields: the body, decoded; None if it is not a JSON object with the fields that every entry has.
    """

    number: int
    body: str
    hash: bytes
    released: bool
    fields: Fields | None

    def text(self, name: str) -> str | None:
        """Return one of kind, dataset, actor, time; None if the body has no such text."""
        value = (self.fields or {}).get(name)
        return value if isinstance(value, str) else None

    @property
    def details(self) -> Fields:
        """Part of the body that depends on the kind; empty if there is none."""
        return self.fields["details"] if self.fields else {}


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Connection]:
    """Open a read-only connection to a ledger.

    Raises:
        UnreadableError: there is no such file, it is not a ledger, a newer version wrote it, or reading fails later.
    """
    if not path.is_file():
        raise UnreadableError(f"there is no file {visible_name(path)}; give the path of a ledger")
    try:
        with contextlib.closing(connect(path, read_only=True)) as db:
            _check_version(path, db)
            yield db
    except (sqlite3.Error, UnicodeError) as error:
        raise UnreadableError(
            f"{visible_name(path)} cannot be read as a ledger: {error}. If it is one, copy it together with its -wal "
            "file to a folder where you may write, and try again"
        ) from error


def rows(db: Connection, first: int = 1, last: int | None = None) -> Iterator[Row]:
    """Yield entries `first` to `last` in order, as one consistent read."""
    found = db.execute(
        "SELECT number, body, hash, EXISTS (SELECT 1 FROM releases WHERE debit = number) FROM entries"
        " WHERE number BETWEEN ? AND ? ORDER BY number",
        [first, 2**63 - 1 if last is None else last],
    )
    for number, body, digest, released in found:
        yield Row(number, str(body), digest if isinstance(digest, bytes) else b"", bool(released), _decoded(body))


def rows_in_context(db: Connection, numbers: Collection[int]) -> Iterator[Row]:
    """Yield these entries and, before each, those about accounts and budgets, which sentences about it need."""
    found = db.execute(
        "SELECT number FROM entries WHERE kind IN (?, ?) AND number <= ?", [*BUDGETS, max(numbers, default=0)]
    ).fetchall()
    for number in sorted({*numbers, *(one for (one,) in found)}):
        yield from rows(db, first=number, last=number)


def noted_refusals(path: Path) -> tuple[Refusal, ...] | None:
    """Return what the server noted beside a ledger; None if there is no such file, or none that can be read."""
    file = path.parent / FILE
    try:
        return read_refusals(file) if file.is_file() else None
    except (sqlite3.Error, UnicodeError):
        return None


def visible_name(path: Path) -> str:
    """Return a path for a message."""
    return repr(str(path))


def _check_version(path: Path, db: Connection) -> None:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"entries", "releases"} <= tables:
        raise UnreadableError(f"{visible_name(path)} is not a ledger: it has no table of entries")
    try:
        check_version(db)
    except LedgerVersionError as error:
        raise UnreadableError(f"{visible_name(path)} cannot be read: {error}") from error


def _decoded(body: object) -> Fields | None:
    try:
        fields = json.loads(body) if isinstance(body, str) else None
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("details"), dict) else None
