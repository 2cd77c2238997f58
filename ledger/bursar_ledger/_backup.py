"""Copies of a ledger: a consistent one of an open file, and the mark that lets a copy be opened."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from ._mark import Mark, create_mark, flush_path
from ._opening import at_rest, connect, newest_of
from ._store import Store, translated
from .errors import LedgerError, LedgerExistsError, LedgerUnavailableError


def copy_to(store: Store, path: Path) -> None:
    """Copy the newest committed state; the copy gets its name when it is whole and on the disk.

    Raises:
        LedgerExistsError: there is a file already.
        LedgerUnavailableError: the copy cannot be written.
    """
    new = path.with_name(path.name + ".new")
    try:
        if path.exists():
            raise FileExistsError
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise _failure(path, new, error) from error
    try:
        # From a connection of its own: the store's may be within a decision, and would copy what is not yet true.
        with (
            translated(),
            contextlib.closing(connect(store.path, read_only=True)) as source,
            contextlib.closing(sqlite3.connect(new)) as copy,
        ):
            source.backup(copy)
            # One file alone: without this the copy would look for a log beside it.
            copy.execute("PRAGMA journal_mode=DELETE")
        flush_path(new)
        os.link(new, path)  # unlike a rename, this never replaces a file that came meanwhile
        flush_path(path.parent)
    except OSError as error:
        raise _failure(path, new, error) from error
    finally:
        new.unlink(missing_ok=True)


def _failure(path: Path, new: Path, error: OSError) -> LedgerError:
    if isinstance(error, FileExistsError):
        return LedgerExistsError(f"there is a file at {path} or {new} already; a backup overwrites nothing")
    return LedgerUnavailableError(f"the backup at {path} cannot be written: {error.strerror}")


def adopt_copy(path: Path) -> None:
    """Give a copy of a ledger the mark that it needs to be opened. Only for a restoration that closes its accounts.

    Raises:
        LedgerExistsError: it has a mark.
        LedgerUnavailableError: it cannot be read, or the mark cannot be written.
    """
    with translated(), at_rest(path) as db:
        newest = newest_of(db)
    create_mark(path, Mark(*newest))
