"""Amounts of a budget as people read them: epsilon at the budget's delta, and percent of the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from ._conversion import epsilon_of
from ._units import COST_UNIT

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
        """Epsilon at `delta`, rounded up; infinite without a delta, or beyond floats. See `_conversion.md`."""
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


def _rounded(value: float) -> Decimal:
    return _UP.create_decimal_from_float(value)


def _text(value: Decimal) -> str:
    """Return a number without trailing zeros; without an exponent unless it is tiny."""
    return f"{float(value):g}" if abs(value) < 1e6 else f"{value:f}"
