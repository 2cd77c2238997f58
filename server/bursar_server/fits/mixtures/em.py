"""EM steps: whitened moments in, parameters out. Post-processing of released values only, and total.

Park et al. 2016, section 4.1, equation 12 and the MAP estimates below it, on moments about each component's released
mean, in units of its released covariance, and clipped there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtri

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.decoding import Released, pool_variances, spectral_noise, trace_noise, unclip
from bursar_server.fits.mixtures.splitting import Cells, inside_ball
from bursar_server.fits.mixtures.statistics import EStep, Moments

VARIANCE_FLOOR = 1e-6
"""Least eigenvalue of a covariance in the unit ball: a thousandth of the ball's radius, squared."""

_VARIANCE_CEILING = 4.0
"""Largest eigenvalue: the squared diameter of the ball. Without it noise could multiply a covariance at every step."""

_LEAST_TAIL, _LARGEST_TAIL = 1e-6, 0.15
"""Bounds of the share of a Gaussian beyond the clip radius.

Between them it is about the relative noise of the moments, so that neither clipping bias nor noise dominates. Chosen,
not tuned.
"""

_CLEARLY = 1.5
"""Factor on the expected squared length of the noise. Pure noise seldom exceeds it, so settled parameters average.

Chosen, not tuned.
"""

_LEAST_RATIO, _LARGEST_RATIO = 0.02, 20.0
"""Bounds of a covariance's eigenvalues in units of the previous one's.

Chosen, not tuned: limit the damage of one step.
"""


@dataclass(frozen=True)
class Prior:
    """Dirichlet(concentration) and normal-inverse-Wishart(0, kappa, nu, scale I) prior, in the unit ball."""

    concentration: float
    kappa: float
    nu: float
    scale: float


@dataclass(frozen=True)
class Mixture:
    """Released parameters in the unit ball.

    Attributes:
        counts: counts of the components, (K,), positive.
        means: means, (K, d).
        covariances: covariances, (K, d, d), positive definite, of the form of the released moments.
        age: number of releases that the parameters average.
    """

    counts: FloatArray
    means: FloatArray
    covariances: FloatArray
    age: int = 0

    @property
    def weights(self) -> FloatArray:
        """Weights (K,), positive, sum 1."""
        return self.counts / np.sum(self.counts)


def from_cells(cells: Cells, moments: Moments) -> Mixture:
    """Return the cells of the start as Gaussians, with eigenvalues within a factor of ten of their mean."""
    covariances = []
    for cell in cells:
        values, vectors = np.linalg.eigh(cell.covariance)
        level = max(float(np.mean(values)), VARIANCE_FLOOR)
        covariances.append((vectors * np.clip(values, 0.1 * level, 10.0 * level)) @ vectors.T)
    counts = np.array([cell.count for cell in cells])
    means = np.array([cell.mean for cell in cells])
    return Mixture(counts, means, shaped(np.array(covariances), counts, moments))


def shaped(
    covariances: FloatArray, counts: FloatArray, moments: Moments, floors: float | FloatArray = VARIANCE_FLOOR
) -> FloatArray:
    """Return covariances (K, d, d) in the form of the moments, with eigenvalues clipped.

    They are at least `floors`, one number or (K,), and at most the ceiling.
    """
    K, d = covariances.shape[:2]
    floors = np.broadcast_to(floors, K)[:, None]
    diagonals = np.diagonal(covariances, axis1=1, axis2=2)
    if moments in (Moments.SPHERICAL, Moments.DIAG):
        if moments is Moments.SPHERICAL:
            diagonals = np.broadcast_to(diagonals.mean(axis=1)[:, None], (K, d))
        return np.asarray(np.clip(diagonals, floors, _VARIANCE_CEILING)[:, :, None] * np.eye(d))
    if moments is Moments.TIED:
        pooled = np.tensordot(counts / np.sum(counts), covariances, axes=1)
        covariances = np.broadcast_to(pooled, (K, d, d))
    values, vectors = np.linalg.eigh(covariances)
    # Noise may leave a matrix indefinite; clipped eigenvalues keep every step total.
    values = np.clip(values, floors, _VARIANCE_CEILING)
    return np.asarray((vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2))


