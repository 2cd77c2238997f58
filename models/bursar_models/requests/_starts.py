"""Starts of EM fits, and the prior of the maximum a posteriori estimate: values that stand in requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt

from bursar_models.budget import positive
from bursar_models.checks import MAX_SEED, numbers, whole
from bursar_models.requests._json import part


@part
@dataclass(frozen=True)
class GaussianPrior:
    """Dirichlet and normal-inverse-Wishart hyperparameters for `estimator="map"`; None leaves a number to the server.

    They apply in the coordinates in which the public ball is the unit ball.

    Attributes:
        concentration: concentration of the Dirichlet prior on the weights; the server's default is 2.
        kappa: number of prior observations of a mean; default 1.
        nu: degrees of freedom of a covariance; default number of columns + 2.
        scale: the prior scale matrix is this times the identity; default 0.1.

    Raises:
        InvalidRequestError: a number is not positive and finite.
    """

    concentration: float | None = None
    kappa: float | None = None
    nu: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("concentration", "kappa", "nu", "scale"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, positive(f"prior.{name}", value))


@part
@dataclass(frozen=True)
class RandomStart:
    """Start from means drawn uniformly in the public ball.

    Attributes:
        public_seed: seed from 0 to 2^64 - 1. It is part of the request and protects nothing.

    Raises:
        InvalidRequestError: the seed is outside that range.
    """

    public_seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "public_seed", whole("start.random.public_seed", self.public_seed, 0, MAX_SEED))


@part
@dataclass(frozen=True, eq=False)
class GivenStart:
    """Start from parameters that the caller knows without the protected rows, in the data's own units.

    Of a column with a transform they are those of the transformed values.

    Attributes:
        means: array-like of shape (n_components, n_columns).
        weights: array-like of shape (n_components,); None for equal ones.
        covariances: array-like of the shape that the covariance type has; None leaves them to the server.

    Raises:
        InvalidRequestError: an entry is not a finite number.
    """

    means: npt.ArrayLike
    weights: npt.ArrayLike | None = None
    covariances: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        _freeze(self, "means", "weights", "covariances")


@part
@dataclass(frozen=True, eq=False)
class GivenCoefficients:
    """Start from parameters that the caller knows without the protected rows, in the data's own units.

    Attributes:
        coefficients: array-like. For a Gaussian mixture the means (n_components, n_columns), for a symmetric mixture b
            (1, n_columns); for a mixture of regressions (n_components, n_features), or b (1, n_features) if it is
            symmetric; with missing covariates (1, n_features).
        intercepts: array-like with as many numbers, for regressions; None for 0.
        weights: weights of the components, array-like of shape (n_components,); None for equal ones.

    Raises:
        InvalidRequestError: an entry is not a finite number.
    """

    coefficients: npt.ArrayLike
    intercepts: npt.ArrayLike | None = None
    weights: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        _freeze(self, "coefficients", "intercepts", "weights")


def _freeze(start: object, *fields: str) -> None:
    """Store arrays as read-only copies. Raises InvalidRequestError."""
    for name in fields:
        value = getattr(start, name)
        if value is not None:
            object.__setattr__(start, name, numbers(f"start.given.{name}", value))
