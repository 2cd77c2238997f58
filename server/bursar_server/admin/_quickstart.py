"""Commands of an owner's first hour: one makes a state directory, one goes from a file to a server."""

from __future__ import annotations

import os
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from bursar_amounts import exact_text
from bursar_ledger import Budget, Ledger, Role, move_ledger
from bursar_server.access.auth import expiry, hash_token, new_token
from bursar_server.access.tls import Certificates
from bursar_server.admin._acting import ACTOR, FILE, PATH, STATE, actor, explained, opened
from bursar_server.admin._asking import agree, ask_manifest, prompt
from bursar_server.admin._shares import Share
from bursar_server.admin._tables import import_
from bursar_server.admin._tokens import issue
from bursar_server.admin._totals import I_KNOW, TYPICAL, sentence
from bursar_server.config import Config, template
from bursar_server.ops.checkpoints import prepare_checkpoints, write_checkpoint
from bursar_server.state import State, write_private
from bursar_server.tables import Categorical, Manifest, Numeric, ParquetSource, written
from bursar_server.wire.admin_service import check_name


@click.command()
@click.argument("source", type=FILE)
@click.option(
    "--state",
    "directory",
    type=PATH,
    default=Path("state"),
    envvar="BURSAR_STATE",
    show_envvar=True,
    show_default=True,
    help="State directory; it is made if there is none.",
)
@click.option("--manifest", "manifest_path", type=FILE, help="Its manifest; left out: you are asked, and it is made.")
@click.option("--epsilon", type=float, help="Total of these people's account, for its whole life and all analysts.")
@click.option("--delta", type=float, help="Total, the probability that the promise fails.")
@click.option("--analyst", help="Name of the first analyst.")
@click.option("--host", default="localhost", show_default=True, help="Name of this machine, as the analyst calls it.")
@click.option("--port", type=click.IntRange(1, 65535), default=8443, show_default=True, help="Port of the server.")
@click.option("--accept-bad-rows", type=Share(), help="As of bursar-admin import.")
@I_KNOW
@ACTOR
@click.option("--start/--no-start", default=None, help="Start the server at the end. [default: ask]")
@click.pass_context
def quickstart(
    ctx: click.Context,
    source: Path,
    directory: Path,
    manifest_path: Path | None,
    who: str | None,
    host: str,
    port: int,
    accept_bad_rows: Fraction | None,
    *,
    epsilon: float | None,
    delta: float | None,
    analyst: str | None,
    i_know: bool,
    start: bool | None,
) -> None:
    """Go from a CSV or Parquet file to a running server: manifest, budget, import, token, start.

    Asks what no option says, shows each command that it runs, and ends with what the analyst needs. No value of a row
    is shown before the import's report. Without a terminal the answers are read from standard input, one a line, or
    come from --manifest and the other options. What was done stays; after a mistake, give the remaining commands.

    \b
      bursar-admin quickstart people.csv
      bursar-admin quickstart people.csv --manifest people.toml --epsilon 3 --delta 1e-6 --analyst alice --no-start
    """  # noqa: D301  click reads the backslash
    parquet = source.suffix.lower() in (".parquet", ".parq")
    with explained():
        if manifest_path is None:
            manifest_path = _manifest(source, parquet=parquet)
        manifest = Manifest.load(manifest_path)
        if epsilon is None or delta is None:
            epsilon, delta = _total(manifest.public_rows, epsilon, delta)
        if analyst is None:
            analyst = prompt("Name of the first analyst", "alice")
        is_made = State(directory).ledger.exists()
    if not is_made:
        _run(ctx, init, f"init --state {directory} --name {host}", directory=directory, names=(host,))
    acting: dict[str, Any] = {"directory": directory, "who": who, "reason": "quickstart"}
    given = {"parquet" if parquet else "csv": source}
    again = f"bursar-admin quickstart {source} --state {directory} --manifest {manifest_path}"
    _run(
        ctx,
        import_,
        f"import --state {directory} --manifest {manifest_path} --{next(iter(given))} {source} "
        f"--epsilon {exact_text(epsilon)} --delta {exact_text(delta)}",
        **acting,
        **given,
        manifest_path=manifest_path,
        epsilon=epsilon,
        delta=delta,
        accept_bad_rows=accept_bad_rows,
        i_know=i_know,
        otherwise=f"\n{manifest_path} is kept: correct it, and go on with\n  {again}",
    )
    token = _token(ctx, analyst, acting)
    _say_what_to_send(manifest, analyst, f"{host}:{port}", token, State(directory).tls / "ca.pem")
    # The command of the server, in the place of this process: it ends with Ctrl-C, and is what a service would run.
    listen = f"{'127.0.0.1' if host == 'localhost' else '0.0.0.0'}:{port}"  # noqa: S104  the owner named the machine
    words = ["run", "--state", str(directory), "--address", listen]
    click.echo(f"\n> bursar-server {' '.join(words)}")
    if start or (start is None and agree("Start it now?")):
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", "bursar_server", *words])  # noqa: S606


def _manifest(source: Path, *, parquet: bool) -> Path:
    """Ask for the manifest of a source, and write it into this folder."""
    path = Path(f"{source.stem}.toml")
    if path.exists():
        raise ValueError(f"{path} exists: give it to --manifest, or move it away")
    columns = ParquetSource(source).columns() if parquet else ()
    fields = ask_manifest(source.stem, columns, None if parquet else source)
    path.write_text(written(fields), encoding="utf-8")
    click.echo(f"wrote {path}: read it again, it is a promise to the people in the table")
    return path


