"""Running jobs: the pool in which they have places, their state, and what their callers hear of them.

A place is reserved before a debit, so that a charged fit is never refused. Progress and result leave at fixed intervals
after the receipt, so that timing reveals little. Imports neither ledger nor rows, fits or the wire.
"""

from __future__ import annotations

import enum
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import grpc

from bursar_server import log
from bursar_server.jobs.errors import (
    CallTooLongError,
    FitFailedError,
    FitNotBegunError,
    ReleaseLostError,
    ReleaseNotStoredError,
)


class QueueFullError(Exception):
    """Error: all workers and queue places are taken, or the caller's share of them; nothing was debited.

    Attributes:
        seconds: time after which a retry makes sense; a constant, so it reveals nothing about running work.
    """

    def __init__(self, text: str, seconds: float = 5.0) -> None:
        super().__init__(text)
        self.seconds = seconds


class NoRoomError(Exception):
    """Error: the process lacks descriptors or memory for one more fit; nothing was debited."""


class StoppingError(Exception):
    """Error: the server is stopping and accepts no new work; nothing was debited."""


class Place:
    """Reserved place in a pool, used for one task or given back."""

    def __init__(self, pool: WorkerPool, principal: str) -> None:
        self._pool = pool
        self._principal = principal
        self._task: Callable[[], None] | None = None

    def run(self, task: Callable[[], None]) -> None:
        """Run a task in the pool; the place is free again when it ends."""
        self._task = task
        self._pool.submit(self._principal, task)

    def give_back(self) -> None:
        """Free the place without using it."""
        self._pool.free()

    def withdraw(self) -> bool:
        """Withdraw the task and free the place, unless a worker has begun it. Return whether it was withdrawn."""
        return self._task is not None and self._pool.withdraw(self._principal, self._task)


