"""A plan: the prices of several fits, and which of them the budget allows in this order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bursar._preview import Preview
from bursar_models.budget import Limits, Price, Spend, WhatIsLeft
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import Request
from bursar_models.text import html_table, text_table


@dataclass(frozen=True)
class PlannedFit:
    """One fit of a plan.

    Attributes:
        request: what is to be fitted.
        spend: what it may cost; None for a fit that uses earlier releases alone.
        preview: its price and its expected accuracy by itself.
        affordable: whether the budget allows it after the affordable fits before it.
        rho_left: about the rho that one request may still cost after the affordable fits up to this one.
    """

    request: Request
    spend: Spend | None
    preview: Preview
    affordable: bool
    rho_left: float


@dataclass(frozen=True, repr=False)
class Plan:
    """Several fits with their prices. Nothing was debited: it is made of previews.

    A fit that the budget does not allow is passed over, and those after it are compared with what is left without it.

    Attributes:
        fits: the fits in their order.
        limits: what every request has to fit into, when the plan was made.
    """

    fits: tuple[PlannedFit, ...]
    limits: Limits

    @property
    def total(self) -> Price:
        """Price of all fits together, affordable or not."""
        return _sum([one.preview.price for one in self.fits])

    @property
    def affordable(self) -> bool:
        """Return whether the budget allows all fits, one after another."""
        return all(one.affordable for one in self.fits)

    def _title(self) -> str:
        total, cap = self.total, self.limits.dataset.cap_cost_units
        count = len(self.fits)
        cost = f"rho={total.rho:.6g} of rho={self.limits.dataset.rho:.6g} left"
        share = f", {total.cost_units / cap:.1%} of the budget" if cap else ""
        if self.affordable:
            verdict = "all affordable"
        else:
            verdict = f"{sum(one.affordable for one in self.fits)} of them affordable in this order"
        return f"Plan: {count} {'fit' if count == 1 else 'fits'} for {cost}{share}; {verdict}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        cap = self.limits.dataset.cap_cost_units
        rows = [
            [
                type(one.request).__name__,
                f"{one.preview.price.rho:.6g}",
                f"{one.preview.price.cost_units / cap:.1%}" if cap else "",
                "yes" if one.affordable else "no",
                f"{one.rho_left:.6g}",
            ]
            for one in self.fits
        ]
        return ["fit", "rho", "of the budget", "affordable", "rho left"], rows

    def __repr__(self) -> str:
        return f"{self._title()}\n{text_table(*self._table())}"

    def _repr_html_(self) -> str:
        return html_table(self._title(), *self._table())


def plan(
    requests: Sequence[Request],
    spend: Spend | Sequence[Spend | None] | None,
    preview: Callable[[Request, Spend | None], Preview],
    limits: Limits,
) -> Plan:
    """Return the plan of several fits.

    Args:
        requests: in the order in which they would be fitted.
        spend: one for all, or one for each.
        preview: gives the preview of one of them.
        limits: what every request has to fit into.

    Raises:
        InvalidRequestError: the spends are not as many as the requests, or one is what is left, which is no amount.
        Error: a preview failed.
    """
    admitted: list[Price] = []
    fits = []
    for request, amount in zip(requests, _spends(requests, spend), strict=True):
        found = preview(request, amount)
        affordable = found.affordable and _allows(limits, admitted, found.price)
        admitted += [found.price] * affordable
        fits.append(PlannedFit(request, amount, found, affordable, _rho_left(limits, admitted)))
    return Plan(tuple(fits), limits)


def _spends(requests: Sequence[Request], spend: Spend | Sequence[Spend | None] | None) -> list[Spend | None]:
    spends = list(spend) if isinstance(spend, Sequence) else [spend] * len(requests)
    if len(spends) != len(requests):
        text = f"must be one for all, or one for each of the {len(requests)} requests, got {len(spends)}"
        raise InvalidRequestError.of("spend", text)
    if any(isinstance(one, WhatIsLeft) for one in spends):
        text = "must be amounts: what is left depends on the fits before it; say bursar.rho(...)"
        raise InvalidRequestError.of("spend", text)
    return spends


def _allows(limits: Limits, admitted: Sequence[Price], price: Price) -> bool:
    """Return whether a fit may follow others. The most for one request does not add up; budgets do."""
    together = _sum([*admitted, price])
    budgets = [left for left in (limits.dataset, limits.allowance) if left is not None]
    return all(together.cost_units <= left.cost_units and together.delta_units <= left.delta_units for left in budgets)


def _rho_left(limits: Limits, admitted: Sequence[Price]) -> float:
    spent = _sum(admitted).rho
    budgets = [left.rho - spent for left in (limits.dataset, limits.allowance) if left is not None]
    return max(min([*budgets, *([limits.call.rho] if limits.call is not None else [])]), 0.0)


def _sum(prices: Sequence[Price]) -> Price:
    """Return prices added up, as the ledger adds debits."""
    return Price(
        sum(price.cost_units for price in prices),
        sum(price.delta_units for price in prices),
        sum(price.rho for price in prices),
    )
