"""Choice of the rows of a privacy unit that are kept if it has more than the cap, by keyed hashes: `_snapshot.md`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bursar_server.tables._cells import Block, texts

_KEY_BYTES = 32
"""Bytes of a key: 256 bits, as of the other secrets of a table."""

_SPILL = 2**21
"""Number of rows whose 32 bytes are held in memory: 64 MB."""

_HEAPS = 2**8
"""Number of files for further rows.

Each has all rows of its units, and one at a time is sorted, at about 150 bytes a row.
"""


@dataclass(frozen=True)
class CapKeys:
    """Two independent keys that choose the rows of a privacy unit, drawn for each import and never stored.

    Attributes:
        unit: key of digests of the unit column's cells, 32 bytes; kept out of `repr`.
        rank: key of the ranks of a unit's rows, 32 bytes; kept out of `repr`.
    """

    unit: bytes = field(repr=False)
    rank: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> CapKeys:
        """Draw new keys."""
        return cls(secrets.token_bytes(_KEY_BYTES), secrets.token_bytes(_KEY_BYTES))


@dataclass
class UnitCap:
    """Cap on the rows of a unit: records 32 bytes a row, on the disk if there are many, then decides which rows stay.

    The rows of a unit are ranked by a keyed hash of their own content and, among equal rows, of their number; the least
    ranks stay. So the kept rows of a unit are, as a multiset, a function of the unit's own rows and of the key. Other
    units and the order of the source have no influence.

    Attributes:
        keys: keys of the hashes.
        max_rows: maximum number of rows of a unit that stay.
        spare: path beside which the temporary files are; `unit_rows` removes them.
    """

    keys: CapKeys
    max_rows: int
    spare: Path
    _waiting: list[NDArray[np.uint64]] = field(default_factory=list)
    _number: int = 0
    _spilt: int = 0

    def add(self, block: Block, units: pa.Array) -> Block:
        """Record the next rows. Return them with rows of no unit made null."""
        digests, known = _unit_digests(units, self.keys.unit)
        owned = block.only(known)
        content = row_digests(block.values, self.keys.rank, 8)
        # Null rows are never capped, so nothing is recorded for them.
        noted = np.hstack([digests, content])[owned.present]
        places = np.arange(self._number, self._number + len(noted), dtype=np.uint64)
        self._waiting.append(np.column_stack([noted, places]))
        self._number += len(noted)
        if self._number - self._spilt >= _SPILL:
            self._spill()
        return owned

    def unit_rows(self) -> NDArray[np.int32]:
        """Return K of every recorded row, in order: the number of rows of its unit that stay; 0 if the row itself goes.

        The first `max_rows` of a unit's ranking stay. K counts the unit's own present rows only.
        """
        # Rows come back by their number, so that heaps may be read in any order.
        found = self._numbers()
        for rows in self._heaps():
            found[rows[:, 3].astype(np.int64)] = _unit_rows(rows[:, :3], self.max_rows)
        return found

    def _numbers(self) -> NDArray[np.int32]:
        """Return zeros for all recorded rows; of many rows in a nameless file, which needs no memory of its own."""
        if not self._spilt:
            return np.zeros(self._number, dtype=np.int32)
        path = self._path(_HEAPS)
        found = np.memmap(path, dtype=np.int32, mode="w+", shape=(self._number,))
        path.unlink()
        return found

    def _heaps(self) -> Iterator[NDArray[np.uint64]]:
        """Yield all records, in order within each heap; a unit's rows are in one heap."""
        if not self._spilt:
            yield np.concatenate(self._waiting) if self._waiting else np.empty((0, 4), dtype=np.uint64)
            return
        self._spill()
        for heap in range(_HEAPS):
            path = self._path(heap)
            if path.exists():
                rows = np.fromfile(path, dtype=np.uint64).reshape(-1, 4)
                path.unlink()
                yield rows

    def _spill(self) -> None:
        rows = np.concatenate(self._waiting) if self._waiting else np.empty((0, 4), dtype=np.uint64)
        self._waiting, self._spilt = [], self._number
        heaps = (rows[:, 0] % np.uint64(_HEAPS)).astype(np.int64)
        order = np.argsort(heaps, kind="stable")
        ends = np.searchsorted(heaps[order], np.arange(_HEAPS + 1))
        for heap, (start, stop) in enumerate(pairwise(ends.tolist())):
            if start < stop:
                with self._path(heap).open("ab") as file:
                    file.write(rows[order[start:stop]].tobytes())

    def _path(self, heap: int) -> Path:
        return self.spare.with_name(f"{self.spare.name}.{heap}")


