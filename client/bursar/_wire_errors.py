"""The one table from the wire's errors to this package's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from bursar import _errors
from bursar._errors import BudgetExhaustedError, Error, InvalidRequestError, ServerError
from bursar._privacy import LimitName, Price, Remaining

_Code = grpc.StatusCode

_BY_CODE: Mapping[grpc.StatusCode, type[Error]] = {
    _Code.INVALID_ARGUMENT: _errors.InvalidRequestError,
    _Code.OUT_OF_RANGE: _errors.InvalidRequestError,
    _Code.FAILED_PRECONDITION: _errors.InvalidRequestError,
    _Code.ALREADY_EXISTS: _errors.InvalidRequestError,
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
"""What is not in here is a `ServerError`."""

_BY_REASON: Mapping[str, type[Error]] = {
    "BUDGET_EXHAUSTED": _errors.BudgetExhaustedError,
    "QUEUE_FULL": _errors.OverloadedError,
    "REQUEST_ID_REUSED": _errors.RequestIdReusedError,
    "DATASET_RETIRED": _errors.DatasetRetiredError,
    "RELEASE_LOST": _errors.ReleaseLostError,
}
"""Reasons of this server's `google.rpc.ErrorInfo`; they say more than the code."""

_LIMITS: Mapping[str, LimitName] = {"dataset": "dataset", "allowance": "allowance", "call": "call"}

_DOMAIN = "bursar"

_HINTS: Mapping[type[Error], str] = {
    _errors.AuthenticationError: "pass token= to connect(), or set BURSAR_TOKEN",
    _errors.UnavailableError: "check the address, the CA certificate (ca=) and that the server runs",
    _errors.OverloadedError: "nothing was debited; send the same request again later",
}
"""What to do about a status that comes from gRPC itself; this server's own texts say it already."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise this package's errors for gRPC's, with the original as the cause. Wrap only calls into gRPC in it.

    Raises:
        Error: whatever gRPC raised.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise to_error(error) from error
    except ValueError as error:  # gRPC's way to say that the channel has been closed
        raise _errors.TransportError("the client is closed: connect again") from error


def to_error(error: grpc.RpcError) -> Error:
    """This package's error for a failed call."""
    if not hasattr(error, "code"):  # an interceptor's own exception; nothing is known about the call
        return _errors.TransportError("the call failed inside the channel")
    details = _Details.of(error)
    kind = _BY_REASON.get(details.reason) or _BY_CODE.get(error.code(), ServerError)
    hint = None if details.reason else _HINTS.get(kind)
    message = "; ".join(filter(None, [details.text or error.code().name, *details.unsaid(), hint]))
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


@dataclass(frozen=True)
class _Details:
    """What the google.rpc details of a status say that this package understands."""

    text: str = ""
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, call: grpc.RpcError) -> _Details:
        bad_request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
        for detail in _status(call).details:
            # Unpack leaves the message alone when the detail is of another type.
            detail.Unpack(bad_request)
            detail.Unpack(info)
        ours = info.domain == _DOMAIN
        return cls(
            text=call.details() or "",
            reason=info.reason if ours else "",
            metadata=dict(info.metadata) if ours else {},
            violations=tuple((v.field, v.description) for v in bad_request.field_violations),
        )

    def unsaid(self) -> list[str]:
        """The violations that the status text does not have already."""
        return [f"{name}: {said}" for name, said in self.violations if said not in self.text]


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
        )
        requested = Price(
            cost_units=int(values["requested_cost_units"]),
            delta_units=int(values["requested_delta_units"]),
            rho=float(values["requested_rho"]),
        )
        return requested, remaining
    except (KeyError, ValueError):
        return None, None