def _total(rows: int | None, epsilon: float | None, delta: float | None) -> tuple[float, float]:
    """Ask for a total until its meaning is what the owner wants."""
    while True:
        asked = (
            prompt("Total epsilon, for the table's whole life", epsilon or 3.0, click.FLOAT),
            prompt("Total delta", delta or min(1e-6, _rounded(0.01 / (rows or 1))), click.FLOAT),
        )
        try:
            click.echo(sentence(Budget(*asked)), err=True)
        except ValueError as error:
            click.echo(error, err=True)
            continue
        if agree("Is that what you promise?"):
            return asked


def _rounded(delta: float) -> float:
    """Return a delta with one digit, not above: a total is read by people."""
    digits, exponent = f"{delta:e}".split("e")
    return float(f"{digits[0]}e{exponent}")


def _token(ctx: click.Context, analyst: str, acting: dict[str, Any]) -> Path | None:
    """Issue the analyst's token, unless they have one; return its file."""
    with opened(acting["directory"]) as (_, ledger):
        if any(held.name == analyst and not held.revoked for held in ledger.credentials()):
            return None
    path = Path(f"{analyst}.token")
    words = f"token issue --state {acting['directory']} --name {analyst} --role analyst --out {path}"
    _run(ctx, issue, words, **acting, name=analyst, role=Role.ANALYST.value, out=path)
    return path


def _run(ctx: click.Context, command: click.Command, words: str, *, otherwise: str = "", **options: Any) -> None:
    """Run another command of this program, and show how it is typed; if it fails, also say what to do then."""
    click.echo(f"\n> bursar-admin {words}")
    try:
        ctx.invoke(command, **options)
    except click.UsageError:
        raise  # a wrong option has an exit status of its own
    except click.ClickException as error:
        raise click.ClickException(f"{error.format_message()}{otherwise}") from None


def _say_what_to_send(table: Manifest, analyst: str, address: str, token: Path | None, authority: Path) -> None:
    click.echo(f"\nSend {analyst}, by a way that you would use for a password:")
    click.echo(f"  token      {token or 'they have one'}")
    click.echo(f"  authority  {authority}")
    click.echo(f"  address    {address}")
    click.echo("  and three lines of Python:\n")
    click.echo("import bursar")
    given = '"..."' if token is None else f'open("{token.name}").read().strip()'
    click.echo(f'client = bursar.connect("{address}", token={given}, ca="{authority.name}")')
    click.echo(f'print(client.dataset("{table.name}"))')
    click.echo("\nA first model by a fourth, for the price of a typical fit:\n")
    click.echo(f'print(client.dataset("{table.name}").fit({_first_fit(table)}, spend=bursar.rho({TYPICAL})))')


def _first_fit(table: Manifest) -> str:
    """Return a request that suits the columns: counts of categories if there are any, else a mixture."""
    named = {kind: [one.name for one in table.columns if isinstance(one, kind)] for kind in (Categorical, Numeric)}
    if named[Categorical]:
        return f"bursar.MRF(columns={named[Categorical][:2]})"
    return f"bursar.DPEM(n_components=2, columns={named[Numeric][:2]})"


@click.command()
@STATE
@click.option("--name", "names", multiple=True, metavar="HOST", help="Further DNS names or addresses of the server.")
@click.option("--admin", default="admin", show_default=True, help="Name of the first administrator.")
def init(directory: Path, names: tuple[str, ...], admin: str) -> None:
    """Make a state directory: ledger, keys, certificates and the first administrator's token.

    On a local disk, readable by you only. A ledger is made once and never reset: it records every debit.
    """
    with explained():
        check_name(admin)
        state = State.prepare(directory)
        certificates = Certificates(state.tls)
        certificates.create(names)
        if not state.config.exists():
            write_private(state.config, template().encode())
        config = Config.load(state.config)  # before there is a ledger, if it is wrong
        token_file = _create_ledger(state, admin, expiry(config.tokens.days, time.time()))
        with Ledger.open(state.ledger) as ledger:
            problems = write_checkpoint(state, ledger, config, create=True)
    for problem in problems:
        click.echo(problem, err=True)
    click.echo(f"made {directory}")
    click.echo(f"administrator's token: {token_file} (move it away; only its hash is kept elsewhere)")
    click.echo(f"  it ends after {config.tokens.days} days; a new one: bursar-admin token revoke and token issue")
    click.echo(f"for clients:           {certificates.ca}")
    click.echo("next:")
    click.echo(
        f"  bursar-admin import --state {directory} --manifest TABLE.toml --csv TABLE.csv --epsilon 3 --delta 1e-6"
    )
    click.echo(f"  bursar-admin token issue --state {directory} --name alice --role analyst")
    click.echo(f"  bursar-server run --state {directory}")


def _create_ledger(state: State, admin: str, expires: str) -> Path:
    """Create the ledger and the administrator's token.

    The ledger gets its name last, so that half a state is no state.
    """
    new, token_file = state.new_ledger, state.path / "admin.token"
    token = new_token(Role.ADMIN)
    with Ledger.create(new, actor=actor(), reason="init") as ledger:
        ledger.issue_credential(admin, Role.ADMIN, hash_token(token), actor=actor(), reason="init", expires=expires)
        prepare_checkpoints(state, ledger, actor=actor())
    write_private(token_file, token.encode() + b"\n")
    move_ledger(new, state.ledger)
    return token_file
