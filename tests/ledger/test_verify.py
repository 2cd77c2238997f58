"""Verification finds every kind of tampering and names the entry."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar_ledger import (
    Adjacency,
    Budget,
    ConcentratedEvent,
    DebitRequest,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    LedgerCorruptError,
    LedgerLostError,
    LedgerUnavailableError,
    PureEvent,
    Registration,
    Role,
    SelectionEvent,
    cost_units,
    mark_of,
    verify,
)
from bursar_ledger._bounds_check import price_range
from bursar_ledger._check_entry import examine
from bursar_ledger._entries import NO_ENTRY
from bursar_ledger._events import decode_events, encode_event
from bursar_ledger._mark import Mark, create_mark

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def history(ledger: Ledger, ask: Callable[..., DebitRequest], path: Path) -> Path:
    """A closed file: debit (3), its release (4), credential issued (5) and revoked (6), debits (7, 8)."""
    ledger.store_release(ledger.debit(ask("a")).entry, b"model")
    ledger.issue_credential("ann", Role.ANALYST, bytes(32), actor="owner", reason="")
    ledger.revoke_credential("ann", actor="owner", reason="")
    events = (
        LaplaceEvent(3, Fraction(70), count=2, groups=4),
        PureEvent(Fraction(1, 9)),
        GaussianEvent(5, Fraction(40)),
        SelectionEvent(2, Fraction(50), count=3),
        ConcentratedEvent(Fraction(1, 2000), count=2),
    )
    ledger.debit(ask("b", events=events))
    ledger.debit(ask("c", scale=9))
    ledger.close()
    assert verify(path).ok
    return path


def refused(path: Path, match: str) -> None:
    """Verification reports the problem, and the ledger is not opened."""
    assert any(match in problem for problem in verify(path).problems), verify(path).problems
    with pytest.raises(LedgerCorruptError) as caught:
        Ledger.open(path)
    assert any(match in problem for problem in caught.value.problems)


def test_an_honest_ledger_verifies(history: Path) -> None:
    """Nothing is found, and the sums are those of the ledger."""
    found = verify(history)
    with Ledger.open(history) as opened:
        state = opened.dataset("people")
        assert (found.entries, found.head) == (8, opened.head())
    (totals,) = found.accounts
    assert (totals.spent_cost_units, totals.cap_cost_units) == (state.spent_cost_units, state.cap_cost_units)
    assert (totals.order, totals.debits) == (state.order, 3)


def test_verification_writes_nothing(history: Path) -> None:
    """The file has the same bytes afterwards."""
    before = history.read_bytes()
    verify(history)
    assert history.read_bytes() == before


@pytest.mark.parametrize("number", [1, 2, 3, 4, 8])
def test_an_edited_body_is_named(history: Path, tamper: Any, number: int) -> None:
    """One changed letter in a body breaks its hash."""
    tamper(
        history,
        ('UPDATE entries SET body = replace(body, \'"time":"2\', \'"time":"3\') WHERE number = ?', (number,)),
    )
    refused(history, f"entry {number}: the body does not have the recorded hash")


def test_an_edited_body_with_its_hash_is_named_by_its_successor(history: Path, forge: Any, tamper: Any) -> None:
    """Hashing the edited entry anew breaks the link to the next."""
    with closing(sqlite3.connect(history)) as db:
        later = db.execute("SELECT body, hash, number FROM entries WHERE number > 3").fetchall()
    forge(history, 3, lambda fields: fields.update(time="1999"))
    tamper(history, *[("UPDATE entries SET body = ?, hash = ? WHERE number = ?", row) for row in later])
    refused(history, "entry 4: it does not follow from the entry before it")


def set_details(**changes: object) -> Edit:
    """An edit of details."""
    return lambda fields: fields["details"].update(changes)


@pytest.mark.parametrize(
    ("number", "edit", "match"),
    [
        (1, set_details(cost_unit=1), "format or the units"),
        (1, lambda f: f.update(kind="note"), "begins with one genesis"),
        (2, set_details(epsilon=30.0), "cap_cost_units"),
        (2, set_details(cap_cost_units=2**60), "cap_cost_units"),
        (2, set_details(cap_delta_units=2**60), "cap_delta_units"),
        (2, set_details(order="50/1"), "not the best one"),
        (2, set_details(order="18/2"), "lowest terms"),
        (2, set_details(adjacency="none"), "cannot be read"),
        (2, lambda f: f.update(dataset="other"), "not registered before"),
        (2, set_details(cap_cost_units=5), "is overspent"),
        (3, set_details(spent_cost_units=0), "spent_cost_units is 0"),
        (3, set_details(cost_units=-5), "positive integer"),
        (3, set_details(cost_units=1.5), "positive integer"),
        (3, set_details(order="9/1"), "another order"),
        (3, set_details(cap_cost_units=5), "cap_cost_units is 5"),
        (4, set_details(sha256="00"), "not those whose digest"),
        (4, set_details(debit=2), "entry 2 is not a debit"),
        (4, lambda f: f.update(kind="payment"), "unknown to this version"),
        (5, set_details(credential="bob"), "not in force"),
        (6, lambda f: f.update(kind="credential_issued", details={**f["details"], "token_hash": "01"}), "in force"),
        (7, lambda f: f["details"].pop("order"), "cannot be read"),
        (7, lambda f: f.update(number=9), "says that it is entry 9"),
        (7, lambda f: f.update(details=[]), "cannot be read"),
    ],
)
def test_a_forged_entry_in_a_forged_chain_is_named(
    history: Path, forge: Any, number: int, edit: Edit, match: str
) -> None:
    """A chain hashed anew from the edit on still has to agree with itself."""
    forge(history, number, edit)
    refused(history, match)


def test_what_indexes_would_have_refused_is_found_without_them(history: Path, forge: Any) -> None:
    """A request debited twice, a dataset registered twice, a debit released twice, a token issued twice."""
    with closing(sqlite3.connect(history)) as db:
        bodies = [json.loads(row[0]) for row in db.execute("SELECT body FROM entries ORDER BY number")]
        for (name,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'one%'"
        ).fetchall():
            db.execute(f"DROP INDEX {name}")
    forge(history, 8, set_details(request_id="a"))
    refused(history, "entry 8: a request was debited twice")
    for copied, match in ((2, "registered twice"), (4, "waits for its release"), (5, "token was issued twice")):
        original = bodies[copied - 1]
        forge(history, 8, lambda f, o=original: f.update(kind=o["kind"], details=o["details"], dataset=o["dataset"]))
        refused(history, "entry 8: ")
        refused(history, match)


@pytest.mark.parametrize(
    ("number", "events"),
    [
        (3, [{"mechanism": "gaussian", "l2_squared": 2, "scale": "4/1", "count": 1}]),
        (3, [{"mechanism": "gaussian", "l2_squared": 1, "scale": "4000001/1000000", "count": 1}]),
        (7, [{"mechanism": "laplace", "l1": 1, "scale": "70/1", "count": 1, "groups": 1}]),
        (7, []),
    ],
)
def test_a_price_that_its_events_do_not_have_is_named(history: Path, forge: Any, number: int, events: object) -> None:
    """Events of another price, however close, are found by pricing them again."""
    forge(history, number, set_details(events=events))
    assert any(p.startswith(f"entry {number}: the debit is") for p in verify(history).problems)


def test_a_consistently_lowered_price_is_named(history: Path, forge: Any) -> None:
    """A forger who lowers a price and all later sums is found by pricing again."""

    def cheaper(fields: dict[str, Any]) -> None:
        for name in ("cost_units", "spent_cost_units", "analyst_spent_cost_units"):
            fields["details"][name] -= 1

    forge(history, 8, cheaper)
    Ledger.open(history).close()
    assert [p.split(":")[0] for p in verify(history).problems] == ["entry 8"]


def test_missing_and_exchanged_entries_are_named(history: Path, tamper: Any) -> None:
    """A gap and a swap break numbers and links."""
    tamper(history, ("DELETE FROM entries WHERE number = 5", ()))
    refused(history, "entry 6: expected entry 5")


def test_exchanged_entries_are_named(history: Path, tamper: Any) -> None:
    """Two rows that change places no longer say their own numbers."""
    tamper(
        history,
        *[
            (f"UPDATE entries SET number = {new} WHERE number = {old}", ())  # noqa: S608
            for old, new in ((7, 99), (8, 7), (99, 8))
        ],
    )
    refused(history, "entry 7: the body says that it is entry 8")


def test_a_release_whose_entry_was_cut_off_is_found(history: Path, tamper: Any) -> None:
    """Cutting off the end leaves the released bytes behind."""
    tamper(history, ("DELETE FROM entries WHERE number >= 4", ()))
    refused(history, "entry 3: released bytes are stored, but no release entry")


def test_released_bytes_are_compared_with_their_digest(history: Path, tamper: Any) -> None:
    """Edited and removed bytes are found."""
    tamper(history, ("UPDATE releases SET content = ?", (b"another model",)))
    refused(history, "entry 4: the bytes released under debit 3 are not those")
    tamper(history, ("DELETE FROM releases", ()))
    refused(history, "entry 4: the bytes released under debit 3 are missing")


@pytest.mark.parametrize(
    ("statement", "match"),
    [
        ("DROP TRIGGER debits_stay_within_the_cap", "trigger debits_stay_within_the_cap is missing"),
        ("DROP INDEX one_debit_a_request", "index one_debit_a_request is missing"),
        ("CREATE TRIGGER spy AFTER INSERT ON entries BEGIN SELECT 1; END", "trigger spy does not belong"),
        ("CREATE TABLE more (x)", "table more does not belong"),
    ],
)
def test_a_changed_schema_is_found(history: Path, statement: str, match: str) -> None:
    """Rules that are missing or not ours are named."""
    with closing(sqlite3.connect(history)) as db:
        db.execute(statement)
    refused(history, match)


def test_a_weakened_trigger_is_found(history: Path) -> None:
    """A trigger of the right name with another text is not ours."""
    with closing(sqlite3.connect(history)) as db:
        db.execute("DROP TRIGGER entries_never_vanish")
        db.execute("CREATE TRIGGER entries_never_vanish BEFORE DELETE ON entries BEGIN SELECT 1; END")
    refused(history, "trigger entries_never_vanish was changed")


@pytest.mark.parametrize(
    ("spell", "match"),
    [
        (lambda text: json.dumps(json.loads(text)), "the body is not in canonical form"),
        (
            lambda text: json.dumps(dict(reversed(json.loads(text).items())), separators=(",", ":")),
            "the body is not in canonical",
        ),
        (lambda text: text + " ", "the body is not in canonical form"),
        (lambda text: text.replace('"count":1', '"count":2,"count":1'), "the body is not in canonical form"),
        (lambda text: text.replace("FitDPEM", "FitDPE\\u004d"), "the body is not in canonical form"),
        (lambda text: " " + text, "the body cannot be read"),
    ],
)
def test_a_body_that_is_not_canonical_is_found(
    history: Path, tamper: Any, spell: Callable[[str], str], match: str
) -> None:
    """A second spelling of the same value, with its own hash, is not accepted."""
    with closing(sqlite3.connect(history)) as db:
        text = spell(db.execute("SELECT body FROM entries WHERE number = 8").fetchone()[0])
    digest = hashlib.sha256(text.encode()).digest()
    tamper(
        history,
        ("UPDATE entries SET body = ?, hash = ? WHERE number = 8", (text, digest)),
    )
    refused(history, f"entry 8: {match}")


@pytest.mark.parametrize(
    ("spell", "match"), [(lambda text: text + "{}", "is not in canonical"), (lambda text: text[:-1], "cannot be read")]
)
def test_text_that_is_no_json_is_found(history: Path, spell: Callable[[str], str], match: str) -> None:
    """The file's own rules keep it out, unless they were dropped."""
    with closing(sqlite3.connect(history)) as db:
        text = spell(db.execute("SELECT body FROM entries WHERE number = 8").fetchone()[0])
    (problem,) = examine(8, text, hashlib.sha256(text.encode()).digest(), reprice=True).problems
    assert match in problem


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to look like one" * 20])
def test_other_files_are_refused(path: Path, content: bytes) -> None:
    """An empty file and a foreign one are no ledgers."""
    path.write_bytes(content)
    assert not verify(path).ok
    for _ in range(2):
        with pytest.raises((LedgerCorruptError, LedgerUnavailableError, LedgerLostError)):
            Ledger.open(path)
        create_mark(path.with_name("other"), Mark(0, NO_ENTRY))
        mark_of(path.with_name("other")).replace(mark_of(path))


