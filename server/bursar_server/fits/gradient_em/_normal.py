"""What truncation does to normal residuals: how much of a step it leaves, and how wide the residuals were before it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import chdtr, chdtrc, gammaincinv, ndtr, ndtri

from bursar_server.fits.gradient_em._kernel import CATONI
from bursar_server.fits.gradient_em._statistics import FloatArray, Transform

_GRID = 1001

_LEAST_WIDTH, _MOST_WIDTH = 0.01, 1e3
"""Radii in standard deviations beyond which a fixed radius is not told apart from these."""

_LEAST_GAIN = 1e-3
"""What the narrowest radius leaves; the grids of norms and residuals are too coarse to tell it from nothing."""

MULTIPLES = np.geomspace(0.4, 1.5, 8)
"""Radii that are tried, in units of a vector's root mean square; beyond them outliers count too much."""


def unclip(mean: FloatArray, size: int, limit: float) -> FloatArray:
    """The standard deviation whose mean of min(1, |v|^2 / (limit^2 size)), v normal of `size` numbers, is `mean`.

    E min(1, x / a) = P(x > a) + size / a P(y <= a), x and y chi-squared with size and size + 2 degrees of freedom, and
    a = limit^2 size / variance. Inverted by a table; means that no normal of reasonable size has go to the nearest end.
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
    """What bounded vectors make of a row that is surely of a component.

    Attributes:
        gain: (blocks, q), of which a bounded mean gradient is divided to make a full step.
        variance: (blocks, q) of a parameter that is estimated from one such row.
    """

    gain: FloatArray
    variance: FloatArray


def location_gain(transform: Transform, d: int, radius: float) -> float:
    """How far the mean of T(y - m) moves per move of m, y normal in d dimensions about a point near m.

    T keeps directions and takes norms r to radius h(r / radius), h the transform: its mean derivative is
    E h' / d + (d - 1) / d E radius h / r.
    """
    return _location(transform, d, radius)[0]


def regression_gain(transform: Transform, p: int, radius: float) -> float:
    """How far the mean of T(e w) moves per move of the coefficients, e standard normal, w normal of p numbers.

    T as in `location_gain`: the mean derivative along w is E[h'(|e| |w| / radius) w w^T].
    """
    return _regression(transform, p, radius)[0]


def response(kind: Kind, transform: Transform, size: int, radius: FloatArray, sigma: FloatArray) -> Response:
    """Of blocks with these radii (blocks,) and standard deviations (blocks,) of residuals."""
    every = np.ones(size)
    if transform is Transform.BOX:
        return Response(np.outer(np.ones_like(sigma), every), np.outer(sigma**2, every))
    widths = np.clip(radius / sigma, _LEAST_WIDTH, _MOST_WIDTH)
    gains, squares = np.array([kind.value(transform, size, round(float(width), 2)) for width in widths]).T
    gains = np.maximum(gains, _LEAST_GAIN)
    return Response(np.outer(gains, every), np.outer(sigma**2 * squares / gains**2, every))


def best_radius(kind: Kind, transform: Transform, size: int, noise: FloatArray) -> FloatArray:
    """(blocks,) radius of standard normal residuals that makes sample and noise together move parameters the least.

    Args:
        kind: of vector.
        transform: of vectors.
        size: numbers of a vector.
        noise: (blocks,) variance of the noise on the mean of vectors of norm up to 1, times the number of rows.
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
    """Gain, and mean square of a number of T(e w)."""
    length, weight = _grid(p)
    steps = 200
    e = ndtri((np.arange(steps) + 0.5) / steps)
    value, slope = _value_and_slope(transform, np.abs(np.outer(length, e)) / radius)
    gain = float(np.sum(weight * length**2 * slope.mean(axis=1)) / p)
    return gain, float(np.sum(weight * ((radius * value) ** 2).mean(axis=1))) / p


class Kind(enum.Enum):
    """What vectors are."""

    LOCATION = enum.member(_location)
    """Normal ones of `size` numbers."""
    REGRESSION = enum.member(_regression)
    """A normal residual times a normal vector of `size` numbers."""


def clipped_square(limit: float) -> float:
    """E min(e^2, limit^2) of a standard normal e."""
    tail = 2.0 * float(ndtr(-limit))
    density = math.exp(-0.5 * limit * limit) / math.sqrt(2.0 * math.pi)
    return 1.0 - tail - 2.0 * limit * density + limit * limit * tail


def clipped_slope(limit: float) -> float:
    """P(|e| <= limit) of a standard normal e."""
    return 1.0 - 2.0 * float(ndtr(-limit))


@lru_cache(maxsize=64)
def _grid(d: int) -> tuple[FloatArray, FloatArray]:
    """Norms of a normal vector of d numbers, and their probabilities."""
    r = np.sqrt(2.0 * gammaincinv(0.5 * d, (np.arange(_GRID) + 0.5) / _GRID))
    return r, np.full(_GRID, 1.0 / _GRID)


def _value_and_slope(transform: Transform, u: FloatArray) -> tuple[FloatArray, FloatArray]:
    """H and h' at norms u >= 0 in units of the radius, which is the largest value of T."""
    if transform is Transform.RADIAL:
        v = np.minimum(u * CATONI, math.sqrt(2.0))
        return (v - v**3 / 6.0) / CATONI, 1.0 - v**2 / 2.0
    return np.minimum(u, 1.0), (u < 1.0).astype(np.float64)
