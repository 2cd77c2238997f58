"""`bursar-audit verify`: what it says, and the status that cron sees."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bursar_ledger import Ledger, LedgerError, adopt_copy, verify

Run = Callable[..., Result]


def test_a_ledger_that_is_right_gets_0_its_spend_and_its_head(run: Run, study: Path, ledger: Ledger) -> None:
    """One line an account, the head to compare, and what was checked."""
    result = run("verify", study)
    assert result.exit_code == 0, result.output
    assert ledger.head().hex() in result.stdout
    line = next(line for line in result.stdout.splitlines() if line.startswith("people"))
    assert re.split("  +", line) == ["people", "(4, 1e-06)", "3", "epsilon 1.09 (9.06%)", "epsilon 3.8 (90.9%)"]
    assert "verified: chain, sums, caps, released bytes" in result.stdout
    assert "checkpoints: none were given" in result.stdout
    assert result.stderr == ""


def test_the_second_opinion_says_what_it_compared(run: Run, study: Path) -> None:
    """Three debits, one of them between bounds, three promises."""
    assert (
        "agrees with the prices of 3 debits and 3 promises; its bounds enclose 1 debit" in run("verify", study).stdout
    )


def test_without_dp_accounting_verify_says_so(run: Run, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a second opinion, not a condition."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    result = run("verify", study)
    assert result.exit_code == 0
    assert "second opinion: none, dp-accounting is not installed or was not asked" in result.stdout


def test_nobody_has_to_ask_for_a_second_opinion(run: Run, study: Path) -> None:
    """A long ledger is verified without it in a minute."""
    assert "or was not asked" in run("verify", study, "--no-second-opinion").stdout


def test_quiet_prints_nothing_if_all_is_well(run: Run, study: Path) -> None:
    """So that cron sends no mail."""
    for command in (["verify", study, "--quiet"], ["verify", study, "--quiet", "--json"]):
        result = run(*command)
        assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--json"], ["--quiet", "--json"]])
def test_a_ledger_that_is_not_right_gets_1_and_names_the_entry(
    run: Run, study: Path, ledger: Ledger, tamper: Any, options: list[str]
) -> None:
    """The message is on standard error, also with --quiet."""
    ledger.close()
    tamper(study, ("UPDATE entries SET body = replace(body, 'ann', 'eve') WHERE number = 7", ()))
    result = run("verify", study, *options)
    assert result.exit_code == 1
    assert "entry 7: the body does not have the recorded hash" in result.stderr
    if "--json" in options:
        found = json.loads(result.stdout)
        assert found["ok"] is False
        assert any(problem.startswith("entry 7:") for problem in found["problems"])


def test_json_says_the_same(run: Run, study: Path) -> None:
    """Programs get figures as integers and exact fractions."""
    found, expected = json.loads(run("verify", study, "--json").stdout), verify(study)
    assert found["ok"] is True
    assert found["head"] == expected.head.hex()
    assert found["entries"] == expected.entries == 14
    people = found["accounts"][0]
    assert people["datasets"] == ["people", "people-2"]
    assert people["spent_cost_units"] == expected.accounts[0].spent_cost_units
    order = expected.accounts[0].order
    assert people["order"] == f"{order.numerator}/{order.denominator}"
    assert found["second_opinion"]["debits"] == 3


def test_a_price_that_is_too_low_is_found_by_both(
    run: Run, study: Path, ledger: Ledger, forge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forger who halves a price and all sums is found by our arithmetic and by dp-accounting's."""
    ledger.close()

    def cheaper(fields: dict[str, Any]) -> None:
        details = fields["details"]
        for name in ("cost_units", "spent_cost_units", "analyst_spent_cost_units"):
            details[name] //= 2

    forge(study, 7, cheaper)
    result = run("verify", study)
    assert result.exit_code == 1
    assert "entry 7: the debit is" in result.stderr
    assert "but by dp-accounting its events cost" in result.stderr


def test_a_cap_that_is_too_high_is_found_by_both(run: Run, study: Path, ledger: Ledger, forge: Any) -> None:
    """A cap of twice the promise converts back to more than the promise."""
    ledger.close()
    forge(study, 3, lambda fields: fields["details"].update(cap_cost_units=2 * fields["details"]["cap_cost_units"]))
    result = run("verify", study)
    assert result.exit_code == 1
    assert "entry 3: epsilon = 1 is promised, but by dp-accounting the cap allows" in result.stderr
    assert "cap_cost_units is" in result.stderr


