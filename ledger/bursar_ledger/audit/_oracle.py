"""Second opinion by dp-accounting (Google's library), where it is installed: it shares no code with this project.

It knows the continuous mechanisms. What can be compared at one Renyi order is said by `bounds`; what a privacy loss
distribution says of a whole history is information, never the guarantee: see `tighter_epsilon`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from bursar_amounts import COST_UNIT, exact_text

from .._entries import EntryKind
from .._events import (
    ApproximateEvent,
    ConcentratedEvent,
    Event,
    ExactEvent,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
    decode_event,
    decode_fraction,
)
from ._history import Losses
from ._open import Row

_TOLERANCE = 1e-9
"""Relative error of floating point numbers that is no finding; a unit of cost is about 1e-12."""
_LARGEST_EXPONENT = 700.0
"""exp of a larger number overflows (from 709.8 on)."""
_STEPS = 300_000
"""Largest number of steps of a grid of losses, which bounds time and memory."""
_CONCENTRATED_STEPS = 20_000
"""Each of these takes a search for the best order."""
_LARGEST_DISCRETE_LAPLACE = 10_000
"""Sensitivity beyond which discrete Laplace noise is taken as its limit, the continuous one."""


@dataclass
class SecondOpinion:
    """Result of a comparison with dp-accounting.

    Attributes:
        version: version of dp-accounting; None if it is not installed, and nothing was compared.
        debits: number of debits whose prices were compared.
        bounded: number of them with Laplace noise or selections, compared with a lower and an upper bound.
        promises: number of totals that were converted back to (epsilon, delta).
        left_out: debits and totals whose numbers it cannot represent.
        problems: one line each, naming the entry.
    """

    version: str | None
    debits: int = 0
    bounded: int = 0
    promises: int = 0
    left_out: int = 0
    problems: list[str] = field(default_factory=list)


def installed_version() -> str | None:
    """Return the version of dp-accounting, None if it is not installed."""
    try:
        import dp_accounting  # noqa: F401

        return importlib.metadata.version("dp-accounting")
    except ImportError:
        return None


def second_opinion(rows: Iterable[Row], heard: SecondOpinion | None = None) -> SecondOpinion:
    """Compare the stored price of every debit, and the caps of every promise, with dp-accounting's figures.

    Entries that cannot be read are left to `verify`. What was heard of the entries before these is counted, too.
    """
    opinion = SecondOpinion(installed_version()) if heard is None else dataclasses.replace(heard)
    if opinion.version is None:
        return opinion
    for row in rows:
        try:
            if row.text("kind") == EntryKind.DEBIT:
                _compare_debit(row, opinion)
            elif row.text("kind") in (EntryKind.REGISTRATION, EntryKind.BUDGET):
                _compare_promise(row, opinion)
        except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError):
            opinion.left_out += 1
    return opinion


def bounds(events: Sequence[Event], order: float) -> tuple[float, float]:
    """Return a lower and an upper bound of the Renyi divergence of events together.

    Gaussian: the continuous Gaussian's, exactly what is charged for the discrete one. Pure: that of randomised
    response, the worst mechanism there is. Laplace: at least the continuous Laplace's (the discrete one at the same
    scale is less private, and tends to it), at most that of randomised response. Selection: at least that of two
    candidates that were level, which is randomised response at half the bounded range; at most (eta^2 / 8)-zCDP, or
    randomised response at all of it. Concentrated: its rho. Approximate: that of the event inside.
    """
    from dp_accounting import GaussianDpEvent, LaplaceDpEvent, NeighboringRelation, rdp
    from dp_accounting.dp_event import ZCDpEvent

    # The relation that randomised response needs. The others do not look at it: sensitivities are in their events.
    low, high = (rdp.RdpAccountant([order], NeighboringRelation.REPLACE_ONE) for _ in range(2))
    beyond = [0.0, 0.0]
    for event in events:
        inner, count = _inner(event)
        if isinstance(inner, GaussianEvent):
            gaussian = GaussianDpEvent(float(Fraction(inner.scale) ** 2 / inner.l2_squared) ** 0.5)
            low.compose(gaussian, count)
            high.compose(gaussian, count)
            continue
        if isinstance(inner, ConcentratedEvent):
            whole = ZCDpEvent(float(inner.rho))
            low.compose(whole, count)
            high.compose(whole, count)
            continue
        epsilon = _pure_epsilon(inner)
        if isinstance(inner, LaplaceEvent):
            low.compose(LaplaceDpEvent(1 / epsilon), count)
        else:
            beyond[0] += _compose_worst(low, epsilon / 2 if isinstance(inner, SelectionEvent) else epsilon, count)
        if isinstance(inner, SelectionEvent) and order * epsilon <= 8:  # beyond, zCDP says more than epsilon
            high.compose(ZCDpEvent(epsilon**2 / 8), count)
        else:
            beyond[1] += _compose_worst(high, epsilon, count)
    return float(low.rdp[0]) + beyond[0], float(high.rdp[0]) + beyond[1]


def _compose_worst(accountant: Any, epsilon: float, count: int) -> float:
    """Compose randomised response; return what is to be added to the account where exp would overflow."""
    from dp_accounting import RandomizedResponseDpEvent

    if not epsilon <= _LARGEST_EXPONENT:  # there the worst divergence is epsilon itself
        return count * epsilon
    one = RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2)  # one answer is e^epsilon times the other
    accountant.compose(one, count)
    return 0.0


def tighter_epsilon(losses: Losses, delta: Fraction) -> float | None:
    """Return an upper bound of epsilon at `delta` of everything in `losses`, by its privacy loss distribution.

    Valid if the requests had been fixed beforehand; for requests that were chosen after seeing answers only a cap is
    a guarantee. Discrete Gaussian noise is taken as continuous Gaussian noise; discrete Laplace noise as itself, beyond
    a sensitivity of 10,000 lattice units as continuous; a selection as the worst of its bounded range; what is known to
    be zCDP only as the worst of its rho. None without dp-accounting; infinity if failures use up delta.
    """
    if installed_version() is None:
        return None
    left = delta - losses.failures
    if not left > 0:
        return math.inf
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = _grid(losses)
    whole = pld.identity(value_discretization_interval=grid)
    if losses.gaussian > 0:
        # Gaussians compose exactly: squares of sensitivity over scale add up.
        whole = whole.compose(pld.from_gaussian_mechanism(losses.gaussian**-0.5, value_discretization_interval=grid))
    if rho := _concentrated(losses):
        whole = whole.compose(_concentrated_losses(rho, grid))
    for event, times in _others(losses):
        whole = whole.compose(_loss_distribution(event, grid).self_compose(times * getattr(event, "groups", 1)))
    return max(float(whole.get_epsilon_for_delta(float(left))), 0.0)


def _grid(losses: Losses) -> float:
    """Return the step to which losses are rounded up: fine beside the smallest one, with a bounded number of steps."""
    sizes = {event: _pure_epsilon(event) for event, _ in _others(losses)}
    concentrated = _concentrated(losses)
    squared = losses.gaussian + 2 * concentrated
    reach = 12 * math.sqrt(squared) + squared
    for event, times in _others(losses):
        count = times * getattr(event, "groups", 1)
        reach += min(count * sizes[event], 12 * math.sqrt(count) * sizes[event] + count * sizes[event] ** 2)
    return max(
        min([1e-4, *(size / 20 for size in sizes.values())]), reach / (_CONCENTRATED_STEPS if concentrated else _STEPS)
    )


def _others(losses: Losses) -> list[tuple[LaplaceEvent | PureEvent | SelectionEvent, int]]:
    """Return the events with an epsilon, each with how often it happened."""
    return [(event, times) for event, times in losses.others.items() if not isinstance(event, ConcentratedEvent)]


def _concentrated(losses: Losses) -> float:
    """Return the sum of rho over what is known to be zCDP only."""
    return float(sum(n * event.rho for event, n in losses.others.items() if isinstance(event, ConcentratedEvent)))


def _pure_epsilon(event: LaplaceEvent | PureEvent | SelectionEvent) -> float:
    if isinstance(event, SelectionEvent):
        return float(event.bounded_range)
    return float(event.epsilon if isinstance(event, PureEvent) else event.l1 / Fraction(event.scale))


def _loss_distribution(event: LaplaceEvent | PureEvent | SelectionEvent, grid: float) -> Any:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    if isinstance(event, PureEvent):
        parameters = common.DifferentialPrivacyParameters(_pure_epsilon(event), 0.0)
        return pld.from_privacy_parameters(parameters, value_discretization_interval=grid)
    if isinstance(event, SelectionEvent):
        return _selection_losses(_pure_epsilon(event), grid)
    if event.l1 <= _LARGEST_DISCRETE_LAPLACE:
        each = float(1 / Fraction(event.scale))
        return pld.from_discrete_laplace_mechanism(each, event.l1, value_discretization_interval=grid)
    return pld.from_laplace_mechanism(1 / _pure_epsilon(event), value_discretization_interval=grid)


def _selection_losses(eta: float, grid: float) -> Any:
    """Return the losses of the largest delta at each epsilon that a bounded range `eta` allows.

    Two candidates with log-ratios t and t - eta have delta = (1 - e^(t-eta)) (1 - e^(epsilon-t)) / (1 - e^-eta), which
    is largest at t = (epsilon + eta) / 2 (Dong, Durfee and Rogers 2020). A maximum of curves of deltas is again one. No
    single mechanism attains it everywhere, so for many choices it can be worse than Renyi accounting.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    def delta(epsilon: float) -> float:
        if epsilon < -eta:
            return -math.expm1(epsilon)
        return math.expm1((min(epsilon, eta) - eta) / 2) ** 2 / -math.expm1(-eta)

    steps = math.ceil(eta / grid)
    deltas = [delta(step * grid) for step in range(-steps, steps + 1)]
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, -steps, steps, deltas)
    )


