"""Copies of a ledger in use: consistent, whole, never in the place of another file."""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    DebitRequest,
    EntryKind,
    Ledger,
    LedgerExistsError,
    LedgerUnavailableError,
    adopt_copy,
    verify,
)

Ask = Callable[..., DebitRequest]


def test_a_copy_is_the_ledger(ledger: Ledger, ask: Ask, path: Path, tmp_path: Path, contents: Any) -> None:
    """The same entries and releases in one file of the owner's only, which opens and goes on by itself."""
    ledger.store_release(ledger.debit(ask("a")).entry, b"model")
    copy = tmp_path / "copy.db"
    ledger.backup(copy)
    assert sorted(file.name for file in tmp_path.iterdir() if file.name.startswith("copy")) == ["copy.db"]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert verify(copy).ok
    assert contents(copy) == contents(path)
    adopt_copy(copy)
    with Ledger.open(copy) as opened:
        assert opened.debit(ask("a")).release == b"model"
        opened.debit(ask("b"))
    assert verify(copy).entries == verify(path).entries + 1


def test_a_copy_that_is_put_to_use_survives_a_power_cut(ledger: Ledger, tmp_path: Path) -> None:
    """The copy has no write-ahead log; opening gives it one, as every ledger that is written has."""
    copy = tmp_path / "copy.db"
    ledger.backup(copy)
    adopt_copy(copy)
    with Ledger.open(copy) as opened:
        assert opened._store.db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert opened._store.db.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_a_file_that_cannot_have_a_log_is_not_served_from(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network disks refuse the log silently; then a power cut could undo a debit that was answered."""
    copy = tmp_path / "copy.db"
    ledger.backup(copy)
    adopt_copy(copy)
    monkeypatch.setattr(sqlite3, "connect", _without_log(sqlite3.connect))
    with pytest.raises(LedgerUnavailableError, match="local disk"):
        Ledger.open(copy)


def _without_log(connect: Callable[..., Any]) -> Callable[..., Any]:
    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> Any:
            return super().execute(sql.replace("journal_mode=WAL", "journal_mode"), *parameters)

    return lambda *arguments, **options: connect(*arguments, **{**options, "factory": Connection})


def test_every_copy_taken_while_others_write_is_a_beginning_of_the_history(
    ledger: Ledger, ask: Ask, path: Path, tmp_path: Path
) -> None:
    """Debits and releases go on in threads and through a second open ledger; each copy verifies by itself."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(opened: Ledger, name: str) -> None:
        try:
            for i in range(2000):
                if stop.is_set():
                    return
                debit = opened.debit(ask(f"{name}{i}", scale=1000, principal=name))
                opened.store_release(debit.entry, os.urandom(3000))
        except BaseException as error:
            failures.append(error)

    with Ledger.open(path) as second:
        writers = [
            threading.Thread(target=write, args=(opened, name))
            for opened, name in ((ledger, "a"), (ledger, "b"), (second, "c"))
        ]
        for writer in writers:
            writer.start()
        try:
            copies = [tmp_path / f"copy{i}.db" for i in range(6)]
            sizes = []
            for copy in copies:
                before = ledger.newest()[0]
                ledger.backup(copy)
                found = verify(copy)
                assert found.problems == ()
                assert before <= found.entries <= ledger.newest()[0]
                sizes.append((found.entries, found.head))
        finally:
            stop.set()
            for writer in writers:
                writer.join(600)
    assert failures == []
    assert sizes[0][0] < sizes[-1][0]
    for entries, head in sizes:
        assert ledger.hash_at(entries) == head
    assert verify(path).ok


def test_a_copy_does_not_hold_what_is_being_decided(ledger: Ledger, ask: Ask, tmp_path: Path) -> None:
    """Half a transaction is not history; taking the copy waits for nobody."""
    copy = tmp_path / "copy.db"

    def undecided() -> None:
        ledger._store.append(EntryKind.CHECKPOINT_KEY, actor="o", details={"verifier_key": "k", "reason": ""})
        ledger.backup(copy)

    ledger._store.decide(undecided)
    assert (verify(copy).entries, ledger.newest()[0]) == (2, 3)
    assert verify(copy).ok


@pytest.mark.parametrize("name", ["copy.db", "copy.db.new"])
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_nothing_is_overwritten(ledger: Ledger, tmp_path: Path, name: str, kind: str) -> None:
    """A file, a folder or a link under the name, or under the name of the unfinished copy, stays as it is."""
    there = tmp_path / name
    if kind == "file":
        there.write_bytes(b"precious")
    elif kind == "folder":
        there.mkdir()
    else:
        (tmp_path / "precious").write_bytes(b"precious")
        there.symlink_to(tmp_path / "precious")
    names = sorted(tmp_path.iterdir())
    with pytest.raises(LedgerExistsError, match="overwrites nothing"):
        ledger.backup(tmp_path / "copy.db")
    assert sorted(tmp_path.iterdir()) == names
    if kind != "folder":
        assert there.read_bytes() == b"precious"


@pytest.mark.parametrize("target", ["file", "nothing"])
def test_a_name_that_came_meanwhile_is_not_overwritten(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """A name that is taken while the copy is made is kept, a link to nowhere included."""
    copy = tmp_path / "copy.db"
    link = os.link

    def late(source: Any, destination: Any) -> None:
        if target == "file":
            copy.write_bytes(b"precious")
        else:
            copy.symlink_to(tmp_path / "nowhere")
        link(source, destination)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(LedgerExistsError, match="overwrites nothing"):
        ledger.backup(copy)
    assert copy.read_bytes() == b"precious" if target == "file" else copy.is_symlink()
    assert not (tmp_path / "copy.db.new").exists()
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_that_there_is_not_is_our_error(ledger: Ledger, tmp_path: Path) -> None:
    """The message has the reason of the system."""
    with pytest.raises(LedgerUnavailableError, match="cannot be written: No such file"):
        ledger.backup(tmp_path / "no" / "copy.db")


FULL = """
import resource, signal, sys
from bursar_ledger import Ledger, LedgerUnavailableError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Ledger.open(sys.argv[1]) as ledger:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    try:
        ledger.backup(sys.argv[2])
    except LedgerUnavailableError as error:
        print("refused")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on the size of files")
@pytest.mark.parametrize("room", [0, 4096, 60_000])
def test_a_full_disk_leaves_no_half_copy(ledger: Ledger, ask: Ask, path: Path, tmp_path: Path, room: int) -> None:
    """Wherever the disk ends, nothing is left behind, the ledger is the same, and with room the copy is made."""
    ledger.store_release(ledger.debit(ask("a")).entry, b"x" * 200_000)
    folder = tmp_path / "backups"
    folder.mkdir()
    process = subprocess.run(
        [sys.executable, "-c", FULL, str(path), str(folder / "copy.db"), str(room)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert process.stdout.strip() == "refused", process.stderr
    assert list(folder.iterdir()) == []
    assert verify(path).ok
    ledger.backup(folder / "copy.db")
    assert verify(folder / "copy.db").ok


def test_the_copy_is_one_file_without_a_log(ledger: Ledger, tmp_path: Path) -> None:
    """It can be moved by itself, and verified from a folder that cannot be written."""
    copy = tmp_path / "copy.db"
    ledger.backup(copy)
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
