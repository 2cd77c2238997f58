"""Sentences on what a total means for a person, and confirmation of totals that protect hardly anybody."""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal
from statistics import NormalDist

import click

from bursar_amounts import Part, total_text
from bursar_ledger import Budget
from bursar_server.admin._acting import Act
from bursar_server.tables.registration import dangers

_DOWN = Context(prec=3, rounding=ROUND_FLOOR)

TYPICAL = 0.005
"""Rho of a typical fit: see docs/choosing-budget.md."""

I_KNOW = click.option("--i-know", is_flag=True, help="A total that protects hardly anybody is meant so.")


def sentence(total: Budget) -> str:
    """Return what a total means for a person, and what it buys."""
    one = typical(total)
    fits = total.cap_cost_units // one.cost_units
    worst, against_gaussian = guesses(total)
    return (
        f"{total_text(total.epsilon, total.delta)} for a person: whoever sees all that is ever released, and cannot "
        f"tell beforehand whether it is with this person's data, may guess right {worst} times of 100 at "
        f"most, and {against_gaussian} times if all of it is Gaussian noise; it buys "
        f"{'more than 10,000' if fits > 10_000 else fits} fits of {one}"
    )


def typical(total: Budget) -> Part:
    """Return the amount of a typical fit."""
    return total.part_of_rho(TYPICAL)


def guesses(total: Budget) -> tuple[str, str]:
    """Return how often of 100 times a guess from fifty-fifty is right: at most, and against Gaussian noise alone.

    Of (epsilon, delta) one is wrong with a probability of (1 - delta) / (1 + exp(epsilon)) at least (Kairouz, Oh and
    Viswanath 2015).
    """
    wrong = (1 - total.delta) / (1 + math.exp(min(total.epsilon, 700)))
    return _of_hundred(wrong), _of_hundred(NormalDist().cdf(-math.sqrt(_rho(total) / 2)))


def confirm_total(acting: Act, name: str, total: Budget, rows: int | None, *, i_know: bool) -> None:
    """Let the administrator type the name of a dataset whose total protects hardly anybody.

    Raises ClickException without a terminal and without --i-know, or if something else is typed.
    """
    found = dangers(total, rows)
    for danger in found:
        click.secho(danger, fg="red", bold=True, err=True)
    if not found or i_know or acting.dry_run:
        return
    acting.typed(name, f"This total protects hardly anybody. Type {name} to promise it all the same", "--i-know")


def _rho(total: Budget) -> float:
    return float(total.part(total.cap_cost_units).rho)


def _of_hundred(wrong: float) -> str:
    """Return how often of 100 times a guess is right that is wrong with this probability; rounded up, to less than 100.

    Three digits are kept of how often it is wrong.
    """
    exact = Context(prec=30)
    return f"{exact.subtract(Decimal(100), _DOWN.create_decimal_from_float(100 * wrong)).normalize(exact):f}"
