"""Commands for tables: import, new rows, retirement, partitions."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from bursar_amounts import total_text
from bursar_ledger import Budget, DatasetState, Entry, Ledger
from bursar_ledger.audit._formats import InOrder
from bursar_server.admin._acting import FILE, JSON, STATE, Act, act, opened, say_json
from bursar_server.admin._looking import Look, Watched, look_options, record
from bursar_server.admin._rows import Rows, rows_options
from bursar_server.admin._shares import Share, table
from bursar_server.admin._totals import I_KNOW, confirm_total, sentence
from bursar_server.config import Config
from bursar_server.jobs.engine import storage_of
from bursar_server.ops.checkpoints import check_checkpoints
from bursar_server.tables import ImportReport, Manifest, Source, SqlSource, Unit
from bursar_server.tables.catalogue import Registered
from bursar_server.tables.registration import destroy_key as destroy
from bursar_server.tables.registration import (
    partition,
    public_rows,
    register,
    remove_replaced,
    remove_rows,
    replace,
    rows_folder,
)

APPROXIMATE_SHARE_HELP = (
    "Part of delta kept for releases that may fail with a small probability. No fit of this version makes any, so "
    "what is kept is lost: of a total of (1, 1e-6), fits get rho 0.02436 with 0, 0.02413 with 1/10, 0.02294 with 1/2."
)

OTHER_PEOPLE = click.option(
    "--other-people", is_flag=True, help="The rows are known, or might be, and yet are of other people."
)

_GUESSED = (
    "warning: DuckDB guesses from many rows of {file} how to read all of them (delimiter, quotes, header, types). So "
    "one person's row can change the rows of all others, and what is promised for one unit does not hold. Declare it: "
    "read_csv('...', auto_detect = false, header = true, columns = {{'name': 'DOUBLE', ...}}) with all columns of the "
    "file, or read_json('...', columns = {{...}}); or give the file to --csv, which reads text alone. Parquet has types"
)


def source_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name the source of rows; the function gets a `Manifest` and a `Source`."""

    @functools.wraps(function)
    def with_source(acting: Act, *, manifest_path: Path, rows: Rows, **options: Any) -> None:
        manifest = Manifest.load(manifest_path)
        source = rows.source(manifest.csv)
        if isinstance(source, SqlSource):
            for file in source.parsed().guessed:
                click.echo(_GUESSED.format(file=file), err=True)
        with _ended_in_order():
            function(acting, manifest, source, **options)

    decorated: Callable[..., None] = rows_options(with_source)
    return click.option(
        "--manifest", "manifest_path", type=FILE, required=True, help="The table's public schema, TOML."
    )(decorated)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """End as by Ctrl-C, which removes half an import, when the system or a broken connection ends the process."""

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)  # as shells report it

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command("import")
@act(asks=True)
@source_options
@click.option("--epsilon", type=float, help="Total of these people's account, for its whole life and all analysts.")
@click.option("--delta", type=float, help="Total, the probability that the promise fails.")
@click.option("--approximate-share", type=Share(), help=f"{APPROXIMATE_SHARE_HELP} [default: 0]")
@click.option("--same-people-as", metavar="NAME", help="A dataset with rows of the same people: share its total.")
@OTHER_PEOPLE
@I_KNOW
@look_options
def import_(
    acting: Act,
    manifest: Manifest,
    source: Source,
    *,
    epsilon: float | None,
    delta: float | None,
    approximate_share: Fraction | None,
    same_people_as: str | None,
    other_people: bool,
    i_know: bool,
    accept_bad_rows: Fraction | None,
    report: Path | None,
    as_json: bool,
    show_entry: bool,
) -> None:
    """Import a table and register it with its lifetime privacy budget.

    The budget limits what all analysts together may ever learn of these people. It belongs to the people, not to the
    file. Another table of the same people shares it: name one of theirs with --same-people-as, or the same people are
    charged twice. A table that joins an account needs no budget.

    Rows that were imported before are recognised, in any order and under any name, and refused until you declare whose
    they are: --same-people-as, or --other-people. So are rows that cannot be compared because the key of a dataset was
    destroyed. Only you learn of the refusal. Recognition is a safeguard: a table with one row or column more, or of
    another year, is NOT recognised.

    The rows are read first, and the report, by column, is printed: it is computed from the rows, and for you alone.
    Bad values are shown on a terminal only, or written to --report. A table of which more than a fifth is bad is
    refused. Then, on a terminal, you are asked, and only then is anything registered.

    \b
      bursar-admin import --manifest people.toml --csv people.csv --epsilon 3 --delta 1e-6
      bursar-admin import --manifest visits.toml --csv visits.csv --same-people-as people
      bursar-admin import --manifest people.toml --database people.sqlite --table people --epsilon 3 --delta 1e-6
    """  # noqa: D301  click reads the backslash
    budget = _total(epsilon, delta, approximate_share)
    look = Look(manifest, accept_bad_rows, report, as_json)
    _check_ledger(acting)

    def looked(found: ImportReport) -> Callable[[], None]:
        look.at(found)
        return lambda: _ask(found)

    def _ask(found: ImportReport) -> None:
        if budget is not None:
            click.echo(sentence(budget), err=as_json)
            confirm_total(acting, manifest.name, budget, public_rows(manifest, found), i_know=i_know)
        acting.confirm(f"Register {manifest.name}, for as long as the ledger lives?", scripted=True)

    found, entry = register(
        acting.state,
        acting.ledger,
        manifest,
        Watched(source),
        budget,
        same_people_as=same_people_as,
        other_people=other_people,
        actor=acting.actor,
        reason=acting.reason,
        storage=storage_of(acting.config),
        dry_run=acting.dry_run,
        look=looked,
    )
    account, registered = str(entry.details["account"]), acting.would("registered", "would register")
    if account == manifest.name:
        total = entry.details
        text = f"{registered} {manifest.name} with (epsilon, delta) = {total_text(total['epsilon'], total['delta'])}"
    else:
        for line in _joined_lines(acting.ledger.dataset(account), manifest):
            click.echo(line, err=as_json)
        text = f"{registered} {manifest.name} in the account {account}"
    _tell(acting, entry, text, found, as_json=as_json, show_entry=show_entry)


