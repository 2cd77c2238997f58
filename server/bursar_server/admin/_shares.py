"""Shares of a total as people write them, exact; and amounts as people read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

import click

from bursar_ledger import COST_UNIT, DELTA_UNIT

_DECIMAL = re.compile(r"(?=\.?\d)\d{0,9}\.?\d{0,12}", re.ASCII)
_RATIO = re.compile(r"\d{1,9}/\d{1,9}", re.ASCII)


class Share(click.ParamType[Fraction]):
    """A share as "25%", "1/4" or "0.25": what was typed, and not the float nearest to it."""

    name = "share"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """The exact fraction, from 0 to 1."""
        if isinstance(value, Fraction):
            return value
        share = _exact(str(value).strip())
        if share is None or not 0 <= share <= 1:
            self.fail(f"{value!r} is not a share; write 25%, 1/4 or 0.25, from 0 to 1", param, ctx)
        return share


def _exact(text: str) -> Fraction | None:
    number = text.removesuffix("%")
    if _RATIO.fullmatch(text):
        above, _, below = text.partition("/")
        return Fraction(int(above), int(below)) if int(below) else None
    if not _DECIMAL.fullmatch(number):
        return None
    return Fraction(number) / (100 if text.endswith("%") else 1)


def rho(units: int, order: Fraction) -> str:
    """Units of cost as the rho that they are worth in Gaussian noise."""
    return f"rho {float(Fraction(units) / (COST_UNIT * order)):.6g}"


def delta(units: int) -> str:
    """Units of the probability of failure."""
    return f"{units / DELTA_UNIT:.3g}"


def percent(part: int | Fraction, whole: int = 1) -> str:
    """A share of a whole."""
    return f"{float(Fraction(part) / whole):.1%}" if whole else "-"


def visible(text: object) -> str:
    """Text with control characters made visible: a ledger may hold what somebody else wrote."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in str(text))


def table(rows: Sequence[Sequence[object]], indent: str = "") -> str:
    """Left-aligned columns."""
    cells = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in cells
    )
