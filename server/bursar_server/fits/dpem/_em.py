"""The EM steps: whitened moments in, parameters out. Post-processing of released values only, and total.

Park et al. 2016, section 4.1, equation 12 and the MAP estimates below it, on moments that are taken about each
component's released mean, in units of its released covariance, and clipped there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtri

from bursar_server.fits.dpem._cells import Cells, inside_ball
from bursar_server.fits.dpem._released import Released, pool_variances, spectral_noise, trace_noise, unclip
from bursar_server.fits.dpem._statistics import EStep, FloatArray, Moments

VARIANCE_FLOOR = 1e-6
"""Least eigenvalue of a covariance in the unit ball: a thousandth of the ball's radius."""

_VARIANCE_CEILING = 4.0
"""Largest eigenvalue: the squared diameter of the ball. Noise may multiply a covariance at every step."""

_LEAST_TAIL, _LARGEST_TAIL = 1e-6, 0.15
"""Share of a Gaussian that clipping may reach: about as much as the noise moves it, so that neither rules."""

_CLEARLY = 1.5
"""Times the expected squared length of the noise: pure noise is seldom longer, so that settled parameters average."""

_LEAST_RATIO, _LARGEST_RATIO = 0.02, 20.0
"""Bounds of a covariance's eigenvalues in units of the previous one's."""


@dataclass(frozen=True)
class Prior:
    """Dirichlet(concentration) and normal-inverse-Wishart(0, kappa, nu, scale I), in the unit ball."""

    concentration: float
    kappa: float
    nu: float
    scale: float


@dataclass(frozen=True)
class Mixture:
    """Released parameters in the unit ball.

    Attributes:
        counts: (K,) positive.
        means: (K, d).
        covariances: (K, d, d) positive definite, of the form that the released moments have.
        age: how many releases the parameters average.
    """

    counts: FloatArray
    means: FloatArray
    covariances: FloatArray
    age: int = 0

    @property
    def weights(self) -> FloatArray:
        """(K,) positive, sum 1."""
        return self.counts / np.sum(self.counts)


def from_cells(cells: Cells, moments: Moments) -> Mixture:
    """The cells of the start as Gaussians, with eigenvalues within a factor of ten of their mean."""
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
    """Covariances (K, d, d) in the form that the moments have, eigenvalues from `floors`, one or (K,), to a ceiling."""
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
    values = np.clip(values, floors, _VARIANCE_CEILING)
    return np.asarray((vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2))


def recentred_step(mixture: Mixture, moments: Moments, second_std: float) -> tuple[EStep, FloatArray]:
    """The E-step with moments about the means in units of the covariances, and its clip radii (K,) in those units."""
    K, d = mixture.means.shape
    tails = np.clip(second_std / mixture.counts, _LEAST_TAIL, _LARGEST_TAIL)
    if moments is Moments.TIED:
        tails = np.full(K, tails.min())
    radii = np.sqrt(chdtri(d, tails))
    step = _e_step(mixture, moments)
    return replace(step, whiteners=step.factors / radii[:, None, None]), radii


def fixed_origin_step(mixture: Mixture, moments: Moments) -> EStep:
    """The paper's E-step: moments about the middle of the public ball, in its own units."""
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
    """The M-step on whitened moments, weighed against the previous parameters by how much of the step is noise.

    Maximum likelihood moves from the old parameters by a shift and a shape in whitened units, and a prior draws it
    back; the step is taken whole while it is larger than its noise, and averaged over releases (gain 2 / (age + 2))
    once it is not.
    """
    d = mixture.means.shape[1]
    counts, shift = released.safe_counts(), released.mean_u() * radii[:, None]
    sizes = np.sqrt(np.trace(mixture.covariances, axis1=1, axis2=2) / d)
    shape, shape_noise = _whitened_covariances(released, radii, sizes, counts, moments)
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
    """Share of a step to take: what of its squared length is clearly not noise, and at least `floor`."""
    return np.clip(1.0 - _CLEARLY * noise / np.maximum(displacement, 1e-300), floor, 1.0)


def _whitened_covariances(
    released: Released, radii: FloatArray, sizes: FloatArray, counts: FloatArray, moments: Moments
) -> tuple[FloatArray, FloatArray]:
    """Covariances (K, d, d) in units of the previous ones, tails put back; squared norm of their noise (K,)."""
    K, d = released.sums.shape
    shift, seconds, totals = released.spread_shift(), released.seconds, counts
    outer = shift[:, :, None] * shift[:, None, :]
    bias = (released.sum_std / counts) ** 2  # of the square of the noisy shift
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
    """Shrink towards the multiple of the identity as far as the rest is no larger than noise; bound the eigenvalues."""
    d = shape.shape[1]
    level = np.trace(shape, axis1=1, axis2=2)[:, None, None] / d * np.eye(d)
    rest = np.sum((shape - level) ** 2, axis=(1, 2))
    keep = np.maximum(0.0, 1.0 - (moments.size(d) - 1) * noise**2 / np.maximum(rest, 1e-300))
    values, vectors = np.linalg.eigh(level + keep[:, None, None] * (shape - level))
    return np.asarray(
        (vectors * np.clip(values, _LEAST_RATIO, _LARGEST_RATIO)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    )


def fixed_origin_update(released: Released, moments: Moments) -> Mixture:
    """The paper's M-step: Sigma = M / N - mu mu^T from raw moments.

    Eigenvalues are raised to the noise on them at least: a variance that the noise made tiny would attract every row.
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
    """The paper's MAP estimates from the maximum-likelihood ones (section 4.1)."""
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
