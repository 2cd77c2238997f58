"""A channel with what every call on it carries, with patience for a busy server, and with what was seen of its ledger.

A server that turns a call away before it did anything says after how many seconds another try makes sense
(`google.rpc.RetryInfo`). The same message is sent again then, with its request_id, so nothing is paid twice. A random
part is added to the wait, since all that were turned away at one moment would come back at one moment (M. Brooker,
*Exponential backoff and jitter*, 2015). What comes without that advice is not sent again: a message that is too large
stays too large.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import grpc

from bursar._attempts import Attempts
from bursar._errors import OverloadedError, ServerError
from bursar._history import History, Shown
from bursar._history_head import HistoryHead
from bursar._wire_errors import Peer, translated
from bursar_models.errors import Error
from bursar_proto.v1 import (
    admin_pb2_grpc,
    audit_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    dummy_pb2_grpc,
    fit_pb2_grpc,
)

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True)
class Connection:
    """Connection to a server.

    Attributes:
        metadata: sent with every call; holds the token, so it is never shown.
        timeout: seconds that one call may take, the repetitions of a fit included; None for no limit.
        retry_delays: seconds to wait before each repetition of a fit whose stream broke.
        patience: seconds that one call may wait in all for a busy server, when told to come back.
        history: of the server's ledger, as far as it was seen; checked before the first call.
        peer: what errors call the server.
        attempts: notes of the paid fits that were sent to this server.
    """

    channel: grpc.Channel = field(repr=False)
    metadata: tuple[tuple[str, str], ...] = field(repr=False)
    timeout: float | None
    retry_delays: tuple[float, ...]
    patience: float
    history: History = field(repr=False)
    peer: Peer = field(default_factory=Peer)
    attempts: Attempts = field(init=False, repr=False)
    catalog: catalog_pb2_grpc.CatalogServiceStub = field(init=False, repr=False)
    fits: fit_pb2_grpc.FitServiceStub = field(init=False, repr=False)
    dummies: dummy_pb2_grpc.DummyServiceStub = field(init=False, repr=False)
    admins: admin_pb2_grpc.AdminServiceStub = field(init=False, repr=False)
    audits: audit_pb2_grpc.AuditServiceStub = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attempts", Attempts(*self.history.place("fits")))
        # Made once, here: a stub that is made on a closed channel crashes the interpreter (grpcio 1.85).
        object.__setattr__(self, "catalog", catalog_pb2_grpc.CatalogServiceStub(self.channel))
        object.__setattr__(self, "fits", fit_pb2_grpc.FitServiceStub(self.channel))
        object.__setattr__(self, "dummies", dummy_pb2_grpc.DummyServiceStub(self.channel))
        object.__setattr__(self, "admins", admin_pb2_grpc.AdminServiceStub(self.channel))
        object.__setattr__(self, "audits", audit_pb2_grpc.AuditServiceStub(self.channel))

    def ask(self, method: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request) -> Response:
        """Return the answer to one question.

        Raises:
            HistoryError: the server's ledger is not the one that was seen before; nothing was asked.
            Error: the call failed.
        """
        return self.patiently(lambda timeout: method(request, timeout=timeout, metadata=self.metadata))

    def ask_all(self, method: grpc.UnaryStreamMultiCallable[Request, Response], request: Request) -> list[Response]:
        """Return the whole of a streamed answer; raises as `ask` does."""
        return self.patiently(lambda timeout: list(method(request, timeout=timeout, metadata=self.metadata)))

    def patiently(self, call: Callable[[float | None], Response]) -> Response:
        """Return what a call with a timeout answers, again while the server is busy; raises as `ask` does."""

        def attempt(timeout: float | None) -> Response:
            self.check_once()
            with translated(self.peer):
                return call(timeout)

        return patiently(attempt, seconds=self.patience, timeout=self.timeout)

    def check_once(self) -> None:
        """Ask whether the server's ledger is still an extension of the one that was seen, if nothing was asked yet.

        Raises:
            HistoryError: it is not; nothing may be sent any more.
            Error: the call failed.
        """
        self.history.check_once(self._ask_history)

    def check_history(self, timeout: float | None) -> None:
        """Ask whether the server's ledger is still an extension of the one that was seen.

        Raises:
            HistoryError: it is not; nothing may be sent any more.
            Error: the call failed.
        """
        self.history.check(partial(self._ask_history, timeout=timeout))

    def _ask_history(self, size: int, timeout: float | None = None) -> Shown:
        request = catalog_pb2.GetHistoryRequest(size=size)
        with translated(self.peer):
            answer = self.catalog.GetHistory(request, timeout=timeout or self.timeout, metadata=self.metadata)
        if not (answer.ledger_id and answer.size and len(answer.head) == 32):
            raise ServerError("the server sent no valid history of its ledger: install a newer bursar")
        return Shown(HistoryHead.now(answer.ledger_id, answer.size, answer.head), answer.head_at_size.hex())


Result = TypeVar("Result")

_SHORTEST = 0.25
"""Seconds of the shortest wait, whatever the server said: so tries are bounded, too."""

_JITTER = 0.5
"""Largest random part of a wait, as a share of what was advised."""


class Patience:
    """Seconds that one call may still wait for a busy server: its own waits, not the server's time."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def pause(self, error: Error, deadline: float | None) -> None:
        """Wait as long as the server advised, and a little longer.

        The deadline is on the clock `time.monotonic`.

        Raises:
            Error: the same, at once, if the server gave no advice or no such time is left.
        """
        if error.retry_after is None:
            raise error
        seconds = max(error.retry_after, _SHORTEST)
        extra = _JITTER * seconds * secrets.randbelow(1001) / 1000
        seconds += min(extra, max(0.0, self._left - seconds))
        if not seconds <= self._left or (deadline is not None and not time.monotonic() + seconds < deadline):
            raise error
        self._left -= seconds
        time.sleep(seconds)


def patiently(attempt: Callable[[float | None], Result], *, seconds: float, timeout: float | None) -> Result:
    """Return the result of an attempt, repeated as often as the server asks for and patience allows.

    The attempt gets the seconds that are left of `timeout`, which all of it may take; `seconds` may be waited in all.

    Raises:
        OverloadedError: the last try's.
    """
    patience, deadline = Patience(seconds), deadline_of(timeout)
    while True:
        try:
            return attempt(left(deadline))
        except OverloadedError as error:
            patience.pause(error, deadline)


def deadline_of(timeout: float | None) -> float | None:
    """Return the end of so many seconds from now, on the clock `time.monotonic`."""
    return None if timeout is None else time.monotonic() + timeout


def left(deadline: float | None) -> float | None:
    """Return the seconds until a deadline, as a timeout of gRPC."""
    return None if deadline is None else max(0.001, deadline - time.monotonic())
