"""Report of an import for the administrator, and what is refused because of it.

Counts and examples are computed from the rows. Examples are shown on a terminal, or written to the file that the
administrator names, and nowhere else.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from bursar_server.admin._acting import JSON, PATH, say_json
from bursar_server.admin._shares import Share, table
from bursar_server.state import write_private
from bursar_server.tables import ACCEPTED, Categorical, ImportReport, Manifest, Numeric, Source

WARNED = Fraction(1, 20)
"""Share of bad values of a column from which its line is red."""

_HEAD = "import report (computed from the data: for you alone)"


def look_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of commands that report on rows.

    The function gets `accept_bad_rows`, `report`, `as_json` and `show_entry`.
    """
    for option in (
        click.option("--show-entry", is_flag=True, help="With --dry-run: print the whole entry that it would write."),
        JSON,
        click.option("--report", type=PATH, help="Write the report, with examples of bad values, to this file (0600)."),
        click.option(
            "--accept-bad-rows",
            type=Share(),
            help=f"Accept bad rows up to this share, and columns without any value. [default: {float(ACCEPTED):.1%}]",
        ),
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class Look:
    """Look at a report: prints it, writes it to a file, refuses a table that is mostly bad.

    Attributes:
        accepted: share of bad rows that the administrator accepts; None if they said nothing.
        as_json: True if standard output is for JSON, so that nothing is printed here.
    """

    manifest: Manifest
    accepted: Fraction | None
    file: Path | None
    as_json: bool

    def at(self, report: ImportReport) -> None:
        """Show the report. Raises ValueError if more is bad than is accepted."""
        if self.file is not None:
            text = [
                f"{_HEAD}, with values of its rows: keep it as you keep the rows, and delete it when it is read",
                *_lines(report),
                *_examples(report, self.manifest),
            ]
            write_private(self.file, ("\n".join(text) + "\n").encode())
        if not self.as_json:
            click.echo(_HEAD)
            for line in _lines(report):
                click.echo(line)
            for line in _warnings(report):
                click.secho(line, fg="red", bold=True)
            if sys.stdout is not None and sys.stdout.isatty():
                for line in _examples(report, self.manifest):
                    click.echo(line)
        self._check(report)

    def _check(self, report: ImportReport) -> None:
        problems = report.problems(self.accepted)
        if problems:
            if self.as_json:
                say_json({"refused": problems, "report": record(report)})
            raise ValueError(
                f"{'; '.join(problems)}. Nothing was kept. Correct the manifest or the source; if the table is to be "
                f"taken as it is, say how much of it may be bad: --accept-bad-rows SHARE{self._advice(report)}"
            )

    def _advice(self, report: ImportReport) -> str:
        """Return how rows with an empty cell can be kept, for columns of which many cells are empty."""
        advice = ""
        for found, column in zip(report.columns, self.manifest.columns, strict=True):
            if report.share(found.missing) > WARNED and not (isinstance(column, Numeric) and column.nullable):
                keeps = (
                    "nullable = true"
                    if isinstance(column, Numeric)
                    else 'aliases = { "" = CATEGORY }, or "" among the words for true or false,'
                )
                advice += (
                    f"\n{found.name}: {report.percent(found.missing)} of the cells are empty; {keeps} keeps their rows"
                )
        return advice


def record(report: ImportReport) -> dict[str, Any]:
    """Return the report's counts for programs, without examples."""
    columns = [{name: n for name, n in asdict(column).items() if name != "examples"} for column in report.columns]
    names = ("rows_read", "null_rows", "rows_without_value", "rows_without_unit", "rows_over_cap")
    return {**{name: getattr(report, name) for name in names}, "columns": columns}


@dataclass(frozen=True)
class Watched:
    """Source that shows on a terminal how many rows were read."""

    source: Source

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `Source.batches`."""
        from tqdm import tqdm  # late: most commands read no rows

        # Delayed, so that a short import shows nothing; disable=None: nothing unless standard error is a terminal.
        with tqdm(desc="reading", unit=" rows", unit_scale=True, leave=False, delay=1, disable=None) as bar:
            for batch in self.source.batches(columns):
                yield batch
                bar.update(batch.num_rows)


def _lines(report: ImportReport) -> Iterator[str]:
    for number, text in (
        (report.rows_read, "rows read"),
        (report.null_rows, "rows with a bad or missing cell, kept as null rows"),
        (report.rows_without_unit, "of them without a unit alone"),
        (report.rows_over_cap, "rows over their unit's cap, which concerns no single column, kept as null rows"),
    ):
        share = f", {report.percent(number)}" if number and number != report.rows_read else ""
        yield f"  {number:>12,}  {text}{share}"

    def cell(n: int) -> str:
        return f"{n:,} ({report.percent(n)})" if n else "0"

    rows = [(c.name, cell(c.bad), cell(c.missing), cell(c.clipped_low), cell(c.clipped_high)) for c in report.columns]
    yield table([("column", "bad", "missing", "moved up", "moved down"), *rows], indent="  ", whole=("column",))


def _warnings(report: ImportReport) -> Iterator[str]:
    if report.share(report.rows_without_value) > WARNED:
        lost = f"{report.rows_without_value:,} rows without any value, {report.percent(report.rows_without_value)}"
        yield f"{lost}: of a CSV file, those with too few or too many cells, too; an unquoted comma makes one more"
    if report.share(report.rows_over_cap) > WARNED:
        over = f"{report.rows_over_cap:,} rows are over their unit's cap, {report.percent(report.rows_over_cap)}"
        yield f"{over}: a larger max_rows keeps them, and needs more noise"
    for column in report.columns:
        if report.share(column.bad) > WARNED:
            yield f"{column.name}: {column.bad:,} values are bad, {report.percent(column.bad)}"


def _examples(report: ImportReport, manifest: Manifest) -> Iterator[str]:
    for found, column in zip(report.columns, manifest.columns, strict=True):
        if found.examples:
            shown = ", ".join(_short(text) for text in found.examples)
            if isinstance(column, Categorical):
                said = f"{found.bad:,} values are not declared, such as {shown}"
                meant = dict.fromkeys(_meant(text, column.categories) for text in found.examples)
                guesses = " or ".join(map(repr, filter(None, meant)))
            else:
                said, guesses = f"{found.bad:,} values are no numbers, such as {shown}", ""
            yield f"{found.name}: {said}" + (f"; did you mean {guesses}?" if guesses else "")


def _meant(text: str, categories: Sequence[str]) -> str | None:
    folded = {category.strip().casefold(): category for category in reversed(categories)}
    near = difflib.get_close_matches(text.strip().casefold()[:100], folded, n=1, cutoff=0.75)
    return folded[near[0]] if near else None


def _short(text: str) -> str:
    """Return a cell in quotes, without characters that a terminal obeys."""
    shown = ascii(text) if not text.isprintable() else repr(text)
    return shown if len(shown) <= 42 else shown[:38] + "...'"
