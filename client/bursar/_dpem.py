"""What may be asked of differentially private EM (Park et al. 2016, corrected by the server)."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy.typing as npt

from bursar import _convert
from bursar._errors import InvalidRequestError
from bursar._privacy import Price, Receipt, ReleaseNoise, Remaining, Spend, positive
from bursar._text import text_table
from bursar.models import CovarianceType, GaussianMixture, KMeans
from bursar.models._arrays import FloatArray, frozen
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
        _whole("start.random.public_seed", self.public_seed, 0, 2**64 - 1)


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
            object.__setattr__(self, name, None if value is None else _numbers(f"start.given.{name}", value))


Start: TypeAlias = Literal["splitting"] | RandomStart | GivenStart | GaussianMixture | KMeans | Receipt | int
"""Where EM starts: private splitting (the default), a public place, or an earlier release (or its entry)."""


@dataclass(frozen=True, kw_only=True)
class DPEMSettings:
    """The arguments of `Dataset.fit_dpem` that say what is computed; documented there."""

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

    def message(self, dataset: str, request_id: str) -> fit_pb2.FitDPEMRequest:
        """The request on the wire.

        Raises:
            InvalidRequestError: an argument that no server would accept.
        """
        request = fit_pb2.FitDPEMRequest(
            request_id=request_id,
            dataset=dataset,
            columns=_names(self.columns),
            spend=_convert.spend_to(self.spend),
            n_components=_whole("n_components", self.n_components, 1, 2**32 - 1),
            estimator=_convert.choice("estimator", self.estimator, _convert.ESTIMATORS),
            mode=_convert.choice("mode", self.mode, _convert.MODES),
            moments=_convert.choice("moments", self.moments, _convert.MOMENTS),
        )
        self._set_optional(request)
        _set_start(request, self.start)
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
            request.iterations = _whole("iterations", self.iterations, 1, 2**32 - 1)
        if self.clip_radius is not None:
            request.clip_radius = positive("clip_radius", self.clip_radius)


@dataclass(frozen=True, repr=False)
class Preview:
    """What a fit would cost and how exact it would be; computed without data, changes nothing.

    Attributes:
        price: exactly what the fit would debit.
        remaining: what is left of the dataset's budget now.
        available: what one request of the caller may cost now, which an allowance or a maximum may make less.
        affordable: whether the fit would be admitted now.
        fits_left: how many fits like this one the caller may still make.
        noise: the noise of every kind of release.
        iterations: noisy steps that would be run.
        expected_mean_error: by column, the rough standard error that the noise alone adds to a component's mean, in the
            column's own units, for components of equal weight; empty if the number of rows is not public.
    """

    price: Price
    remaining: Remaining
    available: Remaining
    affordable: bool
    fits_left: int
    noise: tuple[ReleaseNoise, ...]
    iterations: int
    expected_mean_error: Mapping[str, float]

    def __repr__(self) -> str:
        verdict = f"affordable, {self.fits_left} like it are left" if self.affordable else "not affordable"
        lines = [
            f"Preview: debits rho={self.price.rho:.6g} of rho={self.available.rho:.6g} left; {verdict}",
            f"  {self.iterations} noisy steps; standard deviations of the noise:",
            text_table(*_noise_table(self.noise)),
        ]
        if self.expected_mean_error:
            errors = ", ".join(f"{name} {error:.3g}" for name, error in self.expected_mean_error.items())
            lines.append(f"  expected error of a component's mean: {errors}")
        return "\n".join(lines)


def preview_from(message: fit_pb2.PreviewResponse, columns: Sequence[str]) -> Preview:
    """The preview of a fit to `columns`."""
    # Without a public number of rows the server sends no errors, and zip gives none.
    errors = dict(zip(columns, message.expected_mean_error, strict=False))
    return Preview(
        price=_convert.price_from(message.price),
        remaining=_convert.remaining_from(message.remaining),
        available=_convert.remaining_from(message.available if message.HasField("available") else message.remaining),
        affordable=message.affordable,
        fits_left=message.fits_left,
        noise=tuple(map(_convert.noise_from, message.noise)),
        iterations=message.iterations,
        expected_mean_error=errors,
    )


def _noise_table(noise: Sequence[ReleaseNoise]) -> tuple[list[str], list[list[str]]]:
    cells = [
        [n.name, str(n.times), str(n.size), *(f"{std:.3g}" for std in (n.count_std, n.sum_std, n.moment_std))]
        for n in noise
    ]
    return ["release", "times", "numbers", "counts", "sums", "moments"], cells


def _prior_message(prior: GaussianPrior) -> fit_pb2.GaussianPrior:
    return fit_pb2.GaussianPrior(
        concentration=prior.concentration or 0.0, kappa=prior.kappa or 0.0, nu=prior.nu or 0.0, scale=prior.scale or 0.0
    )


def _set_start(request: fit_pb2.FitDPEMRequest, start: object) -> None:
    match start:
        case "splitting":
            request.splitting.SetInParent()
        case RandomStart():
            request.random.public_seed = start.public_seed
        case GivenStart():
            request.given.CopyFrom(_given_message(start))
        case GaussianMixture() | KMeans() | Receipt() | int():
            request.released.entry = _entry(start)
        case _:
            expected = "'splitting', a RandomStart, a GivenStart, an earlier model or receipt, or its entry"
            raise InvalidRequestError.of("start", f"must be {expected}, got {type(start).__name__}")


def _given_message(start: GivenStart) -> fit_pb2.StartGiven:
    message = fit_pb2.StartGiven(means=_convert.tensor_to(start.means))
    if start.weights is not None:
        message.weights.CopyFrom(_convert.tensor_to(start.weights))
    if start.covariances is not None:
        message.covariances.CopyFrom(_convert.tensor_to(start.covariances))
    return message


def _entry(start: GaussianMixture | KMeans | Receipt | int) -> int:
    """The ledger's entry of an earlier release."""
    if isinstance(start, int):
        return _whole("start.released.entry", start, 0, 2**64 - 1)
    receipt = start if isinstance(start, Receipt) else start.receipt
    if receipt is None:
        raise InvalidRequestError.of("start", "this model has no receipt; give its parameters in a GivenStart")
    return receipt.entry


def _names(columns: Sequence[str]) -> list[str]:
    # A string is a sequence of strings, and never what was meant.
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InvalidRequestError.of("columns", f"must be a list of names, got {columns!r}")
    return list(columns)


def _whole(field: str, value: int, low: int, high: int) -> int:
    """`value` as an int from `low` to `high`; numpy's integers will do, floats will not."""
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high:
        raise InvalidRequestError.of(field, f"must be a whole number from {low} to {high}, got {value!r}")
    return number


def _numbers(field: str, value: npt.ArrayLike) -> FloatArray:
    try:
        return frozen(field, value)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError.of(field, "must be an array of finite numbers") from error
