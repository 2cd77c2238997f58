"""Backups of a whole state directory taken while it is served, and safe restoration.

A restored ledger has lost the later history: debits, releases, revoked tokens, retired and destroyed tables. So
`restore` closes every account until its owner has added back the spent budget. Debits without a release are not run
again, because their release may have been sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

from bursar_ledger import (
    Ledger,
    LedgerError,
    Verification,
    adopt_copy,
    check_mark,
    mark_of,
    move_ledger,
    verify,
)
from bursar_ledger.checkpoints import check_place, verifier_keys
from bursar_ledger.refusals import FILE as REFUSALS
from bursar_server.config import Config
from bursar_server.ops.checkpoints import load_key, places_of, write_checkpoint
from bursar_server.state import State, StateError, write_private
from bursar_server.tables import Keyring, sync
from bursar_server.tables.registration import rows_folder

_MARK = ".restoring"
_NOTE = "backup.json"


@dataclass(frozen=True)
class Restored:
    """Result of a restoration, with the facts that the owner needs to continue.

    Attributes:
        entries: number of entries of the ledger in the backup.
        closed: accounts that refuse debits until their call limit is lifted.
        lost: debits without a release in the backup; they are not run again.
        tokens: names of the tokens in force.
        missing_rows: datasets whose rows are not in the backup.
        problems: entries that the mark beside the ledger shows to be missing; disagreements of checkpoints with the
            backup; checkpoint locations that cannot be read or written.
    """

    entries: int
    closed: tuple[str, ...]
    lost: tuple[int, ...]
    tokens: tuple[str, ...]
    missing_rows: tuple[str, ...]
    problems: tuple[str, ...]


def back_up(state: State, ledger: Ledger, path: Path, *, rows: bool = True) -> Verification:
    """Copy a state directory into a new folder, and verify the copied ledger.

    Copies ledger, counts of refusals, settings, keys, certificates and tables. The server may keep running; imports and
    removals wait, so that the copy has the tables that its ledger names. The folder gets its name when everything is
    complete and on the disk.

    With `rows` the tables are copied, too.

    Raises:
        StateError: the path exists, another backup or an import is under way, or the copy does not verify.
        LedgerError, OSError: the copy cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise StateError(f"there is something at {path} already; a backup overwrites nothing")
    # Imports wait: otherwise the ledger's copy could name a table that is not in the backup.
    with state.importing(), _partial(path) as new:
        copy = State(new)
        ledger.backup(copy.ledger)
        _copy_files(state, copy)
        copy.datasets.mkdir(mode=0o700)
        for folder in _snapshots(state, ledger) if rows else ():
            shutil.copytree(folder, copy.datasets / folder.name)
        if verifier_keys(copy.ledger):
            load_key(copy)  # raises if the key was rotated while files were copied
        found = verify(copy.ledger)
        if not found.ok:
            raise StateError(f"the copy does not verify: {found.problems[0]}; do not rely on it")
        _flush(new)
        # Renamed last, so that a folder with the final name is complete even after a power failure.
        new.rename(path)
        sync(path.parent)
    return found


