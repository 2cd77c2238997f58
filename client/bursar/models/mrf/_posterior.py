"""Posterior means of counts that are at least 0, given a noisy count. Elementwise; closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from bursar.models._arrays import BoolArray, FloatArray

_NEAR = 1e-5
"""Exponents below it are expanded."""

_FAR_BELOW = -50.0
"""Ratio from which the mean is expanded; the error is below 1e-9 on both sides."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """Independent unknown counts n of at least 0, each with the prior and the noisy count that it has.

    A prior is half exponential with the mean `near`, half with the mean `far`; flat where both are infinite.

    Attributes:
        counts: noisy counts y, of any sign.
        stds: standard deviations of the noise, positive.
        laplace: where the noise is Laplace's; normal elsewhere.
        near: positive; infinite for a flat prior.
        far: at least `near`; infinite where that is.
    """

    counts: FloatArray
    stds: FloatArray
    laplace: BoolArray
    near: FloatArray
    far: FloatArray

    def tilted(self, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """For each count log of the integral of prior p(y | n) exp(tilt n), up to a constant, and its derivative.

        The derivative is the posterior mean: positive, and ascending in the tilt.
        """
        values, means = zip(*(self._of(mean, tilts) for mean in (self.near, self.far)), strict=True)
        log_masses = np.logaddexp(*values)
        share = np.exp(values[0] - log_masses)
        return log_masses, np.asarray(share * means[0] + (1 - share) * means[1])

    def highest(self) -> FloatArray:
        """Tilts from which the mean is infinite: tails of prior and Laplace noise bear less than their own rates."""
        return np.where(self.laplace, math.sqrt(2) / self.stds + 1 / self.far, np.inf)

    def _of(self, mean: FloatArray, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """With one exponential as prior, whose density is exp(-n / mean) / mean."""
        tilts, values, means = tilts - 1 / mean, np.empty_like(tilts), np.empty_like(tilts)
        for function, chosen in ((tilted_laplace, self.laplace), (tilted_gaussian, ~self.laplace)):
            values[chosen], means[chosen] = function(self.counts[chosen], self.stds[chosen], tilts[chosen])
        return values - np.where(np.isfinite(mean), np.log(mean), 0.0), means


def tilted_gaussian(counts: FloatArray, stds: FloatArray, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Posterior of counts n >= 0 with the density exp(tilt n), up to scale, before Gaussian noise.

    Args:
        counts: noisy counts y.
        stds: standard deviations of the noise, positive.
        tilts: of any sign.

    Returns:
        The logarithm of the integral over n of density and likelihood, up to a constant in the tilt; and its derivative
        in the tilt, which is the posterior mean: positive, ascending in y and in the tilt.
    """
    ratios = counts / stds + tilts * stds
    # Far below 0 differences of large numbers are replaced by expansions in 1 / ratio.
    far = ratios < _FAR_BELOW
    inverse = 1 / np.square(np.where(far, ratios, _FAR_BELOW))
    log_masses = log_ndtr(np.where(far, _FAR_BELOW, ratios))
    excess = np.exp(-0.5 * np.square(np.where(far, _FAR_BELOW, ratios)) - log_masses) / math.sqrt(2 * math.pi)
    near_values = tilts * counts + 0.5 * np.square(tilts * stds) + log_masses
    far_values = (
        -0.5 * np.square(counts / stds)
        + 0.5 * np.log(inverse / (2 * math.pi))
        + np.log1p(inverse * (-1 + inverse * (3 - 15 * inverse)))
    )
    far_means = stds * np.sqrt(inverse) * (1 + inverse * (-2 + inverse * (10 - 74 * inverse)))
    return np.where(far, far_values, near_values), np.where(far, far_means, stds * (ratios + excess))


def tilted_laplace(counts: FloatArray, stds: FloatArray, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """As `tilted_gaussian`, before Laplace noise; tilts below sqrt(2) / std, where the mean goes to infinity.

    With b = std / sqrt(2) the posterior is exponential on both sides of y: with rate a = 1 / b + tilt, of any sign,
    from 0 up to y, and rate c = 1 / b - tilt from there on.
    """
    scales = stds / math.sqrt(2)
    y = np.maximum(counts, 0.0)
    # A tilt at the very edge is as good as one a hair below it.
    rising, falling = 1 / scales + tilts, np.maximum(1 / scales - tilts, 1e-12 / scales)
    exponents = -rising * y
    # All masses are over exp(top), the largest density there is.
    top = np.maximum(exponents, 0.0)
    near = np.abs(exponents) < _NEAR
    rates = np.where(near, 1.0, rising)
    below = np.where(near, y * (1 - np.abs(exponents) / 2), -np.expm1(-np.abs(exponents)) / np.abs(rates))
    slopes = np.where(near, -0.5 * y * y * (1 + 2 * exponents / 3 - top), (y * np.exp(exponents - top) - below) / rates)
    above = np.exp(-top) / falling
    masses = below + above
    return tilts * y + top + np.log(masses), y + (slopes + above / falling) / masses
