"""What the operator may read: ids, methods, statuses and costs, one line an event.

Never a value, a row or the text of an exception.
"""

from __future__ import annotations

import logging
import resource
import secrets
import sys
import traceback

_LOGGER = logging.getLogger("bursar.server")


def set_up() -> None:
    """Log to standard error, and switch core dumps off: a dump would hold rows."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _LOGGER.handlers = [handler]
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False


def event(what: str, /, **fields: str | int | None) -> None:
    """One line: what happened, and key=value pairs of ids, methods, statuses and costs."""
    _LOGGER.info("%s", _line(what, fields))


def failure(error: BaseException, incident: str | None = None, **fields: str | int | None) -> str:
    """Log an exception that should not have been and return the id under which a caller may name it.

    Type and place only. The text of an exception, and the values in its frames, may hold what was computed from rows.
    """
    incident = incident or secrets.token_hex(8)
    frames = traceback.extract_tb(error.__traceback__)
    place = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-4:]))
    _LOGGER.error("%s", _line("failure", {"incident": incident, **fields, "error": type(error).__name__, "at": place}))
    return incident


def _line(name: str, fields: dict[str, str | int | None]) -> str:
    return " ".join([name, *(f"{key}={_one_line(value)}" for key, value in fields.items() if value is not None)])


def _one_line(value: str | int) -> str:
    # Nothing that a client sent may start a line of its own.
    text = str(value)
    return text if text.isprintable() and len(text) <= 400 else repr(text)[:400]
