"""Attacks by two at once: whoever reads a sum and writes it later can be overtaken."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from bursar_ledger import Ledger, LedgerError, verify
from bursar_proto.v1 import fit_pb2, types_pb2
from tests.attacks.asking import Make, raw
from tests.attacks.conftest import register
from tests.attacks.purses import Bursar, Purse, ReadThenWrite

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Serve

ALL_BUT_A_BIT = Fraction(9, 10)
CALLERS = 8


def answers_at_once(purses: list[Purse]) -> int:
    """Everybody asks for nine tenths at the same instant: how many were answered."""
    start = threading.Barrier(len(purses))

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
    everybody_has_read = threading.Barrier(CALLERS)
    rival = ReadThenWrite(everybody_has_read.wait)
    assert answers_at_once([rival] * CALLERS) == CALLERS
    assert rival.loss > 1 > rival.spent


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
        served.fit.started.wait(60)
    for served in (first, second):
        served.fit.hold.set()
    for caller in callers:
        caller.join(60)
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
