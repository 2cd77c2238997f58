"""Exact discrete Gaussian and Laplace noise, a whole vector at a time; proof in `_sampling.md`.

The algorithms of Canonne, Kamath and Steinke (2020, algorithms 1 to 3) on arrays. A coin with probability exp(-x)
compares a uniform number with exp(-x). Its first 32 bits are compared in floating point, with a certified error. Where
they do not decide, about once in 2^31, more bits are drawn and exp(-x) is enclosed by integers. So the law is exact,
and no rounding enters any number that is returned.
"""

from __future__ import annotations

import decimal
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray

WORD = 32
"""Number of bits of a uniform number with which a comparison begins."""

MARGIN = 2.0**-40
"""Upper bound of the error of computed probabilities; the proof shows less than 2^-45."""

MOST_WHOLE = 64
"""Draws of at least this many scales become Python integers, which cannot overflow; below it u + t v < 2^62 fits int64.
"""

_MORE = 64
"""Number of bits drawn at a time where a comparison is undecided.

Chosen, not tuned: one more draw decides nearly always.
"""

Bytes = Callable[[int], bytes]
"""Function that returns the given number of fair, independent bytes."""


@dataclass(frozen=True)
class _Law:
    """Law of proposals y = (u + t v) / 2^shift, rounded down, with u uniform below t and v geometric.

    A proposal is kept with probability exp(-cost).

    Attributes:
        t: spread of the proposals, positive.
        shift: number of bits by which proposals are divided.
        sigma: standard deviation of a Gaussian; None for Laplace, whose proposals are kept by u alone.
    """

    t: int
    shift: int
    sigma: float | None

    def cost(self, u: NDArray[np.int64], v: NDArray[np.int64]) -> FloatArray:
        """Return the cost of each proposal in floating point; non-negative or NaN."""
        spread = u / self.t
        if self.sigma is None:
            return np.asarray(spread)
        # A scale far below 1 overflows. NaN compares as undecided, and the exact comparison decides.
        with np.errstate(over="ignore", invalid="ignore"):
            off = (spread + v) * (self.t / self.sigma) - self.sigma / self.t
            return np.asarray(spread + 0.5 * off * off)

    def exact_cost(self, u: int, v: int) -> Fraction:
        """Return the cost of one proposal without rounding."""
        spread = Fraction(u, self.t)
        if self.sigma is None:
            return spread
        variance = Fraction(self.sigma) ** 2
        return spread + (u + self.t * v - variance / self.t) ** 2 / (2 * variance)


def gaussian(sigma: float, n: int, draw: Bytes = os.urandom) -> NDArray[Any]:
    """Draw n independent integers with P(y) proportional to exp(-y^2 / (2 sigma^2)).

    They are int64, or Python integers if one is beyond 64 times the scale.
    """
    # Any t gives the same law. The power of two nearest to sigma keeps most proposals, and uniform numbers below it are
    # plain bits.
    return _drawn(_Law(1 << max(0, round(math.log2(sigma))), 0, sigma), n, draw)


def laplace(scale: float, n: int, draw: Bytes = os.urandom) -> NDArray[Any]:
    """Draw n independent integers with P(y) proportional to exp(-|y| / scale).

    They are int64, or Python integers if one is beyond 64 times the scale.
    """
    # The divisor of a float is a power of two, so dividing by it is a shift.
    t, divisor = scale.as_integer_ratio()
    return _drawn(_Law(t, divisor.bit_length() - 1, None), n, draw)


def _drawn(law: _Law, n: int, draw: Bytes) -> NDArray[Any]:
    """Return the first n accepted proposals, (n,).

    They are int64, or Python integers if one is beyond 64 times the scale.
    """
    kept: list[NDArray[Any]] = [np.zeros(0, dtype=np.int64)]
    missing = n
    while missing > 0:
        # About a third or more of the proposals are accepted, so few rounds suffice; the 16 serve small n.
        some = _kept(law, 2 * missing + 16, draw)
        kept.append(some[:missing])
        missing -= len(kept[-1])
    return np.concatenate(kept)


