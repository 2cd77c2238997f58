"""Places of a table: `--database` with `--table` or `--sql`, errors of sources, and imports that are killed."""

from __future__ import annotations

import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
import termios
import time
import tomllib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click.testing
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bursar_ledger import Ledger
from bursar_server.admin.cli import main
from bursar_server.tables import Keyring, Keys
from bursar_server.tables.registration import remove_unfinished
from tests.buckets import SECRET, Buckets, buckets
from tests.postgres import PASSWORD, Postgres, postgres

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin

__all__ = ["buckets", "postgres"]

TOTAL = ("--epsilon", 1, "--delta", 1e-6)
HEIGHTS = [(1.5, "hush"), (1.7, "hush"), (None, "hush"), (9.0, "hush"), (2.0, "hush")]


@pytest.fixture
def databases(tmp_path: Path) -> list[Path]:
    """The rows of `Admin.table` in an SQLite and in a DuckDB file, whose names say nothing."""
    files = [tmp_path / "one.db", tmp_path / "two.db"]
    with closing(sqlite3.connect(files[0])) as lite, lite, duckdb.connect(files[1]) as duck:
        for connection in (lite, duck):
            connection.execute("CREATE TABLE people (height DOUBLE, who VARCHAR(9))")
            connection.executemany("INSERT INTO people VALUES (?, ?)", HEIGHTS)
    return files


def test_a_table_of_a_database_is_the_one_of_its_csv(admin: Admin, databases: list[Path]) -> None:
    """A name and a query, in another order, have rows that are known as those of the CSV file."""
    admin.add()
    manifest = admin.table("again")[:2]
    for file in databases:
        for which in (("--table", "people"), ("--sql", "SELECT height FROM people ORDER BY height DESC")):
            words = ("import", *manifest, "--database", file, *which, *TOTAL, "--dry-run")
            assert "these rows are known: 'heights'" in admin.refused(*words)
            assert "5  rows read" in admin.ok(*words, "--other-people")


def test_a_skeleton_of_a_database_has_names_and_types(databases: list[Path]) -> None:
    """And no value."""
    for file in databases:
        for which in (("--table", "people"), ("--sql", "SELECT * FROM people")):
            words = ["manifest", "new", "--database", str(file), *which]
            output = click.testing.CliRunner().invoke(main, words).output
            kinds = [(column["name"], column["kind"]) for column in tomllib.loads(output)["columns"]]
            assert kinds == [("height", "numeric"), ("who", "categorical")]
            assert "hush" not in output


@pytest.mark.parametrize(
    "words",
    [
        ("--table", "people"),
        ("--database", "FILE"),
        ("--database", "FILE", "--csv", "FILE"),
        ("--database", "FILE", "--table", "people", "--sql", "SELECT 1"),
        ("--csv", "FILE", "--sql", "SELECT 1"),
    ],
)
def test_one_place_is_named(admin: Admin, databases: list[Path], words: tuple[str, ...]) -> None:
    """The refusal says which options go together, for imports and skeletons."""
    given = [str(databases[0]) if word == "FILE" else word for word in words]
    said = "--table goes with --database"
    assert said in admin.refused("import", *admin.table("heights")[:2], *given, *TOTAL)
    result = click.testing.CliRunner().invoke(main, ["manifest", "new", *given])
    assert result.exit_code == 1
    assert said in result.output


def test_what_could_quote_a_cell_is_shown_if_it_is_asked_for(admin: Admin, databases: list[Path]) -> None:
    """The option --verbose shows it without characters that a terminal obeys; an error of names is shown as it is."""
    queries = (
        "SELECT json_extract('{}', who || char(27) || '[2J') AS height FROM people",
        "SELECT CAST(who || chr(27) || '[2J' AS DOUBLE) AS height FROM people",
    )
    for file, query in zip(databases, queries, strict=True):
        words = ("import", *admin.table("heights")[:2], "--database", file, "--sql", query, *TOTAL)
        output = admin.refused(*words)
        assert "--verbose shows" in output
        assert "hush" not in output
        output = admin.refused(*words, "--verbose")
        assert "hush" in output
        assert "\x1b" not in output
        output = admin.refused(*words[:5], "--table", "nobody", *TOTAL)
        assert "nobody" in output
        assert "--verbose" not in output
    assert not admin.snapshots


