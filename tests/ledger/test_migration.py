"""The next change of the schema, as CONTRIBUTING describes it: how it is made, and what has to be tested.

The file before is the one that version 0.1.0 writes (`history.py`); the change is an example (`next_version.py`).
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bursar_ledger import (
    Budget,
    DebitStatus,
    GaussianEvent,
    Ledger,
    LedgerCorruptError,
    LedgerVersionError,
    Verification,
    verify,
)
from bursar_ledger._schema import MIGRATIONS, known, schema_of
from bursar_ledger.audit.cli import main
from tests.ledger.history import HEAD, KINDS, play, request
from tests.ledger.next_version import NAME, SQL


@pytest.fixture
def old(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed file of version 0.1.0."""
    play(path, monkeypatch)
    return path


@pytest.fixture
def next_version(old: Path) -> Iterator[None]:
    """Give this process one more migration from now on, after the file was made."""
    MIGRATIONS[NAME] = SQL
    yield
    del MIGRATIONS[NAME]


def version(path: Path) -> tuple[list[str], int, dict[str, str]]:
    """Migrations that a file has had, its entries, its schema."""
    with closing(sqlite3.connect(path)) as db:
        names = [row[0] for row in db.execute("SELECT name FROM _sqlite_migrations ORDER BY id")]
        (entries,) = db.execute("SELECT count(*) FROM entries").fetchone()
        return names, entries, schema_of(db)


def sums(found: Verification) -> dict[str, tuple[object, ...]]:
    """Return what verification computed for every account."""
    return {
        totals.name: (totals.spent_cost_units, totals.debits, totals.order, totals.cap_cost_units, totals.analysts)
        for totals in found.accounts
    }


def test_the_chain_of_a_history_is_the_recorded_one(old: Path) -> None:
    """The same acts give the same bytes in every version: signed checkpoints and receipts name their hashes."""
    found = verify(old)
    assert found.problems == ()
    assert found.head.hex() == HEAD
    with Ledger.open(old) as ledger:
        assert [entry.kind for entry in ledger.entries()] == KINDS


@pytest.mark.usefixtures("next_version")
def test_a_file_of_the_version_before_verifies_as_it_is(old: Path) -> None:
    """Verification reads older files and changes nothing."""
    before = old.read_bytes()
    assert verify(old).problems == ()
    assert old.read_bytes() == before
    assert version(old)[0] == ["0001_ledger"]


@pytest.mark.usefixtures("next_version")
def test_opening_upgrades_and_says_so(old: Path, contents: Any) -> None:
    """One entry names both versions; entries, releases and sums are the same."""
    before, (entries, releases) = verify(old), contents(old)
    with Ledger.open(old) as ledger:
        (added,) = ledger.entries(len(entries) + 1)
        assert (added.kind, added.dataset) == ("upgrade", "")
        assert (added.details["from"], added.details["to"]) == ("0001_ledger", NAME)
        assert ledger.hash_at(before.entries) == before.head == bytes.fromhex(HEAD)
    after = verify(old)
    assert after.problems == ()
    assert sums(after) == sums(before)
    assert (contents(old)[0][:-1], contents(old)[1]) == (entries, releases)
    assert version(old)[0] == list(known()) == ["0001_ledger", NAME]


@pytest.mark.usefixtures("next_version")
def test_an_upgraded_ledger_goes_on(old: Path) -> None:
    """Requests of before are answered again, new ones are debited under the new rules, totals change."""
    with Ledger.open(old) as ledger:
        again = ledger.debit(request(4, "people", "ann", GaussianEvent(1, Fraction(11))))
        assert again.status is DebitStatus.INTERRUPTED
        spent = ledger.dataset("people").spent_cost_units
        new = ledger.debit(request(6, "again", "bob", GaussianEvent(1, Fraction(40))))
        assert ledger.dataset("people").spent_cost_units == spent + new.price.cost_units
        ledger.set_budget("people", Budget(5, 1e-6), actor="owner", reason="more")
        state = schema_of(ledger._store.db)
        assert {"index debits_by_method", "trigger debits_have_a_method"} <= state.keys()
    assert verify(old).problems == ()
    Ledger.open(old).close()


def test_a_current_file_is_left_alone(old: Path, contents: Any) -> None:
    """Opening writes only if there is something to upgrade."""
    before = contents(old)
    Ledger.open(old).close()
    assert contents(old) == before


