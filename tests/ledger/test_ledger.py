"""Decisions of the ledger, read back from the file."""

from __future__ import annotations

import hashlib
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    COST_UNIT,
    Adjacency,
    Budget,
    BudgetExhaustedError,
    DatasetExistsError,
    DebitRequest,
    DebitStatus,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    LedgerExistsError,
    LedgerUnavailableError,
    PureEvent,
    Registration,
    ReleaseExistsError,
    RequestIdReusedError,
    Role,
    UnknownDatasetError,
    UnknownEntryError,
    price,
    verify,
)

Ask = Callable[..., DebitRequest]


def test_a_debit_is_what_the_price_said(ledger: Ledger, ask: Ask) -> None:
    """Preview and debit are one function of the request; what is left falls by it, once."""
    before = ledger.dataset("people")
    expected = price(ask("a").events, before.order)
    debit = ledger.debit(ask("a"))
    assert debit.status is DebitStatus.NEW
    assert debit.price == expected
    assert debit.remaining == ledger.dataset("people").remaining
    assert debit.remaining.cost_units == before.remaining.cost_units - expected.cost_units
    assert debit.head == ledger.head()
    assert ledger.debit_entry(debit.entry).request == ask("a")


def test_a_repetition_gets_the_first_answer_and_debits_nothing(ledger: Ledger, ask: Ask) -> None:
    """Price, remainder and head are those of the first time, whatever happened in between."""
    first = ledger.debit(ask("a"))
    ledger.debit(ask("b"))
    spent = ledger.dataset("people").spent_cost_units
    again = ledger.debit(ask("a"))
    assert again.status is DebitStatus.INTERRUPTED
    assert (again.entry, again.price, again.remaining, again.head) == (
        first.entry,
        first.price,
        first.remaining,
        first.head,
    )
    ledger.store_release(first.entry, b"model")
    assert (ledger.debit(ask("a")).status, ledger.debit(ask("a")).release) == (DebitStatus.RELEASED, b"model")
    assert ledger.dataset("people").spent_cost_units == spent


def test_a_request_id_belongs_to_one_body_and_principal(ledger: Ledger, ask: Ask, path: Path, contents: Any) -> None:
    """Another body under the same id is refused; another principal's id is another request."""
    ledger.debit(ask("a"))
    before = contents(path)
    with pytest.raises(RequestIdReusedError, match="entry 3"):
        ledger.debit(ask("a", scale=8))
    assert contents(path) == before
    assert ledger.debit(ask("a", principal="bob")).status is DebitStatus.NEW


def test_a_refusal_changes_nothing(ledger: Ledger, ask: Ask, path: Path, contents: Any) -> None:
    """The error says what was asked and what is left above the cap, and the file is the same."""
    before = contents(path)
    with pytest.raises(BudgetExhaustedError, match="ask for less") as caught:
        ledger.debit(ask("a", scale=1))
    assert caught.value.remaining == ledger.dataset("people").remaining
    assert caught.value.requested.cost_units > caught.value.remaining.cost_units
    assert contents(path) == before
    assert ledger.debit(ask("a")).status is DebitStatus.NEW


def test_exactly_the_remainder_is_admitted_and_one_unit_more_is_not(ledger: Ledger, ask: Ask) -> None:
    """The comparison is between integers."""
    left = ledger.dataset("people").remaining
    unit = 1 / (
        COST_UNIT * left.order
    )  # rho of one unit; D2^2 / (2 s^2) with s = 1/sqrt(2) needs no root: use l2_squared

    def costing(units: int) -> tuple[GaussianEvent, ...]:
        rho = units * unit
        # l2_squared / (2 scale^2) = rho with rational scale: l2_squared = 2 n d, scale = d for rho = n / d.
        return (GaussianEvent(2 * rho.numerator * rho.denominator, Fraction(rho.denominator)),)

    with pytest.raises(BudgetExhaustedError):
        ledger.debit(ask("over", events=costing(left.cost_units + 1)))
    debit = ledger.debit(ask("exact", events=costing(left.cost_units)))
    assert debit.remaining.cost_units == 0
    assert (debit.remaining.rho, debit.remaining.pure_epsilon) == (0.0, 0.0)
    with pytest.raises(BudgetExhaustedError):
        ledger.debit(ask("sliver", events=(LaplaceEvent(1, Fraction(10**30)),)))


def test_the_figures_for_people_can_be_spent(ledger: Ledger, ask: Ask) -> None:
    """A request for the pure epsilon that is left is admitted."""
    epsilon = ledger.dataset("people").remaining.pure_epsilon
    assert ledger.debit(ask("all", events=(PureEvent(Fraction(epsilon)),))).status is DebitStatus.NEW


