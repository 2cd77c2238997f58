"""The ledger that a server holds open: every method is one decision or one read of the file.

Safe for the threads of one process and for several processes on one file on a local disk. Every change is an entry of
the chain, durable before the method returns. There are no refunds and no method lowers a sum.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from . import _acts, _credentials, _datasets, _debits
from ._backup import copy_to
from ._budget import Budget
from ._canonical import Entry
from ._pricing import COST_UNIT, DELTA_UNIT
from ._schema import check_version
from ._store import BUSY_SECONDS, Store, translated
from ._upgrade import upgrade
from ._values import (
    Credential,
    DatasetState,
    Debit,
    DebitRecord,
    DebitRequest,
    Limits,
    Registration,
    ReleaseRecord,
    RestRequest,
    Role,
)
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
        store.decide(lambda: store.append("genesis", actor=actor, details=details))
        return cls(store)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        reprice: bool = False,
        processes: int = 1,
        busy_seconds: float = BUSY_SECONDS,
    ) -> Self:
        """An existing ledger, after schema, chain, sums and caps have been computed anew.

        A file of an older version gets this version's schema, which its chain records.

        Args:
            path: of the file.
            reprice: also price every debit again, as `verify` does.
            processes: that look at entries at the same time, as in `verify`.
            busy_seconds: how long a decision waits for another process that writes.

        Raises:
            LedgerUnavailableError: there is no such file.
            LedgerVersionError: a newer version wrote it.
            LedgerCorruptError: the file does not verify; the message names the entry.
        """
        store = Store(Path(path), busy_seconds)
        try:
            with translated():
                check_version(store.db)
            found = check(store.db, reprice=reprice, processes=processes)
            if not found.ok:
                raise LedgerCorruptError(found.problems)
            store.use_log()
            upgrade(store)
        except BaseException:
            store.close()
            raise
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

    @property
    def ledger_id(self) -> str:
        """Random name that the ledger got when it was made; 32 hexadecimal digits."""
        return str(self._store.entry(1, "genesis").details["ledger_id"])

    def register_dataset(self, registration: Registration, *, actor: str, reason: str, dry_run: bool = False) -> Entry:
        """Registers a dataset: with an account and a total of its own, or in the account that its people have.

        With `dry_run`, here and below, everything is checked and the entry is made up, but nothing is written.

        Raises:
            DatasetExistsError: the name is registered already.
            AccountConflictError: these people have an account with another adjacency or total.
            UnknownDatasetError: there is no dataset `registration.same_people_as`.
        """
        return _datasets.register(self._store, registration, actor=actor, reason=reason, dry_run=dry_run)

    def new_snapshot(
        self,
        dataset: str,
        content_tag: bytes,
        manifest: Mapping[str, object],
        *,
        actor: str,
        reason: str,
        known_tags: tuple[bytes, ...] = (),
        dry_run: bool = False,
    ) -> Entry:
        """New rows of the same people under the same name; what was spent stays spent.

        `known_tags` are those of the same rows under the keys of other tables.

        Raises:
            UnknownDatasetError, DatasetRetiredError: there is no such dataset, or no more.
            AccountConflictError: the rows are known as those of another account.
        """
        return _datasets.new_snapshot(
            self._store,
            dataset,
            content_tag,
            manifest,
            actor=actor,
            reason=reason,
            known_tags=known_tags,
            dry_run=dry_run,
        )

    def retire_dataset(self, dataset: str, *, actor: str, reason: str, dry_run: bool = False) -> Entry:
        """Ends a dataset for good: no new debits. What was released of it can still be had.

        Raises:
            UnknownDatasetError, DatasetRetiredError: there is no such dataset, or no more.
        """
        return _datasets.retire(self._store, dataset, actor=actor, reason=reason, dry_run=dry_run)

    def record_destruction(
        self, dataset: str, what: Literal["rows", "key"], *, actor: str, reason: str, dry_run: bool = False
    ) -> Entry:
        """That the rows of a retired dataset, or after them the key of its tags, are gone for good.

        Raises:
            UnknownDatasetError: there is no such dataset.
            DatasetInUseError: it is not retired, this was said before, or a key is destroyed before its rows.
        """
        return _datasets.destroy(self._store, dataset, what, actor=actor, reason=reason, dry_run=dry_run)

    def set_budget(self, dataset: str, budget: Budget, *, actor: str, reason: str, dry_run: bool = False) -> Entry:
        """A new total for the dataset's account. Every past debit is priced again at the order of the new total.

        A total below what was spent closes the account. What the totals promise together is in `_pricing.md`.

        Raises:
            UnknownDatasetError: there is no such dataset.
            AccountConflictError: this is the total already.
        """
        return _acts.set_budget(self._store, dataset, budget, actor=actor, reason=reason, dry_run=dry_run)

    def set_allowance(
        self, dataset: str, analyst: str, share: Fraction | None, *, actor: str, reason: str, dry_run: bool = False
    ) -> Entry:
        """The part of the account's total that an analyst may spend, from 0 to 1; None ends the allowance.

        Args:
            dataset: whose account it is about.
            analyst: a principal, or `EVERYONE` for each one who has no allowance of his own.
            share: exact; it follows the total when that changes.
            actor: who sets it.
            reason: why.
            dry_run: write nothing.

        Raises:
            UnknownDatasetError: there is no such dataset.
            ValueError: a share out of range.
        """
        return _acts.set_allowance(self._store, dataset, analyst, share, actor=actor, reason=reason, dry_run=dry_run)

    def set_call_limit(
        self, dataset: str, share: Fraction | None, *, actor: str, reason: str, dry_run: bool = False
    ) -> Entry:
        """The most that one request may cost, as a part of the account's total from 0 to 1; None ends the limit.

        Raises:
            UnknownDatasetError: there is no such dataset.
            ValueError: a share out of range.
        """
        return _acts.set_call_limit(self._store, dataset, share, actor=actor, reason=reason, dry_run=dry_run)

    def set_checkpoint_key(self, verifier_key: str, *, actor: str, reason: str, dry_run: bool = False) -> Entry:
        """The public key of signed checkpoints from here on, as one line of text."""
        return _acts.set_checkpoint_key(self._store, verifier_key, actor=actor, reason=reason, dry_run=dry_run)

    def contents(self) -> tuple[Entry, ...]:
        """Registrations and snapshots, in order: the entries that hold tags of contents."""
        return _datasets.contents(self._store)

    def datasets(self) -> tuple[DatasetState, ...]:
        """All datasets, in the order of their registration."""
        return _datasets.all_states(self._store)

    def dataset(self, name: str) -> DatasetState:
        """One dataset; raises UnknownDatasetError."""
        return _datasets.dataset_state(self._store, name)

    def limits(self, dataset: str, principal: str) -> Limits:
        """All that bounds one request of `principal` on a dataset now; raises UnknownDatasetError."""
        return _debits.limits_of(self._store, dataset, principal)

    def debit(self, request: DebitRequest | RestRequest) -> Debit:
        """Debits a request, durably, or answers again for a request that was debited before.

        A repetition (same principal, request_id and request_hash) gets the price, remainder and head of the first time
        and nothing is debited. If it is INTERRUPTED, the caller makes sure that no worker is still running it.

        Raises:
            UnknownDatasetError: no such dataset.
            DatasetRetiredError: it is retired.
            BudgetExhaustedError: it does not fit, and says into which limit; nothing changed.
            RequestIdReusedError: the request_id came before with another body.
        """
        return _debits.debit(self._store, request)

    def write_off(self, request: DebitRequest, *, actor: str, reason: str) -> Debit:
        """Debits what was spent without an entry of this ledger: after it was restored from a backup, for example.

        As `debit`, with the maximum per call lifted for this one debit. It gets the empty release: there is none.

        Args:
            request: for whom, of what, and how much.
            actor: who says so.
            reason: why.

        Raises:
            As `debit` does.
        """
        paid = _debits.write_off(self._store, request, actor=actor, reason=reason)
        self.store_release(paid.entry, b"")
        return paid

    def find(self, principal: str, request_id: str) -> DebitRecord | None:
        """The debit that a request made before, None if it made none."""
        return _debits.find(self._store, principal, request_id)

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

    def releases(
        self, principal: str | None = None, dataset: str | None = None, *, after: int = 0, limit: int | None = None
    ) -> tuple[ReleaseRecord, ...]:
        """Debits in order, of one principal or all (None), on one dataset or all (None).

        Args:
            principal: who asked.
            dataset: its name.
            after: only debits of later entries.
            limit: at most so many; None for all.
        """
        return _debits.releases(self._store, principal, dataset, after, limit)

    def issue_credential(
        self,
        name: str,
        role: Role,
        token_hash: bytes,
        *,
        actor: str,
        reason: str,
        expires: str | None = None,
        datasets: tuple[str, ...] | None = None,
        dry_run: bool = False,
    ) -> Entry:
        """Puts a credential in force.

        Args:
            name: of the holder.
            role: what he may do.
            token_hash: SHA-256 of a token of at least 256 random bits.
            actor: who issues it.
            reason: why.
            expires: time in UTC, such as 2026-11-22T03:30:00Z, after which it is worth nothing; None for never.
            datasets: the only ones that he may see; None for all.
            dry_run: write nothing.

        Raises:
            CredentialExistsError: the name has one in force, or the token was issued before.
            ValueError: a time or a name that is none.
        """
        credential = Credential(name, role, revoked=False, expires=expires, datasets=datasets)
        return _credentials.issue(self._store, credential, token_hash, actor=actor, reason=reason, dry_run=dry_run)

    def revoke_credential(self, name: str, *, actor: str, reason: str, dry_run: bool = False) -> Entry:
        """Ends the credential in force of a name; raises UnknownCredentialError if there is none."""
        return _credentials.revoke(self._store, name, actor=actor, reason=reason, dry_run=dry_run)

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

    def newest(self) -> tuple[int, bytes]:
        """Number and hash of the newest entry."""
        return self._store.newest()

    def hash_at(self, number: int) -> bytes | None:
        """Hash of an entry, None if the ledger does not reach so far."""
        row = self._store.one("SELECT hash FROM entries WHERE number = ?", number)
        return None if row is None else bytes(row[0])

    def backup(self, path: str | os.PathLike[str]) -> None:
        """A consistent copy of the file as it is now, while others write; a file that is there is not overwritten.

        Raises:
            LedgerExistsError: there is a file already.
            LedgerUnavailableError: the copy cannot be written.
        """
        copy_to(self._store, Path(path))
