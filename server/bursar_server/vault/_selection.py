"""Candidates of a private choice: blocks of a sum, scored by their distance from public numbers.

The scores are for the exponential mechanism (McSherry and Talwar 2007). `_selection.md` proves how far one privacy unit
can change them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bursar_server.vault._rows import MAX_ROWS
from bursar_server.vault._sensitivity import Bounds
from bursar_server.vault._statistic import Statistic

MAX_SCORE = 2**61
"""Upper bound of scores, so that neither scores nor the differences that they are made of overflow 64 bits."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Blocks of a sum. The score of a block is its worth of its L1 distance S from its targets, in lattice units.

    That is S itself, or with `discounts` N and `weights` w the integer below w S^2 / (S + N): a part of S that is small
    where S is small against N.

    Attributes:
        statistic: statistic whose flat sum is cut into blocks.
        blocks: (start, stop) of each candidate in the flat sum; they may overlap.
        targets: (statistic.size,) public or released integers, in lattice units; copied.
        block_bounds: bounds of one row's contribution to any one block; proven beside the statistic.
        discounts: N of each block, public or released, at least 0; empty for none.
        weights: w of each block, public or released, 0 to 1; empty for 1.
    """

    statistic: Statistic
    blocks: tuple[tuple[int, int], ...]
    targets: NDArray[np.int64]
    block_bounds: Bounds
    discounts: tuple[int, ...] = ()
    weights: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        size = self.statistic.size
        if not self.blocks or not all(0 <= start < stop <= size for start, stop in self.blocks):
            raise ValueError(f"blocks: expected at least one, each 0 <= start < stop <= {size}, got {self.blocks!r}")
        if not (self.targets.shape == (size,) and self.targets.dtype == np.int64):
            found = f"{self.targets.dtype} of shape {self.targets.shape}"
            raise ValueError(f"targets: expected int64 of shape ({size},), one for each number of the sum, got {found}")
        n = len(self.blocks)
        if len(self.discounts) not in (0, n) or not all(isinstance(N, int) and N >= 0 for N in self.discounts):
            raise ValueError(f"discounts: expected none, or {n} integers of at least 0, got {self.discounts!r}")
        if len(self.weights) not in (0, n) or not all(isinstance(w, Fraction) and 0 <= w <= 1 for w in self.weights):
            raise ValueError(f"weights: expected none, or {n} fractions from 0 to 1, got {self.weights!r}")
        kept = self.targets.copy()
        kept.flags.writeable = False  # a caller who changed the array later would bypass the check below
        object.__setattr__(self, "targets", kept)
        room = MAX_SCORE - MAX_ROWS * self.block_bounds.l1
        if not all(_l1(kept[start:stop]) <= room for start, stop in self.blocks):
            raise ValueError(
                f"targets: the L1 norm of a block's targets may be {room} at most with these block_bounds; clip them "
                "to what rows can sum to"
            )

    def scores(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the score of each block, (n_blocks,), from the exact sum of the statistic (any shape of its size)."""
        distances = np.abs(sums.ravel() - self.targets)
        # Python's integers: the square of a distance can exceed 64 bits.
        plain = [int(distances[start:stop].sum()) for start, stop in self.blocks]
        discounts = self.discounts or (0,) * len(plain)
        weights = self.weights or (Fraction(1),) * len(plain)
        return np.array([_worth(*one) for one in zip(plain, discounts, weights, strict=True)], dtype=np.int64)


def _worth(distance: int, discount: int, weight: Fraction) -> int:
    """Return the integer below w S^2 / (S + N), in integers of any size; 0 for S = N = 0."""
    return weight.numerator * distance**2 // (weight.denominator * max(distance + discount, 1))


def _l1(values: NDArray[np.int64]) -> float:
    """Return the L1 norm in floating point: an integer sum could overflow before the check that uses this norm."""
    return float(np.abs(values.astype(np.float64)).sum())
