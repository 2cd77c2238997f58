"""Small tables for terminals and notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of right-aligned cells under their headers, indented by two spaces, one line a row."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (headers, *rows)]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def html_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as HTML, with everything escaped: names and descriptions come from a server."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in headers)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = html.escape(title)
    return f"<div><p>{caption}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
