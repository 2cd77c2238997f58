"""Schema of a ledger file: numbered SQL files, applied together with a record of each."""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import sqlite3

from sqlite_utils import Database, Migrations
from sqlite_utils.db import Database as _Database

from .errors import LedgerVersionError

MIGRATIONS = Migrations("bursar_ledger")


def register(name: str, sql: str) -> None:
    """Add a migration: the name and text of a file in `migrations/`."""

    @MIGRATIONS(name=name)
    def apply(db: _Database) -> None:
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


for _file in sorted(importlib.resources.files(__package__).joinpath("migrations").iterdir(), key=lambda f: f.name):
    if _file.name.endswith(".sql"):
        register(_file.name.removesuffix(".sql"), _file.read_text("utf-8"))


def applied(db: Database) -> tuple[str, ...]:
    """Return the names of the migrations that a file has had, in order; none for a file that is no ledger."""
    return tuple(str(migration.name) for migration in MIGRATIONS.applied(db))  # in a damaged file it may be anything


def known() -> tuple[str, ...]:
    """Return the names of the migrations of this version, in order."""
    with contextlib.closing(Database(memory=True, execute_plugins=False)) as db:
        return tuple(migration.name for migration in MIGRATIONS.pending(db))


def check_version(db: Database) -> None:
    """Check that no newer version has changed a file. Raises LedgerVersionError."""
    newer = [name for name in applied(db) if name not in known()]
    if newer:
        raise LedgerVersionError(
            f"the ledger has the schema of a newer version ({', '.join(newer)}); this one knows {known()[-1]}. "
            "Use the version that wrote it, or a later one"
        )


def schema_of(db: Database) -> dict[str, str]:
    """Return the name and text of every table, index and trigger of a file."""
    rows = db.execute("SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_master")
    return dict(rows.fetchall())


@functools.cache
def expected_schema(version: str) -> dict[str, str]:
    """Return what `schema_of` gives for a ledger file whose newest migration is `version`."""
    with contextlib.closing(Database(memory=True, execute_plugins=False)) as db:
        MIGRATIONS.apply(db, stop_before=known()[known().index(version) + 1 :])
        return schema_of(db)


def schema_problems(db: Database) -> tuple[str, ...]:
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
