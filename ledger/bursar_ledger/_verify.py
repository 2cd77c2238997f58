"""Verification of a ledger file, without the server and without the data."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path

from sqlite_utils import Database

from ._canonical import NO_ENTRY
from ._codec import decode_events
from ._examine import UNREADABLE, Examined, examine
from ._replay import AccountTotals, Replay, Restatement
from ._reprice import price_range
from ._schema import schema_problems
from ._store import connect


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        problems: one line a finding, naming the entry; empty if all is well.
        entries: number of the newest entry.
        head: its hash; compare it with a copy kept elsewhere, since a file that was rolled back verifies, too.
        accounts: promises and sums as computed from the entries.
        ledger_id: the ledger's random name, "" if it cannot be read.
        verifier_keys: of signed checkpoints: (entry, key), in force from that entry on.
    """

    problems: tuple[str, ...]
    entries: int
    head: bytes
    accounts: tuple[AccountTotals, ...]
    ledger_id: str
    verifier_keys: tuple[tuple[int, str], ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def verify(path: str | os.PathLike[str], *, processes: int = 1) -> Verification:
    """Checks schema, chain, sums, caps and released bytes, and prices every debit again; changes nothing.

    Args:
        path: of the file.
        processes: that look at entries at the same time, in a file that is long enough to be worth it. They are
            spawned, so a script that asks for more than one needs the guard of `multiprocessing` around its main part.
    """
    try:
        db = connect(Path(path), read_only=True)
    except sqlite3.Error as error:
        return Verification((f"the file cannot be opened: {error}",), 0, NO_ENTRY, (), "", ())
    with contextlib.closing(db):
        return check(db, reprice=True, processes=processes)


def check(db: Database, *, reprice: bool, processes: int = 1) -> Verification:
    """`verify` on an open connection, as one consistent read; `reprice` also prices every debit again."""
    replay = Replay()
    try:
        db.execute("BEGIN")
        try:
            with _without_collection():
                _read(db, replay, reprice, processes)
        finally:
            db.rollback()
    except (sqlite3.Error, UnicodeError) as error:
        replay.problems.append(f"after entry {replay.number}: the file cannot be read as a ledger: {error}")
    return Verification(
        problems=tuple(replay.problems),
        entries=replay.number,
        head=replay.head,
        accounts=tuple(replay.accounts.values()),
        ledger_id=replay.ledger_id,
        verifier_keys=tuple(replay.verifier_keys),
    )


def _read(db: Database, replay: Replay, reprice: bool, processes: int) -> None:
    replay.problems.extend(schema_problems(db))
    newest = db.execute("SELECT max(number) FROM entries").fetchone()[0]
    if processes == 1 or not isinstance(newest, int) or not _SHORT < newest <= _bytes(db):
        replay.problems.extend(_damage(db))
        entries = (examine(*row, reprice=reprice) for row in db.execute(_ENTRIES, [-_ENDLESS, _ENDLESS]))
        _replay(replay, entries, _digests(db))
    else:
        _read_together(db, replay, reprice, processes, newest)
    if reprice:
        for restatement in replay.restatements:
            replay.problems.extend(_restatement_problems(db, restatement))


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """No search for cycles meanwhile: entries have none, and among many objects it takes half of the replay's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _bytes(db: Database) -> int:
    """Of the file: no honest ledger has more entries, and a number from a forger would give endless ranges of them."""
    pages, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)


def _read_together(db: Database, replay: Replay, reprice: bool, processes: int, newest: int) -> None:
    """Likewise, with everything that needs no history done by other processes, a range of entries each."""
    file = Path(db.execute("PRAGMA database_list").fetchone()[2])
    # The first range is open, so that no row is outside all of them. Entries are only ever added: what another
    # connection reads up to `newest` is what this one would.
    firsts = [-_ENDLESS, *range(1 + _RANGE, newest + 1, _RANGE)]
    lasts = [*(first - 1 for first in firsts[1:]), newest]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin) as pool:
        damage = pool.submit(_damage_of, file)
        ranges = [(file, first, last, reprice) for first, last in zip(firsts, lasts, strict=True)]
        known = len(replay.problems)
        # Released bytes are read here: other connections would see those that come meanwhile, without their entries.
        _replay(replay, _in_turn(pool, ranges, _AHEAD * processes), _digests(db))
        replay.problems[known:known] = damage.result()


def _in_turn(pool: Executor, ranges: Iterable[_Range], ahead: int) -> Iterator[Examined]:
    """The entries of all ranges, in order; others look at most `ahead` ranges ahead, so that few are in memory."""
    waiting = deque[Future[list[Examined]]]()
    for each in ranges:
        if len(waiting) == ahead:
            yield from waiting.popleft().result()
        waiting.append(pool.submit(_examine_range, *each))
    while waiting:
        yield from waiting.popleft().result()


def _replay(replay: Replay, entries: Iterable[Examined], digests: Iterable[tuple[int, str]]) -> None:
    for entry in entries:
        replay.take(entry)
    for debit, digest in digests:
        replay.take_release(debit, digest)
    replay.finish()


def _damage(db: Database) -> list[str]:
    found = (row[0] for row in db.execute("PRAGMA integrity_check(10)"))
    return [f"file: {line}" for line in found if line != "ok"]


def _digests(db: Database) -> Iterator[tuple[int, str]]:
    for debit, content in db.execute("SELECT debit, content FROM releases ORDER BY debit"):
        yield debit, hashlib.sha256(content).hexdigest()


def _begin() -> None:
    """Prepares a process that looks at entries."""
    gc.disable()  # it keeps nothing, and an entry has no cycles: searching for them takes a tenth of the time
    # It ends when the process that asked for it does, even if that was killed and could not say so.
    if (parent := parent_process()) is not None:
        threading.Thread(target=_exit_after, args=[parent], daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _damage_of(file: Path) -> list[str]:
    with contextlib.closing(connect(file, read_only=True)) as db:
        db.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")  # every entry is looked up in every index, in no order
        return _damage(db)


def _examine_range(file: Path, first: int, last: int, reprice: bool) -> list[Examined]:
    with contextlib.closing(connect(file, read_only=True)) as db:
        return [examine(*row, reprice=reprice) for row in db.execute(_ENTRIES, [first, last])]


_ENTRIES = "SELECT number, body, hash FROM entries WHERE number BETWEEN ? AND ? ORDER BY number"
_ENDLESS = 2**62
_SHORT = 20_000
"""Entries that take less time than starting processes."""
_RANGE = 2000
_AHEAD = 4
_CACHE_KIB = 1 << 16
_Range = tuple[Path, int, int, bool]


def _restatement_problems(db: Database, restatement: Restatement) -> list[str]:
    """Whether every analyst's sum under a new total is what his debits before it cost at the new order."""
    low, high = Counter[str](), Counter[str]()
    # Read from the bodies: a column that is computed from them could disagree in a damaged file.
    for (body,) in db.execute(
        "SELECT body FROM entries WHERE kind = 'debit' AND number < ? ORDER BY number", [restatement.number]
    ):
        with contextlib.suppress(*UNREADABLE):  # named when the entry was examined; here the sum shows it again
            fields = json.loads(body)
            if fields["details"].get("account", fields["dataset"]) == restatement.account:
                gaussian, others = decode_events(fields["details"]["events"])
                lowest, highest = price_range(gaussian, others, restatement.order)
                low[fields["actor"]] += lowest
                high[fields["actor"]] += highest
    return [
        f"entry {restatement.number}: {name!r} spent {cost} units at the new order, but the debits cost {low[name]}"
        for name, (cost, _) in restatement.analysts.items()
        if not low[name] <= cost <= high[name]
    ]
