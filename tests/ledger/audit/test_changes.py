"""Changes since the last visit: a copy, a file or a head that was kept; and history that was rewritten."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from bursar_ledger import Budget, Ledger
from bursar_ledger.audit._changes import Visit, changes, compare_visit, read_visit
from bursar_ledger.audit._checks import examine_file
from bursar_ledger.audit._verdict import Standing, verdict
from bursar_ledger.refusals import FILE, Refusals

Run = Callable[..., Result]


@pytest.fixture
def copy(study: Path, ledger: Ledger, tmp_path: Path) -> Path:
    """A copy of the ledger with 14 entries, and its refusals."""
    folder = tmp_path / "kept"
    folder.mkdir()
    ledger.backup(folder / "copy.db")
    for file in (study.with_name(FILE), folder / FILE):
        refusals = Refusals(file)
        refusals.note(analyst="ann", dataset="people", method="FitMRF", refused_by="allowance")
        refusals.close()
    return folder / "copy.db"


@pytest.fixture
def grown(study: Path, copy: Path, ledger: Ledger, ask: Any) -> Path:
    """The ledger with three requests, a new budget, and two refusals more."""
    for i in range(3):
        ledger.debit(ask(f"new-{i}", scale=40))
    ledger.set_budget("people", Budget(5, 1e-6), actor="owner", reason="third year")
    refusals = Refusals(study.with_name(FILE))
    for _ in range(2):
        refusals.note(analyst="ann", dataset="people", method="FitMRF", refused_by="allowance")
    refusals.close()
    return study


def test_a_visit_is_read_from_what_was_kept(run: Run, study: Path, copy: Path, ledger: Ledger, tmp_path: Path) -> None:
    """All three ways name the same entry and hash; anything else is said to be none."""
    head = ledger.head()
    kept = tmp_path / "head.txt"
    kept.write_text(run("checkpoint", study).stdout)
    assert read_visit(str(kept)) == read_visit(f"14:{head.hex()}") == Visit(14, head)
    assert read_visit(str(copy)) == Visit(14, head, copy)
    for wrong in ("yesterday", "14:ab", str(tmp_path), str(study.with_name(FILE))):
        with pytest.raises(click.BadParameter):
            read_visit(wrong)


def test_what_is_new_is_said(grown: Path, copy: Path) -> None:
    """The page says how many entries, who spent how much, new budgets with reasons, and refusals since."""
    since = compare_visit(grown, read_visit(str(copy)))
    assert (since.problems, since.agrees) == ((), 14)
    new = changes(grown, since, 18)
    assert new.since.startswith("entry 14 of ")
    assert new.summary[0] == "Entries 15 to 18 are new."
    assert re.fullmatch(r"ann made 3 paid requests to people, for [0-9.]+% of the lifetime budget.", new.summary[1])
    assert len(new.summary) == 2
    (event,) = new.events
    assert "owner raised the lifetime budget of people from epsilon 4 " in event.text
    assert new.refusals is not None
    assert [(one.analyst, one.times) for one in new.refusals] == [("ann", 2)]


def test_nothing_new_is_said(study: Path, ledger: Ledger) -> None:
    """A head alone is enough, and a file of refusals is not needed."""
    since = compare_visit(study, Visit(14, ledger.head()))
    new = changes(study, since, 14)
    assert new.summary == ("No entry is new.", "No lifetime budget is new or changed.")
    assert (new.events, new.refusals) == ((), None)


def test_rewritten_history_is_found(grown: Path, copy: Path, ledger: Ledger, forge: Any) -> None:
    """A forger who hashes everything anew is consistent in himself; the copy names the entry, a head only itself."""
    head = read_visit(str(copy)).head
    ledger.close()
    forge(grown, 5, lambda fields: fields["details"].update(reason="another"))
    with_copy = compare_visit(grown, read_visit(str(copy)))
    assert with_copy.agrees == 4
    assert "history was rewritten: entry 5 is not what it was" in with_copy.problems[0]
    with_head = compare_visit(grown, Visit(14, head))
    assert with_head.agrees == 0
    assert "entry 14 or one before it" in with_head.problems[0]
    judged = verdict(examine_file(grown, None, (), ask=False, visit=read_visit(str(copy))))
    assert (judged.standing, judged.certain) == (Standing.WRONG, 4)


def test_missing_entries_are_found(grown: Path, copy: Path, ledger: Ledger) -> None:
    """The older copy in the place of the ledger lacks what was seen."""
    since = compare_visit(copy, read_visit(str(grown)))
    assert "ends at entry 14: 4 of the entries of your last visit are missing" in since.problems[0]
    assert since.agrees == 14
    head_only = compare_visit(copy, Visit(18, ledger.head()))
    assert "ends at entry 14" in head_only.problems[0]


def test_the_report_has_a_section_about_it(run: Run, grown: Path, copy: Path, tmp_path: Path) -> None:
    """And the text to keep for the next time, which the next report takes."""
    out = tmp_path / "report.html"
    assert run("report", grown, "--out", out, "--since", copy).exit_code == 0
    text = out.read_text("utf-8")
    for part in (
        "What changed since your last visit",
        "Entries 15 to 18 are new.",
        "Reason given: third year",
        "asked 2 times for a table of how often categories occur together of people",
    ):
        assert part in text
    kept = re.search(r"<code>(18:[0-9a-f]{64})</code>", text)
    assert kept
    assert run("report", grown, "--out", out, "--since", kept[1]).exit_code == 0
    assert "No entry is new." in out.read_text("utf-8")
    assert run("report", grown, "--out", out, "--since", "no copy").exit_code == 2


def test_the_report_says_that_history_was_rewritten(
    run: Run, grown: Path, copy: Path, ledger: Ledger, forge: Any, tmp_path: Path
) -> None:
    """The page is red, and the status 1."""
    ledger.close()
    forge(grown, 5, lambda fields: fields["details"].update(reason="another"))
    out = tmp_path / "report.html"
    result = run("report", grown, "--out", out, "--since", copy)
    assert result.exit_code == 1
    assert "history was rewritten: entry 5" in result.stderr
    assert "does not go on from what you saw then" in out.read_text("utf-8")
