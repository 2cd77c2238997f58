"""`bursar-audit` on the ledger file alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bursar_ledger import DebitRequest, Ledger, Role
from bursar_ledger.audit_cli import main

Run = Callable[..., Result]


@pytest.fixture
def run(ledger: Ledger, ask: Callable[..., DebitRequest], path: Path) -> Run:
    """Runs a command on a ledger with two debits and one release."""
    ledger.store_release(ledger.debit(ask("a")).entry, b"model")
    ledger.debit(ask("b", principal="bob"))
    ledger.issue_credential("ann", Role.ANALYST, bytes(32), actor="owner", reason="project")
    ledger.revoke_credential("ann", actor="owner", reason="left")

    def invoke(command: str, *arguments: str) -> Result:
        return CliRunner().invoke(main, [command, str(path), *arguments])

    return invoke


def test_verify_prints_spend_and_head(run: Run, ledger: Ledger) -> None:
    """A ledger that is right exits 0, with a line a dataset and the head to compare."""
    result = run("verify")
    assert result.exit_code == 0, result.output
    assert ledger.head().hex() in result.output
    line = next(line for line in result.output.splitlines() if line.startswith("people"))
    assert line.split()[1:3] == ["3", "1e-06"]
    assert line.split()[4] == "2"


def test_verify_fails_and_names_the_entry(run: Run, ledger: Ledger, tamper: Any, path: Path) -> None:
    """A ledger that is not right exits 1."""
    ledger.close()
    tamper(path, ("UPDATE entries SET body = replace(body, 'ann', 'eve') WHERE number = 3", ()))
    result = run("verify")
    assert result.exit_code == 1
    assert "entry 3: the body does not have the recorded hash" in result.output


def test_entries_are_listed_and_filtered(run: Run) -> None:
    """One line an entry; a dataset's own with --dataset."""
    everything, people = run("entries"), run("entries", "--dataset", "people")
    assert everything.exit_code == people.exit_code == 0
    assert [line.split()[2] for line in everything.output.splitlines()[1:]] == [
        "genesis",
        "registration",
        "debit",
        "release",
        "debit",
        "credential_issued",
        "credential_revoked",
    ]
    assert len(people.output.splitlines()) == 5
    assert "request b" in people.output
    assert run("entries", "--dataset", "nobody").output.splitlines()[1:] == []


def test_show_prints_the_hashed_body(run: Run, ledger: Ledger) -> None:
    """All of one entry, readable, with its hash."""
    result = run("show", "3")
    body, _, digest = result.output.rpartition("hash: ")
    entry = next(iter(ledger.entries(3, 1)))
    assert json.loads(body) == json.loads(entry.body)
    assert digest.strip() == entry.hash.hex()


def test_unknown_entries_and_foreign_files_are_refused(run: Run, tmp_path: Path) -> None:
    """Exit status 1 with a sentence, no traceback."""
    assert run("show", "99").exit_code == 1
    foreign = tmp_path / "foreign.db"
    foreign.write_bytes(b"no ledger")
    for command in (["verify"], ["entries"], ["show", "1"]):
        result = CliRunner().invoke(main, [command[0], str(foreign), *command[1:]])
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)


def test_control_characters_are_made_visible(run: Run, ledger: Ledger, tamper: Any, path: Path) -> None:
    """A forged ledger cannot write to the auditor's terminal."""
    ledger.close()
    tamper(path, ("UPDATE entries SET body = replace(body, 'bob', '\\u001b[2J') WHERE number = 5", ()))
    result = run("entries")
    assert "\x1b" not in result.output
    assert "\\x1b[2J" in result.output


@pytest.mark.parametrize("command", [[], ["verify"], ["entries"], ["show"]])
def test_every_command_has_help(command: list[str]) -> None:
    """Help texts exist."""
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 3
