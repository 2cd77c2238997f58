"""Private start: the public ball as one cell, split along released principal axes until there are k cells.

There is no extra mechanism: each step is the joint recentred release of the EM steps with hard assignments. This module
only post-processes released values between releases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtri

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.decoding import Released, pool_variances, unclip
from bursar_server.fits.mixtures.statistics import Moments, spectral_noise, trace_noise

_HALF = 2.0 / math.pi
"""Squared distance of the means of a Gaussian's halves from its middle, in variances: +-sqrt(2 / pi) deviations."""

_GROWTH, _SHRINKAGE = 1.6, 0.4
"""Bounds of a radius's change in one step: a first guess may be far off, but one noisy trace must not move it further.

Chosen, not tuned.
"""

_SPLITTING_TAIL, _LEAST_TAIL, _TAIL_PER_NOISE = 0.5, 1e-6, 10.0
"""Share of a Gaussian cell beyond the clip radius.

While splitting it is a half: a clipped row still shows its direction, and the noise falls with the square of the
radius. Afterwards it is less where noise matters less, because the clipped mean of an asymmetric cell is biased.
"""

_GAIN_OVER_COST = 1.5
"""Minimum ratio of a repair's gain to its cost, because both are estimated from noisy numbers. Chosen, not tuned."""


@dataclass(frozen=True)
class Cell:
    """Component of the start, in the unit ball.

    Attributes:
        count: released number of records.
        mean: mean, (d,).
        covariance: covariance, (d, d), with clipping undone; may be indefinite where noise dominates.
        noise: about the largest eigenvalue of the noise on `covariance`.
        radius: radius of the ball about the mean to which the next step clips.
        age: number of releases that `mean` averages; 0 for a mean that a split or a merger guessed.
    """

    count: float
    mean: FloatArray
    covariance: FloatArray
    noise: float
    radius: float
    age: int = 0

    def axis(self) -> tuple[float, FloatArray]:
        """Return the largest eigenvalue and its unit vector (d,)."""
        values, vectors = np.linalg.eigh(self.covariance)
        return float(values[-1]), vectors[:, -1]

    def gain(self) -> float:
        """Return the decrease of the sum of squares that a split along the principal axis gains beyond noise."""
        largest = float(np.linalg.eigvalsh(self.covariance)[-1])
        return _HALF * self.count * max(largest - self.noise, 0.0) + 1e-12 * self.count


Cells = tuple[Cell, ...]


def whole_ball(d: int) -> Cells:
    """Return the public ball as one cell."""
    return (Cell(1.0, np.zeros(d), np.eye(d) / d, 0.0, 1.0),)


def observe(cells: Cells, released: Released, moments: Moments, *, averaging: bool) -> Cells:
    """Return cells updated by a release about them: new counts, means, covariances and radii.

    Args:
        cells: cells about which the release was made, with the identity over their radii as whiteners.
        released: released moments of as many components.
        moments: kind of second moments of the release.
        averaging: True to average the means over releases, by gain 2 / (age + 2).
    """
    K, d = released.sums.shape
    counts, shift = released.safe_counts(), released.mean_u()
    old = np.array([cell.radius for cell in cells])
    variance, corrected, correction = _spread(released, counts, shift, old, moments)
    tails = np.full(K, _SPLITTING_TAIL)
    if averaging:
        tails = np.clip(_TAIL_PER_NOISE * released.sum_std / counts, _LEAST_TAIL, _SPLITTING_TAIL)
    # The squared length of a Gaussian is chi-squared: its quantile gives the radius with this tail.
    radii = np.clip(np.sqrt(chdtri(d, tails) * variance) * old, _SHRINKAGE * old, _GROWTH * old)
    noise = spectral_noise(released.second_std, d, moments) / counts * correction * old**2
    new = []
    for i in range(K):
        cell, measured = cells[i], cells[i].mean + old[i] * shift[i]
        gain = 2.0 / (cell.age + 2.0) if averaging else 1.0
        mean = (1.0 - gain) * cell.mean + gain * measured
        new.append(
            Cell(
                float(counts[i]),
                inside_ball(mean),
                corrected[i] * old[i] ** 2,
                float(noise[i]),
                float(radii[i]),
                cell.age + 1,
            )
        )
    return tuple(new)


