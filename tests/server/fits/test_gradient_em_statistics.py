"""One row's contributions are what the models say, never more than the bounds allow, whatever bits a row has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from bursar_server.fits.gradient_em import _kernel
from bursar_server.fits.gradient_em._run import root_beta
from bursar_server.fits.gradient_em._statistics import (
    LATTICE,
    LOOK_LATTICE,
    Look,
    Shape,
    Transform,
    decode,
    gradient_bounds,
)
from bursar_server.fits.gradient_em._truncation import curve, limit, smoothed
from bursar_server.vault import CHUNK, ArrayRows, LocalEngine, Statistic, exact_sum
from tests.each import each
from tests.server.fits.gradient import by_radius, contribution, located, looked, regressed, regressed_with_missing
from tests.server.fits.running import Array

SIGNS = np.array([1.0, -1.0])
MEANS = np.array([[0.4, -0.2], [-0.5, 0.1], [0.0, 0.7]])
LINES = np.array([[0.1, 0.4, -0.3], [-0.2, 0.3, 0.5]])
MIRRORED = LINES[:1] * SIGNS[:, None]


def statistics_of(transform: Transform, scale: float) -> list[tuple[Statistic, int]]:
    """Every kernel with a transform, folded and not, of one component and of several; with its number of columns."""
    return [
        (located(MEANS, scale, transform), 2),
        (located(MEANS[:1] * SIGNS[:, None], scale, transform, signs=SIGNS), 2),
        (regressed(LINES, scale, transform), 3),
        (regressed(LINES[:1], scale, transform), 3),
        (regressed(MIRRORED, scale, transform, signs=SIGNS), 3),
        (regressed_with_missing(LINES[0], 0.2, scale, transform), 3),
        (regressed_with_missing(LINES[0], 0.2, scale, transform, clip=1.0, square=0.516), 3),
    ]


LOOKS = [looked(look, 3) for look in Look]
SCALES = (1e-300, 1e-6, 0.3, 1e6)
RADII = [(by_radius(statistic), d) for statistic, d in statistics_of(Transform.NORM, 0.3)]
EVERY = [pair for t in Transform for scale in SCALES for pair in statistics_of(t, scale)]
EVERY += [(s, 3) for s in LOOKS] + RADII
WILD = [0.0, -0.0, 5e-324, 1e-310, 1.0, -1.0, 1e6, 1e99, 1e101, 1e308, -1e308, math.inf, -math.inf, math.nan]
BITS = st.one_of(st.floats(allow_nan=True, allow_infinity=True, width=64), st.sampled_from(WILD), st.floats(-1, 1))


@settings(max_examples=150)
@given(st.tuples(BITS, BITS, BITS))
@example((1e308, -1e308, 1e308))
@example((math.nan, math.inf, 0.0))
def test_no_bits_of_a_row_contribute_more_than_the_bounds(row: tuple[float, float, float]) -> None:
    """Norms of one row's integers stay within the declared bounds for every kernel, transform and scale."""
    for statistic, columns in EVERY:
        v = [int(x) for x in contribution(statistic, np.array(row[:columns]))]
        assert sum(x * x for x in v) <= statistic.bounds.l2_squared
        assert sum(abs(x) for x in v) <= statistic.bounds.l1


@pytest.mark.slow
@settings(max_examples=150)
@given(st.tuples(BITS, BITS, BITS), st.tuples(BITS, BITS, BITS))
@example((1.0, 1.0, 1.0), (-1.0, -1.0, -1.0))
@example((1.0, 1.0, 1.0), (1.0, 1.0, -1.0))
def test_no_two_rows_are_farther_apart_than_the_bounds(one: Any, other: Any) -> None:
    """The same holds for a replaced row; a null row is at most a norm away."""
    for statistic, columns in EVERY:
        v, w = (contribution(statistic, np.array(row[:columns])) for row in (one, other))
        largest = max(statistic.bounds.l2_squared_distance, statistic.bounds.l2_squared)
        assert sum(int(x) ** 2 for x in v - w) <= largest
        assert sum(abs(int(x)) for x in v - w) <= statistic.bounds.l1_distance


