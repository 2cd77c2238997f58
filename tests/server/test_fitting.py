"""Job of a fit: its rows, adjacency, cap and meter."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from bursar_ledger import Adjacency, GaussianEvent, cost_units
from bursar_server.fits import Plan
from bursar_server.jobs.runner import Job, open_session
from bursar_server.vault import (
    ArrayRows,
    Bounds,
    Factor,
    GaussianNoise,
    LocalEngine,
    OverspendError,
    Rows,
    Statistic,
    SyntheticBudget,
)

ORDER = Fraction(9)


def _count(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
    out += int(present.sum())


FARTHER = Statistic("count", _count, (Factor("one", 1),), (1,), Bounds(1, 1, 2, 3), 1)
"""Rows that are replaced may change more than rows that come or go."""


@dataclass(frozen=True)
class Few:
    """Five synthetic rows."""

    budget: SyntheticBudget

    def open(self) -> Rows:
        """See `RowSource`."""
        return ArrayRows(np.zeros((1, 5)))


@pytest.mark.parametrize(
    ("adjacency", "cap", "squared"),
    [
        (Adjacency.ADD_REMOVE_ONE, 1, 1),
        (Adjacency.ADD_REMOVE_ONE, 3, 9),
        (Adjacency.REPLACE_ONE, 1, 3),
        (Adjacency.REPLACE_ONE, 2, 12),
    ],
)
def test_a_session_is_priced_for_the_jobs_adjacency_and_cap(adjacency: Adjacency, cap: int, squared: int) -> None:
    """The exact debit suffices; with one unit less nothing is released."""
    noise, price = GaussianNoise(4.0), cost_units([GaussianEvent(squared, Fraction(4))], ORDER)
    plan = Plan(columns=("x",), events=(), iterations=1, noise=(), parameters={})
    for short in (0, 1):
        job = Job(
            method="FitDPEM",
            plan=plan,
            rows=Few(SyntheticBudget(ORDER, price - short)),
            adjacency=adjacency,
            unit_cap=cap,
            engine=LocalEngine(),
        )
        with open_session(job, lambda step, steps: None) as session:
            if short:
                with pytest.raises(OverspendError):
                    session.noisy_sum(FARTHER, noise)
            else:
                assert abs(session.noisy_sum(FARTHER, noise)[0] - 2.5) < 100
