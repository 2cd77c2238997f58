"""Verification by several processes: the same findings, and nobody is left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from bursar_ledger import Ledger, _verify, verify

ENDLESS = """
import sys
from bursar_ledger import _verify, verify

if __name__ == "__main__":
    _verify.SHORT, _verify._RANGE = 0, 2
    while True:
        assert verify(sys.argv[1], processes=2).ok
"""


@pytest.fixture
def history(ledger: Ledger, ask: Any, path: Path) -> Path:
    """A file of 22 entries: ten debits and their releases."""
    for i in range(10):
        ledger.store_release(ledger.debit(ask(str(i), scale=100 + i)).entry, b"model %d" % i)
    ledger.close()
    return path


@pytest.fixture(autouse=True)
def _short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_verify, "SHORT", 0)
    monkeypatch.setattr(_verify, "_RANGE", 3)


def test_several_processes_find_what_one_finds(history: Path, forge: Any, tamper: Any) -> None:
    """Nothing in a good file, and the same lines in the same order in a bad one."""
    assert verify(history, processes=2) == verify(history)
    assert verify(history).ok
    forge(history, 5, lambda fields: fields["details"].update(delta_units=3))
    tamper(history, ("UPDATE entries SET hash = zeroblob(32) WHERE number = 13", ()))
    found = verify(history, processes=2)
    assert found == verify(history)
    assert {problem.split(":")[0] for problem in found.problems} >= {"entry 5", "entry 13"}


def test_rows_outside_of_the_chain_are_seen_by_several_processes(history: Path, tamper: Any) -> None:
    """An entry with a number below 1 is in the first range."""
    tamper(history, ("UPDATE entries SET number = -7 WHERE number = 13", ()))
    assert any(problem.startswith("entry -7") for problem in verify(history, processes=2).problems)


def test_a_number_beyond_all_entries_is_soon_found(history: Path, tamper: Any) -> None:
    """Nobody looks for the entries that would come before it."""
    tamper(history, ("UPDATE entries SET number = ? WHERE number = 22", (2**61,)))
    problems = verify(history, processes=2).problems
    assert f"entry {2**61}: expected entry 22 here; entries are missing or out of order" in problems


@pytest.mark.slow
def test_helpers_end_when_who_asked_for_them_is_killed(history: Path, tmp_path: Path) -> None:
    """SIGKILL leaves no process that goes on verifying."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    children: list[psutil.Process] = []
    with subprocess.Popen([sys.executable, str(script), str(history)]) as parent:
        for _ in range(6000):
            if len(children) == 3 or parent.poll() is not None:  # two that verify, and Python's resource tracker
                break
            children = psutil.Process(parent.pid).children(recursive=True)
            time.sleep(0.01)
        parent.kill()
    assert len(children) == 3
    assert not psutil.wait_procs(children, timeout=600)[1]


def test_short_files_are_read_here(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting processes takes longer than a few thousand entries."""
    monkeypatch.setattr(_verify, "SHORT", 22)
    monkeypatch.setattr(_verify, "ProcessPoolExecutor", None)
    assert verify(history, processes=64).ok


def test_few_ranges_are_in_memory(history: Path) -> None:
    """Ranges are asked for as earlier ones are used up, and come in order."""
    asked: list[int] = []

    class Here(Executor):
        def submit(self, work: Any, /, *of: Any, **named: Any) -> Future[Any]:
            asked.append(of[1])
            done: Future[Any] = Future()
            done.set_result(work(*of, **named))
            return done

    ranges = [(history, first, first + 1, True) for first in range(1, 22, 2)]
    for taken, entry in enumerate(_verify._in_turn(Here(), ranges, 3), 1):
        assert entry.number == taken
        assert len(asked) <= (taken - 1) // 2 + 3
    assert taken == 22
    assert asked == [*range(1, 22, 2)]
