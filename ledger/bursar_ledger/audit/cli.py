"""`bursar-audit`: the commands. What they compute is in the modules beside this one."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import click

from ._changes import Visit, changes, read_visit
from ._checks import Findings, chain_of, compared_files, examine_file, read_key, read_place, verified
from ._columns import COLUMNS, Filter, Line, lines, summary
from ._entry_text import entry_in_words
from ._formats import InOrder, csv_lines, json_lines, json_text, replaced, write_lines, write_parquet
from ._history import History, history
from ._language import LANGUAGES, speaking
from ._open import DIFFERENT, Row, noted_refusals, opened, rows
from ._oracle import SecondOpinion, installed_version
from ._spend import spend_lines
from ._text import counted, short_time, table_lines, terminal_width, visible
from ._text_output import SPEND_FORMATS, findings_json, findings_lines, problem_lines, unpinned, witnessed
from ._verdict import verdict

_STATUS = """\b
Exit status:
  0  all is well
  1  the ledger was read, and something in it is not right (on standard error)
  2  the command was not understood
  3  nothing to judge: no file, not a ledger, or one of a newer version
"""


class _Moment(click.ParamType[datetime]):
    """Instant (RFC 3339), or a date in UTC: its beginning, or with `end` the beginning of the next."""

    name = "time"

    def __init__(self, *, end: bool = False) -> None:
        self._end = end

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            with contextlib.suppress(ValueError):
                day = datetime.combine(date.fromisoformat(value), time(tzinfo=UTC))
                return day + timedelta(days=1) if self._end else day
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(f"expected a date such as 2026-11-21 or a time such as 2026-11-21T13:00:00Z, got {value!r}")


class _Key(click.ParamType[Any]):
    name = "vkey|file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return read_key(value)


class _Place(click.ParamType[Any]):
    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return read_place(value)


class _Visit(click.ParamType[Visit]):
    name = "copy|file|size:head"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Visit:
        return value if isinstance(value, Visit) else read_visit(value)


_LEDGER = click.argument("ledger", type=click.Path(path_type=Path))
_KEY = click.option(
    "--key",
    type=_Key(),
    help="The verifier key that you pinned, or a file that holds it. Else the ledger's own is used.",
)
_PLACES = click.option(
    "--checkpoints",
    "places",
    type=_Place(),
    multiple=True,
    help="Compare with the signed checkpoints of this place (file:PATH, git:FOLDER or a path). May be repeated.",
)
_SINCE = click.option(
    "--since",
    type=_Visit(),
    help="Say what changed since your last visit: the copy of the ledger that you kept, a file with what checkpoint "
    "printed, or SIZE:HEAD.",
)
_LANGUAGE = click.option(
    "--language",
    "spoken",
    type=click.Choice(LANGUAGES),
    default="en",
    show_default=True,
    help="Language of the pages. Findings, details of entries and tables are English.",
)
_OUT = click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_JSON_LINES = click.option("--json", "form", flag_value="json", help="The same as --format json: one object a line.")


@click.group(
    cls=InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=_STATUS
)
@click.version_option(package_name="bursar")
def main() -> None:
    """Read and verify a bursar ledger. Needs the file only: neither the server nor the data."""


@main.command(epilog=_STATUS)
@_LEDGER
@_KEY
@_PLACES
@click.option("--quiet", is_flag=True, help="Print nothing if all is well; for cron.")
@click.option(
    "--second-opinion/--no-second-opinion",
    default=True,
    help="Also ask dp-accounting, where it is installed; of a million debits that takes minutes. [default: ask]",
)
@_JSON
def verify(ledger: Path, key: Any, places: Sequence[Any], quiet: bool, second_opinion: bool, as_json: bool) -> None:
    """Check a ledger: schema, chain, sums, caps, limits, released bytes, and the price of every debit.

    Prices are computed again from each debit's events by arithmetic of bursar-audit's own, and, where dp-accounting is
    installed, compared with that library's figures. An older copy of the file verifies, too: only signed checkpoints
    (--checkpoints), receipts, or a head that was kept elsewhere show that entries are missing at its end.
    """
    found = examine_file(ledger, key, places, ask=second_opinion)
    if as_json:
        if not (quiet and not found.problems):
            click.echo(json_text(findings_json(found), indent=2))
    elif not quiet:
        for line in findings_lines(found):
            click.echo(line)
    _finish(ledger, found.problems)


@main.command(epilog=_STATUS)
@_LEDGER
@click.argument("entry", type=click.IntRange(min=1))
@click.option("--json", "as_json", is_flag=True, help="Print the body alone, as it was hashed.")
def show(ledger: Path, entry: int, as_json: bool) -> None:
    """Show one entry in full, in words.

    With --json its body comes as it was hashed: without the line break at its end, its SHA-256 is the entry's hash.
    """
    with opened(ledger) as db:
        # Which account it belongs to may stand in an earlier entry only.
        found = next((item for item in lines(rows(db, last=entry)) if item[0].number == entry), None)
    if found is None:
        raise click.BadParameter(f"there is no entry {entry}", param_hint="'ENTRY'")
    row, line, _ = found
    if as_json:
        click.echo(visible(row.body))
    else:
        for text in entry_in_words(row, line):
            click.echo(text)


@main.command(epilog=_STATUS)
@_LEDGER
@click.option("--dataset", help="About this dataset, or the account of this name.")
@click.option("--analyst", help="Debits of this analyst, and their releases.")
@click.option("--method", help="Debits by this RPC, for instance FitDPEM.")
@click.option("--kind", "kinds", multiple=True, help="Of this kind, for instance debit. May be repeated.")
@click.option("--since", type=_Moment(), help="Not before this date or time, by the server's clock.")
@click.option("--until", type=_Moment(end=True), help="Before this time, or up to the end of this date; likewise.")
@click.option("--first", type=click.IntRange(min=1), default=1, help="From this number on.")
@click.option("--last", type=click.IntRange(min=1), help="Up to this number.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="Of the list.",
)
@_JSON_LINES
@_OUT
def entries(
    ledger: Path,
    dataset: str | None,
    analyst: str | None,
    method: str | None,
    kinds: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    first: int,
    last: int | None,
    form: str,
    out: Path | None,
) -> None:
    """List entries, one a line: as a table, CSV, JSON lines or Parquet.

    The filters add up. Times are what the server's clock said and are informational: the order of entries is that of
    their numbers, and entries whose time cannot be read are kept. In CSV a text that a spreadsheet would run as a
    formula begins with an apostrophe.
    """
    wanted = Filter(dataset, analyst, method, kinds, since, until)
    odd: list[int] = []

    def chosen(stored: Iterable[Row]) -> Iterator[tuple[Row, Line]]:
        for row, line, right in lines(stored):
            if row.number >= first and wanted.wants(line):
                if not right:
                    odd.append(row.number)
                yield row, line

    with opened(ledger) as db:
        # Read from the first entry on, since early ones name the accounts.
        _write_entries(chosen(rows(db, last=last)), form, out)
    _finish(ledger, [f"entry {n}: fields are missing or of another type, and left empty here" for n in odd])


@main.command(epilog=_STATUS)
@_LEDGER
@click.option("--dataset", help="Only the account of this dataset.")
@click.option("--by", type=click.Choice(["account", "analyst"]), default="account", help="One line for each of these.")
@click.option("--pld", is_flag=True, help="Add epsilon by privacy loss distribution. Needs dp-accounting.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Of the lines.",
)
@_JSON_LINES
@_OUT
def spend(ledger: Path, dataset: str | None, by: str, pld: bool, form: str, out: Path | None) -> None:
    """Say what was promised, spent and left, after verifying the ledger.

    Of a ledger that is not right only the entries that are certain are counted.

    The promise is the total: only the cap is a guarantee. Everything nominal is for planning, since it presumes that
    requests were not chosen after seeing answers; so does the figure of --pld, which composes all releases as
    dp-accounting knows them (discrete Gaussian noise as continuous).
    """
    if pld and installed_version() is None:
        raise click.UsageError("--pld needs dp-accounting: pip install dp-accounting")
    found = verified(ledger)
    judged = verdict(Findings(found, SecondOpinion(None), (), None))
    told = _history(ledger, judged.certain)
    accounts = [a for a in told.accounts.values() if dataset is None or dataset in {a.name, *a.datasets}]
    if dataset is not None and not accounts:
        raise click.BadParameter(f"the ledger has no dataset {visible(dataset)!r}", param_hint="'--dataset'")
    spends = [line for account in accounts for line in spend_lines(account, by_analyst=by == "analyst", pld=pld)]
    if found.problems:
        click.echo(f"Only entries 1 to {judged.certain} are certain and counted here.", err=True)
    write_lines(SPEND_FORMATS[form](spends), out)
    _finish(ledger, found.problems)


@main.command(epilog=_STATUS)
@_LEDGER
@click.argument("notes", type=click.Path(path_type=Path), nargs=-1)
@_KEY
@_JSON
def checkpoint(ledger: Path, notes: Sequence[Path], key: Any, as_json: bool) -> None:
    """Compare a ledger with signed checkpoints that you kept, each file one note or a history of them.

    Says up to which entry the history is witnessed: it is what it was when it was signed. Without notes it prints the
    size and head of the ledger as it is now, unsigned; keep them by hand, with the date.
    """
    found = chain_of(ledger)
    comparisons = compared_files(ledger, key, notes) if notes else ()
    problems = [*found.problems, *(problem for c in comparisons for problem in c.problems)]
    if as_json:
        stood = {"ledger_id": found.ledger_id, "size": found.entries, "head": found.head.hex()}
        compared = [dataclasses.asdict(comparison) for comparison in comparisons]
        click.echo(json_text({**stood, "problems": problems, "checkpoints": compared}, indent=2))
        _finish(ledger, problems)
        return
    click.echo(f"ledger   {visible(found.ledger_id)}")
    click.echo(f"size     {found.entries}")
    click.echo(f"head     {found.head.hex()}")
    for comparison in comparisons:
        click.echo(f"{visible(comparison.place)}: {witnessed(comparison, found.entries)}")
    if notes and key is None:
        click.echo(unpinned())
    if not notes:
        click.echo("unsigned: keep these three lines elsewhere, with the date")
    _finish(ledger, problems)


@main.command(epilog=_STATUS)
@_LEDGER
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The report: report.html, report.pdf or report.xlsx; the ending says which.",
)
@_KEY
@_PLACES
@_SINCE
@_LANGUAGE
@click.option(
    "--sign",
    "signing",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sign the report with the private key of the ledger's checkpoints, where you hold it; the signature is "
    "OUT.note.",
)
def report(
    ledger: Path,
    out: Path,
    key: Any,
    places: Sequence[Any],
    since: Visit | None,
    spoken: str,
    signing: Path | None,
) -> None:
    """Write a report: promises, spending, burn-down charts, verification, acts, and what it all means.

    The HTML page needs nothing else: no scripts, no fonts, no network. The PDF says the same; the workbook has every
    entry, in sentences and figures. A ledger that is not right gets its report, too, which says so and counts only the
    entries that are certain; the exit status is then 1.
    """
    form = _report_form(out)  # a wrong name is told at once: to verify a long ledger takes minutes
    with speaking(spoken):
        found = examine_file(ledger, key, places, visit=since)
        now = datetime.now(UTC)
        _write_report(ledger, out, form, found, now)
        click.echo(f"wrote {visible(out)}")
        if signing is not None:
            _sign(out, found, signing, now)
    _finish(ledger, found.problems)


@main.command(epilog=_STATUS)
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--key", type=_Key(), required=True, help="The verifier key that you pinned, or a file that holds it.")
@_JSON
def signature(report: Path, key: Any, as_json: bool) -> None:
    """Check the signature of a report: REPORT.note, which lies beside it.

    Prints what was signed: the report's SHA-256, the ledger's id, size and head, and the verdict. Compare size and head
    with a checkpoint, or with a copy of the ledger (bursar-audit checkpoint).
    """
    from ..checkpoints.signed_notes import NoteError
    from ._signed import check_report, note_path

    note = note_path(report)
    try:
        text = check_report(report, note.read_text("utf-8"), key)
    except OSError as error:
        raise click.UsageError(f"{visible(note)} cannot be read: {error.strerror}") from error
    except (NoteError, UnicodeError) as error:
        click.echo(f"Error: {visible(error)}", err=True)
        raise click.exceptions.Exit(DIFFERENT) from error
    signed = {"signed by": str(key)}
    for line in text.splitlines()[1:]:
        name, _, value = line.partition(" ")
        signed[name] = value
    if as_json:
        click.echo(json_text(signed, indent=2))
        return
    for name, value in signed.items():
        click.echo(f"{name} {visible(value)}")


@main.command(epilog=_STATUS)
@_LEDGER
@_KEY
@_PLACES
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--beyond-this-machine",
    is_flag=True,
    help="Allow a --host that other machines reach. The page is plain HTTP: whoever listens on the way can read it.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Further name that browsers reach the pages by, such as a proxy's. Other names than localhost are refused.",
)
@click.option(
    "--second-opinion/--no-second-opinion",
    default=True,
    help="Also ask dp-accounting, as verify does. [default: ask]",
)
@_SINCE
@_LANGUAGE
@click.option(
    "--afresh",
    is_flag=True,
    help="Verify every entry again. Without it, a visit goes on from what the last one on this computer verified, if "
    "those entries are unchanged.",
)
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
def serve(
    ledger: Path,
    key: Any,
    places: Sequence[Any],
    host: str,
    port: int,
    beyond_this_machine: bool,
    names: Sequence[str],
    second_opinion: bool,
    since: Visit | None,
    spoken: str,
    afresh: bool,
    show: bool,
) -> None:
    """Show a ledger in a browser: a dashboard, tables to search, and the questions that auditors ask.

    Reads only, also while a server writes: the figures are those of the last verification, and the page says how many
    entries are newer. It prints a link to a button that lets one browser in, once; without it the port shows nothing.
    """
    try:
        with _units_unread():
            from ._site import link, site
            from ._watch import watching
            from ._web import listening
            from ._web import serve as serve_pages
    except ImportError as error:
        raise click.UsageError(f"this needs Datasette: pip install './bursar[serve]' ({error})") from error
    with opened(ledger):
        pass  # what cannot be read is said here, and not in a browser
    with (
        listening(host, port, beyond_this_machine=beyond_this_machine) as listener,
        speaking(spoken),
        watching(ledger, key, places, ask=second_opinion, visit=since, afresh=afresh) as watch,
        site(watch, (host, *names)) as made,
    ):
        serve_pages(made.app(), listener, ledger, link(made), show=show)


@contextlib.contextmanager
def _units_unread() -> Iterator[None]:
    """Import Datasette without reading its list of physical units, which takes half of its time, and no page has any.

    Its library of units would also take dask and numpy, where they are.
    """
    hidden = [name for name in ("dask", "numpy") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None hides a module
    try:
        pint: Any = importlib.import_module("datasette.vendored.pint")
        pint.UnitRegistry = pint.LazyRegistry  # which reads the list when a unit is asked for
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


_FORMS = {".html": "matplotlib", ".pdf": "._pdf", ".xlsx": "._workbook"}
"""Endings of reports, and modules that need the packages which write them."""


def _report_form(out: Path) -> str:
    """Return the ending of a report's name. Raises click.UsageError for another, or where its packages are missing."""
    if out.suffix not in _FORMS:
        raise click.BadParameter(
            f"expected report.html, report.pdf or report.xlsx, got {out.name!r}", param_hint="'--out'"
        )
    try:
        importlib.import_module(_FORMS[out.suffix], __package__)
    except ImportError as error:
        raise click.UsageError(f"this report needs another package: pip install './bursar[audit]' ({error})") from error
    return out.suffix


