"""The declared bounds are reached and never passed; sums do not depend on how rows are cut into blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from bursar_server.fits.dpem._statistics import EStep, Frame, Moments, Weights, moment_bounds, moment_statistic
from bursar_server.vault import CHUNK
from tests.server.fits.running import Array

KINDS = [Moments.SPHERICAL, Moments.DIAG, Moments.FULL, Moments.TIED]
REACHED = {Moments.FULL: 0.99, Moments.TIED: 0.95, Moments.SPHERICAL: 0.85, Moments.DIAG: 0.7}
WEIGHTS = [(1.0, 1.0, 1.0), (0.3, 0.5, 1.0), (1.0, 1.0, 0.3), (0.6, 0.6, 1.0), (0.1, 1.0, 1.0), (1.0, 0.1, 1.0)]


def features(u: Array, moments: Moments, w: tuple[float, float, float]) -> Array:
    """(a, b u, c s(u)) from the definition."""
    outer = np.outer(u, u)
    second = {
        Moments.SPHERICAL: np.array([u @ u]),
        Moments.DIAG: u**2,
    }.get(moments, np.concatenate([np.diag(outer), np.sqrt(2) * outer[np.tril_indices(len(u), -1)]]))
    return np.concatenate([[w[0]], w[1] * u, w[2] * second])


def into_ball(u: Array) -> Array:
    """Clip to the unit ball."""
    return np.asarray(u / max(1.0, float(np.linalg.norm(u))))


def largest_distance(K: int, d: int, moments: Moments, w: tuple[float, float, float]) -> float:
    """Squared distance of two rows' vectors, maximised over positions and, for K = 2, responsibilities."""

    def vector(x: Any) -> Array:
        blocks = [features(into_ball(x[k * d : (k + 1) * d]), moments, w) for k in range(K)]
        shares = np.ones(1) if K == 1 else np.array([np.sin(x[-1]) ** 2, np.cos(x[-1]) ** 2])
        if moments is Moments.TIED:
            pooled = sum(g * block[1 + d :] for g, block in zip(shares, blocks, strict=True))
            return np.concatenate([*(g * block[: 1 + d] for g, block in zip(shares, blocks, strict=True)), pooled])
        return np.concatenate([g * block for g, block in zip(shares, blocks, strict=True)])

    def closeness(x: Any) -> float:
        return -float(np.sum((vector(x[:n]) - vector(x[n:])) ** 2))

    n = K * d + 1
    generator = np.random.default_rng(0)  # noqa: TID251 - starts of a search
    best = 0.0
    for _ in range(4):
        found = minimize(closeness, 1.5 * generator.standard_normal(2 * n), method="Powell")
        best = max(best, -float(found.fun))
    return best


@pytest.mark.parametrize("w", WEIGHTS, ids=str)
@pytest.mark.parametrize("moments", KINDS)
@pytest.mark.parametrize("K", [1, 2])
def test_distance_is_bounded_and_the_bound_is_reached(K: int, moments: Moments, w: tuple[float, float, float]) -> None:
    """No pair of rows is further apart than declared; and the search comes close."""
    d = 2
    declared = moment_bounds(K, d, moments, Weights(*w)).l2_squared_distance / 2.0**72
    found = largest_distance(K, d, moments, w)
    assert found <= declared
    assert found >= REACHED[moments] * declared


def test_published_distances() -> None:
    """Squared distances of plain cases: 6 for equal weights, 4.5 for one component without counts."""
    for K, w, expected in ((2, (1.0, 1.0, 1.0), 6.0), (1, (1e-9, 1.0, 1.0), 4.5), (2, (0.15, 0.5, 1.0), 10.18 / 4)):
        declared = moment_bounds(K, 3, Moments.FULL, Weights(*w)).l2_squared_distance / 2.0**72
        assert declared == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("size", [256, 512, 1024, 4096, CHUNK, 2 * CHUNK])
def test_sums_are_equal_for_every_size_of_block(size: int) -> None:
    """The kernel's integers do not depend on how rows are cut."""
    generator = np.random.default_rng(1)  # noqa: TID251 - rows of a test
    X = 2 * generator.standard_normal((3, 4 * CHUNK))
    means = generator.uniform(-0.5, 0.5, (4, 3))
    lower = np.tril(generator.standard_normal((4, 3, 3))) + 3 * np.eye(3)
    step = EStep(False, np.zeros(4), means, lower, False, means, lower / 2)
    statistic = moment_statistic(Frame(np.zeros(3), np.full(3, 5.0)), step, Moments.FULL, Weights(0.5, 0.7, 1.0))
    sums = []
    for cut in (CHUNK, size):
        out = np.zeros(statistic.size, dtype=np.int64)
        for first in range(0, X.shape[1], cut):
            statistic.kernel(np.ascontiguousarray(X[:, first : first + cut]), np.ones(cut, dtype=np.bool_), out)
        sums.append(out)
    assert np.array_equal(sums[0], sums[1])
