"""The file defends itself: every rule of the schema is tripped by plain SQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import DebitRequest, Ledger, Role
from bursar_ledger._canonical import chain

Insert = Callable[..., None]


@pytest.fixture
def db(ledger: Ledger, ask: Callable[..., DebitRequest], path: Path) -> Iterator[sqlite3.Connection]:
    """A plain connection to a ledger with a debit (3), its release (4), a credential (5) and an open debit (6)."""
    ledger.store_release(ledger.debit(ask("a")).entry, b"model")
    ledger.issue_credential("ann", Role.ANALYST, bytes(32), actor="owner", reason="")
    ledger.debit(ask("b"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def insert(db: sqlite3.Connection) -> Insert:
    """Appends a forged entry, correctly chained unless told otherwise."""

    def run(kind: str, details: dict[str, Any], dataset: str = "people", verb: str = "INSERT", **changes: Any) -> None:
        newest, previous = db.execute("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        head = {"kind": kind, "dataset": dataset, "actor": changes.get("actor", "eve"), "time": "now"}
        number = changes.get("number", newest + 1)
        entry = chain(changes.get("body_number", number), changes.get("previous", previous), head, details)
        sql = f"{verb} INTO entries (number, body, hash) VALUES (?, ?, ?)"
        db.execute(sql, (number, entry.body.decode(), entry.hash))

    return run


def debit(db: sqlite3.Connection, **changes: object) -> dict[str, Any]:
    """Details of a small debit that the rules allow, with changes."""
    rows = db.execute("SELECT body FROM entries WHERE kind = 'debit' ORDER BY number").fetchall()
    details: dict[str, Any] = json.loads(rows[-1][0])["details"]
    details.update(request_id="new", cost_units=1, spent_cost_units=details["spent_cost_units"] + 1)
    details.update(changes)
    # By another analyst, who has spent nothing before.
    return {
        "analyst_spent_delta_units": details["delta_units"],
        **details,
        "analyst_spent_cost_units": details["cost_units"],
    }


def test_the_rules_allow_an_honest_entry(db: sqlite3.Connection, insert: Insert) -> None:
    """The forger's tools work, so that the refusals below mean something."""
    insert("debit", debit(db))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = body",
        "UPDATE entries SET hash = zeroblob(32) WHERE number = 3",
        "DELETE FROM entries WHERE number = 6",
        "DELETE FROM entries",
        "UPDATE releases SET content = 'x'",
        "DELETE FROM releases",
        "UPDATE _sqlite_migrations SET name = 'x'",
        "DELETE FROM _sqlite_migrations",
        "INSERT OR REPLACE INTO entries SELECT number, body, hash FROM entries WHERE number = 3",
        "INSERT OR REPLACE INTO releases VALUES (3, zeroblob(1))",
        "INSERT INTO releases VALUES (3, zeroblob(1)) ON CONFLICT (debit) DO UPDATE SET content = excluded.content",
        "INSERT INTO releases VALUES (6, zeroblob(1))",
        "INSERT INTO releases VALUES (99, zeroblob(1))",
    ],
)
def test_nothing_is_edited_or_removed(db: sqlite3.Connection, statement: str) -> None:
    """UPDATE, DELETE and every form of INSERT that would replace a row are refused."""
    before = list(db.iterdump())
    with pytest.raises(sqlite3.IntegrityError):
        db.execute(statement)
    assert list(db.iterdump()) == before


@pytest.mark.parametrize("verb", ["INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL"])
@pytest.mark.parametrize("number", [1, 3, 6, 8, 0, -1])
def test_numbers_have_no_gaps_and_no_repetitions(insert: Insert, number: int, verb: str) -> None:
    """Only the next number is taken."""
    with pytest.raises(sqlite3.IntegrityError, match="next number"):
        insert("note", {}, number=number, verb=verb)


def test_the_body_names_number_and_predecessor(insert: Insert) -> None:
    """A body with another number, or that follows another entry, is refused."""
    with pytest.raises(sqlite3.IntegrityError, match="next number"):
        insert("note", {}, body_number=99)
    with pytest.raises(sqlite3.IntegrityError, match="hash of the newest"):
        insert("note", {}, previous=bytes(32))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"spent_cost_units": 1}, "add its cost"),
        ({"spent_delta_units": 5}, "add its cost"),
        ({"cost_units": 0}, "at least one unit"),
        ({"cost_units": -5}, "at least one unit"),
        ({"cost_units": 1.5}, "at least one unit"),
        ({"cost_units": "1"}, "at least one unit"),
        ({"cost_units": None}, "at least one unit"),
        ({"delta_units": -1}, "at least one unit"),
        ({"delta_units": None}, "at least one unit"),
    ],
)
def test_debits_only_add(db: sqlite3.Connection, insert: Insert, changes: dict[str, Any], match: str) -> None:
    """A debit that lowers or keeps the sum, or repeats a request, is refused."""
    with pytest.raises(sqlite3.IntegrityError, match=match):
        insert("debit", debit(db, **changes), verb="INSERT OR REPLACE")


