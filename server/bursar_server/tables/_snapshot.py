"""The snapshot: a table as fits read it, in one immutable, memory-mapped Arrow file. Proof in `_snapshot.md`."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bursar_server.fits import UNIT_ROWS
from bursar_server.tables._cells import Block
from bursar_server.tables._errors import SnapshotError
from bursar_server.tables._manifest import Manifest, Numeric
from bursar_server.vault import CHUNK, Rows

BATCH = 8 * CHUNK
"""Rows of every batch of a snapshot's file but the last."""

ROWS_FILE = "rows.arrow"
MANIFEST_FILE = "manifest.json"

PRESENT, UNIT_ROWS_COLUMN = "present", "unit rows"
"""Names of the file's last columns; those before them are named by position."""

SMALL = 2**28
"""Bytes of a file up to which all of it may stay in memory."""

WINDOW = 2**26
"""Bytes of a larger file that are dropped at a time."""


@dataclass(frozen=True)
class _Mapped:
    """A file in memory as long as it is looked at: what was read counts as this process's memory until it is dropped.

    Attributes:
        file: the map.
        starts: where each window begins, multiples of the page's size, and where the last one ends; empty for a file
            that is small enough to stay.
        batches: of a window.
    """

    file: mmap.mmap
    starts: tuple[int, ...]
    batches: int

    @classmethod
    def of(cls, file: mmap.mmap, batches: tuple[pa.RecordBatch, ...]) -> _Mapped:
        """The map of a file with these batches, one after the other."""
        per_window = max(1, WINDOW * len(batches) // len(file))
        if len(file) <= SMALL:
            return cls(file, (), per_window)
        base = pa.py_buffer(file).address
        offsets = [batch.column(0).buffers()[1].address - base for batch in batches[::per_window]]
        return cls(file, tuple(offset // mmap.PAGESIZE * mmap.PAGESIZE for offset in (*offsets, len(file))), per_window)

    def enter(self, batch: int) -> None:
        """Told at the begin of every batch of a pass: drops the window before it once a new one begins.

        Arrays stay what they are: a page that is looked at again is read again, most likely from the system's cache.
        """
        window, place = divmod(batch, self.batches)
        if place == 0 and 0 < window < len(self.starts):
            start, stop = self.starts[window - 1 : window + 1]
            with contextlib.suppress(OSError):  # pages that are locked into memory stay there
                self.file.madvise(mmap.MADV_DONTNEED, start, stop - start)


@dataclass(frozen=True)
class SnapshotRows:
    """Some columns of a snapshot, read where they lie (`bursar_server.vault.Rows`).

    Attributes:
        slots: number of slots, null rows included.
        columns: for each column, its batches.
        present: for each batch, which rows are not null.
        mapped: the file that they are views of.
    """

    slots: int
    columns: tuple[tuple[NDArray[Any], ...], ...]
    present: tuple[pa.BooleanArray, ...]
    mapped: _Mapped

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """See `Rows.read`. Categories come as their codes."""
        filled = max(0, min(CHUNK, self.slots - first))
        done = 0
        while done < filled:
            batch, offset = divmod(first + done, BATCH)
            if offset == 0:
                self.mapped.enter(batch)
            size = min(filled - done, BATCH - offset)
            for j, column in enumerate(self.columns):
                block[j, done : done + size] = column[batch][offset : offset + size]
            present[done : done + size] = self.present[batch].slice(offset, size).to_numpy(zero_copy_only=False)
            done += size
        block[:, filled:] = 0.0
        present[filled:] = False


@dataclass(frozen=True)
class Snapshot:
    """An imported table.

    Attributes:
        directory: its folder; the folder's name is the dataset's id.
        manifest: what is public about it, including the number of slots under REPLACE_ONE.
        slots: number of slots, null rows included; private under ADD_REMOVE_ONE.
        has_unit_rows: whether `rows` can give `UNIT_ROWS`: always, but for capped tables that were imported before
            imports stored it.
        schema: of the file's columns, those of the manifest by position.
    """

    directory: Path
    manifest: Manifest
    slots: int
    has_unit_rows: bool
    schema: pa.Schema = field(repr=False)
    _batches: tuple[pa.RecordBatch, ...] = field(repr=False)
    _mapped: _Mapped = field(repr=False)

    @classmethod
    def open(cls, directory: Path) -> Snapshot:
        """Map a snapshot into memory. Reads no row. Raises SnapshotError if the folder is not as the import left it."""
        try:
            manifest = Manifest.model_validate_json((directory / MANIFEST_FILE).read_bytes())
            schema, batches, mapped = _opened(directory / ROWS_FILE, manifest)
        except (OSError, ValueError, pa.ArrowException) as error:  # a map of nothing is a ValueError
            raise SnapshotError(
                f"{directory} holds no readable snapshot ({type(error).__name__}); import the table again"
            ) from None
        has_unit_rows = UNIT_ROWS_COLUMN in schema.names or not stores_unit_rows(manifest)
        return cls(
            directory, manifest, sum(batch.num_rows for batch in batches), has_unit_rows, schema, batches, mapped
        )

    def rows(self, columns: tuple[str, ...]) -> Rows:
        """The named columns, for statistics; `UNIT_ROWS` gives K.

        Raises SnapshotError for a column that the manifest does not name, and for K where the import stored none.
        """
        names = [column.name for column in self.manifest.columns]
        if unknown := sorted(set(columns) - {*names, UNIT_ROWS}):
            raise SnapshotError(f"expected columns of {self.manifest.name!r}, got {', '.join(map(repr, unknown))}")
        if UNIT_ROWS in columns and not self.has_unit_rows:
            raise SnapshotError(
                f"{self.manifest.name!r} was imported before imports counted the rows of each unit; "
                "import its rows again with: bursar-admin snapshot"
            )

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
        """All rows, batch by batch: for the server's own bookkeeping, never for fits."""
        return map(_block, self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows as the file has them, batch by batch, of which a few are in memory at a time."""
        return _in_turn(self._batches, self._mapped)


class SnapshotWriter:
    """Writes blocks of any size as batches of `BATCH` rows, and puts them onto the disk when it is left.

    Args:
        path: of the file.
        manifest: of the table.
        unit_rows: whether to write K; then every block must have it.
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
        """Add rows. Raises ValueError for a block without K where K is written."""
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
    """Whether K is stored: not where it is 1 for every row, which is public."""
    return manifest.unit.max_rows > 1


def arrow_schema(manifest: Manifest, *, unit_rows: bool = False) -> pa.Schema:
    """The manifest's columns in order, then K if it is stored, then which rows are present.

    No cell is null for Arrow: null rows are ours.
    """
    kinds = [pa.float64() if isinstance(column, Numeric) else pa.int32() for column in manifest.columns]
    # Named by position: a column of the manifest may be called "present".
    fields = [pa.field(f"column {j}", kind, nullable=False) for j, kind in enumerate(kinds)]
    counts = [pa.field(UNIT_ROWS_COLUMN, pa.int32(), nullable=False)] if unit_rows else []
    return pa.schema([*fields, *counts, pa.field(PRESENT, pa.bool_(), nullable=False)])


def read_blocks(path: Path, manifest: Manifest) -> Iterator[Block]:
    """The rows of a file that `SnapshotWriter` wrote, batch by batch."""
    _, batches, mapped = _opened(path, manifest)
    return map(_block, _in_turn(batches, mapped))


def _in_turn(batches: tuple[pa.RecordBatch, ...], mapped: _Mapped) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        mapped.enter(number)
        yield batch


def _opened(path: Path, manifest: Manifest) -> tuple[pa.Schema, tuple[pa.RecordBatch, ...], _Mapped]:
    """Schema and batches, with K or without. Raises SnapshotError if the file has another shape than the manifest's."""
    with path.open("rb") as source:
        data = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
    file = pa.ipc.open_file(pa.py_buffer(data))
    batches = tuple(file.get_batch(i) for i in range(file.num_record_batches))
    fits = any(file.schema == arrow_schema(manifest, unit_rows=stored) for stored in (False, True))
    if not fits or any(batch.num_rows != BATCH for batch in batches[:-1]):
        raise SnapshotError(f"{path} does not fit its manifest; import the table again")
    return file.schema, batches, _Mapped.of(data, batches)


def _block(batch: pa.RecordBatch) -> Block:
    """As it was written."""
    stored = UNIT_ROWS_COLUMN in batch.schema.names
    columns = batch.columns[: -2 if stored else -1]
    return Block(
        tuple(map(_values, columns)),
        batch.column(PRESENT).to_numpy(zero_copy_only=False),
        unit_rows=_unit_rows(batch) if stored else None,
    )


def _unit_rows(batch: pa.RecordBatch) -> NDArray[np.int32]:
    """K of each row; where none is stored, 1."""
    if UNIT_ROWS_COLUMN in batch.schema.names:
        return _values(batch.column(UNIT_ROWS_COLUMN))
    return np.broadcast_to(np.int32(1), batch.num_rows)


def _values(column: pa.Array) -> NDArray[Any]:
    """Without copying; pyarrow raises if that is impossible."""
    return np.asarray(column.to_numpy(zero_copy_only=True))


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
