"""Types as tables have them: what a cell becomes is a function of that cell and of the manifest alone."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bursar_server.tables import (
    Csv,
    CsvSource,
    Fingerprint,
    ImportReport,
    Manifest,
    ManifestError,
    ParquetSource,
    Snapshot,
    TableImportError,
)
from bursar_server.tables._cells import parse

Load = Callable[..., tuple[ImportReport, Snapshot]]
Slots = Callable[[Snapshot], list[tuple[Any, ...] | None]]

GERMAN: dict[str, Any] = {
    "name": "german",
    "adjacency": "add_remove_one",
    "csv": {"delimiter": ";", "encoding": "latin-1"},
    "columns": [
        {
            "name": "income", "kind": "numeric", "lower": 0.0, "upper": 1e6, "nullable": True,
            "decimal": ",", "thousands": ".", "null_values": ["k.A.", 999],
        },
        {
            "name": "sex", "kind": "categorical", "categories": ["m", "w"], "case": "ignore", "trim": True,
            "aliases": {"männlich": "m"}, "null_values": ["?"],
        },
        {"name": "ward", "kind": "categorical", "categories": [1, 2, "rest"], "other": "rest", "aliases": {"": "rest"}},
        {
            "name": "born", "kind": "numeric", "lower": -1200, "upper": 1200, "nullable": True,
            "date": {"unit": "months", "since": "1970-01-01", "format": "%d.%m.%Y"}, "null_values": ["01.01.1900"],
        },
        {"name": "smoker", "kind": "boolean", "true": ["True", "ja", 1], "false": ["nein", 0], "null_values": ["?"]},
        {
            "name": "code", "kind": "categorical", "categories": ["A", "C"], "first": 1, "case": "ignore",
            "aliases": {"b": "A"},
        },
    ],
}  # fmt: skip
COLUMNS: list[dict[str, Any]] = GERMAN["columns"]
HEADER = ("income", "sex", "ward", "born", "smoker", "code")

INCOMES = {
    "1.234,56": 1234.56, "1234,56": 1234.56, "12": 12.0, "1e3": 1000.0, "-5": 0.0, "9.999.999": 1e6, " 7,5 ": 7.5,
    "1.23": None, "1,234.56": None, "12.34,5": None, "1.2345": None, "k.A.": None, "999": None, "999,0": None, "": None,
    "inf": None, "1_0": None, ",": None,
}  # fmt: skip
SEXES = {"m": 0, "M": 0, " w ": 1, "MÄNNLICH": 0, "?": None, "": None, "d": None, "m w": None}
WARDS = {"1": 0, "2": 1, "rest": 2, "7": 2, "": 2, " 1": 2, "Rest": 2}
DATES = {
    "31.01.1970": 0.0, "01.02.1970": 1.0, "15.12.1969": -1.0, "01.01.1900": None, "1970-01-01": None,
    "31.02.1970": None,
    "1.3.1970": 2.0, "": None, "01.01.0001": -1200.0, "heute": None,
}  # fmt: skip
ANSWERS = {"true": 1, "TRUE ": 1, "1": 1, "Ja": 1, "false": 0, "0": 0, "nein": 0, "?": None, "": None, "yes": None}
CODES = {"A": 0, "a01.5": 0, "B": 0, "bogus": 0, "C50": 1, "": None, "D": None, " A": None, "\u00e4": None}
KINDS: tuple[dict[str, Any], ...] = (INCOMES, SEXES, WARDS, DATES, ANSWERS, CODES)

rows = st.tuples(*(st.sampled_from(sorted(kind)) for kind in KINDS))


def expected(row: tuple[str, ...]) -> tuple[Any, ...] | None:
    """Return what a slot must hold, from its own cells alone."""
    found = tuple(kind[cell] for kind, cell in zip(KINDS, row, strict=True))
    return None if None in (found[1], found[4], found[5]) else found


@pytest.fixture(scope="module")
def given_rows(tmp_path_factory: pytest.TempPathFactory, load: Load, slots: Slots) -> Callable[..., list[Any]]:
    """Imports rows from a file of semicolons in latin-1; the content of every slot."""
    path = tmp_path_factory.mktemp("german") / "german.csv"
    manifest = Manifest.from_public(GERMAN)

    def read(table: list[tuple[str, ...]]) -> list[Any]:
        lines = [";".join(f'"{cell}"' if cell else "" for cell in row) for row in (HEADER, *table)]
        path.write_bytes("\r\n".join([*lines, ""]).encode("latin-1"))
        _, snapshot = load(manifest, CsvSource(path, manifest.csv))
        return [
            row and tuple(None if isinstance(cell, float) and math.isnan(cell) else cell for cell in row)
            for row in slots(snapshot)
        ]

    return read


@given(st.lists(rows, max_size=20))
def test_a_cell_is_read_by_itself(given_rows: Callable[..., list[Any]], table: list[Any]) -> None:
    """Numbers, categories and dates, each as the manifest writes them."""
    assert given_rows(table) == [expected(row) for row in table]


@pytest.mark.slow
@given(st.lists(rows, min_size=1, max_size=12), rows, st.data())
def test_files_that_differ_in_one_record_differ_in_one_slot(
    given_rows: Callable[..., list[Any]], table: list[Any], other: Any, data: st.DataObject
) -> None:
    """Every other slot is what it was, whatever replaces the record."""
    at = data.draw(st.integers(0, len(table) - 1))
    before, after = given_rows(table), given_rows([*table[:at], other, *table[at + 1 :]])
    assert len(before) == len(after)
    assert [one for i, one in enumerate(before) if i != at] == [one for i, one in enumerate(after) if i != at]


@example(["\x00", "1\x00", "٣", "1e999", "\ud7ff", "0" * 5000, "nan", "-inf", "%d.%m.%Y", "01.01.99999"])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(sorted(DATES))))
def test_any_text_is_a_value_or_none(cells: list[str]) -> None:
    """No cell raises, and no cell changes what another one becomes."""
    columns = Manifest.from_public(GERMAN).columns
    together = parse([pa.array(cells, pa.binary())] * len(columns), columns)
    for i, cell in enumerate(cells):
        alone = parse([pa.array([cell], pa.binary())] * len(columns), columns)
        for one, all_ in zip(alone, together, strict=True):
            assert np.array_equal(one, all_[i : i + 1], equal_nan=one.dtype == np.float64)


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.timestamp("us"), pa.timestamp("ns", tz="UTC")])
@pytest.mark.parametrize(("unit", "steps"), [("days", [0, 31, -1]), ("months", [0, 1, -1]), ("years", [0, 0, -1])])
def test_dates_of_parquet_need_no_format(
    tmp_path: Path, load: Load, slots: Slots, kind: pa.DataType, unit: str, steps: list[int]
) -> None:
    """They count the same steps as text; a null is missing."""
    days = [datetime.date(2000, 1, 1), datetime.date(2000, 2, 1), datetime.date(1999, 12, 31)]
    cells = pa.array([*days, None], pa.date32()).cast(pa.timestamp("us")).cast(kind)
    pq.write_table(pa.table({"born": cells}), tmp_path / "dates.parquet")
    date = {"unit": unit, "since": "2000-01-01"}
    column = {"name": "born", "kind": "numeric", "lower": -9999, "upper": 9999, "date": date}
    manifest = Manifest.from_public({"name": "d", "adjacency": "add_remove_one", "columns": [column]})
    _, snapshot = load(manifest, ParquetSource(tmp_path / "dates.parquet"))
    assert slots(snapshot) == [*((float(step),) for step in steps), None]


def test_numbers_are_no_dates(tmp_path: Path, load: Load) -> None:
    """Refused by type, before a row is read; and dates are no numbers."""
    pq.write_table(pa.table({"x": [1], "d": pa.array([0], pa.date32())}), tmp_path / "t.parquet")
    base = {"name": "d", "adjacency": "add_remove_one"}
    dated = {"kind": "numeric", "lower": 0, "upper": 9, "date": {"unit": "days", "since": "2000-01-01"}}
    with pytest.raises(TableImportError, match="'x' is int64, expected dates"):
        load(Manifest.from_public({**base, "columns": [{"name": "x", **dated}]}), ParquetSource(tmp_path / "t.parquet"))
    del dated["date"]
    with pytest.raises(TableImportError, match="expected numbers, or dates with the field"):
        load(Manifest.from_public({**base, "columns": [{"name": "d", **dated}]}), ParquetSource(tmp_path / "t.parquet"))


def test_booleans_are_categories(tmp_path: Path, load: Load, slots: Slots) -> None:
    """They may be Parquet's, or declared texts."""
    column = {
        "name": "smoker", "kind": "categorical", "categories": ["false", "true"], "case": "ignore",
        "aliases": {"0": "false", "1": "true", "no": "false", "yes": "true"},
    }  # fmt: skip
    manifest = Manifest.from_public({"name": "b", "adjacency": "add_remove_one", "columns": [column]})
    pq.write_table(pa.table({"smoker": [True, False, None]}), tmp_path / "t.parquet")
    assert slots(load(manifest, ParquetSource(tmp_path / "t.parquet"))[1]) == [(1,), (0,), None]
    written = [("True",), ("FALSE",), ("yes",), ("0",), ("maybe",)]
    assert slots(load(manifest, written, ("smoker",))[1]) == [(1,), (0,), (1,), (0,), None]


