"""Lloyd's algorithm for k-means on rows that are public or drawn from what was released, and its k-means++ starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.random import Generator  # noqa: TID251 - the type only

from bursar_models.arrays import FloatArray

LLOYD_STEPS = 30
"""Maximum number of steps of Lloyd's algorithm. Chosen, not tuned."""


@dataclass(frozen=True)
class Clustering:
    """Result of Lloyd's algorithm."""

    weights: FloatArray  # (k,)
    centres: FloatArray  # (k, d)
    variances: FloatArray  # (k,), per column
    inertia: float


def lloyd(rows: FloatArray, start: FloatArray) -> Clustering:
    """Run Lloyd's algorithm: each centre moves to the mean of its rows; a centre without rows stays."""
    k, d = start.shape
    centres = start
    for _ in range(LLOYD_STEPS):
        label = _nearest(rows, centres)
        counts = np.bincount(label, minlength=k)
        sums = np.stack([np.bincount(label, weights=column, minlength=k) for column in rows.T], axis=1)
        before, centres = centres, np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
        if np.allclose(before, centres, rtol=0, atol=1e-7):
            break
    label = _nearest(rows, centres)
    counts = np.bincount(label, minlength=k)
    distance = np.square(rows - centres[label]).sum(axis=1)
    variances = np.bincount(label, weights=distance, minlength=k) / np.maximum(counts, 1) / d
    return Clustering(counts / len(rows), centres, variances, float(distance.sum()))


def kmeans_plus_plus(rows: FloatArray, k: int, generator: Generator) -> FloatArray:
    """Draw starting centres, each with probability proportional to its squared distance to those before it."""
    centres = [rows[int(generator.integers(len(rows)))]]
    distance = np.square(rows - centres[0]).sum(axis=1)
    for _ in range(1, k):
        reach = np.cumsum(distance)
        # Rounding could place the draw beyond the last cumulative sum.
        index = min(int(np.searchsorted(reach, generator.random() * reach[-1])), len(rows) - 1)
        centres.append(rows[index])
        distance = np.minimum(distance, np.square(rows - rows[index]).sum(axis=1))
    return np.stack(centres)


def _nearest(rows: FloatArray, centres: FloatArray) -> npt.NDArray[np.intp]:
    nearest: npt.NDArray[np.intp] = (np.square(centres).sum(axis=1) - 2 * rows @ centres.T).argmin(axis=1)
    return nearest
