"""Signed checkpoints on the server's side: its key, the comparison at the start, and the threads that write.

No thread that answers a caller waits for a checkpoint. A place that fails is told to the operator once and tried again
with the next checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bursar_ledger import Ledger, LedgerError
from bursar_ledger.checkpoints import (
    ChainKey,
    NoteError,
    Place,
    PlaceError,
    SigningKey,
    check_place,
    checkpoint_of,
    origin_of,
    parse_place,
    sign,
    verifier_keys,
)
from bursar_server import logs
from bursar_server.config import Config
from bursar_server.state import State, StateError

_POLL_SECONDS = 1.0
_END_SECONDS = 20.0
_ACTOR = "bursar-server"
_REASON = "signs checkpoints from here on"
_NO_KEY = "the ledger names no checkpoint key yet; the server makes one when it starts"


class CheckpointError(StateError):
    """The checkpoints forbid to serve; names place, entry and remedy."""


def places_of(state: State, config: Config) -> tuple[Place, ...]:
    """The configured places."""
    return tuple(parse_place(text, state.path) for text in config.checkpoints.places)


def key_file(state: State) -> Path:
    """Where a state directory has its signing key."""
    return state.keys / "checkpoint.key"


def prepare_checkpoints(state: State, ledger: Ledger, *, actor: str = _ACTOR) -> SigningKey:
    """The first key of a ledger, in its file and in the chain; for a ledger that names none yet.

    Raises:
        NoteError: the file cannot be written, or what is there is no key.
        CheckpointError: the key that is there is another ledger's.
    """
    path, origin = key_file(state), origin_of(ledger.ledger_id)
    if not path.exists():
        SigningKey.create(origin).save(path)
    key = SigningKey.load(path)
    if key.name != origin:
        raise CheckpointError(f"{path} is the key of another ledger, {key.name}; this one is {origin}. Move it away")
    ledger.set_checkpoint_key(str(key.verifier), actor=actor, reason=_REASON)
    return key


def load_key(state: State) -> SigningKey:
    """The key that the chain names last; finishes a rotation that was interrupted.

    Raises:
        CheckpointError: no key in the state directory is that one.
        NoteError: a key file cannot be used.
    """
    return _newest_key(state, verifier_keys(state.ledger))


def open_checkpoints(state: State, ledger: Ledger, config: Config) -> SigningKey:
    """The signing key, after the ledger was compared with every place. A ledger of an older version gets its first key.

    Raises:
        CheckpointError: a place does not agree, or has no checkpoint where there must be one.
    """
    chain, places = verifier_keys(state.ledger), places_of(state, config)
    if not chain:
        _refuse(f"{place.name}: there are checkpoints, but the ledger names no key" for place in places if place.read())
    if not chain or ledger.newest()[0] <= chain[0].entry:
        # Nothing came behind the first key, so there need not be a checkpoint yet.
        for place in places:
            place.create()
    if not chain:
        return prepare_checkpoints(state, ledger)
    key = _newest_key(state, chain)
    _refuse(line for place in _readable(places) for line in check_place(state.ledger, place, key.verifier).problems)
    return key


def write_checkpoint(state: State, ledger: Ledger, config: Config, *, create: bool = False) -> tuple[str, ...]:
    """A checkpoint of now into the places; for acts of the command line, which count whether or not this works.

    Args:
        state: the state directory.
        ledger: open on it.
        config: names the places.
        create: an owner asked for checkpoints: begin places that are not there, and print to standard output if it is
            one. Otherwise a disk that is not mounted gets no new and empty history, and an act no foreign output.

    Returns:
        One line for each place that has no new checkpoint now, with the reason. Empty for a ledger without a key, which
        an older version made and no server has opened since.
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
    """Put a new key in force. The caller holds `state.serving()`: a running server would go on with the old key.

    The old key's last checkpoint is of the entry that names the new one, so that whoever pinned the old one can follow.
    If the old key is lost there is none, and the new one has to be pinned.

    Returns:
        As `write_checkpoint`.

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
    new.save(_new(path))
    ledger.set_checkpoint_key(str(new.verifier), actor=actor, reason=reason)
    places = _readable(places_of(state, config))
    problems = _write(places, sign(checkpoint_of(ledger), old), create=False) if old else ()
    _new(path).replace(path)
    return (*problems, *write_checkpoint(state, ledger, config))


class Checkpointer:
    """Writes checkpoints while a server runs: at the start, after each so many entries, and at the end.

    Use as a context manager around the server and inside the open ledger. Every place has a daemon thread of its own,
    so that one that hangs holds up neither the others nor the end of the process.

    Args:
        ledger: open.
        key: in force.
        places: where to.
        every: entries after which a checkpoint is due; it is written within a second.
        poll_seconds: how often a thread looks at the ledger.
        end_seconds: how long the end waits for the last checkpoints.
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
    ) -> None:
        self._ledger = ledger
        self._key = key
        self._end_seconds = end_seconds
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._newest: tuple[int, str] | None = None
        self._writers = [_Writer(place, self._due_note, every, poll_seconds, self._ending) for place in places]

    @property
    def problem(self) -> str | None:
        """What is wrong with the places, in a few words; None if each got its last checkpoint."""
        failing = sum(writer.failing for writer in self._writers)
        return f"{failing} of {len(self._writers)} places cannot be written" if failing else None

    def newest_note(self) -> str:
        """A signed checkpoint of the ledger as it is now. Raises LedgerUnavailableError if it cannot be read."""
        return self._due_note(0)[1]

    def __enter__(self) -> Self:
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        for writer in self._writers:
            writer.join(self._end_seconds / len(self._writers))
            if writer.is_alive():
                logs.event("checkpoint_left", place=writer.place.name)

    def _due_note(self, least: int) -> tuple[int, str]:
        """Size and note of now; the note is empty while the ledger has fewer than `least` entries."""
        size, _ = self._ledger.newest()
        with self._lock:
            if size < least:
                return size, ""
            if self._newest is None or size > self._newest[0]:
                checkpoint = checkpoint_of(self._ledger)
                self._newest = (checkpoint.size, sign(checkpoint, self._key))
            return self._newest


class _Writer(threading.Thread):
    """One place's thread."""

    def __init__(
        self,
        place: Place,
        due_note: Callable[[int], tuple[int, str]],
        every: int,
        poll_seconds: float,
        ending: threading.Event,
    ) -> None:
        super().__init__(name=f"checkpoints {place.name}", daemon=True)
        self.place = place
        self._due_note = due_note
        self._every = every
        self._poll_seconds = poll_seconds
        self._ending = ending
        self._tried = 0
        self._written = 0
        self.failing = False

    def run(self) -> None:
        """Until the end, and then once more."""
        self._attempt(1)
        while not self._ending.wait(self._poll_seconds):
            self._attempt(self._tried + self._every)
        self._attempt(self._written + 1)

    def _attempt(self, least: int) -> None:
        """Write a checkpoint if the ledger has at least so many entries; report a failure once, and its end."""
        try:
            size, note = self._due_note(least)
            if not note:
                return
            self._tried = size
            self.place.write(note)
            self._written = size
        except LedgerError as error:
            if not self.failing:
                logs.event("checkpoint_failed", place=self.place.name, reason=str(error))
            self.failing = True
        except Exception as error:  # a bug in a place ends neither the thread nor the server
            logs.failure(error, place=self.place.name)
        else:
            if self.failing:
                logs.event("checkpoint_written_again", place=self.place.name, entry=size)
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
    """A key between its making and the entry that puts it in force."""
    return path.with_name(path.name + ".new")
