"""Files of the first version are brought up to this one, recorded, all or nothing; newer ones are refused."""

from __future__ import annotations

import hashlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlite_utils import Database

from bursar_ledger import (
    Budget,
    BudgetExhaustedError,
    DebitRequest,
    DebitStatus,
    Event,
    GaussianEvent,
    Ledger,
    LedgerCorruptError,
    LedgerVersionError,
    PureEvent,
    Verification,
    cost_units,
    verify,
)
from bursar_ledger._canonical import NO_ENTRY, chain
from bursar_ledger._codec import encode_event, encode_fraction
from bursar_ledger._schema import MIGRATIONS, known, schema_of
from bursar_ledger.audit.cli import main

Ask = Callable[..., DebitRequest]
TOTALS = {"people": Budget(3, 1e-6), "cars": Budget(1, 1e-9), "quiet": Budget(2, 1e-5)}
DEBITS: list[tuple[str, str, tuple[Event, ...]]] = [
    ("people", "ann", (GaussianEvent(1, Fraction(9)),)),
    ("cars", "ann", (GaussianEvent(1, Fraction(40)),)),
    ("people", "bob", (PureEvent(Fraction(1, 4)), GaussianEvent(2, Fraction(30)))),
    ("people", "ann", (GaussianEvent(1, Fraction(12)),)),
]


