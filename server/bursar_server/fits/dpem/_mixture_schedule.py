"""Numbers of components, cells and steps of a mixture: by public rules, from the noise that the amount buys."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bursar_server.fits.mixtures.decoding import spectral_noise
from bursar_server.fits.mixtures.schedule import default_iterations
from bursar_server.fits.mixtures.statistics import Moments
from bursar_server.fits.mixtures.steps import Step

_HOPELESS = 0.108
"""Noise of a component's covariance over the covariance from which there are fewer components, for each root of the
number d of columns, or d / 2 if less. As the other numbers here, chosen on real tables: up to there a mixture is not
below one Gaussian.
"""

_WIDE = 16
"""Number of columns from which that noise falls as 1 / sqrt(d): one Gaussian follows many thin directions sooner."""

_FEW, _NOISY, _NOISY_ALONE, _STEPS_SAVED = 2, 0.6, 0.8, 3
"""Number of components up to which fewer steps serve better where noise rules, that noise (any, under pure epsilon) for
two and for one, which has thin directions to settle only, and how many are saved.
"""

_ROOM, _ROOM_OF_FEW, _ROOM_RELATIVE = 0.6, 0.25, 0.006
"""Limits of that noise, in general and for few components, which hardly gain from it, and of the noise of a second
moment over a component's records, up to which the start has twice as many cells as components.
"""

_MOST_DOUBLED = 32
"""Maximum number of components of such a start: all pairs of its cells are compared."""

_STEP, _STEP_RELATIVE, _MORE_STEPS = 0.8, 0.03, 21
"""The same two up to which there are more EM steps, and how many more at the most."""


@dataclass(frozen=True)
class Size:
    """Public size of a fit.

    Attributes:
        components: number of components, at most what was asked for.
        cells: number of cells that the start ends with.
        iterations: number of steps.
    """

    components: int
    cells: int
    iterations: int


def size_of(
    k: int, d: int, iterations: int, single: Step, rows: int | None, *, splitting: bool, background: bool, pure: bool
) -> Size:
    """Return the size of a fit of k components.

    Args:
        k: number of components asked for.
        d: number of columns.
        iterations: number of steps asked for, or 0.
        single: an EM step that spends the whole amount.
        rows: public or declared number of rows, or None.
        splitting: True for the private start; a given one has all k components.
        background: True with a background; without one more cells would end as components of their own in the tails.
        pure: True for Laplace noise, which grows linearly with the number of steps.
    """
    base = default_iterations(k, splitting=splitting)
    if not rows:
        return Size(k, k, iterations or base)
    # A spend that is split over T steps makes the noise of each T ** power times as large.
    power = 1.0 if pure else 0.5
    relative = single.std / single.weights.c / rows
    covariance = _noise(single, d) / rows
    components = k
    if splitting:
        bound = _HOPELESS * min(d**0.5, d / 2.0, _WIDE / d**0.5)
        components = next((K for K in range(k, 1, -1) if _effective(covariance * K, K, iterations, power) <= bound), 1)
        base = default_iterations(components, splitting=True)
        noisy = _NOISY if components > 1 else _NOISY_ALONE
        if components <= _FEW and (pure or covariance * components * base**power > noisy):
            base -= _STEPS_SAVED
    if iterations:
        return Size(components, components, iterations)
    quiet = min(_STEP / (covariance * components), _STEP_RELATIVE / (relative * components)) ** (1.0 / power)
    # One Gaussian has nothing to find: its first steps settle it.
    more = _MORE_STEPS if components > 1 or not splitting else 0
    T = int(min(max(base, quiet), base + more))
    most = _ROOM if k > _FEW else _ROOM_OF_FEW
    room = covariance * k * base**power <= most and relative * k <= _ROOM_RELATIVE
    doubled = splitting and background and 1 < k == components and room and k <= _MOST_DOUBLED
    return Size(components, 2 * k if doubled else components, T)


def _effective(noise: float, components: int, iterations: int, power: float) -> float:
    """Return the noise of a fit's covariances when all its steps are taken together."""
    base = default_iterations(components, splitting=True)
    return float(noise * (iterations or base) ** power / base**0.5)


def _noise(single: Step, d: int) -> float:
    """Return the noise of the covariance, or of the mean, of all rows, in units of their covariance.

    The squared clip radius is about 1.2 d.
    """
    std, v = single.std, 1.2 * d
    # A matrix from all rows has less noise than the means of the components.
    pooled = single.components if single.moments is Moments.TIED else 1
    matrix = spectral_noise(std / single.weights.c, d, single.moments) * v / pooled
    return max(matrix, std / single.weights.b * math.sqrt(d * v))
