"""Command that makes a state directory."""

from __future__ import annotations

import time
from pathlib import Path

import click

from bursar_ledger import Ledger, Role, move_ledger
from bursar_server.access.auth import expiry, hash_token, new_token
from bursar_server.access.tls import Certificates
from bursar_server.admin._acting import STATE, actor, explained
from bursar_server.config import Config, template
from bursar_server.ops.checkpoints import prepare_checkpoints, write_checkpoint
from bursar_server.state import State, write_private
from bursar_server.wire.admin_service import check_name


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
