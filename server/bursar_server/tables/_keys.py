"""Secrets of a state directory's tables, and the tags under them by which tables and rows are recognised.

The folder `keys/tables/` has `<id>.key`, the secret of one snapshot, under which its content is tagged; it is destroyed
with the dataset.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_server.tables._cap import mixed
from bursar_server.tables._cells import is_known
from bursar_server.tables._errors import KeysError
from bursar_server.tables._manifest import Manifest, Numeric
from bursar_server.tables._snapshot import ROWS_FILE, Snapshot, sync

_SIZE = 32
"""Bytes of a secret: 256 bits, the output size of HMAC-SHA256."""

_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Keys:
    """Independent keys derived from one secret (HMAC-SHA256 as a pseudorandom function).

    Attributes:
        secret: 32 random bytes; kept out of `repr`.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> Keys:
        """Draw a new secret."""
        return cls(secrets.token_bytes(_SIZE))

    def derive(self, purpose: str) -> bytes:
        """Return a 32-byte key for one purpose; keys of two purposes reveal nothing about each other or the secret."""
        return hmac.digest(self.secret, b"bursar tables: " + purpose.encode(), "sha256")


@dataclass(frozen=True)
class Keyring:
    """Secrets of the snapshots in a folder `keys/`: files 0600 in a folder `tables/` that is 0700."""

    directory: Path

    @property
    def tables(self) -> Path:
        """Folder of the secrets."""
        return self.directory / "tables"

    def path(self, name: str) -> Path:
        """Return the path of a snapshot's secret. Raises KeysError for an invalid name."""
        if not _NAME.fullmatch(name):
            raise KeysError(f"{name!r} is no name of a key; expected 32 hexadecimal digits")
        return self.tables / f"{name}.key"

    def has(self, name: str) -> bool:
        """Return whether a snapshot's secret exists."""
        return self.path(name).exists()

    def load(self, name: str) -> Keys:
        """Read a snapshot's secret.

        Raises:
            KeysError: the secret is missing, has a wrong size, or others may read it.
        """
        return Keys(_read(self.path(name), _SIZE))

    def save(self, name: str, keys: Keys) -> None:
        """Store a new snapshot's secret durably. Raises KeysError if it has one already."""
        self.tables.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The name of the folder may have been made just now, and a key in a folder without a name is lost.
        sync(self.directory)
        _write(self.path(name), keys.secret)

    def destroy(self, name: str) -> None:
        """Overwrite and remove a snapshot's secret if it exists.

        Tags under it then reveal nothing about any row, not even to a reader who knows all others. A program cannot
        reach copies in backups, or blocks that the disk has set aside.
        """
        path = self.path(name)
        gone = path.with_name(f".{path.name}.gone")
        if path.is_file():
            path.replace(gone)  # renamed first, so that overwritten bytes are never read as a secret
            sync(path.parent)
        if gone.is_file():
            with gone.open("r+b") as file:
                file.write(secrets.token_bytes(_SIZE))
            sync(gone)
            gone.unlink()
            sync(path.parent)


def _write(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)  # left by a killed process
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    sync(new)
    try:
        os.link(new, path)  # unlike a rename, this never replaces a secret
    except FileExistsError:
        raise KeysError(f"{path} exists already; it is made once") from None
    finally:
        new.unlink()
    sync(path.parent)


def _read(path: Path, size: int) -> bytes:
    if not path.is_file():
        raise KeysError(f"{path} is missing; restore it from a backup of the state directory")
    if path.stat().st_mode & 0o077:
        raise KeysError(f"{path} can be read by others than its owner; expected mode 0600")
    content = path.read_bytes()
    if len(content) != size:
        raise KeysError(f"{path} has {len(content)} bytes, expected {size}; restore it from a backup")
    return content


_LANES = 2
"""Number of 64-bit sums that compare the numbers of a column: unequal columns agree with probability 2^-128."""


class Fingerprint:
    """Digest of a table's columns without their names and order, by which the table is recognised.

    A numeric column counts as a sum of hashes of its numbers, in single precision and before they are clipped; a
    categorical column as the sorted counts of rows in its categories. The columns' digests are sorted. So the digest
    does not depend on names or order of columns, categories, rows and files, nor on the text of a number, bounds, or a
    cap on the rows of a unit. Rows that lack a value do not count, whether the schema calls them null rows or not,
    unless all do: then the present ones count. Memory does not grow with the rows.

    A false positive leads to a question to the administrator and to nothing else. It comes from columns that hold the
    same in another pairing, from tables that differ in rows that lack a value, and from a few small categorical columns
    with equal counts. A false negative gives people a second budget: a table with one complete row more, another
    column, or other categories for the same cells is not recognised, and the administrator must declare whose rows it
    holds.

    No key is needed: a fingerprint stays in memory, and the ledger stores `content_tag`.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._complete, self._others = _Columns(manifest), _Columns(manifest)

    def add(self, raw: Sequence[NDArray[Any]], present: NDArray[np.bool_]) -> None:
        """Add the present rows of a block; `raw` is the result of `parse`."""
        complete = np.logical_and.reduce([is_known(values) for values in raw])
        self._complete.add(raw, complete)
        self._others.add(raw, present & ~complete)

    def digest(self) -> bytes:
        """Return 32 bytes, equal for tables with the same content."""
        return (self._complete if self._complete.rows else self._others).digest()


class _Columns:
    """Sums of some rows' hashes, or their counts, by column."""

    def __init__(self, manifest: Manifest) -> None:
        self.rows = 0
        self.columns = [
            np.zeros(_LANES, dtype=np.uint64)
            if isinstance(column, Numeric)
            else np.zeros(len(column.categories), dtype=np.int64)
            for column in manifest.columns
        ]

    def add(self, raw: Sequence[NDArray[Any]], chosen: NDArray[np.bool_]) -> None:
        self.rows += int(np.count_nonzero(chosen))
        for column, values in zip(self.columns, raw, strict=True):
            if values.dtype == np.float64:
                column += _sums(values[chosen])
            else:
                column += np.bincount(values[chosen], minlength=len(column))

    def digest(self) -> bytes:
        # Sorted, so that the order of columns does not matter.
        columns = sorted(
            hashlib.sha256(b"numbers" + column.tobytes()).digest()
            if column.dtype == np.uint64
            else hashlib.sha256(b"counts" + np.sort(column[column > 0]).tobytes()).digest()
            for column in self.columns
        )
        return hashlib.sha256(self.rows.to_bytes(8, "big") + b"".join(columns)).digest()


def _sums(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return sums of hashes modulo 2^64, one for each lane."""
    with np.errstate(all="ignore"):  # numbers out of single precision become infinity or zero
        single = values.astype(np.float32) + np.float32(0)  # -0.0 becomes 0.0
    bits = np.where(np.isfinite(values), single, np.float32("nan")).view(np.uint32).astype(np.uint64)
    return np.array([mixed(bits, np.array([1 + lane])).sum(dtype=np.uint64) for lane in range(_LANES)])


def content_tag(keys: Keys, fingerprint: bytes) -> str:
    """Return the tag of a fingerprint in the ledger, 64 hexadecimal digits; without the secret it is a random number.

    Every snapshot has its own secret, so two tags do not reveal whether two snapshots are equal.
    """
    return hmac.digest(keys.derive("content"), fingerprint, "sha256").hex()


def rows_tag(keys: Keys, snapshot: Snapshot) -> str:
    """Return the tag of a snapshot's stored rows in the ledger, 64 hexadecimal digits; reads the file once."""
    with (snapshot.directory / ROWS_FILE).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return hmac.digest(keys.derive("rows"), digest, "sha256").hex()
