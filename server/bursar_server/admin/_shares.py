"""Shares of a budget as people write them, exact; and tables as people read them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fractions import Fraction

import click

from bursar_amounts import DELTA_UNIT, bound_text
from bursar_ledger.audit._text import short_time, table_lines, terminal_width

_DECIMAL = re.compile(r"(?=\.?\d)\d{0,9}\.?\d{0,12}", re.ASCII)
_RATIO = re.compile(r"\d{1,9}/\d{1,9}", re.ASCII)


class Share(click.ParamType[Fraction]):
    """Share such as "25%", "1/4" or "0.25": the exact fraction that was typed, and not the float nearest to it."""

    name = "share"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Return the exact fraction, from 0 to 1."""
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


def delta(units: int, *, is_left: bool = False) -> str:
    """Return units of failure probability as text, rounded up; a limit is rounded down."""
    return bound_text(Fraction(units, DELTA_UNIT), is_left=is_left)


def table(rows: Sequence[Sequence[object]], indent: str = "", whole: Collection[str] = ()) -> str:
    """Return left-aligned columns; on a terminal that is too narrow, the widest ones are shortened.

    The first row is the header; `whole` are headers of columns that are never shortened.
    """
    width = terminal_width()
    fitting = None if width is None else width - len(indent)
    header = [str(cell) for cell in rows[0]]
    return "\n".join(indent + line for line in table_lines(header, rows[1:], width=fitting, whole=whole))


def moment(time: str) -> str:
    """Return a time for a table: shorter on a terminal, as it is in a pipe."""
    return time if terminal_width() is None else short_time(time)
