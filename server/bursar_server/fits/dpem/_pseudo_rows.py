"""Pseudo-rows drawn from released cells or bins, and k-means on them. Post-processing: free, total, and without rows.

k-means on the cells' Gaussians, not on their centres, is what takes the start out of poor optima: what a cell holds
across a border then counts for both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.special import ndtr, ndtri

from bursar_models import public_generator
from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.splitting import Cells, inside_ball

_SEED = 20
"""Public seed of pseudo-rows and starts, so that a fit is a function of its releases. Any number would do."""

_ROWS, _MOST_ROWS, _ROWS_A_CELL, _LEAST_ROWS = 5000, 12_800, 100, 20
"""Number of pseudo-rows in all for few cells and for many, for each cell between these, and minimum of a cell. Chosen:
with 5,000 of 128 cells another optimum looked better on one table of two; more take long.
"""

_BIN_ROWS, _LEAST_BIN_ROWS = 3000, 3
"""The same for the bins of a grid. Chosen, not tuned."""

_LEAST_HALF, _LEAST_BIN = 1.5, 3.0
"""Minimum count of a half of a bin, and of a bin without such a half, in deviations of their noise. Chosen on drawn and
real rows: with less, noise takes centres; with more, wide clusters are lost.
"""

_PRICE, _ROUNDS = 1.5, 100
"""Price of a bump or half in `expected`, in deviations of its noise, and steps of the search. Chosen on drawn and real
rows: 2 is as good, 1 follows noise.
"""

_BELL = 0.5
"""Deviation of a bump, in widths of its bin. Chosen on drawn and real rows."""

_LEVELLED, _ANYWHERE = 0.6, 0.2
"""Power of the density that bins follow, and share of them that lie evenly. Chosen on drawn and real rows."""

_RESTARTS, _LEAST_RESTARTS, _CLUSTERS_A_RESTART, _STEPS = 12, 3, 400, 60
"""Number of starts of k-means, its minimum for many clusters, clusters over all starts, and Lloyd steps of each.

Chosen: one start is up to 2 % worse.
"""


@dataclass(frozen=True)
class PseudoRows:
    """Weighted rows in the unit ball.

    Attributes:
        rows: positions, (m, d).
        weights: records that each stands for, (m,), positive.
    """

    rows: FloatArray
    weights: FloatArray


@dataclass(frozen=True)
class Clustering:
    """Clusters of pseudo-rows.

    Attributes:
        centres: means, (k, d).
        counts: weights, (k,).
        squares: weighted sums of squared distances to the centres, (k,).
    """

    centres: FloatArray
    counts: FloatArray
    squares: FloatArray


def from_cells(cells: Cells, count_std: float, box: FloatArray) -> PseudoRows:
    """Return rows drawn from the cells' Gaussians, clipped to the box of half-widths `box`."""
    generator = public_generator(_SEED)
    kept = [cell for cell in cells if cell.count > 2.0 * count_std] or list(cells)
    total, most = sum(cell.count for cell in kept), min(max(_ROWS, _ROWS_A_CELL * len(kept)), _MOST_ROWS)
    rows, weights = [], []
    for cell in kept:
        m = max(round(most * cell.count / total), _LEAST_ROWS)
        values, vectors = np.linalg.eigh(cell.covariance)
        deviations = np.sqrt(_shared(values, cell.noise))
        normal = generator.standard_normal((m, len(cell.mean)))
        # The symmetric root: signs of eigenvectors, which differ between machines, do not matter.
        rows.append(cell.mean + normal @ (vectors * deviations) @ vectors.T)
        weights.append(np.full(m, cell.count / m))
    return PseudoRows(inside_ball(np.clip(np.concatenate(rows), -box, box)), np.concatenate(weights))


def _shared(values: FloatArray, noise: float) -> FloatArray:
    """Return eigenvalues (d,) of which those up to `noise`, which it hides one by one, share their mean."""
    hidden = values <= noise
    mean = float(np.sum(values[hidden])) / max(int(np.count_nonzero(hidden)), 1)
    return np.maximum(np.where(hidden, mean, values), 0.0)


