"""Tables in databases: SQLite files. One query, which writes nothing, is run and streamed.

The order in which a database returns rows is arbitrary, and means nothing (`_snapshot.md`, "Order").
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from bursar_server.tables._errors import TableImportError
from bursar_server.tables._reading import BATCH, find, quoted, reading

_SQLITE = b"SQLite format 3\x00"
"""First bytes of every SQLite file that is not empty."""

_AFFINITIES: Sequence[tuple[str, pa.DataType | None]] = (
    ("BOOL", pa.bool_()),
    ("DATE", pa.date32()),
    ("TIME", pa.timestamp("us")),
    ("INT", pa.int64()),
    ("CHAR|CLOB|TEXT", pa.string()),
    ("REAL|FLOA|DOUB|NUM|DEC", pa.float64()),
)
"""Types that a declaration in SQLite suggests, by the first pattern that it contains; a cell may hold another."""


def is_sqlite(path: Path) -> bool:
    """Return whether a file begins as SQLite files do."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


@dataclass(frozen=True)
class SqliteSource:
    """Rows of a SELECT in an SQLite file, opened read-only.

    SQLite stores a type with every cell, and a column may hold several. Drivers that make typed columns guess the type
    from the first rows, so that a row decides how others are read. Here a cell becomes text by itself alone: text and
    blobs are their bytes, integers their digits, and real numbers their shortest text, as in all other sources.

    Attributes:
        database: SQLite file.
        query: one SELECT statement.
    """

    database: Path
    query: str

    @classmethod
    def of_table(cls, database: Path, table: str) -> SqliteSource:
        """Return the rows of one table or view, `name` or `schema.name`."""
        return cls(database, f"SELECT * FROM {quoted(table)}")  # noqa: S608  quoted

    def columns(self) -> list[tuple[str, pa.DataType | None]]:
        """Return names and declared types of the result, without a row of it."""
        with reading(self.database), self._connect() as connection:
            return self._bind(connection)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `Source.batches`."""
        with reading(self.database), self._connect() as connection:
            find(columns, [name for name, _ in self._bind(connection)])
            connection.text_factory = bytes  # text need not be UTF-8
            chosen = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in columns)
            cursor = connection.execute(f"SELECT {chosen} FROM temp.source")  # noqa: S608  quoted, and existing
            while rows := cursor.fetchmany(BATCH):
                yield pa.RecordBatch.from_arrays(
                    [_texts(cells) for cells in zip(*rows, strict=True)], names=list(columns)
                )

    def _bind(self, connection: sqlite3.Connection) -> list[tuple[str, pa.DataType | None]]:
        """Make the query a view, and return its columns. Nothing is computed; errors are about names and syntax."""
        try:
            # The grammar of a view admits one SELECT and nothing else.
            connection.execute(f"CREATE TEMP VIEW source AS {self.query}")
            found = connection.execute("PRAGMA temp.table_info(source)").fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
                raise  # about the file
            raise TableImportError(f"the query: {error}; expected one SELECT statement") from None
        return [(name, _suggested(kind)) for _, name, kind, *_ in found]

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        address = f"file:{quote(str(self.database.absolute()))}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            # No folder to spill to, because rows may be written into the state directory only.
            connection.execute("PRAGMA temp_store = MEMORY")
            yield connection


def _suggested(declared: str) -> pa.DataType | None:
    return next((kind for pattern, kind in _AFFINITIES if re.search(pattern, declared.upper())), None)


def _texts(cells: Sequence[object]) -> pa.Array:
    """Return cells of SQLite as bytes, each by itself."""
    if float in set(map(type, cells)):
        # Arrow's text of a number, so that 2.0 is the category "2" here as in a Parquet file.
        reals = pa.array([cell if isinstance(cell, float) else None for cell in cells], pa.float64())
        written = reals.cast(pa.string()).to_pylist()
        cells = [cell if text is None else text.encode() for cell, text in zip(cells, written, strict=True)]
    return pa.array([b"%d" % cell if isinstance(cell, int) else cell for cell in cells], pa.binary())
