"""`python -m demo`: a state directory, a real table, a real server, fits, a refusal and an audit, in a minute."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from pathlib import Path

import click

import bursar
from demo._home import MANIFEST, Home, command
from demo._kernels import compiling
from demo._tour import ALLOWANCE, DATASET, TOTAL, Tour, audit, spend_the_rest

_FOLDER = Path(__file__).resolve().parent.parent / "demo-state"
_numbers = itertools.count(1)


@click.command()
@click.option("--state", "folder", type=click.Path(path_type=Path), default=_FOLDER, help="Where to keep everything.")
@click.option("--serve", is_flag=True, help="Keep the server running afterwards, until Ctrl-C.")
def main(folder: Path, serve: bool) -> None:
    """Run the whole path once: owner, analyst, auditor."""
    # A kill of this process must not leave the server behind: it unwinds the stack as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # A shell that starts it in the background has it ignore Ctrl-C, and so would everything that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    home = Home.fresh(folder)
    with compiling() as wait_for_kernels:
        _prepare(home)
        _step("The server: a process of its own, TLS on loopback (kernels are compiled at the first start)")
        wait_for_kernels(lambda seconds: click.echo(f"  compiling kernels, {seconds:.0f} s ..."))
    with home.serving() as address:
        click.echo(f"  serving on {address}")
        with contextlib.ExitStack() as stack:
            _ask(home, *(stack.enter_context(_connect(home, address, name)) for name in ("alice", "bob", "carol")))
        click.echo(f"\nDone in {time.monotonic() - started:.0f} s.")
        if serve:
            _wait(home, address)
    click.echo("The server has stopped.")


def _prepare(home: Home) -> None:
    """The owner's part, with the server not yet running."""
    admin = "bursar-admin"
    _step("The owner makes a state directory: ledger, keys, a local authority, an administrator's token")
    command(admin, "init", "--state", home.state, show_until="next:")
    _step("The owner imports a table under a public schema and sets its lifetime privacy budget")
    budget = ("--epsilon", f"{TOTAL[0]:g}", "--delta", "1e-6")
    command(admin, "import", "--state", home.state, "--manifest", MANIFEST, "--sql", home.query(), *budget)
    _step("The owner issues tokens to two analysts and to an auditor")
    for name, role in (("alice", "analyst"), ("bob", "analyst"), ("carol", "auditor")):
        out = ("--name", name, "--role", role, "--out", home.token_file(name))
        command(admin, "token", "issue", "--state", home.state, *out)
    _step("The owner lets one of the analysts have a tenth of the total; the total stays the guarantee")
    command(admin, "allowance", "set", "--state", home.state, DATASET, "--analyst", "bob", "--share", ALLOWANCE)


def _ask(home: Home, analyst: bursar.Client, colleague: bursar.Client, auditor: bursar.Client) -> None:
    """The analysts' and the auditor's part, over the wire."""
    _step("The analyst sees what is public, and what is left")
    tour = Tour(next(data for data in analyst.datasets() if data.name == DATASET), home)
    tour.look()
    _step("She asks for a price; that reads no row and costs nothing")
    tour.preview()
    _step("She fits a mixture: debit first, rows second, a model at the end")
    plans = tour.fit_plans()
    _step("She asks a second question of the same budget")
    people = tour.fit_people()
    tour.draw(plans, people)
    click.echo(f"  both models drawn: {os.path.relpath(home.picture)}")
    _step("She sends the same request again, as after a lost connection")
    tour.repeat(people)
    _step("She asks for more than is left")
    tour.ask_too_much()
    _step("She pays for a sketch, and decodes as many models from it as she likes")
    sketch = tour.sketch()
    _step("She lets the server choose which columns to count together, and draws a synthetic table")
    field = tour.field()
    _step("Her colleague spends what is left to him, whatever that is by then")
    rest = spend_the_rest(colleague)
    _step("The auditor verifies the ledger from its file alone, looks up the receipts, and writes a report")
    audit(home, auditor, [model.receipt for model in (plans, people, sketch, field, rest) if model.receipt])


def _connect(home: Home, address: str, name: str) -> bursar.Client:
    # What it sees of the ledger goes with the demo's folder, not into the user's home.
    return bursar.connect(address, token=home.token(name), ca=home.ca, history=home.path / "history.json")


def _wait(home: Home, address: str) -> None:
    """Keep the server for whoever wants to try more."""
    click.echo("The server goes on until Ctrl-C. In another terminal:")
    values = {"ADDRESS": address, "TOKEN": f"$(cat {home.token_file('alice')})", "CA": str(home.ca)}
    for name, value in values.items():
        click.echo(f'export BURSAR_{name}="{value}"')
    try:
        # Not `signal.pause`: a signal just before it, or one that another thread took, would leave it without an end.
        while True:
            time.sleep(1.0)
    except KeyboardInterrupt:
        click.echo()


def _step(title: str) -> None:
    click.echo(f"\n{next(_numbers)}. {title}")


if __name__ == "__main__":
    main()
