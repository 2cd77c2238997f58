"""Findings of one look at a ledger, as tables of a scratch SQLite file that can be searched without the ledger.

A forged ledger may hold any schema, any text and any number; these tables hold fixed columns, numbers that fit, and
text with nothing in it that is not printable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .._entries import EntryKind
from ..refusals import Refusal
from ._checks import Findings
from ._columns import COLUMNS, Line, lines, summary
from ._history import History, following, refused_amounts
from ._open import Row
from ._spend import Spend, rho_of_units, spend_lines
from ._text import visible
from ._verdict import verdict

_SQL_TYPES = {int: "INTEGER", float: "REAL", bool: "INTEGER", str: "TEXT"}
_ENTRY = ", ".join(f"{name} {_SQL_TYPES[kind]}" for name, kind in COLUMNS.items() if name != "entry")

_SCHEMA = f"""
DROP TABLE IF EXISTS releases; DROP TABLE IF EXISTS acts; DROP TABLE IF EXISTS promises; DROP TABLE IF EXISTS analysts;
DROP TABLE IF EXISTS accounts; DROP TABLE IF EXISTS entries; DROP TABLE IF EXISTS problems; DROP TABLE IF EXISTS checks;
DROP TABLE IF EXISTS refusals;
CREATE TABLE checks (checked_at TEXT, verdict TEXT, entries INTEGER, head TEXT, witnessed INTEGER, problems INTEGER);
CREATE TABLE problems (number INTEGER PRIMARY KEY, problem TEXT);
CREATE TABLE entries (entry INTEGER PRIMARY KEY, what TEXT, {_ENTRY});
CREATE TABLE accounts (
    account TEXT PRIMARY KEY, datasets TEXT, epsilon REAL, delta REAL, renyi_order REAL, fits INTEGER,
    unreleased INTEGER, rho_spent REAL, share_spent REAL, rho_left REAL, nominal_epsilon REAL, call_limit REAL,
    closed INTEGER, epsilon_spent REAL, percent_spent REAL, epsilon_left REAL, percent_left REAL
);
CREATE TABLE analysts (
    account TEXT REFERENCES accounts (account), analyst TEXT, fits INTEGER, unreleased INTEGER, rho REAL, share REAL,
    rho_left REAL, nominal_epsilon REAL, allowance REAL, epsilon REAL, percent REAL, epsilon_left REAL,
    percent_left REAL, PRIMARY KEY (account, analyst)
);
CREATE TABLE promises (
    entry INTEGER PRIMARY KEY REFERENCES entries (entry), account TEXT REFERENCES accounts (account), time TEXT,
    actor TEXT, epsilon REAL, delta REAL, spent_by_then REAL, reason TEXT
);
CREATE TABLE acts (
    entry INTEGER PRIMARY KEY REFERENCES entries (entry), time TEXT, act TEXT, dataset TEXT, actor TEXT, what TEXT
);
CREATE TABLE releases (
    debit INTEGER PRIMARY KEY REFERENCES entries (entry), entry INTEGER, time TEXT, dataset TEXT, analyst TEXT,
    method TEXT, rho REAL, bytes INTEGER, sha256 TEXT, stored INTEGER, epsilon REAL, percent REAL
);
CREATE TABLE refusals (
    analyst TEXT, dataset TEXT, method TEXT, refused_by TEXT, times INTEGER, first TEXT, last TEXT, rho_asked REAL,
    rho_left REAL, epsilon_asked REAL, percent_asked REAL, epsilon_left REAL, percent_left REAL
);
CREATE INDEX entries_by_kind ON entries (kind, entry);
CREATE INDEX entries_by_dataset ON entries (dataset, entry);
CREATE INDEX entries_by_actor ON entries (actor, entry);
CREATE INDEX releases_by_dataset ON releases (dataset, debit);
"""
_INT64 = 2**63
"""Integers of SQLite end here; a forged ledger may hold larger ones."""
_Values = Sequence[object]


@contextlib.contextmanager
def scratch(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that writes the file, which others read meanwhile as it was before."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=OFF")  # the file is of no use after a crash
        yield db


def fill(
    db: sqlite3.Connection,
    entries: Iterable[Row],
    found: Findings | None,
    refusals: Sequence[Refusal],
    now: datetime,
) -> History:
    """Replace every table at once, and return the history of the entries that are certain.

    Nothing is `found` while the verification has not ended.
    """
    told = History()
    db.execute("BEGIN")
    try:
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        certain = None if found is None else verdict(found).certain
        _fill_entries(db, following(told, lines(entries), certain))
        _fill_accounts(db, told)
        _insert(
            db, "acts", ([a.entry, a.time, a.kind.replace("_", " "), a.dataset, a.actor, a.what] for a in told.acts)
        )
        _fill_refusals(db, refusals, told)
        _fill_checks(db, found, now)
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return told


def refresh(db: sqlite3.Connection, found: Findings, refusals: Sequence[Refusal], told: History, now: datetime) -> None:
    """Replace what may change while entries do not: what verification found, and refusals."""
    with db:
        db.execute("BEGIN")
        for table in ("checks", "problems", "refusals"):
            db.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
        _fill_refusals(db, refusals, told)
        _fill_checks(db, found, now)


def _fill_entries(db: sqlite3.Connection, entries: Iterable[tuple[Row, Line]]) -> None:
    made: list[_Values] = []

    def each() -> Iterator[_Values]:
        debits: dict[int, Line] = {}
        for row, line in entries:
            if line.kind == EntryKind.DEBIT:
                debits[line.entry] = line
            elif line.kind == EntryKind.RELEASE:
                made.extend(_release(row, line, debits))
            yield [row.number, summary(row, line), *(getattr(line, name) for name in COLUMNS if name != "entry")]

    _insert(db, "entries", each())
    _insert(db, "releases", made)


def _release(row: Row, line: Line, debits: dict[int, Line]) -> Iterator[_Values]:
    """Return the row of a release whose debit came before it; `verify` names everything else."""
    details = row.details
    debit = debits.pop(details["debit"], None) if isinstance(details.get("debit"), int) else None
    if debit is not None:
        size, digest = details.get("size"), details.get("sha256")
        whose = (debit.dataset, debit.actor, debit.method, debit.rho)
        yield [debit.entry, row.number, line.time, *whose, size, digest, debit.released, debit.epsilon, debit.percent]


def _fill_accounts(db: sqlite3.Connection, told: History) -> None:
    for account in told.accounts.values():
        (whole,) = spend_lines(account, by_analyst=False, pld=False)
        limit = None if account.call_limit is None else float(account.call_limit)
        datasets = ", ".join(f"{name} ({what})" for name, what in account.datasets.items())
        spent = (whole.fits, whole.unreleased, rho_of_units(account.spent_cost_units, account.order), whole.share)
        figures = (whole.epsilon, whole.delta, whole.order, *spent, whole.left_rho, whole.nominal_epsilon)
        _insert(db, "accounts", [[account.name, datasets, *figures, limit, account.closed, *_shown(whole)]])
        analysts = (
            [s.account, s.analyst, *_figures(s), s.allowance, *_shown(s)]
            for s in spend_lines(account, by_analyst=True, pld=False)
        )
        _insert(db, "analysts", analysts)
        promises = (
            [p.entry, account.name, p.time, p.actor, p.epsilon, p.delta, p.spent, p.reason] for p in account.promises
        )
        _insert(db, "promises", promises)


def _figures(line: Spend) -> list[float]:
    return [line.fits, line.unreleased, line.rho, line.share, line.left_rho, line.nominal_epsilon]


def _shown(line: Spend) -> list[float]:
    return [line.spent_epsilon, line.spent_percent, line.left_epsilon, line.left_percent]


def _fill_refusals(db: sqlite3.Connection, refusals: Sequence[Refusal], told: History) -> None:
    def each() -> Iterator[_Values]:
        for refusal in refusals:
            parts = refused_amounts(refusal, told) or ()
            shown: list[object] = [number for part in parts for number in (part.epsilon, 100 * part.share)]
            yield [*dataclasses.astuple(refusal), *(shown or [None] * 4)]

    _insert(db, "refusals", each())


def _fill_checks(db: sqlite3.Connection, found: Findings | None, now: datetime) -> None:
    time = now.isoformat(timespec="seconds")
    if found is None:
        _insert(db, "checks", [[time, "being verified", None, None, None, None]])
        return
    checked = found.verification
    facts = [checked.entries, checked.head.hex(), found.witnessed, len(found.problems)]
    _insert(db, "checks", [[time, verdict(found).text, *facts]])
    _insert(db, "problems", ([n, problem] for n, problem in enumerate(found.problems, 1)))


def _insert(db: sqlite3.Connection, table: str, rows: Iterable[_Values]) -> None:
    for first in (rows := iter(rows)):
        # A forger's second row of a name or number is left out here, and named by `verify`.
        sql = f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(first))})"  # noqa: S608 - our own names
        db.execute(sql, [_storable(value) for value in first])
        db.executemany(sql, ([_storable(value) for value in row] for row in rows))


def _storable(value: object) -> Any:
    """Return a value that SQLite stores: a text without unprintable characters, a number that fits."""
    if isinstance(value, str):
        return value if value.isprintable() else visible(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if abs(value) < _INT64 else None
    return value if value is None else visible(value)
