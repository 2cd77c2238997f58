"""Report as an Excel workbook: what verification found, budgets, analysts, entries in sentences and figures, refusals.

No cell is a formula or a link, whatever the ledger holds: texts are written as texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import xlsxwriter

from ..refusals import Refusal
from ._checks import Findings
from ._columns import COLUMNS, Line
from ._history import History
from ._language import say
from ._open import Row
from ._report import analysts_in_words, refusal_in_words, report_facts
from ._sentences import story
from ._spend import Spend, spend_lines
from ._text import visible
from ._text_output import assurances, reservations
from ._verdict import verdict

_MOST = 1_000_000
"""Entries of a sheet, which has 2**20 rows."""
_LONGEST = 32_767
"""Characters of a cell."""
_EXACT = 2**53
"""Whole numbers from here on are not exact in a cell, whose numbers are floats; they become texts."""
_WIDTHS = {int: 12, float: 14, bool: 10, str: 22}
_SENTENCE = 110
"""Width of a column of sentences, in characters: about what a screen shows beside the entry's number."""


def write_workbook(
    path: Path,
    name: str,
    found: Findings,
    told: History,
    refusals: Sequence[Refusal] | None,
    entries: Iterable[tuple[Row, Line]],
    now: datetime,
) -> None:
    """Write the workbook. Raises click.ClickException if there are more entries than a sheet has rows."""
    plain = {"strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
    with xlsxwriter.Workbook(path, plain) as book:
        book.set_properties({"title": say("Privacy ledger"), "created": now.replace(tzinfo=None)})
        styles = _Styles(book.add_format({"bold": True, "bottom": 1}), book.add_format({"text_wrap": True}))
        judged = verdict(found)
        facts = [
            (judged.text, ""),
            *report_facts(name, found, told, now),
            *((cause.text, finding) for cause in judged.causes for finding in cause.findings),
            *((text, "") for text in (*judged.still_certain, *assurances(found), *reservations(found))),
        ]
        _sheet(book, styles, say("Overview"), ("", ""), facts, (60, 90))
        _sheet(book, styles, say("Budgets"), _SPEND, [_cells(line) for line in _spends(told, by_analyst=False)])
        _sheet(book, styles, say("Analysts"), _SPEND, [_cells(line) for line in _spends(told, by_analyst=True)])
        sentences = [(text,) for _, text in analysts_in_words(told)]
        _sheet(book, styles, say("Analysts, in words"), (say("What"),), sentences, (_SENTENCE,))
        header = ("entry", say("What"), *(name for name in COLUMNS if name != "entry"))
        widths = (8, _SENTENCE, *(_WIDTHS[kind] for name, kind in COLUMNS.items() if name != "entry"))
        _sheet(book, styles, say("Entries"), header, map(_entry, entries), widths)
        told_refusals = [(refusal_in_words(one, told),) for one in refusals or ()]
        _sheet(book, styles, say("Refusals"), (say("What"),), told_refusals, (_SENTENCE,))


@dataclasses.dataclass(frozen=True)
class _Styles:
    """Formats of a workbook: of a header, and of texts, which wrap."""

    header: Any
    text: Any


_SPEND = tuple(field.name for field in dataclasses.fields(Spend))


def _spends(told: History, *, by_analyst: bool) -> list[Spend]:
    return [
        line for account in told.accounts.values() for line in spend_lines(account, by_analyst=by_analyst, pld=False)
    ]


def _cells(line: Spend) -> Sequence[object]:
    return [getattr(line, name) for name in _SPEND]


def _entry(entry: tuple[Row, Line]) -> Sequence[object]:
    row, line = entry
    return [row.number, story(row, line).text, *(getattr(line, name) for name in COLUMNS if name != "entry")]


def _sheet(
    book: Any,
    styles: _Styles,
    name: str,
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    widths: Sequence[int] = (),
) -> None:
    sheet = book.add_worksheet(name)
    for column, width in enumerate(widths or [18] * len(header)):
        sheet.set_column(column, column, width)
    sheet.write_row(0, 0, header, styles.header)
    sheet.freeze_panes(1, 0)
    last = 0
    for last, row in enumerate(rows, 1):
        if last > _MOST:
            raise click.ClickException(
                f"a sheet has room for {_MOST:,} entries; take bursar-audit entries --format csv"
            )
        for column, value in enumerate(row):
            _write(sheet, last, column, value, styles.text)
    if last and len(header) > 1:
        sheet.autofilter(0, 0, last, len(header) - 1)


def _write(sheet: Any, row: int, column: int, value: object, text: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        sheet.write_boolean(row, column, value)
    elif (
        isinstance(value, int | float) and abs(value) < _EXACT
    ):  # false for infinite numbers and for those that are none
        sheet.write_number(row, column, value)
    else:
        sheet.write_string(row, column, visible(value)[:_LONGEST], text)
