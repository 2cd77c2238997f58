"""A channel with what every call on it carries, and with what was seen of the ledger at its other end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import grpc

from bursar._attempts import Attempts
from bursar._errors import ServerError
from bursar._history import History, HistoryHead, Shown
from bursar._patience import patiently
from bursar._wire_errors import Peer, translated
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
