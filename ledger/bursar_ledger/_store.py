"""The file: one connection, one lock, one `BEGIN IMMEDIATE` transaction per decision, entries appended to the chain.

WAL with `synchronous=FULL`: a committed decision survives a power cut. Threads of one process take turns at the lock;
processes take turns at SQLite's write lock, which BEGIN IMMEDIATE takes before anything is read.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from ._canonical import NO_ENTRY, Entry, chain, read_entry
from ._schema import MIGRATIONS
from .errors import LedgerError, LedgerExistsError, LedgerUnavailableError, UnknownEntryError

_BUSY_SECONDS = 30.0


class Store:
    """An open ledger file. Use `decision()` for whatever reads and then writes."""

    def __init__(self, path: Path) -> None:
        """Opens an existing file.

        Raises:
            LedgerUnavailableError: there is no such file or it cannot be opened.
        """
        if not path.is_file():
            raise LedgerUnavailableError(f"there is no ledger at {path}; create one first")
        self._lock = threading.RLock()
        with translated():
            self.db = connect(path)

    @classmethod
    def create(cls, path: Path) -> Store:
        """Makes an empty ledger file, readable by its owner only.

        Raises:
            LedgerExistsError: there is a file already.
        """
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError as error:
            raise LedgerExistsError(f"there is a file at {path} already; a ledger is never overwritten") from error
        except OSError as error:
            raise LedgerUnavailableError(f"the ledger at {path} cannot be created: {error.strerror}") from error
        store = cls(path)
        try:
            with translated():
                store.db.execute("PRAGMA journal_mode=WAL")
                MIGRATIONS.apply(store.db)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Closes the connection; the store is of no use afterwards."""
        with self._lock:
            self.db.close()

    @contextlib.contextmanager
    def decision(self) -> Iterator[None]:
        """One transaction that holds the write lock from its first read on; durable when the block ends.

        Raises:
            LedgerUnavailableError: the file is busy, full or unreadable; nothing was changed.
        """
        with self._lock, translated():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                self.db.rollback()
                raise

    def rows(self, sql: str, *parameters: object) -> list[dict[str, Any]]:
        """All rows of a query, as dictionaries."""
        with self._lock, translated():
            cursor = self.db.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def append(self, kind: str, *, actor: str, details: Mapping[str, object], dataset: str = "") -> Entry:
        """The next entry of the chain; inside `decision()`."""
        _check_actor(actor)
        number, previous = self.newest()
        head = {
            "kind": kind,
            "dataset": dataset,
            "actor": actor,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        entry = chain(number + 1, previous, head, details)
        self.db.execute(
            "INSERT INTO entries (number, body, hash) VALUES (?, ?, ?)", [entry.number, entry.body.decode(), entry.hash]
        )
        return entry

    def newest(self) -> tuple[int, bytes]:
        """Number and hash of the newest entry."""
        rows = self.rows("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1")
        return (rows[0]["number"], rows[0]["hash"]) if rows else (0, NO_ENTRY)

    def find(self, condition: str, *parameters: object) -> list[Entry]:
        """The entries for which an SQL condition (our own text) holds, in order."""
        sql = f"SELECT number, body, hash FROM entries WHERE {condition}"  # noqa: S608
        return [read_entry(*row.values()) for row in self.rows(sql, *parameters)]

    def entry(self, number: int, kind: str | None = None) -> Entry:
        """One entry.

        Raises:
            UnknownEntryError: there is no such entry, or it is not of `kind`.
        """
        found = self.find("number = ?", number)
        if not found or kind not in (None, found[0].kind):
            raise UnknownEntryError(f"entry {number} is not a {kind or 'known entry'}")
        return found[0]

    def entries(self, first: int, limit: int | None, page: int = 1000) -> Iterator[Entry]:
        """Entries from number `first` on; read page by page, so that a slow reader holds no lock."""
        end = float("inf") if limit is None else first + limit
        while first < end:
            found = self.find("number >= ? AND number < ? ORDER BY number LIMIT ?", first, end, page)
            yield from found
            if not found:
                return
            first = found[-1].number + 1


def connect(path: Path, *, read_only: bool = False) -> Database:
    """A connection with the settings that every use of a ledger file needs; transactions begin and end by hand."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,  # else Python begins transactions by itself, with a lock that comes too late
        check_same_thread=False,
    )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    return Database(connection, execute_plugins=False)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of SQLite as errors of the ledger."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise LedgerError(f"the ledger's own rules refused the entry: {error}. Nothing was changed") from error
    except sqlite3.Error as error:
        raise LedgerUnavailableError(f"the ledger file cannot be used now: {error}; try again") from error


def _check_actor(actor: str) -> None:
    if not actor or len(actor) > 200 or not actor.isprintable():
        raise ValueError("actor must have 1 to 200 printable characters")
