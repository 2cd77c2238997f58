"""Usefulness of a fit before it is paid for: the public rule, told to people in docs/useless.md.

A function of a plan's expected accuracies and the public schema: it reads no row, and nothing that depends on one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from bursar_server.fits._seam import InvalidFieldsError, Plan, PublicTable

USELESS_RANGE, ROUGH_RANGE = 0.25, 0.1
"""Noise over a column's range from which an answer is useless, or rough.

The middle of a range, which costs nothing to guess, is on average a quarter of the range from a point drawn evenly.
"""

USELESS_LEVEL = 2.0
"""Noise over the model's own noise level from which an answer is useless: components change places."""

USELESS_TABLE = 0.5
"""Part of the rows that noise moves in a table from which the table is useless."""

USELESS_SSE = 4.0
"""Sum of squares over Lloyd's from which clusters are useless: about that of one centre for all rows, measured."""

USELESS_MARGIN = 0.25
"""Margin of a preflight's rule below which a search is useless: it takes sixteen times the spend, about."""

WARNINGS = "warnings"
"""Name among a debit's parameters of what the analyst was told before it, for its receipt."""

PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True)
class _Finding:
    """Effect of the noise on an answer.

    Attributes:
        text: in words.
        useless: whether nothing is left of the answer; otherwise it is rough.
    """

    text: str
    useless: bool

    def __str__(self) -> str:
        return f"{'useless' if self.useless else 'rough'}: {self.text}"


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
        help_ = "spend more, ask for fewer components, columns or cells, or insist with anyway=True"
        raise InvalidFieldsError(("spend", f"{plan.warnings[0]}; {help_}"))


def _findings(plan: Plan, table: PublicTable) -> Iterator[_Finding]:
    known = {name: one.value for name, one in plan.expected.items()}
    widths = {column.name: column.upper - column.lower for column in table.numeric}
    widths |= {plan.columns[one.place]: one.ends[1] - one.ends[0] for one in plan.transforms}
    for name, value in known.items():
        match name, value:
            case "mean_error", Mapping():
                yield from _of_range("the noise of a mean is", {c: (error, widths[c], c) for c, error in value.items()})
            case "coef_error", Mapping():
                target = plan.columns[-1]
                # From the middle of a feature's range to its end.
                ends = {c: (error * widths[c] / 2.0, widths[target], target) for c, error in value.items()}
                yield from _of_range("the noise of a coefficient moves predictions by", ends)
            case "relative_error", float() if known.keys().isdisjoint(("mean_error", "coef_error")):
                yield from _above(
                    value, USELESS_LEVEL, f"noise moves parameters by {value:.2g} noise levels of the model"
                )
            case "table_error", float():
                yield from _above(value, USELESS_TABLE, f"noise moves {_percent(value)} of the rows of a table")
            case "relative_sse", float():
                text = f"the predicted sum of squares is {value:.2g} times Lloyd's, as one centre for all rows has"
                yield from _above(value, USELESS_SSE, text)
    if plan.preflight is not None:
        for rule in plan.preflight.rules:
            text = f"{rule.name}: there is {_percent(rule.margin)} of what finding components takes"
            yield from [_Finding(text, useless=True)] * (not rule.margin >= USELESS_MARGIN)


def _of_range(what: str, errors: Mapping[str, tuple[float, float, str]]) -> Iterator[_Finding]:
    """Yield what noise does to numbers by column: of error, width and name of the column whose range counts.

    The least one decides: where one unit serves all columns, narrow ones are not expected to say anything.
    """
    error, width, column = min(errors.values(), key=lambda one: one[0] / one[1])
    if not error / width < ROUGH_RANGE:
        others = "" if len(errors) == 1 else " at best"
        text = f"{what} {_percent(error / width)} of the range of {column!r}{others}"
        yield _Finding(text, useless=not error / width < USELESS_RANGE)


def _above(value: float, limit: float, text: str) -> Iterator[_Finding]:
    if not value < limit:
        yield _Finding(text, useless=True)


def _percent(share: float) -> str:
    return f"{100.0 * share:,.0f} %" if share >= 0.01 else f"{100.0 * share:.1g} %"
