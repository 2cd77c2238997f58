"""Exact discrete Gaussian and Laplace noise, a whole vector at a time; proof in `_sampling.md`.

The algorithms of Canonne, Kamath and Steinke 2020 (algorithms 1 to 3) on arrays. A coin that falls with probability
exp(-x) compares a uniform number with exp(-x), of which 32 bits are enough but for one time in 2^31: they are looked at
in floating point, with an error that is certified, and where they do not decide, more bits are drawn and exp(-x) is
enclosed by integers. So the law is exact, and no rounding is in any number that comes out.
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

WORD = 32
"""Bits of a uniform number with which a comparison begins."""

MARGIN = 2.0**-40
"""Computed probabilities are closer to the true ones than this; see the proof."""

MOST_WHOLE = 64
"""From so many times the scale on, draws are Python's integers, which cannot overflow."""

_MORE = 64
"""Bits that are drawn at a time where a comparison is not decided."""

Bytes = Callable[[int], bytes]
"""So many fair, independent bytes."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class _Law:
    """Proposals y = (u + t v) / 2^shift, rounded down, u uniform below t, v geometric; kept with chance exp(-cost).

    Attributes:
        t: spread of the proposals, positive.
        shift: in bits.
        sigma: of a Gaussian; None for Laplace, whose proposals are kept for u alone.
    """

    t: int
    shift: int
    sigma: float | None

    def cost(self, u: NDArray[np.int64], v: NDArray[np.int64]) -> FloatArray:
        """Rounded; non-negative."""
        spread = u / self.t
        if self.sigma is None:
            return np.asarray(spread)
        with np.errstate(over="ignore", invalid="ignore"):  # a scale far below 1; what is not a number is not decided
            off = (spread + v) * (self.t / self.sigma) - self.sigma / self.t
            return np.asarray(spread + 0.5 * off * off)

    def exact_cost(self, u: int, v: int) -> Fraction:
        """The same without rounding."""
        spread = Fraction(u, self.t)
        if self.sigma is None:
            return spread
        variance = Fraction(self.sigma) ** 2
        return spread + (u + self.t * v - variance / self.t) ** 2 / (2 * variance)


def gaussian(sigma: float, n: int, draw: Bytes = os.urandom) -> NDArray[Any]:
    """Draw n integers, independent, P(y) in proportion to exp(-y^2 / (2 sigma^2)); see `_drawn`."""
    # Any t would do; the power of two that is nearest to sigma is kept often, and uniform numbers below it are bits.
    return _drawn(_Law(1 << max(0, round(math.log2(sigma))), 0, sigma), n, draw)


def laplace(scale: float, n: int, draw: Bytes = os.urandom) -> NDArray[Any]:
    """Draw n integers, independent, P(y) in proportion to exp(-|y| / scale); see `_drawn`."""
    t, divisor = scale.as_integer_ratio()
    return _drawn(_Law(t, divisor.bit_length() - 1, None), n, draw)


def _drawn(law: _Law, n: int, draw: Bytes) -> NDArray[Any]:
    """The first n proposals that are kept, (n,): int64, or Python's integers if one is beyond 64 times the scale."""
    kept: list[NDArray[Any]] = [np.zeros(0, dtype=np.int64)]
    missing = n
    while missing > 0:
        some = _kept(law, 2 * missing + 16, draw)
        kept.append(some[:missing])
        missing -= len(kept[-1])
    return np.concatenate(kept)


def _kept(law: _Law, n: int, draw: Bytes) -> NDArray[Any]:
    """Those of n proposals that are kept."""
    words = np.frombuffer(draw(8 * n), dtype=np.uint64)
    negative = words >> np.uint64(63) == 1
    u = (words & np.uint64((1 << (law.t - 1).bit_length()) - 1)).astype(np.int64)
    geometric, coins = np.frombuffer(draw(8 * n), dtype=np.uint32).reshape(2, n)
    below = u < law.t
    u, negative, coins = u[below], negative[below], coins[below]
    v = _geometric(geometric[below], draw)
    falls = _coins(law, u, v, coins, draw)
    u, v, negative = u[falls], v[falls], negative[falls]
    if v.max(initial=0) < MOST_WHOLE:
        y: NDArray[Any] = (u + law.t * v) >> min(law.shift, 63)
    else:
        y = (u.astype(object) + law.t * v.astype(object)) >> law.shift
    y, negative = y[~(negative & (y == 0))], negative[~(negative & (y == 0))]  # zero has one sign
    return np.asarray(np.where(negative, -y, y))


def _geometric(words: NDArray[np.uint32], draw: Bytes) -> NDArray[np.int64]:
    """How many of exp(-1), exp(-2), ... a uniform number that begins with each word is below."""
    with np.errstate(divide="ignore"):
        most = -np.log(words / 2.0**WORD)
        least = -np.log((words + 1.0) / 2.0**WORD)
    v = np.floor(least - MARGIN)
    open_ = np.floor(most + MARGIN) != v
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
    """Whether a uniform number that begins with each word is below exp(-cost)."""
    with np.errstate(under="ignore"):
        chance = np.exp(-law.cost(u, v))
    least, most = words / 2.0**WORD, (words + 1.0) / 2.0**WORD
    falls = np.asarray(most <= chance - MARGIN)
    for i in np.flatnonzero(~falls & ~(least >= chance + MARGIN)):  # NaN would be here, too
        falls[i] = _Uniform(int(words[i]), draw).below(law.exact_cost(int(u[i]), int(v[i])))
    return falls


class _Uniform:
    """A uniform number in [0, 1) of which as many bits are drawn as are asked for."""

    def __init__(self, word: int, draw: Bytes) -> None:
        self._drawn, self._bits, self._draw = word, WORD, draw

    def below(self, exponent: Fraction) -> bool:
        """Whether the number is below exp(-exponent); exponent >= 0. Ends with probability 1."""
        while True:
            low, high = decay(exponent, self._bits)
            if self._drawn + 1 <= low:
                return True
            if self._drawn >= high:
                return False
            self._drawn = self._drawn << _MORE | int.from_bytes(self._draw(_MORE // 8), "big")
            self._bits += _MORE


def decay(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Integers around 2^bits exp(-exponent), below and above; exponent >= 0."""
    if exponent >= bits:  # it is below 2^-bits
        return 0, 1
    above, below = Decimal(-exponent.numerator), Decimal(exponent.denominator)
    ends = []
    for rounding in (decimal.ROUND_FLOOR, decimal.ROUND_CEILING):
        context = decimal.Context(prec=bits // 3 + 10, rounding=rounding, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
        # exp is rounded correctly, half to even whatever the context says; the neighbours enclose the true value.
        ends.append(context.divide(above, below).exp(context))
        lowest, highest = ends[0].next_minus(context), ends[-1].next_plus(context)
    return math.floor(Fraction(lowest) * 2**bits), min(math.ceil(Fraction(highest) * 2**bits), 1 << bits)
