"""Mark beside a ledger: the newest entry that was confirmed, and which files the running processes have open.

SQLite keeps recent entries in the `-wal` file. Without that file the database opens at an older entry, verifies, and
would be charged again for what was spent since. The mark is a file of its own, `ledger.sqlite-mark`. After each commit,
and before a caller is answered, it says number and hash of the newest entry. It is never ahead of what is durable, so a
ledger that lacks the mark's entry has lost entries, however that came. No flag of an unclean end is needed beside it:
what counts at a start is whether an entry is missing.

Processes that use one ledger hold locks of the mark (`F_OFD_SETLK`, which belong to the open file and not to the
process): byte 0 shared by all of them, so that the first one knows that it is alone, and byte 1 around a write.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import LedgerExistsError, LedgerLostError, LedgerUnavailableError

_SIZE = 512
"""Bytes of the file: one sector, which disks write whole or not at all; PostgreSQL's pg_control relies on that, too."""
_USERS, _WRITING = 0, 1
"""Bytes whose locks show which processes use the ledger, and which one writes the mark."""
_POLL_SECONDS = 0.002
"""Pause between two tries for a lock, which others hold for about the time of a write."""
# Linux's `struct flock` on 64 bits: kind, origin, start, length, and a process, which F_OFD_SETLK wants to be 0.
_FLOCK = "hhqqi"

Identity = tuple[int, int]
"""Device and inode of a file."""


@dataclass(frozen=True)
class Mark:
    """Content of the file.

    Attributes:
        number: number of the newest confirmed entry.
        hash: hash of that entry.
        files: database, -wal and -shm of the processes that have the ledger open, or had it when they were killed.
    """

    number: int
    hash: bytes
    files: tuple[Identity, ...] = ()

    def encode(self) -> bytes:
        """Return the file's bytes: one line of text with its own digest, filled up with spaces."""
        files = ",".join(f"{device}:{inode}" for device, inode in self.files) or "-"
        text = f"{self.number} {self.hash.hex()} {files}"
        return f"{text} {_digest(text)}".encode().ljust(_SIZE - 1) + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> Mark:
        """Return what the bytes say. Raises ValueError if they are not those of a mark."""
        text, _, digest = content.decode().rstrip().rpartition(" ")
        if len(content) != _SIZE or digest != _digest(text):
            raise ValueError("its digest is wrong")
        number, head, files = text.split(" ")
        pairs = (pair.split(":") for pair in files.split(",") if pair != "-")
        return cls(int(number), bytes.fromhex(head), tuple((int(device), int(inode)) for device, inode in pairs))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def mark_of(ledger: Path) -> Path:
    """Return where the mark of a ledger is."""
    return ledger.with_name(ledger.name + "-mark")


def read_mark(ledger: Path) -> Mark | None:
    """Return the mark beside a file, None if none may be read. Raises LedgerLostError if it is damaged."""
    try:
        return _decoded(mark_of(ledger), mark_of(ledger).read_bytes())
    except (FileNotFoundError, PermissionError):
        return None


def create_mark(ledger: Path, mark: Mark) -> None:
    """Make the mark of a new ledger, or of a copy that is put into use; durable on return.

    Raises:
        LedgerExistsError: there is a mark already.
        LedgerUnavailableError: it cannot be written.
    """
    path = mark_of(ledger)
    try:
        write_new(path, mark.encode())
    except FileExistsError as error:
        raise LedgerExistsError(
            f"{path} is the mark of a ledger that was here: that ledger is lost. Put it back, or restore a backup"
        ) from error
    except OSError as error:
        raise LedgerUnavailableError(f"the mark {path} cannot be written: {error.strerror}") from error