@click.command()
@act(asks=True)
@source_options
@OTHER_PEOPLE
@click.option("--delete-old-rows", is_flag=True, help="Remove the replaced rows at once, not with the next import.")
@look_options
def snapshot(
    acting: Act,
    manifest: Manifest,
    source: Source,
    *,
    other_people: bool,
    delete_old_rows: bool,
    accept_bad_rows: Fraction | None,
    report: Path | None,
    as_json: bool,
    show_entry: bool,
) -> None:
    """Give a dataset new rows of the same people.

    For corrections, additions and withdrawals: the dataset keeps name, schema, budget and all debits; fits from now on
    read the new rows. The manifest must be that of the dataset except for descriptions and public_rows, because
    adjacency and privacy unit are part of the guarantee. New people are covered by the same budget from now on, as all
    others in it.

    Use it for the SAME people only. Rows of other people would be charged for releases without them; import those under
    another name. Rows that are known as those of another account are refused, and only you learn of it; --other-people
    declares that they are not that account's. It cannot be undone, only followed by another snapshot.

    The replaced rows stay on the disk until the next import or snapshot, for queued fits. With --delete-old-rows they
    are removed at once; a queued fit then fails before it reads anything, and runs on the new rows, under the same
    debit, when it is requested again.

    \b
      bursar-admin snapshot --manifest people.toml --csv people-corrected.csv --reason "coding error in region"
    """  # noqa: D301  click reads the backslash
    look = Look(manifest, accept_bad_rows, report, as_json)
    question = f"Are these rows of the same people as those of {manifest.name}? They replace them for good."
    acting.check_can_ask(question)
    _check_ledger(acting)

    def looked(found: ImportReport) -> Callable[[], None]:
        look.at(found)
        return lambda: acting.confirm(question)

    found, entry = replace(
        acting.state,
        acting.ledger,
        manifest,
        Watched(source),
        other_people=other_people,
        actor=acting.actor,
        reason=acting.reason,
        storage=storage_of(acting.config),
        dry_run=acting.dry_run,
        look=looked,
    )
    click.echo(left_line(acting.ledger.dataset(manifest.name)), err=as_json)
    text = acting.would(f"new rows of {manifest.name}", f"{manifest.name} would get new rows")
    _tell(acting, entry, text, found, as_json=as_json, show_entry=show_entry)
    if delete_old_rows and not acting.dry_run:
        remove_replaced(acting.state, acting.ledger)
        click.echo("the replaced rows are removed from the disk", err=as_json)


@click.command()
@STATE
@JSON
def datasets(directory: Path, as_json: bool) -> None:
    """List datasets and their remaining budgets."""
    with opened(directory) as (_, ledger):
        found = list(ledger.datasets())
    if as_json:
        say_json([_record(state) for state in found])
    elif found:
        click.echo(table([("dataset", "adjacency", "total", "left", "note"), *map(_row, found)], whole=("dataset",)))
    else:
        click.echo("no datasets yet: bursar-admin import --help", err=True)


@click.group(cls=InOrder)
def dataset() -> None:
    """Withdraw a dataset that was registered by mistake."""


