"""Distances of mixtures in each column, whatever their components are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

import bursar
from bursar_models._quantile_errors import quantile_errors
from bursar_models.forecasts import foretold

LONE = (4 / 3) ** 0.5
"""Three of four releases are alike, so that they are the middle."""


def mixture(means: Any, weights: Any = (0.25, 0.75), variances: Any = 0.04, **more: Any) -> bursar.GaussianMixture:
    """Make a mixture of diagonal covariances, by default of two components in two columns."""
    spread = np.broadcast_to(variances, np.shape(means))
    return bursar.GaussianMixture(np.array(weights), np.array(means), np.array(spread), "diag", **more)


PLAIN = mixture([[0.0, 5.0], [1.0, 7.0]])


def alone(model: Any, others: Any = PLAIN) -> list[float]:
    """Return the errors of a release among three others that are alike, without what was divided out."""
    found = quantile_errors([others, others, model, others])
    assert found.shape == (4, len(others.means_[0]))
    assert (np.delete(found, 2, axis=0) == 0).all()
    return [float(error) / LONE for error in found[2]]


def test_a_moved_column_is_as_far_as_it_moved() -> None:
    """All quantiles move by as much; the other column is where it was."""
    assert alone(mixture([[0.0, 5.5], [1.0, 7.5]])) == pytest.approx([0.0, 0.5], abs=1e-4)


def test_only_what_components_say_together_counts() -> None:
    """Neither their order nor their number, and with them as much as their shares."""
    assert alone(mixture([[1.0, 7.0], [0.0, 5.0]], (0.75, 0.25))) == pytest.approx([0, 0], abs=1e-12)
    assert alone(mixture([[0, 5], [1, 7], [1, 7]], (0.25, 0.5, 0.25))) == pytest.approx([0, 0], abs=1e-12)
    assert alone(mixture([[0.0, 5.0], [1.0, 7.0]], (0.35, 0.65))) == pytest.approx([0.1, 0.2], abs=1e-3)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_every_kind_of_covariances_has_its_deviations(kind: Any) -> None:
    """The distance is that of rows drawn."""
    covariances = {
        "full": np.stack(2 * [np.diag([0.09, 0.09])]),
        "tied": np.diag([0.09, 0.09]),
        "diag": np.full((2, 2), 0.09),
        "spherical": np.full(2, 0.09),
    }[kind]
    wider = bursar.GaussianMixture(PLAIN.weights_, PLAIN.means_, covariances, kind)
    rows = [model.sample(40_000, 1)[0] for model in (PLAIN, wider)]
    expected = [scipy.stats.wasserstein_distance(a, b) for a, b in zip(*(one.T for one in rows), strict=True)]
    assert alone(wider) == pytest.approx(expected, rel=0.05)


def test_background_and_logarithms_count() -> None:
    """The background is uniform between the bounds, in the space of the model."""
    bounds = np.array([[0.0], [np.e**2 - 1.0]])
    plain, behind = (
        mixture([[1.0]], [1.0], 1e-6, bounds_=bounds, transforms=("log1p",), background_weight=share)
        for share in (0.0, 0.5)
    )
    # Half of the rows are half a unit away, on average, in [0, 2].
    assert alone(behind, plain) == pytest.approx([0.25], abs=2e-3)


def test_symmetric_mixtures_are_mixtures() -> None:
    """Both signs of b are the same model."""
    one, other, far = (bursar.SymmetricMixture(np.array([b]), np.array([10.0]), np.ones(1)) for b in (2.0, -2.0, 3.0))
    assert alone(other, one) == pytest.approx([0.0], abs=1e-12)
    assert 0.8 < alone(far, one)[0] < 1.0


def test_forecasts_of_mixtures_have_them() -> None:
    """They stand beside the errors of means; clusters have no law."""
    found = foretold(3 * [mixture([[0.0, 5.0], [1.0, 7.0]], columns=("x", "y"))], {})
    assert set(found) == {"mean_error", "quantile_error"}
    assert found["quantile_error"][1] == {"x": 0.0, "y": 0.0}
