"""Intervals of mixtures from the noisy sums of their steps."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import bursar
from bursar_models import GaussianMixture, Trajectory, _gaussian_mixture
from bursar_models._trajectory_fit import _normals, _scores, _shape_basis
from tests.client.trajectories import SHAPES, released

TRUTH = {"weights_[0]": 0.6, "weights_[1]": 0.4, "background_weight": 0.0, "means_[0].a": 9.5, "means_[1].b": 10.4}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
def test_every_form_of_covariance_has_short_intervals_about_the_truth(kind: Any) -> None:
    """Intervals of six standard errors contain the truth; none is left out or wide."""
    found = released(kind, 1).intervals(level=1 - 2e-9)
    assert found.left_out == ()
    for name, truth in TRUTH.items():
        assert found[name].low <= truth <= found[name].high, name
    variances = [row for row in found if row.about.startswith("variance")]
    assert len(variances) == {"full": 4, "tied": 2, "diag": 4, "spherical": 2}[kind]
    assert all(row.low <= 0.02 <= row.high and row.high / row.low < 2 for row in variances)
    off = [row for row in found if row.about.startswith("covariance")]
    assert len(off) == {"full": 2, "tied": 1}.get(kind, 0)
    assert all(row.low <= 0 <= row.high for row in off)


@pytest.mark.slow
def test_errors_are_as_large_as_they_are_said_to_be() -> None:
    """Squared errors over 40 data sets add up to what the standard errors say: not 60 % of it, nor 160 %."""
    z = 1.959963984540054
    squares = []
    for seed in range(40):
        found = released("full", 100 + seed, n=4000, noise=30.0, steps=2).intervals()
        for name in ("means_[0].a", "means_[1].b", "covariances_[0].a.b"):
            row, truth = found[name], TRUTH.get(name, 0.0)
            squares.append((z * 2 * (row.estimate - truth) / (row.high - row.low)) ** 2)
    # 120 squared normals, about independent: the bounds are passed about once in a million at errors of the right size.
    assert 0.45 < float(np.mean(squares)) < 1.75


@pytest.mark.slow
def test_many_columns_settle() -> None:
    """Fourteen columns have 105 entries of a covariance; intervals of six standard errors contain the truth."""
    found = released("full", 4, n=9_000, noise=3.0, steps=1, d=14).intervals(level=1 - 2e-9)
    assert found.left_out == ()
    assert all(found[name].low <= truth <= found[name].high for name, truth in TRUTH.items())


def test_moments_of_scores_are_exact() -> None:
    """Derivatives of a mean square by the shapes, and second moments, are the normal law's, at few points, too."""
    normals, shapes = _normals(512, 8), _shape_basis("full", 8)
    scores, exact, missing = _scores(normals, shapes)
    square = (normals @ np.arange(8.0)) ** 2
    square -= square.mean()
    along = square @ scores / len(scores)
    slope = np.einsum("i,fij,j->f", np.arange(8.0), shapes, np.arange(8.0))
    np.testing.assert_allclose(along @ exact, [*np.zeros(8), *slope], atol=1e-9)
    # The variance of a squared normal is 2, for any direction of a length of 1.
    assert np.square(square).mean() / 140**2 != pytest.approx(2, abs=0.01)
    assert (np.square(square).mean() + along @ missing @ along) / 140**2 == pytest.approx(2, abs=1e-9)


@pytest.mark.slow
def test_more_steps_make_shorter_intervals() -> None:
    """Noise averages over steps: an interval of sixteen is shorter than one of two."""
    few, many = (released("diag", 3, noise=200.0, steps=steps).intervals()["means_[0].a"] for steps in (2, 16))
    assert many.high - many.low < 0.6 * (few.high - few.low)


def test_what_the_sums_do_not_determine_is_named() -> None:
    """Noise of the size of the counts leaves numbers open: they have no interval, and a sentence."""
    found = released("full", 2, noise=4000.0, steps=1, n=2000).intervals()
    assert len(found.left_out) == 1
    assert "not determined" in found.left_out[0]
    assert "means_[0].a" in found.left_out[0]


