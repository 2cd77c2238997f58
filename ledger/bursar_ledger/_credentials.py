"""Credentials in the ledger: issued and revoked by entries, so that the auditor sees who could ask for what, when."""

from __future__ import annotations

import dataclasses
import hmac
from typing import Any

from ._canonical import Entry
from ._store import Store
from ._values import Credential, Role, check_expiry, check_name
from .errors import CredentialExistsError, UnknownCredentialError

_NEWEST = "kind IN ('credential_issued', 'credential_revoked') AND credential = ? ORDER BY number DESC LIMIT 1"


def issue(
    store: Store,
    credential: Credential,
    token_hash: bytes,
    *,
    actor: str,
    reason: str,
    dry_run: bool = False,
) -> Entry:
    """Appends the credential; CredentialExistsError if the name has one in force or the token was issued before."""
    name = credential.name
    check_name("name", name)
    if len(token_hash) != 32:
        raise ValueError("token_hash must have 32 bytes")
    # Entries without a limit look as they always did.
    limits: dict[str, object] = {}
    if credential.expires is not None:
        check_expiry(credential.expires)
        limits["expires"] = credential.expires
    if credential.datasets is not None:
        for dataset in credential.datasets:
            check_name("datasets", dataset)
        limits["datasets"] = list(credential.datasets)

    def work() -> Entry:
        if _in_force(store, name):
            raise CredentialExistsError(f"{name!r} has a credential in force; revoke it first")
        if _issued(store, token_hash):
            raise CredentialExistsError("this token was issued before; make a new one")
        details = {
            "credential": name,
            "role": Role(credential.role).value,
            "token_hash": token_hash.hex(),
            **limits,
            "reason": reason,
        }
        return store.append("credential_issued", actor=actor, details=details)

    return store.decide(work, keep=not dry_run)


def revoke(store: Store, name: str, *, actor: str, reason: str, dry_run: bool = False) -> Entry:
    """Appends the revocation; raises UnknownCredentialError if the name has no credential in force."""

    def work() -> Entry:
        if not _in_force(store, name):
            raise UnknownCredentialError(f"{name!r} has no credential in force")
        return store.append("credential_revoked", actor=actor, details={"credential": name, "reason": reason})

    return store.decide(work, keep=not dry_run)


def live(store: Store, token_hash: bytes) -> Credential | None:
    """The credential in force with this token, if there is one."""
    issued = _issued(store, token_hash)
    # Found by an index over hashes; compared once more in constant time, whatever SQLite did.
    if not issued or not hmac.compare_digest(bytes.fromhex(issued[0].details["token_hash"]), token_hash):
        return None
    name = issued[0].details["credential"]
    # The name may have been given a newer token since: only the newest act on it counts.
    in_force = store.find(_NEWEST, name)[0].number == issued[0].number
    return _credential(issued[0].details, revoked=False) if in_force else None


def all_credentials(store: Store) -> tuple[Credential, ...]:
    """The newest credential of every name, in the order in which the names came."""
    newest: dict[str, Credential] = {}
    for entry in store.find("kind IN ('credential_issued', 'credential_revoked') ORDER BY number"):
        name = entry.details["credential"]
        if entry.kind == "credential_issued":
            newest[name] = _credential(entry.details, revoked=False)
        else:
            newest[name] = dataclasses.replace(newest[name], revoked=True)
    return tuple(newest.values())


def _credential(details: dict[str, Any], *, revoked: bool) -> Credential:
    datasets = details.get("datasets")
    return Credential(
        details["credential"],
        Role(details["role"]),
        revoked=revoked,
        expires=details.get("expires"),
        datasets=None if datasets is None else tuple(datasets),
    )


def _in_force(store: Store, name: str) -> bool:
    return [entry.kind for entry in store.find(_NEWEST, name)] == ["credential_issued"]


def _issued(store: Store, token_hash: bytes) -> list[Entry]:
    return store.find("kind = 'credential_issued' AND token_hash = ?", token_hash.hex())
