"""What truncation does to normal residuals: how much of a step it leaves, and how wide the residuals were before it."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import chdtr, chdtrc, gammaincinv, ndtr, ndtri

from bursar_server.fits.gradient_em._kernel import CATONI
from bursar_server.fits.gradient_em._statistics import FloatArray, Transform

_GRID = 4001


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


@lru_cache(maxsize=64)
def location_gain(transform: Transform, d: int, radius: float) -> float:
    """How far the mean of T(y - m) moves per move of m, y normal in d dimensions about a point near m.

    T keeps directions and takes norms r to radius h(r / radius), h the transform: its mean derivative is
    E h' / d + (d - 1) / d E radius h / r.
    """
    r, weight = _grid(d)
    value, slope = _value_and_slope(transform, r / radius)
    return float(np.sum(weight * (slope / d + (d - 1) / d * value * radius / r)))


@lru_cache(maxsize=64)
def regression_gain(transform: Transform, p: int, radius: float) -> float:
    """How far the mean of T(e w) moves per move of the coefficients, e standard normal, w normal of p numbers.

    T as in `location_gain`: the mean derivative along w is E[h'(|e| |w| / radius) w w^T].
    """
    length, weight = _grid(p)
    steps = 400
    e = ndtri((np.arange(steps) + 0.5) / steps)
    _, slope = _value_and_slope(transform, np.abs(np.outer(length, e)) / radius)
    return float(np.sum(weight * length**2 * slope.mean(axis=1)) / p)


def clipped_square(limit: float) -> float:
    """E min(e^2, limit^2) of a standard normal e."""
    tail = 2.0 * float(ndtr(-limit))
    density = math.exp(-0.5 * limit * limit) / math.sqrt(2.0 * math.pi)
    return 1.0 - tail - 2.0 * limit * density + limit * limit * tail


def clipped_slope(limit: float) -> float:
    """P(|e| <= limit) of a standard normal e."""
    return 1.0 - 2.0 * float(ndtr(-limit))


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