def first_version(path: Path) -> None:
    """Writes a file as the first version of the schema did: no accounts, no analysts' sums, tags of one name each."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        MIGRATIONS.apply(Database(connection, execute_plugins=False), stop_before=known()[1:])
        connection.execute("BEGIN")
        number, previous = 0, NO_ENTRY

        def append(kind: str, dataset: str, actor: str, details: dict[str, object]) -> int:
            nonlocal number, previous
            head = {"kind": kind, "dataset": dataset, "actor": actor, "time": "2026-01-01T00:00:00+00:00"}
            entry = chain(number + 1, previous, head, details)
            number, previous = entry.number, entry.hash
            connection.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, entry.body.decode(), entry.hash))
            return number

        units = {"cost_unit": 2**40, "delta_unit": 2**60}
        append("genesis", "", "owner", {"format": 1, "ledger_id": "ab" * 16, **units, "reason": ""})
        spent = dict.fromkeys(TOTALS, 0)
        for name, total in TOTALS.items():
            details = {
                "adjacency": "replace_one",
                "epsilon": float(total.epsilon),
                "delta": float(total.delta),
                "delta_fail_share": encode_fraction(total.delta_fail_share),
                "order": encode_fraction(total.order),
                "cap_cost_units": total.cap_cost_units,
                "cap_delta_units": total.cap_delta_units,
                "content_tag": name.encode().hex(),
                "manifest": {"columns": ["age"]},
                "reason": "",
            }
            append("registration", name, "owner", details)
        for i, (name, analyst, events) in enumerate(DEBITS):
            total = TOTALS[name]
            spent[name] += cost_units(events, total.order)
            details = {
                "request_id": f"r{i}",
                "request_hash": hashlib.sha256(str(i).encode()).hexdigest(),
                "method": "FitDPEM",
                "events": [encode_event(event) for event in events],
                "parameters": {},
                "order": encode_fraction(total.order),
                "cost_units": cost_units(events, total.order),
                "delta_units": 0,
                "spent_cost_units": spent[name],
                "spent_delta_units": 0,
                "cap_cost_units": total.cap_cost_units,
                "cap_delta_units": total.cap_delta_units,
            }
            debit = append("debit", name, analyst, details)
            if i == 0:
                digest = hashlib.sha256(b"model").hexdigest()
                append("release", name, analyst, {"debit": debit, "sha256": digest, "size": 5})
                connection.execute("INSERT INTO releases VALUES (?, ?)", (debit, b"model"))
        connection.execute("COMMIT")


@pytest.fixture
def old(path: Path) -> Path:
    """A closed file of the first version: registrations 2 to 4, debit 5 with its release 6, debits 7 to 9."""
    first_version(path)
    return path


def version(path: Path) -> tuple[list[str], int, dict[str, str]]:
    """Migrations that a file has had, its entries, its schema."""
    with closing(sqlite3.connect(path)) as db:
        names = [row[0] for row in db.execute("SELECT name FROM _sqlite_migrations ORDER BY id")]
        (entries,) = db.execute("SELECT count(*) FROM entries").fetchone()
        return names, entries, schema_of(Database(db, execute_plugins=False))


def sums(found: Verification) -> dict[str, tuple[object, ...]]:
    """What verification computed for every account."""
    return {
        totals.name: (totals.spent_cost_units, totals.debits, totals.order, totals.cap_cost_units, totals.analysts)
        for totals in found.accounts
    }


def test_a_file_of_the_first_version_verifies_as_it_is(old: Path) -> None:
    """Verification reads older files and changes nothing."""
    before = old.read_bytes()
    found = verify(old)
    assert found.problems == ()
    assert old.read_bytes() == before
    assert [totals.name for totals in found.accounts] == list(TOTALS)
    assert version(old)[0] == ["0001_entries"]


def test_opening_upgrades_and_says_so(old: Path, contents: Any) -> None:
    """One entry names both versions, one restates each account that was debited; history and sums are the same."""
    before, entries = verify(old), contents(old)[0]
    Ledger.open(old).close()
    after = verify(old)
    assert after.problems == ()
    assert sums(after) == sums(before)
    assert contents(old)[0][: len(entries)] == entries
    assert version(old)[0] == list(known())
    with Ledger.open(old) as ledger:
        added = list(ledger.entries(10))
        assert [(entry.kind, entry.dataset) for entry in added] == [
            ("upgrade", ""),
            ("budget", "cars"),
            ("budget", "people"),
        ]
        assert (added[0].details["from"], added[0].details["to"]) == ("0001_entries", known()[-1])
        analysts = {name: (cost, delta) for name, (cost, delta) in added[2].details["analysts"].items()}
        assert analysts == dict(after.accounts[0].analysts)
        assert added[2].details["previous"] == {"epsilon": 3.0, "delta": 1e-6}


def test_a_total_that_is_only_said_again_is_no_second_promise(old: Path) -> None:
    """The auditor adds the deltas of all promises; an upgrade promises nothing."""
    Ledger.open(old).close()
    assert [[promise[1:] for promise in totals.budgets] for totals in verify(old).accounts] == [
        [(total.epsilon, total.delta)] for total in TOTALS.values()
    ]


def test_an_upgraded_ledger_goes_on(old: Path, ask: Ask) -> None:
    """Repetitions of old requests, new debits, limits that count what was spent before, new names of old rows."""
    with Ledger.open(old) as ledger:
        again = ask("r0", request_hash=hashlib.sha256(b"0").digest(), events=DEBITS[0][2])
        assert (ledger.debit(again).status, ledger.debit(again).release) == (DebitStatus.RELEASED, b"model")
        assert ledger.debit(again).allowance is None
        assert [record.released for record in ledger.releases()] == [True, False, False, False]
        spent = sum(
            cost_units(events, TOTALS["people"].order)
            for name, who, events in DEBITS
            if (name, who) == ("people", "ann")
        )
        ledger.set_allowance("people", "ann", Fraction(1), actor="o", reason="r")
        allowance = ledger.limits("people", "ann").allowance
        assert allowance is not None
        assert allowance.cost_units == TOTALS["people"].cap_cost_units - spent
        new = ledger.debit(ask("new"))
        assert new.allowance is not None
        assert new.allowance.cost_units == allowance.cost_units - new.price.cost_units
        ledger.debit(ask("first", dataset="quiet", scale=20))
        ledger.set_budget("cars", Budget(2, 1e-9), actor="o", reason="r")
        with pytest.raises(BudgetExhaustedError):
            ledger.debit(ask("much", scale=1))
    assert verify(old).problems == ()
    Ledger.open(old).close()


def test_a_current_file_is_left_alone(ledger: Ledger, path: Path, contents: Any) -> None:
    """Opening writes only if there is something to upgrade."""
    before = contents(path)
    Ledger.open(path).close()
    assert contents(path) == before


OPEN = """
import sys
from bursar_ledger import Ledger
sys.stdin.readline()
Ledger.open(sys.argv[1]).close()
"""
KILLED = """
import os, signal, sys
from bursar_ledger import Ledger, _store, _upgrade
where = sys.argv[2]
def die(*args, **changes):
    os.kill(os.getpid(), signal.SIGKILL)
def last(store, account, **changes):
    if account == "cars":
        die()
    return restate(store, account, **changes)
restate = _upgrade.restate
if where == "entry":
    _store.Store.append = die
elif where == "restatement":
    _upgrade.restate = last
