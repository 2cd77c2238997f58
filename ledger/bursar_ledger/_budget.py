"""Budgets: what an owner promises, as integer caps of a filter at one fixed Renyi order; and the remaining budget.

Stopping before the sum of divergences at one order, fixed in advance, passes a cap is a valid filter for adaptively
chosen mechanisms and parameters (Feldman and Zrnic 2021, Theorem 3.1; Lecuyer 2021), and for concurrent interactive
ones (Haney et al. 2023). Choosing the order afterwards is not: see `_pricing.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from bursar_amounts import COST_UNIT, DELTA_UNIT, Part, best_order, divergence_cap, float_down

from ._events import PureEvent
from ._pricing import cost_units

_LARGEST_EPSILON = 2.0**20  # keeps every cap below 2^63, the largest integer of SQLite


@dataclass(frozen=True)
class Budget:
    """Total (epsilon, delta) for the whole life of a dataset and all analysts together.

    Attributes:
        epsilon: positive, at most 2^20.
        delta: strictly between 0 and 1.
        delta_fail_share: the share of `delta` that approximate releases may spend, in [0, 1); the rest converts Renyi
            divergence.

    Raises:
        ValueError: a field out of range (NaN included), or a total too small to hold a single unit.
    """

    epsilon: float
    delta: float
    delta_fail_share: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        # Entries hold floats: any other number would be another one when it is read again.
        if not isinstance(self.epsilon, (int, float)) or not isinstance(self.delta, (int, float)):
            raise ValueError("epsilon and delta must be floats")
        if not 0 < self.epsilon <= _LARGEST_EPSILON:
            raise ValueError(f"epsilon must be positive and at most 2^20, got {self.epsilon}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, got {self.delta}")
        if not isinstance(self.delta_fail_share, (int, Fraction)) or not 0 <= self.delta_fail_share < 1:
            raise ValueError(f"delta_fail_share must be a Fraction in [0, 1), got {self.delta_fail_share!r}")
        if not self.cap_cost_units >= 1:
            raise ValueError(f"a total of ({self.epsilon}, {self.delta}) is too small to hold any release; allow more")

    @property
    def order(self) -> Fraction:
        """Renyi order a* at which every entry of the dataset is priced: the best one for zCDP at this total."""
        return best_order(Fraction(self.epsilon), self.conversion_delta)

    @property
    def cap_cost_units(self) -> int:
        """B*: the largest sum of costs that keeps the promise, in units of 1 / COST_UNIT, rounded down."""
        return math.floor(COST_UNIT * divergence_cap(Fraction(self.epsilon), self.conversion_delta, self.order))

    @property
    def cap_delta_units(self) -> int:
        """Largest sum of failure probabilities, in units of 1 / DELTA_UNIT, rounded down."""
        return math.floor(DELTA_UNIT * Fraction(self.delta) * self.delta_fail_share)

    @property
    def conversion_delta(self) -> Fraction:
        """Part of delta that converts divergence; releases may fail with the rest."""
        return Fraction(self.delta) * (1 - self.delta_fail_share)

    def part(self, cost_units: int, order: Fraction | None = None, *, is_left: bool = False) -> Part:
        """Return an amount of this budget for people.

        Args:
            cost_units: the amount.
            order: order at which it is counted; None for the budget's, that of a debit under an earlier total for it.
            is_left: whether it is a remainder.
        """
        at = order or self.order
        return Part(cost_units, math.floor(self.cap_cost_units * at / self.order), at, self.conversion_delta, is_left)

    def part_of_rho(self, rho: float | Fraction, *, is_left: bool = False) -> Part:
        """Return a rho as an amount of this budget for people."""
        return self.part(math.ceil(COST_UNIT * self.order * Fraction(rho)), is_left=is_left)


@dataclass(frozen=True)
class Remainder:
    """Remaining budget. Enforcement compares the integers; the properties serve people and sizing."""

    cost_units: int
    delta_units: int
    cap_cost_units: int
    cap_delta_units: int
    order: Fraction

    @property
    def rho(self) -> float:
        """Largest rho that a request for Gaussian noise may still ask for, rounded down."""
        return float_down(Fraction(self.cost_units) / (COST_UNIT * self.order))

    @property
    def pure_epsilon(self) -> float:
        """Largest float whose `PureEvent` still fits; 0.0 if none does."""
        low, high = 0.0, 4.0 + 2 * self.cost_units / COST_UNIT  # at epsilon >= 4 the divergence exceeds epsilon / 2
        # Bisected, since the price rises with epsilon and has no closed inverse; ends at neighbouring floats.
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if self._fits(middle) else (low, middle)
        return low

    def _fits(self, epsilon: float) -> bool:
        return cost_units([PureEvent(Fraction(epsilon))], self.order) <= self.cost_units