def _unit_rows(rows: NDArray[np.uint64], max_rows: int) -> NDArray[np.int32]:
    """Return `UnitCap.unit_rows` of rows (n, 3) with all of their units': digest of the unit, then of the content."""
    by_content = np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))
    rows = rows[by_content]
    unit = _runs(rows[:, :2])
    # Ordinals, because copies of one row would otherwise be kept together or not at all. The mixer needs no
    # cryptographic strength: privacy rests on which rows a rank depends on.
    rank = mixed(rows[:, 2], _ordinals(_runs(rows)))
    by_rank = np.lexsort((rank, unit))
    staying = np.minimum(np.bincount(unit), max_rows)
    found = np.zeros(len(rows), dtype=np.int32)
    # Sorting by rank moves rows within their unit only, so `unit` is the same in that order.
    found[by_content[by_rank]] = np.where(_ordinals(unit) < max_rows, staying[unit], 0)
    return found


def _unit_digests(units: pa.Array, key: bytes) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the digest of each row's unit, (n, 2), and whether it has one: a missing or empty cell names no unit."""
    # Distinct names are hashed once each, not once a row.
    encoded = texts(units).dictionary_encode()
    names: list[bytes | None] = [*encoded.dictionary.to_pylist(), None]
    index = encoded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
    known = np.array([bool(name) for name in names])
    return text_digests([name or b"" for name in names], key)[index], known[index]


def _runs(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of the run of equal rows to which each row of a sorted table belongs."""
    starts = np.any(rows[1:] != rows[:-1], axis=1)
    return np.concatenate([np.zeros(min(1, len(rows)), dtype=np.int64), np.cumsum(starts, dtype=np.int64)])


def _ordinals(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each element in its run, from 0."""
    positions = np.arange(len(runs), dtype=np.int64)
    return positions - np.searchsorted(runs, runs, side="left")


UNIT_BYTES = 16
"""Size of a unit's digest in bytes: two of 2^27 texts collide with a probability below 2^-74."""


def row_digests(columns: Sequence[NDArray[Any]], key: bytes, size: int) -> NDArray[np.uint64]:
    """Return the keyed BLAKE2b (RFC 7693) of each row, shape (n, size / 8).

    A row's bytes are its values' bytes, eight each: float64 as they are, integers as int64. The order of columns
    matters.
    """
    packed = np.empty((len(columns[0]), len(columns)), dtype="<i8")
    for j, values in enumerate(columns):
        packed[:, j] = values.view("<i8") if values.dtype == np.float64 else values
    rows, width = memoryview(packed.tobytes()), 8 * len(columns)
    return _joined(
        [blake2b(rows[i : i + width], digest_size=size, key=key).digest() for i in range(0, len(rows), width)], size
    )


def text_digests(texts: Sequence[bytes], key: bytes) -> NDArray[np.uint64]:
    """Return the keyed BLAKE2b of each text, shape (n, 2)."""
    return _joined([blake2b(text, digest_size=UNIT_BYTES, key=key).digest() for text in texts], UNIT_BYTES)


def mixed(content: NDArray[np.uint64], ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 pseudorandom bits for each pair of number and ordinal (Steele, Lea, Flood 2014).

    This is SplitMix64: good for ranks and for sums that distinguish tables, without cryptographic strength.
    """
    x = content + ordinals.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


def _joined(digests: Sequence[bytes], size: int) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, size // 8)
