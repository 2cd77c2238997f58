"""Gradient EM through the client: what is sent, what comes back, and what may be a start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

import bursar
from bursar._fake_gradient_em import fake_gradient_em
from bursar.testing import FakeServer, fake_server
from bursar_proto.v1 import catalog_pb2, fit_pb2, types_pb2

SPEND = bursar.rho(0.1)
SYMMETRIC: dict[str, Any] = {"model": "symmetric_mixture", "spend": SPEND}
GAUSSIANS: dict[str, Any] = {"model": "gaussian_mixture", "spend": SPEND}
LINES: dict[str, Any] = {"model": "mixture_of_regressions", "spend": SPEND, "target": "weight"}
MISSING: dict[str, Any] = {"model": "missing_covariates", "spend": SPEND, "target": "weight"}
EVERY = [SYMMETRIC, GAUSSIANS, LINES, MISSING]
TYPES = [bursar.SymmetricMixture, bursar.GaussianMixture, bursar.MixtureOfRegressions, bursar.LinearRegression]


def tensor(values: Any) -> types_pb2.Tensor:
    """On the wire."""
    array = np.asarray(values, dtype=float)
    return types_pb2.Tensor(shape=array.shape, values=array.ravel().tolist())


@pytest.mark.parametrize(("ask", "kind"), list(zip(EVERY, TYPES, strict=True)))
def test_every_model_has_its_type_its_receipt_and_its_trace(
    toy: bursar.Dataset, ask: dict[str, Any], kind: type[Any]
) -> None:
    """With one debit, of its method."""
    model: Any = toy.fit_gradient_em(**ask)
    assert type(model) is kind
    assert (model.receipt.entry, model.receipt.price.rho, model.n_rows) == (2, 0.1, 1000.0)
    assert (model.iterations, model.trace.iterations, model.trace.variant) == (4, 4, "recentred")
    assert (model.trace.averaged, model.trace.step_size) == (1, 1.0)
    assert [(noise.name, noise.sum_std, noise.times) for noise in model.noise] == [("gradient", 5.0, 4)]
    assert "entry 2 of 'toy'" in repr(model)
    assert [release.method for release in toy.releases()] == ["FitGradientEM"]


def test_a_symmetric_mixture_has_its_centre(toy: bursar.Dataset) -> None:
    """The middle of the bounds, or what the caller says."""
    model = toy.fit_gradient_em(model="symmetric_mixture", spend=SPEND)
    assert model.columns == ("height", "weight")
    np.testing.assert_allclose(model.centre_, [160, 90])
    np.testing.assert_allclose(model.beta_, [30, 30])
    np.testing.assert_allclose(model.noise_std_, [30, 30])
    np.testing.assert_allclose(np.array(model.beta_errors_), [1.9, 1.2])
    other = toy.fit_gradient_em(model="symmetric_mixture", spend=SPEND, centre=[170, 80], columns=["height", "weight"])
    np.testing.assert_allclose(other.centre_, [170, 80])


def test_gaussians_are_spheres_where_columns_share_a_unit(toy: bursar.Dataset) -> None:
    """Means have their errors."""
    spheres = toy.fit_gradient_em(model="gaussian_mixture", spend=SPEND, n_components=3)
    assert (spheres.covariance_type, spheres.n_components) == ("spherical", 3)
    np.testing.assert_allclose(spheres.covariances_, 20.0**2 * np.ones(3))
    np.testing.assert_allclose(np.array(spheres.mean_errors_), spheres.means_ / 100)


def test_gaussians_with_units_of_their_own_are_diagonal() -> None:
    """One standard deviation for each column of each component."""

    class Uneven(FakeServer):
        def FitGradientEM(
            self, request: fit_pb2.FitGradientEMRequest, context: grpc.ServicerContext
        ) -> Iterator[fit_pb2.FitGradientEMResponse]:
            for response in super().FitGradientEM(request, context):
                if response.HasField("model"):
                    response.model.noise_std.values[:] = [1.0, 2.0, 3.0, 4.0]
                yield response

    with fake_server(Uneven) as server, server.client() as client:
        model = client.dataset("toy").fit_gradient_em(model="gaussian_mixture", spend=SPEND, units="bounds")
    assert model.covariance_type == "diag"
    np.testing.assert_allclose(model.covariances_, [[1.0, 4.0], [9.0, 16.0]])


def test_regressions_predict_the_target(toy: bursar.Dataset) -> None:
    """From the features that were asked for, in the data's own units."""
    lines = toy.fit_gradient_em(model="mixture_of_regressions", target="weight", features=["height"], spend=SPEND)
    assert (lines.columns, lines.target, lines.n_components) == (("height",), "weight", 2)
    np.testing.assert_allclose(lines.predict_components([[160.0], [220.0]]), [[90, 90], [120, 150]])
    np.testing.assert_allclose(np.array(lines.coef_errors_), np.abs(lines.coef_) / 100)
    np.testing.assert_allclose(np.array(lines.intercept_errors_), np.abs(lines.intercept_) / 100)
    both = toy.fit_gradient_em(**LINES, symmetric=True)
    assert both.symmetric
    np.testing.assert_allclose(both.coef_, [[1.0], [-1.0]])
    assert not toy.fit_gradient_em(**LINES, fit_intercept=False).intercept_.any()


