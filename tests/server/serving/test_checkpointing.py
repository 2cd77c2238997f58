"""The server's checkpoints: its key, what it refuses to serve, and that no place is waited for."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import Ledger, LedgerUnavailableError, Role, adopt_copy, verify
from bursar_ledger.checkpoints import (
    NoteError,
    PlaceError,
    SigningKey,
    compare,
    open_note,
    parse_place,
    verifier_keys,
)
from bursar_server import log
from bursar_server.config import Config
from bursar_server.ops import checkpoints
from bursar_server.ops.checkpoints import (
    Checkpointer,
    CheckpointError,
    key_file,
    load_key,
    open_checkpoints,
    prepare_checkpoints,
    rotate_key,
    write_checkpoint,
)
from bursar_server.process import StartError, serve
from bursar_server.state import State
from bursar_server.tables import Keyring, Keys

WAIT = 600.0


@dataclass
class MemoryPlace:
    """Keeps notes in a list; fails or hangs as a test wants.

    Attributes:
        notes: what was written.
        failing: writes raise.
        open: writes wait for it.
        tries: how often it was written to.
    """

    name: str = "memory"
    readable: bool = True
    notes: list[str] = field(default_factory=list)
    failing: bool = False
    open: threading.Event = field(default_factory=threading.Event)
    tries: int = 0

    def __post_init__(self) -> None:
        self.open.set()

    def create(self) -> None:
        """Nothing to make."""

    def write(self, note: str) -> None:
        """Write as told."""
        self.tries += 1
        self.open.wait(WAIT)
        if self.failing:
            raise PlaceError(f"{self.name}: as a test wants")
        self.notes.append(note)

    def read(self) -> tuple[str, ...]:
        """Return what was written."""
        return tuple(self.notes)


@dataclass
class Home:
    """A state directory with an open ledger.

    Attributes:
        state: with one dataset; the ledger was made without `bursar-admin init`, so it has no key yet.
        ledger: open on it.
        config: its settings.
    """

    state: State
    ledger: Ledger
    config: Config = field(default_factory=Config)

    def grow(self, count: int = 1) -> int:
        """Append entries; number of the newest."""
        for _ in range(count):
            size = self.ledger.newest()[0]
            self.ledger.issue_credential(f"p{size}", Role.ANALYST, size.to_bytes(32), actor="test", reason="")
        return self.ledger.newest()[0]

    def places(self, *places: str) -> None:
        """Configure places."""
        self.config = Config.model_validate({"checkpoints": {"places": places}})

    def notes(self, place: str = "file:checkpoints") -> tuple[str, ...]:
        """Return what a place has."""
        return parse_place(place, self.state.path).read()

    def sizes(self, place: str = "file:checkpoints") -> list[int]:
        """Return the entries of which a place has checkpoints."""
        return [int(note.split("\n")[1]) for note in self.notes(place)]

    def open(self) -> SigningKey:
        """Return what a server does before it serves."""
        return open_checkpoints(self.state, self.ledger, self.config)

    def write(self, **options: Any) -> tuple[str, ...]:
        """Return what bursar-admin does after an act."""
        return write_checkpoint(self.state, self.ledger, self.config, **options)


@pytest.fixture
def home(state: State) -> Iterator[Home]:
    """A state directory whose ledger has no checkpoint key yet."""
    with Ledger.open(state.ledger) as ledger:
        yield Home(state, ledger)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)


def test_a_first_start_makes_key_entry_and_places(home: Home) -> None:
    """The key is the owner's alone, the chain names it, and from then on it is the same."""
    size = home.ledger.newest()[0]
    key = home.open()
    assert key_file(home.state).stat().st_mode & 0o777 == 0o600
    assert [(chain.entry, chain.key) for chain in verifier_keys(home.state.ledger)] == [(size + 1, key.verifier)]
    assert key.name == f"bursar/{home.ledger.ledger_id}"
    assert home.notes() == ()
    assert home.open() == key
    assert home.write() == ()
    home.grow()
    assert home.open() == key
    assert home.ledger.newest()[0] == size + 2
    assert verify(home.state.ledger).ok


def test_a_first_start_that_was_cut_off_is_finished(home: Home) -> None:
    """A key file whose entry is missing is used; one of another ledger is not."""
    key = SigningKey.create(f"bursar/{home.ledger.ledger_id}")
    key.save(key_file(home.state))
    assert home.open() == key
    assert verifier_keys(home.state.ledger)[0].key == key.verifier


