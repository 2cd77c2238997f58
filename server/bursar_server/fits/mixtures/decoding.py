"""Decoding of released moments into estimates for each component. Post-processing of public values only.

Every function here is total: for any noise it returns finite numbers of the right shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.statistics import Moments, Weights

_FAR_OUT = 0.5
"""Length of a mean of clipped positions beyond which it carries little information on their spread.

Chosen, not tuned.
"""


@dataclass(frozen=True)
class Released:
    """Noisy moments of K components about public centres, in records.

    Attributes:
        counts: noisy counts, (K,).
        sums: noisy sums of u, (K, d).
        seconds: noisy sums of u u^T, (K, d, d); multiples of the identity, or diagonal, if only those were released;
            (1, d, d) if tied.
        count_std: standard deviation of the noise on each count.
        sum_std: standard deviation of the noise on each sum.
        second_std: standard deviation of the noise on each svec coordinate of a second moment.
        background: noisy count of the background; None without one.
    """

    counts: FloatArray
    sums: FloatArray
    seconds: FloatArray
    count_std: float
    sum_std: float
    second_std: float
    background: float | None = None

    def safe_counts(self) -> FloatArray:
        """Return counts (K,) of at least twice their noise and at least one record, for dividing by."""
        return np.maximum(self.counts, max(2.0 * self.count_std, 1.0))

    def spread_shift(self) -> FloatArray:
        """Return the shift (K, d) that centres a second moment: the mean of u, or 0 where that is near the sphere.

        Near the sphere, beyond the noise, the rows lie outside the ball on one side. A centred second moment would then
        suggest that they are close together; the raw one shows that they are far out.
        """
        mean = self.mean_u()
        noise = self.sum_std / self.safe_counts() * (math.sqrt(mean.shape[1]) + 3.0)
        return np.asarray(mean * (np.linalg.norm(mean, axis=1) - noise <= _FAR_OUT)[:, None])

    def mean_u(self) -> FloatArray:
        """Return the mean of u, (K, d), inside the unit ball as every true mean is."""
        mean = self.sums / self.safe_counts()[:, None]
        # Only noise can move a mean of vectors in the ball out of it.
        return np.asarray(mean / np.maximum(np.linalg.norm(mean, axis=1), 1.0)[:, None])


def decode(flat: FloatArray, K: int, d: int, moments: Moments, weights: Weights, std: float) -> Released:
    """Undo the layout and the weights of `moment_statistic`; `std` is the noise on each number of `flat`."""
    end = K + K * d + (1 if moments is Moments.TIED else K) * moments.size(d)
    packed = flat[K + K * d : end].reshape(-1, moments.size(d)) / weights.c
    return Released(
        counts=flat[:K] / weights.a,
        sums=flat[K : K + K * d].reshape(K, d) / weights.b,
        seconds=_matrices(packed, d, moments),
        count_std=std / weights.a,
        sum_std=std / weights.b,
        second_std=std / weights.c,
        background=float(flat[end]) / weights.a if len(flat) > end else None,
    )


def _matrices(packed: FloatArray, d: int, moments: Moments) -> FloatArray:
    if moments is Moments.SPHERICAL:
        return packed[:, :, None] * np.eye(d) / d
    if moments is Moments.DIAG:
        return packed[:, :, None] * np.eye(d)
    rows, columns = np.tril_indices(d)
    matrices = np.zeros((packed.shape[0], d, d))
    matrices[:, rows, columns] = packed * np.where(rows == columns, 1.0, math.sqrt(0.5))
    lower = np.tril(matrices, -1)
    return matrices + np.transpose(lower, (0, 2, 1))


def unclip(mean_square: FloatArray, d: int) -> FloatArray:
    """Return the variance per coordinate, in squared clip radii, of a Gaussian whose |u|^2 clipped to 1 has this mean.

    E min(1, |u|^2) = P(chi2_d > v) + (d / v) P(chi2_{d+2} <= v) with v = 1 / variance, inverted by a table. Values that
    no Gaussian of reasonable size has are moved to the nearest end.
    """
    v, clipped = _clipped_table(d)
    # Negated, because `interp` needs ascending abscissae and the table descends.
    return 1.0 / np.interp(-np.clip(mean_square, clipped[-1], clipped[0]), -clipped, v)


def pool_variances(variance: FloatArray, unit: FloatArray, mean_square: FloatArray, noise: FloatArray) -> FloatArray:
    """Shrink log variances (K,) towards their mean as far as noise explains their differences (James-Stein).

    Variances are in squared `unit` of each component, on input and output; they are compared in the ball's units.
    `noise` is the standard deviation of the noise on `mean_square`, from which they were computed.
    """
    relative = np.maximum(noise / np.maximum(mean_square, noise), 1e-6)
    logs, precision = np.log(variance * unit**2), relative**-2.0
    centre = np.average(logs, weights=precision)
    dispersion = np.average((logs - centre) ** 2, weights=precision)
    # James-Stein: the share of the dispersion that exceeds the noise's.
    keep = max(0.0, 1.0 - 1.0 / float(np.mean(precision)) / max(float(dispersion), 1e-12))
    return np.asarray(variance * np.exp((1.0 - keep) * (centre - logs)))


@lru_cache(maxsize=64)
def _clipped_table(d: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    v = np.geomspace(0.25 * d, 40.0 * d, 1000)
    return v, np.asarray(chdtrc(d, v) + d / v * chdtr(d + 2, v))