@dataset.command()
@click.argument("name")
@act(asks=True)
def withdraw(acting: Act, name: str) -> None:
    """Withdraw a mistaken registration, as long as nothing was debited from it.

    The dataset ends as a retired one does, and the entry tells auditors that it was a mistake and cost nobody anything.
    No budget is gained: the account keeps its total, the name stays taken, and the same rows are still recognised.
    Import the corrected table under another name; where it is of the same people, --same-people-as NAME puts it into
    the account, and bursar-admin budget set corrects the total.

    \b
      bursar-admin dataset withdraw people --reason "imported with the wrong categories"
    """  # noqa: D301  click reads the backslash
    withdrawn = functools.partial(
        acting.ledger.retire_dataset, name, actor=acting.actor, reason=acting.reason, withdrawn=True
    )
    withdrawn(dry_run=True)  # refuse before asking for confirmation
    acting.confirm(f"Withdraw {name} for good?")
    acting.tell(withdrawn(dry_run=acting.dry_run), acting.would(f"withdrew {name}", f"would withdraw {name}"))
    if not acting.dry_run:
        click.echo(f"its rows are still on this disk: bursar-admin retire {name} --delete-rows removes them")


@click.command()
@click.argument("name")
@act(asks=True)
@click.option("--delete-rows", is_flag=True, help="Then remove the rows from this machine's disk.")
@click.option("--destroy-key", is_flag=True, help="And then the keys of the table's tags.")
def retire(acting: Act, name: str, *, delete_rows: bool, destroy_key: bool) -> None:
    """End a dataset permanently: no new fits.

    Its releases stay available and stay charged: other names of the same people's account continue with the remaining
    budget. It cannot be undone. The same rows may be imported again under another name; they are recognised, and
    --same-people-as puts them into the account that they had.

    With --delete-rows the rows are removed from this disk, and from a cluster's storage, after the entry is written,
    and another entry records it; if that is interrupted, give the command again. Charged fits that were interrupted
    cannot run again then: their cost stays spent. Remove copies in backups and in your own files yourself.

    With --destroy-key, too, the secrets of the ledger's tags of these rows are destroyed, with an entry: the ledger
    then reveals nothing about any of them, not even to a reader who knows all the others. The drawback: these rows are
    no longer recognised if they are imported again. The import then asks; --same-people-as puts them into the account
    that they had.

    \b
      bursar-admin retire people --reason "end of the study" --delete-rows
      bursar-admin retire people --delete-rows --destroy-key
    """  # noqa: D301  click reads the backslash
    if destroy_key and not delete_rows:
        raise ValueError("--destroy-key goes with --delete-rows: rows without the key could not be served again")
    if delete_rows:
        _check_ledger(acting)
    dataset = acting.ledger.dataset(name)
    unfinished = sum(not paid.released for paid in acting.ledger.releases(dataset=name))
    if unfinished:
        lost = "they cannot run again without rows" if delete_rows else "they may still be asked for again"
        click.echo(f"{unfinished} paid fits of {name} have no stored release; {lost}")
    if dataset.retired and delete_rows:
        acting.confirm(f"{name} is retired. Remove its rows from this disk for good?")
    else:
        retired = functools.partial(acting.ledger.retire_dataset, name, actor=acting.actor, reason=acting.reason)
        retired(dry_run=True)  # refuse before asking for confirmation
        acting.confirm(f"Retire {name} for good{' and remove its rows from this disk' if delete_rows else ''}?")
        acting.tell(retired(dry_run=acting.dry_run), acting.would(f"retired {name}", f"would retire {name}"))
    if delete_rows:
        _delete_rows(acting, dataset)
    if destroy_key and acting.dry_run:
        click.echo(f"the key of {name} in {acting.state.keys} would be destroyed")
    elif destroy_key:
        for entry in destroy(acting.state, acting.ledger, name, actor=acting.actor, reason=acting.reason):
            acting.tell(entry, f"destroyed the {entry.details['destroyed']} of {entry.dataset}")
        click.echo(f"the key of {name} is not on this disk any more; copies of it are yours to remove")


def _check_ledger(acting: Act) -> None:
    """Refuse before rows are removed that no entry names: an older ledger that was put back names too few."""
    check_checkpoints(acting.state, acting.config)


def _delete_rows(acting: Act, dataset: DatasetState) -> None:
    folder = rows_folder(acting.state, dataset)
    if acting.dry_run:
        click.echo(f"the rows in {folder} would be removed, and those of a cluster's storage")
        return
    entry = remove_rows(acting.state, acting.ledger, dataset.name, actor=acting.actor, reason=acting.reason)
    if entry is not None:
        acting.tell(entry, f"destroyed the rows of {dataset.name}")
    click.echo(f"the rows of {dataset.name} are not on this disk any more, nor on a cluster's storage: {folder}")


