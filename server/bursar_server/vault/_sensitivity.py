"""From what one row can contribute to what one privacy unit can change, and to the noise that pays for it.

The only place in the server that computes a sensitivity; proof in `_sensitivity.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from bursar_ledger import Adjacency, Event, GaussianEvent, LaplaceEvent
from bursar_server.vault._noise import MAX_SCALE, GaussianNoise, LaplaceNoise, Noise

MIN_SCALE = 2.0**-60
"""Less noise than this is none: it is zero but for a chance below exp(-2^60)."""

_OUT_OF_RANGE = (
    f"this spend needs noise outside [{MIN_SCALE:g}, {MAX_SCALE:g}] lattice units: too little is spent on too many "
    "steps, or far too much"
)


@dataclass(frozen=True)
class Bounds:
    """What one row can contribute to a statistic, in lattice units, proven beside the statistic.

    Attributes:
        l1: largest L1 norm of one row's contribution.
        l2_squared: largest squared L2 norm of one row's contribution.
        l1_distance: largest L1 distance between two rows' contributions.
        l2_squared_distance: largest squared L2 distance between two rows' contributions.
    """

    l1: int
    l2_squared: int
    l1_distance: int
    l2_squared_distance: int

    def __post_init__(self) -> None:
        if not min(self.l1, self.l2_squared, self.l1_distance, self.l2_squared_distance) > 0:
            raise ValueError(f"bounds of a statistic must be positive, got {self!r}")


@dataclass(frozen=True)
class Sensitivity:
    """What one privacy unit can change in a sum, in lattice units."""

    l1: int
    l2_squared: int


def sensitivity(bounds: Bounds, adjacency: Adjacency, unit_cap: int) -> Sensitivity:
    """Largest change of the exact sum between neighbouring tables.

    A unit owns at most `unit_cap` slots. Under ADD_REMOVE_ONE each goes between content and null; under REPLACE_ONE
    each goes from any content, null included, to any other, so the larger of norm and distance counts.

    Raises ValueError if `unit_cap` is not positive.
    """
    if not unit_cap >= 1:
        raise ValueError(f"unit_cap must be at least 1, got {unit_cap}")
    if adjacency is Adjacency.ADD_REMOVE_ONE:
        l1, l2_squared = bounds.l1, bounds.l2_squared
    else:
        l1 = max(bounds.l1, bounds.l1_distance)
        l2_squared = max(bounds.l2_squared, bounds.l2_squared_distance)
    return Sensitivity(unit_cap * l1, unit_cap**2 * l2_squared)


def event_of(sensitivity: Sensitivity, noise: Noise) -> Event:
    """What releasing a sum of this sensitivity with this noise is, for meter and ledger."""
    scale = Fraction(noise.scale)  # exact: OpenDP is given the same float
    if isinstance(noise, GaussianNoise):
        return GaussianEvent(sensitivity.l2_squared, scale)
    return LaplaceEvent(sensitivity.l1, scale)


def gaussian_for(sensitivity: Sensitivity, rho: Fraction) -> GaussianNoise:
    """The least Gaussian noise with which a release costs at most `rho`, rounded up.

    Raises ValueError if rho is not positive, or if the noise would leave the range of the integers.
    """
    if not rho > 0:
        raise ValueError(f"rho must be positive, got {rho}")
    variance = Fraction(sensitivity.l2_squared) / (2 * rho)
    if not Fraction(MIN_SCALE) ** 2 <= variance <= Fraction(MAX_SCALE) ** 2:
        raise ValueError(_OUT_OF_RANGE)
    return GaussianNoise(_least_scale(math.sqrt(float(variance)), lambda scale: scale**2 >= variance))


def laplace_for(sensitivity: Sensitivity, epsilon: Fraction) -> LaplaceNoise:
    """The least Laplace noise with which a release is `epsilon`-differentially private, rounded up.

    Raises ValueError if epsilon is not positive, or if the noise would leave the range of the integers.
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive, got {epsilon}")
    exact = Fraction(sensitivity.l1) / epsilon
    if not Fraction(MIN_SCALE) <= exact <= Fraction(MAX_SCALE):
        raise ValueError(_OUT_OF_RANGE)
    return LaplaceNoise(_least_scale(float(exact), lambda scale: scale >= exact))


def _least_scale(guess: float, enough: Callable[[Fraction], bool]) -> float:
    """The least float that is enough, from a guess a few roundings away."""
    while not enough(Fraction(guess)):
        guess = math.nextafter(guess, math.inf)
    while enough(Fraction(below := math.nextafter(guess, 0.0))):
        guess = below
    return guess