def test_a_request_is_debited_once(db: sqlite3.Connection, insert: Insert) -> None:
    """The same analyst's request again is refused, even with sums that agree."""
    details = debit(db)
    details["analyst_spent_cost_units"] = details["spent_cost_units"]
    with pytest.raises(sqlite3.IntegrityError, match="debited once"):
        insert("debit", {**details, "request_id": "a"}, actor="ann", verb="INSERT OR REPLACE")
    insert("debit", details, actor="ann")


@pytest.mark.parametrize("unit", ["cost", "delta"])
@pytest.mark.parametrize("over", [0, 1, 2**62, 2**70])
def test_no_debit_passes_a_cap(db: sqlite3.Connection, insert: Insert, unit: str, over: int) -> None:
    """Exactly the cap is allowed, one unit more is not, nor a number that overflows."""
    details = debit(db, cost_units=1)
    spent, cap = details[f"spent_{unit}_units"] - details[f"{unit}_units"], details[f"cap_{unit}_units"]
    details[f"{unit}_units"] = cap - spent + over
    details[f"spent_{unit}_units"] = cap + over
    details[f"analyst_spent_{unit}_units"] = details[f"{unit}_units"]
    if not over:
        insert("debit", details)
        return
    with pytest.raises(sqlite3.IntegrityError, match="within the cap"):
        insert("debit", details)


def test_a_forged_cap_in_the_debit_does_not_count(db: sqlite3.Connection, insert: Insert) -> None:
    """The cap is the registration's."""
    details = debit(db)
    more = details["cap_cost_units"] - details["spent_cost_units"] + 2
    with pytest.raises(sqlite3.IntegrityError, match="within the cap"):
        insert(
            "debit",
            {
                **details,
                "cost_units": more,
                "spent_cost_units": details["spent_cost_units"] - 1 + more,
                "analyst_spent_cost_units": more,
                "cap_cost_units": 2**62,
            },
        )


def test_debits_need_a_dataset_and_releases_a_debit(db: sqlite3.Connection, insert: Insert) -> None:
    """What belongs to nothing is refused, and so is a second release."""
    with pytest.raises(sqlite3.IntegrityError, match="name a dataset"):
        insert("debit", debit(db, spent_cost_units=1), dataset="nobody")
    with pytest.raises(sqlite3.IntegrityError, match="belong to a debit"):
        insert("release", {"debit": 2, "sha256": "", "size": 0})
    with pytest.raises(sqlite3.IntegrityError, match="belong to a debit"):
        insert("release", {"debit": 6, "sha256": "", "size": 0}, dataset="other")
    with pytest.raises(sqlite3.IntegrityError, match="one release"):
        insert("release", {"debit": 3, "sha256": "", "size": 0}, verb="INSERT OR REPLACE")


def test_what_happens_once_happens_once(db: sqlite3.Connection, insert: Insert) -> None:
    """A second genesis, registration or issue of a token is refused, REPLACE or not."""
    registered = json.loads(db.execute("SELECT body FROM entries WHERE number = 2").fetchone()[0])["details"]
    for verb in ("INSERT", "INSERT OR REPLACE"):
        with pytest.raises(sqlite3.IntegrityError, match="begins once"):
            insert("genesis", {}, verb=verb)
        with pytest.raises(sqlite3.IntegrityError, match="registered once"):
            insert("registration", {**registered, "content_tag": "00"}, verb=verb)
        with pytest.raises(sqlite3.IntegrityError, match="one account"):
            insert("registration", {**registered, "account": "again"}, dataset="again", verb=verb)
        with pytest.raises(sqlite3.IntegrityError, match="issued once"):
            insert("credential_issued", {"credential": "eve", "token_hash": bytes(32).hex()}, verb=verb)


def test_bodies_are_text_and_hashes_have_32_bytes(db: sqlite3.Connection) -> None:
    """Types are checked, not converted."""
    for body, digest in ((b"{}", bytes(32)), ("no json", bytes(32)), ("{}", bytes(31)), ("{}", "x" * 32)):
        with pytest.raises(sqlite3.Error):
            db.execute("INSERT INTO entries (number, body, hash) VALUES (7, ?, ?)", (body, digest))
