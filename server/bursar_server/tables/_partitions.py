"""Partitions: a snapshot's rows in Parquet files on a storage that several machines share, for Dask's workers.

The slots are those of the snapshot, in its order. A record beside the snapshot, on the server's own disk, has the paths
of the files, their numbers of slots and their hashes; a worker reads no file with another hash.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from bursar_server.fits import UNIT_ROWS
from bursar_server.tables._errors import SnapshotError
from bursar_server.tables._snapshot import BATCH, PRESENT, UNIT_ROWS_COLUMN, Snapshot, sync
from bursar_server.vault import CHUNK, Rows

PARTITION = 16 * BATCH
"""Slots of every partition but the last: about a million, 80 MB of ten columns. Chosen, not tuned."""

RECORD_FILE = "partitions.json"
"""Name of the record in a snapshot's folder."""


@dataclass(frozen=True)
class Partition:
    """File of one partition.

    Attributes:
        path: path of the file, the same on every machine.
        slots: number of slots, null rows included.
    """

    path: str
    slots: int
    sha256: str


@dataclass(frozen=True)
class PartitionRows:
    """Some columns of one partition (`bursar_server.vault.RowsPart`).

    Attributes:
        partition: file of the partition.
        columns: names in the file; "" for K if it is 1 of every row.
    """

    partition: Partition
    columns: tuple[str, ...]

    @property
    def slots(self) -> int:
        """Number of slots, null rows included."""
        return self.partition.slots

    @contextlib.contextmanager
    def open(self) -> Iterator[Rows]:
        """Open the rows, with slots counted from 0. Raises SnapshotError if the file is not as it was written."""
        path = Path(self.partition.path)
        try:
            status = path.stat()
            found = _digest(str(path), status.st_size, status.st_mtime_ns, status.st_ino)
            if found == self.partition.sha256:
                with pa.parquet.ParquetFile(path, memory_map=True) as file:  # read once, so copied once less
                    yield _FileRows(self.slots, self.columns, file)
                return
        except (OSError, pa.ArrowException) as error:
            raise SnapshotError(f"{path} cannot be read ({type(error).__name__}); is the storage mounted?") from None
        raise SnapshotError(f"{path} is not as it was written; write it again with: bursar-admin partition")


@dataclass(frozen=True)
class PartitionedRows:
    """Some columns of a table in partitions (`bursar_server.vault.SpreadRows`). Holds no row.

    Attributes:
        slots: number of slots of all partitions.
        parts: partitions in the order of their slots.
    """

    slots: int
    parts: tuple[PartitionRows, ...]

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """Implement `vault.Rows.read`. Opens a file for every block, so only tests should read a table this way."""
        for part in self.parts:
            if first < part.slots:
                with part.open() as rows:
                    rows.read(first, block, present)
                return
            first -= part.slots
        block[:], present[:] = 0.0, False


