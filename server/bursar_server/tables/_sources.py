"""Sources of rows: the wanted columns, as stored, in batches. `_cells` converts the cells."""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO, Protocol, runtime_checkable
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from bursar_server.tables._buckets import Place, Stored
from bursar_server.tables._errors import NoTextError, TableImportError
from bursar_server.tables._manifest import Csv
from bursar_server.tables._query import Query
from bursar_server.tables._reading import BATCH, find, quoted, reading

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Name of a folder for rows without a value."""

# The longest record of a CSV file; longer ones stop an import.
_CSV_BLOCK = 2**24

_PARQUET_BUFFER = 2**20
"""Bytes of a column that are read at once. Otherwise pyarrow reads row groups whole, and the next ones ahead of them:
then memory grows with a size that the file's writer chose."""


class Source(Protocol):
    """Table outside of the server."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the named columns, in this order, in batches that fit into memory.

        Every row of the source is included, if necessary as null cells.

        Raises:
            TableImportError: there is no such table or column.
        """


class NamedSource(Source, Protocol):
    """Table outside of the server that names its columns."""

    def columns(self) -> Sequence[tuple[str, pa.DataType | None]]:
        """Return names and, where they are declared, types of the columns, without reading a row."""


_PLAIN = Csv()


@dataclass(frozen=True)
class CsvSource:
    """CSV file with a header, with records as in RFC 4180 but for the delimiter and encoding that it names.

    A record ends with LF or CRLF. A cell that contains a delimiter, a quote, CR or LF stands in quotes, and its own
    quotes are doubled. Every other file is refused, with the line. A lone CR, a quote in an unquoted cell, text after a
    closing quote and an unclosed quote show that writer and reader may disagree about the ends of records; then one
    person's cell could become many records.

    A record with too few or too many cells becomes a row of null cells, after all others.
    """

    path: Place
    form: Csv = _PLAIN

    def columns(self) -> list[tuple[str, None]]:
        """Return the names of the header; a CSV file has no types.

        Raises:
            TableImportError: the first line is no header of different names.
        """
        with reading(self.path):
            found = self._header()
        if problem := _header_problem([name.strip() for name in found]):
            raise TableImportError(
                f"{self.path}: {problem}; expected a header of different names that begin with letters"
            )
        return [(name, None) for name in found]

    def _header(self) -> list[str]:
        with self._text() as text:
            lines = io.TextIOWrapper(text, encoding="utf-8", newline="\n")
            return next(csv.reader(lines, delimiter=self.form.delimiter), [])

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `Source.batches`."""
        with reading(self.path):
            find(columns, self._header(), self.form.delimiter)
            malformed: list[None] = []
            with self._text() as text, self._open(text, columns, malformed) as reader:
                yield from reader
            for first in range(0, len(malformed), BATCH):
                size = min(BATCH, len(malformed) - first)
                yield pa.RecordBatch.from_arrays([pa.nulls(size) for _ in columns], names=list(columns))

    @contextlib.contextmanager
    def _text(self) -> Iterator[BinaryIO]:
        with (
            self.path.open("rb", buffering=0) as file,
            io.BufferedReader(_Records(file, self.path, self.form), BATCH) as text,
        ):
            yield text

    def _open(self, text: BinaryIO, columns: Sequence[str], malformed: list[None]) -> pyarrow.csv.CSVStreamingReader:
        def note(_: pyarrow.csv.InvalidRow) -> str:
            malformed.append(None)
            return "skip"

        return pyarrow.csv.open_csv(
            text,
            pyarrow.csv.ReadOptions(block_size=_CSV_BLOCK),
            # An empty line is a row, too: otherwise an empty cell could change the number of slots.
            pyarrow.csv.ParseOptions(
                delimiter=self.form.delimiter,
                newlines_in_values=True,
                ignore_empty_lines=False,
                invalid_row_handler=note,
            ),
            # As bytes, because a typed column would fail as a whole for one bad cell.
            pyarrow.csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.binary())),
        )


def _header_problem(names: Sequence[str]) -> str | None:
    """Return why the first line is no header, without its words: they may be a row's."""
    if not any(names):
        return "the first line is empty"
    if not all(re.match(r"[^\W\d]", name) for name in names if name):
        return "the first line looks like a row: not every cell begins with a letter"
    if "" in names:
        return f"the first line looks like a row: cell {names.index('') + 1} is empty"
    first: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if first.setdefault(name, place) != place:
            return f"the first line looks like a row: cells {first[name]} and {place} are equal"
    return None


