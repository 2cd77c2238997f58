"""Sample and aggregate: estimates from blocks of rows become the rows of another table, which is released from.

Nissim, Raskhodnikova and Smith 2007. Any function of a block's rows will do, whatever its sensitivity: a row is in one
block only, so it can change the estimates of one, which are rows like others to what comes after. Proof:
`_blocks.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_server.vault._engine import Engine, LocalEngine
from bursar_server.vault._rows import CHUNK, ArrayRows, Rows

MAX_BLOCK_NUMBERS = 2**25
"""Most numbers of all rows of all blocks together, 256 MB: what does not fit is not looked at."""


class BlockEstimator(Protocol):
    """What is estimated from the rows of a block. Everything here is public or was released."""

    @property
    def blocks(self) -> int:
        """How many blocks there are, at least 1."""

    @property
    def capacity(self) -> int:
        """Most rows that an estimate uses, at least 1; `blocks` x columns x `capacity` <= `MAX_BLOCK_NUMBERS`."""

    @property
    def shape(self) -> tuple[int, int]:
        """Columns and rows of a block's estimate."""

    def __call__(
        self, rows: NDArray[np.float64], present: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """An estimate, of `shape`, and which of its rows are not null.

        A total function of any bit patterns; keeps nothing.

        Args:
            rows: (n_columns, capacity) of one block.
            present: (capacity,), False where it has no more.
        """


_HERE = LocalEngine()


def block_estimates(rows: Rows, columns: int, estimator: BlockEstimator, *, engine: Engine = _HERE) -> ArrayRows:
    """The table of all estimates, block by block. Exact: the same for every order of rows that differ."""
    number, capacity = estimator.blocks, estimator.capacity
    if not (number >= 1 and capacity >= 1 and number * capacity * columns <= MAX_BLOCK_NUMBERS):
        raise ValueError(
            f"estimator: expected up to {MAX_BLOCK_NUMBERS} numbers, got {number} x {capacity} x {columns}"
        )
    held, filled = _placed(engine.run(_Lowest(number, capacity, columns), rows, columns), number, capacity)
    width, estimates = estimator.shape
    made, present = np.zeros((width, number * estimates)), np.zeros(number * estimates, dtype=np.bool_)
    for index in range(number):
        place = slice(index * estimates, (index + 1) * estimates)
        made[:, place], present[place] = estimator(np.ascontiguousarray(held[index].T), filled[index])
    return ArrayRows(made, present)


_Pool = tuple[NDArray[np.float64], NDArray[np.uint64], NDArray[np.int64]]
"""Rows (n, columns), their hashes and their blocks."""


@dataclass(frozen=True)
class _Lowest:
    """A `Task`: of every block the rows with the lowest hashes, sorted by block and hash, earlier slots first.

    Attributes:
        number: of blocks.
        capacity: most rows of a block.
        columns: of the rows.
    """

    number: int
    capacity: int
    columns: int

    def part(self, rows: Rows, columns: int, firsts: range) -> _Pool:
        """See `Task`."""
        return self.whole(self._read(rows, firsts))

    def whole(self, parts: Iterable[_Pool]) -> _Pool:
        """See `Task`. Memory is that of twice what is kept, and of a block of slots."""
        pool = np.zeros((0, self.columns)), np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
        pending, waiting = [pool], 0
        for part in parts:
            pending.append(part)
            waiting += len(part[1])
            if waiting >= self.number * self.capacity:
                pending, waiting = [self._kept(pending)], 0
        return self._kept(pending)

    def _read(self, rows: Rows, firsts: range) -> Iterator[_Pool]:
        block, present = np.zeros((self.columns, CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
        for first in firsts:
            rows.read(first, block, present)
            hashed = row_hashes(block)
            # Null rows are carried along, in a block of their own that is dropped in the end.
            yield block.T.copy(), hashed, np.where(present, block_of(hashed, self.number), self.number)

    def _kept(self, pools: Sequence[_Pool]) -> _Pool:
        rows, hashes, blocks = (np.concatenate(some) for some in zip(*pools, strict=True))
        order = np.lexsort((hashes, blocks))
        blocks = blocks[order]
        kept = (_ranks(blocks) < self.capacity) & (blocks < self.number)
        order = order[kept]
        return rows[order], hashes[order], blocks[kept]


def _placed(pool: _Pool, number: int, capacity: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Rows of every block, (number, capacity, columns), in the order of their hashes, and which places are filled."""
    rows, _, blocks = pool
    held, filled = np.zeros((number, capacity, rows.shape[1])), np.zeros((number, capacity), dtype=np.bool_)
    ranks = _ranks(blocks)
    held[blocks, ranks], filled[blocks, ranks] = rows, True
    return held, filled


def _ranks(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of every row within its block; `blocks` ascend."""
    return np.asarray(np.arange(len(blocks)) - np.searchsorted(blocks, blocks))


def row_hashes(block: NDArray[np.float64]) -> NDArray[np.uint64]:
    """A public hash of each row's bits, (CHUNK,): SplitMix64's mixer (Steele, Lea and Flood 2014), column by column."""
    hashed = np.zeros(block.shape[1], dtype=np.uint64)
    for column in np.ascontiguousarray(block).view(np.uint64):
        hashed = (hashed ^ column) + np.uint64(0x9E3779B97F4A7C15)
        hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed = hashed ^ (hashed >> np.uint64(31))
    return hashed


def block_of(hashed: NDArray[np.uint64], number: int) -> NDArray[np.int64]:
    """The block that each row is in, from 0 to `number` - 1, by its hash alone."""
    # The last bits: the order within a block goes by the first ones.
    return np.asarray(hashed % np.uint64(number), dtype=np.int64)
