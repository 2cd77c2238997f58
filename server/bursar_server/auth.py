"""Who calls, and what each role may call. What is not listed here is refused."""

from __future__ import annotations

import contextvars
import datetime
import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from bursar_ledger import Ledger, Role, UnknownDatasetError
from bursar_proto.v1 import admin_pb2, audit_pb2, catalog_pb2, dummy_pb2, fit_pb2
from bursar_server.current import Current

_TOKEN = re.compile(r"bursar_(admin|analyst|auditor)_[A-Za-z0-9_-]{43}")


class UnauthenticatedError(Exception):
    """No token, or none that this server knows."""


class ForbiddenError(Exception):
    """The holder of the token may not call this method."""


class KeysUnavailableError(Exception):
    """The keys of the identity provider cannot be had now, so nobody can tell whether a token is good."""


class UnknownMethodError(Exception):
    """There is no such method on this server."""


@dataclass(frozen=True)
class Principal:
    """Holder of a live token.

    Attributes:
        name: unique among live tokens; debits carry it.
        role: what the holder may call.
        datasets: the only ones that he may see; None for all. For him there are no others.
    """

    name: str
    role: Role
    datasets: tuple[str, ...] | None = None

    def may_see(self, dataset: str) -> bool:
        """Whether there is such a dataset for him, if there is one."""
        return self.datasets is None or dataset in self.datasets


class Tokens(Protocol):
    """One kind of tokens."""

    def principal(self, token: str) -> Principal:
        """Who has a token. Raises UnauthenticatedError, or KeysUnavailableError if nobody can tell now."""


def new_token(role: Role) -> str:
    """A fresh bearer token with 256 bits of the operating system's randomness; its prefix tells people what it is."""
    return f"bursar_{role.value}_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> bytes:
    """SHA-256 of a token, which is what the ledger keeps. 256 random bits need no salt and no stretching."""
    return hashlib.sha256(token.encode()).digest()


class LedgerTokens:
    """Tokens that were issued here: the ledger knows their hashes.

    Args:
        ledger: open.
        clock: seconds since 1970.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._current = Current(ledger)
        self._clock = clock

    def principal(self, token: str) -> Principal:
        """See `Tokens`. Hashes are looked up, so the time a comparison takes says nothing about a token."""
        hashed = hash_token(token)
        credential = self._current.get(hashed, lambda: self._ledger.credential(hashed))
        if credential is None:
            raise UnauthenticatedError("the token is unknown or revoked; ask the administrator for a new one")
        if credential.expires is not None:
            ends = datetime.datetime.fromisoformat(credential.expires).timestamp()
            if not self._clock() < ends:
                raise UnauthenticatedError(
                    f"the token ended at {credential.expires}; ask the administrator for a new one"
                )
        return Principal(credential.name, credential.role, credential.datasets)


def expiry(days: int, now: float) -> str:
    """The end of a token that lives so many days from now, in seconds since 1970; as the ledger has it."""
    ends = datetime.datetime.fromtimestamp(now, datetime.UTC) + datetime.timedelta(days=days)
    return ends.strftime("%Y-%m-%dT%H:%M:%SZ")


def authenticate(metadata: Iterable[tuple[str, str | bytes]], own: Tokens, provider: Tokens | None = None) -> Principal:
    """The holder of the token in `authorization: Bearer <token>`.

    Args:
        metadata: of the call.
        own: tokens that look like this server's own.
        provider: all others; None: there are no others.

    Raises:
        UnauthenticatedError: no token, a malformed one, or one that is not in force.
        KeysUnavailableError: the provider's keys cannot be had now.
    """
    values = [value for key, value in metadata if key == "authorization"]
    if len(values) != 1 or not isinstance(values[0], str):
        raise UnauthenticatedError("send one token as metadata: authorization: Bearer <token>")
    scheme, _, token = values[0].partition(" ")
    known = scheme.lower() == "bearer"
    if known and _TOKEN.fullmatch(token):
        return own.principal(token)
    if known and provider is not None and not token.startswith("bursar_"):
        return provider.principal(token)
    raise UnauthenticatedError("the token is malformed; expected: authorization: Bearer bursar_<role>_<43 characters>")


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


def check_datasets(message: object, principal: Principal | None) -> None:
    """Whether a request names no dataset but those that the caller may see, wherever in it.

    Raises UnknownDatasetError, as for a dataset that there is not.
    """
    if principal is not None and principal.datasets is not None and isinstance(message, Message):
        for name in _datasets(message):
            if not principal.may_see(name):
                raise UnknownDatasetError("not among the datasets of this token")


def _datasets(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.name == "dataset" and isinstance(value, str):
            yield value
        elif field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from _datasets(part)


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
