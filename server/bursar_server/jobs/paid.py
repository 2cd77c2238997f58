"""Runs of charged fits: debit, read, add noise, store, send. A debit draws noise once, however often it is requested.

The order makes it sound. A place in the pool and the descriptors of a fit are reserved first, so that no debit is
followed by a refusal. The debit is durable before a row is read. A run is never cancelled: its release is stored even
if all listeners have left. Nothing is sent before it is stored, so that a retry gets the same bytes. A run that was
interrupted by a crash of the process, or whose release could not be stored, has sent nothing but progress, which no
release decides, and is run again under its debit; neither crashes nor disks depend on the rows. An owner who wants at
most one draw per debit lets such releases be lost. A run that *raised* may depend on the rows, or on the noise: its
debit gets the empty release, so that no second draw is ever made.

Fits run in processes of their own (`bursar_server.jobs.sandbox`), which may be killed. The cases:

killed by a limit of time or memory, or by a signal of the CPU                    may depend on rows or noise: raised
killed by an operator, or by the kernel when memory ran out                       cannot be distinguished: raised
ended, in whatever way, before it had opened the rows                             nothing was read: run again
ended because the server ended, by a crash or an owner's stop                     as a crash: run again, or lost

So a debit has at most one release that is ever sent, and none that was drawn after a failure that rows could have
caused. The failure of a fit is reported in one constant text. It can depend on rows if a limit is so low that it can be
reached; limits guard against accidents, and cost that can be estimated from public numbers is refused before the debit.

A fit whose process never reached the opening of rows is distinguished from a failed one, and its caller is asked to
retry: that depends on no row. A failure to open rows is reported as a failure, although a retry runs the fit: opening
takes 1 KiB of memory for each column of 65,536 rows, and the number of rows may be private.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from bursar_ledger import Debit, DebitRequest, DebitStatus, Ledger, RequestIdReusedError, RestRequest
from bursar_server import log
from bursar_server.jobs.errors import ReleaseLostError
from bursar_server.jobs.job import (
    NO_RESULT,
    CutOffError,
    FreeRuns,
    FreeWork,
    NotBegunError,
    NothingReadError,
    Outcome,
    Place,
    QueueFullError,
    Run,
    WorkerPool,
)


@dataclass(kw_only=True)
class PaidRun(Run):
    """Run of one debit, which is settled once its release is stored.

    Attributes:
        debit: debit, durable before the run started.
    """

    debit: Debit
    goes_on: ClassVar[bool] = True

    @classmethod
    def of(cls, debit: Debit) -> PaidRun:
        """Return the run of a debit."""
        return cls(incident=f"entry-{debit.entry}", debit=debit)


@dataclass(frozen=True)
class RequestKey:
    """Identity of a request.

    Attributes:
        request_id: idempotency key within the principal's requests.
        hash: hash of the whole request; another request under the same id is refused.
    """

    principal: str
    request_id: str
    hash: bytes

    @property
    def name(self) -> tuple[str, str]:
        """Pair that is unique among requests."""
        return self.principal, self.request_id


Work = Callable[[PaidRun], bytes]
"""Function that runs a fit under a debit and returns the release as it will be stored. Called in a worker; opens rows.

Raises NothingReadError, or ReleaseLostError if the debit does not match the present plan; then nothing was read. Raises
CutOffError if the end of the server interrupted it.
"""


@dataclass(frozen=True)
class Admission:
    """Run, and whether this call was charged for it."""

    run: PaidRun
    paid_now: bool


Ask = Callable[[], DebitRequest | RestRequest]
"""Function that checks and plans a new request, and returns the debit to request. If it raises, nothing is debited."""

Reserve = Callable[[], contextlib.AbstractContextManager[Work]]
"""Function that reserves the work's resources of this process. Raises NoRoomError if they are not available."""