def grid(bins: int, extent: FloatArray) -> FloatArray:
    """Return the middles of bins^d equal bins, (bins^d, d), of the box of half-widths `extent`; the last axis first."""
    steps = (2.0 * np.arange(bins) + 1.0) / bins - 1.0
    return product(len(extent) * [steps]) * extent


def visible(counts: FloatArray, std: float, d: int) -> NDArray[np.bool_]:
    """Return which bins of `grid` hold more than noise, at least one: (bins^d,) noisy counts.

    A bin is kept if its count, or the mean of the 3^d about it, exceeds what noise reaches in a few bins of all.
    """
    alone, around = (-ndtri(min(p / len(counts), 0.5)) for p in (1.0, 5.0))
    bins = round(len(counts) ** (1.0 / d))
    smooth = ndimage.uniform_filter(counts.reshape(d * (bins,)), 3, mode="constant").ravel()
    kept = (counts > alone * std) | ((counts > 0.0) & (smooth > around * std / 3.0 ** (d / 2.0)))
    return np.asarray(kept if np.any(kept & (counts > 0.0)) else counts == counts.max())


def from_grid(counts: FloatArray, std: float, bins: int, extent: FloatArray) -> PseudoRows:
    """Return rows drawn uniformly from the bins of `grid` that hold more than noise: (bins^d,) noisy counts."""
    kept = visible(counts, std, len(extent))
    return _uniform(grid(bins, extent)[kept], extent / bins, counts[kept])


def halves(middles: FloatArray, half: FloatArray) -> FloatArray:
    """Return the middles of the 2^d halves of each bin, (m 2^d, d); `half` are half-widths of the bins, (d,)."""
    return np.asarray((middles[:, None] + grid(2, half)).reshape(-1, len(half)))


def from_halves(
    counts: FloatArray, std: float, finer: FloatArray, finer_std: float, middles: FloatArray, half: FloatArray
) -> PseudoRows:
    """Return rows drawn from the halves of bins that hold more than noise.

    Those of a bin share what both releases say of it; a bin of which no half is clear keeps its rows if it is.

    Args:
        counts: noisy counts of the bins, (m,).
        std: their noise.
        finer: noisy counts of their `halves`, (m 2^d,).
        finer_std: their noise.
        middles: middles of the halves, (m 2^d, d).
        half: half-widths of the halves, (d,).
    """
    parts = finer.reshape(len(counts), -1)
    each = parts.shape[1]
    of_parts, of_bins = each * finer_std**2, std**2
    totals = (parts.sum(axis=1) * of_bins + counts * of_parts) / (of_bins + of_parts)
    shared = _onto_simplex(parts, np.maximum(totals, 0.0))
    found = np.where(shared > _LEAST_HALF * finer_std, shared, 0.0)
    clear = totals > _LEAST_BIN * math.sqrt(of_bins * of_parts / (of_bins + of_parts))
    unclear = clear & ~np.any(found > 0.0, axis=1)
    found[unclear] = (totals[unclear] / each)[:, None]
    if not np.any(found > 0.0):
        found[int(np.argmax(totals))] = 1.0
    kept = found.ravel() > 0.0
    return _uniform(middles[kept], half, found.ravel()[kept])


def denser(counts: FloatArray, std: float, bins: int, extent: FloatArray) -> tuple[FloatArray, ...]:
    """Return middles of bins for each axis, (bins,), closer where rows are: from noisy counts of `grid`, a tensor."""
    edges = tuple(np.linspace(-half, half, len(counts) + 1) for half in extent)
    found = expected(counts, std, edges)
    middles = []
    for axis, old in enumerate(edges):
        fine = _halved(old)
        mass = found.sum(axis=tuple(other for other in range(found.ndim) if other != axis))
        level = (mass / max(float(mass.sum()), 1e-300)) ** _LEVELLED
        # Evenly where nothing is seen.
        share = level / float(level.sum()) if np.any(level > 0.0) else np.full(len(level), 1.0 / len(level))
        reach = np.concatenate([[0.0], np.cumsum((1.0 - _ANYWHERE) * share + _ANYWHERE / len(share))])
        new = np.interp(np.linspace(0.0, 1.0, bins + 1), reach, fine)
        middles.append((new[:-1] + new[1:]) / 2.0)
    return tuple(middles)


