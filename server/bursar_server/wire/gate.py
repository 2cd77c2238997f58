"""Gate of every RPC: authentication, authorisation, and conversion of exceptions to statuses.

gRPC sends the text of an uncaught exception to the client, so all are caught here. Unlisted methods are refused.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import grpc
from grpc_status import rpc_status as grpc_rpc_status

from bursar_server import log
from bursar_server.access import auth
from bursar_server.access.throttle import Throttle, address_of
from bursar_server.fits import InvalidFieldsError
from bursar_server.jobs.job import QueueFullError, StoppingError
from bursar_server.ops.telemetry import Span
from bursar_server.wire.statuses import Status, rpc_status, status_of

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Metadata = Iterable[tuple[str, str | bytes]]


class _Undecodable:
    """Placeholder of a message that does not match the contract."""


_SOON = 1.0
"""Seconds after which a refused call may come again; most calls end sooner. Chosen, not tuned."""


class Turnstile:
    """Counter of calls under way.

    Args:
        most: maximum number of calls of all principals; further ones are refused. gRPC would refuse, too, but without a
            retry time.
        most_of_one: maximum number of calls of one principal. Otherwise one token could hold every thread, health
            included.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._changed = threading.Condition()
        self._under_way: Counter[str] = Counter()
        self._closed = False

    @contextlib.contextmanager
    def passed(self, principal: auth.Principal | None) -> Iterator[None]:
        """Count one more call until the block ends; calls without a principal are not counted.

        Raises:
            QueueFullError: there are too many calls.
            StoppingError: the server is stopping.
        """
        if principal is None:
            yield
            return
        name = principal.name
        with self._changed:
            self._check(name)
            self._under_way[name] += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= Counter((name,))  # keeps no name whose count is 0
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse all further calls."""
        with self._changed:
            self._closed = True

    def empty(self, seconds: float) -> bool:
        """Wait at most `seconds` until no call is under way. Return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, seconds)

    def _check(self, name: str) -> None:
        if self._closed:
            raise StoppingError
        if self._under_way[name] >= self._most_of_one:
            text = f"{self._most_of_one} calls of yours are under way already; nothing was debited by this one"
            raise QueueFullError(text, _SOON)
        if self._under_way.total() >= self._most:
            raise QueueFullError("the server has as many calls as it serves; nothing was debited by this one", _SOON)


Admit = Callable[[grpc.ServicerContext], contextlib.AbstractContextManager[None]]
"""Function that admits a call or raises; the call lasts as long as the block."""


def no_span(_: str) -> contextlib.AbstractContextManager[None]:
    """Return an empty span, for a server without tracing."""
    return contextlib.nullcontext()


class Gate(grpc.ServerInterceptor):
    """Interceptor that authenticates, authorises, and converts every exception to a status of `statuses`."""

    def __init__(
        self,
        own: auth.Tokens,
        provider: auth.Tokens | None,
        throttle: Throttle,
        turnstile: Turnstile,
        span: Span = no_span,
        *,
        events: log.Events,
    ) -> None:
        self._events = events
        self._own = own
        self._provider = provider
        self._throttle = throttle
        self._turnstile = turnstile
        self._span = span

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], _Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Wrap the method's handler, or return one that refuses if there is none."""
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        handler = continuation(handler_call_details)

        def admit(context: grpc.ServicerContext) -> contextlib.AbstractContextManager[None]:
            # Reset: gRPC reuses threads, and the variable would leak into the next call.
            auth.set_caller(None)
            if method in auth.PUBLIC_METHODS:
                return self._turnstile.passed(None)
            principal = self._known(metadata, address_of(context.peer()))
            auth.set_caller(principal)
            # The role before the rate: calls that a role forbids count as failures, not as calls.
            self._authorise(method, principal)
            self._throttle.check_rate(principal.name)
            return self._turnstile.passed(principal)

        return _guarded(method, handler or _missing(), admit, self._span, self._events)

    def _known(self, metadata: _Metadata, address: str) -> auth.Principal:
        try:
            return auth.authenticate(metadata, self._own, self._provider)
        except auth.UnauthenticatedError as error:
            # After the token, because callers with valid tokens may share an address with strangers.
            self._throttle.check_address(address)
            if error.cause:
                self._events.tell(log.OidcRefused(error=error.cause))
            if self._throttle.address_failed(address):
                self._events.tell(log.LockedOut(address=address))
            raise

    def _authorise(self, method: str, principal: auth.Principal) -> None:
        self._throttle.check_principal(principal.name)
        try:
            auth.authorise(method, principal)
        except auth.ForbiddenError:
            if self._throttle.principal_failed(principal.name):
                self._events.tell(log.LockedOut(principal=principal.name))
            raise


