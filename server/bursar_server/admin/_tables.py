"""Tables: import, new rows, retirement."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from bursar_ledger import Budget, DatasetState, Ledger
from bursar_server.admin._acting import FILE, JSON, STATE, Act, act, opened, say_json
from bursar_server.admin._shares import Share, amount, percent, rho, table
from bursar_server.config import Config
from bursar_server.datasets import Registered
from bursar_server.engines import storage_of
from bursar_server.registering import destroy_key as destroy
from bursar_server.registering import (
    give_key,
    partition,
    register,
    remove_replaced,
    remove_rows,
    replace,
    rows_folder,
    shares_key,
)
from bursar_server.tables import CsvSource, ImportReport, Manifest, ParquetSource, Source, SqlSource, Unit

APPROXIMATE_SHARE_HELP = (
    "Part of delta kept for releases that may fail with a small probability; 0 gives all of it to exact ones. "
    "Of a total of (1, 1e-6), exact releases get rho 0.02436 with 0, 0.02413 with 1/10, 0.02294 with 1/2."
)


def source_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say where rows come from; the function gets a `Manifest` and a `Source`."""

    @functools.wraps(function)
    def with_source(
        acting: Act,
        *,
        manifest_path: Path,
        csv: Path | None,
        parquet: Path | None,
        sql: str | None,
        database: Path | None,
        **options: Any,
    ) -> None:
        source = _source(csv, parquet, sql, database)
        function(acting, Manifest.load(manifest_path), source, **options)

    options: list[Callable[[Any], Any]] = [
        click.option("--database", type=FILE, help="DuckDB file for --sql; left out: the query names its files."),
        click.option("--sql", help="Rows from a DuckDB query."),
        click.option("--parquet", type=FILE, help="Rows from a Parquet file."),
        click.option("--csv", type=FILE, help="Rows from a CSV file with a header."),
        click.option("--manifest", "manifest_path", type=FILE, required=True, help="The table's public schema, TOML."),
    ]
    decorated: Callable[..., None] = with_source
    for option in options:
        decorated = option(decorated)
    return decorated


@click.command("import")
@act()
@source_options
@click.option("--epsilon", type=float, help="Total of these people's account, for its whole life and all analysts.")
@click.option("--delta", type=float, help="Total, the probability that the promise fails.")
@click.option("--approximate-share", type=Share(), help=f"{APPROXIMATE_SHARE_HELP} [default: 1/10]")
@click.option("--same-people-as", metavar="NAME", help="A dataset with rows of the same people: share its total.")
@click.option("--new-people", is_flag=True, help="These people are in no table whose key was destroyed.")
def import_(
    acting: Act,
    manifest: Manifest,
    source: Source,
    *,
    epsilon: float | None,
    delta: float | None,
    approximate_share: Fraction | None,
    same_people_as: str | None,
    new_people: bool,
) -> None:
    """Import a table and register it with its total.

    The total is what all analysts together may ever learn of these people. It belongs to the people, not to the file:
    rows that were imported before are recognised, in any order and under any name, and join the account that they have,
    with all that was spent of it. Another table of the same people (other columns, another year) is NOT recognised by
    itself: name one with --same-people-as, or you spend on the same people twice. A table that joins needs no total.
    Rows of a dataset whose key was destroyed are not recognised either: then this asks for --same-people-as, or for
    your word that these are --new-people.

    The report is computed from the rows, and for you alone. A registration cannot be taken back; a dataset can be
    retired.

    \b
      bursar-admin import --manifest people.toml --csv people.csv --epsilon 3 --delta 1e-6
      bursar-admin import --manifest visits.toml --csv visits.csv --same-people-as people
    """  # noqa: D301  click reads the backslash
    budget = _total(epsilon, delta, approximate_share)
    if budget is None and same_people_as is None:
        click.echo("no --epsilon and --delta: the rows have to be known from an earlier import", err=True)
    report, entry = register(
        acting.state,
        acting.ledger,
        manifest,
        source,
        budget,
        same_people_as=same_people_as,
        new_people=new_people,
        actor=acting.actor,
        reason=acting.reason,
        storage=storage_of(acting.config),
        dry_run=acting.dry_run,
    )
    for line in _report_lines(report):
        click.echo(line)
    account = str(entry.details["account"])
    if account == manifest.name:
        total = entry.details
        text = f"registered {manifest.name} with (epsilon, delta) = ({total['epsilon']:g}, {total['delta']:g})"
    else:
        for line in _joined_lines(acting.ledger.dataset(account), manifest, by_content=same_people_as is None):
            click.echo(line)
        text = f"registered {manifest.name} in the account {account}"
    acting.tell(entry, text)