def from_uneven(counts: FloatArray, std: float, middles: tuple[FloatArray, ...], extent: FloatArray) -> PseudoRows:
    """Return rows drawn from the halves of bins about `middles` of each axis: noisy counts, a tensor."""
    edges = tuple(
        np.concatenate([[-half], (axis[:-1] + axis[1:]) / 2.0, [half]])
        for axis, half in zip(middles, extent, strict=True)
    )
    found = expected(counts, std, edges).ravel()
    fine = [_halved(axis) for axis in edges]
    places = product([(axis[:-1] + axis[1:]) / 2.0 for axis in fine])
    return _uniform(places, product([np.diff(axis) / 2.0 for axis in fine]), found)


def expected(counts: FloatArray, std: float, edges: tuple[FloatArray, ...]) -> FloatArray:
    """Return records in the halves of bins along every axis, a tensor of them, not negative, from noisy counts.

    They are a sum of bumps as wide as bins and of single halves that is closest to the counts, where each has a price,
    so that noise is not followed (Tibshirani 1996); by accelerated gradients (Beck, Teboulle 2009).
    """
    kinds = [[_bumps(axis) for axis in edges], [_boxes(len(axis) - 1) for axis in edges]]
    length = sum(math.prod(float(np.linalg.norm(seen, 2)) ** 2 for seen, _ in kind) for kind in kinds)
    prices = [
        _PRICE * std * _along([np.linalg.norm(seen, axis=0)[:, None] for seen, _ in kind], np.ones(counts.ndim * (1,)))
        for kind in kinds
    ]
    even = max(float(counts.sum()), 1.0) / (2 * prices[0].size)
    old = [np.full(price.shape, even) for price in prices]
    ahead, pace = list(old), 1.0
    for _ in range(_ROUNDS):
        excess = sum(_along([seen for seen, _ in kind], part) for kind, part in zip(kinds, ahead, strict=True)) - counts
        new = [
            np.maximum(part - (_along([seen.T for seen, _ in kind], excess) + price) / length, 0.0)
            for kind, part, price in zip(kinds, ahead, prices, strict=True)
        ]
        after = (1.0 + math.sqrt(1.0 + 4.0 * pace**2)) / 2.0
        ahead = [n + (pace - 1.0) / after * (n - o) for n, o in zip(new, old, strict=True)]
        old, pace = new, after
    return np.asarray(sum(_along([laid for _, laid in kind], part) for kind, part in zip(kinds, old, strict=True)))


