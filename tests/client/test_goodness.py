"""A mixture says whether what was released contradicts it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bursar_models import GaussianMixture, TrajectoryStep
from bursar_models._goodness import background_goodness
from bursar_models._trajectory_fit import _of_step
from tests.client.trajectories import MEANS, released


def with_rows(model: GaussianMixture, z: Any, seed: int) -> GaussianMixture:
    """The model with the sums of other rows in its trajectory, with the same noise."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - noise of a test
    trajectory = model.trajectory
    assert trajectory is not None

    def summed(step: TrajectoryStep) -> TrajectoryStep:
        units = np.ones(len(step.sums))
        units[[0, 1, -1]] = 0.5
        sums = units * _of_step(step, np.clip(z, -1, 1), "full").sum(axis=0)
        return replace(step, sums=sums + step.noise_std * rng.standard_normal(len(units)))

    return replace(model, trajectory=replace(trajectory, steps=tuple(map(summed, trajectory.steps))))


def drawn(law: str, seed: int, n: int = 20_000) -> Any:
    """Rows of two groups with residuals of this law, all with the same variance."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    residuals = {
        "normal": lambda: rng.standard_normal((n, 2)),
        "t": lambda: rng.standard_t(3, (n, 2)) / math.sqrt(3),
        "exponential": lambda: rng.exponential(1, (n, 2)) - 1,
        "outliers": lambda: rng.standard_normal((n, 2)),
    }[law]()
    z = MEANS[(rng.random(n) < 0.4).astype(int)] + math.sqrt(0.02) * residuals
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
    assert "not to be trusted" in model.intervals().left_out[-1]


def test_a_right_form_raises_no_alarm() -> None:
    """No right model of three is doubtful; their shares are a few errors around 0 at most."""
    for seed in range(3):
        model = with_rows(released("full", seed, steps=2), drawn("normal", seed), seed)
        found = model.goodness
        assert found is not None
        # Five errors: a false alarm of this test in a million.
        assert abs(found.observed) < 5 * found.error
        assert found.doubtful == (found.p_value < 1e-3)
        assert any("trusted" in note for note in model.intervals().left_out) == found.doubtful


def test_the_verdict_follows_the_chance() -> None:
    """Three errors are no alarm, four are; less than nothing is none."""
    assert not background_goodness(0.03, 0.01).doubtful
    assert background_goodness(0.04, 0.01).doubtful
    assert background_goodness(-0.05, 0.01).p_value > 0.5
    assert background_goodness(0.0, 0.0).p_value == 1.0


def test_what_tells_nothing_has_none() -> None:
    """Models without a trajectory, and without a background."""
    assert replace(released("full", 0), trajectory=None).goodness is None
    model = released("full", 0, steps=1)
    assert model.trajectory is not None
    steps = tuple(replace(step, log_scale=step.log_scale[:-1], sums=step.sums[:-1]) for step in model.trajectory.steps)
    assert replace(model, trajectory=replace(model.trajectory, steps=steps)).goodness is None
