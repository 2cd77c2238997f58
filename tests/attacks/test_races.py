"""Attacks by two at once: whoever reads a sum and writes it later can be overtaken."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from bursar_ledger import ApproximateEvent, Budget, DebitRequest, Ledger, LedgerError, PureEvent, price, verify
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server import process
from bursar_server.jobs.runner import Fits
from bursar_server.jobs.sandbox import Children, ChildrenError, FitLimits
from bursar_server.state import State, StateError
from tests.attacks.asking import Make, raw
from tests.attacks.conftest import register
from tests.attacks.purses import Bursar, Purse, ReadThenWrite

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Serve

ALL_BUT_A_BIT = Fraction(9, 10)
CALLERS = 8


def answers_at_once(purses: list[Purse]) -> int:
    """Everybody asks for nine tenths at the same instant: how many were answered."""
    start = threading.Barrier(len(purses), timeout=600)

    def ask(i: int) -> bool:
        start.wait()
        return purses[i].ask(ALL_BUT_A_BIT, who=f"analyst-{i}") is not None

    with ThreadPoolExecutor(len(purses)) as pool:
        return sum(pool.map(ask, range(len(purses))))


def test_of_many_at_once_one_wins(tmp_path: Path) -> None:
    """Ask for the last unit from eight connections at once, ten times over.

    Seen in Lomas (`set_query_result` reads outside the transaction that writes), Jeddak-DPSQL and PySyft.
    """
    for i in range(10):
        path = tmp_path / f"{i}.sqlite"
        with Ledger.create(path, actor="owner") as ledger:
            register(ledger)
        ledgers = [Ledger.open(path) for _ in range(CALLERS)]
        assert answers_at_once([Bursar(ledger) for ledger in ledgers]) == 1
        for ledger in ledgers:
            ledger.close()
        assert verify(path).ok


def test_at_the_rival_all_win() -> None:
    """The same attack on a purse that reads, waits for the others to have read, and writes."""
    everybody_has_read = threading.Barrier(CALLERS, timeout=600)
    rival = ReadThenWrite(everybody_has_read.wait)
    assert answers_at_once([rival] * CALLERS) == CALLERS
    assert rival.loss > 1 > rival.spent


class SeparateSums:
    """Epsilon and delta in two rows of a database, changed by two statements (Lomas on MongoDB)."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.execute("CREATE TABLE sums (name, amount)")
        self.db.execute("INSERT INTO sums VALUES ('epsilon', 0), ('delta', 0)")

    def pay(self) -> None:
        """One request."""
        for name in ("epsilon", "delta"):
            self.db.execute("UPDATE sums SET amount = amount + 1 WHERE name = ?", (name,))

    def sums(self) -> tuple[int, int]:
        """Both."""
        epsilon, delta = (row[0] for row in self.db.execute("SELECT amount FROM sums"))
        return epsilon, delta


def states_after_interruptions(
    db: sqlite3.Connection, pay: Callable[[], object], sums: Callable[[], tuple[int, int]], step: int
) -> set[tuple[int, int]]:
    """Everything that sums can be when a payment is broken off after any number of SQLite's own instructions."""
    seen = set()
    for count in itertools.count(step, step):
        passed = itertools.count()
        db.set_progress_handler(lambda p=passed, c=count: next(p) == c, 1)  # type: ignore[misc]
        try:
            pay()
        except (LedgerError, sqlite3.Error):
            db.set_progress_handler(None, 1)
            seen.add(sums())
        else:
            db.set_progress_handler(None, 1)
            return seen
    raise AssertionError("it never gets through")


