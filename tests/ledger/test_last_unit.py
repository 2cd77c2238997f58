"""Many ask at once for what only one of them can have: in every round exactly one gets it."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest

from bursar_ledger import (
    Adjacency,
    Budget,
    BudgetExhaustedError,
    DebitRequest,
    GaussianEvent,
    Ledger,
    Registration,
    cost_units,
    verify,
)

RACERS = 5
PATIENCE = 600.0
"""Seconds after which a racer hangs."""
SCALE = Fraction(2)
BUDGET = Budget(3, 1e-6)

RACER = """
import sys
from fractions import Fraction
from bursar_ledger import BudgetExhaustedError, DebitRequest, GaussianEvent, Ledger

path, name, scale = sys.argv[1:]
with Ledger.open(path) as ledger:
    print("ready", flush=True)
    for line in sys.stdin:
        events = (GaussianEvent(1, Fraction(scale)),)
        request = DebitRequest(line.strip(), name, line.strip(), bytes(32), "FitDPEM", events)
        try:
            print(ledger.debit(request).status.name, flush=True)
        except BudgetExhaustedError:
            print("refused", flush=True)
"""


class Race:
    """A ledger that gets a dataset a round, and room for one request in it."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger.create(path, actor="owner")
        self.rounds = 0

    def next_dataset(self) -> str:
        """A fresh dataset; one request fits, two do not."""
        self.rounds += 1
        name = f"round-{self.rounds}"
        tag = self.rounds.to_bytes(32, "big")
        registration = Registration(name, Adjacency.REPLACE_ONE, BUDGET, tag, {})
        self.ledger.register_dataset(registration, actor="owner", reason="race")
        one = cost_units((GaussianEvent(1, SCALE),), self.ledger.dataset(name).order)
        assert self.ledger.dataset(name).remaining.cost_units // one == 1
        return name

    def run(self, rounds: int, ask_all: Callable[[str], list[str]]) -> None:
        """Race so often; then look at the file."""
        for _ in range(rounds):
            dataset = self.next_dataset()
            answers = Counter(ask_all(dataset))
            assert answers == {"NEW": 1, "refused": RACERS - 1}, f"{dataset}: {answers}"
        debits = Counter(entry.dataset for entry in self.ledger.entries() if entry.kind == "debit")
        assert len(debits) == rounds
        assert set(debits.values()) == {1}
        for state in self.ledger.datasets():
            assert state.spent_cost_units == cost_units((GaussianEvent(1, SCALE),), state.order)
            assert state.spent_cost_units <= state.cap_cost_units


@pytest.fixture
def race(path: Path) -> Iterator[Race]:
    """An empty ledger; at the end it verifies."""
    made = Race(path)
    with made.ledger:
        yield made
    assert verify(path).problems == ()


def _said(racer: subprocess.Popen[str]) -> str:
    """The next line of a racer, who has said nothing else since the last one."""
    assert racer.stdout is not None
    assert select.select([racer.stdout], [], [], PATIENCE)[0], "a racer hangs"
    return racer.stdout.readline().strip()


@contextlib.contextmanager
def racing_processes(path: Path) -> Iterator[Callable[[str], list[str]]]:
    """Asks processes of their own, all at once; they stay for all rounds."""
    command = [sys.executable, "-c", RACER, str(path)]
    with contextlib.ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, f"racer-{i}", str(SCALE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for i in range(RACERS)
        ]
        for racer in racers:
            stack.callback(racer.kill)
        assert [_said(racer) for racer in racers] == ["ready"] * RACERS

        def ask_all(dataset: str) -> list[str]:
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"{dataset}\n")
                racer.stdin.flush()
            return [_said(racer) for racer in racers]

        yield ask_all


@pytest.mark.slow
def test_of_racing_processes_one_gets_the_last_unit(race: Race, path: Path) -> None:
    """Processes that hold the file open, a thousand times: as often as it takes to believe it."""
    with racing_processes(path) as ask_all:
        race.run(1000, ask_all)


@contextlib.contextmanager
def racing_threads(ledger: Ledger) -> Iterator[Callable[[str], list[str]]]:
    """Asks threads that share one open ledger, all at once."""
    start = threading.Barrier(RACERS)

    def ask(dataset: str, racer: int) -> str:
        request = DebitRequest(dataset, f"racer-{racer}", dataset, bytes(32), "FitDPEM", (GaussianEvent(1, SCALE),))
        start.wait(PATIENCE)
        try:
            return ledger.debit(request).status.name
        except BudgetExhaustedError:
            return "refused"

    with ThreadPoolExecutor(RACERS) as pool:
        yield lambda dataset: list(pool.map(ask, [dataset] * RACERS, range(RACERS), timeout=PATIENCE))


def test_of_racing_threads_one_gets_the_last_unit(race: Race) -> None:
    """Their decisions may share a transaction."""
    with racing_threads(race.ledger) as ask_all:
        race.run(200, ask_all)


@pytest.mark.slow
def test_of_racing_threads_one_gets_the_last_unit_a_thousand_times(race: Race) -> None:
    """The same, as often as it takes to believe it."""
    with racing_threads(race.ledger) as ask_all:
        race.run(1000, ask_all)