def test_a_missing_file_is_a_finding(path: Path) -> None:
    """Verification of nothing is not a success, and makes no file."""
    assert verify(path).problems
    assert not path.exists()


def test_a_ledger_without_entries_is_refused(path: Path, tamper: Any) -> None:
    """The schema alone is no ledger."""
    Ledger.create(path, actor="owner").close()
    tamper(path, ("DELETE FROM entries", ()))
    refused(path, "must begin with a genesis entry")


EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        GaussianEvent,
        st.integers(1, 2**60),
        st.fractions(min_value=Fraction(1, 100), max_value=10**9, max_denominator=10**6),
        st.integers(1, 100),
    ),
    st.builds(
        LaplaceEvent,
        st.integers(1, 2**30),
        st.fractions(min_value=Fraction(1, 100), max_value=10**9, max_denominator=10**6),
        st.integers(1, 100),
        st.integers(1, 100),
    ),
    st.builds(
        PureEvent,
        st.fractions(min_value=Fraction(1, 10**9), max_value=100, max_denominator=10**9),
        st.integers(1, 100),
    ),
    st.builds(
        SelectionEvent,
        st.integers(1, 2**30),
        st.fractions(min_value=Fraction(1, 100), max_value=10**9, max_denominator=10**6),
        st.integers(1, 100),
    ),
    st.builds(ConcentratedEvent, st.fractions(Fraction(1, 10**9), 100, max_denominator=10**9), st.integers(1, 100)),
)


