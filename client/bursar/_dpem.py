"""What may be asked of differentially private EM (Park et al. 2016, corrected by the server)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy.typing as npt

from bursar import _convert
from bursar._arguments import entry_of, names, numbers, whole
from bursar._errors import InvalidRequestError
from bursar._privacy import Receipt, Spend, positive
from bursar.models import CovarianceType, GaussianMixture, KMeans, reshaped_covariances
from bursar_proto.v1 import fit_pb2


@dataclass(frozen=True)
class GaussianPrior:
    """Dirichlet and normal-inverse-Wishart hyperparameters for `estimator="map"`; None leaves a number to the server.

    They apply in the coordinates in which the public ball is the unit ball.

    Attributes:
        concentration: of the Dirichlet prior on the weights; the server's default is 2.
        kappa: prior observations of a mean; default 1.
        nu: degrees of freedom of a covariance; default number of columns + 2.
        scale: the prior scale matrix is this times the identity; default 0.1.

    Raises:
        InvalidRequestError: a number that is not positive and finite.
    """

    concentration: float | None = None
    kappa: float | None = None
    nu: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("concentration", "kappa", "nu", "scale"):
            value = getattr(self, name)
            if value is not None:
                positive(f"prior.{name}", value)


@dataclass(frozen=True)
class RandomStart:
    """Start from means drawn uniformly in the public ball.

    Attributes:
        public_seed: from 0 to 2^64 - 1. It is part of the request and protects nothing.

    Raises:
        InvalidRequestError: outside that range.
    """

    public_seed: int

    def __post_init__(self) -> None:
        whole("start.random.public_seed", self.public_seed, 0, 2**64 - 1)


@dataclass(frozen=True, eq=False)
class GivenStart:
    """Start from parameters that the caller knows without the protected rows, in the data's own units.

    Attributes:
        means: array-like of shape (n_components, n_columns).
        weights: array-like of shape (n_components,); None for equal ones.
        covariances: array-like, of the shape that the covariance type has; None leaves them to the server.

    Raises:
        InvalidRequestError: an entry is not a finite number.
    """

    means: npt.ArrayLike
    weights: npt.ArrayLike | None = None
    covariances: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        for name in ("means", "weights", "covariances"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else numbers(f"start.given.{name}", value))


Start: TypeAlias = Literal["splitting"] | RandomStart | GivenStart | GaussianMixture | KMeans | Receipt | int
"""Where EM starts: private splitting (the default), a public place, or an earlier release (or its entry)."""


@dataclass(frozen=True, kw_only=True)
class DPEMSettings:
    """The arguments of `Dataset.fit_dpem` that say what is computed; documented there.

    Attributes:
        dummy: it is for a dummy run, which knows no earlier release by its entry: numbers are sent instead.
    """

    n_components: int
    spend: Spend
    columns: Sequence[str]
    covariance_type: CovarianceType | None
    estimator: Literal["ml", "map"]
    prior: GaussianPrior | None
    mode: Literal["mixture", "kmeans"]
    moments: Literal["recentred", "fixed_origin"]
    iterations: int | None
    start: Start
    clip_radius: float | None
    dummy: bool = False

    def message(self, dataset: str, request_id: str) -> fit_pb2.FitDPEMRequest:
        """The request on the wire.

        Raises:
            InvalidRequestError: an argument that no server would accept.
        """
        request = fit_pb2.FitDPEMRequest(
            request_id=request_id,
            dataset=dataset,
            columns=names(self.columns),
            spend=_convert.spend_to(self.spend),
            n_components=whole("n_components", self.n_components, 1, 2**32 - 1),
            estimator=_convert.choice("estimator", self.estimator, _convert.ESTIMATORS),
            mode=_convert.choice("mode", self.mode, _convert.MODES),
            moments=_convert.choice("moments", self.moments, _convert.MOMENTS),
        )
        self._set_optional(request)
        _set_start(request, self.start, by_numbers=self.dummy)
        return request

    def _set_optional(self, request: fit_pb2.FitDPEMRequest) -> None:
        """What the wire leaves out, or has as zero, if the caller leaves it to the server."""
        if self.covariance_type is not None:
            request.covariance_type = _convert.choice(
                "covariance_type", self.covariance_type, _convert.COVARIANCE_TYPES
            )
        if self.prior is not None:
            request.prior.CopyFrom(_prior_message(self.prior))
        if self.iterations is not None:
            request.iterations = whole("iterations", self.iterations, 1, 2**32 - 1)
        if self.clip_radius is not None:
            request.clip_radius = positive("clip_radius", self.clip_radius)


def _prior_message(prior: GaussianPrior) -> fit_pb2.GaussianPrior:
    return fit_pb2.GaussianPrior(
        concentration=prior.concentration or 0.0, kappa=prior.kappa or 0.0, nu=prior.nu or 0.0, scale=prior.scale or 0.0
    )


def _set_start(request: fit_pb2.FitDPEMRequest, start: object, *, by_numbers: bool) -> None:
    match start:
        case "splitting":
            request.splitting.SetInParent()
        case RandomStart():
            request.random.public_seed = start.public_seed
        case GivenStart():
            request.given.CopyFrom(_given_message(start))
        case int():
            request.released.entry = whole("start.released.entry", start, 0, 2**64 - 1)
        case GaussianMixture() if by_numbers or not _is_of_dpem(start):
            request.given.CopyFrom(_given_message(_parameters(start, request)))
        case KMeans() if by_numbers:
            request.given.CopyFrom(_given_message(GivenStart(start.cluster_centers_, start.weights_)))
        case GaussianMixture() | KMeans() | Receipt():
            request.released.entry = entry_of("start", start, "give its parameters in a GivenStart")
        case _:
            expected = "'splitting', a RandomStart, a GivenStart, an earlier model or receipt, or its entry"
            raise InvalidRequestError.of("start", f"must be {expected}, got {type(start).__name__}")


def _is_of_dpem(model: GaussianMixture) -> bool:
    """Whether the server may know this model under its entry as an earlier release of the same method."""
    return model.sketch is None and model.trace is None and model.separation is None


def _parameters(model: GaussianMixture, request: fit_pb2.FitDPEMRequest) -> GivenStart:
    """What another fit found, as a start. Raises InvalidRequestError for one of other columns, or of another size."""
    if model.columns and list(model.columns) != list(request.columns):
        text = f"is a model of columns {list(model.columns)}, and this one is of {list(request.columns)}, in this order"
        raise InvalidRequestError.of("start", text)
    if model.n_components != request.n_components:
        found = "found" if model.separation is not None else "has"
        text = f"{found} {model.n_components} components; ask for n_components={model.n_components}"
        raise InvalidRequestError.of("start", f"{text}, got {request.n_components}")
    # The mixed key type keeps mypy from seeing that the names are the literals of CovarianceType.
    wanted: Any = _convert.named(_convert.COVARIANCE_TYPES, request.covariance_type or fit_pb2.COVARIANCE_TYPE_FULL)
    covariances = reshaped_covariances(
        model.covariances_,
        model.weights_,
        model.n_features,
        given=model.covariance_type,
        # One radius a cluster is all that k-means starts from.
        wanted="spherical" if request.mode == fit_pb2.MODE_KMEANS else wanted,
    )
    return GivenStart(model.means_, model.weights_, covariances)


def _given_message(start: GivenStart) -> fit_pb2.StartGiven:
    message = fit_pb2.StartGiven(means=_convert.tensor_to(start.means))
    if start.weights is not None:
        message.weights.CopyFrom(_convert.tensor_to(start.weights))
    if start.covariances is not None:
        message.covariances.CopyFrom(_convert.tensor_to(start.covariances))
    return message