def test_missing_covariates_make_one_regression(toy: bursar.Dataset) -> None:
    """It predicts where a feature is missing, too."""
    line = toy.fit_gradient_em(model="missing_covariates", target="weight", spend=SPEND)
    expected, std = line.predict({"height": [220.0, np.nan]}, return_std=True)
    np.testing.assert_allclose(expected, [150, 90])
    np.testing.assert_allclose(std, [12, np.hypot(12, 30)])
    np.testing.assert_allclose(line.to_sklearn().predict([[220.0]]), [150])
    np.testing.assert_allclose(np.array(line.coef_errors_), [0.01])


def test_what_is_left_out_is_left_to_the_server(server: FakeServer, toy: bursar.Dataset) -> None:
    """Nothing but the model, the columns and the spend is said."""
    for ask in EVERY:
        toy.fit_gradient_em(**ask, request_id=ask["model"])
    sent = server.gradient_em_requests
    shared: dict[str, Any] = {"dataset": "toy", "spend": types_pb2.Spend(rho=0.1)}
    both = ["height", "weight"]
    assert sent == [
        fit_pb2.FitGradientEMRequest(
            request_id="symmetric_mixture", model=fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE, columns=both, **shared
        ),
        fit_pb2.FitGradientEMRequest(
            request_id="gaussian_mixture", model=fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE, columns=both, **shared
        ),
        fit_pb2.FitGradientEMRequest(
            request_id="mixture_of_regressions",
            model=fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS,
            columns=["height"],
            target="weight",
            **shared,
        ),
        fit_pb2.FitGradientEMRequest(
            request_id="missing_covariates",
            model=fit_pb2.LATENT_MODEL_MISSING_COVARIATES,
            columns=["height"],
            target="weight",
            **shared,
        ),
    ]


NUMBERS = {"iterations": 7, "step_size": 0.5, "averaged": 3, "noise_std": 2.0, "scale": 1.5, "zeta": 0.1, "tau": 4.0}
SENT = [
    (
        {**SYMMETRIC, "columns": ["weight"], "centre": [80], "units": "bounds", "paper_weights": True},
        {"model": 1, "columns": ["weight"], "centre": tensor([80]), "units": 2, "paper_weights": True},
    ),
    (
        {**GAUSSIANS, "n_components": 5, "start": bursar.RandomStart(9), "variant": "dp_em"},
        {
            "model": 4,
            "columns": ["height", "weight"],
            "n_components": 5,
            "random": fit_pb2.StartAtRandom(public_seed=9),
            "variant": 5,
        },
    ),
    (
        {**LINES, "n_components": 3, "fit_intercept": False, "heavy_tails": True, "features": ["height"]},
        {
            "model": 2,
            "target": "weight",
            "columns": ["height"],
            "n_components": 3,
            "without_intercept": True,
            "heavy_tails": True,
        },
    ),
    (
        {**LINES, "target": "height", "symmetric": True, "paper_weights": True},
        {"model": 2, "target": "height", "columns": ["weight"], "symmetric": True, "paper_weights": True},
    ),
    (
        {**MISSING, "start": bursar.GivenCoefficients([[0.5]], intercepts=[2.0])},
        {
            "model": 3,
            "target": "weight",
            "columns": ["height"],
            "given": fit_pb2.GradientStart(coefficients=tensor([[0.5]]), intercepts=tensor([2.0])),
        },
    ),
    (
        {**GAUSSIANS, "columns": ["height"], "start": bursar.GivenCoefficients([[120], [180]], weights=[0.25, 0.75])},
        {
            "model": 4,
            "columns": ["height"],
            "given": fit_pb2.GradientStart(coefficients=tensor([[120], [180]]), weights=tensor([0.25, 0.75])),
        },
    ),
]


