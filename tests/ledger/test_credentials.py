"""Credentials: issued, found by token, revoked, all in the chain."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import Credential, CredentialExistsError, Ledger, Role, UnknownCredentialError, verify

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


def test_a_credential_may_be_limited_in_time_and_to_datasets(ledger: Ledger) -> None:
    """Both are part of the entry and come back as they were given; the ledger itself asks no clock."""
    ledger.issue_credential(
        "ann", Role.ANALYST, OLD, actor="owner", reason="", expires="2001-02-03T04:05:06Z", datasets=("people",)
    )
    expected = Credential("ann", Role.ANALYST, revoked=False, expires="2001-02-03T04:05:06Z", datasets=("people",))
    assert ledger.credential(OLD) == expected
    ledger.revoke_credential("ann", actor="owner", reason="")
    assert ledger.credentials() == (dataclasses.replace(expected, revoked=True),)


@pytest.mark.parametrize(
    "limits",
    [
        {"expires": "2001-02-30T04:05:06Z"},
        {"expires": "2001-02-03"},
        {"expires": "2001-02-03T04:05:06+01:00"},
        {"expires": ""},
        {"datasets": ("",)},
        {"datasets": ("a\nb",)},
    ],
)
def test_limits_of_a_credential_that_nobody_could_read_are_refused(ledger: Ledger, limits: dict[str, Any]) -> None:
    """A time that is none and a name that is none never become part of the chain."""
    before = ledger.newest()
    with pytest.raises(ValueError, match=r"expires|month|day|datasets"):
        ledger.issue_credential("ann", Role.ANALYST, OLD, actor="owner", reason="", **limits)
    assert ledger.newest() == before


def test_a_ledger_with_limited_credentials_verifies(ledger: Ledger, path: Path) -> None:
    """Entries of older versions have no limits, those with them are read by the same rules."""
    ledger.issue_credential("ann", Role.ANALYST, OLD, actor="o", reason="", expires="2001-02-03T04:05:06Z", datasets=())
    assert verify(path).ok
