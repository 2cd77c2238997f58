"""FitDPEM as a whole: it finds what is there, in the data's units, and neither rows nor noise can make it fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_ledger import Adjacency
from bursar_models import CovarianceType, GaussianMixture, uniform_in_ball
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, InvalidFieldsError, PublicTable, dpem
from bursar_server.fits.mixtures.steps import EMSettings
from bursar_server.vault import Release
from tests.server.fits.running import Array, NoNoise, array, clusters, nothing_released, plan, request, run, table

CENTRES = np.array([[4.0, 3.0], [-5.0, 1.0], [0.0, -6.0]])
TYPES: dict[int, CovarianceType] = {
    fit_pb2.COVARIANCE_TYPE_FULL: "full",
    fit_pb2.COVARIANCE_TYPE_TIED: "tied",
    fit_pb2.COVARIANCE_TYPE_DIAG: "diag",
    fit_pb2.COVARIANCE_TYPE_SPHERICAL: "spherical",
}
VARIANTS: list[dict[str, Any]] = [
    *({"covariance_type": kind} for kind in TYPES),
    {"moments": fit_pb2.MOMENTS_FIXED_ORIGIN},
    {"estimator": fit_pb2.ESTIMATOR_MAXIMUM_A_POSTERIORI},
    {"mode": fit_pb2.MODE_KMEANS},
    {"mode": fit_pb2.MODE_KMEANS, "moments": fit_pb2.MOMENTS_FIXED_ORIGIN},
    {"random": fit_pb2.StartAtRandom(public_seed=3)},
    {"mode": fit_pb2.MODE_KMEANS, "random": fit_pb2.StartAtRandom(public_seed=3)},
    {"iterations": 1},
    {"iterations": 2},
    {"n_components": 1},
    {"n_components": 9, "iterations": 4},
]


def by_first(means: Array) -> Array:
    """Rows in the order of their first column."""
    return means[np.argsort(means[:, 0])]


def sdk_model(model: fit_pb2.GaussianMixtureModel) -> GaussianMixture:
    """The model as the SDK has it; its constructor checks every number."""
    kind = TYPES[model.covariance_type]
    return GaussianMixture(
        array(model.weights),
        array(model.means),
        array(model.covariances),
        covariance_type=kind,
        columns=tuple(model.columns),
        background_weight=model.background_weight,
        bounds_=array(model.bounds) if model.HasField("bounds") else None,
    )


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("fields", [*VARIANTS[:5], VARIANTS[6], {"spend": types_pb2.Spend(epsilon=60.0)}], ids=str)
def test_components_are_found(adjacency: Adjacency, fields: dict[str, Any]) -> None:
    """The default start finds three separate clusters with little noise, in the data's units."""
    X = clusters(20_000, 1, CENTRES)
    spend = {"spend": types_pb2.Spend(rho=20.0)}
    model = run(plan(table(adjacency=adjacency), **{**spend, **fields}), X, adjacency=adjacency)
    assert by_first(array(model.means)) == pytest.approx(by_first(CENTRES), abs=0.3)
    assert array(model.weights) == pytest.approx(np.full(3, 1 / 3), abs=0.03)
    assert model.n_rows == pytest.approx(5000 if adjacency is Adjacency.REPLACE_ONE else 20_000, rel=0.02)
    assert sdk_model(model).n_components == 3


@pytest.mark.parametrize("kind", TYPES, ids=TYPES.values())
def test_outliers_go_to_the_background(kind: int) -> None:
    """One row in twenty lies anywhere in the box: the weight is found, and means and variances are the clusters'."""
    X = clusters(20_000, 11, CENTRES, 0.5)
    generator = np.random.default_rng(11)  # noqa: TID251 - rows of a test
    X[:1000] = generator.uniform(-10.0, 10.0, (1000, 2))
    made = plan(table(rows=20_000), spend=types_pb2.Spend(rho=1.0), covariance_type=kind)
    model = sdk_model(run(made, X))
    assert model.background_weight == pytest.approx(0.05, abs=0.01)
    assert by_first(model.means_) == pytest.approx(by_first(CENTRES), abs=0.1)
    assert np.mean(model.covariances_[model.covariances_ > 0.1]) == pytest.approx(0.25, rel=0.2)


