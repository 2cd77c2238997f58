"""Output of commands: lists of commands, and lines of a table as CSV, JSON or Parquet, never all of it in memory."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ._text import visible

Record = Mapping[str, Any]

_BATCH = 10_000
"""Rows of Parquet that are in memory at a time."""
# A spreadsheet takes a cell that begins so for a formula and runs it (OWASP, "CSV Injection").
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # with the full-width forms, which some programs accept, too


class InOrder(click.Group):
    """Group that lists its commands in the order in which they were added, each with its whole first sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):  # click would cut off a long sentence at the end of the line
            formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=500)) for name in self.commands])


def csv_lines(columns: Sequence[str], records: Iterable[Record]) -> Iterator[str]:
    """Yield RFC 4180 lines; None is empty. A text that a spreadsheet would take for a formula gets an apostrophe."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    # Names, too: those of a query are what its text says.
    names = [_cell(name) for name in columns]
    for cells in itertools.chain([names], ([_cell(record[name]) for name in columns] for record in records)):
        writer.writerow(cells)
        yield buffer.getvalue().rstrip("\n")
        buffer.seek(0)
        buffer.truncate()


def json_lines(records: Iterable[Record]) -> Iterator[str]:
    """Yield one JSON object a line."""
    return (json_text(dict(record)) for record in records)


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON in printable ASCII, whatever the strings in it hold."""
    # The one control character that ensure_ascii leaves alone.
    return json.dumps(value, ensure_ascii=True, indent=indent).replace("\x7f", "\\u007f")


def write_parquet(path: Path, columns: Mapping[str, type], records: Iterable[Record]) -> None:
    """Write typed columns (int64, double, bool, string; all nullable).

    Raises:
        click.UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise click.UsageError("Parquet needs pyarrow: pip install pyarrow; or choose --format csv or json") from error
    types = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    rest = iter(records)
    with replaced(path) as part, pyarrow.parquet.ParquetWriter(part, schema) as writer:
        while batch := list(itertools.islice(rest, _BATCH)):
            writer.write_batch(pyarrow.RecordBatch.from_pylist([_storable(record) for record in batch], schema=schema))


def write_lines(lines: Iterable[str], out: Path | None) -> None:
    """Write lines to a file, which appears when it is whole, or to standard output."""
    if out is None:
        for line in lines:
            click.echo(line)
        return
    with replaced(out) as part, part.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{line}\n" for line in lines)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Open a file beside `path` that replaces it when the block ends well; a reader never sees half of it.

    Raises:
        click.ClickException: the folder cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            yield part
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _storable(record: Record) -> dict[str, Any]:
    # Lone surrogates, which JSON can hold and UTF-8 cannot, are made visible.
    return {name: visible(v) if isinstance(v, str) and not v.isprintable() else v for name, v in record.items()}
