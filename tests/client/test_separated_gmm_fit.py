"""Separated components through the client: what is sent, what comes back, and what it may start."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bursar
from bursar.testing import Server
from bursar_models import CovarianceType, cholesky_factors, reshaped_covariances
from tests import asking
from tests.client.conftest import height_and_weight
from tests.client.line import Line, array

ASK: dict[str, Any] = {"n_components": 2, "sigma_min": 1.0, "sigma_max": 20.0, "spend": bursar.rho(1)}
MORE: dict[str, Any] = {**ASK, "n_components": 4}


@pytest.fixture(scope="module")
def apart(toys: Server) -> str:
    """The name of a table with two components that are far apart."""
    rng = np.random.default_rng(0)  # noqa: TID251 - synthetic rows
    places, noise = np.arange(4000) % 2, rng.normal(scale=3.0, size=(2, 4000))
    rows = {"height": (130 + 60 * places + noise[0]).tolist(), "weight": (60 + 60 * places + noise[1]).tolist()}
    return toys.add_table(height_and_weight("apart"), rows, budget=bursar.epsilon_delta(1e4, 1e-6))


@pytest.fixture
def toy(apart: str, client: bursar.Client) -> bursar.Dataset:
    """Put that table in the place of the one that all tests have."""
    return client.dataset(apart)


def test_what_is_found_is_a_mixture_with_its_receipt_and_its_errors(server: Line, toy: bursar.Dataset) -> None:
    """All of them, in the data's own units, from one debit."""
    model = asking.fit(toy, bursar.SeparatedGMM, **ASK)
    wire = server.model
    assert type(model) is bursar.GaussianMixture
    assert (model.found_, model.n_components, model.columns) == (2, 2, ("height", "weight"))
    assert model.receipt is not None
    assert model.receipt.price.rho == pytest.approx(1)
    assert model.n_rows == wire.n_rows
    assert model.iterations == wire.iterations
    np.testing.assert_allclose(sorted(model.means_.tolist()), [[130, 60], [190, 120]], atol=1)
    np.testing.assert_allclose(model.covariances_, np.tile(3.0**2 * np.eye(2), (2, 1, 1)), atol=3)
    assert model.separation is not None
    np.testing.assert_array_equal(np.array(model.mean_errors_), array(wire.mean_errors))
    np.testing.assert_array_equal(np.array(model.weight_errors_), array(wire.weight_errors))
    np.testing.assert_array_equal(np.array(model.covariance_errors_), array(wire.covariance_errors))
    assert [noise.name for noise in model.noise] == [noise.name for noise in wire.noise]
    assert [release.method for release in toy.releases()] == ["FitSeparatedGMM"]
    (found,) = model.predict([[130, 60]])
    table = pd.DataFrame([[130, 60]], columns=list(model.columns))
    assert model.to_sklearn().predict(table).tolist() == [found]
    np.testing.assert_allclose(model.means_[found], [130, 60], atol=1)


def test_fewer_than_were_looked_for_are_a_result_that_says_so(toy: bursar.Dataset) -> None:
    """Not an error: found_ is how many there are, and the text names both numbers."""
    model = asking.fit(toy, bursar.SeparatedGMM, **MORE)
    assert model.found_ == model.n_components == 2
    assert model.separation is not None
    assert (model.separation.sought, repr(model.separation)) == (
        4,
        "Separation: 2 components of 4 that were looked for",
    )
    assert model.receipt is not None
    title, header, row, *_ = repr(model).splitlines()
    shown = f"full covariances, entry {model.receipt.entry} of 'apart'"
    assert title == f"GaussianMixture: 2 components of 4 that were looked for, {shown}"
    assert header.split() == ["weight", "height", "weight", "covariance"]
    assert re.fullmatch(r"(\s+\S+ ± \S+){3}\s+± \S+%", row)
    assert "of 4 that were looked for" in model._repr_html_()


