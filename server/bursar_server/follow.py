"""What a caller hears of a run after its receipt: at multiples of a public quantum, so that time says less of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bursar_server.computing import Outcome, Run
from bursar_server.errors import CallTooLongError, FitFailedError, ReleaseLostError, ReleaseNotStoredError


@dataclass(frozen=True)
class Step:
    """Step `step` of `steps` is done."""

    step: int
    steps: int


@dataclass(frozen=True)
class Follower:
    """Listens to runs.

    Attributes:
        quantum: seconds; steps are told at multiples of it after the debit. Runs settle at such a multiple, too.
        longest: seconds; a caller is sent away after that, the run goes on.
    """

    quantum: float
    longest: float

    def follow(self, run: Run, active: Callable[[], bool]) -> Iterator[Step | bytes]:
        """Newest steps, then the release as stored. Ends early when the caller is no longer active.

        Raises:
            FitFailedError: the fit ended without a model.
            ReleaseNotStoredError: asking again runs it again.
            ReleaseLostError: there will never be a release.
            CallTooLongError: there is none yet.
        """
        until = time.monotonic() + self.longest
        shown = 0
        while not run.settled.wait(run.to_next_tick(self.quantum)):
            if not active():
                return
            if not time.monotonic() < until:
                raise CallTooLongError
            if run.step > shown:
                shown = run.step
                yield Step(shown, run.steps)
        if run.step > shown:
            yield Step(run.step, run.steps)
        if run.outcome is Outcome.NOT_STORED:
            raise ReleaseNotStoredError
        if run.outcome is Outcome.LOST:
            raise ReleaseLostError
        if run.release is None:
            raise FitFailedError(run.incident)
        yield run.release
