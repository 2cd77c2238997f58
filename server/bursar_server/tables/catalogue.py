"""Registered datasets: their public facts from the ledger, and the rows that a debit pays for, as they were registered.

Stored rows are compared with their registration before a fit is charged. Fits clip their rows, so changed rows keep the
guarantee. But the models would not be those of the registered people, and the budget would be lost.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar_ledger import DatasetRetiredError, DatasetState, Debit, Ledger
from bursar_server.fits import PublicFacts, PublicTable
from bursar_server.state import State
from bursar_server.tables._errors import ShortageError, SnapshotError, TableError, is_shortage
from bursar_server.tables._keys import Keyring, rows_tag
from bursar_server.tables._manifest import Manifest
from bursar_server.tables._partitions import Partitions
from bursar_server.tables._snapshot import Identity, Snapshot, identity_of
from bursar_server.vault import PaidBudget, Rows, RowSource


@dataclass(frozen=True)
class Registered:
    """Facts of a registration's entry beside its budget.

    Attributes:
        manifest: public schema, with the number of slots under REPLACE_ONE.
        snapshot: id of the snapshot, which names its folder and its key; random, so it reveals nothing about the rows.
        rows_tag: keyed hash of the stored rows (`bursar_server.tables.rows_tag`).
    """

    manifest: Manifest
    snapshot: str
    rows_tag: str

    @classmethod
    def imported(cls, snapshot: Snapshot, rows_tag: str) -> Registered:
        """Return the facts to register after an import."""
        return cls(snapshot.manifest, snapshot.directory.name, rows_tag)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Registered:
        """Return the facts from the result of `fields`."""
        return cls(Manifest.from_public(fields["schema"]), str(fields["snapshot"]), str(fields["rows_tag"]))

    @property
    def fields(self) -> dict[str, Any]:
        """Facts in the format of the ledger's entry."""
        return {
            "schema": self.manifest.public(),
            "snapshot": self.snapshot,
            "rows_tag": self.rows_tag,
        }


@dataclass(frozen=True)
class _StoredSource:
    """Some columns of stored rows, and the debit that lets a fit read them.

    Attributes:
        directory: folder of the snapshot, which has the record of the partitions.
        identity: state of the files that were compared with the registration.
    """

    budget: PaidBudget
    directory: Path
    columns: tuple[str, ...]
    identity: Identity

    def __post_init__(self) -> None:
        if not isinstance(self.budget, PaidBudget):
            raise TypeError(f"stored rows are read under a debit; expected its PaidBudget, got {self.budget!r}")


@dataclass(frozen=True)
class SnapshotSource(_StoredSource):
    """Stored rows in this machine's files (`bursar_server.vault.RowSource`)."""

    def open(self) -> Rows:
        """Map the snapshot into memory, for a fit that runs under a debit. Raises SnapshotError."""
        return _as_compared(self.directory, self.identity).rows(self.columns)


@dataclass(frozen=True)
class PartitionSource(_StoredSource):
    """Stored rows on a cluster's storage (`bursar_server.vault.RowSource`)."""

    def open(self) -> Rows:
        """Return rows that a cluster's workers can open; reads no row here. Raises SnapshotError."""
        return _partitions(self.directory).rows(_as_compared(self.directory, self.identity), self.columns)


def _as_compared(directory: Path, identity: Identity) -> Snapshot:
    """Open a snapshot whose files are those that were compared. Raises SnapshotError."""
    snapshot = Snapshot.open(directory)
    if snapshot.identity != identity:
        raise SnapshotError(f"the files in {directory} have changed since they were compared with what was registered")
    return snapshot


def _partitions(directory: Path) -> Partitions:
    found = Partitions.of(directory)
    if found is None:
        raise SnapshotError(f"the rows in {directory} are not on the cluster's storage: bursar-admin partition")
    return found


@dataclass(frozen=True)
class _Compared:
    """Result of one comparison of files in a state with those that were registered."""

    identity: Identity
    same: bool