@pytest.mark.parametrize(("kind", "shape"), [("full", (2, 2, 2)), ("diag", (2, 2)), ("spherical", (2,))])
def test_every_covariance_type_comes_back_in_its_shape(toy: bursar.Dataset, kind: Any, shape: tuple[int, ...]) -> None:
    """One covariance for each component."""
    model = asking.fit(toy, bursar.SeparatedGMM, **ASK, covariance_type=kind)
    assert (model.covariance_type, model.covariances_.shape) == (kind, shape)


def test_spheres_in_units_of_the_bounds_are_diagonal_in_the_datas(toy: bursar.Dataset) -> None:
    """The server says so, and the client takes its word."""
    ask = {**ASK, "sigma_min": 0.01, "sigma_max": 0.5}
    model = asking.fit(toy, bursar.SeparatedGMM, **ask, covariance_type="spherical", units="bounds", columns=["weight"])
    assert (model.covariance_type, model.covariances_.shape, model.columns) == ("diag", (2, 1), ("weight",))


@pytest.mark.parametrize("variant", ["easy", "sample_and_aggregate"])
def test_the_papers_variants_find_spheres_unless_told_otherwise(toy: bursar.Dataset, variant: Any) -> None:
    """The recursion finds full covariances; the paper's variants do not, and blocks have no other shapes."""
    assert asking.fit(toy, bursar.SeparatedGMM, **ASK, variant=variant, anyway=True).covariance_type == "spherical"
    assert asking.fit(toy, bursar.SeparatedGMM, **ASK).covariance_type == "full"
    if variant == "easy":
        assert (
            asking.fit(toy, bursar.SeparatedGMM, **ASK, variant=variant, covariance_type="full").covariance_type
            == "full"
        )
    else:
        with pytest.raises(bursar.InvalidRequestError, match="covariance_type"):
            asking.fit(toy, bursar.SeparatedGMM, **ASK, variant=variant, covariance_type="full")


def test_a_preview_says_whether_the_components_will_be_found(server: Line, toy: bursar.Dataset) -> None:
    """And from which spend on; nothing is debited for it."""
    enough = asking.preview(toy, bursar.SeparatedGMM, **ASK)
    little = asking.preview(toy, bursar.SeparatedGMM, **{**MORE, "spend": bursar.rho(1e-3)})
    assert enough.preflight is not None
    assert enough.preflight.predicted_found == 2
    assert enough.preflight.holds
    assert little.preflight is not None
    assert (little.preflight.predicted_found, little.preflight.holds) == (1, False)
    assert "expected to find 1 components; relative error of a covariance: 0." in repr(little)
    assert re.search(r"rules of thumb, which hold from 1 on: .*; all do from about epsilon \S+ \(", repr(little))
    assert toy.releases() == []


def test_a_preview_without_a_preflight_says_nothing_of_it(server: Line, toy: bursar.Dataset) -> None:
    """The number of rows may be private, or no spend may do."""
    server.changes["FitService/Preview"] = lambda answer: answer.ClearField("preflight")
    one = asking.preview(toy, bursar.SeparatedGMM, **ASK)
    server.changes["FitService/Preview"] = lambda answer: setattr(answer.preflight, "suggested_rho", 0.0)
    two = asking.preview(toy, bursar.SeparatedGMM, **ASK)
    assert one.preflight is None
    assert "expected to find" not in repr(one)
    assert two.preflight is not None
    assert two.preflight.suggested_rho is None
    assert "about rho" not in repr(two)


