"""Every way to fail: one message that says what to do next, and the exit status that scripts go by."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from bursar._cli._printing import say
from bursar._errors import BudgetExhaustedError, ReleaseLostError, ServerError, TransportError
from bursar_models.errors import Error
from bursar_models.text import visible

STATUS = """\b
Exit status:
  0  done
  1  an error (on standard error), or a question was answered with no
  2  the command was not understood
  3  the spend was refused: it is above what is left, and nothing was debited
  4  the fit may be paid for, and its model is not here: give the same command
     with the --request-id that it printed
"""

_FOR_PROGRAMS = {
    "pass token= to connect(), or set BURSAR_TOKEN": "give --token-file, or set BURSAR_TOKEN; see: bursar setup --help",
    "check the address, the CA certificate (ca=) and that the server runs": "check --server, --ca and that the server "
    "runs; bursar setup keeps them",
    "list your releases": "bursar releases lists them",
    "recover() lists": "bursar releases --unfetched lists",
    "client.model has those of all datasets": "bursar releases lists those that there are",
    "connect with history=False or with another file": "set BURSAR_HISTORY to another file, or to off",
    "or pass history=False": "or to off",
}
"""Advice of the SDK to programs, and the same for the command line."""

_WITH_WORD = re.compile(r"\b(\w+)=[\"']([\w.:-]+)[\"']")
_WITH_TRUE = re.compile(r"\b(\w+)=True")
_NAMED = re.compile(r"\b(\w+)=(?=[\s;:,.)]|$)")


class Refused(click.ClickException):
    """A spend above what is left; nothing was debited."""

    exit_code = 3


class Unfinished(click.ClickException):
    """A fit that may be paid for, of which there is no model here."""

    exit_code = 4


def in_options(text: str) -> str:
    """Return text of the SDK with arguments such as mode="kmeans" as the command line has them: --mode kmeans."""
    for said, meant in _FOR_PROGRAMS.items():
        text = text.replace(said, meant)
    text = _WITH_WORD.sub(lambda found: f"{option(found[1])} {found[2]}", text)
    text = _WITH_TRUE.sub(lambda found: option(found[1]), text)
    return _NAMED.sub(lambda found: option(found[1]), text)


def option(name: str) -> str:
    """Return the option for an argument of the SDK."""
    return f"--{name.replace('_', '-')}"


@contextmanager
def explained() -> Iterator[None]:
    """Errors that have a cause outside of this program as one message without a traceback; warnings as one line."""
    with warnings.catch_warnings():
        # Filters stay as they are: a test or a user who wants errors gets them.
        warnings.showwarning = _say_warning
        try:
            yield
        except Error as error:
            raise _failure(error) from None
        except BrokenPipeError:  # of a pager that was closed; click ends quietly
            raise
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(visible(f"{where}{error.strerror or error}")) from None
        except ValueError as error:  # of a model that was asked for what it has not
            raise click.ClickException(visible(in_options(str(error)))) from None


def _failure(error: Error) -> click.ClickException:
    text = visible(in_options(str(error)))
    if isinstance(error, BudgetExhaustedError):
        return Refused(f"{text}{_instead(error)}")
    if error.request_id and isinstance(error, TransportError | ServerError) and not isinstance(error, ReleaseLostError):
        return Unfinished(f"{text}. {again(error.request_id)}")
    return click.ClickException(text)


def _instead(error: BudgetExhaustedError) -> str:
    left = error.remaining
    if left is None or not left.rho > 0:
        return ""
    return f". Less would do: --what-is-left, or at most --spend {left.percent}"


def again(request_id: str) -> str:
    """Return what to do about a fit that may be paid for."""
    return f"Give the same command with --request-id {request_id}, which pays at most once"


def _say_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"Warning: {in_options(str(message))}", err=True)
