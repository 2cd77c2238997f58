"""Import of a source into a snapshot, on the administrator's machine, and its report, which is for them alone.

The import maps neighbours to neighbours: `_snapshot.md`.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bursar_ledger import Adjacency
from bursar_server.tables._cap import CapKeys, UnitCap
from bursar_server.tables._cells import Block, Raw, clean, is_empty, is_known, is_readable, parse, texts, without_views
from bursar_server.tables._errors import TableImportError
from bursar_server.tables._keys import Fingerprint
from bursar_server.tables._manifest import Categorical, Manifest, Numeric
from bursar_server.tables._snapshot import (
    BATCH,
    MANIFEST_FILE,
    ROWS_FILE,
    SnapshotWriter,
    read_blocks,
    stores_unit_rows,
    sync,
)
from bursar_server.tables._sources import Source
from bursar_server.vault import MAX_ROWS

ACCEPTED = Fraction(1, 5)
"""Largest share of bad rows, or of bad values of a column, that is accepted without being asked for."""

EXAMPLES = 5
"""Maximum number of different bad cells of a column that are kept."""


@dataclass(frozen=True)
class ColumnReport:
    """Counts of one column's cells.

    Attributes:
        bad: number of cells that hold something which is no number, or none of the categories.
        clipped_low: number of values of present rows that were moved up to the lower bound.
        clipped_high: number of values of present rows that were moved down to the upper bound.
        examples: up to `EXAMPLES` different bad cells, the first of the source; kept out of `repr`.
    """

    name: str
    bad: int = 0
    missing: int = 0
    clipped_low: int = 0
    clipped_high: int = 0
    examples: tuple[str, ...] = field(default=(), repr=False)

    @property
    def clipped(self) -> int:
        """Number of values of present rows that were moved to a bound."""
        return self.clipped_low + self.clipped_high

    def plus(
        self,
        cells: pa.Array,
        raw: Raw,
        column: Numeric | Categorical,
        present: NDArray[np.bool_],
    ) -> ColumnReport:
        """Return the counts with those of more cells; `raw` is their `parse`, `present` the mask of present rows."""
        unread = cells.filter(pa.array(~is_known(raw)))
        empty = is_empty(unread, column)
        low = high = 0
        if isinstance(column, Numeric):
            low = int(np.count_nonzero((raw < column.lower) & np.isfinite(raw) & present))
            high = int(np.count_nonzero((raw > column.upper) & np.isfinite(raw) & present))
        return ColumnReport(
            self.name,
            self.bad + int(np.count_nonzero(~empty)),
            self.missing + int(np.count_nonzero(empty)),
            self.clipped_low + low,
            self.clipped_high + high,
            _examples(self.examples, unread.filter(pa.array(~empty))),
        )


@dataclass(frozen=True)
class ImportReport:
    """Report of an import.

    Counts, examples and fingerprint depend on the data: they are for the administrator only, and appear in no ledger,
    log or answer.

    Attributes:
        null_rows: number of rows that lack a required number, category or unit.
        rows_without_value: number of those whose every cell is empty, as of CSV records with too few or too many cells.
        rows_without_unit: number of those that lack the unit alone.
        rows_over_cap: number of rows left out because their unit had more than the cap.
        fingerprint: digest by which the table is recognised (`Fingerprint`); kept out of `repr`.
    """

    dataset_id: str
    directory: Path
    rows_read: int
    null_rows: int
    rows_without_value: int
    rows_without_unit: int
    rows_over_cap: int
    columns: tuple[ColumnReport, ...]
    fingerprint: bytes = field(repr=False)

    def share(self, n: int) -> Fraction:
        """Return a number of rows as a share of all."""
        return Fraction(n, self.rows_read) if self.rows_read else Fraction(0)

    def percent(self, n: int) -> str:
        """Return a number of rows as a share of all, for people."""
        return f"{float(self.share(n)):.1%}"

    def problems(self, accepted: Fraction | None) -> list[str]:
        """Return why the table is refused; none if it is not."""
        limit = ACCEPTED if accepted is None else accepted
        # A nullable column's bad values make no bad row, and are lost all the same.
        found = [
            f"{column.name}: {self.percent(column.bad)} of the values are bad"
            for column in self.columns
            if self.share(column.bad) > limit
        ]
        if self.share(self.null_rows) > limit:
            found.append(f"{self.percent(self.null_rows)} of the rows are bad")
        if accepted is None:
            # A total is promised once: it is for people, of whom an empty table has none.
            found += [] if self.rows_read else ["the table has no rows"]
            found += [
                f"{column.name}: no value could be read"
                for column in self.columns
                if self.rows_read and column.bad + column.missing == self.rows_read
            ]
        return found


def _examples(known: tuple[str, ...], bad: pa.Array) -> tuple[str, ...]:
    if len(known) >= EXAMPLES or not len(bad):
        return known
    found: Sequence[Any] = texts(bad).unique()[: 2 * EXAMPLES].to_pylist()
    new = [text.decode(errors="backslashreplace") for text in found]
    return tuple(dict.fromkeys((*known, *new)))[:EXAMPLES]


DATASETS = "datasets"
"""Folder of a state directory that holds the snapshots."""

_UNCAPPED = "uncapped.arrow"


@dataclass
class _Counts:
    columns: tuple[ColumnReport, ...]
    rows_read: int = 0
    null_rows: int = 0
    rows_without_value: int = 0
    rows_without_unit: int = 0
    rows_over_cap: int = 0

    def add(self, cells: Sequence[pa.Array], raw: Sequence[Raw], block: Block, manifest: Manifest) -> None:
        self.rows_read += len(block.present)
        self.null_rows += len(block.present) - block.rows
        unknown = pa.array(~np.logical_or.reduce([is_known(x) for x in raw]))
        empty = [is_empty(array.filter(unknown), column) for array, column in zip(cells, manifest.columns, strict=True)]
        self.rows_without_value += int(np.count_nonzero(np.logical_and.reduce(empty)))
        self.columns = tuple(
            counts.plus(given, parsed, column, block.present)
            for counts, given, parsed, column in zip(self.columns, cells, raw, manifest.columns, strict=True)
        )


_Rows = tuple[Block, pa.Array]


def store_table(manifest: Manifest, source: Source, state_dir: Path, keys: CapKeys) -> ImportReport:
    """Clean a source row by row and store it as an immutable snapshot under `state_dir`/datasets.

    The snapshot appears complete or not at all. Memory does not grow with the rows, except where a unit column caps
    them: by four bytes a row, and by about 150 bytes for each row that is sorted at a time, a 256th of all rows or
    those of the largest unit.

    Raises:
        TableImportError: a column is missing or of an unreadable type, or there are more rows than `MAX_ROWS` or
            `manifest.public_rows` allow. The message names columns and limits but no values.
    """
    counts = _Counts(tuple(ColumnReport(column.name) for column in manifest.columns))
    fingerprint = Fingerprint(manifest)
    with _new_folder(state_dir / DATASETS) as (partial, final):
        _write(manifest, source, partial, keys, counts, fingerprint)
    return ImportReport(final.name, final, **vars(counts), fingerprint=fingerprint.digest())


@contextlib.contextmanager
def _new_folder(parent: Path) -> Iterator[tuple[Path, Path]]:
    """Create a folder to fill, which gets its final name once its files are on the disk, or is removed."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    final = parent / secrets.token_hex(16)
    partial = parent / f".{final.name}.partial"
    partial.mkdir(mode=0o700)
    try:
        yield partial, final
        for path in partial.iterdir():
            # Read-only, because a snapshot never changes once it is registered.
            path.chmod(0o400)
        # The names in the folder before its own: after a power cut the final name never shows a part of a table.
        sync(partial)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync(parent)


