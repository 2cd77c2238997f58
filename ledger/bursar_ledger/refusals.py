"""Counts of refused requests, in a file beside the ledger.

A refusal changes nothing, so the ledger has no entry of it. Auditors still want to know which analysts asked for
more than they had. These counts are the server's word: nothing chains or signs them, and the file may be deleted at any
time. There is one row for each analyst, dataset, method and reason, so a million refusals of one kind fill no disk.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

FILE = "refusals.sqlite"
"""Name of the file, in the folder of the ledger."""

_TABLE = """
CREATE TABLE IF NOT EXISTS refusals (
    analyst TEXT NOT NULL, dataset TEXT NOT NULL, method TEXT NOT NULL, refused_by TEXT NOT NULL,
    times INTEGER NOT NULL, first TEXT NOT NULL, last TEXT NOT NULL, rho_asked REAL, rho_left REAL,
    PRIMARY KEY (analyst, dataset, method, refused_by)
) WITHOUT ROWID
"""
_NOTE = """
INSERT INTO refusals VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    times = times + 1, last = excluded.last, rho_asked = excluded.rho_asked, rho_left = excluded.rho_left
"""
_MOST = 10_000
"""Rows of the file; a refusal of a new kind beyond them is not counted."""


@dataclass(frozen=True)
class Refusal:
    """Count of one analyst's refusals of one kind.

    Attributes:
        analyst: analyst who asked.
        dataset: dataset of the request.
        method: RPC of the request.
        refused_by: the limit or rule: "total", "allowance", "maximum per call", "retired", "role".
        times: number of refusals.
        first: time of the first one, RFC 3339, by the server's clock.
        last: time of the last one.
        rho_asked: price of the last request; None if it was not priced.
        rho_left: rho that was left of the limit that refused; None if it was not priced.
    """

    analyst: str
    dataset: str
    method: str
    refused_by: str
    times: int
    first: str
    last: str
    rho_asked: float | None
    rho_left: float | None


class Refusals:
    """Counter of refusals in a file; safe to use from several threads.

    Raises:
        sqlite3.Error, OSError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1)
        self._db.execute("PRAGMA synchronous=OFF")  # a refusal does not wait for the disk
        self._db.execute(_TABLE)

    def note(
        self,
        *,
        analyst: str,
        dataset: str,
        method: str,
        refused_by: str,
        rho_asked: float | None = None,
        rho_left: float | None = None,
    ) -> None:
        """Count one more. Raises sqlite3.Error if it cannot."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self._lock:
            known = self._db.execute(
                "SELECT 1 FROM refusals WHERE (analyst, dataset, method, refused_by) = (?, ?, ?, ?)",
                [analyst, dataset, method, refused_by],
            ).fetchone()
            if known or self._db.execute("SELECT count(*) < ? FROM refusals", [_MOST]).fetchone()[0]:
                self._db.execute(_NOTE, [analyst, dataset, method, refused_by, now, now, rho_asked, rho_left])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def read_refusals(path: Path) -> tuple[Refusal, ...]:
    """Return what a file counts, those refused last first; changes nothing. Raises sqlite3.Error if it is none."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        found = db.execute(
            "SELECT analyst, dataset, method, refused_by, times, first, last, rho_asked, rho_left FROM refusals"
            " ORDER BY last DESC, analyst, dataset, method, refused_by"
        )
        return tuple(Refusal(*row) for row in found)