def _missing() -> _Handler:
    def refuse(request: object, context: grpc.ServicerContext) -> object:
        raise auth.UnknownMethodError("this server has no such method")

    return grpc.unary_unary_rpc_method_handler(refuse)


def _guarded(method: str, handler: _Handler, admit: Admit, span: Span, events: log.Events) -> _Handler:
    behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    # Every method takes a stream of requests here, which is the same on the wire: grpc would otherwise wait for the
    # message before it calls us, and strangers who send none could hold every thread.
    deserialise = handler.request_deserializer

    def argument(requests: Iterator[object]) -> object:
        if method in auth.PUBLIC_METHODS:
            # Probes carry nothing that is read, so a stranger's bytes are not even parsed.
            return deserialise(b"") if deserialise else b""
        if handler.request_streaming:
            return map(_decoded, requests)
        message = _single(requests)
        auth.check_datasets(message, auth.caller_or_nobody())
        return message

    known = _known(method)

    def unary(requests: Iterator[object], context: grpc.ServicerContext) -> object:
        with span(known):
            try:
                with admit(context):
                    answer = behaviour(argument(requests), context)
            except Exception as error:
                status = status_of(error)
            else:
                _tell(events, known, grpc.StatusCode.OK)
                return answer
            return _abort(context, events, known, status)

    def stream(requests: Iterator[object], context: grpc.ServicerContext) -> Iterator[object]:
        with span(known):
            try:
                with admit(context):
                    yield from behaviour(argument(requests), context)
            except Exception as error:
                status = status_of(error)
            else:
                _tell(events, known, grpc.StatusCode.OK)
                return
            _abort(context, events, known, status)

    serialise = handler.response_serializer and _or_bytes(handler.response_serializer)
    total = deserialise and _total(deserialise)
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(stream, total, serialise)
    return grpc.stream_unary_rpc_method_handler(unary, total, serialise)


def _single(requests: Iterator[object]) -> object:
    """Return the only message of a call that has one."""
    return _decoded(next(requests, _Undecodable()))


def _decoded(request: object) -> object:
    if isinstance(request, _Undecodable):
        raise InvalidFieldsError(
            ("request", "is not a message of this method; expected one message in the contract's protobuf encoding")
        )
    return request


def _total(deserialise: Callable[[bytes], object]) -> Callable[[bytes], object]:
    # grpc logs the traceback of a deserialiser that raises and answers INTERNAL; a bad message is the client's fault.
    def total(message: bytes) -> object:
        try:
            return deserialise(message)
        except Exception:
            return _Undecodable()

    return total


def _or_bytes(serialise: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    # A stored release leaves as the bytes that were stored, whatever a later protobuf would make of them.
    return lambda message: message if isinstance(message, bytes) else serialise(message)


def _abort(context: grpc.ServicerContext, events: log.Events, method: str, status: Status) -> object:
    _tell(events, method, status[0])
    return context.abort_with_status(grpc_rpc_status.to_status(rpc_status(status)))


def _known(method: str) -> str:
    """Return a method's name; one constant for unknown methods, whose names strangers invent."""
    # Else strangers could fill the metrics with labels of their own.
    return method if method in auth.METHOD_ROLES or method in auth.PUBLIC_METHODS else "unlisted"


def _tell(events: log.Events, method: str, code: grpc.StatusCode) -> None:
    principal = auth.caller_or_nobody()
    # Calls without a token get this code while their address is locked out; they must not fill the log.
    locked_out = principal is None and code is grpc.StatusCode.RESOURCE_EXHAUSTED
    if method not in auth.PUBLIC_METHODS and not locked_out:
        events.tell(log.Call(method=method, principal=principal.name if principal else None, status=code.name))
