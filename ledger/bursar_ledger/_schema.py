"""Schema of a ledger file: numbered SQL files, applied together with a record of each."""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import sqlite3
from sqlite3 import Connection
from typing import TYPE_CHECKING

from .errors import LedgerVersionError

if TYPE_CHECKING:
    from sqlite_utils.db import Database

MIGRATIONS = {
    file.name.removesuffix(".sql"): file.read_text("utf-8")
    for file in sorted(
        importlib.resources.files(__package__).joinpath("migrations").iterdir(), key=lambda file: file.name
    )
    if file.name.endswith(".sql")
}
"""Names and texts of the files in `migrations/`, in their order."""

_SET = "bursar_ledger"


def apply(db: Connection, *, last: str | None = None) -> None:
    """Apply the migrations that a file has not had, up to `last`, each in one transaction with its record."""
    # Imported where a schema is made: it imports pandas where that is installed, half a second of every process.
    from sqlite_utils import Database, Migrations

    migrations = Migrations(_SET)
    for name, sql in MIGRATIONS.items():
        migrations(name=name)(lambda db, sql=sql: _execute(db, sql))
    migrations.apply(
        Database(db, execute_plugins=False), stop_before=() if last is None else known()[known().index(last) + 1 :]
    )


def _execute(db: Database, sql: str) -> None:
    """Execute statements one by one: `executescript` would first end the transaction."""
    for statement in _statements(sql):
        db.execute(statement)


def _statements(sql: str) -> tuple[str, ...]:
    """Return the statements of a file; each ends at the end of a line."""
    found, lines = [], ""
    for line in sql.splitlines(keepends=True):
        lines += line
        # Asked at the ends of lines only: each time it reads everything again.
        if line.rstrip().endswith(";") and sqlite3.complete_statement(lines):
            found.append(lines)
            lines = ""
    if lines.strip():
        raise ValueError(f"the last statement of a migration does not end: {lines!r}")
    return tuple(found)


def applied(db: Connection) -> tuple[str, ...]:
    """Return the names of the migrations that a file has had, in order; none for a file that is no ledger."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '_sqlite_migrations'").fetchall():
        return ()
    rows = db.execute("SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY rowid", (_SET,))
    return tuple(str(name) for (name,) in rows)  # in a damaged file it may be anything


def known() -> tuple[str, ...]:
    """Return the names of the migrations of this version, in order."""
    return tuple(MIGRATIONS)


def check_version(db: Connection) -> None:
    """Check that no newer version has changed a file. Raises LedgerVersionError."""
    newer = [name for name in applied(db) if name not in known()]
    if newer:
        raise LedgerVersionError(
            f"the ledger has the schema of a newer version ({', '.join(newer)}); this one knows {known()[-1]}. "
            "Use the version that wrote it, or a later one"
        )


def schema_of(db: Connection) -> dict[str, str]:
    """Return the name and text of every table, index and trigger of a file."""
    rows = db.execute("SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_master")
    return dict(rows.fetchall())


@functools.cache
def expected_schema(version: str) -> dict[str, str]:
    """Return what `schema_of` gives for a ledger file whose newest migration is `version`."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        apply(db, last=version)
        return schema_of(db)


def schema_problems(db: Connection) -> tuple[str, ...]:
    """Return one line for every table, index or trigger that is missing, changed or foreign to the file's version."""
    had = applied(db)
    if had != known()[: len(had)] or not had:
        return (
            f"schema: the record of migrations is {', '.join(had) or 'missing'}; "
            f"expected {', '.join(known())} or its beginning",
        )
    found, expected = schema_of(db), expected_schema(had[-1])
    missing = [f"{name} is missing" for name in expected if name not in found]
    changed = [f"{name} was changed" for name in expected if found.get(name, expected[name]) != expected[name]]
    foreign = [f"{name} does not belong into a ledger of this version" for name in found if name not in expected]
    return tuple(f"schema: {problem}" for problem in missing + changed + foreign)
