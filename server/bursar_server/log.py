"""Operator's log and the typed events that it is made from: ids, methods, statuses and costs, one line an event.

It never contains a value, a row or the text of an exception. Metrics, traces and counts of refusals are made from the
same events, so they reveal no more than the log. The log is the process's; events belong to one server. Imports no
other room.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import structlog

_LOGGER = logging.getLogger("bursar.server")
_LONGEST = 400
"""Maximum length of a logged value; longer ones, which clients may send, are cut. Chosen, not tuned."""


@dataclass(frozen=True)
class Event:
    """Something that happened: one line of the log, with ids, methods, statuses and costs. A field of None is left out.

    Attributes:
        word: first word of the line.
    """

    word: ClassVar[str]

    @property
    def fields(self) -> dict[str, str | int | float | None]:
        """The fields in the order of the line."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclass(frozen=True)
class Call(Event):
    """A call that ended. No principal: it came from a stranger."""

    word = "call"
    method: str
    principal: str | None
    status: str


@dataclass(frozen=True)
class Debited(Event):
    """A fit that was set to work under its debit; the status says whether it is a new one."""

    word = "debit"
    entry: int
    dataset: str
    principal: str
    method: str
    cost_units: int
    status: str


@dataclass(frozen=True)
class Released(Event):
    """A paid fit that ended."""

    word = "released"
    entry: int
    model: Literal["stored", "none"]


@dataclass(frozen=True)
class CutOff(Event):
    """A paid fit that the end of the server cut off."""

    word = "cut_off"
    entry: int


@dataclass(frozen=True)
class Refused(Event):
    """A request that the ledger refused; without amounts if the dataset is retired."""

    word = "refused"
    dataset: str
    principal: str
    method: str
    by: str
    rho_asked: float | None = None
    rho_left: float | None = None


@dataclass(frozen=True)
class LockedOut(Event):
    """An address or a principal that failed too often."""

    word = "locked_out"
    address: str | None = None
    principal: str | None = None


@dataclass(frozen=True)
class OidcRefused(Event):
    """A token of the identity provider that is not accepted."""

    word = "oidc_refused"
    error: str


@dataclass(frozen=True)
class OidcKeysFailed(Event):
    """The identity provider's keys could not be fetched."""

    word = "oidc_keys_failed"
    reason: str


@dataclass(frozen=True)
class TokenIssued(Event):
    """A new token."""

    word = "token_issued"
    entry: int
    name: str
    role: str
    actor: str


@dataclass(frozen=True)
class TokenRevoked(Event):
    """A token that is no longer accepted."""

    word = "token_revoked"
    entry: int
    name: str
    actor: str


@dataclass(frozen=True)
class CertificateLoaded(Event):
    """A new certificate is in force."""

    word = "certificate_loaded"
    expires: str


@dataclass(frozen=True)
class CertificateKept(Event):
    """The new files of the certificate cannot be used; the old one stays in force."""

    word = "certificate_kept"
    reason: str


@dataclass(frozen=True)
class HealthChanged(Event):
    """The server's condition changed."""

    word = "health"
    condition: str
    problems: str | None


@dataclass(frozen=True)
class LedgerVerified(Event):
    """The background verification found the ledger correct."""

    word = "ledger_verified"
    entries: int
    seconds: int


@dataclass(frozen=True)
class LedgerNotVerified(Event):
    """The background verification did not end."""

    word = "ledger_not_verified"
    reason: str


@dataclass(frozen=True)
class LedgerDoesNotVerify(Event):
    """The background verification found problems: the first ones, and how many more there are."""

    word = "ledger_does_not_verify"
    problems: str
    more: int


@dataclass(frozen=True)
class CheckpointFailed(Event):
    """A checkpoint could not be written; told once until it is written again."""

    word = "checkpoint_failed"
    place: str
    reason: str


@dataclass(frozen=True)
class CheckpointWrittenAgain(Event):
    """A place that failed has a checkpoint again."""

    word = "checkpoint_written_again"
    place: str
    entry: int


@dataclass(frozen=True)
class CheckpointLeft(Event):
    """A place had not answered when the server ended."""

    word = "checkpoint_left"
    place: str


