"""Heads of a server's ledger that a client saw, and the error when the server's history is no extension of them.

The ledger is a chain: what its newest entry hashed to when it had n entries, its n-th entry hashes to for ever. A
server whose ledger was replaced by an old copy, or by another ledger, cannot answer with the hash that was seen before.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from bursar._errors import HistoryError, NotImplementedByServerError
from bursar._history_head import HistoryHead
from bursar_models.errors import InvalidRequestError
from bursar_models.files import write_whole

if sys.platform != "win32":
    import fcntl

VARIABLE = "BURSAR_HISTORY"
OFF = "off"
"""Value of the variable that stands for no file."""

_FORMAT = 1


class Shelf:
    """File that keeps the newest head of one server between programs: JSON that many of them may share.

    A file that cannot be read or written is no error: the head is kept in memory then, and one warning says so.

    Without a path nothing is kept.
    """

    def __init__(self, path: Path | None, server: str, address: str = "") -> None:
        self.path = path
        self.server = server
        self._address = address
        self._warned = False

    def load(self) -> HistoryHead | None:
        """Return the newest head that any program saw; None if there is none.

        Raises:
            InvalidRequestError: the file is not one of these.
        """
        if self.path is None:
            return None
        try:
            return _head(_read(self.path), self.server, self.path)
        except OSError as error:
            self._warn(error)
            return None

    def elsewhere(self, ledger_id: str) -> HistoryHead | None:
        """Return the newest head of a ledger that any program saw, at whatever address; None if there is none.

        Raises:
            InvalidRequestError: the file is not one of these.
        """
        if self.path is None:
            return None
        try:
            content = _read(self.path)
        except OSError as error:
            self._warn(error)
            return None
        heads = (_head(content, server, self.path) for server in content["servers"])
        found = (head for head in heads if head is not None and head.ledger_id == ledger_id)
        return max(found, key=lambda head: head.size, default=None)

    def keep(self, head: HistoryHead) -> HistoryHead | None:
        """Put a head into the place of an older one of the same ledger; one that contradicts it stays and is returned.

        Raises:
            InvalidRequestError: the file is not one of these.
        """
        if self.path is None:
            return None
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.path):
                content = _read(self.path)
                kept = _head(content, self.server, self.path)
                # The older head stays: it is the evidence.
                if kept is not None and kept.contradicts(head):
                    return kept
                # Another program that shares the file may have seen more.
                if kept is None or kept.size < head.size:
                    content["servers"][self.server] = {"address": self._address, **asdict(head)}
                    write_whole(self.path, json.dumps(content, indent=1, sort_keys=True), mode=0o600)
        except OSError as error:
            self._warn(error)
        return None

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"what is seen of the server's ledger cannot be kept in {self.path} ({error.strerror}), so a ledger "
                f"that is rolled back after this program is not noticed: set {VARIABLE} to a file that can be written, "
                f"or pass history=False",
                RuntimeWarning,
                stacklevel=2,
            )


@dataclass(frozen=True)
class Shown:
    """History that a server shows.

    Attributes:
        newest: how far its ledger is now.
        head_at_size: what it was at the size that was asked for, as hexadecimal digits; empty if it is shorter.
    """

    newest: HistoryHead
    head_at_size: str


Ask = Callable[[int], Shown]
"""Asks the server for its history, given the size that is known."""


class History:
    """The newest head that was seen of one server. Safe for threads."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._lock = threading.Lock()
        self._newest: HistoryHead | None = None
        self._checked = False
        self._complaint: tuple[str, HistoryHead, HistoryHead | None] | None = None

    def place(self, kind: str) -> tuple[Path | None, str]:
        """Return the file for other notes about the same server, beside this one's, and its name in there."""
        path = self._shelf.path
        return (None if path is None else path.with_name(f"{path.stem}.{kind}.json")), self._shelf.server

    def check_once(self, ask: Ask) -> None:
        """Call `check`, if nothing was checked yet.

        Raises:
            HistoryError: the server's history is no extension of what was seen, now or before.
            Error: the question failed.
        """
        self._stop_if_broken()
        if not self._checked:
            self.check(ask)

    def check(self, ask: Ask) -> None:
        """Ask the server whether its history is an extension of what was seen.

        Raises:
            HistoryError: it is not, now or before; nothing may be sent any more.
            Error: the question failed.
        """
        self._stop_if_broken()
        known = self._known()
        try:
            shown = ask(known.size if known else 0)
        except NotImplementedByServerError:
            # Taken for an older server, one that was rolled back could hide it by leaving the method out.
            if known is not None:
                self._complain(known, None, "the server does not say any more how long its ledger is")
            raise
        if known is not None:
            self._compare(known, shown)
        # An old copy that is served at another port or name is one of a ledger that was seen longer.
        longer = self._shelf.elsewhere(shown.newest.ledger_id)
        if longer is not None and (known is None or longer.size > known.size):
            self._compare(longer, ask(longer.size))
        self._learn(shown.newest)
        self._checked = True

    def add_receipt(self, entry: int, head: bytes) -> None:
        """Remember the head of a receipt, for which the server's history has to account from now on.

        Raises:
            HistoryError: it contradicts what was seen.
        """
        newest = self._newest
        # The head that is known covers older entries: each hash is in the next one.
        if newest is not None and entry >= newest.size:
            self._learn(HistoryHead.now(newest.ledger_id, entry, head))

    def _known(self) -> HistoryHead | None:
        """Return the newest of what this program and others saw."""
        kept, newest = self._shelf.load(), self._newest
        if kept is None or newest is None:
            return newest or kept
        if kept.contradicts(newest):
            self._complain(kept, newest, "another program of yours saw another ledger at this server")
        return max(kept, newest, key=lambda head: head.size)

    def _compare(self, known: HistoryHead, shown: Shown) -> None:
        found = shown.newest
        if found.ledger_id != known.ledger_id:
            self._complain(known, found, "the server serves another ledger now")
        if found.size < known.size:
            self._complain(known, found, f"the server's ledger has lost {known.size - found.size} entries")
        if shown.head_at_size != known.head:
            self._complain(known, found, f"entry {known.size} of the server's ledger is not the one that was seen")

    def _learn(self, found: HistoryHead) -> None:
        with self._lock:
            newest = self._newest
            if newest is None or found.size > newest.size:
                self._newest = found
        earlier = newest if newest is not None and newest.contradicts(found) else self._shelf.keep(found)
        if earlier is not None:
            self._complain(earlier, found, "the server shows two different histories of its ledger")

    def _complain(self, seen: HistoryHead, found: HistoryHead | None, what: str) -> NoReturn:
        now = f"; now it shows {found}" if found else ""
        file = f", and keep the file {self._shelf.path}, which is evidence" if self._shelf.path else ""
        text = (
            f"{what}: at {seen.seen} it had {seen}{now}. Perhaps an old copy of the ledger was put back, and budget "
            f"that was spent would be spent again. Nothing more is sent. Tell the auditor{file}; to go on knowingly, "
            "connect with history=False or with another file"
        )
        self._complaint = (text, seen, found)
        raise HistoryError(text, seen=seen, found=found)

    def _stop_if_broken(self) -> None:
        if self._complaint is not None:
            text, seen, found = self._complaint
            raise HistoryError(text, seen=seen, found=found)


