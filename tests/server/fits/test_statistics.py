"""The declared bounds are reached and never passed; sums do not depend on how rows are cut into blocks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from bursar_server.fits.mixtures import kernel
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_bounds, moment_statistic
from bursar_server.vault import CHUNK
from tests.each import each

KINDS = [Moments.SPHERICAL, Moments.DIAG, Moments.FULL, Moments.TIED]
REACHED = {Moments.FULL: 0.99, Moments.TIED: 0.95, Moments.SPHERICAL: 0.85, Moments.DIAG: 0.7}
WEIGHTS = [(1.0, 1.0, 1.0), (0.3, 0.5, 1.0), (1.0, 1.0, 0.3), (0.6, 0.6, 1.0), (0.1, 1.0, 1.0), (1.0, 0.1, 1.0)]


def features(u: list[float], moments: Moments, w: tuple[float, float, float]) -> list[float]:
    """(a, b u, c s(u)) from the definition, in plain Python: a search asks for it a million times."""
    squares = [x * x for x in u]
    if moments is Moments.SPHERICAL:
        second = [sum(squares)]
    elif moments is Moments.DIAG:
        second = squares
    else:
        second = squares + [math.sqrt(2) * x * y for x, y in itertools.combinations(u, 2)]
    return [w[0], *(w[1] * x for x in u), *(w[2] * x for x in second)]


def into_ball(u: list[float]) -> list[float]:
    """Clip to the unit ball."""
    norm = max(1.0, math.hypot(*u))
    return [x / norm for x in u]


def largest_distance(
    K: int, d: int, moments: Moments, w: tuple[float, float, float], *, background: bool = False
) -> float:
    """Squared distance of two rows' vectors, maximised over positions and responsibilities, if there are several."""

    def vector(x: list[float]) -> list[float]:
        *shares, rest = [1.0, 0.0] if K == 1 else [math.sin(x[-1]) ** 2, math.cos(x[-1]) ** 2, 0.0]
        if background:
            rest = math.sin(x[-2]) ** 2
            shares = [(1.0 - rest) * share for share in shares]
        blocks = [
            [g * value for value in features(into_ball(x[k * d : (k + 1) * d]), moments, w)]
            for k, g in enumerate(shares)
        ]
        if moments is Moments.TIED:
            firsts = [value for block in blocks for value in block[: 1 + d]]
            seconds = [sum(values) for values in zip(*(block[1 + d :] for block in blocks), strict=True)]
            return [*firsts, *seconds, w[0] * rest]
        return [*(value for block in blocks for value in block), w[0] * rest]

    def closeness(x: Any) -> float:
        numbers = x.tolist()
        return -(math.dist(vector(numbers[:n]), vector(numbers[n:])) ** 2)

    n = K * d + 2
    generator = np.random.default_rng(0)  # noqa: TID251 - starts of a search
    best = 0.0
    for _ in range(4):
        found = minimize(closeness, 1.5 * generator.standard_normal(2 * n), method="Powell")
        best = max(best, -float(found.fun))
    return best


@pytest.mark.slow
@each("w", WEIGHTS, ids=str)
@each("moments", KINDS)
@each("K", [1, 2])
def test_distance_is_bounded_and_the_bound_is_reached(K: int, moments: Moments, w: tuple[float, float, float]) -> None:
    """No pair of rows is further apart than declared; and the search comes close."""
    d = 2
    declared = moment_bounds(K, d, moments, Weights(*w)).l2_squared_distance / 2.0**72
    found = largest_distance(K, d, moments, w)
    assert found <= declared
    assert found >= REACHED[moments] * declared


@pytest.mark.slow
@each("w", [*WEIGHTS, (1.0, 0.1, 0.1)], ids=str)
@each("moments", KINDS)
@each("K", [1, 2])
def test_distance_with_a_background_is_bounded(K: int, moments: Moments, w: tuple[float, float, float]) -> None:
    """No pair of rows is further apart than declared, one of the background and one of a component included."""
    declared = moment_bounds(K, 2, moments, Weights(*w), background=True).l2_squared_distance / 2.0**72
    found = largest_distance(K, 2, moments, w, background=True)
    assert found <= declared
    assert found >= REACHED[moments] * declared


