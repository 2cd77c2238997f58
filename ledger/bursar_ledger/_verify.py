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
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from sqlite3 import Connection

from ._bounds_check import price_range
from ._check_entry import UNREADABLE, Examined, examine
from ._entries import NO_ENTRY
from ._events import decode_events
from ._mark import read_mark
from ._opening import connect, missing
from ._replay import AccountTotals, Replay, Restatement
from ._schema import schema_problems
from .errors import LedgerLostError


@dataclass(frozen=True)
class Verified:
    """Beginning of a ledger in which nothing was found, where a later verification can go on.

    Attributes:
        replay: state after its entries.
        digest: SHA-256 of its rows.
    """

    replay: Replay
    digest: bytes


def nothing_verified() -> Verified:
    """Return the beginning that has no entry."""
    return Verified(Replay(), hashlib.sha256().digest())


@dataclass(frozen=True)
class Verification:
    """Findings of a verification.

    Attributes:
        problems: one line for each finding, naming the entry; empty if nothing was found.
        entries: number of the newest entry.
        head: its hash; compare it with a copy kept elsewhere, since a file that was rolled back verifies, too.
        accounts: promises and sums as computed from the entries.
        ledger_id: the ledger's random name, "" if it cannot be read.
        verifier_keys: verifier keys of signed checkpoints: (entry, key), in force from that entry on.
        verified: where the next verification can go on; None if something was found, or if it was not asked for.
        known: number of the entry behind which this one went on; 0 if it verified all.
    """

    problems: tuple[str, ...]
    entries: int
    head: bytes
    accounts: tuple[AccountTotals, ...]
    ledger_id: str
    verifier_keys: tuple[tuple[int, str], ...]
    verified: Verified | None = None
    known: int = 0

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.problems


def verify(
    path: str | os.PathLike[str], *, processes: int = 1, marked: bool = True, known: Verified | None = None
) -> Verification:
    """Check schema, chain, sums, caps and released bytes, and price every debit again; change nothing.

    Args:
        path: path of the file.
        marked: True if the entry that the mark beside the file names must be there; a copy has no mark.
        processes: number of processes that examine entries in parallel, in a file that is long enough. They are
            spawned, so a script that asks for more than one needs the guard of `multiprocessing` around its main part.
        known: where to go on, which is used up; all is verified if the rows are not those of then. Given
            `nothing_verified()`, all is verified, and the result says where to go on.
    """
    try:
        db = connect(Path(path), read_only=True)
    except sqlite3.Error as error:
        return Verification((f"the file cannot be opened: {error}",), 0, NO_ENTRY, (), "", ())
    with contextlib.closing(db):
        try:
            mark = read_mark(Path(path)) if marked else None  # first: entries may be added meanwhile
            lost = None
        except LedgerLostError as error:
            mark, lost = None, str(error)
        found = check(db, reprice=True, processes=processes, known=known)
        with contextlib.suppress(sqlite3.Error):  # a finding of `check` by then
            lost = lost or missing(Path(path), db, mark)
    return found if lost is None else replace(found, problems=(*found.problems, lost))


def check(db: Connection, *, reprice: bool, processes: int = 1, known: Verified | None = None) -> Verification:
    """Verify an open connection as `verify` does, as one consistent read; `reprice` also prices every debit again."""
    replay, verified, first = Replay(), None, 0
    try:
        db.execute("BEGIN")
        try:
            if known is not None and rows_digest(db, known.replay.number) == known.digest:
                replay, first = known.replay, known.replay.number
            with _without_collection():
                _read(db, replay, reprice, processes)
            if known is not None and not replay.problems:
                # They are verified now; the next visit goes on without them.
                replay.restatements.clear()
                verified = Verified(replay, rows_digest(db, replay.number))
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
        verified=verified,
        known=first,
    )


def rows_digest(db: Connection, last: int) -> bytes:
    """Return the SHA-256 of all rows up to entry `last`; of every number that SQLite has, so that none is left out."""
    found = hashlib.sha256()
    for number, body, stored in db.execute(
        "SELECT number, body, hash FROM entries WHERE number <= ? ORDER BY 1", [last]
    ):
        # Type and length stand before the text: otherwise different rows could run together into the same bytes.
        text = body.encode() if isinstance(body, str) else repr(body).encode()
        found.update(f"{number!r} {type(body).__name__} {len(text)} {stored!r} ".encode())
        found.update(text)
    return found.digest()


def _read(db: Connection, replay: Replay, reprice: bool, processes: int) -> None:
    replay.problems.extend(schema_problems(db))
    newest = db.execute("SELECT max(number) FROM entries").fetchone()[0]
    if processes == 1 or not isinstance(newest, int) or not SHORT < newest - replay.number <= _bytes(db):
        replay.problems.extend(damage(db))
        rows = db.execute(_ENTRIES, [_first(replay), _ENDLESS])
        _replay(replay, (examine(*row, reprice=reprice) for row in rows), _digests(db))
    else:
        _read_together(db, replay, reprice, processes, newest)
    if reprice:
        for restatement in replay.restatements:
            replay.problems.extend(_restatement_problems(db, restatement))


