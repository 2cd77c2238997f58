"""Authentication by bearer tokens, over a cache of the ledger, and the roles that may call each method.

Must not import jobs, ops, wire or process.
"""

from __future__ import annotations

import contextvars
import datetime
import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message

from bursar_ledger import Ledger, Role, UnknownDatasetError
from bursar_proto.v1 import admin_pb2, audit_pb2, catalog_pb2, dummy_pb2, fit_pb2

SERVER = "bursar-server"
"""Name under which the server itself acts in the ledger; no token has it."""

_T = TypeVar("_T")

_TOKEN = re.compile(r"bursar_(admin|analyst|auditor)_[A-Za-z0-9_-]{43}")


class UnauthenticatedError(Exception):
    """Error: the token is missing, malformed or unknown.

    Attributes:
        cause: kind of error in a token of the identity provider, for the log; "" for other tokens.
    """

    def __init__(self, text: str, cause: str = "") -> None:
        super().__init__(text)
        self.cause = cause


class ForbiddenError(Exception):
    """Error: the role of the token may not call this method."""


class KeysUnavailableError(Exception):
    """Error: the keys of the identity provider are not available now, so the token cannot be checked."""


class UnknownMethodError(Exception):
    """Error: this server has no such method."""


@dataclass(frozen=True)
class Principal:
    """Holder of a live token.

    Attributes:
        name: name of the principal, unique among live tokens; debits record it.
        role: role, which decides the methods that they may call.
        datasets: the only datasets that they may see; None for all. Others do not exist for them.
    """

    name: str
    role: Role
    datasets: tuple[str, ...] | None = None

    def may_see(self, dataset: str) -> bool:
        """Return whether the principal may see a dataset of this name, if there is one."""
        return self.datasets is None or dataset in self.datasets


class Tokens(Protocol):
    """Source of tokens: this server's ledger or an identity provider."""

    def principal(self, token: str) -> Principal:
        """Return the holder of a token.

        Raises:
            UnauthenticatedError: the token is not valid.
            KeysUnavailableError: the token cannot be checked now.
        """


def new_token(role: Role) -> str:
    """Return a new bearer token with 256 bits of the operating system's randomness; its prefix names the role."""
    return f"bursar_{role.value}_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> bytes:
    """Return the SHA-256 of a token, which the ledger stores. 256 random bits need no salt and no stretching."""
    return hashlib.sha256(token.encode()).digest()


_MOST_CACHED = 4096
"""Maximum number of cached answers. Chosen, not tuned: some MB, and more than a server has live tokens."""


class Current:
    """Answers of a ledger, each valid until the next entry.

    Every answer is a function of the ledger's entries, and the hash of the newest one identifies them all. So an answer
    is returned only while the file has the hash with which it was cached. Any new entry, of this process or of an
    administrator's, invalidates the cache. There is no expiry by time.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._newest: tuple[int, bytes] | None = None
        self._kept: dict[Hashable, Any] = {}

    def get(self, key: Hashable, ask: Callable[[], _T]) -> _T:
        """Return the ledger's answer to a question as of now.

        Args:
            key: unique name of the question.
            ask: function that asks the ledger. The answer must be a function of the ledger's entries alone, and callers
                must not change it.
        """
        newest = self._ledger.newest()
        with self._lock:
            if newest != self._newest:
                self._newest, self._kept = newest, {}
            elif key in self._kept:
                found: _T = self._kept[key]
                return found
        answer = ask()
        # An entry may have been written while the answer was read: then it is not cached.
        if self._ledger.newest() == newest:
            with self._lock:
                # None is not cached: strangers invent tokens, which must not displace known ones.
                if answer is not None and self._newest == newest and len(self._kept) < _MOST_CACHED:
                    self._kept[key] = answer
        return answer


class LedgerTokens:
    """Tokens that this server issued: the ledger stores their hashes."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._current = Current(ledger)
        self._clock = clock

    def principal(self, token: str) -> Principal:
        """Implement `Tokens.principal`. Looks up a hash, so the time of a comparison reveals nothing about tokens."""
        hashed = hash_token(token)
        credential = self._current.get(hashed, lambda: self._ledger.credential(hashed))
        if credential is None:
            raise UnauthenticatedError("the token is unknown or revoked; ask the administrator for a new one")
        # Compared at every call: time passes without an entry, so the cache would not notice.
        if credential.expires is not None:
            ends = datetime.datetime.fromisoformat(credential.expires).timestamp()
            if not self._clock() < ends:
                raise UnauthenticatedError(
                    f"the token ended at {credential.expires}; ask the administrator for a new one"
                )
        return Principal(credential.name, credential.role, credential.datasets)


