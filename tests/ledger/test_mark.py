"""The mark beside a ledger: what is lost is noticed before anything changes, and replaced files take no entry."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    DebitRequest,
    Ledger,
    LedgerCorruptError,
    LedgerError,
    LedgerExistsError,
    LedgerLostError,
    LedgerUnavailableError,
    adopt_copy,
    check_mark,
    mark_of,
    verify,
)
from bursar_ledger import _mark as marks
from bursar_ledger._entries import NO_ENTRY
from bursar_ledger._mark import Mark, OpenFiles, OpenMark
from bursar_ledger._store import Store

Ask = Callable[..., DebitRequest]
ENDS = ("", "-wal", "-shm", "-mark")


def beside(path: Path, end: str) -> Path:
    """One of the files of a ledger."""
    return path.with_name(path.name + end)


def folder_of(path: Path) -> dict[str, tuple[bytes, int, int]]:
    """Bytes, time of change and inode of every file of a folder."""
    found = {}
    for each in sorted(path.parent.iterdir()):
        status = each.stat()
        found[each.name] = (each.read_bytes(), status.st_mtime_ns, status.st_ino)
    return found


@pytest.fixture
def crashed(ledger: Ledger, ask: Ask, path: Path, tmp_path: Path) -> Path:
    """A ledger as a crash leaves it: entries up to 2 in the database, up to 8 in -wal."""
    ledger.close()
    with Ledger.open(path) as ledger:
        for i in range(6):
            ledger.debit(ask(f"r{i}", scale=20))
        image = tmp_path / "crashed"
        image.mkdir()
        for end in ENDS:
            shutil.copyfile(beside(path, end), beside(image / path.name, end))
    return image / path.name


def lost(path: Path, *words: str) -> None:
    """Opening, and checking alone, refuse in these words, and leave every byte of the folder as it was."""
    before = folder_of(path)
    for refuse in (Ledger.open, check_mark):
        with pytest.raises(LedgerLostError) as caught:
            refuse(path)
        for word in (*words, "Nothing was changed", "bursar-admin restore"):
            assert word in str(caught.value)
        assert folder_of(path) == before


def test_a_crash_alone_loses_nothing(crashed: Path, ask: Ask) -> None:
    """A ledger with all its files opens at its newest entry, without -shm, too."""
    beside(crashed, "-shm").unlink()
    with Ledger.open(crashed) as ledger:
        assert ledger.newest()[0] == 8
        assert ledger.debit(ask("more", scale=20)).entry == 9


@pytest.mark.parametrize("shm", [True, False])
@pytest.mark.parametrize("left", [None, 0.0, 0.5, 0.99])
def test_a_lost_log_is_noticed(crashed: Path, left: float | None, shm: bool) -> None:
    """The -wal of a crash is gone, empty or cut: the database alone would be an older ledger that verifies."""
    log = beside(crashed, "-wal")
    if left is None:
        log.unlink()
    else:
        os.truncate(log, int(log.stat().st_size * left))
    if not shm:
        beside(crashed, "-shm").unlink()
    lost(crashed, "but its mark says that entry 8", "3 to 8" if not left else "8 ", "receipts", "checkpoints")
    assert "8" in str(verify(crashed).problems)


@pytest.mark.parametrize("shm", [True, False])
def test_a_log_of_its_header_alone_holds_nothing(crashed: Path, ask: Ask, shm: bool) -> None:
    """A kill between the first two writes of a new log leaves it; what the database holds is then all there was."""
    log = beside(crashed, "-wal")
    header = log.read_bytes()[:32]
    log.write_bytes(header)
    if not shm:
        beside(crashed, "-shm").unlink()
    lost(crashed, "3 to 8")


def test_a_ledger_with_a_log_of_its_header_alone_opens(ledger: Ledger, ask: Ask, path: Path) -> None:
    """The database has all entries; and it goes on."""
    ledger.debit(ask("before"))
    header = beside(path, "-wal").read_bytes()[:32]
    ledger.close()
    beside(path, "-wal").write_bytes(header)
    with Ledger.open(path) as again:
        assert again.debit(ask("after")).entry == again.newest()[0] == 4


def test_an_older_log_is_noticed(ledger: Ledger, ask: Ask, path: Path, crashed: Path) -> None:
    """A copy of -wal from an earlier moment, and one of another ledger."""
    log = beside(crashed, "-wal")
    whole = log.read_bytes()
    frame = 24 + 4096
    log.write_bytes(whole[: 32 + frame * ((len(whole) - 32) // frame // 2)])
    lost(crashed, "to 8 are lost: ")
    log.write_bytes(bytes(len(whole)))
    lost(crashed, "3 to 8")
    log.write_bytes(whole)
    Ledger.open(crashed).close()


def test_an_older_copy_of_the_database_is_noticed(ledger: Ledger, ask: Ask, path: Path, tmp_path: Path) -> None:
    """`ledger.sqlite` alone from yesterday's backup; the file of another history of the same length."""
    copy = tmp_path / "copy"
    ledger.backup(copy)
    for i in range(2):
        ledger.debit(ask(f"r{i}"))
    ledger.close()
    newest = path.read_bytes()
    path.write_bytes(copy.read_bytes())
    lost(path, "ends at entry 2", "entry 4")
    adopt_copy(copy)
    with Ledger.open(copy) as other:
        for i in range(3):
            other.debit(ask(f"x{i}"))
    path.write_bytes(copy.read_bytes())
    lost(path, "entry 5", "Its entry 4 is another one")
    path.write_bytes(newest)
    Ledger.open(path).close()