def test_a_table_of_postgresql(admin: Admin, postgres: Postgres) -> None:
    """Its rows are known in any order, its password is nowhere, and a skeleton has no value."""
    postgres.run(
        "CREATE TABLE people AS SELECT * FROM (VALUES (1.5, 'hush'), (9, 'hush'), (2, 'hush')) AS t(height, who)"
    )
    table = ("--database", postgres.address, "--table", "people")
    output = click.testing.CliRunner().invoke(main, ["manifest", "new", *table]).output
    assert [column["kind"] for column in tomllib.loads(output)["columns"]] == ["numeric", "categorical"]
    assert "hush" not in output
    output = admin.ok("import", *admin.table("heights")[:2], *table, *TOTAL, "--yes")
    assert "3  rows read" in output
    ordered = ("--database", postgres.address, "--sql", "SELECT * FROM people ORDER BY height DESC")
    assert "these rows are known" in admin.refused("import", *admin.table("again")[:2], *ordered, *TOTAL)
    with_password = postgres.address.replace("owner@", f"owner:{PASSWORD.replace(' ', '%20')}@")
    refused = admin.refused("import", *admin.table("again")[:2], "--database", with_password, *table[2:], *TOTAL)
    assert "PGPASSFILE" in refused
    for text in (output, refused, repr(admin.entries())):
        assert "correct" not in text


def test_a_table_in_a_bucket(admin: Admin, buckets: Buckets) -> None:
    """A skeleton knows the dialect of its header, and an import its rows; the secret is nowhere."""
    folder = buckets.folder / "people" / "who=hush"
    folder.mkdir()
    (folder / "heights.csv").write_text("height;who\n1.5;hush\n1.7;hush\n")
    pq.write_table(pa.table({"height": [1.7, 1.5]}), folder / "heights.parquet")
    outputs = [
        click.testing.CliRunner().invoke(main, ["manifest", "new", option, address]).output
        for option, address in (("--csv", "s3://people/who=hush/heights.csv"), ("--parquet", "s3://people"))
    ]
    for output in outputs:
        assert [column["name"] for column in tomllib.loads(output)["columns"]] == ["height", "who"]
        assert "hush" not in output
    assert tomllib.loads(outputs[0])["csv"]["delimiter"] == ";"
    manifest = admin.table("heights")[:2]
    outputs.append(admin.ok("import", *manifest, "--parquet", "s3://people", *TOTAL, "--yes"))
    assert "2  rows read" in outputs[-1]
    for address in ("s3://people/who=hush/heights.parquet", "s3://people/nothing", "s3://ada:hush@people/x"):
        outputs.append(admin.refused("import", *admin.table("again")[:2], "--parquet", address, *TOTAL))
    assert [said in output for said, output in zip(("are known", "not exist", "cannot be"), outputs[3:], strict=True)]
    assert not any(SECRET in text for text in (*outputs, repr(admin.entries())))


def _many(file: Path) -> Path:
    """Write a Parquet file of 10^8 equal rows."""
    part = pa.table({"height": pa.array([1.5]).take(pa.array([0] * 10**6))})
    with pq.ParquetWriter(file, part.schema) as writer:
        for _ in range(100):
            writer.write_table(part)
    return file


def _endless(place: str, folder: Path) -> list[str]:
    """Options that name a table which is not read to its end within a test."""
    if place == "parquet":
        return ["--parquet", str(_many(folder / "t.parquet"))]
    if place == "csv":
        (folder / "t.csv").write_text("height,who\n" + "1.5,hush\n" * 20_000_000)
        return ["--csv", str(folder / "t.csv")]
    if place == "duckdb":
        return ["--sql", "SELECT 1.5 AS height FROM range(1000000000000)"]
    with closing(sqlite3.connect(folder / "t.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE t (i)")
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 1.5 AS height FROM n"
    return ["--database", str(folder / "t.sqlite"), "--sql", rows]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["csv", "parquet", "duckdb", "sqlite"])
def test_an_import_that_is_killed_half_way_leaves_nothing(admin: Admin, tmp_path: Path, place: str) -> None:
    """No dataset and no entry; the rows that were written so far are in one private folder, which the next removes."""
    _kill_half_way(admin, _endless(place, tmp_path))


