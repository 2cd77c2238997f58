"""Options that say where rows are, and what is shown of a source's errors."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bursar_server.admin._acting import FILE, FOLDER, explained
from bursar_server.tables import (
    BUCKETS,
    POSTGRESQL,
    Csv,
    CsvSource,
    NamedSource,
    ParquetSource,
    Place,
    PostgresSource,
    SqliteSource,
    SqlSource,
    Stored,
    TableImportError,
    is_sqlite,
)

_CHOICE = (
    "give exactly one of --csv, --parquet, --sql and --table; --table goes with --database, and --database with one of "
    "--table and --sql"
)


@dataclass(frozen=True)
class Rows:
    """Place of a table, as the options name it.

    Attributes:
        csv: CSV file, here or in a bucket.
        parquet: Parquet file or folder, here or in a bucket.
        database: file of a database, or the address of one.
        table: table or view of the database.
        sql: query, of the database or over the files that it names.
    """

    csv: Place | None
    parquet: Place | None
    database: Path | str | None
    table: str | None
    sql: str | None

    def __post_init__(self) -> None:
        given = [one for one in (self.csv, self.parquet, self.table, self.sql) if one is not None]
        of_file = self.csv is not None or self.parquet is not None
        alone = self.database is not None if of_file else self.table is not None and self.database is None
        if len(given) != 1 or alone:
            raise ValueError(_CHOICE)

    @property
    def name(self) -> str:
        """Name that the place suggests for the table."""
        if self.table is not None:
            return self.table.rpartition(".")[2]
        return next((one.stem for one in (self.csv, self.parquet, self.database) if isinstance(one, Place)), "table")

    def source(self, form: Csv) -> NamedSource:
        """Return the source. `form` is that of a CSV file."""
        if self.csv is not None:
            return CsvSource(self.csv, form)
        if self.parquet is not None:
            return ParquetSource(self.parquet)
        if isinstance(self.database, str):
            return (
                PostgresSource(self.database, self.sql)
                if self.sql is not None
                else PostgresSource.of_table(self.database, str(self.table))
            )
        if self.database is not None and is_sqlite(self.database):
            return (
                SqliteSource(self.database, self.sql)
                if self.sql is not None
                else SqliteSource.of_table(self.database, str(self.table))
            )
        if self.database is not None and self.table is not None:
            return SqlSource.of_table(self.database, self.table)
        return SqlSource(str(self.sql), self.database)


class _File(click.ParamType[Place]):
    """File, or also a folder, which exists; or an address in a bucket."""

    def __init__(self, kind: click.Path) -> None:
        self._kind = kind
        self.name = "WHERE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        if isinstance(value, str) and value.startswith(BUCKETS):
            with explained():
                return Stored(value)
        return Path(os.fsdecode(self._kind.convert(value, param, ctx)))


class _Database(click.ParamType[Path | str]):
    """File of a database, which exists, or an address, whose password nobody may read."""

    name = "FILE or postgresql://..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        if isinstance(value, str) and value.startswith(POSTGRESQL):
            return value
        found: Path = FILE.convert(value, param, ctx)
        return found


def rows_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where rows are; the function gets them as `rows`, and its errors are shown."""

    @functools.wraps(function)
    def with_rows(
        *arguments: Any,
        csv: Place | None,
        parquet: Place | None,
        database: Path | str | None,
        table: str | None,
        sql: str | None,
        verbose: bool,
        **options: Any,
    ) -> None:
        with explained(), _detailed(verbose=verbose):
            function(*arguments, rows=Rows(csv, parquet, database, table, sql), **options)

    options: list[Callable[[Any], Any]] = [
        click.option("--verbose", is_flag=True, help="Show errors of the source as they are: they may quote a cell."),
        click.option("--sql", help="One SELECT, of the database, or in DuckDB over the files that it names."),
        click.option("--table", metavar="NAME", help="Table or view of the database: NAME or SCHEMA.NAME."),
        click.option(
            "--database",
            type=_Database(),
            metavar="WHERE",
            help="DuckDB or SQLite file, or postgresql://USER@HOST/DATABASE without a password; with --table or --sql.",
        ),
        click.option(
            "--parquet", type=_File(FOLDER), help="Parquet file, or folder of such files, also as s3://BUCKET/NAME."
        ),
        click.option("--csv", type=_File(FILE), help="CSV file with a header, also as s3://BUCKET/NAME."),
    ]
    decorated: Callable[..., None] = with_rows
    for option in options:
        decorated = option(decorated)
    return decorated


@contextlib.contextmanager
def _detailed(*, verbose: bool) -> Iterator[None]:
    try:
        yield
    except TableImportError as error:
        if not error.detail:
            raise
        if not verbose:
            raise ValueError(f"{error}. --verbose shows the reader's own message, which may quote a cell") from None
        # Without characters that a terminal obeys.
        shown = "".join(
            letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in error.detail
        )
        raise ValueError(f"{error}:\n{shown}") from None
