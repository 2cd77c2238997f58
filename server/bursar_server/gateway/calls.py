"""One HTTP request: its checks, the call to the server, and the answer. An ASGI application.

A client that leaves cancels the call. A fit that was debited goes on: asked again with its request_id, it is answered
from the ledger and charged once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from bursar_server import log
from bursar_server.access.throttle import AddressLockedOutError, Lockout, network_of, whole_seconds
from bursar_server.gateway.mapping import (
    METHODS,
    Method,
    Refusal,
    RefusedError,
    is_without_token,
    line,
    read,
    refusal_of,
    refused,
    written,
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON, _LINES = b"application/json", b"application/x-ndjson"
_HEADERS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_TIMEOUT_DIGITS = 10
"""Maximum number of digits of a timeout in milliseconds, from the Connect protocol."""

_AGAIN = "ask again with the same request_id: nothing is charged twice"

_ANSWER_BYTES = 64 * 2**20
"""Maximum size of a server's message in bytes: a full mixture of 1,000 components in 80 columns has 51 MB."""


@dataclass(frozen=True)
class Limits:
    """Limits of one gateway.

    Attributes:
        body_bytes: maximum size of a body; the server's default limit of a message.
        header_bytes: maximum size of request line and headers.
        connections: maximum number of open connections; further ones are closed at once.
        request_seconds: maximum time for handshake, for headers and for a body, each.
        idle_seconds: maximum time between two requests of a connection.
        write_seconds: maximum time for which a client may read nothing while an answer waits.
        stop_seconds: maximum time for calls to end after SIGTERM.
        failures: number of calls without a valid token from one address within `lockout_seconds` that locks it out;
            this and the time are the server's defaults.
        lockout_seconds: length of the counting period and of a lockout.
    """

    body_bytes: int = 2**20
    header_bytes: int = 2**14
    connections: int = 256
    request_seconds: float = 10.0
    idle_seconds: int = 15
    write_seconds: float = 30.0
    stop_seconds: int = 10
    failures: int = 100
    lockout_seconds: float = 60.0


@dataclass(frozen=True)
class _Head:
    method: Method
    metadata: tuple[tuple[str, str], ...]
    timeout: float | None


class _LeftError(Exception):
    """Error: the client has closed the connection."""


