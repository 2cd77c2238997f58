"""Memory of the last visit to a long ledger: what was verified, so that the next visit goes on from there.

It lies in the user's own folder, signed with a key (HMAC-SHA256) that lies there, too, and that nobody else may read.
What is remembered counts only for rows that are bit for bit those of then, which every visit checks, and only for the
code that verified them: another version verifies everything again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import hmac
import importlib.resources
import json
import os
import secrets
import shutil
import sqlite3
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from .._events import (
    ApproximateEvent,
    ConcentratedEvent,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
)
from .._replay import AccountTotals, Replay, Restatement
from .._verify import Verified
from ._history import AccountHistory, Act, BurnDown, History, Losses, Promise, Spender
from ._language import language
from ._open import UnreadableError, opened, rows
from ._oracle import SecondOpinion
from ._sentences import Story

WORTH = 2000
"""Entries that are verified in less than a second, and not remembered."""
_MAC = 32
"""Bytes of HMAC-SHA256, which come first in a file."""


@dataclass(frozen=True)
class Memory:
    """Visit in which nothing was found.

    Attributes:
        body: what the page showed of it, HTML; to draw it again would take longer than all else before it is seen.
        checked: what was verified and the second opinion on it, for `checked_in`: no page waits for reading it.
    """

    told: History
    made: datetime
    entries: int
    body: str
    checked: str


def memory_of(verified: Verified, opinion: SecondOpinion | None, told: History, made: datetime, body: str) -> Memory:
    """Return the memory of a visit; the opinion is None if it was not asked for."""
    return Memory(told, made, verified.replay.number, body, json.dumps(_plain((verified, opinion))))


def checked_in(memory: Memory) -> tuple[Verified, SecondOpinion | None]:
    """Return what was verified, and the second opinion on it; None if it was not asked for."""
    verified, opinion = _value(json.loads(memory.checked))
    return verified, opinion


def recall(ledger: Path, tables: Path) -> Memory | None:
    """Return the memory of a ledger, and put its tables into the file `tables`; None if there is none that counts."""
    folder = _folder(ledger)
    try:
        signed = (folder / "visit").read_bytes()
        if not hmac.compare_digest(signed[:_MAC], _mac(signed[_MAC:])):
            return None
        memory, digest = _value(json.loads(signed[_MAC:]))
        with (folder / "tables.db").open("rb") as file:
            if hashlib.file_digest(file, "sha256").digest() != digest:
                return None
        shutil.copyfile(folder / "tables.db", tables)
    except (OSError, LookupError, TypeError, ValueError):
        return None
    return memory if isinstance(memory, Memory) else None


def remember(ledger: Path, tables: Path, memory: Memory) -> None:
    """Keep a memory with its tables, in place of the last one.

    Raises:
        OSError: the user's folder cannot be written.
    """
    folder = _folder(ledger)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    copy = folder / "tables.db"
    copy.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(tables)) as db, contextlib.closing(sqlite3.connect(copy)) as kept:
        db.backup(kept)
    with copy.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    content = json.dumps(_plain((memory, digest))).encode()
    whole = folder / "visit.new"
    whole.write_bytes(_mac(content) + content)
    whole.replace(folder / "visit")


_CLASSES: Mapping[str, Any] = {
    one.__name__: one
    for one in (
        *(Memory, Verified, Replay, AccountTotals, Restatement, SecondOpinion),
        *(History, AccountHistory, Promise, Losses, Spender, BurnDown, Act, Story),
        *(GaussianEvent, LaplaceEvent, PureEvent, SelectionEvent, ConcentratedEvent, ApproximateEvent),
    )
}
"""Dataclasses that a memory is made of; a file can name no others."""


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: what JSON lacks is a pair of a name and its parts."""
    if value is None or isinstance(value, bool | int | float) or type(value) is str:
        return value
    name = type(value).__name__
    if name in _CLASSES:
        return [name, [_plain(getattr(value, one.name)) for one in dataclasses.fields(value)]]
    if isinstance(value, Mapping):
        return [name, [[_plain(key), _plain(item)] for key, item in value.items()]]
    if isinstance(value, array):
        return [f"array {value.typecode}", value.tolist()]
    if isinstance(value, list | tuple | set):
        return [name, [_plain(item) for item in value]]
    return [name, value.hex() if isinstance(value, bytes) else value.isoformat() if name == "datetime" else str(value)]


def _value(plain: Any) -> Any:
    """Return the value that `_plain` wrote."""
    if not isinstance(plain, list):
        return plain
    name, parts = plain
    if name in _CLASSES:
        return _CLASSES[name](*map(_value, parts))
    if name in _MAPPINGS:
        return _MAPPINGS[name]({_value(key): _value(item) for key, item in parts})
    if name in _SEQUENCES:
        return _SEQUENCES[name](map(_value, parts))
    return array(name[-1], parts) if name.startswith("array ") else _SCALARS[name](parts)


_MAPPINGS: Mapping[str, Any] = {"dict": dict, "Counter": Counter}
_SEQUENCES: Mapping[str, Any] = {"list": list, "tuple": tuple, "set": set}
_SCALARS: Mapping[str, Any] = {
    "bytes": bytes.fromhex,
    "Fraction": Fraction,
    "datetime": datetime.fromisoformat,
}


def _folder(ledger: Path) -> Path:
    """Return the folder about a ledger, whose copies have one ledger id; what is remembered has sentences."""
    with opened(ledger) as db:
        first = next(rows(db, last=1), None)
    if first is None:
        raise UnreadableError("the ledger has no entries")
    name = hashlib.sha256(str(first.details.get("ledger_id")).encode()).hexdigest()[:32]
    return _home() / f"{name}-{language()}"


def _home() -> Path:
    return Path(click.get_app_dir("bursar-audit")) / "visits"


def _mac(content: bytes) -> bytes:
    """Sign what was remembered, and the code that says so; raises OSError if there is no key and none can be made."""
    file = _home() / "key"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):  # another process was faster
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(descriptor, secrets.token_bytes(_MAC))
            os.close(descriptor)
    return hmac.digest(file.read_bytes(), _code() + content, "sha256")


@functools.cache
def _code() -> bytes:
    """Return a digest of this package's own source."""
    package = Path(str(importlib.resources.files("bursar_ledger")))
    sources = sorted(package.rglob("*.py"))
    return hashlib.sha256(b"".join(hashlib.sha256(source.read_bytes()).digest() for source in sources)).digest()