class Runs:
    """All runs of this process. Imports neither fits nor the wire.

    Releases are stored, places freed and callers answered at multiples of `quantum` seconds after a fit begins. Free
    work has a pool of its own, so that it never delays charged work. Without `rerun` the release of a debit that has
    none is lost.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        pool: WorkerPool,
        free_pool: WorkerPool,
        quantum: float,
        fits_per_principal: int,
        rerun: bool,
        events: log.Events,
    ) -> None:
        self._events = events
        self._ledger = ledger
        self._rerun = rerun
        self._pool = pool
        self._free = FreeRuns(free_pool)
        self._quantum = quantum
        self._fits_per_principal = fits_per_principal
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], PaidRun] = {}
        self._claimed: dict[tuple[str, str], threading.Event] = {}
        self._placed: list[str] = []

    def admit(self, key: RequestKey, ask: Ask, reserve: Reserve) -> Admission:
        """Debit a request and submit its fit; or join the run, or find the release, of the same request.

        The request is asked for once, if nothing was debited under this key; its place is reserved before the debit.

        Raises:
            QueueFullError, StoppingError: there is no place; nothing was debited.
            NoRoomError: the resources of this process are not available; nothing was debited.
            ReleaseLostError: it was debited before, and is not run again.
            RequestIdReusedError: the id belongs to another request.
            LedgerError: raised by `Ledger.debit` or `ask`; nothing was debited.
        """
        if running := self._claim(key):
            return Admission(_same(running, key), paid_now=False)
        try:
            return self._decide(key, ask, reserve)
        finally:
            with self._lock:
                # In any case: calls with the same id wait for this, and then find the run, or decide themselves.
                self._claimed.pop(key.name).set()

    def _claim(self, key: RequestKey) -> PaidRun | None:
        """Return the run of a request; or None, and then this call alone decides about the request.

        Of two calls with one request_id the second waits for the first, and finds its run.
        """
        while True:
            with self._lock:
                if running := self._running.get(key.name):
                    return running
                if (other := self._claimed.get(key.name)) is None:
                    self._claimed[key.name] = threading.Event()
                    return None
            other.wait()

    def _decide(self, key: RequestKey, ask: Ask, reserve: Reserve) -> Admission:
        # Before a place is reserved: a repeated request must be answered where the pool is full, too.
        earlier = self._ledger.find_debit(key.principal, key.request_id, key.hash)
        if earlier is not None and earlier.status is DebitStatus.RELEASED:
            # Takes no place and writes nothing, so that a charged request is always served.
            return Admission(self._settled(earlier), paid_now=False)
        # Planning comes before the reservation: a request that is wrong takes no place from others.
        found = earlier or ask()
        with contextlib.ExitStack() as unless_run, contextlib.ExitStack() as stack:
            place = self._place_for(key.principal)
            # Given back in every case but one: once the run is known to `_running`, `_finish` frees the place.
            unless_run.callback(self._give_back, place, key.principal)
            work = stack.enter_context(reserve())
            # Without the lock, so that concurrent requests share one flush of the disk.
            debit = found if isinstance(found, Debit) else self._ledger.debit(found)
            if debit.status is DebitStatus.RELEASED:  # by another process, since the look
                return Admission(self._settled(debit), paid_now=False)
            if debit.status is DebitStatus.INTERRUPTED and not self._rerun:
                raise ReleaseLostError
            run = PaidRun.of(debit)
            with self._lock:
                # Before the place is given to a worker, so that a second call with this id joins this run and starts
                # none.
                self._running[key.name] = run
            unless_run.pop_all()
            reserved = stack.pop_all()
        self._events.tell(
            log.Debited(
                entry=debit.entry,
                dataset=debit.request.dataset,
                principal=debit.request.principal,
                method=debit.request.method,
                cost_units=debit.price.cost_units,
                status=debit.status.value,
            )
        )
        place.run(lambda: self._finish(key.name, run, work, reserved))
        return Admission(run, paid_now=debit.status is DebitStatus.NEW)

    def awaited(self, principal: str, request_id: str) -> bool:
        """Return whether a debit that has no release may still get one.

        Look for the release after this call: a run is under way until its release is stored.
        """
        key = (principal, request_id)
        with self._lock:
            return self._rerun or key in self._running or key in self._claimed

    def compute(self, principal: str, work: FreeWork) -> Run:
        """Submit free work to its own pool; see `FreeRuns.compute`. Raises QueueFullError."""
        return self._free.compute(principal, work)

    def _settled(self, debit: Debit) -> PaidRun:
        """Return the run of a debit that has its release."""
        run = PaidRun.of(debit)
        # Both are empty: a release that was lost, and one of a fit that raised. Callers are told which of the two it
        # is.
        if not debit.release and self._ledger.is_lost(debit.entry):
            run.end(Outcome.LOST)
        else:
            run.settle(debit.release or NO_RESULT)
        return run

    def _place_for(self, principal: str) -> Place:
        with self._lock:
            if self._placed.count(principal) >= self._fits_per_principal:
                raise QueueFullError(
                    f"{self._fits_per_principal} fits of yours run or wait already; nothing was debited, wait for one"
                )
            place = self._pool.reserve(principal)
            self._placed.append(principal)
            return place

    def _give_back(self, place: Place, principal: str) -> None:
        place.give_back()
        with self._lock:
            self._placed.remove(principal)

    def _finish(self, name: tuple[str, str], run: PaidRun, work: Work, reserved: contextlib.ExitStack) -> None:
        run.begin()
        with reserved:
            made = self._computed(run, work)
        # Wait before storing: a repeated request, a list of releases or a free place would else reveal the duration.
        time.sleep(run.to_next_tick(self._quantum))
        if isinstance(made, bytes):
            try:
                self._ledger.store_release(run.debit.entry, made)
            except BaseException as error:
                # Nothing was sent, and a disk failure does not depend on rows, so running again is safe.
                log.failure(error, run.incident, entry=run.debit.entry)
                made = Outcome.NOT_STORED if self._rerun else Outcome.LOST
        # Only now: a repeated request that came before the release was stored joined this run, and started none.
        with self._lock:
            del self._running[name]
            self._placed.remove(run.debit.request.principal)
        self._events.tell(
            log.Released(entry=run.debit.entry, model="stored" if isinstance(made, bytes) and made else "none")
        )
        if isinstance(made, bytes):
            run.settle(made)
        else:
            run.end(made)

    def _computed(self, run: PaidRun, work: Work) -> bytes | Outcome:
        """Return the release, NO_RESULT if the fit raised, so that nothing is drawn again; or why nothing was read."""
        try:
            return work(run)
        except (NothingReadError, ReleaseLostError) as error:
            log.failure(error.__cause__ or error, run.incident, entry=run.debit.entry)
            # Nothing was read, so running again draws the only noise; the owner's setting decides, as after a crash.
            if isinstance(error, NotBegunError) and self._rerun:
                return Outcome.NOT_BEGUN
            return Outcome.FAILED if isinstance(error, NothingReadError) and self._rerun else Outcome.LOST
        except CutOffError:
            self._events.tell(log.CutOff(entry=run.debit.entry))
            return Outcome.NOT_STORED if self._rerun else Outcome.LOST
        except BaseException as error:  # a panic in a native library is no Exception
            log.failure(error, run.incident, entry=run.debit.entry)
            return NO_RESULT


def _same(run: PaidRun, key: RequestKey) -> PaidRun:
    if run.debit.request.request_hash != key.hash:
        raise RequestIdReusedError("the request_id belongs to another request")
    return run
