"""`--sql`: one SELECT over the files that it names, also in a dry run, and a warning where a file is guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin

TOTAL = ("--epsilon", 1, "--delta", 1e-6)


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    "query",
    [
        "COPY (FROM '{table}') TO '{out}'",
        "COPY (FROM '{table}') TO '{out}'; FROM '{table}'",
        "WITH a AS (COPY (FROM '{table}') TO '{out}') FROM '{table}'",
        "ATTACH '{out}'",
        "FROM '{table}', enable_logging(storage = 'file', storage_path = '{out}')",
        "INSTALL httpfs",
    ],
)
def test_a_query_that_writes_is_refused_and_writes_nothing(admin: Admin, query: str, dry_run: tuple[str, ...]) -> None:
    """A script from somebody else leaves no file, in the state directory or beside it, and no entry."""
    manifest = admin.table("heights")[:2]
    out = admin.files / "out"
    before = set(admin.files.rglob("*")) | set(admin.state.path.rglob("*"))
    text = query.format(table=admin.files / "heights.csv", out=out)
    admin.refused("import", *manifest, "--sql", text, *TOTAL, *dry_run)
    after = set(admin.files.rglob("*")) | set(admin.state.path.rglob("*"))
    assert after - before <= {admin.state.path / "import.lock"}
    assert [entry.kind for entry in admin.entries()].count("registration") == 0


def test_a_file_that_is_guessed_is_named(admin: Admin) -> None:
    """The administrator reads what to write instead; a query that declares its columns has no warning."""
    manifest, table = admin.table("heights")[:2], admin.files / "heights.csv"
    output = admin.ok("import", *manifest, "--sql", f"FROM '{table}'", *TOTAL, "--dry-run")
    assert f"warning: DuckDB guesses from many rows of {table} how to read" in output
    assert "auto_detect = false, header = true, columns = {'name': 'DOUBLE', ...}" in output
    exact = f"FROM read_csv('{table}', auto_detect = false, header = true, columns = {{'height': 'VARCHAR'}})"
    assert "warning" not in admin.ok("import", *manifest, "--sql", exact, *TOTAL, "--dry-run")
