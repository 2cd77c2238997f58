"""Report as a PDF: the HTML page of `_report`, element by element, on A4 pages.

The page is taken apart rather than written a second time, so that both say the same. Only elements of the report's own
templates are known; texts in them are written as texts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from fpdf import FPDF
from fpdf.enums import TableBordersLayout
from fpdf.fonts import FontFace, TTFFont

from ._charts import burn_down_figure, colours_of
from ._history import History
from ._language import language
from ._spend import by_cost

_SIZE = 9.5  # points of text; a line of a hash fits
_LINE = 5.0  # millimetres from line to line
_HEADINGS = {"h1": (20, 4), "h2": (15, 3), "h3": (11.5, 2)}
"""Points, and millimetres below, of headings."""
_INK, _SOFT, _SPENT, _PAPER = "#1f2933", "#5b6770", "#0072B2", "#e3e6e9"
_WIDE = 190 / 210  # part of an A4 page's width that a chart takes
_COLOUR = re.compile(r"background:(#[0-9A-Fa-f]{6})")
_WIDTH = re.compile(r"width:([0-9.]+)%")
_SKIPPED = {"svg", "style", "title"}
_INLINE = {"strong": "B", "code": "M"}
_CHART = 130
"""Millimetres of a chart with its heading and legend."""
_DOTS = 160
"""Dots an inch of a chart."""


def pdf_of(page: str, told: History, now: datetime) -> bytes:
    """Return the PDF of a report's HTML page; its charts are drawn from `told`."""
    pdf = FPDF(format="A4")
    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"  # they have what Latin, Greek and Cyrillic names need
    pdf.add_font("sans", "", fonts / "DejaVuSans.ttf")
    pdf.add_font("sans", "B", fonts / "DejaVuSans-Bold.ttf")
    pdf.add_font("mono", "", fonts / "DejaVuSansMono.ttf")
    pdf.set_creation_date(now)
    pdf.set_lang(language())
    pdf.set_auto_page_break(True, 15)
    pdf.add_page()
    writer = _Writer(pdf, _charts(told))
    writer.feed(page)
    writer.close()
    return bytes(pdf.output())


def _charts(told: History) -> Iterator[bytes]:
    """Yield a picture of each account that the page has a chart of, in its order."""
    for account in told.accounts.values():
        if account.debits:
            picture = io.BytesIO()
            burn_down_figure(account.burn_down, colours_of(by_cost(account))).savefig(picture, format="png", dpi=_DOTS)
            yield picture.getvalue()


