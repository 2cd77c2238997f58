"""Gradient EM through the client: what is sent, what comes back, and what may be a start."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bursar
from bursar_proto.v1 import fit_pb2
from tests import asking
from tests.client.conftest import height_and_weight
from tests.client.line import Line, array, tensor

SPEND = bursar.rho(0.1)
SYMMETRIC: dict[str, Any] = {"model": "symmetric_mixture", "spend": SPEND}
GAUSSIANS: dict[str, Any] = {"model": "gaussian_mixture", "spend": SPEND}
LINES: dict[str, Any] = {"model": "mixture_of_regressions", "spend": SPEND, "target": "weight"}
MISSING: dict[str, Any] = {"model": "missing_covariates", "spend": SPEND, "target": "weight"}
EVERY = [SYMMETRIC, GAUSSIANS, LINES, MISSING]
TYPES = [bursar.SymmetricMixture, bursar.GaussianMixture, bursar.MixtureOfRegressions, bursar.LinearRegression]


@pytest.mark.parametrize(("ask", "kind"), list(zip(EVERY, TYPES, strict=True)))
def test_every_model_has_its_type_its_receipt_and_its_trace(
    server: Line, toy: bursar.Dataset, ask: dict[str, Any], kind: type[Any]
) -> None:
    """The receipt is of one debit and of its method; the numbers are those of the wire."""
    model: Any = asking.fit(toy, bursar.GradientEM, **ask)
    wire = server.model
    assert type(model) is kind
    assert (model.receipt.price.rho, model.n_rows) == (pytest.approx(0.1), wire.n_rows)
    assert model.iterations == model.trace.iterations == wire.iterations == len(model.trace.scales)
    assert (model.trace.variant, model.trace.averaged) == ("recentred", wire.averaged)
    assert model.trace.step_size == wire.step_size
    assert [(noise.name, noise.sum_std, noise.times) for noise in model.noise] == [
        (noise.name, noise.sum_std, noise.times) for noise in wire.noise
    ]
    assert f"entry {model.receipt.entry} of 'toy'" in repr(model)
    assert [release.method for release in toy.releases()] == ["FitGradientEM"]


def test_a_symmetric_mixture_has_its_centre(server: Line, toy: bursar.Dataset) -> None:
    """The middle of the bounds, or what the caller says."""
    model = asking.fit(toy, bursar.GradientEM, **SYMMETRIC)
    wire = server.model
    assert model.columns == ("height", "weight")
    np.testing.assert_allclose(model.centre_, [160, 90])
    first, second = array(wire.coefficients)
    np.testing.assert_allclose(model.beta_, (first - second) / 2)
    np.testing.assert_array_equal(model.noise_std_, array(wire.noise_std)[0])
    np.testing.assert_array_equal(np.array(model.beta_errors_), array(wire.coefficient_errors)[0])
    other = asking.fit(toy, bursar.GradientEM, **SYMMETRIC, centre=[170, 80], columns=["height", "weight"])
    np.testing.assert_allclose(other.centre_, [170, 80])


def test_gaussians_are_spheres_where_columns_share_a_unit(server: Line, toy: bursar.Dataset) -> None:
    """Means have their errors."""
    spheres = asking.fit(toy, bursar.GradientEM, **GAUSSIANS, n_components=3)
    wire = server.model
    assert (spheres.covariance_type, spheres.n_components) == ("spherical", 3)
    np.testing.assert_allclose(spheres.covariances_, array(wire.noise_std)[:, 0] ** 2)
    np.testing.assert_array_equal(spheres.means_, array(wire.coefficients))
    np.testing.assert_array_equal(np.array(spheres.mean_errors_), array(wire.coefficient_errors))


def test_gaussians_with_units_of_their_own_are_diagonal(server: Line, toy: bursar.Dataset) -> None:
    """One standard deviation for each column of each component."""
    server.changes["FitService/FitGradientEM"] = uneven
    model = asking.fit(toy, bursar.GradientEM, **GAUSSIANS, units="bounds")
    assert model.covariance_type == "diag"
    np.testing.assert_allclose(model.covariances_, [[1.0, 4.0], [9.0, 16.0]])


def uneven(answer: fit_pb2.FitGradientEMResponse) -> None:
    """Give two components in two columns other standard deviations."""
    if answer.HasField("model"):
        answer.model.noise_std.CopyFrom(tensor([[1.0, 2.0], [3.0, 4.0]]))


def test_regressions_predict_the_target(server: Line, toy: bursar.Dataset) -> None:
    """The features are those of the request, in the data's own units."""
    lines = asking.fit(toy, bursar.GradientEM, **LINES, features=["height"])
    wire = server.model
    assert (lines.columns, lines.target, lines.n_components) == (("height",), "weight", 2)
    slopes, intercepts = array(wire.coefficients)[:, 0], array(wire.intercepts)
    np.testing.assert_allclose(
        lines.predict_components([[160.0], [220.0]]), [intercepts + 160 * slopes, intercepts + 220 * slopes]
    )
    np.testing.assert_array_equal(np.array(lines.coef_errors_), array(wire.coefficient_errors))
    np.testing.assert_array_equal(np.array(lines.intercept_errors_), array(wire.intercept_errors))
    np.testing.assert_array_equal(np.array(lines.feature_means_), array(wire.feature_means))
    np.testing.assert_array_equal(np.array(lines.feature_covariance_), array(wire.feature_covariance))
    both = asking.fit(toy, bursar.GradientEM, **LINES, symmetric=True)
    assert both.symmetric
    np.testing.assert_array_equal(np.array(both.feature_means_), array(server.model.feature_means))
    np.testing.assert_array_equal(both.coef_[0], -both.coef_[1])
    assert not asking.fit(toy, bursar.GradientEM, **LINES, fit_intercept=False).intercept_.any()


