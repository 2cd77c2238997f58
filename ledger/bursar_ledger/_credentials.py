"""Credentials in the ledger: issued and revoked by entries, so that the auditor sees who could ask for what, when."""

from __future__ import annotations

from ._canonical import Entry
from ._store import Store
from ._values import Credential, Role, check_name
from .errors import CredentialExistsError, UnknownCredentialError

_NEWEST = "kind IN ('credential_issued', 'credential_revoked') AND credential = ? ORDER BY number DESC LIMIT 1"


def issue(
    store: Store, name: str, role: Role, token_hash: bytes, *, actor: str, reason: str, dry_run: bool = False
) -> Entry:
    """Appends the credential; CredentialExistsError if the name has one in force or the token was issued before."""
    check_name("name", name)
    if len(token_hash) != 32:
        raise ValueError("token_hash must have 32 bytes")

    def work() -> Entry:
        if _in_force(store, name):
            raise CredentialExistsError(f"{name!r} has a credential in force; revoke it first")
        if _issued(store, token_hash):
            raise CredentialExistsError("this token was issued before; make a new one")
        details = {"credential": name, "role": Role(role).value, "token_hash": token_hash.hex(), "reason": reason}
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
    if not issued:
        return None
    name = issued[0].details["credential"]
    # The name may have been given a newer token since: only the newest act on it counts.
    in_force = store.find(_NEWEST, name)[0].number == issued[0].number
    return Credential(name, Role(issued[0].details["role"]), revoked=False) if in_force else None


def all_credentials(store: Store) -> tuple[Credential, ...]:
    """The newest credential of every name, in the order in which the names came."""
    newest: dict[str, Credential] = {}
    for entry in store.find("kind IN ('credential_issued', 'credential_revoked') ORDER BY number"):
        name = entry.details["credential"]
        if entry.kind == "credential_issued":
            newest[name] = Credential(name, Role(entry.details["role"]), revoked=False)
        else:
            newest[name] = Credential(name, newest[name].role, revoked=True)
    return tuple(newest.values())


def _in_force(store: Store, name: str) -> bool:
    return [entry.kind for entry in store.find(_NEWEST, name)] == ["credential_issued"]


def _issued(store: Store, token_hash: bytes) -> list[Entry]:
    return store.find("kind = 'credential_issued' AND token_hash = ?", token_hash.hex())