def _kept(law: _Law, n: int, draw: Bytes) -> NDArray[Any]:
    """Propose n integers and return the accepted ones."""
    # One word gives sign (top bit) and u (low bits), which are disjoint because t <= 2^57.
    words = np.frombuffer(draw(8 * n), dtype=np.uint64)
    negative = words >> np.uint64(63) == 1
    u = (words & np.uint64((1 << (law.t - 1).bit_length()) - 1)).astype(np.int64)
    # Words of their own: bits that were used twice would make sign, size and acceptance depend on each other.
    geometric, coins = np.frombuffer(draw(8 * n), dtype=np.uint32).reshape(2, n)
    # Rejection keeps u uniform below t, which need not be a power of two.
    below = u < law.t
    u, negative, coins = u[below], negative[below], coins[below]
    v = _geometric(geometric[below], draw)
    falls = _coins(law, u, v, coins, draw)
    u, v, negative = u[falls], v[falls], negative[falls]
    if v.max(initial=0) < MOST_WHOLE:
        # 64-bit integers cannot be shifted by 64 or more; 63 gives 0 as well, since the number is below 2^62.
        y: NDArray[Any] = (u + law.t * v) >> min(law.shift, 63)
    else:
        y = (u.astype(object) + law.t * v.astype(object)) >> law.shift
    y, negative = y[~(negative & (y == 0))], negative[~(negative & (y == 0))]  # else zero would be twice as likely
    return np.asarray(np.where(negative, -y, y))


def _geometric(words: NDArray[np.uint32], draw: Bytes) -> NDArray[np.int64]:
    """Return the number of k >= 1 for which a uniform number that begins with each word is below exp(-k)."""
    with np.errstate(divide="ignore"):
        most = -np.log(words / 2.0**WORD)
        least = -np.log((words + 1.0) / 2.0**WORD)
    v = np.floor(least - MARGIN)
    open_ = np.floor(most + MARGIN) != v
    # Undecided entries, among them word 0 with its infinite bound, are counted exactly from 0.
    v[open_] = 0.0
    found: NDArray[np.int64] = np.maximum(v, 0.0).astype(np.int64)
    for i in np.flatnonzero(open_):
        uniform = _Uniform(int(words[i]), draw)
        while uniform.below(Fraction(int(found[i]) + 1)):
            found[i] += 1
    return found


def _coins(
    law: _Law, u: NDArray[np.int64], v: NDArray[np.int64], words: NDArray[np.uint32], draw: Bytes
) -> NDArray[np.bool_]:
    """Return whether a uniform number that begins with each word is below exp(-cost)."""
    with np.errstate(under="ignore"):
        chance = np.exp(-law.cost(u, v))
    least, most = words / 2.0**WORD, (words + 1.0) / 2.0**WORD
    falls = np.asarray(most <= chance - MARGIN)
    for i in np.flatnonzero(~falls & ~(least >= chance + MARGIN)):  # NaN would be here, too
        falls[i] = _Uniform(int(words[i]), draw).below(law.exact_cost(int(u[i]), int(v[i])))
    return falls


class _Uniform:
    """Uniform number in [0, 1) whose bits are drawn as they are needed."""

    def __init__(self, word: int, draw: Bytes) -> None:
        self._drawn, self._bits, self._draw = word, WORD, draw

    def below(self, exponent: Fraction) -> bool:
        """Return whether the number is below exp(-exponent); exponent >= 0. Terminates with probability 1."""
        while True:
            low, high = decay(exponent, self._bits)
            if self._drawn + 1 <= low:
                return True
            if self._drawn >= high:
                return False
            self._drawn = self._drawn << _MORE | int.from_bytes(self._draw(_MORE // 8), "big")
            self._bits += _MORE


def decay(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Return integers below and above 2^bits exp(-exponent); exponent >= 0."""
    if exponent >= bits:  # exp(-exponent) is below 2^-bits
        return 0, 1
    above, below = Decimal(-exponent.numerator), Decimal(exponent.denominator)
    ends = []
    for rounding in (decimal.ROUND_FLOOR, decimal.ROUND_CEILING):
        # A decimal digit holds more than three bits; ten more digits keep the enclosure narrow.
        context = decimal.Context(prec=bits // 3 + 10, rounding=rounding, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
        # `exp` rounds correctly, but half to even in any context; the adjacent decimals enclose the true value.
        ends.append(context.divide(above, below).exp(context))
        lowest, highest = ends[0].next_minus(context), ends[-1].next_plus(context)
    return math.floor(Fraction(lowest) * 2**bits), min(math.ceil(Fraction(highest) * 2**bits), 1 << bits)
