"""FitGradientEM as a whole: it finds what is there, in the data's units, and neither rows nor noise can break it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, PublicTable
from bursar_server.fits.gradient_em._information import hidden_of_lines, hidden_of_means
from bursar_server.fits.gradient_em._missing_covariates import _alike
from bursar_server.fits.gradient_em._models import believed_rows
from bursar_server.fits.gradient_em._normal import (
    Kind,
    _value_and_slope,
    best_radius,
    location_gain,
    response,
    unclip,
)
from bursar_server.fits.gradient_em._regression import _features, cautious, near_middle
from bursar_server.fits.gradient_em._run import _Track, averaged_noise, settled
from bursar_server.fits.gradient_em._statistics import Transform
from bursar_server.vault import ArrayRows, Release, exact_sum
from tests.server.fits.gradient import MISSING, MIXTURE, REGRESSIONS, SYMMETRIC, plan, run, table
from tests.server.fits.running import Array, NoNoise, array

SPEND = types_pb2.Spend
QUIET = SPEND(rho=50.0)
VARIANTS = [value for value in fit_pb2.GradientVariant.values() if value]
TARGET = {"target": "y"}


def drawn(seed: int) -> np.random.Generator:  # noqa: TID251 - rows of a test
    """Rows of a test."""
    return np.random.default_rng(seed)  # noqa: TID251 - rows of a test


def nearest(found: Array, truth: Array) -> float:
    """Largest distance of a component to its counterpart, in the best order."""
    orders = itertools.permutations(range(len(truth)))
    return min(float(np.linalg.norm(found[list(order)] - truth, axis=1).max()) for order in orders)


def mirrored(n: int, seed: int, b: Array, middle: Any = 0.0) -> Array:
    """A symmetric mixture of unit noise."""
    generator = drawn(seed)
    return np.asarray(middle + generator.choice([-1, 1], n)[:, None] * b + generator.standard_normal((n, len(b))))


def lines(n: int, seed: int, slopes: Array, intercepts: Array, shift: float = 0.0) -> Array:
    """A mixture of regressions of equal weights and unit noise; features, then the target."""
    generator = drawn(seed)
    x = shift + generator.standard_normal((n, slopes.shape[1]))
    z = generator.integers(0, len(slopes), n)
    return np.column_stack([x, np.sum(x * slopes[z], axis=1) + intercepts[z] + generator.standard_normal(n)])


B = np.array([2.0, -1.5, 1.0])
SLOPES = np.array([[2.0, -1.0], [-1.0, 2.0]])
INTERCEPTS = np.array([1.0, -2.0])


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("variant", VARIANTS)
def test_symmetric_mixture_is_found(adjacency: Adjacency, variant: Any) -> None:
    """Every variant from a random start, noise level and rows estimated. Truncation is biased by a share of 1 / s^2."""
    X = mirrored(20_000, 1, B)
    scale = {"scale": 4.0} if variant == fit_pb2.GRADIENT_VARIANT_TRUNCATED else {}
    model = run(plan(table(3, adjacency=adjacency), variant=variant, spend=QUIET, **scale), X, adjacency=adjacency)
    assert nearest(array(model.coefficients), np.array([B, -B])) < 0.06
    assert array(model.noise_std) == pytest.approx(np.ones((2, 3)), abs=0.03)
    assert model.n_rows == pytest.approx(20_000, rel=0.01)
    assert array(model.weights) == pytest.approx([0.5, 0.5])


def test_centre_and_units_are_the_datas() -> None:
    """Columns with other bounds, a middle that is not theirs: means come back in the data's own units."""
    columns = (BoundedColumn("x", -10, 20), BoundedColumn("y", 100, 130))
    public = PublicTable("people", columns, Adjacency.REPLACE_ONE, 1, 20_000)
    middle = np.array([2.0, 118.0])
    X = mirrored(20_000, 2, B[:2], middle)
    model = run(plan(public, centre=types_pb2.Tensor(shape=[2], values=middle), spend=QUIET), X)
    assert nearest(array(model.coefficients), middle + np.array([B[:2], -B[:2]])) < 0.06


