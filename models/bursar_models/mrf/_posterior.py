"""Posterior means of non-negative counts, given noisy counts; elementwise, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from bursar_models.arrays import BoolArray, FloatArray

_NEAR = 1e-5
"""Exponents below it are expanded in a series: the exact formulas cancel there."""

_FAR_BELOW = -50.0
"""Ratio below which the mean is expanded in a series; there both formulas err by less than 1e-9."""

_BLOCK = 2**13
"""Number of counts that are computed together, so that intermediate arrays stay in the CPU's cache."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posterior of independent unknown counts n >= 0, each with its prior and its noisy count.

    A prior is half exponential with the mean `near`, half with the mean `far`; flat where both are infinite.

    Attributes:
        counts: noisy counts y, of any sign.
        stds: standard deviations of the noise, positive.
        laplace: True where the noise is Laplace; it is normal elsewhere.
        near: mean of the first half of the prior, positive; infinite for a flat prior.
        far: mean of the second half of the prior, at least `near`; infinite where that is.
    """

    counts: FloatArray
    stds: FloatArray
    laplace: BoolArray
    near: FloatArray
    far: FloatArray

    def tilted(self, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return, for each count, log of the integral of prior p(y | n) exp(tilt n), and its derivative.

        The logarithm is up to a constant. The derivative is the posterior mean: positive, and increasing in the tilt.
        """
        values, means = np.empty_like(tilts), np.empty_like(tilts)
        for start in range(0, len(tilts), _BLOCK):
            block = slice(start, start + _BLOCK)
            values[block], means[block] = self._mixed(block, tilts[block])
        return values, means

    def highest(self) -> FloatArray:
        """Return tilts from which the mean is infinite.

        Tails of prior and Laplace noise outweigh a tilt only below their own rates.
        """
        return np.where(self.laplace, math.sqrt(2) / self.stds + 1 / self.far, np.inf)

    def _mixed(self, block: slice, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute `tilted` for the counts of a block."""
        near_values, near_means = self._of(block, self.near[block], tilts)
        far_values, far_means = self._of(block, self.far[block], tilts)
        above = near_values - far_values
        smaller = np.exp(-np.abs(above))
        share = np.where(above > 0, 1.0, smaller) / (1 + smaller)
        log_masses = np.maximum(near_values, far_values) + np.log(1 + smaller)
        return log_masses, np.asarray(share * near_means + (1 - share) * far_means)

    def _of(self, block: slice, mean: FloatArray, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute `tilted` with one exponential as prior, whose density is exp(-n / mean) / mean."""
        counts, stds, laplace = self.counts[block], self.stds[block], self.laplace[block]
        tilts, scale = tilts - 1 / mean, np.where(np.isfinite(mean), mean, 1.0)
        if not laplace.any():
            values, means = tilted_gaussian(counts, stds, tilts)
        elif laplace.all():
            values, means = tilted_laplace(counts, stds, tilts)
        else:
            values, means = np.empty_like(tilts), np.empty_like(tilts)
            for function, chosen in ((tilted_laplace, laplace), (tilted_gaussian, ~laplace)):
                values[chosen], means[chosen] = function(counts[chosen], stds[chosen], tilts[chosen])
        return values - np.log(scale), means


def tilted_gaussian(counts: FloatArray, stds: FloatArray, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return `Posterior.tilted` of counts n >= 0 with the density exp(tilt n), up to scale, and Gaussian noise.

    With r = y / std + tilt std and Phi the normal distribution function, the integral is exp(tilt y + (tilt std)^2 / 2)
    Phi(r). For r below 0 it is written with Phi(r) exp(r^2 / 2), in which nothing vanishes or cancels.

    Args:
        counts: noisy counts y.
        stds: standard deviations of the noise, positive.
        tilts: tilts of any sign.

    Returns:
        The logarithm of the integral over n of density and likelihood, up to a constant in the tilt; and its derivative
        in the tilt, which is the posterior mean: positive, increasing in y and in the tilt.
    """
    scaled, pulls = counts / stds, tilts * stds
    ratios = scaled + pulls
    below = ratios < 0
    tails = 0.5 * scipy.special.erfcx(np.abs(ratios) * math.sqrt(0.5))
    densities = np.exp(-0.5 * np.square(ratios))
    masses = np.where(below, tails, 1 - tails * densities)
    values = np.where(below, -0.5 * np.square(scaled), pulls * (scaled + 0.5 * pulls)) + np.log(masses)
    means = stds * (ratios + np.where(below, 1.0, densities) / masses / math.sqrt(2 * math.pi))
    far = ratios < _FAR_BELOW
    if far.any():
        means[far] = stds[far] * _mean_far_below(ratios[far])
    return values, means


def _mean_far_below(ratios: FloatArray) -> FloatArray:
    """Return the sum of r and the density over the distribution function at r, expanded in 1 / r.

    The two terms have opposite signs and cancel.
    """
    inverse = 1 / np.square(ratios)
    return np.sqrt(inverse) * (1 + inverse * (-2 + inverse * (10 - 74 * inverse)))


def tilted_laplace(counts: FloatArray, stds: FloatArray, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return `Posterior.tilted` with Laplace noise; tilts are below sqrt(2) / std, where the mean becomes infinite.

    With b = std / sqrt(2) the posterior is exponential on both sides of y: with rate a = 1 / b + tilt, of any sign,
    from 0 up to y, and with rate c = 1 / b - tilt above y.
    """
    scales = stds / math.sqrt(2)
    y = np.maximum(counts, 0.0)
    # A rate of 0 at the edge would divide by zero; a tilt just below the edge gives nearly the same.
    rising, falling = 1 / scales + tilts, np.maximum(1 / scales - tilts, 1e-12 / scales)
    exponents = -rising * y
    # All masses are relative to exp(top), the largest density, so that none overflows.
    top = np.maximum(exponents, 0.0)
    near = np.abs(exponents) < _NEAR
    rates = np.where(near, 1.0, rising)
    below = np.where(near, y * (1 - np.abs(exponents) / 2), -np.expm1(-np.abs(exponents)) / np.abs(rates))
    slopes = np.where(near, -0.5 * y * y * (1 + 2 * exponents / 3 - top), (y * np.exp(exponents - top) - below) / rates)
    above = np.exp(-top) / falling
    masses = below + above
    return tilts * y + top + np.log(masses), y + (slopes + above / falling) / masses