else:
    settle = _store.Store._carry_out
    def carry_out(self, decision):
        settle(self, decision)
        die()
    _store.Store._carry_out = carry_out
Ledger.open(sys.argv[1])
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own."""
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, text=True)


def test_processes_that_upgrade_at_once_do_it_once(old: Path) -> None:
    """Three open the file together: one upgrade in the chain."""
    opened = [start(OPEN, str(old)) for _ in range(3)]
    for process in opened:
        process.communicate("go\n", timeout=120)
    assert [process.returncode for process in opened] == [0, 0, 0]
    with Ledger.open(old) as ledger:
        assert [entry.kind for entry in ledger.entries(10)] == ["upgrade", "budget", "budget"]
    assert verify(old).problems == ()


@pytest.mark.parametrize("where", ["entry", "restatement", "commit"])
def test_a_process_that_is_killed_in_between_leaves_the_old_version(old: Path, where: str) -> None:
    """Schema, record and entries come together or not at all; the next opening does it."""
    before = version(old)
    killed = start(KILLED, str(old), where)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert version(old) == before
    assert verify(old).problems == ()
    Ledger.open(old).close()
    assert version(old)[0] == list(known())
    assert verify(old).problems == ()


def half(db: Any) -> None:
    """A migration that fails after a part of it."""
    db.executescript("CREATE TABLE more (x); DROP TRIGGER entries_never_vanish;")
    raise sqlite3.OperationalError("no more room")


def test_a_migration_that_fails_half_way_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the schema nor the record of migrations."""
    before = version(old)
    monkeypatch.setattr(MIGRATIONS._migrations[-1], "fn", half)
    with pytest.raises(Exception, match="no more room"):
        Ledger.open(old)
    monkeypatch.undo()
    assert version(old) == before
    assert verify(old).problems == ()
    Ledger.open(old).close()


def newer(path: Path) -> None:
    """Makes the file one of a later version, as far as its record goes."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
            " VALUES ('bursar_ledger', '0099_later', 'later')"
        )


@pytest.mark.parametrize("make", [first_version, lambda path: Ledger.create(path, actor="o").close()])
def test_a_file_of_a_newer_version_is_refused_by_name(path: Path, make: Callable[[Path], None], contents: Any) -> None:
    """By the server, by verification and by the auditor's command; nothing is written."""
    make(path)
    newer(path)
    before = contents(path)
    with pytest.raises(LedgerVersionError, match=f"newer version.*0099_later.*knows {known()[-1]}"):
        Ledger.open(path)
    assert any("0099_later" in problem for problem in verify(path).problems)
    result = CliRunner().invoke(main, ["verify", str(path)])
    assert result.exit_code != 0
    assert "0099_later" in result.output
    assert contents(path) == before


def test_a_file_without_the_record_of_its_version_is_refused(old: Path, tamper: Any) -> None:
    """A schema that nobody recorded is not ours."""
    tamper(old, ("DELETE FROM _sqlite_migrations", ()))
    assert any("record of migrations is missing" in problem for problem in verify(old).problems)
    with pytest.raises(LedgerCorruptError, match="record of migrations"):
        Ledger.open(old)


def damaged(entries: Iterable[Any]) -> list[str]:
    """The numbers of entries that findings name."""
    return [str(entry).split(":")[0] for entry in entries]


def test_a_damaged_old_file_is_not_upgraded(old: Path, forge: Any) -> None:
    """Verification comes first, so that no restatement covers up what was forged."""

    def cheaper(fields: dict[str, Any]) -> None:
        fields["details"]["spent_cost_units"] -= 5

    forge(old, 5, cheaper)
    before = version(old)
    with pytest.raises(LedgerCorruptError, match="entry 5: spent_cost_units"):
        Ledger.open(old)
    assert version(old) == before


def test_after_the_upgrade_debits_say_what_their_analyst_spent(old: Path, forge: Any, ask: Ask) -> None:
    """The old form is for old entries only; in a new one it would hide an analyst's sum."""
    with Ledger.open(old) as ledger:
        number = ledger.debit(ask("new")).entry

    def older(fields: dict[str, Any]) -> None:
        for name in [name for name in fields["details"] if name.startswith(("analyst_", "allowance_", "call_"))]:
            del fields["details"][name]

    forge(old, number, older)
    assert damaged(verify(old).problems) == [f"entry {number}"]
