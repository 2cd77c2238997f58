"""State directory: the files that a server keeps, and the locks of the processes that use them.

Locks are held on directories, because a lock file could be deleted while it is held and would then exclude no process.
Imports no other room.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bursar_ledger import flush_path, mark_of


class StateError(Exception):
    """Error: the state directory cannot be used as requested; the message has the remedy."""


@dataclass(frozen=True)
class State:
    """Paths in a state directory.

    Attributes:
        path: state directory, mode 0700.
    """

    path: Path

    @property
    def ledger(self) -> Path:
        """SQLite ledger. `init` creates it last, so a directory without it is not a state directory."""
        return self.path / "ledger.sqlite"

    @property
    def new_ledger(self) -> Path:
        """Ledger while it is being created."""
        return self.path / "ledger.new"

    @property
    def suspect(self) -> Path:
        """Findings of a background verification of the ledger.

        While the file exists, the next start verifies everything.
        """
        return self.path / "ledger.suspect"

    @property
    def keys(self) -> Path:
        """Folder of the keys of content tags and of the checkpoint signing key."""
        return self.path / "keys"

    @property
    def tls(self) -> Path:
        """Folder of the local authority and the server's certificate."""
        return self.path / "tls"

    @property
    def datasets(self) -> Path:
        """Folder of the snapshots, one folder each."""
        return self.path / "datasets"

    @property
    def config(self) -> Path:
        """Settings file."""
        return self.path / "config.toml"

    @classmethod
    def open(cls, path: Path) -> State:
        """Return an initialised state directory.

        Raises:
            StateError: the directory is not a state directory.
        """
        state = cls(path)
        if not state.ledger.is_file():
            raise StateError(f"{path} is not a state directory; make one with: bursar-admin init --state {path}")
        return state

    @classmethod
    def prepare(cls, path: Path) -> State:
        """Return a directory to be initialised, created if necessary.

        Raises:
            StateError: the directory is initialised already, or holds tables or a mark of a lost ledger.
        """
        state = cls(path)
        if state.ledger.exists():
            raise StateError(f"{path} is a state directory already; a budget is never reset, choose another directory")
        if state.datasets.is_dir() and any(state.datasets.iterdir()):
            raise StateError(
                f"{path} holds tables but no ledger; restore the ledger from a backup, or choose another directory"
            )
        if mark_of(state.ledger).exists() and not state.new_ledger.exists():
            raise StateError(
                f"{path} had a ledger, which is lost; restore it from a backup, or choose another directory"
            )
        # Remains of an interrupted `init`; no ledger refers to them.
        shutil.rmtree(state.keys, ignore_errors=True)
        mark_of(state.ledger).unlink(missing_ok=True)
        for leftover in path.glob(f"{state.new_ledger.name}*"):
            leftover.unlink()
        for directory in (path, state.keys, state.tls, state.datasets):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o700)
        return state

    def serving(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the one server. Raises StateError if another server holds it."""
        return _locked(self.path, f"another bursar-server serves {self.path}; stop it first")

    def importing(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the one import. Raises StateError if another import is under way."""
        return _locked(self.datasets, f"another import into {self.path} is under way; wait for it")

    def sketching(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the one sketch made on this machine. Raises StateError if another one is being made."""
        return _locked(self.keys, f"another sketch of {self.path} is being made; wait for it")


@contextlib.contextmanager
def _locked(directory: Path, refusal: str) -> Iterator[None]:
    # The kernel releases flock when the process ends in any way, so a crash leaves no stale lock.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(refusal) from None
        yield
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically and durably, readable by its owner only (0600)."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    flush_path(path.parent)