class StoredRows:
    """Comparisons of snapshots with their entries, once for every state of a snapshot's files.

    The state is device, inode, size and times of change, as the kernel reports them. Bytes that change on the disk
    without a write are noticed by the next process.

    A reading ends, for all calls that wait for it, at a multiple of `quantum` seconds after its beginning: its time
    depends on the size of the table, which may be private.
    """

    def __init__(self, directory: Path, keys: Keyring, quantum: float = 0.0) -> None:
        self._directory = directory
        self._keys = keys
        self._quantum = quantum
        self._lock = threading.Lock()
        self._reading: dict[str, threading.Lock] = {}
        self._known: dict[str, _Compared] = {}

    def compare(self, snapshot: str, manifest: Manifest, tag: str) -> Identity:
        """Check that a snapshot's files are as they were registered, and return their identity.

        Raises:
            SnapshotError: files are missing, or not as they were registered.
            KeysError: the key of the tag is missing.
            ShortageError: this process lacks descriptors; nothing was found out.
        """
        known = self._known.get(snapshot)
        if known is None or known.identity != identity_of(self._directory / snapshot):
            known = self._compared_now(snapshot, manifest, tag)
        if not known.same:
            raise SnapshotError(
                f"the rows in {self._directory / snapshot} are not those that were registered: restore them from a "
                "backup, or import them again with: bursar-admin snapshot"
            )
        return known.identity

    def differs(self, snapshot: str) -> bool:
        """Return whether a comparison found that a snapshot is not as it was registered."""
        known = self._known.get(snapshot)
        return known is not None and not known.same

    def _compared_now(self, snapshot: str, manifest: Manifest, tag: str) -> _Compared:
        # A lock for each snapshot: calls for one table wait for one reading, and no call waits for another table's.
        with self._lock:
            reading = self._reading.setdefault(snapshot, threading.Lock())
        with reading:
            folder = self._directory / snapshot
            known, found = self._known.get(snapshot), identity_of(folder)
            if known is not None and known.identity == found:
                return known
            begun = time.monotonic()
            try:
                made = _Compared(found, self._is_same(folder, manifest, tag))
                # Otherwise a file replaced during the reading would be recorded as compared.
                if identity_of(folder) != found:
                    raise SnapshotError(f"the files in {folder} change while they are read")
            finally:
                # Before others go on or find what is known: each call would else end at a multiple after its own
                # beginning, and many calls at different times would tell when the reading ended.
                if self._quantum:
                    time.sleep(self._quantum - (time.monotonic() - begun) % self._quantum)
            self._known[snapshot] = made
            return made

    def _is_same(self, folder: Path, manifest: Manifest, tag: str) -> bool:
        try:
            keys = self._keys.load(folder.name)
            snapshot = Snapshot.open(folder)
            found = rows_tag(keys, snapshot)
        except (SnapshotError, OSError) as error:
            # A finding is kept until the files change, so a shortage of this moment must not become one.
            if is_shortage(error):
                raise ShortageError(f"the files in {folder} could not be opened now") from error
            return False  # it existed a moment ago, so it is damaged
        return snapshot.manifest == manifest and hmac.compare_digest(found, tag)


class Datasets:
    """Registered datasets, read from the ledger at every call: an administrator may register one while the server runs.

    Fits read the partitions on a cluster's storage if `partitioned`. The first fit of a table waits for a multiple of
    `quantum` seconds (`StoredRows`).
    """

    def __init__(self, ledger: Ledger, directory: Path, *, partitioned: bool = False, quantum: float = 0.0) -> None:
        self._ledger = ledger
        self._directory = directory
        self._partitioned = partitioned
        self._stored = StoredRows(directory, Keyring(State(directory.parent).keys), quantum)

    def state(self, name: str) -> DatasetState:
        """Return a dataset by name. Raises UnknownDatasetError."""
        return self._ledger.dataset(name)

    def table(self, state: DatasetState) -> PublicTable:
        """Return the facts that a plan may use."""
        manifest = _registered(state).manifest
        return manifest.table(manifest.public_rows or 0)

    def facts(self, name: str) -> PublicFacts:
        """Return the facts that a dry run may use. Raises UnknownDatasetError."""
        state = self.state(name)
        return PublicFacts(self.table(state), state.order)

    def check(self, state: DatasetState) -> None:
        """Check that a new fit may be charged. Opens nothing.

        Raises:
            DatasetRetiredError: the dataset is retired.
            SnapshotError: the snapshot or its partitions are missing; found here, so that no budget is lost.
        """
        if state.retired:
            raise DatasetRetiredError(f"{state.name} is retired")
        registered = _registered(state)
        if not (self._directory / registered.snapshot).is_dir():
            raise SnapshotError(
                f"the snapshot {registered.snapshot} of {state.name} is missing; restore it from a backup"
            )
        if self._partitioned and not _partitions(self._directory / registered.snapshot).are_there():
            raise SnapshotError(
                f"the partitions of {state.name} are missing: mount the storage, or bursar-admin partition {state.name}"
            )

    def compare(self, state: DatasetState) -> Identity:
        """Check that a dataset's files are as they were registered, and return their identity.

        Fits read these files only.

        Reads them as a whole if this process has not read them in their present state.

        Raises:
            SnapshotError: files are missing, or not as they were registered.
            KeysError: the key of the tag is missing.
        """
        registered = _registered(state)
        return self._stored.compare(registered.snapshot, registered.manifest, registered.rows_tag)

    def problem(self) -> str | None:
        """Return the datasets whose changed rows were found and refused, as text; None if there are none."""
        differ = [
            state.name
            for state in self._ledger.datasets()
            if not state.retired and self._stored.differs(_registered(state).snapshot) and not self._is_mended(state)
        ]
        return f"those of {', '.join(differ)} are not those that were registered" if differ else None

    def _is_mended(self, state: DatasetState) -> bool:
        try:
            self.compare(state)
        except TableError:
            return False
        return True

    def rows(self, debit: Debit, columns: tuple[str, ...]) -> RowSource:
        """Return the rows of the dataset that a debit paid for, to be read under that debit. Raises as `compare` does.

        A newer snapshot than that of the plan may be read: it has the same columns, bounds, adjacency and cap.
        """
        budget = PaidBudget(debit)
        state = self.state(debit.request.dataset)
        source = PartitionSource if self._partitioned else SnapshotSource
        return source(budget, self._directory / _registered(state).snapshot, columns, self.compare(state))

    def manifest(self, state: DatasetState) -> Manifest:
        """Return the public schema of a dataset."""
        return _registered(state).manifest


def _registered(state: DatasetState) -> Registered:
    return Registered.of(state.manifest)