def _concentrated_losses(rho: float, grid: float) -> Any:
    """Return the losses of the largest delta at each epsilon that rho-zCDP allows, by the conversion at many orders.

    The delta of a mechanism is convex in e^epsilon, so it lies below the convex hull of any bound of it; and a curve
    that is convex, falls and ends at 0 is that of some mechanism, with which one may go on.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    def delta(epsilon: float) -> float:
        best = math.log(min(1.0, math.sqrt(rho / 2)))  # Pinsker's inequality
        for factor in (0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.4, 2.0, 4.0):
            a = 1 + factor * (epsilon + rho) / (2 * rho)  # the best order is near 1/2 + epsilon / (2 rho)
            best = min(best, (a - 1) * (a * rho - epsilon + math.log1p(-1 / a)) - math.log(a))
        return math.exp(best)

    steps = math.ceil((rho + 2 * math.sqrt(rho * 40)) / grid)
    above = [delta(step * grid) for step in range(steps + 1)]
    below = [1 - math.exp(-step * grid) * (1 - above[step]) for step in range(steps, 0, -1)]
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, -steps, steps, _convex(below + above, -steps, grid))
    )


def _convex(deltas: list[float], first: int, grid: float) -> list[float]:
    """Return the lower convex hull, over e^epsilon, of numbers at steps `first`, `first` + 1, ... of epsilon."""
    places = [math.exp((first + i) * grid) for i in range(len(deltas))]
    hull: list[int] = []
    for i in range(len(deltas)):
        while len(hull) > 1 and (deltas[i] - deltas[hull[-2]]) * (places[hull[-1]] - places[hull[-2]]) <= (
            deltas[hull[-1]] - deltas[hull[-2]]
        ) * (places[i] - places[hull[-2]]):
            hull.pop()
        hull.append(i)
    for left, right in itertools.pairwise(hull):
        slope = (deltas[right] - deltas[left]) / (places[right] - places[left])
        deltas[left + 1 : right] = [deltas[left] + slope * (places[i] - places[left]) for i in range(left + 1, right)]
    return deltas


def _compare_debit(row: Row, opinion: SecondOpinion) -> None:
    details = row.details
    low, high, exact = _debit_bounds(json.dumps(details["events"]), details["order"])
    if not math.isfinite(high):
        opinion.left_out += 1
        return
    opinion.debits += 1
    opinion.bounded += not exact
    charged = details["cost_units"] / COST_UNIT
    if not low <= charged <= high + 2 / COST_UNIT:
        opinion.problems.append(
            f"entry {row.number}: the debit is {charged:.9g} of divergence, but by dp-accounting its events cost "
            + (f"{low:.9g}" if exact else f"{low:.9g} to {high:.9g}")
        )


@functools.lru_cache(maxsize=16384)
def _debit_bounds(events: str, order: str) -> tuple[float, float, bool]:
    """Return bounds of a debit with the tolerance of floating point numbers, and whether both are the same figure."""
    decoded, a = [decode_event(event) for event in json.loads(events)], float(decode_fraction(order))
    low, high = bounds(decoded, a)
    inner = [_inner(event) for event in decoded]
    exact = not any(isinstance(event, LaplaceEvent | SelectionEvent) for event, _ in inner)
    # What floating point numbers lose in the library: everywhere, and where logarithms of numbers near 1 are taken.
    rough = 1e-14 * (a + 1 / (a - 1)) * sum(n for event, n in inner if not isinstance(event, GaussianEvent))
    return low * (1 - _TOLERANCE) - rough, high * (1 + _TOLERANCE) + rough, exact


def _compare_promise(row: Row, opinion: SecondOpinion) -> None:
    from dp_accounting import rdp

    details = row.details
    if "cap_cost_units" not in details:  # a registration that joins an account promises nothing of its own
        return
    order, cap = float(decode_fraction(details["order"])), details["cap_cost_units"] / COST_UNIT
    delta = float(Fraction(details["delta"]) * (1 - decode_fraction(details["delta_fail_share"])))
    if not order > 1.01:  # closer to 1 the library gives up
        opinion.left_out += 1
        return
    opinion.promises += 1
    epsilon, _ = rdp.compute_epsilon([order], [cap], delta)
    if not epsilon <= details["epsilon"] * (1 + _TOLERANCE):
        opinion.problems.append(
            f"entry {row.number}: epsilon = {exact_text(details['epsilon'])} is promised, but by dp-accounting the cap "
            f"allows {float(epsilon):.9g}"
        )


def _inner(event: Event) -> tuple[ExactEvent, int]:
    """Return the exact event in an event, and how often it happens."""
    times = event.count
    if isinstance(event, ApproximateEvent):
        event = event.event
        times *= event.count
    return event, times * (event.groups if isinstance(event, LaplaceEvent) else 1)
