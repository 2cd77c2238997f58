"""Runs of fits: debit, data, noise, store, wire, in this order; one noise draw a debit, whoever asks how often.

The order is what makes it sound. A place in the pool is reserved first, so that nobody pays to be turned away. The
debit is durable before a row is read. A run is never cancelled: its release is stored whether or not anybody still
listens. Nothing is sent before it is stored, so that asking again gets the same bytes. A run that was cut off by a
crash of the process, or whose release could not be stored, has sent nothing and is run again under its debit; neither
crashes nor disks depend on the rows. An owner who wants one draw at most of every debit lets such releases be lost. A
run that *raised* may depend on the rows, or on the noise: its debit gets the empty release, so that no second draw is
ever made of it.

Fits run in processes of their own (`bursar_server.children`), which may be killed. What that leaves:

killed by a limit, of time or memory, or by itself (a signal of the processor)   may depend on rows or noise: raised
killed by somebody else, the kernel that ran out of memory or a person            cannot be told from that: raised
ended, in whatever way, before it had opened the rows                             nothing was read: run again
ended because the server ended, by a crash or an owner's stop                     as a crash: run again, or lost

So whatever becomes of a process, a debit has one release at most that anybody is ever sent, and none that was drawn
after a failure that rows could have caused. That a fit failed is told, in one constant text, and can depend on rows
where a limit is so low that it can be reached; limits are for accidents, and what can be reckoned from public numbers
is refused before the debit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bursar_ledger import Debit, DebitRequest, DebitStatus, Ledger, RequestIdReusedError, RestRequest
from bursar_server import logs
from bursar_server.computing import NO_RESULT, CutOffError, FreeRuns, FreeWork, NothingReadError, Outcome, Run
from bursar_server.errors import ReleaseLostError
from bursar_server.worker import Place, QueueFullError, WorkerPool


@dataclass(kw_only=True)
class PaidRun(Run):
    """One debit on its way to its release, which is settled once it is stored.

    Attributes:
        debit: what was paid; it was durable when the run started.
        request_hash: of the request that paid.
    """

    debit: Debit
    request_hash: bytes

    @classmethod
    def of(cls, debit: Debit, request_hash: bytes) -> PaidRun:
        """The run of a debit."""
        return cls(incident=f"entry-{debit.entry}", debit=debit, request_hash=request_hash)


Work = Callable[[PaidRun], bytes]
"""Runs a fit under a debit and returns the release as it will be stored. Called in a worker; opens the data.

