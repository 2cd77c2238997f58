"""Tables in a real PostgreSQL server, which the tests start."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bursar_server.tables import ImportReport, Manifest, PostgresSource, Snapshot, TableImportError
from tests.postgres import PASSWORD, Postgres, postgres

__all__ = ["postgres"]

Build = Callable[..., Manifest]
Load = Callable[..., tuple[ImportReport, Snapshot]]
Slots = Callable[[Snapshot], list[tuple[Any, ...] | None]]


def test_rows_are_streamed_with_their_types(postgres: Postgres, load: Load, slots: Slots) -> None:
    """Numbers of every kind, booleans, enumerations, dates; a missing or strange cell changes its row alone."""
    columns = [
        *({"name": name, "kind": "numeric", "lower": 0, "upper": 9, "nullable": True} for name in ("i", "n", "f")),
        {"name": "d", "kind": "numeric", "lower": 0, "upper": 99, "date": {"since": "2026-01-01", "unit": "days"}},
        {"name": "c", "kind": "categorical", "categories": ["a", "b"]},
        {"name": "b", "kind": "categorical", "categories": ["false", "true"]},
    ]
    manifest = Manifest.from_public({"name": "t", "adjacency": "add_remove_one", "columns": columns})
    postgres.run(
        """CREATE TYPE mood AS ENUM ('a', 'b', 'c');
        CREATE TABLE kinds (i bigint, n numeric, f real, d date, c mood, b boolean, "odd ""name" int);
        INSERT INTO kinds VALUES (1, 1.25, 0.5, '2026-01-11', 'b', true),
        (NULL, 'NaN', 'Infinity', '2026-01-02', 'a', false),
        (2, 99, -1, NULL, 'a', true), (2, 1, 1, 'infinity', 'a', true), (3, 3, 3, '2026-01-01', 'c', true)"""
    )
    found = slots(load(manifest, PostgresSource.of_table(postgres.address, "public.kinds"))[1])
    assert found[0] == (1.0, 1.25, 0.5, 10.0, 1, 1)
    assert found[1] is not None
    assert str(found[1]) == str((float("nan"),) * 3 + (1.0, 0, 0))
    assert found[2] is None
    assert found[4] is None
    query = "SELECT * FROM kinds WHERE i = 3 OR d = '2026-01-11' -- of two;"
    assert slots(load(manifest, PostgresSource(postgres.address, query))[1]) == [found[0], None]


def test_names_and_types(postgres: Postgres) -> None:
    """A query that would fail if it ran has types; a type of PostgreSQL's own has none, and cannot be imported."""
    query = "SELECT 1 / 0 AS i, 1.5::numeric AS n, now() AS t, '{}'::jsonb AS j, '::1'::inet AS a, 'hush' AS \"A b\""
    expected = [
        ("i", pa.int32()),
        ("n", pa.float64()),
        ("t", pa.timestamp("us", "UTC")),
        ("j", pa.string()),
        ("a", None),
        ("A b", pa.string()),
    ]
    source = PostgresSource(postgres.address, query)
    assert source.columns() == expected
    with pytest.raises(TableImportError, match=r"'a' is inet; convert .*::text"):
        list(source.batches(["n", "a"]))
    with pytest.raises(TableImportError, match="'a b' is missing"):
        list(source.batches(["a b"]))
    assert [
        batch.to_pydict() for batch in PostgresSource(postgres.address, 'SELECT 7 AS "q""\'"').batches(["q\"'"])
    ] == [{"q\"'": [7]}]


def test_a_large_result_comes_in_batches(postgres: Postgres) -> None:
    """Batches have no more rows than those of other sources."""
    source = PostgresSource(postgres.address, "SELECT i FROM generate_series(1, 200000) AS t(i)")
    sizes = [batch.num_rows for batch in source.batches(["i"])]
    assert sum(sizes) == 200000
    assert max(sizes) <= 65536


