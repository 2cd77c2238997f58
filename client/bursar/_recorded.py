"""Clients whose calls are answered from recorded exchanges, and the recorder.

Both are interceptors of gRPC, which every call of a client goes through. A recording holds messages as JSON, so that
people can read and edit it. It is matched by method and request; the `request_id` is left out, since it differs
between runs.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from bursar._client import Client
from bursar._history import History, Shelf
from bursar_models.files import write_whole

__all__ = ["Exchange", "NotRecordedError", "Recording", "record", "recorded"]

_PACKAGE = "bursar.v1."
_HISTORY = "CatalogService/GetHistory"
_FORMAT = 1
_SHOWN = 300
"""Letters of a request that an error shows."""

# Details of a status can only be read as JSON if their types are known.
_DETAILS = error_details_pb2.DESCRIPTOR


class NotRecordedError(LookupError):
    """A call that the recording has no answer to. No `bursar.Error`: a program that handles those must not hide it."""


@dataclass(frozen=True)
class Exchange:
    """One call and its answer.

    Attributes:
        method: service and method, such as "FitService/FitDPEM".
        request: message that was sent.
        answers: messages that came back, in order; one for a method that does not stream.
        error: status that ended the call; None if it ended well.
        trailers: metadata that came after the answers.
    """

    method: str
    request: Message
    answers: tuple[Message, ...] = ()
    error: status_pb2.Status | None = None
    trailers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Exchange:
        """Return the exchange that `to_dict` wrote."""
        sent, returned = _types(fields["method"])
        error = fields.get("error")
        return cls(
            method=fields["method"],
            request=ParseDict(fields["request"], sent()),
            answers=tuple(ParseDict(answer, returned()) for answer in fields.get("answers", ())),
            error=None if error is None else ParseDict(error, status_pb2.Status()),
            trailers=tuple((name, value) for name, value in fields.get("trailers", ())),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the exchange as JSON values."""
        fields: dict[str, Any] = {"method": self.method, "request": _json(self.request)}
        if self.answers:
            fields["answers"] = [_json(answer) for answer in self.answers]
        if self.error is not None:
            fields["error"] = _json(self.error)
        if self.trailers:
            fields["trailers"] = [list(pair) for pair in self.trailers]
        return fields


