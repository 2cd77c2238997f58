"""Decisions that share a transaction: each is refused alone, all fail together, and nobody waits for ever."""

from __future__ import annotations

import gc
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    BudgetExhaustedError,
    DebitRequest,
    EntryKind,
    Ledger,
    LedgerError,
    LedgerUnavailableError,
    Role,
    cost_units,
    verify,
)
from bursar_ledger._entries import Entry
from bursar_ledger._store import Store

Ask = Callable[..., DebitRequest]
WAIT = 600.0
"""Seconds after which a test that would hang fails instead."""


def wait_for(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds; fails if that takes far too long."""
    for _ in range(int(WAIT * 1000)):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("what the test waits for does not come")


class Batch:
    """Decisions made to share one transaction: a first one holds the lock until all the others wait."""

    def __init__(self, store: Store, pool: ThreadPoolExecutor) -> None:
        self.store = store
        self.pool = pool
        self.go = threading.Event()
        self.started = threading.Event()
        self.futures: list[Future[Any]] = []

    def hold(self) -> None:
        """The decision that goes first, alone in its transaction."""

        def work() -> None:
            self.started.set()
            assert self.go.wait(WAIT)

        self.futures.append(self.pool.submit(self.store.decide, work))
        assert self.started.wait(WAIT)

    def add(self, act: Callable[[], Any]) -> Future[Any]:
        """One more that will share the next transaction; in this order."""
        waiting = len(self.store._waiting)
        self.futures.append(self.pool.submit(act))
        wait_for(lambda: len(self.store._waiting) == waiting + 1)
        return self.futures[-1]

    def run(self) -> None:
        """Lets them go; returns when all have answered."""
        self.go.set()
        for future in self.futures:
            future.exception(WAIT)


@pytest.fixture
def batch(ledger: Ledger) -> Iterator[Batch]:
    """A batch on the open ledger, its first decision under way."""
    with ThreadPoolExecutor(40) as pool:
        made = Batch(ledger._store, pool)
        made.hold()
        try:
            yield made
        finally:
            made.go.set()


class Spy:
    """A connection that notes statements, and does something else in place of some of them."""

    def __init__(self, db: Any, instead: Callable[[str], None] | None = None) -> None:
        self.db = db
        self.seen: list[str] = []
        self.instead = instead

    def execute(self, sql: str, parameters: Any = None) -> Any:
        """Execute as the connection does."""
        self.seen.append(sql)
        if self.instead is not None:
            self.instead(sql)
        return self.db.execute(sql) if parameters is None else self.db.execute(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)


@contextmanager
def spied(store: Store, instead: Callable[[str], None] | None = None) -> Iterator[Spy]:
    """The store with a `Spy` for its connection."""
    spy = Spy(store.db, instead)
    store.db = spy  # type: ignore[assignment]
    try:
        yield spy
    finally:
        store.db = spy.db


def appender(store: Store, name: str) -> Callable[[], Entry]:
    """Work that appends an entry."""
    return lambda: store.append(EntryKind.CHECKPOINT_KEY, actor=name, details={"verifier_key": name, "reason": ""})


def test_decisions_that_wait_share_one_transaction(ledger: Ledger, ask: Ask, batch: Batch) -> None:
    """Five debits, one commit, entries in the order in which they were asked for; each has its own answer."""
    with spied(ledger._store) as spy:
        futures = [batch.add(partial(ledger.debit, ask(f"r{i}", scale=20))) for i in range(5)]
        batch.run()
    assert spy.seen.count("BEGIN IMMEDIATE") == 1  # the first one had begun before
    debits = [future.result() for future in futures]
    assert [debit.entry for debit in debits] == [3, 4, 5, 6, 7]
    assert [ledger.debit_entry(debit.entry).request.request_id for debit in debits] == [f"r{i}" for i in range(5)]
    left = [debit.remaining.cost_units for debit in debits]
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == 5


def test_a_failing_decision_leaves_the_others(ledger: Ledger, ask: Ask, batch: Batch, path: Path) -> None:
    """Refusals, bugs and the file's own rules undo one decision only, even after it has written something."""
    store = ledger._store

    def bug() -> None:
        appender(store, "bug")()
        raise ZeroDivisionError("a bug")

    def ruled_out() -> None:
        appender(store, "ruled out")()
        store.db.execute("DELETE FROM entries")

    first = batch.add(lambda: ledger.debit(ask("first")))
    refused = batch.add(lambda: ledger.debit(ask("much", scale=1)))
    broken = batch.add(lambda: store.decide(bug))
    against = batch.add(lambda: store.decide(ruled_out))
    last = batch.add(lambda: ledger.debit(ask("last")))
    batch.run()
    assert isinstance(refused.exception(), BudgetExhaustedError)
    assert isinstance(broken.exception(), ZeroDivisionError)
    assert isinstance(against.exception(), LedgerError)
    assert "entries never vanish" in str(against.exception())
    assert [first.result().entry, last.result().entry] == [3, 4]
    assert [entry.kind for entry in ledger.entries()] == ["genesis", "registration", "debit", "debit"]
    ledger.close()
    assert verify(path).ok


def test_a_refusal_knows_what_the_batch_spent_before_it(ledger: Ledger, ask: Ask, batch: Batch) -> None:
    """Debits that share a transaction fit only if they fit one after the other."""
    futures = [batch.add(partial(ledger.debit, ask(f"r{i}"))) for i in range(8)]
    batch.run()
    state = ledger.dataset("people")
    one = cost_units(ask("x").events, state.order)
    fits = state.cap_cost_units // one
    assert 0 < fits < 8
    assert [future.exception() is None for future in futures] == [True] * fits + [False] * (8 - fits)
    for future in futures[fits:]:
        refusal = future.exception()
        assert isinstance(refusal, BudgetExhaustedError)
        assert refusal.remaining.cost_units == state.cap_cost_units - fits * one


def test_what_a_refused_call_had_goes_with_its_error(ledger: Ledger, ask: Ask) -> None:
    """Nothing is left to be found by a search for circles, which a server hardly ever makes."""
    gc.collect()
    gc.disable()
    try:
        try:
            ledger.debit(ask("much", scale=1))
        except BudgetExhaustedError as refusal:
            gone = weakref.ref(refusal)
        assert gone() is None
    finally:
        gc.enable()


def test_a_decision_that_is_not_kept_leaves_no_trace_in_a_batch(ledger: Ledger, ask: Ask, batch: Batch) -> None:
    """A dry run between two debits answers, and the second debit does not see it."""
    first = batch.add(lambda: ledger.debit(ask("first")))
    dry = batch.add(lambda: ledger.issue_credential("ann", Role.ANALYST, bytes(32), actor="o", reason="", dry_run=True))
    second = batch.add(lambda: ledger.debit(ask("second")))
    batch.run()
    assert (first.result().entry, dry.result().number, second.result().entry) == (3, 4, 4)
    assert ledger.credentials() == ()


def test_a_commit_that_fails_fails_all_and_changes_nothing(
    ledger: Ledger, ask: Ask, batch: Batch, path: Path, contents: Any
) -> None:
    """All hear that the disk refuses the commit, nothing is in the file, and the next decision works."""
    before = contents(path)

    def full(sql: str) -> None:
        if sql == "COMMIT" and begun():
            raise sqlite3.OperationalError("database or disk is full")

    with spied(ledger._store, full) as spy:

        def begun() -> bool:
            return "BEGIN IMMEDIATE" in spy.seen

        futures = [batch.add(partial(ledger.debit, ask(f"r{i}", scale=20))) for i in range(3)]
        dry = batch.add(lambda: ledger.issue_credential("a", Role.ADMIN, bytes(32), actor="o", reason="", dry_run=True))
        batch.run()
    errors = [future.exception() for future in (*futures, dry)]
    assert all(isinstance(error, LedgerUnavailableError) and "nothing was changed" in str(error) for error in errors)
    assert len({id(error) for error in errors}) == 4, "an exception that threads share would mix their tracebacks"
    assert contents(path) == before
    assert ledger.debit(ask("r0", scale=20)).entry == 3


def test_a_transaction_that_sqlite_gives_up_fails_all(ledger: Ledger, ask: Ask, batch: Batch, contents: Any) -> None:
    """A full disk may end the transaction inside one decision: then none of the batch is taken for decided."""
    store = ledger._store

    def gives_up() -> None:
        store.db.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    before = contents(store.path)
    first = batch.add(lambda: ledger.debit(ask("first")))
    broken = batch.add(lambda: store.decide(gives_up))
    last = batch.add(lambda: ledger.debit(ask("last")))
    batch.run()
    assert all(isinstance(future.exception(), LedgerUnavailableError) for future in (first, broken, last))
    assert contents(store.path) == before
    assert ledger.debit(ask("first")).entry == 3


def test_an_interrupt_within_a_decision_fails_the_batch_and_reaches_its_thread(
    ledger: Ledger, ask: Ask, batch: Batch, path: Path, contents: Any
) -> None:
    """Ctrl-C in the thread that leads: it raises there, the others are told to ask again, and nothing was changed."""
    before = contents(path)

    def interrupted() -> None:
        raise KeyboardInterrupt

    leader = batch.add(lambda: ledger._store.decide(interrupted))
    other = batch.add(lambda: ledger.debit(ask("a")))
    batch.run()
    assert isinstance(leader.exception(), KeyboardInterrupt)
    assert isinstance(other.exception(), LedgerUnavailableError)
    assert contents(path) == before
    assert ledger.debit(ask("a")).entry == 3


def test_an_interrupt_after_the_commit_takes_nothing_back(ledger: Ledger, ask: Ask, batch: Batch) -> None:
    """Ctrl-C while the disk works is raised after the commit: those who share it get their answers."""
    with spied(ledger._store) as spy:

        def execute(sql: str, parameters: Any = None) -> Any:
            done = Spy.execute(spy, sql, parameters)
            if sql == "COMMIT" and "BEGIN IMMEDIATE" in spy.seen:
                raise KeyboardInterrupt
            return done

        leader = batch.add(lambda: ledger.debit(ask("a")))
        other = batch.add(lambda: ledger.debit(ask("b")))
        spy.execute = execute  # type: ignore[method-assign]
        batch.run()
    assert isinstance(leader.exception(), KeyboardInterrupt)
    assert other.result().entry == 4
    assert [record.request_id for record in ledger.releases()] == ["a", "b"]


def test_an_interrupted_thread_that_waits_holds_nobody_up(ledger: Ledger, batch: Batch) -> None:
    """Ctrl-C in a thread that waits for its turn: what it asked for is not done, and the others go on."""
    store = ledger._store
    before = threading.Event()

    class Interrupted(threading.Thread):
        error: BaseException | None = None

        def run(self) -> None:
            def wait(_: object) -> None:
                assert before.wait(WAIT)
                raise KeyboardInterrupt

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("bursar_ledger._store._Decision.wait", wait)
                waiting.set()
                try:
                    store.decide(appender(store, "interrupted"))
                except BaseException as error:
                    self.error = error

    waiting = threading.Event()
    thread = Interrupted()
    thread.start()
    assert waiting.wait(WAIT)
    wait_for(lambda: len(store._waiting) == 1)
    before.set()
    thread.join(WAIT)
    assert isinstance(thread.error, KeyboardInterrupt)
    other = batch.add(lambda: store.decide(appender(store, "other")))
    batch.run()
    assert (other.result().number, other.result().actor) == (3, "other")
    assert store.newest()[0] == 3


def test_a_thread_that_is_woken_twice_is_no_harm(ledger: Ledger) -> None:
    """An interrupted thread leaves a wake-up behind that nobody takes; those who come after it are woken as well."""
    from bursar_ledger._store import _Decision

    decision = _Decision(lambda: None, keep=True)
    decision.wake()
    decision.wake()
    decision.wait()


def test_a_decision_within_a_decision_is_refused(ledger: Ledger) -> None:
    """It would wait for itself; the ledger goes on."""
    store = ledger._store
    with pytest.raises(RuntimeError, match="within another"):
        store.decide(lambda: store.decide(appender(store, "inner")))
    assert store.decide(appender(store, "next")).number == 3


def test_no_wake_up_is_lost(ledger: Ledger, path: Path) -> None:
    """32 threads, many rounds, one decision at a time: all are answered, and every answer is its own entry's."""
    store, rounds = ledger._store, 40

    def run(name: int) -> list[Entry]:
        return [store.decide(appender(store, f"{name}-{i}")) for i in range(rounds)]

    store.db.execute("PRAGMA synchronous=OFF")  # the disk is not what is tested
    with ThreadPoolExecutor(32) as pool:
        futures = [pool.submit(run, name) for name in range(32)]
        made = {name: future.result(WAIT * 5) for name, future in enumerate(futures)}
    stored = {entry.number: entry for entry in ledger.entries()}
    assert len(stored) == 2 + 32 * rounds
    for name, entries in made.items():
        assert [entry.actor for entry in entries] == [f"{name}-{i}" for i in range(rounds)]
        assert all(stored[entry.number] == entry for entry in entries)
        assert [entry.number for entry in entries] == sorted(entry.number for entry in entries)
    assert store._waiting == type(store._waiting)()
    ledger.close()
    assert verify(path).ok


def test_more_than_a_batch_can_hold_waits_for_the_next(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has a largest size; what is beyond it is decided, too."""
    monkeypatch.setattr("bursar_ledger._store._LARGEST_BATCH", 3)
    with ThreadPoolExecutor(12) as pool:
        made = Batch(ledger._store, pool)
        made.hold()
        with spied(ledger._store) as spy:
            futures = [made.add(partial(ledger._store.decide, appender(ledger._store, str(i)))) for i in range(8)]
            made.run()
    assert spy.seen.count("BEGIN IMMEDIATE") == 3
    assert [future.result().actor for future in futures] == [str(i) for i in range(8)]
    assert [future.result().number for future in futures] == list(range(3, 11))


def test_readers_see_only_what_is_committed(ledger: Ledger, ask: Ask, batch: Batch) -> None:
    """A read of another thread waits for the transaction and sees all of it, or none if it failed."""

    def undone() -> None:
        appender(ledger._store, "undone")()
        reading.append(batch.pool.submit(ledger.newest))
        raise KeyboardInterrupt

    reading: list[Future[tuple[int, bytes]]] = []
    batch.add(lambda: ledger._store.decide(undone))
    batch.run()
    assert reading[0].result(WAIT)[0] == 2
    assert ledger.debit(ask("a", scale=Fraction(9))).entry == 3
