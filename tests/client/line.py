"""A line from clients to the real server, which keeps what is sent and can be cut, changed and refused on.

In the place of a server that misbehaves: the server at its end is a real one, and does not.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import grpc
import numpy as np
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2

import bursar
from bursar._recorded import Exchange, _Answer, _method, _Refusal
from bursar.testing import Server
from bursar_proto.v1 import catalog_pb2, dummy_pb2, fit_pb2, types_pb2

MessageT = TypeVar("MessageT", bound=Message)
HISTORY = "CatalogService/GetHistory"
_FITS = (
    fit_pb2.FitDPEMRequest,
    fit_pb2.FitSketchKMeansRequest,
    fit_pb2.FitMRFRequest,
    fit_pb2.FitGradientEMRequest,
    fit_pb2.FitSeparatedGMMRequest,
)
BROKEN = status_pb2.Status(code=code_pb2.UNAVAILABLE, message="broken on purpose")


@dataclass
class Line(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """A line of one analyst.

    Attributes:
        server: at its end.
        name: name of the analyst.
        token: token of the analyst.
        calls: messages that were sent, in order; questions about the ledger's history are left out.
        careful: whether each of the fits among them was to be refused if it is useless, which `calls` leaves out.
        metadata: what came with each of them.
        before: functions that change the requests of a method on their way, or raise what `refusal` returns.
        changes: functions that change the answers of a method, such as "FitService/FitDPEM".
        instead: functions that answer a method in the server's place.
        streams: that were begun, in order.
    """

    server: Server
    name: str
    token: str
    calls: list[Message] = field(default_factory=list)
    careful: list[bool] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    before: dict[str, Callable[[Any], object]] = field(default_factory=dict)
    changes: dict[str, Callable[[Any], object]] = field(default_factory=dict)
    instead: dict[str, Callable[[Any], Iterable[Message]]] = field(default_factory=dict)
    streams: list[_Stream] = field(default_factory=list)
    _failures: deque[status_pb2.Status] = field(default_factory=deque)
    _breaks: int = 0
    _kept: int = 0
    _lost: int = 0
    _head: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, **options: Any) -> bursar.Client:
        """Return a client over this line; it repeats a fit at once, and does not wait for a busy server."""
        credentials = grpc.ssl_channel_credentials(self.server.ca.read_bytes())
        channel = grpc.intercept_channel(grpc.secure_channel(self.server.address, credentials), self)
        quick: dict[str, Any] = {"token": self.token, "retry_delays": (0.0, 0.0), "patience": 0.0}
        return bursar.Client(channel, **{**quick, **options})

    def sent(self, kind: type[MessageT]) -> list[MessageT]:
        """Return the messages of a type that were sent, in order."""
        return [message for message in self.calls if isinstance(message, kind)]

    @property
    def requests(self) -> list[fit_pb2.FitDPEMRequest]:
        """Every `FitDPEM` that was sent."""
        return self.sent(fit_pb2.FitDPEMRequest)

    @property
    def sketch_requests(self) -> list[fit_pb2.FitSketchKMeansRequest]:
        """Every `FitSketchKMeans` that was sent."""
        return self.sent(fit_pb2.FitSketchKMeansRequest)

    @property
    def mrf_requests(self) -> list[fit_pb2.FitMRFRequest]:
        """Every `FitMRF` that was sent."""
        return self.sent(fit_pb2.FitMRFRequest)

    @property
    def gradient_em_requests(self) -> list[fit_pb2.FitGradientEMRequest]:
        """Every `FitGradientEM` that was sent."""
        return self.sent(fit_pb2.FitGradientEMRequest)

    @property
    def separated_gmm_requests(self) -> list[fit_pb2.FitSeparatedGMMRequest]:
        """Every `FitSeparatedGMM` that was sent."""
        return self.sent(fit_pb2.FitSeparatedGMMRequest)

    @property
    def dummy_requests(self) -> list[dummy_pb2.DummyRequest]:
        """Every dry run that was sent."""
        return self.sent(dummy_pb2.DummyRequest)

    @property
    def model(self) -> Any:
        """The model that came last, as it was on the line."""
        return self.streams[-1].answers[-1].model

    @property
    def previews(self) -> list[fit_pb2.PreviewRequest]:
        """Every preview that was sent."""
        return self.sent(fit_pb2.PreviewRequest)

    def fail_next(self, code: grpc.StatusCode, text: str = "", details: Sequence[Message] = ()) -> None:
        """Answer one more of the next calls with this status and these google.rpc details."""
        self._failures.append(_status_of(code, text, details))

    def break_next(self, times: int = 1) -> None:
        """Break the streams of the next `times` fits after their receipt."""
        self._breaks = times

    def roll_back(self, entries: int = 1) -> None:
        """Show a ledger without its newest entries from now on, as if an old copy had been put back and had grown."""
        with self.client() as client:
            asking = client._connection
            newest = asking.catalog.GetHistory(catalog_pb2.GetHistoryRequest(), metadata=asking.metadata)
            self._kept, self._lost = newest.size - entries, entries
            request = catalog_pb2.GetHistoryRequest(size=self._kept)
            self._head = asking.catalog.GetHistory(request, metadata=asking.metadata).head_at_size

    def _roll(self, asked: int, answer: catalog_pb2.GetHistoryResponse) -> None:
        if self._lost:
            answer.size -= self._lost
            answer.head = self._forged(answer.size)
            if asked > self._kept:
                answer.head_at_size = self._forged(asked) if asked <= answer.size else b""

    def _forged(self, size: int) -> bytes:
        return hashlib.sha256(b"%d" % size).digest() if size > self._kept else self._head

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Pass a call on."""
        method, request = _method(details), _copy(request)
        if refused := self._refused(method, details, request):
            return refused
        call = continuation(details, request)
        if call.exception() is not None:
            return call
        answer = _copy(call.result())
        if isinstance(answer, catalog_pb2.GetHistoryResponse):
            self._roll(request.size, answer)
        self.changes.get(method, bool)(answer)
        return _Answer(Exchange(method, request, (answer,)))

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Pass a call on."""
        method, request = _method(details), _copy(request)
        if refused := self._refused(method, details, request):
            return refused
        with self._lock:
            broken = self._breaks > 0 and method.startswith("FitService/")
            self._breaks -= broken
        self.streams.append(_Stream(continuation(details, request), partial(self._change, method), broken))
        return self.streams[-1]

    def _change(self, method: str, answer: Any) -> None:
        if self._lost and "receipt" in answer.DESCRIPTOR.fields_by_name and answer.HasField("receipt"):
            answer.receipt.entry -= self._lost
            answer.receipt.ledger_head = self._forged(answer.receipt.entry)
        self.changes.get(method, bool)(answer)

    def _refused(self, method: str, details: Any, request: Message) -> _Answer | None:
        """Return an answer that is not the server's, if there is to be one."""
        if method != HISTORY:
            self.metadata.append(dict(details.metadata or ()))
            with self._lock:
                if self._failures:
                    return _Answer(Exchange(method, request, error=self._failures.popleft()))
            self.calls.append(_copy(request))
            if isinstance(request, _FITS):
                self.careful.append(request.refuse_useless)
                # No part of what is asked for.
                self.calls[-1].ClearField("refuse_useless")
        self.before.get(method, bool)(request)
        if method in self.instead:
            return _Answer(Exchange(method, request, tuple(self.instead[method](request))))
        return None