def test_gaussian_mixture_is_found() -> None:
    """Weights, means and a standard deviation for each component, from a given start in its order."""
    truth = np.array([[4.0, 3.0], [-5.0, 1.0], [0.0, -6.0]])
    generator = drawn(3)
    z = generator.choice(3, 20_000, p=[0.5, 0.3, 0.2])
    sigma = np.array([1.0, 0.6, 1.5])
    X = truth[z] + sigma[z][:, None] * generator.standard_normal((20_000, 2))
    given_start = fit_pb2.GradientStart(coefficients=types_pb2.Tensor(shape=[3, 2], values=(truth + 0.8).ravel()))
    model = run(plan(table(2, bound=12.0), model=MIXTURE, n_components=3, given=given_start, spend=QUIET), X)
    assert array(model.coefficients) == pytest.approx(truth, abs=0.08)
    assert array(model.weights) == pytest.approx([0.5, 0.3, 0.2], abs=0.02)
    assert array(model.noise_std) == pytest.approx(np.repeat(sigma[:, None], 2, axis=1), rel=0.05)
    assert array(model.iterates)[0] == pytest.approx(truth + 0.8)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("pure", [False, True])
def test_a_private_start_separates_two_pairs(adjacency: Adjacency, pure: bool) -> None:
    """Components in two pairs, which EM from random means takes for others by luck: each time, with all parameters."""
    truth = np.array([[-16.0, -4.0], [-9.0, 4.0], [9.0, -4.0], [16.0, 4.0]])
    X = np.repeat(truth, 1000, axis=0) + drawn(31).standard_normal((4000, 2))
    spend = SPEND(epsilon=40.0) if pure else SPEND(rho=1.0)
    public = table(2, bound=20.0, adjacency=adjacency, rows=4000)
    model = run(plan(public, model=MIXTURE, n_components=4, spend=spend), X, adjacency=adjacency)
    assert nearest(array(model.coefficients), truth) < 0.3
    assert array(model.weights) == pytest.approx(np.full(4, 0.25), abs=0.02)
    assert array(model.noise_std) == pytest.approx(np.ones((4, 2)), abs=0.25)


def test_regressions_start_about_the_one_of_all_rows() -> None:
    """Slopes that components have in common are in the look already; b and -b have none."""
    X = lines(20_000, 4, SLOPES + 4.0, INTERCEPTS)
    view = plan(table(2, bound=8.0, target=40.0), model=REGRESSIONS, spend=QUIET, **TARGET)
    model = run(view, X)
    begun = array(model.iterates)[0][:, :2]
    assert np.linalg.norm(begun - (SLOPES + 4.0).mean(axis=0), axis=1).max() < 2.5
    alone = run(plan(table(2, target=40.0), model=REGRESSIONS, n_components=1, spend=QUIET, **TARGET), X)
    assert array(alone.iterates)[0][0, :2] == pytest.approx((SLOPES + 4.0).mean(axis=0), abs=0.3)
    mirrored_lines = plan(table(2, target=40.0), model=REGRESSIONS, symmetric=True, spend=QUIET, **TARGET)
    size = np.linalg.norm(array(run(mirrored_lines, X).iterates)[0][0]) / np.std(X[:, 2])
    assert 0.1 < size < 0.8, "b and -b start apart"


@pytest.mark.parametrize("variant", [0, fit_pb2.GRADIENT_VARIANT_RADIAL])
def test_mixture_of_regressions_is_found(variant: Any) -> None:
    """Slopes and intercepts in the data's units, features far from the middle of their bounds, from a random start."""
    X = lines(20_000, 4, SLOPES, INTERCEPTS, shift=2.0)
    public = table(2, bound=8.0, target=20.0)
    model = run(plan(public, model=REGRESSIONS, variant=variant, spend=QUIET, **TARGET), X)
    found = np.column_stack([array(model.coefficients), array(model.intercepts)])
    assert nearest(found, np.column_stack([SLOPES, INTERCEPTS])) < 0.2
    assert array(model.noise_std) == pytest.approx(np.ones(2), abs=0.05)
    assert list(model.columns) == ["x0", "x1"]
    assert model.target == "y"
    assert array(model.iterates).shape == (33, 2, 3)


def test_symmetric_regressions_are_found() -> None:
    """The paper's mixed regressions: b and -b through the data's own zero."""
    X = lines(20_000, 5, np.array([B, -B]), np.zeros(2))
    model = run(plan(table(3, bound=4.0, target=15.0), model=REGRESSIONS, symmetric=True, spend=QUIET, **TARGET), X)
    assert nearest(array(model.coefficients), np.array([B, -B])) < 0.08
    assert array(model.intercepts) == pytest.approx(np.zeros(2))


