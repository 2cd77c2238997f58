"""A released mixture means what scikit-learn means by the same parameters."""

from __future__ import annotations

import sys
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import bursar
from bursar_models import COVARIANCE_TYPES, CovarianceType, cholesky_factors, log_gaussian_density, n_parameters

EACH_TYPE = pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
POINTS = np.array([[0.0, 0.0], [1.0, -2.0], [30.0, 40.0]])


def as_matrices(model: bursar.GaussianMixture) -> npt.NDArray[np.float64]:
    """Covariances of any type as full matrices, by the definition of the types."""
    k, d = model.means_.shape
    match model.covariance_type:
        case "tied":
            return np.stack([model.covariances_] * k)
        case "diag":
            return np.stack([np.diag(variances) for variances in model.covariances_])
        case "spherical":
            return np.stack([variance * np.eye(d) for variance in model.covariances_])
        case _:
            return model.covariances_


@given(
    seed=st.integers(0, 2**32),
    covariance_type=st.sampled_from(COVARIANCE_TYPES),
    k=st.integers(1, 4),
    d=st.integers(1, 4),
)
@settings(max_examples=60)
def test_agrees_with_scikit_learn(
    make_mixture: Any, seed: int, covariance_type: CovarianceType, k: int, d: int
) -> None:
    """Densities, probabilities and labels equal those of the scikit-learn model that `to_sklearn` gives."""
    model = make_mixture(seed, covariance_type, k, d)
    other = model.to_sklearn()
    rows = np.random.default_rng(seed + 1).normal(size=(20, d)) * 4  # noqa: TID251 - public test points
    np.testing.assert_allclose(model.score_samples(rows), other.score_samples(rows), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(model.predict_proba(rows), other.predict_proba(rows), atol=1e-10)
    np.testing.assert_array_equal(model.predict(rows), other.predict(rows))
    assert model.score(rows) == pytest.approx(other.score(rows), rel=1e-10)


@EACH_TYPE
def test_log_density_is_the_normal_density(make_mixture: Any, covariance_type: CovarianceType) -> None:
    """Each component's log density is scipy's for the same mean and matrix."""
    model = make_mixture(5, covariance_type)
    ours = log_gaussian_density(POINTS, model.means_, model.covariances_, covariance_type)
    scipys = [multivariate_normal(m, c).logpdf(POINTS) for m, c in zip(model.means_, as_matrices(model), strict=True)]
    np.testing.assert_allclose(ours, np.stack(scipys, axis=1), rtol=1e-10)


@EACH_TYPE
def test_factors_are_square_roots(make_mixture: Any, covariance_type: CovarianceType) -> None:
    """A component's factor times its transpose is its covariance."""
    model = make_mixture(8, covariance_type)
    factors = cholesky_factors(model.covariances_, covariance_type, 3, 2)
    squares = [np.diag(f**2) if f.ndim == 1 else f @ f.T for f in factors]
    np.testing.assert_allclose(squares, as_matrices(model), rtol=1e-12)


@EACH_TYPE
def test_to_sklearn_can_do_what_a_fitted_model_can(make_mixture: Any, covariance_type: CovarianceType) -> None:
    """Sampling, information criteria and precisions work, and the number of parameters is ours."""
    model = make_mixture(6, covariance_type)
    other = model.to_sklearn()
    rows, _ = other.sample(50)
    assert np.isfinite(other.bic(rows))
    assert n_parameters(covariance_type, 3, 2) == other._n_parameters()
    inverse = other.precisions_ if covariance_type in ("full", "tied") else 1 / other.precisions_
    expected = np.linalg.inv(model.covariances_) if covariance_type in ("full", "tied") else model.covariances_
    np.testing.assert_allclose(inverse, expected, rtol=1e-9)


@EACH_TYPE
def test_samples_have_the_moments_of_the_model(make_mixture: Any, covariance_type: CovarianceType) -> None:
    """Counts, means and covariances of 60,000 samples lie within six standard errors of the model's."""
    model, n = make_mixture(9, covariance_type), 60_000
    rows, labels = model.sample(n, random_state=1)
    assert rows.shape == (n, 2)
    matrices = as_matrices(model)
    for j in range(model.n_components):
        mine = rows[labels == j]
        weight, trace = model.weights_[j], np.trace(matrices[j])
        assert abs(len(mine) / n - weight) < 6 * np.sqrt(weight / n)
        assert np.linalg.norm(mine.mean(axis=0) - model.means_[j]) < 6 * np.sqrt(trace / len(mine))
        assert np.linalg.norm(np.cov(mine.T) - matrices[j]) < 6 * trace * np.sqrt(2 / len(mine))


BOX = np.array([[-1.0, -2.0], [3.0, 2.0]])


def with_background(model: bursar.GaussianMixture, weight: float = 0.25) -> bursar.GaussianMixture:
    """The model with a uniform component over `BOX`, of volume 16."""
    return replace(model, background_weight=weight, bounds_=BOX)


@EACH_TYPE
def test_a_background_is_a_component_of_the_density(make_mixture: Any, covariance_type: CovarianceType) -> None:
    """Uniform over the box and nothing outside; who belongs to which Gaussian is as before."""
    plain = make_mixture(5, covariance_type, 3, 2)
    model = with_background(plain)
    rows = np.array([[0.0, 0.0], [3.0, 2.0], [3.1, 0.0], [0.0, -2.5]])
    inside = np.array([1.0, 1.0, 0.0, 0.0])
    expected = 0.75 * np.exp(plain.score_samples(rows)) + 0.25 * inside / 16
    np.testing.assert_allclose(np.exp(model.score_samples(rows)), expected)
    np.testing.assert_array_equal(model.predict(rows), plain.predict(rows))
    np.testing.assert_allclose(model.to_sklearn().score_samples(rows), plain.score_samples(rows))
    assert model.bic(rows) != plain.bic(rows)
    assert "background 0.25" in repr(model)
    assert "background" not in repr(plain)


def test_samples_are_within_the_bounds(make_mixture: Any) -> None:
    """Rows of the background are uniform with component -1; Gaussian ones outside the box are drawn again, or not."""
    model = with_background(make_mixture(5, "full", 3, 2))
    rows, labels = model.sample(20_000, random_state=1)
    assert np.all((rows >= BOX[0]) & (rows <= BOX[1]))
    assert np.all(np.diff(labels[labels >= 0]) >= 0)
    background = rows[labels == -1]
    assert len(background) == pytest.approx(5000, abs=300)
    np.testing.assert_allclose(background.mean(axis=0), BOX.mean(axis=0), atol=0.1)
    np.testing.assert_allclose(background.var(axis=0), 16 / 12, rtol=0.1)
    free, _ = model.sample(20_000, random_state=1, bounded=False)
    assert np.any((free < BOX[0]) | (free > BOX[1]))


def test_samples_of_a_component_far_outside_end_on_the_side_of_the_box() -> None:
    """Drawing again has an end."""
    one, mean, variance = np.ones(1), np.array([[9.0, 0.0]]), np.array([1e-6])
    model = bursar.GaussianMixture(one, mean, variance, covariance_type="spherical", bounds_=BOX)
    rows, _ = model.sample(50, random_state=1)
    assert np.all(rows[:, 0] == 3.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"background_weight": 0.1}, "bounds_"),
        ({"background_weight": 1.0, "bounds_": BOX}, "background_weight"),
        ({"background_weight": float("nan"), "bounds_": BOX}, "background_weight"),
        ({"bounds_": BOX[:1]}, "bounds_"),
        ({"bounds_": BOX[::-1]}, "bounds_"),
    ],
)
def test_a_background_needs_its_box(make_mixture: Any, fields: dict[str, Any], message: str) -> None:
    """A weight from 0 to less than 1, and bounds in their order."""
    with pytest.raises(ValueError, match=message):
        replace(make_mixture(5, "full", 3, 2), **fields)


