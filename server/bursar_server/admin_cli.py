"""`bursar-admin`: what the data's owner does on the server's own machine. Works while the server runs."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Iterator
from pathlib import Path

import click

from bursar_ledger import Budget, Ledger, LedgerError, Role
from bursar_server.auth import hash_token, new_token
from bursar_server.checkpointing import prepare_checkpoints, write_checkpoint
from bursar_server.config import Config, ConfigError, template
from bursar_server.fits import InvalidRequestError
from bursar_server.registering import register
from bursar_server.services.admin import check_name
from bursar_server.state import State, StateError, write_private
from bursar_server.tables import (
    CsvSource,
    ImportReport,
    Keys,
    Manifest,
    ParquetSource,
    Source,
    SqlSource,
    TableError,
)
from bursar_server.tls import Certificates

_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


_STATE = click.option("--state", "directory", type=_PATH, required=True, envvar="BURSAR_STATE", help="State directory.")
_REASON = click.option("--reason", default="", help="Goes into the ledger's entry.")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Errors that this program raises on purpose, as one message without a traceback."""
    try:
        yield
    except (StateError, ConfigError, LedgerError, InvalidRequestError, TableError, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _actor() -> str:
    return f"local:{getpass.getuser()}"


@click.group()
@click.version_option(package_name="bursar")
def main() -> None:
    """Administer a state directory: tables, budgets, tokens."""


@main.command()
@_STATE
@click.option("--name", "names", multiple=True, metavar="HOST", help="Further DNS names or addresses of the server.")
@click.option("--admin", default="admin", show_default=True, help="Name of the first administrator.")
def init(directory: Path, names: tuple[str, ...], admin: str) -> None:
    """Make a state directory: ledger, keys, certificates and the first administrator's token."""
    with _explained():
        check_name(admin)
        state = State.prepare(directory)
        certificates = Certificates(state.tls)
        certificates.create(names)
        Keys.create(state.keys)
        if not state.config.exists():
            write_private(state.config, template().encode())
        token_file = _create_ledger(state, admin)
        with Ledger.open(state.ledger) as ledger:
            problems = write_checkpoint(state, ledger, Config.load(state.config), create=True)
    for problem in problems:
        click.echo(problem, err=True)
    click.echo(f"made {directory}")
    click.echo(f"administrator's token: {token_file} (move it away; only its hash is kept elsewhere)")
    click.echo(f"for clients:           {certificates.ca}")
    click.echo("next:")
    click.echo(
        f"  bursar-admin import --state {directory} --manifest TABLE.toml --csv TABLE.csv --epsilon 3 --delta 1e-6"
    )
    click.echo(f"  bursar-admin token issue --state {directory} --name alice --role analyst")
    click.echo(f"  bursar-server run --state {directory}")


def _create_ledger(state: State, admin: str) -> Path:
    """The ledger and the administrator's token; the ledger gets its name last, so that half a state is no state."""
    new, token_file = state.ledger.with_name("ledger.new"), state.path / "admin.token"
    for leftover in state.path.glob("ledger.new*"):
        leftover.unlink()
    token = new_token(Role.ADMIN)
    with Ledger.create(new, actor=_actor(), reason="init") as ledger:
        ledger.issue_credential(admin, Role.ADMIN, hash_token(token), actor=_actor(), reason="init")
        prepare_checkpoints(state, ledger, actor=_actor())
    write_private(token_file, token.encode() + b"\n")
    new.replace(state.ledger)
    return token_file


@main.command("import")
@_STATE
@click.option("--manifest", "manifest_path", type=_FILE, required=True, help="The table's public schema, TOML.")
@click.option("--csv", type=_FILE, help="Rows from a CSV file with a header.")
@click.option("--parquet", type=_FILE, help="Rows from a Parquet file.")
@click.option("--sql", help="Rows from a DuckDB query.")
@click.option("--database", type=_FILE, help="DuckDB file for --sql; left out: the query names its files.")
@click.option("--epsilon", type=float, required=True, help="Total of the dataset, for its whole life and all analysts.")
@click.option("--delta", type=float, required=True, help="Total of the dataset.")
@_REASON
def import_(
    directory: Path,
    manifest_path: Path,
    csv: Path | None,
    parquet: Path | None,
    sql: str | None,
    database: Path | None,
    epsilon: float,
    delta: float,
    reason: str,
) -> None:
    """Import a table into an immutable snapshot and register it with its budget. The report is for you alone."""
    with _explained():
        source = _source(csv, parquet, sql, database)
        budget = Budget(epsilon, delta)
        state, manifest = State.open(directory), Manifest.load(manifest_path)
        with Ledger.open(state.ledger) as ledger:
            report, entry = register(state, ledger, manifest, source, budget, actor=_actor(), reason=reason)
    for line in _report_lines(report):
        click.echo(line)
    click.echo(f"registered {manifest.name} with (epsilon, delta) = ({epsilon:g}, {delta:g}): entry {entry.number}")


def _report_lines(report: ImportReport) -> Iterator[str]:
    yield "import report (computed from the data: for you alone)"
    for field, text in (
        ("rows_read", "rows read"),
        ("null_rows", "rows with a bad cell, kept as null rows"),
        ("values_clipped", "values moved to a bound"),
        ("rows_over_cap", "rows over their unit's cap, kept as null rows"),
    ):
        yield f"  {getattr(report, field):>12,}  {text}"


def _source(csv: Path | None, parquet: Path | None, sql: str | None, database: Path | None) -> Source:
    given = [option for option in (csv, parquet, sql) if option is not None]
    if len(given) != 1 or (database and not sql):
        raise ValueError("give exactly one of --csv, --parquet and --sql; --database goes with --sql")
    if sql is not None:
        return SqlSource(sql, database)
    return CsvSource(csv) if csv else ParquetSource(Path(str(parquet)))


@main.command()
@_STATE
def datasets(directory: Path) -> None:
    """List datasets and what is left of their budgets."""
    with _explained(), Ledger.open(State.open(directory).ledger) as ledger:
        for state in ledger.datasets():
            budget, left = state.budget, state.remaining
            share = left.cost_units / left.cap_cost_units
            click.echo(
                f"{state.name}  {state.adjacency.value}  total ({budget.epsilon:g}, {budget.delta:g})  "
                f"left rho {left.rho:.6g} ({share:.1%})"
            )


@main.group()
def token() -> None:
    """Issue, revoke and list tokens."""


@token.command()
@_STATE
@click.option("--name", required=True, help="Who will hold it.")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True)
@click.option("--out", type=_PATH, help="Write the token to this file (0600) instead of printing it.")
@_REASON
def issue(directory: Path, name: str, role: str, out: Path | None, reason: str) -> None:
    """Issue a token; it is shown once and kept as a hash."""
    secret = new_token(Role(role))
    with _explained(), Ledger.open(State.open(directory).ledger) as ledger:
        check_name(name)
        ledger.issue_credential(name, Role(role), hash_token(secret), actor=_actor(), reason=reason)
    if out is None:
        click.echo(secret)
    else:
        write_private(out, secret.encode() + b"\n")
        click.echo(f"token of {name} written to {out}", err=True)


@token.command()
@_STATE
@click.option("--name", required=True, help="Whose token.")
@_REASON
def revoke(directory: Path, name: str, reason: str) -> None:
    """Revoke a token from the next call on."""
    with _explained(), Ledger.open(State.open(directory).ledger) as ledger:
        entry = ledger.revoke_credential(name, actor=_actor(), reason=reason)
    click.echo(f"revoked the token of {name}: entry {entry.number}")


@token.command("list")
@_STATE
def list_(directory: Path) -> None:
    """List who holds what."""
    with _explained(), Ledger.open(State.open(directory).ledger) as ledger:
        for held in ledger.credentials():
            click.echo(f"{held.name}  {held.role.value}  {'revoked' if held.revoked else 'live'}")


if __name__ == "__main__":
    main()
