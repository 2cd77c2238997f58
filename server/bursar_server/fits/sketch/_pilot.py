"""The frequency scale from a small noisy sketch: how fast moments decay says how wide clusters are, and how far apart.

Keriven et al. 2017, section 3.3, estimate the scale from a sketch of some rows; theirs is exact and would be an unpaid
query. Here the sketch is a release like any other, and this is post-processing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar.models import MIN_SIGMA, FrequencyLaw, Sketch
from bursar.models._arrays import FloatArray
from bursar_server.fits.sketch._choices import schema_sigma, sigma_between

PILOT_SIGMA = 0.005
"""Of a pilot's multiscale frequencies: scales from 1/200 of the half-width of the bounds up to all of it."""

_WITHIN = np.geomspace(PILOT_SIGMA, 1.0, 40)
_BETWEEN = np.array([0.05, 0.1, 0.2, 0.4, 0.6, 0.8])
"""Standard deviations of clusters and of their centres; anything in between is near enough to one of them."""

_OF_A_CLUSTER = 1.2
"""Measured (k = d = 10, m = 1000, SNR m / (k d) = 100) at 0.5, 0.7, 1, 1.4, 2, 2.8 and 4 times the standard deviation
of clusters: sums of squares 2.6, 1.39, 1.17, 1.13, 1.37, 1.66 and 2.3 times Lloyd's."""

_OF_SPACING, _OF_BOX, _MOST_OF_SPACING = 1.8, 0.6, 3.5
"""Least scale, over what clusters with nothing between them need (`sigma_between`): 1.8, and up to 3.5 to reach 0.6 of
the scale that the bounds alone suggest. Rows that are no mixture of narrow clusters, with piles of equal values and
long tails, want wide frequencies: 1.8 and 0.6 instead of 1 and 0 bring two columns of the RAND Health Insurance
Experiment from 1.2, 1.4 and 2.0 times Lloyd's sum of squares (k = 2, 3, 5; medians) to 1.04, 1.07 and 1.28, and change
mixtures by less than 0.02, be they in a corner of the bounds or as noisy as epsilon = 0.1 makes 50,000 rows."""

_COLLISIONS = np.array([0.5, 0.25, 0.1, 0.05, 0.02])
"""Chance that two rows are of the same cluster, for an unknown number of clusters."""


@dataclass(frozen=True)
class Scales:
    """Standard deviations per column, in frame coordinates: of a cluster, and of the clusters' centres."""

    within: float
    between: float


def frequency_scale(pilot: Sketch, n_clusters: int, law: FrequencyLaw) -> float:
    """The scale for frequencies with which clusters are found and told apart, `MIN_SIGMA` to 1. Total.

    1.2 times the standard deviation of a cluster, at which noise costs least, and no less than it takes to find
    clusters that are small and far apart, and what lies between them. Frequencies at many scales have both.

    Args:
        pilot: sketch with scales from `PILOT_SIGMA` to 1.
        n_clusters: k; 0 if it is not known.
        law: of the frequencies that are to be scaled.
    """
    scales = estimate_scales(pilot, n_clusters)
    least = 0.0
    if law != "multiscale" and n_clusters != 1:
        between = sigma_between(n_clusters, pilot.d, scales.between)
        of_box = _OF_BOX * schema_sigma(n_clusters, pilot.d)
        least = max(_OF_SPACING * between, min(of_box, _MOST_OF_SPACING * between))
    return float(np.clip(max(_OF_A_CLUSTER * scales.within, least), MIN_SIGMA, 1.0))


def estimate_scales(pilot: Sketch, n_clusters: int) -> Scales:
    """Widths of clusters and of the cloud of their centres. Total: within the ranges above for any numbers.

    Rows of k clusters of standard deviation s, whose centres have standard deviation t, have moments z_j about normal
    with E|z_j|^2 = exp(-s^2 |w_j|^2) (c + (1 - c) exp(-t^2 |w_j|^2)), c the sum of the squared weights. Noise adds its
    variance. The answers are the means of log s and log t under the likelihood of the pilot's moments and a flat prior
    on a grid of log s, t and c; so where noise rules they are the middle of the prior, and no moment is an outlier.
    """
    squares = np.square(pilot.frequencies.matrix()).sum(axis=1)
    power = np.minimum(np.square(np.abs(pilot.moments())), 1e6)  # a moment has at most 1; no overflow below
    noise = min(2 * pilot.moment_std() ** 2 + 1 / max(pilot.n_rows, 1.0), 1e6)
    collisions = _COLLISIONS if n_clusters == 0 else np.minimum(np.array([0.5, 1.0, 2.0]) / n_clusters, 1.0)
    likelihood = np.exp(_log_likelihood(squares, power, noise, collisions))
    likelihood /= likelihood.sum()
    return Scales(
        within=float(np.exp(likelihood.sum(axis=(1, 2)) @ np.log(_WITHIN))),
        between=float(np.exp(likelihood.sum(axis=(0, 2)) @ np.log(_BETWEEN))),
    )


def _log_likelihood(squares: FloatArray, power: FloatArray, noise: float, collisions: FloatArray) -> FloatArray:
    """For every s, t and c; the largest is 0. Complex normal moments, up to a constant."""
    within = np.exp(-squares[:, None] * np.square(_WITHIN))[:, :, None, None]
    between = np.exp(-squares[:, None] * np.square(_BETWEEN))[:, None, :, None]
    variance = within * (collisions + (1 - collisions) * between) + noise
    log_likelihood = -(np.log(variance) + power[:, None, None, None] / variance).sum(axis=0)
    return np.asarray(log_likelihood - log_likelihood.max())