def test_samples_are_the_callers_to_repeat(make_mixture: Any) -> None:
    """One seed gives one sample, given as a number or as a generator."""
    model = make_mixture(1, "full")
    first, _ = model.sample(5, random_state=3)
    second, _ = model.sample(5, random_state=np.random.default_rng(3))  # noqa: TID251 - a caller's generator
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="at least 1 row, got 0"):
        model.sample(0)


def test_tables_are_read_by_the_names_of_columns(make_mixture: Any) -> None:
    """pandas, pyarrow and mappings give the same as the array, with their columns in any order and number."""
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    model = replace(make_mixture(2, "diag"), columns=("a", "b"))
    table = {"b": POINTS[:, 1], "other": ["x", "y", "z"], "a": POINTS[:, 0]}
    expected = model.score_samples(POINTS)
    for kind in (dict, pandas.DataFrame, pyarrow.table):
        np.testing.assert_array_equal(model.score_samples(kind(table)), expected)
    with pytest.raises(ValueError, match=r"columns \['a'\] are missing"):
        model.predict({"b": [1.0]})


@pytest.mark.parametrize(
    ("rows", "message"),
    [([1.0, 2.0], r"shape \(n, 2\), got \(2,\)"), ([[1.0]], r"got \(1, 1\)"), ([[1.0, np.nan]], "must be finite")],
)
def test_rows_of_another_shape_are_refused(make_mixture: Any, rows: Any, message: str) -> None:
    """The error says which shape was expected, and that missing values are none."""
    with pytest.raises(ValueError, match=message):
        make_mixture(1, "full").predict(rows)


