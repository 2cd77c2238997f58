"""What an administrator types on the server's machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click.testing
import pytest

from bursar_ledger import Ledger, Role, verify
from bursar_server.admin.cli import main
from bursar_server.auth import hash_token
from bursar_server.state import State

MANIFEST = """
name = "heights"
adjacency = "replace_one"
[[columns]]
name = "height"
kind = "numeric"
lower = 0.0
upper = 3.0
"""


def _run(*arguments: object) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, [str(argument) for argument in arguments])


def _ok(*arguments: object) -> str:
    result = _run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def _refused(*arguments: object) -> str:
    result = _run(*arguments)
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A state directory made by `init`."""
    _ok("init", "--state", tmp_path / "state")
    return State.open(tmp_path / "state")


@pytest.fixture
def source(tmp_path: Path) -> list[object]:
    """Options that import a small table with a bad cell and a value out of range."""
    (tmp_path / "heights.csv").write_text("height\n1.5\n1.7\nnan\n9\n")
    (tmp_path / "heights.toml").write_text(MANIFEST)
    return ["--manifest", tmp_path / "heights.toml", "--csv", tmp_path / "heights.csv", "--epsilon", 1, "--delta", 1e-6]


def test_init_makes_everything_and_says_what_is_next(tmp_path: Path) -> None:
    """Ledger, keys, certificates, settings and a token that works, all for the owner only."""
    output = _ok("init", "--state", tmp_path / "s", "--name", "db.example", "--admin", "ada")
    state = State.open(tmp_path / "s")
    token_file = state.path / "admin.token"
    assert token_file.stat().st_mode & 0o777 == 0o600
    assert state.ledger.stat().st_mode & 0o077 == 0
    assert str(token_file) in output
    assert "bursar-server run" in output
    token = token_file.read_text().strip()
    assert token not in output
    with Ledger.open(state.ledger) as ledger:
        credential = ledger.credential(hash_token(token))
    assert credential is not None
    assert (credential.name, credential.role) == ("ada", Role.ADMIN)
    assert not list(state.path.glob("ledger.new*"))


def test_init_goes_on_after_a_crash_and_never_over_a_ledger(tmp_path: Path) -> None:
    """What an interrupted init left is made anew; a finished one is kept."""
    half = State.prepare(tmp_path / "s")
    (half.keys / "tables.key").write_bytes(b"half")
    half.ledger.with_name("ledger.new").write_bytes(b"half")
    _ok("init", "--state", half.path)
    before = half.ledger.read_bytes()
    assert "never reset" in _refused("init", "--state", half.path)
    assert half.ledger.read_bytes() == before


def test_an_import_registers_and_reports(state: State, source: list[object]) -> None:
    """The report counts what was done to the rows; the ledger's entry holds none of it."""
    output = _ok("import", "--state", state.path, *source, "--reason", "first")
    assert "4  rows read" in output
    assert "1  rows with a bad cell" in output
    assert "1  values moved" in output
    with Ledger.open(state.ledger) as ledger:
        assert ledger.dataset("heights").budget.epsilon == 1.0
        entry = list(ledger.entries())[-1]
    assert b"clipped" not in entry.body
    assert verify(state.ledger).ok
    assert "heights  replace_one  total (1, 1e-06)" in _ok("datasets", "--state", state.path)


def test_a_dataset_is_registered_once(state: State, source: list[object], tmp_path: Path) -> None:
    """Neither its name nor its rows come again, and a refusal leaves no snapshot behind."""
    _ok("import", "--state", state.path, *source)
    assert "registered already" in _refused("import", "--state", state.path, *source)
    (tmp_path / "heights.toml").write_text(MANIFEST.replace("heights", "again"))
    assert _refused("import", "--state", state.path, *source)
    assert len(list(state.datasets.iterdir())) == 1


def test_a_crash_before_the_registration_leaves_no_dataset(
    state: State, source: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot of an import that died is served by nobody, and the next import removes it."""

    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "register_dataset", crash)
        patch.setattr(shutil, "rmtree", lambda path, **_: None)  # as if killed at once
        assert _run("import", "--state", state.path, *source).exit_code != 0
    assert len(list(state.datasets.iterdir())) == 1
    assert not _ok("datasets", "--state", state.path)
    _ok("import", "--state", state.path, *source)
    assert len(list(state.datasets.iterdir())) == 1


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--sql", "SELECT 1"], "exactly one"),
        (["--database", "FILE"], "exactly one"),
        (["--epsilon", "nan"], "epsilon"),
        (["--epsilon", "-1"], "epsilon"),
        (["--delta", "0"], "delta"),
        (["--manifest", "FILE"], "columns"),
    ],
)
def test_a_bad_import_is_explained_without_a_traceback(
    state: State, source: list[object], tmp_path: Path, extra: list[str], message: str
) -> None:
    """One message that names what is wrong, and no entry."""
    (tmp_path / "bad.toml").write_text('name = "x"\nadjacency = "replace_one"\n')
    before = verify(state.ledger).head
    options = [str(tmp_path / "bad.toml") if option == "FILE" else option for option in extra]
    output = _refused("import", "--state", state.path, *source, *options)
    assert message in output
    assert verify(state.ledger).head == before


def test_parquet_and_sql_are_sources_too(state: State, source: list[object], tmp_path: Path) -> None:
    """The same rows from a query over a file are the same dataset."""
    _ok("import", "--state", state.path, *source)
    (tmp_path / "heights.toml").write_text(MANIFEST.replace("heights", "again"))
    query = f"FROM read_csv('{tmp_path / 'heights.csv'}')"
    options = [*source[:2], "--sql", query, *source[4:]]
    assert "registered already" in _refused("import", "--state", state.path, *options)


def test_tokens_are_issued_listed_and_revoked(state: State, tmp_path: Path) -> None:
    """The token is shown once, or written to a file for its owner only."""
    token = _ok("token", "issue", "--state", state.path, "--name", "alice", "--role", "analyst").strip()
    _ok("token", "issue", "--state", state.path, "--name", "eve", "--role", "auditor", "--out", tmp_path / "eve")
    assert (tmp_path / "eve").stat().st_mode & 0o777 == 0o600
    with Ledger.open(state.ledger) as ledger:
        assert ledger.credential(hash_token(token)) is not None
        assert ledger.credential(hash_token((tmp_path / "eve").read_text().strip())) is not None
    _ok("token", "revoke", "--state", state.path, "--name", "alice", "--reason", "left")
    listed = _ok("token", "list", "--state", state.path)
    assert "alice  analyst  revoked" in listed
    assert "eve  auditor  live" in listed
    assert _refused("token", "revoke", "--state", state.path, "--name", "alice")
    assert "name" in _refused("token", "issue", "--state", state.path, "--name", "a b", "--role", "analyst")


def test_every_command_wants_a_state_directory(tmp_path: Path) -> None:
    """Without one, the message says how to make it."""
    for command in (["datasets"], ["token", "list"], ["token", "revoke", "--name", "a"]):
        assert "bursar-admin init" in _refused(*command, "--state", tmp_path)