@pytest.mark.parametrize("transform", Transform)
def test_bounds_are_reached(transform: Transform) -> None:
    """A gradient of a million times its scale uses the norm up, and opposite rows the distance: nothing is wasted."""
    statistic = located(np.zeros((1, 2)), 1e-6, transform)
    v, w = (contribution(statistic, np.array([x, x])) for x in (1.0, -1.0))
    assert np.sum(v**2) >= 0.999 * statistic.bounds.l2_squared
    shape = Shape(1, 2, transform)
    without_residual = gradient_bounds(shape).l2_squared_distance * 4 / (4 + 0.16)
    assert np.sum((v - w) ** 2) >= 0.95 * without_residual


@pytest.mark.parametrize("transform", Transform)
def test_replacing_a_row_of_one_block_moves_no_count(transform: Transform) -> None:
    """Opposite rows reach the L1 distance but for the residual, whose greatest difference needs a row at the middle."""
    statistic = located(np.zeros((1, 2)), 1e-6, transform)
    v, w, middle = (contribution(statistic, np.array([x, x])) for x in (1.0, -1.0, 0.0))
    distance, residual = statistic.bounds.l1_distance, 0.4 * _kernel.UNIT**2
    assert 0.999 * (distance - residual) <= np.sum(np.abs(v - w)) <= distance - 0.999 * residual
    assert np.abs(v - middle)[-1] >= 0.999 * residual
    assert distance < 0.8 * 2 * statistic.bounds.l1
    several = gradient_bounds(Shape(2, 2, transform))
    assert several.l1_distance == 2 * several.l1


@pytest.mark.parametrize("look", Look)
def test_distances_of_looks_are_the_largest_and_reached(look: Look) -> None:
    """Brute force over a grid of rows finds them, with features missing where they may be."""
    statistic = looked(look, 3)
    values = [-1.0, -0.5, 0.0, 0.5, 1.0]
    features = [*values, math.nan] if look is Look.MISSING else values
    rows = [contribution(statistic, np.array(row)) for row in itertools.product(features, features, values)]
    V = np.array(rows) / _kernel.LOOK_UNIT
    square = np.sum(V**2, axis=1)
    assert np.max(square) <= look.norm_squared
    largest = np.max(square[:, None] + square - 2 * V @ V.T)
    assert 0.99 * look.distance_squared <= largest <= look.distance_squared + 1e-6


def test_a_row_moves_from_one_cell_to_another() -> None:
    """A row counts once, in the cell of its residual, and a replaced one reaches the bounds."""
    statistic = by_radius(located(np.zeros((1, 2)), 0.3, Transform.NORM))
    v, w = (contribution(statistic, np.array([x, 0.0])) for x in (0.01, 1.0))
    assert (v / _kernel.UNIT).tolist() == [1, 0, 0, 0, 0]
    assert (w / _kernel.UNIT).tolist() == [0, 0, 0, 0, 1]
    assert np.sum((v - w) ** 2) == statistic.bounds.l2_squared_distance
    assert np.sum(np.abs(v - w)) == statistic.bounds.l1_distance


def test_counts_by_radius_are_those_of_plain_numpy() -> None:
    """A row's responsibilities count in the cells of its distances from the components."""
    X = np.random.default_rng(6).uniform(-1, 1, (500, 2))  # noqa: TID251 - rows of a test
    square = np.sum((X[:, None] - MEANS) ** 2, axis=2)
    gamma = np.exp(-2.0 * square)
    gamma /= gamma.sum(axis=1, keepdims=True)
    expected = np.histogram(square / 0.3**2, [0.0, 0.1, 0.5, 1.0, 3.0, np.inf], weights=gamma)[0]
    found = exact_sum(by_radius(located(MEANS, 0.3, Transform.NORM)), ArrayRows(np.ascontiguousarray(X.T)), 2)
    assert found / _kernel.UNIT == pytest.approx(expected, abs=len(X) * 2.0**-16)


def test_blocks_that_share_a_row_do_not_multiply_its_price() -> None:
    """Ten components cost what two do; ten coordinates cost more where they can saturate together."""
    two, ten = (gradient_bounds(Shape(k, 5, Transform.NORM)) for k in (2, 10))
    assert two == ten
    ball, box = (gradient_bounds(Shape(1, 10, t)) for t in (Transform.NORM, Transform.BOX))
    assert box.l2_squared_distance > 8 * ball.l2_squared_distance


