"""Findings of fuzzing: once wrong, now refused as documented."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import bursar
from bursar._cli._app import app
from bursar._history import Shelf
from bursar_ledger import Ledger
from bursar_ledger.audit.cli import main as audit
from bursar_server.config import Config, ConfigError
from bursar_server.tables import Manifest, ManifestError

DEEP = "[" * 100_000
"""Depth beyond that of Python's parsers: they raise RecursionError, which is none of their own errors."""


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (Config.load, ConfigError),
        (Manifest.load, ManifestError),
        (bursar.load, ValueError),
        (bursar.load_sketch, bursar.InvalidRequestError),
        (lambda path: Shelf(path, "s").load(), bursar.InvalidRequestError),
    ],
)
@pytest.mark.parametrize("text", [DEEP, "x = " + DEEP, '{"columns": ' + DEEP, "x = " + "9" * 5000])
def test_a_file_of_brackets_or_digits_is_refused(
    tmp_path: Path, read: Callable[[Path], object], error: type[Exception], text: str
) -> None:
    """The reader's own error refuses brackets without end, and a number that Python does not convert."""
    (tmp_path / "file").write_text(text)
    with pytest.raises(error):
        read(tmp_path / "file")


def test_so_is_one_that_the_command_line_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start in a file: a message and a status, no traceback."""
    (tmp_path / "start.json").write_text(DEEP)
    monkeypatch.setenv("BURSAR_ADDRESS", "127.0.0.1:1")
    words = ["fit", "dpem", "people", "--n-components", "2", "--rho", "1", "--start", str(tmp_path / "start.json")]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, SystemExit)
    assert "is no JSON" in result.output


@pytest.mark.parametrize("words", [("verify",), ("spend",), ("show", "1")])
@pytest.mark.parametrize("name", [None, b"\xff", -1])
def test_a_ledger_whose_migrations_are_unnamed_is_refused(tmp_path: Path, words: tuple[str, ...], name: object) -> None:
    """The message says that its version is not known here."""
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, actor="test").close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f'DROP TRIGGER "{trigger}"')
        db.execute("UPDATE _sqlite_migrations SET name = ? WHERE rowid = 1", (name,))
        db.commit()
    command, *more = words
    result = CliRunner().invoke(audit, [command, str(path), *more])
    assert (result.exit_code, type(result.exception)) == (3, SystemExit)
    assert "newer version" in result.output