def test_padding_and_broken_records_hold_nobody(load: Load, slots: Slots) -> None:
    """Even where an empty cell has a category: rows that nobody wrote are null rows."""
    ward = {**COLUMNS[2], "name": "ward"}
    born = COLUMNS[3]
    fields = {"name": "p", "adjacency": "replace_one", "public_rows": 5, "unit": {"column": "who", "max_rows": 2}}
    manifest = Manifest.from_public({**fields, "columns": [ward, born]})
    _, snapshot = load(manifest, [("", "01.02.1970", "a"), ("1",)], ("ward", "born", "who"))
    assert slots(snapshot) == [(2, 1.0), None, None, None, None]


def test_the_report_tells_missing_from_bad(load: Load) -> None:
    """A declared null is missing, in whatever way the number is written."""
    table = [
        ("999", "m", "1", "", "?", ""),
        ("999,00", "?", "1", "01.01.1900", "yes", "A"),
        ("k.A.", "x", "1", "x", "True", "D1"),
        ("1.2", "m", "1", "x", "", "C"),
    ]
    report, _ = load(Manifest.from_public(GERMAN), table, HEADER)
    assert [(column.bad, column.missing) for column in report.columns] == [
        *((1, 3), (1, 1), (0, 0), (2, 2), (1, 2), (1, 1)),
    ]