def _bumps(edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the masses of a bell about each half of a bin in all bins (b, 2 b) and in all halves (2 b, 2 b)."""
    fine = _halved(edges)
    width = np.repeat(np.diff(edges), 2)
    reach = ndtr((fine[:, None] - (fine[:-1] + fine[1:]) / 2.0) / (_BELL * width))
    laid = np.diff(reach, axis=0) / (reach[-1] - reach[0])
    return laid[::2] + laid[1::2], laid


def _boxes(bins: int) -> tuple[FloatArray, FloatArray]:
    """Return the same for the halves themselves."""
    return np.repeat(np.eye(bins), 2, axis=1), np.eye(2 * bins)


def _halved(edges: FloatArray) -> FloatArray:
    return np.interp(np.arange(2 * len(edges) - 1) / 2.0, np.arange(len(edges)), edges)


def _along(matrices: list[FloatArray], tensor: FloatArray) -> FloatArray:
    """Return the tensor with a matrix applied along each of its axes."""
    for axis, matrix in enumerate(matrices):
        tensor = np.moveaxis(np.tensordot(matrix, tensor, (1, axis)), 0, axis)
    return tensor


def product(axes: Sequence[FloatArray]) -> FloatArray:
    """Return all points whose coordinates are among those of each axis, the last axis first."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def _onto_simplex(parts: FloatArray, totals: FloatArray) -> FloatArray:
    """Return the non-negative numbers closest to each row of `parts` (m, p) that add up to `totals` (m,)."""
    falling = -np.sort(-parts, axis=1)
    over = (np.cumsum(falling, axis=1) - totals[:, None]) / np.arange(1, parts.shape[1] + 1)
    # The first is always there: a number is never below itself less a total of at least 0.
    last = np.maximum(np.count_nonzero(falling > over, axis=1), 1) - 1
    return np.asarray(np.maximum(parts - over[np.arange(len(parts)), last][:, None], 0.0))


def _uniform(middles: FloatArray, half: FloatArray, counts: FloatArray) -> PseudoRows:
    """Return rows drawn uniformly from bins, which stand for `counts` (m,) records.

    `half` are half-widths, (d,) of all or (m, d) of each.
    """
    each = max(_LEAST_BIN_ROWS, math.ceil(_BIN_ROWS / len(middles)))
    rows, widths = (np.repeat(np.broadcast_to(part, middles.shape), each, axis=0) for part in (middles, half))
    uniform = 2.0 * public_generator(_SEED).random(rows.shape) - 1.0
    return PseudoRows(inside_ball(rows + uniform * widths), np.repeat(np.maximum(counts, 1e-9) / each, each))


def cluster(pseudo: PseudoRows, k: int, given: FloatArray | None = None) -> Clustering:
    """Return the best of several runs of weighted k-means, each from greedy k-means++ (Arthur, Vassilvitskii 2007).

    One more run is from the `given` centres (k, d), if there are any.
    """
    generator = public_generator(_SEED, k)
    restarts = max(_LEAST_RESTARTS, min(_RESTARTS, _CLUSTERS_A_RESTART // k))
    draws = (generator.random((k, 2 + int(math.log(k)))) for _ in range(restarts))
    found = [_lloyd(pseudo, given)] if given is not None else []
    found += [_lloyd(pseudo, _plus_plus(pseudo, k, each)) for each in draws]
    totals = np.array([np.sum(clustering.squares) for clustering in found])
    # The first of equals: their order must not hang on rounding, which differs between machines.
    return found[int(np.argmax(totals <= totals.min() * (1.0 + 1e-9)))]


def step(pseudo: PseudoRows, centres: FloatArray) -> Clustering:
    """Return the clusters of the pseudo-rows that are nearest to each centre; one without rows stays where it is."""
    distances = _squares(pseudo.rows, centres)
    nearest = np.argmin(distances, axis=1)
    own = np.zeros(distances.shape)
    own[np.arange(len(nearest)), nearest] = pseudo.weights
    counts = own.sum(axis=0)
    means = (own.T @ pseudo.rows) / np.maximum(counts, 1e-300)[:, None]
    return Clustering(np.where(counts[:, None] > 0.0, means, centres), counts, np.sum(own * distances, axis=0))


def _lloyd(pseudo: PseudoRows, centres: FloatArray) -> Clustering:
    for _ in range(_STEPS):
        moved = step(pseudo, centres).centres
        if np.allclose(moved, centres, rtol=0.0, atol=1e-7):
            break
        centres = moved
    return replace(step(pseudo, centres), centres=centres)


def _squares(rows: FloatArray, centres: FloatArray) -> FloatArray:
    """Return squared distances, (m, k). What cancels is below 1e-15, because all are in the unit ball."""
    lengths = np.sum(rows**2, axis=1)[:, None] + np.sum(centres**2, axis=1)
    return np.asarray(np.maximum(lengths - 2.0 * rows @ centres.T, 0.0))


def _plus_plus(pseudo: PseudoRows, k: int, draws: FloatArray) -> FloatArray:
    """Return k rows, each the best of some that are drawn by weight times squared distance to those before it.

    `draws` are uniform numbers, (k, candidates).
    """
    rows, weights = pseudo.rows, pseudo.weights
    distance = np.ones(len(rows))
    centres: list[FloatArray] = []
    for wanted in draws:
        reach = np.cumsum(weights * distance)
        # Rounding could place a draw beyond the last sum; where all is covered any row will do.
        drawn = np.minimum(np.searchsorted(reach, wanted * reach[-1], side="right"), len(rows) - 1)
        after = np.minimum(_squares(rows, rows[drawn]), distance[:, None] if centres else np.inf)
        best = int(np.argmin(weights @ after))
        centres.append(rows[drawn[best]])
        distance = after[:, best]
    return np.array(centres)
