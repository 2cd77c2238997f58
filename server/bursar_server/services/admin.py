"""AdminService: tokens. Every change is an entry of the ledger with actor and reason."""

from __future__ import annotations

import re
import time

import grpc

from bursar_ledger import Ledger, Role
from bursar_proto.v1 import admin_pb2, admin_pb2_grpc
from bursar_server import logs
from bursar_server.auth import caller, expiry, hash_token, new_token
from bursar_server.convert import ROLES
from bursar_server.fits import InvalidRequestError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_LONGEST_REASON = 500
_ROLES = {number: role for role, number in ROLES.items()}


def check_name(name: str) -> None:
    """Raises InvalidRequestError for a name that could not be told apart, or not printed, in logs and ledgers."""
    if not _NAME.fullmatch(name):
        raise InvalidRequestError(
            ("name", "must have 1 to 64 characters of [A-Za-z0-9_.@-] and begin with a letter or a digit")
        )


def check_reason(reason: str) -> str:
    """The reason of an act, as it may go into the ledger. Raises InvalidRequestError."""
    if not (len(reason) <= _LONGEST_REASON and reason.isprintable()):
        raise InvalidRequestError(("reason", f"must have at most {_LONGEST_REASON} printable characters"))
    return reason


def check_days(asked: int, longest: int) -> int:
    """Days that a token lives: as asked for, the longest for 0. Raises InvalidRequestError."""
    if not 0 <= asked <= longest:
        raise InvalidRequestError(("days", f"expected 1 to {longest} (tokens.days of the settings), or 0 for that"))
    return asked or longest


def check_scope(datasets: tuple[str, ...], role: Role, ledger: Ledger) -> tuple[str, ...] | None:
    """The only datasets of a token, None for all. Raises InvalidRequestError, UnknownDatasetError."""
    if not datasets:
        return None
    if role is not Role.ANALYST:
        text = f"limit what an analyst sees; a token of role {role.value} reads the whole ledger. Expected none"
        raise InvalidRequestError(("datasets", text))
    return tuple(dict.fromkeys(ledger.dataset(name).name for name in datasets))


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Issues, revokes and lists tokens.

    Args:
        ledger: keeps hashes of tokens.
        days: longest life of a token, and its life if none is asked for.
    """

    def __init__(self, ledger: Ledger, days: int) -> None:
        self._ledger = ledger
        self._days = days

    def IssueToken(  # noqa: N802  the contract's name
        self, request: admin_pb2.IssueTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.IssueTokenResponse:
        """A new token; this answer is the only place where it is ever written."""
        check_name(request.name)
        role = _ROLES.get(request.role)
        if role is None:
            raise InvalidRequestError(("role", "is missing or unknown; expected admin, analyst or auditor"))
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
        logs.event("token_issued", entry=entry.number, name=request.name, role=role.value, actor=caller().name)
        return admin_pb2.IssueTokenResponse(token=token, entry=entry.number)

    def RevokeToken(  # noqa: N802  the contract's name
        self, request: admin_pb2.RevokeTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RevokeTokenResponse:
        """Revokes from the next call on; a fit that was paid for is finished."""
        check_name(request.name)
        entry = self._ledger.revoke_credential(request.name, actor=caller().name, reason=check_reason(request.reason))
        logs.event("token_revoked", entry=entry.number, name=request.name, actor=caller().name)
        return admin_pb2.RevokeTokenResponse(entry=entry.number)

    def ListTokens(  # noqa: N802  the contract's name
        self, request: admin_pb2.ListTokensRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListTokensResponse:
        """Who holds what, revoked ones included."""
        return admin_pb2.ListTokensResponse(
            tokens=[
                admin_pb2.TokenSummary(
                    name=held.name,
                    role=ROLES[held.role],
                    revoked=held.revoked,
                    expires=held.expires or "",
                    datasets=held.datasets or (),
                )
                for held in self._ledger.credentials()
            ]
        )
