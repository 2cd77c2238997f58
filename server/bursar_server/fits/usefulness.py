"""Usefulness of a fit before it is paid for: the public rule, told to people in docs/useless.md.

A function of a plan's expected accuracies and the public schema: it reads no row, and nothing that depends on one. The
limits are in `bursar_models.usefulness`, because forecasts are judged by them, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from bursar_models.usefulness import Finding, findings, percent
from bursar_server.fits._seam import InvalidFieldsError, Plan, PublicTable

USELESS_MARGIN = 0.25
"""Margin of a preflight's rule below which a search is useless: it takes sixteen times the spend, about."""

WARNINGS = "warnings"
"""Name among a debit's parameters of what the analyst was told before it, for its receipt."""

PlanT = TypeVar("PlanT", bound=Plan)


def judged(plan: PlanT, table: PublicTable) -> PlanT:
    """Return the plan with what the rule says of it first among its warnings, and `useless` set.

    A plan without events is free, so nothing is said of it.
    """
    found = sorted(_findings(plan, table), key=lambda one: not one.useless) if plan.events else []
    useless = any(one.useless for one in found)
    return replace(plan, warnings=(*map(str, found), *plan.warnings), useless=useless)


def check_useful(plan: Plan) -> None:
    """Check that the rule does not call a judged plan useless. Raises InvalidFieldsError with what would help."""
    if plan.useless:
        help_ = (
            "spend more, ask for fewer components, columns or cells, or insist with anyway=True, for instance where a "
            "forecast (like=...) says otherwise"
        )
        raise InvalidFieldsError(("spend", f"{plan.warnings[0]}; {help_}"))


def _findings(plan: Plan, table: PublicTable) -> Iterator[Finding]:
    widths = {column.name: column.upper - column.lower for column in table.numeric}
    widths |= {plan.columns[one.place]: one.ends[1] - one.ends[0] for one in plan.transforms}
    target = plan.columns[-1] if plan.columns else None
    yield from findings({name: one.value for name, one in plan.expected.items()}, widths, target)
    if plan.preflight is not None:
        for rule in plan.preflight.rules:
            text = f"{rule.name}: there is {percent(rule.margin)} of what finding components takes"
            yield from [Finding(text, useless=True)] * (not rule.margin >= USELESS_MARGIN)
