"""Backups of a whole state directory, taken while it is served, and what makes one that is put back safe.

A ledger that is put back has forgotten what came after it: debits, releases, revoked tokens, retired and destroyed
tables. So `restore` gives nothing away: no account takes a debit until its owner has brought back what was spent, and
what was debited without a release is not drawn again, since its release may have been sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from bursar_ledger import DatasetState, Ledger, Verification, verify
from bursar_ledger.checkpoints import check_place, verifier_keys
from bursar_ledger.refusals import FILE as REFUSALS
from bursar_server.checkpointing import load_key, places_of, write_checkpoint
from bursar_server.config import Config
from bursar_server.datasets import Registered
from bursar_server.state import State, StateError, write_private
from bursar_server.tables import Keyring, sync

_MARK = ".restoring"


@dataclass(frozen=True)
class Restored:
    """What a restoration did, for the owner to go on from.

    Attributes:
        entries: of the ledger in the backup.
        closed: accounts that take no debits until their call limit is ended.
        lost: debits whose release, if there was one, is not in the backup; they are not run again.
        tokens: names of the tokens that are in force.
        missing_rows: datasets whose rows are not in the backup.
        problems: where checkpoints disagree with the backup, or cannot be read or written.
    """

    entries: int
    closed: tuple[str, ...]
    lost: tuple[int, ...]
    tokens: tuple[str, ...]
    missing_rows: tuple[str, ...]
    problems: tuple[str, ...]


def back_up(state: State, ledger: Ledger, path: Path, *, rows: bool = True) -> Verification:
    """Copy ledger, counts of refusals, settings, keys, certificates and tables into a new folder; verify the ledger.

    The server may go on meanwhile; imports and removals wait, so that the copy has the tables that its ledger names.
    The folder gets its name when all of it is whole and on the disk.

    Args:
        state: the state directory.
        ledger: open on it.
        path: of the folder.
        rows: copy the tables, too.

    Raises:
        StateError: something has the name already, another backup or an import is under way, or the copy is not good.
        LedgerError, OSError: the copy cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise StateError(f"there is something at {path} already; a backup overwrites nothing")
    with state.importing(), _partial(path) as new:
        copy = State(new)
        ledger.backup(copy.ledger)
        _copy_files(state, copy)
        copy.datasets.mkdir(mode=0o700)
        for folder in _snapshots(state, ledger) if rows else ():
            shutil.copytree(folder, copy.datasets / folder.name)
        if verifier_keys(copy.ledger):
            load_key(copy)  # raises if a new key came in between
        found = verify(copy.ledger)
        if not found.ok:
            raise StateError(f"the copy does not verify: {found.problems[0]}; do not rely on it")
        _flush(new)
        new.rename(path)
        sync(path.parent)
    return found


def restore(backup: Path, directory: Path, *, actor: str, reason: str) -> Restored:
    """A new state directory from a backup of a whole one, with every account closed; cut off, it can be done again.

    The ledger gets its name late: until everything that matters is in its place, the directory is none.

    Args:
        backup: what `back_up` made. It stays as it is.
        directory: empty, or not there.
        actor: who restores it.
        reason: why.

    Raises:
        StateError: the backup is none, or the directory is in use.
        LedgerError, ConfigError, OSError: the backup cannot be used, or the directory cannot be written.
    """
    source, state = State.open(backup), State(directory)
    found = verify(source.ledger)
    if not found.ok:
        raise StateError(f"the ledger in {backup} does not verify: {found.problems[0]}; take another backup")
    config = Config.load(source.config)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with state.importing():
        _empty(state)
        _copy_files(source, state)
        shutil.copytree(source.datasets, state.datasets)
        new = state.ledger.with_name("ledger.new")
        _copy_database(source.ledger, new)
        with Ledger.open(new) as ledger:
            restored = _made_safe(state, ledger, found.entries, actor, reason)
        _flush(directory)
        new.rename(state.ledger)
        sync(directory)
        problems = _witnessed(state, config)
        (directory / _MARK).unlink()
    return dataclasses.replace(restored, problems=problems)


def _made_safe(state: State, ledger: Ledger, entries: int, actor: str, reason: str) -> Restored:
    """Closes every account, and settles what was paid for and has no release."""
    why = f"restored from a backup of entry {entries}; what was spent since is not known"
    lost = tuple(paid.entry for paid in ledger.releases() if not paid.released)
    for entry in lost:
        # As of a fit that failed: its release may have been sent, and a second draw would be one too many.
        ledger.store_release(entry, b"")
    live = [dataset for dataset in ledger.datasets() if not dataset.retired]
    closed = tuple(dict.fromkeys(dataset.account for dataset in live))
    for account in closed:
        ledger.set_call_limit(account, Fraction(0), actor=actor, reason=f"{why}. {reason}" if reason else why)
    return Restored(
        entries=entries,
        closed=closed,
        lost=lost,
        tokens=tuple(credential.name for credential in ledger.credentials() if not credential.revoked),
        missing_rows=tuple(dataset.name for dataset in live if not _folder(state, dataset).is_dir()),
        problems=(),
    )


def _witnessed(state: State, config: Config) -> tuple[str, ...]:
    """What checkpoints say of the restored ledger; the places in the new directory itself are begun anew."""
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
    """A folder to fill, which goes away unless it gets its final name; what a killed backup left of it goes first."""
    new = path.with_name(f".{path.name}.partial")
    new.mkdir(mode=0o700, exist_ok=True)
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
    """Removes what a restoration that was cut off left. Raises StateError if something else is there."""
    mark, locks = state.path / _MARK, {"import.lock", "lost+found"}
    if state.ledger.exists() or (not mark.exists() and any(found.name not in locks for found in state.path.iterdir())):
        raise StateError(f"{state.path} is not empty; restore into a new directory, and never over another ledger")
    mark.touch(mode=0o600)
    for found in state.path.iterdir():
        if found != mark and found.name not in locks:
            _remove(found)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _copy_files(source: State, target: State) -> None:
    """Settings, keys, certificates, counts of refusals, other files of the owner; no checkpoints, locks or token."""
    places = (text.partition(":")[2] for text in Config.load(source.config).checkpoints.places)
    left_out = {source.ledger.name, REFUSALS, "admin.token", *places}
    for path in source.path.iterdir():
        database = path.name.startswith((f"{source.ledger.name}-", f"{REFUSALS}-"))
        if path.is_file() and path.suffix != ".lock" and path.name not in left_out and not database:
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
    """A consistent copy of an SQLite file that may be in use, as one file of the owner's; the source stays as it is."""
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
    """The folders of the tables that the ledger names; a missing one is for `check` to tell."""
    return tuple(folder for dataset in ledger.datasets() if (folder := _folder(state, dataset)).is_dir())


def _folder(state: State, dataset: DatasetState) -> Path:
    return state.datasets / Registered.of(dataset.manifest).snapshot


def _flush(folder: Path) -> None:
    """Waits until everything below a folder is on the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)