def test_without_a_background_nothing_is_left_out() -> None:
    """A long tail belongs to its component: without noise its mean and variance are those of the rows."""
    generator = np.random.default_rng(12)  # noqa: TID251 - rows of a test
    X = np.column_stack([generator.exponential(1.0, 20_000) - 5.0, generator.standard_normal(20_000)])
    off = {"background": fit_pb2.BACKGROUND_OFF, "n_components": 1, "spend": types_pb2.Spend(rho=1.0)}
    model = run(plan(table(rows=20_000), **off), X, source=NoNoise())
    assert model.background_weight == 0.0
    assert array(model.means)[0] == pytest.approx(X.mean(axis=0), abs=0.005)
    assert np.diag(array(model.covariances)[0]) == pytest.approx(X.var(axis=0), rel=0.02)


def test_means_without_a_background_are_balanced_by_the_first_release() -> None:
    """Short clip radii draw the means of long tails to the bulk; the mean of all rows, more precise here, helps."""
    generator = np.random.default_rng(13)  # noqa: TID251 - rows of a test
    tail = np.minimum(generator.exponential(1.0, 20_000) ** 2 / 2.0 - 9.5, 10.0)
    X = np.column_stack([np.repeat([-4.0, 4.0], 10_000), tail])
    truth = [tail[:10_000].mean(), tail[10_000:].mean()]
    spend = types_pb2.Spend(rho=0.005)
    made = plan(table(rows=20_000), background=fit_pb2.BACKGROUND_OFF, n_components=2, spend=spend)
    usual = plan(table(rows=20_000), n_components=2, spend=spend)
    assert isinstance(made.settings, EMSettings)
    errors = []
    for whole in (True, False):
        model = run(replace(made, settings=replace(made.settings, whole=whole)), X, source=NoNoise())
        errors.append(np.abs(by_first(array(model.means))[:, 1] - truth))
    assert np.all(errors[1] > 0.05)
    assert np.all(errors[0] < 0.6 * errors[1])
    assert made.steps[0].std < 0.6 * usual.steps[0].std


@pytest.mark.parametrize(("rho", "most"), [(0.002, 0.15), (0.1, 0.02)])
def test_a_wide_box_leaves_its_rows_to_the_components(rho: float, most: float) -> None:
    """Two clusters in a box thirty times their width: the background never takes them, whatever the noise.

    A background that takes them has nearly all rows. At the smaller spend noise on its count alone is 2 % of the rows,
    and counts above two deviations are kept: 13 of 351 runs had more than 0.02, the largest 0.056.
    """
    centres = np.array([[4.0, 3.0, 1.0, -2.0], [-5.0, 1.0, -3.0, 0.0]])
    X = clusters(20_000, 13, centres, 20.0 / 30.0)
    made = plan(table(4, rows=20_000), spend=types_pb2.Spend(rho=rho), n_components=2)
    model = run(made, X)
    assert model.background_weight < most
    assert by_first(array(model.means)) == pytest.approx(by_first(centres), abs=0.5)


def test_the_background_of_a_release_is_weighed_with_its_rows() -> None:
    """Weights of Gaussians sum to one among themselves; the bounds are the table's."""
    model = run(plan(table(rows=5000), spend=types_pb2.Spend(rho=5.0)), clusters(5000, 14, CENTRES))
    assert array(model.weights).sum() == pytest.approx(1.0)
    assert array(model.bounds).tolist() == [[-10.0, -10.0], [10.0, 10.0]]
    kmeans = run(plan(mode=fit_pb2.MODE_KMEANS), clusters(5000, 14, CENTRES))
    assert not kmeans.HasField("bounds")
    assert kmeans.background_weight == 0.0


