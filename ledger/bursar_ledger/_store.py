"""Store: one connection, one lock, decisions in `BEGIN IMMEDIATE` transactions, entries appended to the chain.

WAL with `synchronous=FULL`: a committed decision survives a power cut. Threads of one process take turns at the lock;
processes take turns at SQLite's write lock, which BEGIN IMMEDIATE takes before anything is read. Decisions that wait
while a transaction goes to the disk share the next one (group commit), each behind a savepoint of its own: a flush of
the disk costs more than everything else, and no decision is answered before the flush that holds it.

Before each commit the open files are compared with those of the directory, and with the mark beside the ledger
(`_mark.py`). After it, the mark is written and flushed; the next group commits meanwhile.
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

from ._entries import NO_ENTRY, Entry, EntryKind, chain, read_entry
from ._mark import Mark, OpenFiles, create_mark, mark_of
from ._opening import BUSY_SECONDS, OTHER_FILES, connect, joined, newest_of, reaches
from ._schema import apply
from ._types import check_name
from .errors import (
    LedgerError,
    LedgerExistsError,
    LedgerLostError,
    LedgerUnavailableError,
    UnknownEntryError,
)

_LARGEST_BATCH = 64
"""Decisions that share a transaction. One that cannot be committed refuses all of them, so it stays small."""

PAGE = 1000
"""Entries that are read at a time: about a megabyte, in milliseconds. Chosen, not tuned."""

_T = TypeVar("_T")


class translated:  # noqa: N801  used like a function; a class, because it stands around every single query
    """Context in which SQLite's exceptions become exceptions of the ledger."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, sqlite3.IntegrityError):
            raise LedgerError(f"the ledger's own rules refused the entry: {error}. Nothing was changed") from error
        if isinstance(error, sqlite3.Error):
            full = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
            then = "see that its disk has room, and try again" if full else "try again"
            raise LedgerUnavailableError(f"the ledger file cannot be used now: {error}; {then}") from error


class _Decision(Generic[_T]):
    """Unit of work on its way through a transaction that it may share with others."""

    def __init__(self, work: Callable[[], _T], keep: bool) -> None:
        self.work = work
        self.keep = keep
        self.leads = False
        # A lock that is held until `wake`: an Event takes twenty times as long to make, and each decision makes one.
        self._woken = threading.Lock()
        self._woken.acquire()
        self._results: list[_T] = []
        self._error: Exception | None = None

    def wait(self) -> None:
        """Wait until `wake`."""
        self._woken.acquire()

    def wake(self) -> None:
        """Let the thread that waits go on: its work is done, or it leads now."""
        with contextlib.suppress(RuntimeError):  # woken before: an interrupted thread never took that one
            self._woken.release()

    def carry_out(self) -> bool:
        """Do the work; return whether its writes stay."""
        try:
            with translated():
                self._results.append(self.work())
        except Exception as error:
            self._error = error
            return False
        return self.keep

    def fail(self, error: Exception) -> None:
        """Record that the transaction failed: whatever the work returned never became true."""
        self._error = error

    def answer(self) -> _T:
        """Return what the work returned, or raise what it raised; once."""
        try:
            if self._error is not None:
                raise self._error
            return self._results[0]
        finally:
            # Its traceback knows every frame of the call, and those know this decision. In a circle, all that a refused
            # call had in hand would stay in memory until the interpreter searches for circles.
            self._error = None