class _Writer(HTMLParser):
    """Writer of the report's elements."""

    def __init__(self, pdf: FPDF, charts: Iterator[bytes]) -> None:
        super().__init__(convert_charrefs=True)
        self._pdf, self._charts = pdf, charts
        self._skipping = ""
        self._rows: list[list[str]] | None = None
        self._space = ""
        self._known = cast(TTFFont, pdf.fonts["sans"]).cmap
        self._font()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        if self._skipping:
            return
        given = {name: value or "" for name, value in attrs}
        if tag in _SKIPPED:
            self._skipping = tag
            if tag == "svg":
                self._chart()
        elif self._rows is not None:
            if tag == "tr":
                self._rows.append([])
            elif tag in ("td", "th"):
                self._rows[-1].append("")
        elif tag == "table":
            self._rows = []
        else:
            self._begin(tag, given)

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        if self._skipping:
            self._skipping = "" if tag == self._skipping else self._skipping
        elif tag == "table" and self._rows is not None:
            self._table(self._rows)
            self._rows = None
        elif self._rows is None:
            self._end(tag)

    def handle_data(self, data: str) -> None:
        """Write text."""
        text = self._writable(re.sub(r"\s+", " ", data))
        if self._skipping or not text:
            return
        if self._rows is not None:
            if self._rows and self._rows[-1] and (self._rows[-1][-1] or text.strip()):
                self._rows[-1][-1] += text
        elif text.strip():
            begun = self._pdf.get_x() > self._pdf.l_margin + 0.01
            # A space stays with the word after it: a line can only be broken within what is written at once.
            text = self._space + text if begun else text.lstrip()
            self._pdf.write(_LINE, text.rstrip())
            self._space = " " if text.endswith(" ") else ""
        else:
            self._space = " "

    def _begin(self, tag: str, given: dict[str, str]) -> None:
        pdf = self._pdf
        if tag in _HEADINGS:
            size, below = _HEADINGS[tag]
            self._line(below + 1)
            if pdf.get_y() > pdf.h - (_CHART if "chart" in given.get("class", "") else 50):  # it stays with its text
                pdf.add_page()
            pdf.set_font("sans", "B", size)
        elif tag == "li":
            self._line()
            pdf.set_left_margin(pdf.l_margin + 5)
            pdf.write(_LINE, "\u2022 ")
        elif tag in ("p", "summary", "figcaption"):
            self._line(1)
            pdf.set_font("sans", "B" if "verdict" in given.get("class", "") else "", _SIZE + 2 * (tag == "summary"))
        elif tag == "dt":
            self._line()
            pdf.set_text_color(_SOFT)
        elif tag in _INLINE:
            self._font(_INLINE[tag])
        elif tag == "sup":
            pdf.char_vpos = "SUP"
        elif tag == "span" and "dash" in given.get("class", ""):
            pdf.write(_LINE, "   \u25c7 ")
        elif tag == "span" and "entry" in given.get("class", ""):
            pdf.set_text_color(_SOFT)
        elif tag == "span" and "dot" in given.get("class", "") and (colour := _COLOUR.search(given.get("style", ""))):
            pdf.set_text_color(colour[1])
            pdf.write(_LINE, "   \u25cf ")
            pdf.set_text_color(_INK)
        elif tag == "span" and (width := _WIDTH.search(given.get("style", ""))):
            self._bar(float(width[1]) / 100)

    def _end(self, tag: str) -> None:
        pdf = self._pdf
        if tag in _HEADINGS:
            self._line(_HEADINGS[tag][1])
            self._font()
        elif tag == "li":
            pdf.set_left_margin(pdf.l_margin - 5)
            self._line(0.5)
        elif tag == "dt":
            pdf.set_text_color(_INK)
            pdf.write(_LINE, ":")
            self._space = " "
        elif tag in ("p", "dd", "summary", "figcaption"):
            self._line(1 if tag == "p" else 0)
            self._font()
        elif tag in _INLINE or tag == "span":
            self._font()
        elif tag == "sup":
            pdf.char_vpos = "LINE"

    def _font(self, style: str = "") -> None:
        self._pdf.set_text_color(_INK)
        if style == "M":
            self._pdf.set_font("mono", "", _SIZE - 1)
        else:
            self._pdf.set_font("sans", style, _SIZE)

    def _line(self, below: float = 0) -> None:
        """Begin a new line, unless one has begun, and leave some millimetres."""
        if self._pdf.get_x() > self._pdf.l_margin + 0.01:
            self._pdf.ln(_LINE)
        self._pdf.ln(below)
        self._space = ""

    def _bar(self, share: float) -> None:
        self._line()
        pdf, width = self._pdf, self._pdf.epw
        for colour, part in ((_PAPER, 1.0), (_SPENT, share)):
            pdf.set_fill_color(colour)
            pdf.rect(pdf.l_margin, pdf.get_y(), width * part, 3, "F")
        pdf.ln(5)

    def _chart(self) -> None:
        self._line()
        self._pdf.image(io.BytesIO(next(self._charts)), w=self._pdf.w * _WIDE - 10)

    def _table(self, rows: Sequence[Sequence[str]]) -> None:
        if not rows:
            return
        self._line(1)
        self._pdf.set_font("sans", "", _SIZE - 1.5)
        self._pdf.set_fill_color("#ffffff")
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        layout: dict[str, Any] = {
            "borders_layout": TableBordersLayout.HORIZONTAL_LINES,
            "headings_style": FontFace(emphasis="BOLD"),
            # Long texts wrap; short columns keep the room that a heading needs.
            "col_widths": tuple(min(max(width, 12), 40) for width in widths),
            "line_height": _LINE - 0.5,
            "text_align": "LEFT",
        }
        with self._pdf.table(**layout) as table:
            for cells in rows:
                table.row([cell.strip() for cell in cells])
        self._line(2)
        self._font()

    def _writable(self, text: str) -> str:
        """Return a text with an escape for each character that the font lacks."""
        return "".join(c if ord(c) in self._known else f"\\u{{{ord(c):x}}}" for c in text)