def expiry(days: int, now: float) -> str:
    """Return the end of a token that lives `days` days from `now` (seconds since 1970), in the ledger's format."""
    ends = datetime.datetime.fromtimestamp(now, datetime.UTC) + datetime.timedelta(days=days)
    return ends.strftime("%Y-%m-%dT%H:%M:%SZ")


def authenticate(metadata: Iterable[tuple[str, str | bytes]], own: Tokens, provider: Tokens | None = None) -> Principal:
    """Return the holder of the token in `authorization: Bearer <token>`.

    Tokens that are not in this server's `own` format are the provider's, and refused without one.

    Raises:
        UnauthenticatedError: the token is missing, malformed or not in force.
        KeysUnavailableError: the provider's keys are not available now.
    """
    values = [value for key, value in metadata if key == "authorization"]
    if len(values) != 1 or not isinstance(values[0], str):
        raise UnauthenticatedError("send one token as metadata: authorization: Bearer <token>")
    scheme, _, token = values[0].partition(" ")
    known = scheme.lower() == "bearer"
    # Own tokens by their form, so that they never reach the provider.
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
"""Methods without a token, answered without waiting for a message; so every service's health is the server's.

Health's Watch is not among them: it would let strangers hold threads.
"""

_REFLECTION = {
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ALL,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _ALL,
}


def _methods(file: FileDescriptor, roles: Mapping[str, frozenset[Role]]) -> dict[str, frozenset[Role]]:
    # Methods come from the contract: a new or renamed one without an entry here is refused, not open by default.
    return {
        f"/{service.full_name}/{method.name}": roles.get(method.name, frozenset())
        for service in file.services_by_name.values()
        for method in service.methods
    }


METHOD_ROLES: Mapping[str, frozenset[Role]] = {
    **_methods(
        fit_pb2.DESCRIPTOR,
        # Administrators hold the data and see every budget; to fit, they issue themselves an analyst's token.
        dict.fromkeys((method.name for method in fit_pb2.DESCRIPTOR.services_by_name["FitService"].methods), _ANALYST),
    ),
    **_methods(dummy_pb2.DESCRIPTOR, {"RunDummy": _ANALYST}),
    **_methods(
        catalog_pb2.DESCRIPTOR,
        # All roles may compare a receipt with the ledger; its hashes reveal nothing else.
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
    """Check that a principal may call a method.

    Raises:
        UnknownMethodError: the method is not listed.
        ForbiddenError: the role may not call the method, or only without a limit to some datasets.
    """
    roles = METHOD_ROLES.get(method)
    if roles is None:
        raise UnknownMethodError("this server has no such method")
    if principal.role not in roles:
        raise ForbiddenError(f"a token of role {principal.role.value} may not call {method}")
    # What analysts may not call is about the whole ledger, which has the names, schemas and debits of every dataset.
    if principal.datasets is not None and Role.ANALYST not in roles:
        raise ForbiddenError(f"a token that is limited to some datasets may not call {method}")


def check_datasets(message: object, principal: Principal | None) -> None:
    """Check that every dataset named anywhere in a request is one that the caller may see.

    Raises:
        UnknownDatasetError: a dataset is not; the same error as for a dataset that does not exist.
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


# gRPC gives a method its request and its context only, so the caller cannot be an argument of the handlers. The gate
# sets it at the start of every call.
_caller: contextvars.ContextVar[Principal | None] = contextvars.ContextVar("bursar_caller", default=None)


def set_caller(principal: Principal | None) -> None:
    """Set the principal of the call that this thread serves; None if there is none."""
    _caller.set(principal)


def caller_or_nobody() -> Principal | None:
    """Return the principal of the current call, for the log; None outside an authenticated call."""
    return _caller.get()


def caller() -> Principal:
    """Return the principal of the current call. Raises UnauthenticatedError if the call is not authenticated."""
    principal = _caller.get()
    if principal is None:
        raise UnauthenticatedError("the call is not authenticated")
    return principal
