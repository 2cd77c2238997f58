"""Which rows of a privacy unit are kept, when it has more than the cap; proof in `_snapshot.md`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bursar_server.tables._cells import Block, texts
from bursar_server.tables._hashing import row_digests, text_digests
from bursar_server.tables._keys import CapKeys

_SPILL = 2**21
"""Rows whose 32 bytes are held in memory."""

_HEAPS = 2**8
"""Files for the others, each with all rows of its units: one of them, at about 150 bytes a row, is sorted at a time."""


@dataclass
class UnitCap:
    """Notes 32 bytes a row, on the disk once there are many, then says which rows stay.

    The rows of a unit are ranked by a keyed hash of their own content and, among equal rows, of their number; the
    least ranks stay. So what is kept of a unit is, as a multiset, a function of the unit's own rows and of the key:
    other units play no part, nor does the order of the source.

    Attributes:
        keys: of the hashes.
        max_rows: of a unit that stay.
        spare: beside which the files are, which go away with `unit_rows`.
    """

    keys: CapKeys
    max_rows: int
    spare: Path
    _waiting: list[NDArray[np.uint64]] = field(default_factory=list)
    _number: int = 0
    _spilt: int = 0

    def add(self, block: Block, units: pa.Array) -> Block:
        """Note the next rows. Returns them with those that belong to no unit made null."""
        digests, known = _unit_digests(units, self.keys.unit)
        owned = block.only(known)
        content = row_digests(block.values, self.keys.rank, 8)
        # Null rows have nothing to be capped; their digests are never read.
        noted = np.hstack([digests, content])[owned.present]
        places = np.arange(self._number, self._number + len(noted), dtype=np.uint64)
        self._waiting.append(np.column_stack([noted, places]))
        self._number += len(noted)
        if self._number - self._spilt >= _SPILL:
            self._spill()
        return owned

    def unit_rows(self) -> NDArray[np.int32]:
        """K of every present row that was added, in order: how many rows of its unit stay; 0 if it is none of them.

        The `max_rows` first of a unit's ranking stay. K counts the unit's own present rows and nothing else.
        """
        found = np.zeros(self._number, dtype=np.int32)
        for rows in self._heaps():
            found[rows[:, 3].astype(np.int64)] = _unit_rows(rows[:, :3], self.max_rows)
        return found

    def _heaps(self) -> Iterator[NDArray[np.uint64]]:
        """All that was noted, in order within each heap; a unit's rows are in one."""
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
    """`UnitCap.unit_rows` of rows (n, 3) with all of their units': digest of the unit, then of the content."""
    by_content = np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))
    rows = rows[by_content]
    unit = _runs(rows[:, :2])
    rank = _mixed(rows[:, 2], _ordinals(_runs(rows)))
    by_rank = np.lexsort((rank, unit))
    staying = np.minimum(np.bincount(unit), max_rows)
    found = np.zeros(len(rows), dtype=np.int32)
    # `unit` is sorted, so it is the same in the order of ranks, which moves rows within their unit only.
    found[by_content[by_rank]] = np.where(_ordinals(unit) < max_rows, staying[unit], 0)
    return found


def _unit_digests(units: pa.Array, key: bytes) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Digest of each row's unit, (n, 2), and whether it has one: a missing or empty cell names nobody."""
    encoded = texts(units).dictionary_encode()
    names: list[bytes | None] = [*encoded.dictionary.to_pylist(), None]
    index = encoded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
    known = np.array([bool(name) for name in names])
    return text_digests([name or b"" for name in names], key)[index], known[index]


def _runs(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Number of the run of equal rows that each row of a sorted table belongs to."""
    starts = np.any(rows[1:] != rows[:-1], axis=1)
    return np.concatenate([np.zeros(min(1, len(rows)), dtype=np.int64), np.cumsum(starts, dtype=np.int64)])


def _ordinals(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of each element in its run, from 0."""
    positions = np.arange(len(runs), dtype=np.int64)
    return positions - np.searchsorted(runs, runs, side="left")


def _mixed(content: NDArray[np.uint64], ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A rank for each row that spreads equal rows over the unit's ranking (SplitMix64: Steele, Lea, Flood 2014).

    Without it the copies of one row would be kept together or not at all. It needs no cryptographic strength: the
    privacy of the cap rests on whose rows a rank depends on, not on how it looks.
    """
    x = content + ordinals.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)