@pytest.mark.parametrize("without_intercept", [False, True])
def test_one_regression_is_least_squares(without_intercept: bool) -> None:
    """One component and correlated features of different spread give ordinary regression."""
    generator = drawn(6)
    x = generator.standard_normal((20_000, 2)) @ np.array([[1.0, 0.8], [0.0, 0.3]]) + [1.0, 0.0]
    y = x @ [2.0, -1.0] + (0.0 if without_intercept else 3.0) + generator.standard_normal(20_000)
    fields = {"model": REGRESSIONS, "n_components": 1, "without_intercept": without_intercept, "spend": QUIET}
    model = run(plan(table(2, target=20.0), **fields, **TARGET), np.column_stack([x, y]))
    assert array(model.coefficients)[0] == pytest.approx([2.0, -1.0], abs=0.1)
    assert array(model.intercepts) == pytest.approx([0.0 if without_intercept else 3.0], abs=0.1)
    assert array(model.feature_means) == pytest.approx([1.0, 0.0], abs=0.05)
    assert array(model.feature_covariance) == pytest.approx(np.array([[1.0, 0.8], [0.8, 0.73]]), abs=0.03)


def test_collinear_features_predict_as_well_as_one() -> None:
    """A feature and its copy, and one that hardly moves: what they say together is right, and nothing is large."""
    generator = drawn(10)
    x = generator.standard_normal(20_000)
    y = 3.0 * x + generator.standard_normal(20_000)
    X = np.column_stack([x, x, np.full(20_000, 0.5), y])
    model = run(plan(table(3, target=20.0), model=REGRESSIONS, n_components=1, spend=QUIET, **TARGET), X)
    slopes, intercept = array(model.coefficients)[0], array(model.intercepts)[0]
    assert slopes[:2].sum() == pytest.approx(3.0, abs=0.1)
    assert np.abs(slopes).max() < 20
    assert intercept + 0.5 * slopes[2] == pytest.approx(0.0, abs=0.1)


def test_steps_start_at_no_slope_that_is_noise() -> None:
    """Two features are nearly one: what tells them apart is below the look's noise, and first slopes have none of it.

    The line's larger part stays, and the covariance that is released is as narrow as noise has left it.
    """
    covariance, noise = np.array([[1.0, 0.999], [0.999, 1.0]]) / 9.0, 0.003
    narrow = np.array([1.0, -1.0]) / 2.0**0.5
    for seed in range(20):
        released = covariance + noise * np.diag(drawn(seed).standard_normal(2))
        found = _features(released, noise)
        line = found.whitener @ found.line(released @ np.ones(2) + 1.5 * noise * narrow, noise)
        assert abs(line @ narrow) < 0.05, "a covariance of one and a half deviations begins no slope"
        assert line.sum() == pytest.approx(2.0, rel=0.1)
        assert np.linalg.eigvalsh(found.covariance)[0] <= max(np.linalg.eigvalsh(released)[0], 0.0) + 0.2 * noise


def test_regression_with_missing_features_is_found() -> None:
    """A third of the numbers missing at random, features with means and spreads of their own."""
    generator = drawn(7)
    x = np.array([1.0, 0.0, -2.0]) + np.array([1.0, 0.5, 2.0]) * generator.standard_normal((30_000, 3))
    y = x @ B + 2.0 + generator.standard_normal(30_000)
    x[generator.random(x.shape) < 0.33] = np.nan
    model = run(
        plan(table(3, bound=9.0, target=20.0, nullable=3), model=MISSING, spend=QUIET, **TARGET),
        np.column_stack([x, y]),
    )
    assert array(model.coefficients)[0] == pytest.approx(B, abs=0.2)
    assert array(model.intercepts) == pytest.approx([2.0], abs=0.3)
    assert array(model.feature_means) == pytest.approx([1.0, 0.0, -2.0], abs=0.05)
    assert array(model.feature_std) == pytest.approx([1.0, 0.5, 2.0], rel=0.05)


def test_rows_that_miss_a_strong_feature_do_not_make_steps_too_long() -> None:
    """Half of them miss what explains nearly all, so variances of rows differ by a factor of 25."""
    generator = drawn(17)
    x = generator.standard_normal((20_000, 2))
    y = x @ [5.0, -1.0] + generator.standard_normal(20_000)
    x[generator.random(20_000) < 0.5, 0] = np.nan
    public = table(2, bound=5.0, target=30.0, nullable=2)
    model = run(plan(public, model=MISSING, spend=QUIET, **TARGET), np.column_stack([x, y]))
    assert array(model.coefficients)[0] == pytest.approx([5.0, -1.0], abs=0.2)