@click.command("partition")
@click.argument("name")
@STATE
def partition_(directory: Path, name: str) -> None:
    """Write a table's rows to the storage that a cluster's workers read.

    For tables that were imported before the settings named a cluster; later imports write them automatically. Given
    again, the command reads all files, and writes them again if one is missing or changed; fits that are reading them
    fail. It changes nothing in the ledger. docs/operations.md describes how to set up a cluster.

    \b
      bursar-admin partition people
    """  # noqa: D301  click reads the backslash
    with opened(directory) as (state, ledger):
        storage = storage_of(Config.load(state.config))
        if storage is None:
            raise ValueError('the settings name no cluster: set engine.kind = "dask" and engine.storage first')
        written = partition(state, ledger, name, storage)
    if written is None:
        click.echo(f"the rows of {name} are on {storage}, and as they were written")
    else:
        click.echo(f"wrote the rows of {name} to {written.folder}, {len(written.files)} files")


def left_line(state: DatasetState) -> str:
    """Return the remaining budget of a dataset's account as one line."""
    return (
        f"account {state.account}: total {total_text(state.budget.epsilon, state.budget.delta)}, spent {state.spent}, "
        f"left {state.left}"
    )


def accounts_names(ledger: Ledger, account: str) -> tuple[str, ...]:
    """Return the datasets that share an account, in the order of their registration."""
    return tuple(state.name for state in ledger.datasets() if state.account == account)


def _total(epsilon: float | None, delta: float | None, approximate_share: Fraction | None) -> Budget | None:
    if (epsilon is None) != (delta is None):
        raise ValueError("give --epsilon and --delta together, or neither for a table that joins an account")
    if epsilon is None or delta is None:
        if approximate_share is not None:
            raise ValueError("--approximate-share goes with --epsilon and --delta")
        return None
    return Budget(epsilon, delta) if approximate_share is None else Budget(epsilon, delta, approximate_share)


def _tell(acting: Act, entry: Entry, text: str, report: ImportReport, *, as_json: bool, show_entry: bool) -> None:
    """Print the change as text, or report and entry as JSON."""
    if acting.dry_run and not (as_json or show_entry):
        # The entry holds the whole schema, which would hide the report above it.
        click.echo(f"{text}: nothing was written; it would be entry {entry.number} (--show-entry prints it)")
        return
    if not as_json:
        acting.tell(entry, text)
        return
    if not acting.dry_run:
        acting.told(f"{text}: entry {entry.number}", err=True)
    written = {
        "number": entry.number,
        "kind": entry.kind,
        "dataset": entry.dataset,
        "account": entry.details["account"],
    }
    say_json({"dry_run": acting.dry_run, "entry": written, "report": record(report)})


def _joined_lines(account: DatasetState, manifest: Manifest) -> Iterator[str]:
    yield "its total is shared from now on, and what was spent of it is spent for this name, too"
    yield left_line(account)
    first = Registered.of(account.manifest).manifest.unit
    if (first.column is None) != (manifest.unit.column is None):
        # Only the owner knows whose rows these are, so this is a note and not a check.
        yield (
            f"note: the privacy unit is {_unit(manifest.unit)} here, and {_unit(first)} in {account.account}; one "
            "total for both protects a person only if nobody has more rows than the unit allows"
        )


def _unit(unit: Unit) -> str:
    return "a row" if unit.column is None else f"all rows with one {unit.column}, {unit.max_rows} at most"


def _row(state: DatasetState) -> tuple[str, ...]:
    budget = state.budget
    notes = [f"account {state.account}"] if state.account != state.name else []
    notes += ["withdrawn" if state.withdrawn else "retired"] if state.retired else []
    notes += ["closed: more was spent than the total in force allows"] if is_closed(state) else []
    return (
        state.name,
        state.adjacency.value,
        total_text(budget.epsilon, budget.delta),
        str(state.left),
        ", ".join(notes),
    )


def _record(state: DatasetState) -> dict[str, object]:
    budget = state.budget
    return {
        "name": state.name,
        "account": state.account,
        "adjacency": state.adjacency.value,
        "total": {"epsilon": budget.epsilon, "delta": budget.delta},
        "spent": state.spent.to_dict(),
        "left": state.left.to_dict(),
        "retired": state.retired,
        "withdrawn": state.withdrawn,
        "closed": is_closed(state),
    }


def is_closed(state: DatasetState) -> bool:
    """Return whether the budget was set below the spent amount."""
    return state.spent_cost_units > state.cap_cost_units or state.spent_delta_units > state.cap_delta_units