def test_a_key_of_another_ledger_is_not_taken(home: Home) -> None:
    """A copied state directory is told from a new one."""
    SigningKey.create("bursar/other").save(key_file(home.state))
    with pytest.raises(CheckpointError, match="bursar/other"):
        prepare_checkpoints(home.state, home.ledger)
    assert verifier_keys(home.state.ledger) == ()


def test_a_place_that_cannot_be_begun_stops_the_first_start(home: Home) -> None:
    """It stops before a key is made; the place is named."""
    home.places("file:missing/checkpoints")
    with pytest.raises(PlaceError, match="file:missing/checkpoints"):
        home.open()
    assert verifier_keys(home.state.ledger) == ()


def test_a_ledger_from_before_its_first_key_is_refused_where_checkpoints_are(home: Home, tmp_path: Path) -> None:
    """Else an old copy would begin a history of its own under a new key."""
    home.ledger.backup(tmp_path / "old")
    home.open()
    home.write()
    _put_back(tmp_path / "old", home)
    with Ledger.open(home.state.ledger) as old, pytest.raises(CheckpointError, match="file:checkpoints: there are"):
        open_checkpoints(home.state, old, home.config)


def _put_back(copy: Path, home: Home) -> None:
    home.ledger.close()
    for file in home.state.path.glob("ledger.sqlite*"):
        file.unlink()
    shutil.copy(copy, home.state.ledger)
    adopt_copy(home.state.ledger)


def test_an_older_ledger_is_refused_with_place_and_entry(home: Home, tmp_path: Path) -> None:
    """The places whose notes reach further say so; the others agree."""
    home.places("file:checkpoints", "git:witness", "stdout")
    key = home.open()
    assert home.write() == ()
    home.ledger.backup(tmp_path / "old")
    size = home.ledger.newest()[0]
    home.grow(3)
    assert home.write() == ()
    _put_back(tmp_path / "old", home)
    with Ledger.open(home.state.ledger) as old, pytest.raises(CheckpointError) as caught:
        open_checkpoints(home.state, old, home.config)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(": ")[0] for line in lines] == ["file:checkpoints", "git:witness"]
    assert all(f"entries {size + 1} to {size + 3} were dropped" in line for line in lines)
    assert compare(home.state.ledger, home.notes()[:1], key.verifier).ok


def test_an_old_state_directory_is_refused_by_a_place_outside(home: Home, tmp_path: Path) -> None:
    """Ledger, key and history go back together, and only what lies elsewhere does not."""
    home.places("file:checkpoints", f"file:{tmp_path}/second-disk")
    home.open()
    home.write()
    home.ledger.close()
    shutil.copytree(home.state.path, tmp_path / "yesterday")
    with Ledger.open(home.state.ledger) as home.ledger:
        home.grow()
        home.write()
    restored = State(tmp_path / "yesterday")
    with Ledger.open(restored.ledger) as ledger, pytest.raises(CheckpointError) as caught:
        open_checkpoints(restored, ledger, home.config)
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()[1:]] == [f"file:{tmp_path}/second-disk"]


def test_a_place_without_checkpoints_is_refused_until_it_is_begun(home: Home) -> None:
    """A disk that is not mounted, a deleted file, a new place: the message says what to do."""
    home.open()
    home.write()
    home.grow()
    home.places("file:checkpoints", "file:new")
    with pytest.raises(CheckpointError, match=r"file:new: there is no checkpoint.*bursar-admin checkpoint write"):
        home.open()
    assert home.write() == ("no checkpoint was written: file:new: No such file or directory",)
    assert home.write(create=True) == ()
    home.open()
    assert home.sizes("file:new") == [home.ledger.newest()[0]]