def test_the_factor_two_of_the_posterior_matters() -> None:
    """A step from the truth, 1.5 standard deviations, stays there; with the paper's weights it goes to 1.328."""
    X = mirrored(50_000, 8, np.array([1.5]))
    found = []
    for paper in (False, True):
        fields = {"iterations": 1, "noise_std": 1.0, "variant": fit_pb2.GRADIENT_VARIANT_CLIPPED, "scale": 1.0}
        start = fit_pb2.GradientStart(coefficients=types_pb2.Tensor(shape=[1, 1], values=[1.5]))
        made = plan(table(1), given=start, spend=QUIET, paper_weights=paper, **fields)
        found.append(array(run(made, X).coefficients)[0, 0])
    assert found == pytest.approx([1.5, 1.328], abs=0.02)


@pytest.mark.parametrize("model", [SYMMETRIC, MIXTURE, REGRESSIONS, MISSING])
def test_without_noise_one_row_more_changes_nothing_but_itself(model: Any) -> None:
    """The same rows in another order give the same bits; nothing depends on neighbours."""
    X = np.clip(lines(3000, 9, SLOPES, INTERCEPTS), -7, 7)
    public = table(2, target=8.0, nullable=1 if model == MISSING else 0)
    fields = TARGET if model in (REGRESSIONS, MISSING) else {}
    made = plan(public, model=model, **fields)
    assert run(made, X, source=NoNoise()) == run(made, X[::-1], source=NoNoise())


BITS = st.floats(allow_nan=True, allow_infinity=True, width=64)
MODELS: list[dict[str, Any]] = [
    {"model": SYMMETRIC},
    {"model": SYMMETRIC, "noise_std": 1.0, "step_size": 0.3, "paper_weights": True},
    {"model": MIXTURE, "n_components": 4, "random": fit_pb2.StartAtRandom(public_seed=7)},
    {"model": REGRESSIONS, **TARGET},
    {"model": REGRESSIONS, "symmetric": True, **TARGET},
    {"model": REGRESSIONS, "n_components": 1, "without_intercept": True, **TARGET},
    {"model": MISSING, **TARGET},
    {"model": MIXTURE},
]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(BITS, BITS, BITS), min_size=0, max_size=8),
    st.sampled_from(MODELS),
    st.sampled_from([0, *VARIANTS]),
    st.sampled_from(Adjacency),
    st.floats(-3, 3),
    st.booleans(),
)
def test_no_rows_and_no_noise_can_make_it_fail(
    rows: list[tuple[float, float, float]],
    fields: dict[str, Any],
    variant: Any,
    adjacency: Adjacency,
    magnitude: float,
    pure: bool,
) -> None:
    """Any bits, any spend that buys noise on the lattice: all steps and releases as planned, finite numbers."""
    if variant == fit_pb2.GRADIENT_VARIANT_DP_EM and (TARGET.items() <= fields.items() or "step_size" in fields):
        variant = fit_pb2.GRADIENT_VARIANT_TRUNCATED
    taps: list[Release] = []
    steps: list[tuple[int, int]] = []
    spend = SPEND(epsilon=10.0**magnitude) if pure else SPEND(rho=10.0**magnitude)
    public = table(2, target=3.0, nullable=fields["model"] == MISSING, adjacency=adjacency)
    made = plan(public, **fields, variant=variant, spend=spend, iterations=5)
    model = run(made, np.array(rows, dtype=np.float64).reshape(-1, 3), adjacency=adjacency, taps=taps, steps=steps)
    assert tuple(tap.event for tap in taps) == made.events
    assert steps == [(i + 1, made.iterations) for i in range(made.iterations)]
    for name in ("coefficients", "intercepts", "noise_std", "coefficient_errors", "iterates", "scales", "weights"):
        assert np.all(np.isfinite(getattr(model, name).values)), name
    assert np.all(array(model.noise_std) > 0)
    assert np.all(np.isfinite(array(model.radii.counts)))
    assert np.all(array(model.weights) > 0)
    assert array(model.weights).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("fields", MODELS, ids=str)
