"""Secrets of a state directory's tables.

The folder `keys/tables/` has `<id>.key`, the secret of one snapshot, under which its content is tagged; it is destroyed
with the dataset. The keys that choose rows under a cap are drawn for each import and never stored.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from bursar_server.tables._errors import KeysError
from bursar_server.tables._snapshot import sync

_SIZE = 32
"""Bytes of a secret: 256 bits, the output size of HMAC-SHA256."""

_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class CapKeys:
    """Two independent keys that choose the rows of a privacy unit.

    Attributes:
        unit: key of digests of the unit column's cells, 32 bytes; kept out of `repr`.
        rank: key of the ranks of a unit's rows, 32 bytes; kept out of `repr`.
    """

    unit: bytes = field(repr=False)
    rank: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> CapKeys:
        """Draw new keys."""
        return cls(secrets.token_bytes(_SIZE), secrets.token_bytes(_SIZE))


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
