"""Spent budget of every account and analyst, as lines of a table.

Everything called nominal here is for planning. Against analysts who choose requests after seeing answers, protection
comes from the cap alone (see `_pricing.md`), so the promise is the total, independent of the sum that was spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from bursar_amounts import COST_UNIT, DELTA_UNIT, amount_text, divergence_cap, left_share

from .._pricing import rdp
from ._history import AccountHistory, Losses, Spender
from ._oracle import tighter_epsilon

# Orders that are tried for a nominal epsilon: the account's own is best once all is spent, larger ones before.
_STEPS = range(-2, 17)


@dataclass(frozen=True)
class Spend:
    """Line of the table: an account, or one analyst of it.

    Attributes:
        account: name.
        datasets: that spend from it, separated by ", ".
        analyst: None for the whole account.
        epsilon: epsilon promised for the account.
        delta: delta promised for the account.
        order: Renyi order at which its debits are priced.
        fits: debits.
        unreleased: debits without a stored release.
        cost_units: debited, in 2^-40 of Renyi divergence at that order.
        delta_units: failure probability debited, in 2^-60.
        rho: the same as zCDP's rho of Gaussian noise.
        share: the same as a part of the account's total.
        nominal_epsilon: nominal, at the promise's delta: the best Renyi order for what was released, chosen afterwards.
        pld_epsilon: nominal, by privacy loss distribution or the one before, whichever is less; None if it was not
            asked for or cannot be had.
        left_cost_units: what is left: of the account, or of the analyst's allowance if there is one.
        left_rho: the same as rho.
        allowance: the analyst's part of the total, 0 to 1; None without one.
        closed: whether the total was lowered below what had been spent.
        cap_cost_units: the account's total, in the unit of cost_units.
        spent_epsilon: what was debited, as epsilon at the part of delta that converts divergence; nominal.
        spent_percent: the same in percent of the account's total.
        left_epsilon: what is left, in the same way.
        left_percent: the same in percent of the account's total.
    """

    account: str
    datasets: str
    analyst: str | None
    epsilon: float
    delta: float
    order: float
    fits: int
    unreleased: int
    cost_units: int
    delta_units: int
    rho: float
    share: float
    nominal_epsilon: float
    pld_epsilon: float | None
    left_cost_units: int
    left_rho: float
    allowance: float | None
    closed: bool
    cap_cost_units: int
    spent_epsilon: float
    spent_percent: float
    left_epsilon: float
    left_percent: float

    @property
    def spent(self) -> str:
        """Debited amount, as people read it."""
        return amount_text(self.spent_epsilon, self.share)

    @property
    def left(self) -> str:
        """Remaining amount, as people read it."""
        return amount_text(self.left_epsilon, left_share(self.left_cost_units, self.cap_cost_units), is_left=True)


def spend_lines(account: AccountHistory, *, by_analyst: bool, pld: bool) -> Iterator[Spend]:
    """Return the line of an account, or one for each of its analysts, those who spent most first."""
    if by_analyst:
        for name in by_cost(account):
            spender, share = account.spenders[name], account.allowance(name)
            left = account.left_cost_units
            if share is not None:
                left = min(left, max(account.limit(share).cost_units - spender.cost_units, 0))
            yield _line(account, spender, name, left, share, pld)
        return
    whole = Spender(
        cost_units=account.spent_cost_units,
        delta_units=account.spent_delta_units,
        debits=account.debits,
        unreleased=account.unreleased,
        losses=account.losses,
    )
    yield _line(account, whole, None, account.left_cost_units, None, pld)


def by_cost(account: AccountHistory) -> list[str]:
    """Return the analysts of an account, those who spent most first."""
    return sorted(account.spenders, key=lambda name: (-account.spenders[name].cost_units, name))


def nominal_epsilon(losses: Losses, delta: float, order: Fraction) -> float:
    """Return the epsilon at `delta` that Renyi accounting gives `losses` afterwards; infinity if there is none.

    The best of some orders around `order`; each is valid for requests that were fixed beforehand (Canonne, Kamath and
    Steinke 2020, Prop. 12), and so is the best.
    """
    if not losses.gaussian and not losses.others:
        return 0.0
    left = Fraction(delta) - losses.failures
    if not left > 0:
        return math.inf
    best = math.inf
    for step in _STEPS:
        a = 1 + (order - 1) * Fraction(2.0 ** (step / 2))
        divergence = losses.gaussian * float(a) / 2 + sum(
            times * float(rdp(event, a)) for event, times in losses.others.items()
        )
        # divergence_cap(1, ...) is 1 minus what the conversion adds.
        best = min(best, divergence + 1 - float(divergence_cap(Fraction(1), left, a)))
    return max(best, 0.0)


def rho_of_units(units: int, order: Fraction) -> float:
    """Convert units of cost at an order to zCDP's rho of Gaussian noise."""
    return float(Fraction(units) / (COST_UNIT * order))


def delta_of_units(units: int) -> float:
    """Convert units of failure probability to a probability."""
    return units / DELTA_UNIT


def _line(
    account: AccountHistory, spender: Spender, analyst: str | None, left: int, share: Fraction | None, pld: bool
) -> Spend:
    nominal = nominal_epsilon(spender.losses, account.delta, account.order)
    spent, remainder = account.part(spender.cost_units), account.part(left, is_left=True)
    tighter = tighter_epsilon(spender.losses, Fraction(account.delta)) if pld else None
    return Spend(
        account=account.name,
        datasets=", ".join(account.datasets),
        analyst=analyst,
        epsilon=account.epsilon,
        delta=account.delta,
        order=float(account.order),
        fits=spender.debits,
        unreleased=spender.unreleased,
        cost_units=spender.cost_units,
        delta_units=spender.delta_units,
        rho=rho_of_units(spender.cost_units, account.order),
        share=spent.share,
        nominal_epsilon=nominal,
        # Both are upper bounds, and the loss distribution is rounded up to a grid.
        pld_epsilon=None if tighter is None else min(tighter, nominal),
        left_cost_units=left,
        left_rho=rho_of_units(left, account.order),
        allowance=None if share is None else float(share),
        closed=account.closed,
        cap_cost_units=account.cap_cost_units,
        spent_epsilon=spent.epsilon,
        spent_percent=100 * spent.share,
        left_epsilon=remainder.epsilon,
        left_percent=100 * remainder.share,
    )