def move_ledger(source: Path, target: Path) -> None:
    """Give a closed ledger and its mark another name, the ledger last: without it there is nothing to open."""
    mark_of(source).replace(mark_of(target))
    source.replace(target)
    flush_path(target.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write a file for its owner only (0600), durable on return. Raises FileExistsError if there is one already."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    # The folder, too: after a power cut a flushed file could be there without its name.
    flush_path(path.parent)


def flush_path(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _decoded(path: Path, content: bytes) -> Mark:
    try:
        return Mark.decode(content)
    except ValueError as error:
        raise LedgerLostError(f"the mark {path} is damaged: {error}. {ADVICE}") from error


ADVICE = (
    "Nothing was changed. Put back the file that is missing or was replaced, as the last run left it. If it is lost, "
    "make a new state directory from this one or from a backup, with every account closed: bursar-admin restore"
)
"""Advice about a ledger that lacks entries."""


class OpenMark:
    """Mark of a ledger that this process uses; made before the ledger is opened, closed after it.

    Raises:
        LedgerLostError: there is no mark.
        LedgerUnavailableError: it cannot be opened for writing, or locked.
    """

    def __init__(self, ledger: Path) -> None:
        self.path = mark_of(ledger)
        try:
            # O_CLOEXEC: a program that this process starts, such as git, would else hold the locks after its end.
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise LedgerLostError(
                f"the mark {self.path} is missing: it says which entries {ledger.name} must have. {ADVICE}"
            ) from None
        except OSError as error:
            raise LedgerUnavailableError(f"{self.path} cannot be written: {error.strerror}") from error
        self._flushing = threading.Lock()
        self._written = self._flushed = 0

    def join(self, seconds: float) -> bool:
        """Take part in the use of the ledger; return whether this is the only user, which then must call `share`.

        Raises LedgerUnavailableError if another user does not get ready in time.
        """
        end = time.monotonic() + seconds
        while True:
            # The exclusive lock first: only a process that is alone gets it, and while it has it, the shared one waits.
            if self._locked(fcntl.F_WRLCK, _USERS):
                return True
            if self._locked(fcntl.F_RDLCK, _USERS):
                return False
            _wait(end, self.path)

    def share(self) -> None:
        """Let others use the ledger, too. This cannot fail: the kernel turns one lock into the other."""
        self._locked(fcntl.F_RDLCK, _USERS)

    def read(self) -> Mark:
        """Return what the file says. Raises LedgerLostError if it is damaged."""
        # One byte more than a mark has, so that a longer file is seen to be damaged.
        return _decoded(self.path, os.pread(self._descriptor, _SIZE + 1, 0))

    def record(self, files: tuple[Identity, ...], number: int, head: bytes) -> None:
        """Write and flush which files are open, and the newest entry in them."""
        # Without the lock of byte 1: only the process that is alone, and keeps others waiting, calls this.
        self._write(Mark(number, head, files))
        self.flush()

    def advance(self, number: int, head: bytes, seconds: float) -> None:
        """Write a newer entry, unless another process has written a still newer one. One thread at a time."""
        end = time.monotonic() + seconds
        while not self._locked(fcntl.F_WRLCK, _WRITING):
            _wait(end, self.path)
        try:
            found = self.read()
            # Never backwards: another process may have committed, and written its mark, in between.
            if found.number < number:
                self._write(replace(found, number=number, hash=head))
        finally:
            self._locked(fcntl.F_UNLCK, _WRITING)

    def flush(self) -> None:
        """Wait until what was written is on the disk. Threads that wait share a flush."""
        wanted = self._written
        with self._flushing:
            if self._flushed < wanted:
                # Read before the flush: what is written during it may not be in it.
                reached = self._written
                os.fdatasync(self._descriptor)
                self._flushed = reached

    def close(self) -> None:
        """Close the file and give the locks back; again, do nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, mark: Mark) -> None:
        os.pwrite(self._descriptor, mark.encode(), 0)
        self._written += 1

    def _locked(self, kind: int, byte: int) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))
        # POSIX allows either error where another process holds the lock.
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise LedgerUnavailableError(f"{self.path} cannot be locked: {error.strerror}") from error
        return True


def _wait(end: float, path: Path) -> None:
    if not time.monotonic() < end:
        raise LedgerUnavailableError(f"another process holds the lock of {path}; try again")
    time.sleep(_POLL_SECONDS)


class OpenFiles:
    """Files that were opened as one ledger, and whether the directory still has them.

    SQLite goes on in files that were removed or replaced, and another process then begins a history of its own beside
    them. A path that has the device and inode of an open file names that file, since its inode cannot be used again.

    Raises:
        LedgerUnavailableError: one of the files is missing or has further names.
    """

    def __init__(self, ledger: Path) -> None:
        # A shrunk -wal or database is a truncated one: bursar lets SQLite shrink neither.
        self._paths = tuple(ledger.with_name(ledger.name + end) for end in ("", "-wal", "-shm", "-mark"))
        self._sizes = [0] * len(self._paths)
        self.identities = identities(ledger)
        self._known = (*self.identities, _identity(self._paths[3]))

    def problem(self) -> str | None:
        """Return what happened to the files, None if the directory still has them."""
        for index, (path, known) in enumerate(zip(self._paths, self._known, strict=True)):
            # Before the look: another thread may see the file longer, and say so, between that and the comparison.
            least = self._sizes[index]
            try:
                found = path.stat()
            except OSError:
                return f"{path.name} was removed"
            if (found.st_dev, found.st_ino) != known:
                return f"{path.name} was replaced"
            # SQLite names -wal after the database: under a second name the same database would get a second log.
            if found.st_nlink != 1:
                return f"{path.name} has {found.st_nlink} names"
            if found.st_size < least:
                return f"{path.name} was cut"
            self._sizes[index] = max(self._sizes[index], found.st_size)
        return None


def identities(ledger: Path) -> tuple[Identity, ...]:
    """Return device and inode of database, -wal and -shm. Raises LedgerUnavailableError if one is missing."""
    return tuple(_identity(ledger.with_name(ledger.name + end)) for end in ("", "-wal", "-shm"))


def _identity(path: Path) -> Identity:
    try:
        found = path.stat()
    except OSError as error:
        raise LedgerUnavailableError(f"{path} cannot be found: {error.strerror}") from error
    return found.st_dev, found.st_ino
