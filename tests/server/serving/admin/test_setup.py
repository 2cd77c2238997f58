"""Making a state directory, copying its ledger, and what all commands have in common."""

from __future__ import annotations

import dataclasses
import getpass
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import click.testing
import pytest

from bursar_ledger import Ledger, Role, verify
from bursar_server.access.auth import hash_token
from bursar_server.admin.cli import main
from bursar_server.state import State

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin


def _commands(group: click.Command, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    if not isinstance(group, click.Group):
        return {path: group}
    below = [_commands(command, (*path, name)) for name, command in group.commands.items()]
    return {path: group, **{name: command for found in below for name, command in found.items()}}


COMMANDS = _commands(main)
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}


def test_init_makes_everything_and_says_what_is_next(tmp_path: Path) -> None:
    """Ledger, keys, certificates, settings and a token that works, all for the owner only."""
    words = ["init", "--state", str(tmp_path / "s"), "--name", "db.example", "--admin", "ada"]
    output = click.testing.CliRunner().invoke(main, words).output
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
    """The remains of an interrupted init are made anew; a finished one is kept."""
    half = State.prepare(tmp_path / "s")
    (half.keys / "checkpoint.key").write_bytes(b"half")
    half.ledger.with_name("ledger.new").write_bytes(b"half")
    init = ["init", "--state", str(half.path)]
    assert click.testing.CliRunner().invoke(main, init).exit_code == 0
    before = half.ledger.read_bytes()
    assert "never reset" in click.testing.CliRunner().invoke(main, init).output
    assert half.ledger.read_bytes() == before