@dataclass(frozen=True)
class BackupNote:
    """Note of the newest backup that was made of a state directory."""

    time: datetime
    entries: int
    path: str

    def save(self, state: State) -> None:
        """Replace the note in a state directory."""
        fields = {"time": self.time.isoformat(timespec="seconds"), "entries": self.entries, "path": self.path}
        write_private(state.path / _NOTE, json.dumps(fields).encode())

    @classmethod
    def load(cls, state: State) -> BackupNote | None:
        """Return the note of a state directory; None if there is none that can be read."""
        try:
            fields = json.loads((state.path / _NOTE).read_bytes())
            return cls(
                datetime.fromisoformat(fields["time"]).astimezone(UTC), int(fields["entries"]), str(fields["path"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def restore(backup: Path, directory: Path, *, actor: str, reason: str) -> Restored:
    """Make a new state directory from a backup, with every account closed. An interrupted call can be repeated.

    The ledger gets its name late: until all essential files are in place, the directory is not a state directory.

    The directory is empty or missing; the backup is not changed.

    Raises:
        StateError: the backup is not one or is served, or the directory is in use.
        LedgerError, ConfigError, OSError: the backup cannot be used, or the directory cannot be written.
    """
    source, state = State.open(backup), State(directory)
    found = verify(source.ledger, marked=False)
    if not found.ok:
        raise StateError(f"the ledger in {backup} does not verify: {found.problems[0]}; take another backup")
    config = Config.load(source.config)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _unserved(source), state.serving():
        _empty(state)
        _copy_files(source, state)
        shutil.copytree(source.datasets, state.datasets)
        new = state.new_ledger
        _copy_database(source.ledger, new)
        adopt_copy(new)
        with Ledger.open(new) as ledger:
            restored = _made_safe(state, ledger, found.entries, actor, reason)
        _flush(directory)
        move_ledger(new, state.ledger)
        problems = (*_lost(source), *_witnessed(state, config))
        (directory / _MARK).unlink()
    return dataclasses.replace(restored, problems=problems)


def _unserved(source: State) -> contextlib.AbstractContextManager[None]:
    """Keep servers from a state directory that is put back: its budget would be spent there and in the new one.

    A backup has no mark, no server takes it, and it may lie where nothing can be locked.

    Raises:
        StateError: a server has it.
    """
    return source.serving() if mark_of(source.ledger).exists() else contextlib.nullcontext()


def _made_safe(state: State, ledger: Ledger, entries: int, actor: str, reason: str) -> Restored:
    """Close every account, and write off debits without a release."""
    why = f"restored from a backup of entry {entries}; what was spent since is not known"
    lost = tuple(paid.entry for paid in ledger.releases() if not paid.released)
    for entry in lost:
        # Its release may have been sent; a second draw of noise would not be covered by the debit.
        ledger.lose_release(entry)
    # Those of retired datasets, too: another table of the same people may join them.
    closed = tuple(dict.fromkeys(dataset.account for dataset in ledger.datasets()))
    for account in closed:
        ledger.set_call_limit(account, Fraction(0), actor=actor, reason=f"{why}. {reason}" if reason else why)
    return Restored(
        entries=entries,
        closed=closed,
        lost=lost,
        tokens=tuple(credential.name for credential in ledger.credentials() if not credential.revoked),
        missing_rows=tuple(
            dataset.name
            for dataset in ledger.datasets()
            if not dataset.retired and not rows_folder(state, dataset).is_dir()
        ),
        problems=(),
    )


def _lost(source: State) -> Iterator[str]:
    """Yield a message if the ledger of a state directory that was not closed in order lacks entries.

    Backups have no mark.
    """
    if mark_of(source.ledger).exists():
        try:
            check_mark(source.ledger)
        except LedgerError as error:
            yield str(error)


def _witnessed(state: State, config: Config) -> tuple[str, ...]:
    """Return disagreements of checkpoints with the restored ledger; locations in the new directory begin anew."""
    with Ledger.open(state.ledger) as ledger:
        inside = [text for text in config.checkpoints.places if _is_inside(text)]
        places = config.checkpoints.model_copy(update={"places": tuple(inside)})
        begun = write_checkpoint(state, ledger, config.model_copy(update={"checkpoints": places}), create=True)
    if not (keys := verifier_keys(state.ledger)):
        return begun
    outside = (place for place in places_of(state, config) if place.readable and not _is_inside(place.name))
    return (*begun, *(line for place in outside for line in check_place(state.ledger, place, keys[-1].key).problems))


def _is_inside(place: str) -> bool:
    kind, _, path = place.partition(":")
    return kind == "file" and not Path(path).is_absolute()


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Create a folder to fill, which is removed unless it gets its final name.

    Remains of a killed backup are removed first.
    """
    new = path.with_name(f".{path.name}.partial")
    new.mkdir(mode=0o700, exist_ok=True)
    # O_NOFOLLOW: what is in the folder is removed below, and a link in its place would lead elsewhere.
    handle = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process
        except BlockingIOError:
            raise StateError(f"another backup to {path} is being written; wait for it") from None
        for left in new.iterdir():
            _remove(left)
        try:
            yield new
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    finally:
        os.close(handle)


def _empty(state: State) -> None:
    """Remove the remains of an interrupted restoration. Raises StateError if other files are there."""
    mark, kept = state.path / _MARK, {_MARK, "lost+found"}
    if state.ledger.exists() or (not mark.exists() and any(found.name not in kept for found in state.path.iterdir())):
        raise StateError(f"{state.path} is not empty; restore into a new directory, and never over another ledger")
    mark.touch(mode=0o600)
    for found in state.path.iterdir():
        if found.name not in kept:
            _remove(found)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _copy_files(source: State, target: State) -> None:
    """Copy settings, keys, certificates, counts of refusals and other files of the owner; no checkpoints, no token."""
    places = (text.partition(":")[2] for text in Config.load(source.config).checkpoints.places)
    left_out = {source.ledger.name, REFUSALS, "admin.token", _NOTE, *places}
    for path in source.path.iterdir():
        database = path.name.startswith((f"{source.ledger.name}-", f"{REFUSALS}-"))
        if path.is_file() and path.name not in left_out and not database:
            _copy_private(path, target.path / path.name)
    for folder in (source.keys, Keyring(source.keys).tables, source.tls):
        into = target.path / folder.relative_to(source.path)
        into.mkdir(mode=0o700)
        for path in filter(Path.is_file, folder.iterdir() if folder.is_dir() else ()):
            if not path.name.startswith("."):  # unfinished
                _copy_private(path, into / path.name)
    if (source.path / REFUSALS).exists():
        _copy_database(source.path / REFUSALS, target.path / REFUSALS)


def _copy_private(source: Path, target: Path) -> None:
    write_private(target, source.read_bytes())
    target.chmod(source.stat().st_mode & 0o777)


def _copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite file that may be in use, consistently and as one private file; the source is not changed."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
    except sqlite3.Error as error:
        raise StateError(f"{source} cannot be copied: {error}; is it damaged?") from error


def _snapshots(state: State, ledger: Ledger) -> tuple[Path, ...]:
    """Return the folders of the tables that the ledger names; `check` reports missing ones."""
    return tuple(folder for dataset in ledger.datasets() if (folder := rows_folder(state, dataset)).is_dir())


def _flush(folder: Path) -> None:
    """Flush all files below a folder to the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)
