"""A chi-square test of integer samples against a discrete law, with its power known in advance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

ALPHA = 1e-8
"""False alarms per test: some twenty tests of this kind run at every submission."""

Pmf = Callable[[NDArray[np.int64], float], NDArray[np.float64]]
"""(points, scale) -> probabilities on the integers."""


def gaussian_pmf(points: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    """Discrete Gaussian: exp(-x^2 / (2 scale^2)) over its sum (Canonne, Kamath and Steinke 2020, Definition 1)."""
    return _normalised(points, lambda x: -(x**2) / (2 * scale**2), reach=int(40 * scale) + 40)


def laplace_pmf(points: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    """Discrete Laplace: exp(-|x| / scale) over its sum."""
    return _normalised(points, lambda x: -np.abs(x) / scale, reach=int(750 * scale) + 40)


def _normalised(
    points: NDArray[np.int64], log_weight: Callable[[NDArray[np.float64]], NDArray[np.float64]], reach: int
) -> NDArray[np.float64]:
    total = np.exp(log_weight(np.arange(-reach, reach + 1, dtype=np.float64))).sum()
    return np.asarray(np.exp(log_weight(points.astype(np.float64))) / total)


@dataclass(frozen=True)
class Bins:
    """Integer intervals (edges[i], edges[i+1]] of about equal probability under the claimed law, both tails open.

    Attributes:
        edges: inner edges, increasing.
        claimed: probability of each of the len(edges) + 1 bins.
    """

    edges: NDArray[np.int64]
    claimed: NDArray[np.float64]

    def count(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many samples fall into each bin."""
        return np.bincount(np.searchsorted(self.edges, samples, side="left"), minlength=len(self.claimed))

    def p_value(self, samples: NDArray[np.int64]) -> float:
        """Upper tail of Pearson's chi-square."""
        expected = self.claimed * samples.size
        statistic = float(((self.count(samples) - expected) ** 2 / expected).sum())
        return float(stats.chi2.sf(statistic, len(self.claimed) - 1))

    def power(self, actual: NDArray[np.float64], n: int) -> float:
        """Chance that n samples of a law with these probabilities are rejected at `ALPHA` (non-central chi-square)."""
        excess = n * float(((actual - self.claimed) ** 2 / self.claimed).sum())
        freedom = len(self.claimed) - 1
        return float(stats.ncx2.sf(stats.chi2.isf(ALPHA, freedom), freedom, excess))


def bins_of(pmf: Pmf, scale: float, *, pieces: int = 30) -> Bins:
    """Return at most `pieces` bins, each of probability at least about 1 / (2 pieces)."""
    points = np.arange(-int(12 * scale) - 12, int(12 * scale) + 13)
    cumulative = np.cumsum(pmf(points, scale))
    wanted = np.arange(1, pieces) / pieces
    edges = np.unique(points[np.searchsorted(cumulative, wanted)])
    # An edge too close to its neighbour, or to the end, would leave a bin nearly empty.
    kept = [int(edge) for edge in edges if 0.5 / pieces <= cumulative[edge - points[0]] <= 1 - 0.5 / pieces]
    return Bins(np.asarray(kept), _masses(pmf, scale, np.asarray(kept)))


def _masses(pmf: Pmf, scale: float, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    points = np.arange(-int(60 * scale) - 60, int(60 * scale) + 61)
    below = np.cumsum(pmf(points, scale))[edges - points[0]]
    return np.diff(below, prepend=0.0, append=1.0)


def masses_at(pmf: Pmf, scale: float, bins: Bins) -> NDArray[np.float64]:
    """Probabilities of the bins under the same law at another scale."""
    return _masses(pmf, scale, bins.edges)
