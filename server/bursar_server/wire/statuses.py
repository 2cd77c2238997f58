"""One table from exceptions to what a client is told; whatever is not in it becomes one constant text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from bursar_ledger import (
    BudgetExhaustedError,
    CredentialExistsError,
    DatasetRetiredError,
    LastAdministratorError,
    LedgerUnavailableError,
    NameConflictError,
    RequestIdReusedError,
    UnknownCredentialError,
    UnknownDatasetError,
)
from bursar_server import log
from bursar_server.access.auth import ForbiddenError, KeysUnavailableError, UnauthenticatedError, UnknownMethodError
from bursar_server.access.throttle import AddressLockedOutError, TooOftenError, whole_seconds
from bursar_server.fits import InvalidFieldsError
from bursar_server.jobs.errors import (
    INTERNAL_TEXT,
    CallTooLongError,
    FitFailedError,
    FitNotBegunError,
    NoReleaseYetError,
    NotAvailableError,
    ReleaseLostError,
    ReleaseNotStoredError,
    RowsUnavailableError,
    UnknownReleaseError,
)
from bursar_server.jobs.job import NoRoomError, QueueFullError, StoppingError
from bursar_server.vault import EngineError

DOMAIN = "bursar"
_RETRY_SECONDS = 5.0
"""Suggested retry time of errors without their own, in seconds. Chosen, not tuned."""

_MOST_VIOLATIONS, _VIOLATION_BYTES, _TEXT_BYTES = 8, 300, 600
"""Limits of what is sent: gRPC sends a status in trailers of at most 8 kB, and triples some bytes."""

Status = tuple[grpc.StatusCode, str, tuple[Message, ...]]
"""Status as it is sent: code, text, details."""


def _plain(code: grpc.StatusCode) -> Callable[[Any], Status]:
    return lambda error: (code, str(error), ())


def _fixed(code: grpc.StatusCode, text: str, reason: str | None = None) -> Callable[[Any], Status]:
    return lambda error: (code, text, (_info(reason),) if reason else ())


def _later(code: grpc.StatusCode, reason: str, text: str | None = None) -> Callable[[Any], Status]:
    """Return a status with a retry time: the error's own, or `_RETRY_SECONDS`."""
    return lambda error: (
        code,
        text or str(error),
        (_info(reason), _retry(getattr(error, "seconds", _RETRY_SECONDS))),
    )


def _retry(seconds: float) -> Message:
    retry: Message = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=whole_seconds(seconds)))
    return retry


def _invalid(error: InvalidFieldsError) -> Status:
    told = [(field, _cut(text, _VIOLATION_BYTES)) for field, text in error.violations[:_MOST_VIOLATIONS]]
    more = len(error.violations) - len(told)
    violations = [error_details_pb2.BadRequest.FieldViolation(field=field, description=text) for field, text in told]
    details = error_details_pb2.BadRequest(field_violations=violations)
    text = _cut("; ".join(f"{field}: {text}" for field, text in told), _TEXT_BYTES)
    suffix = f"; and {more} more" if more else ""
    return grpc.StatusCode.INVALID_ARGUMENT, f"nothing was debited: {text}{suffix}", (details,)


def _cut(text: str, size: int) -> str:
    encoded = text.encode()
    return text if len(encoded) <= size else encoded[:size].decode(errors="ignore") + "..."


_SUBJECTS = {"dataset": "dataset budget", "allowance": "allowance of the analyst", "call": "maximum per request"}
"""Limits by the ledger's names -> words for clients."""


def _exhausted(error: BudgetExhaustedError) -> Status:
    left, asked = error.remaining, error.requested
    part = error.budget.part(asked.cost_units, asked.order)
    amounts = {
        "requested_cost_units": asked.cost_units,
        "requested_delta_units": asked.delta_units,
        "remaining_cost_units": left.cost_units,
        "remaining_delta_units": left.delta_units,
        "cap_cost_units": left.cap_cost_units,
        "cap_delta_units": left.cap_delta_units,
        "requested_rho": asked.rho,
        "requested_epsilon": part.epsilon,
        "requested_share": part.share,
        "remaining_rho": left.rho,
        "remaining_pure_epsilon": left.pure_epsilon,
        "order": float(left.order),
        "delta": float(error.budget.conversion_delta),
        "budget_cost_units": part.budget_units,
    }
    violation = error_details_pb2.QuotaFailure.Violation(subject=_SUBJECTS[error.limit], description=str(error))
    quota = error_details_pb2.QuotaFailure(violations=[violation])
    told = {name: repr(amount) for name, amount in amounts.items()}
    info = _info("BUDGET_EXHAUSTED", told | {"limit": error.limit})
    return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), (quota, info)


def _engine_gone(error: EngineError) -> Status:
    log.failure(error)  # it names machines: for the operator
    text = "the machines that hold the rows cannot be reached now; nothing was debited, try again later"
    return _later(grpc.StatusCode.UNAVAILABLE, "ENGINE_UNAVAILABLE", text)(error)


def _too_long(error: CallTooLongError) -> Status:
    goes_on = "the fit goes on. Ask again with the same request_id"
    then = goes_on if error.goes_on else "what it computed for free was dropped. Ask for less"
    text = f"the call lasted as long as this server allows; {then}"
    return grpc.StatusCode.DEADLINE_EXCEEDED, text, (_info("CALL_TOO_LONG"),)


def _no_room(error: NoRoomError) -> Status:
    log.failure(error.__cause__ or error)
    text = "the server lacks file descriptors for one more fit now; nothing was debited by this call, try again later"
    return _later(grpc.StatusCode.UNAVAILABLE, "NO_ROOM", text)(error)


