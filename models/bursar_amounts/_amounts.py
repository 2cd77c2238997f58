"""Units of cost, their conversion to epsilon, and amounts of a budget as people read them, each with its rounding.

Decimals of 120 digits go in, exact fractions come out. `decimal` rounds exp and ln correctly, on every platform alike,
and its exponents reach 10^(10^18), so that the formulas here are total and a price never depends on the machine.

Conversion between Renyi divergence and (epsilon, delta): Canonne, Kamath and Steinke 2020, Prop. 12. A bound D_a <= B
at one order a > 1 implies (epsilon, delta)-DP with epsilon = B + excess(a, delta). Any order gives a valid statement;
the functions here look for the best one, and an imperfect search costs accuracy, never privacy.
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

COST_UNIT = 2**40
"""Cost is counted in units of 1 / COST_UNIT of Renyi divergence at the dataset's order.

A unit is about 1e-12, so rounding a request up costs next to nothing, and the cap of the largest total (epsilon 2^20)
stays below 2^63, where SQLite's integers end.
"""
DELTA_UNIT = 2**60
"""Failure probability is counted in units of 1 / DELTA_UNIT, about 1e-18; a delta of 1 stays below 2^63."""


_CONTEXT = decimal.Context(
    prec=120,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    # An underflow to zero is harmless here (exp of a huge negative number); anything else would be a bug.
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)
MARGIN = Fraction(1, 10**40)
"""Far above the error of any formula here (at most about 1e-65, see `_pricing.md`), far below a unit of cost."""


@contextlib.contextmanager
def precise() -> Iterator[None]:
    """Set decimal arithmetic to 120 digits inside the block."""
    with decimal.localcontext(_CONTEXT):
        yield


def to_decimal(x: Fraction | int) -> Decimal:
    """Convert `x` to the digits of the context; relative error below 1e-119 inside `precise()`."""
    return Decimal(x.numerator) / Decimal(x.denominator)


def upper(x: Decimal) -> Fraction:
    """Return a fraction above the true value that `x` approximates: relative and absolute margin 1e-40."""
    exact = Fraction(x)
    return exact + (abs(exact) + 1) * MARGIN


def lower(x: Decimal) -> Fraction:
    """Return a fraction below the true value that `x` approximates: relative and absolute margin 1e-40."""
    exact = Fraction(x)
    return exact - (abs(exact) + 1) * MARGIN


def float_up(x: Fraction) -> float:
    """Return the smallest float that is at least `x`, infinity beyond the largest."""
    try:
        nearest = float(x)
    except OverflowError:
        return math.inf if x > 0 else -sys.float_info.max
    return nearest if Fraction(nearest) >= x else math.nextafter(nearest, math.inf)


def float_down(x: Fraction) -> float:
    """Return the largest float that is at most `x`, minus infinity beyond the smallest."""
    return -float_up(-x) + 0.0  # 0.0 without a sign


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


_DIGITS = 3
"""Significant digits of amounts."""
_LEAST_PERCENT = 0.001
_LARGEST = 10**100
"""Amounts from here on are shown as infinite: far above every budget, and their products are still floats."""
_SLACK = 1e-9
"""Relative excess of a cost or an epsilon that is not shown: the ledger rounds a tenth of a budget up by some units of
1e-12, and what was asked for as epsilon 1 costs up to 1 + 1e-11.
"""
_FLOAT = 1e-14
"""Relative error of a share that came as a float: 0.29 is shown as 29%, not as 28.9%; less than a unit."""

_UP, _DOWN = (Context(prec=_DIGITS, rounding=rounding) for rounding in (ROUND_CEILING, ROUND_FLOOR))


@dataclass(frozen=True)
class Part:
    """Part of a budget: a cost, a sum of costs, or a remainder. As text "epsilon 0.31 (12.3%)".

    The epsilon holds at the budget's delta, for this amount alone; epsilons of parts do not add up, percents do.

    Attributes:
        cost_units: Renyi divergence at `order`, in units of 1 / COST_UNIT.
        budget_units: the whole budget in the same unit.
        order: Renyi order at which both are counted.
        delta: part of the budget's delta that converts divergence to epsilon.
        is_left: True for a remainder or a limit, whose percent is rounded down, so that it can be requested; a cost's
            is rounded up.
    """

    cost_units: int
    budget_units: int
    order: Fraction
    delta: Fraction
    is_left: bool = False

    @property
    def rho(self) -> Fraction:
        """Parameter of zCDP of Gaussian noise at this cost."""
        return Fraction(self.cost_units) / (COST_UNIT * self.order)

    @property
    def epsilon(self) -> float:
        """Epsilon at `delta`, rounded up; infinite without a delta, or beyond floats. See `_amounts.md`."""
        if not self.cost_units > 0:
            return 0.0
        if not (0 < self.delta < 1 < self.order and self.rho < _LARGEST):
            return math.inf
        return epsilon_of(self.rho, self.delta, self.order)

    @property
    def share(self) -> float:
        """Part of the budget, 0 for an empty budget; infinite beyond floats."""
        if not self.budget_units > 0:
            return 0.0
        exact = Fraction(self.cost_units, self.budget_units)
        return float(exact) if exact < _LARGEST else math.inf

    @property
    def percent(self) -> str:
        """Share as text."""
        return percent_text(self._shown, is_left=self.is_left)

    def __str__(self) -> str:
        return amount_text(self.epsilon, self._shown, is_left=self.is_left)

    @property
    def _shown(self) -> float | Fraction:
        return left_share(self.cost_units, self.budget_units) if self.is_left else self.share

    def to_dict(self) -> dict[str, float]:
        """Return the amount for programs; rho is rounded to the nearest float."""
        shown = {"epsilon": self.epsilon, "delta": float(self.delta), "share": self.share}
        return {**shown, "rho": float(self.rho), "cost_units": self.cost_units}


def left_share(cost_units: int, budget_units: int) -> Fraction:
    """Return a remainder's part of a budget, with most of a unit more: a spend in percent is rounded down to units.

    So half of a budget of an odd number of units is shown as 50%, which can be requested.
    """
    if not (cost_units > 0 and budget_units > 0):
        return Fraction(0)
    return Fraction(1000 * cost_units + 999, 1000 * budget_units)


def amount_text(epsilon: float, share: float | Fraction, *, is_left: bool = False) -> str:
    """Return an amount as text."""
    return f"epsilon {epsilon_text(epsilon)} ({percent_text(share, is_left=is_left)})"


def epsilon_text(epsilon: float) -> str:
    """Return an epsilon in three digits, rounded up if more than `_SLACK` of it is beyond them."""
    return _text(_rounded(epsilon * (1 - _SLACK))) if math.isfinite(epsilon) else "infinite"


def odds_factor(epsilon: float) -> float:
    """Return exp(epsilon), by which odds change at most, in three digits, rounded up; for epsilon up to 700."""
    with precise():
        return float(_UP.plus(to_decimal(Fraction(min(epsilon, 700.0))).exp()))


def percent_text(share: float | Fraction | None, *, is_left: bool = False) -> str:
    """Return a share in percent, in three digits, "-" for None; a remainder or limit is rounded down, a cost up."""
    if share is None:
        return "-"
    percent = 100 * float(share)
    if not math.isfinite(percent):
        return "?%"
    if 0 < percent < _LEAST_PERCENT:
        return f"<{_LEAST_PERCENT:g}%"
    if is_left:
        # A fraction is exact: a slack on it could show the last unit as left, which cannot be asked for.
        exact = share if isinstance(share, Fraction) else Fraction(share) * (1 + Fraction(_FLOAT))
        return f"{_text(_DOWN.divide(Decimal(100 * exact.numerator), Decimal(exact.denominator)))}%"
    return f"{_text(_rounded(percent * (1 - _SLACK)))}%"


def exact_text(value: float) -> str:
    """Return the shortest text of a number that reads back as the same one: a total is never shown rounded."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def total_text(epsilon: float, delta: float) -> str:
    """Return a total as text, such as "(3, 1e-06)", exact."""
    return f"({exact_text(epsilon)}, {exact_text(delta)})"


def bound_text(value: float | Fraction, digits: int = _DIGITS, *, is_left: bool = False) -> str:
    """Return a number in a few digits, rounded up as costs are; a remainder or limit is rounded down."""
    if not math.isfinite(value):
        return "infinite"
    exact = Fraction(value) * (1 if is_left else 1 - Fraction(_SLACK))
    context = Context(prec=digits, rounding=ROUND_FLOOR if is_left else ROUND_CEILING)
    return f"{float(context.divide(Decimal(exact.numerator), Decimal(exact.denominator))):.{digits}g}"


def _rounded(value: float) -> Decimal:
    return _UP.create_decimal_from_float(value)


def _text(value: Decimal) -> str:
    """Return a number without trailing zeros; without an exponent unless it is tiny."""
    return f"{float(value):g}" if abs(value) < 1e6 else f"{value:f}"
