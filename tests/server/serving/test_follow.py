"""Progress that a caller receives of a run, and when; times are those of a clock that a test moves."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from bursar_ledger import DebitStatus
from bursar_server.jobs import job, paid
from bursar_server.jobs.errors import FitFailedError
from bursar_server.jobs.job import NO_RESULT, Follower, Run, Step, WorkerPool
from bursar_server.jobs.paid import PaidRun, RequestKey, Runs

QUANTUM = 0.25
"""Seconds; a power of two, so that the times of the test are exact."""


@dataclass
class Clock(threading.Event):
    """The time, and the event that a run settles by: it is waited for without waiting.

    Attributes:
        now: seconds; stands for `time.monotonic` of the modules under test.
        plan: what happens at which times, earliest first; the event is set by `None`.
    """

    now: float = 0.0
    plan: list[tuple[float, Callable[[], None] | None]] = field(default_factory=list)

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds

    def wait(self, timeout: float | None = None) -> bool:
        """Move on to the end of the wait, or to the moment at which the event is set."""
        end = self.now + (timeout or 0.0)
        while self.plan and self.plan[0][0] <= end:
            self.now, action = self.plan.pop(0)
            if action is None:
                return True
            action()
        self.now = end
        return False


def followed(
    monkeypatch: pytest.MonkeyPatch, begun: float, steps: dict[float, int], settled: float, left: float = math.inf
) -> list[tuple[float, Step | bytes]]:
    """Follow a run that was debited at 0, makes steps and settles; return what is told when, until `left`."""
    clock = Clock(now=begun)
    monkeypatch.setattr(job, "time", clock)
    run = Run(incident="test", settled=clock, started=0.0, release=b"released")
    clock.plan = [(at, lambda step=step: run.advance(step, 4)) for at, step in steps.items()]  # type: ignore[misc]
    clock.plan.append((settled, None))
    follower = Follower(quantum=QUANTUM, longest=100.0)
    return [(clock.now, told) for told in follower.follow(run, lambda: clock.now < left)]


def test_steps_are_told_at_multiples_of_the_quantum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest of each quantum, wherever in it the step was made; a quantum without a step tells nothing."""
    steps = {0.013: 1, 0.2499: 2, 0.5001: 3, 1.1: 4}
    assert followed(monkeypatch, 0.0, steps, 1.5) == [
        (0.25, Step(2, 4)),
        (0.75, Step(3, 4)),
        (1.25, Step(4, 4)),
        (1.5, b"released"),
    ]


def test_a_call_that_joins_a_run_hears_it_at_the_same_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiples count from the debit, not from the question: else a second call would tell times between them."""
    assert followed(monkeypatch, 0.6, {0.7: 1, 0.9: 2}, 1.25) == [
        (0.75, Step(1, 4)),
        (1.0, Step(2, 4)),
        (1.25, b"released"),
    ]


def test_the_last_steps_come_with_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step of a run that settles within the first quantum is told, at the time at which it settled."""
    assert followed(monkeypatch, 0.0, {0.1: 1, 0.2: 4}, 0.25) == [(0.25, Step(4, 4)), (0.25, b"released")]


def _heard(steps: int) -> list[Step | bytes]:
    """Follow a run that does one step in every quantum."""
    run = Run(incident="made up")

    def active() -> bool:
        run.advance(run.step + 1, steps)
        if run.step == steps:
            run.settle(b"model")
        return True

    return list(Follower(1e-3, 60.0).follow(run, active))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 10, 200])
def test_progress_tells_the_ends_of_four_parts_and_no_other_step(steps: int) -> None:
    """Every step, told at each tick, would tell the time of a step far below the quantum."""
    *told, model = _heard(steps)
    assert model == b"model"
    assert told == [Step(step, steps) for step in sorted({-(-part * steps // 4) for part in range(1, 5)})]


def test_the_step_at_which_a_fit_was_ended_is_not_told() -> None:
    """It would say how far the rows let the fit come in the time that it had: only whole parts are told here, too."""
    run = Run(incident="made up")
    run.advance(123, 200)
    run.settle(NO_RESULT)
    told = Follower(1e-3, 60.0).follow(run, lambda: True)
    assert next(told) == Step(100, 200)
    with pytest.raises(FitFailedError):
        next(told)


def test_progress_of_a_fit_that_waited_is_told_at_its_own_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiples count from the beginning of its work, not from a debit that its caller may put anywhere before it."""
    clock = Clock()
    monkeypatch.setattr(job, "time", clock)
    run = Run(incident="test", settled=clock, started=0.0, release=b"released")
    clock.plan = [(0.2, run.begin), (0.21, lambda: run.advance(1, 4)), (0.7, None)]
    told = [(clock.now, one) for one in Follower(QUANTUM, 100.0).follow(run, lambda: True)]
    assert told == [(pytest.approx(0.45), Step(1, 4)), (0.7, b"released")]


def _settled(monkeypatch: pytest.MonkeyPatch, took: float) -> float:
    """Return when a fit is answered that waited for another one, debited shortly after it, and then took its time."""
    clock = Clock()
    monkeypatch.setattr(job, "time", clock)
    monkeypatch.setattr(paid, "time", clock)
    stored: list[float] = []
    ledger = SimpleNamespace(
        find_debit=lambda *key: None,
        debit=lambda request: SimpleNamespace(
            entry=1, status=DebitStatus.NEW, price=SimpleNamespace(cost_units=1), request=request
        ),
        store_release=lambda entry, release: stored.append(clock.now),
    )
    pool = WorkerPool(workers=1, queue_length=1)
    some: Any = {"ledger": ledger, "events": SimpleNamespace(tell=lambda event: None), "free_pool": pool}
    runs = Runs(pool=pool, quantum=QUANTUM, fits_per_principal=2, rerun=True, **some)
    waits, goes = threading.Event(), threading.Event()

    def first(run: PaidRun) -> bytes:
        waits.set()
        goes.wait()
        return b"first"

    def second(run: PaidRun) -> bytes:
        clock.now += took
        return b"second"

    def admitted(name: str, work: Callable[[PaidRun], bytes]) -> None:
        asked: Any = SimpleNamespace(principal="ann", dataset="people", method="FitDPEM")
        admission = runs.admit(RequestKey("ann", name, bytes(32)), lambda: asked, lambda: contextlib.nullcontext(work))
        admission.run.started = clock.now

    admitted("first", first)
    waits.wait()
    clock.now = 0.03
    admitted("second", second)
    goes.set()
    pool.close()
    return stored[1]


def test_no_wait_in_the_queue_puts_a_tick_between_two_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fits that differ by less than a quantum are answered alike, whenever they were debited while others ran."""
    assert _settled(monkeypatch, 0.01) == _settled(monkeypatch, 0.1) == 2 * QUANTUM


def test_a_caller_who_has_left_is_followed_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the call is free at the next tick; the run goes on without it."""
    steps = {0.2: 1, 0.6: 2, 1.1: 3}
    assert followed(monkeypatch, 0.0, steps, 1.5, left=0.7) == [(0.25, Step(1, 4))]
