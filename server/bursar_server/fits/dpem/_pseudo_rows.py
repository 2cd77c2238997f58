"""Pseudo-rows drawn from released cells or bins, and k-means on them. Post-processing: free, total, and without rows.

k-means on the cells' Gaussians, not on their centres, is what takes the start out of poor optima: what a cell holds
across a border then counts for both sides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.special import ndtri

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
    return np.stack(np.meshgrid(*(len(extent) * [steps]), indexing="ij"), axis=-1).reshape(-1, len(extent)) * extent


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


def _onto_simplex(parts: FloatArray, totals: FloatArray) -> FloatArray:
    """Return the non-negative numbers closest to each row of `parts` (m, p) that add up to `totals` (m,)."""
    falling = -np.sort(-parts, axis=1)
    over = (np.cumsum(falling, axis=1) - totals[:, None]) / np.arange(1, parts.shape[1] + 1)
    # The first is always there: a number is never below itself less a total of at least 0.
    last = np.maximum(np.count_nonzero(falling > over, axis=1), 1) - 1
    return np.asarray(np.maximum(parts - over[np.arange(len(parts)), last][:, None], 0.0))


def _uniform(middles: FloatArray, half: FloatArray, counts: FloatArray) -> PseudoRows:
    """Return rows drawn uniformly from bins of half-widths `half` (d,), which stand for `counts` (m,) records."""
    each = max(_LEAST_BIN_ROWS, math.ceil(_BIN_ROWS / len(middles)))
    rows = np.repeat(middles, each, axis=0)
    uniform = 2.0 * public_generator(_SEED).random(rows.shape) - 1.0
    return PseudoRows(inside_ball(rows + uniform * half), np.repeat(np.maximum(counts, 1e-9) / each, each))


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
    own = _owned(pseudo, np.argmin(distances, axis=1), len(centres))
    counts = own.sum(axis=0)
    means = (own.T @ pseudo.rows) / np.maximum(counts, 1e-300)[:, None]
    return Clustering(np.where(counts[:, None] > 0.0, means, centres), counts, np.sum(own * distances, axis=0))


def clipped(pseudo: PseudoRows, centres: FloatArray, radii: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return what clipping to radii (k,) does to the pseudo-rows nearest to each centre.

    Returns:
        What it takes from their mean, (k, d), and the mean square of their clipped distances, in radii, (k,).
    """
    nearest = np.argmin(_squares(pseudo.rows, centres), axis=1)
    shifts = pseudo.rows - centres[nearest]
    lengths = np.linalg.norm(shifts, axis=1) / radii[nearest]
    own = _owned(pseudo, nearest, len(centres))
    shares = own / np.maximum(own.sum(axis=0), 1e-300)
    beyond = shifts * np.maximum(1.0 - 1.0 / np.maximum(lengths, 1e-300), 0.0)[:, None]
    return shares.T @ beyond, shares.T @ np.square(np.minimum(lengths, 1.0))


def _owned(pseudo: PseudoRows, nearest: NDArray[np.intp], k: int) -> FloatArray:
    """Return weights (m, k), each in the column of its pseudo-row's centre."""
    own = np.zeros((len(nearest), k))
    own[np.arange(len(nearest)), nearest] = pseudo.weights
    return own


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
