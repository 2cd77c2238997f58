"""Sources beside CSV: folders of Parquet files, tables in memory, and what DuckDB says of a query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bursar_server.tables import (
    ArrowSource,
    ImportReport,
    Manifest,
    ParquetSource,
    Snapshot,
    SqlSource,
    TableImportError,
)

Load = Callable[..., tuple[ImportReport, Snapshot]]
Slots = Callable[[Snapshot], list[tuple[Any, ...] | None]]

COLUMNS = [
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 110, "nullable": True},
    {"name": "year", "kind": "categorical", "categories": ["07", "8", "rest of it"], "aliases": {"": "8"}},
]
MANIFEST = Manifest.from_public({"name": "t", "adjacency": "add_remove_one", "columns": COLUMNS})


def _file(path: Path, ages: list[Any], **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"age": pa.array(ages, pa.int64()), **columns}), path)


def test_a_partitioned_folder_is_one_table(tmp_path: Path, load: Load, slots: Slots) -> None:
    """Names of folders are text, as they are written; rows without a value have none, and other files are not read."""
    _file(tmp_path / "year=07" / "b.parquet", [1, 2])
    _file(tmp_path / "year=8" / "deep" / "a.parquet", [3])
    _file(tmp_path / "year=rest%20of%20it" / "c.parquet", [None])
    _file(tmp_path / "year=__HIVE_DEFAULT_PARTITION__" / "d.parquet", [5])
    (tmp_path / "_SUCCESS").write_text("")
    source = ParquetSource(tmp_path)
    assert source.columns() == [("age", pa.int64()), ("year", pa.string())]
    found = slots(load(MANIFEST, source)[1])
    assert [None if row is None else row[1] for row in found] == [0, 0, 1, None, 2]
    assert [row[0] for row in found if row is not None and row[1] != 2] == [1, 2, 3]


def test_a_file_in_a_partition_decides_about_its_own_rows_alone(tmp_path: Path, load: Load, slots: Slots) -> None:
    """A name that is no number leaves "07" what it is."""
    _file(tmp_path / "year=07" / "a.parquet", [1])
    before = slots(load(MANIFEST, ParquetSource(tmp_path))[1])
    _file(tmp_path / "year=rest of it" / "b.parquet", [2])
    assert slots(load(MANIFEST, ParquetSource(tmp_path))[1]) == [*before, (2.0, 2)]


def test_files_of_another_schema_are_refused(tmp_path: Path, load: Load) -> None:
    """Another type, a column less, or a folder that names none: by file, before its rows are read."""
    _file(tmp_path / "year=07" / "a.parquet", [1])
    for number, other in enumerate(({"age": ["1"]}, {"height": [1]})):
        path = tmp_path / "year=8" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(other), path)
        with pytest.raises(TableImportError, match="other columns or types"):
            load(MANIFEST, ParquetSource(tmp_path))
        path.unlink()
    _file(tmp_path / "z.parquet", [1])
    with pytest.raises(TableImportError, match="other columns or types"):
        load(MANIFEST, ParquetSource(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableImportError, match=r"end with .parquet"):
        load(MANIFEST, ParquetSource(tmp_path / "empty"))


@pytest.mark.parametrize("kind", ["arrow", "reader", "polars", "pandas"])
def test_tables_in_memory(load: Load, slots: Slots, kind: str) -> None:
    """One table in four forms: the same rows."""
    table = pa.table({"year": ["07", "x", "8"], "age": pa.array([17, 4, None], pa.float64())})
    given: Any = {
        "arrow": table,
        "reader": table.to_reader(),
        "polars": pl.DataFrame(table),
        "pandas": pd.DataFrame({"year": pd.array(["07", "x", "8"], "string"), "age": [17.0, 4.0, float("nan")]}),
    }[kind]
    assert [row and row[1] for row in slots(load(MANIFEST, ArrowSource(given))[1])] == [0, None, 1]


def test_columns_of_objects_are_refused_by_name(load: Load) -> None:
    """Their type would be guessed from all rows; others of the frame do not matter. No cell is quoted."""
    frame = pd.DataFrame({"year": pd.Series(["07", 8], dtype=object), "age": [1.0, 2.0]})
    with pytest.raises(TableImportError, match="'year'") as caught:
        load(MANIFEST, ArrowSource(frame))
    assert "07" not in str(caught.value)
    with pytest.raises(TableImportError, match="'year' is missing"):
        load(MANIFEST, ArrowSource(pl.DataFrame({"age": [1.0]})))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("FROM nowhere", "nowhere"),
        ("SELECT agee FROM (SELECT 1 AS age)", "agee"),
    ],
)
def test_errors_of_a_query_are_shown(load: Load, query: str, said: str) -> None:
    """Syntax and names are the owner's own words."""
    with pytest.raises(TableImportError) as caught:
        load(MANIFEST, SqlSource(query))
    assert said in str(caught.value)


def test_names_that_duckdb_guesses_are_not_shown(tmp_path: Path, load: Load) -> None:
    """They would be cells in a file without a header; errors of conversion quote a cell, and are not shown."""
    (tmp_path / "t.csv").write_text("hush,17\nhush,18\n")
    for query in (
        f"SELECT age FROM '{tmp_path / 't.csv'}'",  # noqa: S608
        "SELECT CAST(x AS INTEGER) AS age, 'x' AS year FROM (VALUES ('hush'), ('1')) AS t(x)",
    ):
        with pytest.raises(TableImportError) as caught:
            load(MANIFEST, SqlSource(query))
        assert "hush" not in str(caught.value)
