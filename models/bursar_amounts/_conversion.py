"""Conversion between Renyi divergence and (epsilon, delta): Canonne, Kamath and Steinke 2020, Prop. 12.

A bound D_a <= B at one order a > 1 implies (epsilon, delta)-DP with epsilon = B + excess(a, delta). Any order gives a
valid statement; the functions here look for the best one, and an imperfect search costs accuracy, never privacy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from ._rounding import float_down, float_up, lower, precise, to_decimal, upper
from ._units import COST_UNIT

ORDER_STEP = Fraction(1, 2**20)
"""Orders are multiples of this: exact in every file and language, and within 1e-9 of the best one's rho."""
_LEAST_ORDER = 1 + ORDER_STEP

# Bounds of ln(order - 1); the best order is about 1 + sqrt(ln(1/delta) / rho), inside for every budget that can be
# asked for.
_SEARCH = (math.log(float(ORDER_STEP)), 40 * math.log(2))


@functools.lru_cache(maxsize=4096)
def epsilon_of(rho: float | Fraction, delta: float | Fraction, least_order: Fraction = _LEAST_ORDER) -> float:
    """Return the least epsilon at `delta` that D_a <= a rho implies for all orders a from `least_order` on, rounded up.

    By default for all orders, which is rho-zCDP. rho > 0, 0 < delta < 1.
    """
    _check("rho", rho)
    _check_delta(delta)
    r, d = Fraction(rho), Fraction(delta)
    best = _nearest_order(_minimise(lambda a: a * float(r) + _excess_float(a, float(d))))
    with precise():
        # The least order is tried, too: there a whole budget is exactly its epsilon.
        found = min(to_decimal(a * r) + _excess(a, d) for a in {max(best, least_order), least_order})
    return float_up(max(upper(found), Fraction(0)))


def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest rho whose conversion at `delta` is at most `epsilon`; epsilon > 0, 0 < delta < 1.

    It is rounded down, to whole units of cost first, as the cap of a total is: a request for all of a new total fits.

    Raises:
        ValueError: an argument out of range, or no positive rho implies the pair.
    """
    _check("epsilon", epsilon)
    _check_delta(delta)
    order = best_order(Fraction(epsilon), Fraction(delta))
    cap = math.floor(COST_UNIT * divergence_cap(Fraction(epsilon), Fraction(delta), order))
    rho = Fraction(cap) / (COST_UNIT * order)
    _check("rho", float(rho))
    return float_down(rho)


@functools.lru_cache(maxsize=256)
def best_order(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the order a > 1, a multiple of ORDER_STEP, at which `divergence_cap` / a is largest."""
    e, d = float(epsilon), float(delta)
    return _nearest_order(_minimise(lambda a: (_excess_float(a, d) - e) / a))


@functools.lru_cache(maxsize=256)
def divergence_cap(epsilon: Fraction, delta: Fraction, order: Fraction) -> Fraction:
    """Return the largest B such that D_order <= B implies (epsilon, delta)-DP, rounded down; at most 0 if none does.

    epsilon > 0, 0 < delta < 1, order > 1.
    """
    with precise():
        return lower(to_decimal(epsilon) - _excess(order, delta))


def _excess(order: Fraction, delta: Fraction) -> Decimal:
    """Return the difference epsilon - B = ln(1 - 1/a) - ln(a delta) / (a - 1), inside `precise()`."""
    a, d = to_decimal(order), to_decimal(delta)
    return (1 - 1 / a).ln() - (a * d).ln() / (a - 1)


def _excess_float(order: float, delta: float) -> float:
    return math.log1p(-1 / order) - math.log(order * delta) / (order - 1)


def _minimise(objective: Callable[[float], float]) -> float:
    """Return the order at which a function with one valley is least: ternary search over ln(order - 1)."""
    low, high = _SEARCH
    for _ in range(120):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if objective(1 + math.exp(left)) <= objective(1 + math.exp(right)):
            high = right
        else:
            low = left
    return 1 + math.exp((low + high) / 2)


def _nearest_order(order: float) -> Fraction:
    return max(round(Fraction(order) / ORDER_STEP) * ORDER_STEP, _LEAST_ORDER)


def _check(name: str, value: float | Fraction) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")


def _check_delta(delta: float | Fraction) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")
