"""Quick check at the start of a long ledger, whose beginning a signed checkpoint vouches for.

Every body is hashed and linked up to the entry that was signed: bodies are bit for bit those that were verified before
it was signed. SQLite compares every index with its table, and every rule of the schema is there word by word: so what a
decision looks up (sums, limits, earlier requests, tokens) is what those bodies say. Prices, sums and forms of entries
up to the checkpoint are not computed again, and their released bytes are not hashed: `verify` does that, in minutes.
Entries behind the checkpoint are examined, priced and added up like all others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from sqlite3 import Connection
from typing import Any

from ._check_entry import UNREADABLE, Examined, examine, unreadable
from ._entries import NO_ENTRY, REQUESTS, EntryKind
from ._replay import AccountTotals, Replay, promised, share_of
from ._schema import applied, known, schema_problems
from ._types import EVERYONE
from ._verify import SHORT, begin, damage, damage_of, file_of


@dataclass(frozen=True)
class Witness:
    """Checkpoint that the caller believes.

    Attributes:
        size: number of the entry that was signed.
        head: its hash.
    """

    size: int
    head: bytes


def check_witnessed(db: Connection, witness: Witness, *, processes: int = 1) -> tuple[str, ...] | None:
    """Find problems of a ledger whose first `witness.size` entries were verified before, as one consistent read.

    None means that this check does not apply and every entry has to be verified: the ledger is short, has an older
    schema, does not reach the checkpoint, or has another act than debits and releases behind it.
    """
    try:
        db.execute("BEGIN")
        try:
            newest = db.execute("SELECT max(number) FROM entries").fetchone()[0]
            if not (isinstance(newest, int) and newest > SHORT and 0 <= newest - witness.size <= SHORT):
                return None
            if applied(db) != known() or schema_problems(db):
                return None
            tail = _tail(db, witness.size)
            if not {entry.fields["kind"] if entry.fields else None for entry in tail} <= REQUESTS:
                return None
            with _damage_beside(db, processes) as found:
                chain = _chain_problems(db, witness)
                problems = (*found(), *chain)
            # Nothing is looked up in indexes before they are known to be right.
            return problems or tuple(_tail_problems(db, witness, tail))
        finally:
            db.rollback()
    except (sqlite3.Error, UnicodeError, *UNREADABLE) as error:
        return (f"the file cannot be read as a ledger: {unreadable(error)}",)


@contextlib.contextmanager
def _damage_beside(db: Connection, processes: int) -> Iterator[Any]:
    """Let SQLite compare indexes with tables, in a process of its own if there is more than one."""
    if processes == 1:
        yield lambda: damage(db)
        return
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=begin) as pool:
        yield pool.submit(damage_of, file_of(db)).result


def _chain_problems(db: Connection, witness: Witness) -> list[str]:
    """Check that each body has its hash and names the one before it, and that the signed entry is what was signed."""
    expected, previous, signed = 1, NO_ENTRY.hex(), b""
    sha256 = hashlib.sha256
    for number, body, stored in db.execute("SELECT number, body, hash FROM entries ORDER BY number"):
        # The last one is the entry's own, behind which there is only the time: keys are sorted.
        place = body.rfind(_PREVIOUS) + len(_PREVIOUS)
        if number != expected or body[place : place + 64] != previous or sha256(body.encode()).digest() != stored:
            return [f"entry {expected}: it does not follow from the entry before it, or was changed"]
        if number == witness.size:
            signed = stored
        expected, previous = number + 1, stored.hex()
    if signed != witness.head:
        return [f"entry {witness.size}: it is not the entry that was signed"]
    return []


_PREVIOUS = '"previous":"'


def _tail(db: Connection, size: int) -> list[Examined]:
    rows = db.execute("SELECT number, body, hash FROM entries WHERE number > ? ORDER BY number", [size])
    return [examine(*row, reprice=True) for row in rows]


def _tail_problems(db: Connection, witness: Witness, tail: Sequence[Examined]) -> list[str]:
    """Replay the entries behind the checkpoint from the sums at the checkpoint."""
    replay = Replay(number=witness.size, head=witness.head)
    fields = [entry.fields for entry in tail if entry.fields is not None]
    debits = [each for each in fields if each["kind"] == EntryKind.DEBIT]
    for each in debits:
        _know_account(db, witness.size, replay, each["dataset"], each["actor"])
        if _one(db, _REQUEST, each["actor"], each["details"]["request_id"], witness.size):
            replay._requests.add((each["actor"], each["details"]["request_id"]))
    released = [each["details"]["debit"] for each in fields if each["kind"] == EntryKind.RELEASE]
    for debit in released:
        if debit <= witness.size and not _one(db, _RELEASED, debit, witness.size):
            waiting = _one(db, "SELECT dataset FROM entries WHERE number = ? AND kind = 'debit'", debit)
            replay._unreleased |= {debit: waiting[0]} if waiting else {}
    for entry in tail:
        replay.take(entry)
    released_too = sorted({*released, *_stored_behind(db, witness.size)})
    stored = ((debit, _one(db, "SELECT content FROM releases WHERE debit = ?", debit)) for debit in released_too)
    replay.take_releases((debit, hashlib.sha256(row[0]).hexdigest()) for debit, row in stored if row is not None)
    return replay.problems


_REQUEST = "SELECT number FROM entries WHERE kind = 'debit' AND actor = ? AND request_id = ? AND number <= ?"
_RELEASED = "SELECT number FROM entries WHERE kind = 'release' AND debit = ? AND number <= ?"


def _stored_behind(db: Connection, size: int) -> list[int]:
    return [row[0] for row in db.execute("SELECT debit FROM releases WHERE debit > ?", [size])]


def _know_account(db: Connection, size: int, replay: Replay, dataset: str, analyst: str) -> None:
    """Put the state of a dataset's account at the checkpoint, with one analyst's part, into a replay."""
    registered = _one(db, "SELECT account FROM entries WHERE kind = 'registration' AND dataset = ?", dataset)
    if registered is None:
        return
    account = replay._account_of[dataset] = registered[0]
    if _one(db, "SELECT number FROM entries WHERE kind = 'retirement' AND dataset = ?", dataset):
        replay._retired.add(dataset)
    (body,) = _one(db, _FOUNDED, account) or ("{}",)
    founded = json.loads(body)["details"]
    total = _one(db, _BUDGET, account, size)
    stated = founded if total is None else json.loads(total[1])["details"]
    if account not in replay.accounts:
        before = _one(db, _SPENT, account, size) or (0, 0)
        replay.accounts[account] = AccountTotals(
            name=account,
            datasets=(),
            adjacency=founded["adjacency"],
            budgets=(),
            **promised(stated),
            spent_cost_units=before[0] or 0,
            spent_delta_units=before[1] or 0,
            allowances=_shares(db, account, EVERYONE, size),
            call_share=_share(_one(db, _CALL, account, size)),
        )
    totals = replay.accounts[account]
    totals.allowances |= _shares(db, account, analyst, size)
    if analyst not in totals.analysts:
        restated = None if total is None else stated["analysts"].get(analyst)
        spent: Any = _one(db, _SPENT_BY, account, analyst, 0 if total is None else total[0], size) or restated
        if spent is not None:
            totals.analysts[analyst] = (spent[0], spent[1])


_FOUNDED = "SELECT body FROM entries WHERE kind = 'registration' AND dataset = ?"
_BUDGET = """
    SELECT number, body FROM entries WHERE kind = 'budget' AND account = ? AND number <= ? ORDER BY number DESC LIMIT 1
