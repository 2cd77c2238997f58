"""Effect of truncation on normal residuals: the share of a step that remains, and the width before truncation."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import chdtr, chdtrc, gammaincinv, ndtr, ndtri

from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em._kernel import CATONI
from bursar_server.fits.gradient_em._statistics import Transform

_GRID = 1001
"""Number of points of the grids of norms. Chosen, not tuned."""

_LEAST_WIDTH, _MOST_WIDTH = 0.01, 1e3
"""Bounds of radii in standard deviations, beyond which a fixed radius has no further effect."""

_LEAST_GAIN = 1e-3
"""Minimum gain: below it the grids of norms and residuals are too coarse."""

MULTIPLES = np.geomspace(0.4, 1.5, 8)
"""Radii that are tried, in units of a vector's root mean square; beyond them outliers count too much."""


def unclip(mean: FloatArray, size: int, limit: float) -> FloatArray:
    """Return the standard deviation of a normal v with a given mean of min(1, |v|^2 / (limit^2 size)).

    E min(1, x / a) = P(x > a) + size / a P(y <= a), x and y chi-squared with size and size + 2 degrees of freedom, and
    a = limit^2 size / variance. Inverted by a table; means that no normal of reasonable size has are moved to the
    nearest end.
    """
    deviation, means = _clipped_table(size, limit)
    return np.asarray(np.interp(mean, means, deviation))


@lru_cache(maxsize=64)
def _clipped_table(size: int, limit: float) -> tuple[FloatArray, FloatArray]:
    deviation = np.geomspace(0.1, 10.0, 1000)
    a = limit**2 * size / deviation**2
    return deviation, np.asarray(chdtrc(size, a) + size / a * chdtr(size + 2, a))


@dataclass(frozen=True)
class Response:
    """Response of bounded vectors to a row whose component is certain.

    Attributes:
        gain: divisor of a bounded mean gradient that gives a full step, (blocks, q).
        variance: variance of a parameter estimated from one such row, (blocks, q).
    """

    gain: FloatArray
    variance: FloatArray


def location_gain(transform: Transform, d: int, radius: float) -> float:
    """Return the derivative by m of the mean of T(y - m), y normal in d dimensions about a point near m.

    T keeps directions and maps norms r to radius h(r / radius), h the transform: its mean derivative is E h' / d + (d -
    1) / d E radius h / r.
    """
    return _location(transform, d, radius)[0]


def response(kind: Kind, transform: Transform, size: int, radius: FloatArray, sigma: FloatArray) -> Response:
    """Return the response of blocks with these radii (blocks,) and standard deviations (blocks,) of residuals."""
    every = np.ones(size)
    if transform is Transform.BOX:
        return Response(np.outer(np.ones_like(sigma), every), np.outer(sigma**2, every))
    widths = np.clip(radius / sigma, _LEAST_WIDTH, _MOST_WIDTH)
    gains, squares = np.array([kind.value(transform, size, round(float(width), 2)) for width in widths]).T
    gains = np.maximum(gains, _LEAST_GAIN)
    return Response(np.outer(gains, every), np.outer(sigma**2 * squares / gains**2, every))


def best_radius(kind: Kind, transform: Transform, size: int, noise: FloatArray) -> FloatArray:
    """Return radii (blocks,) of standard normal residuals with the least total error from sample and noise.

    Args:
        kind: kind of vectors.
        transform: transform of vectors.
        size: number of coordinates of a vector.
        noise: variance of the noise on the mean of vectors of norm up to 1, times the number of rows, (blocks,).
    """
    radii = MULTIPLES * size**0.5
    gains, squares = np.array([kind.value(transform, size, round(float(radius), 2)) for radius in radii]).T
    return np.asarray(radii[np.argmin((squares + np.outer(noise, radii**2)) / gains**2, axis=1)])


@lru_cache(maxsize=4096)
def _location(transform: Transform, d: int, radius: float) -> tuple[float, float]:
    """Gain, and mean square of a number of T(y - m)."""
    r, weight = _grid(d)
    value, slope = _value_and_slope(transform, r / radius)
    gain = float(np.sum(weight * (slope / d + (d - 1) / d * value * radius / r)))
    return gain, float(np.sum(weight * (radius * value) ** 2)) / d


@lru_cache(maxsize=4096)
def _regression(transform: Transform, p: int, radius: float) -> tuple[float, float]:
    """Gain, and mean square of a number of T(e w); the gain is E[h'(|e| |w| / radius) w w^T] along w."""
    length, weight = _grid(p)
    steps = 200
    e = ndtri((np.arange(steps) + 0.5) / steps)
    value, slope = _value_and_slope(transform, np.abs(np.outer(length, e)) / radius)
    gain = float(np.sum(weight * length**2 * slope.mean(axis=1)) / p)
    return gain, float(np.sum(weight * ((radius * value) ** 2).mean(axis=1))) / p


class Kind(enum.Enum):
    """Kind of vectors."""

    LOCATION = enum.member(_location)
    """Normal vectors of `size` numbers."""
    REGRESSION = enum.member(_regression)
    """Normal residual times a normal vector of `size` numbers."""


def clipped_square(limit: float) -> float:
    """Return E min(e^2, limit^2) of a standard normal e."""
    tail = 2.0 * float(ndtr(-limit))
    density = math.exp(-0.5 * limit * limit) / math.sqrt(2.0 * math.pi)
    return 1.0 - tail - 2.0 * limit * density + limit * limit * tail


def clipped_slope(limit: float) -> float:
    """Return P(|e| <= limit) of a standard normal e."""
    return 1.0 - 2.0 * float(ndtr(-limit))


@lru_cache(maxsize=64)
def _grid(d: int) -> tuple[FloatArray, FloatArray]:
    """Return norms of a normal vector of d numbers, and their probabilities."""
    r = np.sqrt(2.0 * gammaincinv(0.5 * d, (np.arange(_GRID) + 0.5) / _GRID))
    return r, np.full(_GRID, 1.0 / _GRID)


def _value_and_slope(transform: Transform, u: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return h and h' at norms u >= 0 in units of the radius, which is the largest value of T."""
    if transform is Transform.RADIAL:
        v = np.minimum(u * CATONI, math.sqrt(2.0))
        return (v - v**3 / 6.0) / CATONI, 1.0 - v**2 / 2.0
    return np.minimum(u, 1.0), (u < 1.0).astype(np.float64)
