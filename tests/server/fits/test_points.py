"""Mixtures of fewer components, by EM on points that stand for a released one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from bursar_server.fits.mixtures import em, points
from bursar_server.fits.mixtures.em import Mixture
from bursar_server.fits.mixtures.statistics import Moments
from tests.server.fits.running import Array


def in_a_row() -> Mixture:
    """Four equal Gaussians on a line, the two in the middle nearest to each other."""
    means = np.stack([[-0.3, -0.09, 0.09, 0.3], np.zeros(4)], axis=1)
    return Mixture(np.full(4, 1000.0), means, np.tile(0.003 * np.eye(2), (4, 1, 1)), age=3)


def likelihood(mixture: Mixture, X: Array) -> float:
    """Mean log-likelihood of rows."""
    parts = zip(mixture.weights, mixture.means, mixture.covariances, strict=True)
    return float(np.log(sum(w * multivariate_normal(m, c).pdf(X) for w, m, c in parts)).mean())


@pytest.mark.parametrize("moments", list(Moments))
def test_points_find_what_joining_pairs_misses(moments: Moments) -> None:
    """The nearest pair first leaves three Gaussians and one; others are likelier. Covariances keep their form."""
    fine, generator = in_a_row(), np.random.default_rng(3)  # noqa: TID251 - rows of a test
    X = np.concatenate(
        [generator.multivariate_normal(m, c, 2000) for m, c in zip(fine.means, fine.covariances, strict=True)]
    )
    greedy, found = em.merged(fine, 2), points.reduced(fine, 2, moments, 1.0)
    assert sorted(greedy.counts) == pytest.approx([1000.0, 3000.0])
    same = replace(greedy, covariances=em.shaped(greedy.covariances, greedy.counts, moments))
    assert likelihood(found, X) > likelihood(same, X) + 0.003
    assert found.counts.sum() == pytest.approx(4000.0)
    assert np.allclose(found.covariances, em.shaped(found.covariances, found.counts, moments))
    assert found.age == 1
    assert np.array_equal(points.reduced(fine, 2, moments, 1.0).means, found.means)


def test_equal_pairs_share_the_rows() -> None:
    """Two spheres have two Gaussians each."""
    found = points.reduced(in_a_row(), 2, Moments.SPHERICAL, 1.0)
    assert sorted(found.counts) == pytest.approx([2000.0, 2000.0], rel=0.05)
    assert sorted(found.means[:, 0]) == pytest.approx([-0.195, 0.195], abs=0.02)


def test_components_of_noise_are_left_out_first() -> None:
    """A component whose count is below its noise draws no other to it."""
    fine = in_a_row()
    means = np.vstack([fine.means, [[0.0, 0.9]]])
    covariances = np.concatenate([fine.covariances, fine.covariances[:1]])
    noisy = Mixture(np.append(fine.counts, 20.0), means, covariances)
    found = points.reduced(noisy, 2, Moments.FULL, 10.0)
    assert found.counts.sum() == pytest.approx(4000.0)
    assert np.abs(found.means[:, 1]).max() < 0.01


def test_as_many_components_stay_as_they_are() -> None:
    """Nothing is drawn where nothing is to be joined."""
    fine = in_a_row()
    assert np.array_equal(points.reduced(fine, 4, Moments.FULL, 1.0).means, fine.means)