@pytest.mark.slow
def test_an_import_from_postgresql_that_is_killed_leaves_nothing(admin: Admin, postgres: Postgres) -> None:
    """Nor does the server go on with its query."""
    query = "SELECT 1.5 AS height, generate_series(1, 1000000000000) AS i"  # in FROM it would fill the disk first
    _kill_half_way(admin, ["--database", postgres.address, "--sql", query])
    count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%1000000000000%' AND pid <> pg_backend_pid()"
    deadline = time.monotonic() + 60
    while postgres.run(count).strip() != "0":
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_an_import_from_a_bucket_that_is_killed_leaves_nothing(admin: Admin, buckets: Buckets) -> None:
    """The end is that of an import from a file."""
    _many(buckets.folder / "people" / "many.parquet")
    _kill_half_way(admin, ["--parquet", "s3://people/many.parquet"])


@pytest.mark.slow
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_import_that_is_told_to_stop_removes_its_rows_itself(
    admin: Admin, tmp_path: Path, told: signal.Signals
) -> None:
    """Ctrl-C, a system that shuts down and a connection that breaks each send a signal."""
    head = admin.verified.head
    _stop_half_way(admin, _endless("duckdb", tmp_path), told)
    assert not admin.snapshots
    assert admin.verified.head == head


def test_what_killed_imports_left_is_removed_without_another_import(admin: Admin) -> None:
    """Whole rows with their key, too, of one that was killed at its question, unless an import is under way.

    Registered rows, those that were replaced, and other files stay.
    """
    admin.add()
    (replaced,) = admin.snapshots
    admin.ok("snapshot", *admin.table("heights", "height\n1.5\n1.6\n"), "--yes")
    stays = admin.snapshots | {".notes.partial"}
    assert replaced in stays
    ring = Keyring(admin.state.keys)
    ring.save("b" * 32, Keys.draw())
    for name in (".notes.partial", f".{'a' * 32}.partial", "b" * 32):
        (admin.state.datasets / name).mkdir()
        (admin.state.datasets / name / "rows.arrow").write_text("hush")
    with Ledger.open(admin.state.ledger) as ledger:
        with admin.state.importing():
            remove_unfinished(admin.state, ledger)
        assert len(admin.snapshots) == len(stays) + 2
        remove_unfinished(admin.state, ledger)
    assert admin.snapshots == stays
    assert not ring.has("b" * 32)
    assert all(map(ring.has, stays - {".notes.partial"}))


def _kill_half_way(admin: Admin, rows: list[str]) -> None:
    head = admin.verified.head
    _stop_half_way(admin, rows, signal.SIGKILL)
    (left,) = admin.state.datasets.iterdir()
    assert left.stat().st_mode & 0o777 == 0o700
    assert admin.verified.head == head
    assert admin.ok("datasets").startswith("no datasets yet")
    admin.add()
    assert len(admin.snapshots) == 1


def _stop_half_way(admin: Admin, rows: list[str], told: signal.Signals) -> None:
    """Send an import a signal once it has written rows and shown how many it read, and wait for its end."""
    words = ["import", *admin.table("heights")[:2], *rows, *TOTAL, "--state", admin.state.path]
    program = [sys.executable, "-c", "from bursar_server.admin.cli import main; main()", *map(str, words)]
    seen, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))  # a terminal of no width shows nothing
    shown = b""
    # Where it reads fast it may come to its question before the signal: there it waits, with rows not registered yet.
    with subprocess.Popen(program, stdin=terminal, stdout=subprocess.DEVNULL, stderr=terminal) as running:
        deadline = time.monotonic() + 120
        try:
            while not re.search(rb"reading: [\d.]+[kM]? rows", shown) or not _written(admin):
                assert running.poll() is None, shown
                assert time.monotonic() < deadline, shown
                if select.select([seen], [], [], 0.05)[0]:
                    shown += os.read(seen, 65536)
            os.kill(running.pid, told)
            while running.poll() is None:  # what it shows is read, so that it does not wait for that
                if select.select([seen], [], [], 0.05)[0]:
                    os.read(seen, 65536)
        finally:
            running.kill()
    os.close(seen)
    os.close(terminal)
    assert running.returncode != 0


def _written(admin: Admin) -> bool:
    return any(path.stat().st_size for path in admin.state.datasets.glob(".*.partial/*"))
