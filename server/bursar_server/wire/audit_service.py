"""AuditService: the ledger entry by entry, and its verification."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc

from bursar_ledger import Ledger, verify
from bursar_proto.v1 import audit_pb2, audit_pb2_grpc
from bursar_server.config import RequestLimits
from bursar_server.jobs.limits import check_entries


class AuditService(audit_pb2_grpc.AuditServiceServicer):
    """Service that lists entries and verifies the file, which `verify` opens separately."""

    def __init__(self, ledger: Ledger, path: Path, most: RequestLimits) -> None:
        self._most = most
        self._ledger = ledger
        self._path = path

    def ListEntries(  # noqa: N802  the contract's name
        self, request: audit_pb2.ListEntriesRequest, context: grpc.ServicerContext
    ) -> Iterator[audit_pb2.ListEntriesResponse]:
        """Yield entries in order; the chain hashes `body`."""
        # The ledger counts in SQLite's signed integers; no entry has a number beyond them.
        first = min(max(request.first, 1), 2**62)
        check_entries(self._most, request.limit, max(0, self._ledger.newest()[0] + 1 - first))
        for entry in self._ledger.entries(first=first, limit=request.limit or None):
            yield audit_pb2.ListEntriesResponse(
                entry=entry.number,
                kind=entry.kind,
                dataset=entry.dataset,
                actor=entry.actor,
                body=entry.body,
                hash=entry.hash,
            )

    def Verify(  # noqa: N802  the contract's name
        self, request: audit_pb2.VerifyRequest, context: grpc.ServicerContext
    ) -> audit_pb2.VerifyResponse:
        """Verify the ledger as the auditor's command does on the file."""
        found = verify(self._path)
        return audit_pb2.VerifyResponse(ok=found.ok, problems=found.problems, entries=found.entries, head=found.head)
