"""The sums of a trajectory are those that left through the one door, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, PublicTable, dpem
from bursar_server.fits._requests import array_of
from bursar_server.fits.mixtures.statistics import LATTICE
from bursar_server.vault import Noise, Statistic, noise_std

ROWS = np.random.default_rng(1).uniform(-1, 1, (3, 2000))  # noqa: TID251 - rows of a test


class Recorded:
    """A session that sums exactly, adds made-up noise, and remembers what left."""

    def __init__(self) -> None:
        self.left: list[tuple[NDArray[np.float64], Noise]] = []
        self.progress = lambda step, steps: None

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> NDArray[np.float64]:
        """Implement `Session.noisy_sum`."""
        out = np.zeros(statistic.size, dtype=np.int64)
        statistic.kernel(ROWS, np.ones(ROWS.shape[1], dtype=np.bool_), out)
        rng = np.random.default_rng(len(self.left))  # noqa: TID251 - noise of a test
        flat = out * LATTICE + noise_std(noise, LATTICE) * rng.standard_normal(len(out))
        self.left.append((flat, noise))
        return flat.copy()


def answer(**fields: Any) -> tuple[fit_pb2.GaussianMixtureModel, Recorded]:
    """The model of a fit, and what left."""
    columns = tuple(BoundedColumn(name, -1.0, 1.0) for name in ("a", "b", "c"))
    table = PublicTable("t", columns, Adjacency.ADD_REMOVE_ONE, 1, ROWS.shape[1])
    request = fit_pb2.FitDPEMRequest(
        columns=["a", "b", "c"], spend=types_pb2.Spend(rho=5.0), **{"n_components": 2, **fields}
    )
    session: Any = Recorded()
    return dpem.run(dpem.plan(request, table, lambda entry: None), session), session


@pytest.mark.parametrize("covariance_type", fit_pb2.CovarianceType.values()[1:])
def test_the_answer_repeats_what_left_with_its_noise(covariance_type: Any) -> None:
    """Each sum is bit by bit one that the session returned, in order, at most the last twenty, with its deviation."""
    model, session = answer(covariance_type=covariance_type, iterations=30)
    steps = model.trajectory.steps
    assert len(steps) == 20
    for step, (flat, noise) in zip(steps, session.left[-20:], strict=True):
        assert np.array_equal(array_of(step.sums), flat)
        assert step.noise_std == noise_std(noise, LATTICE)


def test_what_has_no_fitted_step_has_no_trajectory() -> None:
    """k-means and moments about a fixed origin have none."""
    assert not answer(mode=fit_pb2.MODE_KMEANS)[0].HasField("trajectory")
    assert not answer(moments=fit_pb2.MOMENTS_FIXED_ORIGIN)[0].HasField("trajectory")


def test_the_answer_has_the_cells_of_the_start() -> None:
    """More Gaussians than the model's, valid ones; none where the start ends with as many, and none of k-means."""
    cells = answer(n_components=3)[0].cells
    weights, covariances = array_of(cells.weights), array_of(cells.covariances)
    assert len(weights) == 12
    assert weights.sum() == pytest.approx(1)
    assert array_of(cells.means).shape == (12, 3)
    assert (np.linalg.eigvalsh(covariances) > 0).all()
    for fields in ({"mode": fit_pb2.MODE_KMEANS}, {"moments": fit_pb2.MOMENTS_FIXED_ORIGIN}, {"n_components": 1}):
        assert not answer(**fields)[0].HasField("cells")


def test_cells_without_room_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of an answer's numbers is theirs, too."""
    monkeypatch.setattr("bursar_server.fits.dpem._answer._MOST_NUMBERS", 12 * 9 - 1)
    assert not answer(n_components=3)[0].HasField("cells")