@click.command()
@act(asks=True)
@source_options
@click.option("--delete-old-rows", is_flag=True, help="Remove the replaced rows at once, not with the next import.")
def snapshot(acting: Act, manifest: Manifest, source: Source, *, delete_old_rows: bool) -> None:
    """Give a dataset new rows of the same people.

    For corrections, additions and withdrawals: the dataset keeps name, schema, total and everything that was spent of
    it; fits from now on read the new rows. The manifest must be that of the dataset but for descriptions and
    public_rows, since adjacency and privacy unit are part of the promise. People who are new are covered by the same
    total from now on, as everybody in it is.

    Use it for the SAME people only. Rows of other people would be charged for what they were never part of; import
    them under a name of their own. It cannot be undone, only followed by another snapshot.

    The rows that are replaced stay on the disk until the next import or snapshot, for fits that wait for their turn.
    With --delete-old-rows they go at once; such a fit then fails before it reads anything, and runs on the new rows,
    under the same debit, when it is asked for again.

    \b
      bursar-admin snapshot --manifest people.toml --csv people-corrected.csv --reason "coding error in region"
    """  # noqa: D301  click reads the backslash
    acting.confirm(f"Are these rows of the same people as those of {manifest.name}? They replace them for good.")
    report, entry = replace(
        acting.state,
        acting.ledger,
        manifest,
        source,
        actor=acting.actor,
        reason=acting.reason,
        storage=storage_of(acting.config),
        dry_run=acting.dry_run,
    )
    for line in _report_lines(report):
        click.echo(line)
    click.echo(left_line(acting.ledger.dataset(manifest.name)))
    acting.tell(entry, f"new rows of {manifest.name}")
    if delete_old_rows and not acting.dry_run:
        remove_replaced(acting.state, acting.ledger)
        click.echo("the replaced rows are removed from the disk")


@click.command()
@STATE
@JSON
def datasets(directory: Path, as_json: bool) -> None:
    """List datasets and what is left of their totals."""
    with opened(directory) as (_, ledger):
        found = list(ledger.datasets())
    if as_json:
        say_json([_record(state) for state in found])
    elif found:
        click.echo(table([("dataset", "adjacency", "total", "left", "note"), *map(_row, found)], whole=("dataset",)))
    else:
        click.echo("no datasets yet: bursar-admin import --help", err=True)


@click.command()
@click.argument("name")
@act(asks=True)
@click.option("--delete-rows", is_flag=True, help="Then remove the rows from this machine's disk.")
@click.option("--destroy-key", is_flag=True, help="And then the key of the table's tag.")
def retire(acting: Act, name: str, *, delete_rows: bool, destroy_key: bool) -> None:
    """End a dataset: no new fits, for good.

    What was released of it can still be had, and is still counted: other names of the same people's account go on with
    what is left. There is no way back. The same rows may be imported again under another name; they are recognised and
    join the account that they had.

    With --delete-rows the rows are removed from this disk, and from a cluster's storage, after the entry is written,
    and another entry says that they are gone; if that is cut off, give the command again. Fits that were paid for and
    interrupted cannot run again then: what they cost stays spent. Copies in backups and in your own files are yours to
    remove.

    With --destroy-key, too, the secret goes under which the ledger's tag of these rows was made, with an entry: the
    ledger then says nothing of any of them, not even to somebody who knows all the others. What is lost with it: these
    rows are not recognised any more if somebody imports them again. The import asks then; --same-people-as puts them
    into the account that they had.

    \b
      bursar-admin retire people --reason "end of the study" --delete-rows
      bursar-admin retire people --delete-rows --destroy-key
    """  # noqa: D301  click reads the backslash
    if destroy_key and not delete_rows:
        raise ValueError("--destroy-key goes with --delete-rows: rows without the key could not be served again")
    dataset = acting.ledger.dataset(name)
    together = shares_key(acting.state, acting.ledger, name) if destroy_key else ()
    if others := [other.name for other in together if other.name != name]:
        click.echo(f"the key is that of {', '.join(others)}, too, as older versions had one for all tables")
    unfinished = sum(not paid.released for paid in acting.ledger.releases(dataset=name))
    if unfinished:
        lost = "they cannot run again without rows" if delete_rows else "they may still be asked for again"
        click.echo(f"{unfinished} paid fits of {name} have no stored release; {lost}")
    if dataset.retired and delete_rows:
        acting.confirm(f"{name} is retired. Remove its rows from this disk for good?")
    else:
        retired = functools.partial(acting.ledger.retire_dataset, name, actor=acting.actor, reason=acting.reason)
        retired(dry_run=True)  # so that nobody is asked about what would be refused
        acting.confirm(f"Retire {name} for good{' and remove its rows from this disk' if delete_rows else ''}?")
        acting.tell(retired(dry_run=acting.dry_run), f"retired {name}")
    if delete_rows:
        _delete_rows(acting, dataset)
    if destroy_key and acting.dry_run:
        click.echo(f"the key of {name} in {acting.state.keys} would be destroyed")
    elif destroy_key:
        for entry in destroy(acting.state, acting.ledger, name, actor=acting.actor, reason=acting.reason):
            acting.tell(entry, f"destroyed the {entry.details['destroyed']} of {entry.dataset}")
        click.echo(f"the key of {name} is not on this disk any more; copies of it are yours to remove")


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

    For tables that were imported before the settings named a cluster; imports do it by themselves. Given again, the
    command reads all that is there, and writes it again if a file is missing or was changed; fits that read it at that
    time fail. It changes nothing in the ledger. docs/operations.md says how a cluster is set up.

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