def test_a_query_writes_nothing(postgres: Postgres) -> None:
    """Not in a function, nor after it asked for more; two statements, and what is no query, are refused."""
    postgres.run(
        """CREATE TABLE kept (i int);
        CREATE FUNCTION writes() RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO kept VALUES (1); RETURN 1; END $$;
        CREATE FUNCTION frees() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            PERFORM set_config('transaction_read_only', 'off', false); INSERT INTO kept VALUES (1); RETURN 1; END $$"""
    )
    for query in (
        "SELECT writes() AS i",
        "SELECT frees() AS i",
        "INSERT INTO kept VALUES (1) RETURNING i",
        "SELECT 1 AS i; INSERT INTO kept VALUES (1)",
        "SELECT 1 AS i) AS x; INSERT INTO kept VALUES (1); SELECT i FROM (SELECT 1 AS i",
        "DROP TABLE kept",
    ):
        with pytest.raises(TableImportError):
            list(PostgresSource(postgres.address, query).batches(["i"]))
    assert postgres.run("SELECT count(*) FROM kept").strip() == "0"


def test_errors_and_notices(postgres: Postgres, capfd: pytest.CaptureFixture[str]) -> None:
    """Those of syntax and names are shown; what a cell could be in is a detail, and notices are not shown at all."""
    postgres.run(
        """CREATE FUNCTION loud() RETURNS int LANGUAGE plpgsql AS
        $$ BEGIN RAISE NOTICE 'hush'; RAISE WARNING 'hush'; RETURN 1; END $$"""
    )
    for query, said in (
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT agee FROM (SELECT 1 AS age) AS t", 'Perhaps you meant to reference the column "t.age"'),
        ('SELECT * FROM "nobody"', 'relation "nobody" does not exist'),
        ("SELECT 1; SELECT 2", "multiple commands"),
    ):
        with pytest.raises(TableImportError) as caught:
            PostgresSource(postgres.address, query).columns()
        assert said in str(caught.value)
        assert "SQLSTATE" not in str(caught.value)
    late = "SELECT (CASE WHEN i > 150000 THEN 'hush' ELSE '1' END)::int AS i FROM generate_series(1, 200000) AS t(i)"
    for query in ("SELECT x::int AS i FROM (VALUES ('1'), ('hush')) AS t(x)", late):
        with pytest.raises(TableImportError) as caught:
            list(PostgresSource(postgres.address, query).batches(["i"]))
        assert "hush" not in str(caught.value)
        assert "hush" in caught.value.detail
    assert [batch.num_rows for batch in PostgresSource(postgres.address, "SELECT loud() AS i").batches(["i"])] == [1]
    assert "hush" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ada:{}@host/db",
        "postgres://ada:{}@host",
        "postgresql://ada:{}?x@host/db",
        "postgresql://ada:{}/x@host/db",
        "postgresql://ada:{}@x@host/db",
        "postgresql://host/db?password={}",
        "postgresql://host/db?user=ada&PassWord={}",
        "postgresql://host/db?pass%77ord={}",
        "postgresql://host/db?sslpassword={}",
        "postgresql://ada:{}/db",
        "postgresql://[{}]/db",
    ],
)
def test_an_address_with_a_password_is_refused(address: str) -> None:
    """The refusal comes before anything is sent, with advice, and without a word of the password."""
    with pytest.raises(TableImportError, match=r"PGPASSFILE|without a password") as caught:
        PostgresSource(address.format("swordfish"), "SELECT 1")
    assert "swordfish" not in str(caught.value)


def test_addresses_without_a_password() -> None:
    """Are those of the server's manual."""
    for rest in (
        "",
        "host",
        "host:5433",
        "ada@host/db?sslmode=verify-full",
        "/db?service=x",
        "a:1,b:2/db",
        "[::1]:5/db",
    ):
        PostgresSource(f"postgresql://{rest}", "SELECT 1")


def test_a_wrong_or_missing_password_is_told(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's message is told and has no password in it; nor has that of a server that does not answer."""
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text("*:*:*:*:swordfish\n")
    for file, said in ((wrong, "password authentication failed"), (tmp_path / "none", "no password supplied")):
        monkeypatch.setenv("PGPASSFILE", str(file))
        with pytest.raises(TableImportError, match=said) as caught:
            PostgresSource(postgres.address, "SELECT 1 AS i").columns()
        assert "swordfish" not in str(caught.value)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert PostgresSource(postgres.address, "SELECT 1 AS i").columns() == [("i", pa.int32())]
    with pytest.raises(TableImportError, match="no connection to PostgreSQL"):
        PostgresSource(f"postgresql:///db?host={tmp_path}", "SELECT 1").columns()


def test_without_the_driver_its_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional."""
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    with pytest.raises(TableImportError, match=r"pip install './bursar\[server,postgresql\]'"):
        PostgresSource("postgresql://", "SELECT 1").columns()
