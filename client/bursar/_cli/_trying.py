"""`bursar try`: a real server on synthetic rows, for as long as one command or shell runs."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from bursar._cli._connecting import FILE
from bursar._cli._connecting import VARIABLE as SETTINGS
from bursar._cli._failing import STATUS, explained
from bursar._cli._printing import say
from bursar._history import VARIABLE as HISTORY
from bursar._served import Server, serve

_SCHEMA = """
name = "people"
description = "synthetic people: no row is about anybody"
adjacency = "replace_one"
public_rows = 10000
[[columns]]
name = "age"
description = "years"
kind = "numeric"
lower = 18.0
upper = 98.0
bins = 8
[[columns]]
name = "visits"
description = "visits to a doctor that year"
kind = "numeric"
lower = 0.0
upper = 50.0
bins = 5
[[columns]]
name = "smoker"
description = "smoked that year"
kind = "categorical"
categories = ["no", "yes"]
"""


@click.command(
    "try", epilog=STATUS, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("--schema", type=FILE, help="Manifest of your own table (TOML), for synthetic rows of its columns.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def try_(ctx: click.Context, schema: Path | None, command: tuple[str, ...]) -> None:
    """Run a command with a server of its own on synthetic rows, which is removed at the end.

    The server is a real one, with a ledger and a budget of (3, 1e-6). The command finds it by BURSAR_ADDRESS, BURSAR_CA
    and BURSAR_TOKEN. Without a command your shell is started; leaving it ends the server. The exit status is the
    command's. This needs the server: pip install './bursar[server,cli]'.

    \b
      bursar try bursar datasets
      bursar try python analysis.py
    """  # noqa: D301  click reads the backslash
    with explained():
        if command and shutil.which(command[0], path=_path()) is None:  # before a server is started for it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        say("starting a server; the first time on a machine this may take a minute", err=True)
        try:
            with serve(_SCHEMA if schema is None else schema) as server:
                say(f"{server.address} serves synthetic rows, with a new ledger and budget", err=True)
                status = subprocess.call(command or [_shell()], env=_environment(server))
        except RuntimeError as error:  # the server refuses the schema, and says why
            raise click.ClickException(str(error)) from None
    say("the server and its state are removed", err=True)
    ctx.exit(status)


def _environment(server: Server) -> dict[str, str]:
    folder = server.state.parent
    return {
        **os.environ,
        "PATH": _path(),
        "BURSAR_ADDRESS": server.address,
        "BURSAR_CA": str(server.ca),
        "BURSAR_TOKEN": server.tokens["analyst"],
        HISTORY: str(folder / "history.json"),
        SETTINGS: str(folder / "config.toml"),
    }


def _path() -> str:
    """Return the search path, with `bursar` and `python` of this installation first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _shell() -> str:
    return os.environ.get("COMSPEC" if os.name == "nt" else "SHELL") or "sh"