class Store:
    """Open ledger file. Use `decide()` for everything that reads and then writes."""

    def __init__(self, path: Path, busy_seconds: float = BUSY_SECONDS) -> None:
        """Open an existing file that has all entries that were confirmed, and see to it that it has a log.

        Raises:
            LedgerUnavailableError: there is no such file, it cannot be opened, another process has other files open,
                or its disk cannot have a write-ahead log, so that a power cut could undo a decision.
            LedgerLostError: it lacks entries, or its mark is missing; no byte of the folder was changed.
            LedgerCorruptError: it is not an SQLite file.
        """
        if not path.is_file():
            raise LedgerUnavailableError(f"there is no ledger at {path}; create one first")
        self.path = path.resolve()  # SQLite puts its files beside the file that a link names
        # Re-entrant: the work of a decision, inside the lock, reads by the methods below, which take it again.
        self._lock = threading.RLock()
        self._turns = threading.Lock()  # guards the next two
        self._waiting: deque[_Decision[Any]] = deque()
        self._led = False
        self._leader: int | None = None
        self._tip: tuple[int, bytes] | None = None  # newest entry of the transaction under way, once it is known
        self.orders: dict[str, Fraction] = {}
        """Renyi order at which each dataset was debited last; a guess, for work that is done before a decision."""
        self._busy_seconds = busy_seconds
        self._gone: str | None = None  # what happened to the files; stays until the process ends
        self._wrong: str | None = None  # what a verification found; stays until the process ends
        self.is_copy = False
        """True if the database is another file than when a process had it open last: a copy, or a backup put back."""
        self._mark, alone, known = joined(self.path, busy_seconds)
        try:
            with translated():
                self.db = connect(self.path, busy_seconds=busy_seconds)
        except BaseException:
            self._mark.close()
            raise
        try:
            self._use_log()
            with translated():
                newest = newest_of(self.db)  # SQLite opens -wal and -shm when it reads first
            self._files = OpenFiles(self.path)
            self.check_files()
            if alone:
                # Before `share`: others who come compare the folder's files with those recorded here.
                self._mark.record(self._files.identities, *newest)
                self._mark.share()
                # By the inode alone: a disk may be another device after the next start of its machine.
                self.is_copy = bool(known.files) and known.files[0][1] != self._files.identities[0][1]
            elif self._files.identities != known.files:
                raise LedgerUnavailableError(OTHER_FILES.format(path=self.path))
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path) -> Store:
        """Make an empty ledger file, readable by its owner only.

        Raises:
            LedgerExistsError: there is a file already.
        """
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError as error:
            raise LedgerExistsError(f"there is a file at {path} already; a ledger is never overwritten") from error
        except OSError as error:
            raise LedgerUnavailableError(f"the ledger at {path} cannot be created: {error.strerror}") from error
        try:
            create_mark(path, Mark(0, NO_ENTRY))
        except BaseException:
            # A ledger without a mark is never opened, and its file would be in the way of the next try.
            path.unlink()
            raise
        store = cls(path)
        try:
            with translated():
                apply(store.db)
        except BaseException:
            store.close()
            raise
        return store

    def _use_log(self) -> None:
        with translated():
            # A backup that is put into use has no log yet.
            mode = self.db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise LedgerUnavailableError("the ledger's folder cannot hold a write-ahead log; use a local disk")

    def close(self) -> None:
        """Close the connection; the store is of no use afterwards.

        Where only -wal or -shm were removed, SQLite still writes what they held into the database.
        """
        with self._lock:
            self.db.close()
            # The mark last: without its lock another process takes itself for alone while SQLite still removes -wal.
            self._mark.close()

    def check_files(self) -> None:
        """Check that the directory has the open files. Raises LedgerUnavailableError, permanently once it did.

        It does so after `distrust`, too.
        """
        if self._wrong is not None:
            raise LedgerUnavailableError(f"the ledger does not verify: {self._wrong}; nothing is debited any more")
        if self._gone is None:
            self._gone = self._files.problem()
        if self._gone is not None:
            raise LedgerUnavailableError(f"{self._gone}, and this process still has it open; {_STOP}")

    def distrust(self, finding: str) -> None:
        """Refuse every decision from now on: a verification found something."""
        self._wrong = finding

    def decide(self, work: Callable[[], _T], *, keep: bool = True) -> _T:
        """Return the result of `work`, done in a transaction that holds the write lock from its first read on.

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
        """Wait until another thread has done the work, or has made this one lead."""
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
        """Settle the waiting decisions, this thread's among them; the first of those that came since leads next."""
        with self._turns:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _LARGEST_BATCH))]
        try:
            with self._lock:
                self._settle(batch)
        finally:
            # After an interrupt, too: without a new leader all that wait would wait for ever.
            with self._turns:
                following = self._waiting[0] if self._waiting else None
                if following is None:
                    self._led = False
                else:
                    following.leads = True
            # The next group commits while the mark of this one is flushed.
            if following is not None:
                following.wake()
            try:
                self._confirm(batch)
            finally:
                for decision in batch:
                    decision.wake()

    def _confirm(self, batch: list[_Decision[Any]]) -> None:
        """Flush the mark, so that no caller is answered before it; without the lock, so that others go on meanwhile."""
        try:
            self._mark.flush()
        except BaseException as error:
            self._give_up(batch, error)
            if not isinstance(error, Exception):
                raise

    def _give_up(self, batch: list[_Decision[Any]], error: BaseException) -> None:
        """Refuse everything from now on: the mark cannot be kept."""
        self._gone = self._gone or f"{mark_of(self.path).name} cannot be written ({error})"
        for decision in batch:
            decision.fail(LedgerUnavailableError(f"{self._gone}: what was decided may be in the ledger; {_STOP}"))

    def _settle(self, batch: list[_Decision[Any]]) -> None:
        begun = False
        base = newest = (0, NO_ENTRY)
        self._leader = threading.get_ident()
        try:
            with translated():
                self.check_files()
                # The write lock before the first read: one that is taken later could find that what was read is no
                # longer so.
                self.db.execute("BEGIN IMMEDIATE")
                begun = True
                base = self._tip = self.newest()
                for decision in batch:
                    self._carry_out(decision)
                newest = self._current()
                # As late as possible: the files may have been replaced while the decisions were carried out.
                self._check_mark(base)
                self.check_files()
                self.db.execute("COMMIT")
            self._advance(batch, base, newest)
        except BaseException as error:
            # An interrupt from the keyboard comes most likely while the disk works, and is raised after the commit.
            committed = not isinstance(error, Exception) and begun and not self.db.in_transaction
            self._roll_back()
            if committed:
                self._advance(batch, base, newest)
            for decision in [] if committed else batch:
                # One exception each: it carries the traceback of the thread that raises it.
                decision.fail(LedgerUnavailableError(f"{error}; nothing was changed"))
            if not isinstance(error, Exception):
                raise
        finally:
            self._leader = None
            self._tip = None

    def _check_mark(self, base: tuple[int, bytes]) -> None:
        """Give up if the mark names an entry that these files lack: another process goes on in other files."""
        name = self._mark.path.name
        try:
            found = self._mark.read()
        except LedgerLostError:
            # Noted only; `check_files`, called next, refuses everything.
            self._gone = f"{name} was changed"
            return
        if (found.number, found.hash) != base and not reaches(self.db, found):
            self._gone = f"{name} names entry {found.number}, which the open files lack"

    def _advance(self, batch: list[_Decision[Any]], base: tuple[int, bytes], newest: tuple[int, bytes]) -> None:
        """Write what was committed into the mark."""
        if newest == base:
            return
        try:
            self._mark.advance(*newest, self._busy_seconds)
        except (OSError, LedgerError) as error:
            self._give_up(batch, error)

    def _roll_back(self) -> None:
        try:
            self.db.rollback()
        except sqlite3.Error:
            # Else the open transaction would show decisions that are not durable. Everything after this is refused.
            self.db.close()

    def _carry_out(self, decision: _Decision[Any]) -> None:
        # A savepoint each, so that a refused decision undoes nothing of the others in its group.
        self.db.execute("SAVEPOINT decision")
        if not decision.carry_out():
            self._tip = None
            # The work may have appended entries before it failed, so the newest one is looked up again.
            self.db.execute("ROLLBACK TO decision")
        self.db.execute("RELEASE decision")

    def rows(self, sql: str, *parameters: object) -> list[dict[str, Any]]:
        """Return all rows of a query, as dictionaries."""
        with self._lock, translated():
            cursor = self.db.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def append(self, kind: EntryKind, *, actor: str, details: Mapping[str, object], dataset: str = "") -> Entry:
        """Append an entry to the chain; inside `decide()`."""
        check_name("actor", actor)
        number, previous = self._current()
        head = {
            "kind": kind,
            "dataset": dataset,
            "actor": actor,
            # For people: no sum and no decision depends on it.
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        entry = chain(number + 1, previous, head, details)
        self.db.execute(
            "INSERT INTO entries (number, body, hash) VALUES (?, ?, ?)", [entry.number, entry.body.decode(), entry.hash]
        )
        self._tip = entry.number, entry.hash
        return entry

    def _current(self) -> tuple[int, bytes]:
        """Return the newest entry as the transaction under way sees it."""
        return self._tip or self.newest()

    def newest(self) -> tuple[int, bytes]:
        """Return the number and hash of the newest entry."""
        row = self.one("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1")
        return (row[0], row[1]) if row else (0, NO_ENTRY)

    def one(self, sql: str, *parameters: object) -> tuple[Any, ...] | None:
        """Return the first row of a query, or None."""
        with self._lock, translated():
            row: tuple[Any, ...] | None = self.db.execute(sql, parameters).fetchone()
            return row

    def only(self, sql: str, *parameters: object) -> tuple[Any, ...]:
        """Return the row of a query that has one; raises LedgerError if it has none."""
        row = self.one(sql, *parameters)
        if row is None:
            raise LedgerError(f"the ledger lacks what it must hold ({sql.strip()}); verify it")
        return row

    def find(self, condition: str, *parameters: object) -> list[Entry]:
        """Return the entries for which an SQL condition (our own text) holds, in order."""
        sql = f"SELECT number, body, hash FROM entries WHERE {condition}"  # noqa: S608
        return [read_entry(*row.values()) for row in self.rows(sql, *parameters)]

    def entry(self, number: int, kind: EntryKind | None = None) -> Entry:
        """Return one entry. Raises UnknownEntryError if there is no such entry, or it is not of `kind`."""
        found = self.find("number = ?", number)
        if not found or kind not in (None, found[0].kind):
            raise UnknownEntryError(f"entry {number} is not a {kind or 'known entry'}")
        return found[0]

    def entries(self, first: int, limit: int | None) -> Iterator[Entry]:
        """Yield entries from number `first` on, read page by page, so that a slow reader holds no lock."""
        end = float("inf") if limit is None else first + limit
        while first < end:
            found = self.find("number >= ? AND number < ? ORDER BY number LIMIT ?", first, end, PAGE)
            yield from found
            if not found:
                return
            first = found[-1].number + 1


_STOP = (
    "nothing is debited any more. Stop the process with SIGTERM, which lets SQLite write what it holds into the "
    "database where that is possible, and start it again"
)
