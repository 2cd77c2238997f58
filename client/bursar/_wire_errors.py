"""The one table from the wire's errors to this package's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from bursar import _errors
from bursar._errors import BudgetExhaustedError, ServerError
from bursar_models.budget import LimitName, Price, Remaining
from bursar_models.errors import Error, InvalidRequestError

_Code = grpc.StatusCode

_BY_CODE: Mapping[grpc.StatusCode, type[Error]] = {
    _Code.INVALID_ARGUMENT: InvalidRequestError,
    _Code.OUT_OF_RANGE: InvalidRequestError,
    _Code.FAILED_PRECONDITION: InvalidRequestError,
    _Code.ALREADY_EXISTS: InvalidRequestError,
    _Code.NOT_FOUND: _errors.NotFoundError,
    _Code.RESOURCE_EXHAUSTED: _errors.OverloadedError,
    _Code.UNAUTHENTICATED: _errors.AuthenticationError,
    _Code.PERMISSION_DENIED: _errors.PermissionDeniedError,
    _Code.UNIMPLEMENTED: _errors.NotImplementedByServerError,
    _Code.UNAVAILABLE: _errors.UnavailableError,
    _Code.CANCELLED: _errors.UnavailableError,
    _Code.ABORTED: _errors.UnavailableError,
    _Code.DEADLINE_EXCEEDED: _errors.DeadlineError,
}
"""Errors by status; any other status is a `ServerError`."""

_BY_REASON: Mapping[str, type[Error]] = {
    "BUDGET_EXHAUSTED": _errors.BudgetExhaustedError,
    "ADDRESS_LOCKED_OUT": _errors.AuthenticationError,
    "QUEUE_FULL": _errors.OverloadedError,
    "STOPPING": _errors.OverloadedError,
    "NO_ROOM": _errors.OverloadedError,
    "IDENTITY_PROVIDER_UNAVAILABLE": _errors.OverloadedError,
    "REQUEST_ID_REUSED": _errors.RequestIdReusedError,
    "DATASET_RETIRED": _errors.DatasetRetiredError,
    "RELEASE_LOST": _errors.ReleaseLostError,
    "ROWS_UNAVAILABLE": _errors.ServerError,
}
"""Reasons of this server's `google.rpc.ErrorInfo`; they say more than the code."""

_LIMITS: Mapping[str, LimitName] = {"dataset": "dataset", "allowance": "allowance", "call": "call"}

_DOMAIN = "bursar"

_TOO_LARGE = "larger than max"
_TOO_LARGE_REQUEST = f"SERVER: Received message {_TOO_LARGE}"
"""Words of gRPC for a message above a limit, which has the status of an overload, too."""

_FAILED = "TLS verification of {address} failed:"
_NO_CONNECTION = (
    (("deadline exceeded",), "{address} did not answer within the time that was allowed"),
    (("resolving", "lookup", "dns"), "cannot find the host of {address}, expected host:port of a bursar server"),
    (("certificate has expired",), f"{_FAILED} its certificate has ended, or this machine's clock is wrong"),
    (
        ("certificate is not yet valid",),
        f"{_FAILED} its certificate is not valid yet, or this machine's clock is wrong",
    ),
    (("hostname verification",), f"{_FAILED} its certificate is for other host names; call it by one of those"),
    (
        ("handshake", "ssl", "tls", "certificate", "peer name"),
        f"{_FAILED} its certificate is not signed by {{ca}}, or is not for this host name",
    ),
    (("refused", "failed to connect", "unreachable"), "cannot connect to {address}: no server answers there"),
)
"""Words of gRPC about a connection that did not come about, and what they mean; the first that fits."""

_HINTS: Mapping[type[Error], str] = {
    _errors.AuthenticationError: "pass token= to connect(), or set BURSAR_TOKEN",
    _errors.UnavailableError: "check the address, the CA certificate (ca=) and that the server runs",
    _errors.OverloadedError: "nothing was debited",
}
"""Advice about a status that comes from gRPC itself; this server's own texts have theirs."""


@dataclass(frozen=True)
class Peer:
    """Names of the server and its authority in errors.

    Attributes:
        address: its "host:port", or words for it.
        ca: the certificate that the server's is checked against, as a path or in words.
    """

    address: str = "the server of this channel"
    ca: str = "the channel's authority"


