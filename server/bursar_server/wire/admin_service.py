"""AdminService: tokens. Every change is a ledger entry with actor and reason."""

from __future__ import annotations

import re
import time

import grpc

from bursar_ledger import Ledger, Role
from bursar_proto.filling import message_of
from bursar_proto.v1 import admin_pb2, admin_pb2_grpc
from bursar_server import log
from bursar_server.access.auth import SERVER, caller, expiry, hash_token, new_token
from bursar_server.access.oidc import is_principal
from bursar_server.fits import InvalidFieldsError
from bursar_server.wire.messages import ROLES

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_LONGEST_REASON = 500
"""Maximum length of a reason in the ledger. Chosen, not tuned."""

_ROLES = {number: role for role, number in ROLES.items()}


def check_name(name: str) -> None:
    """Raise InvalidFieldsError for a name that is ambiguous or not printable in logs and ledgers."""
    if not _NAME.fullmatch(name):
        raise InvalidFieldsError(
            ("name", "must have 1 to 64 characters of [A-Za-z0-9_.@-] and begin with a letter or a digit")
        )
    if name.casefold() == SERVER:
        raise InvalidFieldsError(("name", "is the one under which the server itself acts; expected another one"))


def check_principal(name: str) -> None:
    """Raise InvalidFieldsError for a name that neither a token nor the identity provider can have."""
    if not is_principal(name):
        check_name(name)


def check_reason(reason: str) -> str:
    """Return the reason of a change in the ledger's format. Raises InvalidFieldsError."""
    if not (len(reason) <= _LONGEST_REASON and reason.isprintable()):
        raise InvalidFieldsError(("reason", f"must have at most {_LONGEST_REASON} printable characters"))
    return reason


def check_days(asked: int, longest: int) -> int:
    """Return the life of a token in days: the requested one, the maximum for 0. Raises InvalidFieldsError."""
    if not 0 <= asked <= longest:
        raise InvalidFieldsError(("days", f"expected 1 to {longest} (tokens.days of the settings), or 0 for that"))
    return asked or longest


def check_scope(datasets: tuple[str, ...], role: Role, ledger: Ledger) -> tuple[str, ...] | None:
    """Return the only datasets of a token, None for all. Raises InvalidFieldsError, UnknownDatasetError."""
    if not datasets:
        return None
    if role is not Role.ANALYST:
        text = f"limit what an analyst sees; a token of role {role.value} reads the whole ledger. Expected none"
        raise InvalidFieldsError(("datasets", text))
    return tuple(dict.fromkeys(ledger.dataset(name).name for name in datasets))


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Service that issues, revokes and lists tokens, which live `days` at most, and as long if no time is requested."""

    def __init__(self, ledger: Ledger, days: int, *, events: log.Events) -> None:
        self._events = events
        self._ledger = ledger
        self._days = days

    def IssueToken(  # noqa: N802  the contract's name
        self, request: admin_pb2.IssueTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.IssueTokenResponse:
        """Issue a token; only this answer ever contains it."""
        check_name(request.name)
        role = _ROLES.get(request.role)
        if role is None:
            raise InvalidFieldsError(("role", "is missing or unknown; expected admin, analyst or auditor"))
        token = new_token(role)
        entry = self._ledger.issue_credential(
            request.name,
            role,
            hash_token(token),
            actor=caller().name,
            reason=check_reason(request.reason),
            expires=expiry(check_days(request.days, self._days), time.time()),
            datasets=check_scope(tuple(request.datasets), role, self._ledger),
        )
        self._events.tell(log.TokenIssued(entry=entry.number, name=request.name, role=role.value, actor=caller().name))
        return admin_pb2.IssueTokenResponse(token=token, entry=entry.number)

    def RevokeToken(  # noqa: N802  the contract's name
        self, request: admin_pb2.RevokeTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RevokeTokenResponse:
        """Revoke a token from the next call on; a charged fit is finished."""
        check_name(request.name)
        entry = self._ledger.revoke_credential(
            request.name,
            actor=caller().name,
            reason=check_reason(request.reason),
            keep_admin_at=expiry(0, time.time()),  # else no token could be issued remotely any more
        )
        self._events.tell(log.TokenRevoked(entry=entry.number, name=request.name, actor=caller().name))
        return admin_pb2.RevokeTokenResponse(entry=entry.number)

    def ListTokens(  # noqa: N802  the contract's name
        self, request: admin_pb2.ListTokensRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListTokensResponse:
        """List the holders of tokens, including revoked ones."""
        tokens = [
            message_of(admin_pb2.TokenSummary, held, role=ROLES[held.role]) for held in self._ledger.credentials()
        ]
        return admin_pb2.ListTokensResponse(tokens=tokens)
