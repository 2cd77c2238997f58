"""Work on its way to an answer, and the work that nobody pays for. Knows neither ledger nor rows, fits or the wire."""

from __future__ import annotations

import enum
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bursar_server import logs
from bursar_server.worker import QueueFullError, WorkerPool

_FREE_PER_PRINCIPAL = 2
"""Free requests of one principal that may run or wait."""

FREE_WORKERS = 2
"""Fits that nobody pays for, which run beside those that are paid for: one decodes releases, one is a dummy run."""

NO_RESULT = b""
"""What stands for the answer of work that raised: a response without a model."""


class NothingReadError(Exception):
    """Raised by work, from its cause, if no row could be opened: there was no draw, so asking again runs it again."""


class CutOffError(Exception):
    """Raised by work that the end of the server cut off, as a crash would have: asking again runs it again."""


class Outcome(enum.Enum):
    """How a run ended, for those who listen."""

    RELEASED = "released"
    """Its release is stored."""
    FAILED = "failed"
    """The fit ended without a model, or could not begin."""
    NOT_STORED = "not_stored"
    """The ledger could not store what came of it; nothing was sent, and asking again runs it again."""
    LOST = "lost"
    """It will never have a release."""


@dataclass(kw_only=True)
class Run:
    """Work on its way to an answer; shared by the worker and by everyone who listens.

    Attributes:
        incident: under which the operator's log has its failure.
        step: of `steps`, as the work last said.
        release: the answer's bytes; None until then, and for ever if it ends in another way.
        outcome: how it ended, once it is settled.
        settled: nothing more will come of it.
        started: of `time.monotonic`.
    """

    incident: str
    step: int = 0
    steps: int = 0
    release: bytes | None = None
    outcome: Outcome = Outcome.FAILED
    settled: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.monotonic)

    def advance(self, step: int, steps: int) -> None:
        """Progress; depends on the request only."""
        self.step, self.steps = step, steps

    def to_next_tick(self, quantum: float) -> float:
        """Seconds until the next multiple of `quantum` after the start."""
        return quantum - (time.monotonic() - self.started) % quantum

    def settle(self, release: bytes) -> None:
        """Say what is released, `NO_RESULT` for a fit that raised."""
        if release != NO_RESULT:
            self.release, self.outcome = release, Outcome.RELEASED
        self.settled.set()

    def end(self, outcome: Outcome) -> None:
        """Say that nothing is released, and what that means."""
        self.outcome = outcome
        self.settled.set()


FreeWork = Callable[[Run], bytes]
"""Computes an answer from what is public or was released before. Called in a worker; has no data to open."""


class FreeRuns:
    """Runs of work that nobody pays for. Nothing of them is kept.

    Args:
        pool: runs the work.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._free: list[str] = []

    def compute(self, principal: str, work: FreeWork) -> Run:
        """Set work to the pool.

        Raises QueueFullError: there is no place, or the principal has `_FREE_PER_PRINCIPAL` already.
        """
        with self._lock:
            if self._free.count(principal) >= _FREE_PER_PRINCIPAL:
                raise QueueFullError(f"{_FREE_PER_PRINCIPAL} free requests of yours run or wait already; wait for one")
            place = self._pool.reserve()
            self._free.append(principal)
        run = Run(incident=f"free-{secrets.token_hex(4)}")
        place.run(lambda: self._compute(principal, run, work))
        return run

    def _compute(self, principal: str, run: Run, work: FreeWork) -> None:
        try:
            made = work(run)
        except BaseException as error:
            logs.failure(error, run.incident)
            made = NO_RESULT
        with self._lock:
            self._free.remove(principal)
        run.settle(made)
