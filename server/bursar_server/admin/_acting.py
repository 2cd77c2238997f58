"""Common parts of all commands: options, actor, confirmation, errors as one line, the entry's number at the end."""

from __future__ import annotations

import contextlib
import functools
import getpass
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bursar_ledger import Entry, Ledger, LedgerError, LedgerLostError
from bursar_ledger.audit._formats import json_text
from bursar_server.config import Config, ConfigError
from bursar_server.fits import InvalidFieldsError
from bursar_server.jobs.errors import RowsUnavailableError
from bursar_server.ops.checkpoints import explained_loss, write_checkpoint
from bursar_server.state import State, StateError
from bursar_server.tables import TableError
from bursar_server.wire.admin_service import check_name, check_reason

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, exists=True)
"""File or folder that exists."""

STATE = click.option(
    "--state", "directory", type=PATH, required=True, envvar="BURSAR_STATE", show_envvar=True, help="State directory."
)
_REASON = click.option("--reason", default="", help="Why; goes into the ledger's entry, for the auditor.")
ACTOR = click.option(
    "--actor",
    "who",
    metavar="NAME",
    envvar="BURSAR_ACTOR",
    show_envvar=True,
    help="Who does it, as local:NAME in the entry. [default: your login]",
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Do and check everything, show the outcome, keep nothing.")
_YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation; for scripts.")


_ADVICE = ("list the datasets to see the names", "bursar-admin datasets lists those that there are")
"""Advice in the ledger's errors for programs, and its replacement for a terminal."""


def say_json(value: object) -> None:
    """Print JSON, indented, in printable ASCII."""
    click.echo(json_text(value, indent=2))


_COPIED = (
    "warning: {path} is not the file of its last run, but a copy. If anything was spent since the copy was made, it is "
    "forgotten here: bursar-admin restore makes a directory with every account closed"
)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Convert errors with a cause outside of this program to one message without a traceback."""
    try:
        yield
    except (
        StateError,
        ConfigError,
        LedgerError,
        InvalidFieldsError,
        RowsUnavailableError,
        TableError,
        ValueError,
    ) as error:
        raise click.ClickException(str(error).replace(*_ADVICE)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{where}{error.strerror or error}") from None


@dataclass(frozen=True)
class Held:
    """State and open ledger of a page that runs commands; such commands ask nothing at the page's terminal."""

    state: State
    ledger: Ledger


def _held() -> Held | None:
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Held)


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[tuple[State, Ledger]]:
    """Open state and ledger of a state directory, for commands that only read; errors become one message."""
    with explained():
        if (held := _held()) is not None:  # opening verifies every entry, and a page has done that
            yield held.state, held.ledger
            return
        state = State.open(directory)
        with _ledger_of(state) as ledger:
            yield state, ledger


def _ledger_of(state: State) -> Ledger:
    try:
        ledger = Ledger.open(state.ledger)
    except LedgerLostError as error:
        raise StateError(explained_loss(error, state)) from None
    if ledger.is_copy:
        click.echo(_COPIED.format(path=state.ledger), err=True)
    return ledger


def actor(name: str | None = None) -> str:
    """Return the user who runs this program, as entries name them: under the name that they give, or their login.

    Raises InvalidFieldsError for a name that entries cannot hold.
    """
    if name is not None:
        check_name(name)
        return f"local:{name}"
    try:
        return f"local:{getpass.getuser()}"
    except (KeyError, OSError):  # a container may run under a user id without a name
        return f"local:uid:{os.getuid()}"


@dataclass(frozen=True)
class Act:
    """Context of one command that changes the ledger."""

    state: State
    ledger: Ledger
    config: Config
    actor: str
    reason: str
    dry_run: bool
    yes: bool

    def check_can_ask(self, question: str) -> None:
        """Raise click.ClickException without a terminal and without --yes, before a long work ends in a question."""
        if not (self.yes or self.dry_run or at_terminal()):
            raise click.ClickException(
                f"{question} There is no terminal to ask at: give --yes to do it, or --dry-run to see what it would do"
            )

    def confirm(self, question: str, *, scripted: bool = False) -> None:
        """Ask before a change that cannot be undone.

        Raises click.ClickException without a terminal and without --yes, unless it may be `scripted`.
        """
        if not scripted:
            self.check_can_ask(question)
        if at_terminal() and not (self.yes or self.dry_run):
            click.confirm(question, abort=True, err=True)

    def would(self, done: str, planned: str) -> str:
        """Return what to say of a change: that it is done, or, in a dry run, what would be."""
        return planned if self.dry_run else done

    def typed(self, word: str, question: str, option: str) -> None:
        """Let the administrator type a word. Raises click.ClickException without a terminal, or for another word."""
        if not at_terminal():
            raise click.ClickException(f"{question}. There is no terminal to ask at: give {option} if it is meant")
        if click.prompt(question, default="", show_default=False, err=True) != word:
            raise click.ClickException(f"{word!r} was not typed; nothing was done")

    def tell(self, entry: Entry, text: str, *, err: bool = False) -> None:
        """Print the change and its entry's number, and write a checkpoint of it.

        Args:
            entry: entry that was written, or would have been.
            text: sentence without its end.
            err: True to print on standard error, where standard output has a result.
        """
        if self.dry_run:
            article = "an" if entry.kind[0] in "aeiou" else "a"
            click.echo(f"{text}: it would be entry {entry.number}, {article} {entry.kind} by {entry.actor} with")
            click.echo(json.dumps(entry.details, indent=2, sort_keys=True))
            return
        self.told(f"{text}: entry {entry.number}", err=err)

    def told(self, text: str, *, err: bool = False) -> None:
        """Print the change, and write a checkpoint of it."""
        click.echo(text, err=err)
        # The change is in the ledger, so a failing checkpoint is reported and is no error.
        for problem in write_checkpoint(self.state, self.ledger, self.config):
            click.echo(problem, err=True)


def at_terminal() -> bool:
    """Return whether a user can answer questions."""
    return _held() is None and sys.stdin.isatty()


def act(*, asks: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command's callback: add the options of every change, and pass it the `Act` first.

    Args:
        asks: True if the change cannot be undone, so that --yes is an option, too.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(directory: Path, reason: str, who: str | None, dry_run: bool, **kwargs: Any) -> None:
            yes = kwargs.pop("yes", False)
            with explained():
                check_reason(reason)
                doer = actor(who)
                if dry_run:
                    click.echo("dry run: everything is checked, nothing is kept", err=True)
                with opened(directory) as (state, ledger):
                    config = Config.load(state.config)  # before anything is written
                    function(Act(state, ledger, config, doer, reason, dry_run, yes), **kwargs)

        options: list[Callable[[Any], Any]] = [_DRY_RUN, ACTOR, _REASON, STATE]
        for option in [_YES, *options] if asks else options:
            command = option(command)
        return command

    return decorate
