"""What the operator may read: ids, methods, statuses and costs, one line an event, as text or as JSON.

Never a value, a row or the text of an exception. Metrics and traces are made from the same events, so they cannot know
more than the log.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Literal

import structlog

_LOGGER = logging.getLogger("bursar.server")
_LONGEST = 400

Listener = Callable[[str, Mapping[str, str | int | None]], None]
"""Hears of every event: its name and its fields."""

_listeners: list[Listener] = []


class ElsewhereError(Exception):
    """An exception of another process, as that process told of it, or what became of the process.

    Attributes:
        kind: name of the exception's type.
        place: where it was raised.
    """

    def __init__(self, kind: str, place: str) -> None:
        super().__init__(kind)
        self.kind = kind
        self.place = place


def set_up(form: Literal["text", "json"] = "text") -> None:
    """Log to standard error from here on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(message)s" if form == "json" else "%(asctime)s %(levelname)s %(message)s")
    )
    _LOGGER.handlers = [handler]
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    global _bound  # one log a process
    _bound = _logger(form)


@contextlib.contextmanager
def without_libraries() -> Iterator[None]:
    """What libraries log appears as an event with their name and without their text, which may hold anything."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [_Foreign(logging.WARNING)]
    try:
        yield
    finally:
        root.handlers = before


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let a listener hear every event, until the block ends. It must not raise."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def event(what: str, /, **fields: str | int | None) -> None:
    """One line: what happened, and pairs of ids, methods, statuses and costs."""
    for listener in tuple(_listeners):
        listener(what, fields)
    _bound.info(what, **fields)


def failure(error: BaseException, incident: str | None = None, **fields: str | int | None) -> str:
    """Log an exception that should not have been and return the id under which a caller may name it.

    Type and place only. The text of an exception, and the values in its frames, may hold what was computed from rows.
    """
    incident = incident or secrets.token_hex(8)
    kind, place = told(error)
    _bound.error("failure", incident=incident, **fields, error=kind, at=place)
    return incident


def told(error: BaseException) -> tuple[str, str]:
    """All that may be said of an exception: its type, and its place in the code."""
    if isinstance(error, ElsewhereError):
        return error.kind, error.place
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__, " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-4:]))


class _Foreign(logging.Handler):
    """Tells that a library said something."""

    def emit(self, record: logging.LogRecord) -> None:
        """Its name and level."""
        event("library", logger=record.name, level=record.levelname)


_Event = MutableMapping[str, Any]


def _shortened(_: Any, __: str, fields: _Event) -> _Event:
    # Nothing that a client sent may start a line of its own, or fill the disk.
    return {key: _one_line(value) for key, value in fields.items() if value is not None}


def _one_line(value: object) -> object:
    if isinstance(value, int):
        return value
    text = str(value)
    return text if text.isprintable() and len(text) <= _LONGEST else repr(text)[:_LONGEST]


def _as_text(_: Any, __: str, fields: _Event) -> str:
    return " ".join([str(fields.pop("event")), *(f"{key}={value}" for key, value in fields.items())])


def _logger(form: Literal["text", "json"]) -> Any:
    if form == "text":
        processors: list[Any] = [_shortened, _as_text]
    else:
        stamps = [structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
        processors = [_shortened, *stamps, structlog.processors.JSONRenderer(sort_keys=True)]
    return structlog.wrap_logger(_LOGGER, processors=processors, wrapper_class=structlog.stdlib.BoundLogger)


_bound = _logger("text")
