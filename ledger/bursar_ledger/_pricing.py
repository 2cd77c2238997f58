"""Prices and budgets, both as Renyi divergence at one order. Statements and proofs are in `_pricing.md`.

Renyi divergence of order a: D_a(P||Q) = ln(sum P^a Q^(1-a)) / (a - 1) (Mironov 2017, Def. 3). A price is the divergence
of an event, rounded up: what the ledger debits, what a preview shows and what the meter compares with, by one function.

A budget is what an owner promises, as integer caps of a filter, rounded down. Stopping before the sum of divergences at
one order, fixed in advance, passes a cap is a valid filter for adaptively chosen mechanisms and parameters (Feldman and
Zrnic 2021, Theorem 3.1; Lecuyer 2021), and for concurrent interactive ones (Haney et al. 2023). Choosing the order
afterwards is not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from bursar_amounts import (
    COST_UNIT,
    DELTA_UNIT,
    Part,
    best_order,
    divergence_cap,
    float_down,
    float_up,
    precise,
    to_decimal,
    upper,
)

from ._events import (
    ApproximateEvent,
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
)

# Beyond this scale the cancellations in the Laplace curve would reach the margin; the pure curve is an upper bound
# there, too.
_LARGEST_LAPLACE_SCALE = 10**40


@dataclass(frozen=True)
class Cost:
    """Cost of a request.

    Attributes:
        cost_units: Renyi divergence at `order` in units of 1 / COST_UNIT, rounded up once.
        delta_units: failure probability in units of 1 / DELTA_UNIT, rounded up once; 0 for the exact mechanisms.
        order: the Renyi order, a property of the dataset.
    """

    cost_units: int
    delta_units: int
    order: Fraction

    @property
    def rho(self) -> float:
        """Cost as the zCDP parameter of a Gaussian release of the same cost, rounded up."""
        return float_up(Fraction(self.cost_units) / (COST_UNIT * self.order))


def price(events: Iterable[Event], order: Fraction) -> Cost:
    """Return the price of all `events` together at Renyi order `order` > 1; they add up (Mironov 2017, Prop. 1)."""
    held = tuple(events)
    return Cost(cost_units(held, order), delta_units(held), order)


def cost_units(events: Iterable[Event], order: Fraction) -> int:
    """Return ceil(COST_UNIT * sum of `rdp`); exact until rounded up once, so that the exact remainder can be spent."""
    return math.ceil(COST_UNIT * sum((rdp(event, order) for event in events), Fraction(0)))


def delta_units(events: Iterable[Event]) -> int:
    """Return ceil(DELTA_UNIT * sum of the probabilities of failure), which add up."""
    failures = (event.count * event.delta for event in events if isinstance(event, ApproximateEvent))
    return math.ceil(DELTA_UNIT * sum(failures, Fraction(0)))


@functools.singledispatch
def rdp(event: Event, order: Fraction) -> Fraction:
    """Return an upper bound of the Renyi divergence of `event` at `order` > 1; rational for Gaussian events.

    Raises:
        TypeError: the event is of a kind that this version cannot price; unknown means refused.
    """
    raise TypeError(f"no price is known for {type(event).__name__}")


@rdp.register
def _gaussian(event: GaussianEvent, order: Fraction) -> Fraction:
    _check_order(order)
    # count * order * l2_squared / (2 scale^2) as one fraction: each operation on fractions takes a gcd.
    return Fraction(
        event.count * order.numerator * event.l2_squared * event.scale.denominator**2,
        2 * order.denominator * event.scale.numerator**2,
    )


@rdp.register
def _laplace(event: LaplaceEvent, order: Fraction) -> Fraction:
    return event.count * event.groups * laplace_rdp(order, event.l1, Fraction(event.scale))


@rdp.register
def _pure(event: PureEvent, order: Fraction) -> Fraction:
    return event.count * pure_rdp(order, Fraction(event.epsilon))


@rdp.register
def _selection(event: SelectionEvent, order: Fraction) -> Fraction:
    return event.count * selection_rdp(order, event.bounded_range)


@rdp.register
def _concentrated(event: ConcentratedEvent, order: Fraction) -> Fraction:
    _check_order(order)
    return event.count * order * event.rho


@rdp.register
def _approximate(event: ApproximateEvent, order: Fraction) -> Fraction:
    # Of the part that does not fail; the failure is counted by `delta_units`.
    return event.count * rdp(event.event, order)


# Cached: a plan has many events of few kinds, and each price takes exponentials of many digits.
@functools.lru_cache(maxsize=4096)
def pure_rdp(order: Fraction, epsilon: Fraction) -> Fraction:
    """Return the largest Renyi divergence at `order` > 1 of any `epsilon`-DP mechanism, rounded up.

    At most min(epsilon, order epsilon^2 / 2). Attained by randomised response; Bun and Steinke 2016, Prop. 3.3 bound
    the same quantity.
    """
    _check_order(order)
    _check_positive("epsilon", epsilon)
    with precise():
        a, e = to_decimal(order), to_decimal(epsilon)
        tail = (1 + ((1 - 2 * a) * e).exp()) / (1 + (-e).exp())
        return upper(e + tail.ln() / (a - 1))


@functools.lru_cache(maxsize=4096)
def laplace_rdp(order: Fraction, l1: int, scale: Fraction) -> Fraction:
    """Return the Renyi divergence at `order` > 1 of discrete Laplace noise at L1 sensitivity `l1`, rounded up.

    P(x) proportional to exp(-|x| / scale) on every coordinate of an integer vector; `l1` and `scale` in lattice
    units. The worst case moves one coordinate by all of `l1`. The continuous curve of Mironov 2017, Prop. 6 is not an
    upper bound of it, but its limit for large scales.
    """
    _check_order(order)
    _check_positive("l1", l1)
    _check_positive("scale", scale)
    if scale > _LARGEST_LAPLACE_SCALE:
        return pure_rdp(order, l1 / scale)
    with precise():
        a, b, u = to_decimal(order), to_decimal(scale), to_decimal(l1 / scale)
        weight = (1 - (-2 * a / b).exp()) / ((1 + (-1 / b).exp()) * (1 - ((1 - 2 * a) / b).exp()))
        return upper(u + (weight + (1 - weight) * ((1 - 2 * a) * u).exp()).ln() / (a - 1))


def selection_rdp(order: Fraction, bounded_range: Fraction) -> Fraction:
    """Return an upper bound of the Renyi divergence at `order` > 1 of a choice of this bounded range eta.

    min(order eta^2 / 8, `pure_rdp` at eta). The first (Cesar and Rogers 2021) is rational, so nothing is rounded; the
    second is less where order * eta is large.
    """
    _check_order(order)
    _check_positive("bounded_range", bounded_range)
    return min(order * bounded_range**2 / 8, pure_rdp(order, bounded_range))


def _check_order(order: Fraction) -> None:
    if not order > 1:
        raise ValueError(f"order must be above 1, got {order}")


def _check_positive(name: str, value: Fraction | int) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")


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
        most = 4.0 + 2 * self.cost_units / COST_UNIT  # at epsilon >= 4 the divergence exceeds epsilon / 2
        # Bisected, since the price rises with epsilon and has no closed inverse; ends at neighbouring floats. First in
        # floats, because an exact price takes a hundred times as long; rounding may miss, and then it is all to do.
        about = _bisected(self._fits_about, 0.0, most)
        low, high = about * (1.0 - 2.0**-40), about * (1.0 + 2.0**-40)
        if not (low > 0.0 and self._fits(low)) or self._fits(high):
            low, high = 0.0, most
        return _bisected(self._fits, low, high)

    def _fits_about(self, epsilon: float) -> bool:
        a = float(self.order)
        tail = math.log1p(math.exp((1.0 - 2.0 * a) * epsilon)) - math.log1p(math.exp(-epsilon))
        return epsilon + tail / (a - 1.0) <= self.cost_units / COST_UNIT

    def _fits(self, epsilon: float) -> bool:
        return cost_units([PureEvent(Fraction(epsilon))], self.order) <= self.cost_units


def _bisected(fits: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest float that fits, between one that does and a larger one that does not."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
