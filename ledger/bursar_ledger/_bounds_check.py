"""Second computation of prices and caps for auditors, from events, with formulas and code of its own.

Everything here is computed to 150 digits without a margin; a stored price is right if it is the true sum in whole
units, rounded up, give or take what the server's own margins may add (relative 1e-30, absolute 1e-35 an event).
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction

from ._events import (
    ApproximateEvent,
    ConcentratedEvent,
    Event,
    GaussianEvent,
    GaussianNumbers,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
)

_CONTEXT = decimal.Context(
    prec=150,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)
# Written again: this check shares no code with the pricing, so that a mistake there does not hide itself here.
_COST_UNIT = 1 << 40
_DELTA_UNIT = 1 << 60
_LONG = 1 << 4096
"""Denominators above this are reduced. A gcd for each event would take longer than the long products do."""
# Room for the server's own margins of 1e-40 an operation (`bursar_amounts`), far below a unit of cost.
_RELATIVE = Fraction(1, 10**30)
_ABSOLUTE = Fraction(1, 10**35)


def price_range(gaussian: Iterable[GaussianNumbers], others: Sequence[Event], order: Fraction) -> tuple[int, int]:
    """Return the smallest and the largest right price of events at Renyi order `order`, in units of 2^-40."""
    above, below = _gaussian(gaussian, order)
    if not others:
        return (price := -((-above << 40) // below)), price
    total, slack = Fraction(above, below), Fraction(0)
    for event in others:
        divergence = _divergence(event, order)
        total += divergence
        slack += _slack(event, divergence)
    return _units(total - slack), _units(total + slack)


def _slack(event: Event, divergence: Fraction) -> Fraction:
    exact = event.event if isinstance(event, ApproximateEvent) else event
    if isinstance(exact, GaussianEvent | ConcentratedEvent):
        return Fraction(0)
    times = exact.count * getattr(exact, "groups", 1) * (event.count if exact is not event else 1)
    return divergence * _RELATIVE + times * _ABSOLUTE


def _gaussian(events: Iterable[GaussianNumbers], order: Fraction) -> tuple[int, int]:
    """Return the sum of count * order * l2_squared / (2 scale^2), exact: numerator and denominator, not reduced."""
    above, below = 0, 1
    for l2_squared, times, numerator, denominator in events:
        more, parts = times * l2_squared * denominator**2, numerator**2
        above, below = above * parts + more * below, below * parts
        if below > _LONG:
            above, below = Fraction(above, below).as_integer_ratio()
    return above * order.numerator, below * order.denominator * 2


def _units(divergence: Fraction) -> int:
    return -((-divergence.numerator << 40) // divergence.denominator)


def failure_units(events: Iterable[Event]) -> int:
    """Return the probability that any of `events` fails, at most their sum, in units of 2^-60, rounded up."""
    total = sum(event.delta * event.count for event in events if isinstance(event, ApproximateEvent))
    return -((-total.numerator << 60) // total.denominator)


def cap_problems(epsilon: float, delta: float, share: Fraction, order: Fraction, cost: int, failure: int) -> list[str]:
    """Return what is wrong with stored caps for a promise of (epsilon, delta) at `order`; empty if all is right."""
    conversion = Fraction(delta) * (1 - share)
    cap = _cap(Fraction(epsilon), conversion, order)
    slack = abs(cap) * _RELATIVE + _ABSOLUTE
    problems = []
    if not math.floor(_COST_UNIT * (cap - slack)) <= cost <= math.floor(_COST_UNIT * (cap + slack)):
        problems.append(f"cap_cost_units is {cost}, but the promise gives {math.floor(_COST_UNIT * cap)}")
    if failure != math.floor(_DELTA_UNIT * Fraction(delta) * share):
        problems.append("cap_delta_units is not the declared share of delta")
    # Any order keeps the promise; the best one is the maximum of cap / order, so that steps to both sides lower it.
    steps = [1 + (order - 1) * (1 + s) for s in (Fraction(-1, 256), Fraction(1, 256))]
    if any(_cap(Fraction(epsilon), conversion, step) / step > cap / order for step in steps):
        problems.append("order is not the best one for the promise")
    return problems


def _cap(epsilon: Fraction, delta: Fraction, order: Fraction) -> Fraction:
    """Solve delta = exp((a-1)(B-epsilon)) (1-1/a)^a / (a-1) for B (Canonne, Kamath and Steinke 2020, Prop. 12)."""
    with decimal.localcontext(_CONTEXT):
        a, d, e = _decimal(order), _decimal(delta), _decimal(epsilon)
        return Fraction(e + ((d * (a - 1)).ln() - a * (1 - 1 / a).ln()) / (a - 1))


def _divergence(event: Event, order: Fraction) -> Fraction:
    if isinstance(event, ApproximateEvent):
        return event.count * _divergence(event.event, order)
    if isinstance(event, GaussianEvent):
        return order * event.count * event.l2_squared / (2 * event.scale**2)
    if isinstance(event, ConcentratedEvent):
        return event.rho * order * event.count
    if isinstance(event, SelectionEvent):
        return event.count * _choice(event.sensitivity / Fraction(event.scale), order)
    return _rounded_divergence(event, order)


def _choice(steps: Fraction, order: Fraction) -> Fraction:
    """Bound a choice: a log-probability moves by `steps` at most, which costs at most a Gaussian of that ratio."""
    return min(steps**2 * order / 2, _randomised_response(2 * steps, order))


@functools.lru_cache(maxsize=4096)
def _rounded_divergence(event: LaplaceEvent | PureEvent, order: Fraction) -> Fraction:
    if isinstance(event, LaplaceEvent):
        each = _laplace(Fraction(event.l1), Fraction(event.scale), order)
        return event.count * event.groups * each
    return event.count * _randomised_response(Fraction(event.epsilon), order)


def _laplace(shift: Fraction, scale: Fraction, order: Fraction) -> Fraction:
    """Return ln sum P(x)^a Q(x)^(1-a) / (a-1), P(x) = c p^|x|, Q(x) = c p^|x-t|; for x <= 0, between, and x >= t."""
    if scale > 10**40:  # there the server charges the bound for any mechanism that is as private
        return _randomised_response(shift / scale, order)
    with decimal.localcontext(_CONTEXT):
        a, b, t = _decimal(order), _decimal(scale), _decimal(shift)
        p, ratio, far = (-1 / b).exp(), ((1 - 2 * a) / b).exp(), ((1 - 2 * a) * t / b).exp()
        regions = 1 / (1 - p) + (ratio - far) / (1 - ratio) + far / (1 - p)
        total = regions * (1 - p) / (1 + p)
        return Fraction(t / b + total.ln() / (a - 1))


@functools.lru_cache(maxsize=4096)
def _randomised_response(epsilon: Fraction, order: Fraction) -> Fraction:
    """Return the divergence of P = (p, q) and Q = (q, p), p / q = e^epsilon: the worst epsilon-DP mechanism."""
    with decimal.localcontext(_CONTEXT):
        a, e = _decimal(order), _decimal(epsilon)
        q = (-e).exp() / (1 + (-e).exp())
        total = (1 - q) + q * (2 * (1 - a) * e).exp()
        return Fraction(e + total.ln() / (a - 1))


def _decimal(x: Fraction) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator)
