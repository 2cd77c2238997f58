"""Releases of gradient EM: symmetric mixtures, regressions, mixtures of them, and how their iterates went."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from bursar_models import GaussianMixture, GradientTrace, LinearRegression, MixtureOfRegressions, SymmetricMixture
from bursar_models.arrays import FloatArray

RNG = np.random.default_rng(1)  # noqa: TID251 - invented rows and parameters, no release
ROWS = RNG.normal(size=(50, 2))
COEF = np.array([[2.0, -1.0], [-3.0, 0.5], [0.0, 4.0]])
INTERCEPT = np.array([1.0, -2.0, 0.5])
WEIGHTS = np.array([0.5, 0.3, 0.2])
STD = np.array([0.5, 1.0, 2.0])


def make_trace(k: int, p: int, **change: Any) -> GradientTrace:
    """Four steps of k components with p numbers each."""
    good: dict[str, Any] = {
        "variant": "recentred",
        "iterates": np.arange(5.0)[:, None, None] * np.ones((k, p)),
        "errors": 0.1 + 0.1 * np.arange(float(k * p)).reshape(k, p),
        "scales": [4.0, 3.0, 2.0, 2.0],
        "step_size": 1.0,
        "averaged": 2,
    }
    return GradientTrace(**{**good, **change})


def mirrored(**change: Any) -> SymmetricMixture:
    """Two components on two columns whose noise differs."""
    good = {"beta_": [2.0, -1.0], "centre_": [10.0, 5.0], "noise_std_": [0.5, 1.5]}
    return SymmetricMixture(**{**good, **change})


def line(**change: Any) -> LinearRegression:
    """A regression that knows what stands for a missing feature."""
    good = {
        "coef_": COEF[0],
        "intercept_": 1.0,
        "noise_std_": 0.5,
        "feature_means_": [3.0, -1.0],
        "feature_std_": [2.0, 0.5],
    }
    return LinearRegression(**{**good, **change})


def lines(**change: Any) -> MixtureOfRegressions:
    """Three regressions."""
    good = {"coef_": COEF, "intercept_": INTERCEPT, "weights_": WEIGHTS, "noise_std_": STD}
    return MixtureOfRegressions(**{**good, **change})


def test_a_symmetric_mixture_is_that_mixture() -> None:
    """Densities, components and probabilities are those of two mirrored Gaussians, by their formula."""
    model = mirrored()
    rows = model.centre_ + 2 * ROWS
    np.testing.assert_allclose(model.means_, [[12.0, 4.0], [8.0, 6.0]])
    np.testing.assert_array_equal(model.weights_, [0.5, 0.5])
    densities = np.stack([norm.pdf(rows, mean, model.noise_std_).prod(axis=1) for mean in model.means_], axis=1)
    np.testing.assert_allclose(model.score_samples(rows), np.log(densities.mean(axis=1)))
    assert model.score(rows) == pytest.approx(np.log(densities.mean(axis=1)).mean())
    # With noise of one size, w = 1 / (1 + exp(-2 <b, y> / sigma^2)): the factor 2 that Wang et al. 2020 left out.
    standard = (rows - model.centre_) / np.square(model.noise_std_)
    np.testing.assert_allclose(model.predict_proba(rows)[:, 0], 1 / (1 + np.exp(-2 * standard @ model.beta_)))
    np.testing.assert_array_equal(model.predict(rows), (standard @ model.beta_ < 0).astype(int))


def test_a_symmetric_mixture_samples_and_goes_to_scikit_learn() -> None:
    """Its samples and its scikit-learn form are those of the mixture that it is."""
    model = mirrored()
    rows, components = model.sample(4000, random_state=0)
    # Six standard errors: 2e-9 a number.
    for z in (0, 1):
        part = rows[components == z]
        assert (abs(part.mean(axis=0) - model.means_[z]) < 6 * model.noise_std_ / np.sqrt(len(part))).all()
    np.testing.assert_allclose(model.to_sklearn().predict_proba(rows[:50]), model.predict_proba(rows[:50]), atol=1e-12)
    with pytest.raises(ValueError, match="at least 1 row"):
        model.sample(0)


def test_a_regression_predicts_as_scikit_learn_does() -> None:
    """Columns are found by position and by name, without missing features."""
    model = line(columns=("a", "b"), target="c")
    np.testing.assert_allclose(model.predict(ROWS), ROWS @ COEF[0] + 1)
    other = line().to_sklearn()
    np.testing.assert_allclose(other.predict(ROWS), model.predict(ROWS))
    np.testing.assert_allclose(model.predict({"b": ROWS[:, 1], "c": ROWS[:, 0], "a": ROWS[:, 0]}), model.predict(ROWS))
    np.testing.assert_array_equal(model.predict(ROWS, return_std=True)[1], np.full(50, 0.5))
    noisy = model.predict(ROWS) + 0.3 * RNG.normal(size=50)
    assert model.score(ROWS, noisy) == pytest.approx(other.score(ROWS, noisy))
    assert model.score(ROWS, model.predict(ROWS)) == 1.0


def test_missing_features_are_what_they_are_on_average() -> None:
    """The prediction is the mean over the missing features' law, and the standard deviation is that of the target."""
    model = line()
    rows = np.array([[np.nan, 2.0], [1.0, np.nan], [np.nan, np.nan], [1.0, 2.0]])
    expected, std = model.predict(rows, return_std=True)
    np.testing.assert_allclose(expected, [6 - 2 + 1, 2 + 1 + 1, 6 + 1 + 1, 2 - 2 + 1])
    np.testing.assert_allclose(std, np.sqrt([16 + 0.25, 0.25 + 0.25, 16 + 0.25 + 0.25, 0.25]))
    np.testing.assert_array_equal(model.predict(rows), expected)
    with pytest.raises(ValueError, match="finite, or NaN where it is missing"):
        model.predict([[np.inf, 1.0]])
    with pytest.raises(ValueError, match="drop or fill missing values first"):
        line(feature_means_=None, feature_std_=None).predict(rows)


