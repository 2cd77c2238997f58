"""The file defends itself: every rule of the schema is tripped by plain SQL."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import Adjacency, Budget, DebitRequest, Ledger, Registration, Role
from bursar_ledger._entries import chain

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
    """Debits without a dataset, releases without a debit, and a second release are refused."""
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
        with pytest.raises(sqlite3.IntegrityError, match="issued once"):
            insert("credential_issued", {"credential": "eve", "token_hash": bytes(32).hex()}, verb=verb)


def test_bodies_are_text_and_hashes_have_32_bytes(db: sqlite3.Connection) -> None:
    """Types are checked, not converted."""
    for body, digest in ((b"{}", bytes(32)), ("no json", bytes(32)), ("{}", bytes(31)), ("{}", "x" * 32)):
        with pytest.raises(sqlite3.Error):
            db.execute("INSERT INTO entries (number, body, hash) VALUES (7, ?, ?)", (body, digest))


@pytest.fixture
def wide(ledger: Ledger, ask: Callable[..., DebitRequest], db: sqlite3.Connection) -> sqlite3.Connection:
    """Make it with the account "cars", the names "again" and "old" (retired) of "people", limits and a new total."""
    who: dict[str, Any] = {"actor": "owner", "reason": ""}
    ledger.register_dataset(Registration("cars", Adjacency.REPLACE_ONE, Budget(1, 1e-9), b"c"), **who)
    for name in ("again", "old"):
        ledger.register_dataset(
            Registration(name, Adjacency.REPLACE_ONE, None, b"t" * 32, same_people_as="people"), **who
        )
    ledger.retire_dataset("old", **who)
    ledger.set_budget("people", Budget(5, 1e-6, Fraction(1, 10)), **who)
    ledger.set_allowance("people", "*", Fraction(1, 2), **who)
    ledger.set_allowance("people", "eve", Fraction(1, 3), **who)
    ledger.set_call_limit("people", Fraction(1, 4), **who)
    ledger.debit(ask("c", scale=9))
    return db


def honest(db: sqlite3.Connection, **changes: object) -> dict[str, Any]:
    """Details of a debit of 10 units by eve, who spent nothing yet, with changes."""
    newest = db.execute("SELECT body FROM entries WHERE kind = 'debit' ORDER BY number DESC LIMIT 1").fetchone()[0]
    details: dict[str, Any] = json.loads(newest)["details"]
    caps = details["cap_cost_units"], details["cap_delta_units"]
    return {
        **details,
        "request_id": "new",
        "cost_units": 10,
        "delta_units": 0,
        "spent_cost_units": details["spent_cost_units"] + 10,
        "analyst_spent_cost_units": 10,
        "analyst_spent_delta_units": 0,
        "allowance_cost_units": caps[0] // 3,
        "allowance_delta_units": caps[1] // 3,
        **changes,
    }


def again(db: sqlite3.Connection) -> dict[str, Any]:
    """The newest request of ann, once more, with sums that agree."""
    newest = db.execute("SELECT body FROM entries WHERE kind = 'debit' ORDER BY number DESC LIMIT 1").fetchone()[0]
    details: dict[str, Any] = json.loads(newest)["details"]
    for name in ("spent_cost_units", "analyst_spent_cost_units"):
        details[name] += details["cost_units"]
    return details


def total(db: sqlite3.Connection, **changes: object) -> dict[str, Any]:
    """Details of the total in force, with what was spent by now, with changes."""
    body = db.execute("SELECT body FROM entries WHERE kind = 'budget' ORDER BY number DESC LIMIT 1").fetchone()[0]
    spent = db.execute("SELECT max(spent_cost_units) FROM entries WHERE kind = 'debit'").fetchone()[0]
    return {**json.loads(body)["details"], "spent_cost_units": spent, **changes}


def registered(db: sqlite3.Connection, **changes: object) -> dict[str, Any]:
    """Details of the first registration, of other rows, with changes; None takes a field away."""
    body = db.execute("SELECT body FROM entries WHERE number = 2").fetchone()[0]
    details = {**json.loads(body)["details"], "content_tag": "ff", **changes}
    return {name: value for name, value in details.items() if value is not None}


def over(db: sqlite3.Connection, limit: str, unit: str) -> dict[str, Any]:
    """A debit one unit above an allowance or a maximum that the body itself states."""
    cost, delta = (11, 1) if unit == "cost" else (10, 2)
    before = honest(db)
    return {
        **before,
        "cost_units": cost,
        "delta_units": delta,
        "spent_cost_units": before["spent_cost_units"] - 10 + cost,
        "spent_delta_units": before["spent_delta_units"] + delta,
        "analyst_spent_cost_units": cost,
        "analyst_spent_delta_units": delta,
        f"{limit}_cost_units": 10,
        f"{limit}_delta_units": 1,
    }


Trip = Callable[[sqlite3.Connection, Insert], object]
STATE = "only registrations, totals and debits have caps and sums"
CAP = "a debit must stay within the cap of its dataset, at the order in force"
LIMIT = "a debit must stay within its analyst's allowance and the most that one call may cost"
ANALYST = "a debit must add its cost to what its analyst spent"
IN_FORCE = "a debit must hold the limits in force"
KEEPS = "a new total keeps what was spent"
ONCE = "a dataset is retired once, and for good"
DESTROYED = "the rows are destroyed, and then the key, each once"
ACCOUNT = "an act on a dataset must name its account"
BEGINS = "an account begins with a registration of its name and a total"
ADDS = "a debit must add its cost to what was spent"
NAMES = "a debit must name a dataset and its account"
UNIT = "a debit must cost at least one unit"

TRIPS: list[tuple[str, Trip]] = [
    ("an entry must have the next number", lambda db, insert: insert("note", {}, number=99)),
    ("an entry must name the hash of the newest entry", lambda db, insert: insert("note", {}, previous=bytes(32))),
    ("a ledger begins once", lambda db, insert: insert("genesis", {})),
    ("a dataset is registered once", lambda db, insert: insert("registration", registered(db))),
    ("a request is debited once", lambda db, insert: insert("debit", again(db), actor="ann")),
    ("a debit has one release", lambda db, insert: insert("release", {"debit": 3})),
    ("a token is issued once", lambda db, insert: insert("credential_issued", {"token_hash": bytes(32).hex()})),
    (STATE, lambda db, insert: insert("credential_issued", {"cap_cost_units": 9, "token_hash": "1"})),
    (STATE, lambda db, insert: insert("allowance", {"account": "people", "spent_cost_units": 0})),
    (STATE, lambda db, insert: insert("upgrade", {"spent_delta_units": 0})),
    (
        "an account begins with nothing spent",
        lambda db, insert: insert("registration", registered(db, account="x", spent_cost_units=-5), dataset="x"),
    ),
    (BEGINS, lambda db, insert: insert("registration", registered(db, account="people"), dataset="x")),
    (BEGINS, lambda db, insert: insert("registration", registered(db, account="x", cap_cost_units=None), dataset="x")),
    (
        "a dataset joins an account that there is",
        lambda db, insert: insert("registration", registered(db, account="no", cap_cost_units=None), dataset="x"),
    ),
    (
        "a dataset joins an account that there is",
        lambda db, insert: insert("registration", registered(db, account="again", cap_cost_units=None), dataset="x"),
    ),
    (ACCOUNT, lambda db, insert: insert("allowance", {"account": "cars", "analyst": "eve", "share": "1/1"})),
    (ACCOUNT, lambda db, insert: insert("call_limit", {"account": "people", "share": "1/1"}, dataset="cars")),
    (ACCOUNT, lambda db, insert: insert("budget", total(db, account="cars"))),
    (ACCOUNT, lambda db, insert: insert("retirement", {"account": "nobody"}, dataset="nobody")),
    (ACCOUNT, lambda db, insert: insert("snapshot", {"account": "cars", "content_tag": "ee"}, dataset="again")),
    (ONCE, lambda db, insert: insert("retirement", {"account": "people"}, dataset="old")),
    (ONCE, lambda db, insert: insert("snapshot", {"account": "people", "content_tag": "ee"}, dataset="old")),
    (
        "a destruction must name its dataset's account",
        lambda db, insert: insert("destruction", {"account": "cars", "destroyed": "rows"}, dataset="old"),
    ),
    (
        "nothing is destroyed of a dataset that is not retired",
        lambda db, insert: insert("destruction", {"account": "people", "destroyed": "rows"}, dataset="again"),
    ),
    *[
        (DESTROYED, lambda db, insert, what=what: insert("destruction", what, dataset="old"))
        for what in (
            {"account": "people"},
            {"account": "people", "destroyed": "all"},
            {"account": "people", "destroyed": "key"},
        )
    ],
    (KEEPS, lambda db, insert: insert("budget", total(db, spent_cost_units=0))),
    (KEEPS, lambda db, insert: insert("budget", total(db, spent_cost_units=-1))),
    (KEEPS, lambda db, insert: insert("budget", total(db, spent_cost_units=None))),
    (KEEPS, lambda db, insert: insert("budget", total(db, spent_delta_units=1))),
    (KEEPS, lambda db, insert: insert("budget", total(db, spent_delta_units=None))),
    (KEEPS, lambda db, insert: insert("budget", total(db, cap_cost_units=0))),
    (KEEPS, lambda db, insert: insert("budget", total(db, cap_cost_units=None))),
    (KEEPS, lambda db, insert: insert("budget", total(db, cap_delta_units=-1))),
    (UNIT, lambda db, insert: insert("debit", honest(db, cost_units=0))),
    (NAMES, lambda db, insert: insert("debit", honest(db), dataset="nobody")),
    (NAMES, lambda db, insert: insert("debit", honest(db, account="cars"))),
    (NAMES, lambda db, insert: insert("debit", honest(db), dataset="cars")),
    ("a retired dataset has no new debits", lambda db, insert: insert("debit", honest(db), dataset="old")),
    (ADDS, lambda db, insert: insert("debit", honest(db, spent_cost_units=10))),
    (ADDS, lambda db, insert: insert("debit", honest(db, spent_cost_units=None))),
    (CAP, lambda db, insert: insert("debit", honest(db, cap_cost_units=2**61))),
    (CAP, lambda db, insert: insert("debit", honest(db, cap_delta_units=2**61))),
    (CAP, lambda db, insert: insert("debit", honest(db, cap_delta_units=None))),
    (CAP, lambda db, insert: insert("debit", honest(db, order="9/1"))),
    (CAP, lambda db, insert: insert("debit", honest(db, order=registered(db)["order"]))),
    (ANALYST, lambda db, insert: insert("debit", honest(db, analyst_spent_cost_units=9))),
    (ANALYST, lambda db, insert: insert("debit", honest(db, analyst_spent_cost_units=None))),
    (ANALYST, lambda db, insert: insert("debit", honest(db, analyst_spent_delta_units=-1))),
    (ANALYST, lambda db, insert: insert("debit", honest(db, analyst_spent_delta_units=None))),
    (ANALYST, lambda db, insert: insert("debit", honest(db), actor="ann")),
    *[
        (LIMIT, lambda db, insert, limit=limit, unit=unit: insert("debit", over(db, limit, unit)))
        for limit in ("allowance", "call")
        for unit in ("cost", "delta")
    ],
    *[
        (IN_FORCE, lambda db, insert, name=name: insert("debit", honest(db, **dict.fromkeys(name.split()))))
        for name in (
            "allowance_cost_units allowance_delta_units",
            "call_cost_units call_delta_units",
            "allowance_cost_units",
            "allowance_delta_units",
            "call_cost_units",
            "call_delta_units",
        )
    ],
    ("a release must belong to a debit", lambda db, insert: insert("release", {"debit": 5})),
    ("released bytes need their entry first", lambda db, insert: db.execute("INSERT INTO releases VALUES (6, x'')")),
    ("released bytes are stored once", lambda db, insert: db.execute("INSERT INTO releases VALUES (3, x'')")),
    ("entries never change", lambda db, insert: db.execute("UPDATE entries SET hash = zeroblob(32)")),
    ("entries never vanish", lambda db, insert: db.execute("DELETE FROM entries WHERE number = 9")),
    ("released bytes never change", lambda db, insert: db.execute("UPDATE releases SET content = x''")),
    ("released bytes never vanish", lambda db, insert: db.execute("DELETE FROM releases")),
    ("the record of migrations never changes", lambda db, insert: db.execute("UPDATE _sqlite_migrations SET id = 7")),
    ("the record of migrations never vanishes", lambda db, insert: db.execute("DELETE FROM _sqlite_migrations")),
]


def test_the_rules_allow_honest_acts(wide: sqlite3.Connection, insert: Insert) -> None:
    """The refusals below change one thing of these."""
    insert("debit", honest(wide))
    insert("budget", total(wide))
    insert("registration", registered(wide, account="x"), dataset="x")
    insert("registration", registered(wide, account="people", cap_cost_units=None, content_tag="ee"), dataset="y")
    insert("snapshot", {"account": "people", "content_tag": "ee"}, dataset="again")
    insert("retirement", {"account": "people"}, dataset="again")
    insert("allowance", {"account": "people", "analyst": "eve", "share": None})
    insert("call_limit", {"account": "cars", "share": "1/2"}, dataset="cars")
    for what in ("rows", "key"):
        gone = {"account": "people", "destroyed": what}
        insert("destruction", gone, dataset="old")
        with pytest.raises(sqlite3.IntegrityError, match=DESTROYED):
            insert("destruction", gone, dataset="old")


def test_every_rule_refuses_what_it_is_there_for(wide: sqlite3.Connection, insert: Insert) -> None:
    """Exactly that rule, and nothing is written: so one ledger serves for all of them."""
    before = list(wide.iterdump())
    for i, (rule, trip) in enumerate(TRIPS):
        with pytest.raises(sqlite3.IntegrityError) as caught:
            trip(wide, insert)
        assert str(caught.value) == rule, f"number {i}"
    assert list(wide.iterdump()) == before


def test_every_rule_is_tripped(wide: sqlite3.Connection) -> None:
    """A rule without a test is a rule that nobody has seen work."""
    triggers = " ".join(row[0] for row in wide.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'"))
    rules = {rule.replace("''", "'") for rule in re.findall(r"RAISE\(ABORT, '((?:[^']|'')*)'\)", triggers)}
    assert rules == {rule for rule, _ in TRIPS}


def test_what_an_analyst_spent_starts_from_the_newest_total(wide: sqlite3.Connection, insert: Insert) -> None:
    """A new total states every analyst's sum; his next debit adds to that one, in both amounts."""
    analysts = {"ann": [500, 3], "zoe": [7, 0]}
    insert("budget", total(wide, analysts=analysts))
    spent = wide.execute("SELECT max(number), spent_cost_units FROM entries WHERE kind = 'budget'").fetchone()[1]
    half = {f"allowance_{unit}_units": honest(wide)[f"cap_{unit}_units"] // 2 for unit in ("cost", "delta")}
    details = honest(wide, spent_cost_units=spent + 10, **half)
    for cost, delta in ((10, 0), (510, 0), (10, 3), (511, 3), (510, 4)):
        with pytest.raises(sqlite3.IntegrityError, match=ANALYST):
            insert(
                "debit",
                {**details, "analyst_spent_cost_units": cost, "analyst_spent_delta_units": delta},
                actor="ann",
            )
    insert("debit", {**details, "analyst_spent_cost_units": 510, "analyst_spent_delta_units": 3}, actor="ann")