Raises NothingReadError, or ReleaseLostError if the debit is not for what the fit would do now; then nothing was read.
Raises CutOffError if the end of the server cut it off.
"""


@dataclass(frozen=True)
class Admission:
    """A run, and whether this very call paid for it."""

    run: PaidRun
    paid_now: bool


class Runs:
    """All runs of this process. Knows neither fits nor the wire.

    Args:
        ledger: is debited, and keeps the releases.
        pool: runs the work.
        quantum: seconds; releases are stored, places freed and callers answered at multiples of it after the debit.
        fits_per_principal: that may run or wait.
        free_pool: runs the work that nobody pays for, so that it never stands in the way of what is paid for.
        rerun: whether a debit without a release is run again; False lets it be lost.
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
    ) -> None:
        self._ledger = ledger
        self._rerun = rerun
        self._pool = pool
        self._free = FreeRuns(free_pool)
        self._quantum = quantum
        self._fits_per_principal = fits_per_principal
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], PaidRun] = {}
        self._admitting: dict[tuple[str, str], threading.Event] = {}

    def admit(self, request: DebitRequest | RestRequest, work: Work) -> Admission:
        """Debit a request and set its fit to work; or join the run, or find the release, of the same request.

        Raises:
            QueueFullError, StoppingError: there is no place; nothing was debited.
            ReleaseLostError: it was debited before, and is not run again.
            LedgerError: whatever `Ledger.debit` raises; nothing was debited.
        """
        key = (request.principal, request.request_id)
        while True:
            if stored := self._stored(request):
                return Admission(stored, paid_now=False)
            with self._lock:
                if running := self._running.get(key):
                    return Admission(_same(running, request), paid_now=False)
                if (other := self._admitting.get(key)) is None:
                    if stored := self._stored(request):  # since the first look
                        return Admission(stored, paid_now=False)
                    place = self._place_for(request.principal)
                    decided = self._admitting[key] = threading.Event()
                    break
            # Of two calls with one request_id the second waits for the first, and finds its run.
            other.wait()
        try:
            # Without the lock: requests that come together share a flush of the disk.
            debit = self._ledger.debit(request)
            if debit.status is DebitStatus.INTERRUPTED and not self._rerun:
                raise ReleaseLostError
            run = PaidRun.of(debit, request.request_hash)
            with self._lock:
                self._running[key] = run
        except BaseException:
            place.give_back()
            raise
        finally:
            with self._lock:
                del self._admitting[key]
            decided.set()
        logs.event(
            "debit",
            entry=debit.entry,
            dataset=request.dataset,
            principal=request.principal,
            method=request.method,
            cost_units=debit.price.cost_units,
            status=debit.status.value,
        )
        place.run(lambda: self._finish(key, run, work))
        return Admission(run, paid_now=debit.status is DebitStatus.NEW)

    def awaited(self, principal: str, request_id: str) -> bool:
        """Whether a debit that has no release may still get one.

        Whoever asks looks for the release after that: a run is under way until its release is stored.
        """
        key = (principal, request_id)
        with self._lock:
            return self._rerun or key in self._running or key in self._admitting

    def compute(self, principal: str, work: FreeWork) -> Run:
        """Set work that nobody pays for to its own pool; see `FreeRuns.compute`. Raises QueueFullError."""
        return self._free.compute(principal, work)

    def _stored(self, request: DebitRequest | RestRequest) -> PaidRun | None:
        """What a request got before. Takes no place and writes nothing, so that whoever has paid is always served."""
        paid = self._ledger.find(request.principal, request.request_id)
        if paid is None or (release := self._ledger.release(paid.entry)) is None:
            return None
        debit = Debit(paid.entry, paid.price, paid.remaining, paid.allowance, paid.head, DebitStatus.RELEASED, release)
        run = _same(PaidRun.of(debit, paid.request.request_hash), request)
        run.settle(release)
        return run

    def _place_for(self, principal: str) -> Place:
        if sum(name == principal for name, _ in (*self._running, *self._admitting)) >= self._fits_per_principal:
            raise QueueFullError(
                f"{self._fits_per_principal} fits of yours run or wait already; nothing was debited, wait for one"
            )
        return self._pool.reserve()

    def _finish(self, key: tuple[str, str], run: PaidRun, work: Work) -> None:
        made = self._computed(run, work)
        # Before the store: else a repeated request, a list of releases or a free place would tell how long it took.
        time.sleep(run.to_next_tick(self._quantum))
        if isinstance(made, bytes):
            try:
                self._ledger.store_release(run.debit.entry, made)
            except BaseException as error:
                # Nothing was sent, and a disk does not fail because of what a row says.
                logs.failure(error, run.incident, entry=run.debit.entry)
                made = Outcome.NOT_STORED if self._rerun else Outcome.LOST
        with self._lock:
            del self._running[key]
        logs.event("released", entry=run.debit.entry, model="stored" if isinstance(made, bytes) and made else "none")
        if isinstance(made, bytes):
            run.settle(made)
        else:
            run.end(made)

    def _computed(self, run: PaidRun, work: Work) -> bytes | Outcome:
        """The release, or NO_RESULT if the fit raised, so that nothing is drawn again; or why nothing was read."""
        try:
            return work(run)
        except (NothingReadError, ReleaseLostError) as error:
            logs.failure(error.__cause__ or error, run.incident, entry=run.debit.entry)
            return Outcome.LOST if isinstance(error, ReleaseLostError) else Outcome.FAILED
        except CutOffError:
            logs.event("cut_off", entry=run.debit.entry)
            return Outcome.NOT_STORED if self._rerun else Outcome.LOST
        except BaseException as error:  # a panic in a native library is no Exception
            logs.failure(error, run.incident, entry=run.debit.entry)
            return NO_RESULT


def _same(run: PaidRun, request: DebitRequest | RestRequest) -> PaidRun:
    if run.request_hash != request.request_hash:
        raise RequestIdReusedError("the request_id belongs to another request")
    return run