@pytest.mark.parametrize("given_start", [False, True])
def test_bounds_of_any_size_end_in_finite_numbers(fields: dict[str, Any], given_start: bool) -> None:
    """Columns as wide as 1e100 beside columns as narrow as 1e-100, far from the middle of their bounds."""
    columns = (BoundedColumn("x0", 1e90, 1e100), BoundedColumn("x1", -1e-100, 2e-100), BoundedColumn("y", 5.0, 5.1))
    public = PublicTable("people", columns, Adjacency.REPLACE_ONE, 1, 100)
    fields = {name: value for name, value in fields.items() if name not in ("noise_std", "random")}
    if given_start:
        shape = [
            fields.get("n_components", 2) if fields["model"] == MIXTURE else 2 if fields == MODELS[3] else 1,
            2 if "target" in fields else 3,
        ]
        fields["given"] = fit_pb2.GradientStart(
            coefficients=types_pb2.Tensor(shape=shape, values=[1e-100] * (shape[0] * shape[1]))
        )
    units = {} if "target" in fields else {"units": fit_pb2.COLUMN_UNITS_BOUNDS}
    X = np.array([[1e95, 1e-100, 5.0], [1e100, 0.0, 5.1], [1e90, -1e-100, 5.05]])
    model = run(plan(public, **fields, **units, iterations=3), X)
    for name in ("coefficients", "intercepts", "noise_std", "coefficient_errors", "intercept_errors", "iterates"):
        assert np.all(np.isfinite(getattr(model, name).values)), name


def test_noise_is_what_is_claimed() -> None:
    """Residuals of releases about exact sums have the claimed variance: chi-squared over 50 fits, alpha below 1e-6."""
    X = mirrored(40, 1, B)
    made = plan(table(3), iterations=3)
    squares, count = 0.0, 0
    for _ in range(50):
        taps: list[Release] = []
        run(made, X, taps=taps)
        for tap in taps:
            exact = exact_sum(tap.statistic, ArrayRows(np.ascontiguousarray(X.T)), 3)
            squares += float(np.sum(((tap.noisy - exact) / tap.noise.scale) ** 2))
            count += exact.size
    assert abs(squares - count) < 5.5 * np.sqrt(2 * count)


def test_error_bars_hold() -> None:
    """The mean square of errors over their claimed standard errors is about 1, with noise large and small."""
    ratios = []
    for seed in range(12):
        rho = (0.02, 1.0)[seed % 2]
        model = run(plan(table(3), spend=SPEND(rho=rho)), mirrored(4000, 100 + seed, B))
        found = array(model.coefficients)[0]
        off = found - B * np.sign(found @ B)
        ratios.extend((off / array(model.coefficient_errors)[0]) ** 2)
    assert 0.2 < float(np.mean(ratios)) < 3.0


@pytest.mark.parametrize(("known", "step", "m"), [(1.0, 1.0, 30), (0.4, 1.0, 40), (0.8, 0.3, 60), (1.0, 1.0, 1)])
def test_averaged_noise_of_a_known_recursion(known: float, step: float, m: int) -> None:
    """The variance of the mean of m is as claimed, or a bit less, for x <- (1 - step known) x + step noise, settled."""
    generator = drawn(1)
    x, trail = np.zeros(20_000), []
    for t in range(60 + m):
        x = (1 - step * known) * x + step * generator.standard_normal(len(x))
        if t >= 60:
            trail.append(x)
    claimed = averaged_noise(np.ones((1, 1)), np.full((1, 1), known), step, m)
    assert float(claimed[0, 0]) == pytest.approx(np.var(np.mean(trail, axis=0)), rel=0.1)


def test_settled_steps_are_those_that_noise_explains() -> None:
    """Targets that come in from far do not count, those that only differ by noise do, whatever its size."""
    generator = drawn(2)
    std = np.geomspace(1.0, 0.1, 30)[:, None, None]
    targets, noises = std * generator.standard_normal((30, 2, 10)), np.broadcast_to(std**2, (30, 2, 10))
    assert settled(targets, noises, 5, 5, 1e6) == 30
    targets[:12] += 8.0 * std[:12]
    assert settled(targets, noises, 5, 5, 1e6) == 18
    assert settled(targets, 1e-6 * noises, 5, 5, 1e6) == 5


def test_steps_whose_noise_would_hide_a_start_count_only_as_far_as_asked() -> None:
    """Noise as large as all that is unknown explains every target; the last ones are the best."""
    targets, noises = drawn(3).standard_normal((30, 1, 10)), np.ones((30, 1, 10))
    assert settled(targets, noises, 5, 15, 1.0) == 15
    assert settled(targets, noises, 5, 15, 1e3) == 30
    assert settled(targets, noises, 5, 30, 1.0) == 30


