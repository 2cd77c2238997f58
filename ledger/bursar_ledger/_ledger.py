"""Ledger that a server holds open: every method is one decision or one read of the file.

Safe for the threads of one process and for several processes on one file on a local disk. Every change is an entry of
the chain, durable before the method returns. There are no refunds and no method lowers a sum.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from bursar_amounts import COST_UNIT, DELTA_UNIT

from . import _accounts, _administration, _datasets, _debits
from ._backup import copy_to
from ._entries import Entry, EntryKind
from ._opening import BUSY_SECONDS
from ._schema import applied, apply, check_version, known
from ._store import Store, translated
from ._verify import check
from ._witnessed import Witness, check_witnessed
from .errors import LedgerCorruptError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _method(function: Callable[Concatenate[Store, _P], _R]) -> Callable[Concatenate[Ledger, _P], _R]:
    """Make a method of a function of the store, with its signature and documentation, which are written there."""

    @functools.wraps(function)
    def method(ledger: Ledger, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return function(ledger._store, *args, **kwargs)

    return method


class Ledger:
    """Open ledger file; make one with `create` or `open`, close it or use it as a context manager."""

    def __init__(self, store: Store, *, whole: bool = True) -> None:
        self._store = store
        self.whole = whole
        """True if every entry was verified when the file was opened."""

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, actor: str, reason: str = "") -> Self:
        """Create a ledger, readable by its owner only. Raises LedgerExistsError if there is a file already."""
        store = Store.create(Path(path))
        details = {
            "format": 1,
            "ledger_id": secrets.token_hex(16),
            "cost_unit": COST_UNIT,
            "delta_unit": DELTA_UNIT,
            "reason": reason,
        }
        store.decide(lambda: store.append(EntryKind.GENESIS, actor=actor, details=details))
        return cls(store)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        reprice: bool = False,
        processes: int = 1,
        busy_seconds: float = BUSY_SECONDS,
        witness: Witness | None = None,
    ) -> Self:
        """Open an existing ledger, after schema, chain, sums and caps have been computed again.

        A file of an older version gets this version's schema, which its chain records.

        Args:
            path: path of the file.
            reprice: also price every debit again, as `verify` does.
            processes: number of processes that examine entries in parallel, as in `verify`.
            busy_seconds: how long a decision waits for another process that writes.
            witness: a checkpoint that the caller believes. A long ledger that agrees with it is opened in seconds
                (`_witnessed.py`), with `whole` false: `verify` is to follow.

        Raises:
            LedgerUnavailableError: there is no such file, or another process has other files open.
            LedgerLostError: it lacks entries that were confirmed, or its mark is missing; nothing was changed.
            LedgerVersionError: a newer version wrote it.
            LedgerCorruptError: the file does not verify; the message names the entry.
        """
        store = Store(Path(path), busy_seconds)
        try:
            with translated():
                check_version(store.db)
            quick = None if witness is None else check_witnessed(store.db, witness, processes=processes)
            problems = check(store.db, reprice=reprice, processes=processes).problems if quick is None else quick
            if problems:
                raise LedgerCorruptError(problems)
            _upgrade(store)
        except BaseException:
            store.close()
            raise
        return cls(store, whole=quick is None)

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_files(self) -> None:
        """Check that the folder has the files that are open.

        Raises:
            LedgerUnavailableError: one was removed or replaced; nothing is debited from now on, until a new start.
        """
        self._store.check_files()

    def distrust(self, finding: str) -> None:
        """Refuse every decision from now on, as for lost files: a verification found something."""
        self._store.distrust(finding)

    @property
    def is_copy(self) -> bool:
        """True if the file is another one than when the ledger was open last; the next opening no longer knows.

        A copy lacks what was debited elsewhere since. A snapshot of the whole disk is not noticed.
        """
        return self._store.is_copy

    @property
    def ledger_id(self) -> str:
        """Random name that the ledger got when it was made; 32 hexadecimal digits."""
        return str(self._store.entry(1, EntryKind.GENESIS).details["ledger_id"])

    # Datasets and accounts: admin events.
    register_dataset = _method(_datasets.register)
    new_snapshot = _method(_datasets.new_snapshot)
    retire_dataset = _method(_datasets.retire)
    record_destruction = _method(_datasets.destroy)
    set_budget = _method(_administration.set_budget)
    set_allowance = _method(_administration.set_allowance)
    set_call_limit = _method(_administration.set_call_limit)
    set_checkpoint_key = _method(_administration.set_checkpoint_key)

    # State of datasets and accounts.
    contents = _method(_datasets.contents)
    datasets = _method(_datasets.all_states)
    dataset = _method(_datasets.dataset_state)
    limits = _method(_debits.limits_of)
    shares = _method(_accounts.shares)
    spenders = _method(_accounts.spenders)

    # Debits and their releases.
    debit = _method(_debits.debit)
    write_off = _method(_debits.write_off)
    find_debit = _method(_debits.find_debit)
    store_release = _method(_debits.store_release)
    lose_release = _method(_debits.lose_release)
    is_lost = _method(_debits.is_lost)
    release = _method(_debits.released)
    debit_entry = _method(_debits.debit_entry)
    releases = _method(_debits.releases)

    # Credentials.
    issue_credential = _method(_accounts.issue)
    revoke_credential = _method(_accounts.revoke)
    administrators = _method(_accounts.administrators)
    credentials = _method(_accounts.all_credentials)
    credential = _method(_accounts.live)

    def entries(self, first: int = 1, limit: int | None = None) -> Iterator[Entry]:
        """Return entries from number `first` on, at most `limit` of them."""
        return self._store.entries(first, limit)

    def head(self) -> bytes:
        """Return the hash of the newest entry."""
        return self._store.newest()[1]

    def newest(self) -> tuple[int, bytes]:
        """Return the number and hash of the newest entry."""
        return self._store.newest()

    def hash_at(self, number: int) -> bytes | None:
        """Return the hash of an entry, None if the ledger does not reach so far."""
        row = self._store.one("SELECT hash FROM entries WHERE number = ?", number)
        return None if row is None else bytes(row[0])

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the file consistently while others write; an existing file is not overwritten.

        Raises:
            LedgerExistsError: there is a file already.
            LedgerUnavailableError: the copy cannot be written.
        """
        copy_to(self._store, Path(path))


def _upgrade(store: Store) -> None:
    """Apply the migrations that a file has not had, and append an entry about them, in one transaction."""

    def upgraded() -> None:
        had = applied(store.db)
        if had != known():  # else another process was faster
            apply(store.db)
            details = {"from": had[-1], "to": known()[-1], "reason": "a newer version"}
            store.append(EntryKind.UPGRADE, actor="bursar", details=details)

    if applied(store.db) != known():
        store.decide(upgraded)