def test_a_mixture_of_regressions_has_the_densities_of_its_formula() -> None:
    """Densities of the target given the features, probabilities of the components by Bayes' rule, means."""
    model = lines()
    y = RNG.normal(size=50)
    joint = WEIGHTS * norm.pdf(y[:, None], ROWS @ COEF.T + INTERCEPT, STD)
    np.testing.assert_allclose(model.score_samples(ROWS, y), np.log(joint.sum(axis=1)))
    assert model.score(ROWS, y) == pytest.approx(np.log(joint.sum(axis=1)).mean())
    np.testing.assert_allclose(model.predict_proba(ROWS, y), joint / joint.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(model.predict_components(ROWS), ROWS @ COEF.T + INTERCEPT)
    np.testing.assert_allclose(model.predict(ROWS), (ROWS @ COEF.T + INTERCEPT) @ WEIGHTS)


def test_far_targets_and_empty_components_have_probabilities() -> None:
    """No density underflows to 0/0, and a weight of 0 is responsible for nothing."""
    model = lines(weights_=[0.5, 0.5, 0.0])
    proba = model.predict_proba(ROWS[:2], [1e6, -1e6])
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(proba[:, 2], 0)


def test_synthetic_targets_follow_the_model() -> None:
    """Components as often as their weights say, targets about the component's line with its noise."""
    model = lines()
    n = 6000
    X = RNG.normal(size=(n, 2))
    y, z = model.sample(X, random_state=3)
    residuals = y - model.predict_components(X)[np.arange(n), z]
    # Six standard errors of shares, means and mean squares: all nine right but for 2e-8.
    for component in range(3):
        own, count = residuals[z == component], np.count_nonzero(z == component)
        weight, std = WEIGHTS[component], STD[component]
        assert abs(count / n - weight) < 6 * np.sqrt(weight * (1 - weight) / n)
        assert abs(own.mean()) < 6 * std / np.sqrt(count)
        assert abs(np.square(own).mean() / std**2 - 1) < 6 * np.sqrt(2 / count)


def test_a_component_is_a_regression_with_its_errors() -> None:
    """It predicts one line, and knows the iterates of its own numbers."""
    model = lines(trace=make_trace(3, 3), columns=("a", "b"), target="c")
    one = model.component(1)
    np.testing.assert_allclose(one.predict(ROWS), model.predict_components(ROWS)[:, 1])
    assert (one.noise_std_, one.target, one.columns) == (1.0, "c", ("a", "b"))
    assert one.trace is not None
    assert one.trace.iterates.shape == (5, 1, 3)
    np.testing.assert_allclose(np.array(one.coef_errors_), [0.4, 0.5])
    assert one.intercept_error_ == pytest.approx(0.6)
    for number in (-1, 3):
        with pytest.raises(IndexError, match="expected 0 to 2"):
            model.component(number)


def test_errors_come_with_the_numbers_that_they_are_of() -> None:
    """Coefficients, intercepts, b and means have them; None stands where no gradient EM made the model."""
    model = lines(trace=make_trace(3, 3))
    np.testing.assert_allclose(np.array(model.coef_errors_), [[0.1, 0.2], [0.4, 0.5], [0.7, 0.8]])
    np.testing.assert_allclose(np.array(model.intercept_errors_), [0.3, 0.6, 0.9])
    np.testing.assert_allclose(np.array(mirrored(trace=make_trace(2, 2)).beta_errors_), [0.1, 0.2])
    mixture = replace(mirrored().mixture, trace=make_trace(2, 2))
    np.testing.assert_allclose(np.array(mixture.mean_errors_), [[0.1, 0.2], [0.3, 0.4]])
    bare: list[FloatArray | float | None] = [lines().coef_errors_, lines().intercept_errors_, line().coef_errors_]
    bare += [line().intercept_error_, mirrored().beta_errors_, mirrored().mixture.mean_errors_]
    assert bare == [None] * 6


def test_a_trace_says_how_far_steps_went() -> None:
    """Moves are in errors, over the numbers that have one; a fixed number does not count."""
    trace = make_trace(1, 2, errors=[[0.5, 0.25]])
    assert trace.iterations == 4
    np.testing.assert_allclose(trace.moves(), np.sqrt((4 + 16) / 2) * np.ones(4))
    assert np.isfinite(make_trace(1, 2, errors=[[0.5, 0.0]]).moves()).all()
    assert repr(trace) == "GradientTrace: 4 recentred steps of size 1, the last 2 averaged"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "catoni"}, "variant: expected one of"),
        ({"iterates": np.zeros((5, 4))}, "iterates: expected shape"),
        ({"iterates": np.zeros((0, 2, 2))}, "iterates: expected shape"),
        ({"iterates": np.full((5, 2, 2), np.nan)}, "iterates: every entry must be finite"),
        ({"errors": np.ones((2, 3))}, r"errors: expected shape \(2, 2\)"),
        ({"errors": -np.ones((2, 2))}, "errors: every entry must be at least 0"),
        ({"scales": [1.0]}, r"scales: expected shape \(4,\)"),
        ({"scales": [1.0, 1.0, -1.0, 1.0]}, "scales: every entry must be at least 0"),
        ({"step_size": 0.0}, "step_size: expected a number above 0"),
        ({"step_size": np.nan}, "step_size: expected a number above 0"),
        ({"averaged": 0}, "averaged: expected 1 to 5"),
        ({"averaged": 6}, "averaged: expected 1 to 5"),
    ],
)
def test_what_is_no_trace_is_refused(change: dict[str, Any], message: str) -> None:
    """Every rule has an error that names the field."""
    with pytest.raises(ValueError, match=message):
        make_trace(2, 2, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta_": [[1.0, 2.0]]}, "beta_: expected shape"),
        ({"beta_": []}, "beta_: expected shape"),
        ({"centre_": [1.0]}, r"centre_: expected shape \(2,\)"),
        ({"noise_std_": [1.0, 0.0]}, "noise_std_: every standard deviation must be above 0"),
        ({"columns": ("a",)}, "expected 2 names"),
        ({"trace": make_trace(1, 2)}, r"trace: expected iterates of shape \(T \+ 1, 2, 2\)"),
    ],
)
def test_what_is_no_symmetric_mixture_is_refused(change: dict[str, Any], message: str) -> None:
    """Every rule on the parameters has an error that names the field."""
    with pytest.raises(ValueError, match=message):
        mirrored(**change)


