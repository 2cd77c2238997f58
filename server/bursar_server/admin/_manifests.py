"""Commands for manifests: a skeleton, a check, the schema for editors."""

from __future__ import annotations

from pathlib import Path

import click

from bursar_server.admin._acting import FILE, FOLDER, JSON, InOrder, explained, say_json
from bursar_server.admin._asking import ask_manifest
from bursar_server.tables import (
    CsvSource,
    Manifest,
    ManifestError,
    Names,
    ParquetSource,
    SqlSource,
    TableImportError,
    skeleton,
    written,
)


@click.group(cls=InOrder)
def manifest() -> None:
    """Write and check the manifest of a table: what its owner declares public, in TOML."""


@manifest.command()
@click.option("--csv", type=FILE, help="Names from the header of a CSV file.")
@click.option("--parquet", type=FOLDER, help="Names and types from a Parquet file, or a folder of such files.")
@click.option("--sql", help="Names and types from a DuckDB query, which is not run.")
@click.option("--database", type=FILE, help="DuckDB file for --sql.")
@click.option(
    "--ask", is_flag=True, help="Ask for every answer, with templates for ages, money, dates, codes and others."
)
def new(csv: Path | None, parquet: Path | None, sql: str | None, database: Path | None, *, ask: bool) -> None:
    """Write a skeleton to standard output: names and types of the columns, and a TODO for every bound and category.

    No row is read for it: a bound that is computed from rows is not public. Fill it in from what you know, check it,
    and try it with bursar-admin import --dry-run. With --ask the program asks for what is missing, and writes a whole
    manifest; without a terminal it reads the answers from standard input, one a line.

    \b
      bursar-admin manifest new --parquet people.parquet > people.toml
      bursar-admin manifest new --csv people.csv --ask > people.toml
    """  # noqa: D301  click reads the backslash
    with explained():
        if sum(given is not None for given in (csv, parquet, sql)) != 1 or (database and not sql):
            raise ValueError("give exactly one of --csv, --parquet and --sql; --database goes with --sql")
        if sql is not None:
            source = SqlSource(sql, database)
            if source.parsed().guessed:
                raise TableImportError(
                    "DuckDB would guess types from the rows of a file that the query reads; give the file to --csv, or "
                    "declare its columns in the query"
                )
            columns: Names = source.columns()
        elif csv is None:
            columns = ParquetSource(Path(str(parquet))).columns()
        else:
            columns = () if ask else CsvSource(csv).columns()
        name = (csv or parquet or database or Path("table")).stem
        click.echo(written(ask_manifest(name, columns, csv)) if ask else skeleton(columns), nl=False)


@manifest.command()
@click.argument("file", type=FILE)
@JSON
def check(file: Path, as_json: bool) -> None:
    """Check a manifest without rows: every problem with its field, column and line."""
    try:
        read = Manifest.load(file)
    except ManifestError as error:
        if not as_json:
            raise click.ClickException(str(error)) from None
        say_json({"problems": error.problems})
        raise SystemExit(1) from None
    if as_json:
        say_json({"problems": []})
        return
    unit = "one row" if read.unit.column is None else f"all rows with one {read.unit.column}"
    click.echo(f"{file} is a manifest: {read.name}, {len(read.columns)} columns, unit: {unit}, {read.adjacency.value}")


@manifest.command()
def schema() -> None:
    """Write the JSON Schema of manifests to standard output, for editors that complete and check TOML."""
    say_json(Manifest.editor_schema())
