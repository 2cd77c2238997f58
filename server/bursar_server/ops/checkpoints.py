"""Signed checkpoints on the server's side: the key, the comparison at the start, and the threads that write.

No thread that answers a caller waits for a checkpoint. A failing location is reported once and tried again with the
next checkpoint.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bursar_ledger import Ledger, LedgerError, LedgerLostError, Witness
from bursar_ledger.checkpoints import (
    ChainKey,
    Checkpoint,
    Note,
    NoteError,
    Place,
    PlaceError,
    SigningKey,
    VerifierKey,
    check_place,
    checkpoint_of,
    open_note,
    origin_of,
    parse_place,
    sign,
    verifier_keys,
)
from bursar_server import log
from bursar_server.access.auth import SERVER
from bursar_server.config import Config, ConfigError
from bursar_server.state import State, StateError

_POLL_SECONDS = 1.0
"""Interval at which a writer looks at the ledger, in seconds. Chosen, not tuned: one small read."""

_END_SECONDS = 20.0
"""Time that the end of the server waits for the last checkpoints, in seconds. A git commit takes 0.1."""

_REASON = "signs checkpoints from here on"
_NO_KEY = "the ledger names no checkpoint key yet; the server makes one when it starts"


class CheckpointError(StateError):
    """Error: the checkpoints forbid serving; the message names location, entry and remedy."""


def places_of(state: State, config: Config) -> tuple[Place, ...]:
    """Return the configured checkpoint locations."""
    return tuple(parse_place(text, state.path) for text in config.checkpoints.places)


def key_file(state: State) -> Path:
    """Return the path of a state directory's signing key."""
    return state.keys / "checkpoint.key"


def prepare_checkpoints(state: State, ledger: Ledger, *, actor: str = SERVER) -> SigningKey:
    """Return the first key of a ledger that names none yet, after storing it in its file and naming it in the chain.

    Raises:
        NoteError: the file cannot be written, or does not hold a key.
        CheckpointError: the file holds another ledger's key.
    """
    path, origin = key_file(state), origin_of(ledger.ledger_id)
    # A crash may have left the key's file without its entry; the same key is then named now.
    if not path.exists():
        SigningKey.create(origin).save(path)
    key = SigningKey.load(path)
    if key.name != origin:
        raise CheckpointError(f"{path} is the key of another ledger, {key.name}; this one is {origin}. Move it away")
    ledger.set_checkpoint_key(str(key.verifier), actor=actor, reason=_REASON)
    return key


def load_key(state: State) -> SigningKey:
    """Return the key that the chain names last; completes an interrupted rotation.

    Raises:
        CheckpointError: no key in the state directory is that one.
        NoteError: a key file cannot be used.
    """
    return _newest_key(state, verifier_keys(state.ledger))


def open_checkpoints(state: State, ledger: Ledger, config: Config, witness: Witness | None = None) -> SigningKey:
    """Return the signing key after the ledger was compared with every checkpoint location.

    A ledger that names no key yet gets its first key. If the ledger was opened with a witness, older checkpoints are
    compared later (`verification.py`).

    Raises:
        CheckpointError: a location disagrees with the ledger, or lacks a checkpoint that must exist.
    """
    chain, places = verifier_keys(state.ledger), places_of(state, config)
    if not chain:
        _refuse_notes(places)
    if not chain or ledger.newest()[0] <= chain[0].entry:
        # No entry follows the first key, so no checkpoint needs to exist yet.
        for place in places:
            place.create()
    if not chain:
        return prepare_checkpoints(state, ledger)
    key = _newest_key(state, chain)
    _compare(state, places, key.verifier, since=0 if witness is None or ledger.whole else witness.size)
    return key


def check_checkpoints(state: State, config: Config) -> None:
    """Compare the ledger with every checkpoint location, for a command that debits it without a server.

    Raises:
        CheckpointError: a location disagrees with the ledger, or lacks a checkpoint that must exist.
    """
    chain, places = verifier_keys(state.ledger), places_of(state, config)
    if chain:
        _compare(state, places, chain[-1].key)
    else:
        _refuse_notes(places)


def witness_of(state: State, config: Config) -> Witness | None:
    """Return the newest checkpoint signed by this directory's own key, of all readable locations.

    None without one, and after a verification with findings: then every entry must be verified.
    """
    if state.suspect.exists():
        return None
    found: list[Checkpoint] = []
    with contextlib.suppress(NoteError, PlaceError, OSError):
        key = SigningKey.load(key_file(state)).verifier
        for place in _readable(places_of(state, config)):
            found += filter(None, [newest_at(place, key)])
    newest = max(found, key=lambda checkpoint: checkpoint.size, default=None)
    return None if newest is None else Witness(newest.size, newest.head)