def test_what_is_unknown_is_read_where_noise_is_least() -> None:
    """Noise that differs a thousandfold between parameters is no surprise; a move that it does not explain is one."""
    generator, noise = drawn(4), np.geomspace(1.0, 1e3, 40)[None]
    nothing, unknown = np.zeros((1, 40)), np.full((1, 40), 0.1)
    track = _Track(unknown, np.ones((1, 1)), nothing, nothing, nothing)
    for _ in range(300):
        move = generator.standard_normal((1, 40)) * (unknown + noise) ** 0.5
        found = track.after(move, noise, nothing)
        assert np.all(found.variance < unknown)
    found = track.after(move + 5.0, noise, nothing)
    left = found.variance / (1.0 - found.step)  # before the step
    assert np.ptp(left) < 1e-9 * left.max()
    assert 10.0 < left.max() < 60.0


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("transform", Transform)
def test_responses_are_finite_for_every_radius(kind: Kind, transform: Transform) -> None:
    """Also for one that is a millionth of the residuals, or a million of them."""
    for size in (1, 2, 64):
        radius = np.geomspace(1e-9, 1e9, 30)
        found = response(kind, transform, size, radius, np.ones(30))
        assert np.all(np.isfinite(found.variance))
        assert np.all(found.gain > 0.0)


def test_shares_are_alike_as_far_as_noise_lets_them() -> None:
    """Shares that differ by chance become one; shares that differ stay."""
    generator, apart = drawn(5), np.linspace(0.2, 0.9, 40)
    assert np.ptp(_alike(0.7 + 0.1 * generator.standard_normal(40), 0.1)) < 1e-12
    np.testing.assert_allclose(_alike(apart + 0.01 * generator.standard_normal(40), 0.01), apart, atol=0.05)


@pytest.mark.parametrize("variance", [1e-4, 0.05, 0.3, 1.0])
def test_a_variance_is_believed_as_far_as_noise_lets_it(variance: float) -> None:
    """The look's where it is clear; where it is not, what is usual, whatever the look says; never outside (0, 1]."""
    assert cautious(variance, 1e-7) == pytest.approx(variance, rel=1e-2)
    assert cautious(variance, 0.0) == pytest.approx(variance, rel=1e-2)
    for said in (-50.0, variance, 50.0):
        assert 0.05 < cautious(said, 10.0) < 0.35
        assert 0.0 < cautious(said, 1e-3) <= 1.0


def test_means_that_are_noise_are_the_middle() -> None:
    """Others stay where they are."""
    noise = drawn(4).standard_normal(40)
    assert np.linalg.norm(near_middle(noise, 1.0)) < 0.5 * np.linalg.norm(noise)
    assert near_middle(100.0 + noise, 1.0) == pytest.approx(100.0 + noise, rel=1e-3)
    assert np.array_equal(near_middle(np.zeros(3), 0.0), np.zeros(3))


def test_a_declared_number_of_rows_stands_in_for_a_count_that_noise_hides() -> None:
    """A clear count stands against any declaration; without one the noise is the least."""
    assert believed_rows(-3e5, 1e6, 1000.0) == pytest.approx(1000.0, rel=0.1)
    assert believed_rows(5000.0, 10.0, 1000.0) == pytest.approx(5000.0, rel=0.01)
    assert believed_rows(50.0, 200.0, None) == 200.0
    assert believed_rows(-1e9, 1.0, 10.0) == 1.0


@pytest.mark.parametrize("folded", [False, True])
def test_hidden_information(folded: bool) -> None:
    """None where components are far apart; all but nothing where they are one, and of lines likewise."""
    for separation, share in ((6.0, 0.0), (0.01, 1.0)):
        ends = separation * np.array([[1.0, 0.0], [-1.0, 0.0]])
        ends = ends if folded else ends + 3.0
        even, ones = np.full(2, 0.5), np.ones(2)
        of_means = hidden_of_means(ends, even, ones, folded=folded)
        of_lines = hidden_of_lines(ends, even, ones, intercept=False, folded=folded)
        if folded or share == 0.0:
            assert of_means == pytest.approx(np.full(1 if folded else 2, share), abs=0.05)
            assert of_lines == pytest.approx(np.full(1 if folded else 2, share), abs=0.15)
        else:  # of a row's own number it is known to be one of two
            assert of_means == pytest.approx([0.5, 0.5], abs=0.02)


