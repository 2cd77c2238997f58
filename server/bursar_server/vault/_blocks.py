"""Sample and aggregate: an estimate from each block of rows becomes rows of a new table, from which releases are made.

The method is that of Nissim, Raskhodnikova and Smith (2007). The estimator may be any function of a block's rows,
whatever its sensitivity: a row is in one block only, so it changes the estimates of one block. Releases treat estimates
as ordinary rows. Proof: `_blocks.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_server.vault._engine import Engine, LocalEngine
from bursar_server.vault._rows import CHUNK, MAX_ROWS, ArrayRows, Rows

MAX_BLOCK_NUMBERS = 2**25
"""Maximum of blocks x columns x capacity. As float64 they are 256 MB, the memory that one fit may use for them."""


class BlockEstimator(Protocol):
    """Function that estimates from the rows of one block. Its parameters are public or released."""

    @property
    def blocks(self) -> int:
        """Number of blocks, at least 1."""

    @property
    def capacity(self) -> int:
        """Maximum number of rows that one estimate uses, at least 1.

        `blocks` x columns x `capacity` must not exceed `MAX_BLOCK_NUMBERS`.
        """

    @property
    def shape(self) -> tuple[int, int]:
        """Number of columns and number of rows of one block's estimate; `blocks` x rows <= `MAX_ROWS`."""

    def __call__(
        self, rows: NDArray[np.float64], present: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return an estimate of `shape`, and a mask of its rows that are not null.

        A total function of any bit patterns. Keeps no state.

        Args:
            rows: (n_columns, capacity), the rows of one block.
            present: (capacity,), False for padding.
        """


_HERE = LocalEngine()


def block_estimates(rows: Rows, columns: int, estimator: BlockEstimator, *, engine: Engine = _HERE) -> ArrayRows:
    """Return the table of all blocks' estimates, block after block.

    The result does not depend on the order of the rows, provided that rows that differ have different hashes.

    Raises:
        ValueError: the blocks or the estimates exceed `MAX_BLOCK_NUMBERS` or `MAX_ROWS`.
    """
    number, capacity = estimator.blocks, estimator.capacity
    if not (number >= 1 and capacity >= 1 and number * capacity * columns <= MAX_BLOCK_NUMBERS):
        raise ValueError(
            f"estimator: expected up to {MAX_BLOCK_NUMBERS} numbers, got {number} x {capacity} x {columns}"
        )
    width, estimates = estimator.shape
    if not number * estimates <= MAX_ROWS:
        raise ValueError(f"estimator: expected up to {MAX_ROWS} rows of all blocks, got {number} x {estimates}")
    held, filled = _placed(engine.run(_Lowest(number, capacity, columns), rows, columns), number, capacity)
    made, present = np.zeros((width, number * estimates)), np.zeros(number * estimates, dtype=np.bool_)
    for index in range(number):
        place = slice(index * estimates, (index + 1) * estimates)
        # Estimators run on every block, empty ones included: the number of calls is public.
        made[:, place], present[place] = estimator(np.ascontiguousarray(held[index].T), filled[index])
    return ArrayRows(made, present)


_Pool = tuple[NDArray[np.float64], NDArray[np.uint64], NDArray[np.int64]]
"""Rows (n, columns), their hashes (n,) and their block numbers (n,)."""


@dataclass(frozen=True)
class _Lowest:
    """`Task` that finds the rows with the lowest hashes of every block, sorted by block and hash; ties keep slot order.

    Attributes:
        number: number of blocks.
        capacity: maximum number of rows of a block.
        columns: number of columns of the rows.
    """

    number: int
    capacity: int
    columns: int

    def part(self, rows: Rows, columns: int, firsts: range) -> _Pool:
        """Implement `Task.part`."""
        return self.whole(self._read(rows, firsts))

    def whole(self, parts: Iterable[_Pool]) -> _Pool:
        """Implement `Task.whole`. Memory: twice the rows that are kept, plus one block of slots."""
        # Pools are merged only when as many rows wait as can be kept: the sort is then amortised, and memory stays
        # bounded.
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
            # Null rows go to an extra block that is dropped at the end, so that shapes and time do not depend on rows.
            yield block.T.copy(), hashed, np.where(present, block_of(hashed, self.number), self.number)

    def _kept(self, pools: Sequence[_Pool]) -> _Pool:
        rows, hashes, blocks = (np.concatenate(some) for some in zip(*pools, strict=True))
        # By hash, not by slot, so that the chosen rows do not depend on the order of the table.
        order = np.lexsort((hashes, blocks))
        blocks = blocks[order]
        # `lexsort` is stable, so of two rows with one hash the one in the earlier slot comes first.
        kept = (_ranks(blocks) < self.capacity) & (blocks < self.number)
        order = order[kept]
        return rows[order], hashes[order], blocks[kept]


def _placed(pool: _Pool, number: int, capacity: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return every block's rows in the order of their hashes, and a mask of filled places.

    Shapes: (number, capacity, columns) and (number, capacity).
    """
    rows, _, blocks = pool
    held, filled = np.zeros((number, capacity, rows.shape[1])), np.zeros((number, capacity), dtype=np.bool_)
    ranks = _ranks(blocks)
    held[blocks, ranks], filled[blocks, ranks] = rows, True
    return held, filled


def _ranks(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each row's rank within its block; `blocks` must ascend."""
    return np.asarray(np.arange(len(blocks)) - np.searchsorted(blocks, blocks))


def row_hashes(block: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return a public hash of each row's bits, (CHUNK,).

    SplitMix64's mixer (Steele, Lea and Flood 2014), applied column by column.
    """
    # Without a key: privacy needs only that a row's block depends on that row alone.
    hashed = np.zeros(block.shape[1], dtype=np.uint64)
    for column in np.ascontiguousarray(block).view(np.uint64):
        hashed = (hashed ^ column) + np.uint64(0x9E3779B97F4A7C15)
        hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed = hashed ^ (hashed >> np.uint64(31))
    return hashed


def block_of(hashed: NDArray[np.uint64], number: int) -> NDArray[np.int64]:
    """Return the block of each row, 0 to `number` - 1, as a function of its hash alone."""
    # The remainder uses the low bits, because the order within a block is decided by the high ones.
    return np.asarray(hashed % np.uint64(number), dtype=np.int64)
