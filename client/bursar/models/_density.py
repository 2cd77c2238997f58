"""Densities of Gaussian components for the four covariance types that scikit-learn has.

Shapes of covariances: "full" (k, d, d), one matrix a component; "tied" (d, d), one for all; "diag" (k, d), variances;
"spherical" (k,), one variance a component.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from bursar.models._arrays import FloatArray

CovarianceType = Literal["full", "tied", "diag", "spherical"]
"""How covariances are shared and shaped."""

COVARIANCE_TYPES: tuple[CovarianceType, ...] = get_args(CovarianceType)
"""All of them."""


def covariance_shape(covariance_type: CovarianceType, k: int, d: int) -> tuple[int, ...]:
    """Shape of the covariances of `k` components in `d` dimensions."""
    shapes: dict[CovarianceType, tuple[int, ...]] = {
        "full": (k, d, d),
        "tied": (d, d),
        "diag": (k, d),
        "spherical": (k,),
    }
    return shapes[covariance_type]


def reshaped_covariances(
    covariances: FloatArray, weights: FloatArray, d: int, *, given: CovarianceType, wanted: CovarianceType
) -> FloatArray:
    """Covariances in the shape that another covariance type has, as near as it can be.

    What the other type has no room for is left out: correlations, or differences between columns (by the mean variance)
    or between components (by the weighted mean matrix).

    Args:
        covariances: of the shape that `given` has.
        weights: of the components, shape (k,), with a positive sum.
        d: number of features.
        given: how these covariances are shared and shaped.
        wanted: how the result is.
    """
    if given == wanted:
        return covariances
    k = len(weights)
    if given in ("full", "tied"):
        matrices = np.broadcast_to(covariances, (k, d, d))
    else:
        variances = covariances if given == "diag" else np.broadcast_to(covariances[:, None], (k, d))
        matrices = variances[:, :, None] * np.eye(d)
    if wanted == "tied":
        return np.asarray(np.average(matrices, axis=0, weights=weights))
    if wanted == "full":
        return np.asarray(matrices)
    diagonal: FloatArray = np.diagonal(matrices, axis1=1, axis2=2)
    return diagonal if wanted == "diag" else np.asarray(diagonal.mean(axis=1))


def n_parameters(covariance_type: CovarianceType, k: int, d: int) -> int:
    """Number of free parameters of a mixture of `k` components in `d` dimensions: weights, means, covariances."""
    matrix = d * (d + 1) // 2
    covariance = {"full": k * matrix, "tied": matrix, "diag": k * d, "spherical": k}[covariance_type]
    return (k - 1) + k * d + covariance


def cholesky_factors(covariances: FloatArray, covariance_type: CovarianceType, k: int, d: int) -> FloatArray:
    """Square roots of the covariances, one a component: lower triangular (k, d, d), or standard deviations (k, d).

    Args:
        covariances: of the shape that the covariance type has.
        covariance_type: "full" and "tied" give matrices, "diag" and "spherical" standard deviations.
        k: number of components.
        d: number of features.

    Raises:
        numpy.linalg.LinAlgError: a matrix is not positive definite.
    """
    if covariance_type in ("full", "tied"):
        return np.broadcast_to(np.asarray(np.linalg.cholesky(covariances), dtype=np.float64), (k, d, d))
    deviations: FloatArray = np.sqrt(covariances)
    return deviations if covariance_type == "diag" else np.broadcast_to(deviations[:, None], (k, d))


def log_gaussian_density(
    X: FloatArray, means: FloatArray, covariances: FloatArray, covariance_type: CovarianceType
) -> FloatArray:
    """Natural logarithm of the density of every component at every row, shape (n, k).

    Args:
        X: rows, shape (n, d).
        means: shape (k, d).
        covariances: of the shape that the covariance type has; positive definite.
        covariance_type: how covariances are shared and shaped.

    Raises:
        numpy.linalg.LinAlgError: a matrix is not positive definite.
    """
    factors = cholesky_factors(covariances, covariance_type, *means.shape)
    columns = [_log_density(X - mean, factor) for mean, factor in zip(means, factors, strict=True)]
    return np.stack(columns, axis=1)


def log_mixture_density(
    X: FloatArray, weights: FloatArray, means: FloatArray, covariances: FloatArray, covariance_type: CovarianceType
) -> tuple[FloatArray, FloatArray]:
    """Logarithms of the mixture's density (n,) and of the responsibilities of its components (n, k).

    Args:
        X: rows, shape (n, d).
        weights: shape (k,); a weight of 0 is a component that is nowhere responsible.
        means: shape (k, d).
        covariances: of the shape that the covariance type has; positive definite.
        covariance_type: how covariances are shared and shaped.
    """
    with np.errstate(divide="ignore"):  # log 0 = -inf is what an empty component should weigh
        joint = log_gaussian_density(X, means, covariances, covariance_type) + np.log(weights)
    density: FloatArray = np.asarray(logsumexp(joint, axis=1))
    return density, joint - density[:, None]


def _log_density(residuals: FloatArray, factor: FloatArray) -> FloatArray:
    """Log of N(residual; 0, factor factor^T) for residuals of shape (n, d); a factor of shape (d,) is diagonal."""
    if factor.ndim == 1:
        whitened = (residuals / factor).T
        scales = factor
    else:
        whitened = solve_triangular(factor, residuals.T, lower=True)
        scales = np.diagonal(factor)
    log_normaliser = 0.5 * len(scales) * math.log(2 * math.pi) + float(np.log(scales).sum())
    return np.asarray(-0.5 * np.square(whitened).sum(axis=0) - log_normaliser)