def recentred_step(mixture: Mixture, moments: Moments, second_std: float) -> tuple[EStep, FloatArray]:
    """Return the E-step with moments about the means in units of the covariances, and its clip radii (K,).

    The radii are in those units.
    """
    K, d = mixture.means.shape
    # A wider ball clips less but needs more noise: the tail is as large as the relative noise.
    tails = np.clip(second_std / mixture.counts, _LEAST_TAIL, _LARGEST_TAIL)
    if moments is Moments.TIED:
        tails = np.full(K, tails.min())
    radii = np.sqrt(chdtri(d, tails))
    # Whiteners are factors over a number, which saves the kernel a second pass.
    step = _e_step(mixture, moments)
    return replace(step, whiteners=step.factors / radii[:, None, None]), radii


def fixed_origin_step(mixture: Mixture, moments: Moments) -> EStep:
    """Return the paper's E-step: moments about the middle of the public ball, in its own units."""
    step = _e_step(mixture, moments)
    return replace(
        step,
        centres=np.zeros_like(step.means),
        whiteners=np.broadcast_to(np.eye(step.means.shape[1]), step.factors.shape).copy(),
    )


def _e_step(mixture: Mixture, moments: Moments) -> EStep:
    factors = np.linalg.inv(np.linalg.cholesky(mixture.covariances))
    log_scale = np.log(mixture.weights) + np.sum(np.log(np.diagonal(factors, axis1=1, axis2=2)), axis=1)
    diagonal = moments in (Moments.SPHERICAL, Moments.DIAG)
    return EStep(False, log_scale, mixture.means, factors, diagonal, mixture.means, factors)


def recentred_update(
    mixture: Mixture, radii: FloatArray, released: Released, moments: Moments, prior: Prior | None = None
) -> Mixture:
    """Return the M-step on whitened moments, weighed against the previous parameters by how much of the step is noise.

    Maximum likelihood moves the old parameters by a shift and a shape in whitened units, and a prior pulls them back.
    The step is taken whole while it exceeds its noise, and averaged over releases (gain 2 / (age + 2)) afterwards.
    """
    d = mixture.means.shape[1]
    counts, shift = released.safe_counts(), released.mean_u() * radii[:, None]
    sizes = np.sqrt(np.trace(mixture.covariances, axis1=1, axis2=2) / d)
    shape, shape_noise = _whitened_covariances(released, radii, sizes, counts, moments)
    # Later releases weigh more: the first ones are about parameters that had not settled.
    floor = 2.0 / (mixture.age + 2.0)
    shift_noise = d * (released.sum_std / counts * radii) ** 2
    gain = _gain(np.sum(shift**2, axis=1), shift_noise, floor)
    shape_gain = _gain(np.sum((shape - np.eye(d)) ** 2, axis=(1, 2)), shape_noise, floor)
    lower = np.linalg.cholesky(mixture.covariances)
    target = Mixture(
        counts=counts,
        means=inside_ball(mixture.means + np.einsum("kij,kj->ki", lower, shift)),
        covariances=shaped(lower @ shape @ np.swapaxes(lower, 1, 2), counts, moments),
    )
    if prior is not None:
        target = maximum_a_posteriori(target, prior, moments)
    return _blend(mixture, target, gain, shape_gain, moments)


def _blend(old: Mixture, new: Mixture, gain: FloatArray, shape_gain: FloatArray, moments: Moments) -> Mixture:
    counts = (1.0 - gain) * old.counts + gain * new.counts
    g = shape_gain[:, None, None]
    return Mixture(
        counts=counts,
        means=(1.0 - gain)[:, None] * old.means + gain[:, None] * new.means,
        covariances=shaped((1.0 - g) * old.covariances + g * new.covariances, counts, moments),
        age=old.age + 1,
    )


def _gain(displacement: FloatArray, noise: FloatArray, floor: float) -> FloatArray:
    """Return the share of a step to take: the part of its squared length that is not noise, at least `floor`."""
    return np.clip(1.0 - _CLEARLY * noise / np.maximum(displacement, 1e-300), floor, 1.0)