_NO_TEXT: Mapping[bytes, str] = {
    b"\x1f\x8b": "is compressed by gzip: unpack it",
    b"PK\x03\x04": "is a zip archive or a workbook: unpack it, or save the sheet as CSV",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd: unpack it",
    b"BZh91AY&SY": "is compressed by bzip2: unpack it",
    b"\xfd7zXZ": "is compressed by xz: unpack it",
    b"PAR1\x15": "is a Parquet file: name it with --parquet",
    b"SQLite format 3\0": "is an SQLite file: name it with --database",
    codecs.BOM_UTF16_LE: "is text in UTF-16: save it in UTF-8",
    codecs.BOM_UTF16_BE: "is text in UTF-16: save it in UTF-8",
}
"""First bytes of files that are taken for CSV by mistake, and what they are.

More than PAR1, for instance, which a column may be called.
"""


@functools.cache
def _grammar(delimiter: bytes) -> tuple[re.Pattern[bytes], re.Pattern[bytes], re.Pattern[bytes]]:
    """Return the patterns of complete cells, each with what ends it; of the longest beginning of one; of the last."""
    quoted, plain, end = rb'"(?:[^"]++|"")*+', rb'[^"%s\r\n]*+' % delimiter, re.escape(delimiter)
    return (
        re.compile(rb'(?:(?:%s"|%s)(?:%s|\r?\n))*+' % (quoted, plain, end)),
        re.compile(rb'(?:%s"?|%s)\r?' % (quoted, plain)),
        re.compile(rb'%s"|%s' % (quoted, plain)),
    )


_CR_ALONE = re.compile(rb"\r(?!\n|\Z)")
"""A lone CR in a text without quotes; a CR at its end may be half of a line break."""

_LINE_BREAK = re.compile(rb"\r+\n")


class _Records(io.RawIOBase):
    r"""Text of a CSV file, checked and rewritten so that every reader finds the same records.

    It is valid UTF-8 without a byte order mark. Arrow passes malformed records as text to its handler, and fails if
    they are not text, so bytes that are not UTF-8 become "\xff" in ASCII. Different bytes stay different, so that the
    cap on a unit's rows does not merge people whose names were written in another encoding.

    Line breaks are LF, also within quotes: Arrow drops the LF of a CRLF that is split between two of its blocks, and
    the ends of blocks depend on all records before.

    Reading raises TableImportError where the file is not as `CsvSource` requires, or no text at all.
    """

    def __init__(self, file: io.RawIOBase | BinaryIO, path: Place, form: Csv) -> None:
        self._file = file
        self._path = path
        self._delimiter = form.delimiter.encode()
        self._cells, self._cell_begun, self._last_cell = _grammar(self._delimiter)
        encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("backslashreplace")
        self._at_start = True
        self._begun = b""
        self._line = 1
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        ended = False
        while not self._rest and not ended:
            data = self._file.read(BATCH) or b""
            ended = not data
            if self._at_start:
                if kinds := [kind for first, kind in _NO_TEXT.items() if data.startswith(first)]:
                    raise NoTextError(f"{self._path} {kinds[0]}; expected a CSV file")
                self._at_start = False
            self._rest = self._checked(self._decoder.decode(data, final=ended).encode(), last=ended)
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._rest))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def _checked(self, more: bytes, *, last: bool) -> bytes:
        """Return the cells that are complete by now; at the end of the file, all that remains."""
        text = self._begun + more
        if b'"' in text:
            end = _end(self._cells, text)
            stop = _end(self._cell_begun, text, end)
        else:  # same result without quotes, several times as fast
            end = max(text.rfind(self._delimiter), text.rfind(b"\n")) + 1
            alone = _CR_ALONE.search(text)
            stop = alone.end() if alone else len(text)
        if stop < len(text) or (last and not self._last_cell.fullmatch(text, end)):
            problem, place = self._problem(text, end, stop)
            raise self._error(problem, text[:place])
        if len(text) - end > _CSV_BLOCK:
            raise self._error(f"a cell has more than {_CSV_BLOCK} bytes, or its quote is never closed", text[:end])
        self._line += text.count(b"\n", 0, end)
        if last:
            end = len(text)
        self._begun = text[end:]
        return _LINE_BREAK.sub(b"\n", text[:end]) if b"\r" in text else text[:end]

    def _problem(self, text: bytes, cell: int, stop: int) -> tuple[str, int]:
        """Return why the cell that begins at `cell` cannot continue at `stop`, and the position of the fault."""
        unquoted = text[cell : cell + 1] != b'"'
        if text[stop - 1 : stop] == b"\r" and (unquoted or self._last_cell.fullmatch(text, cell, stop - 1)):
            return "a carriage return without a line feed after it, outside quotes", stop
        if stop == len(text):
            return "a quote is never closed", cell
        return "a quote in a cell that does not begin with one" if unquoted else "text after a closing quote", stop

    def _error(self, problem: str, before: bytes) -> TableImportError:
        line = self._line + before.count(b"\n")
        return TableImportError(
            f"{self._path}, line {line}: {problem}. It is not clear where records end; write the file with every text "
            "in quotes, quotes within it doubled, and line feeds between records"
        )


