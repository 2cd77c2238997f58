"""Places for checkpoints: a history file, a git folder, standard output; better several, and not on one disk.

Nothing here knows what a note says. A place is made by `create` alone, and never by `write`: a disk that is not mounted
is an error, and not the beginning of a new and empty history.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .._mark import flush_path
from ..errors import LedgerError
from .signed_notes import Note, NoteError

_CUT_OFF = "(what is above was cut off)"
"""Stands in a history file behind a note that a crash tore."""

_SIGNATURE = "— "

_GIT_SECONDS = 60.0
"""Longest time of a git command, with its hooks; a hook may push to another machine."""
_GIT_FILE = "checkpoint"
# What a user's own settings could break is set here: no name, a signing key that asks for its password, a global hook.
_GIT_SETTINGS = {
    "user.name": "bursar",
    "user.email": "bursar@localhost",
    "commit.gpgSign": "false",
    "core.autocrlf": "false",
    "core.fsync": "all",
    "gc.auto": "0",
    "safe.directory": "*",
}


class PlaceError(LedgerError):
    """Raised when a place cannot be read or written now; says why, in words for the operator."""


class Place(Protocol):
    """One place for checkpoints.

    Attributes:
        name: as the operator wrote it.
        readable: whether what was written can be read again.
    """

    @property
    def name(self) -> str:
        """Place as the operator wrote it."""

    @property
    def readable(self) -> bool:
        """True if what was written can be read again."""

    def create(self) -> None:
        """Make the place if it is not there, but not the folder that it is to lie in. Raises PlaceError."""

    def write(self, note: str) -> None:
        """Add a note, durably. Raises PlaceError if it cannot; the notes that were there stay."""

    def read(self) -> tuple[str, ...]:
        """Return all notes, oldest first, unverified; none if it is not readable or not there. Raises PlaceError."""


@dataclass(frozen=True)
class FilePlace:
    """History file: notes one after the other, each followed by an empty line. Only ever appended to.

    A note that a power cut tore is passed over when reading, and marked as such by the next one that is written.
    """

    name: str
    path: Path
    readable: bool = True

    def create(self) -> None:
        """Make an empty file, readable by its owner only, if there is none."""
        with _explained(self.name):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            flush_path(self.path.parent)

    def write(self, note: str) -> None:
        """Append a note and wait until it is on the disk."""
        with _explained(self.name):
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            try:
                # A second process (bursar-admin beside the server) waits here; the lock ends with its holder.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                _write_all(descriptor, _repair(descriptor) + f"{note}\n".encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self) -> tuple[str, ...]:
        """Return all notes of the file; bytes that are no UTF-8 become U+FFFD, so their signature does not verify."""
        with _explained(self.name):
            try:
                return _notes_of(self.path.read_bytes().decode("utf-8", "replace"))
            except FileNotFoundError:
                return ()


@dataclass(frozen=True)
class GitPlace:
    """Folder in a git work tree: each note replaces the file "checkpoint" there and is committed.

    A hook of the repository itself (post-commit) may push it further; the user's own settings and hooks have no say.
    """

    name: str
    folder: Path
    readable: bool = True

    def create(self) -> None:
        """Make the folder, and a repository in it if it lies in none."""
        with _explained(self.name):
            self.folder.mkdir(mode=0o700, exist_ok=True)
        if not self._in_repository():
            self._git("init", "--quiet")

    def write(self, note: str) -> None:
        """Replace the file and commit it."""
        with _explained(self.name), _locked(self.folder):
            if not self._in_repository():
                raise PlaceError(f"{self.name}: {self.folder} is not in a git work tree")
            _replace(self.folder / _GIT_FILE, note.encode())
            self._git("add", "--force", "--", _GIT_FILE)
            # The same note twice is no failure.
            self._git("commit", "--quiet", "--no-verify", "--allow-empty", "--message", _subject(note), "--", _GIT_FILE)

    def read(self) -> tuple[str, ...]:
        """Return the file as every commit of every branch has it, remote ones that are known here included."""
        if not self.folder.is_dir() or not self._in_repository():
            return ()
        commits = self._git("log", "--all", "--reverse", "--full-history", "--format=%H", "--", _GIT_FILE).decode()
        prefix = self._git("rev-parse", "--show-prefix").decode().removesuffix("\n")
        wanted = "".join(f"{commit}:{prefix}{_GIT_FILE}\n" for commit in commits.split())
        return tuple(_blobs(self._git("cat-file", "--batch", given=wanted.encode())))

    def _in_repository(self) -> bool:
        try:
            return self._git("rev-parse", "--is-inside-work-tree").strip() == b"true"
        except PlaceError as error:
            # The error has the last of two lines: the boundary, where the folder is on a volume of its own.
            if "not a git repository" in str(error) or "filesystem boundary" in str(error):
                return False
            raise

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        settings = [part for name, value in _GIT_SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return _run(self.name, ["git", "-C", str(self.folder), *settings, *arguments], given)


@dataclass(frozen=True)
class StdoutPlace:
    """Standard output, for a log collector that keeps it. Cannot be read again."""

    name: str = "stdout"
    readable: bool = False

    def create(self) -> None:
        """Do nothing: there is nothing to make."""

    def write(self, note: str) -> None:
        """Print the note, with the empty line that ends it in a history file, too."""
        with _explained(self.name):
            try:
                sys.stdout.write(f"{note}\n")
                sys.stdout.flush()
            except ValueError as error:  # closed
                raise PlaceError(f"{self.name}: standard output is closed") from error

    def read(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()


def parse_place(text: str, base: Path) -> Place:
    """Return the place that a text names: "file:PATH" or "git:FOLDER", relative to `base`, or "stdout".

    Raises:
        ValueError: it names none.
    """
    kind, _, where = text.partition(":")
    if text == "stdout":
        return StdoutPlace()
    if kind not in {"file", "git"} or not where or not where.isprintable():
        raise ValueError('expected "file:PATH", "git:FOLDER" or "stdout"')
    return FilePlace(text, base / where) if kind == "file" else GitPlace(text, base / where)


def _notes_of(text: str) -> tuple[str, ...]:
    """Return the notes of a history file: a text, an empty line, signature lines, an empty line, and so on.

    What a crash tore is left out: the end of the file that is no whole note, and what is no whole note before a mark.
    Anything else that is no note is given as it is, so that verification complains about it.
    """
    *blocks, _unended = text.split("\n\n")
    notes: list[str] = []
    pending: list[str] = []
    for block in blocks:
        if block == _CUT_OFF:
            pending.clear()
            _drop_torn(notes)
            continue
        pending.append(block)
        if block.startswith(_SIGNATURE):
            notes.append("\n\n".join(pending) + "\n")
            pending.clear()
    _drop_torn(notes)
    return tuple(notes)


def _drop_torn(notes: list[str]) -> None:
    while notes and not _is_whole(notes[-1]):
        notes.pop()


def _is_whole(text: str) -> bool:
    # A signature line that was cut may still be base64; one of 64 bytes was not cut.
    try:
        return any(len(signature.value) == 64 for signature in Note.parse(text).signatures)
    except NoteError:
        return False


def _repair(descriptor: int) -> bytes:
    """Return what has to come before the next note: nothing, or the mark behind a note that is not whole."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, 65_536, max(0, size - 65_536))
    signatures = tail.removesuffix(b"\n\n").rpartition(b"\n\n")[2].decode("utf-8", "replace")
    if not tail or (tail.endswith(b"\n\n") and _is_whole(f"text\n\n{signatures}\n")):
        return b""
    missing = b"" if tail.endswith(b"\n\n") else b"\n" if tail.endswith(b"\n") else b"\n\n"
    return missing + f"{_CUT_OFF}\n\n".encode()


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn errors of the system into PlaceError."""
    try:
        yield
    except OSError as error:
        raise PlaceError(f"{name}: {error.strerror or type(error).__name__}") from error


def _subject(note: str) -> str:
    lines = note.split("\n", 2)
    return f"checkpoint of entry {lines[1]}" if len(lines) > 1 else "checkpoint"


def _blobs(batch: bytes) -> Iterator[str]:
    """Yield the contents in what `git cat-file --batch` prints: a header with the size, the content, a line break."""
    while batch:
        header, _, rest = batch.partition(b"\n")
        fields = header.split()
        batch = rest
        if fields[1:2] != [b"blob"]:  # a commit that removed the file: "... missing"
            continue
        size = int(fields[2])
        yield rest[:size].decode("utf-8", "replace")
        batch = rest[size + 1 :]


def _run(name: str, command: Sequence[str], given: bytes) -> bytes:
    """Run git and return its output. It and the hooks it starts are ended after a minute.

    Raises:
        PlaceError: git is not there, fails or takes too long; with its last line.
    """
    # Not GIT_DIR and its like: bursar may itself run inside a hook.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    # Files and not pipes: a hook that goes on in the background would hold a pipe open.
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as input_:
        input_.write(given)
        input_.seek(0)
        try:
            process = subprocess.Popen(
                command, stdin=input_, stdout=told, stderr=errors, env=environment, start_new_session=True
            )
        except OSError as error:
            raise PlaceError(f"{name}: the git program cannot be run: {error.strerror}; is it installed?") from error
        try:
            status = process.wait(_GIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise PlaceError(f"{name}: git did not end within {_GIT_SECONDS:g} seconds") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        told.seek(0)
        errors.seek(0)
        output, said = told.read(), errors.read().decode("utf-8", "replace").strip()
    if status:
        raise PlaceError(f"{name}: git failed: {(said.splitlines() or [f'status {status}'])[-1]}")
    return output
