"""Admission takes as long in a long ledger as in a short one: no query of a decision walks the entries."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest

from bursar_ledger import (
    Adjacency,
    ApproximateEvent,
    Budget,
    DebitRequest,
    GaussianEvent,
    Ledger,
    Registration,
    RestRequest,
    Role,
)

Ask = Callable[..., DebitRequest]
Act = Callable[[], Any]
WHO: dict[str, Any] = {"actor": "owner", "reason": "r"}


def decisions(ledger: Ledger, ask: Ask) -> dict[str, Act]:
    """Every decision and every look-up that one request or one act makes."""
    rest = ask("rest", principal="eve", scale=500)
    return {
        "debit": lambda: ledger.debit(ask("new", scale=500)),
        "debit that may fail": lambda: ledger.debit(
            ask("f", events=(ApproximateEvent(GaussianEvent(1, Fraction(500)), Fraction(1, 10**12)),))
        ),
        "first debit of an analyst": lambda: ledger.debit(ask("new", scale=500, principal="new")),
        "debit of a joined name": lambda: ledger.debit(ask("again", scale=500, dataset="again")),
        "repetition": lambda: ledger.debit(ask("new", scale=500)),
        "rest": lambda: ledger.debit(
            RestRequest("people", "eve", "rest", rest.request_hash, rest.method, lambda _: rest)
        ),
        "release": lambda: ledger.store_release(ledger.debit(ask("new", scale=500)).entry, b"model"),
        "find debit": lambda: ledger.find_debit("ann", "new", ask("new", scale=500).request_hash),
        "limits": lambda: ledger.limits("people", "ann"),
        "dataset": lambda: ledger.dataset("again"),
        "registration": lambda: ledger.register_dataset(
            Registration("cars", Adjacency.REPLACE_ONE, Budget(1, 1e-6), b"cars"), **WHO
        ),
        "joining": lambda: ledger.register_dataset(
            Registration("third", Adjacency.REPLACE_ONE, None, b"t" * 32, same_people_as="people"), **WHO
        ),
        "snapshot": lambda: ledger.new_snapshot("people", b"newer", {}, **WHO),
        "allowance": lambda: ledger.set_allowance("people", "ann", Fraction(1, 2), **WHO),
        "call limit": lambda: ledger.set_call_limit("people", Fraction(1, 2), **WHO),
        "checkpoint key": lambda: ledger.set_checkpoint_key("key", **WHO),
        "credential issued": lambda: ledger.issue_credential("bob", Role.ANALYST, b"b" * 32, **WHO),
        "credential": lambda: ledger.credential(b"b" * 32),
        "credential revoked": lambda: ledger.revoke_credential("bob", **WHO),
        "retirement": lambda: ledger.retire_dataset("again", **WHO),
        "destruction": lambda: ledger.record_destruction("again", "rows", **WHO),
        "contents": ledger.contents,
        "head": ledger.newest,
    }


def prepare(ledger: Ledger, ask: Ask) -> None:
    """One of everything that a decision looks for."""
    ledger.register_dataset(
        Registration("again", Adjacency.REPLACE_ONE, None, b"t" * 32, same_people_as="people"), **WHO
    )
    ledger.debit(ask("first", scale=500))
    ledger.set_budget("people", Budget(4, 1e-6, Fraction(1, 10)), **WHO)
    ledger.set_allowance("people", "ann", Fraction(1, 2), **WHO)
    ledger.set_allowance("people", "*", Fraction(1, 2), **WHO)
    ledger.set_call_limit("people", Fraction(1, 2), **WHO)
    ledger.issue_credential("ann", Role.ANALYST, bytes(32), **WHO)


@pytest.fixture
def prepared(ledger: Ledger, ask: Ask) -> Ledger:
    """A ledger with one of everything."""
    prepare(ledger, ask)
    return ledger


@contextmanager
def statements(ledger: Ledger) -> Iterator[list[str]]:
    """The texts that SQLite executes, with their parameters filled in; those of triggers come as comments."""
    seen: list[str] = []
    ledger._store.db.set_trace_callback(seen.append)
    try:
        yield seen
    finally:
        ledger._store.db.set_trace_callback(None)


def walks(db: sqlite3.Connection, sql: str, parameters: dict[str, None] | None = None) -> list[str]:
    """Steps of a query's plan that walk a whole table or index, or sort."""
    plan = [str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", parameters or {})]
    if "number DESC LIMIT 1), printf" in sql or sql.endswith("FROM entries ORDER BY number DESC LIMIT 1"):
        plan.remove("SCAN entries")  # from its end, for one step
    if "max(number), 0) + 1 FROM entries)" in sql:
        plan.remove("SEARCH entries")  # likewise
    harmless = ("SCAN CONSTANT ROW", "SCAN spent VIRTUAL TABLE")  # json_each of one body
    bad = [step for step in plan if step == "SEARCH entries" or step.startswith(("SCAN", "USE TEMP B-TREE"))]
    return [step for step in bad if not step.startswith(harmless)]


def test_no_query_of_a_decision_walks_the_entries(prepared: Ledger, ask: Ask) -> None:
    """Every statement that a decision sends has a plan of searches by index or number."""
    db = prepared._store.db
    texts: set[str] = set()
    for act in decisions(prepared, ask).values():
        with statements(prepared) as seen:
            act()
        texts.update(text for text in seen if "SELECT" in text and not text.startswith("--"))
    assert len(texts) > 20
    assert {text: bad for text in texts if (bad := walks(db, text))} == {}


def test_a_query_that_walks_is_noticed(prepared: Ledger) -> None:
    """The check above would find one."""
    db = prepared._store.db
    for sql in (
        "SELECT 1 FROM entries WHERE actor = 'ann'",
        "SELECT max(cost_units) FROM entries",
    ):
        assert walks(db, sql)


def test_no_rule_of_the_file_walks_the_entries(prepared: Ledger) -> None:
    """The triggers of an insert, each query with the new row's values as parameters."""
    db = prepared._store.db
    triggers = db.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%BEFORE INSERT%'"
    ).fetchall()
    assert len(triggers) >= 8
    found = {}
    for name, sql in triggers:
        body = sql[sql.index("BEGIN") + len("BEGIN") : sql.rindex("END")]
        for query in re.sub(r"--[^\n]*", "", body).split(";"):
            if not query.strip():
                continue
            text = re.sub(r"RAISE\(ABORT, '(?:[^']|'')*'\)", "1", query)
            parameters = sorted(set(re.findall(r"NEW\.(\w+)", text)))
            text = re.sub(r"NEW\.(\w+)", r":\1", text)
            if bad := walks(db, text, dict.fromkeys(parameters)):
                found[name, text] = bad
    assert found == {}


