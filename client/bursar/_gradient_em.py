"""What may be asked of gradient EM, and what comes back (Wang et al. 2020, corrected by the server)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from bursar import _convert
from bursar._arguments import names, numbers, whole
from bursar._dpem import RandomStart
from bursar._dummy import Tried
from bursar._errors import InvalidRequestError, ServerError
from bursar._privacy import Receipt, Spend, positive
from bursar._sketch_kmeans import ColumnUnits
from bursar.models import (
    GaussianMixture,
    GradientTrace,
    GradientVariant,
    KMeans,
    LinearRegression,
    MixtureOfRegressions,
    SymmetricMixture,
)
from bursar.models._arrays import FloatArray
from bursar_proto.v1 import fit_pb2, types_pb2

_MOST = 2**32 - 1
_LEAST_WEIGHT = 1e-3
"""Of a component to start from."""

LatentModel: TypeAlias = Literal[
    "symmetric_mixture", "mixture_of_regressions", "missing_covariates", "gaussian_mixture"
]
"""What a gradient EM fits."""

GradientEMModel: TypeAlias = SymmetricMixture | MixtureOfRegressions | LinearRegression | GaussianMixture
"""What a gradient EM makes."""

_SYMMETRIC, _GAUSSIANS = "symmetric_mixture", "gaussian_mixture"
_LINES, _MISSING = "mixture_of_regressions", "missing_covariates"

_MIXTURES = frozenset({_SYMMETRIC, _GAUSSIANS})
_REGRESSIONS = frozenset({_LINES, _MISSING})

_ONLY_OF = {
    "columns": _MIXTURES,
    "units": _MIXTURES,
    "target": _REGRESSIONS,
    "features": _REGRESSIONS,
    "fit_intercept": {_LINES},
    "n_components": {_GAUSSIANS, _LINES},
    "symmetric": {_LINES},
    "centre": {_SYMMETRIC},
    "paper_weights": {_SYMMETRIC, _LINES},
}
"""Arguments that say something about some models alone."""


@dataclass(frozen=True, eq=False)
class GivenCoefficients:
    """Start from parameters that the caller knows without the protected rows, in the data's own units.

    Attributes:
        coefficients: array-like. Of a Gaussian mixture its means (n_components, n_columns), of a symmetric mixture b
            (1, n_columns); of a mixture of regressions (n_components, n_features), or b (1, n_features) if it is
            symmetric; with missing covariates (1, n_features).
        intercepts: of regressions, array-like with as many numbers; None for 0.
        weights: of the components, array-like of shape (n_components,); None for equal ones.

    Raises:
        InvalidRequestError: an entry is not a finite number.
    """

    coefficients: npt.ArrayLike
    intercepts: npt.ArrayLike | None = None
    weights: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        for name in ("coefficients", "intercepts", "weights"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else numbers(f"start.given.{name}", value))


GradientStart: TypeAlias = RandomStart | GivenCoefficients | GradientEMModel | KMeans
"""Where gradient EM starts: at random, where the caller says, or at an earlier model."""


class GradientEMArguments(TypedDict, total=False):
    """The keyword arguments that all overloads of `Dataset.fit_gradient_em` share; documented there."""

    variant: GradientVariant | None
    heavy_tails: bool
    iterations: int | None
    step_size: float | None
    averaged: int | None
    noise_std: float | None
    scale: float | None
    zeta: float | None
    tau: float | None
    start: GradientStart | None
    request_id: str | None
    progress: bool | None
    dummy: Tried


class MixtureArguments(GradientEMArguments, total=False):
    """Those that the overloads for mixtures share."""

    columns: Sequence[str] | None
    units: ColumnUnits


class RegressionArguments(GradientEMArguments, total=False):
    """Those that the overloads for regressions share."""

    features: Sequence[str] | None


@dataclass(frozen=True, kw_only=True)
class GradientEMSettings:
    """The arguments of `Dataset.fit_gradient_em` that say what is computed; documented there."""

    model: LatentModel
    spend: Spend
    columns: Sequence[str] | None = None
    target: str | None = None
    features: Sequence[str] | None = None
    n_components: int | None = None
    symmetric: bool = False
    fit_intercept: bool = True
    variant: GradientVariant | None = None
    heavy_tails: bool = False
    iterations: int | None = None
    step_size: float | None = None
    averaged: int | None = None
    noise_std: float | None = None
    scale: float | None = None
    zeta: float | None = None
    tau: float | None = None
    start: GradientStart | None = None
    centre: npt.ArrayLike | None = None
    units: ColumnUnits = "common"
    paper_weights: bool = False

    def message(self, dataset: str, request_id: str, numeric: Sequence[str]) -> fit_pb2.FitGradientEMRequest:
        """The request on the wire.

        Args:
            dataset: its name.
            request_id: the idempotency key.
            numeric: the dataset's numeric columns, which the model has if no columns are named, but for the target.

        Raises:
            InvalidRequestError: an argument that no server would accept, or one that says nothing about this model.
        """
        request = fit_pb2.FitGradientEMRequest(
            request_id=request_id,
            dataset=dataset,
            spend=_convert.spend_to(self.spend),
            model=_convert.choice("model", self.model, _convert.LATENT_MODELS),
        )
        self._refuse_what_others_have()
        self._set_columns(request, numeric)
        self._set_kind(request)
        self._set_numbers(request)
        _set_start(request, self.start)
        return request

    def _refuse_what_others_have(self) -> None:
        for name, models in _ONLY_OF.items():
            value, default = getattr(self, name), getattr(GradientEMSettings, name)
            given = value is not None if default is None else value != default
            if given and self.model not in models:
                text = f"is not for model={self.model!r}, but for {', '.join(sorted(models))}; leave {name} out"
                raise InvalidRequestError.of(name, text)
        if self.paper_weights and self.model == _LINES and not self.symmetric:
            raise InvalidRequestError.of(
                "paper_weights", "is for symmetric models; leave it out, or say symmetric=True"
            )

    def _set_columns(self, request: fit_pb2.FitGradientEMRequest, numeric: Sequence[str]) -> None:
        if self.model in _MIXTURES:
            request.columns.extend(numeric if self.columns is None else names(self.columns))
            return
        if not (isinstance(self.target, str) and self.target):
            text = f"is missing: name the numeric column that the regression explains, got {self.target!r}"
            raise InvalidRequestError.of("target", text)
        others = [name for name in numeric if name != self.target]
        request.columns.extend(others if self.features is None else names(self.features, "features"))
        if self.target in request.columns:
            text = f"must not have the target, {self.target!r}, which they are to explain"
            raise InvalidRequestError.of("features", text)
        request.target = self.target

    def _set_kind(self, request: fit_pb2.FitGradientEMRequest) -> None:
        request.symmetric = bool(self.symmetric)
        request.without_intercept = not self.fit_intercept
        request.heavy_tails = bool(self.heavy_tails)
        request.paper_weights = bool(self.paper_weights)
        if self.units != "common":
            request.units = _convert.choice("units", self.units, _convert.COLUMN_UNITS)
        if self.variant is not None:
            request.variant = _convert.choice("variant", self.variant, _convert.GRADIENT_VARIANTS)
        if self.centre is not None:
            request.centre.CopyFrom(_convert.tensor_to(numbers("centre", self.centre)))

    def _set_numbers(self, request: fit_pb2.FitGradientEMRequest) -> None:
        """What the wire has as zero if the caller leaves it to the server."""
        for name in ("n_components", "iterations", "averaged"):
            value = getattr(self, name)
            if value is not None:
                setattr(request, name, whole(name, value, 1, _MOST))
        for name in ("step_size", "noise_std", "scale", "zeta", "tau"):
            value = getattr(self, name)
            if value is not None:
                setattr(request, name, positive(name, value))


def _set_start(request: fit_pb2.FitGradientEMRequest, start: object) -> None:
    match start:
        case None:
            return
        case RandomStart():
            request.random.public_seed = start.public_seed
        case GivenCoefficients():
            request.given.CopyFrom(_given(start))
        case SymmetricMixture() | GaussianMixture() | KMeans() | MixtureOfRegressions() | LinearRegression():
            _check_alike(request, start)
            request.given.CopyFrom(_given(_parameters(start, request)))
        case _:
            expected = "a RandomStart, a GivenCoefficients, or an earlier model of this kind"
            raise InvalidRequestError.of("start", f"must be {expected}, got {type(start).__name__}")


def _given(start: GivenCoefficients) -> fit_pb2.GradientStart:
    message = fit_pb2.GradientStart(coefficients=_convert.tensor_to(start.coefficients))
    if start.intercepts is not None:
        message.intercepts.CopyFrom(_convert.tensor_to(start.intercepts))
    if start.weights is not None:
        message.weights.CopyFrom(_convert.tensor_to(start.weights))
    return message


def _check_alike(request: fit_pb2.FitGradientEMRequest, start: GradientEMModel | KMeans) -> None:
    """Raises InvalidRequestError for a model that has other parameters, or the same of other columns."""
    kinds: dict[str, tuple[type, ...]] = {
        _SYMMETRIC: (SymmetricMixture,),
        _GAUSSIANS: (GaussianMixture, KMeans),
        _LINES: (MixtureOfRegressions,),
        _MISSING: (LinearRegression,),
    }
    model = _convert.named(_convert.LATENT_MODELS, request.model)
    if not isinstance(start, kinds[model]):
        expected = " or a ".join(kind.__name__ for kind in kinds[model])
        raise InvalidRequestError.of("start", f"must be a {expected} for model={model!r}, got {type(start).__name__}")
    if start.columns and list(start.columns) != list(request.columns):
        text = f"is a model of columns {list(start.columns)}, and this one is of {list(request.columns)}, in this order"
        raise InvalidRequestError.of("start", text)
    if isinstance(start, MixtureOfRegressions | LinearRegression) and start.target not in ("", request.target):
        raise InvalidRequestError.of("start", f"explains {start.target!r}, and this model {request.target!r}")
    if isinstance(start, MixtureOfRegressions) and request.symmetric and not start.symmetric:
        raise InvalidRequestError.of("start", "must be a symmetric model for a symmetric one")


def _parameters(start: GradientEMModel | KMeans, request: fit_pb2.FitGradientEMRequest) -> GivenCoefficients:
    """What a model, which is like the requested one, has of a start; no intercepts for one that has none."""
    match start:
        case SymmetricMixture():
            return GivenCoefficients(start.beta_[None])
        case GaussianMixture():
            return GivenCoefficients(start.means_, weights=_positive(start.weights_))
        case KMeans():
            return GivenCoefficients(start.cluster_centers_, weights=_positive(start.weights_))
        case LinearRegression():
            return GivenCoefficients(start.coef_[None], [start.intercept_])
    if request.symmetric:
        return GivenCoefficients(start.coef_[:1])
    intercepts = None if request.without_intercept else start.intercept_
    return GivenCoefficients(start.coef_, intercepts, _positive(start.weights_))


def _positive(weights: FloatArray) -> FloatArray:
    """A component of weight 0 would stay without rows for ever."""
    return np.maximum(weights, _LEAST_WEIGHT)


def gradient_em_from(message: fit_pb2.GradientEMModel, receipt: Receipt | None) -> GradientEMModel:
    """A released model, of the type that it says, with its trace.

    Raises:
        ServerError: the parameters are not those of a model.
    """
    model = _convert.named(_convert.LATENT_MODELS, message.model)
    try:
        shared: dict[str, Any] = {
            "columns": tuple(message.columns),
            "receipt": receipt,
            "noise": tuple(map(_convert.noise_from, message.noise)),
            "iterations": message.iterations,
            "n_rows": message.n_rows,
            "trace": _trace_from(message, regression=model in _REGRESSIONS),
        }
        return _MAKE[model](message, shared)
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
    """What a tensor has for its one component. Raises ValueError, or ServerError."""
    values = _convert.tensor_from(message)
    if values.ndim == 0 or len(values) != 1:
        raise ValueError(f"expected numbers of one component, got shape {values.shape}")
    return np.asarray(values[0])


_MAKE: dict[str, Callable[[fit_pb2.GradientEMModel, dict[str, Any]], GradientEMModel]] = {
    _SYMMETRIC: _symmetric_from,
    _GAUSSIANS: _gaussians_from,
    _LINES: _lines_from,
    _MISSING: _missing_from,
}
