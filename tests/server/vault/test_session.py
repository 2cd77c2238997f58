"""The meter stands before the rows and before the noise."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bursar_ledger import COST_UNIT, Adjacency, GaussianEvent, LaplaceEvent, cost_units, rdp
from bursar_server.vault import (
    ArrayRows,
    Bounds,
    Factor,
    GaussianNoise,
    LaplaceNoise,
    Meter,
    Noise,
    OpenDPNoise,
    OverspendError,
    Release,
    Rows,
    Session,
    Statistic,
    SyntheticBudget,
)
from tests.server.vault.doubles import Echo, Untouchable

ORDER = Fraction(9)
EVENT = GaussianEvent(l2_squared=3, scale=Fraction(7))


def count_kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
    """One lattice of 4 units per present row."""
    out += 4 * int(present.sum())


COUNT = Statistic("count", count_kernel, (Factor("one", 2),), (1,), Bounds(4, 16, 4, 16), 4)


def session(meter: Meter, rows: Rows, source: Echo | Untouchable | OpenDPNoise, **options: object) -> Session:
    """A session of one column under ADD_REMOVE_ONE."""
    made = {"rows": rows, "columns": 1, "adjacency": Adjacency.ADD_REMOVE_ONE, "unit_cap": 1, "meter": meter}
    return Session(**(made | {"source": source} | options))  # type: ignore[arg-type] # options of one test each


@pytest.mark.parametrize("missing", [1, 2**30])
def test_a_release_beyond_the_debit_reads_no_row_and_draws_no_noise(missing: int) -> None:
    """One unit less than the price was debited: the fit is stopped before anything is touched or tapped."""
    noise = GaussianNoise(3.0)
    price = cost_units([GaussianEvent(16, Fraction(3))], ORDER)
    paid, untouchable = Meter(SyntheticBudget(ORDER, price - missing)), Untouchable()
    with pytest.raises(OverspendError):
        session(paid, untouchable, untouchable, tap=lambda release: pytest.fail("tapped")).noisy_sum(COUNT, noise)
    assert paid.unspent == Fraction(price - missing, COST_UNIT)


def test_exactly_the_debit_is_covered_and_nothing_after_it() -> None:
    """The price of three releases covers three releases, not four."""
    meter = Meter(SyntheticBudget(ORDER, cost_units([replace(EVENT, count=3)], ORDER)))
    for _ in range(3):
        meter.charge(EVENT)
    assert 0 <= meter.unspent < Fraction(1, COST_UNIT)
    with pytest.raises(OverspendError, match="not covered"):
        meter.charge(EVENT)


events = st.builds(
    GaussianEvent, l2_squared=st.integers(1, 100), scale=st.fractions(1, 100), count=st.integers(1, 3)
) | st.builds(LaplaceEvent, l1=st.integers(1, 100), scale=st.fractions(1, 100), groups=st.integers(1, 3))


@given(st.lists(events, min_size=1, max_size=6))
def test_what_the_plan_debits_covers_what_the_fit_releases(planned: list[GaussianEvent | LaplaceEvent]) -> None:
    """The ledger's price of a list of events always lets the meter pass them one by one, in any mixture."""
    meter = Meter(SyntheticBudget(ORDER, cost_units(planned, ORDER)))
    for event in planned:
        meter.charge(event)
    assert 0 <= meter.unspent < Fraction(1, COST_UNIT)


def test_a_refused_charge_costs_nothing() -> None:
    """A smaller release is still covered after a refusal."""
    meter = Meter(SyntheticBudget(ORDER, cost_units([EVENT], ORDER)))
    with pytest.raises(OverspendError):
        meter.charge(replace(EVENT, count=2))
    meter.charge(EVENT)
    assert meter.unspent == Fraction(cost_units([EVENT], ORDER), COST_UNIT) - rdp(EVENT, ORDER)


@pytest.mark.parametrize(
    ("adjacency", "cap", "expected"),
    [
        (Adjacency.ADD_REMOVE_ONE, 1, 16),
        (Adjacency.ADD_REMOVE_ONE, 3, 144),
        (Adjacency.REPLACE_ONE, 1, 25),
        (Adjacency.REPLACE_ONE, 2, 100),
    ],
)
def test_a_release_is_charged_for_the_tables_adjacency_and_cap(adjacency: Adjacency, cap: int, expected: int) -> None:
    """The session prices by the dataset's adjacency and cap; a statistic and a fit cannot choose."""
    taken: list[Release] = []
    paid = Meter(SyntheticBudget(ORDER, 2**60))
    options = {"adjacency": adjacency, "unit_cap": cap, "tap": taken.append}
    wide = replace(COUNT, bounds=Bounds(4, 16, 5, 25))
    session(paid, ArrayRows(np.zeros((1, 1))), Echo(), **options).noisy_sum(wide, GaussianNoise(3.0))
    assert taken[0].event == GaussianEvent(expected, Fraction(3))
    assert paid.unspent == Fraction(2**60, COST_UNIT) - rdp(taken[0].event, ORDER)


@pytest.mark.parametrize("noise", [GaussianNoise(2.0), LaplaceNoise(2.0)])
def test_the_tap_sees_what_the_fit_gets(noise: Noise) -> None:
    """The fit is given the tapped release in real units; the tap sees it after noise."""
    taken: list[Release] = []
    given_to_fit = session(
        Meter(SyntheticBudget(ORDER, 2**60)), ArrayRows(np.zeros((1, 5))), OpenDPNoise(), tap=taken.append
    ).noisy_sum(COUNT, noise)
    assert (given_to_fit == taken[0].noisy * 0.25).all()
    assert (taken[0].statistic, taken[0].noise) == (COUNT, noise)


def test_without_noise_a_release_would_be_the_sum() -> None:
    """The sum that noise is added to is exact, in real units: five rows of weight one."""
    rows = ArrayRows(np.zeros((1, 5)))
    assert session(Meter(SyntheticBudget(ORDER, 2**60)), rows, Echo()).noisy_sum(
        COUNT, GaussianNoise(2.0)
    ).tolist() == [5.0]
