"""Snapshot: a table as fits read it, in one immutable, memory-mapped Arrow file. Proof in `_snapshot.md`."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bursar_server.fits import UNIT_ROWS
from bursar_server.tables._cells import Block
from bursar_server.tables._errors import SnapshotError
from bursar_server.tables._manifest import Manifest, Numeric
from bursar_server.vault import CHUNK, MAX_ROWS, Rows

BATCH = 8 * CHUNK
"""Rows of every batch of a snapshot's file but the last; a multiple of `CHUNK`, so that no block spans two batches."""

ROWS_FILE = "rows.arrow"
MANIFEST_FILE = "manifest.json"

PRESENT, UNIT_ROWS_COLUMN = "present", "unit rows"
"""Names of the file's last columns; those before them are named by position."""

SMALL = 2**28
"""Maximum size in bytes of a file that may stay in memory as a whole: 256 MB. Chosen, not tuned."""

WINDOW = 2**26
"""Bytes of a larger file that are dropped at a time: 64 MB. Chosen, not tuned."""


@dataclass(frozen=True)
class _Mapped:
    """Memory map of a file: pages that were read count as this process's memory until they are dropped.

    Attributes:
        file: memory map.
        starts: start of each window, multiples of the page's size, and end of the last one; empty for a file that is
            small enough to stay.
        batches: number of batches of a window.
    """

    file: mmap.mmap
    starts: tuple[int, ...]
    batches: int

    @classmethod
    def of(cls, file: mmap.mmap, batches: tuple[pa.RecordBatch, ...]) -> _Mapped:
        """Return the map of a file with these consecutive batches."""
        # Windows are whole batches, so that dropping one cannot split an array.
        per_window = max(1, WINDOW * len(batches) // len(file))
        if len(file) <= SMALL:
            return cls(file, (), per_window)
        base = pa.py_buffer(file).address
        offsets = [batch.column(0).buffers()[1].address - base for batch in batches[::per_window]]
        return cls(file, tuple(offset // mmap.PAGESIZE * mmap.PAGESIZE for offset in (*offsets, len(file))), per_window)

    def enter(self, batch: int) -> None:
        """Begin a batch of a pass: drops the window before it once a new window begins.

        Arrays stay valid: a dropped page is read again when it is needed, usually from the system's cache.
        """
        window, place = divmod(batch, self.batches)
        if place == 0 and 0 < window < len(self.starts):
            start, stop = self.starts[window - 1 : window + 1]
            with contextlib.suppress(OSError):  # fails for pages that are locked into memory
                self.file.madvise(mmap.MADV_DONTNEED, start, stop - start)


@dataclass(frozen=True)
class SnapshotRows:
    """Some columns of a snapshot, read in place (`bursar_server.vault.Rows`).

    Attributes:
        slots: number of slots, null rows included.
        columns: batches of each column.
        present: mask of each batch, False for null rows.
        mapped: map of the file; the arrays are views of it.
    """

    slots: int
    columns: tuple[tuple[NDArray[Any], ...], ...]
    present: tuple[pa.BooleanArray, ...]
    mapped: _Mapped

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """Implement `Rows.read`. Categories are read as their codes."""
        filled = max(0, min(CHUNK, self.slots - first))
        done = 0
        while done < filled:
            batch, offset = divmod(first + done, BATCH)
            if offset == 0:
                self.mapped.enter(batch)
            size = min(filled - done, BATCH - offset)
            for j, column in enumerate(self.columns):
                block[j, done : done + size] = column[batch][offset : offset + size]
            present[done : done + size] = _flags(self.present[batch].slice(offset, size))
            done += size
        block[:, filled:] = 0.0
        present[filled:] = False


_FileIdentity = tuple[int, int, int, int, int]

Identity = tuple[_FileIdentity, _FileIdentity]
"""State of a snapshot's rows and manifest on the disk: device, inode, size, times of last write and change, of each."""


def identity_of(directory: Path) -> Identity:
    """Return the state of a snapshot's files without reading them. Raises SnapshotError if they are missing."""
    try:
        return _identity((directory / ROWS_FILE).stat()), _identity((directory / MANIFEST_FILE).stat())
    except OSError as error:
        raise SnapshotError(
            f"{directory} holds no readable snapshot ({type(error).__name__}); restore it from a backup"
        ) from None


def _identity(status: os.stat_result) -> _FileIdentity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True)
class Snapshot:
    """Imported table.

    Attributes:
        directory: folder of the snapshot; its name is the dataset's id.
        manifest: public facts, including the number of slots under REPLACE_ONE.
        slots: number of slots, null rows included; private under ADD_REMOVE_ONE.
        schema: schema of the file's columns, those of the manifest by position.
    """

    directory: Path
    manifest: Manifest
    slots: int
    schema: pa.Schema = field(repr=False)
    identity: Identity
    _batches: tuple[pa.RecordBatch, ...] = field(repr=False)
    _mapped: _Mapped = field(repr=False)

    @classmethod
    def open(cls, directory: Path) -> Snapshot:
        """Map a snapshot into memory; reads no rows.

        Raises SnapshotError if the folder is not as the import left it.
        """
        try:
            with (directory / ROWS_FILE).open("rb") as file, (directory / MANIFEST_FILE).open("rb") as declared:
                manifest = Manifest.model_validate_json(declared.read())
                schema, batches, mapped = _opened(file, manifest, unit_rows=stores_unit_rows(manifest))
                # Of the open files: by now the paths could name others.
                identity = _identity(os.fstat(file.fileno())), _identity(os.fstat(declared.fileno()))
        except (OSError, ValueError, pa.ArrowException) as error:  # mapping an empty file raises ValueError
            raise SnapshotError(
                f"{directory} holds no readable snapshot ({type(error).__name__}); import the table again"
            ) from None
        slots = sum(batch.num_rows for batch in batches)
        if not slots <= MAX_ROWS:
            raise SnapshotError(
                f"{directory} has more rows than a table may have, {MAX_ROWS}; import a part of the table again"
            )
        return cls(directory, manifest, slots, schema, identity, batches, mapped)

    def rows(self, columns: tuple[str, ...]) -> Rows:
        """Return the named columns, for statistics; `UNIT_ROWS` is K.

        Raises:
            SnapshotError: the manifest has no such column.
        """
        names = [column.name for column in self.manifest.columns]
        if unknown := sorted(set(columns) - {*names, UNIT_ROWS}):
            raise SnapshotError(f"expected columns of {self.manifest.name!r}, got {', '.join(map(repr, unknown))}")

        def column(name: str) -> tuple[NDArray[Any], ...]:
            if name == UNIT_ROWS:
                return tuple(map(_unit_rows, self._batches))
            return tuple(_values(batch.column(names.index(name))) for batch in self._batches)

        return SnapshotRows(
            self.slots,
            tuple(map(column, columns)),
            tuple(batch.column(PRESENT) for batch in self._batches),
            self._mapped,
        )

    def blocks(self) -> Iterator[Block]:
        """Yield all rows, batch by batch: for the server's own bookkeeping, never for fits."""
        return map(_block, self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows as stored, batch by batch; only a few are in memory at a time."""
        return _in_turn(self._batches, self._mapped)


class SnapshotWriter:
    """Writer of blocks of any size as batches of `BATCH` rows; flushes them to the disk on exit.

    With `unit_rows`, K is written, and every block must have it.
    """

    def __init__(self, path: Path, manifest: Manifest, *, unit_rows: bool = False) -> None:
        self.slots = 0
        self._path = path
        self._schema = arrow_schema(manifest, unit_rows=unit_rows)
        self._buffers = [np.zeros(BATCH, dtype=f.type.to_pandas_dtype()) for f in self._schema]
        self._filled = 0

    def __enter__(self) -> Self:
        self._file = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_file(self._file, self._schema)
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()
        self._file.close()
        sync(self._path)

    def append(self, block: Block) -> None:
        """Add rows. Raises ValueError for a block without K if K is written."""
        unit_rows = [block.unit_rows] if UNIT_ROWS_COLUMN in self._schema.names and block.unit_rows is not None else []
        arrays = (*block.values, *unit_rows, block.present)
        done, total = 0, len(block.present)
        while done < total:
            size = min(total - done, BATCH - self._filled)
            for buffer, array in zip(self._buffers, arrays, strict=True):
                buffer[self._filled : self._filled + size] = array[done : done + size]
            self._filled += size
            self.slots += size
            done += size
            if self._filled == BATCH:
                self._flush()

    def _flush(self) -> None:
        if self._filled:
            arrays = [pa.array(buffer[: self._filled]) for buffer in self._buffers]
            self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            self._filled = 0


def stores_unit_rows(manifest: Manifest) -> bool:
    """Return whether K is stored; it is not if it is 1 for every row, which is public."""
    return manifest.unit.max_rows > 1


def arrow_schema(manifest: Manifest, *, unit_rows: bool = False) -> pa.Schema:
    """Return the manifest's columns in order, then K if it is stored, then the mask of present rows.

    No cell is null in Arrow's sense; null rows are marked by the mask.
    """
    kinds = [pa.float64() if isinstance(column, Numeric) else pa.int32() for column in manifest.columns]
    # Named by position: a column of the manifest may be called "present".
    fields = [pa.field(f"column {j}", kind, nullable=False) for j, kind in enumerate(kinds)]
    counts = [pa.field(UNIT_ROWS_COLUMN, pa.int32(), nullable=False)] if unit_rows else []
    return pa.schema([*fields, *counts, pa.field(PRESENT, pa.bool_(), nullable=False)])


def read_blocks(path: Path, manifest: Manifest) -> Iterator[Block]:
    """Yield the rows of a file that `SnapshotWriter` wrote without K, batch by batch."""
    with path.open("rb") as file:
        _, batches, mapped = _opened(file, manifest, unit_rows=False)
    return map(_block, _in_turn(batches, mapped))


def _in_turn(batches: tuple[pa.RecordBatch, ...], mapped: _Mapped) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        mapped.enter(number)
        yield batch


def _opened(
    source: BufferedReader, manifest: Manifest, *, unit_rows: bool
) -> tuple[pa.Schema, tuple[pa.RecordBatch, ...], _Mapped]:
    """Return schema and batches. Raises SnapshotError unless they have the manifest's columns, and K if `unit_rows`."""
    data = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
    file = pa.ipc.open_file(pa.py_buffer(data))
    batches = tuple(file.get_batch(i) for i in range(file.num_record_batches))
    fits = file.schema == arrow_schema(manifest, unit_rows=unit_rows)
    if not fits or any(batch.num_rows != BATCH for batch in batches[:-1]):
        raise SnapshotError(f"{source.name} does not fit its manifest; import the table again")
    return file.schema, batches, _Mapped.of(data, batches)


def _block(batch: pa.RecordBatch) -> Block:
    """Return a batch as the block that was written."""
    stored = UNIT_ROWS_COLUMN in batch.schema.names
    columns = batch.columns[: -2 if stored else -1]
    return Block(
        tuple(map(_values, columns)),
        _flags(batch.column(PRESENT)),
        unit_rows=_unit_rows(batch) if stored else None,
    )


def _unit_rows(batch: pa.RecordBatch) -> NDArray[np.int32]:
    """Return K of each row; 1 if none is stored."""
    if UNIT_ROWS_COLUMN in batch.schema.names:
        return _values(batch.column(UNIT_ROWS_COLUMN))
    return np.broadcast_to(np.int32(1), batch.num_rows)


def _values(column: pa.Array) -> NDArray[Any]:
    """Return a column without copying; pyarrow raises if that is impossible."""
    # Not `to_numpy`, which imports pandas where that is installed: a third of a second of every fit's process.
    return np.from_dlpack(column)


def _flags(column: pa.BooleanArray) -> NDArray[np.bool_]:
    """Return a column of bits as bytes."""
    first, shift = divmod(column.offset, 8)
    bits = np.frombuffer(column.buffers()[1], dtype=np.uint8, offset=first)
    return np.unpackbits(bits, count=shift + len(column), bitorder="little")[shift:].view(np.bool_)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk.

    The ledger has another function for that: code that reads rows does not import the ledger.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
