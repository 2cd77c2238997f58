"""Columns that may be null: a row keeps what it has, neighbours stay neighbours, and equal rows have equal bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bursar_server.tables import ImportReport, Manifest, Snapshot

Load = Callable[..., tuple[ImportReport, Snapshot]]
Row = tuple[float | None, int, float | None] | None

COLUMNS: list[dict[str, Any]] = [
    {"name": "x", "kind": "numeric", "lower": -1.0, "upper": 1.0, "nullable": True},
    {"name": "c", "kind": "categorical", "categories": ["a", "b"]},
    {"name": "y", "kind": "numeric", "lower": 0.0, "upper": 9.0},
]
HEADER = ("x", "c", "y")
NO_NUMBERS = ["", " ", "nan", "-nan", "inf", "-inf", "1e999", "none"]
ONE_NAN = np.float64(np.nan).tobytes()

texts = st.one_of(st.floats(-2, 2).map(repr), st.sampled_from([*NO_NUMBERS, "-0.0", "7", "-7"]))
rows = st.tuples(texts, st.sampled_from(["a", "b", "a", "b", ""]), texts)
own = st.lists(rows, max_size=5)


@pytest.fixture(scope="module")
def gaps() -> Callable[..., Manifest]:
    """A manifest with columns x, which may be null, c and y, which may not; fields may be replaced."""

    def build(**fields: Any) -> Manifest:
        public = {"name": "people", "adjacency": "add_remove_one", "columns": COLUMNS}
        return Manifest.from_public({**public, **fields})

    return build


def slots(snapshot: Snapshot) -> list[Row]:
    """The content of every slot, None for a missing value and for the null row."""
    return [row if there else None for row, there in _stored(snapshot)]


def _stored(snapshot: Snapshot) -> Iterator[tuple[Any, bool]]:
    for block in snapshot.blocks():
        x, c, y = (column.tolist() for column in block.values)
        for one, code, two, there in zip(x, c, y, block.present.tolist(), strict=True):
            yield tuple(None if value != value else value for value in (one, code, two)), there


def number(text: str) -> float | None:
    """Return what a cell says, if it is a finite number."""
    try:
        return float(text) if math.isfinite(float(text)) else None
    except ValueError:
        return None


def expected(row: Sequence[str]) -> Row:
    """Return what a slot must hold, from its own cells alone."""
    x, y = number(row[0]), number(row[2])
    if y is None or row[1] not in ("a", "b"):
        return None
    return (None if x is None else min(max(x, -1.0), 1.0)), "ab".index(row[1]), min(max(y, 0.0), 9.0)


@example([("", "a", "1"), ("", "", "1"), ("", "a", ""), ("0.5", "b", "nan")])
@given(st.lists(rows, max_size=10))
def test_a_row_without_a_value_keeps_its_others(gaps: Callable[..., Manifest], load: Load, table: list[Any]) -> None:
    """Only where the column is declared so, and whatever stands in other rows; what is there is clipped as ever."""
    report, snapshot = load(gaps(), table, HEADER)
    found = slots(snapshot)
    assert found == [expected(row) for row in table]
    assert (report.rows_read, report.null_rows) == (len(table), found.count(None))
    x = report.columns[0]
    assert x.missing == sum(not row[0].strip() for row in table)
    assert x.bad == sum(bool(row[0].strip()) and number(row[0]) is None for row in table)
    assert set(x.examples) <= {row[0] for row in table if row[0].strip() and number(row[0]) is None}
    outside = sum(
        x is not None and not low <= x <= high
        for row, there in zip(table, found, strict=True)
        if there
        for x, low, high in ((number(row[0]), -1.0, 1.0), (number(row[2]), 0.0, 9.0))
    )
    assert sum(column.clipped for column in report.columns) == outside


NANS = [0x7FF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF, 0xFFF8000000000000, 0xFFF0000000000001]
NOT_FINITE = [*NANS, 0x7FF0000000000000, 0xFFF0000000000000]


class ArraySource:
    """A table in memory."""

    def __init__(self, **columns: pa.Array) -> None:
        self._batch = pa.RecordBatch.from_pydict(columns)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All of it."""
        yield self._batch.select(list(columns))


def floats(*patterns: int) -> pa.Array:
    """Numbers of these bits."""
    return pa.array(np.array(patterns, dtype=np.uint64).view(np.float64))


def test_what_is_no_number_becomes_one_nan(gaps: Callable[..., Manifest], load: Load) -> None:
    """NaN of any payload, signalling or not, infinities and nulls: the same bits; and -0.0 is 0.0."""
    x = pa.concat_arrays([floats(*NOT_FINITE), pa.nulls(1, pa.float64()), pa.array([-0.0])])
    n = len(x)
    _, snapshot = load(gaps(), ArraySource(x=x, c=pa.array(["a"] * n), y=pa.array([1.0] * n)))
    (block,) = snapshot.blocks()
    assert block.present.all()
    assert {value.tobytes() for value in block.values[0][:-1]} == {ONE_NAN}
    assert block.values[0][-1].tobytes() == np.float64(0.0).tobytes()


def test_equal_rows_have_equal_ranks_and_fingerprints(gaps: Callable[..., Manifest], load: Load) -> None:
    """The kind of NaN in a file decides neither which rows stay nor whether a table is known."""
    declared = gaps(unit={"column": "who", "max_rows": 2})
    rest = {"c": pa.array(["a"] * 7), "y": pa.array([float(i % 2) for i in range(7)]), "who": pa.array(["u"] * 7)}
    plain = ArraySource(x=pa.nulls(7, pa.float64()), **rest)
    odd = ArraySource(x=floats(*NOT_FINITE), **rest)
    (one, first), (two, second) = (load(declared, source) for source in (plain, odd))
    assert slots(first) == slots(second)
    assert one.fingerprint == two.fingerprint


