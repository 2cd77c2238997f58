"""Small tables and bars as text for terminals and as HTML for notebooks."""

from __future__ import annotations

import html
from abc import abstractmethod
from collections.abc import Sequence


def visible(text: object) -> str:
    """`text` in one line with everything that is not printable as an escape: names come from a server or a file."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def harmless(text: str) -> str:
    """Return the lines of a text with everything else that is not printable as an escape."""
    return "\n".join(map(visible, text.split("\n")))


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of right-aligned cells under their headers, indented by two spaces, one line a row."""
    headers, rows = [*map(visible, headers)], [[*map(visible, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (headers, *rows)]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def text_bar(share: float, width: int = 20) -> str:
    """Return a bar of `width` characters, filled to a share, 0 to 1.

    A share above 0 shows at least one filled character, a share below 1 at least one empty one.
    """
    filled = min(max(round(share * width), int(share > 0)), width - int(share < 1))
    return "#" * filled + "." * (width - filled)


def html_bar(share: float) -> str:
    """Return a bar as HTML, which needs no style sheet, with its number for screen readers."""
    percent = min(max(100 * share, 0.0), 100.0)
    return (
        f'<div role="img" aria-label="{percent:.1f}%" style="display:inline-block;width:12em;height:.8em;'
        'border:1px solid #888;vertical-align:middle">'
        f'<div style="width:{percent:.1f}%;height:100%;background:#4c78a8"></div></div> {percent:.1f}%'
    )


def html_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML, with everything escaped: names and descriptions come from a server."""
    # Directions of writing, too, which would turn what stands beside a name.
    head = "".join(f"<th>{html.escape(visible(cell))}</th>" for cell in headers)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(visible(cell))}</td>' for cell in row)}</tr>" for row in rows)
    caption = html.escape(visible(title))
    return f"<div><p>{caption}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


class TableText:
    """Base of values that are shown as a title over a table, on terminals and in notebooks."""

    @abstractmethod
    def _title(self) -> str:
        """Return the line above the table."""

    @abstractmethod
    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return headers and rows."""

    def __repr__(self) -> str:
        return harmless(f"{self._title()}\n{text_table(*self._table())}")

    def _repr_html_(self) -> str:
        return html_table(self._title(), *self._table())