def _end(pattern: re.Pattern[bytes], text: bytes, start: int = 0) -> int:
    """Return the end of a pattern's match at `start`; the patterns here match any text."""
    found = pattern.match(text, start)
    return found.end() if found else start


@dataclass(frozen=True)
class ParquetSource:
    """Parquet file, or a folder with such files of one schema, at any depth, in the order of their names.

    Folders within it that are called `name=value` make a column of text each, whatever the values are: a type that is
    guessed from all values would let one record change how others are read.
    """

    path: Place

    def columns(self) -> list[tuple[str, pa.DataType]]:
        """Return names and types of the columns, without reading a row."""
        with reading(self.path):
            first = self._files()[0]
            with _parquet(first) as file:
                stored = [(field.name, field.type) for field in file.schema_arrow]
            return [*stored, *((name, pa.string()) for name in self._parts(first))]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `Source.batches`."""
        known = self.columns()
        find(columns, [name for name, _ in known])
        with reading(self.path):
            for path in self._files():
                parts = self._parts(path)
                stored = [name for name in columns if name not in parts]
                with _parquet(path) as file:
                    # Every file like the first: what a column holds must not depend on which file a row is in.
                    found = [(field.name, field.type) for field in file.schema_arrow]
                    if [*found, *((name, pa.string()) for name in parts)] != known:
                        raise TableImportError(
                            f"{path} has other columns or types than the first file of {self.path}; expected the same "
                            "ones in each"
                        )
                    # Not on threads, each of which would keep buffers of its own.
                    for batch in file.iter_batches(batch_size=BATCH, columns=stored, use_threads=False):
                        yield pa.RecordBatch.from_arrays(
                            [
                                pa.array([parts[name]] * batch.num_rows, pa.string())
                                if name in parts
                                else batch.column(name)
                                for name in columns
                            ],
                            names=list(columns),
                        )

    def _files(self) -> list[Place]:
        files: list[Place] = [*self.path.rglob("*.parquet")] if self.path.is_dir() else [self.path]
        if not files:
            raise TableImportError(f"{self.path}: expected files that end with .parquet in this folder, found none")
        return sorted(files, key=str)

    def _parts(self, file: Place) -> dict[str, str | None]:
        """Return the columns that the names of a file's folders hold."""
        folders = PurePath(str(file)).relative_to(str(self.path)).parts[:-1]
        pairs = (folder.partition("=") for folder in folders if "=" in folder)
        return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, _, value in pairs}


