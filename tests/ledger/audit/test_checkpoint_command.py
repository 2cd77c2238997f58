"""Signed checkpoints through the auditor's commands: an old copy and a forged history are caught, and named."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bursar_ledger import Ledger
from bursar_ledger.checkpoints import FilePlace, GitPlace, SigningKey, checkpoint_of, origin_of, sign

Run = Callable[..., Result]


@pytest.fixture
def key(ledger: Ledger) -> SigningKey:
    """The ledger's signing key, named in its chain."""
    made = SigningKey.create(origin_of(ledger.ledger_id))
    ledger.set_checkpoint_key(str(made.verifier), actor="owner", reason="test")
    return made


@pytest.fixture
def place(tmp_path: Path) -> FilePlace:
    """A history file."""
    made = FilePlace("elsewhere", tmp_path / "elsewhere")
    made.create()
    return made


def _witness(ledger: Ledger, key: SigningKey, place: FilePlace | GitPlace) -> None:
    place.write(sign(checkpoint_of(ledger), key))


def test_checkpoint_without_notes_prints_what_to_keep(run: Run, study: Path, ledger: Ledger) -> None:
    """It prints which ledger, its size and its head, and that nobody signed them."""
    result = run("checkpoint", study)
    assert result.exit_code == 0
    assert ledger.ledger_id in result.stdout
    assert ledger.head().hex() in result.stdout
    assert "size     14" in result.stdout
    assert "unsigned" in result.stdout


def test_a_history_that_is_witnessed(run: Run, ledger: Ledger, path: Path, key: SigningKey, place: FilePlace) -> None:
    """Up to the newest signed entry; what came after it is said, too. Without a pinned key it warns."""
    _witness(ledger, key, place)
    ledger.set_allowance("people", "ann", None, actor="owner", reason="test")
    pinned = run("checkpoint", path, place.path, "--key", str(key.verifier))
    assert pinned.exit_code == 0, pinned.output
    assert "1 signed checkpoint; history is witnessed up to entry 3, not yet the 1 after it" in pinned.stdout
    assert "pin yours" not in pinned.stdout
    assert "pin yours with --key" in run("checkpoint", path, place.path).stdout
    _witness(ledger, key, place)
    assert "witnessed up to entry 4, all of it" in run("checkpoint", path, place.path).stdout


def test_one_note_in_a_file_of_its_own(run: Run, ledger: Ledger, path: Path, key: SigningKey, tmp_path: Path) -> None:
    """It may be as somebody saves it from a mail."""
    note = tmp_path / "note"
    note.write_text(sign(checkpoint_of(ledger), key))
    result = run("checkpoint", path, note, "--key", str(key.verifier))
    assert result.exit_code == 0, result.output
    assert "witnessed up to entry 3" in result.stdout


def test_an_older_copy_is_caught(
    run: Run, ledger: Ledger, path: Path, key: SigningKey, place: FilePlace, tmp_path: Path
) -> None:
    """It verifies by itself, and not beside a checkpoint: by the command, by verify, and in the report."""
    old = tmp_path / "old.db"
    ledger.backup(old)
    ledger.set_allowance("people", "ann", None, actor="owner", reason="test")
    _witness(ledger, key, place)
    assert run("verify", old).exit_code == 0
    page = tmp_path / "page.html"
    for command in (
        ["checkpoint", old, place.path],
        ["verify", old, "--checkpoints", f"file:{place.path}"],
        ["verify", old, "--checkpoints", place.path, "--key", str(key.verifier), "--quiet"],
        ["report", old, "--out", page, "--checkpoints", place.path],
    ):
        result = run(*command)
        assert result.exit_code == 1
        assert "the ledger ends at entry 3, but note 1" in result.stderr
    assert "the ledger ends at entry 3" in page.read_text()


def test_a_history_that_was_written_anew_is_caught(
    run: Run, ledger: Ledger, path: Path, key: SigningKey, place: FilePlace, forge: Any
) -> None:
    """Every hash is right again, but not those that were signed."""
    _witness(ledger, key, place)
    ledger.close()
    forge(path, 2, lambda fields: fields["details"].update(reason="another"))
    assert run("verify", path).exit_code == 0
    result = run("verify", path, "--checkpoints", place.path)
    assert result.exit_code == 1
    assert "history differs from what was signed" in result.stderr