def test_missing_covariates_make_one_regression(server: Line, toy: bursar.Dataset) -> None:
    """It predicts where a feature is missing, too, with more doubt."""
    line = asking.fit(toy, bursar.GradientEM, **MISSING)
    wire = server.model
    (slope,), (intercept,) = array(wire.coefficients)[0], array(wire.intercepts)
    expected, std = line.predict({"height": [220.0, np.nan]}, return_std=True)
    mean, spread = wire.feature_means.values[0], wire.feature_std.values[0]
    np.testing.assert_allclose(expected, [intercept + 220 * slope, intercept + mean * slope])
    (noise,) = wire.noise_std.values
    np.testing.assert_allclose(std, [noise, np.hypot(noise, slope * spread)])
    np.testing.assert_allclose(line.to_sklearn().predict(pd.DataFrame({"height": [220.0]})), expected[:1])
    np.testing.assert_array_equal(np.array(line.coef_errors_), array(wire.coefficient_errors)[0])


@pytest.mark.parametrize("ask", EVERY)
def test_a_preview_tells_the_errors_that_its_model_has(toy: bursar.Dataset, ask: dict[str, Any]) -> None:
    """Errors are of coefficients or of means, by column; the given numbers are those of the fit."""
    given = {"iterations": 7, "step_size": 0.5, "averaged": 3, "noise_std": 2.0}
    model = asking.fit(toy, bursar.GradientEM, **ask, **given)
    preview = asking.preview(toy, bursar.GradientEM, **ask, **given)
    assert (model.trace.averaged, model.trace.step_size, model.trace.iterations) == (3, 0.5, 7)
    assert preview.price == model.receipt.price
    name, columns = ("coef_error", ["height"]) if "target" in ask else ("mean_error", ["height", "weight"])
    assert set(preview.expected) == {name, "relative_error"}
    errors = preview.expected[name]
    assert isinstance(errors, Mapping)
    assert list(errors) == columns


@pytest.mark.parametrize("variant", ["recentred", "truncated", "radial", "clipped", "dp_em"])
def test_every_variant_comes_back(toy: bursar.Dataset, variant: Any) -> None:
    """Each variant has its name."""
    trace = asking.fit(toy, bursar.GradientEM, **GAUSSIANS, variant=variant).trace
    assert trace is not None
    assert trace.variant == variant


def test_features_that_may_be_null_are_for_the_model_that_has_them_missing(server: Line, client: bursar.Client) -> None:
    """It has all numeric columns by default, the others those that every row has."""
    gaps = client.dataset(
        server.server.add_table(height_and_weight("holes", nullable=True), budget=bursar.epsilon_delta(10, 1e-6))
    )
    asking.fit(gaps, bursar.GradientEM, **MISSING)
    asking.fit(gaps, bursar.GradientEM, **GAUSSIANS)
    for ask in (partial(asking.preview, gaps, bursar.GradientEM), partial(asking.fit, gaps, bursar.GradientEM)):
        with pytest.raises(bursar.InvalidRequestError):  # nothing is left to explain the target
            ask(**LINES)
    assert [list(request.columns) for request in server.gradient_em_requests] == [["height"], ["weight"], []]
