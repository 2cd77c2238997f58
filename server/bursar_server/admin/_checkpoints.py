"""Commands for signed checkpoints, which detect that a ledger was rolled back or rewritten."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from bursar_ledger.audit._formats import InOrder
from bursar_ledger.checkpoints import ChainKey, Comparison, check_place, verifier_keys
from bursar_server.admin._acting import JSON, STATE, Act, act, opened, say_json
from bursar_server.config import Config
from bursar_server.ops.checkpoints import places_of, rotate_key, write_checkpoint


@click.group(cls=InOrder)
def checkpoint() -> None:
    """Write, show and sign checkpoints of the ledger.

    A checkpoint states the newest entry, with a signature. The server writes it to the locations of config.toml, and so
    does every change made here. Give the auditor the line that `checkpoint key` prints, and choose a location apart
    from the ledger's own backups: a checkpoint that is restored together with the ledger detects nothing.
    """


@checkpoint.command()
@STATE
def key(directory: Path) -> None:
    """Print the public key that auditors pin.

    One line; the auditor keeps it and gives it to `bursar-audit verify --key`. Hand it over in a way that the server's
    operator cannot change.
    """
    with opened(directory) as (state, _):
        click.echo(str(_newest_key(verifier_keys(state.ledger)).key))


@checkpoint.command()
@STATE
def write(directory: Path) -> None:
    """Write a checkpoint of the present ledger to every location of config.toml, and create new locations.

    If a location is missing that had checkpoints before, find out why first: is its disk mounted?
    """
    with opened(directory) as (state, ledger):
        config = Config.load(state.config)
        _newest_key(verifier_keys(state.ledger))
        problems = write_checkpoint(state, ledger, config, create=True)
        size, head = ledger.newest()
    for problem in problems:
        click.echo(problem, err=True)
    if problems:
        raise click.ClickException("not every place has a checkpoint of now")
    click.echo(f"checkpoint of entry {size} written to {', '.join(config.checkpoints.places)}: head {head.hex()}")


@checkpoint.command()
@STATE
@JSON
def show(directory: Path, as_json: bool) -> None:
    """Compare the ledger with every location, and show the newest checkpoint of each.

    Exit status 1 if one disagrees.
    """
    with opened(directory) as (state, _):
        newest = _newest_key(verifier_keys(state.ledger)).key
        found = [
            (place, check_place(state.ledger, place, newest) if place.readable else None)
            for place in places_of(state, Config.load(state.config))
        ]
        notes = [place.read()[-1] if compared and compared.notes else None for place, compared in found]
    if as_json:
        say_json([_record(place.name, compared, note) for (place, compared), note in zip(found, notes, strict=True)])
    for (place, compared), note in zip(found, notes, strict=True):
        if not as_json:
            click.echo(_in_words(place.name, compared))
            if note:
                click.echo(note)
        for problem in compared.problems if compared else ():
            click.echo(f"PROBLEM  {problem}", err=True)
    bad = sum(compared is not None and not compared.ok for _, compared in found)
    if bad:
        raise click.ClickException(f"{bad} places do not agree with the ledger; nothing should be served from it")


@checkpoint.command()
@act(asks=True)
def rotate(acting: Act) -> None:
    """Put a new signing key in force, with the server stopped.

    For a key that was lost or may be known to others. The old key's last checkpoint vouches for the new one, so
    auditors who pinned the old key can follow; if the old key is lost, they must pin the new one. Later checkpoints
    under the old key do not count.
    """
    old = _newest_key(verifier_keys(acting.state.ledger))
    with acting.state.serving():
        if acting.dry_run:
            entry = acting.ledger.set_checkpoint_key(
                str(old.key), actor=acting.actor, reason=acting.reason, dry_run=True
            )
            click.echo(f"a new key in the place of {old.key}: it would be entry {entry.number}")
            return
        acting.confirm("Replace the signing key for good?")
        for problem in rotate_key(acting.state, acting.ledger, acting.config, actor=acting.actor, reason=acting.reason):
            click.echo(problem, err=True)
    new = _newest_key(verifier_keys(acting.state.ledger))
    click.echo(str(new.key))
    click.echo(f"checkpoint key: entry {new.entry}", err=True)


def _in_words(place: str, compared: Comparison | None) -> str:
    if compared is None:
        return f"{place}: cannot be read again"
    return f"{place}: {compared.notes} checkpoints, of entry {compared.witnessed} at most"


def _record(place: str, compared: Comparison | None, note: str | None) -> dict[str, object]:
    if compared is None:
        return {"place": place, "readable": False}
    return {"readable": True, **dataclasses.asdict(compared), "newest": note}


def _newest_key(keys: tuple[ChainKey, ...]) -> ChainKey:
    if not keys:
        raise ValueError("the ledger names no checkpoint key yet; the server makes one when it starts")
    return keys[-1]