def expectation(a: float, root_beta: float) -> float:
    """E phi(a (1 + eta)) by adaptive quadrature of the definition."""

    def phi(u: float) -> float:
        return u - u**3 / 6 if abs(u) <= math.sqrt(2) else math.copysign(_kernel.CATONI, u)

    kinks = [x for x in ((math.sqrt(2) / a - 1) * root_beta, (-math.sqrt(2) / a - 1) * root_beta) if abs(x) < 12]
    found = quad(lambda t: phi(a * (1 + t / root_beta)) * norm.pdf(t), -12, 12, points=kinks or None, limit=400)
    return float(found[0])


def boxed(a: float, root_beta: float) -> float:
    """Return what the kernel makes of one coordinate: of the limit, in lattice units."""
    v = np.full((1, _kernel.SLICE), a)
    _kernel._into_box(v, curve(root_beta))
    return float(v[0, 0])


ZETAS = ((1, 1 - 1e-6), (1, 0.5), (1, 0.05), (20, 0.05), (65, 1e-6))
"""Numbers of coordinates with zeta: the least smoothing's precision, the usual, and the largest."""


@each("a", [1e-12, 1e-7, 0.01, 0.1, 0.3, 1.0, 1.4, 2.0, 3.0, 10.0, 300.0, 1e4])
@each(("q", "zeta"), ZETAS)
def test_smoothed_truncation_is_the_expectation(a: float, q: int, zeta: float) -> None:
    """The quadrature is E phi(a (1 + eta)), and the kernel's polynomial to 1e-8 of the limit and a lattice unit."""
    root = root_beta(q, zeta)
    a *= min(root, 1.0)
    expected = expectation(a, root) / limit(root)
    assert smoothed(np.array([a]), root)[0] / limit(root) == pytest.approx(expected, abs=1e-12)
    for sign in (1, -1):
        assert abs(boxed(sign * a, root) - sign * expected * _kernel.UNIT) <= 1 + 1e-8 * _kernel.UNIT


@pytest.mark.parametrize(
    ("roots", "accuracy"), [(np.geomspace(1e-4, 2.07, 40), 1e-8), (np.linspace(2.1, 4, 10), 1e-6), ([5.3], 3e-6)]
)
def test_the_polynomial_is_as_accurate_as_it_says(roots: Array, accuracy: float) -> None:
    """It is over the whole line, for every precision of the smoothing that a request can ask for."""
    for root in roots:
        width, c = curve(float(root))
        a = math.sqrt(width) * np.geomspace(1e-3, 1e5, 2000)
        u = a / np.sqrt(a * a + width)
        found = u * np.polynomial.polynomial.polyval(2 * u * u - 1, c)
        assert np.max(np.abs(found - smoothed(a, float(root)) / limit(float(root)))) <= accuracy


@given(st.floats(allow_nan=True, allow_infinity=True, width=64), st.floats(1e-4, 5.3))
@example(1e6, 1.0)
@example(1e103, 1.0)
@example(math.inf, 1.7)
@example(-math.inf, 0.1)
@example(math.nan, 1.0)
def test_the_truncation_is_total_odd_and_bounded(a: float, root: float) -> None:
    """The kernel is right where the literal closed form cancels or returns 1e8 or NaN; NaN counts as zero."""
    value = boxed(a, root)
    assert abs(value) <= _kernel.UNIT
    assert boxed(-a, root) == -value
    if math.isnan(a):
        assert value == 0
    elif abs(a) >= 1e4:
        assert value * math.copysign(1, a) >= (1 - 1e-5) * _kernel.UNIT


def gradient_of(log_density: Callable[[Array], float], theta: Array) -> Array:
    """Central differences."""
    flat = theta.ravel()
    found = np.empty(flat.size)
    for j in range(flat.size):
        step = np.zeros(flat.size)
        step[j] = 1e-5
        up, down = ((flat + sign * step).reshape(theta.shape) for sign in (1, -1))
        found[j] = (log_density(up) - log_density(down)) / 2e-5
    return found.reshape(theta.shape)


def vectors(statistic: Statistic, shape: Shape, row: Array, scale: float) -> Array:
    """The vectors that a row contributes, in the data's units."""
    return decode(contribution(statistic, row) * LATTICE, shape).vectors * scale


LOOSE = 16.0
"""A scale beyond which no residual lies, so that nothing is clipped."""
CLOSE = 2e-3
"""Lattice units of that scale, and finite differences."""