@pytest.mark.parametrize("given", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("wanted", ["full", "tied", "diag", "spherical"])
def test_covariances_take_another_shape(given: CovarianceType, wanted: CovarianceType) -> None:
    """Numbers that the shape has room for stay; the rest is averaged or left out."""
    rng = np.random.default_rng(0)  # noqa: TID251 - random parameters, no release
    k, d, weights = 3, 2, np.array([0.5, 0.25, 0.25])
    roots = rng.normal(size=(k, d, d))
    matrices = roots @ roots.swapaxes(1, 2) + np.eye(d)
    covariances = {
        "full": matrices,
        "tied": matrices[0],
        "diag": matrices.diagonal(axis1=1, axis2=2),
        "spherical": matrices[:, 0, 0],
    }[given]
    shaped = reshaped_covariances(covariances, weights, d, given=given, wanted=wanted)
    before, after = (_matrices(values, kind, k, d) for values, kind in ((covariances, given), (shaped, wanted)))
    if wanted == "tied" and given != "tied":
        before = np.broadcast_to(np.einsum("k,kij->ij", weights, before), before.shape)
    np.testing.assert_allclose(np.trace(after, axis1=1, axis2=2), np.trace(before, axis1=1, axis2=2))
    if wanted in ("full", "tied"):
        np.testing.assert_allclose(after, before, atol=1e-12)
    if wanted == "diag":
        np.testing.assert_allclose(after, before * np.eye(d), atol=1e-12)


def _matrices(covariances: Any, kind: CovarianceType, k: int, d: int) -> Any:
    factors = cholesky_factors(np.asarray(covariances), kind, k, d)
    if factors.ndim == 2:
        return factors[:, :, None] ** 2 * np.eye(d)
    return factors @ factors.swapaxes(1, 2)


ERRORS: dict[str, Any] = {
    "sought": 3,
    "mean_errors": [[0.1, 0.2], [0.3, 0.4]],
    "weight_errors": [0.0, 0.1],
    "covariance_errors": [0.1, 0.2],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sought": 1}, "sought: expected at least 2"),
        ({"sought": float("nan")}, "sought: expected at least 2"),
        ({"mean_errors": [0.1, 0.2]}, r"mean_errors: expected shape \(found, d\)"),
        ({"mean_errors": [[0.1, np.nan], [0.3, 0.4]]}, "mean_errors: every entry must be finite"),
        ({"mean_errors": [[0.1, -0.2], [0.3, 0.4]]}, "mean_errors: every entry must be at least 0"),
        ({"weight_errors": [0.1]}, r"weight_errors: expected shape \(2,\)"),
        ({"weight_errors": [0.1, -1e-9]}, "weight_errors: every entry must be at least 0"),
        ({"covariance_errors": [[0.1, 0.2]]}, r"covariance_errors: expected shape \(2,\)"),
        ({"covariance_errors": [0.1, np.inf]}, "covariance_errors: every entry must be finite"),
    ],
)
def test_errors_check_themselves(change: dict[str, Any], message: str) -> None:
    """Shapes, signs and numbers."""
    with pytest.raises(ValueError, match=message):
        bursar.Separation(**{**ERRORS, **change})


def test_errors_are_read_only_and_those_of_their_model() -> None:
    """A mixture takes those of its own shape alone; one without has none."""
    separation = bursar.Separation(**ERRORS)
    with pytest.raises(ValueError, match="read-only"):
        separation.weight_errors[0] = 1.0
    shared: dict[str, Any] = {"covariance_type": "spherical", "separation": separation}
    mixture = bursar.GaussianMixture(np.full(2, 0.5), np.zeros((2, 2)), np.ones(2), **shared)
    assert (mixture.found_, mixture.weight_errors_ is separation.weight_errors) == (2, True)
    bare = replace(mixture, separation=None)
    assert (bare.found_, bare.mean_errors_, bare.weight_errors_, bare.covariance_errors_) == (None, None, None, None)
    with pytest.raises(ValueError, match=r"separation: expected mean_errors of shape \(1, 2\), got \(2, 2\)"):
        bursar.GaussianMixture(np.ones(1), np.zeros((1, 2)), np.ones(1), **shared)


def test_more_components_than_were_asked_for_are_the_servers_error(server: Line, toy: bursar.Dataset) -> None:
    """A request for one gets one at most."""
    server.before["FitService/FitSeparatedGMM"] = lambda request: setattr(request, "n_components", 2)
    with pytest.raises(bursar.ServerError, match="sought: expected at least 2"):
        asking.fit(toy, bursar.SeparatedGMM, **{**ASK, "n_components": 1})
