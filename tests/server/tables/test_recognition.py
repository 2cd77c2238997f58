"""A table is recognised by what its columns hold, under any names and in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_ledger import Adjacency
from bursar_server.tables import (
    Categorical,
    Fingerprint,
    ImportReport,
    Manifest,
    Numeric,
    ParquetSource,
    Snapshot,
    SqlSource,
    Unit,
)
from bursar_server.tables._cells import clean, parse

Load = Callable[..., tuple[ImportReport, Snapshot]]
Row = tuple[str, str, str, str]

CELLS: tuple[st.SearchStrategy[str], ...] = (
    st.sampled_from(["0", "-0.0", "0.1", "3", "1e308", "nan", "?"]) | st.floats(-2, 2).map(repr),
    st.sampled_from(["0", "1"]),
    st.sampled_from(["a", "b", "c", "none of them"]),
    st.sampled_from(["p", "q"]),
)
TABLES = st.lists(st.tuples(*CELLS), min_size=1, max_size=12)
NAMES = ("x", "y", "c", "d")


def manifest_of(columns: Sequence[Numeric | Categorical], **fields: Any) -> Manifest:
    """The schema of a table under add_remove_one."""
    return Manifest(name="people", adjacency=Adjacency.ADD_REMOVE_ONE, columns=tuple(columns), **fields)


PLAIN: tuple[Numeric | Categorical, ...] = (
    Numeric(name="x", kind="numeric", lower=-1, upper=1, nullable=True),
    Numeric(name="y", kind="numeric", lower=-1, upper=1),
    Categorical(name="c", kind="categorical", categories=("a", "b", "c")),
    Categorical(name="d", kind="categorical", categories=("p", "q")),
)


@settings(max_examples=60)
@given(TABLES, st.data())
def test_names_order_bounds_and_text_play_no_part(load: Load, table: list[Row], data: st.DataObject) -> None:
    """Rows, columns and categories in another order and under other names, numbers written otherwise, other bounds."""
    known, _ = load(manifest_of(PLAIN), table, NAMES)
    order = data.draw(st.permutations(range(4)))
    names = data.draw(st.permutations(["a", "m", "zz", "present"]))
    renamed: list[dict[str, str]] = [{}] * 4
    columns: list[Numeric | Categorical] = []
    for j, column in enumerate(PLAIN):
        if isinstance(column, Numeric):
            columns.append(column.model_copy(update={"name": names[j], "lower": -7.0, "upper": 5.0, "edges": ()}))
        else:
            texts = data.draw(st.permutations(["1", "k", "z"]))[: len(column.categories)]
            renamed[j] = dict(zip(column.categories, texts, strict=True))
            listed = tuple(data.draw(st.permutations(texts)))
            columns.append(column.model_copy(update={"name": names[j], "categories": listed}))

    def cell(j: int, text: str) -> str:
        if j < 2:
            return f"{float(text):+.17e}" if text not in ("?", "nan") else "no number"
        return renamed[j].get(text, "another")

    rows = [tuple(cell(j, row[j]) for j in order) for row in data.draw(st.permutations(table))]
    again, _ = load(manifest_of([columns[j] for j in order]), rows, [names[j] for j in order])
    assert again.fingerprint == known.fingerprint


MISSING = 9.0
"""Answer of `read` to a cell that is no number; no cell holds it."""


def read(row: Row) -> tuple[float, float, str, str] | None:
    """A row as recognition sees it, None for a null one."""
    number = {"?": MISSING, "nan": MISSING, "1e308": np.inf}.get(row[0])
    x = float(np.float32(row[0])) if number is None else number
    return (x + 0.0, float(row[1]), row[2], row[3]) if row[2] in "abc" else None


@settings(max_examples=60)
@given(TABLES, TABLES)
def test_tables_are_equal_only_if_their_columns_are(load: Load, one: list[Row], two: list[Row]) -> None:
    """The fingerprint is a function of columns as multisets, and tells unequal ones apart."""

    def columns(table: list[Row]) -> list[list[Any]]:
        present = [row for row in map(read, table) if row]
        kept = [row for row in present if row[0] != MISSING] or present
        numbers = [sorted(row[j] for row in kept) for j in (0, 1)]
        texts = [[str(row[j]) for row in kept] for j in (2, 3)]
        return [*sorted(map(list, numbers)), *sorted(sorted(t.count(name) for name in set(t)) for t in texts)]

    found = [load(manifest_of(PLAIN), table, NAMES)[0].fingerprint for table in (one, two)]
    assert (found[0] == found[1]) is (columns(one) == columns(two))


def test_null_rows_and_padding_do_not_count(load: Load) -> None:
    """Broken lines hold no data of a person."""
    table = [("0", "1", "a", "p"), ("0.5", "0", "b", "q")]
    known, _ = load(manifest_of(PLAIN), table, NAMES)
    assert load(manifest_of(PLAIN), [*table, ("0", "?", "a", "p")], NAMES)[0].fingerprint == known.fingerprint
    padded = manifest_of(PLAIN, public_rows=9, unit=Unit(column="who")).model_copy(
        update={"adjacency": Adjacency.REPLACE_ONE}
    )
    rows = [(*row, f"u{i}") for i, row in enumerate(table)]
    assert load(padded, rows, (*NAMES, "who"))[0].fingerprint == known.fingerprint


@pytest.mark.parametrize("most", [1, 2, 9])
def test_a_cap_plays_no_part(load: Load, most: int) -> None:
    """The rows of a unit that stay depend on an import's keys; a table is recognised by all of its rows."""
    table = [(str(i / 20), "1", "abc"[i % 3], "p", "uv"[i % 2]) for i in range(20)]
    plain, _ = load(manifest_of(PLAIN), table, (*NAMES, "who"))
    capped, _ = load(manifest_of(PLAIN, unit=Unit(column="who", max_rows=most)), table, (*NAMES, "who"))
    assert capped.fingerprint == plain.fingerprint


