"""The administrator's and the auditor's calls, answered from exchanges."""

from __future__ import annotations

import pytest

import bursar
from bursar.testing import Exchange, Recording
from bursar_proto.v1 import admin_pb2, audit_pb2

ISSUE = admin_pb2.IssueTokenRequest(name="ann", role=admin_pb2.ROLE_ANALYST, reason="new")
LIST = audit_pb2.ListEntriesRequest(first=1, limit=10)
BODIES = (b'{"a": 1}', b"junk", b"[]")


@pytest.fixture
def office() -> Recording:
    """Answers about one token, three entries of which one has JSON, and a verification that found something."""
    token = admin_pb2.TokenSummary(name="ann", role=admin_pb2.ROLE_ANALYST, revoked=True)
    entries = tuple(
        audit_pb2.ListEntriesResponse(entry=entry, kind="debit", actor="ann", body=body, hash=b"\x0f")
        for entry, body in enumerate(BODIES, start=1)
    )
    found = audit_pb2.VerifyResponse(ok=False, problems=["entry 2: chain"], entries=2, head=b"\xff")
    return Recording(
        [
            Exchange("AdminService/IssueToken", ISSUE, (admin_pb2.IssueTokenResponse(token="t0ken", entry=4),)),
            Exchange(
                "AdminService/RevokeToken",
                admin_pb2.RevokeTokenRequest(name="ann"),
                (admin_pb2.RevokeTokenResponse(entry=5),),
            ),
            Exchange(
                "AdminService/ListTokens",
                admin_pb2.ListTokensRequest(),
                (admin_pb2.ListTokensResponse(tokens=[token]),),
            ),
            Exchange("AuditService/ListEntries", LIST, entries),
            Exchange("AuditService/Verify", audit_pb2.VerifyRequest(), (found,)),
        ]
    )


def test_tokens_are_issued_and_revoked(office: Recording) -> None:
    """Name, role and reason are sent; the secret comes back once, the entry of a revocation too."""
    client = office.client()
    assert client.admin.issue_token("ann", "analyst", reason="new") == "t0ken"
    assert office.calls == [("AdminService/IssueToken", ISSUE)]
    assert client.admin.revoke_token("ann") == 5
    assert client.admin.tokens() == [bursar.TokenSummary("ann", "analyst", revoked=True)]


def test_an_unknown_role_is_refused(office: Recording) -> None:
    """The refusal comes before anything is sent."""
    client = office.client()
    with pytest.raises(bursar.InvalidRequestError, match="'admin', 'analyst', 'auditor'"):
        client.admin.issue_token("ann", "king")  # type: ignore[arg-type]
    assert office.calls == []


def test_the_ledger_can_be_read(office: Recording) -> None:
    """Entries come in order with their bytes; a body that is no JSON object is the server's error."""
    client = office.client()
    first, second, third = client.audit.entries(first=1, limit=10)
    assert office.calls == [("AuditService/ListEntries", LIST)]
    assert (first.entry, first.kind, first.actor, first.hash, first.fields) == (1, "debit", "ann", "0f", {"a": 1})
    for entry, message in ((second, "entry 2 is not JSON"), (third, "entry 3 is not a JSON object")):
        with pytest.raises(bursar.ServerError, match=message):
            _ = entry.fields


def test_the_servers_own_verification_is_a_value(office: Recording) -> None:
    """Findings are values, not exceptions: the auditor wants all of them."""
    client = office.client()
    assert client.audit.verify() == bursar.Verification(False, ("entry 2: chain",), 2, "ff")