@contextlib.contextmanager
def _parquet(path: Place) -> Iterator[pyarrow.parquet.ParquetFile]:
    """Open a Parquet file, whose buffers do not grow with it."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(path.open_at_will()) if isinstance(path, Stored) else path
        yield stack.enter_context(pyarrow.parquet.ParquetFile(place, buffer_size=_PARQUET_BUFFER, pre_buffer=False))


@runtime_checkable
class ArrowStream(Protocol):
    """Table that can be read as Arrow: of pyarrow, pandas, polars, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a PyCapsule of the table (Arrow PyCapsule interface)."""


@dataclass(frozen=True)
class ArrowSource:
    """Table in this process's memory, such as a pandas or polars DataFrame or a pyarrow Table.

    Its columns have declared types. Columns of Python objects are refused: Arrow would guess their type from all rows.
    """

    table: ArrowStream

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `Source.batches`."""
        kinds = zip(getattr(self.table, "columns", ()), getattr(self.table, "dtypes", ()), strict=False)
        if objects := [name for name, kind in kinds if str(kind) == "object" and name in columns]:
            raise TableImportError(
                f"columns of Python objects: {', '.join(map(repr, objects))}; give them a type, such as "
                'frame.astype({"name": "string"}), so that no row decides how others are read'
            )
        with reading("the table"):
            reader = pa.RecordBatchReader.from_stream(self.table)
            find(columns, reader.schema.names)
            for batch in reader:
                for first in range(0, batch.num_rows, BATCH):
                    yield batch.select(list(columns)).slice(first, BATCH)


@dataclass(frozen=True)
class SqlSource:
    """Rows of a DuckDB query that the administrator writes or received.

    The query's result is the table, so each of its rows must come from one privacy unit only. Filters and computed
    columns are fine; aggregates, windows, limits and joins between people let one person change the rows of others. So
    does DuckDB's guessing of delimiters, quotes, header and types of a text file, because it looks at many rows:
    `read_csv` needs `auto_detect = false` with `columns`, and `read_json` needs `columns` (`Query.guessed`).

    The query is one SELECT statement, checked before it runs. It reads the database and the files that it names in FROM
    (`Query`), and no others; it writes nothing, sees no variables of this process, and loads no extension.

    Attributes:
        query: one SELECT statement.
        database: DuckDB file, opened read-only; None: a query over files.
    """

    query: str
    database: Path | None = None

    @classmethod
    def of_table(cls, database: Path, table: str) -> SqlSource:
        """Return the rows of one table or view, `name` or `schema.name`, of a DuckDB file."""
        return cls(f"FROM {quoted(table)}", database)

    def parsed(self) -> Query:
        """Return the files that the query reads. Raises TableImportError if it is not one SELECT statement."""
        return Query.parse(self.query)

    def columns(self) -> list[tuple[str, pa.DataType]]:
        """Return names and types of the result, without a row of it."""
        with reading(self.database or "the query"), self._connect() as connection:
            relation = self._bound(connection, self.parsed())
            return [(field.name, field.type) for field in relation.limit(0).to_arrow_table().schema]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `Source.batches`."""
        parsed = self.parsed()
        with reading(self.database or "the query"), self._connect() as connection:
            relation = self._bound(connection, parsed)
            find(columns, relation.columns)
            # DuckDB computes the result batch by batch, so memory does not grow with it.
            for batch in relation.to_arrow_reader(BATCH):
                yield batch.select(list(columns))

    def _bound(self, connection: duckdb.DuckDBPyConnection, parsed: Query) -> duckdb.DuckDBPyRelation:
        """Return the result, of which nothing is computed yet. Its errors are about names and syntax alone."""
        parsed.confine(connection)
        try:
            return connection.sql(self.query)
        except (duckdb.CatalogException, duckdb.BinderException) as error:
            if parsed.guessed:
                raise  # names that are guessed may be cells of a file without a header
            raise TableImportError(f"the query: {error}") from None

    def _connect(self) -> duckdb.DuckDBPyConnection:
        config: dict[str, str | bool | int | float | list[str]] = {
            # No folder to spill to, because rows may be written into the state directory only.
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
        }
        return duckdb.connect(self.database or ":memory:", read_only=self.database is not None, config=config)