@pytest.mark.parametrize("content", [None, b"", b"x" * 512, b"x" * 511])
def test_a_mark_that_is_lost_or_damaged_is_noticed(crashed: Path, content: bytes | None) -> None:
    """Nothing else says which entries there must be."""
    mark = mark_of(crashed)
    whole = mark.read_bytes()
    mark.unlink()
    if content is not None:
        mark.write_bytes(content)
    lost(crashed, "is missing" if content is None else "is damaged")
    mark.unlink(missing_ok=True)
    mark.write_bytes(whole[:10] + bytes([whole[10] ^ 1]) + whole[11:])
    lost(crashed, "is damaged")
    mark.write_bytes(whole)
    Ledger.open(crashed).close()


def test_a_mark_that_is_behind_heals(crashed: Path) -> None:
    """A crash between a commit and its mark: nobody was answered, and the next start writes the mark."""
    mark = mark_of(crashed)
    for number, head in ((0, NO_ENTRY), (2, None)):
        with Ledger.open(crashed) as ledger:
            head = ledger.hash_at(number) if head is None else head
        mark.write_bytes(Mark(number, head or b"").encode())
        with Ledger.open(crashed) as ledger:
            assert Mark.decode(mark.read_bytes()).number == 8 == ledger.newest()[0]


def test_a_copy_is_noticed_when_it_is_opened_first(crashed: Path, tmp_path: Path) -> None:
    """A copy lacks what was spent elsewhere; a second opening, a move and a copy by `adopt_copy` are none."""
    folder = crashed.parent
    # The fixture's own files are copies, made as a crash leaves them.
    with Ledger.open(crashed) as ledger:
        assert ledger.is_copy
    with Ledger.open(crashed) as ledger:
        assert not ledger.is_copy
    folder = folder.rename(tmp_path / "moved")
    with Ledger.open(folder / crashed.name) as ledger:
        assert not ledger.is_copy
    shutil.copytree(folder, tmp_path / "copied")
    for expected in (True, False):
        with Ledger.open(tmp_path / "copied" / crashed.name) as ledger:
            assert ledger.is_copy is expected
    backup = tmp_path / "backup.sqlite"
    shutil.copy2(folder / crashed.name, backup)
    adopt_copy(backup)
    with Ledger.open(backup) as ledger:
        assert not ledger.is_copy


def test_a_file_that_is_no_ledger_is_left_as_it_is(crashed: Path) -> None:
    """It is named before SQLite may write."""
    beside(crashed, "-wal").unlink()
    crashed.write_bytes(b"not a database at all" * 500)
    before = folder_of(crashed)
    with pytest.raises(LedgerCorruptError, match="cannot be read as a ledger"):
        Ledger.open(crashed)
    assert folder_of(crashed) == before


def test_no_ledger_is_made_where_one_was_lost(ledger: Ledger, path: Path) -> None:
    """The mark of a lost ledger stays in the way of a new one with a fresh budget."""
    ledger.close()
    path.unlink()
    with pytest.raises(LedgerExistsError, match="that ledger is lost"):
        Ledger.create(path, actor="owner")
    assert not path.exists()