OPEN = """
import os, signal, sys
from bursar_ledger import Ledger, _store
from bursar_ledger._schema import MIGRATIONS
path, name, sql, where = sys.argv[1:]
MIGRATIONS[name] = sql
def die(*args, **changes):
    os.kill(os.getpid(), signal.SIGKILL)
if where == "entry":
    _store.Store.append = die
elif where == "commit":
    settle = _store.Store._carry_out
    def carry_out(self, decision):
        settle(self, decision)
        die()
    _store.Store._carry_out = carry_out
sys.stdin.readline()
Ledger.open(path).close()
"""


def start(path: Path, where: str) -> subprocess.Popen[str]:
    """A process of the next version that opens the file, and is killed at a place."""
    command = [sys.executable, "-c", OPEN, str(path), NAME, SQL, where]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.usefixtures("next_version")
def test_processes_that_upgrade_at_once_do_it_once(old: Path) -> None:
    """Three open the file together: one upgrade in the chain."""
    opened = [start(old, "nowhere") for _ in range(3)]
    for process in opened:
        process.communicate("go\n", timeout=600)
    assert [process.returncode for process in opened] == [0, 0, 0]
    with Ledger.open(old) as ledger:
        assert [entry.kind for entry in ledger.entries(len(KINDS) + 1)] == ["upgrade"]
    assert verify(old).problems == ()


@pytest.mark.slow
@pytest.mark.usefixtures("next_version")
@pytest.mark.parametrize("where", ["entry", "commit"])
def test_a_process_that_is_killed_in_between_leaves_the_old_version(old: Path, where: str) -> None:
    """Schema, record and entry come together or not at all; the next opening does it."""
    before = version(old)
    killed = start(old, where)
    killed.communicate("go\n", timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert version(old) == before
    assert verify(old).problems == ()
    Ledger.open(old).close()
    assert version(old)[0] == list(known())
    assert verify(old).problems == ()


HALF = """
CREATE TABLE more (x);
DROP TRIGGER entries_never_vanish;
SELECT no_more_room();
"""


@pytest.mark.usefixtures("next_version")
def test_a_migration_that_fails_half_way_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the schema nor the record of migrations."""
    before = version(old)
    monkeypatch.setitem(MIGRATIONS, NAME, HALF)
    with pytest.raises(Exception, match="no_more_room"):
        Ledger.open(old)
    monkeypatch.undo()
    assert version(old) == before
    assert verify(old).problems == ()
    Ledger.open(old).close()


def test_a_file_of_a_newer_version_is_refused_by_name(old: Path, contents: Callable[[Path], Any]) -> None:
    """The server, verification and the auditor's command refuse it; nothing is written."""
    MIGRATIONS[NAME] = SQL
    Ledger.open(old).close()
    del MIGRATIONS[NAME]
    before = contents(old)
    with pytest.raises(LedgerVersionError, match=f"newer version.*{NAME}.*knows {known()[-1]}"):
        Ledger.open(old)
    assert any(NAME in problem for problem in verify(old).problems)
    result = CliRunner().invoke(main, ["verify", str(old)])
    assert result.exit_code != 0
    assert NAME in result.output
    assert contents(old) == before


def test_a_file_without_the_record_of_its_version_is_refused(old: Path, tamper: Any) -> None:
    """A schema that nobody recorded is not ours."""
    tamper(old, ("DELETE FROM _sqlite_migrations", ()))
    assert any("record of migrations is missing" in problem for problem in verify(old).problems)
    with pytest.raises(LedgerCorruptError, match="record of migrations"):
        Ledger.open(old)


@pytest.mark.usefixtures("next_version")
def test_a_damaged_old_file_is_not_upgraded(old: Path, forge: Any) -> None:
    """Verification comes first, so that no entry covers up what was forged."""
    number = KINDS.index("debit") + 1

    def cheaper(fields: dict[str, Any]) -> None:
        fields["details"]["spent_cost_units"] -= 5

    forge(old, number, cheaper)
    before = version(old)
    with pytest.raises(LedgerCorruptError, match=f"entry {number}: spent_cost_units"):
        Ledger.open(old)
    assert version(old) == before


@pytest.mark.parametrize(
    "left_out", ["analyst_spent_cost_units", "allowance_cost_units", "call_delta_units", "account"]
)
def test_a_debit_says_everything_that_bounds_it(old: Path, forge: Any, left_out: str) -> None:
    """A form without one of its fields would hide a sum or a limit."""
    number = KINDS.index("debit") + 1
    forge(old, number, lambda fields: fields["details"].pop(left_out))
    assert any(problem.startswith(f"entry {number}: ") for problem in verify(old).problems)
