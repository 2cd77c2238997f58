"""Scale of frequencies from a small noisy sketch: the decay of its moments shows the width and distance of clusters.

Keriven et al. 2017, section 3.3, estimate the scale from a sketch of some rows; theirs is exact and would be an
unaccounted query. Here the sketch is a release like any other, and this module post-processes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar_models import MIN_SIGMA, FrequencyLaw, Sketch
from bursar_models.arrays import FloatArray
from bursar_server.fits.sketch._choices import schema_sigma, sigma_between

PILOT_SIGMA = 0.005
"""Scale of a pilot's multiscale frequencies, which go from 1/200 of the half-width of the bounds up to all of it."""

_WITHIN = np.geomspace(PILOT_SIGMA, 1.0, 40)
_BETWEEN = np.array([0.05, 0.1, 0.2, 0.4, 0.6, 0.8])
"""Grids of standard deviations of clusters and of their centres; intermediate values are close to one of them."""

_OF_A_CLUSTER = 1.2
"""Scale of frequencies over the standard deviation of clusters.

Measured (k = d = 10, m = 1000, SNR m / (k d) = 100) at 0.5, 0.7, 1, 1.4, 2, 2.8 and 4 times: sums of squares 2.6, 1.39,
1.17, 1.13, 1.37, 1.66 and 2.3 times Lloyd's.
"""

_OF_SPACING, _OF_BOX, _MOST_OF_SPACING = 1.8, 0.6, 3.5
"""Least scale over that of isolated clusters (`sigma_between`): 1.8, and up to 3.5 to reach 0.6 of `schema_sigma`.

Rows that are not a mixture of narrow clusters, with piles of equal values and long tails, need wide frequencies. With
1.8 and 0.6 instead of 1 and 0, two columns of the RAND Health Insurance Experiment go from 1.2, 1.4 and 2.0 times
Lloyd's sum of squares (k = 2, 3, 5; medians) to 1.04, 1.07 and 1.28. Mixtures change by less than 0.02, also in a
corner of the bounds or as noisy as epsilon = 0.1 makes 50,000 rows.
"""

_COLLISIONS = np.array([0.5, 0.25, 0.1, 0.05, 0.02])
"""Probabilities that two rows are of the same cluster, for an unknown number of clusters."""


@dataclass(frozen=True)
class Scales:
    """Standard deviations per column, in frame coordinates: of a cluster, and of the clusters' centres."""

    within: float
    between: float


def frequency_scale(pilot: Sketch, n_clusters: int, law: FrequencyLaw) -> float:
    """Return the scale of frequencies that find and separate clusters, `MIN_SIGMA` to 1. Total.

    It is 1.2 times the standard deviation of a cluster, where noise costs least, but at least the scale that finds
    small, distant clusters and the rows between them. Frequencies at many scales have both.

    Args:
        pilot: sketch with scales from `PILOT_SIGMA` to 1.
        n_clusters: number of clusters k; 0 if unknown.
        law: law of the frequencies to be scaled.
    """
    scales = estimate_scales(pilot, n_clusters)
    least = 0.0
    if law != "multiscale" and n_clusters != 1:
        between = sigma_between(n_clusters, pilot.d, scales.between)
        of_box = _OF_BOX * schema_sigma(n_clusters, pilot.d)
        least = max(_OF_SPACING * between, min(of_box, _MOST_OF_SPACING * between))
    return float(np.clip(max(_OF_A_CLUSTER * scales.within, least), MIN_SIGMA, 1.0))


def estimate_scales(pilot: Sketch, n_clusters: int) -> Scales:
    """Estimate widths of clusters and of the cloud of their centres. Total: within the ranges above for any numbers.

    Rows of k clusters of standard deviation s, whose centres have standard deviation t, have moments z_j about normal
    with E|z_j|^2 = exp(-s^2 |w_j|^2) (c + (1 - c) exp(-t^2 |w_j|^2)), c the sum of the squared weights. Noise adds its
    variance. The estimates are the means of log s and log t under the likelihood of the pilot's moments and a flat
    prior on a grid of log s, t and c. So where noise dominates they are the middle of the prior, and no moment is an
    outlier.
    """
    squares = np.square(pilot.frequencies.matrix()).sum(axis=1)
    power = np.minimum(np.square(np.abs(pilot.moments())), 1e6)  # a moment has at most 1; no overflow below
    noise = min(2 * pilot.moment_std() ** 2 + 1 / max(pilot.n_rows, 1.0), 1e6)
    collisions = _COLLISIONS if n_clusters == 0 else np.minimum(np.array([0.5, 1.0, 2.0]) / n_clusters, 1.0)
    # Relative to the maximum, so that the exponential neither overflows nor vanishes everywhere.
    likelihood = np.exp(_log_likelihood(squares, power, noise, collisions))
    likelihood /= likelihood.sum()
    return Scales(
        within=float(np.exp(likelihood.sum(axis=(1, 2)) @ np.log(_WITHIN))),
        between=float(np.exp(likelihood.sum(axis=(0, 2)) @ np.log(_BETWEEN))),
    )


def _log_likelihood(squares: FloatArray, power: FloatArray, noise: float, collisions: FloatArray) -> FloatArray:
    """Return the log-likelihood for every s, t and c, with maximum 0; complex normal moments, up to a constant."""
    within = np.exp(-squares[:, None] * np.square(_WITHIN))[:, :, None, None]
    between = np.exp(-squares[:, None] * np.square(_BETWEEN))[:, None, :, None]
    variance = within * (collisions + (1 - collisions) * between) + noise
    log_likelihood = -(np.log(variance) + power[:, None, None, None] / variance).sum(axis=0)
    return np.asarray(log_likelihood - log_likelihood.max())