@dataclass
class _Stream:
    """A stream that may be changed, and broken after its first message."""

    call: Any
    change: Callable[[Any], object]
    broken: bool
    answers: list[Any] = field(default_factory=list)

    def __iter__(self) -> Iterator[Message]:
        for answer in self.call:
            self.change(answer)
            self.answers.append(answer)
            yield answer
            if self.broken:
                yield from _Answer(Exchange("", answer, error=BROKEN))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)


def to_model(change: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a function that changes the model of an answer that has one."""
    return lambda answer: answer.HasField("model") and change(answer.model)


def refusal(code: grpc.StatusCode, text: str = "", details: Sequence[Message] = ()) -> grpc.RpcError:
    """Return the exception that gRPC raises for a status with google.rpc details."""
    return _Refusal(_status_of(code, text, details))


def _status_of(code: grpc.StatusCode, text: str, details: Sequence[Message]) -> status_pb2.Status:
    packed = [AnyMessage() for _ in details]
    for box, detail in zip(packed, details, strict=True):
        box.Pack(detail)
    return status_pb2.Status(code=code.value[0], message=text, details=packed)


def array(tensor: types_pb2.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return a tensor of the wire as an array."""
    return np.array(tensor.values).reshape(tuple(tensor.shape))


def tensor(values: object) -> types_pb2.Tensor:
    """Return an array as a tensor of the wire."""
    array = np.asarray(values, dtype=float)
    return types_pb2.Tensor(shape=array.shape, values=array.ravel().tolist())


def when_released(ask: Callable[[], Any]) -> Any:
    """Return the answer to a question about a debit whose fit may still run."""
    until = time.monotonic() + 600
    while True:
        try:
            return ask()
        except bursar.NotFoundError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _copy(message: MessageT) -> MessageT:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