def _whitened_covariances(
    released: Released, radii: FloatArray, sizes: FloatArray, counts: FloatArray, moments: Moments
) -> tuple[FloatArray, FloatArray]:
    """Return covariances (K, d, d) in units of the previous ones, and the squared norm of their noise (K,).

    Clipped tails are restored.
    """
    K, d = released.sums.shape
    shift, seconds, totals = released.spread_shift(), released.seconds, counts
    outer = shift[:, :, None] * shift[:, None, :]
    bias = (released.sum_std / counts) ** 2  # the square of a noisy shift exceeds that of the shift by its variance
    if moments is Moments.TIED:
        totals = np.array([counts.sum()])
        outer, bias = np.tensordot(counts, outer, axes=1)[None] / totals, np.array([counts @ bias]) / totals
    second = seconds / totals[:, None, None] - outer + bias[:, None, None] * np.eye(d)
    mean_square = np.trace(second, axis1=1, axis2=2)
    noise = released.second_std / totals
    unit = radii[: len(totals)] * sizes[: len(totals)]
    trace_std = trace_noise(released.second_std, d, moments) / totals
    variance = pool_variances(unclip(mean_square, d), unit, mean_square, trace_std)
    if moments is Moments.SPHERICAL:
        slope = variance / np.maximum(mean_square, 0.05)
        shape = (variance * radii**2)[:, None, None] * np.eye(d)
        return np.clip(shape, 0.0, _LARGEST_RATIO), d * (slope * noise * radii**2) ** 2
    scale = radii[: len(totals)] ** 2 * d * variance / np.maximum(mean_square, 0.05)
    shape = _shrunk(second * scale[:, None, None], noise * scale, moments)
    squared_noise = moments.size(d) * (noise * scale) ** 2
    return np.broadcast_to(shape, (K, d, d)), np.broadcast_to(squared_noise, (K,))


def _shrunk(shape: FloatArray, noise: FloatArray, moments: Moments) -> FloatArray:
    """Shrink towards a multiple of the identity as far as the rest is noise, and bound the eigenvalues."""
    d = shape.shape[1]
    level = np.trace(shape, axis1=1, axis2=2)[:, None, None] / d * np.eye(d)
    rest = np.sum((shape - level) ** 2, axis=(1, 2))
    keep = np.maximum(0.0, 1.0 - (moments.size(d) - 1) * noise**2 / np.maximum(rest, 1e-300))
    values, vectors = np.linalg.eigh(level + keep[:, None, None] * (shape - level))
    return np.asarray(
        (vectors * np.clip(values, _LEAST_RATIO, _LARGEST_RATIO)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    )


def fixed_origin_update(released: Released, moments: Moments) -> Mixture:
    """Return the paper's M-step: Sigma = M / N - mu mu^T from raw moments.

    Eigenvalues are raised to at least their noise: a variance that noise made tiny would attract every row.
    """
    counts, means = released.safe_counts(), released.mean_u()
    (K, d), outer = means.shape, means[:, :, None] * means[:, None, :]
    if moments is Moments.TIED:
        pooled = released.seconds[0] / counts.sum() - np.tensordot(counts / counts.sum(), outer, axes=1)
        raw, noise = np.broadcast_to(pooled, (K, d, d)), np.full(K, released.second_std / counts.sum())
    else:
        raw, noise = released.seconds / counts[:, None, None] - outer, released.second_std / counts
    floors = np.clip(spectral_noise(1.0, d, moments) * noise, VARIANCE_FLOOR, 1.0)
    return Mixture(counts, means, shaped(raw, counts, moments, floors))


def maximum_a_posteriori(mixture: Mixture, prior: Prior, moments: Moments) -> Mixture:
    """Return the paper's MAP estimates from the maximum-likelihood ones (section 4.1)."""
    d, N, mu = mixture.means.shape[1], mixture.counts, mixture.means
    n = N[:, None, None]
    pull = prior.kappa * n / (prior.kappa + n) * mu[:, :, None] * mu[:, None, :]
    covariances = (prior.scale * np.eye(d) + n * mixture.covariances + pull) / (prior.nu + n + d + 2.0)
    return replace(
        mixture,
        counts=np.maximum(N + prior.concentration - 1.0, 1e-12),
        means=N[:, None] / (N[:, None] + prior.kappa) * mu,
        covariances=shaped(covariances, N, moments),
    )
