"""A mixture says whether what was released contradicts it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from bursar_models import GaussianMixture, GradientTrace, LinearRegression, RadiusCounts, TrajectoryStep
from bursar_models._goodness import (
    Goodness,
    Misfit,
    radius_goodness,
    residual_goodness,
    table_goodness,
    trace_goodness,
    trajectory_goodness,
)
from bursar_models._trajectory_fit import _largest, _Linear, _Mixture, _Problem, _weighted_normals, features_of
from tests.client.trajectories import MEANS, released


def with_rows(model: GaussianMixture, z: Any, seed: int) -> GaussianMixture:
    """The model with the sums of other rows in its trajectory, with the same noise."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - noise of a test
    trajectory = model.trajectory
    assert trajectory is not None

    def summed(step: TrajectoryStep) -> TrajectoryStep:
        units = np.ones(len(step.sums))
        units[[0, 1, -1]] = 0.5
        sums = units * features_of(step, np.clip(z, -1, 1), "full").sum(axis=0)
        return replace(step, sums=sums + step.noise_std * rng.standard_normal(len(units)))

    return replace(model, trajectory=replace(trajectory, steps=tuple(map(summed, trajectory.steps))))


def drawn(law: str, seed: int, n: int = 20_000) -> Any:
    """Rows of two groups with residuals of this law, all with the same variance."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    residuals = {
        "normal": lambda: rng.standard_normal((n, 2)),
        "t": lambda: rng.standard_t(3, (n, 2)) / math.sqrt(3),
        "exponential": lambda: rng.exponential(1, (n, 2)) - 1,
        "three groups": lambda: rng.standard_normal((n, 2)),
        "outliers": lambda: rng.standard_normal((n, 2)),
    }[law]()
    z = MEANS[(rng.random(n) < 0.4).astype(int)] + math.sqrt(0.02) * residuals
    if law == "three groups":
        z[: n // 5] *= 0.2
    if law == "outliers":
        z[: n // 100] = rng.uniform(-1, 1, (n // 100, 2))
    return z


@pytest.mark.parametrize("law", ["t", "exponential", "outliers"])
def test_a_wrong_form_is_said(law: str) -> None:
    """Heavy tails, skewness and 1 % of outliers are many errors away, and the intervals say that they are not good."""
    model = with_rows(released("full", 0, steps=2), drawn(law, 1), 2)
    found = model.goodness
    assert found is not None
    assert found.doubtful
    assert found.observed > 4 * found.error
    assert "no part of any Gaussian" in str(found)
    assert "not to be trusted" in model.intervals().warnings[-1]


def test_sums_that_no_mixture_explains_are_said() -> None:
    """A third group between two leaves sums that are no two Gaussians', also without a background."""
    model = with_rows(released("full", 0, steps=2), drawn("three groups", 1), 2)
    found = without_background(model).goodness
    assert found is not None
    assert found.p_value < 1e-6
    assert "no mixture of this form explains" in str(found)
    assert model._explained is not None
    assert trajectory_goodness(model._explained.misfit, None, 0.0).p_value < 1e-6


def without_background(model: GaussianMixture) -> GaussianMixture:
    """The model as if its steps had counted none."""
    assert model.trajectory is not None
    steps = tuple(replace(step, log_scale=step.log_scale[:-1], sums=step.sums[:-1]) for step in model.trajectory.steps)
    return replace(model, trajectory=replace(model.trajectory, steps=steps))


def test_a_right_form_raises_no_alarm() -> None:
    """No right model of three is doubtful; what speaks against them most is within a few errors."""
    for seed in range(3):
        model = with_rows(released("full", seed, steps=2), drawn("normal", seed), seed)
        found = model.goodness
        assert found is not None
        # A false alarm of this test in a million.
        assert found.p_value > 3e-7
        assert found.doubtful == (found.p_value < 1e-3)
        assert any("trusted" in note for note in model.intervals().warnings) == found.doubtful
        assert found.doubtful == ("nats a row would mostly not have been found, nor" not in found.verdict)


