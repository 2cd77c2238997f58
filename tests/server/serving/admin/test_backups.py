"""Backups of a whole state directory, and what is safe when one is put back."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click.testing
import pytest

from bursar_ledger import (
    ApproximateEvent,
    BudgetExhaustedError,
    DebitRequest,
    DebitStatus,
    GaussianEvent,
    Ledger,
    PureEvent,
    adopt_copy,
    verify,
)
from bursar_ledger.refusals import FILE, Refusals, read_refusals
from bursar_server.admin.cli import main
from bursar_server.config import Config
from bursar_server.ops import backups
from bursar_server.ops.backups import back_up
from bursar_server.ops.checkpoints import CheckpointError, open_checkpoints
from bursar_server.ops.doctor import check
from bursar_server.state import State, StateError

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin

OTHER_ROWS = "height\n1.1\n1.2\n"


def _restored(admin: Admin, backup: Path, name: str = "restored") -> tuple[Admin, str]:
    """Return what `restore` makes of a backup, and what it says."""
    words = ["restore", str(backup), "--state", str(admin.files / name), "--reason", "the disk broke"]
    result = click.testing.CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return type(admin)(State.open(admin.files / name), admin.files), result.output


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_whole_backup_is_a_state_directory_for_its_owner_only(admin: Admin, tmp_path: Path) -> None:
    """Ledger, refusals, settings, keys, certificates and tables; no token, mark or checkpoint; all of it private."""
    admin.add()
    (admin.state.path / "clients.pem").write_text("an authority")
    counted = Refusals(admin.state.path / FILE)
    counted.note(analyst="eve", dataset="heights", method="FitDPEM", refused_by="total")
    output = admin.ok("backup", "--whole", tmp_path / "copy")
    counted.close()
    assert admin.verified.head.hex() in output
    copy = State.open(tmp_path / "copy")
    assert verify(copy.ledger).head == admin.verified.head
    (refusal,) = read_refusals(copy.path / FILE)
    assert refusal.analyst == "eve"
    kept, found = _files(admin.state.path), _files(copy.path)
    differ = {
        "ledger.sqlite",
        "ledger.sqlite-shm",
        "ledger.sqlite-wal",
        "ledger.sqlite-mark",
        FILE,
        "admin.token",
        "backup.json",
        "checkpoints",
    }
    assert {name: kept[name] for name in kept if name not in differ} == {
        name: found[name] for name in found if name not in differ
    }
    assert "clients.pem" in found
    assert not {"admin.token", "backup.json", "checkpoints", "ledger.sqlite-mark"} & set(found)
    for path in (copy.path, *copy.path.rglob("*")):
        public = path.parent == copy.tls and path.suffix == ".pem" and "key" not in path.name
        assert public or not stat.S_IMODE(path.stat().st_mode) & 0o077 or path.name == "clients.pem", path
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    before = _files(copy.path)
    assert "overwrites nothing" in admin.refused("backup", "--whole", tmp_path / "copy")
    assert _files(copy.path) == before


def test_a_backup_may_leave_the_rows_out(admin: Admin, tmp_path: Path) -> None:
    """Restored, the ledger is there, and the rows are asked for by name."""
    admin.add()
    assert "goes with --whole" in admin.refused("backup", "--no-rows", tmp_path / "none")
    admin.ok("backup", "--whole", "--no-rows", tmp_path / "copy")
    assert list((tmp_path / "copy" / "datasets").iterdir()) == []
    restored, said = _restored(admin, tmp_path / "copy")
    assert "rows that are not in the backup: heights" in said
    restored.ok("snapshot", *restored.table("heights"), "--yes")
    assert restored.verified.ok


def _debit_for_ever(path: str, name: str, stop: Any) -> None:
    with Ledger.open(path) as ledger:
        for i in range(100_000):
            if stop.is_set():
                return
            request = DebitRequest(
                "heights", name, f"r{i}", bytes(32), "FitDPEM", (GaussianEvent(1, Fraction(10_000)),)
            )
            ledger.store_release(ledger.debit(request).entry, os.urandom(2000))


@pytest.mark.slow
def test_backups_are_whole_while_fits_are_debited(admin: Admin, tmp_path: Path) -> None:
    """Two processes debit and release; each backup verifies, is a beginning of the history, and can be restored."""
    admin.add()
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    writers = [
        context.Process(target=_debit_for_ever, args=(str(admin.state.ledger), name, stop)) for name in ("ann", "bob")
    ]
    for writer in writers:
        writer.start()
    try:
        with Ledger.open(admin.state.ledger) as ledger:
            while ledger.newest()[0] < 20:
                time.sleep(0.05)
            sizes = []
            for i in range(4):
                found = back_up(admin.state, ledger, tmp_path / f"copy{i}")
                assert found.problems == ()
                sizes.append((found.entries, found.head))
    finally:
        stop.set()
        for writer in writers:
            writer.join(600)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert sizes[0][0] < sizes[-1][0] <= admin.verified.entries
    with Ledger.open(admin.state.ledger) as ledger:
        assert [ledger.hash_at(entries) for entries, _ in sizes] == [head for _, head in sizes]
    restored, _ = _restored(admin, tmp_path / "copy1")
    assert restored.verified.entries > sizes[1][0]
    with Ledger.open(restored.state.ledger) as ledger:
        assert ledger.hash_at(sizes[1][0]) == sizes[1][1]


def test_imports_and_backups_wait_for_each_other(admin: Admin, tmp_path: Path) -> None:
    """So the copy has the rows and keys that its ledger names."""
    admin.add()
    with admin.state.importing():
        assert "under way" in admin.refused("backup", "--whole", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    admin.ok("backup", tmp_path / "ledger-alone")


KILLED = """
import os, pathlib, shutil, signal, sys
from bursar_ledger import Ledger
from bursar_server.ops import backups
from bursar_server.state import State
copy = shutil.copytree
def die(*args, **kwargs):
    copy(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
shutil.copytree = die
state = State(pathlib.Path(sys.argv[2]))
if sys.argv[1] == "backup":
    with Ledger.open(state.ledger) as ledger:
        backups.back_up(state, ledger, pathlib.Path(sys.argv[3]))
else:
    backups.restore(pathlib.Path(sys.argv[3]), state.path, actor="test", reason="")
"""


def _kill(what: str, state: Path, path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, what, str(state), str(path)], check=False, timeout=600)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_killed_backup_is_none(admin: Admin, tmp_path: Path) -> None:
    """Nothing has its name, the state is served on, and the next one removes what is left."""
    admin.add()
    _kill("backup", admin.state.path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert (tmp_path / ".copy.partial").is_dir()
    admin.add("others", OTHER_ROWS)
    admin.ok("backup", "--whole", tmp_path / "copy")
    assert not (tmp_path / ".copy.partial").exists()
    assert verify(tmp_path / "copy" / "ledger.sqlite").head == admin.verified.head


@pytest.mark.parametrize("part", ["_copy_files", "verify", "_flush"])
def test_a_backup_that_fails_leaves_nothing(
    admin: Admin, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is one cause."""
    admin.add()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(backups, part, full)
        assert "No space left" in admin.refused("backup", "--whole", tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir() if "copy" in path.name] == []
    admin.ok("backup", "--whole", tmp_path / "copy")


def test_two_backups_of_one_name_do_not_mix(admin: Admin, tmp_path: Path) -> None:
    """The second one is told to wait, and spoils nothing."""
    with (
        backups._partial(tmp_path / "copy"),
        Ledger.open(admin.state.ledger) as ledger,
        pytest.raises(StateError, match="being written"),
    ):
        back_up(admin.state, ledger, tmp_path / "copy")


def test_a_copy_that_does_not_verify_is_no_backup(
    admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read back, and goes."""
    monkeypatch.setattr(Ledger, "backup", lambda ledger, path: Path(path).write_bytes(b"torn"))
    admin.refused("backup", "--whole", tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir() if "copy" in path.name] == []


def test_what_is_served_is_not_restored(admin: Admin, tmp_path: Path) -> None:
    """A server that goes on would spend the same budget beside the new one; a backup of it is taken."""
    with admin.state.serving():
        with pytest.raises(StateError, match="stop it first"):
            backups.restore(admin.state.path, tmp_path / "twin", actor="test", reason="")
        assert not (tmp_path / "twin" / "ledger.sqlite").exists()
        admin.ok("backup", str(tmp_path / "copy"), "--whole")
        _restored(admin, tmp_path / "copy")
    _restored(admin, admin.state.path, "later")


def test_what_is_restored_gives_no_budget_back(admin: Admin, tmp_path: Path) -> None:
    """Closed until the owner has brought back what was spent since; then exactly as much is left as there was."""
    admin.add()
    admin.add("others", OTHER_ROWS)
    admin.spend("r1")
    admin.ok("backup", "--whole", tmp_path / "copy")
    admin.spend("r2")
    admin.spend("r3", analyst="bob", scale=20)
    with Ledger.open(admin.state.ledger) as ledger:
        truth = ledger.dataset("heights").remaining
    restored, said = _restored(admin, tmp_path / "copy")
    assert "closed accounts: heights, others" in said
    for dataset in ("heights", "others"):
        with pytest.raises(BudgetExhaustedError) as caught:
            restored.spend("r4", dataset=dataset, scale=10_000)
        assert caught.value.limit == "call"
    assert "the disk broke" in restored.entries()[-1].details["reason"]
    # One debit is known from an analyst's receipt, the other from what a later receipt says is left.
    restored.ok("write-off", "heights", "--analyst", "alice", "--rho", "0.005", "--yes", "--reason", "her receipt")
    with pytest.raises(BudgetExhaustedError):  # still closed
        restored.spend("r4", scale=10_000)
    output = restored.ok("write-off", "heights", "--left-rho", repr(truth.rho), "--yes", "--reason", "his receipt")
    assert "after:" in output
    with Ledger.open(restored.state.ledger) as ledger:
        left = ledger.dataset("heights").remaining
    assert truth.cost_units - 2 <= left.cost_units <= truth.cost_units
    spent, really = (one.verified.accounts[0].analysts["alice"] for one in (restored, admin))
    assert spent == really
    restored.ok("call-limit", "end", "heights")
    restored.spend("r4", scale=10_000)
    assert restored.verified.ok


def test_an_account_of_retired_tables_is_closed_too(admin: Admin, tmp_path: Path) -> None:
    """A table that joined it after the backup, and is imported again, gets nothing of what was spent through it."""
    admin.add()
    admin.spend("r1")
    admin.ok("retire", "heights", "--yes")
    admin.ok("backup", "--whole", tmp_path / "copy")
    joins = ("import", *admin.table("again", OTHER_ROWS), "--same-people-as", "heights")
    admin.ok(*joins)
    admin.spend("r2", dataset="again", scale=20)
    with Ledger.open(admin.state.ledger) as ledger:
        truth = ledger.dataset("again").remaining
    restored, said = _restored(admin, tmp_path / "copy")
    assert "closed accounts: heights" in said
    restored.ok(*joins)
    with pytest.raises(BudgetExhaustedError) as caught:
        restored.spend("r3", dataset="again", scale=10_000)
    assert caught.value.limit == "call"
    restored.ok("write-off", "again", "--left-rho", repr(truth.rho), "--yes", "--reason", "the receipt of r2")
    restored.ok("call-limit", "end", "again")
    restored.spend("r3", dataset="again", scale=10_000)
    assert restored.verified.ok


def test_all_that_is_left_can_be_written_off(admin: Admin, tmp_path: Path) -> None:
    """The last unit goes, too, failures of approximate releases included; then more cannot be written off."""
    admin.ok("import", *admin.table("heights"), "--epsilon", 1, "--delta", 1e-6, "--approximate-share", "1/2")
    admin.ok("call-limit", "set", "heights", "--share", "1/10")
    dry = admin.ok("write-off", "heights", "--all", "--dry-run")
    assert "it would be a debit of local:root: epsilon 1 (100%) of the total, rho 0.0" in dry
    assert dry.endswith(", 5e-07 of delta\n")
    before = admin.verified.entries
    admin.ok("write-off", "heights", "--all", "--yes", "--reason", "nobody knows")
    (account,) = admin.verified.accounts
    assert (account.spent_cost_units, account.spent_delta_units) == (account.cap_cost_units, account.cap_delta_units)
    assert account.call_share == Fraction(1, 10)
    kinds = [entry.kind for entry in admin.entries()[before:]]
    assert kinds == ["call_limit", "debit", "call_limit", "release"]
    assert admin.entries()[-3].details["parameters"]["reason"] == "nobody knows"
    assert "nothing to write off" in admin.refused("write-off", "heights", "--all", "--yes")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "exactly one of"),
        (("--all", "--rho", "1"), "exactly one of"),
        (("--all", "--delta", "1e-9"), "--delta goes with"),
        (("--spent", "1%", "--left", "1%"), "exactly one of"),
        (("--left", "100%"), "as much is left"),
        (("--spent", "0%"), "nothing to write off"),
        (("--rho", "0"), "nothing to write off"),
        (("--rho", "nan"), "not a number"),
        (("--rho", "-1"), "not a number"),
        (("--left-rho", "5"), "as much is left"),
        (("--rho", "5"), "the request costs"),
        (("--rho", "0.001", "--delta", "0.5"), "delta"),
    ],
)
def test_what_cannot_be_written_off_is_refused(admin: Admin, words: tuple[str, ...], said: str) -> None:
    """And changes nothing."""
    admin.add()
    before = admin.verified.head
    assert said in admin.refused("write-off", "heights", *words, "--yes")
    assert admin.verified.head == before


def test_percents_of_a_receipt_are_never_too_little(admin: Admin) -> None:
    """Spent amounts are shown rounded up, what was left rounded down, and both are written off to the unit."""
    admin.add()
    cap = admin.verified.accounts[0].cap_cost_units
    admin.ok("write-off", "heights", "--spent", "20.7%", "--yes")
    assert 0 <= admin.verified.accounts[0].spent_cost_units - cap * Fraction("0.207") < 2
    admin.ok("write-off", "heights", "--left", "55.5%", "--yes")
    assert 0 <= admin.verified.accounts[0].spent_cost_units - cap * Fraction("0.445") < 2
    admin.refused("write-off", "heights", "--left", "56%", "--yes")


def test_a_debit_with_a_failure_is_written_off_with_both_amounts(admin: Admin) -> None:
    """The amounts are those of the analyst's receipt."""
    admin.ok("import", *admin.table("heights"), "--epsilon", 1, "--delta", 1e-6, "--approximate-share", "1/2")
    admin.ok("write-off", "heights", "--rho", "0.001", "--delta", "1e-8", "--yes")
    (debit,) = [entry for entry in admin.entries() if entry.kind == "debit"]
    assert debit.details["delta_units"] == -(-(2**60) // 10**8)


def test_what_was_paid_for_and_not_released_is_not_drawn_again(admin: Admin, tmp_path: Path) -> None:
    """Its release may have been sent after the backup: a second draw would be two releases for one debit."""
    admin.add()
    admin.spend("r1")
    admin.ok("backup", "--whole", tmp_path / "copy")
    with Ledger.open(admin.state.ledger) as ledger:
        (paid,) = ledger.releases()
        ledger.store_release(paid.entry, b"sent to alice")
    restored, said = _restored(admin, tmp_path / "copy")
    assert f"not run again: entries {paid.entry}" in said
    request = DebitRequest("heights", "alice", "r1", bytes(32), "FitDPEM", (GaussianEvent(1, Fraction(10)),))
    with Ledger.open(restored.state.ledger) as ledger:
        again = ledger.debit(request)
        assert ledger.is_lost(paid.entry)
    assert (again.status, again.release) == (DebitStatus.RELEASED, b"")


def test_checkpoints_notice_what_was_restored(admin: Admin, tmp_path: Path) -> None:
    """Those outside say how much is missing, and the server does not start on them until they are put aside."""
    admin.state.config.write_text(f"[checkpoints]\nplaces = ['file:checkpoints', 'file:{tmp_path / 'witness'}']\n")
    admin.ok("checkpoint", "write")
    admin.add()
    admin.ok("backup", "--whole", tmp_path / "copy")
    admin.add("others", OTHER_ROWS)  # an act, so a checkpoint
    restored, said = _restored(admin, tmp_path / "copy")
    assert "witness" in said
    assert "history differs" in said or "reaches further" in said
    config = Config.load(restored.state.config)
    with Ledger.open(restored.state.ledger) as ledger, pytest.raises(CheckpointError, match="witness"):
        open_checkpoints(restored.state, ledger, config)
    (tmp_path / "witness").rename(tmp_path / "witness-until-the-disk-broke")
    restored.ok("checkpoint", "write")
    with Ledger.open(restored.state.ledger) as ledger:
        open_checkpoints(restored.state, ledger, config)


def test_a_ledger_that_is_put_back_alone_is_noticed(admin: Admin, tmp_path: Path) -> None:
    """Nothing is served without `restore`, which closes accounts: the notes in the directory reach further."""
    admin.add()
    admin.ok("backup", tmp_path / "copy")
    admin.add("others", OTHER_ROWS)
    admin.spend("r1")
    for file in admin.state.path.glob("ledger.sqlite*"):
        file.unlink()
    shutil.copy(tmp_path / "copy", admin.state.ledger)
    assert "is missing" in admin.refused("datasets")
    adopt_copy(admin.state.ledger)
    with Ledger.open(admin.state.ledger) as ledger, pytest.raises(CheckpointError, match="does not agree"):
        open_checkpoints(admin.state, ledger, Config.load(admin.state.config))


def test_a_directory_that_lacks_entries_is_restored_from_itself(admin: Admin, tmp_path: Path) -> None:
    """It is refused by every command and as it is; made anew from itself, it says what is missing, and is closed."""
    admin.add()
    with Ledger.open(admin.state.ledger) as ledger:
        entries = ledger.newest()[0]
        admin.spend("lost")
        image = {name: (admin.state.path / name).read_bytes() for name in ("ledger.sqlite", "ledger.sqlite-mark")}
    for name, content in image.items():
        (admin.state.path / name).write_bytes(content)
    for command in (("datasets",), ("backup", tmp_path / "copy"), ("checkpoint", "write")):
        said = admin.refused(*command)
        assert f"Entry {entries + 1} is lost: " in said
        assert "file:checkpoints: the newest signed checkpoint is of entry" in said
    restored, said = _restored(admin, admin.state.path)
    assert f"ends at entry {entries} " in said
    assert "closed accounts: heights" in said
    assert restored.verified.ok
    restored.ok("datasets")


def test_a_restored_directory_is_a_good_one(admin: Admin, tmp_path: Path) -> None:
    """Rows are those that were registered, keys and modes are right, and imports know what they knew."""
    admin.add()
    admin.ok("backup", "--whole", tmp_path / "copy")
    before = _files(tmp_path / "copy")
    restored, said = _restored(admin, tmp_path / "copy")
    assert _files(tmp_path / "copy") == before
    assert "tokens in force: admin" in said
    fatal = [finding for finding in check(restored.state.path, rows=True) if finding.problem and finding.fatal]
    assert fatal == []
    assert "these rows are known: 'heights'" in restored.refused(
        "import", *restored.table("again"), "--epsilon", 1, "--delta", 1e-6
    )
    assert not (restored.state.path / backups._MARK).exists()


@pytest.mark.slow
def test_a_restoration_that_was_cut_off_is_begun_again(admin: Admin, tmp_path: Path) -> None:
    """The directory cannot be served until then."""
    admin.add()
    admin.ok("backup", "--whole", tmp_path / "copy")
    _kill("restore", tmp_path / "restored", tmp_path / "copy")
    with pytest.raises(StateError, match="not a state directory"):
        State.open(tmp_path / "restored")
    restored, _ = _restored(admin, tmp_path / "copy")
    assert restored.verified.ok


def test_a_restoration_overwrites_nothing(admin: Admin, tmp_path: Path) -> None:
    """Neither another state directory nor a folder with something in it."""
    admin.add()
    admin.ok("backup", "--whole", tmp_path / "copy")
    before = _files(admin.state.path)
    assert "never over another ledger" in admin.refused("restore", tmp_path / "copy")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    words = ["restore", str(tmp_path / "copy"), "--state", str(tmp_path / "full")]
    assert "not empty" in click.testing.CliRunner().invoke(main, words).output
    assert [path.name for path in (tmp_path / "full").iterdir() if path.suffix != ".lock"] == ["precious"]
    assert {name: text for name, text in _files(admin.state.path).items() if name in before} == before


def test_a_backup_that_was_damaged_is_not_restored(admin: Admin, tmp_path: Path) -> None:
    """Its ledger is verified before anything is written."""
    admin.ok("backup", "--whole", tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "copy" / "ledger.sqlite")) as db, db:
        db.execute("DROP TRIGGER entries_never_vanish")
    words = ["restore", str(tmp_path / "copy"), "--state", str(tmp_path / "restored")]
    result = click.testing.CliRunner().invoke(main, words)
    assert "does not verify" in result.output
    assert not (tmp_path / "restored").exists()


def test_write_offs_and_debits_do_not_mix(admin: Admin) -> None:
    """Nobody else gets through the call limit while it is lifted for a write-off."""
    admin.ok("import", *admin.table("heights"), "--epsilon", 1, "--delta", 1e-6, "--approximate-share", "1/10")
    admin.ok("call-limit", "set", "heights", "--share", "0")
    refused: list[bool] = []
    stop = threading.Event()

    def ask() -> None:
        with Ledger.open(admin.state.ledger) as ledger:
            for i in range(10_000):
                if stop.is_set():
                    return
                request = DebitRequest("heights", "eve", f"e{i}", bytes(32), "F", (PureEvent(Fraction(1, 1000)),))
                try:
                    ledger.debit(request)
                    refused.append(False)
                except BudgetExhaustedError:
                    refused.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    with Ledger.open(admin.state.ledger) as ledger:
        for i in range(20):
            event = ApproximateEvent(PureEvent(Fraction(1, 1000)), Fraction(1, 10**12))
            ledger.write_off(
                DebitRequest("heights", "o", f"w{i}", bytes(32), "WriteOff", (event,)), actor="o", reason="r"
            )
    stop.set()
    thread.join(600)
    assert refused
    assert all(refused)
    assert admin.verified.accounts[0].debits == 20