def test_maximum_a_posteriori_pulls_towards_the_prior() -> None:
    """A strong prior at the middle of the bounds draws means there; a weak one hardly."""
    X = clusters(6000, 2, CENTRES)
    norms = []
    for kappa in (1.0, 20_000.0):
        prior = fit_pb2.GaussianPrior(kappa=kappa)
        made = plan(estimator=fit_pb2.ESTIMATOR_MAXIMUM_A_POSTERIORI, prior=prior, spend=types_pb2.Spend(rho=20.0))
        norms.append(np.linalg.norm(array(run(made, X).means)))
    assert norms[1] < 0.5 * norms[0]


def test_given_start_is_used() -> None:
    """Components stay in the order in which the analyst gave them."""
    means = types_pb2.Tensor(shape=(3, 2), values=(CENTRES + 0.5).ravel())
    model = run(
        plan(given=fit_pb2.StartGiven(means=means), spend=types_pb2.Spend(rho=20.0)), clusters(9000, 3, CENTRES)
    )
    assert array(model.means) == pytest.approx(CENTRES, abs=0.3)


def test_an_earlier_release_is_a_start() -> None:
    """A second fit goes on where a first one ended, in its order; another shape or dataset's entry is refused."""
    X = clusters(9000, 3, CENTRES)
    first = run(plan(spend=types_pb2.Spend(rho=5.0)), X)
    asked = request(released=fit_pb2.StartReleased(entry=7), spend=types_pb2.Spend(rho=5.0), iterations=2)
    second = run(dpem.plan(asked, table(), lambda entry: first if entry == 7 else None), X)
    assert array(second.means) == pytest.approx(array(first.means), abs=0.3)
    asked.n_components = 4
    with pytest.raises(InvalidFieldsError, match="number of components"):
        dpem.plan(asked, table(), lambda entry: first)


def test_an_earlier_release_of_other_columns_is_no_start() -> None:
    """Columns that a request leaves out are all numeric ones, for this check and in the ledger's entry, too."""
    three = table(3)
    earlier = run(dpem.plan(request(columns=["x1", "x2"]), three, nothing_released), clusters(900, 3, CENTRES))
    asked = request(released=fit_pb2.StartReleased(entry=7))
    with pytest.raises(InvalidFieldsError, match="other columns"):
        dpem.plan(asked, table(2), lambda entry: earlier)
    assert plan(three).parameters["columns"] == ["x0", "x1", "x2"]


def test_random_start_can_be_drawn_by_the_client() -> None:
    """A public seed gives the same points on both sides, inside the ball."""
    points = uniform_in_ball(100, 3, 5)
    assert np.array_equal(points, uniform_in_ball(100, 3, 5))
    assert np.linalg.norm(points, axis=1).max() <= 1.0
    assert not np.array_equal(points, uniform_in_ball(100, 3, 6))


BITS = st.floats(allow_nan=True, allow_infinity=True, width=64)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(st.tuples(BITS, BITS), min_size=0, max_size=12),
    st.sampled_from(VARIANTS),
    st.sampled_from(Adjacency),
    st.floats(-9, 3),
)
def test_no_rows_and_no_noise_can_make_it_fail(
    rows: list[tuple[float, float]], fields: dict[str, Any], adjacency: Adjacency, magnitude: float
) -> None:
    """Any bits, any spend: as many steps and releases as planned, progress for each, a valid model."""
    taps: list[Release] = []
    steps: list[tuple[int, int]] = []
    made = plan(table(adjacency=adjacency), **{**fields, "spend": types_pb2.Spend(rho=10.0**magnitude)})
    X = np.array(rows, dtype=np.float64).reshape(-1, 2)
    model = run(made, X, adjacency=adjacency, taps=taps, steps=steps)
    assert len(taps) == made.iterations
    assert steps == [(i + 1, made.iterations) for i in range(made.iterations)]
    sdk_model(model)


def test_means_are_within_the_bounds() -> None:
    """Rows at the border have their mean there, and noise would carry it across: in one of two fits in each column."""
    made = plan(n_components=1, spend=types_pb2.Spend(rho=0.01))
    means = np.array([array(run(made, np.full((300, 2), -10.0)).means) for _ in range(20)])
    assert means.min() == -10.0


