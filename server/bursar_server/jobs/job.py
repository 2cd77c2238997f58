"""State of a running job, and the pool for free requests. Imports neither ledger nor rows, fits or the wire."""

from __future__ import annotations

import enum
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from bursar_server import log
from bursar_server.jobs.pool import QueueFullError, WorkerPool

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
        started: start time by `time.monotonic`.
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
        except BaseException as error:
            log.failure(error, run.incident)
            made = NO_RESULT
        self._end(principal, run, made)

    def _end(self, principal: str, run: Run, made: bytes | Outcome) -> None:
        with self._lock:
            self._free.remove(principal)
        run.end(made) if isinstance(made, Outcome) else run.settle(made)
