"""Released models stand where scikit-learn expects fitted estimators; its own checks say so where they apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_clusterer, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.validation import check_is_fitted

import bursar
from bursar_models import COVARIANCE_TYPES, CovarianceType

CENTRES = [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
COLUMNS = ("a", "b", "c")


def models(columns: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return one of each model that predicts, on three features, which is what scikit-learn's checks make."""
    named: dict[str, Any] = {"columns": columns}
    halves = [0.5, 0.5]
    return {
        "mixture": bursar.GaussianMixture(halves, CENTRES, [1.0, 2.0], "spherical", **named),  # type: ignore[arg-type]
        "kmeans": bursar.KMeans(CENTRES, halves, [1.0, 1.0], **named),  # type: ignore[arg-type]
        "symmetric": bursar.SymmetricMixture([1.0] * 3, [0.0] * 3, [1.0] * 3, **named),  # type: ignore[arg-type]
        "regression": bursar.LinearRegression([1.0, 2.0, 3.0], 1.0, 0.5, **named),  # type: ignore[arg-type]
        "regressions": bursar.MixtureOfRegressions(CENTRES, [0.0, 1.0], halves, [1.0, 1.0], **named),  # type: ignore[arg-type]
    }


NAMES = tuple(models())

CHECKS: tuple[Callable[..., None], ...] = (
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_valid_tag_types,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_estimators_fit_returns_self,
    estimator_checks.check_set_params,
)
"""Checks that neither train nor set attributes: the others want a `fit` that learns, or rows of other widths."""

CHECKS_OF_METHODS: tuple[Callable[..., None], ...] = (
    estimator_checks.check_dict_unchanged,
    estimator_checks.check_methods_sample_order_invariance,
    estimator_checks.check_methods_subset_invariance,
)
"""Checks of predictions, which set attributes on the way: on a `FrozenEstimator` around the model."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_checks_of_scikit_learn(name: str, check: Callable[..., None]) -> None:
    """The library's own idea of an estimator."""
    check(name, models()[name])


@pytest.mark.parametrize("check", CHECKS_OF_METHODS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "regressions"])
def test_checks_of_scikit_learn_on_predictions(name: str, check: Callable[..., None]) -> None:
    """All pass but those of the mixture of regressions, whose probabilities need the target, too."""
    check(name, FrozenEstimator(models()[name]))


@pytest.mark.parametrize("name", NAMES)
def test_a_released_model_is_fitted_and_frozen(name: str) -> None:
    """Clones and fits return the model itself; it has no parameters to set."""
    model = models(COLUMNS)[name]
    check_is_fitted(model)
    assert clone(model) is model
    assert model.fit(np.zeros((4, 3))) is model
    assert model.get_params() == {}
    assert model.set_params() is model
    with pytest.raises(ValueError, match="n_init: a released model has no parameters"):
        model.set_params(n_init=3)
    assert FrozenEstimator(model).fit(np.zeros((1, 3)), None).predict(np.zeros((1, 3))).shape == (1,)


@pytest.mark.parametrize("name", NAMES)
def test_features_have_scikit_learns_names(name: str) -> None:
    """Their number always, their names if there are any."""
    named, bare = models(COLUMNS)[name], models()[name]
    assert named.n_features_in_ == bare.n_features_in_ == 3
    assert named.feature_names_in_.tolist() == list(COLUMNS)
    assert not hasattr(bare, "feature_names_in_")


@pytest.mark.parametrize("name", NAMES)
def test_a_pipeline_ends_with_a_released_model(name: str) -> None:
    """A step that is fitted to the caller's rows comes first; predictions are those of the two in turn."""
    rows = np.random.default_rng(0).normal(size=(20, 3))  # noqa: TID251 - rows of a test, no release
    pipeline = Pipeline([("scale", StandardScaler()), ("model", models()[name])]).fit(rows)
    expected = models()[name].predict(StandardScaler().fit_transform(rows))
    np.testing.assert_array_equal(pipeline.predict(rows), expected)
    np.testing.assert_array_equal(clone(pipeline).fit(rows).predict(rows), expected)


def test_tags_say_what_a_model_is() -> None:
    """Kinds as scikit-learn tells them apart, and who takes missing values."""
    found = models()
    assert is_clusterer(found["kmeans"])
    assert is_regressor(found["regression"])
    assert is_regressor(found["regressions"])
    assert get_tags(found["mixture"]).estimator_type == "density_estimator"
    assert get_tags(found["kmeans"]).transformer_tags is not None
    assert not get_tags(found["regression"]).input_tags.allow_nan
    filled = bursar.LinearRegression([1.0], 0.0, 1.0, feature_means_=[0.0], feature_std_=[1.0])  # type: ignore[arg-type]
    assert get_tags(filled).input_tags.allow_nan


def test_distances_come_as_the_table_that_was_chosen() -> None:
    """The choice is for one call, or for all in a pipeline; names and index of the rows are kept."""
    model, rows = models(COLUMNS)["kmeans"], pd.DataFrame([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0]], [7, 9], list(COLUMNS))
    table = model.transform(rows, output="pandas")
    assert (list(table.columns), list(table.index)) == (["kmeans0", "kmeans1"], [7, 9])
    assert isinstance(model.transform(rows), np.ndarray)
    pipeline = make_pipeline(model).set_output(transform="pandas")
    pd.testing.assert_frame_equal(pipeline.transform(rows), table)
    assert pipeline.get_feature_names_out().tolist() == ["kmeans0", "kmeans1"]
    pipeline.set_output(transform="default")
    assert isinstance(model.transform(rows), np.ndarray)


@pytest.mark.parametrize("name", ["mixture", "kmeans", "regression"])
def test_what_to_sklearn_gives_knows_its_features(name: str) -> None:
    """So that a table is taken without a warning, which would fail this test."""
    model = models(COLUMNS)[name]
    rows = pd.DataFrame([[0.0, 0.5, 1.0]], columns=list(COLUMNS))
    other = model.to_sklearn()
    assert other.feature_names_in_.tolist() == list(COLUMNS)
    np.testing.assert_allclose(other.predict(rows), model.predict(rows))
    assert not hasattr(models()[name].to_sklearn(), "feature_names_in_")


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_criteria_are_scikit_learns(make_mixture: Any, covariance_type: CovarianceType) -> None:
    """The caller's rows give the same values, for every form of covariances."""
    model = make_mixture(3, covariance_type)
    rows = model.sample(50, random_state=1)[0]
    other = model.to_sklearn()
    assert model.bic(rows) == pytest.approx(other.bic(rows))
    assert model.aic(rows) == pytest.approx(other.aic(rows))