def test_clip_radius_keeps_far_rows_from_mattering() -> None:
    """Rows beyond the public radius count as if they lay on its sphere."""
    near = clusters(3000, 4, np.array([[1.0, 0.0], [-1.0, 0.0]]), 0.2)
    far = np.vstack([near, np.full((3000, 2), 1e6)])
    edge = np.vstack([near, np.full((3000, 2), 4 * np.sqrt(0.5))])
    made = plan(n_components=2, clip_radius=0.4, mode=fit_pb2.MODE_KMEANS)
    assert run(made, far, source=NoNoise()) == run(made, edge, source=NoNoise())


def test_spherical_models_mean_the_same_in_the_datas_units() -> None:
    """Columns with different bounds share one scale, so that a released variance is one of the data's own."""
    wide = PublicTable(
        "w", (BoundedColumn("x", -100, 100), BoundedColumn("y", -10, 10)), Adjacency.REPLACE_ONE, 1, 9000
    )
    X = clusters(30_000, 6, np.array([[50.0, 5.0], [-50.0, -5.0]]), 1.0)
    spherical = fit_pb2.COVARIANCE_TYPE_SPHERICAL
    made = dpem.plan(
        request(n_components=2, covariance_type=spherical, spend=types_pb2.Spend(rho=50.0)), wide, nothing_released
    )
    assert array(run(made, X).covariances) == pytest.approx([1.0, 1.0], rel=0.3)


@pytest.mark.slow
def test_private_start_finds_ten_clusters() -> None:
    """Ten clusters in ten dimensions, 20,000 rows, epsilon 1: within a per cent of Lloyd's in most runs."""
    generator = np.random.default_rng(0)  # noqa: TID251 - rows of a test
    ratios = []
    for seed in range(7):
        centres = 1.9 * generator.standard_normal((10, 10))
        X = clusters(20_000, seed, centres)
        spend = types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=1.0, delta=1e-6))
        made = plan(table(10, rows=20_000), n_components=10, mode=fit_pb2.MODE_KMEANS, clip_radius=2.0, spend=spend)
        found = array(run(made, X).means)
        squares = [np.min(np.sum((X[:, None] - c) ** 2, axis=2), axis=1).sum() for c in (found, centres)]
        ratios.append(squares[0] / squares[1])
    # Measured: at most 1.01 in 11 of 12 runs; a start that misses one cluster gives 1.05 and more.
    assert np.median(ratios) < 1.02


def test_two_components_of_many_columns_and_few_rows_are_above_one_gaussian() -> None:
    """Noise on 210 second moments makes no thin directions at the start, from which covariances would grow."""
    middles = np.array([[-0.5] * 20, [0.5] * 20])
    X = clusters(7400, 5, middles)
    one = float(np.log(2.0 * np.pi * np.e) * 10.0 + np.linalg.slogdet(np.cov(X.T))[1] / 2.0)
    planned = plan(
        table(20, bound=8.0, adjacency=Adjacency.ADD_REMOVE_ONE, rows=7400),
        n_components=2,
        spend=types_pb2.Spend(rho=0.007),
    )
    found = [sdk_model(run(planned, X, adjacency=Adjacency.ADD_REMOVE_ONE)).score(X) for _ in range(5)]
    # Without the shrinkage 0.02 to 0.5 below it in 30 fits, with it 0.07 to 0.19 above it.
    assert float(np.median(found)) > -one


@pytest.mark.parametrize("fields", [{"covariance_type": kind} for kind in TYPES], ids=str)
def test_two_hundred_steps_of_nothing_but_noise_end_in_a_valid_model(fields: dict[str, Any]) -> None:
    """Noise that multiplies a covariance in every step neither overflows nor breaks a factorisation."""
    made = plan(spend=types_pb2.Spend(rho=1e-6), iterations=200, n_components=4, **fields)
    sdk_model(run(made, np.zeros((1, 2))))
