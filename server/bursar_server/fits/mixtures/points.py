"""Points that stand for released mixtures, and EM on them. Post-processing: free, total, and without rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp, ndtri

from bursar_models import public_generator
from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.em import VARIANCE_FLOOR, Mixture, merged, shaped, without_noise
from bursar_server.fits.mixtures.splitting import inside_ball
from bursar_server.fits.mixtures.statistics import Moments

_SEED = 22
"""Public seed of starts, so that a fit is a function of its releases. Any number would do."""

_POINTS, _STARTS, _FIRST, _SETTLING = 16000, 8, 8, 20
"""Points of a mixture, random starts beside the plain one, EM steps of each, and of the best. Chosen on real tables:
with 4,000 points letter ends 0.06 nats a row lower at epsilon 5 (six and ten fits); others cannot be told apart.
"""

_LEAST_COUNT = 1e-9
"""Least weight of a component, by which is divided."""


def reduced(mixture: Mixture, K: int, moments: Moments, count_std: float) -> Mixture:
    """Return a mixture of at most K components near one of more: the likeliest of several by EM on points of it.

    Joining pairs (`merged`) is greedy: where it begins decides between optima. Here other starts, whose pairs are
    joined by chance among those that lose little, settle on points as k-means does on pseudo-rows.

    Args:
        mixture: mixture of more components.
        K: number of components.
        moments: form of the covariances.
        count_std: standard deviation of the noise on counts.
    """
    fine = without_noise(mixture, K, count_std)
    plain = merged(fine, K)
    if len(plain.counts) == len(fine.counts):
        return plain
    points, weights = _points_of(fine)
    with np.errstate(all="ignore"):
        starts = (plain, *(merged(fine, K, luck=public_generator(_SEED, i).standard_normal) for i in range(_STARTS)))
        tried = [_settled(start, points, weights, moments, _FIRST) for start in starts]
        fits = np.array([_log_likelihood(one, points, weights) for one in tried])
        # The first of equals: their order must not hang on rounding, which differs between machines.
        best = tried[int(np.argmax(fits >= np.max(fits) - 1e-9))]
        return replace(_settled(best, points, weights, moments, _SETTLING), age=1)


def _points_of(mixture: Mixture) -> tuple[FloatArray, FloatArray]:
    """Return points (m, d) of the mixture's Gaussians, and the records that each stands for, (m,)."""
    d = mixture.means.shape[1]
    halves = np.maximum(_POINTS / 2.0 * mixture.weights, d + 2.0).astype(np.int64)
    lowers = np.linalg.cholesky(mixture.covariances)
    drawn = (mean + normals(int(h), d) @ low.T for mean, low, h in zip(mixture.means, lowers, halves, strict=True))
    return np.concatenate([*drawn]), np.repeat(mixture.counts / (2.0 * halves), 2 * halves)


def _settled(mixture: Mixture, points: FloatArray, weights: FloatArray, moments: Moments, steps: int) -> Mixture:
    """Return the mixture after EM steps on weighted points."""
    for _ in range(steps):
        logs = _logs(mixture, points)
        shares = np.exp(logs - logsumexp(logs, axis=0)) * weights
        counts, means, covariances = moments_of(points, shares, moments)
        mixture = replace(mixture, counts=counts, means=means, covariances=covariances)
    return mixture


def _log_likelihood(mixture: Mixture, points: FloatArray, weights: FloatArray) -> float:
    """Return the mean log-likelihood of weighted points."""
    return float(weights @ logsumexp(_logs(mixture, points), axis=0) / weights.sum())


def _logs(mixture: Mixture, points: FloatArray) -> FloatArray:
    """Return log densities times weights of the Gaussians at positions (m, d), (K, m)."""
    return log_gaussians(mixture.means, mixture.covariances, points) + np.log(mixture.weights)[:, None]


def moments_of(points: FloatArray, shares: FloatArray, moments: Moments) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return counts (K,), means and covariances of points (m, d) by the shares (K, m) that components have in them."""
    counts = np.maximum(shares.sum(axis=1), _LEAST_COUNT)
    means = inside_ball(shares @ points / counts[:, None])
    apart = [points - mean for mean in means]
    squares = [(one * share[:, None]).T @ one for one, share in zip(apart, shares, strict=True)]
    matrices = np.array(squares) / counts[:, None, None]
    return counts, means, shaped(matrices, counts, moments, VARIANCE_FLOOR / points.shape[1])


def kronecker(count: int, d: int) -> FloatArray:
    """Return points (count, d) that fill the unit cube evenly: multiples of powers of a root of x^(d + 1) = x + 1."""
    root = 2.0
    for _ in range(64):
        root = (1.0 + root) ** (1.0 / (d + 1.0))
    return np.asarray((0.5 + np.outer(np.arange(1.0, count + 1.0), root ** -np.arange(1.0, d + 1.0))) % 1.0)


def normals(half: int, d: int) -> FloatArray:
    """Return normal points (2 half, d) whose odd moments are 0 and whose covariance is 1."""
    points = ndtri(np.clip(kronecker(half, d), 1e-9, 1.0 - 1e-9))
    points = np.concatenate([points, -points])
    root = np.linalg.cholesky(points.T @ points / len(points) + 1e-9 * np.eye(d))
    return np.asarray(solve_triangular(root, points.T, lower=True).T)


def whitened(means: FloatArray, covariances: FloatArray, z: FloatArray) -> FloatArray:
    """Return positions (m, d) in units of each component, (K, m, d)."""
    lowers = np.linalg.cholesky(covariances)
    return np.stack([solve_triangular(low, (z - m).T, lower=True).T for low, m in zip(lowers, means, strict=True)])


def log_gaussians(means: FloatArray, covariances: FloatArray, z: FloatArray) -> FloatArray:
    """Return log densities of the components at positions (m, d), (K, m)."""
    squares = np.sum(whitened(means, covariances, z) ** 2, axis=2)
    logs = np.linalg.slogdet(covariances)[1] + means.shape[1] * math.log(2.0 * math.pi)
    return np.asarray(-(squares + logs[:, None]) / 2.0)