@pytest.mark.parametrize(("ask", "expected"), SENT)
def test_every_argument_is_sent_and_previewed(ask: dict[str, Any], expected: dict[str, Any]) -> None:
    """What the caller sets arrives as it was set, and a preview asks the same."""
    asked: list[fit_pb2.FitGradientEMRequest] = []

    class Asked(FakeServer):
        def Preview(self, request: fit_pb2.PreviewRequest, context: grpc.ServicerContext) -> fit_pb2.PreviewResponse:
            asked.append(request.gradient_em)
            return super().Preview(request, context)

    with fake_server(Asked) as server, server.client() as client:
        toy = client.dataset("toy")
        model = toy.fit_gradient_em(**{**NUMBERS, **ask})
        preview = toy.preview_gradient_em(**{**NUMBERS, **ask})
        asked += server.gradient_em_requests
    for sent in asked:
        assert sent.request_id
        sent.ClearField("request_id")
        assert sent == fit_pb2.FitGradientEMRequest(
            dataset="toy", spend=types_pb2.Spend(rho=0.1), **{**NUMBERS, **expected}
        )
    assert len(asked) == 2
    assert model.trace is not None
    assert (model.trace.averaged, model.trace.step_size) == (3, 0.5)
    np.testing.assert_array_equal(model.trace.scales, np.full(7, 1.5))
    assert (preview.price.rho, preview.affordable, preview.iterations) == (0.1, True, 8)
    told = (preview.expected_coefficient_error, preview.expected_mean_error)
    columns = expected["columns"]
    assert told == (
        ({}, dict.fromkeys(columns, 0.5)) if "target" not in expected else (dict.fromkeys(columns, 0.01), {})
    )
    assert preview.expected_relative_error == 0.1


@pytest.mark.parametrize("variant", ["recentred", "truncated", "radial", "clipped", "dp_em"])
def test_every_variant_comes_back(toy: bursar.Dataset, variant: Any) -> None:
    """Under its name."""
    trace = toy.fit_gradient_em(**GAUSSIANS, variant=variant).trace
    assert trace is not None
    assert trace.variant == variant


def test_a_preview_takes_what_a_fit_takes() -> None:
    """All of it, with the same defaults, but for the key, the bar, and whether it is paid for."""
    fit = dict(inspect.signature(bursar.Dataset.fit_gradient_em).parameters)
    del fit["request_id"], fit["progress"], fit["dummy"]
    assert fit == dict(inspect.signature(bursar.Dataset.preview_gradient_em).parameters)


def test_features_that_may_be_null_are_for_the_model_that_has_them_missing() -> None:
    """It has all numeric columns by default, the others those that every row has."""

    class Nullable(FakeServer):
        def GetDataset(
            self, request: catalog_pb2.GetDatasetRequest, context: grpc.ServicerContext
        ) -> catalog_pb2.GetDatasetResponse:
            answer = super().GetDataset(request, context)
            answer.dataset.columns[0].numeric.nullable = True
            return answer

    with fake_server(Nullable) as server, server.client() as client:
        toy = client.dataset("toy")
        toy.fit_gradient_em(**MISSING)
        toy.fit_gradient_em(**GAUSSIANS)
        for ask in (toy.preview_gradient_em, toy.fit_gradient_em):
            with pytest.raises(bursar.InvalidRequestError):  # nothing is left to explain the target
                ask(**LINES)
        sent = [list(request.columns) for request in server.gradient_em_requests]
    assert sent == [["height"], ["weight"], []]