def in_memory() -> History:
    """Remembers as long as the connection lasts."""
    return History(Shelf(None, ""))


def in_file(path: str | Path, server: str, address: str = "") -> History:
    """Remembers in a file, under the name of a server."""
    return History(Shelf(Path(path), server, address))


def server_name(ca: bytes | None, address: str) -> str:
    """Return the server's name in the file: SHA-256 of the authority that vouches for it, and of its address.

    A state directory that is made anew has an authority of its own, so it is another server.
    """
    parts = (ca or b"", address.encode())
    # Lengths first, so that no two different pairs have one text.
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def default_file() -> Path:
    """Return the file of those who name none: below $XDG_STATE_HOME, or ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME")
    # The specification of these folders says that one that is not absolute counts for nothing.
    if state and Path(state).is_absolute():
        return Path(state, "bursar", "history.json")
    try:
        return Path.home() / ".local" / "state" / "bursar" / "history.json"
    except RuntimeError:  # a user without a home: below a file nothing can be written, and a warning says so
        return Path(os.devnull, "bursar", "history.json")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {"format": _FORMAT, "servers": {}}
    except UnicodeDecodeError:
        raise _no_history(path) from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise _no_history(path) from None
    if not (
        isinstance(content, dict) and content.get("format") == _FORMAT and isinstance(content.get("servers"), dict)
    ):
        raise _no_history(path)
    return content


def _head(content: dict[str, Any], server: str, path: Path) -> HistoryHead | None:
    kept = content["servers"].get(server)
    if kept is None:
        return None
    try:
        head = HistoryHead(kept["ledger_id"], kept["size"], kept["head"], kept["seen"])
    except (TypeError, KeyError):
        raise _no_history(path) from None
    if not (isinstance(head.size, int) and all(isinstance(x, str) for x in (head.ledger_id, head.head, head.seen))):
        raise _no_history(path)
    return head


def _no_history(path: Path) -> InvalidRequestError:
    return InvalidRequestError.of(
        "history", f"{path} is no file of heads that this version wrote; name another file, or move this one away"
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let in one writer at a time. Without such locks (Windows) the last one wins: an older head witnesses less."""
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
