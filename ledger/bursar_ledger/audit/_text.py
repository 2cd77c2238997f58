"""Text for terminals and files: tables, numbers, and nothing that a forged ledger could write to a terminal."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

_CHUNK = 500
"""First rows of a table, whose cells set the widths of its columns."""
_GAP = "  "
_LEAST = 8
"""Characters to which a column may be shortened."""


def visible(text: object) -> str:
    """Return `text` with all that is not printable (controls, line breaks, directions of writing) as an escape."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return left-aligned columns, as wide as needed."""
    return "\n".join(table_lines(header, rows))


def terminal_width() -> int | None:
    """Return the width of standard output's terminal; None for a file or a pipe, where tables have any width."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def short_time(time: str) -> str:
    """Return an RFC 3339 time to the minute, for a table that has to fit; anything else is cut to the same length."""
    return time[:16].replace("T", " ")


def table_lines(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int | None = None,
    whole: Collection[str] = (),
) -> Iterator[str]:
    """Yield the lines of a table. Widths are those of the first rows, so that a long table needs little memory.

    Args:
        header: names of the columns.
        rows: cells, as many in each.
        width: characters in a line; the widest columns are shortened to fit, but to no fewer than 8. None for any.
        whole: columns that are never shortened, because people copy what is in them.
    """
    rest = iter(rows)
    first = [[visible(cell) for cell in row] for row in itertools.chain([header], itertools.islice(rest, _CHUNK))]
    widths = [max(map(len, column)) for column in zip(*first, strict=True)]
    if width is not None:
        widths = _fitting(widths, [name in whole for name in header], width - len(_GAP) * (len(widths) - 1))
    for line in itertools.chain(first, ([visible(cell) for cell in row] for row in rest)):
        cells = line if width is None else map(_shortened, line, widths)
        yield _GAP.join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip()


def _fitting(widths: Sequence[int], kept: Sequence[bool], total: int) -> list[int]:
    """Return widths that add up to `total`, if possible: wide columns share what the narrow and the kept ones leave."""
    fitting = list(widths)
    while sum(fitting) > total:
        widest, place = max(((w, p) for p, w in enumerate(fitting) if not kept[p]), default=(0, 0))
        if widest <= _LEAST:
            break
        fitting[place] -= 1
    return fitting


def _shortened(cell: str, most: int) -> str:
    return cell if len(cell) <= most else f"{cell[: most - 3]}..."


def number(value: float | None, digits: int = 6) -> str:
    """Return a number for people; "-" for None."""
    return "-" if value is None else f"{value:.{digits}g}"


def counted(count: int, thing: str) -> str:
    """Return a number of things in words: 1 debit, 2 debits."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
