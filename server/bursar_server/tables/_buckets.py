"""Files and folders in buckets of S3-compatible storage, with the parts of a `Path` that sources use.

Keys, region and endpoint come from the environment or from files, as for all programs of such storage: AWS_PROFILE,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SHARED_CREDENTIALS_FILE, AWS_REGION, AWS_ENDPOINT_URL and others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa

from bursar_server.tables._errors import TableImportError

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

BUCKETS = "s3://"
"""Beginning of the addresses of buckets."""

_AHEAD = 2**23
"""Bytes of a file that one request asks for where all of it is read; a request takes some 50 ms whatever its size."""


@dataclass(frozen=True, order=True)
class Stored:
    """File, or folder of files, in a bucket.

    Attributes:
        address: `s3://BUCKET/NAME`.

    Raises:
        TableImportError: the address is of another form.
    """

    address: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]+(/.*)?", self._name, re.DOTALL):
            raise TableImportError(
                "the address in a bucket cannot be read; expected s3://BUCKET/NAME, with keys, region and endpoint in "
                "the environment or in files"
            )

    def __str__(self) -> str:
        return self.address

    @property
    def _name(self) -> str:
        return self.address.removeprefix(BUCKETS)

    @property
    def stem(self) -> str:
        """Last part of the name, without what follows the dot."""
        return PurePosixPath(self._name).stem

    def open(self, mode: str = "rb", buffering: int = 0) -> BinaryIO:
        """Open the file to read all of it, in large requests: with the arguments of `Path.open`, which have no part."""
        with self._told():
            # None: a name that ends with .gz is no reason to read other bytes than there are.
            return cast(BinaryIO, _storage().open_input_stream(self._name, compression=None, buffer_size=_AHEAD))

    def open_at_will(self) -> pa.NativeFile:
        """Open the file to read parts of it."""
        with self._told():
            return _storage().open_input_file(self._name)

    def is_dir(self) -> bool:
        """Return whether it is a folder. Raises TableImportError if there is nothing of this name."""
        from pyarrow.fs import FileType

        with self._told():
            found = _storage().get_file_info(self._name.rstrip("/")).type
        if found == FileType.NotFound:
            raise TableImportError(f"{self} does not exist; expected a file, or a folder of files")
        return bool(found == FileType.Directory)

    def rglob(self, pattern: str) -> list[Stored]:
        """Return the files below, whose names match a pattern without a folder."""
        from pyarrow.fs import FileSelector

        with self._told():
            found = _storage().get_file_info(FileSelector(self._name.rstrip("/"), recursive=True))
        return [Stored(BUCKETS + one.path) for one in found if one.is_file and PurePosixPath(one.path).match(pattern)]

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # of names and rights: no row was read
            raise TableImportError(f"{self} cannot be read: {error}") from None


Place = Path | Stored
"""File or folder, on this machine or in a bucket."""


@functools.cache
def _storage() -> S3FileSystem:
    """Return the one storage that the environment names."""
    from pyarrow.fs import S3FileSystem  # starts threads, so only where a bucket is read

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    # The variables are read here, because pyarrow leaves them out where an address is not given to it.
    scheme, found, host = (endpoint or "").partition("://")
    return S3FileSystem(endpoint_override=host or endpoint, scheme=scheme if found else None)