@given(
    st.lists(EVENTS, min_size=1, max_size=3),
    st.fractions(min_value=Fraction(1001, 1000), max_value=1000, max_denominator=2**20),
)
def test_the_auditor_prices_as_the_server(events: list[Event], order: Fraction) -> None:
    """Two derivations of each price agree in the last unit."""
    low, high = price_range(*decode_events(map(encode_event, events)), order)
    assert low <= cost_units(events, order) <= high <= low + 1


@pytest.fixture
def acts(ledger: Ledger, ask: Callable[..., DebitRequest], path: Path) -> Path:
    """A closed file with one of every act.

    3 cars, 4 again (of people), 5 ann's debit, 6 bob's, 7 a new total, 8 an allowance, 9 a call limit, 10 ann's debit,
    11 a snapshot, 12 bob's debit from again, 13 again retired, 14 a spare entry, 15 ann's debit, 16 a spare entry.
    """
    who: dict[str, Any] = {"actor": "owner", "reason": ""}
    ledger.register_dataset(Registration("cars", Adjacency.REPLACE_ONE, Budget(1, 1e-9), b"c"), **who)
    ledger.register_dataset(
        Registration("again", Adjacency.REPLACE_ONE, None, b"t" * 32, same_people_as="people"), **who
    )
    ledger.debit(ask("a", scale=9))
    ledger.debit(ask("b", scale=9, principal="bob", events=(PureEvent(Fraction(1, 9)),)))
    ledger.set_budget("people", Budget(4, 1e-6), **who)
    ledger.set_allowance("people", "ann", Fraction(1, 2), **who)
    ledger.set_call_limit("people", Fraction(1, 3), **who)
    ledger.debit(ask("c", scale=9))
    ledger.new_snapshot("people", b"new", {}, **who)
    ledger.debit(ask("d", scale=9, principal="bob", dataset="again"))
    ledger.retire_dataset("again", **who)
    ledger.set_checkpoint_key("spare", **who)
    ledger.debit(ask("e", scale=9))
    ledger.set_checkpoint_key("spare", **who)
    ledger.close()
    assert verify(path).ok
    assert verify(path).entries == 16
    return path