class _FileRows:
    """Rows of an open file, one block in memory; fastest from one block to the next. For one thread."""

    def __init__(self, slots: int, columns: tuple[str, ...], file: pa.parquet.ParquetFile) -> None:
        self.slots = slots
        self._columns = columns
        self._file = file
        self._wanted = sorted({name for name in columns if name} | {PRESENT})
        self._blocks: Iterator[pa.RecordBatch] = iter(())
        self._next = -1

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """Implement `vault.Rows.read`."""
        filled = max(0, min(CHUNK, self.slots - first))
        if filled:
            found = self._block(first)
            if found is None or found.num_rows != filled:
                # Without numbers, because the number of rows may be private.
                raise SnapshotError(
                    "a partition has other slots than its record says: bursar-admin partition writes it"
                )
            for j, name in enumerate(self._columns):
                block[j, :filled] = found[name].to_numpy() if name else 1.0
            present[:filled] = found[PRESENT].to_numpy(zero_copy_only=False)
        block[:, filled:] = 0.0
        present[filled:] = False

    def _block(self, first: int) -> pa.RecordBatch | None:
        # Block by block, so that data are still in the CPU's cache when they are copied; whole row groups are not, and
        # cost a pass some percent more. `CHUNK` divides them.
        if first != self._next:
            group = first // BATCH
            groups = range(group, self._file.num_row_groups)
            self._blocks = self._file.iter_batches(CHUNK, groups, self._wanted, use_threads=False)
            for _ in range((first - group * BATCH) // CHUNK):
                next(self._blocks, None)
        self._next = first + CHUNK
        return next(self._blocks, None)


@dataclass(frozen=True)
class Partitions:
    """Record of a snapshot's partitions.

    Attributes:
        folder: folder of the files, made for this snapshot alone.
        files: files in the order of their slots.
        complete: True once all are written; a table without rows has no files.
    """

    folder: str
    files: tuple[Partition, ...]
    complete: bool

    @classmethod
    def of(cls, snapshot: Path) -> Partitions | None:
        """Return the record in a snapshot's folder; None if there is none. Raises SnapshotError if it is damaged."""
        try:
            record = json.loads((snapshot / RECORD_FILE).read_bytes())
            return cls(str(record["folder"]), tuple(Partition(**file) for file in record["files"]), record["complete"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SnapshotError(
                f"{snapshot / RECORD_FILE} is damaged ({type(error).__name__}); restore it from a backup"
            ) from None

    @classmethod
    def write(cls, snapshot: Snapshot, storage: Path, slots: int = PARTITION) -> Partitions:
        """Write a snapshot's rows to a shared storage; earlier files are removed, so it may be repeated.

        The storage is an absolute path that names the same folder on all machines; every partition but the last has
        `slots` slots, a multiple of `BATCH`. The snapshot's folder gets the record.

        Raises:
            SnapshotError: the storage is missing or cannot be written to.
        """
        if not (slots >= BATCH and slots % BATCH == 0):
            raise ValueError(f"slots: expected a multiple of {BATCH}, got {slots}")
        remove_partitions(snapshot.directory)
        # The record is written first, so that removal finds the files even if this call is interrupted.
        folder = storage / f"{snapshot.directory.name}-{secrets.token_hex(4)}"
        _record(snapshot.directory, cls(str(folder), (), complete=False))
        try:
            if not storage.is_absolute():
                raise SnapshotError(f"{storage}: expected an absolute path, the same on every machine")
            folder.mkdir(mode=0o700)
            written = cls(str(folder), tuple(_write(snapshot, folder, slots)), complete=True)
            sync(folder)
            sync(storage)
        except OSError as error:
            raise SnapshotError(
                f"{folder} cannot be written ({error.strerror or type(error).__name__}); is the storage mounted?"
            ) from None
        _record(snapshot.directory, written)
        return written

    def rows(self, snapshot: Snapshot, columns: tuple[str, ...]) -> PartitionedRows:
        """Return the named columns, as `Snapshot.rows` does.

        Raises:
            SnapshotError: a column is unknown, or files are missing.
        """
        if not self._is_complete(snapshot):
            raise SnapshotError(f"{self.folder} is not complete; write it again with: bursar-admin partition")
        snapshot.rows(columns)  # raises for what it does not have
        names = [column.name for column in snapshot.manifest.columns]
        stored = UNIT_ROWS_COLUMN if UNIT_ROWS_COLUMN in snapshot.schema.names else ""
        there = tuple(stored if name == UNIT_ROWS else f"column {names.index(name)}" for name in columns)
        return PartitionedRows(snapshot.slots, tuple(PartitionRows(file, there) for file in self.files))

    def is_of(self, snapshot: Snapshot, storage: Path) -> bool:
        """Return whether the record covers all of a snapshot's rows on a storage."""
        return self._is_complete(snapshot) and Path(self.folder).parent == storage

    def _is_complete(self, snapshot: Snapshot) -> bool:
        return self.complete and sum(file.slots for file in self.files) == snapshot.slots

    def are_there(self) -> bool:
        """Return whether all files were written and their folder is visible; opens nothing."""
        return self.complete and Path(self.folder).is_dir()

    def damaged(self) -> tuple[str, ...]:
        """Return the files that are not as they were written; reads them all."""
        return tuple(file.path for file in self.files if not (Path(file.path).is_file() and _is_whole(file)))


def remove_snapshot(folder: Path) -> None:
    """Remove a snapshot's partitions and its folder. Raises SnapshotError as `remove_partitions` does."""
    remove_partitions(folder)
    shutil.rmtree(folder)


def remove_partitions(snapshot: Path) -> None:
    """Remove the files that the record in a snapshot's folder names, then the record, if there is one.

    Raises:
        SnapshotError: the storage is missing, so the files still exist there.
    """
    record = Partitions.of(snapshot)
    if record is None:
        return
    folder = Path(record.folder)
    if not folder.parent.is_dir():
        raise SnapshotError(f"{folder.parent} is not there, and holds rows: mount the storage, and try again")
    if folder.exists():
        shutil.rmtree(folder)
        sync(folder.parent)
    # Last: until the files are gone, the record says where they are.
    (snapshot / RECORD_FILE).unlink()


def _record(snapshot: Path, partitions: Partitions) -> None:
    partial = snapshot / f".{RECORD_FILE}.partial"
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(asdict(partitions), indent=1), encoding="utf-8")
    sync(partial)
    # Atomic: a reader finds the old record or the new one.
    partial.rename(snapshot / RECORD_FILE)
    sync(snapshot)


def _write(snapshot: Snapshot, folder: Path, slots: int) -> Iterator[Partition]:
    batches = snapshot.batches()
    for number in range(-(-snapshot.slots // slots)):
        path = folder / f"part-{number:06d}.parquet"
        size = min(slots, snapshot.slots - number * slots)
        path.touch(mode=0o600)
        # Uncompressed: measurements hardly shrink, and every pass would have to unpack them. No statistics: minima and
        # maxima of rows are private and not needed.
        with pa.parquet.ParquetWriter(
            path, snapshot.schema, compression="none", use_dictionary=False, write_statistics=False
        ) as writer:
            for _ in range(-(-size // BATCH)):
                writer.write_batch(next(batches), row_group_size=BATCH)
        path.chmod(0o400)
        sync(path)
        yield Partition(str(path), size, _sha256(path))


@functools.lru_cache(maxsize=2**16)
def _digest(path: str, size: int, changed: int, inode: int) -> str:
    """Return a file's SHA-256, once a process for every state of a file: hashing takes longer than some statistics."""
    return _sha256(Path(path))


def _is_whole(partition: Partition) -> bool:
    return _sha256(Path(partition.path)) == partition.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