def test_means_over_a_mixture_are_corrected_and_their_error_is_known() -> None:
    """Means by few points come near those by many, to the error that is said; the points are normal far out."""
    trajectory = released("full", 4, steps=1).trajectory
    assert trajectory is not None
    theta = _Mixture(1e6, 0.01, np.array([0.6, 0.4]), MEANS, np.broadcast_to(math.sqrt(0.02) * np.eye(2), (2, 2, 2)))
    problem = _Problem(trajectory, np.array([[-1.0, -1.0], [1.0, 1.0]]), "full", 2, 2**9)
    few = problem._mean(theta, problem._normals, np.ones(len(problem._normals)), problem._uniforms)
    many = problem._mean(theta, *_weighted_normals(2**16, 2, seed=99), problem._in_box(2**16, seed=98))
    problem.refine(theta, 2**12)
    left = float(np.square(few + problem._correction - many).sum())
    assert left < 0.04 * float(np.square(few - many).sum())
    assert 0.01 < left / float(np.square(problem._errors).sum()) < 20
    points, weights = _weighted_normals(2**12, 3, seed=2)
    for beyond in (0.5, 1e-2, 1e-4, 1e-6):
        far = np.square(points).sum(axis=1) > chi2.isf(beyond, 3)
        assert float(weights @ far) / len(points) == pytest.approx(beyond, rel=0.05)


def test_the_error_of_sums_over_points_counts_in_the_misfit() -> None:
    """Mean and deviation of the misfit are those of residuals with that error."""
    rng = np.random.default_rng(5)  # noqa: TID251 - residuals of a test
    design, integration = rng.standard_normal((8, 2)), rng.standard_normal((8, 3))
    spread = np.diag(np.linspace(0.1, 0.9, 8))
    drawn = rng.standard_normal((4000, 8)) + rng.standard_normal((4000, 3)) @ integration.T
    found = [_Linear(design, one, np.eye(8), spread, integration, 100.0).misfit() for one in drawn]
    observed = np.array([one.observed for one in found])
    # Six errors of a mean and of a deviation of 4,000, of which the latter has heavier tails than a normal law's.
    assert observed.mean() == pytest.approx(found[0].expected, abs=6 * found[0].error / 4000**0.5)
    assert observed.std() == pytest.approx(found[0].error, rel=0.15)


def test_the_verdict_follows_the_chance() -> None:
    """Three errors are no alarm, four are; less than nothing is none."""
    nothing = Misfit(0.0, 1.0, 1.0)
    assert not trajectory_goodness(nothing, 0.03, 0.01).doubtful
    assert trajectory_goodness(nothing, 0.04, 0.01).doubtful
    assert trajectory_goodness(nothing, -0.05, 0.01).p_value == 1.0
    assert trajectory_goodness(replace(nothing, error=0.0), 0.0, 0.0).p_value == 1.0
    # 18.47 is the quantile 0.999 of a chi-squared number with 4 degrees of freedom, 20.0 that of 0.9995.
    for background, quantile in ((None, 18.47), (0.0, 20.0)):
        assert not trajectory_goodness(Misfit(quantile / 7 - 0.05, 4 / 7, 8**0.5 / 7), background, 0.01).doubtful
        assert trajectory_goodness(Misfit(quantile / 7 + 0.05, 4 / 7, 8**0.5 / 7), background, 0.01).doubtful


def test_what_tells_nothing_has_none() -> None:
    """A model without a trajectory."""
    assert replace(released("full", 0), trajectory=None).goodness is None