@pytest.mark.parametrize("step", ["create", "issue_credential", "set_checkpoint_key"])
def test_a_crash_while_the_ledger_is_made_leaves_no_state_directory(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it comes, there is no ledger of the final name, and init begins anew."""
    made = Ledger.create

    def crash(*arguments: Any, **options: Any) -> None:
        if step == "create":  # the file is there, and has no tables
            Path(arguments[0]).touch(0o600)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, step, crash)
        assert click.testing.CliRunner().invoke(main, ["init", "--state", str(tmp_path / "s")]).exit_code != 0
    assert Ledger.create == made
    assert not (tmp_path / "s" / "ledger.sqlite").exists()
    assert list((tmp_path / "s").glob("ledger.new*"))
    assert click.testing.CliRunner().invoke(main, ["init", "--state", str(tmp_path / "s")]).exit_code == 0
    assert verify(tmp_path / "s" / "ledger.sqlite").ok


def test_a_bad_setting_stops_init_before_there_is_a_ledger(tmp_path: Path) -> None:
    """Correcting it and trying again is all there is to do."""
    (tmp_path / "config.toml").write_text("fit_workers = 0")
    result = click.testing.CliRunner().invoke(main, ["init", "--state", str(tmp_path)])
    assert "fit_workers" in result.output
    assert not (tmp_path / "ledger.sqlite").exists()
    (tmp_path / "config.toml").write_text("")
    assert click.testing.CliRunner().invoke(main, ["init", "--state", str(tmp_path)]).exit_code == 0


def test_a_copy_of_a_state_directory_is_named_once(admin: Admin, tmp_path: Path) -> None:
    """The copy has forgotten what was spent since it was made, which only a restore makes good."""
    admin.add()
    assert "warning" not in admin.ok("datasets")
    shutil.copytree(admin.state.path, tmp_path / "copied")
    copied = dataclasses.replace(admin, state=State.open(tmp_path / "copied"))
    found = [("is not the file of its last run, but a copy" in copied.ok("datasets")) for _ in range(2)]
    assert found == [True, False]


def test_a_backup_is_a_verified_copy_that_replaces_nothing(admin: Admin, tmp_path: Path) -> None:
    """It is taken while the ledger is open elsewhere, and is what it was then."""
    admin.add()
    with Ledger.open(admin.state.ledger) as ledger:
        output = admin.ok("backup", tmp_path / "copy")
        assert ledger.head().hex() in output
    assert verify(tmp_path / "copy").head == admin.verified.head
    before = (tmp_path / "copy").read_bytes()
    assert "overwrites nothing" in admin.refused("backup", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == before


def test_a_copy_that_does_not_verify_is_no_backup(
    admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read back from the disk, and a bad one is named as such."""

    def torn(ledger: Ledger, path: Path) -> None:
        Path(path).write_bytes(b"torn")

    monkeypatch.setattr(Ledger, "backup", torn)
    assert "does not verify" in admin.refused("backup", tmp_path / "copy")


@pytest.mark.parametrize("error", [KeyError("no such user"), OSError("no such user")])
def test_a_user_without_a_name_acts_under_his_number(
    admin: Admin, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run under a number that no passwd entry names."""

    def nameless() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", nameless)
    admin.ok("token", "issue", "--name", "alice", "--role", "analyst")
    assert admin.entries()[-1].actor == f"local:uid:{os.getuid()}"


def test_what_the_system_refuses_is_one_line(admin: Admin, tmp_path: Path) -> None:
    """A folder that is not there is named, without a traceback, and no token is in force that nobody has."""
    output = admin.refused("token", "issue", "--name", "alice", "--role", "analyst", "--out", tmp_path / "no" / "file")
    assert "No such file or directory" in output
    assert admin.entries()[-1].kind != "credential_issued"


def test_a_ledger_that_does_not_verify_is_one_line(admin: Admin) -> None:
    """The message says so, and nothing is changed."""
    admin.state.ledger.write_bytes(b"not a ledger at all")
    assert len(admin.refused("datasets").splitlines()) == 1


def test_bad_settings_stop_an_act_before_it_is_done(admin: Admin) -> None:
    """An act that could not be witnessed by a checkpoint is not done."""
    before = admin.verified.head
    admin.state.config.write_text("fit_workers = 0")
    assert "fit_workers" in admin.refused("token", "issue", "--name", "alice", "--role", "analyst")
    assert admin.verified.head == before


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 501])
def test_a_reason_is_one_printable_line(admin: Admin, reason: str) -> None:
    """A reader of the ledger sees what was written."""
    words = ("token", "issue", "--name", "alice", "--role", "analyst", "--reason", reason)
    assert "printable" in admin.refused(*words)


def test_every_command_wants_a_state_directory(tmp_path: Path) -> None:
    """The message without one says how to make it."""
    for command in (["datasets"], ["token", "list"], ["token", "revoke", "--name", "a"], ["acts"]):
        result = click.testing.CliRunner().invoke(main, [*command, "--state", str(tmp_path)])
        assert result.exit_code == 1
        assert "bursar-admin init" in result.output


def test_the_commands_come_in_the_order_of_an_owners_work() -> None:
    """Making before importing, importing before sharing out, retirement late."""
    listed = click.testing.CliRunner().invoke(main, ["--help"]).output.partition("Commands:")[2]
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    wanted = ["init", "import", "budget", "allowance", "token", "snapshot", "retire", "backup"]
    assert [name for name in names if name in wanted] == wanted


def test_every_act_can_be_tried_and_says_why() -> None:
    """Every command that writes an entry has --dry-run and --reason; those that read or copy have neither."""
    reading = {"show", "list", "datasets", "acts", "key", "init", "merge"}
    reading |= {"write", "backup", "restore", "partition"}
    reading |= {"serve"}  # whose changes are made by the other commands
    reading |= {"new", "check", "schema"}  # of manifests, which are files
    reading |= {"statement", "dpia", "registry"}  # documents
    reading |= {"plan"}  # which opens no state
    reading |= {"quickstart"}  # runs init and import, which say what they do
    for path, command in LEAVES.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert ({"--dry-run", "--reason"} <= options) == (path[-1] not in reading), path