def test_no_rows_are_no_error(make_mixture: Any) -> None:
    """An empty table has empty answers."""
    model = make_mixture(1, "full")
    assert model.predict(np.empty((0, 2))).shape == (0,)
    assert model.predict_proba(np.empty((0, 2))).shape == (0, 3)


GOOD: dict[str, Any] = {"weights_": [0.5, 0.5], "means_": [[0.0, 0.0], [1.0, 1.0]], "covariances_": [np.eye(2)] * 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covariance_type": "round"}, "expected one of"),
        ({"means_": [1.0, 2.0]}, r"means_: expected shape \(k, d\)"),
        ({"means_": np.empty((0, 2))}, "k >= 1"),
        ({"means_": [[0.0, np.inf], [1.0, 1.0]]}, "means_: every entry must be finite"),
        ({"means_": [[0.0, 10**400], [1.0, 1.0]]}, "means_: every entry must be finite"),
        ({"weights_": [1.0]}, r"weights_: expected shape \(2,\), got \(1,\)"),
        ({"weights_": [1.5, -0.5]}, "at least 0"),
        ({"weights_": [0.5, 0.4]}, "expected a sum of 1, got 0.9"),
        ({"weights_": [np.nan, 1.0]}, "weights_: every entry must be finite"),
        ({"covariances_": np.eye(2)}, r"covariances_: expected shape \(2, 2, 2\), got \(2, 2\)"),
        ({"covariances_": [[[1.0, 0.5], [0.0, 1.0]]] * 2}, "symmetric"),
        ({"covariances_": [np.diag([1.0, -1.0])] * 2}, "positive definite"),
        ({"covariances_": [1.0, 0.0], "covariance_type": "spherical"}, "above 0"),
        ({"columns": ("a",)}, "expected 2 names"),
    ],
)
def test_what_is_no_mixture_is_refused(change: dict[str, Any], message: str) -> None:
    """Every rule on the parameters has an error that names the field, what was expected and what came."""
    with pytest.raises(ValueError, match=message):
        bursar.GaussianMixture(**{**GOOD, **change})


def test_a_model_cannot_be_changed() -> None:
    """Neither its fields nor its arrays, nor through the arrays it was made from."""
    weights = np.array([0.5, 0.5])
    model = bursar.GaussianMixture(**{**GOOD, "weights_": weights})
    weights[0] = 9.0
    assert model.weights_[0] == 0.5
    with pytest.raises(FrozenInstanceError):
        model.weights_ = weights  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        model.means_[0, 0] = 1.0


def test_an_empty_component_is_never_predicted(make_mixture: Any) -> None:
    """A weight of zero is allowed, warns nobody, and takes no row."""
    model = replace(make_mixture(4, "full", k=2), weights_=np.array([1.0, 0.0]))
    assert set(model.predict(model.means_)) == {0}
    np.testing.assert_array_equal(model.predict_proba(POINTS)[:, 1], 0.0)
    assert set(model.sample(20, random_state=0)[1]) == {0}


def test_without_scikit_learn_the_error_says_how_to_get_it(make_mixture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is answered with the command that installs it."""
    monkeypatch.setitem(sys.modules, "sklearn.mixture", None)
    with pytest.raises(bursar.MissingDependencyError, match=r"pip install './bursar\[sklearn\]'"):
        make_mixture(1, "full").to_sklearn()


def test_a_model_shows_its_parameters(make_mixture: Any) -> None:
    """The text has a row a component under the columns' names; the HTML escapes what is in it."""
    model = replace(make_mixture(1, "tied"), columns=("age", "<b>"))
    lines = repr(model).splitlines()
    assert lines[0] == "GaussianMixture: 3 components, tied covariances"
    assert lines[1].split() == ["weight", "age", "<b>"]
    assert len(lines) == 2 + 3
    assert "nan" not in repr(model)
    assert "&lt;b&gt;" in model._repr_html_()
