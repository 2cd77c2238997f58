"""FitSeparatedGMM finds components that are apart, says so when it does not, and returns a model whatever rows are."""

from __future__ import annotations

import numpy as np
import pytest

from bursar_ledger import Adjacency
from tests.server.fits.running import Array, array
from tests.server.fits.separated import mixture, plan, run, table, worst_distance

APART: Array = np.array([[-12.0, 0.0], [12.0, 1.0], [0.0, 15.0]])


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_separated_components_are_found(adjacency: Adjacency) -> None:
    """Three Gaussians that are ten deviations apart and more come back."""
    made = plan(table(adjacency=adjacency))
    model = run(made, mixture(5000, APART, 1), adjacency=adjacency)
    assert model.found == 3
    assert worst_distance(array(model.means), APART) < 0.3
    assert array(model.weights) == pytest.approx(np.full(3, 1 / 3), abs=0.03)
    assert array(model.covariances) == pytest.approx(np.tile(np.eye(2), (3, 1, 1)), abs=0.3)


def _hostile(n: int) -> dict[str, Array]:
    return {
        "empty": np.zeros((0, 2)),
        "one row": np.ones((1, 2)),
        "identical": np.full((n, 2), 7.0),
        "not a number": np.full((n, 2), np.nan),
        "infinite": np.full((n, 2), np.inf),
        "at the corners": np.where(np.arange(2 * n).reshape(n, 2) % 3 == 0, 100.0, -100.0),
    }


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("name", list(_hostile(1)))
def test_total_after_the_debit(name: str, adjacency: Adjacency) -> None:
    """Whatever the rows are, a valid model comes back, with at least one component."""
    X = _hostile(300)[name]
    model = run(plan(table(adjacency=adjacency)), X, adjacency=adjacency)
    assert 1 <= model.found <= 3
    weights, means, covariances = array(model.weights), array(model.means), array(model.covariances)
    assert weights.shape == (model.found,)
    assert weights.sum() == pytest.approx(1)
    assert np.all(weights > 0)
    assert means.shape == (model.found, 2)
    assert np.all(np.isfinite(means))
    eigenvalues = np.linalg.eigvalsh(covariances)
    assert np.all((eigenvalues >= 0.3**2 * (1 - 1e-6)) & (eigenvalues <= 3.0**2 * (1 + 1e-6)))
    for errors in (model.mean_errors, model.weight_errors, model.covariance_errors):
        assert np.all(np.isfinite(array(errors)))