class Application:
    """Application that passes calls on to one server.

    The server counts calls without a valid token by the address that they come from, which is the gateway's for all.
    So the gateway counts them by its own callers' addresses. No header is read for that: callers write headers.
    """

    def __init__(self, channel: grpc.aio.Channel, limits: Limits, events: log.Events) -> None:
        self._channel = channel
        self._limits = limits
        self._events = events
        self._failures = Lockout(limits.failures, limits.lockout_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. No exception leaves this function."""
        try:
            try:
                head = checked(scope, self._limits)
                message = await asyncio.to_thread(read, await self._body(receive), head.method.request)
            except RefusedError as error:
                # The body may be unread, so the connection cannot be used again.
                await _send_refusal(send, error.refusal, close=True)
                return
            call = self._call(head, message)
            async with _cancelled_with(receive, call):
                refusal = await (_stream(call, send) if head.method.is_stream else _single(call, send))
                if refusal is not None:
                    await _send_refusal(send, self._counted(refusal, scope))
        except _LeftError:
            return
        except asyncio.CancelledError:
            await _send_last(send, refused(grpc.StatusCode.UNAVAILABLE, f"the gateway is stopping; {_AGAIN}"))
        except Exception as error:
            log.failure(error)
            await _send_last(send, refused(grpc.StatusCode.INTERNAL, f"the gateway failed; {_AGAIN}"))

    async def _body(self, receive: Receive) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                while True:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        raise _LeftError
                    body += event.get("body", b"")
                    if len(body) > self._limits.body_bytes:
                        raise _too_large(self._limits)
                    if not event.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            text = f"the body did not arrive within {self._limits.request_seconds:g} seconds; nothing was debited"
            raise refused(grpc.StatusCode.DEADLINE_EXCEEDED, text, 408) from None

    def _counted(self, error: grpc.aio.AioRpcError, scope: Scope) -> Refusal:
        """Return the answer to a server's refusal; one for want of a valid token is counted by the caller's address."""
        if not is_without_token(error):
            return refusal_of(error)
        host, _ = scope.get("client") or ("", 0)
        address = network_of(host)
        # As on the server, after the token was checked: valid ones are served from every address.
        if seconds := self._failures.left(address):
            text = str(AddressLockedOutError(seconds))
            return refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text, retry_after=str(whole_seconds(seconds))).refusal
        if self._failures.failed(address):
            self._events.tell(log.LockedOut(address=address))
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return refusal_of(error)
        # The server has had enough of this gateway's address, and this caller has no part in it.
        text = "the token is missing or not valid"
        return refused(grpc.StatusCode.UNAUTHENTICATED, text, www_authenticate="Bearer").refusal

    def _call(self, head: _Head, message: Message) -> Any:
        make = self._channel.unary_stream if head.method.is_stream else self._channel.unary_unary
        method: Any = make(
            head.method.path,
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=head.method.response.FromString,
        )
        return method(message, metadata=head.metadata, timeout=head.timeout)


def connect(address: str, authority: bytes) -> grpc.aio.Channel:
    """Return a connection to a server that trusts only this authority; made when it is first used, and again."""
    options = [("grpc.max_receive_message_length", _ANSWER_BYTES), ("grpc.enable_retries", 0)]
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority), options)


def checked(scope: Mapping[str, Any], limits: Limits) -> _Head:
    """Check everything of a request but its body. Raises RefusedError if a check failed."""
    method = METHODS.get(scope["path"])
    if method is None:
        text = "there is no such method here: send POST /SERVICE/METHOD, such as /bursar.v1.CatalogService/ListDatasets"
        raise refused(grpc.StatusCode.UNIMPLEMENTED, text, 404)
    if scope["method"] != "POST":
        raise refused(grpc.StatusCode.UNIMPLEMENTED, "only POST is answered", 405, allow="POST")
    if scope["query_string"]:
        text = "the URL must have no query: parameters belong into the body, the token into the header Authorization"
        raise refused(grpc.StatusCode.INVALID_ARGUMENT, text)
    headers = _headers(scope["headers"])
    if not _is_json(headers.get(b"content-type", b"")):
        text = "the Content-Type must be application/json"
        raise refused(grpc.StatusCode.UNIMPLEMENTED, text, 415, accept_post="application/json")
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise refused(grpc.StatusCode.UNIMPLEMENTED, "the body must not be compressed", 415)
    if headers.get(b"connect-protocol-version", b"1") != b"1":
        raise refused(grpc.StatusCode.INVALID_ARGUMENT, "the Connect-Protocol-Version must be 1, or left out")
    length = headers.get(b"content-length", b"0")
    if len(length) > _TIMEOUT_DIGITS or int(length) > limits.body_bytes:
        raise _too_large(limits)
    return _Head(method, _metadata(headers), _timeout(headers))


_SINGLE = (b"authorization", b"content-type", b"content-encoding", b"connect-protocol-version", b"connect-timeout-ms")


def _headers(given: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    found = dict(given)
    for name in _SINGLE:
        if sum(key == name for key, _ in given) > 1:
            raise refused(grpc.StatusCode.INVALID_ARGUMENT, f"the header {name.decode()} must be sent once")
    return found


def _is_json(content_type: bytes) -> bool:
    kind, *parameters = (part.strip().lower() for part in content_type.split(b";"))
    return kind == _JSON and all(part in (b"charset=utf-8", b'charset="utf-8"', b"") for part in parameters)


def _metadata(headers: Mapping[bytes, bytes]) -> tuple[tuple[str, str], ...]:
    token = headers.get(b"authorization")
    if token is None:
        return ()  # the server refuses, and counts it
    # gRPC raises for other bytes.
    if not all(0x20 <= byte < 0x7F for byte in token):
        raise refused(grpc.StatusCode.UNAUTHENTICATED, "the header Authorization must be ASCII: Bearer TOKEN")
    return (("authorization", token.decode("ascii")),)


def _timeout(headers: Mapping[bytes, bytes]) -> float | None:
    given = headers.get(b"connect-timeout-ms")
    if given is None:
        return None
    if not (given.isdigit() and len(given) <= _TIMEOUT_DIGITS and int(given) > 0):
        text = f"Connect-Timeout-Ms must be a whole number above 0 of at most {_TIMEOUT_DIGITS} digits"
        raise refused(grpc.StatusCode.INVALID_ARGUMENT, text)
    return int(given) / 1000


def _too_large(limits: Limits) -> RefusedError:
    text = f"the body is larger than {limits.body_bytes} bytes; nothing was debited"
    return refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text, 413)


@contextlib.asynccontextmanager
async def _cancelled_with(receive: Receive, call: Any) -> AsyncIterator[None]:
    """Cancel the call if the client leaves before the end of the block, and raise _LeftError then."""
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        call.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        # The end of the gateway raises the same exception as `call.cancel`: only `left` tells them apart.
        if not left:
            raise
        raise _LeftError from None
    finally:
        call.cancel()  # no effect on a call that has ended
        watching.cancel()


async def _single(call: Any, send: Send) -> grpc.aio.AioRpcError | None:
    """Send an answer, or return the error in its place."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error
    await _send_whole(send, 200, _JSON, await asyncio.to_thread(written, answer))
    return None


async def _stream(call: Any, send: Send) -> grpc.aio.AioRpcError | None:
    """Send a stream as lines, or return the error in place of its first one; a later error is the last line."""
    begun = False
    try:
        async for answer in call:
            text = await asyncio.to_thread(written, answer)
            if not begun:
                await send({"type": "http.response.start", "status": 200, "headers": _named(_LINES)})
                begun = True
            await send({"type": "http.response.body", "body": text, "more_body": True})
    except grpc.aio.AioRpcError as error:
        if not begun:
            return error
        last = line({"error": refusal_of(error).error})
        await send({"type": "http.response.body", "body": last, "more_body": True})
    if not begun:
        await send({"type": "http.response.start", "status": 200, "headers": _named(_LINES)})
    await send({"type": "http.response.body", "body": b""})
    return None


async def _send_last(send: Send, error: RefusedError) -> None:
    with contextlib.suppress(Exception):  # the answer may have begun
        await _send_refusal(send, error.refusal, close=True)


async def _send_refusal(send: Send, refusal: Refusal, *, close: bool = False) -> None:
    more = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    more += [(b"connection", b"close")] if close else []
    await _send_whole(send, refusal.status, _JSON, line(refusal.error), more)


async def _send_whole(
    send: Send, status: int, kind: bytes, body: bytes, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*_named(kind), length, *(more or [])]})
    await send({"type": "http.response.body", "body": body})


def _named(kind: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", kind), *_HEADERS]