def test_the_fit_to_the_sums_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS has one thread while the sums are fitted, and as many as before afterwards."""

    def threads() -> set[int]:
        return {found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"}

    seen: list[set[int]] = []
    monkeypatch.setattr(_gaussian_mixture, "fit_trajectory", lambda *_: seen.append(threads()))
    with threadpool_limits(2, user_api="blas"):
        assert released("full", 1, steps=1).goodness is None
        assert threads() == {2}
    assert seen == [{1}]


@pytest.mark.slow
def test_a_model_with_its_trajectory_is_plain_json() -> None:
    """A saved model has the same intervals; one without a trajectory loads, and says why it has none."""
    model = released("full", 5)
    again = GaussianMixture.from_dict(json.loads(json.dumps(model.to_dict())))
    for row, other in zip(again.intervals(), model.intervals(), strict=True):
        assert (row.name, row.about) == (other.name, other.about)
        # Where arrays lie in memory changes the rounding of sums.
        assert (row.low, row.high) == pytest.approx((other.low, other.high), abs=1e-6 * (row.high - row.low))
    old = {name: value for name, value in model.to_dict().items() if name != "trajectory"}
    without = bursar.GaussianMixture.from_dict(old)
    assert without.trajectory is None
    assert "noisy sums" in without.intervals().left_out[0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"means": np.zeros(2)}, "means"),
        ({"log_scale": np.zeros(4)}, "log_scale"),
        ({"sums": np.zeros((1, 1))}, "sums"),
        ({"radii": np.array([1.0, 0.0])}, "radii"),
        ({"precisions": np.array([1.0, 1.0, 2.0])}, "precisions"),
        ({"noise_std": math.nan}, "noise_std"),
    ],
)
def test_a_step_that_is_none_is_refused(change: dict[str, Any], named: str) -> None:
    """Each field is checked, and the message begins with its name."""
    model = released("full", 1, steps=1)
    assert model.trajectory is not None
    with pytest.raises(ValueError, match=rf"^{named}:"):
        replace(model.trajectory.steps[0], **change)


def test_a_trajectory_of_another_model_is_refused() -> None:
    """Steps have the size of the model, and of one another; rows need bounds."""
    model, other = released("full", 1), released("diag", 1)
    assert model.trajectory is not None
    assert other.trajectory is not None
    assert repr(model.trajectory) == "Trajectory: 4 steps of 13 noisy sums"
    with pytest.raises(ValueError, match=r"^trajectory:"):
        replace(model, trajectory=other.trajectory)
    with pytest.raises(ValueError, match=r"^steps:"):
        Trajectory(np.zeros(2), np.ones(2), (model.trajectory.steps[0], other.trajectory.steps[0]))
    with pytest.raises(ValueError, match=r"^scale:"):
        Trajectory(np.zeros(2), np.zeros(2), model.trajectory.steps)
    with pytest.raises(ValueError, match=r"^bounds_:"):
        replace(model, bounds_=None, background_weight=0.0)


def test_a_fit_that_did_not_settle_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round from means that are a deviation off is not enough, and the intervals say so."""
    model = released("spherical", 1, steps=1)
    far = replace(model, means_=model.means_ + 0.14)
    assert far.intervals().left_out == ()
    monkeypatch.setattr("bursar_models._trajectory_fit._ROUNDS", 1)
    # A copy: a model keeps its fit to the sums.
    assert "had not settled after 1 rounds" in replace(far).intervals().left_out[-1]


@pytest.mark.parametrize("noise", [1e-9, 1e150])
def test_noise_of_any_size_has_an_answer(noise: float) -> None:
    """Nothing raises where noise is all that there is, or none."""
    found = released("full", 6, noise=noise, n=500, steps=1).intervals()
    assert ("means_[0].a" in "".join(found.left_out)) == (noise > 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("field", ["sums", "factors", "scale"])
def test_numbers_that_no_fit_releases_are_named(field: str) -> None:
    """A file that was written by hand gets intervals or an error that says what is wrong, never one of numpy's."""
    content = released("full", 1, n=500, steps=1).to_dict()
    if field == "scale":
        content["trajectory"]["scale"] = [1e-300, 1e-300]
    else:
        content["trajectory"]["steps"][0][field] = np.multiply(content["trajectory"]["steps"][0][field], 1e300).tolist()
    model = GaussianMixture.from_dict(content)
    try:
        found = model.intervals()
    except ValueError as error:
        assert str(error).startswith("trajectory: ")  # noqa: PT017 - one of them may have an answer
    else:
        assert all(row.low <= row.high for row in found)


@pytest.mark.slow
def test_what_a_right_mixture_leaves_is_as_noise_and_sampling_leave_it() -> None:
    """The misfit less its mean, over its deviation, has mean 0 and deviation 1 over samples."""
    found = []
    for seed in range(12):
        model = released("full", 100 + seed)
        assert model._explained is not None
        misfit = model._explained.misfit
        found.append((misfit.observed - misfit.expected) / misfit.error)
    assert abs(np.mean(found)) < 5 / math.sqrt(len(found))
    assert 0.3 < np.std(found) < 2.5
