"""Recognition of a table that was imported before, and the tags of its content in the ledger."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_server.tables._hashing import mixed
from bursar_server.tables._keys import Keys
from bursar_server.tables._manifest import Manifest, Numeric
from bursar_server.tables._snapshot import ROWS_FILE, Snapshot

_LANES = 2
"""Number of 64-bit sums that compare the numbers of a column: unequal columns agree with probability 2^-128."""


class Fingerprint:
    """Digest of a table's columns without their names and order, by which the table is recognised.

    A numeric column counts as a sum of hashes of its numbers, in single precision and before they are clipped; a
    categorical column as the sorted counts of rows in its categories. The columns' digests are sorted. So the digest
    does not depend on names or order of columns, categories, rows and files, nor on the text of a number, bounds, or a
    cap on the rows of a unit. Null rows hold no data of a person and do not count. Memory does not grow with the rows.

    A false positive leads to a question to the administrator and to nothing else. It comes from columns that hold the
    same in another pairing, and from a few small categorical columns with equal counts. A false negative gives people a
    second budget: a table with one row more, another column, or other categories for the same cells is not recognised,
    and the administrator must declare whose rows it holds.

    No key is needed: a fingerprint stays in memory, and the ledger stores `content_tag`.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._rows = 0
        self._columns = [
            np.zeros(_LANES, dtype=np.uint64)
            if isinstance(column, Numeric)
            else np.zeros(len(column.categories), dtype=np.int64)
            for column in manifest.columns
        ]

    def add(self, raw: Sequence[NDArray[Any]], present: NDArray[np.bool_]) -> None:
        """Add the present rows of a block; `raw` is the result of `parse`."""
        self._rows += int(np.count_nonzero(present))
        for column, values in zip(self._columns, raw, strict=True):
            if values.dtype == np.float64:
                column += _sums(values[present])
            else:
                column += np.bincount(values[present], minlength=len(column))

    def digest(self) -> bytes:
        """Return 32 bytes, equal for tables with the same content."""
        # Sorted, so that the order of columns does not matter.
        columns = sorted(
            hashlib.sha256(b"numbers" + column.tobytes()).digest()
            if column.dtype == np.uint64
            else hashlib.sha256(b"counts" + np.sort(column[column > 0]).tobytes()).digest()
            for column in self._columns
        )
        return hashlib.sha256(self._rows.to_bytes(8, "big") + b"".join(columns)).digest()


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