def _spread(
    released: Released, counts: FloatArray, shift: FloatArray, radii: FloatArray, moments: Moments
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return variances per coordinate (K,), covariances (K, d, d) of u, and correction factors (K,).

    Clipped tails are restored.
    """
    K, d = shift.shape
    second = released.seconds / counts[:, None, None]
    square = np.sum(shift**2, axis=1)
    # The squared length of a noisy mean exceeds that of the mean by the noise's variance.
    debiased = np.maximum(square - d * (released.sum_std / counts) ** 2, 0.0)
    mean_square = np.trace(second, axis1=1, axis2=2) - debiased
    noise = trace_noise(released.second_std, d, moments) / counts
    variance = pool_variances(unclip(mean_square, d), radii, mean_square, noise)
    if moments is Moments.SPHERICAL:
        return variance, variance[:, None, None] * np.eye(d), np.ones(K)
    shape = second - shift[:, :, None] * shift[:, None, :] * (debiased / np.maximum(square, 1e-300))[:, None, None]
    correction = d * variance / np.maximum(mean_square, 0.05)
    return variance, shape * correction[:, None, None], correction


def inside_ball(points: FloatArray) -> FloatArray:
    """Return points (..., d) moved into the public ball, where every mean of rows lies."""
    return np.asarray(points / np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), 1.0))


def resize(cells: Cells, K: int) -> Cells:
    """Split the cells with the largest gain, or merge the cheapest pairs, until there are K."""
    while len(cells) < K:
        cells = split(cells, int(np.argmax([cell.gain() for cell in cells])))
    while len(cells) > K:
        _, i, j = cheapest_merger(cells)
        cells = merge(cells, i, j)
    return cells


def repair(cells: Cells) -> Cells:
    """Merge the cheapest pair and split the cell with the largest gain, while the gain is clear.

    So a centre moves from a cluster that has two to one that has none.
    """
    for _ in range(len(cells) // 2):
        cost, i, j = cheapest_merger(cells)
        merged = merge(cells, i, j)
        gains = [cell.gain() for cell in merged]
        best = int(np.argmax(gains))
        if not gains[best] > _GAIN_OVER_COST * cost:
            break
        cells = split(merged, best)
    return cells


def split(cells: Cells, index: int) -> Cells:
    """Divide a cell across its principal axis as if it were Gaussian; the second half is appended."""
    cell = cells[index]
    largest, axis = cell.axis()
    largest = max(largest, 1e-9)
    # The largest eigenvalue of a noisy matrix is biased upwards by about its noise.
    signal = max(largest - cell.noise, 0.25 * largest)
    offset = math.sqrt(_HALF * signal) * axis
    covariance = cell.covariance - (largest - (1.0 - _HALF) * signal) * np.outer(axis, axis)
    half = replace(cell, count=cell.count / 2.0, covariance=covariance, age=0)
    first, second = (replace(half, mean=inside_ball(cell.mean + side * offset)) for side in (1.0, -1.0))
    return (*cells[:index], first, *cells[index + 1 :], second)


def merge(cells: Cells, i: int, j: int) -> Cells:
    """Replace two cells by one with their joint moments, at the place of the earlier."""
    i, j = min(i, j), max(i, j)
    p, q = cells[i], cells[j]
    count = p.count + q.count
    mean = (p.count * p.mean + q.count * q.mean) / count
    between = p.count * q.count / count**2 * np.outer(p.mean - q.mean, p.mean - q.mean)
    covariance = (p.count * p.covariance + q.count * q.covariance) / count + between
    joint = Cell(count, mean, covariance, max(p.noise, q.noise), max(p.radius, q.radius))
    return (*cells[:i], joint, *cells[i + 1 : j], *cells[j + 1 :])


def cheapest_merger(cells: Cells) -> tuple[float, int, int]:
    """Return the least increase of the sum of squares by merging a pair (Ward 1963), and the pair."""
    means, counts = np.array([c.mean for c in cells]), np.array([c.count for c in cells])
    distances = np.sum((means[:, None] - means[None]) ** 2, axis=2)
    costs = distances * counts[:, None] * counts / (counts[:, None] + counts)
    # A cell is not merged with itself.
    np.fill_diagonal(costs, np.inf)
    i, j = np.unravel_index(int(np.argmin(costs)), costs.shape)
    return float(costs[i, j]), int(i), int(j)