@pytest.mark.parametrize("command", ["verify", "entries", "spend", "checkpoint", "show", "report"])
def test_what_is_no_ledger_gets_3(run: Run, tmp_path: Path, command: str) -> None:
    """Nothing there, a folder, another file, another database: there is nothing to judge."""
    rest = {"show": ["1"], "report": ["--out", str(tmp_path / "report.html")]}.get(command, [])
    foreign, database, empty = tmp_path / "foreign.db", tmp_path / "other.db", tmp_path / "empty.db"
    foreign.write_bytes(b"no ledger, but long enough to be looked at" * 100)
    empty.touch()
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE birds (name TEXT)")
    for path in (tmp_path / "nowhere.db", tmp_path, foreign, database, empty):
        result = run(command, path, *rest)
        assert result.exit_code == 3, result.output
        assert repr(str(path)) in result.stderr
    assert not (tmp_path / "report.html").exists()


def test_a_ledger_of_a_newer_version_gets_3(run: Run, study: Path, ledger: Ledger) -> None:
    """It says so, instead of judging by rules that may have changed."""
    ledger.close()
    with closing(sqlite3.connect(study)) as db:
        db.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('bursar_ledger', '9999_new', '')"
        )
        db.commit()
    result = run("verify", study)
    assert result.exit_code == 3
    assert "9999_new" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["verify"], ["verify", "{ledger}", "--nonsense"], ["verify", "{ledger}", "--checkpoints", "nowhere"],
     ["verify", "{ledger}", "--checkpoints", "stdout"], ["verify", "{ledger}", "--key", "no key"],
     ["show", "{ledger}", "99"], ["show", "{ledger}", "0"], ["entries", "{ledger}", "--since", "yesterday"],
     ["entries", "{ledger}", "--format", "parquet"], ["spend", "{ledger}", "--dataset", "nobody"]],
)  # fmt: skip
def test_what_was_not_understood_gets_2(run: Run, study: Path, arguments: list[str]) -> None:
    """And a sentence that says what was expected."""
    result = run(*(argument.format(ledger=study) for argument in arguments))
    assert result.exit_code == 2
    assert "Usage" in result.output


def test_an_empty_ledger_and_one_without_datasets(run: Run, tmp_path: Path, ledger: Ledger, tamper: Any) -> None:
    """A ledger that has just begun is right; one whose entries are gone is not."""
    path = tmp_path / "new.db"
    Ledger.create(path, actor="owner").close()
    out = tmp_path / "page.html"
    for command in (["verify"], ["entries"], ["spend"], ["spend", "--pld"], ["checkpoint"], ["report", "--out", out]):
        assert run(command[0], path, *command[1:]).exit_code == 0
    tamper(path, ("DELETE FROM entries", ()))
    result = run("verify", path)
    assert result.exit_code == 1
    assert "the ledger is empty" in result.stderr
    assert run("entries", path).exit_code == 0
    assert run("report", path, "--out", out).exit_code == 1


def test_damaged_pages_never_end_in_a_traceback(run: Run, study: Path, ledger: Ledger) -> None:
    """Bytes changed anywhere in the file: status 1 or 3, whatever the command."""
    ledger.close()
    with closing(sqlite3.connect(study)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
    whole = study.read_bytes()
    for offset in range(30, len(whole), len(whole) // 25):
        study.write_bytes(whole[:offset] + bytes(b ^ 0xA5 for b in whole[offset : offset + 40]) + whole[offset + 40 :])
        for command in (["verify"], ["entries"], ["spend"], ["checkpoint"]):
            assert run(command[0], study, *command[1:]).exit_code in (0, 1, 3)
    study.write_bytes(whole[: len(whole) // 2])
    assert run("verify", study).exit_code in (1, 3)


def test_a_schema_that_is_no_text_is_damage(run: Run, study: Path, ledger: Ledger) -> None:
    """SQLite's message quotes the name of a damaged table, here bytes that no text has."""
    ledger.close()
    with closing(sqlite3.connect(study, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET name = CAST(x'FFD0' AS TEXT), sql = 'CREATE' WHERE type = 'table'")
    assert run("verify", study).exit_code in (1, 3)
    with pytest.raises(LedgerError):
        adopt_copy(study)


@pytest.mark.parametrize("command", [[], ["verify"], ["entries"], ["show"], ["spend"], ["checkpoint"], ["report"]])
def test_every_command_teaches(run: Run, command: list[str]) -> None:
    """Help texts say what the exit status means."""
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Exit status:" in result.output
    assert "3  nothing to judge" in result.output
