"""Who calls, and what each role may call. What is not listed here is refused."""

from __future__ import annotations

import contextvars
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import FileDescriptor

from bursar_ledger import Ledger, Role
from bursar_proto.v1 import admin_pb2, audit_pb2, catalog_pb2, dummy_pb2, fit_pb2

_TOKEN = re.compile(r"bursar_(admin|analyst|auditor)_[A-Za-z0-9_-]{43}")


class UnauthenticatedError(Exception):
    """No token, or none that this server knows."""


class ForbiddenError(Exception):
    """The holder of the token may not call this method."""


class UnknownMethodError(Exception):
    """There is no such method on this server."""


@dataclass(frozen=True)
class Principal:
    """Holder of a live token.

    Attributes:
        name: unique among live tokens; debits carry it.
        role: what the holder may call.
    """

    name: str
    role: Role


def new_token(role: Role) -> str:
    """A fresh bearer token with 256 bits of the operating system's randomness; its prefix tells people what it is."""
    return f"bursar_{role.value}_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> bytes:
    """SHA-256 of a token, which is what the ledger keeps. 256 random bits need no salt and no stretching."""
    return hashlib.sha256(token.encode()).digest()


def authenticate(metadata: Iterable[tuple[str, str | bytes]], ledger: Ledger) -> Principal:
    """The holder of the token in `authorization: Bearer <token>`.

    The ledger looks up the hash, so the time a comparison takes says nothing about a token.

    Raises:
        UnauthenticatedError: no token, a malformed one, or one that is not in force.
    """
    values = [value for key, value in metadata if key == "authorization"]
    if len(values) != 1 or not isinstance(values[0], str):
        raise UnauthenticatedError("send one token as metadata: authorization: Bearer <token>")
    scheme, _, token = values[0].partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
        raise UnauthenticatedError(
            "the token is malformed; expected: authorization: Bearer bursar_<role>_<43 characters>"
        )
    credential = ledger.credential(hash_token(token))
    if credential is None:
        raise UnauthenticatedError("the token is unknown or revoked; ask the administrator for a new one")
    return Principal(credential.name, credential.role)


_ALL = frozenset(Role)
_ANALYST = frozenset({Role.ANALYST})
_ADMIN = frozenset({Role.ADMIN})
_AUDIT = frozenset({Role.ADMIN, Role.AUDITOR})

PUBLIC_METHODS = frozenset({"/grpc.health.v1.Health/Check"})
"""What needs no token, and is answered without waiting for a message; so every service's health is the server's.

Health's Watch is not among them: it would let strangers hold threads.
"""

_REFLECTION = {
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ALL,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _ALL,
}


def _methods(file: FileDescriptor, roles: Mapping[str, frozenset[Role]]) -> dict[str, frozenset[Role]]:
    # By name from the contract, so that a method that is renamed there is refused here instead of falling to a default.
    return {
        f"/{service.full_name}/{method.name}": roles.get(method.name, frozenset())
        for service in file.services_by_name.values()
        for method in service.methods
    }


METHOD_ROLES: Mapping[str, frozenset[Role]] = {
    **_methods(
        fit_pb2.DESCRIPTOR,
        dict.fromkeys(
            ("FitDPEM", "FitSeparatedGMM", "FitGradientEM", "FitSketchKMeans", "FitMRF", "Preview"),
            # Administrators see every budget and hold the data; one who wants to fit issues himself an analyst's token.
            _ANALYST,
        ),
    ),
    **_methods(dummy_pb2.DESCRIPTOR, {"RunDummy": _ANALYST}),
    **_methods(
        catalog_pb2.DESCRIPTOR,
        # Whoever has a receipt may ask whether the ledger still holds it; hashes say nothing else.
        {
            "ListDatasets": _ALL,
            "GetDataset": _ALL,
            "ListReleases": _ANALYST,
            "GetRelease": _ANALYST,
            "ListSketches": _ANALYST,
            "GetHistory": _ALL,
        },
    ),
    **_methods(admin_pb2.DESCRIPTOR, dict.fromkeys(("IssueToken", "RevokeToken", "ListTokens"), _ADMIN)),
    **_methods(audit_pb2.DESCRIPTOR, dict.fromkeys(("ListEntries", "Verify"), _AUDIT)),
    **_REFLECTION,
}
"""Roles that may call each method, by its full name on the wire."""


def authorise(method: str, principal: Principal) -> None:
    """Let a call pass.

    Raises:
        UnknownMethodError: the method has no row in the table.
        ForbiddenError: the role is not in the method's row.
    """
    roles = METHOD_ROLES.get(method)
    if roles is None:
        raise UnknownMethodError("this server has no such method")
    if principal.role not in roles:
        raise ForbiddenError(f"a token of role {principal.role.value} may not call {method}")


_caller: contextvars.ContextVar[Principal | None] = contextvars.ContextVar("bursar_caller", default=None)


def set_caller(principal: Principal | None) -> None:
    """Say who calls, for the rest of the call that this thread serves; None for nobody."""
    _caller.set(principal)


def caller_or_nobody() -> Principal | None:
    """Who calls, for the log."""
    return _caller.get()


def caller() -> Principal:
    """Who calls. Raises UnauthenticatedError outside an authenticated call."""
    principal = _caller.get()
    if principal is None:
        raise UnauthenticatedError("nobody is authenticated")
    return principal