@pytest.mark.parametrize("row", [[0.3, -0.4], [-0.9, 0.8], [0.0, 0.05]])
def test_gradients_of_mixtures_are_those_of_the_log_likelihood(row: list[float]) -> None:
    """Unclipped, a row's vectors are sigma^2 times the gradient of its log density, folded or not."""
    z, sigma = np.array(row), 0.5

    def density(means: Array) -> float:
        return float(np.log(np.sum(np.exp(-np.sum((z - means) ** 2, axis=1) / (2 * sigma**2)))))

    shape = Shape(3, 2, Transform.NORM)
    found = vectors(located(MEANS, LOOSE, Transform.NORM, precision=sigma**-2), shape, z, LOOSE)
    assert found == pytest.approx(sigma**2 * gradient_of(density, MEANS), abs=CLOSE)
    folded = located(MEANS[:1] * SIGNS[:, None], LOOSE, Transform.NORM, signs=SIGNS, precision=sigma**-2)
    found = vectors(folded, Shape(1, 2, Transform.NORM), z, LOOSE)
    expected = gradient_of(lambda b: density(b * SIGNS[:, None]), MEANS[:1])
    assert found == pytest.approx(sigma**2 * expected, abs=CLOSE)


@pytest.mark.parametrize("row", [[0.3, -0.4, 0.2], [-0.9, 0.8, -0.7], [0.0, 0.05, 1.0]])
def test_gradients_of_regressions_are_those_of_the_log_likelihood(row: list[float]) -> None:
    """The same holds for mixtures of regressions, folded or not."""
    w, y, sigma = np.array([1.0, *row[:2]]), row[2], 0.5

    def density(lines: Array) -> float:
        return float(np.log(np.sum(np.exp(-((y - lines @ w) ** 2) / (2 * sigma**2)))))

    found = vectors(
        regressed(LINES, LOOSE, Transform.NORM, precision=sigma**-2), Shape(2, 3, Transform.NORM), np.array(row), LOOSE
    )
    assert found == pytest.approx(sigma**2 * gradient_of(density, LINES), abs=CLOSE)
    folded = regressed(MIRRORED, LOOSE, Transform.NORM, signs=SIGNS, precision=sigma**-2)
    found = vectors(folded, Shape(1, 3, Transform.NORM), np.array(row), LOOSE)
    expected = gradient_of(lambda b: density(b * SIGNS[:, None]), MIRRORED[:1])
    assert found == pytest.approx(sigma**2 * expected, abs=CLOSE)


@pytest.mark.parametrize("there", [(True, True), (True, False), (False, False)])
def test_gradient_with_missing_features_is_that_of_the_log_likelihood(there: tuple[bool, bool]) -> None:
    """Unclipped, it is sigma^2 times the gradient of the target's density given the features that are there."""
    y, sigma, x = 0.6, 0.4, np.array([0.5, -0.7])
    mask = np.array(there)

    def density(b: Array) -> float:
        variance = sigma**2 + np.sum(b[1:][~mask] ** 2)
        return float(-0.5 * np.log(variance) - (y - b[0] - b[1:][mask] @ x[mask]) ** 2 / (2 * variance))

    row = np.append(np.where(mask, x, np.nan), y)
    statistic = regressed_with_missing(LINES[0], sigma, LOOSE, Transform.NORM)
    found = vectors(statistic, Shape(1, 3, Transform.NORM), row, LOOSE)[0]
    assert found == pytest.approx(sigma**2 * gradient_of(density, LINES[0]), abs=CLOSE)


def test_the_gradient_with_missing_features_is_the_papers() -> None:
    """It is y m - K b with the conditional mean m and second moment K of appendix C, written out."""
    y, sigma, b = 0.6, 0.4, LINES[0]
    w = np.array([1.0, 0.5, 0.0])
    missing = np.array([0.0, 0.0, 1.0])
    hidden = missing * b
    variance = sigma**2 + hidden @ hidden
    m = w + (y - b @ w) / variance * hidden
    K = np.outer(m, m) + np.diag(missing) - np.outer(hidden, hidden) / variance
    statistic = regressed_with_missing(b, sigma, LOOSE, Transform.NORM)
    found = vectors(statistic, Shape(1, 3, Transform.NORM), np.array([0.5, np.nan, y]), LOOSE)[0]
    assert found == pytest.approx(y * m - K @ b, abs=CLOSE)


