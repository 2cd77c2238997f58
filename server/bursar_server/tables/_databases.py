"""Tables in databases: SQLite files and PostgreSQL servers. One query, which writes nothing, is run and streamed.

The order in which a database returns rows is arbitrary, and means nothing (`_snapshot.md`, "Order").
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

import pyarrow as pa

from bursar_server.tables._errors import TableImportError
from bursar_server.tables._reading import BATCH, find, identifier, quoted, reading

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Cursor

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
            chosen = ", ".join(map(identifier, columns))
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


POSTGRESQL = ("postgresql://", "postgres://")
"""Beginnings of the addresses of PostgreSQL."""

_PASSWORDS = ("password", "sslpassword")
"""Parameters of an address that hold a secret."""


@dataclass(frozen=True)
class PostgresSource:
    """Rows of a query of PostgreSQL, in a transaction that reads only.

    The driver streams the result with COPY, in the types that the query has before any row is read. So memory does not
    grow with the rows, and what a cell becomes depends on its column's type and on itself. Numbers of arbitrary
    precision come as text, which the manifest reads as a number.

    What the address leaves out comes from the environment and files, as for all of PostgreSQL's own programs: PGHOST,
    PGUSER, PGSERVICE, PGPASSFILE and others.

    Attributes:
        address: URL `postgresql://...`, without a password.
        query: one statement that returns rows, which the server must accept in a transaction that reads only.

    Raises:
        TableImportError: the address has a password, or cannot be read.
    """

    address: str
    query: str

    def __post_init__(self) -> None:
        _check_address(self.address)

    @classmethod
    def of_table(cls, address: str, table: str) -> PostgresSource:
        """Return the rows of one table or view, `name` or `schema.name`."""
        return cls(address, f"SELECT * FROM {quoted(table)}")  # noqa: S608  quoted

    def columns(self) -> list[tuple[str, pa.DataType | None]]:
        """Return names and types of the result, which is not computed."""
        with self._cursor() as cursor:
            return [(field.name, _meant(field.type)) for field in self._prepared(cursor)]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `Source.batches`."""
        with self._cursor() as cursor:
            schema = self._prepared(cursor)
            find(columns, schema.names)
            if strange := [field for field in map(schema.field, columns) if _is_strange(field.type)]:
                raise TableImportError(
                    f"columns of the source: {', '.join(f'{one.name!r} is {one.type.type_name}' for one in strange)}; "
                    "convert them in a query, for example with ::text"
                )
            chosen = ", ".join(map(identifier, columns))
            with _hiding_errors():
                cursor.execute(f"SELECT {chosen} FROM (\n{self._statement}\n) AS source")  # noqa: S608  quoted, and existing
                for batch in cursor.fetch_record_batch():
                    plain = [_stored(column) for column in batch.columns]
                    for first in range(0, batch.num_rows, BATCH):
                        yield pa.RecordBatch.from_arrays(plain, names=list(columns)).slice(first, BATCH)

    @property
    def _statement(self) -> str:
        return self.query.rstrip().removesuffix(";")

    def _prepared(self, cursor: Cursor) -> pa.Schema:
        """Return the result's schema. The server parses the query and runs nothing: errors are of names and syntax."""
        import adbc_driver_manager as adbc

        try:
            # Before the query, since this is when a transaction can still be told so; notices may quote cells.
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute("SET client_min_messages = error")
            return cursor.adbc_execute_schema(self._statement)
        except adbc.Error as error:
            said = str(error).partition("\n\nQuery was")[0].partition("Failed to prepare query: ")
            raise TableImportError(f"the query: {said[2] or said[0]}") from None

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[Cursor]:
        try:
            import adbc_driver_manager as adbc
            import adbc_driver_postgresql.dbapi as driver
        except ImportError:
            raise TableImportError(
                "the driver for PostgreSQL is not installed; install it: pip install './bursar[server,postgresql]'"
            ) from None
        try:
            connection = driver.connect(self.address)
        except adbc.Error as error:
            raise TableImportError(f"no connection to PostgreSQL: {error}") from None
        with connection, connection.cursor() as cursor:
            yield cursor


def _check_address(address: str) -> None:
    """Raise TableImportError for an address that has, or might have, a password in it; it is not quoted."""
    rest = address.partition("://")[2]
    before, _, parameters = rest.partition("?")
    names = {name.lower() for name, _ in parse_qsl(parameters, keep_blank_values=True)}
    # Where a password has characters that end it, readers of addresses disagree: so the last @ of all counts.
    if ":" in rest.rpartition("@")[0] or not names.isdisjoint(_PASSWORDS):
        raise TableImportError(
            "the address of the database has a password, or an @ after a colon: other users of this machine and the "
            "shell's history see it. Change that password, keep the new one in a file of mode 0600 that PGPASSFILE "
            "names (HOST:PORT:DATABASE:USER:PASSWORD), and leave it out of the address; write %40 for an @ of a name"
        )
    hosts = before.rpartition("@")[2].partition("/")[0]
    if not re.fullmatch(r"(?:(?:\[[0-9A-Fa-f:.%]*\]|[^\[\]:,]*)(?::\d*)?(?:,|$))*", hosts):
        raise TableImportError(
            "the address of the database cannot be read; expected postgresql://USER@HOST:PORT/DATABASE, without a "
            "password"
        )


@contextlib.contextmanager
def _hiding_errors() -> Iterator[None]:
    """Convert errors of a running query, which may quote a cell, to one that quotes nothing."""
    import adbc_driver_manager as adbc

    try:
        yield
    except (OSError, ValueError, adbc.Error, pa.ArrowException) as error:
        raise TableImportError(
            f"the query failed while PostgreSQL ran it ({type(error).__name__})", detail=str(error)
        ) from None


def _is_strange(kind: pa.DataType) -> bool:
    """Return whether a type's cells are bytes in a form of PostgreSQL's own."""
    return isinstance(kind, pa.OpaqueType) and not pa.types.is_string(kind.storage_type)


def _stored(cells: Any) -> pa.Array:
    return cells.storage if isinstance(cells.type, pa.BaseExtensionType) else cells


def _meant(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that a column of the driver's stands for."""
    if isinstance(kind, pa.OpaqueType):
        return pa.float64() if kind.type_name == "numeric" else None
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
