"""Estimator of a block of rows, without noise: k spherical Gaussians, by k-means.

Kamath et al. 2019, section 6, allow any non-private estimator. This one starts with distant centres (Arthur and
Vassilvitskii 2007), takes the best of a few starts, and is total.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.kernel import LEAST
from bursar_server.fits.mixtures.statistics import BallFrame

_STARTS, _STEPS = 4, 12
"""Number of starts, and steps of each. Chosen, not tuned: a fixed number, so that time does not depend on rows."""

_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_options)
def _positions(rows, present, centre, scale, z, valid):  # type: ignore[no-untyped-def]
    """Set z to rows clipped to the unit ball; absent and non-finite rows do not count.

    Distances below `LEAST` become 0 before they are divided, as in FitDPEM's kernel.
    """
    d, n = rows.shape
    for r in range(n):
        valid[r], square = (1.0 if present[r] else 0.0), 0.0
        for i in range(d):
            x = rows[i, r] - centre[i]
            x = (0.0 if abs(x) < LEAST * scale[i] else x) / scale[i]  # NaN stays
            finite = abs(x) < 1e100  # false for NaN
            valid[r] = valid[r] if finite else 0.0
            z[i, r] = x if finite else 0.0
            square += z[i, r] * z[i, r]
        shrink = 1.0 / math.sqrt(max(square, 1.0))
        for i in range(d):
            z[i, r] *= shrink


@njit(**_options)
def _nearest(z, valid, centres, k, label, square, apart):  # type: ignore[no-untyped-def]
    """Set the nearest of the first k centres to each row and its squared distance; return the sum of these."""
    d, n = z.shape
    for r in range(n):
        square[r], label[r] = np.inf, 0.0
    for c in range(k):
        for r in range(n):
            apart[r] = 0.0
        for i in range(d):
            at = centres[i, c]
            for r in range(n):
                x = z[i, r] - at
                apart[r] += x * x
        for r in range(n):
            # Selects, here and below: a branch takes longer where it goes another way than for the row before.
            nearer = apart[r] < square[r]
            label[r] = c if nearer else label[r]
            square[r] = apart[r] if nearer else square[r]
    total = 0.0
    for r in range(n):
        square[r] *= valid[r]
        total += square[r]
    return total


@njit(**_options)
def _drawn(weights, state):  # type: ignore[no-untyped-def]
    """Draw an index in proportion to weights, by a public sequence of numbers; the last if all are zero."""
    # Knuth's linear congruential generator (MMIX).
    state[0] = state[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    wanted = float(state[0] >> np.uint64(11)) * 2.0**-53 * np.sum(weights)
    passed, below = 0, 0.0
    for r in range(weights.shape[0]):
        below += weights[r]
        passed += int(below <= wanted)
    return min(passed, weights.shape[0] - 1)


@njit(**_options)
def _members(valid, label, member):  # type: ignore[no-untyped-def]
    """Set member (k, n) to 1 where a row has a label and counts, else to 0."""
    for c in range(member.shape[0]):
        for r in range(valid.shape[0]):
            member[c, r] = valid[r] if label[r] == c else 0.0


@njit(**_options)
def _totals(z, member, sums, sizes):  # type: ignore[no-untyped-def]
    """Set sums (k, d) and sizes (k,) to those of each label's rows; every row is added to all, mostly as zeros."""
    sums.fill(0.0)
    sizes.fill(0.0)
    for r in range(z.shape[1]):
        for c in range(sizes.shape[0]):
            sizes[c] += member[c, r]
            for i in range(z.shape[0]):
                sums[c, i] += member[c, r] * z[i, r]


@njit(**_options)
def _copy(source, i, target, j):  # type: ignore[no-untyped-def]
    """Set a column; a loop is compiled in a fraction of the time of an assignment of slices."""
    for row in range(source.shape[0]):
        target[row, j] = source[row, i]


@njit(**_options)
def spheres(rows, present, centre, scale, k, made, kept):  # type: ignore[no-untyped-def]
    """Fill `made` (d + 2, k): means in the unit ball, weights, variances; `kept` (k,): True with two rows or more."""
    d, n = rows.shape
    z, valid = np.empty((d, n)), np.empty(n)
    label, square, apart, member = np.empty(n), np.empty(n), np.empty(n), np.empty((k, n))
    _positions(rows, present, centre, scale, z, valid)
    count = np.sum(valid)
    # A fixed seed: a block's spheres depend on its own rows alone, and one row changes one block.
    state, best = np.full(1, 1, dtype=np.uint64), np.inf
    centres, sums, sizes = np.zeros((d, k)), np.zeros((k, d)), np.zeros(k)
    found, spread = np.zeros((d, k)), np.zeros((k, 1))
    # Always all starts and steps, also when nothing moves any more: time must not tell how hard the rows are.
    for _ in range(_STARTS):
        _copy(z, _drawn(valid, state), centres, np.int64(0))
        for c in range(1, k):
            _nearest(z, valid, centres, c, label, square, apart)
            _copy(z, _drawn(square, state), centres, c)
        for _ in range(_STEPS):
            _nearest(z, valid, centres, k, label, square, apart)
            _members(valid, label, member)
            _totals(z, member, sums, sizes)
            for c in range(k):
                for i in range(d):
                    centres[i, c] = sums[c, i] / sizes[c] if sizes[c] > 0 else centres[i, c]
        total = _nearest(z, valid, centres, k, label, square, apart)
        better = total < best
        best = total if better else best
        for c in range(k):
            for i in range(d):
                found[i, c] = centres[i, c] if better else found[i, c]
    _nearest(z, valid, found, k, label, square, apart)
    _members(valid, label, member)
    _totals(square.reshape(1, n), member, spread, sizes)
    for c in range(k):
        kept[c] = sizes[c] >= 2.0
        _copy(found, c, made, c)
        made[d, c] = sizes[c] / max(count, 1.0)
        made[d + 1, c] = spread[c, 0] / (d * max(sizes[c] - 1.0, 1.0))


@dataclass(frozen=True, eq=False)
class Spheres:
    """Estimator of k spheres of a block: columns are the mean, the weight, and the variance's place between its bounds.

    Attributes:
        frame: public map into the unit ball.
        k: number of components.
        low: least variance, in the unit ball.
        high: largest variance, in the unit ball.
        blocks: number of blocks (`BlockEstimator.blocks`).
        capacity: maximum number of rows of a block (`BlockEstimator.capacity`).
    """

    frame: BallFrame
    k: int
    low: float
    high: float
    blocks: int
    capacity: int

    @property
    def shape(self) -> tuple[int, int]:
        """Implement `BlockEstimator.shape`."""
        return len(self.frame.scale) + 2, self.k

    def __call__(self, rows: NDArray[np.float64], present: NDArray[np.bool_]) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Implement `BlockEstimator.__call__`."""
        made, kept = np.zeros(self.shape), np.zeros(self.k, dtype=np.bool_)
        spheres(rows, present, self.frame.centre, self.frame.scale, self.k, made, kept)
        levels = max(math.log(self.high / self.low), 1e-300)
        made[-1] = np.log(np.clip(made[-1], self.low, self.high) / self.low) / levels
        return made, kept

    def variance(self, place: FloatArray) -> FloatArray:
        """Return the variance of a place between the bounds."""
        return np.asarray(self.low * (self.high / self.low) ** np.clip(place, 0.0, 1.0))
