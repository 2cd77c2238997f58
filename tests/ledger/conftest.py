"""Fixtures of the ledger's tests: a small ledger, requests that cost a known share of it, and a tamperer's tools."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    Adjacency,
    Budget,
    DebitRequest,
    GaussianEvent,
    Ledger,
    LedgerError,
    Registration,
    adopt_copy,
    mark_of,
)

Rows = list[tuple[Any, ...]]
Ask = Callable[..., DebitRequest]
Contents = Callable[[Path], tuple[Rows, Rows]]
Tamper = Callable[..., None]
Forge = Callable[[Path, int, Callable[[dict[str, Any]], None]], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the ledger of the test is."""
    return tmp_path / "ledger.db"


@pytest.fixture
def registration() -> Registration:
    """A dataset with a total of (3, 1e-6), a tenth of whose delta is for releases that may fail."""
    total = Budget(3, 1e-6, Fraction(1, 10))
    return Registration("people", Adjacency.REPLACE_ONE, total, b"t" * 32, {"columns": ["age"]})


@pytest.fixture
def ledger(path: Path, registration: Registration) -> Iterator[Ledger]:
    """An open ledger with one dataset."""
    with Ledger.create(path, actor="owner", reason="test") as made:
        made.register_dataset(registration, actor="owner", reason="test")
        yield made


@pytest.fixture
def ask() -> Ask:
    """Makes requests; one of scale 4 costs rho = 1/32, about a sixth of the dataset."""

    def make(request_id: str, scale: Fraction | int = 4, **changes: Any) -> DebitRequest:
        fields: dict[str, Any] = {
            "dataset": "people",
            "principal": "ann",
            "request_id": request_id,
            "request_hash": hashlib.sha256(f"{request_id}{scale}".encode()).digest(),
            "method": "FitDPEM",
            "events": (GaussianEvent(1, Fraction(scale)),),
            "parameters": {"n_components": 3},
        }
        return DebitRequest(**{**fields, **changes})

    return make


@pytest.fixture
def contents() -> Contents:
    """Reads everything in a ledger file through a plain second connection."""

    def read(path: Path) -> tuple[Rows, Rows]:
        with closing(sqlite3.connect(path)) as db:
            entries = db.execute("SELECT number, body, hash FROM entries ORDER BY number").fetchall()
            return entries, db.execute("SELECT debit, content FROM releases ORDER BY debit").fetchall()

    return read


@pytest.fixture
def tamper() -> Tamper:
    """Runs SQL against a closed file with the triggers out of the way, and puts them back word by word."""

    def run(path: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous=OFF")
            triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for name, _ in triggers:
                db.execute(f"DROP TRIGGER {name}")
            for sql, parameters in statements:
                db.execute(sql, parameters)
            for _, sql in triggers:
                db.execute(sql)
        forge_mark(path)

    return run


def forge_mark(path: Path) -> None:
    """Makes a mark that fits a closed file: a forger of the one can forge the other."""
    mark_of(path).unlink(missing_ok=True)
    with suppress(LedgerError):
        adopt_copy(path)


@pytest.fixture
def forge(contents: Contents, tamper: Tamper) -> Forge:
    """Edits the body of one entry and hashes the chain anew from there on: a forger who knows the format."""

    def run(path: Path, number: int, edit: Callable[[dict[str, Any]], None]) -> None:
        entries, _ = contents(path)
        previous = entries[number - 2][2]
        changes: list[tuple[str, tuple[object, ...]]] = []
        for n, body, _ in entries[number - 1 :]:
            fields = json.loads(body)
            if n == number:
                edit(fields)
            fields["previous"] = previous.hex()
            text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
            previous = hashlib.sha256(text.encode()).digest()
            changes.append(("UPDATE entries SET body = ?, hash = ? WHERE number = ?", (text, previous, n)))
        tamper(path, *changes)

    return run
