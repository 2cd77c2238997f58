"""Shares of a total as people write them, exact; and amounts as people read them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fractions import Fraction

import click

from bursar_ledger import COST_UNIT, DELTA_UNIT
from bursar_ledger.audit._text import short_time, table_lines, terminal_width

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


def amount(units: int, cap: int, order: Fraction) -> dict[str, object]:
    """Units of cost for programs: exact, as the rho that they are worth in Gaussian noise, and as a share of a cap."""
    worth = float(Fraction(units) / (COST_UNIT * order))
    return {"rho": worth, "share": float(Fraction(units, cap)) if cap else None, "cost_units": units}


def table(rows: Sequence[Sequence[object]], indent: str = "", whole: Collection[str] = ()) -> str:
    """Left-aligned columns; on a terminal that is too narrow, the widest ones are shortened.

    Args:
        rows: cells, those of the header first.
        indent: before every line.
        whole: columns, by their header, that are never shortened.
    """
    width = terminal_width()
    fitting = None if width is None else width - len(indent)
    header = [str(cell) for cell in rows[0]]
    return "\n".join(indent + line for line in table_lines(header, rows[1:], width=fitting, whole=whole))


def moment(time: str) -> str:
    """A time for a table: shorter on a terminal, as it is in a pipe."""
    return time if terminal_width() is None else short_time(time)