def test_rows_are_known_however_they_are_written() -> None:
    """The fingerprint is of values: a file of decimal commas is that of points."""
    plain = Manifest.from_public(
        {
            "name": "a",
            "adjacency": "add_remove_one",
            "columns": [{"name": "x", "kind": "numeric", "lower": 0, "upper": 1}],
        }
    )
    comma = plain.model_copy(update={"columns": (plain.columns[0].model_copy(update={"decimal": ","}),)})
    digests = []
    for manifest, cells in ((plain, ["1234.5", "0.25"]), (comma, ["0,25", "1234,5"])):
        fingerprint = Fingerprint(manifest)
        fingerprint.add(parse([pa.array(cells)], manifest.columns), np.ones(2, dtype=np.bool_))
        digests.append(fingerprint.digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("place", "change", "problem"),
    [
        (0, {"thousands": ","}, "thousands must differ from decimal"),
        (1, {"aliases": {"x": "d"}}, "must name categories, got 'd'"),
        (1, {"aliases": {"W": "m"}}, "must differ, as cells are compared, in 'w'"),
        (1, {"null_values": ["M "]}, "must differ, as cells are compared, in 'm'"),
        (2, {"other": "else"}, "must name categories, got 'else'"),
        (3, {"date": {"unit": "weeks", "since": "2000-01-01"}}, "date.unit"),
        (3, {"date": {"unit": "days", "since": "2000-01-01", "format": "%d.%m.%y"}}, "expected %Y"),
        (3, {"date": {"unit": "days", "since": "2000-01-01", "format": "%Y %Y"}}, "expected %Y"),
        (3, {"date": {"unit": "days", "since": "2000-13-01"}}, "date.since"),
        (4, {"true": ["FALSE"]}, "true, false and null_values must differ, as cells are compared, in 'false'"),
        (4, {"true": ["x"], "false": ["X "]}, "must differ, as cells are compared, in 'x'"),
        (4, {"null_values": ["ja"]}, "must differ, as cells are compared, in 'ja'"),
        (4, {"categories": ["true", "false"]}, "categories: unknown field"),
        (5, {"first": 0}, "first"),
        (5, {"categories": ["A1", "A2"], "aliases": {}}, "must differ, as cells are compared, in 'a'"),
    ],
)
def test_a_manifest_that_is_ambiguous_is_refused(place: int, change: dict[str, Any], problem: str) -> None:
    """Two meanings of one cell, or a form that no cell can have."""
    columns: list[Any] = [*COLUMNS]
    columns[place] = {**columns[place], **change}
    with pytest.raises(ManifestError, match=problem):
        Manifest.from_public({**GERMAN, "columns": columns})


def test_a_manifest_comes_back_from_the_ledger() -> None:
    """The JSON of an entry holds it as it was."""
    manifest = Manifest.from_public(GERMAN)
    assert Manifest.from_public(manifest.public()) == manifest
    assert manifest.csv == Csv(delimiter=";", encoding="latin-1")
