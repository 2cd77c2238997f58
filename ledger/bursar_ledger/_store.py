"""The file: one connection, one lock, decisions in `BEGIN IMMEDIATE` transactions, entries appended to the chain.

WAL with `synchronous=FULL`: a committed decision survives a power cut. Threads of one process take turns at the lock;
processes take turns at SQLite's write lock, which BEGIN IMMEDIATE takes before anything is read. Decisions that wait
while a transaction goes to the disk share the next one (group commit), each behind a savepoint of its own: a flush of
the disk costs more than everything else, and nobody is answered before the flush that holds his decision.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from sqlite_utils import Database

from ._canonical import NO_ENTRY, Entry, chain, read_entry
from ._schema import MIGRATIONS
from ._values import check_name
from .errors import LedgerError, LedgerExistsError, LedgerUnavailableError, UnknownEntryError

BUSY_SECONDS = 30.0
"""How long a decision waits for another process that writes."""
_LARGEST_BATCH = 64

_T = TypeVar("_T")


class _Decision(Generic[_T]):
    """One unit of work on its way through a transaction that it may share with others."""

    def __init__(self, work: Callable[[], _T], keep: bool) -> None:
        self.work = work
        self.keep = keep
        self.leads = False
        self._woken = threading.Lock()
        self._woken.acquire()
        self._results: list[_T] = []
        self._error: Exception | None = None

    def wait(self) -> None:
        """Until `wake`."""
        self._woken.acquire()

    def wake(self) -> None:
        """Let the thread that waits go on: its work is done, or it leads now."""
        with contextlib.suppress(RuntimeError):  # woken before: an interrupted thread never took that one
            self._woken.release()

    def carry_out(self) -> bool:
        """Do the work; whether what it wrote stays."""
        try:
            with translated():
                self._results.append(self.work())
        except Exception as error:
            self._error = error
            return False
        return self.keep

    def fail(self, error: Exception) -> None:
        """The transaction came to nothing: whatever the work said was never true."""
        self._error = error

    def answer(self) -> _T:
        """What the work returned, or raises what it raised; once."""
        try:
            if self._error is not None:
                raise self._error
            return self._results[0]
        finally:
            # Its traceback knows every frame of the call, and those know this decision. In a circle, all that a refused
            # call had in hand would stay in memory until the interpreter searches for circles.
            self._error = None


class Store:
    """An open ledger file. Use `decide()` for whatever reads and then writes."""

    def __init__(self, path: Path, busy_seconds: float = BUSY_SECONDS) -> None:
        """Opens an existing file.

        Raises:
            LedgerUnavailableError: there is no such file or it cannot be opened.
        """
        if not path.is_file():
            raise LedgerUnavailableError(f"there is no ledger at {path}; create one first")
        self.path = path
        self._lock = threading.RLock()
        self._turns = threading.Lock()  # guards the next two
        self._waiting: deque[_Decision[Any]] = deque()
        self._led = False
        self._leader: int | None = None
        self._tip: tuple[int, bytes] | None = None  # newest entry of the transaction under way, once it is known
        self.orders: dict[str, Fraction] = {}
        """Renyi order at which each dataset was debited last; a guess, for work that is done before a decision."""
        with translated():
            self.db = connect(path, busy_seconds=busy_seconds)

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
            store.use_log()
            with translated():
                MIGRATIONS.apply(store.db)
        except BaseException:
            store.close()
            raise
        return store

    def use_log(self) -> None:
        """Sees to it that the file has a write-ahead log; a backup that is put back into use has none.

        Raises:
            LedgerUnavailableError: the file's disk cannot have one, so that a power cut could undo a decision.
        """
        with translated():
            mode = self.db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise LedgerUnavailableError("the ledger's folder cannot hold a write-ahead log; use a local disk")

    def close(self) -> None:
        """Closes the connection; the store is of no use afterwards."""
        with self._lock:
            self.db.close()

    def decide(self, work: Callable[[], _T], *, keep: bool = True) -> _T:
        """The result of `work`, done in a transaction that holds the write lock from its first read on.

        Durable when this returns. What `work` raises leaves no trace, and neither does anything if `keep` is False.
        `work` may run in another thread, and must not call this again.

        Raises:
            LedgerUnavailableError: the file is busy, full or unreadable; nothing was changed.
            RuntimeError: called from `work`, which would wait for itself.
        """
        if self._leader == threading.get_ident():
            raise RuntimeError("a decision cannot be made within another one")
        decision = _Decision(work, keep)
        with self._turns:
            self._waiting.append(decision)
            self._led, decision.leads = True, not self._led
        if not decision.leads:
            self._follow(decision)
        if decision.leads:
            self._lead()
        return decision.answer()

    def _follow(self, decision: _Decision[Any]) -> None:
        """Waits until another thread has done the work, or has made this one lead."""
        try:
            decision.wait()
        except BaseException:  # an interrupt from the keyboard: the others must not wait for this thread
            with self._turns:
                if not decision.leads and decision in self._waiting:
                    self._waiting.remove(decision)
            if decision.leads:
                self._lead()
            raise

    def _lead(self) -> None:
        """Settles the decisions that wait, this thread's among them; then the first of those that came since leads."""
        with self._turns:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _LARGEST_BATCH))]
        try:
            with self._lock:
                self._settle(batch)
        finally:
            with self._turns:
                following = self._waiting[0] if self._waiting else None
                if following is None:
                    self._led = False
                else:
                    following.leads = True
            for decision in [following, *batch] if following else batch:
                decision.wake()

    def _settle(self, batch: list[_Decision[Any]]) -> None:
        begun = False
        self._leader = threading.get_ident()
        try:
            with translated():
                self.db.execute("BEGIN IMMEDIATE")
                begun = True
                for decision in batch:
                    self._carry_out(decision)
                self.db.execute("COMMIT")
        except BaseException as error:
            # An interrupt from the keyboard comes most likely while the disk works, and is raised after the commit.
            committed = not isinstance(error, Exception) and begun and not self.db.conn.in_transaction
            self._roll_back()
            for decision in [] if committed else batch:
                # One exception each: it carries the traceback of the thread that raises it.
                decision.fail(LedgerUnavailableError(f"{error}; nothing was changed"))
            if not isinstance(error, Exception):
                raise
        finally:
            self._leader = None
            self._tip = None

    def _roll_back(self) -> None:
        try:
            self.db.rollback()
        except sqlite3.Error:
            # Else the open transaction would show decisions that are not durable. Everything after this is refused.
            self.db.close()

    def _carry_out(self, decision: _Decision[Any]) -> None:
        self.db.execute("SAVEPOINT decision")
        if not decision.carry_out():
            self._tip = None
            self.db.execute("ROLLBACK TO decision")
        self.db.execute("RELEASE decision")

    def rows(self, sql: str, *parameters: object) -> list[dict[str, Any]]:
        """All rows of a query, as dictionaries."""
        with self._lock, translated():
            cursor = self.db.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def append(self, kind: str, *, actor: str, details: Mapping[str, object], dataset: str = "") -> Entry:
        """The next entry of the chain; inside `decide()`."""
        check_name("actor", actor)
        number, previous = self._tip or self.newest()
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
        self._tip = entry.number, entry.hash
        return entry

    def newest(self) -> tuple[int, bytes]:
        """Number and hash of the newest entry."""
        row = self.one("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1")
        return (row[0], row[1]) if row else (0, NO_ENTRY)

    def one(self, sql: str, *parameters: object) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""
        with self._lock, translated():
            row: tuple[Any, ...] | None = self.db.execute(sql, parameters).fetchone()
            return row

    def only(self, sql: str, *parameters: object) -> tuple[Any, ...]:
        """The row of a query that has one; raises LedgerError if it has none."""
        row = self.one(sql, *parameters)
        if row is None:
            raise LedgerError(f"the ledger lacks what it must hold ({sql.strip()}); verify it")
        return row

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


def connect(path: Path, *, read_only: bool = False, busy_seconds: float = BUSY_SECONDS) -> Database:
    """A connection with the settings that every use of a ledger file needs; transactions begin and end by hand."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,  # else Python begins transactions by itself, with a lock that comes too late
        check_same_thread=False,
    )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    return Database(connection, execute_plugins=False)


class translated:  # noqa: N801  used like a function; a class, because it stands around every single query
    """Within it, errors of SQLite come as errors of the ledger."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, sqlite3.IntegrityError):
            raise LedgerError(f"the ledger's own rules refused the entry: {error}. Nothing was changed") from error
        if isinstance(error, sqlite3.Error):
            raise LedgerUnavailableError(f"the ledger file cannot be used now: {error}; try again") from error
