"""A plan: several fits with their prices, which of them the budget allows in this order, and what is paid already."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from bursar._preview import Preview, forecast
from bursar_amounts import percent_text
from bursar_models.budget import (
    Amount,
    EpsilonDelta,
    Limits,
    Percent,
    Price,
    Pure,
    Remaining,
    Rho,
    Spend,
    WhatIsLeft,
    implied_rho,
    positive,
)
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import Request, Study
from bursar_models.text import TableText


@dataclass(frozen=True)
class PlannedFit:
    """One fit of a plan.

    Attributes:
        request: what is to be fitted.
        spend: what it may cost; None for a fit that uses earlier releases alone.
        preview: its price and its expected accuracy by itself.
        affordable: whether the budget allows it after the affordable fits before it, or it is paid.
        left: what one request may still cost after the affordable fits up to this one.
        request_id: its name, under which it is paid once.
        paid: whether it was paid when the plan was made.
    """

    request: Request
    spend: Amount | None
    preview: Preview
    affordable: bool
    left: Remaining
    request_id: str = ""
    paid: bool = False


@dataclass(frozen=True, repr=False)
class Plan(TableText):
    """Several fits with their prices. Nothing was debited: it is made of previews.

    A fit that the budget does not allow is passed over, and those after it are compared with what is left without it.

    Attributes:
        study: requests, spends and names, which a file keeps.
        fits: the fits in their order.
        limits: what every request has to fit into, when the plan was made.
    """

    study: Study
    fits: tuple[PlannedFit, ...]
    limits: Limits

    @property
    def total(self) -> Price:
        """Price of all fits together, affordable or not, paid or not: the sum of the ledger's integers."""
        return _sum(self.limits, [one.preview.price for one in self.fits])

    @property
    def unpaid(self) -> Price:
        """Price of the fits that are not paid yet."""
        return _sum(self.limits, [one.preview.price for one in self.fits if not one.paid])

    @property
    def affordable(self) -> bool:
        """Return whether the budget allows all fits that are not paid, one after another."""
        return all(one.affordable for one in self.fits)

    @property
    def largest(self) -> float:
        """Largest part of every spend with which the budget allows all unpaid fits; above 1 if there is room."""
        unpaid = [one.preview.price for one in self.fits if not one.paid]
        parts = [_part(left.cost_units, self.unpaid.cost_units) for left in _budgets(self.limits)]
        if self.limits.call is not None:
            parts.append(_part(self.limits.call.cost_units, max((one.cost_units for one in unpaid), default=0)))
        return min(parts)

    def save(self, path: str | Path) -> None:
        """Write requests, spends and names to a JSON file, from which `Dataset.load_plan` makes the plan again.

        Raises:
            OSError: the file cannot be written.
        """
        self.study.save(path)

    def _title(self) -> str:
        count = len(self.fits)
        cost = f"{self.total} of {self.limits.dataset} left"
        paid = sum(one.paid for one in self.fits)
        return (
            f"Plan: {count} {'fit' if count == 1 else 'fits'} for {cost}; "
            f"{f'{paid} paid; ' if paid else ''}{self._verdict()}"
        )

    def _verdict(self) -> str:
        if self.affordable:
            return "all affordable"
        allowed = f"{sum(one.affordable for one in self.fits)} of them affordable in this order"
        alone = ", though each alone would be" if all(one.preview.affordable for one in self.fits) else ""
        part = percent_text(self.largest, is_left=True)
        return f"they do not fit together: {allowed}{alone}; {part} of every spend would fit"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = [
            [
                type(one.request).__name__,
                str(one.preview.price),
                "paid" if one.paid else "yes" if one.affordable else "no",
                str(one.left),
                forecast(one.preview),
            ]
            for one in self.fits
        ]
        return ["fit", "cost", "affordable", "left", "expected"], rows