class Recording(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Answers calls from exchanges. Several answers to one request are given in order, the last one repeatedly.

    Args:
        exchanges: to answer from.

    Attributes:
        calls: method and request of every call so far, in order.
    """

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
        self.calls: list[tuple[str, Message]] = []
        self._waiting: dict[tuple[str, bytes], deque[Exchange]] = {}
        self._lock = threading.Lock()
        for exchange in exchanges:
            self._waiting.setdefault(_key(exchange.method, exchange.request), deque()).append(exchange)

    def client(self, **options: Any) -> Client:
        """Return a client that is answered from this recording and has no connection; options as of `bursar.Client`."""
        # Channels connect at the first call, and no call gets that far.
        channel = grpc.intercept_channel(grpc.insecure_channel("recording.invalid:1"), self)
        return Client(channel, **{"retry_delays": (0.0, 0.0), "patience": 0.0, "history": _NoLedger(), **options})

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Answer a call with one message."""
        return self._answer(details, request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Answer a call with a stream."""
        return self._answer(details, request)

    def _answer(self, details: Any, request: Message) -> _Answer:
        method = _method(details)
        self.calls.append((method, request))
        with self._lock:
            waiting = self._waiting.get(_key(method, request))
            if waiting is None:
                raise NotRecordedError(self._missing(method, request))
            return _Answer(waiting.popleft() if len(waiting) > 1 else waiting[0])

    def _missing(self, method: str, request: Message) -> str:
        known = [exchanges[0] for exchanges in self._waiting.values()]
        same = [_short(one.request) for one in known if one.method == method]
        others = [f"{name} ({n})" for name, n in sorted(Counter(one.method for one in known).items())]
        there = f"to {method} it has answers for {', '.join(same[:5])}" if same else f"it has {', '.join(others)}"
        text = f"the recording has no answer to {method} {_short(request)}; {there if known else 'it is empty'}"
        return f"{text}: record the program again with bursar.testing.record"


def recorded(source: str | Path | Iterable[Exchange], **options: Any) -> Client:
    """Return a client whose calls are answered from recorded exchanges, without a server.

    A call that was not recorded raises `NotRecordedError`, which says what was asked and what is there. A program that
    changed what it asks for fails in its tests this way, before it spends anything.

    Args:
        source: file that `record` wrote, or exchanges.
        options: of `bursar.Client`. A fit is repeated at once, and a busy server is not waited for.

    Raises:
        ValueError: the file is no recording of this version.
        OSError: the file cannot be read.

    Example:
        >>> with bursar.testing.record(client, "answers.json") as recording:
        ...     total = recording.dataset("toy").total
        >>> bursar.testing.recorded("answers.json").dataset("toy").total == total
        True
    """
    return Recording(load(source) if isinstance(source, str | Path) else source).client(**options)


@contextmanager
def record(client: Client, path: str | Path) -> Iterator[Client]:
    """Give a client of the same server and token whose calls are written to a file when the context ends.

    The file holds what the server answered: schemas, releases, receipts and refusals, which are as public as the
    releases are. It holds no token.

    Args:
        client: of a real server, such as one of `serve`.
        path: of the file; what it held is replaced.
    """
    recorder = _Recorder()
    yield client._through(recorder)
    exchanges = [one.to_dict() for one in recorder.exchanges]
    write_whole(Path(path), json.dumps({"format": _FORMAT, "exchanges": exchanges}, indent=1) + "\n")


def load(path: str | Path) -> list[Exchange]:
    """Return the exchanges of a file.

    Raises:
        ValueError: it is no recording of this version.
        OSError: it cannot be read.
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        content = json.loads(text)
        if content["format"] == _FORMAT:
            return [Exchange.from_dict(fields) for fields in content["exchanges"]]
    except (ValueError, KeyError, TypeError, ParseError) as error:
        raise ValueError(f"{path}: expected a recording of bursar.testing.record, got {error!r}") from error
    raise ValueError(f"{path}: expected a recording of format {_FORMAT}, got {content['format']!r}; record it again")


class _NoLedger(History):
    """Checks nothing: a recording has no ledger that could be rolled back."""

    def __init__(self) -> None:
        super().__init__(Shelf(None, ""))

    def check(self, ask: Any) -> None:
        """Do nothing."""

    def add_receipt(self, entry: int, head: bytes) -> None:
        """Do nothing."""


class _Refusal(grpc.RpcError):
    """The exception with which gRPC tells a status."""

    def __init__(self, error: status_pb2.Status) -> None:
        super().__init__(error.message)
        self._status: Any = rpc_status.to_status(error)

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        code: grpc.StatusCode = self._status.code
        return code

    def details(self) -> str:
        """Return the text."""
        return str(self._status.details)

    def trailing_metadata(self) -> tuple[Any, ...]:
        """Return the metadata, which has the details."""
        return tuple(self._status.trailing_metadata)


class _Answer:
    """Result of a call, as gRPC returns it: a result, or an iterator over a stream."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __iter__(self) -> Iterator[Message]:
        yield from self._exchange.answers
        if self._exchange.error is not None:
            raise _Refusal(self._exchange.error)

    def result(self) -> Message:
        """Return the only message."""
        (answer,) = self
        return answer

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what came after the answers."""
        return self._exchange.trailers

    def cancel(self) -> None:
        """Do nothing: the answer has been here from the start."""


class _Recorder(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Keeps every exchange but those about the ledger's history."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Make the call, and keep its answer."""
        call = continuation(details, request)
        error = call.exception()
        self._keep(details, request, () if error else (call.result(),), call, error)
        return call

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Make the call, and keep its answers when they have been read."""
        call, answers = continuation(details, request), list[Message]()

        def keep(error: grpc.RpcError | None) -> None:
            self._keep(details, request, tuple(answers), call, error)

        return _Overheard(call, answers, keep)

    def _keep(self, details: Any, request: Message, answers: tuple[Message, ...], call: Any, error: Any) -> None:
        if (method := _method(details)) != _HISTORY:
            pairs = () if error else call.trailing_metadata() or ()
            trailers = tuple((name, value) for name, value in pairs if name.startswith("bursar-"))
            self.exchanges.append(Exchange(method, request, answers, _status(error), trailers))


@dataclass
class _Overheard:
    """A stream whose messages are kept while they are read."""

    call: Any
    answers: list[Message]
    keep: Callable[[grpc.RpcError | None], None]

    def __iter__(self) -> Iterator[Message]:
        try:
            for answer in self.call:
                self.answers.append(answer)
                yield answer
        except grpc.RpcError as error:
            self.keep(error)
            raise
        self.keep(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)


def _status(error: Any) -> status_pb2.Status | None:
    if error is None:
        return None
    found: status_pb2.Status | None = rpc_status.from_call(error)
    return found or status_pb2.Status(code=error.code().value[0], message=error.details())


def _method(details: Any) -> str:
    """Return "FitService/FitDPEM" for "/bursar.v1.FitService/FitDPEM"."""
    return str(details.method).removeprefix("/").removeprefix(_PACKAGE)


def _types(method: str) -> tuple[type[Message], type[Message]]:
    """Return the types of a method's request and answers. Raises KeyError."""
    found = descriptor_pool.Default().FindMethodByName(_PACKAGE + method.replace("/", "."))
    return message_factory.GetMessageClass(found.input_type), message_factory.GetMessageClass(found.output_type)


def _key(method: str, request: Message) -> tuple[str, bytes]:
    asked = type(request)()
    asked.CopyFrom(request)
    _clear(asked)
    return method, asked.SerializeToString(deterministic=True)


def _clear(message: Message) -> None:
    """Clear what is no part of the question, in a preview's request, too."""
    for name, value in [(field.name, value) for field, value in message.ListFields()]:
        if name in ("request_id", "refuse_useless"):
            message.ClearField(name)
        elif isinstance(value, Message):
            _clear(value)


def _json(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return fields


def _short(message: Message) -> str:
    text = json.dumps(_json(message))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