@pytest.mark.parametrize("moments", KINDS)
def test_a_background_is_no_free_count(moments: Moments) -> None:
    """One component with precise counts: rows that go to the background are further apart than rows that stay."""
    weights = Weights(1.0, 0.1, 0.1)
    alone, both = (moment_bounds(1, 2, moments, weights, background=b).l2_squared_distance for b in (False, True))
    assert alone < 0.1 * both
    assert both >= (2 * 1.0**2 + 0.1**2 + 0.1**2) * 2.0**72


def test_published_distances() -> None:
    """Squared distances of plain cases: 6 for equal weights, 4.5 for one component without counts."""
    for K, w, expected in ((2, (1.0, 1.0, 1.0), 6.0), (1, (1e-9, 1.0, 1.0), 4.5), (2, (0.15, 0.5, 1.0), 10.18 / 4)):
        declared = moment_bounds(K, 3, Moments.FULL, Weights(*w)).l2_squared_distance / 2.0**72
        assert declared == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("moments", KINDS)
@pytest.mark.parametrize("size", [256, 1024, CHUNK, 2 * CHUNK])
def test_sums_are_equal_for_every_size_of_block(size: int, moments: Moments) -> None:
    """The kernel's integers do not depend on how rows are cut."""
    diagonal = moments in (Moments.SPHERICAL, Moments.DIAG)
    generator = np.random.default_rng(1)  # noqa: TID251 - rows of a test
    X = 2 * generator.standard_normal((3, 4 * CHUNK))
    means = generator.uniform(-0.5, 0.5, (4, 3))
    lower = np.tril(generator.standard_normal((4, 3, 3)), -1) * (not diagonal) + 3 * np.eye(3)
    step = EStep(False, np.zeros(4), means, lower, diagonal, means, lower / 2)
    statistic = moment_statistic(BallFrame(np.zeros(3), np.full(3, 5.0)), step, moments, Weights(0.5, 0.7, 1.0))
    sums = []
    for cut in (CHUNK, size):
        out = np.zeros(statistic.size, dtype=np.int64)
        for first in range(0, X.shape[1], cut):
            statistic.kernel(np.ascontiguousarray(X[:, first : first + cut]), np.ones(cut, dtype=np.bool_), out)
        sums.append(out)
    assert np.array_equal(sums[0], sums[1])


@pytest.mark.parametrize("moments", [Moments.SPHERICAL, Moments.DIAG])
def test_a_row_outside_of_the_ball_contributes_nothing(moments: Moments) -> None:
    """Should arithmetic ever leave one there: here squared norms are understated for some rows, and theirs alone."""
    d, n, unit = 5, 64, kernel.UNIT
    generator = np.random.default_rng(2)  # noqa: TID251 - rows of a test
    z = generator.standard_normal((d, n))
    squares = np.sum(z * z, axis=0)
    wrong = np.arange(n) % 7 == 3
    squares[wrong] = 1e-6
    gamma = np.trunc(generator.uniform(0.1, 0.9, n) * unit)
    found = np.zeros(1 + d), np.zeros(moments.size(d))
    clip, scratch = (squares.copy(), 1.0, gamma.copy()), (np.empty((3, n)), np.empty((2, d)))
    kernel._add_lines(z, np.ones(d), np.zeros(d), clip, int(moments), np.ones(3), *scratch, *found)

    assert np.array_equal(clip[2], np.where(wrong, 0.0, gamma))
    right, gamma = z[:, ~wrong], gamma[~wrong]
    w = np.trunc(right * (unit * (1.0 - 2.0**-30) / np.maximum(np.sqrt(squares[~wrong]), 1.0)))
    seconds = np.sum(np.trunc(w * np.sqrt(gamma / unit)) ** 2, axis=1)
    if moments is Moments.SPHERICAL:
        seconds = np.sum(gamma * np.trunc(np.sum(w * w, axis=0) / unit), keepdims=True)
    assert np.array_equal(found[0], [unit * gamma.sum(), *(w @ gamma)])
    assert np.array_equal(found[1], seconds)