def test_an_act_prints_no_checkpoint_unless_asked(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output of an act has its result; that of the server, and of `checkpoint write`, may be collected."""
    home.places("stdout")
    key = home.open()
    home.write()
    rotate_key(home.state, home.ledger, home.config, actor="test", reason="")
    assert capsys.readouterr().out == ""
    home.write(create=True)
    assert capsys.readouterr().out.startswith(key.name)


def test_a_lost_key_is_told_with_its_remedy(home: Home) -> None:
    """Nothing is signed by a key that the chain does not name."""
    home.open()
    key_file(home.state).unlink()
    with pytest.raises(CheckpointError, match="restore it from a backup"):
        home.open()
    assert "restore it from a backup" in home.write()[0]
    SigningKey.create(f"bursar/{home.ledger.ledger_id}").save(key_file(home.state))
    with pytest.raises(CheckpointError, match="restore it"):
        home.open()
    key_file(home.state).chmod(0o644)
    with pytest.raises(NoteError, match="0600"):
        home.open()


def test_acts_on_a_ledger_without_a_key_write_no_checkpoint(home: Home) -> None:
    """The server makes the key; until then there is nothing to sign with."""
    assert home.write() == ()
    assert home.notes() == ()
    with pytest.raises(CheckpointError, match="makes one when it starts"):
        load_key(home.state)
    with pytest.raises(CheckpointError, match="makes one when it starts"):
        rotate_key(home.state, home.ledger, home.config, actor="test", reason="")


def test_a_rotation_hands_over(home: Home) -> None:
    """The old key signs the entry that names the new one, and whoever pinned either finds all in order."""
    old = home.open()
    home.write()
    assert rotate_key(home.state, home.ledger, home.config, actor="test", reason="leaked") == ()
    new = home.open()
    home.grow()
    assert home.write() == ()
    assert new != old
    assert [chain.key for chain in verifier_keys(home.state.ledger)] == [old.verifier, new.verifier]
    for pinned in (old, new):
        assert compare(home.state.ledger, home.notes(), pinned.verifier).ok
    assert not key_file(home.state).with_name("checkpoint.key.new").exists()


@pytest.mark.parametrize("entry", [False, True])
def test_a_rotation_that_was_cut_off_is_finished_or_forgotten(
    home: Home, monkeypatch: pytest.MonkeyPatch, entry: bool
) -> None:
    """The old key is in force before the entry, the new one after it."""
    old = home.open()

    def cut_off(*arguments: object, **named: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints if entry else home.ledger, "_write" if entry else "set_checkpoint_key", cut_off)
        with pytest.raises(InterruptedError):
            rotate_key(home.state, home.ledger, home.config, actor="test", reason="")
    assert (load_key(home.state) == old) is not entry
    assert load_key(home.state).verifier == verifier_keys(home.state.ledger)[-1].key
    assert rotate_key(home.state, home.ledger, home.config, actor="test", reason="") == ()
    assert load_key(home.state).verifier == verifier_keys(home.state.ledger)[-1].key


def test_a_lost_key_can_be_replaced(home: Home) -> None:
    """There is no handover then: whoever pinned the lost one has to be told the new one."""
    old = home.open()
    home.write()
    key_file(home.state).unlink()
    assert rotate_key(home.state, home.ledger, home.config, actor="test", reason="lost") == ()
    assert compare(home.state.ledger, home.notes(), load_key(home.state).verifier).ok
    assert not compare(home.state.ledger, home.notes(), old.verifier).ok


def test_a_server_writes_at_the_start_after_so_many_entries_and_at_the_end(home: Home) -> None:
    """Each place has the same checkpoints, all by the key, and they agree with the ledger."""
    key = home.open()
    start = home.ledger.newest()[0]
    places = [MemoryPlace("one"), MemoryPlace("two")]
    with Checkpointer(home.ledger, key, places, 3, poll_seconds=0.01, events=log.Events()):
        until(lambda: all(len(place.notes) == 1 for place in places))
        home.grow(2)
        home.grow()
        until(lambda: all(len(place.notes) == 2 for place in places))
        home.grow()
    for place in places:
        assert [open_note(note, key.verifier).size for note in place.notes] == [start, start + 3, start + 4]
        assert compare(home.state.ledger, place.notes, key.verifier).ok


def test_an_end_with_nothing_new_writes_nothing(home: Home) -> None:
    """The last checkpoint is of the newest entry already."""
    key, place = home.open(), MemoryPlace()
    with Checkpointer(home.ledger, key, [place], 3, events=log.Events()):
        until(lambda: bool(place.notes))
    assert len(place.notes) == 1


def test_a_place_that_fails_is_reported_once_and_tried_again(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """The next checkpoint tries it; the others get theirs, and its recovery is told."""
    key, good, bad = home.open(), MemoryPlace("good"), MemoryPlace("bad", failing=True)
    caplog.set_level("INFO", "bursar.server")
    with Checkpointer(home.ledger, key, [bad, good], 1, poll_seconds=0.01, events=log.Events()):
        for tries in (1, 2, 3):
            until(lambda tries=tries: bad.tries == tries and len(good.notes) == tries)  # type: ignore[misc]
            home.grow()
        bad.failing = False
        home.grow()
        until(lambda: bool(bad.notes))
    assert caplog.text.count("checkpoint_failed") == 1
    assert "checkpoint_failed place=bad" in caplog.text
    assert caplog.text.count("checkpoint_written_again") == 1
    assert open_note(bad.notes[-1], key.verifier).size == home.ledger.newest()[0]


def test_a_place_that_failed_last_gets_its_checkpoint_at_the_end(home: Home) -> None:
    """Even if no entry came since."""
    key, place = home.open(), MemoryPlace(failing=True)
    with Checkpointer(home.ledger, key, [place], 100, poll_seconds=0.01, events=log.Events()):
        until(lambda: place.tries == 1)
        place.failing = False
    assert len(place.notes) == 1


def test_a_place_that_hangs_holds_up_nobody(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the other places, nor decisions, nor the end."""
    key, good, bad = home.open(), MemoryPlace("good"), MemoryPlace("bad")
    bad.open.clear()
    caplog.set_level("INFO", "bursar.server")
    with Checkpointer(home.ledger, key, [bad, good], 1, poll_seconds=0.01, end_seconds=0.2, events=log.Events()):
        until(lambda: bad.tries == 1 and len(good.notes) == 1)
        home.grow()
        until(lambda: len(good.notes) == 2)
    assert "checkpoint_left place=bad" in caplog.text
    bad.open.set()


def test_a_bug_in_a_place_ends_nothing(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged as one, and the next checkpoint is tried."""

    class Broken(MemoryPlace):
        def write(self, note: str) -> None:
            super().write(note)
            if self.tries == 1:
                raise ZeroDivisionError

    key, place = home.open(), Broken()
    with Checkpointer(home.ledger, key, [place], 1, poll_seconds=0.01, events=log.Events()):
        until(lambda: place.tries == 1)
        home.grow()
        until(lambda: place.tries == 2)
    assert "ZeroDivisionError" in caplog.text


def test_a_ledger_that_cannot_be_read_is_waited_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread goes on."""
    key, place, fails = home.open(), MemoryPlace(), threading.Event()
    newest = home.ledger.newest

    def sometimes() -> tuple[int, bytes]:
        if not fails.is_set():
            fails.set()
            raise LedgerUnavailableError("busy")
        return newest()

    monkeypatch.setattr(home.ledger, "newest", sometimes)
    with Checkpointer(home.ledger, key, [place], 1, poll_seconds=0.01, events=log.Events()):
        until(lambda: bool(place.notes))


def test_the_newest_note_is_of_now(home: Home) -> None:
    """Clients that ask get it, with places or without."""
    key = home.open()
    with Checkpointer(home.ledger, key, [], 16, events=log.Events()) as checkpointer:
        for _ in range(2):
            size = home.grow()
            assert open_note(checkpointer.newest_note(), key.verifier).size == size
            assert checkpointer.newest_note() == checkpointer.newest_note()


def test_a_server_process_refuses_and_names_place_and_entry(home: Home) -> None:
    """It goes through the door that bursar-server uses."""
    home.open()
    home.write()
    home.ledger.close()
    history = home.state.path / "checkpoints"
    history.write_text(history.read_text().replace("hash-chain", "hash-brain"))
    with pytest.raises(StartError, match="file:checkpoints: note 1: the fourth line"):
        serve(home.state.path, ready=lambda address: None, address="127.0.0.1:0")


def test_rows_that_an_older_ledger_does_not_name_stay(home: Home, tmp_path: Path) -> None:
    """They and their key were registered since: the start that refuses the ledger removes neither."""
    home.open()
    home.write()
    home.ledger.backup(tmp_path / "old")
    home.grow()
    home.write()
    _put_back(tmp_path / "old", home)
    rows, ring = home.state.datasets / ("b" * 32), Keyring(home.state.keys)
    rows.mkdir(parents=True)
    ring.save(rows.name, Keys.draw())
    with pytest.raises(StartError, match="was dropped"):
        serve(home.state.path, ready=lambda address: None, address="127.0.0.1:0")
    assert rows.is_dir()
    assert ring.has(rows.name)
