"""Printing: tables that fit a terminal, JSON with the SDK's own names, nothing that steers a terminal."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click
import numpy as np

from bursar_models.budget import Remaining
from bursar_models.schema import CategoricalColumn, NumericColumn
from bursar_models.text import visible

_GAP = "  "
_LEAST = 6
"""Width in characters below which no column is wrapped."""

_KINDS = {NumericColumn: "numeric", CategoricalColumn: "categorical"}


def colours() -> bool | None:
    """Return False where NO_COLOR is set (https://no-color.org), else None: click then looks for a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def say(text: object, *, err: bool = False) -> None:
    """Print text of one or more lines; what is not printable in them is escaped.

    Standard error has everything that is no result.
    """
    for line in str(text).splitlines():
        click.echo(visible(line), err=err)


def say_json(value: object) -> None:
    """Print a value of the SDK as JSON, indented; every field under its SDK's name."""
    click.echo(json_text(value), nl=False)


def json_text(value: object) -> str:
    """A value of the SDK as JSON, with a line break at its end."""
    return f"{json.dumps(plain(value), indent=2, allow_nan=False)}\n"


def plain(value: object) -> Any:
    """A value of the SDK as JSON has it: objects by their public fields, enumerations by their values.

    A `Remaining` also has its `epsilon` and `share`, a column its `kind`. Numbers that JSON does not have are null.
    """
    match value:
        case enum.Enum():
            return value.value
        case float() | np.floating():
            return float(value) if math.isfinite(value) else None
        case np.integer() | np.bool_() | np.ndarray():
            return plain(value.tolist())
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    return value


def _fields(value: Any) -> dict[str, Any]:
    named = [field.name for field in dataclasses.fields(value) if not field.name.startswith("_")]
    fields = {name: plain(getattr(value, name)) for name in named}
    if isinstance(value, Remaining):
        fields |= {"epsilon": plain(value.epsilon), "share": value.share}
    kind = _KINDS.get(type(value))
    return fields if kind is None else {"kind": kind, **fields}


def say_table(header: Sequence[str], rows: Sequence[Sequence[object]], whole: Collection[str] = ()) -> None:
    """Print left-aligned columns under a bold header; on a terminal that is too narrow, the widest ones are wrapped.

    Columns that are `whole` are never wrapped, because people copy what is in them.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = table(header, rows, width, whole)
    for place, line in enumerate(lines):
        click.echo(click.style(line, bold=True) if place == 0 else line, color=colours())


def chosen(
    columns: str | None, header: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Return the header and the rows of the columns that were asked for, in their order.

    Raises:
        click.UsageError: there is no such column.
    """
    if columns is None:
        return header, rows
    names = [name.strip() for name in columns.split(",") if name.strip()]
    if unknown := [name for name in names if name not in header]:
        raise click.UsageError(f"--columns: {unknown[0]!r} is none of {','.join(header)}")
    places = [header.index(name) for name in names]
    return names, [[row[place] for place in places] for row in rows]


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], width: int | None = None, whole: Collection[str] = ()
) -> list[str]:
    """Lines of left-aligned columns.

    Cells of the widest columns that are not `whole` are wrapped to fit `width` characters; None is any number.

    Returns:
        Lines; the first one is the header unless a name in it is wrapped.
    """
    cells = [[visible(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        kept = [name in whole for name in header]
        widths = _fitting(widths, kept, width - len(_GAP) * (len(widths) - 1))
    return [
        _GAP.join(part.ljust(most) for part, most in zip(line, widths, strict=True)).rstrip()
        for row in cells
        for line in itertools.zip_longest(*map(_wrapped, row, widths), fillvalue="")
    ]


def _fitting(widths: Sequence[int], kept: Sequence[bool], total: int) -> list[int]:
    """Widths that add up to `total`, if that can be: the wide ones share what the narrow and the kept ones leave."""
    fitting = list(widths)
    while sum(fitting) > total:
        width, place = max(((w, p) for p, w in enumerate(fitting) if not kept[p]), default=(0, 0))
        if width <= _LEAST:
            break
        fitting[place] -= 1
    return fitting


def _wrapped(cell: str, most: int) -> list[str]:
    return [cell] if len(cell) <= most else textwrap.wrap(cell, most)
