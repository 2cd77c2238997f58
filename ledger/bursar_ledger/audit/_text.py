"""Text for terminals and files: tables, numbers, and nothing that a forged ledger could write to a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

_CHUNK = 500


def visible(text: object) -> str:
    """`text` with everything that is not printable (controls, line breaks, directions of writing) as an escape."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Left-aligned columns, as wide as needed."""
    return "\n".join(table_lines(header, rows))


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The lines of a table. Widths are those of the first rows, so that a table of any length needs little memory."""
    rest = iter(rows)
    first = [[visible(cell) for cell in row] for row in itertools.chain([header], itertools.islice(rest, _CHUNK))]
    widths = [max(map(len, column)) for column in zip(*first, strict=True)]
    for line in itertools.chain(first, ([visible(cell) for cell in row] for row in rest)):
        yield "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()


def number(value: float | None, digits: int = 6) -> str:
    """A number for people; "-" for None."""
    return "-" if value is None else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    """A part of a whole in percent; "-" for None."""
    return "-" if value is None else f"{value:.1%}"


def counted(count: int, thing: str) -> str:
    """A number of things: 1 debit, 2 debits."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
