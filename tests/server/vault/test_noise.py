"""The noise is what its price assumes: exact discrete laws, independent draws, no saturation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent, SelectionEvent
from bursar_server.vault import (
    Bounds,
    ExactNoise,
    GaussianNoise,
    LaplaceNoise,
    Noise,
    OpenDPNoise,
    SelectionNoise,
    Sensitivity,
    event_of,
    noise_std,
    sensitivity,
)
from bursar_server.vault._noise import MAX_SCALE, measurement_of, selection_of
from tests.server.vault.goodness import ALPHA, Pmf, bins_of, gaussian_pmf, laplace_pmf, masses_at

N = 20_000
FEWER = 6000
LAWS = [(GaussianNoise, gaussian_pmf), (LaplaceNoise, laplace_pmf)]
SCALES = [0.7, 3.0, 50.0]


def draw(noise: Noise, n: int = N) -> NDArray[np.int64]:
    """Draws of pure noise."""
    return OpenDPNoise().add(np.zeros(n, dtype=np.int64), noise)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("make", "pmf"), LAWS)
def test_noise_has_the_exact_discrete_law(make: type[GaussianNoise], pmf: Pmf, scale: float) -> None:
    """Draws agree with the exact probabilities on the integers."""
    assert bins_of(pmf, scale).p_value(draw(make(scale))) > ALPHA


@pytest.mark.parametrize("scale", [0.7, 1.5, 2.5])
@pytest.mark.parametrize(("make", "pmf"), LAWS)
def test_a_server_uses_scales_as_they_are(make: type[GaussianNoise], pmf: Pmf, scale: float) -> None:
    """The source of a session draws at scales that are no integers; noise of the next integer would be rejected."""
    bins, zeros = bins_of(pmf, scale), np.zeros(N, dtype=np.int64)
    for whole in {max(1.0, np.floor(scale)), np.ceil(scale)}:
        assert bins.power(masses_at(pmf, float(whole), bins), N) > 1 - 1e-9
    assert bins.p_value(ExactNoise().add(zeros, make(scale))) > ALPHA


@pytest.mark.parametrize("source", [ExactNoise, OpenDPNoise])
@pytest.mark.parametrize("make", [GaussianNoise, LaplaceNoise])
def test_no_call_repeats_the_noise_of_another(source: type[OpenDPNoise], make: type[GaussianNoise]) -> None:
    """Calls of one size, of one source or of two, have no draw in common: one time in 1e9 two of these 48 are equal."""
    one, zeros = source(), np.zeros(8, dtype=np.int64)
    draws = [by.add(zeros, make(2.0**45)) for by in (one, one, source(), one, source(), one)]
    assert len(np.unique(draws)) == 48


@pytest.mark.parametrize("factor", [0.7, 1.3])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("make", "pmf"), LAWS)
def test_the_test_of_the_law_sees_a_wrong_scale(
    make: type[GaussianNoise], pmf: Pmf, scale: float, factor: float
) -> None:
    """Noise 30 % too small and noise 30 % too large are both rejected, as the computed power promises."""
    bins = bins_of(pmf, scale)
    assert bins.power(masses_at(pmf, factor * scale, bins), FEWER) > 1 - 1e-9
    assert not bins.p_value(draw(make(factor * scale), FEWER)) > ALPHA


@pytest.mark.parametrize("scale", [2.0**20 + 0.3, 2.0**45, MAX_SCALE])
@pytest.mark.parametrize(("make", "law"), [(GaussianNoise, stats.norm), (LaplaceNoise, stats.laplace)])
def test_integers_do_not_saturate(make: type[GaussianNoise], law: stats.rv_continuous, scale: float) -> None:
    """Draws at the scales of the lattice and at the largest allowed follow the continuous law."""
    quantiles = np.arange(1, 30) / 30
    edges = np.asarray(law.ppf(quantiles) * scale)
    counts = np.bincount(np.searchsorted(edges, draw(make(scale))), minlength=30)
    assert stats.chisquare(counts).pvalue > ALPHA


def test_sums_and_noise_together_do_not_saturate() -> None:
    """The largest sum keeps its place under the largest noise: the mean of the difference stays within its error."""
    top = np.full(N, 2**62, dtype=np.int64)
    difference = (OpenDPNoise().add(top, GaussianNoise(MAX_SCALE)) - top) / MAX_SCALE
    assert abs(difference.mean()) < 6 / N**0.5
    assert (difference > 0).mean() == pytest.approx(0.5, abs=6 / N**0.5)


@pytest.mark.parametrize("make", [GaussianNoise, LaplaceNoise])
def test_draws_are_independent(make: type[GaussianNoise]) -> None:
    """Neither neighbouring coordinates nor the same coordinate of two releases are correlated, in value or in size."""
    first, second = draw(make(1000.0)).astype(float), draw(make(1000.0)).astype(float)
    for a, b in ((first[1:], first[:-1]), (first, second), (np.abs(first), np.abs(second))):
        assert abs(np.corrcoef(a, b)[0, 1]) < 6 / N**0.5


@given(st.integers(0, 3), st.integers(1, 4))
def test_shape_is_kept_and_input_is_not_changed(rows: int, columns: int) -> None:
    """Noise is added to a copy of the same shape."""
    sums = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
    noisy = OpenDPNoise().add(sums, GaussianNoise(2.0))
    assert noisy.shape == sums.shape
    assert noisy.dtype == np.int64
    assert (sums.ravel() == np.arange(rows * columns)).all()


def test_noise_of_almost_no_scale_leaves_integers_alone() -> None:
    """Noise is centred on the sum itself, not on a rounded or a shifted one."""
    sums = np.array([[2**60, -(2**60)], [3, -1]], dtype=np.int64)
    for noise in (GaussianNoise(1e-3), LaplaceNoise(1e-3)):
        assert (OpenDPNoise().add(sums, noise) == sums).all()


@pytest.mark.parametrize("make", [GaussianNoise, LaplaceNoise, SelectionNoise])
@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2 * MAX_SCALE])
def test_a_scale_out_of_range_is_refused(make: Callable[[float], object], scale: float) -> None:
    """Zero, negative, non-finite and saturating scales are refused."""
    with pytest.raises(ValueError, match="noise scale must lie in"):
        make(scale)


def test_the_deviation_that_is_reported_is_the_noises() -> None:
    """`noise_std` is the standard deviation in real units, of both laws."""
    assert noise_std(GaussianNoise(8.0), 0.25) == 2.0
    assert noise_std(LaplaceNoise(8.0), 0.25) == pytest.approx(2.0 * 2**0.5)
    assert draw(LaplaceNoise(50.0)).std() == pytest.approx(noise_std(LaplaceNoise(50.0), 1.0), rel=0.1)


@given(st.integers(1, 2**40), st.floats(1e-3, 2.0**50))
def test_gaussian_price_is_opendps(l2: int, scale: float) -> None:
    """The event of a Gaussian release costs what OpenDP's own map says, which is rounded up by less than 1e-9."""
    event = event_of(Sensitivity(l1=1, l2_squared=l2**2), GaussianNoise(scale))
    assert isinstance(event, GaussianEvent)
    rho = event.l2_squared / (2 * event.scale**2)
    opendp = measurement_of(GaussianNoise(scale)).map(float(l2))
    assert rho <= opendp <= float(rho) * (1 + 1e-9)