class WorkerPool:
    """Pool that runs at most `workers` tasks at a time and queues at most `queue_length` more.

    Principals whose tasks wait take turns, so that one with many tasks delays another by at most one of them. Tasks
    must not raise; a task that a worker has begun is finished.
    """

    def __init__(self, *, workers: int, queue_length: int) -> None:
        self._size = workers + queue_length
        # Places are counted apart from tasks: one is held from before the debit until its fit has ended.
        self._places = threading.BoundedSemaphore(self._size)
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # by principal; the first one's turn is next
        self._closed = self._abandoned = self._ended = False
        # Started now, not with a task: a missing thread must not be discovered after a debit.
        self._threads = [threading.Thread(target=self._work, name=f"fit-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    def reserve(self, principal: str = "") -> Place:
        """Reserve a place for a principal.

        Raises:
            QueueFullError: there is no place.
            StoppingError: the pool accepts no more tasks.
        """
        if self._closed:
            raise StoppingError
        if not self._places.acquire(blocking=False):
            raise QueueFullError("every worker is busy and the queue is full; nothing was debited, try again later")
        return Place(self, principal)

    def submit(self, principal: str, task: Callable[[], None]) -> None:
        """Run a principal's task that holds a place."""
        with self._changed:
            self._waiting.setdefault(principal, deque()).append(task)
            self._changed.notify()

    def withdraw(self, principal: str, task: Callable[[], None]) -> bool:
        """Remove a waiting task, and free its place. Return whether it was waiting."""
        with self._changed:
            tasks = self._waiting.get(principal, deque())
            if task not in tasks:
                return False
            tasks.remove(task)
            if not tasks:
                del self._waiting[principal]
        self.free()
        return True

    def free(self) -> None:
        """Free one place."""
        self._places.release()

    def close(self, seconds: float | None = None) -> bool:
        """Finish every accepted task, then stop; once.

        Args:
            seconds: time limit; None for none. After it no other task is begun, and running ones are left to the end of
                the process.

        Returns:
            Whether every task was finished.
        """
        self._closed = True
        until = None if seconds is None else time.monotonic() + seconds
        # A reserved place may be about to be charged, so its task, or its return, is awaited, too.
        for _ in range(self._size):
            if not self._places.acquire(timeout=None if until is None else max(0.0, until - time.monotonic())):
                self._abandoned = True
                return False
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        return True

    def _work(self) -> None:
        # Once abandoned nothing is begun: the process ends, and the next one runs what was charged.
        while (task := self._next()) is not None and not self._abandoned:
            try:
                task()
            except BaseException as error:
                log.failure(error)  # a bug; the thread continues for charged tasks
            finally:
                self.free()

    def _next(self) -> Callable[[], None] | None:
        """Wait for a task, and take the first one of the principal whose turn it is; None at the end of the pool."""
        with self._changed:
            # At the end tasks that wait are still handed out: they were accepted, and some are charged.
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting:
                return None
            principal = next(iter(self._waiting))
            tasks = self._waiting.pop(principal)
            task = tasks.popleft()
            if tasks:
                self._waiting[principal] = tasks  # at the end: the others come first
            return task


_FREE_PER_PRINCIPAL = 2
"""Maximum number of running and waiting free requests of one principal: one runs, the next waits."""

FREE_WORKERS = 2
"""Free fits that run beside charged ones: one decodes releases, one is a dry run."""

NO_RESULT = b""
"""Stored release of work that raised: a response without a model."""


class NothingReadError(Exception):
    """Error: no row could be opened, so nothing was drawn; a retry runs the work again."""


class NotBegunError(NothingReadError):
    """Error: no process reached the opening of rows, for lack of a process, memory, a descriptor or the ledger.

    It depends on no row. A failure to open rows may depend on their number, and is another error.
    """


class CutOffError(Exception):
    """Error: the end of the server interrupted the work, as a crash would; a retry runs it again."""


class Outcome(enum.Enum):
    """End of a run, for its listeners."""

    RELEASED = "released"
    """The release is stored."""
    FAILED = "failed"
    """The fit ended without a model, or could not open its rows."""
    NOT_STORED = "not_stored"
    """The ledger could not store the release; nothing was sent, and a retry runs the fit again."""
    LOST = "lost"
    """There will never be a release."""
    NOT_BEGUN = "not_begun"
    """No process of it reached the opening of rows; nothing was drawn, and a retry runs it again."""


@dataclass(kw_only=True)
class Run:
    """State of a running job, shared by the worker and all listeners.

    Attributes:
        incident: incident id of its failure in the operator's log.
        step: step that the work reported last, of `steps`.
        release: bytes of the answer; None until then, and permanently after another end.
        outcome: end of the run, once it is settled.
        settled: event that is set when the run has ended.
        started: time by `time.monotonic` from which ticks count: of the debit, once work begins of that.
        goes_on: True if it continues after its caller has left.
    """

    goes_on: ClassVar[bool] = False
    incident: str
    step: int = 0
    steps: int = 0
    release: bytes | None = None
    outcome: Outcome = Outcome.FAILED
    settled: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.monotonic)
    _leaving: threading.Lock = field(default_factory=threading.Lock)
    _left: bool = False
    _when_left: list[Callable[[], object]] = field(default_factory=list)

    def begin(self) -> None:
        """Count ticks from now on, as work begins.

        How long a run waits for another one is up to its caller, who could else put the end of its work just before or
        just after a tick, and so measure it finer than the quantum.
        """
        self.started = time.monotonic()

    def advance(self, step: int, steps: int) -> None:
        """Record progress, which depends on the request only."""
        self.step, self.steps = step, steps

    def leave(self) -> None:
        """Record that the caller has left, and call the functions given to `when_left`."""
        with self._leaving:
            self._left, wanted, self._when_left = True, self._when_left, []
        for each in wanted:
            each()

    def when_left(self, do: Callable[[], object]) -> None:
        """Call a function when the caller leaves; at once if they have left."""
        with self._leaving:
            if not self._left:
                self._when_left.append(do)
                return
        do()

    def to_next_tick(self, quantum: float) -> float:
        """Return the seconds until the next multiple of `quantum` after the start."""
        return quantum - (time.monotonic() - self.started) % quantum

    def settle(self, release: bytes) -> None:
        """Set the release, `NO_RESULT` for a fit that raised."""
        if release != NO_RESULT:
            self.release, self.outcome = release, Outcome.RELEASED
        self.settled.set()

    def end(self, outcome: Outcome) -> None:
        """End the run without a release, with this outcome."""
        self.outcome = outcome
        self.settled.set()


FreeWork = Callable[[Run], bytes]
"""Function that computes an answer from public or released values. Called in a worker; cannot open rows."""


class FreeRuns:
    """Runs of free requests. Their results are not kept, and a run whose caller has left is ended."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._free: list[str] = []

    def compute(self, principal: str, work: FreeWork) -> Run:
        """Submit work to the pool.

        Raises:
            QueueFullError: there is no place, or the principal has `_FREE_PER_PRINCIPAL` already.
        """
        with self._lock:
            if self._free.count(principal) >= _FREE_PER_PRINCIPAL:
                raise QueueFullError(f"{_FREE_PER_PRINCIPAL} free requests of yours run or wait already; wait for one")
            place = self._pool.reserve(principal)
            self._free.append(principal)
        run = Run(incident=f"free-{secrets.token_hex(4)}")
        place.run(lambda: self._compute(principal, run, work))

        def left() -> None:
            if place.withdraw():
                self._end(principal, run, NO_RESULT)

        run.when_left(left)
        return run

    def _compute(self, principal: str, run: Run, work: FreeWork) -> None:
        made: bytes | Outcome
        try:
            made = work(run)
        except NothingReadError as error:
            log.failure(error.__cause__ or error, run.incident)
            made = Outcome.NOT_BEGUN
        except CutOffError:
            made = NO_RESULT
        except BaseException as error:  # a panic in a native library is no Exception, and the caller waits
            log.failure(error, run.incident)
            made = NO_RESULT
        self._end(principal, run, made)

    def _end(self, principal: str, run: Run, made: bytes | Outcome) -> None:
        with self._lock:
            self._free.remove(principal)
        run.end(made) if isinstance(made, Outcome) else run.settle(made)


_PARTS = 4
"""Number of reported parts of a fit. Reporting every step would be a clock finer than the quantum."""


@dataclass(frozen=True)
class Step:
    """Progress: step `step` of `steps` is done."""

    step: int
    steps: int


@dataclass(frozen=True)
class Follower:
    """Listener to runs.

    Attributes:
        quantum: seconds; progress is reported at multiples of it after `Run.started`. Runs settle at such a multiple.
        longest: seconds after which a call ends; the run continues.
    """

    quantum: float
    longest: float

    def follow(self, run: Run, active: Callable[[], bool]) -> Iterator[Step | bytes]:
        """Yield the newest finished part, then the release as stored. Ends early when the caller has left.

        Raises:
            FitFailedError: the fit ended without a model.
            FitNotBegunError: it could not begin; a retry runs it again.
            ReleaseNotStoredError: the release was not stored; a retry runs it again.
            ReleaseLostError: there will never be a release.
            CallTooLongError: there is none yet.
        """
        until = time.monotonic() + self.longest
        shown = 0
        # Wakes at multiples of the quantum, where a run settles, too: its end tells no finer time.
        while True:
            started = run.started
            if run.settled.wait(run.to_next_tick(self.quantum)):
                break
            # The run goes on: its debit is spent, and its release can be fetched later.
            if not active():
                return
            if not time.monotonic() < until:
                raise CallTooLongError(goes_on=run.goes_on)
            # If work began meanwhile, its ticks are other ones.
            if run.started == started and (told := _told(run.step, run.steps)) > shown:
                shown = told
                yield Step(shown, run.steps)
        # A run may settle before its last step was told: progress always ends at the last one. Of one that failed the
        # step that it reached would be a clock, too.
        if (told := _told(run.step, run.steps)) > shown:
            yield Step(told, run.steps)
        if run.outcome is Outcome.NOT_STORED:
            raise ReleaseNotStoredError
        if run.outcome is Outcome.NOT_BEGUN:
            raise FitNotBegunError
        if run.outcome is Outcome.LOST:
            raise ReleaseLostError
        if run.release is None:
            raise FitFailedError(run.incident)
        yield run.release


def _told(step: int, steps: int) -> int:
    """Return the last step up to `step` that ends a part."""
    part = step * _PARTS // max(steps, 1)
    return -(-part * steps // _PARTS)


def leave_with(context: grpc.ServicerContext, run: Run) -> None:
    """End a free run together with its call, however the call ends: only this call waits for it."""
    if not context.add_callback(run.leave):
        run.leave()
