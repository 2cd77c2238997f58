"""Several processes and threads on one file, and processes that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bursar_ledger import BudgetExhaustedError, DebitRequest, DebitStatus, Ledger, cost_units, verify

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from fractions import Fraction
from bursar_ledger import *

def ask(request_id):
    return DebitRequest("people", "ann", request_id, bytes(32), "FitDPEM", (GaussianEvent(1, Fraction(SCALE)),))

path, name = sys.argv[1:]
with Ledger.open(path) as ledger:
"""
RACE = """
    sys.stdin.readline()
    admitted = 0
    for i in range(50):
        try:
            ledger.debit(ask(f"{name}-{i}"))
            admitted += 1
        except BudgetExhaustedError:
            pass
    print(admitted)
"""
HANG = """
    print(ledger.debit(ask(name)).status.name, flush=True)
    sys.stdin.readline()
"""


def start(program: str, scale: int, path: Path, name: str) -> subprocess.Popen[str]:
    """A process that runs PROGRAM and then `program`."""
    source = (PROGRAM + program).replace("SCALE", str(scale))
    return subprocess.Popen(
        [sys.executable, "-c", source, str(path), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_racing_processes_never_overspend(ledger: Ledger, ask: Callable[..., DebitRequest], path: Path) -> None:
    """Four processes ask for more than there is: as many are admitted as fit, and the file verifies."""
    scale = 18
    one = cost_units(ask("x", scale=scale).events, ledger.dataset("people").order)
    fits = ledger.dataset("people").cap_cost_units // one
    assert 50 < fits < 200
    racers = [start(RACE, scale, path, str(i)) for i in range(4)]
    answers = [racer.communicate("go\n")[0] for racer in racers]
    assert sum(map(int, answers)) == fits
    assert ledger.dataset("people").spent_cost_units == fits * one
    assert verify(path).ok


def test_racing_threads_never_overspend(ledger: Ledger, ask: Callable[..., DebitRequest]) -> None:
    """Threads that share one open ledger take turns."""

    def run(i: int) -> bool:
        try:
            return ledger.debit(ask(f"r{i}", scale=9)).status is DebitStatus.NEW
        except BudgetExhaustedError:
            return False

    one = cost_units(ask("x", scale=9).events, ledger.dataset("people").order)
    with ThreadPoolExecutor(8) as pool:
        admitted = sum(pool.map(run, range(60)))
    assert admitted == ledger.dataset("people").cap_cost_units // one < 60


def test_one_request_sent_twice_at_once_is_debited_once(ledger: Ledger, ask: Callable[..., DebitRequest]) -> None:
    """One of several concurrent repetitions is new."""
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: ledger.debit(ask("same")).status, range(16)))
    assert statuses.count(DebitStatus.NEW) == 1
    assert len(ledger.releases()) == 1


def test_a_killed_process_leaves_its_debit_and_no_second_one(path: Path, ledger: Ledger) -> None:
    """SIGKILL between debit and release: the debit is durable, and asking again runs under it."""
    ledger.close()
    for expected in ("NEW", "INTERRUPTED", "INTERRUPTED"):
        victim = start(HANG, 4, path, "mine")
        assert victim.stdout is not None
        assert victim.stdout.readline().strip() == expected
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
    with Ledger.open(path) as opened:
        (debit,) = opened.releases()
        assert not debit.released
        opened.store_release(debit.entry, b"model")
        spent = opened.dataset("people").spent_cost_units
    assert spent == debit.price.cost_units
    survivor = start(HANG, 4, path, "mine")
    assert survivor.communicate("\n")[0].strip() == "RELEASED"
    assert verify(path).ok