@given(st.integers(1, 2**40), st.floats(1e-3, 2.0**50))
def test_laplace_price_is_opendps(l1: int, scale: float) -> None:
    """The pure epsilon of a Laplace release is what OpenDP's own map says, which is rounded up by less than 1e-9."""
    bounds = Bounds(l1=l1, l2_squared=1, l1_distance=l1, l2_squared_distance=1)
    event = event_of(sensitivity(bounds, Adjacency.ADD_REMOVE_ONE, 1), LaplaceNoise(scale))
    assert isinstance(event, LaplaceEvent)
    epsilon = l1 / event.scale
    assert epsilon <= measurement_of(LaplaceNoise(scale)).map(l1) <= float(epsilon) * (1 + 1e-9)


@given(st.integers(1, 2**40), st.floats(1e-3, 2.0**50))
def test_the_price_of_a_choice_is_opendps(change: int, scale: float) -> None:
    """A choice costs eta^2 / 8 by OpenDP's own map, too, which takes scores to move apart."""
    event = event_of(Sensitivity(l1=change, l2_squared=1), SelectionNoise(scale))
    assert isinstance(event, SelectionEvent)
    rho = event.bounded_range**2 / 8
    assert selection_of(SelectionNoise(scale)).map(change) == pytest.approx(float(rho), rel=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 2.0**50])
def test_scores_do_not_saturate(scale: float) -> None:
    """Scores at both ends of the range keep their order, under the least noise and under much."""
    scores = np.array([-(2**61), 2**61 - 2**57, 2**61, -1], dtype=np.int64)
    assert {OpenDPNoise().argmax(scores, SelectionNoise(scale)) for _ in range(50)} == {2}


def test_one_score_is_the_largest() -> None:
    """A choice among one is that one, at any scale."""
    assert OpenDPNoise().argmax(np.array([-5], dtype=np.int64), SelectionNoise(2.0**40)) == 0