@pytest.mark.parametrize(
    ("ask", "change", "field"),
    [
        (SYMMETRIC, {"model": "mixture"}, "model"),
        (SYMMETRIC, {"spend": 0.1}, "spend"),
        (SYMMETRIC, {"columns": "height"}, "columns"),
        (SYMMETRIC, {"target": "height"}, "target"),
        (GAUSSIANS, {"features": ["height"]}, "features"),
        (GAUSSIANS, {"fit_intercept": False}, "fit_intercept"),
        (MISSING, {"fit_intercept": False}, "fit_intercept"),
        (SYMMETRIC, {"n_components": 2}, "n_components"),
        (MISSING, {"n_components": 1}, "n_components"),
        (GAUSSIANS, {"n_components": 0}, "n_components"),
        (GAUSSIANS, {"n_components": 2.0}, "n_components"),
        (GAUSSIANS, {"symmetric": True}, "symmetric"),
        (GAUSSIANS, {"centre": [1, 2]}, "centre"),
        (SYMMETRIC, {"centre": [1, np.nan]}, "centre"),
        (SYMMETRIC, {"centre": "middle"}, "centre"),
        (SYMMETRIC, {"units": "metres"}, "units"),
        (LINES, {"units": "bounds"}, "units"),
        (GAUSSIANS, {"paper_weights": True}, "paper_weights"),
        (LINES, {"paper_weights": True}, "paper_weights"),
        (LINES, {"columns": ["height"]}, "columns"),
        (LINES, {"target": None}, "target"),
        (LINES, {"target": ""}, "target"),
        (MISSING, {"target": 3}, "target"),
        (LINES, {"features": "height"}, "features"),
        (LINES, {"features": ["height", "weight"]}, "features"),
        (GAUSSIANS, {"variant": "catoni"}, "variant"),
        (GAUSSIANS, {"iterations": 0}, "iterations"),
        (GAUSSIANS, {"averaged": 0}, "averaged"),
        (GAUSSIANS, {"averaged": 2**32}, "averaged"),
        (GAUSSIANS, {"step_size": 0}, "step_size"),
        (GAUSSIANS, {"noise_std": -1}, "noise_std"),
        (GAUSSIANS, {"scale": float("inf")}, "scale"),
        (GAUSSIANS, {"zeta": float("nan")}, "zeta"),
        (GAUSSIANS, {"tau": "large"}, "tau"),
        (GAUSSIANS, {"start": "random"}, "start"),
        (GAUSSIANS, {"start": 3}, "start"),
    ],
)
def test_what_no_server_would_accept_is_not_sent(
    server: FakeServer, toy: bursar.Dataset, ask: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    """The error names the field, for a fit and a preview."""
    for call in (toy.fit_gradient_em, toy.preview_gradient_em):
        with pytest.raises(bursar.InvalidRequestError) as caught:
            call(**{**ask, **change})
        assert caught.value.violations[0][0] == field
    assert server.gradient_em_requests == []


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: bursar.GivenCoefficients([[np.inf]]), "start.given.coefficients"),
        (lambda: bursar.GivenCoefficients([[1.0]], intercepts=[np.nan]), "start.given.intercepts"),
        (lambda: bursar.GivenCoefficients([[1.0]], weights="all"), "start.given.weights"),
    ],
)
def test_given_parameters_check_themselves(make: Callable[[], bursar.GivenCoefficients], field: str) -> None:
    """Those that are no numbers are refused where they are made."""
    with pytest.raises(bursar.InvalidRequestError) as caught:
        make()
    assert caught.value.violations[0][0] == field


def test_earlier_models_are_starts(server: FakeServer, toy: bursar.Dataset) -> None:
    """Their numbers are sent, for nothing more than what the new fit costs."""
    symmetric = toy.fit_gradient_em(**SYMMETRIC)
    gaussians, line = toy.fit_gradient_em(**GAUSSIANS, n_components=3), toy.fit_gradient_em(**MISSING)
    lines, mirrored = toy.fit_gradient_em(**LINES), toy.fit_gradient_em(**LINES, symmetric=True)
    clusters = toy.fit_dpem(n_components=3, mode="kmeans", spend=SPEND)
    starts: list[tuple[dict[str, Any], Any, fit_pb2.GradientStart]] = [
        (SYMMETRIC, symmetric, fit_pb2.GradientStart(coefficients=tensor([symmetric.beta_]))),
        (
            {**GAUSSIANS, "n_components": 3},
            gaussians,
            fit_pb2.GradientStart(coefficients=tensor(gaussians.means_), weights=tensor(gaussians.weights_)),
        ),
        (
            {**GAUSSIANS, "n_components": 3},
            clusters,
            fit_pb2.GradientStart(coefficients=tensor(clusters.cluster_centers_), weights=tensor(clusters.weights_)),
        ),
        (
            LINES,
            lines,
            fit_pb2.GradientStart(
                coefficients=tensor(lines.coef_), intercepts=tensor(lines.intercept_), weights=tensor(lines.weights_)
            ),
        ),
        ({**LINES, "symmetric": True}, mirrored, fit_pb2.GradientStart(coefficients=tensor(mirrored.coef_[:1]))),
        (
            MISSING,
            line,
            fit_pb2.GradientStart(coefficients=tensor([line.coef_]), intercepts=tensor([line.intercept_])),
        ),
    ]
    for ask, start, expected in starts:
        toy.fit_gradient_em(**ask, start=start)
        assert server.gradient_em_requests[-1].given == expected


