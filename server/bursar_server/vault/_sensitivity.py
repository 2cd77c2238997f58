"""Sensitivities: from the contribution of one row to the change by one privacy unit, and to the noise for a cost.

No other module of the server computes a sensitivity. Proof: `_sensitivity.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from bursar_ledger import Adjacency, Event, GaussianEvent, LaplaceEvent, SelectionEvent
from bursar_server.vault._noise import MAX_SCALE, GaussianNoise, LaplaceNoise, Noise, SelectionNoise

MIN_SCALE = 2.0**-60
"""Minimum scale: with less noise the probability of any noise but zero is below exp(-2^60)."""

_OUT_OF_RANGE = (
    f"this spend needs noise outside [{MIN_SCALE:g}, {MAX_SCALE:g}] lattice units: too little is spent on too many "
    "steps, or far too much"
)


@dataclass(frozen=True)
class Bounds:
    """Bounds of one row's contribution to a statistic, in lattice units, proven beside the statistic.

    Attributes:
        l1: maximum L1 norm of one row's contribution.
        l2_squared: maximum squared L2 norm of one row's contribution.
        l1_distance: maximum L1 distance between two rows' contributions.
        l2_squared_distance: maximum squared L2 distance between two rows' contributions.
        non_negative: True if no coordinate of any contribution is negative, as in tables and counts.
        per_unit: True if the four numbers bound the sums over all rows of one privacy unit and their distances. Its
            number of rows then does not multiply them: its rows share one weight.
    """

    l1: int
    l2_squared: int
    l1_distance: int
    l2_squared_distance: int
    non_negative: bool = False
    per_unit: bool = False

    def __post_init__(self) -> None:
        if not min(self.l1, self.l2_squared, self.l1_distance, self.l2_squared_distance) > 0:
            raise ValueError(f"bounds of a statistic must be positive, got {self!r}")


@dataclass(frozen=True)
class Sensitivity:
    """Maximum change of a sum by one privacy unit, in lattice units.

    Attributes:
        l1: maximum L1 change of one group of coordinates.
        l2_squared: maximum squared L2 change of all coordinates together.
        groups: maximum number of groups of the coordinates that change; the groups may depend on the change.
    """

    l1: int
    l2_squared: int
    groups: int = 1

    @property
    def l1_total(self) -> int:
        """Maximum L1 change of all coordinates together."""
        return self.groups * self.l1


def sensitivity(bounds: Bounds, adjacency: Adjacency, unit_cap: int) -> Sensitivity:
    """Return the maximum change of the exact sum between neighbouring datasets.

    A unit owns at most `unit_cap` slots. Under ADD_REMOVE_ONE each slot changes between content and null. Under
    REPLACE_ONE each changes from any content, null included, to any other, so the larger of norm and distance counts.
    Where contributions are not negative, added and removed contributions form two groups of coordinates.

    Raises:
        ValueError: `unit_cap` is not positive.
    """
    if not unit_cap >= 1:
        raise ValueError(f"unit_cap must be at least 1, got {unit_cap}")
    # All rows of a unit may push in one direction: norms add up, so squared norms grow with the square of their number.
    rows = 1 if bounds.per_unit else unit_cap
    if adjacency is Adjacency.ADD_REMOVE_ONE:
        return Sensitivity(rows * bounds.l1, rows**2 * bounds.l2_squared)
    l1, l2_squared, groups = bounds.l1_distance, bounds.l2_squared_distance, 1
    if bounds.non_negative:
        # |a - b|^2 <= |a|^2 + |b|^2 if no coordinate of a or b is negative: their inner product is not, either.
        l2_squared = min(l2_squared, 2 * bounds.l2_squared)
        if l1 >= 2 * bounds.l1:
            l1, groups = bounds.l1, 2
    return Sensitivity(rows * max(bounds.l1, l1), rows**2 * max(bounds.l2_squared, l2_squared), groups)


@dataclass(frozen=True)
class ScoreBounds:
    """Bounds on how far one row of a part can drive the scores of candidates apart, proven beside the family.

    The range of a change is its maximum minus its minimum over the candidates: a number added to all scores changes no
    choice.

    Attributes:
        range_one: maximum range of the change of all scores when one row is added to the part or removed from it.
        range_replaced: maximum range when one row of the part is replaced by another row of the part.
    """

    range_one: int
    range_replaced: int

    def __post_init__(self) -> None:
        if not 0 < self.range_replaced <= 2 * self.range_one:
            raise ValueError(
                f"bounds of scores must be positive, and range_replaced at most twice range_one, got {self!r}"
            )


def part_sensitivity(bounds: Bounds, adjacency: Adjacency, unit_cap: int) -> Sensitivity:
    """Return the sensitivity by which a release on a part of a table is priced, with accounts of paths (`_parts.md`).

    Under REPLACE_ONE a row may leave one part and enter another, so two paths are charged for it. Adding or removing
    alone must cost half of the price, hence at least twice the squared norm. L1 is that of one part.

    Raises:
        ValueError: `unit_cap` is not positive, or bounds are those of a whole unit, which do not bound its rows in one
            part.
    """
    if bounds.per_unit:
        raise ValueError("bounds per_unit: a part may hold some of a unit's rows; expected bounds of single rows")
    whole = sensitivity(bounds, adjacency, unit_cap)
    if adjacency is Adjacency.ADD_REMOVE_ONE:
        return whole
    return replace(whole, l2_squared=max(whole.l2_squared, 2 * unit_cap**2 * bounds.l2_squared))


def estimates_cap(estimates: int, adjacency: Adjacency, unit_cap: int) -> int:
    """Return the maximum number of rows of a table of block estimates that one privacy unit can replace (`_blocks.md`).

    A row is in one block, whose `estimates` rows may all change. Under REPLACE_ONE the rows that enter may be in other
    blocks than those that leave.

    Raises:
        ValueError: `unit_cap` is not positive.
    """
    if not unit_cap >= 1:
        raise ValueError(f"unit_cap must be at least 1, got {unit_cap}")
    return estimates * unit_cap * (2 if adjacency is Adjacency.REPLACE_ONE else 1)


def search_noise_for(bounds: ScoreBounds, adjacency: Adjacency, unit_cap: int, rho: Fraction) -> SelectionNoise:
    """Return the least Gumbel noise with which a search on a part costs at most `rho`, rounded up.

    (range / scale)^2 / 8 <= rho: the zero-concentrated divergence of a mechanism of bounded range (Cesar and Rogers
    2021).

    Raises:
        ValueError: rho is not positive, or the noise is out of the integers' range.
    """
    return SelectionNoise(_least_root(rho, Fraction(_range_squared(bounds, adjacency, unit_cap), 4)))


def part_cost(
    bounds: Bounds | ScoreBounds, adjacency: Adjacency, unit_cap: int, noise: GaussianNoise | SelectionNoise
) -> Fraction:
    """Return the exact rho of a release (`Bounds`, Gaussian noise) or a search (`ScoreBounds`, Gumbel noise) on a part.

    Raises:
        TypeError: the bounds do not belong to this kind of noise.
    """
    variance = Fraction(noise.scale) ** 2
    if isinstance(bounds, Bounds) and isinstance(noise, GaussianNoise):
        return part_sensitivity(bounds, adjacency, unit_cap).l2_squared / (2 * variance)
    if isinstance(bounds, ScoreBounds) and isinstance(noise, SelectionNoise):
        return _range_squared(bounds, adjacency, unit_cap) / (8 * variance)
    raise TypeError(f"a part takes Gaussian noise on sums and Gumbel noise on scores, got {type(noise).__name__}")


def _range_squared(bounds: ScoreBounds, adjacency: Adjacency, unit_cap: int) -> int:
    """Return the squared range by which a search on a part is priced; twice as large under REPLACE_ONE, as above."""
    if not unit_cap >= 1:
        raise ValueError(f"unit_cap must be at least 1, got {unit_cap}")
    squared = bounds.range_one**2
    if adjacency is Adjacency.REPLACE_ONE:
        squared = max(bounds.range_replaced**2, 2 * squared)
    return unit_cap**2 * squared


def event_of(sensitivity: Sensitivity, noise: Noise | SelectionNoise) -> Event:
    """Return the ledger event of releasing a sum of this sensitivity with this noise.

    With `SelectionNoise`: the event of choosing among blocks whose sums each have this sensitivity (`Candidates`).
    """
    scale = Fraction(noise.scale)  # exact: OpenDP is given the same float
    if isinstance(noise, GaussianNoise):
        return GaussianEvent(sensitivity.l2_squared, scale)
    if isinstance(noise, SelectionNoise):
        return SelectionEvent(sensitivity.l1_total, scale)
    return LaplaceEvent(sensitivity.l1, scale, groups=sensitivity.groups)


def gaussian_for(sensitivity: Sensitivity, rho: Fraction) -> GaussianNoise:
    """Return the least Gaussian noise with which a release costs at most `rho`, rounded up.

    Raises:
        ValueError: rho is not positive, or the noise is out of the integers' range.
    """
    return GaussianNoise(_least_root(rho, sensitivity.l2_squared))


def laplace_for(sensitivity: Sensitivity, epsilon: Fraction) -> LaplaceNoise:
    """Return the least Laplace noise with which a release is `epsilon`-differentially private, rounded up.

    Raises:
        ValueError: epsilon is not positive, or the noise is out of the integers' range.
    """
    return LaplaceNoise(_least_quotient(epsilon, sensitivity.l1_total))


def selection_for(sensitivity: Sensitivity, rho: Fraction) -> SelectionNoise:
    """Return the least Gumbel noise with which a choice among blocks costs at most `rho`, rounded up.

    (2 l1 / scale)^2 / 8 <= rho: the zero-concentrated divergence of a mechanism of bounded range 2 l1 / scale (Cesar
    and Rogers 2021).

    Raises:
        ValueError: rho is not positive, or the noise is out of the integers' range.
    """
    return SelectionNoise(_least_root(rho, sensitivity.l1_total**2))


def pure_selection_for(sensitivity: Sensitivity, epsilon: Fraction) -> SelectionNoise:
    """Return the least Gumbel noise with which a choice among blocks is `epsilon`-differentially private, rounded up.

    2 l1 / scale <= epsilon (McSherry and Talwar 2007, Theorem 6).

    Raises:
        ValueError: epsilon is not positive, or the noise is out of the integers' range.
    """
    return SelectionNoise(_least_quotient(epsilon, 2 * sensitivity.l1_total))


def _least_root(rho: Fraction, square: Fraction | int) -> float:
    """Return the least float whose square is at least square / (2 rho)."""
    if not rho > 0:
        raise ValueError(f"rho must be positive, got {rho}")
    # Compared as a fraction: a float of a number beyond the range would raise, with another message.
    variance = Fraction(square) / (2 * rho)
    if not Fraction(MIN_SCALE) ** 2 <= variance <= Fraction(MAX_SCALE) ** 2:
        raise ValueError(_OUT_OF_RANGE)
    return _least_scale(math.sqrt(float(variance)), lambda scale: scale**2 >= variance)


def _least_quotient(epsilon: Fraction, change: int) -> float:
    """Return the least float that is at least change / epsilon."""
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive, got {epsilon}")
    exact = Fraction(change) / epsilon
    if not Fraction(MIN_SCALE) <= exact <= Fraction(MAX_SCALE):
        raise ValueError(_OUT_OF_RANGE)
    return _least_scale(float(exact), lambda scale: scale >= exact)


def _least_scale(guess: float, enough: Callable[[Fraction], bool]) -> float:
    """Return the least float that is enough, from a guess a few roundings away."""
    # A float near the root may lie on either side of it; exact fractions decide, so that noise is never too small.
    while not enough(Fraction(guess)):
        guess = math.nextafter(guess, math.inf)
    # The guess may be too large as well, and more noise than the least only costs accuracy.
    while enough(Fraction(below := math.nextafter(guess, 0.0))):
        guess = below
    return guess