def test_a_mark_is_a_line_that_people_can_read() -> None:
    """Number, hash, files and digest; nothing else decodes."""
    mark = Mark(57, bytes(range(32)), ((1, 2), (3, 4), (5, 6)))
    content = mark.encode()
    assert len(content) == 512
    assert content.startswith(b"57 000102")
    assert Mark.decode(content) == mark
    assert Mark.decode(Mark(0, NO_ENTRY).encode()) == Mark(0, NO_ENTRY)
    for wrong in (content + b" ", content[:-1], content.replace(b"57", b"56"), b"\xff" * 512):
        with pytest.raises(ValueError, match=r".*"):
            Mark.decode(wrong)


def marked_before_its_commit(ledger: Ledger, ask: Ask, path: Path) -> None:
    """The mark is behind while SQLite commits: else a power cut would leave a mark that no ledger reaches."""
    seen: list[int] = []
    connection = ledger._store.db
    connection.set_trace_callback(
        lambda sql: seen.append(Mark.decode(mark_of(path).read_bytes()).number) if sql == "COMMIT" else None
    )
    newest = ledger.newest()[0]
    ledger.debit(ask("a"))
    assert seen == [newest]
    assert Mark.decode(mark_of(path).read_bytes()).number == newest + 1


def flushed_before_the_answer(ledger: Ledger, ask: Ask, path: Path, patch: pytest.MonkeyPatch) -> None:
    """Check that each answer has its mark on the disk; where it cannot be flushed, no decision counts any more."""
    flushed: list[int] = []
    whole = os.fdatasync

    def flush(descriptor: int) -> None:
        whole(descriptor)
        flushed.append(Mark.decode(mark_of(path).read_bytes()).number)

    patch.setattr(os, "fdatasync", flush)
    entry = ledger.debit(ask("a")).entry
    assert flushed[-1:] == [entry]

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    patch.setattr(os, "fdatasync", fail)
    with pytest.raises(LedgerUnavailableError, match="may be in the ledger"):
        ledger.debit(ask("b"))
    patch.setattr(os, "fdatasync", whole)
    with pytest.raises(LedgerUnavailableError, match="cannot be written"):
        ledger.debit(ask("b"))
    with pytest.raises(LedgerUnavailableError):
        ledger.check_files()


def refused_in_other_files(ledger: Ledger, ask: Ask, path: Path, harm: Callable[[Path], object]) -> None:
    """A debit is refused once a file is not the directory's any more, and stays refused."""
    ledger.debit(ask("before"))
    newest = ledger.newest()
    harm(path)
    for _ in range(2):
        with pytest.raises(LedgerUnavailableError, match=r"SIGTERM.*; nothing was changed"):
            ledger.debit(ask("after"))
    with pytest.raises(LedgerUnavailableError, match="SIGTERM"):
        ledger.check_files()
    assert ledger.newest() == newest


def _link(end: str) -> Callable[[Path], object]:
    return lambda path: os.link(beside(path, end), path.with_name("other"))


def _unlink(end: str) -> Callable[[Path], object]:
    return lambda path: beside(path, end).unlink()


def _replace(end: str) -> Callable[[Path], object]:
    def harm(path: Path) -> None:
        new = path.with_name("new")
        new.write_bytes(beside(path, end).read_bytes())
        new.replace(beside(path, end))

    return harm


def _cut(end: str) -> Callable[[Path], object]:
    return lambda path: os.truncate(beside(path, end), 0)