def plan(
    study: Study,
    preview: Callable[[Request, Spend | None], Preview],
    limits: Limits,
    paid: Collection[str] = (),
) -> Plan:
    """Return the plan of a study.

    Raises:
        Error: a preview failed.
    """
    admitted: list[Price] = []
    fits = []
    for request, amount, name in zip(study.requests, study.spends, study.request_ids, strict=True):
        found, is_paid = preview(request, amount), name in paid
        affordable = is_paid or (found.affordable and _allows(limits, admitted, found.price))
        admitted += [found.price] * (affordable and not is_paid)
        fits.append(PlannedFit(request, amount, found, affordable, _left(limits, admitted), name, is_paid))
    return Plan(study, tuple(fits), limits)


def spends_of(
    requests: Sequence[Request], spend: Spend | Sequence[Spend | None] | None, limits: Limits
) -> list[Amount | None]:
    """Return the amount of each request, from one for all or one for each.

    Raises:
        InvalidRequestError: they are not as many as the requests, or one of them is what is left.
    """
    spends = list(spend) if isinstance(spend, Sequence) else [spend] * len(requests)
    _check_number("spend", spends, requests)
    return [None if one is None else _amount(one, limits) for one in spends]


def divided(
    total: Spend, shares: Sequence[float] | None, requests: Sequence[Request], limits: Limits
) -> list[Amount | None]:
    """Return the amounts into which a total is divided; together they cost no more than it does.

    Shares are weights of the requests, 0 for one that uses earlier releases alone; None for equal ones.

    Raises:
        InvalidRequestError: the shares are not as many as the requests, none is positive, or the total is too small.
    """
    weights = [Fraction(1)] * len(requests) if shares is None else [_weight(one) for one in shares]
    _check_number("shares", weights, requests)
    whole = sum(weights)
    if not whole > 0:
        raise InvalidRequestError.of("shares", "must have a positive number among them")
    parts = [weight / whole for weight in weights]
    if isinstance(total, Pure):
        return [Pure(float(Fraction(total.epsilon) * part)) if part else None for part in parts]
    units = units_of(total, limits)
    return [Rho(limits.dataset.rho_of(math.floor(units * part))) if part else None for part in parts]


def units_of(spend: Rho | EpsilonDelta | Percent | WhatIsLeft, limits: Limits) -> int:
    """Return the units of cost of a spend, rounded down."""
    match spend:
        case Rho() | EpsilonDelta():
            return limits.dataset.units_of(implied_rho(spend))
        case Percent():
            return math.floor(limits.dataset.cap_cost_units * Fraction(spend.value) / 100)
        case WhatIsLeft():
            return min(left.cost_units for left in _budgets(limits))


def _weight(share: float) -> Fraction:
    return Fraction(0) if share == 0 else Fraction(positive("shares", share))


def _check_number(field: str, values: Sequence[object], requests: Sequence[Request]) -> None:
    if len(values) != len(requests):
        text = f"must be one for all, or one for each of the {len(requests)} requests, got {len(values)}"
        raise InvalidRequestError.of(field, text)


def _amount(spend: Spend, limits: Limits) -> Amount:
    if isinstance(spend, WhatIsLeft):
        text = "must be amounts: what is left depends on the fits before it; say bursar.percent(...), or total=..."
        raise InvalidRequestError.of("spend", text)
    return Rho(limits.dataset.rho_of(units_of(spend, limits))) if isinstance(spend, Percent) else spend


def _budgets(limits: Limits) -> list[Remaining]:
    return [left for left in (limits.dataset, limits.allowance) if left is not None]


def _part(left: int, asked: int) -> float:
    return left / asked if asked else math.inf


def _allows(limits: Limits, admitted: Sequence[Price], price: Price) -> bool:
    """Return whether a fit may follow others. The most for one request does not add up; budgets do."""
    together = _sum(limits, [*admitted, price])
    return all(
        together.cost_units <= left.cost_units and together.delta_units <= left.delta_units for left in _budgets(limits)
    )


def _left(limits: Limits, admitted: Sequence[Price]) -> Remaining:
    spent = sum(price.cost_units for price in admitted)
    found = [left.less(spent) for left in _budgets(limits)] + ([limits.call] if limits.call is not None else [])
    return min(found, key=lambda left: left.cost_units)


def _sum(limits: Limits, prices: Sequence[Price]) -> Price:
    """Return prices added up, as the ledger adds debits."""
    return limits.dataset.price(sum(price.cost_units for price in prices), sum(price.delta_units for price in prices))
