"""Head of a server's ledger at one time: what a client remembers, and what an error about its history names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class HistoryHead:
    """Size and hash of a ledger at one time.

    Attributes:
        ledger_id: random, made with the ledger.
        size: number of entries.
        head: hash of the newest of them (SHA-256), as hexadecimal digits.
        seen: when, by this machine's clock (RFC 3339); informational.
    """

    ledger_id: str
    size: int
    head: str
    seen: str

    @classmethod
    def now(cls, ledger_id: str, size: int, head: bytes) -> HistoryHead:
        """Return a head that is seen at this moment."""
        return cls(ledger_id, size, head.hex(), datetime.now(UTC).isoformat(timespec="seconds"))

    def contradicts(self, other: HistoryHead) -> bool:
        """Return whether an honest server cannot have shown both, as far as the two alone can tell."""
        return self.ledger_id != other.ledger_id or (self.size == other.size and self.head != other.head)

    def __str__(self) -> str:
        return f"ledger {self.ledger_id[:8]} with {self.size} entries and head {self.head[:16]}"
