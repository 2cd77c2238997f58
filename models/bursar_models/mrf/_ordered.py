"""Estimates of tables over ordered bins, in which neighbouring bins borrow from each other.

A Polya tree (Lavine 1992) over the hierarchy of Hay, Rastogi, Miklau and Suciu 2010 ("Boosting the accuracy of
differentially private histograms"): first the counts of wide blocks of bins, which have little noise for their size,
then the division of each block into two. Where noise hides a division, it is the expected one. The state of null, if
there is one, is beside the bins: it is divided from all of them first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from bursar_models.arrays import FloatArray, IntArray

UNORDERED: Mapping[int, int] = MappingProxyType({})
"""Ordered bins of variables of which none has any."""

_SPREADS = np.concatenate([[1e-9], np.logspace(-5, 0, 16)])
"""Variances of divisions over which one is averaged, in those of a coin: a grid from hardly any to the largest one."""

_LEAST, _FLOOR = 1e-3, 0.3
"""Least counts of a block that is expected to have half of the rows: in those rows, and in its own standard error.

An estimate of 0 would rule out states that noise hides. Without the second, rows of storms in eight bins are up to
0.15 nats less likely where the tables of all pairs are known at epsilon 3.
"""


def refined(counts: FloatArray, std: float, expected: FloatArray, axes: Mapping[int, int]) -> tuple[FloatArray, float]:
    """Estimate the counts of a table by posterior means of divisions, from wide blocks to single bins.

    How much divisions differ from the expected ones is estimated at each level from all its noisy counts.

    Args:
        counts: noisy counts.
        std: standard deviation of the noise on a cell, positive.
        expected: positive counts that give the expected divisions. Their sums over all of `axes` are kept.
        axes: number of ordered bins of each axis that has any, at least one: its cells, or all but the last.

    Returns:
        Positive counts, and their root mean square error if the prior is right.
    """
    starts = {axis: [0] for axis in axes}
    found = _sums(expected, starts)
    variances = np.zeros(found.shape)
    while any(len(starts[axis]) < counts.shape[axis] for axis in axes):
        for axis in axes:
            parents = starts[axis]
            starts[axis] = _divided(parents, axes[axis], counts.shape[axis])
            left = np.flatnonzero(~np.isin(starts[axis], parents)) - 1
            if not len(left):
                continue
            origin = np.searchsorted(parents, starts[axis], side="right") - 1
            seen, prior = _sums(counts, starts), _sums(expected, starts)
            cells = _sums(np.ones(counts.shape), starts)
            found, variances = np.take(found, origin, axis=axis), np.take(variances, origin, axis=axis)
            _divide([np.moveaxis(one, axis, -1) for one in (found, variances, seen, cells, prior)], std, left)
    return found, float(np.sqrt(variances.mean()))


def _divided(starts: Sequence[int], bins: int, size: int) -> list[int]:
    """Return where blocks begin after each that has several bins is divided, or bins from null."""
    if len(starts) == 1 and bins < size:
        return [0, bins]
    return sorted({*starts, *((a + b + 1) // 2 for a, b in pairwise([*starts, size]) if b - a > 1)})


def _sums(table: FloatArray, starts: Mapping[int, Sequence[int]]) -> FloatArray:
    """Return the sums of a table's blocks."""
    return reduce(lambda sums, axis: np.asarray(np.add.reduceat(sums, starts[axis], axis=axis)), starts, table)


def _divide(blocks: Sequence[FloatArray], std: float, left: IntArray) -> None:
    """Divide the totals of pairs of blocks along the last axis, in place.

    Args:
        blocks: estimated counts, of which both of a pair have their total, and their variances, which are changed;
            noisy counts, numbers of cells and expected counts.
        std: standard deviation of the noise on a cell.
        left: first block of each pair.
    """
    found, variances, seen, cells, prior = blocks
    right, totals = left + 1, found[..., left]
    both = cells[..., left] + cells[..., right]
    share = prior[..., left] / (prior[..., left] + prior[..., right])
    # What noise makes the two miss of their total is taken from both, in proportion to their noise.
    missed = totals - seen[..., left] - seen[..., right]
    away = seen[..., left] + missed * cells[..., left] / both - totals * share
    noise = std**2 * cells[..., left] * cells[..., right] / both
    coin = np.square(totals) * share * (1 - share)
    each = noise[..., None] + coin[..., None] * _SPREADS
    logs = -0.5 * (np.log(each) + np.square(away)[..., None] / each).sum(axis=tuple(range(each.ndim - 1)))
    weights = np.exp(logs - logs.max())
    between = coin * float(weights @ _SPREADS / weights.sum())
    kept = between / (between + noise)
    first = totals * share + kept * away
    error = kept * noise
    least = np.maximum(2 * _LEAST * totals, np.minimum(2 * _FLOOR * np.sqrt(error), totals))
    found[..., left] = np.clip(first, least * share, totals - least * (1 - share))
    found[..., right] = totals - found[..., left]
    variances[..., right] = error + np.square(1 - share) * variances[..., right]
    variances[..., left] = error + np.square(share) * variances[..., left]