def test_hidden_information_slows_em_down() -> None:
    """A small error of the symmetric mixture's parameter keeps the share of itself that is hidden, in the mean."""
    b = np.array([0.8, 0.6])
    generator = drawn(4)
    y = generator.choice([-1.0, 1.0], 400_000)[:, None] * b + generator.standard_normal((400_000, 2))
    kept = []
    for shift in 0.02 * np.eye(2):
        up, down = (np.mean(np.tanh(y @ (b + sign * shift))[:, None] * y, axis=0) for sign in (1.0, -1.0))
        kept.append(float((up - down) @ shift / (2 * shift @ shift)))
    hidden = hidden_of_means(np.array([b, -b]), np.full(2, 0.5), np.ones(2), folded=True)
    assert hidden == pytest.approx([np.mean(kept)], abs=0.04)


def test_starts_are_not_lost_where_the_look_is_noise() -> None:
    """Few rows: what the look says of the spread is noise, which must not make a start too narrow to leave it."""
    near = 0
    for seed in range(12):
        X = mirrored(1000, 200 + seed, B)
        model = run(plan(table(3, rows=1000), spend=SPEND(rho=0.01), random=fit_pb2.StartAtRandom(public_seed=seed)), X)
        near += nearest(array(model.coefficients), np.array([B, -B])) < 1.0
    assert near >= 9


@pytest.mark.slow
@pytest.mark.parametrize("model", [REGRESSIONS, MISSING])
def test_a_thousand_rows_at_little_epsilon_teach_something_and_errors_say_how_much(model: Any) -> None:
    """Squared errors are far below those of knowing nothing where noise hides all scales: a fortieth, measured."""
    apart, claimed = [], []
    fields: dict[str, Any] = {"symmetric": True} if model == REGRESSIONS else {}
    for seed in range(24):
        generator = drawn(seed)
        X, b = generator.standard_normal((1000, 5)), generator.standard_normal(5)
        b *= 3.0 / np.linalg.norm(b)
        sign = generator.choice([-1.0, 1.0], 1000) if model == REGRESSIONS else 1.0
        y = sign * (X @ b) + generator.standard_normal(1000)
        X[generator.random(X.shape) < (0.2 if model == MISSING else 0.0)] = np.nan
        spent = types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=0.2, delta=1e-3))
        public = table(5, bound=4.0, target=12.0, nullable=5 if model == MISSING else 0, rows=1000)
        made = plan(public, model=model, target="y", spend=spent, random={"public_seed": seed}, **fields)
        found = run(made, np.column_stack([X, y]))
        at, errors = array(found.coefficients)[0], array(found.coefficient_errors)[0]
        far = min(np.sum((at - b) ** 2), np.sum((at + b) ** 2) if model == REGRESSIONS else np.inf)
        apart.append(far / np.sum(b**2))
        claimed.append(np.sum(errors**2) / np.sum(b**2))
    # Of 288 fits 10 % (of the worse model) were further off than .25, 6 % further than 2.5 of their errors; half of 24
    # are so less than once in a million.
    assert np.median(apart) < 0.25
    assert np.median(np.divide(claimed, apart)) > 0.4**2


def test_features_far_from_their_noisy_means_do_not_make_steps_overshoot() -> None:
    """Many features, of whose means the look says little: steps that are too long show in moves that turn back."""
    generator = drawn(18)
    d, n = 40, 8000
    b = np.full(d, 3.0 / d**0.5)
    x = generator.standard_normal((n, d))
    y = x @ b + generator.standard_normal(n)
    x[generator.random(x.shape) < 0.2] = np.nan
    public = table(d, bound=4.0, target=12.0, nullable=d, rows=n)
    errors = []
    for _ in range(3):
        model = run(plan(public, model=MISSING, spend=SPEND(rho=0.008), **TARGET), np.column_stack([x, y]))
        errors.append(float(np.linalg.norm(array(model.coefficients)[0] - b)))
    assert float(np.median(errors)) < 1.0


def test_without_enough_to_go_by_the_result_is_near_nothing() -> None:
    """Coefficients are drawn to 0, not to where noise has them, where noise is far larger than what there is."""
    X = lines(300, 19, np.array([[2.0, -1.0]]), np.zeros(1))
    for model in (REGRESSIONS, MISSING):
        single = {"n_components": 1} if model == REGRESSIONS else {}
        public = table(2, bound=4.0, target=12.0, rows=300, nullable=2 if model == MISSING else 0)
        made = plan(public, model=model, spend=SPEND(rho=1e-6), **single, **TARGET)
        norms = [float(np.linalg.norm(array(run(made, X).coefficients))) for _ in range(9)]
        assert float(np.median(norms)) < 5.0