def steps(ledger: Ledger, act: Act) -> int:
    """Steps of SQLite's machine, in tens, that an act takes; deterministic, unlike time."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    act()  # what is compiled and cached once is not counted
    ledger._store.db.set_progress_handler(count, 10)
    try:
        act()
    finally:
        ledger._store.db.set_progress_handler(None, 10)
    return taken


@pytest.mark.slow
def test_a_decision_takes_the_same_steps_in_a_longer_ledger(prepared: Ledger, ask: Ask) -> None:
    """Ten times the entries of every kind: a debit, its triggers included, takes hardly more steps, nor a look-up."""
    fresh = iter(range(10**6))
    acts: dict[str, Act] = {
        "debit": lambda: prepared.debit(ask(f"n{next(fresh)}", scale=9000)),
        "release": lambda: prepared.store_release(prepared.debit(ask(f"n{next(fresh)}", scale=9000)).entry, b"x"),
        "repetition": lambda: prepared.debit(ask("n0", scale=9000)),
        "limits": lambda: prepared.limits("people", "ann"),
        "dataset": lambda: prepared.dataset("people"),
        "allowance": lambda: prepared.set_allowance("people", "ann", Fraction(1, 2), **WHO),
        "snapshot": lambda: prepared.new_snapshot("people", b"newest", {}, **WHO),
        "credential": lambda: prepared.credential(bytes(32)),
        "somebody's page": lambda: prepared.releases(principal="rare", limit=9),
        "somebody's page of a dataset": lambda: prepared.releases(principal="rare", dataset="people", limit=9),
    }
    prepared._store.db.execute("PRAGMA synchronous=OFF")

    def grow(rounds: int) -> None:
        for i in range(rounds):
            acts["release"]()
            prepared.debit(ask(f"m{next(fresh)}", scale=9000, principal=f"p{i % 9}"))
            prepared.new_snapshot("people", b"other", {"columns": ["age"]}, **WHO)
            prepared.set_call_limit("people", Fraction(1, 2), **WHO)
            prepared.issue_credential("bob", Role.ANALYST, next(fresh).to_bytes(32, "big"), **WHO)
            prepared.revoke_credential("bob", **WHO)
        debit = prepared.debit(ask(f"n{next(fresh)}", scale=9000, principal="rare"))
        prepared.store_release(debit.entry, b"x")

    prepared.debit(ask("first", scale=9000, principal="rare"))
    acts["debit"]()
    grow(25)
    short = {name: steps(prepared, act) for name, act in acts.items()}
    length = prepared.newest()[0]
    grow(250)
    assert prepared.newest()[0] > 8 * length
    longer = {name: steps(prepared, act) for name, act in acts.items()}
    assert {name: taken for name, taken in longer.items() if taken > 1.1 * short[name] + 10} == {}, short