def _write(
    manifest: Manifest, source: Source, folder: Path, keys: CapKeys, counts: _Counts, fingerprint: Fingerprint
) -> None:
    blocks = _cleaned(manifest, source, counts, fingerprint)
    if manifest.unit.column is not None:
        blocks = _capped(blocks, manifest, folder / _UNCAPPED, keys, counts)
    with SnapshotWriter(folder / ROWS_FILE, manifest, unit_rows=stores_unit_rows(manifest)) as writer:
        for block, _ in blocks:
            writer.append(block)
        for block in _padding(manifest, writer.slots):
            writer.append(block)
    (folder / MANIFEST_FILE).write_text(manifest.with_slots(writer.slots).model_dump_json(indent=1), encoding="utf-8")
    sync(folder / MANIFEST_FILE)


def _cleaned(manifest: Manifest, source: Source, counts: _Counts, fingerprint: Fingerprint) -> Iterator[_Rows]:
    """Yield the source's rows within the schema, with the cells of the unit column if there is one."""
    unit = () if manifest.unit.column is None else (manifest.unit.column,)
    checked = False
    for batch in source.batches((*(column.name for column in manifest.columns), *unit)):
        if not checked:
            _check_types(manifest, batch.schema)
            checked = True
        cells = [without_views(column) for column in batch.columns[: len(manifest.columns)]]
        raw = parse(cells, manifest.columns)
        block = clean(raw, manifest.columns)
        counts.add(cells, raw, block, manifest)
        fingerprint.add(raw, block.present)
        # Checked while reading, so that a source that is too large does not fill the disk first.
        _check_rows(manifest, counts.rows_read, complete=False)
        yield block, batch.columns[-1]
    _check_rows(manifest, counts.rows_read, complete=True)


