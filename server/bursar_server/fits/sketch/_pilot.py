"""The frequency scale from a small noisy sketch: how wide clusters are, guessed from how fast its moments decay.

Keriven et al. 2017, section 3.3, estimate the scale from a sketch of some rows; theirs is exact and would be an unpaid
query. Here the sketch is a release like any other, and this is post-processing of it.
"""

from __future__ import annotations

import numpy as np

from bursar.models import MIN_SIGMA, Sketch
from bursar.models._arrays import FloatArray

PILOT_SIGMA = 0.005
"""Of a pilot's multiscale frequencies: scales from 1/200 of the half-width of the bounds up to all of it."""

_SCALES = np.geomspace(PILOT_SIGMA, 1.0, 40)
_DISTANCES = np.array([0.1, 0.2, 0.4, 0.6, 0.8])
"""Standard deviations of the clusters' centres; anything in between is near enough to one of them."""

_COLLISIONS = np.array([0.5, 0.25, 0.1, 0.05, 0.02])
"""Chance that two rows are of the same cluster, for an unknown number of clusters."""


def estimate_scale(pilot: Sketch, n_clusters: int) -> float:
    """Standard deviation of a cluster per column in frame coordinates, between `MIN_SIGMA` and 1. Total.

    Rows of k clusters of standard deviation s, whose centres have standard deviation t, have moments z_j about normal
    with E|z_j|^2 = exp(-s^2 |w_j|^2) (c + (1 - c) exp(-t^2 |w_j|^2)), c the sum of the squared weights. Noise adds its
    variance. The answer is the mean of log s under the likelihood of the pilot's moments and a flat prior on a grid of
    log s, t and c; so where noise rules it is the middle of the prior's range, and no moment is an outlier.

    Args:
        pilot: sketch with scales from `PILOT_SIGMA` to 1.
        n_clusters: k; 0 if it is not known.
    """
    squares = np.square(pilot.frequencies.matrix()).sum(axis=1)
    power = np.minimum(np.square(np.abs(pilot.moments())), 1e6)  # a moment has at most 1; no overflow below
    noise = min(2 * pilot.moment_std() ** 2 + 1 / max(pilot.n_rows, 1.0), 1e6)
    collisions = _COLLISIONS if n_clusters == 0 else np.minimum(np.array([0.5, 1.0, 2.0]) / n_clusters, 1.0)
    likelihood = np.exp(_log_likelihood(squares, power, noise, collisions))
    weights = likelihood.sum(axis=(1, 2))
    sigma = float(np.exp(weights @ np.log(_SCALES) / weights.sum()))
    return float(np.clip(sigma, MIN_SIGMA, 1.0))


def _log_likelihood(squares: FloatArray, power: FloatArray, noise: float, collisions: FloatArray) -> FloatArray:
    """For every scale, distance and collision chance; the largest is 0. Complex normal moments, up to a constant."""
    within = np.exp(-squares[:, None] * np.square(_SCALES))[:, :, None, None]
    between = np.exp(-squares[:, None] * np.square(_DISTANCES))[:, None, :, None]
    variance = within * (collisions + (1 - collisions) * between) + noise
    log_likelihood = -(np.log(variance) + power[:, None, None, None] / variance).sum(axis=0)
    return np.asarray(log_likelihood - log_likelihood.max())
