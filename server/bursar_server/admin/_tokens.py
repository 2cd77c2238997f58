"""Commands for tokens."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path

import click

from bursar_ledger import Ledger, Role
from bursar_ledger.audit._formats import InOrder
from bursar_server.access.auth import expiry, hash_token, new_token
from bursar_server.admin._acting import JSON, PATH, STATE, Act, act, opened, say_json
from bursar_server.admin._shares import table
from bursar_server.state import write_private
from bursar_server.wire.admin_service import check_days, check_name, check_scope


@click.group(cls=InOrder)
def token() -> None:
    """Issue, revoke and list tokens.

    A holder shows the token to the server; the ledger keeps its hash only, so it is shown once. Debits and allowances
    record its name. An analyst lists, previews and fits; an auditor reads and verifies the ledger; an administrator
    issues tokens remotely, and fits nothing.
    """


@token.command()
@act()
@click.option("--name", required=True, help="Who will hold it.")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="What the holder may do.")
@click.option("--days", type=int, default=0, help="How long it lives. [default: tokens.days of the settings]")
@click.option("--dataset", "datasets", multiple=True, help="Let an analyst see this one only, and others named so.")
@click.option("--out", type=PATH, help="Write the token to this file (0600) instead of printing it.")
def issue(acting: Act, *, name: str, role: str, days: int, datasets: tuple[str, ...], out: Path | None) -> None:
    """Issue a token; it is shown once and kept as a hash.

    A name that had a token before keeps its debits and allowances. Tokens expire; to replace one, revoke it and issue
    another one for the same name.

    \b
      bursar-admin token issue --name alice --role analyst --out alice.token
      bursar-admin token issue --name bob --role analyst --days 30 --dataset people
    """  # noqa: D301  click reads the backslash
    check_name(name)
    secret = new_token(Role(role))
    issued = functools.partial(
        acting.ledger.issue_credential,
        name,
        Role(role),
        hash_token(secret),
        actor=acting.actor,
        reason=acting.reason,
        expires=expiry(check_days(days, acting.config.tokens.days), time.time()),
        datasets=check_scope(datasets, Role(role), acting.ledger),
    )
    entry = issued(dry_run=True)
    if acting.dry_run:
        acting.tell(entry, f"token of {name}")
    elif out is None:
        entry = issued()
        click.echo(secret)
        acting.tell(entry, f"token of {name}, shown this once", err=True)
    else:
        # The file first: a token in force that was not stored would block its name.
        write_private(out, secret.encode() + b"\n")
        acting.tell(issued(), f"token of {name} written to {out}", err=True)


@token.command()
@act()
@click.option("--name", required=True, help="Whose token.")
def revoke(acting: Act, *, name: str) -> None:
    """Revoke a token from the next call on; charged fits are finished and available with a new token."""
    entry = acting.ledger.revoke_credential(name, actor=acting.actor, reason=acting.reason, dry_run=acting.dry_run)
    acting.tell(entry, f"revoked the token of {name}")
    if not acting.dry_run and not acting.ledger.administrators(expiry(0, time.time())):
        click.echo("note: no administrator's token is left; bursar-admin token issue --role admin makes one", err=True)


@token.command("list")
@STATE
@JSON
def list_(directory: Path, as_json: bool) -> None:
    """List the holders of tokens with their roles, including revoked tokens."""
    with opened(directory) as (_, ledger):
        held, rows = ledger.credentials(), holders(ledger)
    if as_json:
        say_json([{**dataclasses.asdict(each), "role": each.role.value} for each in held])
        return
    click.echo(table([("name", "role", "state", "ends", "datasets"), *rows], whole=("name",)))


def holders(ledger: Ledger) -> list[tuple[str, str, str, str, str]]:
    """Return name, role, state, end and datasets of every holder of a token, including revoked tokens."""
    now = expiry(0, time.time())
    return [
        (
            each.name,
            each.role.value,
            "revoked" if each.revoked else "ended" if each.expires and each.expires <= now else "live",
            (each.expires or "never")[:10],
            "all" if each.datasets is None else ", ".join(each.datasets),
        )
        for each in ledger.credentials()
    ]