def test_a_mixtures_trace_is_of_its_means() -> None:
    """The trace has as many means, of as many columns."""
    with pytest.raises(ValueError, match=r"trace: expected iterates of shape \(T \+ 1, 2, 2\)"):
        replace(mirrored().mixture, trace=make_trace(2, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coef_": COEF}, "coef_: expected shape"),
        ({"coef_": []}, "coef_: expected shape"),
        ({"intercept_": np.inf}, "intercept_: expected a finite number"),
        ({"intercept_": np.nan}, "intercept_: expected a finite number"),
        ({"noise_std_": 0.0}, "noise_std_: expected a number above 0"),
        ({"noise_std_": np.nan}, "noise_std_: expected a number above 0"),
        ({"feature_means_": None}, "expected both or neither"),
        ({"feature_std_": None}, "expected both or neither"),
        ({"feature_means_": [1.0]}, r"feature_means_: expected shape \(2,\)"),
        ({"feature_std_": [1.0, -1.0]}, "feature_std_: every standard deviation must be at least 0"),
        ({"columns": ("a",)}, "expected 2 names"),
        ({"trace": make_trace(1, 2)}, r"trace: expected iterates of shape \(T \+ 1, 1, 3\)"),
    ],
)
def test_what_is_no_regression_is_refused(change: dict[str, Any], message: str) -> None:
    """The refusal names the field."""
    with pytest.raises(ValueError, match=message):
        line(**change)