def newest_at(place: Place, key: VerifierKey) -> Checkpoint | None:
    """Return the newest checkpoint of a location that a key signed, None without one. Raises PlaceError."""
    # Notes are appended, so the last one that verifies is the newest.
    return next(filter(None, (_own(note, key) for note in reversed(place.read()))), None)


def _own(note: str, key: VerifierKey) -> Checkpoint | None:
    with contextlib.suppress(NoteError):
        return open_note(note, key)
    return None


def explained_loss(error: LedgerLostError, state: State) -> str:
    """Return the error of a ledger that lacks entries, with the newest signed checkpoint of each location."""
    try:
        places = _readable(places_of(state, Config.load(state.config)))
    except (ConfigError, NoteError, PlaceError) as problem:
        return f"{error}\ncheckpoints: {problem}"
    return "\n".join([str(error), *map(_newest_of, places)])


def _newest_of(place: Place) -> str:
    try:
        known = [Checkpoint.parse(Note.parse(note).text) for note in place.read()]
    except (NoteError, PlaceError) as problem:
        return f"{place.name}: {problem}"
    newest = max(known, key=lambda checkpoint: checkpoint.size, default=None)
    if newest is None:
        return f"{place.name}: no signed checkpoint"
    return f"{place.name}: the newest signed checkpoint is of entry {newest.size} (hash {newest.head.hex()})"


def write_checkpoint(state: State, ledger: Ledger, config: Config, *, create: bool = False) -> tuple[str, ...]:
    """Write a checkpoint of the present ledger to its locations; for commands, which take effect even if this fails.

    With `create`, an owner asked for checkpoints: missing locations are created, and standard output is printed to if
    it is one. Otherwise an unmounted disk gets no new, empty history, and a command no unexpected output.

    Returns:
        One line for each location without a new checkpoint, with the reason. Empty for a ledger without a key.
    """
    try:
        chain = verifier_keys(state.ledger)
        if not chain:
            return ()
        note = sign(checkpoint_of(ledger), _newest_key(state, chain))
    except (LedgerError, CheckpointError) as error:
        return (f"no checkpoint was written: {error}",)
    places = places_of(state, config)
    return _write(places if create else _readable(places), note, create)


def rotate_key(state: State, ledger: Ledger, config: Config, *, actor: str, reason: str) -> tuple[str, ...]:
    """Put a new signing key in force. The caller holds `state.serving()`: a running server would use the old key.

    The old key's last checkpoint covers the entry that names the new key, so that verifiers that pinned the old key can
    follow. If the old key is lost, there is no such checkpoint, and the new key must be pinned.

    Returns:
        Lines as of `write_checkpoint`.

    Raises:
        CheckpointError: the ledger has no key yet.
        NoteError: the new key cannot be written; the old one stays in force.
    """
    chain = verifier_keys(state.ledger)
    if not chain:
        raise CheckpointError(_NO_KEY)
    try:
        old = _newest_key(state, chain)
    except (CheckpointError, NoteError):
        old = None
    path = key_file(state)
    _new(path).unlink(missing_ok=True)
    new = SigningKey.create(origin_of(ledger.ledger_id))
    # Saved before the entry: a crash in between leaves the old key in force, one after it is completed by `load_key`.
    new.save(_new(path))
    ledger.set_checkpoint_key(str(new.verifier), actor=actor, reason=reason)
    places = _readable(places_of(state, config))
    problems = _write(places, sign(checkpoint_of(ledger), old), create=False) if old else ()
    _new(path).replace(path)
    return (*problems, *write_checkpoint(state, ledger, config))