def becomes(kind: str, dataset: str = "people", **details: object) -> Edit:
    """An edit that makes another entry of a spare one."""
    return lambda fields: fields.update(kind=kind, dataset=dataset, details={"reason": "", **details})


def spent_by_ann(by: int) -> Edit:
    """An edit of what ann spent under a new total, the sum included."""

    def edit(fields: dict[str, Any]) -> None:
        fields["details"]["analysts"]["ann"][0] += by
        fields["details"]["spent_cost_units"] += by

    return edit


def renamed(fields: dict[str, Any]) -> None:
    """An edit that says of what ann spent that eve did."""
    fields["details"]["analysts"]["eve"] = fields["details"]["analysts"].pop("ann")


CAPS: dict[str, Any] = {
    "cap_cost_units": 2**62,
    "cap_delta_units": 2**62,
    "spent_cost_units": 0,
    "spent_delta_units": 0,
}


@pytest.mark.parametrize(
    ("number", "edit", "match"),
    [
        # A new total.
        (7, set_details(spent_cost_units=5), "entry 7: spent_cost_units is 5, but the history gives"),
        (7, set_details(spent_delta_units=5), "entry 7: spent_delta_units is 5, but the history gives"),
        (7, spent_by_ann(-1), "entry 10: spent_cost_units is"),
        (7, spent_by_ann(-1), "entry 10: analyst_spent_cost_units is"),
        (7, renamed, "entry 7: analysts are not those who were debited"),
        (7, lambda f: f["details"]["analysts"].pop("bob"), "entry 7: analysts are not those who were debited"),
        (7, lambda f: f["details"]["analysts"].update(eve=[0, 0]), "entry 7: analysts are not those"),
        (7, lambda f: f["details"]["analysts"].update(bob=[1, 1]), "entry 7: analysts are not those"),
        (7, set_details(analysts={"ann": 5, "bob": 5}), "entry 7: the body cannot be read"),
        (7, set_details(epsilon=30.0), "entry 7: account 'people': cap_cost_units is"),
        (7, set_details(cap_cost_units=2**60), "entry 7: account 'people': cap_cost_units is"),
        (7, set_details(cap_delta_units=2**60), "entry 7: account 'people': cap_delta_units is not"),
        (7, set_details(order="50/1"), "entry 7: account 'people': order is not the best one"),
        (7, set_details(delta_fail_share="1/2"), "entry 7: account 'people': cap_"),
        (7, set_details(previous={"epsilon": 9.0, "delta": 1e-6}), "entry 7: previous is not the total"),
        (7, set_details(account="cars"), "entry 7: dataset 'people' was not registered before with account 'cars'"),
        (
            7,
            lambda f: f.update(dataset="cars"),
            "entry 7: dataset 'cars' was not registered before with account 'people'",
        ),
        # Limits.
        (8, set_details(share="1/1"), "entry 10: allowance_cost_units is"),
        (8, set_details(share=None), "entry 10: allowance_cost_units is"),
        (8, set_details(share="1/1000"), "entry 10: analyst 'ann' spent more than the limits"),
        (8, set_details(share="3/2"), "entry 8: the body cannot be read (ValueError: share must lie from 0 to 1"),
        (8, set_details(analyst="bob"), "entry 10: allowance_cost_units is"),
        (8, set_details(account="cars"), "entry 8: dataset 'people' was not registered before with account 'cars'"),
        (9, set_details(share="1/1"), "entry 10: call_cost_units is"),
        (9, set_details(share="1/1000"), "entry 10: analyst 'ann' spent more than the limits"),
        (9, set_details(share="-1/3"), "entry 9: the body cannot be read"),
        (14, becomes("allowance", account="people", analyst="ann", share="1/9"), "entry 15: allowance_cost_units is"),
        (10, set_details(allowance_cost_units=2**60), "entry 10: allowance_cost_units is"),
        (10, set_details(allowance_delta_units=None), "entry 10: allowance_delta_units is None"),
        (10, set_details(call_cost_units=None), "entry 10: call_cost_units is None"),
        (10, set_details(analyst_spent_cost_units=0), "entry 10: analyst_spent_cost_units is 0"),
        (10, lambda f: f["details"].pop("analyst_spent_cost_units"), "entry 10: the body cannot be read"),
        (10, lambda f: f.update(actor="bob"), "entry 10: analyst_spent_cost_units is"),
        # Names and rows.
        (4, set_details(adjacency="add_remove_one"), "entry 4: dataset 'again' joins account 'people' with another"),
        (4, set_details(account="nobody"), "entry 4: dataset 'again' joins account 'nobody', which there is not"),
        (4, set_details(account="cars"), "entry 12: dataset 'again' was not registered before with account 'people'"),
        (4, set_details(**CAPS), "entry 4: a registration has sums, or caps of an account that it only joins"),
        (2, set_details(spent_cost_units=-5), "entry 2: a registration has sums"),
        (4, lambda f: f["details"].pop("content_tag"), "entry 4: the body cannot be read (KeyError"),
        (11, set_details(content_tag="no"), "entry 11: the body cannot be read (ValueError"),
        (11, set_details(account="cars"), "entry 11: dataset 'people' was not registered before with account 'cars'"),
        (11, lambda f: f.update(dataset="nobody"), "entry 11: dataset 'nobody' was not registered before"),
        (14, becomes("snapshot", "again", account="people", content_tag="ee"), "entry 14: a snapshot of a retired"),
        (15, lambda f: f.update(dataset="again"), "entry 15: a debit from a retired dataset"),
        (15, lambda f: f.update(dataset="cars"), "entry 15: dataset 'cars' was not registered before with account"),
        (15, set_details(account="cars"), "entry 15: dataset 'people' was not registered before with account 'cars'"),
        (13, set_details(withdrawn=True), "entry 13: a dataset was withdrawn that had debits"),
        (14, becomes("retirement", account="people"), "entry 15: a debit from a retired dataset"),
        (15, becomes("destruction", account="people", destroyed="rows"), "entry 15: a destruction of a dataset that"),
        (15, becomes("destruction", "again", account="cars", destroyed="rows"), "entry 15: dataset 'again' was not"),
        (15, becomes("destruction", "again", account="people", destroyed="all"), "entry 15: the rows or the key of"),
        (
            15,
            becomes("destruction", "again", account="people", destroyed="key"),
            "entry 15: a key was destroyed before",
        ),
        # A state where none belongs: the newest one would answer for the whole account.
        (16, becomes("note", **CAPS), "entry 16: only registrations, totals and debits have caps and sums"),
        (16, becomes("allowance", account="people", analyst="eve", share=None, **CAPS), "entry 16: only registrations"),
        (16, becomes("retirement", account="people", cap_cost_units=1), "entry 16: only registrations"),
        (16, becomes("checkpoint_key", verifier_key="k", spent_delta_units=0), "entry 16: only registrations"),
        (16, becomes("upgrade", **{"from": "2", "to": "1"}), "entry 16: an upgrade goes from an older version"),
    ],
)
def test_a_forged_act_in_a_forged_chain_is_named(acts: Path, forge: Any, number: int, edit: Edit, match: str) -> None:
    """Totals, limits, names and rows are followed through the history like debits, and the entry is named."""
    forge(acts, number, edit)
    refused(acts, match)


