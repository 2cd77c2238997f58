"""Credentials in the ledger: issued and revoked by entries, so that auditors see who had access to what, and when."""

from __future__ import annotations

import dataclasses
import hmac
from typing import Any

from ._accounts import check_credential_name
from ._entries import Entry, EntryKind
from ._store import Store
from ._types import Credential, Role, check_expiry, check_name
from .errors import CredentialExistsError, LastAdministratorError, UnknownCredentialError

_NEWEST = "kind IN ('credential_issued', 'credential_revoked') AND credential = ? ORDER BY number DESC LIMIT 1"


def issue(
    store: Store,
    name: str,
    role: Role,
    token_hash: bytes,
    *,
    actor: str,
    reason: str,
    expires: str | None = None,
    datasets: tuple[str, ...] | None = None,
    dry_run: bool = False,
) -> Entry:
    """Put a credential in force.

    `token_hash` is the SHA-256 of a token of at least 256 random bits. From `expires` on, a time in UTC such as
    2026-11-22T03:30:00Z, the credential is refused; None is never. `datasets` are the only ones that the holder may
    see; None is all.

    Raises:
        CredentialExistsError: the name has one in force, or the token was issued before.
        NameConflictError: the name differs from another one in case only.
        ValueError: a time or a name that is none.
    """
    check_name("name", name)
    if len(token_hash) != 32:
        raise ValueError("token_hash must have 32 bytes")
    # An entry has a field for a limit only if there is one.
    limits: dict[str, object] = {}
    if expires is not None:
        check_expiry(expires)
        limits["expires"] = expires
    if datasets is not None:
        for dataset in datasets:
            check_name("datasets", dataset)
        limits["datasets"] = list(datasets)

    def work() -> Entry:
        check_credential_name(store, name)
        if _in_force(store, name):
            raise CredentialExistsError(f"{name!r} has a credential in force; revoke it first")
        if _issued(store, token_hash):
            raise CredentialExistsError("this token was issued before; make a new one")
        details = {
            "credential": name,
            "role": Role(role).value,
            "token_hash": token_hash.hex(),
            **limits,
            "reason": reason,
        }
        return store.append(EntryKind.CREDENTIAL_ISSUED, actor=actor, details=details)

    return store.decide(work, keep=not dry_run)


def revoke(
    store: Store, name: str, *, actor: str, reason: str, keep_admin_at: str | None = None, dry_run: bool = False
) -> Entry:
    """End the credential in force of a name.

    `keep_admin_at` is the time of now in UTC: the last administrator's credential that is in force then is kept.

    Raises:
        UnknownCredentialError: there is none.
        LastAdministratorError: no other administrator would be left.
    """

    def work() -> Entry:
        if not _in_force(store, name):
            raise UnknownCredentialError(f"{name!r} has no credential in force")
        if keep_admin_at is not None and administrators(store, keep_admin_at) == (name,):
            raise LastAdministratorError(f"{name!r} has the last administrator's credential")
        return store.append(EntryKind.CREDENTIAL_REVOKED, actor=actor, details={"credential": name, "reason": reason})

    return store.decide(work, keep=not dry_run)


def live(store: Store, token_hash: bytes) -> Credential | None:
    """Return the credential in force with this token, or None."""
    issued = _issued(store, token_hash)
    # Found by an index over hashes; compared once more in constant time, so that a wrong index lets no other token in.
    if not issued or not hmac.compare_digest(bytes.fromhex(issued[0].details["token_hash"]), token_hash):
        return None
    name = issued[0].details["credential"]
    # The name may have been given a newer token since: only the newest act on it counts.
    in_force = store.find(_NEWEST, name)[0].number == issued[0].number
    return _credential(issued[0].details) if in_force else None


def all_credentials(store: Store) -> tuple[Credential, ...]:
    """Return the newest credential of every name."""
    newest: dict[str, Credential] = {}
    for entry in store.find("kind IN ('credential_issued', 'credential_revoked') ORDER BY number"):
        name = entry.details["credential"]
        if entry.kind == EntryKind.CREDENTIAL_ISSUED:
            newest[name] = _credential(entry.details)
        else:
            newest[name] = dataclasses.replace(newest[name], revoked=True)
    return tuple(newest.values())


def administrators(store: Store, now: str) -> tuple[str, ...]:
    """Return the names with an administrator's credential in force at a time, in UTC as entries have it."""
    found = (held for held in all_credentials(store) if held.role is Role.ADMIN and not held.revoked)
    return tuple(held.name for held in found if held.expires is None or held.expires > now)


def _credential(details: dict[str, Any]) -> Credential:
    datasets = details.get("datasets")
    return Credential(
        details["credential"],
        Role(details["role"]),
        revoked=False,
        expires=details.get("expires"),
        datasets=None if datasets is None else tuple(datasets),
    )


def _in_force(store: Store, name: str) -> bool:
    return [entry.kind for entry in store.find(_NEWEST, name)] == [EntryKind.CREDENTIAL_ISSUED]


def _issued(store: Store, token_hash: bytes) -> list[Entry]:
    return store.find("kind = 'credential_issued' AND token_hash = ?", token_hash.hex())
