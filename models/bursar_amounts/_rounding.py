"""Numbers with a known direction of error: decimals of 120 digits in, exact fractions out.

`decimal` rounds exp and ln correctly, on every platform alike, and its exponents reach 10^(10^18), so that the formulas
of this package are total and a price never depends on the machine that computed it.
"""

from __future__ import annotations

import contextlib
import decimal
import math
import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

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
