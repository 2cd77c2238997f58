"""The ledger as the auditor reads it. Entries hold prices and parameters, never data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bursar._connection import Connection
from bursar._errors import ServerError
from bursar._listing import Listing
from bursar_proto.v1 import audit_pb2


@dataclass(frozen=True)
class LedgerEntry:
    """One entry of the ledger.

    Attributes:
        entry: its position.
        kind: what it is about.
        dataset: the dataset's name; empty if it is about none.
        actor: who caused it.
        body: the canonical bytes that the chain hashes (JSON).
        hash: of this entry (SHA-256), as hexadecimal digits.
    """

    entry: int
    kind: str
    dataset: str
    actor: str
    body: bytes
    hash: str

    @property
    def fields(self) -> dict[str, Any]:
        """The body, read.

        Raises:
            ServerError: the body is not a JSON object.
        """
        try:
            fields = json.loads(self.body)
        except ValueError as error:
            raise ServerError(f"the body of entry {self.entry} is not JSON") from error
        if not isinstance(fields, dict):
            raise ServerError(f"the body of entry {self.entry} is not a JSON object")
        return fields


class Entries(Listing[LedgerEntry]):
    """Entries of the ledger, which show themselves as a table."""

    _names = ("entry", "entries")
    _headers = ("entry", "kind", "dataset", "actor", "hash")

    def _row(self, one: LedgerEntry) -> list[str]:
        return [str(one.entry), one.kind, one.dataset, one.actor, one.hash[:16]]


@dataclass(frozen=True)
class Verification:
    """Result of the server's verification of its own ledger. `bursar-audit` verifies without trusting the server.

    Attributes:
        ok: nothing is wrong.
        problems: one line a finding.
        entries: how many entries there are.
        head: hash of the newest (SHA-256), as hexadecimal digits; compare it with your receipts.
    """

    ok: bool
    problems: tuple[str, ...]
    entries: int
    head: str


@dataclass(frozen=True)
class Audit:
    """The auditor's calls, as `client.audit`."""

    _connection: Connection

    def entries(self, first: int = 0, limit: int | None = None) -> list[LedgerEntry]:
        """List entries in order.

        Args:
            first: number of the first to get.
            limit: how many at most; None for all.

        Raises:
            Error: the call failed.
        """
        request = audit_pb2.ListEntriesRequest(first=first, limit=limit or 0)
        messages = self._connection.ask_all(self._connection.audits.ListEntries, request)
        return Entries(LedgerEntry(m.entry, m.kind, m.dataset, m.actor, m.body, m.hash.hex()) for m in messages)

    def verify(self) -> Verification:
        """Ask the server to check chain, sums, caps and triggers, and to price every debit again from its events.

        Raises:
            Error: the call failed.
        """
        answer = self._connection.ask(self._connection.audits.Verify, audit_pb2.VerifyRequest())
        return Verification(answer.ok, tuple(answer.problems), answer.entries, answer.head.hex())
