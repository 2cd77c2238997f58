"""Tables in SQLite and DuckDB files: the same rows as in other sources, each cell by itself alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_server.tables import (
    ArrowSource,
    CapKeys,
    ImportReport,
    Manifest,
    Snapshot,
    SqliteSource,
    SqlSource,
    TableImportError,
    store_table,
)

Build = Callable[..., Manifest]
Load = Callable[..., tuple[ImportReport, Snapshot]]
Slots = Callable[[Snapshot], list[tuple[Any, ...] | None]]


def _sqlite(path: Path, rows: Sequence[tuple[Any, ...]], columns: str = "x, c") -> Path:
    """A file with the table t, whose columns have no type unless they are given one."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE t ({columns})")
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO t VALUES ({marks})", rows)  # noqa: S608
    return path


def test_a_table_of_sqlite_is_read_cell_by_cell(tmp_path: Path, manifest: Build, load: Load, slots: Slots) -> None:
    """Every type that a cell may have, in one column; what is no number, or not declared, makes its own row null."""
    file = _sqlite(
        tmp_path / "a b?#%.sqlite",
        [(0, "a"), ("0.5", b"b"), (0.25, "a"), (None, "a"), ("x", "a"), (b"\xff", "a"), (1, "z"), (9, "b")],
    )
    found = slots(load(manifest(), SqliteSource.of_table(file, "t"))[1])
    assert found == [(0.0, 0), (0.5, 1), (0.25, 0), None, None, None, None, (1.0, 1)]


def test_numbers_are_the_categories_that_they_are_elsewhere(tmp_path: Path, load: Load, slots: Slots) -> None:
    """2.0, 1e20 and 0.1 have the text that Arrow writes for them, and integers their digits."""
    numbers = [2.0, 1e20, 0.1]
    columns = [{"name": "c", "kind": "categorical", "categories": ["2", "100000000000000000000", "1e+20", "0.1"]}]
    declared = Manifest.from_public({"name": "t", "adjacency": "add_remove_one", "columns": columns})
    file = _sqlite(tmp_path / "t.sqlite", [(number,) for number in numbers], "c REAL")
    here = slots(load(declared, SqliteSource.of_table(file, "t"))[1])
    assert here == slots(load(declared, ArrowSource(pa.table({"c": numbers})))[1])
    assert None not in here
    file = _sqlite(tmp_path / "t.sqlite", [(2,), ("2",), (b"2",), (2.0,)], "c")
    assert slots(load(declared, SqliteSource.of_table(file, "t"))[1]) == [(0,)] * 4


_CELLS = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 1),
    st.floats(allow_nan=False),
    st.sampled_from(["", "a", "b", "0.5", "07"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3),
    st.binary(max_size=3),
)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(_CELLS, _CELLS), min_size=2, max_size=6), other=st.tuples(_CELLS, _CELLS))
def test_a_row_changes_no_other(
    rows: list[tuple[Any, Any]],
    other: tuple[Any, Any],
    tmp_path_factory: pytest.TempPathFactory,
    manifest: Build,
    caps: CapKeys,
    slots: Slots,
) -> None:
    """The other rows are what they were, whatever the first cell is, or a later one."""
    folder = tmp_path_factory.mktemp("pair")

    def read(table: list[tuple[Any, Any]]) -> list[Any]:
        source = SqliteSource.of_table(_sqlite(folder / "t.sqlite", table), "t")
        return slots(Snapshot.open(store_table(manifest(), source, folder, caps).directory))

    whole = read(rows)
    for place in (0, len(rows) - 1):
        changed = read([*rows[:place], other, *rows[place + 1 :]])
        assert [*changed[:place], *changed[place + 1 :]] == [*whole[:place], *whole[place + 1 :]]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT * FROM nowhere", "no such table"),
        ("SELECT agee FROM t", "no such column: agee"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("DELETE FROM t RETURNING *", "syntax error"),
        ("SELECT ? AS x", "parameters"),
        ("PRAGMA table_list", "syntax error"),
        ("ATTACH 'other' AS o", "syntax error"),
        ("SELECT load_extension('x') AS x, 'a' AS c", "cannot be read"),
        ("SELECT x AS X, c FROM t", "'x' is missing"),
    ],
)
def test_a_query_of_sqlite_is_one_select(tmp_path: Path, manifest: Build, load: Load, query: str, said: str) -> None:
    """Its errors are of syntax and names, and are shown; the file stays as it was, and nothing is beside it."""
    file = _sqlite(tmp_path / "t.sqlite", [(4711, "hush")])
    before = file.read_bytes()
    with pytest.raises(TableImportError) as caught:
        load(manifest(), SqliteSource(file, query))
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)
    assert (list(tmp_path.iterdir()), file.read_bytes()) == ([file], before)


def test_an_error_that_could_quote_a_cell_is_a_detail(tmp_path: Path, manifest: Build, load: Load) -> None:
    """SQLite quotes a path of JSON, DuckDB what it cannot convert: in the detail, and not in the message."""
    file = _sqlite(tmp_path / "t.sqlite", [(1, "hush")])
    with duckdb.connect(tmp_path / "d.duckdb") as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x, 'hush' AS c")
    for source in (
        SqliteSource(file, "SELECT json_extract('{}', c) AS x, c FROM t"),
        SqlSource("SELECT c::INTEGER AS x, c FROM t", tmp_path / "d.duckdb"),
    ):
        with pytest.raises(TableImportError) as caught:
            load(manifest(), source)
        assert "hush" not in str(caught.value)
        assert "hush" in caught.value.detail
    for path in (tmp_path / "none.sqlite", tmp_path):
        with pytest.raises(TableImportError, match="cannot be read"):
            SqliteSource(path, "SELECT 1 AS x").columns()


def test_a_table_of_duckdb(tmp_path: Path, manifest: Build, load: Load, slots: Slots) -> None:
    """Names, schemas with names, and names that are no words will do; one that is not there is named."""
    file = tmp_path / "d.duckdb"
    with duckdb.connect(file) as connection:
        connection.execute("CREATE SCHEMA s; CREATE TABLE s.t AS SELECT 0.5 AS x, 'b' AS c, 'hush' AS who")
        connection.execute('CREATE TABLE "a ""b" AS FROM s.t')
    for table in ("s.t", 'a "b'):
        assert slots(load(manifest(), SqlSource.of_table(file, table))[1]) == [(0.5, 1)]
    with pytest.raises(TableImportError, match="does not exist"):
        load(manifest(), SqlSource.of_table(file, 'people"; DROP TABLE s.t --'))


def test_names_and_types_of_sqlite(tmp_path: Path) -> None:
    """They are the declared ones of a table, a view and a query; a computed column has none. No row is read."""
    columns = "age INTEGER, who VARCHAR(20), born DATE, at DATETIME, smokes BOOLEAN, height DOUBLE, pay DECIMAL(9), y"
    file = _sqlite(tmp_path / "t.sqlite", [(1, "hush", "2001-01-01", "x", 1, 1.5, 2, 3)], columns)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE VIEW v AS SELECT * FROM t WHERE json_extract('{}', who)")  # fails if it is run
    expected = [pa.int64(), pa.string(), pa.date32(), pa.date32(), pa.bool_(), pa.float64(), pa.float64(), None]
    for table in ("t", "v", "main.t"):
        found = SqliteSource.of_table(file, table).columns()
        assert [name for name, _ in found] == [column.split()[0] for column in columns.split(", ")]
        assert [kind for _, kind in found] == expected
    assert SqliteSource(file, "SELECT age + 1 AS older, age FROM t").columns() == [("older", None), ("age", pa.int64())]
