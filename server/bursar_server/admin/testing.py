"""Run `bursar-admin` commands and one server for `bursar.testing.serve`: `python -m bursar_server.admin.testing`.

One process instead of one for each command, since most of their time is spent on imports. Each line on standard input
is a JSON list of words: those of a `bursar-admin` command, or `serve`, a state directory and settings. Each gets one
line of JSON: what the command printed, the server's address, or the error. The end of standard input ends everything.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, TextIO

import click

from bursar_server.jobs import hardening

Answer = dict[str, str]


def main() -> None:
    """Answer lines until there are no more."""
    hardening.few_arenas()  # before the libraries start their threads
    hardening.one_thread_for_matrices()
    from bursar_server.admin.cli import main as admin

    ours, theirs = socket.socketpair()
    # Before any command: the server must have nothing in memory that a command leaves there, nor its threads.
    server = _forked(theirs)
    theirs.close()
    try:
        with ours.makefile("rw") as control:
            for line in sys.stdin:
                words = json.loads(line)
                answer = _told(control, line) if words[0] == "serve" else _run(admin, words)
                print(json.dumps(answer), flush=True)  # noqa: T201  the answer
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def _run(admin: click.Group, words: list[str]) -> Answer:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            admin.main(words, prog_name="bursar-admin", standalone_mode=False)
    except click.ClickException as error:
        return {"error": error.format_message()}
    return {"output": printed.getvalue()}


def _told(control: TextIO, line: str) -> Answer:
    control.write(line)
    control.flush()
    said: Answer = json.loads(control.readline() or '{"error": "the server ended before it served"}')
    return said


def _forked(control: socket.socket) -> int:
    parent, server = os.getpid(), os.fork()
    if server:
        return server
    status = 1
    try:
        hardening.die_with_parent(parent)
        # The lines and answers are the parent's; what a library prints goes to the log.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        with control.makefile("rw") as asked:
            if line := asked.readline():
                _, directory, settings = json.loads(line)
                _serve(Path(directory), settings, asked)
        status = 0
    finally:
        os._exit(status)


def _serve(directory: Path, settings: dict[str, Any], asked: TextIO) -> None:
    from bursar_server.process import StartError, serve

    def say(answer: Answer) -> None:
        asked.write(json.dumps(answer) + "\n")
        asked.flush()

    hardening.no_core_dumps()
    try:
        serve(directory, ready=lambda address: say({"address": address}), **settings)
    except StartError as error:
        say({"error": str(error)})


if __name__ == "__main__":
    main()