def test_a_model_of_something_else_is_no_start(toy: bursar.Dataset) -> None:
    """Another kind, other columns, another target, or not symmetric where that is needed."""
    symmetric, lines = toy.fit_gradient_em(**SYMMETRIC), toy.fit_gradient_em(**LINES)
    line = toy.fit_gradient_em(**MISSING)
    for ask, start, message in [
        (GAUSSIANS, symmetric, "must be a GaussianMixture or a KMeans for model='gaussian_mixture'"),
        (MISSING, lines, "must be a LinearRegression"),
        ({**SYMMETRIC, "columns": ["weight", "height"]}, symmetric, "is a model of columns"),
        (LINES, replace(lines, target="height"), "explains 'height', and this model 'weight'"),
        (MISSING, replace(line, target="height"), "explains 'height'"),
        ({**LINES, "symmetric": True}, lines, "must be a symmetric model"),
    ]:
        with pytest.raises(bursar.InvalidRequestError, match=message):
            toy.fit_gradient_em(**ask, start=start)
    # Without names the caller knows best.
    toy.fit_gradient_em(**LINES, start=replace(lines, columns=(), target=""))


def test_a_start_has_only_what_the_new_model_has(server: FakeServer, toy: bursar.Dataset) -> None:
    """No intercepts for one without, and no component of weight 0, which would never get a row."""
    lines = toy.fit_gradient_em(**LINES)
    toy.fit_gradient_em(**LINES, start=lines, fit_intercept=False)
    assert not server.gradient_em_requests[-1].given.HasField("intercepts")
    toy.fit_gradient_em(**LINES, start=replace(lines, weights_=[1.0, 0.0]))
    assert server.gradient_em_requests[-1].given.weights == tensor([1.0, 1e-3])


def test_the_same_request_gets_the_same_model(server: FakeServer, toy: bursar.Dataset) -> None:
    """After a broken stream, and when it is asked again by its request_id; one debit."""
    server.break_next()
    first = toy.fit_gradient_em(model="gaussian_mixture", spend=SPEND, request_id="mine")
    again = toy.fit_gradient_em(model="gaussian_mixture", spend=SPEND, request_id="mine")
    assert again.receipt is not None
    assert again.receipt.replayed
    np.testing.assert_array_equal(first.means_, again.means_)
    assert len(server.gradient_em_requests) == 3
    assert len(toy.releases()) == 1


def test_the_fake_refuses_columns_that_it_does_not_have(toy: bursar.Dataset) -> None:
    """Before it debits."""
    for change in ({"target": "group"}, {"features": ["age"]}):
        for call in (toy.fit_gradient_em, toy.preview_gradient_em):
            with pytest.raises(bursar.InvalidRequestError, match="is no numeric column"):
                call(**{**LINES, **change})
    assert toy.releases() == []


def test_the_fake_has_an_intercept_where_features_are_missing() -> None:
    """A request by other means than this package is refused as the server refuses it."""
    request = fit_pb2.FitGradientEMRequest(
        model=fit_pb2.LATENT_MODEL_MISSING_COVARIATES, columns=["height"], target="weight", without_intercept=True
    )
    with pytest.raises(ValueError, match="without_intercept: only mixtures of regressions"):
        fake_gradient_em(request, {"height": (0.0, 1.0), "weight": (0.0, 1.0)})


def _cut(message: types_pb2.Tensor) -> None:
    del message.values[-1]


@pytest.mark.parametrize("ask", EVERY)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda model: model.ClearField("model"),
        lambda model: model.ClearField("variant"),
        lambda model: model.ClearField("coefficients"),
        lambda model: model.ClearField("noise_std"),
        lambda model: model.ClearField("iterates"),
        lambda model: model.ClearField("averaged"),
        lambda model: _cut(model.coefficients),
        lambda model: _cut(model.noise_std),
        lambda model: model.columns.append("age"),
        lambda model: model.scales.CopyFrom(tensor([1.0])),
        lambda model: model.coefficient_errors.CopyFrom(tensor([[np.nan]])),
        lambda model: model.coefficients.CopyFrom(tensor(np.zeros((3, 1)))),
        lambda model: model.noise_std.CopyFrom(tensor(np.zeros((0, 2)))),
    ],
)
def test_what_is_no_model_is_the_servers_error(
    ask: dict[str, Any], spoil: Callable[[fit_pb2.GradientEMModel], None]
) -> None:
    """Not a model that answers nonsense."""

    class Spoilt(FakeServer):
        def FitGradientEM(
            self, request: fit_pb2.FitGradientEMRequest, context: grpc.ServicerContext
        ) -> Iterator[fit_pb2.FitGradientEMResponse]:
            for response in super().FitGradientEM(request, context):
                if response.HasField("model"):
                    spoil(response.model)
                yield response

    with fake_server(Spoilt) as server, server.client() as client, pytest.raises(bursar.ServerError):
        client.dataset("toy").fit_gradient_em(**ask)