SYMMETRIC = {
    "coef_": [[1.0, 2.0], [-1.0, -2.0]],
    "intercept_": [0.0, 0.0],
    "weights_": [0.5, 0.5],
    "noise_std_": [1.0, 1.0],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coef_": COEF[0]}, "coef_: expected shape"),
        ({"coef_": np.zeros((3, 0))}, "coef_: expected shape"),
        ({"intercept_": [0.0]}, r"intercept_: expected shape \(3,\)"),
        ({"weights_": [0.5, 0.5, 0.5]}, "expected a sum of 1"),
        ({"noise_std_": [1.0, 1.0]}, r"noise_std_: expected shape \(3,\)"),
        ({"noise_std_": [1.0, 1.0, -1.0]}, "noise_std_: every standard deviation must be above 0"),
        ({"columns": ("a",)}, "expected 2 names"),
        ({"symmetric": True}, "symmetric: expected coefficients b and -b"),
        ({**SYMMETRIC, "symmetric": True, "intercept_": [1.0, -1.0]}, "symmetric: expected coefficients b and -b"),
        ({**SYMMETRIC, "symmetric": True, "coef_": [[1.0, 2.0], [1.0, 2.0]]}, "symmetric: expected coefficients"),
        ({"trace": make_trace(3, 2)}, r"trace: expected iterates of shape \(T \+ 1, 3, 3\)"),
    ],
)
def test_what_is_no_mixture_of_regressions_is_refused(change: dict[str, Any], message: str) -> None:
    """The refusal names the field."""
    with pytest.raises(ValueError, match=message):
        lines(**change)
    assert lines(**SYMMETRIC, symmetric=True).symmetric


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(49), r"y: expected shape \(50,\)"),
        (np.zeros((50, 1)), r"y: expected shape \(50,\)"),
        (np.full(50, np.nan), "y: every entry must be finite"),
    ],
)
def test_targets_that_do_not_fit_the_rows_are_refused(y: FloatArray, message: str) -> None:
    """Nothing is broadcast."""
    for ask in (lines().predict_proba, lines().score_samples, line().score):
        with pytest.raises(ValueError, match=message):
            ask(ROWS, y)


def test_models_show_themselves() -> None:
    """Names, numbers and their errors, as text and as HTML with everything escaped."""
    shown: list[SymmetricMixture | LinearRegression | MixtureOfRegressions | GaussianMixture] = [
        mirrored(columns=("a", "b<c"), trace=make_trace(2, 2)).mixture,
        mirrored(columns=("a", "b<c"), trace=make_trace(2, 2)),
        line(columns=("a", "b<c"), target="t", trace=make_trace(1, 3)),
        lines(columns=("a", "b<c"), target="t", trace=make_trace(3, 3)),
    ]
    for model in shown:
        assert "b<c" in repr(model)
        assert " ± 0.2" in repr(model)
        assert "b&lt;c" in model._repr_html_()
    sure = lines(trace=make_trace(3, 3, errors=np.zeros((3, 3))))
    assert "±" not in repr(sure)
    assert repr(lines()).splitlines()[1].split() == ["weight", "x0", "x1", "intercept", "noise"]
    assert repr(line()).splitlines()[2:] == [
        "         x0            2",
        "         x1           -1",
        "  intercept            1",
    ]
    assert repr(line(target="t")).startswith("LinearRegression of 't': noise 0.5")
    assert repr(lines(**SYMMETRIC, symmetric=True)).startswith("MixtureOfRegressions: b and -b")
    assert repr(mirrored()).splitlines()[1].split() == ["column", "centre", "b", "noise"]