HARMS = {
    f"{harm.__name__} {end or 'database'}": harm(end)
    for harm, ends in ((_unlink, ENDS), (_replace, ENDS), (_link, ENDS), (_cut, ("", "-wal", "-mark")))
    for end in ends
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_replaced_files_take_no_entry(ledger: Ledger, ask: Ask, path: Path, harm: Callable[[Path], object]) -> None:
    """Database, -wal, -shm and mark: removed, replaced, linked or emptied under an open ledger."""
    refused_in_other_files(ledger, ask, path, harm)


def test_a_file_that_grows_between_two_looks_was_not_cut(
    ledger: Ledger, ask: Ask, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that looked at -wal before another one's entry made it longer takes it for whole."""
    whole, log = Path.stat, beside(path, "-wal")
    looked: list[int] = []

    def grown(self: Path, **options: Any) -> os.stat_result:
        found = whole(self, **options)
        if self == log and not looked:
            looked.append(found.st_size)
            for name in "abc":
                ledger.debit(ask(name))
            looked.append(whole(self).st_size)
        return found

    monkeypatch.setattr(Path, "stat", grown)
    ledger.check_files()
    assert looked[0] < looked[1]
    ledger.check_files()


def test_files_that_come_back_change_nothing(ledger: Ledger, ask: Ask, path: Path) -> None:
    """A refusal lasts until a new start, as nobody knows what happened meanwhile."""
    away = path.with_name("away")
    log = beside(path, "-wal")
    log.rename(away)
    with pytest.raises(LedgerUnavailableError):
        ledger.debit(ask("a"))
    away.rename(log)
    with pytest.raises(LedgerUnavailableError, match="-wal was removed"):
        ledger.debit(ask("a"))
    ledger.close()
    with Ledger.open(path) as again:
        assert again.debit(ask("a")).entry == 3


def test_the_mark_comes_after_the_commit(ledger: Ledger, ask: Ask, path: Path) -> None:
    """See `marked_before_its_commit`."""
    marked_before_its_commit(ledger, ask, path)


def test_the_mark_is_on_the_disk_before_an_answer(
    ledger: Ledger, ask: Ask, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See `flushed_before_the_answer`."""
    flushed_before_the_answer(ledger, ask, path, monkeypatch)


def test_planted_bugs_are_noticed(
    ledger: Ledger, ask: Ask, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The mark before its commit, a mark that is not flushed, links ignored, files compared at the start only."""
    checked, problem = Store._check_mark, OpenFiles.problem

    def early(store: Store, base: tuple[int, bytes]) -> None:
        checked(store, base)
        store._mark.advance(*store._current(), 1.0)

    def without_links(files: OpenFiles) -> str | None:
        found = problem(files)
        return None if found and "names" in found else found

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_check_mark", early)
        with pytest.raises(AssertionError):
            marked_before_its_commit(ledger, ask, path)
    with monkeypatch.context() as patch:
        patch.setattr(OpenMark, "flush", lambda _: None)
        with pytest.raises(AssertionError):
            flushed_before_the_answer(ledger, lambda name: ask(f"flush-{name}", scale=30), path, patch)
    planted: list[tuple[Any, str]] = [
        (without_links, "_link database"),
        (lambda _: None, "_unlink -wal"),
        (lambda _: None, "_replace database"),
    ]
    for number, (bug, harm) in enumerate(planted):
        copy = tmp_path / f"{number}" / path.name
        copy.parent.mkdir()
        ledger.backup(copy)
        adopt_copy(copy)
        with Ledger.open(copy) as rival, monkeypatch.context() as patch:
            patch.setattr(OpenFiles, "problem", bug)
            with pytest.raises(pytest.fail.Exception):
                refused_in_other_files(rival, lambda name: ask(name, scale=30), copy, HARMS[harm])


CHILD = """
import os, sys
from bursar_ledger import Ledger, LedgerError
with Ledger.open(sys.argv[1]) as ledger:
    print("open", flush=True)
    for line in sys.stdin:
        try:
            exec(line)
            print(ledger.newest()[0], flush=True)
        except LedgerError as error:
            print(type(error).__name__, error, flush=True)
"""
ENTRY = "ledger.set_call_limit('people', None, actor='child', reason='')\n"


class Child:
    """Another process with the ledger open, which does as it is told line by line."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"

    def do(self, line: str) -> str:
        """Return what it says after a line of Python."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self, number: int) -> None:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        self.process.communicate()


@pytest.fixture
def child(ledger: Ledger, path: Path) -> Iterator[Child]:
    """A process on the ledger, which this process has closed."""
    ledger.close()
    made = Child(path)
    yield made
    made.end(signal.SIGKILL)


def test_another_process_does_not_begin_a_second_history(child: Child, path: Path) -> None:
    """A process goes on in a -wal that was removed; whoever opens the ledger meanwhile would make a new one."""
    assert child.do(ENTRY) == "3"
    for end in ("-wal", "-shm"):
        beside(path, end).unlink()
    before = folder_of(path)
    for attempt in (Ledger.open, check_mark):
        with pytest.raises(LedgerUnavailableError, match="another process has"):
            attempt(path)
    assert folder_of(path) == before
    assert "LedgerUnavailableError ledger.sqlite".replace("sqlite", "db-wal") in child.do(ENTRY)
    child.end(signal.SIGKILL)
    lost(path, "ends at entry 2", "entry 3")


def test_what_a_removed_log_held_is_saved_by_an_end_in_order(child: Child, path: Path) -> None:
    """SQLite still has the removed files, and writes them into the database when the ledger is closed."""
    assert [child.do(ENTRY) for _ in range(3)] == ["3", "4", "5"]
    for end in ("-wal", "-shm"):
        beside(path, end).unlink()
    assert "was removed" in child.do(ENTRY)
    child.process.communicate()  # the end of its input
    with Ledger.open(path) as ledger:
        assert ledger.newest()[0] == 5


def test_a_crash_of_one_process_is_no_loss_for_another(child: Child, path: Path) -> None:
    """The files of both are the same; locks of a dead process are gone, and the mark goes on."""
    with Ledger.open(path) as ledger:
        assert child.do(ENTRY) == "3"
        child.end(signal.SIGKILL)
        assert ledger.set_call_limit("people", None, actor="owner", reason="").number == 4
        assert Mark.decode(mark_of(path).read_bytes()).number == 4
    with Ledger.open(path) as ledger:
        assert ledger.newest()[0] == 4


def test_processes_that_write_by_turns_keep_one_mark(child: Child, path: Path, ask: Ask) -> None:
    """Entries of two processes and eight threads: no answer is ahead of the mark, which ends at the newest."""
    with Ledger.open(path) as ledger, ThreadPoolExecutor(8) as pool:

        def debit(number: int) -> None:
            entry = ledger.debit(ask(f"r{number}", scale=1000)).entry
            assert Mark.decode(mark_of(path).read_bytes()).number >= entry

        futures = [pool.submit(debit, number) for number in range(200)]
        told = [int(child.do(ENTRY)) for _ in range(50)]
        for future in futures:
            future.result()
        assert told == sorted(set(told))
        assert Mark.decode(mark_of(path).read_bytes()).number == ledger.newest()[0] == 252
    assert verify(path).ok


def test_an_entry_of_other_files_ends_the_process(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Should the files look right all the same: the mark names an entry that the open files lack."""
    ledger.debit(ask("a"))
    ledger._store._mark.advance(9, bytes(32), 1.0)
    with pytest.raises(LedgerUnavailableError, match="names entry 9, which the open files lack"):
        ledger.debit(ask("b"))
    with pytest.raises(LedgerUnavailableError):
        ledger.debit(ask("b"))


def test_a_mark_that_is_locked_for_ever_is_told(ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped in the middle of opening: others give up after a while, with a sentence."""
    ledger.close()
    holder = OpenMark(path)
    assert holder.join(0.0)
    with pytest.raises(LedgerUnavailableError, match="another process holds the lock"):
        Ledger.open(path, busy_seconds=0.01)
    holder.share()
    with pytest.raises(LedgerUnavailableError, match="another process has"):
        Ledger.open(path)
    holder.close()
    with Ledger.open(path, busy_seconds=0.01) as again:
        writer = OpenMark(path)
        assert writer._locked(fcntl.F_WRLCK, marks._WRITING)
        with pytest.raises(LedgerUnavailableError, match="may be in the ledger"):
            again.set_call_limit("people", None, actor="owner", reason="")
        writer.close()


def test_a_second_group_commits_while_the_mark_of_the_first_is_flushed(
    ledger: Ledger, ask: Ask, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is answered before a flush that came after his commit; but the next commit does not wait for it."""
    flushing, go = threading.Event(), threading.Event()
    whole = os.fdatasync

    def slow(descriptor: int) -> None:
        flushing.set()
        assert go.wait(600)
        whole(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ledger.debit, ask("a"))
        assert flushing.wait(600)
        second = pool.submit(ledger.debit, ask("b"))
        for _ in range(60_000):
            if ledger.newest()[0] == 4:
                break
            threading.Event().wait(0.001)
        assert ledger.newest()[0] == 4  # committed
        assert not first.done()
        assert not second.done()
        go.set()
        assert [first.result(600).entry, second.result(600).entry] == [3, 4]


def test_a_folder_that_cannot_be_written_is_told(ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence and no traceback from the system."""
    ledger.close()
    whole = os.open

    def open_(name: Any, flags: int, *rest: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, "Read-only file system", str(name))
        return whole(name, flags, *rest)

    monkeypatch.setattr(os, "open", open_)
    with pytest.raises(LedgerUnavailableError, match="-mark cannot be written: Read-only file system"):
        Ledger.open(path)
    with pytest.raises(LedgerError, match="cannot be"):
        Ledger.create(path.with_name("new"), actor="owner")
    with pytest.raises(LedgerUnavailableError, match="Read-only"):
        marks.create_mark(path.with_name("new"), Mark(0, NO_ENTRY))
