"""Commands for manifests: a skeleton, a check, the schema for editors."""

from __future__ import annotations

from pathlib import Path

import click

from bursar_ledger.audit._formats import InOrder
from bursar_server.admin._acting import FILE, JSON, say_json
from bursar_server.admin._asking import ask_manifest, csv_form
from bursar_server.admin._rows import Rows, rows_options
from bursar_server.tables import (
    Csv,
    Manifest,
    ManifestError,
    SqlSource,
    TableImportError,
    skeleton,
    written,
)


@click.group(cls=InOrder)
def manifest() -> None:
    """Write and check the manifest of a table: what its owner declares public, in TOML."""


@manifest.command()
@rows_options
@click.option(
    "--ask", is_flag=True, help="Ask for every answer, with templates for ages, money, dates, codes and others."
)
def new(rows: Rows, *, ask: bool) -> None:
    """Write a skeleton to standard output: names and types of the columns, and a TODO for every bound and category.

    No row is read for it: a bound that is computed from rows is not public. Fill it in from what you know, check it,
    and try it with bursar-admin import --dry-run. With --ask the program asks for what is missing, and writes a whole
    manifest; without a terminal it reads the answers from standard input, one a line.

    \b
      bursar-admin manifest new --parquet people.parquet > people.toml
      bursar-admin manifest new --database people.sqlite --table people > people.toml
      bursar-admin manifest new --csv people.csv --ask > people.toml
    """  # noqa: D301  click reads the backslash
    form = None if rows.csv is None else csv_form(rows.csv)
    source = rows.source(form or Csv())
    if isinstance(source, SqlSource) and source.parsed().guessed:
        raise TableImportError(
            "DuckDB would guess types from the rows of a file that the query reads; give the file to --csv, or "
            "declare its columns in the query"
        )
    # A CSV file's header is read again by the questions, in the form that they ask for.
    columns = () if ask and rows.csv is not None else source.columns()
    click.echo(written(ask_manifest(rows.name, columns, rows.csv)) if ask else skeleton(columns, form), nl=False)


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