def test_noise_levels_are_not_those_of_the_way_there() -> None:
    """Two lines far apart, from a start that is far from both: what is left about them is the noise alone."""
    generator, n = drawn(29), 6000
    x = generator.uniform(-0.6, 0.6, n)
    y = np.where(generator.random(n) < 0.4, 0.15 + 0.5 * x, 0.025 - 0.375 * x) + 0.02 * generator.standard_normal(n)
    public = table(1, bound=1.0, target=1.0, rows=n)
    start = fit_pb2.GradientStart(
        coefficients=types_pb2.Tensor(shape=[2, 1], values=[0.25, -0.25]),
        intercepts=types_pb2.Tensor(shape=[2], values=[0.0, 0.0]),
    )
    made = plan(public, model=REGRESSIONS, given=start, spend=SPEND(rho=0.5), **TARGET)
    for _ in range(5):
        found = run(made, np.column_stack([x, y]))
        assert array(found.noise_std) == pytest.approx([0.02, 0.02], rel=0.15)


def test_noise_levels_are_about_the_mean_that_is_returned() -> None:
    """States of "truncated" move until the end; without their distances from the mean, levels would be 1.5 times."""
    found = []
    for seed in range(4):
        generator, n = drawn(30 + seed), 10_000
        slopes = generator.uniform(-0.4, 0.4, (2, 3))
        X = generator.uniform(-1, 1, (n, 3))
        y = np.sum(X * slopes[generator.integers(0, 2, n)], axis=1) + 0.05 * generator.standard_normal(n)
        fields = {"model": REGRESSIONS, "variant": fit_pb2.GRADIENT_VARIANT_TRUNCATED, **TARGET}
        made = plan(table(3, bound=1.0, target=1.0, rows=n), spend=SPEND(rho=0.1), **fields)
        found.append(array(run(made, np.column_stack([X, y])).noise_std))
    assert 0.9 < np.mean(found) / 0.05 < 1.25
    given = {**fields, "noise_std": 0.05}
    made = plan(table(3, bound=1.0, target=1.0, rows=n), spend=SPEND(rho=0.1), **given)
    assert array(run(made, np.column_stack([X, y])).noise_std) == pytest.approx([0.05, 0.05])


@pytest.mark.parametrize("transform", [Transform.NORM, Transform.RADIAL])
def test_gains_are_those_of_simulated_steps(transform: Transform) -> None:
    """A small shift of a normal sample moves the mean of its transform by the gain; of a regression's, likewise."""
    d, shift, n = 3, 0.02, 400_000
    generator = drawn(2)
    y = generator.standard_normal((n, d))
    y = np.concatenate([y, -y])

    def mean_along(v: Array, along: Array, radius: float) -> float:
        length = np.linalg.norm(v, axis=1)
        return float(np.mean(_value_and_slope(transform, length / radius)[0] * radius * (v @ along) / length))

    along = np.array([1.0, 0.0, 0.0])
    moved = mean_along(y + shift * along, along, 1.7)
    assert moved / shift == pytest.approx(location_gain(transform, d, 1.7), rel=0.02)
    e = np.concatenate([generator.standard_normal(n), np.zeros(n)])
    e[n:] = -e[:n]
    moved = mean_along((e + shift * y[:, 0])[:, None] * y, along, 1.7)
    assert moved / shift == pytest.approx(Kind.REGRESSION.value(transform, d, 1.7)[0], rel=0.03)


@pytest.mark.parametrize("kind", Kind)
def test_radii_follow_the_noise(kind: Kind) -> None:
    """Hardly any noise: wide, and nearly all that the sample says; much of it: narrow, but not without end."""
    quiet, loud = best_radius(kind, Transform.NORM, 10, np.array([1e-6, 10.0]))
    assert quiet == pytest.approx(1.5 * 10**0.5)
    assert 0.4 * 10**0.5 <= loud < 0.8 * 10**0.5
    variance = response(kind, Transform.NORM, 10, np.array([2.0 * quiet]), np.array([2.0])).variance
    assert variance == pytest.approx(np.full((1, 10), 4.0), rel=0.08)
    assert np.all(variance >= 4.0)


def test_unclip_inverts_clipping() -> None:
    """The noise level behind a mean of clipped squares."""
    generator = drawn(3)
    for size in (1, 10):
        v = 0.8 * generator.standard_normal((200_000, size))
        mean = np.mean(np.minimum(np.sum(v**2, axis=1) / (1.25**2 * size), 1.0))
        assert unclip(np.array([mean]), size, 1.25) == pytest.approx([0.8], rel=0.01)
