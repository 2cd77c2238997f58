"""Earlier models as starts: their numbers are sent in the shape of the new fit, or their entry, or they are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bursar
from bursar._fits import Asked, kind_of
from bursar_models import Frequencies, GradientTrace, Separation, reshaped_covariances
from bursar_models.budget import Price, Receipt, Remaining
from bursar_models.schema import NumericColumn
from bursar_proto.v1 import fit_pb2
from tests.client.line import tensor
from tests.each import each

ASKED = Asked(dataset="toy", columns=[NumericColumn(name, "", 0.0, 9.0) for name in "xy"], spend=bursar.rho(0.1))
ROOT = np.array([[1.0, 0.0], [0.5, 2.0]])
COVARIANCES = np.stack([ROOT @ ROOT.T, np.eye(2)])
RECEIPT = Receipt(
    dataset="toy",
    request_id="r",
    entry=3,
    price=Price(1, 0, 0.1),
    remaining=Remaining(1, 1, 2, 2, 0.1, 0.2, 16.0),
    ledger_head="ab",
    adjacency=bursar.NeighbouringRelation.REPLACE_ONE,
)
TRACE = GradientTrace("recentred", np.zeros((3, 2, 2)), np.ones((2, 2)), np.ones(2), 1.0, 1)
MADE: Any = bursar
SKETCH = MADE.Sketch(
    *(("x", "y"), np.full(2, 4.5), np.full(2, 4.5), np.zeros(2), np.full(2, 9.0)),
    *(Frequencies(4, 2, 0, 0.3), "exponential", 4, np.zeros((2, 4)), 1.0, 10.0, 0.0),
)
SHARES, MEANS = np.array([0.25, 0.75]), [[1, 2], [3, 4]]
OWN = MADE.GaussianMixture(SHARES, MEANS, COVARIANCES, "full", columns=("x", "y"), receipt=RECEIPT)
FOUND = replace(OWN, separation=Separation(4, np.ones((2, 2)), np.ones(2), np.ones(2)))
TRACED = replace(OWN, trace=TRACE)
DECODED = replace(OWN, covariances_=np.ones((2, 2)), covariance_type="diag", sketch=SKETCH)
CENTRES = MADE.KMeans(cluster_centers_=MEANS, weights_=SHARES, variances_=np.ones(2), columns=("x", "y"))
SYMMETRIC = MADE.SymmetricMixture(np.array([1.0, 2.0]), np.array([4.0, 5.0]), np.ones(2), columns=("x", "y"))
OF_Y: dict[str, Any] = {"columns": ("x",), "target": "y"}
LINES = MADE.MixtureOfRegressions(
    weights_=SHARES, coef_=[[1.0], [2.0]], intercept_=[3.0, 4.0], noise_std_=[1.0, 1.0], **OF_Y
)
MIRRORED = replace(LINES, weights_=[0.5, 0.5], coef_=[[1.0], [-1.0]], intercept_=[0.0, 0.0], symmetric=True)
LINE = MADE.LinearRegression(coef_=[1.0], intercept_=2.0, noise_std_=1.0, **OF_Y)


def dpem(start: Any, **fields: Any) -> Any:
    """The message of FitDPEM from a start."""
    request = bursar.DPEM(**{"n_components": 2, "start": start, **fields})
    return kind_of(request).message(request, ASKED)


def gradient(model: Any, start: Any, **fields: Any) -> Any:
    """The message of FitGradientEM from a start."""
    target: dict[str, Any] = {"target": "y"} if model in ("mixture_of_regressions", "missing_covariates") else {}
    request = bursar.GradientEM(model=model, start=start, **target, **fields)
    return kind_of(request).message(request, ASKED)


def test_fit_dpem_knows_its_own_releases_by_their_entry() -> None:
    """Mixtures of other fits are sent by their numbers; separated, traced or decoded."""
    for start in (OWN, RECEIPT, 3):
        assert dpem(start).released.entry == 3
    assert [dpem(start).WhichOneof("start") for start in (FOUND, TRACED, DECODED)] == ["given"] * 3


@each(
    ("wanted", "fields"),
    [
        ("full", {}),
        *((shape, {"covariance_type": shape}) for shape in ("tied", "diag", "spherical")),
        ("spherical", {"mode": "kmeans"}),
    ],
)
def test_what_was_found_is_sent_in_the_shape_of_the_new_fit(wanted: Any, fields: dict[str, Any]) -> None:
    """All its numbers; covariances as far as the new fit has room for them."""
    shaped = reshaped_covariances(COVARIANCES, FOUND.weights_, 2, given="full", wanted=wanted)
    assert dpem(FOUND, **fields).given == fit_pb2.StartGiven(
        weights=tensor(FOUND.weights_), means=tensor(FOUND.means_), covariances=tensor(shaped)
    )


GIVEN: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("symmetric_mixture", SYMMETRIC, {}, {"coefficients": [SYMMETRIC.beta_]}),
    *(
        ("gaussian_mixture", start, {"n_components": 2}, {"coefficients": [[1, 2], [3, 4]], "weights": [0.25, 0.75]})
        for start in (OWN, FOUND, CENTRES)
    ),
    (
        "mixture_of_regressions",
        LINES,
        {},
        {"coefficients": [[1], [2]], "intercepts": [3, 4], "weights": [0.25, 0.75]},
    ),
    # No intercepts for one without, and no component of weight 0, which would never get a row.
    ("mixture_of_regressions", LINES, {"fit_intercept": False}, {"coefficients": [[1], [2]], "weights": [0.25, 0.75]}),
    (
        "mixture_of_regressions",
        replace(LINES, weights_=[1.0, 0.0]),
        {},
        {"coefficients": [[1], [2]], "intercepts": [3, 4], "weights": [1.0, 1e-3]},
    ),
    ("mixture_of_regressions", MIRRORED, {"symmetric": True}, {"coefficients": [[1]]}),
    ("missing_covariates", LINE, {}, {"coefficients": [[1]], "intercepts": [2]}),
]


@each(("model", "start", "fields", "expected"), GIVEN)
def test_gradient_em_starts_at_the_numbers_of_a_model(
    model: str, start: Any, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Those that the new model has, and no others."""
    numbers = {name: tensor(values) for name, values in expected.items()}
    assert gradient(model, start, **fields).given == fit_pb2.GradientStart(**numbers)