def test_datasets_have_budgets_of_their_own(ledger: Ledger, ask: Ask) -> None:
    """A debit from one dataset leaves the other's sum alone; both are listed in order."""
    total = Budget(1, 1e-9)
    other = Registration("cars", Adjacency.ADD_REMOVE_ONE, total, b"u" * 32)
    ledger.register_dataset(other, actor="owner", reason="second")
    ledger.debit(ask("a"))
    people, cars = ledger.datasets()
    assert (people.name, cars.name, cars.spent_cost_units, cars.budget) == ("people", "cars", 0, total)
    assert people.spent_cost_units > 0
    assert ledger.debit(ask("b", dataset="cars", scale=40)).price.order == total.order


def test_a_name_is_registered_once(ledger: Ledger) -> None:
    """Registering other rows under the same name gives nobody a fresh budget."""
    again = Registration("people", Adjacency.REPLACE_ONE, Budget(3, 1e-6), b"other")
    with pytest.raises(DatasetExistsError, match="'people' is registered already"):
        ledger.register_dataset(again, actor="owner", reason="again")


def test_unknown_names_and_numbers_are_refused(ledger: Ledger, ask: Ask) -> None:
    """Names and numbers that the ledger lacks cannot be debited, released or read."""
    with pytest.raises(UnknownDatasetError, match="nobody"):
        ledger.debit(ask("a", dataset="nobody"))
    with pytest.raises(UnknownDatasetError):
        ledger.dataset("nobody")
    for number in (0, 2, 99):
        with pytest.raises(UnknownEntryError, match=f"entry {number}"):
            ledger.store_release(number, b"model")
        with pytest.raises(UnknownEntryError):
            ledger.release(number)
        with pytest.raises(UnknownEntryError):
            ledger.debit_entry(number)


def test_a_release_is_stored_once(ledger: Ledger, ask: Ask, path: Path, contents: Any) -> None:
    """The same bytes again change nothing, other bytes are refused, the digest is in the chain."""
    debit = ledger.debit(ask("a"))
    assert ledger.release(debit.entry) is None
    ledger.store_release(debit.entry, b"model")
    before = contents(path)
    ledger.store_release(debit.entry, b"model")
    with pytest.raises(ReleaseExistsError):
        ledger.store_release(debit.entry, b"another draw")
    assert contents(path) == before
    assert ledger.release(debit.entry) == b"model"
    newest = list(ledger.entries())[-1]
    assert newest.details["sha256"] == hashlib.sha256(b"model").hexdigest()


def test_past_debits_are_listed_by_principal_and_dataset(ledger: Ledger, ask: Ask) -> None:
    """Filters narrow the list; `released` tells finished from interrupted."""
    first = ledger.debit(ask("a"))
    ledger.debit(ask("b", principal="bob"))
    ledger.store_release(first.entry, b"")
    assert [(r.principal, r.request_id, r.released) for r in ledger.releases()] == [
        ("ann", "a", True),
        ("bob", "b", False),
    ]
    assert [r.entry for r in ledger.releases(principal="ann")] == [first.entry]
    assert ledger.releases(dataset="cars") == ()
    assert ledger.releases("ann", "people")[0].price == first.price
    assert ledger.releases("ann", "cars") == ()


def test_releases_come_in_pages(ledger: Ledger, ask: Ask) -> None:
    """A page begins after an entry and has so many lines; the pages together are the whole list."""
    for i in range(5):
        entry = ledger.debit(ask(f"p{i}")).entry
        if i % 2:
            ledger.store_release(entry, b"" if i == 1 else b"abc")
    pages, after = [], 0
    while page := ledger.releases(after=after, limit=2):
        pages.append(page)
        after = page[-1].entry
    assert [len(page) for page in pages] == [2, 2, 1]
    assert tuple(line for page in pages for line in page) == ledger.releases()
    assert [line.size for line in ledger.releases()] == [None, 0, None, 3, None]


