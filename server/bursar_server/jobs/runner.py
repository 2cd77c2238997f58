"""Protocol of a single fit's execution: a job is all that a fit receives, and a runner executes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from bursar_ledger import Adjacency
from bursar_server.fits import AnyFit, Plan
from bursar_server.jobs.job import NoRoomError, NotBegunError, NothingReadError, Run
from bursar_server.vault import (
    ArrayRows,
    EngineSettings,
    ExactNoise,
    Meter,
    NoiseSource,
    Rows,
    RowSource,
    Session,
    SyntheticBudget,
    transformed,
)

Fits = Mapping[str, AnyFit]
"""Fits by the name of their RPC."""

Progress = Callable[[int, int], None]
"""Function that receives (step, steps), at points that depend on the request only."""


@dataclass(frozen=True)
class NoRows:
    """Rows of a free request, which computes from released values only; its meter refuses every release.

    Attributes:
        order: Renyi order of costs.
    """

    order: Fraction

    @property
    def budget(self) -> SyntheticBudget:
        """Implement `RowSource.budget`."""
        return SyntheticBudget(self.order, 0)

    def open(self) -> Rows:
        """Implement `RowSource.open`."""
        return ArrayRows(np.empty((0, 0)))


@dataclass(frozen=True)
class Job:
    """All that a fit receives: public values, the source of its rows, and its allowed releases. No secret, no ledger.

    Attributes:
        rows: source of its rows, with their budget: the debit's for stored rows.
        unit_cap: maximum number of rows of one privacy unit.
    """

    method: str
    plan: Plan
    rows: RowSource
    adjacency: Adjacency
    unit_cap: int
    engine: EngineSettings


class Reserved(Protocol):
    """Resources of this process for one fit, reserved before the debit."""

    def run(self, job: Job, progress: Progress) -> bytes:
        """Run a fit; once. Return its serialised model; equal models have equal bytes.

        Raises:
            NotBegunError: the fit's process did not reach the opening of rows.
            NothingReadError: no row could be opened, so nothing was drawn.
            CutOffError: the end of the server, or `kill`, interrupted the fit.
            Exception: the fit raised, or its process died; which of the two may depend on rows.
        """

    def kill(self) -> None:
        """End the fit, if this runner can; from any thread, before, during or after its run."""


class Runner(Protocol):
    """Executor of fits, several at a time."""

    def reserve(self) -> contextlib.AbstractContextManager[Reserved]:
        """Reserve the resources of one fit until the block ends. Raises NoRoomError if this process lacks them."""


def run_for_free(runner: Runner, job: Job, run: Run) -> bytes:
    """Run a free fit, which has no debit, until its caller leaves. Raises as `Reserved.run`."""
    with contextlib.ExitStack() as stack:
        try:
            reserved = stack.enter_context(runner.reserve())
        except NoRoomError as error:
            raise NotBegunError from error.__cause__
        run.when_left(reserved.kill)
        return reserved.run(job, run.advance)


@contextlib.contextmanager
def open_session(job: Job, progress: Progress, source: NoiseSource | None = None) -> Iterator[Session]:
    """Open the rows of a job, and the session of its fit. Raises NothingReadError if they cannot be opened.

    Sources of noise other than None are for tests.
    """
    with contextlib.ExitStack() as stack:
        try:
            rows = transformed(job.rows.open(), job.plan.transforms)
            engine = stack.enter_context(job.engine.open())
        except Exception as error:
            raise NothingReadError from error
        yield Session(
            rows=rows,
            columns=len(job.plan.columns),
            adjacency=job.adjacency,
            unit_cap=job.unit_cap,
            meter=Meter(job.rows.budget),
            source=source or ExactNoise(),
            engine=engine,
            progress=progress,
        )


def model_of(fits: Fits, job: Job, session: Session) -> bytes:
    """Run a fit."""
    model: bytes = fits[job.method].run(job.plan, session).SerializeToString(deterministic=True)
    return model


class InProcess:
    """Runner in the calling thread, without limits: for local commands and tests.

    Sources of noise other than None are for tests.
    """

    def __init__(self, fits: Fits, source: NoiseSource | None = None) -> None:
        self._fits = fits
        self._source = source

    def reserve(self) -> contextlib.AbstractContextManager[Reserved]:
        """Implement `Runner.reserve`. Takes nothing."""
        return contextlib.nullcontext(self)

    def run(self, job: Job, progress: Progress) -> bytes:
        """Implement `Reserved.run`."""
        with open_session(job, progress, self._source) as session:
            return model_of(self._fits, job, session)

    def kill(self) -> None:
        """Implement `Reserved.kill`. Does nothing: a thread cannot be killed."""