class Checkpointer:
    """Writer of checkpoints while a server runs: at the start, after every `every` entries, and at the end.

    Use it as a context manager around the server and inside the open ledger. Every location has its own daemon thread,
    so that one that hangs delays neither the others nor the end of the process.

    A thread looks at the ledger every `poll_seconds`; the end waits `end_seconds` for the last checkpoints.
    """

    def __init__(
        self,
        ledger: Ledger,
        key: SigningKey,
        places: Sequence[Place],
        every: int,
        *,
        poll_seconds: float = _POLL_SECONDS,
        end_seconds: float = _END_SECONDS,
        events: log.Events,
    ) -> None:
        self._events = events
        self._ledger = ledger
        self._key = key
        self._end_seconds = end_seconds
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._newest: tuple[int, str] | None = None
        self._writers = [_Writer(place, self._due_note, every, poll_seconds, self._ending, events) for place in places]

    @property
    def problem(self) -> str | None:
        """Problem of the locations in a few words; None if each has its last checkpoint."""
        failing = sum(writer.failing for writer in self._writers)
        return f"{failing} of {len(self._writers)} places cannot be written" if failing else None

    def newest_note(self) -> str:
        """Return a signed checkpoint of the present ledger. Raises LedgerUnavailableError if it cannot be read."""
        return self._due_note(0)[1]

    def __enter__(self) -> Self:
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # One last note each: entries after the newest checkpoint have no witness but receipts.
        self._ending.set()
        for writer in self._writers:
            writer.join(self._end_seconds / len(self._writers))
            if writer.is_alive():
                self._events.tell(log.CheckpointLeft(place=writer.place.name))

    def _due_note(self, least: int) -> tuple[int, str]:
        """Return size and note of the present ledger; the note is empty while it has fewer than `least` entries."""
        size, _ = self._ledger.newest()
        with self._lock:
            if size < least:
                return size, ""
            # Signed once for all places, whose threads come at about the same time.
            if self._newest is None or size > self._newest[0]:
                checkpoint = checkpoint_of(self._ledger)
                self._newest = (checkpoint.size, sign(checkpoint, self._key))
            return self._newest


class _Writer(threading.Thread):
    """Thread that writes to one location."""

    def __init__(
        self,
        place: Place,
        due_note: Callable[[int], tuple[int, str]],
        every: int,
        poll_seconds: float,
        ending: threading.Event,
        events: log.Events,
    ) -> None:
        super().__init__(name=f"checkpoints {place.name}", daemon=True)
        self.place = place
        self._due_note = due_note
        self._every = every
        self._poll_seconds = poll_seconds
        self._ending = ending
        self._events = events
        self._tried = 0
        self._written = 0
        self.failing = False

    def run(self) -> None:
        """Write until the end, and once more then."""
        # A checkpoint at the start: entries of the command line may have come while no server ran.
        self._attempt(1)
        while not self._ending.wait(self._poll_seconds):
            self._attempt(self._tried + self._every)
        self._attempt(self._written + 1)

    def _attempt(self, least: int) -> None:
        """Write a checkpoint if the ledger has at least `least` entries; report a failure once, and its end."""
        try:
            size, note = self._due_note(least)
            if not note:
                return
            # Before the write: a place that fails is tried again after `every` entries, and not at each look.
            self._tried = size
            self.place.write(note)
            self._written = size
        except LedgerError as error:
            if not self.failing:
                self._events.tell(log.CheckpointFailed(place=self.place.name, reason=str(error)))
            self.failing = True
        except Exception as error:  # a bug in a location must end neither the thread nor the server
            log.failure(error, place=self.place.name)
        else:
            if self.failing:
                self._events.tell(log.CheckpointWrittenAgain(place=self.place.name, entry=size))
            self.failing = False


def _newest_key(state: State, chain: Sequence[ChainKey]) -> SigningKey:
    if not chain:
        raise CheckpointError(_NO_KEY)
    path = key_file(state)
    for file in (path, _new(path)):
        if file.exists() and (key := SigningKey.load(file)).verifier == chain[-1].key:
            if file != path:
                file.replace(path)
            return key
    raise CheckpointError(
        f"the key of entry {chain[-1].entry} is not in {path}; restore it from a backup, "
        "or put a new one in force: bursar-admin checkpoint rotate"
    )


def _refuse_notes(places: Iterable[Place]) -> None:
    _refuse(f"{place.name}: there are checkpoints, but the ledger names no key" for place in places if place.read())


def _compare(state: State, places: Iterable[Place], key: VerifierKey, *, since: int = 0) -> None:
    compared = (check_place(state.ledger, place, key, since=since) for place in _readable(places))
    _refuse(line for one in compared for line in one.problems)


def _refuse(problems: Iterable[str]) -> None:
    lines = tuple(problems)
    if lines:
        raise CheckpointError(
            "the ledger does not agree with its signed checkpoints, nothing is served from it:\n" + "\n".join(lines)
        )


def _readable(places: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(place for place in places if place.readable)


def _write(places: Sequence[Place], note: str, create: bool) -> tuple[str, ...]:
    failed: list[str] = []
    for place in places:
        try:
            if create:
                place.create()
            place.write(note)
        except PlaceError as error:
            failed.append(f"no checkpoint was written: {error}")
    return tuple(failed)


def _new(path: Path) -> Path:
    """Return the path of a new key before the entry that puts it in force."""
    return path.with_name(path.name + ".new")
