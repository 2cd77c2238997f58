"""Names of paid fits (request ids), and notes of which models have come back; the notes outlive the program.

A fit is noted under its name before it is sent. A program that is interrupted or killed leaves the note without a
model, so the same fit, asked again, takes the same name: it is paid once, and its model is fetched.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from bursar._history import locked
from bursar_models.files import write_whole

Result = TypeVar("Result")

DAY = 86_400.0
"""Seconds in which the same fit again is worth a warning."""
_MONTH = 30 * DAY
"""Seconds for which a fit without its model is noted; `Client.releases` has all that was ever paid."""
_MOST = 100
"""Fetched fits that are noted at most, for a warning of the same fit again; each fit writes the whole file."""
_FORMAT = 1
_OPEN: Final[set[str]] = set()
"""Names of the fits that this process waits for."""


@dataclass(frozen=True)
class Attempt:
    """A paid fit that was sent, or is about to be.

    Attributes:
        digest: of the message without its name, as hexadecimal digits.
        time: when it was noted last, in seconds since 1970, by this machine's clock.
    """

    request_id: str
    dataset: str
    digest: str
    time: float
    process: int
    fetched: bool = False

    @property
    def ago(self) -> str:
        """Time since it was noted, in words."""
        seconds = max(0.0, time.time() - self.time)
        for unit, size in (("hours", 3600), ("minutes", 60)):
            if seconds >= 2 * size:
                return f"{seconds / size:.0f} {unit} ago"
        return f"{seconds:.0f} seconds ago"

    def is_awaited(self) -> bool:
        """Return whether a program that still runs waits for its model."""
        own = self.process == os.getpid()
        return self.request_id in _OPEN if own else _is_running(self.process)


class Begun(NamedTuple):
    """A fit that was noted.

    Attributes:
        request_id: its name.
        is_new: whether the name was made for it now.
        earlier: for a new name, the newest earlier attempt at the same fit within a day.
    """

    request_id: str
    is_new: bool
    earlier: Attempt | None


@dataclass
class _Notes:
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    count: int = 0
    attempts: dict[str, Attempt] = field(default_factory=dict)


class Attempts:
    """The paid fits of this user's programs at one server. Safe for threads and processes.

    Args:
        path: of the file that keeps the notes; None, or one that cannot be written, keeps them in memory.
        server: names the server in the file.

    Attributes:
        entries: entries of the ledger that paid, by request id, as far as receipts reached this program.
    """

    def __init__(self, path: Path | None, server: str) -> None:
        self.entries: dict[str, int] = {}
        self._path = path
        self._server = server
        self._memory = _Notes()
        self._lock = threading.Lock()

    def begin(self, message: bytes, dataset: str, request_id: str = "") -> Begun:
        """Note a fit, and give it a name.

        Args:
            message: as it is sent, without a name.
            dataset: name of the dataset.
            request_id: the caller's name for it; empty for one that is made here: that of the same fit if its model
                never came back and no running program waits for it, else a new one.
        """
        digest = sha256(message).hexdigest()

        def change(notes: _Notes) -> Begun:
            now = time.time()
            notes.attempts = _kept(notes.attempts, now)
            same = [one for one in notes.attempts.values() if one.digest == digest]
            left = [one for one in same if not (one.fetched or one.is_awaited())]
            # A fit whose model never came back goes on under its name, so that it is paid at most once.
            name, earlier = request_id or (left[-1].request_id if left else ""), None
            is_new = not name
            if is_new:
                notes.count += 1
                # The nonce keeps the names of two files, or of two clients without one, apart.
                name = f"{sha256(f'{notes.nonce}{digest}'.encode()).hexdigest()[:16]}-{notes.count}"
                recent = [one for one in same if now - one.time <= DAY]
                earlier = max(recent, key=lambda one: one.time, default=None)
            notes.attempts[name] = Attempt(name, dataset, digest, now, os.getpid())
            _OPEN.add(name)
            return Begun(name, is_new, earlier)

        return self._change(change)

    def end(self, request_id: str, *, fetched: bool = False, forget: bool = False) -> None:
        """Note how an attempt ended: with the model, without a debit, or neither, so that it can be resumed.

        Args:
            request_id: its name; one that is not noted changes nothing.
            fetched: the model came back.
            forget: there is nothing to fetch under this name.
        """

        def change(notes: _Notes) -> None:
            found = notes.attempts.get(request_id)
            if found is not None and forget:
                del notes.attempts[request_id]
            elif found is not None and fetched:
                notes.attempts[request_id] = replace(found, fetched=True, time=time.time())

        _OPEN.discard(request_id)
        if fetched or forget:
            self._change(change)

    def unfetched(self) -> set[str]:
        """Return the names of fits whose models did not come back and that no running program waits for."""

        def change(notes: _Notes) -> set[str]:
            return {name for name, one in notes.attempts.items() if not (one.fetched or one.is_awaited())}

        return self._change(change)

    def _change(self, change: Callable[[_Notes], Result]) -> Result:
        with self._lock:
            if self._path is not None:
                try:
                    return self._change_file(self._path, change)
                except OSError:  # the history's file lies in the same folder, and has warned already
                    self._path = None
            return change(self._memory)

    def _change_file(self, path: Path, change: Callable[[_Notes], Result]) -> Result:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(path):
            servers = _read(path)  # of other servers as they are: a fit of this one costs nothing for theirs
            before = servers.get(self._server)
            notes = _notes(before)
            result = change(notes)
            after = _plain(notes)
            if after != before:
                content = {"format": _FORMAT, "servers": servers | {self._server: after}}
                # Without an indent, which only the encoder in Python makes, twenty times slower.
                write_whole(path, json.dumps(content), mode=0o600)
        return result


def _kept(attempts: dict[str, Attempt], now: float) -> dict[str, Attempt]:
    """Return the attempts that are still worth a note: not too old, and of the fetched ones the newest."""
    fetched = [name for name, one in attempts.items() if one.fetched]
    crowded = set(fetched[: max(0, len(fetched) - _MOST)])
    return {name: one for name, one in attempts.items() if not (name in crowded or _is_old(one, now))}


def _is_old(attempt: Attempt, now: float) -> bool:
    return not now - attempt.time <= (DAY if attempt.fetched else _MONTH)


def _is_running(process: int) -> bool:
    if sys.platform == "win32":  # os.kill ends processes there
        return False
    try:
        os.kill(process, 0)  # signal 0 is not sent: only its target is looked up
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, and is another user's
        return True
    return True


def _read(path: Path) -> dict[str, Any]:
    """Return what is noted of each server; nothing from a file that this version did not write, which is replaced."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        servers = content["servers"] if content["format"] == _FORMAT else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return servers if isinstance(servers, dict) else {}


def _plain(notes: _Notes) -> dict[str, Any]:
    return {"nonce": notes.nonce, "count": notes.count, "attempts": [*map(vars, notes.attempts.values())]}


def _notes(content: Any) -> _Notes:
    """Return notes of their plain form; new ones for what is none."""
    try:
        attempts = [Attempt(**fields) for fields in content["attempts"]]
        nonce, count = str(content["nonce"]), int(content["count"])
    except (ValueError, KeyError, TypeError):
        return _Notes()
    known = all(
        isinstance(one.process, int) and isinstance(one.time, float) and isinstance(one.request_id, str)
        for one in attempts
    )
    return _Notes(nonce, count, {one.request_id: one for one in attempts}) if known else _Notes()