def test_a_file_of_single_precision_is_the_same_table(load: Load, tmp_path: Path) -> None:
    """Parquet with float32, the same as float64, and the text that a writer makes of either."""
    x = np.sin(np.arange(50, dtype=np.float32))
    columns, found = [Numeric(name="x", kind="numeric", lower=-1, upper=1)], set()
    for kind in (np.float32, np.float64):
        pq.write_table(pa.table({"x": x.astype(kind)}), tmp_path / "t.parquet")
        found.add(load(manifest_of(columns), ParquetSource(tmp_path / "t.parquet"))[0].fingerprint)
    found.add(load(manifest_of(columns), [(str(value),) for value in x], ("x",))[0].fingerprint)
    assert len(found) == 1


def test_zero_has_no_sign(load: Load) -> None:
    """Nor has a number that is zero in single precision."""
    columns = [Numeric(name="x", kind="numeric", lower=-1, upper=1)]
    found = {load(manifest_of(columns), [(x,), ("0.5",)], ("x",))[0].fingerprint for x in ("0", "-0.0", "-1e-60")}
    assert len(found) == 1


def test_numbers_of_one_sum_are_told_apart(load: Load) -> None:
    """Their hashes are added, not they themselves, nor their bits."""
    columns = [Numeric(name="x", kind="numeric", lower=-9, upper=9)]
    tables = (("1", "1"), ("0.5", "2"), ("0.5", "1.5"), ("0", "2"))
    found = {load(manifest_of(columns), [(x,) for x in table], ("x",))[0].fingerprint for table in tables}
    assert len(found) == len(tables)


def test_one_row_more_is_another_table(load: Load) -> None:
    """Even one that an equal row is there of."""
    table = [("0", "1", "a", "p")] * 5
    assert len({load(manifest_of(PLAIN), table[:n], NAMES)[0].fingerprint for n in range(1, 6)}) == 5


def test_a_number_of_columns_is_part_of_it(load: Load) -> None:
    """An import compares tables of as many columns only."""
    table = [("0", "1", "a", "p")] * 3
    found = {load(manifest_of(PLAIN[:n]), table, NAMES)[0].fingerprint for n in (1, 2, 3, 4)}
    assert len(found) == 4


def test_blocks_play_no_part(load: Load) -> None:
    """A large table is recognised, too, when its rows come in reverse."""
    query = "SELECT sin(i) AS x, 1 AS y, 'a' AS c, CASE i % 3 WHEN 0 THEN 'p' ELSE 'q' END AS d FROM range(70000) t(i)"
    found = {
        load(manifest_of(PLAIN), SqlSource(query + order))[0].fingerprint for order in (" ORDER BY i", " ORDER BY -i")
    }
    assert len(found) == 1


def test_sums_do_not_overflow_into_a_warning() -> None:
    """Sums of hashes wrap around, by design; numbers beyond single precision are infinite, alike for either sign."""
    fingerprint = Fingerprint(manifest_of(PLAIN[:1]))
    for value in (1e308, -1e308, 1e-320, -0.0, 0.0):
        raw = parse([pa.array([value] * 1000)], PLAIN[:1])
        fingerprint.add(raw, clean(raw, PLAIN[:1]).present)
    assert len(fingerprint.digest()) == 32
