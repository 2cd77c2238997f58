"""The auditor's next visit goes on from the last one, and says the same as a visit that verifies all."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import Ledger, adopt_copy
from bursar_ledger._check_entry import examine
from bursar_ledger._opening import connect
from bursar_ledger._replay import Replay
from bursar_ledger._verify import Verified, check, nothing_verified, rows_digest
from bursar_ledger.audit import _memory
from bursar_ledger.audit._checks import Findings
from bursar_ledger.audit._verdict import Standing, verdict
from bursar_ledger.audit._watch import Look, watching
from tests.ledger.history import KINDS, play


@pytest.fixture
def worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ledgers of every length worth remembering."""
    monkeypatch.setattr("bursar_ledger.audit._watch.WORTH", 1)


@dataclass(frozen=True)
class Seen:
    """Page, findings and table of entries of a visit in the end."""

    look: Look
    found: Findings
    table: list[tuple[Any, ...]]

    @property
    def known(self) -> int:
        """Entry behind which the verification went on."""
        return self.found.verification.known


def visit(path: Path, **options: Any) -> Seen:
    """Look at a ledger as `bursar-audit serve` does when it starts."""
    with watching(path, None, (), **({"ask": False} | options)) as watch:
        watch.wait()
        look = watch.look
        assert look is not None
        assert look.found is not None, look.error
        with contextlib.closing(sqlite3.connect(watch.tables)) as tables:
            return Seen(look, look.found, tables.execute("SELECT * FROM entries ORDER BY entry").fetchall())


def test_verification_goes_on_from_every_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The findings from each entry of a history with every kind on are those of a whole verification."""
    play(tmp_path / "ledger.db", monkeypatch)
    with contextlib.closing(connect(tmp_path / "ledger.db", read_only=True)) as db:
        whole = check(db, reprice=True)
        assert (whole.problems, whole.verified) == ((), None)
        rows = db.execute("SELECT number, body, hash FROM entries ORDER BY number").fetchall()
        for last in range(len(KINDS) + 1):
            replay = Replay()
            for row in rows[:last]:
                replay.take(examine(*row, reprice=True))
            found = check(db, reprice=True, known=Verified(replay, rows_digest(db, last)))
            assert (found.problems, found.known, found.head) == ((), last, whole.head)
            assert (found.accounts, found.verifier_keys) == (whole.accounts, whole.verifier_keys)
            assert found.verified is not None
            assert found.verified.digest == rows_digest(db, len(KINDS))


@pytest.mark.slow
def test_a_second_visit_says_the_same(study: Path, worth: None, ledger: Ledger, ask: Any) -> None:
    """It goes on behind what was verified, and counts old and new entries; `afresh` verifies them all."""
    first, again = visit(study, ask=True), visit(study, ask=True)
    assert (first.known, again.known, again.table) == (0, 14, first.table)
    assert again.found.opinion == first.found.opinion
    ledger.store_release(ledger.debit(ask("new", scale=40)).entry, b"new")
    grown, whole = visit(study, ask=True), visit(study, ask=True, afresh=True)
    assert (grown.known, whole.known, grown.table) == (14, 0, whole.table)
    assert grown.found.opinion == whole.found.opinion
    assert grown.look.parts[2] == whole.look.parts[2]
    assert verdict(grown.found).standing is Standing.CONSISTENT
    assert "Entries 15 to 16 are new" in grown.look.parts[1]


def test_the_last_visit_is_shown_while_a_new_one_is_under_way(study: Path, worth: None) -> None:
    """Its figures are there at once, and its verdict is not repeated before it is known."""
    visit(study)
    with watching(study, None, ()) as watch:
        watch.wait()
        memory = _memory.recall(study, watch.tables)
        assert memory is not None
        look = watch._remembered(memory)
    assert (look.remembered, look.found, look.entries) == (True, None, 14)
    assert "being verified" in look.parts[0]
    assert "people" in look.parts[2]


def test_rewritten_history_is_found_even_if_it_is_consistent(
    study: Path, worth: None, ledger: Ledger, ask: Any, tmp_path: Path
) -> None:
    """The memory is a witness: the same ledger that goes on otherwise, or ends earlier, is not right."""
    other = tmp_path / "other" / "ledger.db"
    other.parent.mkdir()
    ledger.backup(other)
    early = tmp_path / "early.db"
    shutil.copy(other, early)
    ledger.debit(ask("one", scale=40))
    visit(study)
    adopt_copy(other)
    with Ledger.open(other) as rewritten:
        rewritten.debit(ask("another", scale=40))
    for path, words in ((other, "history was rewritten"), (early, "are missing")):
        seen = visit(path)
        assert seen.known == 0
        assert any(words in problem for problem in seen.found.problems), seen.found.problems
        assert visit(path).found == seen.found  # and nothing of it is remembered


def test_a_changed_entry_is_found_behind_a_memory(
    study: Path, worth: None, ledger: Ledger, tamper: Callable[..., None]
) -> None:
    """Everything is verified again then, and the entry is named."""
    visit(study)
    ledger.close()
    tamper(study, ("UPDATE entries SET body = replace(body, 'second year', 'second yeas') WHERE number = 10", ()))
    seen = visit(study)
    assert seen.known == 0
    assert any(problem.startswith("entry 10: ") for problem in seen.found.problems)


@pytest.mark.slow
def test_a_memory_that_is_not_ones_own_is_no_memory(
    study: Path, worth: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed file, another key or another version of the code: all is verified again, and remembered anew."""
    visit(study)
    assert visit(study).known == 14
    (folder,) = (path for path in (home / "bursar-audit" / "visits").iterdir() if path.is_dir())
    signed, tables, key = folder / "visit", folder / "tables.db", folder.parent / "key"
    for file, place in ((signed, 0), (signed, -1), (tables, -1), (key, -1)):
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)
        assert visit(study).known == 0, (file, place)
    monkeypatch.setattr(_memory, "_code", lambda: b"another version")
    assert visit(study).known == 0
    assert visit(study).known == 14


def test_only_the_user_may_read_the_key(study: Path, worth: None, home: Path) -> None:
    """A thief of the key could sign a memory."""
    visit(study)
    key = home / "bursar-audit" / "visits" / "key"
    assert (key.stat().st_mode & 0o077, key.stat().st_size) == (0, 32)


def test_a_folder_that_cannot_be_written_is_told(
    study: Path, worth: None, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The visit is whole all the same."""
    home.write_text("a file, where a folder is expected")
    assert visit(study).found.verification.ok
    assert "cannot be remembered" in capfd.readouterr().err


def test_a_short_ledger_leaves_nothing(study: Path, home: Path) -> None:
    """It is verified before anybody waits."""
    visit(study)
    assert not home.exists()


def test_nothing_verified_is_the_beginning(study: Path) -> None:
    """Its digest is that of no rows."""
    with contextlib.closing(connect(study, read_only=True)) as db:
        assert rows_digest(db, 0) == nothing_verified().digest