def test_a_missing_value_is_none_of_the_numbers(gaps: Callable[..., Manifest], load: Load) -> None:
    """A row that lacks a value is not recognised as one with 0, or with a bound."""
    found = {load(gaps(), [(x, "a", "1")], HEADER)[0].fingerprint for x in ("", "0", "-1", "1")}
    assert len(found) == 4


@given(st.lists(st.tuples(st.floats(-1, 1).map(repr), st.sampled_from("ab"), st.floats(0, 9).map(repr)), max_size=6))
def test_a_table_without_gaps_is_the_same_table(gaps: Callable[..., Manifest], load: Load, table: list[Any]) -> None:
    """The declaration changes neither rows nor fingerprint where every value is there."""
    strict = gaps(columns=[{**column, "nullable": False} if column["name"] == "x" else column for column in COLUMNS])
    (one, first), (two, second) = (load(manifest, table, HEADER) for manifest in (gaps(), strict))
    assert slots(first) == slots(second)
    assert one.fingerprint == two.fingerprint


def test_a_row_without_any_value_is_null(load: Load, gaps: Callable[..., Manifest]) -> None:
    """Even where every column may be null: broken lines and padding are null rows, not rows of nothing."""
    columns = [{**COLUMNS[0], "name": name} for name in "xy"]
    table = [("", "", "u"), ("", "0.5", "u"), ("nan", "inf", "v"), ("0.5", "", "v"), ("0.5", "0.5", "")]
    declared = gaps(columns=columns, adjacency="replace_one", public_rows=9, unit={"column": "who", "max_rows": 3})
    report, snapshot = load(declared, table, ("x", "y", "who"))
    (block,) = snapshot.blocks()
    assert block.present.tolist() == [False, True, False, True, *[False] * 5]
    assert not np.any([values[~block.present] for values in block.values])  # and no NaN
    assert report.null_rows == 3
    assert not any(block.present.any() for block in load(gaps(columns=columns), [("", "")] * 3, ("x", "y"))[1].blocks())


@pytest.mark.parametrize("column", ["x", "y"])
def test_fits_read_nan_where_a_value_is_missing(
    gaps: Callable[..., Manifest], load: Load, read_all: Callable[..., Any], column: str
) -> None:
    """The session's rows show it, in present rows and in nullable columns only."""
    table = [("", "a", "1"), ("0.5", "a", "2"), ("", "?", "3"), ("0.5", "b", "")]
    (found,), present = read_all(load(gaps(), table, HEADER)[1].rows((column,)), 1)
    assert present[:4].tolist() == [True, True, False, False]
    assert not present[4:].any()
    assert np.isnan(found).tolist() == [column == "x", *[False] * (len(found) - 1)]


def substitutions(one: list[Row], two: list[Row]) -> int:
    """Return how many slots must change, after the slots have been matched as well as possible."""
    a, b = Counter(one), Counter(two)
    return max((a - b).total(), (b - a).total())


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.tuples(rows, st.sampled_from(["u", "v", ""])), max_size=6), own, own, st.integers(1, 3))
def test_one_unit_changes_at_most_the_cap(
    gaps: Callable[..., Manifest], load: Load, base: list[Any], mine: list[Any], instead: list[Any], cap: int
) -> None:
    """Missing values and numbers of rows make no difference."""
    declared = gaps(adjacency="replace_one", public_rows=20, unit={"column": "who", "max_rows": cap})
    others = [(*row, who) for row, who in base]
    snapshots = [
        load(declared, [*others, *((*row, "me") for row in rows)], (*HEADER, "who"))[1] for rows in (mine, instead)
    ]
    assert [snapshot.slots for snapshot in snapshots] == [20, 20]
    assert substitutions(*map(slots, snapshots)) <= cap


@pytest.mark.slow
@given(st.lists(rows, min_size=1, max_size=6), rows, st.integers(0, 99))
def test_one_row_changes_its_own_slot(
    gaps: Callable[..., Manifest], load: Load, table: list[Any], row: Any, place: int
) -> None:
    """A value that goes missing changes no other slot, nor their number."""
    place %= len(table)
    one, two = (
        slots(load(gaps(adjacency="replace_one"), t, HEADER)[1])
        for t in (table, [*table[:place], row, *table[place + 1 :]])
    )
    assert len(one) == len(two)
    assert all(a == b for i, (a, b) in enumerate(zip(one, two, strict=True)) if i != place)


def test_rows_that_lack_a_value_do_not_hide_a_table(gaps: Callable[..., Manifest], load: Load) -> None:
    """The same file is known where its column may be null now and was not before, and without these rows."""
    table = [("" if i % 3 else repr(i / 9), "a", repr(i / 9)) for i in range(9)]
    strict = gaps(columns=[{**column, "nullable": False} if column["name"] == "x" else column for column in COLUMNS])
    found = [load(gaps(), table, HEADER), load(strict, table, HEADER), load(gaps(), table[::3], HEADER)]
    assert len({report.fingerprint for report, _ in found}) == 1
    assert [sum(block.rows for block in snapshot.blocks()) for _, snapshot in found] == [9, 3, 3]
