"""The administrator's and the auditor's calls, against services that answer as the contract says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import bursar
from bursar_proto.v1 import admin_pb2, admin_pb2_grpc, audit_pb2, audit_pb2_grpc


class Office(admin_pb2_grpc.AdminServiceServicer, audit_pb2_grpc.AuditServiceServicer):
    """Keeps the last request; has one token and two entries, the second without JSON."""

    last: object = None

    def IssueToken(
        self, request: admin_pb2.IssueTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.IssueTokenResponse:
        """A constant token."""
        self.last = request
        return admin_pb2.IssueTokenResponse(token="t0ken", entry=4)

    def RevokeToken(
        self, request: admin_pb2.RevokeTokenRequest, context: grpc.ServicerContext
    ) -> admin_pb2.RevokeTokenResponse:
        """A constant entry."""
        self.last = request
        return admin_pb2.RevokeTokenResponse(entry=5)

    def ListTokens(
        self, request: admin_pb2.ListTokensRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListTokensResponse:
        """One token."""
        summary = admin_pb2.TokenSummary(name="ann", role=admin_pb2.ROLE_ANALYST, revoked=True)
        return admin_pb2.ListTokensResponse(tokens=[summary])

    def ListEntries(
        self, request: audit_pb2.ListEntriesRequest, context: grpc.ServicerContext
    ) -> Iterator[audit_pb2.ListEntriesResponse]:
        """Three entries."""
        self.last = request
        for entry, body in enumerate((b'{"a": 1}', b"junk", b"[]"), start=1):
            yield audit_pb2.ListEntriesResponse(entry=entry, kind="debit", actor="ann", body=body, hash=b"\x0f")

    def Verify(self, request: audit_pb2.VerifyRequest, context: grpc.ServicerContext) -> audit_pb2.VerifyResponse:
        """One problem."""
        return audit_pb2.VerifyResponse(ok=False, problems=["entry 2: chain"], entries=2, head=b"\xff")


@pytest.fixture
def office() -> Iterator[tuple[Office, bursar.Client]]:
    """The services and a client of theirs."""
    servicer = Office()
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
    audit_pb2_grpc.add_AuditServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with bursar.Client(grpc.insecure_channel(f"127.0.0.1:{port}")) as client:
        yield servicer, client
    server.stop(grace=None).wait()


def test_tokens_are_issued_and_revoked(office: tuple[Office, bursar.Client]) -> None:
    """Name, role and reason are sent; the secret comes back once, the entry of a revocation too."""
    servicer, client = office
    assert client.admin.issue_token("ann", "analyst", reason="new") == "t0ken"
    assert servicer.last == admin_pb2.IssueTokenRequest(name="ann", role=admin_pb2.ROLE_ANALYST, reason="new")
    assert client.admin.revoke_token("ann") == 5
    assert client.admin.tokens() == [bursar.TokenSummary("ann", "analyst", revoked=True)]


def test_an_unknown_role_is_refused(office: tuple[Office, bursar.Client]) -> None:
    """Before anything is sent."""
    servicer, client = office
    with pytest.raises(bursar.InvalidRequestError, match="'admin', 'analyst', 'auditor'"):
        client.admin.issue_token("ann", "king")  # type: ignore[arg-type]
    assert servicer.last is None


def test_the_ledger_can_be_read(office: tuple[Office, bursar.Client]) -> None:
    """Entries come in order with their bytes; a body that is no JSON object is the server's error."""
    servicer, client = office
    first, second, third = client.audit.entries(first=1, limit=10)
    assert servicer.last == audit_pb2.ListEntriesRequest(first=1, limit=10)
    assert (first.entry, first.kind, first.actor, first.hash, first.fields) == (1, "debit", "ann", "0f", {"a": 1})
    for entry, message in ((second, "entry 2 is not JSON"), (third, "entry 3 is not a JSON object")):
        with pytest.raises(bursar.ServerError, match=message):
            _ = entry.fields


def test_the_servers_own_verification_is_a_value(office: tuple[Office, bursar.Client]) -> None:
    """Findings are values, not exceptions: the auditor wants all of them."""
    _, client = office
    assert client.audit.verify() == bursar.Verification(False, ("entry 2: chain",), 2, "ff")
