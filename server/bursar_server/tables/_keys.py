"""The secrets of a state directory's tables.

In the folder `keys/`:

* `tables/<id>.key`: one table's secret, under which its content is tagged; destroyed with the table.
* `caps.key` chooses the rows of a privacy unit under a cap, for all tables: the same source gives the same rows again
  under any name, and its content can be recognised. It makes no tag meaningful.
* `tables.key`, of older versions: one secret for all tables. The tags of that time, and what is in `caps.key` now, were
  derived from it.
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

SHARED = ""
"""Name of the secret that older versions had for all tables."""

_SIZE = 32
_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class CapKeys:
    """Two independent keys that choose the rows of a privacy unit.

    Attributes:
        unit: for digests of the unit column's cells, 32 bytes; kept out of `repr`, as is the other.
        rank: for the ranks of a unit's rows, 32 bytes.
    """

    unit: bytes = field(repr=False)
    rank: bytes = field(repr=False)


@dataclass(frozen=True)
class Keys:
    """Independent keys derived from one secret (HMAC-SHA256 as a pseudorandom function).

    Attributes:
        secret: 32 random bytes; kept out of `repr`.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> Keys:
        """A new secret."""
        return cls(secrets.token_bytes(_SIZE))

    def derive(self, purpose: str) -> bytes:
        """A 32-byte key for one purpose; keys of different purposes say nothing about one another, or of the secret."""
        return hmac.digest(self.secret, b"bursar tables: " + purpose.encode(), "sha256")

    @property
    def caps(self) -> CapKeys:
        """The keys that choose rows, as older versions derived them."""
        return CapKeys(self.derive("unit"), self.derive("rank"))


@dataclass(frozen=True)
class Keyring:
    """The files of a folder `keys/`; all of them 0600, the folders 0700.

    Attributes:
        directory: the folder.
    """

    directory: Path

    @classmethod
    def create(cls, directory: Path) -> Keyring:
        """The files of a new state directory.

        Raises KeysError if there are some already: with other secrets, known contents would not be recognised.
        """
        ring = cls(directory)
        for folder in (directory, ring.tables):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(ring._caps, secrets.token_bytes(2 * _SIZE))
        return ring

    @property
    def tables(self) -> Path:
        """Folder of the tables' secrets."""
        return self.directory / "tables"

    def caps(self) -> CapKeys:
        """The keys that choose rows; those of an older version are taken out of its secret first.

        Raises KeysError if they are missing or cannot be used.
        """
        if self.has(SHARED):
            self.keep_caps()
        both = _read(self._caps, 2 * _SIZE)
        return CapKeys(both[:_SIZE], both[_SIZE:])

    def keep_caps(self) -> None:
        """Sees to it that the keys that choose rows outlive the secret of an older version; new ones if it is gone."""
        if not self._caps.exists():
            old = self.load(SHARED).caps if self.has(SHARED) else CapKeys(*(secrets.token_bytes(_SIZE) for _ in "ur"))
            _write(self._caps, old.unit + old.rank)

    def path(self, name: str) -> Path:
        """Where a table's secret is. Raises KeysError for a name that is none."""
        if name == SHARED:
            return self.directory / "tables.key"
        if not _NAME.fullmatch(name):
            raise KeysError(f"{name!r} is no name of a key; expected 32 hexadecimal digits")
        return self.tables / f"{name}.key"

    def has(self, name: str) -> bool:
        """Whether a table's secret is there."""
        return self.path(name).exists()

    def load(self, name: str) -> Keys:
        """A table's secret. Raises KeysError if it is missing, has another size, or others may read it."""
        return Keys(_read(self.path(name), _SIZE))

    def save(self, keys: Keys) -> str:
        """Store a new table's secret, durably; its name is random and says nothing about the table."""
        self.tables.mkdir(mode=0o700, exist_ok=True)
        name = secrets.token_hex(16)
        _write(self.path(name), keys.secret)
        return name

    def destroy(self, name: str) -> None:
        """Overwrite a table's secret and remove it; nothing if there is none.

        What was tagged with it then says nothing about any row, not even to somebody who knows all the others. A copy
        in a backup, and blocks that the disk has set aside, are beyond the reach of a program.
        """
        path = self.path(name)
        gone = path.with_name(f".{path.name}.gone")
        if path.is_file():
            path.replace(gone)  # first, so that nobody ever takes the bytes that overwrite it for the secret
            sync(path.parent)
        if gone.is_file():
            with gone.open("r+b") as file:
                file.write(secrets.token_bytes(_SIZE))
            sync(gone)
            gone.unlink()
            sync(path.parent)

    @property
    def _caps(self) -> Path:
        return self.directory / "caps.key"


def _write(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)  # of a process that was killed
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
