"""Comparison of stored snapshots with their registration, before a fit is charged.

Fits clip their rows, so changed rows keep the guarantee. But the models would not be those of the registered people,
and the budget would be lost.
"""

from __future__ import annotations

import hmac
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bursar_server.tables._errors import ShortageError, SnapshotError, is_shortage
from bursar_server.tables._keys import Keyring
from bursar_server.tables._manifest import Manifest
from bursar_server.tables._snapshot import Identity, Snapshot, identity_of
from bursar_server.tables._tag import rows_tag


@dataclass(frozen=True)
class _Compared:
    """Result of one comparison of files in a state with those that were registered."""

    identity: Identity
    same: bool


class StoredRows:
    """Comparisons of snapshots with their entries, once for every state of a snapshot's files.

    The state is device, inode, size and times of change, as the kernel reports them. Bytes that change on the disk
    without a write are noticed by the next process.

    A call that reads, or waits for a reading, ends at a multiple of `quantum` seconds: the time of a reading depends on
    the size of the table, which may be private.
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
        begun = time.monotonic()
        with self._lock:
            reading = self._reading.setdefault(snapshot, threading.Lock())
        try:
            with reading:
                folder = self._directory / snapshot
                known, found = self._known.get(snapshot), identity_of(folder)
                if known is None or known.identity != found:
                    known = _Compared(found, self._is_same(folder, manifest, tag))
                    # Otherwise a file replaced during the reading would be recorded as compared.
                    if identity_of(folder) != found:
                        raise SnapshotError(f"the files in {folder} change while they are read")
                    self._known[snapshot] = known
                return known
        finally:
            if self._quantum:
                time.sleep(self._quantum - (time.monotonic() - begun) % self._quantum)

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
