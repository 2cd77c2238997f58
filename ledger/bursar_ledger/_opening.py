"""Opening of a ledger file, and the checks before SQLite may change a byte of its folder."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection

from ._entries import NO_ENTRY
from ._mark import ADVICE, Identity, Mark, OpenMark, identities
from .errors import LedgerCorruptError, LedgerLostError, LedgerUnavailableError

BUSY_SECONDS = 30.0
"""Maximum time that a decision waits for another process that writes."""


def connect(
    path: Path, *, read_only: bool = False, options: str = "", busy_seconds: float = BUSY_SECONDS
) -> Connection:
    """Open a connection with the settings that every use of a ledger file needs; transactions begin and end by hand.

    Args:
        path: path of the file.
        read_only: entries are read and not written; SQLite may still make -wal and -shm files.
        options: further options of SQLite's URI.
        busy_seconds: longest wait for another process that writes, in seconds.

    Raises:
        sqlite3.Error: the file is none or is damaged.
    """
    if read_only and not options and not os.access(path.parent, os.W_OK) and not _has_log(path):
        options = _UNLOCKED  # else SQLite would make a -wal file here
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}{options}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,  # else Python begins transactions by itself, with a lock that comes too late
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
    except UnicodeError as error:  # SQLite's message quotes the name of what is damaged, and that is no text any more
        connection.close()
        raise sqlite3.DatabaseError("malformed database schema") from error
    except BaseException:
        connection.close()
        raise
    return connection


_HEADER_BYTES = 32
"""Bytes of the header of a -wal file; one that ends there holds nothing, and SQLite takes ten seconds to say so."""


def _has_log(path: Path) -> bool:
    try:
        return path.with_name(path.name + "-wal").stat().st_size > _HEADER_BYTES
    except OSError:
        return False


@contextlib.contextmanager
def at_rest(path: Path) -> Iterator[Connection]:
    """Open a connection to a file that no other process has open; it changes no byte of the folder.

    SQLite removes a -wal file when it closes a database, unless its index, -shm, cannot be written. With
    `readonly_shm` it keeps that index in memory, and only wants to see such a file.
    """
    if not _has_log(path):
        with contextlib.closing(connect(path, read_only=True, options=_UNLOCKED)) as db:
            yield db
        return
    index = path.with_name(path.name + "-shm")
    made = not index.exists()
    if made:
        index.touch(0o600)
    try:
        with contextlib.closing(_with_log(path)) as db:
            yield db
    finally:
        if made and index.stat().st_size == 0:
            index.unlink()


def _with_log(path: Path) -> Connection:
    """Connect to a file that has a log; without the log if SQLite would go on without it."""
    try:
        return connect(path, read_only=True, options="&readonly_shm=1")  # reads the schema, and so the log
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_PROTOCOL":
            raise
    # The header of the log is damaged, or nothing follows it, as after a kill between its first two writes.
    return connect(path, read_only=True, options=_UNLOCKED)


def check_at_rest(path: Path, mark: Mark) -> None:
    """Check that a file which no process has open has the mark's entry, before SQLite may change anything.

    Raises:
        LedgerLostError: it has not; says what is known.
        LedgerCorruptError: it cannot be read.
    """
    try:
        with at_rest(path) as db:
            lost = missing(path, db, mark)
    except sqlite3.Error as error:
        raise LedgerCorruptError((f"the file cannot be read as a ledger: {error}",)) from error
    if lost is not None:
        raise LedgerLostError(f"{lost}. {ADVICE}")


def missing(path: Path, db: Connection, mark: Mark | None) -> str | None:
    """Return what a ledger lacks of its mark, None if it has the mark's entry."""
    if mark is None or reaches(db, mark):
        return None
    number, head = newest_of(db)
    known = f"its mark says that entry {mark.number} (hash {mark.hash.hex()}) was confirmed"
    if number < mark.number:
        one = number + 1 == mark.number
        gone = f"Entry {mark.number} is" if one else f"Entries {number + 1} to {mark.number} are"
        cause = (
            f"{gone} lost: {path.name}-wal was removed, emptied, cut or replaced, "
            f"or an older copy of {path.name} was put here. Clients have receipts of them, signed checkpoints name them"
        )
    else:
        cause = f"Its entry {mark.number} is another one: it is the file of another history"
    return f"the ledger {path} ends at entry {number} (hash {head.hex()}), but {known}. {cause}"


def check_mark(path: Path) -> None:
    """Check that a ledger has the entry that its mark names, and the files that other processes have open.

    Raises as `Store` does; changes no byte of the folder.
    """
    mark, _, _ = joined(path.resolve(), BUSY_SECONDS)
    mark.close()


def joined(path: Path, seconds: float) -> tuple[OpenMark, bool, Mark]:
    """Return the mark, whether no other process has the ledger open, and the mark's content."""
    mark = OpenMark(path)
    try:
        alone = mark.join(seconds)
        known = mark.read()
        if alone:
            check_at_rest(path, known)
        else:
            _check_shared(path, known)
    except BaseException:
        mark.close()
        raise
    return mark, alone, known


def _check_shared(path: Path, mark: Mark) -> None:
    """Check that the folder has the files that other processes have open: else this one would begin another history."""
    found: tuple[Identity, ...] = ()
    with contextlib.suppress(LedgerUnavailableError):
        found = identities(path)
    if found != mark.files:
        raise LedgerUnavailableError(OTHER_FILES.format(path=path))


def newest_of(db: Connection) -> tuple[int, bytes]:
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone() is None:
        return 0, NO_ENTRY
    row = db.execute("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1").fetchone()
    return (row[0], row[1]) if row else (0, NO_ENTRY)


def reaches(db: Connection, mark: Mark) -> bool:
    """Return whether a ledger has the mark's entry."""
    # The mark of a ledger that was just created: there is no entry to look for.
    if mark.number == 0:
        return True
    if newest_of(db)[0] < mark.number:
        return False
    row = db.execute("SELECT hash FROM entries WHERE number = ?", [mark.number]).fetchone()
    return row is not None and bool(row[0] == mark.hash)


_UNLOCKED = "&immutable=1"
"""Read the database alone, without locks."""
OTHER_FILES = (
    "another process has {path} open, and its files are no longer those of the folder: one of them was removed or "
    "replaced. Nothing was changed. Stop that process with SIGTERM, and start it again before anything else"
)
