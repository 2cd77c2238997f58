"""A snapshot's rows once more, in Parquet files on a storage that several machines share, for Dask's workers.

The slots are those of the snapshot, in its order. A record beside the snapshot, on the server's own disk, says where
the files are, how many slots each has and what it must hash to; a worker reads nothing that has another hash.
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
"""Slots of every partition but the last: about a million, 80 MB of ten columns."""

RECORD_FILE = "partitions.json"


@dataclass(frozen=True)
class Partition:
    """One file.

    Attributes:
        path: of the file, the same on every machine.
        slots: that it has, null rows included.
        sha256: of the whole file, hexadecimal.
    """

    path: str
    slots: int
    sha256: str


@dataclass(frozen=True)
class PartitionRows:
    """Some columns of one partition, for whoever opens it (`bursar_server.vault.RowsPart`).

    Attributes:
        partition: the file.
        columns: names in the file; "" for K where it is 1 of every row.
    """

    partition: Partition
    columns: tuple[str, ...]

    @property
    def slots(self) -> int:
        """Number of slots, null rows included."""
        return self.partition.slots

    @contextlib.contextmanager
    def open(self) -> Iterator[Rows]:
        """Its rows, with slots counted from 0. Raises SnapshotError if the file is not as it was written."""
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
        slots: of all partitions.
        parts: in the order of their slots.
    """

    slots: int
    parts: tuple[PartitionRows, ...]

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """See `vault.Rows`; opens a file for every block, so that nothing but a test should read a table like that."""
        for part in self.parts:
            if first < part.slots:
                with part.open() as rows:
                    rows.read(first, block, present)
                return
            first -= part.slots
        block[:], present[:] = 0.0, False


class _FileRows:
    """Rows of an open file, a block of them in memory: quickest from one block to the next. For one thread."""

    def __init__(self, slots: int, columns: tuple[str, ...], file: pa.parquet.ParquetFile) -> None:
        self.slots = slots
        self._columns = columns
        self._file = file
        self._wanted = sorted({name for name in columns if name} | {PRESENT})
        self._blocks: Iterator[pa.RecordBatch] = iter(())
        self._next = -1

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """See `vault.Rows`."""
        filled = max(0, min(CHUNK, self.slots - first))
        if filled:
            found = self._block(first)
            if found is None or found.num_rows != filled:
                # Without numbers: how many rows there are may be nobody's to know.
                raise SnapshotError(
                    "a partition has other slots than its record says: bursar-admin partition writes it"
                )
            for j, name in enumerate(self._columns):
                block[j, :filled] = found[name].to_numpy() if name else 1.0
            present[:filled] = found[PRESENT].to_numpy(zero_copy_only=False)
        block[:, filled:] = 0.0
        present[filled:] = False

    def _block(self, first: int) -> pa.RecordBatch | None:
        # Block by block, so that what is read is still in the processor's cache when it is copied; whole row groups
        # are not, and cost a pass some percent more. `CHUNK` divides them.
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
    """What a record says.

    Attributes:
        folder: of the files, made for this snapshot alone.
        files: in the order of their slots.
        complete: whether all are written; a table without rows has none.
    """

    folder: str
    files: tuple[Partition, ...]
    complete: bool

    @classmethod
    def of(cls, snapshot: Path) -> Partitions | None:
        """The record in a snapshot's folder; None if there is none. Raises SnapshotError for one that is damaged."""
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
        """Write a snapshot's rows to a shared storage, as often as need be: what was there of it before is removed.

        Args:
            snapshot: to be written; its folder gets the record.
            storage: an absolute path that names the same folder on all machines.
            slots: of every partition but the last, a multiple of `BATCH`.

        Raises SnapshotError if the storage is not there, or cannot be written to.
        """
        if not (slots >= BATCH and slots % BATCH == 0):
            raise ValueError(f"slots: expected a multiple of {BATCH}, got {slots}")
        remove_partitions(snapshot.directory)
        # The record comes first, so that whoever removes the rows finds the files, finished or not.
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
        """The named columns, as `Snapshot.rows` has them. Raises SnapshotError as that does, and for missing files."""
        if not self._is_complete(snapshot):
            raise SnapshotError(f"{self.folder} is not complete; write it again with: bursar-admin partition")
        snapshot.rows(columns)  # raises for what it does not have
        names = [column.name for column in snapshot.manifest.columns]
        stored = UNIT_ROWS_COLUMN if UNIT_ROWS_COLUMN in snapshot.schema.names else ""
        there = tuple(stored if name == UNIT_ROWS else f"column {names.index(name)}" for name in columns)
        return PartitionedRows(snapshot.slots, tuple(PartitionRows(file, there) for file in self.files))

    def is_of(self, snapshot: Snapshot, storage: Path) -> bool:
        """Whether this is all of a snapshot's rows on a storage, as far as the record says."""
        return self._is_complete(snapshot) and Path(self.folder).parent == storage

    def _is_complete(self, snapshot: Snapshot) -> bool:
        return self.complete and sum(file.slots for file in self.files) == snapshot.slots

    def are_there(self) -> bool:
        """Whether all were written, and their folder can be seen; opens nothing."""
        return self.complete and Path(self.folder).is_dir()

    def damaged(self) -> tuple[str, ...]:
        """The files that are not as they were written; reads them all."""
        return tuple(file.path for file in self.files if not (Path(file.path).is_file() and _is_whole(file)))


def remove_snapshot(folder: Path) -> None:
    """Remove a snapshot's folder, after its partitions. Raises SnapshotError as `remove_partitions` does."""
    remove_partitions(folder)
    shutil.rmtree(folder)


def remove_partitions(snapshot: Path) -> None:
    """Remove the files that the record in a snapshot's folder names, then the record; nothing, if there is none.

    Raises SnapshotError if the storage is not there: then the files are somewhere still.
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
    (snapshot / RECORD_FILE).unlink()


def _record(snapshot: Path, partitions: Partitions) -> None:
    partial = snapshot / f".{RECORD_FILE}.partial"
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(asdict(partitions), indent=1), encoding="utf-8")
    sync(partial)
    partial.rename(snapshot / RECORD_FILE)
    sync(snapshot)


def _write(snapshot: Snapshot, folder: Path, slots: int) -> Iterator[Partition]:
    batches = snapshot.batches()
    for number in range(-(-snapshot.slots // slots)):
        path = folder / f"part-{number:06d}.parquet"
        size = min(slots, snapshot.slots - number * slots)
        path.touch(mode=0o600)
        # As they are: numbers of measurements hardly shrink, and every pass would have to unpack them. No statistics:
        # they are minima and maxima, which nobody asks for.
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
    """Once a process for every state of a file: hashing takes longer than some statistics do."""
    return _sha256(Path(path))


def _is_whole(partition: Partition) -> bool:
    return _sha256(Path(partition.path)) == partition.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