def reference(means: Array, rows: Array, scale: float, transform: Transform, precision: float) -> Array:
    """Counts, vectors and residuals of a mixture in plain numpy, in rows."""
    square = np.sum((rows[:, None] - means) ** 2, axis=2)
    gamma = np.exp(-precision / 2 * (square - square.min(axis=1, keepdims=True)))
    gamma /= gamma.sum(axis=1, keepdims=True)
    v = (rows[:, None] - means) / scale
    length = np.linalg.norm(v, axis=2, keepdims=True)
    if transform is Transform.NORM:
        v = v / np.maximum(length, 1.0)
    elif transform is Transform.RADIAL:
        u = np.minimum(length, math.sqrt(2))
        v = v * (u - u**3 / 6) / _kernel.CATONI / length
    else:
        v = np.sign(v) * smoothed(np.abs(v), 1.3) / limit(1.3)
    counts = gamma.sum(axis=0)
    return np.concatenate(
        [
            0.5 * counts,
            np.einsum("rk,rki->ki", gamma, v).ravel(),
            0.4 * np.sum(gamma * np.minimum(square / scale**2, 1), 0),
        ]
    )


@pytest.mark.parametrize("transform", Transform)
def test_sums_are_those_of_plain_numpy_and_do_not_depend_on_blocks(transform: Transform) -> None:
    """They agree to a lattice unit a row; exactly in any order of rows and for any number of threads."""
    generator = np.random.default_rng(5)  # noqa: TID251 - rows of a test
    X = generator.uniform(-1, 1, (CHUNK + 100, 2))
    statistic = located(MEANS, 0.3, transform)
    found = exact_sum(statistic, ArrayRows(np.ascontiguousarray(X.T)), 2)
    expected = reference(MEANS, X, 0.3, transform, 4.0)
    assert found * LATTICE == pytest.approx(expected, abs=len(X) * 2.0**-16)
    mixed = ArrayRows(np.ascontiguousarray(X[generator.permutation(len(X))].T))
    assert np.array_equal(exact_sum(statistic, mixed, 2, engine=LocalEngine(2)), found)


def test_looks_are_moments() -> None:
    """Means and squares of points; second moments with the constant; moments of what is there."""
    X = np.array([[0.5, -0.25, 0.1], [0.25, 1.0, -0.5]])
    location, regression = (exact_sum(s, ArrayRows(np.ascontiguousarray(X.T)), 3) * LOOK_LATTICE for s in LOOKS[:2])
    assert location == pytest.approx([2.0, *X.sum(0) / math.sqrt(3), np.sum(X**2) / 3], abs=1e-6)
    w = np.column_stack([np.ones(2), X])
    moments = (w.T @ w) / 4 * np.where(np.eye(4), 1.0, math.sqrt(2))
    assert regression == pytest.approx(moments[np.tril_indices(4)], abs=1e-6)
    holed = X.copy()
    holed[0, 1] = np.nan
    found = exact_sum(LOOKS[2], ArrayRows(np.ascontiguousarray(holed.T)), 3) * LOOK_LATTICE
    features, y = holed[:, :2], holed[:, 2]
    expected = [2.0, y.sum(), (y**2).sum()]
    for part in (np.isfinite(features).sum(0), np.nansum(features, 0), np.nansum(features**2, 0)):
        expected.extend(part / math.sqrt(2))
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("statistic", [located(MEANS, 0.3, Transform.NORM), LOOKS[0]])
def test_a_row_that_is_absent_or_lacks_a_number_contributes_nothing(statistic: Statistic) -> None:
    """Null rows count nowhere, and neither does a row with a number missing in a column that is not nullable."""
    columns = 3 if statistic is LOOKS[0] else 2
    row = np.full((columns, 1), 0.5)
    absent = ArrayRows(row, np.array([False]))
    assert not np.any(exact_sum(statistic, absent, columns))
    for bad in (np.nan, np.inf, 1e200):
        holed = row[:, 0].copy()
        holed[0] = bad
        assert not np.any(contribution(statistic, holed))


def test_values_beyond_the_bounds_count_as_the_bound() -> None:
    """Rows are clipped to the box before anything else."""
    statistic = located(MEANS, 10.0, Transform.NORM)
    assert np.array_equal(
        contribution(statistic, np.array([1e50, -3.0])), contribution(statistic, np.array([1.0, -1.0]))
    )