def _first(replay: Replay) -> int:
    """Return where to go on: behind what is known, or so low that no row is left out."""
    return replay.number + 1 if replay.number else -_ENDLESS


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Pause the search for cycles: entries have none, and among many objects it takes half of the replay's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _bytes(db: Connection) -> int:
    """Return the size of the file: no honest ledger has more entries, and a forged number would give endless ranges."""
    pages, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)


def _read_together(db: Connection, replay: Replay, reprice: bool, processes: int, newest: int) -> None:
    """Read as `_read`, with everything that needs no history done by other processes, a range of entries each."""
    file = file_of(db)
    # The first range is open, so that no row is outside all of them. Entries are only ever added: what another
    # connection reads up to `newest` is what this one would.
    firsts = [_first(replay), *range(replay.number + 1 + _RANGE, newest + 1, _RANGE)]
    lasts = [*(first - 1 for first in firsts[1:]), newest]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=begin) as pool:
        damage = pool.submit(damage_of, file)
        ranges = [(file, first, last, reprice) for first, last in zip(firsts, lasts, strict=True)]
        known = len(replay.problems)
        # Released bytes are read here: other connections would see those that come meanwhile, without their entries.
        _replay(replay, _in_turn(pool, ranges, _AHEAD * processes), _digests(db))
        replay.problems[known:known] = damage.result()


def _in_turn(pool: Executor, ranges: Iterable[_Range], ahead: int) -> Iterator[Examined]:
    """Yield the entries of all ranges, in order; at most `ahead` ranges are read ahead, so that few are in memory."""
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
    replay.take_releases(digests)


def file_of(db: Connection) -> Path:
    """Return the path of an open database."""
    return Path(db.execute("PRAGMA database_list").fetchone()[2])


def damage(db: Connection) -> list[str]:
    """Let SQLite check its pages, and every index against its table."""
    found = (row[0] for row in db.execute("PRAGMA integrity_check(10)"))
    return [f"file: {line}" for line in found if line != "ok"]


def _digests(db: Connection) -> Iterator[tuple[int, str]]:
    for debit, content in db.execute("SELECT debit, content FROM releases ORDER BY debit"):
        yield debit, hashlib.sha256(content).hexdigest()


def begin() -> None:
    """Prepare a process that looks at entries."""
    gc.disable()  # it keeps nothing, and an entry has no cycles: searching for them takes a tenth of the time
    # It ends when the process that asked for it does, even if that was killed and could not say so.
    if (parent := parent_process()) is not None:
        threading.Thread(target=_exit_after, args=[parent], daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def damage_of(file: Path) -> list[str]:
    """Run `damage` on a connection of its own."""
    with contextlib.closing(connect(file, read_only=True)) as db:
        db.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")  # every entry is looked up in every index, in no order
        return damage(db)


def _examine_range(file: Path, first: int, last: int, reprice: bool) -> list[Examined]:
    with contextlib.closing(connect(file, read_only=True)) as db:
        return [examine(*row, reprice=reprice) for row in db.execute(_ENTRIES, [first, last])]


_ENTRIES = "SELECT number, body, hash FROM entries WHERE number BETWEEN ? AND ? ORDER BY number"
_ENDLESS = 2**62
"""Number beyond that of every honest entry, and an integer that SQLite has."""
SHORT = 20_000
"""Entries that take less time than starting processes."""
_RANGE = 2000
"""Entries that are sent to a process together: sending takes little of their time then."""
_AHEAD = 4
"""Ranges for each process that are examined ahead: no process waits, and few entries are in memory."""
_CACHE_KIB = 1 << 16
"""Page cache (64 MiB) of the comparison of indexes with their table."""
_Range = tuple[Path, int, int, bool]


def _restatement_problems(db: Connection, restatement: Restatement) -> list[str]:
    """Return analysts whose sum under a new total is not what their debits before it cost at the new order."""
    low, high = Counter[str](), Counter[str]()
    # Read from the bodies: a column that is computed from them could disagree in a damaged file.
    for (body,) in db.execute(
        "SELECT body FROM entries WHERE kind = 'debit' AND number < ? ORDER BY number", [restatement.number]
    ):
        with contextlib.suppress(*UNREADABLE):  # named when the entry was examined; here the sum shows it again
            fields = json.loads(body)
            if fields["details"]["account"] == restatement.account:
                gaussian, others = decode_events(fields["details"]["events"])
                lowest, highest = price_range(gaussian, others, restatement.order)
                low[fields["actor"]] += lowest
                high[fields["actor"]] += highest
    return [
        f"entry {restatement.number}: {name!r} spent {cost} units at the new order, but the debits cost {low[name]}"
        for name, (cost, _) in restatement.analysts.items()
        if not low[name] <= cost <= high[name]
    ]
