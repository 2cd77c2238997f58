"""The kernel and its slow reference say the same, for every kind of moments; a row stays within its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_ledger import Adjacency
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.vault import CHUNK, ArrayRows, LocalEngine, Statistic, exact_sum, sensitivity
from tests.audit.checks import contribution
from tests.audit.harness import extremes
from tests.audit.moments import reference

KINDS = st.sampled_from(list(Moments))


def statistic_of(seed: int, moments: Moments, hard: bool, *, K: int = 3, d: int = 2) -> Statistic:
    """Moments about random centres with random shapes and weights; every other seed has a background."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - parameters of a test
    lower = np.tril(rng.normal(size=(2, K, d, d)))
    means, centres = rng.uniform(-0.7, 0.7, size=(2, K, d))
    step = EStep(hard, rng.normal(size=K + seed % 2), means, 4.0 * lower[0], False, centres, 2.0 * lower[1])
    frame = BallFrame(rng.normal(size=d), rng.uniform(0.5, 2.0, size=d))
    return moment_statistic(frame, step, moments, Weights(*rng.uniform(0.3, 1.0, size=3)))


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), KINDS, st.booleans(), st.integers(1, 40))
def test_kernel_and_reference_agree(seed: int, moments: Moments, hard: bool, n: int) -> None:
    """The compiled sums are the formulas' but for truncation: less than 2^-15 of a row for every row."""
    statistic = statistic_of(seed, moments, hard)
    rows = ArrayRows(np.random.default_rng(seed).normal(size=(2, n)) * 2)  # noqa: TID251 - rows of a test
    difference = (exact_sum(statistic, rows, 2) - reference(statistic, rows)) * statistic.lattice
    assert np.abs(difference).max() < n * 2.0**-15


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), KINDS, st.booleans(), st.data())
def test_no_bit_pattern_exceeds_the_bounds(seed: int, moments: Moments, hard: bool, data: st.DataObject) -> None:
    """A row's integers stay within the declared norms whatever its bits, any two rows within the distances."""
    statistic = statistic_of(seed, moments, hard)
    numbers = st.floats(allow_nan=True, allow_infinity=True, width=64) | st.floats(-3, 3)
    drawn = data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4))
    rows = np.hstack([np.array(drawn).T, extremes(2)])
    values = [contribution(statistic, row).tolist() for row in rows.T]
    bounds = statistic.bounds
    for value in values:
        assert sum(map(abs, value)) <= bounds.l1
        assert sum(x * x for x in value) <= bounds.l2_squared
    for first in values:
        for second in values:
            assert sum(abs(x - y) for x, y in zip(first, second, strict=True)) <= bounds.l1_distance
            assert sum((x - y) ** 2 for x, y in zip(first, second, strict=True)) <= bounds.l2_squared_distance


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), KINDS, st.booleans(), st.integers(1, 2 * CHUNK), st.integers(1, 4))
def test_sums_do_not_depend_on_place_order_or_threads(
    seed: int, moments: Moments, hard: bool, slots: int, threads: int
) -> None:
    """The kernel's integers for a row are the same wherever in a block it lies and whoever its neighbours are."""
    statistic = statistic_of(seed, moments, hard)
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    rows, places = rng.normal(size=(2, min(slots, 20))), rng.permutation(slots)[:20]
    spread, present = rng.normal(size=(2, slots)), np.zeros(slots, dtype=np.bool_)
    spread[:, places], present[places] = rows, True
    alone = sum(contribution(statistic, row) for row in rows.T)
    assert (exact_sum(statistic, ArrayRows(spread, present), 2, engine=LocalEngine(threads)) == alone).all()


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("moments", list(Moments))
def test_the_bounds_are_reached(moments: Moments, adjacency: Adjacency) -> None:
    """Orthogonal rows of two components come within 5 % of the sensitivity: noise is no larger than it must be."""
    whole, means = np.tile(np.eye(2), (2, 1, 1)), np.array([[-0.5, 0.0], [0.0, 0.5]])
    step = EStep(True, np.zeros(2), means, whole, True, np.zeros((2, 2)), whole)
    statistic = moment_statistic(BallFrame(np.zeros(2), np.ones(2)), step, moments, Weights(1.0, 0.7, 0.7))
    one, two = (contribution(statistic, np.array(row)).tolist() for row in ([-9.0, 0.0], [0.0, 9.0]))
    other = two if adjacency is Adjacency.REPLACE_ONE else [0] * len(two)
    change = sum((x - y) ** 2 for x, y in zip(one, other, strict=True))
    assert change >= 0.95**2 * sensitivity(statistic.bounds, adjacency, 1).l2_squared
