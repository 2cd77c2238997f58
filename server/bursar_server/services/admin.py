"""AdminService: tokens. Every change is an entry of the ledger with actor and reason."""

from __future__ import annotations

import re

import grpc

from bursar_ledger import Ledger
from bursar_proto.v1 import admin_pb2, admin_pb2_grpc
from bursar_server import logs
from bursar_server.auth import caller, hash_token, new_token
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


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Issues, revokes and lists tokens.

    Args:
        ledger: keeps hashes of tokens.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

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
            request.name, role, hash_token(token), actor=caller().name, reason=check_reason(request.reason)
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
                admin_pb2.TokenSummary(name=held.name, role=ROLES[held.role], revoked=held.revoked)
                for held in self._ledger.credentials()
            ]
        )