def test_a_model_of_something_else_is_no_start() -> None:
    """Another kind, other columns, another target or number; without names the caller knows best."""
    both: dict[str, Any] = {"columns": ["y", "x"]}
    wrong: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: gradient("gaussian_mixture", SYMMETRIC),
            "must be a GaussianMixture or a KMeans for model='gauss",
        ),
        (lambda: gradient("missing_covariates", LINES), "must be a LinearRegression"),
        (lambda: gradient("symmetric_mixture", SYMMETRIC, **both), "is a model of columns"),
        (lambda: gradient("mixture_of_regressions", replace(LINES, target="x")), "explains 'x', and this model 'y'"),
        (lambda: gradient("missing_covariates", replace(LINE, target="x")), "explains 'x'"),
        (lambda: gradient("mixture_of_regressions", LINES, symmetric=True), "must be a symmetric model"),
        (lambda: dpem(FOUND, n_components=4), "start: found 2 components; ask for n_components=2, got 4"),
        (
            lambda: dpem(TRACED, n_components=3),
            "start: has 2 components; ask for n_components=2, got 3",
        ),
        (lambda: dpem(FOUND, **both), "is a model of columns"),
    ]
    for ask, said in wrong:
        with pytest.raises(bursar.InvalidRequestError) as caught:
            ask()
        assert said in str(caught.value)
    assert dpem(replace(FOUND, columns=()), **both).HasField("given")
    assert gradient("mixture_of_regressions", replace(LINES, columns=(), target="")).HasField("given")