# Texts of the ledger may quote a client's input, so constant texts are sent.
_TABLE: Mapping[type[Exception], Callable[[Any], Status]] = {
    InvalidFieldsError: _invalid,
    UnauthenticatedError: _plain(grpc.StatusCode.UNAUTHENTICATED),
    ForbiddenError: _plain(grpc.StatusCode.PERMISSION_DENIED),
    UnknownMethodError: _plain(grpc.StatusCode.UNIMPLEMENTED),
    NotAvailableError: _plain(grpc.StatusCode.UNIMPLEMENTED),
    UnknownDatasetError: _fixed(
        grpc.StatusCode.NOT_FOUND,
        "there is no dataset of this name that you may use",
        "UNKNOWN_DATASET",
    ),
    UnknownCredentialError: _fixed(
        grpc.StatusCode.NOT_FOUND,
        "no valid token has this name; list the tokens",
        "UNKNOWN_TOKEN",
    ),
    CredentialExistsError: _fixed(
        grpc.StatusCode.ALREADY_EXISTS, "this name holds a live token already; revoke it first", "CREDENTIAL_EXISTS"
    ),
    RequestIdReusedError: _fixed(
        grpc.StatusCode.ALREADY_EXISTS,
        "this request_id was used for another request; take a new one. Nothing was debited",
        "REQUEST_ID_REUSED",
    ),
    BudgetExhaustedError: _exhausted,
    DatasetRetiredError: _fixed(
        grpc.StatusCode.FAILED_PRECONDITION,
        "this dataset is retired: nothing new is fitted to it, and nothing was debited. What was released can still be "
        "had with its request_id",
        "DATASET_RETIRED",
    ),
    NameConflictError: _fixed(
        grpc.StatusCode.FAILED_PRECONDITION,
        "this name differs in case only from another one that holds a token or an allowance, or has debits; ask the "
        "administrator for one spelling. Nothing was changed and nothing was debited",
        "NAME_CONFLICT",
    ),
    LastAdministratorError: _fixed(
        grpc.StatusCode.FAILED_PRECONDITION,
        "this is the last administrator's token in force; issue another administrator's first, or revoke it where the "
        "server runs: bursar-admin token revoke",
        "LAST_ADMINISTRATOR",
    ),
    QueueFullError: _later(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
    # Before its base class: the first match counts.
    AddressLockedOutError: _later(grpc.StatusCode.RESOURCE_EXHAUSTED, "ADDRESS_LOCKED_OUT"),
    TooOftenError: _later(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_OFTEN"),
    StoppingError: _later(
        grpc.StatusCode.UNAVAILABLE,
        "STOPPING",
        "the server is stopping and takes no new calls; nothing was debited by this one, try again later",
    ),
    KeysUnavailableError: _later(
        grpc.StatusCode.UNAVAILABLE,
        "IDENTITY_PROVIDER_UNAVAILABLE",
        "the identity provider's keys cannot be had now, so its tokens cannot be checked; try again later",
    ),
    CallTooLongError: _too_long,
    grpc.RpcError: _fixed(grpc.StatusCode.CANCELLED, "the caller left"),
    LedgerUnavailableError: _later(
        grpc.StatusCode.UNAVAILABLE,
        "LEDGER_UNAVAILABLE",
        "the ledger cannot be used now; ask again with the same request_id, nothing is paid twice",
    ),
    EngineError: _engine_gone,
    RowsUnavailableError: _fixed(
        grpc.StatusCode.FAILED_PRECONDITION,
        "the rows of this dataset are missing, or not those that were registered; nothing was debited. Asking again "
        "does not help: tell the administrator",
        "ROWS_UNAVAILABLE",
    ),
    NoRoomError: _no_room,
    FitNotBegunError: _later(
        grpc.StatusCode.UNAVAILABLE,
        "FIT_NOT_BEGUN",
        "the fit could not begin: no row was read; ask again with the same request_id, nothing is paid twice",
    ),
    ReleaseNotStoredError: _later(
        grpc.StatusCode.UNAVAILABLE,
        "RELEASE_NOT_STORED",
        "the release could not be stored and was not sent; ask again with the same request_id, nothing is paid twice",
    ),
    ReleaseLostError: _fixed(
        grpc.StatusCode.DATA_LOSS,
        "the fit was cut off after its debit and is not run again; the debit stays. A new request_id is a new fit",
        "RELEASE_LOST",
    ),
    UnknownReleaseError: _fixed(
        grpc.StatusCode.NOT_FOUND,
        "this entry is no debit of yours; list your releases",
        "UNKNOWN_RELEASE",
    ),
    NoReleaseYetError: _fixed(
        grpc.StatusCode.NOT_FOUND,
        "this debit has no release yet: its fit runs or waits, or was interrupted. Ask again later; or send the fit's "
        "request once more with its request_id, which waits for it or runs it again, and pays nothing",
        "NO_RELEASE_YET",
    ),
}


def status_of(error: Exception) -> Status:
    """Return the status for an exception. One that is not in the table is logged and sent as one constant text."""
    for kind, make in _TABLE.items():
        if isinstance(error, kind):
            return make(error)
    incident = error.incident if isinstance(error, FitFailedError) else log.failure(error)
    return grpc.StatusCode.INTERNAL, INTERNAL_TEXT, (_info("INTERNAL", {"incident": incident}),)


def rpc_status(status: Status) -> status_pb2.Status:
    """Return the same as google.rpc.Status."""
    code, text, messages = status
    details = []
    for message in messages:
        packed = AnyMessage()
        packed.Pack(message)
        details.append(packed)
    return status_pb2.Status(code=code.value[0], message=text, details=details)


def _info(reason: str, metadata: Mapping[str, str] | None = None) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata or {})
