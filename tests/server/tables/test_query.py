"""Queries of an administrator: one SELECT over the files that it names, and nothing beside."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from bursar_server.tables import ImportReport, Manifest, Snapshot, SqlSource, TableImportError
from bursar_server.tables._query import Query

Build = Callable[..., Manifest]
Load = Callable[..., tuple[ImportReport, Snapshot]]
Slots = Callable[[Snapshot], list[tuple[Any, ...] | None]]

EXACT = "auto_detect = false, header = true, columns = {'x': 'DOUBLE', 'c': 'VARCHAR'}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables in files and in a database: making them takes longer than a test of them."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "t.csv").write_text("x,c\n0,a\n0.5,b\n")
    shutil.copy(folder / "t.csv", folder / "u.csv")
    (folder / "t.json").write_text("\n".join(json.dumps({"x": x, "c": c}) for x, c in ((0, "a"), (0.5, "b"))))
    pa.parquet.write_table(pa.table({"x": [0, 0.5], "c": ["a", "b"]}), folder / "t.parquet")
    (folder / "secret.csv").write_text("x,c\n1,a\n")
    with contextlib.chdir(folder), duckdb.connect("d.db") as database:
        database.execute("CREATE TABLE t AS FROM read_csv('t.csv'); CREATE SEQUENCE s")
        database.execute("CREATE VIEW elsewhere AS FROM read_csv('secret.csv')")
    shutil.copy(folder / "d.db", folder / "e.db")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with them; afterwards there is nothing else in it."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    yield folder
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "query",
    [
        f"FROM read_csv('t.csv', {EXACT})",
        f"WITH a AS (FROM read_csv('t.csv', {EXACT})) SELECT * FROM a UNION ALL SELECT * FROM a WHERE x > 1",  # noqa: S608
        "SELECT x, c FROM 't.parquet';",
        "FROM read_parquet(['t.parquet'])",
        "FROM read_json('t.json', columns = {x: 'DOUBLE', c: 'VARCHAR'})",
        "FROM (VALUES (0, 'a'), (0.5, 'b')) t(x, c)",
        "SELECT i / 2 AS x, CASE i WHEN 0 THEN 'a' ELSE 'b' END AS c FROM range(2) t(i)",
        f"FROM read_csv('{{here}}/t.csv', {EXACT})",
        f"FROM read_csv('../here/[t].csv', {EXACT})",
    ],
)
def test_a_select_over_the_files_that_it_names_is_a_table(
    manifest: Build, load: Load, slots: Slots, here: Path, query: str
) -> None:
    """Files are CSV, Parquet and JSON, by relative or absolute name or pattern, or there is none."""
    query = query.replace("{here}", str(here))
    assert Query.parse(query).guessed == ()
    assert slots(load(manifest(), SqlSource(query))[1]) == [(0.0, 0), (0.5, 1)]


def test_a_database_is_read(manifest: Build, load: Load, slots: Slots, here: Path) -> None:
    """Its tables, and files beside them that the query names."""
    assert slots(load(manifest(), SqlSource("FROM t", Path("d.db")))[1]) == [(0.0, 0), (0.5, 1)]
    query = "SELECT t.x, p.c FROM t JOIN 't.parquet' p USING (x)"
    assert set(slots(load(manifest(), SqlSource(query, Path("d.db")))[1])) == {(0.0, 0), (0.5, 1)}


GOOD = "SELECT x, c FROM 't.parquet'"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "another form"),
        ("no SQL", "no SQL"),
        (f"{GOOD}; {GOOD}", "another form"),
        (f"COPY ({GOOD}) TO 'out.csv'", "another form"),
        (f"COPY ({GOOD}) TO 'out.csv'; {GOOD}", "another form"),
        (f"{GOOD}; COPY ({GOOD}) TO 'out.csv'", "another form"),
        ("ATTACH 'new.db'", "another form"),
        ("INSTALL httpfs", "another form"),
        ("LOAD httpfs", "another form"),
        ("PRAGMA version", "another form"),
        ("CALL pragma_version()", "another form"),
        ("SET enable_external_access = true", "another form"),
        ("CREATE TABLE t AS SELECT 1 AS x", "another form"),
        ("EXPORT DATABASE 'out'", "another form"),
        (f"EXPLAIN ANALYZE {GOOD}", "another form"),
        (f"PREPARE p AS {GOOD}", "another form"),
        ("CHECKPOINT", "another form"),
        (f"WITH a AS (COPY ({GOOD}) TO 'out.csv') {GOOD}", "COPY within"),
        (f"WITH a AS (COPY ({GOOD}) TO 't.parquet' (USE_TMP_FILE false)) {GOOD}", "COPY within"),
        (f"SELECT (WITH a AS (COPY ({GOOD}) TO 'out.csv') SELECT 1) AS x, c FROM 't.parquet'", "COPY within"),  # noqa: S608
        ("WITH a AS (INSERT INTO t VALUES (1, 'a') RETURNING x, c) FROM a", "INSERT within"),
        ("WITH a AS (DELETE FROM t RETURNING x, c) FROM a", "DELETE within"),
        ("WITH a AS (UPDATE t SET x = 1 RETURNING x, c) FROM a", "UPDATE within"),
        ("FROM query('FROM ''t.parquet''')", "runs another query"),
        (
            f"FROM json_execute_serialized_sql(json_serialize_sql('{GOOD.replace(chr(39), chr(39) * 2)}'))",
            "another query",
        ),
        ("SELECT size AS x, content AS c FROM read_text('secret.csv')", "something else"),
        ("SELECT size AS x, content AS c FROM read_blob('secret.csv')", "something else"),
        ("SELECT 0 AS x, file AS c FROM glob('*')", "something else"),
        ("SELECT 0 AS x, Delimiter AS c FROM sniff_csv('t.csv')", "something else"),
        (f"FROM read_csv('sec' || 'ret.csv', {EXACT})", "something else"),
        (f"FROM read_csv(getvariable('x'), {EXACT})", "."),
        ("FROM 'https://127.0.0.1:9/t.parquet'", "something else"),
        ("FROM read_parquet('s3://bucket/t.parquet')", "."),
        ("FROM 'none.parquet'", "."),
        ("FROM read_duckdb('e.db', table_name = 't')", "."),
        ("SELECT 0 AS x, 'a' AS c FROM enable_logging(storage = 'file', storage_path = 'log')", "."),
        ("SELECT 0 AS x, 'a' AS c FROM enable_profiling(save_location = 'profile')", "."),
        ("SELECT 0 AS x, name AS c FROM which_secret('s3://b', 's3')", "."),
        ("SELECT 0 AS x, getenv('HOME') AS c", "."),
        ("FROM rows", "."),
        ("SELECT nextval('s') AS x, 'a' AS c", "."),
        ("FROM elsewhere", "."),
        (f"SELECT x, c FROM 't.parquet' WHERE {'(' * 400}x > 0{')' * 400}{' + (1'}", "."),  # noqa: S608
        ("SELECT " + "-".join(["(1"] * 500) + ")" * 500 + " AS x, 'a' AS c", "."),
    ],
)
@pytest.mark.parametrize("database", [None, Path("d.db")])
@pytest.mark.usefixtures("here")
def test_what_is_no_select_of_named_files_is_refused(
    manifest: Build, load: Load, query: str, said: str, database: Path | None
) -> None:
    """Statements, writes within a SELECT, files that it does not name, variables, extensions and the network."""
    rows = pa.table({"x": [0.0], "c": ["a"]})  # which DuckDB would find by its name
    with pytest.raises(TableImportError, match=said):
        load(manifest(), SqlSource(query, database))
    assert rows.num_rows == 1


@pytest.mark.parametrize(
    ("query", "guessed"),
    [
        ("FROM 't.csv'", ("t.csv",)),
        ("SELECT * FROM \"t.csv\" JOIN 'u.csv' USING (x) JOIN 't.parquet' USING (x)", ("t.csv", "u.csv")),
        ("FROM '?.csv'", ("?.csv",)),
        ("FROM read_csv('t.csv')", ("t.csv",)),
        ("FROM READ_CSV_AUTO(['t.csv', 'u.csv'], union_by_name = true)", ("t.csv", "u.csv")),
        ("FROM read_csv('t.csv', all_varchar = true)", ("t.csv",)),
        ("FROM read_csv('t.csv', columns = {'x': 'DOUBLE', 'c': 'VARCHAR'})", ("t.csv",)),
        (f"FROM read_csv('t.csv', {EXACT}, strict_mode = false)", ("t.csv",)),
        (f"FROM read_csv('t.csv', {EXACT.replace('false', 'true')})", ("t.csv",)),
        (f"FROM read_csv('t.csv', {EXACT.replace(' =', ' :=')})", ()),
        ("FROM 't.json'", ("t.json",)),
        ("FROM read_json('t.json')", ("t.json",)),
        ("SELECT (SELECT count(*) FROM 't.csv')", ("t.csv",)),
        ("WITH a AS (FROM 't.csv') FROM a", ("t.csv",)),
        ("FROM read_ndjson_objects('t.json')", ()),
        ("FROM read_parquet('t.parquet')", ()),
        ("FROM t", ()),
    ],
)
@pytest.mark.usefixtures("here")
def test_files_that_are_read_by_guessing_are_known(query: str, guessed: tuple[str, ...]) -> None:
    """Those whose delimiter, quotes, header or types DuckDB infers from the content."""
    assert Query.parse(query).guessed == guessed


@pytest.mark.parametrize("options", ["", ", all_varchar = true"])
def test_one_record_changes_all_where_files_are_guessed(
    manifest: Build, load: Load, slots: Slots, tmp_path: Path, options: str
) -> None:
    """Types depend on all cells, and even where all columns are text, delimiter and header do: hence the warning."""
    path = tmp_path / "t.csv"
    units = [f"{i}{end}" for i in range(1, 100) for end in ("", ".0")]
    declared = manifest(unit={"column": "who", "max_rows": 1}, columns=manifest().columns[:1])
    found = []
    for more in ("", "A1,0.5\n", "A1;b,0.5,1\n"):
        path.write_text("who,x\n" + "".join(f"{unit},0.5\n" for unit in units) + more)
        exact = "auto_detect = false, header = true, columns = {'who': 'VARCHAR', 'x': 'VARCHAR'}"
        for reader in (f"read_csv('{path}'{options})", f"read_csv('{path}', {exact})"):
            try:
                rows = slots(load(declared, SqlSource(f"SELECT who, x FROM {reader}"))[1])  # noqa: S608
                found.append(sum(row is not None for row in rows))
            except TableImportError:
                found.append(-1)
    guessed, exactly = found[::2], found[1::2]
    assert exactly == [198, 199, -1]
    assert abs(guessed[0] - guessed[1]) == 100 if not options else guessed[2] in (-1, 1)
