"""The server's secret for tables, which chooses rows under a unit cap and tags contents."""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from bursar_server.tables._errors import KeysError

_FILE = "tables.key"
_SIZE = 32


@dataclass(frozen=True)
class Keys:
    """Independent keys derived from one secret (HMAC-SHA256 as a pseudorandom function).

    Attributes:
        secret: 32 random bytes; kept out of `repr`.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def create(cls, directory: Path) -> Keys:
        """Draw a new secret and store it in `directory` (mode 0700), readable by its owner only (mode 0600).

        Raises KeysError if there is one already: with another secret, known contents would no longer be recognised.
        """
        keys = cls(secrets.token_bytes(_SIZE))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            handle = os.open(directory / _FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise KeysError(
                f"{directory / _FILE} exists already; it is made once, when a state directory is initialised"
            ) from None
        with os.fdopen(handle, "wb") as file:
            file.write(keys.secret)
            file.flush()
            os.fsync(file.fileno())
        return keys

    @classmethod
    def load(cls, directory: Path) -> Keys:
        """Read the secret of a state directory.

        Raises KeysError if it is missing, has another size, or if others than its owner may read it.
        """
        path = directory / _FILE
        if not path.is_file():
            raise KeysError(f"{path} is missing; initialise the state directory first")
        if path.stat().st_mode & 0o077:
            raise KeysError(f"{path} can be read by others than its owner; expected mode 0600")
        secret = path.read_bytes()
        if len(secret) != _SIZE:
            raise KeysError(f"{path} has {len(secret)} bytes, expected {_SIZE}; restore it from a backup")
        return cls(secret)

    @staticmethod
    def destroy(directory: Path) -> None:
        """Overwrite the secret of a state directory and remove it; nothing if there is none.

        Tags of contents then say nothing about any row, not even to somebody who knows all the others. A copy in a
        backup, and blocks that the disk has set aside, are beyond the reach of a program.
        """
        path = directory / _FILE
        if path.is_file():
            with path.open("r+b") as file:
                file.write(secrets.token_bytes(_SIZE))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()

    def derive(self, purpose: str) -> bytes:
        """A 32-byte key for one purpose; keys of different purposes say nothing about one another."""
        return hmac.digest(self.secret, b"bursar tables: " + purpose.encode(), "sha256")