def held_out(seed: int, *, laplace: bool, apart: float) -> Goodness:
    """The test of independence on a noisy table of 20,000 rows of two columns that agree more than by chance."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows and noise of a test
    cells = np.outer([0.5, 0.3, 0.2], [0.4, 0.4, 0.15, 0.05])
    cells[:2, :2] += apart * np.array([[1, -1], [-1, 1]])
    rows = rng.multinomial(20_000, cells.ravel()).reshape(3, 4)
    counts = rows + (rng.laplace(0, 30 / math.sqrt(2), (3, 4)) if laplace else rng.normal(0, 30, (3, 4)))
    alone = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum() ** 2
    return table_goodness(("a", "b"), alone, 20_000, counts, 30.0, laplace=laplace, pairs=1)


@pytest.mark.parametrize("laplace", [False, True])
def test_a_table_held_out_is_compared_in_its_dependence(laplace: bool) -> None:
    """Independent columns give even chances; a hundredth of the rows that agree more is far beyond chance."""
    found = [held_out(seed, laplace=laplace, apart=0.0).p_value for seed in range(200)]
    # Of 200 even chances the middle is within 0.5 +- 0.17, and none is below 5e-9, but once in a million.
    assert 0.33 < np.median(found) < 0.67
    assert min(found) > 5e-9
    wrong = held_out(1, laplace=laplace, apart=0.02)
    assert wrong.doubtful
    assert wrong.p_value < 1e-6
    assert "beyond the graph" in str(wrong)


def test_nine_of_ten_dependences_of_the_size_that_is_said_are_found() -> None:
    """Cells alike have directions alike: with as many nats as the verdict names, and as said, most tests warn."""
    rng = np.random.default_rng(6)  # noqa: TID251 - rows and noise of a test
    cells, found = np.full((4, 4), 1 / 16), []
    right = table_goodness(("a", "b"), cells, 20_000, 20_000 * cells, 30.0, laplace=False, pairs=3)
    nats = float(right.verdict.partition("nearer than ")[2].split()[0])
    for _ in range(400):
        change = rng.standard_normal((4, 4))
        change -= change.mean(axis=0)
        change -= change.mean(axis=1, keepdims=True)
        other = cells + math.sqrt(2 * nats) * change / np.linalg.norm(change) / 4
        counts = rng.multinomial(20_000, other.ravel()).reshape(4, 4) + rng.normal(0, 30, (4, 4))
        found.append(table_goodness(("a", "b"), cells, 20_000, counts, 30.0, laplace=False, pairs=3).doubtful)
    # Six deviations of a share of 400 are 0.09.
    assert 0.78 < np.mean(found) < 0.99


def test_the_most_visible_change_is_the_largest_eigenvalue() -> None:
    """A tail of the product of two covariance matrices, to a hundredth; nothing is visible where one of them is 0."""
    rng = np.random.default_rng(7)  # noqa: TID251 - matrices of a test
    one, other = (half @ half.T for half in rng.standard_normal((2, 9, 9)))
    assert _largest(one, other) == pytest.approx(np.linalg.eigvals(one @ other).real.max(), rel=0.01)
    assert _largest(np.zeros((9, 9)), other) == 0


def test_the_choice_of_a_pair_counts() -> None:
    """A chance is multiplied by the number of pairs, up to 1."""
    one = held_out(3, laplace=False, apart=0.0)
    cells, counts = np.full((2, 2), 0.25), np.array([[30.0, 20.0], [20.0, 30.0]])
    single, many = (
        table_goodness(("a", "b"), cells, 100, counts, 1.0, laplace=False, pairs=pairs).p_value for pairs in (1, 5)
    )
    assert many == pytest.approx(5 * single)
    assert one.expected == 6
    assert table_goodness(("a", "b"), cells, 100, 100 * cells, 1.0, laplace=False, pairs=9).p_value == 1


LEVELS = np.array([0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.999])


def counted(residuals: Any, seed: int, *, laplace: bool = False) -> GradientTrace:
    """A trace whose last release counts residuals (n, size), with noise of 30 rows."""
    size = residuals.shape[1]
    rng = np.random.default_rng(seed)  # noqa: TID251 - noise of a test
    edges = [0.0, *chi2.ppf(LEVELS, size), np.inf]
    noise = rng.laplace(0, 30 / math.sqrt(2), 8) if laplace else rng.normal(0, 30, 8)
    counts = np.histogram(np.square(residuals).sum(axis=1), edges)[0] + noise
    radii = RadiusCounts(LEVELS, counts, 30.0, size, laplace)
    return GradientTrace("recentred", np.zeros((2, 1, 3)), np.ones((1, 3)), np.ones(1), 1.0, 1, radii)


def residuals_of(law: str, size: int, seed: int) -> Any:
    """Residuals of 20,000 rows, of deviation 1."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    shape = (20_000, size)
    if law == "t":
        return rng.standard_t(3, shape) / math.sqrt(3)
    if law == "exponential":
        return rng.exponential(1, shape) - 1
    normal = rng.standard_normal(shape)
    if law == "far":
        normal[:400] = 8.0
    return normal