@contextmanager
def translated(peer: Peer) -> Iterator[None]:
    """Raise this package's errors for gRPC's, with the original as the cause. Wrap only calls into gRPC in it.

    Raises:
        Error: whatever gRPC raised.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise to_error(error, peer) from error
    except ValueError as error:  # gRPC's way to say that the channel has been closed
        raise _errors.TransportError("the client is closed: connect again") from error


def to_error(error: grpc.RpcError, peer: Peer) -> Error:
    """Return this package's error for a failed call; its message ends with the code of the catalogue of errors."""
    if not hasattr(error, "code"):  # an interceptor's own exception; nothing is known about the call
        return _errors.TransportError("the call failed inside the channel")
    details = _Details.of(error)
    if error.code() is _Code.RESOURCE_EXHAUSTED and not details.reason and _TOO_LARGE in details.text:
        return _too_large(details.text)
    made = _made(error.code(), details, peer)
    made.retry_after = details.retry_after
    made.code = details.reason or error.code().name
    made.args = (f"{made} [{made.code}]",)
    return made


def _too_large(text: str) -> Error:
    if _TOO_LARGE_REQUEST in text:
        return InvalidRequestError(f"{text}; nothing was debited, and it would be refused again: ask for less")
    return ServerError(
        f"the answer is larger than the server sends or this channel takes ({text}); what was debited stays debited, "
        "and the same request_id costs nothing"
    )


def _made(code: grpc.StatusCode, details: _Details, peer: Peer) -> Error:
    kind = _BY_REASON.get(details.reason) or _BY_CODE.get(code, ServerError)
    hint = None if details.reason else _HINTS.get(kind)
    from_grpc = kind in (_errors.UnavailableError, _errors.DeadlineError) and not details.reason
    text = _plain(details.text, peer) if from_grpc else details.text
    message = "; ".join(filter(None, [text or code.name, *details.unsaid(), hint]))
    if kind is InvalidRequestError:
        return InvalidRequestError(message, violations=details.violations)
    if kind is BudgetExhaustedError:
        requested, remaining = _amounts(details.metadata)
        limit = _LIMITS.get(details.metadata.get("limit", ""))
        return BudgetExhaustedError(message, requested=requested, remaining=remaining, limit=limit)
    if kind is ServerError:
        incident = details.metadata.get("incident")
        return ServerError(f"{message} ({incident})" if incident else message, incident=incident)
    return kind(message)


def _plain(text: str, peer: Peer) -> str:
    """Return in a sentence what gRPC says of a connection that did not come about; its own text is in the cause."""
    said = text.lower()
    plain = next((plain for words, plain in _NO_CONNECTION if any(word in said for word in words)), None)
    return text if plain is None else plain.format(address=peer.address, ca=peer.ca)


@dataclass(frozen=True)
class _Details:
    """Details of a status (google.rpc) that this package understands."""

    text: str = ""
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[tuple[str, str], ...] = ()
    retry_after: float | None = None

    @classmethod
    def of(cls, call: grpc.RpcError) -> _Details:
        bad_request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
        retry, advised = error_details_pb2.RetryInfo(), False
        for detail in _status(call).details:
            # Unpack leaves the message alone when the detail is of another type.
            detail.Unpack(bad_request)
            detail.Unpack(info)
            advised |= detail.Unpack(retry)
        ours = info.domain == _DOMAIN
        return cls(
            text=call.details() or "",
            reason=info.reason if ours else "",
            metadata=dict(info.metadata) if ours else {},
            violations=tuple((v.field, v.description) for v in bad_request.field_violations),
            retry_after=max(0.0, retry.retry_delay.ToNanoseconds() / 1e9) if advised else None,
        )

    def unsaid(self) -> list[str]:
        """Return the violations, and the time to wait, that the status text does not have already."""
        violations = [f"{name}: {said}" for name, said in self.violations if said not in self.text]
        again = "" if self.retry_after is None else f"again in {self.retry_after:g} s"
        return violations if again in self.text else [*violations, f"ask {again}"]


def _status(call: grpc.RpcError) -> status_pb2.Status:
    try:
        return rpc_status.from_call(call) or status_pb2.Status()
    except ValueError:  # details that contradict the status they came with: the status is what counts
        return status_pb2.Status()


def _amounts(values: Mapping[str, str]) -> tuple[Price | None, Remaining | None]:
    """Price and remainder from a refusal's metadata; None if it does not hold them."""
    try:
        remaining = Remaining(
            cost_units=int(values["remaining_cost_units"]),
            delta_units=int(values["remaining_delta_units"]),
            cap_cost_units=int(values["cap_cost_units"]),
            cap_delta_units=int(values["cap_delta_units"]),
            rho=float(values["remaining_rho"]),
            pure_epsilon=float(values["remaining_pure_epsilon"]),
            order=float(values["order"]),
            delta=float(values["delta"]),
            budget_cost_units=int(values["budget_cost_units"]),
        )
        requested = Price(
            cost_units=int(values["requested_cost_units"]),
            delta_units=int(values["requested_delta_units"]),
            rho=float(values["requested_rho"]),
            epsilon=float(values["requested_epsilon"]),
            share=float(values["requested_share"]),
        )
        return requested, remaining
    except (KeyError, ValueError):
        return None, None