def test_entries_are_read_in_pages(ledger: Ledger, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """First and limit choose a stretch of the chain; each entry names the one before it."""
    ledger.debit(ask("a"))
    entries = list(ledger.entries())
    assert [e.number for e in entries] == [1, 2, 3]
    assert [e.kind for e in entries] == ["genesis", "registration", "debit"]
    assert [e.previous for e in entries] == [bytes(32), entries[0].hash, entries[1].hash]
    assert all(hashlib.sha256(e.body).digest() == e.hash for e in entries)
    assert [e.number for e in ledger.entries(first=2, limit=1)] == [2]
    assert list(ledger.entries(first=9)) == []
    monkeypatch.setattr("bursar_ledger._store.PAGE", 1)
    assert [e.number for e in ledger.entries()] == [1, 2, 3]


def test_the_file_outlives_the_process(ledger: Ledger, ask: Ask, path: Path, registration: Registration) -> None:
    """Everything is there after closing and opening again, and verifies."""
    debit = ledger.debit(ask("a"))
    ledger.store_release(debit.entry, b"model")
    state, head = ledger.dataset("people"), ledger.head()
    ledger.close()
    with Ledger.open(path) as opened:
        assert opened.dataset("people") == state
        assert opened.dataset("people").budget == registration.budget
        assert opened.dataset("people").manifest == registration.manifest
        assert opened.head() == head
        assert opened.debit(ask("a")).release == b"model"
    assert verify(path).ok


def test_durability_settings(ledger: Ledger) -> None:
    """WAL with full synchronisation: a committed debit survives a power cut."""
    db = ledger._store.db
    assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert db.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert db.execute("PRAGMA foreign_keys").fetchone()[0] == 1


def test_one_decision_is_one_immediate_transaction(ledger: Ledger, ask: Ask) -> None:
    """SQLite sees BEGIN IMMEDIATE before the newest entry is read, and one COMMIT after everything."""
    seen: list[str] = []
    ledger._store.db.set_trace_callback(seen.append)
    ledger.debit(ask("a"))
    statements = [s.split()[0] for s in seen if not s.startswith("--")]
    assert seen[0] == "BEGIN IMMEDIATE"
    assert statements.count("BEGIN") == statements.count("COMMIT") == 1
    assert (statements[1:3], statements[-2:]) == (["SELECT", "SAVEPOINT"], ["RELEASE", "COMMIT"])
    assert "ROLLBACK" not in statements


def test_a_ledger_is_never_overwritten(path: Path) -> None:
    """Creating twice is refused; a new file is the owner's only."""
    Ledger.create(path, actor="owner").close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(LedgerExistsError, match="never overwritten"):
        Ledger.create(path, actor="owner")


def test_a_missing_file_is_not_created_on_open(path: Path) -> None:
    """Opening does not make ledgers, so a mistyped path gives no fresh budget."""
    with pytest.raises(LedgerUnavailableError, match="create one first"):
        Ledger.open(path)
    assert not path.exists()
    with pytest.raises(LedgerUnavailableError, match="cannot be created"):
        Ledger.create(path / "no" / "folder", actor="owner")


def test_a_full_disk_debits_nothing(ledger: Ledger, ask: Ask, path: Path, contents: Any) -> None:
    """The error is ours if the file cannot grow, nothing changed, and the ledger goes on when there is room."""
    db = ledger._store.db
    before = contents(path)
    limit = db.execute("PRAGMA max_page_count").fetchone()[0]
    db.execute("PRAGMA max_page_count = 1").fetchall()
    with pytest.raises(LedgerUnavailableError, match="full; see that its disk has room"):
        ledger.debit(ask("a", parameters={"long": "x" * 100_000}))
    assert contents(path) == before
    db.execute(f"PRAGMA max_page_count = {limit}").fetchall()
    assert ledger.debit(ask("a")).status is DebitStatus.NEW


def test_a_busy_file_debits_nothing(ledger: Ledger, ask: Ask, path: Path, contents: Any) -> None:
    """The error is ours while another process holds the write lock too long; afterwards all goes on."""
    before = contents(path)
    ledger._store.db.execute("PRAGMA busy_timeout = 10").fetchall()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailableError, match="locked"):
            ledger.debit(ask("a"))
        other.execute("ROLLBACK")
    assert contents(path) == before
    assert ledger.debit(ask("a")).status is DebitStatus.NEW


def test_an_absurd_price_is_refused_like_any_other(ledger: Ledger, ask: Ask) -> None:
    """Costs beyond every integer and float of the file are compared, not converted."""
    with pytest.raises(BudgetExhaustedError, match="costs epsilon infinite"):
        ledger.debit(ask("a", events=(GaussianEvent(10**400, Fraction(1)),)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", ""),
        ("request_id", "a b"),
        ("request_id", "x" * 65),
        ("request_id", "a\n"),
        ("request_hash", b"short"),
        ("request_hash", "x" * 32),
        ("events", ()),
        ("events", ("gaussian",)),
        ("principal", ""),
        ("dataset", "a\x00b"),
        ("method", "x" * 201),
        ("parameters", {"x": float("nan")}),
        ("parameters", [1]),
    ],
)
def test_malformed_requests_cannot_be_made(ask: Ask, field: str, value: object) -> None:
    """The message names the field."""
    with pytest.raises(ValueError, match=field):
        ask(**{"request_id": "a", field: value})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"dataset": ""}, "dataset"),
        ({"adjacency": "replace_one"}, "adjacency"),
        ({"content_tag": b""}, "content_tag"),
        ({"content_tag": "text"}, "content_tag"),
        ({"manifest": {1: 2}}, "manifest"),
    ],
)
def test_malformed_registrations_cannot_be_made(changes: dict[str, Any], match: str) -> None:
    """The message names the field."""
    fields: dict[str, Any] = {
        "dataset": "d",
        "adjacency": Adjacency.REPLACE_ONE,
        "budget": Budget(1, 1e-6),
        "content_tag": b"t",
    }
    with pytest.raises(ValueError, match=match):
        Registration(**{**fields, **changes})


def test_actors_have_names(ledger: Ledger, path: Path, contents: Any) -> None:
    """An act without an actor is refused and leaves no entry."""
    before = contents(path)
    with pytest.raises(ValueError, match="actor"):
        ledger.issue_credential("ann", Role.ANALYST, bytes(32), actor="", reason="")
    assert contents(path) == before