@click.command()
@click.argument("name")
@act()
def rekey(acting: Act, name: str) -> None:
    """Give a table of an older version a key of its own.

    Older versions had one key for all tables, which could be destroyed only with the last of them. The rows stay as
    they are, and are tagged anew under the new key: one entry. The old tag stays in the ledger, and means something
    until the shared key is destroyed. It is also the way out if a table's key was lost.

    \b
      bursar-admin rekey people --reason "a key for each table"
    """  # noqa: D301  click reads the backslash
    entry, others = give_key(
        acting.state, acting.ledger, name, actor=acting.actor, reason=acting.reason, dry_run=acting.dry_run
    )
    acting.tell(entry, f"a new key for {name}")
    if others:
        click.echo(f"{others} more tables have their newest tag under the key that older versions shared")


def left_line(state: DatasetState) -> str:
    """What is left of a dataset's account."""
    left = state.remaining
    spent = (
        f"spent {rho(state.spent_cost_units, state.order)} ({percent(state.spent_cost_units, state.cap_cost_units)})"
    )
    return (
        f"account {state.account}: total ({state.budget.epsilon:g}, {state.budget.delta:g}), {spent}, "
        f"left {rho(left.cost_units, state.order)}"
    )


def accounts_names(ledger: Ledger, account: str) -> tuple[str, ...]:
    """The datasets that share an account, in the order of their registration."""
    return tuple(state.name for state in ledger.datasets() if state.account == account)


def _total(epsilon: float | None, delta: float | None, approximate_share: Fraction | None) -> Budget | None:
    if (epsilon is None) != (delta is None):
        raise ValueError("give --epsilon and --delta together, or neither for a table that joins an account")
    if epsilon is None or delta is None:
        if approximate_share is not None:
            raise ValueError("--approximate-share goes with --epsilon and --delta")
        return None
    return Budget(epsilon, delta) if approximate_share is None else Budget(epsilon, delta, approximate_share)


def _source(csv: Path | None, parquet: Path | None, sql: str | None, database: Path | None) -> Source:
    given = [option for option in (csv, parquet, sql) if option is not None]
    if len(given) != 1 or (database and not sql):
        raise ValueError("give exactly one of --csv, --parquet and --sql; --database goes with --sql")
    if sql is not None:
        return SqlSource(sql, database)
    return CsvSource(csv) if csv else ParquetSource(Path(str(parquet)))


def _report_lines(report: ImportReport) -> Iterator[str]:
    yield "import report (computed from the data: for you alone)"
    for field, text in (
        ("rows_read", "rows read"),
        ("null_rows", "rows with a bad cell, kept as null rows"),
        ("values_clipped", "values moved to a bound"),
        ("values_missing", "values missing in nullable columns"),
        ("rows_over_cap", "rows over their unit's cap, kept as null rows"),
    ):
        yield f"  {getattr(report, field):>12,}  {text}"


def _joined_lines(account: DatasetState, manifest: Manifest, *, by_content: bool) -> Iterator[str]:
    if by_content:
        yield f"these rows are known: they were imported before, and belong to the account {account.account}"
    yield "its total is shared from now on, and what was spent of it is spent for this name, too"
    yield left_line(account)
    first = Registered.of(account.manifest).manifest.unit
    if (first.column is None) != (manifest.unit.column is None):
        # Only the owner knows whose rows they are, so this cannot be checked.
        yield (
            f"note: the privacy unit is {_unit(manifest.unit)} here, and {_unit(first)} in {account.account}; one "
            "total for both protects a person only if nobody has more rows than the unit allows"
        )


def _unit(unit: Unit) -> str:
    return "a row" if unit.column is None else f"all rows with one {unit.column}, {unit.max_rows} at most"


def _row(state: DatasetState) -> tuple[str, ...]:
    budget, left = state.budget, state.remaining
    notes = [f"account {state.account}"] if state.account != state.name else []
    notes += ["retired"] if state.retired else []
    notes += ["closed: more was spent than the total in force allows"] if is_closed(state) else []
    return (
        state.name,
        state.adjacency.value,
        f"({budget.epsilon:g}, {budget.delta:g})",
        f"{rho(left.cost_units, state.order)} ({percent(left.cost_units, state.cap_cost_units)})",
        ", ".join(notes),
    )


def _record(state: DatasetState) -> dict[str, object]:
    cap, budget = state.cap_cost_units, state.budget
    return {
        "name": state.name,
        "account": state.account,
        "adjacency": state.adjacency.value,
        "total": {"epsilon": budget.epsilon, "delta": budget.delta},
        "spent": amount(state.spent_cost_units, cap, state.order),
        "left": amount(state.remaining.cost_units, cap, state.order),
        "retired": state.retired,
        "closed": is_closed(state),
    }


def is_closed(state: DatasetState) -> bool:
    """Whether a total was set below what had been spent."""
    return state.spent_cost_units > state.cap_cost_units or state.spent_delta_units > state.cap_delta_units