def test_a_dataset_that_is_retired_twice_is_found_without_the_index(acts: Path, forge: Any) -> None:
    """The file's own index would have refused it."""
    with closing(sqlite3.connect(acts)) as db:
        db.execute("DROP INDEX one_retirement_a_name")
    forge(acts, 14, becomes("retirement", "again", account="people"))
    refused(acts, "entry 14: a dataset was retired twice")


def test_a_body_that_cannot_be_read_does_not_stop_verification(acts: Path, forge: Any) -> None:
    """An event of an unknown kind before a new total, whose sums are computed from all events: a finding, no error."""
    forge(acts, 5, set_details(events=[{"mechanism": "magic"}]))
    problems = verify(acts).problems
    assert problems[0].startswith("entry 5: the body cannot be read (ValueError: mechanism must be one of")
    assert any(problem.startswith("entry 7: 'ann' spent") for problem in problems)


def test_a_new_total_is_compared_with_every_event_before_it(acts: Path, forge: Any) -> None:
    """A forger who corrects all sums after the new total, too, is found by pricing the past again."""
    for number in (7, 10, 12, 15):
        names = ["spent_cost_units", *["analyst_spent_cost_units"] * (number in (10, 15))]

        def cheaper(fields: dict[str, Any], names: list[str] = names) -> None:
            for name in names:
                fields["details"][name] -= 1
            if "analysts" in fields["details"]:
                fields["details"]["analysts"]["ann"][0] -= 1

        forge(acts, number, cheaper)
    Ledger.open(acts).close()
    (problem,) = verify(acts).problems
    assert problem.startswith("entry 7: 'ann' spent")