def _write_report(ledger: Path, out: Path, form: str, found: Findings, now: datetime) -> None:
    """Write a report in one of `_FORMS`."""
    from ._report import page

    certain = verdict(found).certain
    told, refusals = _history(ledger, certain), noted_refusals(ledger)
    if form == ".xlsx":
        from ._workbook import write_workbook

        with replaced(out) as part, opened(ledger) as db:
            each = ((row, line) for row, line, _ in lines(rows(db, last=certain)))
            write_workbook(part, ledger.name, found, told, refusals, each, now)
        return
    new = None if found.since is None else changes(ledger, found.since, certain)
    html = page(ledger.name, found, told, refusals, now, new)
    if form == ".html":
        write_lines([html], out)
    else:
        from ._pdf import pdf_of

        with replaced(out) as part:
            part.write_bytes(pdf_of(html, told, now))


def _sign(report: Path, found: Findings, signing: Path, now: datetime) -> None:
    from ..checkpoints.signed_notes import NoteError, SigningKey
    from ._signed import note_path, sign_report

    try:
        note = sign_report(report, found, SigningKey.load(signing), now)
    except NoteError as error:
        raise click.ClickException(f"the report is written, and not signed: {error}") from error
    write_lines([note.removesuffix("\n")], note_path(report))
    click.echo(f"wrote {visible(note_path(report))}")


