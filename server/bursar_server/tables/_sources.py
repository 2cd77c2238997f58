"""Where rows come from: the wanted columns, as stored, in batches. Cells are judged elsewhere (`_cells`)."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from bursar_server.tables._errors import TableImportError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer

_BATCH = 65_536
# The longest record of a CSV file; longer ones stop an import.
_CSV_BLOCK = 2**24


class Source(Protocol):
    """A table outside of the server."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The named columns, in this order, in batches that fit into memory.

        Raises TableImportError if there is no such table or column. Every row of the source comes, as null cells if
        need be.
        """


@dataclass(frozen=True)
class CsvSource:
    """A CSV file with a header, in UTF-8, comma-separated.

    Its rows are the records of RFC 4180: a quoted cell may hold line breaks. A record with too few or too many cells
    comes as a row of null cells, after all others.
    """

    path: Path

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Source.batches`."""
        with _reading(self.path):
            with self.path.open(newline="", encoding="utf-8-sig", errors="replace") as text:
                _find(columns, next(csv.reader(text), []))
            malformed: list[None] = []
            with self.path.open("rb", buffering=0) as file, self._open(file, columns, malformed) as reader:
                yield from reader
            for first in range(0, len(malformed), _BATCH):
                size = min(_BATCH, len(malformed) - first)
                yield pa.RecordBatch.from_arrays([pa.nulls(size) for _ in columns], names=list(columns))

    def _open(
        self, file: io.RawIOBase, columns: Sequence[str], malformed: list[None]
    ) -> pyarrow.csv.CSVStreamingReader:
        def note(_: pyarrow.csv.InvalidRow) -> str:
            malformed.append(None)
            return "skip"

        return pyarrow.csv.open_csv(
            io.BufferedReader(_ValidText(file), _BATCH),
            pyarrow.csv.ReadOptions(block_size=_CSV_BLOCK),
            # An empty line is a row, too: if it were left out, an empty cell could change the number of slots.
            pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=note),
            # As bytes: a typed column would fail as a whole for one bad cell.
            pyarrow.csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.binary())),
        )


class _ValidText(io.RawIOBase):
    r"""A file's bytes as valid UTF-8: what is none becomes "\xff" in ASCII.

    Arrow shows malformed lines as text to its handler, and fails where they are none. Different bytes stay different,
    so that the cap on a unit's rows does not mix people whose names were written in another encoding.
    """

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        ended = False
        while not self._rest and not ended:
            data = self._file.read(_BATCH) or b""
            ended = not data
            self._rest = self._decoder.decode(data, final=ended).encode()
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._rest))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


@dataclass(frozen=True)
class ParquetSource:
    """A Parquet file."""

    path: Path

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Source.batches`."""
        with _reading(self.path), pyarrow.parquet.ParquetFile(self.path) as file:
            _find(columns, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=_BATCH, columns=list(columns)):
                yield batch.select(list(columns))


@dataclass(frozen=True)
class SqlSource:
    """What a DuckDB query returns; the administrator writes it.

    The query's result is the table, so each of its rows must come from one privacy unit only: filters and computed
    columns are fine; aggregates, windows, limits and joins between people let one person change the rows of others.

    Attributes:
        query: one SELECT statement.
        database: a DuckDB file, opened for reading only; None: a query over files.
    """

    query: str
    database: Path | None = None

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Source.batches`."""
        with _reading(self.database or "the query"), self._connect() as connection:
            relation = connection.sql(self.query)
            if relation is None:
                raise TableImportError("the query returns no table; expected one SELECT statement")
            _find(columns, relation.columns)
            # Computed by DuckDB batch by batch: memory does not grow with the result.
            for batch in relation.to_arrow_reader(_BATCH):
                yield batch.select(list(columns))

    def _connect(self) -> duckdb.DuckDBPyConnection:
        # No folder to spill to: rows are written into the state directory and nowhere else.
        config: dict[str, str | bool | int | float | list[str]] = {"temp_directory": ""}
        return duckdb.connect(self.database or ":memory:", read_only=self.database is not None, config=config)


def _find(wanted: Sequence[str], found: Sequence[str]) -> None:
    """Raises TableImportError unless every wanted column is there exactly once."""
    count = Counter(found)
    problems = [
        f"{name!r} is {'missing' if not count[name] else 'there more than once'}" for name in wanted if count[name] != 1
    ]
    if problems:
        raise TableImportError(
            f"columns of the source: {'; '.join(problems)}; correct the manifest, or name the source's columns so"
        )


@contextlib.contextmanager
def _reading(what: Path | str) -> Iterator[None]:
    """Turns the libraries' errors into one that quotes nothing of the file: theirs do."""
    try:
        yield
    except (OSError, ValueError, csv.Error, pa.ArrowException, duckdb.Error) as error:
        raise TableImportError(
            f"{what} cannot be read ({type(error).__name__}); expected a readable table of the kind that was named"
        ) from None