@dataclass(frozen=True)
class Compiling(Event):
    """Kernels of a fit are compiled, or read from the disk if they were before; the server does not take calls yet."""

    word = "compiling"
    method: str
    number: int
    of: int


@dataclass(frozen=True)
class LedgerCopied(Event):
    """The ledger's file is not the one of its last run: what was spent elsewhere since is not in it."""

    word = "ledger_copied"


@dataclass(frozen=True)
class Serving(Event):
    """The server takes calls."""

    word = "serving"
    address: str
    workers: int
    queue: int


@dataclass(frozen=True)
class MetricsServed(Event):
    """The endpoint of metrics and health answers."""

    word = "metrics"
    address: str


@dataclass(frozen=True)
class Stopping(Event):
    """The server was told to stop."""

    word = "stopping"


@dataclass(frozen=True)
class CallsLeft(Event):
    """Calls that had not ended when the server did."""

    word = "calls_left"


@dataclass(frozen=True)
class FitsLeft(Event):
    """Fits that had not ended when the server did; their debits stand."""

    word = "fits_left"


@dataclass(frozen=True)
class Stopped(Event):
    """The server ended."""

    word = "stopped"


@dataclass(frozen=True)
class LibraryLogged(Event):
    """A library logged something, whose text may hold anything and is left out."""

    word = "library"
    logger: str
    level: str


Listener = Callable[[Event], None]
"""Receives every event. It must not raise."""


class Events:
    """Events of one server: a line of the log for each, and listeners, such as its metrics. Servers share none."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    @contextlib.contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Let a listener receive every event until the block ends."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def tell(self, event: Event) -> None:
        """Pass an event to the listeners and write its line."""
        for listener in tuple(self._listeners):
            listener(event)
        _bound.info(event.word, **event.fields)


class ElsewhereError(Exception):
    """Exception of another process as that process reported it, or the fate of the process.

    Attributes:
        kind: name of the exception's type.
        place: place in the code where it was raised.
    """

    def __init__(self, kind: str, place: str) -> None:
        super().__init__(kind)
        self.kind = kind
        self.place = place


def set_up(form: Literal["text", "json"] = "text") -> None:
    """Log to standard error from now on."""
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
def without_libraries(events: Events) -> Iterator[None]:
    """Log libraries' messages as events with the library's name and without their text, which may contain anything."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [_Foreign(events)]
    try:
        yield
    finally:
        root.handlers = before


def failure(error: BaseException, incident: str | None = None, **fields: str | int | None) -> str:
    """Log an unexpected exception and return the incident id under which a caller may report it.

    Logs type and place only. The text of an exception, and the values in its frames, may contain numbers computed from
    rows.
    """
    incident = incident or secrets.token_hex(8)
    kind, place = told(error)
    _bound.error("failure", incident=incident, **fields, error=kind, at=place)
    return incident


def told(error: BaseException) -> tuple[str, str]:
    """Return the only facts about an exception that may be shown: its type, and its place in the code."""
    if isinstance(error, ElsewhereError):
        return error.kind, error.place
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__, " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-4:]))


class _Foreign(logging.Handler):
    """Handler that reports that a library logged something."""

    def __init__(self, events: Events) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """Log the library's name and level."""
        self._events.tell(LibraryLogged(logger=record.name, level=record.levelname))


_Fields = MutableMapping[str, Any]


def _shortened(_: Any, __: str, fields: _Fields) -> _Fields:
    # A value that a client sent must not start a line of its own, nor fill the disk.
    return {key: _one_line(value) for key, value in fields.items() if value is not None}


def _one_line(value: object) -> object:
    if isinstance(value, int):
        return value
    text = str(value)
    return text if text.isprintable() and len(text) <= _LONGEST else repr(text)[:_LONGEST]


def _as_text(_: Any, __: str, fields: _Fields) -> str:
    return " ".join([str(fields.pop("event")), *(f"{key}={value}" for key, value in fields.items())])


def _logger(form: Literal["text", "json"]) -> Any:
    if form == "text":
        processors: list[Any] = [_shortened, _as_text]
    else:
        stamps = [structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
        processors = [_shortened, *stamps, structlog.processors.JSONRenderer(sort_keys=True)]
    return structlog.wrap_logger(_LOGGER, processors=processors, wrapper_class=structlog.stdlib.BoundLogger)


_bound = _logger("text")
