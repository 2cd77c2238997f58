"""Credentials: issued, found by token, revoked, all in the chain."""

from __future__ import annotations

import pytest

from bursar_ledger import Credential, CredentialExistsError, Ledger, Role, UnknownCredentialError

OLD, NEW = b"1" * 32, b"2" * 32


def test_a_credential_is_in_force_from_issue_to_revocation(ledger: Ledger) -> None:
    """The token opens the door in between, and never again."""
    assert ledger.credential(OLD) is None
    issued = ledger.issue_credential("ann", Role.ANALYST, OLD, actor="owner", reason="project")
    assert ledger.credential(OLD) == Credential("ann", Role.ANALYST, revoked=False)
    revoked = ledger.revoke_credential("ann", actor="owner", reason="left")
    assert ledger.credential(OLD) is None
    assert ledger.credentials() == (Credential("ann", Role.ANALYST, revoked=True),)
    assert [(e.kind, e.actor, e.details["reason"]) for e in ledger.entries(issued.number, 2)] == [
        ("credential_issued", "owner", "project"),
        ("credential_revoked", "owner", "left"),
    ]
    assert revoked.previous == issued.hash


def test_a_name_has_one_credential_in_force(ledger: Ledger) -> None:
    """A second one needs the first revoked; then the old token stays dead."""
    ledger.issue_credential("ann", Role.ANALYST, OLD, actor="owner", reason="")
    with pytest.raises(CredentialExistsError, match="revoke it first"):
        ledger.issue_credential("ann", Role.ADMIN, NEW, actor="owner", reason="")
    ledger.revoke_credential("ann", actor="owner", reason="")
    with pytest.raises(CredentialExistsError, match="issued before"):
        ledger.issue_credential("ann", Role.ANALYST, OLD, actor="owner", reason="")
    ledger.issue_credential("ann", Role.AUDITOR, NEW, actor="owner", reason="")
    assert ledger.credential(OLD) is None
    assert ledger.credential(NEW) == Credential("ann", Role.AUDITOR, revoked=False)
    assert ledger.credentials() == (Credential("ann", Role.AUDITOR, revoked=False),)


def test_a_token_belongs_to_one_name(ledger: Ledger) -> None:
    """The same token is not issued to somebody else."""
    ledger.issue_credential("ann", Role.ANALYST, OLD, actor="owner", reason="")
    with pytest.raises(CredentialExistsError, match="issued before"):
        ledger.issue_credential("bob", Role.ANALYST, OLD, actor="owner", reason="")


def test_only_what_is_in_force_is_revoked(ledger: Ledger) -> None:
    """Revoking an unknown or a revoked name is refused."""
    with pytest.raises(UnknownCredentialError, match="nobody"):
        ledger.revoke_credential("nobody", actor="owner", reason="")
    ledger.issue_credential("ann", Role.ANALYST, OLD, actor="owner", reason="")
    ledger.revoke_credential("ann", actor="owner", reason="")
    with pytest.raises(UnknownCredentialError):
        ledger.revoke_credential("ann", actor="owner", reason="")


@pytest.mark.parametrize(("name", "token_hash"), [("", OLD), ("a\n", OLD), ("x" * 201, OLD), ("ann", b"short")])
def test_malformed_credentials_are_refused(ledger: Ledger, name: str, token_hash: bytes) -> None:
    """Names are printable, hashes have 32 bytes."""
    with pytest.raises(ValueError, match=r"name must|token_hash must"):
        ledger.issue_credential(name, Role.ANALYST, token_hash, actor="owner", reason="")