@pytest.mark.parametrize("law", ["t", "exponential", "far"])
@pytest.mark.parametrize("size", [1, 5])
def test_wrong_residuals_of_gradient_em_are_said(law: str, size: int) -> None:
    """Heavy tails, skewness and 2 % of far rows: a regression's intervals say that they are not to be trusted."""
    for laplace in (False, True):
        trace = counted(residuals_of(law, size, 1), 2, laplace=laplace)
        model = LinearRegression(np.array([1.0, 2.0]), 0.0, 1.0, trace=trace)
        assert model.goodness is not None
        assert model.goodness.doubtful
        assert model.goodness.p_value < 1e-6
        assert "not to be trusted" in model.intervals().warnings[-1]


@pytest.mark.parametrize("laplace", [False, True])
def test_normal_residuals_raise_no_alarm(laplace: bool) -> None:
    """Chances are spread evenly, also where the noise level is 40 % too large, which is no other form."""
    found = []
    for seed in range(200):
        size = 1 + seed // 2 % 2
        scale = 0.7 if seed % 2 else 1.0
        goodness = trace_goodness(counted(scale * residuals_of("normal", size, seed), seed, laplace=laplace))
        assert goodness is not None
        assert goodness.expected == pytest.approx(chi2.sf(chi2.ppf(0.99, size) / scale**2, size), abs=0.002)
        found.append(goodness.p_value)
    # Of 200 even chances the middle is within 0.5 +- 0.17, and none is below 5e-9, but once in a million.
    assert 0.33 < np.median(found) < 0.67
    assert min(found) > 5e-9


def test_older_models_of_gradient_em_have_no_test() -> None:
    """Those of servers without the release, and models made by hand."""
    trace = replace(counted(residuals_of("t", 1, 1), 2), radii=None)
    assert LinearRegression(np.array([1.0, 2.0]), 0.0, 1.0, trace=trace).goodness is None
    assert LinearRegression(np.array([1.0, 2.0]), 0.0, 1.0).goodness is None


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"levels": [0.5, 0.4]}, "levels"),
        ({"levels": [0.5, math.nan]}, "levels"),
        ({"counts": [1.0, 2.0, 3.0]}, "counts"),
        ({"count_std": math.nan}, "count_std"),
        ({"size": 0}, "size"),
    ],
)
def test_wrong_counts_by_radius_are_refused(changed: dict[str, Any], text: str) -> None:
    """The message names the field."""
    arguments: dict[str, Any] = {"levels": [0.5], "counts": [3.0, 4.0], "count_std": 1.0, "size": 1}
    with pytest.raises(ValueError, match=text):
        RadiusCounts(**(arguments | changed))


def test_what_replicates_leave_is_what_a_right_mixture_leaves() -> None:
    """A residual like the replicates' is no alarm, one five times as large is; equal replicates say nothing."""
    replicates = np.array([1.0, 1.2, 0.9, 1.1, 1.05, 0.95])
    assert residual_goodness(1.1, replicates).p_value > 0.1
    far = residual_goodness(5.0, replicates)
    assert far.doubtful
    assert far.expected == pytest.approx(replicates.mean())
    assert residual_goodness(1.0, np.ones(3)).p_value == 1.0


@pytest.mark.parametrize("size", [1, 20, 200])
def test_counts_that_no_rows_have_are_tested_all_the_same(size: int) -> None:
    """All rows in one cell, negative counts and none at all: a chance, and no exception."""
    for counts in [*(1e6 * np.eye(8)), np.full(8, -1e9), np.zeros(8), np.array([1e15, *[-1e15] * 7])]:
        for std in (1e-6, 1.0, 1e6):
            goodness = radius_goodness(RadiusCounts(LEVELS, counts, std, size, laplace=False), 0.3)
            assert goodness is not None
            assert 0 <= goodness.p_value <= 1
