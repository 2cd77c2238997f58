"""The state directory: everything a server keeps, and the lock that one server holds on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class StateError(Exception):
    """The state directory cannot be used as asked; says what to do."""


@dataclass(frozen=True)
class State:
    """Names of what a state directory holds.

    Attributes:
        path: of the directory; 0700.
    """

    path: Path

    @property
    def ledger(self) -> Path:
        """The SQLite ledger. Made last by `init`: a state directory without it is not one."""
        return self.path / "ledger.sqlite"

    @property
    def keys(self) -> Path:
        """Directory of the keys for unit caps and content tags, and of the one that signs checkpoints."""
        return self.path / "keys"

    @property
    def tls(self) -> Path:
        """Directory of the local authority and the server's certificate."""
        return self.path / "tls"

    @property
    def datasets(self) -> Path:
        """Directory of the snapshots, one folder each."""
        return self.path / "datasets"

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.path / "config.toml"

    @classmethod
    def open(cls, path: Path) -> State:
        """An initialised state directory. Raises StateError if it is not one."""
        state = cls(path)
        if not state.ledger.is_file():
            raise StateError(f"{path} is not a state directory; make one with: bursar-admin init --state {path}")
        return state

    @classmethod
    def prepare(cls, path: Path) -> State:
        """A directory to be initialised, made if need be. Raises StateError if it is initialised already."""
        state = cls(path)
        if state.ledger.exists():
            raise StateError(f"{path} is a state directory already; a budget is never reset, choose another directory")
        if state.datasets.is_dir() and any(state.datasets.iterdir()):
            raise StateError(
                f"{path} holds tables but no ledger; restore the ledger from a backup, or choose another directory"
            )
        # What an interrupted `init` left; no ledger knows it.
        shutil.rmtree(state.keys, ignore_errors=True)
        for directory in (path, state.keys, state.tls, state.datasets):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o700)
        return state

    def serving(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the one server. Raises StateError if another server holds it."""
        return _locked(self.path / "server.lock", f"another bursar-server serves {self.path}; stop it first")

    def importing(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the one import. Raises StateError if another import is under way."""
        return _locked(self.path / "import.lock", f"another import into {self.path} is under way; wait for it")

    def sketching(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the one sketch made at this machine. Raises StateError if another one is being made."""
        return _locked(self.path / "sketch.lock", f"another sketch of {self.path} is being made; wait for it")


@contextlib.contextmanager
def _locked(path: Path, refusal: str) -> Iterator[None]:
    # flock goes with the process however it ends, so a crash leaves no stale lock behind.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(refusal) from None
        yield
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read (0600), whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