_TABLE = ("entry", "time", "kind", "actor", "dataset", "what")


def _finish(ledger: Path, problems: Sequence[str]) -> None:
    """Report findings on standard error and end with status 1, or return."""
    for line in problem_lines(problems):
        click.echo(line, err=True)
    if problems:
        click.echo(f"Error: {visible(ledger.name)} is not right: {counted(len(problems), 'finding')}", err=True)
        raise click.exceptions.Exit(DIFFERENT)


def _write_entries(chosen: Iterable[tuple[Row, Line]], form: str, out: Path | None) -> None:
    if form == "table":
        width = terminal_width() if out is None else None
        cells = (
            (
                row.number,
                line.time if width is None else short_time(line.time or ""),
                line.kind,
                line.actor,
                line.dataset or "",
                summary(row, line),
            )
            for row, line in chosen
        )
        write_lines(table_lines(_TABLE, cells, width=width, whole=("entry", "time")), out)
        return
    records = ({name: getattr(line, name) for name in COLUMNS} for _, line in chosen)
    if form == "parquet":
        if out is None:
            raise click.UsageError("Parquet is not text: say where to write it with --out")
        write_parquet(out, COLUMNS, records)
    else:
        write_lines(csv_lines(tuple(COLUMNS), records) if form == "csv" else json_lines(records), out)


def _history(ledger: Path, last: int) -> History:
    with opened(ledger) as db:
        return history(rows(db, last=last))