def test_verify_says_how_far_history_is_witnessed(
    run: Run, ledger: Ledger, path: Path, key: SigningKey, place: FilePlace, tmp_path: Path
) -> None:
    """It does for every place, also in JSON; the key may lie in a file."""
    _witness(ledger, key, place)
    pinned = tmp_path / "audit.vkey"
    pinned.write_text(f"{key.verifier}\n")
    result = run("verify", path, "--checkpoints", place.path, "--key", pinned)
    assert result.exit_code == 0
    assert "1 signed checkpoint; history is witnessed up to entry 3, all of it" in result.stdout
    found = json.loads(run("verify", path, "--checkpoints", place.path, "--key", pinned, "--json").stdout)
    assert found["witnessed"] == 3
    assert found["key"] == str(key.verifier)
    assert found["checkpoints"][0]["notes"] == 1


def test_a_git_folder(run: Run, ledger: Ledger, path: Path, key: SigningKey, tmp_path: Path) -> None:
    """Named as a place or by its path."""
    folder = GitPlace("git", tmp_path / "notes")
    folder.create()
    _witness(ledger, key, folder)
    for text in (folder.folder, f"git:{folder.folder}"):
        assert "witnessed up to entry 3" in run("verify", path, "--checkpoints", text).stdout


def test_a_place_that_is_empty_or_gone_is_a_problem(run: Run, ledger: Ledger, path: Path, key: SigningKey) -> None:
    """An unmounted disk is not a clean bill."""
    ledger.set_allowance("people", "ann", None, actor="owner", reason="test")
    result = run("verify", path, "--checkpoints", "file:/nowhere/at/all")
    assert result.exit_code == 1
    assert "there is no checkpoint" in result.stderr


def test_a_key_that_the_ledger_does_not_name_is_a_problem(
    run: Run, ledger: Ledger, path: Path, key: SigningKey
) -> None:
    """Even without checkpoints: it is another ledger than the one whose key was pinned."""
    stranger = SigningKey.create("bursar/another").verifier
    assert run("verify", path, "--key", str(key.verifier)).exit_code == 0
    result = run("verify", path, "--key", str(stranger))
    assert result.exit_code == 1
    assert f"the ledger does not name the key {stranger}" in result.stderr


def test_notes_that_cannot_be_read(run: Run, ledger: Ledger, path: Path, key: SigningKey, tmp_path: Path) -> None:
    """No file is status 3; a file that holds no note, or one of another ledger, is a problem."""
    nonsense, other = tmp_path / "nonsense", tmp_path / "other"
    nonsense.write_bytes(b"\xff\x00 what is this")
    stranger = SigningKey.create("bursar/another")
    checkpoint = checkpoint_of(ledger)
    other.write_text(sign(type(checkpoint)("bursar/another", 1, bytes(32)), stranger))
    assert run("checkpoint", path, tmp_path / "nowhere").exit_code == 3
    assert run("checkpoint", path, tmp_path).exit_code == 3
    for file in (nonsense, other):
        result = run("checkpoint", path, file)
        assert result.exit_code == 1
        assert f"{file}: note 1: " in result.stderr


def test_a_chain_that_is_broken_is_reported_before_notes(
    run: Run, ledger: Ledger, path: Path, key: SigningKey, place: FilePlace, tamper: Any
) -> None:
    """Checkpoints vouch for a head; whether the entries before it belong to it is the chain's to say."""
    _witness(ledger, key, place)
    ledger.close()
    tamper(path, ("UPDATE entries SET body = replace(body, 'test', 'TEST') WHERE number = 2", ()))
    result = run("checkpoint", path, place.path)
    assert result.exit_code == 1
    assert "entry 2: the body does not have the recorded hash" in result.stderr


def test_without_cryptography_the_rest_works(
    run: Run, study: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only keys and checkpoints need it, and say so."""
    monkeypatch.setitem(sys.modules, "bursar_ledger.checkpoints", None)
    assert run("verify", study).exit_code == 0
    shutil.copy(study, tmp_path / "note")
    for options in (["--key", "a+b+c"], ["--checkpoints", tmp_path / "note"]):
        result = run("verify", study, *options)
        assert result.exit_code == 2
        assert "pip install './bursar[audit]'" in result.stderr
    assert run("checkpoint", study, tmp_path / "note").exit_code == 2
