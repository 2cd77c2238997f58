"""`bursar-admin plan`: what total an analyst's plan of several fits needs. Opens no state unless it is asked to."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context
from fractions import Fraction
from pathlib import Path

import click

from bursar_amounts import epsilon_of, total_text
from bursar_ledger import Budget
from bursar_ledger.audit._text import counted
from bursar_models.budget import implied_rho
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import Study
from bursar_server.admin._acting import JSON, PATH, explained, say_json
from bursar_server.admin._shares import table

_LEAST = 1e-3
"""Least epsilon of a total that is named; a tiny rho implies none at a large delta."""


@click.command()
@click.argument("file", type=PATH)
@click.option("--delta", type=float, default=1e-6, show_default=True, help="Delta of the total.")
@JSON
def plan(file: Path, delta: float, as_json: bool) -> None:
    """Say what total the plan of an analyst needs: an epsilon at a delta, and what each fit takes of it.

    FILE is what `bursar plan --save` wrote. Nothing is asked of a server, and nothing is changed. Costs are shown as
    the epsilon that they imply by themselves, and as percent of that total. A pure epsilon counts as the rho that it
    implies, half its square.

    \b
      bursar-admin plan study.json --delta 1e-6
    """  # noqa: D301  click reads the backslash
    with explained():
        try:
            study = Study.load(file)
        except InvalidRequestError as error:
            raise ValueError(str(error)) from error
        amounts = [Fraction(0) if one is None else implied_rho(one) for one in study.spends]
        total = sum(amounts, Fraction(0))
        budget = Budget(needed(total, delta), delta)
    parts = [budget.part_of_rho(amount) for amount in amounts]
    epsilon = budget.epsilon if total else 0.0
    if as_json:
        fits = [
            {"request_id": name, "fit": type(request).__name__, **part.to_dict(), "rho": float(amount)}
            for name, request, amount, part in zip(study.request_ids, study.requests, amounts, parts, strict=True)
        ]
        say_json({"dataset": study.dataset, "rho": float(total), "epsilon": epsilon, "delta": delta, "fits": fits})
        return
    rows = [
        [type(request).__name__, str(part) if amount else "free", f"{float(amount):.6g}"]
        for request, part, amount in zip(study.requests, parts, amounts, strict=True)
    ]
    click.echo(table([["fit", "cost", "rho"], *rows]))
    one = len(rows) == 1
    verdict = f"need{'s' * one} a total of {total_text(epsilon, delta)}: rho {float(total):.6g}"
    click.echo(
        f"{counted(len(rows), 'fit')} of {study.dataset!r} {verdict if total else 'is free' if one else 'are free'}"
    )


def needed(rho: Fraction, delta: float) -> float:
    """Return an epsilon whose total at `delta` pays for rho, in four digits, rounded up. Raises ValueError."""
    if not rho:
        return _LEAST
    digits = Context(prec=4, rounding=ROUND_CEILING)
    # A little more leaves room for what the ledger rounds up, and a total must be positive.
    return max(float(digits.create_decimal_from_float(epsilon_of(float(rho) * (1.0 + 1e-6), delta))), _LEAST)