def test_a_payment_is_whole_or_not_at_all(purse: Bursar) -> None:
    """Break a payment off at every instant, and look for one that has epsilon and not delta (Lomas on MongoDB).

    One row holds everything that a request costs; after every interruption the sums are what they were.
    """
    purse.ledger.set_budget("people", Budget(1.0, 1e-6, Fraction(1, 10)), actor="owner", reason="")
    order = purse.ledger.dataset("people").order
    event = ApproximateEvent(PureEvent(Fraction(1, 10)), Fraction(1, 10**9))
    request = DebitRequest("people", "ann", "r", bytes(32), "FitDPEM", (event,))

    def sums() -> tuple[int, int]:
        state = purse.ledger.dataset("people")
        return state.spent_cost_units, state.spent_delta_units

    db = purse.ledger._store.db
    assert states_after_interruptions(db, lambda: purse.ledger.debit(request), sums, 40) == {(0, 0)}
    cost = price((event,), order)
    assert sums() == (cost.cost_units, cost.delta_units)
    assert cost.delta_units > 0


def test_the_rivals_payment_can_be_half() -> None:
    """The same attack on two statements: epsilon is paid, delta is not."""
    rival = SeparateSums()
    with closing(rival.db):
        states = states_after_interruptions(rival.db, rival.pay, rival.sums, 1)
    assert any(epsilon != delta for epsilon, delta in states)


class _Torn(Ledger):
    """Used by two servers at once: stores whatever it is given, and lets both answers go out."""

    def store_release(self, entry: int, content: bytes) -> None:
        """The first one stays in the file; the second caller is not told."""
        try:
            super().store_release(entry, content)
        except LedgerError:
            return


def models_of_two_servers(first: Harness, second: Harness, message: fit_pb2.FitDPEMRequest) -> set[bytes]:
    """Different models that one request got from two servers on one state directory at the same time."""
    for served in (first, second):
        served.fit.started.clear()
        served.fit.hold.clear()
    seen: set[bytes] = set()

    def ask(served: Harness) -> None:
        try:
            seen.add(raw(served, message)[-1])
        except grpc.RpcError:
            return

    callers = [threading.Thread(target=ask, args=(served,)) for served in (first, second)]
    for caller, served in zip(callers, (first, second), strict=True):
        caller.start()
        served.fit.started.wait(600)
    for served in (first, second):
        served.fit.hold.set()
    for caller in callers:
        caller.join(600)
    for served in (first, second):
        seen.add(raw(served, message)[-1])
    return seen


def test_two_servers_on_one_ledger_give_one_draw(serve: Serve, fit_request: Make) -> None:
    """Get past the lock of the state directory, ask two servers for one request, and average two draws of noise.

    The fork attack on trusted services (ElephantDP, Jin et al. 2024). Here both run, one stores, and only that leaves.
    """
    first, second = serve(), serve()
    assert len(models_of_two_servers(first, second, fit_request())) == 1
    assert first.entries("debit") == 1


def test_two_forked_rivals_give_two(serve: Serve, fit_request: Make) -> None:
    """The same attack where a release is sent whether or not it could be stored.

    The fake fit's counts are equal now and then although the noise is not, so that the attack is tried again.
    """
    first, second = (serve(wrap_ledger=_Torn.open) for _ in range(2))
    for i in range(20):
        message = fit_request(request_id=f"r{i}", spend=types_pb2.Spend(rho=0.0005))
        if len(models_of_two_servers(first, second, message)) == 2:
            return
    raise AssertionError("two servers never gave two draws")


def test_a_second_server_does_not_start(state: State) -> None:
    """Start another server on the state directory that one serves: the lock goes with the process, however it ends."""
    with state.serving(), pytest.raises(StateError, match="another bursar-server"), state.serving():
        pass
    with state.serving():
        pass


def test_no_forked_process_holds_the_lock(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a server while it starts, and start the next one at once: no child that is dying still holds the lock.

    A lock belongs to the open directory, so a child that was forked after it was taken would hold it, too.
    """

    class Forking(Children):
        def __init__(self, fits: Fits, limits: FitLimits) -> None:
            with state.serving():
                raise ChildrenError("forked without the lock")

    monkeypatch.setattr(process, "Children", Forking)
    with pytest.raises(process.StartError, match="forked without the lock"):
        process.serve(state.path, ready=bool)