def _capped(
    blocks: Iterator[_Rows], manifest: Manifest, spare: Path, keys: CapKeys, counts: _Counts
) -> Iterator[_Rows]:
    """Yield the rows within the cap; reads them twice, through a file, because K is known only after all rows."""
    cap = UnitCap(keys, manifest.unit.max_rows, spare)
    with SnapshotWriter(spare, manifest) as writer:
        for block, units in blocks:
            owned = cap.add(block, units)
            counts.rows_without_unit += block.rows - owned.rows
            writer.append(owned)
    counts.null_rows += counts.rows_without_unit
    found = cap.unit_rows()
    counts.rows_over_cap = int(np.count_nonzero(found == 0))
    first = 0
    for block in read_blocks(spare, manifest):
        unit_rows = np.zeros(len(block.present), dtype=np.int32)
        unit_rows[block.present] = found[first : first + block.rows]
        first += block.rows
        yield replace(block.only(unit_rows > 0), unit_rows=unit_rows), None
    spare.unlink()


def _padding(manifest: Manifest, slots: int) -> Iterator[Block]:
    """Yield null rows up to the public number of slots, if the owner declared one that hides the number of rows."""
    missing = (manifest.public_rows or 0) - slots if manifest.adjacency is Adjacency.REPLACE_ONE else 0
    for first in range(0, missing, BATCH):
        size = min(BATCH, missing - first)
        nulls = [pa.nulls(size)] * len(manifest.columns)
        block = clean(parse(nulls, manifest.columns), manifest.columns)
        yield replace(block, unit_rows=np.zeros(size, dtype=np.int32))


def _check_types(manifest: Manifest, schema: pa.Schema) -> None:
    numeric = [column if isinstance(column, Numeric) else None for column in manifest.columns] + [None]
    problems = [
        f"{field.name!r} is {field.type}, expected {_expected(column)}"
        for field, column in zip(schema, numeric, strict=False)
        if not is_readable(field.type, column)
    ]
    if problems:
        raise TableImportError(f"columns of the source: {'; '.join(problems)}; convert them, for example in a query")


def _expected(column: Numeric | None) -> str:
    if column is None:
        return "text or numbers"
    return "numbers, or dates with the field `date`" if column.date is None else "dates, or text"


def _check_rows(manifest: Manifest, rows: int, *, complete: bool) -> None:
    """Raise TableImportError for more rows than allowed and, once all are read, for fewer than declared."""
    declared = manifest.public_rows if manifest.adjacency is Adjacency.REPLACE_ONE else None
    if declared is None and rows > MAX_ROWS:
        raise TableImportError(f"the source has more rows than a table may have, {MAX_ROWS}; import a part of it")
    if declared is not None and rows > declared:
        raise TableImportError(f"the source has more rows than public_rows, {declared}; correct the manifest")
    if complete and rows == 0 and declared is None and manifest.adjacency is Adjacency.REPLACE_ONE:
        raise TableImportError("the source has no rows, expected at least one slot under replace_one")
    if complete and declared is not None and manifest.unit.column is None and rows != declared:
        raise TableImportError(f"the source has {rows} rows, expected {declared} (public_rows); correct the manifest")
