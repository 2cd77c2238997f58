"""Messages of gradient EM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bursar import _convert
from bursar._errors import ServerError
from bursar._fits._kind import Asked, Kind
from bursar_models import (
    GaussianMixture,
    GradientTrace,
    KMeans,
    LinearRegression,
    MixtureOfRegressions,
    SymmetricMixture,
)
from bursar_models.arrays import FloatArray
from bursar_models.budget import Receipt
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import GivenCoefficients, GradientEM, GradientEMModel, RandomStart
from bursar_proto.filling import message_of
from bursar_proto.v1 import catalog_pb2, fit_pb2, types_pb2

_LEAST_WEIGHT = 1e-3
"""Least weight of a component to start from: one of weight 0 would stay without rows."""

_REGRESSIONS = frozenset({"mixture_of_regressions", "missing_covariates"})


class GradientEMKind(Kind[GradientEM[Any]]):
    """Gradient EM."""

    name = "gradient_em"
    method = "FitGradientEM"

    def message(self, request: GradientEM[Any], asked: Asked) -> fit_pb2.FitGradientEMRequest:
        """Return the request on the wire. Raises InvalidRequestError."""
        message = self.filled(
            fit_pb2.FitGradientEMRequest,
            request,
            asked,
            columns=_columns(request, asked),
            without_intercept=not request.fit_intercept,
            # Regressions have no units to choose.
            units=None if request.units == "common" else fit_pb2.COLUMN_UNITS_BOUNDS,
        )
        _set_start(message, request.start)
        return message

    def result(self, request: GradientEM[Any], answer: Any, receipt: Receipt | None) -> GradientEMModel:
        """Return the released model. Raises ServerError."""
        del request
        return gradient_em_from(answer, receipt)

    def stored(self, message: catalog_pb2.GetReleaseResponse, receipt: Receipt) -> GradientEMModel:
        """Return the released model. Raises ServerError."""
        return gradient_em_from(message.gradient_em, receipt)


def _columns(request: GradientEM[Any], asked: Asked) -> list[str]:
    """Return the columns of a mixture, or the features of a regression."""
    given = request.features if request.model in _REGRESSIONS else request.columns
    if given is not None:
        return list(given)
    numeric = asked.numeric(nullable=request.model == "missing_covariates")
    return [name for name in numeric if name != request.target]


def _set_start(message: fit_pb2.FitGradientEMRequest, start: object) -> None:
    match start:
        case RandomStart():
            message.random.public_seed = start.public_seed
        case GivenCoefficients():
            message.given.CopyFrom(message_of(fit_pb2.GradientStart, start))
        case SymmetricMixture() | GaussianMixture() | KMeans() | MixtureOfRegressions() | LinearRegression():
            _check_columns(message, start)
            message.given.CopyFrom(message_of(fit_pb2.GradientStart, _parameters(start, message)))


def _check_columns(message: fit_pb2.FitGradientEMRequest, start: GradientEMModel | KMeans) -> None:
    """Raises InvalidRequestError for a model that has the same parameters of other columns."""
    if start.columns and list(start.columns) != list(message.columns):
        text = f"is a model of columns {list(start.columns)}, and this one is of {list(message.columns)}, in this order"
        raise InvalidRequestError.of("start", text)
    if isinstance(start, MixtureOfRegressions | LinearRegression) and start.target not in ("", message.target):
        raise InvalidRequestError.of("start", f"explains {start.target!r}, and this model {message.target!r}")


def _parameters(start: GradientEMModel | KMeans, message: fit_pb2.FitGradientEMRequest) -> GivenCoefficients:
    """Return a start at a model of the requested kind; without intercepts for one that has none."""
    match start:
        case SymmetricMixture():
            return GivenCoefficients(start.beta_[None])
        case GaussianMixture():
            return GivenCoefficients(start.means_, weights=_positive(start.weights_))
        case KMeans():
            return GivenCoefficients(start.cluster_centers_, weights=_positive(start.weights_))
        case LinearRegression():
            return GivenCoefficients(start.coef_[None], [start.intercept_])
    if message.symmetric:
        return GivenCoefficients(start.coef_[:1])
    intercepts = None if message.without_intercept else start.intercept_
    return GivenCoefficients(start.coef_, intercepts, _positive(start.weights_))


def _positive(weights: FloatArray) -> FloatArray:
    """Return weights without zeros."""
    return np.maximum(weights, _LEAST_WEIGHT)


def gradient_em_from(message: fit_pb2.GradientEMModel, receipt: Receipt | None) -> GradientEMModel:
    """Return a released model, of the type that it says, with its trace.

    Raises:
        ServerError: the parameters are not those of a model.
    """
    model = _convert.named(_convert.LATENT_MODELS, message.model)
    try:
        trace = _trace_from(message, regression=model in _REGRESSIONS)
        return _MAKE[model](message, _convert.shared_by_models(message, receipt) | {"trace": trace})
    except (ValueError, IndexError) as error:
        raise ServerError(f"the server sent no valid model: {error}") from error


def _trace_from(message: fit_pb2.GradientEMModel, *, regression: bool) -> GradientTrace:
    # The mixed key types keep mypy from seeing that the names are the literals of the trace.
    variant: Any = _convert.named(_convert.GRADIENT_VARIANTS, message.variant)
    errors = _convert.tensor_from(message.coefficient_errors)
    if regression:
        errors = np.column_stack([errors, _convert.tensor_from(message.intercept_errors)])
    return GradientTrace(
        variant=variant,
        iterates=_convert.tensor_from(message.iterates),
        errors=errors,
        scales=_convert.tensor_from(message.scales),
        step_size=message.step_size,
        averaged=message.averaged,
        radii=_convert.radii_from(message),
    )


def _symmetric_from(message: fit_pb2.GradientEMModel, shared: dict[str, Any]) -> SymmetricMixture:
    means = _convert.tensor_from(message.coefficients)
    return SymmetricMixture(
        beta_=(means[0] - means[1]) / 2,
        centre_=means.mean(axis=0),
        noise_std_=_convert.tensor_from(message.noise_std)[0],
        **shared,
    )


def _gaussians_from(message: fit_pb2.GradientEMModel, shared: dict[str, Any]) -> GaussianMixture:
    variances = np.square(_convert.tensor_from(message.noise_std))
    # Of columns with one unit for all, the components are spheres in the data's own units, too.
    spheres = variances.ndim == 2 and bool((variances == variances[:, :1]).all())
    return GaussianMixture(
        weights_=_convert.tensor_from(message.weights),
        means_=_convert.tensor_from(message.coefficients),
        covariances_=variances[:, 0] if spheres else variances,
        covariance_type="spherical" if spheres else "diag",
        **shared,
    )


def _lines_from(message: fit_pb2.GradientEMModel, shared: dict[str, Any]) -> MixtureOfRegressions:
    return MixtureOfRegressions(
        coef_=_convert.tensor_from(message.coefficients),
        intercept_=_convert.tensor_from(message.intercepts),
        weights_=_convert.tensor_from(message.weights),
        noise_std_=_convert.tensor_from(message.noise_std),
        symmetric=message.symmetric,
        feature_means_=_convert.tensor_if(message, "feature_means"),
        feature_covariance_=_convert.tensor_if(message, "feature_covariance"),
        target=message.target,
        **shared,
    )


def _missing_from(message: fit_pb2.GradientEMModel, shared: dict[str, Any]) -> LinearRegression:
    return LinearRegression(
        coef_=_only(message.coefficients),
        intercept_=float(_only(message.intercepts)),
        noise_std_=float(_only(message.noise_std)),
        feature_means_=_convert.tensor_from(message.feature_means),
        feature_std_=_convert.tensor_from(message.feature_std),
        target=message.target,
        **shared,
    )


def _only(message: types_pb2.Tensor) -> FloatArray:
    """Return the numbers of a tensor with one component. Raises ValueError, or ServerError."""
    values = _convert.tensor_from(message)
    if values.ndim == 0 or len(values) != 1:
        raise ValueError(f"expected numbers of one component, got shape {values.shape}")
    return np.asarray(values[0])


_MAKE: dict[str, Callable[[fit_pb2.GradientEMModel, dict[str, Any]], GradientEMModel]] = {
    "symmetric_mixture": _symmetric_from,
    "gaussian_mixture": _gaussians_from,
    "mixture_of_regressions": _lines_from,
    "missing_covariates": _missing_from,
}
