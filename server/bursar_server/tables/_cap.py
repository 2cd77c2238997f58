"""Which rows of a privacy unit are kept, when it has more than the cap; proof in `_snapshot.md`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bursar_server.tables._cells import Block, texts
from bursar_server.tables._hashing import row_digests, text_digests
from bursar_server.tables._keys import Keys


@dataclass
class UnitCap:
    """Collects 24 bytes a row, then says which rows stay.

    The rows of a unit are ranked by a keyed hash of their own content and, among equal rows, of their number; the
    least ranks stay. So what is kept of a unit is, as a multiset, a function of the unit's own rows and of the key:
    other units play no part, nor does the order of the source.
    """

    keys: Keys
    max_rows: int
    _rows: list[NDArray[np.uint64]] = field(default_factory=list)

    def add(self, block: Block, units: pa.Array) -> Block:
        """Note the next rows. Returns them with those that belong to no unit made null."""
        digests, known = _unit_digests(units, self.keys.derive("unit"))
        owned = block.only(known)
        content = row_digests(block.values, self.keys.derive("rank"), 8)
        # Null rows have nothing to be capped; their digests are never read.
        self._rows.append(np.hstack([digests, content])[owned.present])
        return owned

    def unit_rows(self) -> NDArray[np.int32]:
        """K of every present row that was added, in order: how many rows of its unit stay; 0 if it is none of them.

        The `max_rows` first of a unit's ranking stay. K counts the unit's own present rows and nothing else.
        """
        rows = np.concatenate(self._rows) if self._rows else np.empty((0, 3), dtype=np.uint64)
        by_content = np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))
        rows = rows[by_content]
        unit = _runs(rows[:, :2])
        rank = _mixed(rows[:, 2], _ordinals(_runs(rows)))
        by_rank = np.lexsort((rank, unit))
        staying = np.minimum(np.bincount(unit), self.max_rows)
        found = np.zeros(len(rows), dtype=np.int32)
        # `unit` is sorted, so it is the same in the order of ranks, which moves rows within their unit only.
        found[by_content[by_rank]] = np.where(_ordinals(unit) < self.max_rows, staying[unit], 0)
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
