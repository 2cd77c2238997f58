"""One fit, wherever it runs: a job is all that a fit is given, and a runner is where it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from bursar_ledger import Adjacency
from bursar_server.computing import NothingReadError
from bursar_server.fits import Plan
from bursar_server.fits._seam import Fit
from bursar_server.vault import ArrayRows, EngineSettings, ExactNoise, Meter, NoiseSource, Rows, Session

Fits = Mapping[str, Fit[Any, Any, Any]]
"""Fits by the name of their RPC."""

Progress = Callable[[int, int], None]
"""Told (step, steps), at points that depend on the request only."""


class RowSource(Protocol):
    """Where a fit's rows are: a small frozen value that can be pickled, and holds no row."""

    def open(self) -> Rows:
        """The rows, restricted to the fit's columns and in their order."""


@dataclass(frozen=True)
class NoRows:
    """For what is computed from released values only."""

    def open(self) -> Rows:
        """See `RowSource`."""
        return ArrayRows(np.empty((0, 0)))


@dataclass(frozen=True)
class Job:
    """All that a fit is given: public values, where its rows are, and what was debited. No secret, and no ledger.

    Attributes:
        method: name of the fit's RPC.
        plan: what it releases.
        rows: that it reads.
        adjacency: of the dataset.
        unit_cap: most rows of one privacy unit.
        order: of the Renyi divergence in which was paid.
        debited_units: what its releases may cost, in the ledger's units; 0 for what is computed for nothing.
        engine: what reads the rows.
    """

    method: str
    plan: Plan
    rows: RowSource
    adjacency: Adjacency
    unit_cap: int
    order: Fraction
    debited_units: int
    engine: EngineSettings


class Runner(Protocol):
    """Runs fits, several at a time."""

    def run(self, job: Job, progress: Progress) -> bytes:
        """A fit's model as it is serialised; the same bytes for the same model.

        Raises:
            NothingReadError: no row was opened, so nothing was drawn.
            CutOffError: the server is ending, and the fit was cut off with it.
            Exception: the fit raised, or did not live to its end; which of the two may depend on rows.
        """


@contextlib.contextmanager
def paid_session(job: Job, progress: Progress, source: NoiseSource | None = None) -> Iterator[Session]:
    """What a job's fit is run with, its rows open. Raises NothingReadError if they cannot be opened.

    Args:
        job: that was paid for.
        progress: is told of steps.
        source: of noise; anything but None is for tests.
    """
    with contextlib.ExitStack() as stack:
        try:
            rows = job.rows.open()
            engine = stack.enter_context(job.engine.open())
        except Exception as error:
            raise NothingReadError from error
        yield Session(
            rows=rows,
            columns=len(job.plan.columns),
            adjacency=job.adjacency,
            unit_cap=job.unit_cap,
            meter=Meter(job.order, job.debited_units),
            source=source or ExactNoise(),
            engine=engine,
            progress=progress,
        )


def model_of(fits: Fits, job: Job, session: Session) -> bytes:
    """Run a fit."""
    model: bytes = fits[job.method].run(job.plan, session).SerializeToString(deterministic=True)
    return model


class InProcess:
    """Runs fits where it is called, without limits: for commands of one's own machine, and for tests.

    Args:
        fits: by name.
        source: of noise; anything but None is for tests.
    """

    def __init__(self, fits: Fits, source: NoiseSource | None = None) -> None:
        self._fits = fits
        self._source = source

    def run(self, job: Job, progress: Progress) -> bytes:
        """See `Runner`."""
        with paid_session(job, progress, self._source) as session:
            return model_of(self._fits, job, session)