"""
_SPENT = """
    SELECT spent_cost_units, spent_delta_units FROM entries
    WHERE account = ? AND cap_cost_units IS NOT NULL AND number <= ? ORDER BY number DESC LIMIT 1
"""
_SPENT_BY = """
    SELECT analyst_spent_cost_units, analyst_spent_delta_units FROM entries
    WHERE kind = 'debit' AND account = ? AND actor = ? AND number > ? AND number <= ? ORDER BY number DESC LIMIT 1
"""
_CALL = """
    SELECT share FROM entries WHERE kind = 'call_limit' AND account = ? AND number <= ? ORDER BY number DESC LIMIT 1
"""
_ALLOWED = """
    SELECT share FROM entries
    WHERE kind = 'allowance' AND account = ? AND analyst = ? AND number <= ? ORDER BY number DESC LIMIT 1
"""


def _shares(db: Connection, account: str, analyst: str, size: int) -> dict[str, Any]:
    share = _share(_one(db, _ALLOWED, account, analyst, size))
    return {} if share is None else {analyst: share}


def _share(row: tuple[Any, ...] | None) -> Any:
    return None if row is None or row[0] is None else share_of(row[0])


def _one(db: Connection, sql: str, *parameters: object) -> tuple[Any, ...] | None:
    row: tuple[Any, ...] | None = db.execute(sql, parameters).fetchone()
    return row
