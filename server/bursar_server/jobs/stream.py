"""Stream of progress and result at fixed intervals after the receipt, so that timing reveals little."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from bursar_server.jobs.errors import (
    CallTooLongError,
    FitFailedError,
    FitNotBegunError,
    ReleaseLostError,
    ReleaseNotStoredError,
)
from bursar_server.jobs.job import Outcome, Run

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
        quantum: seconds; progress is reported at multiples of it after the debit. Runs settle at such a multiple, too.
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
        while not run.settled.wait(run.to_next_tick(self.quantum)):
            # The run goes on: its debit is spent, and its release can be fetched later.
            if not active():
                return
            if not time.monotonic() < until:
                raise CallTooLongError(goes_on=run.goes_on)
            if (told := _told(run.step, run.steps)) > shown:
                shown = told
                yield Step(shown, run.steps)
        # A run may settle before its last step was told: progress always ends at the last one.
        if run.step > shown:
            yield Step(run.step, run.steps)
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
