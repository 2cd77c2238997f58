"""The ledger that a server holds open: every method is one decision or one read of the file.

Safe for the threads of one process and for several processes on one file on a local disk. Every change is an entry of
the chain, durable before the method returns. There are no refunds and no method lowers a sum.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from . import _credentials, _datasets, _debits
from ._canonical import Entry
from ._pricing import COST_UNIT, DELTA_UNIT
from ._store import Store
from ._values import Credential, DatasetState, Debit, DebitRecord, DebitRequest, Registration, ReleaseRecord, Role
from ._verify import check
from .errors import LedgerCorruptError


class Ledger:
    """An open ledger file; make one with `create` or `open`, close it or use it as a context manager."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, actor: str, reason: str = "") -> Self:
        """A new ledger, readable by its owner only.

        Raises:
            LedgerExistsError: there is a file already.
        """
        store = Store.create(Path(path))
        details = {
            "format": 1,
            "ledger_id": secrets.token_hex(16),
            "cost_unit": COST_UNIT,
            "delta_unit": DELTA_UNIT,
            "reason": reason,
        }
        with store.decision():
            store.append("genesis", actor=actor, details=details)
        return cls(store)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """An existing ledger, after schema, chain, sums and caps have been computed anew.

        Re-pricing every debit takes longer and is left to `verify`.

        Raises:
            LedgerUnavailableError: there is no such file.
            LedgerCorruptError: the file does not verify; the message names the entry.
        """
        store = Store(Path(path))
        found = check(store.db, reprice=False)
        if not found.ok:
            store.close()
            raise LedgerCorruptError(found.problems)
        return cls(store)

    def close(self) -> None:
        """Closes the file."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def register_dataset(self, registration: Registration, *, actor: str, reason: str) -> Entry:
        """Registers a dataset with its budget, adjacency and public manifest, once and for all.

        Raises:
            DatasetExistsError: the name or the content is registered already.
        """
        return _datasets.register(self._store, registration, actor=actor, reason=reason)

    def datasets(self) -> tuple[DatasetState, ...]:
        """All datasets, in the order of their registration."""
        return _datasets.all_states(self._store)

    def dataset(self, name: str) -> DatasetState:
        """One dataset; raises UnknownDatasetError."""
        return _datasets.dataset_state(self._store, name)

    def debit(self, request: DebitRequest) -> Debit:
        """Debits a request, durably, or answers again for a request that was debited before.

        A repetition (same principal, request_id and request_hash) gets the price, remainder and head of the first time
        and nothing is debited. If it is INTERRUPTED, the caller makes sure that no worker is still running it.

        Raises:
            UnknownDatasetError: no such dataset.
            BudgetExhaustedError: it does not fit; nothing changed.
            RequestIdReusedError: the request_id came before with another body.
        """
        return _debits.debit(self._store, request)

    def store_release(self, entry: int, release: bytes) -> None:
        """Stores what was released under a debit, with its SHA-256 in the chain. The same bytes again change nothing.

        Raises:
            UnknownEntryError: `entry` is not a debit.
            ReleaseExistsError: other bytes are stored; those are the release.
        """
        _debits.store_release(self._store, entry, release)

    def release(self, entry: int) -> bytes | None:
        """What was released under a debit; None if nothing is stored. UnknownEntryError if `entry` is not a debit."""
        self._store.entry(entry, "debit")
        return _debits.release(self._store, entry)

    def debit_entry(self, entry: int) -> DebitRecord:
        """A debit, decoded; raises UnknownEntryError if `entry` is not one."""
        return _debits.record(self._store.entry(entry, "debit"))

    def releases(self, principal: str | None = None, dataset: str | None = None) -> tuple[ReleaseRecord, ...]:
        """Debits in order, of one principal or all (None), on one dataset or all (None)."""
        return _debits.releases(self._store, principal, dataset)

    def issue_credential(self, name: str, role: Role, token_hash: bytes, *, actor: str, reason: str) -> Entry:
        """Puts a credential in force; `token_hash` is the SHA-256 of a token of at least 256 random bits.

        Raises:
            CredentialExistsError: the name has one in force, or the token was issued before.
        """
        return _credentials.issue(self._store, name, role, token_hash, actor=actor, reason=reason)

    def revoke_credential(self, name: str, *, actor: str, reason: str) -> Entry:
        """Ends the credential in force of a name; raises UnknownCredentialError if there is none."""
        return _credentials.revoke(self._store, name, actor=actor, reason=reason)

    def credentials(self) -> tuple[Credential, ...]:
        """The newest credential of every name."""
        return _credentials.all_credentials(self._store)

    def credential(self, token_hash: bytes) -> Credential | None:
        """The credential in force with this token, or None."""
        return _credentials.live(self._store, token_hash)

    def entries(self, first: int = 1, limit: int | None = None) -> Iterator[Entry]:
        """Entries from number `first` on, at most `limit` of them."""
        return self._store.entries(first, limit)

    def head(self) -> bytes:
        """Hash of the newest entry."""
        return self._store.newest()[1]
