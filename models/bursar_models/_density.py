"""Densities of Gaussian components for the four covariance types that scikit-learn has.

Shapes of covariances: "full" (k, d, d), one matrix a component; "tied" (d, d), one for all; "diag" (k, d), variances;
"spherical" (k,), one variance a component.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import scipy

from bursar_models.arrays import FloatArray

CovarianceType = Literal["full", "tied", "diag", "spherical"]
"""Form of the covariances: shared or not, and full, diagonal or spherical."""

COVARIANCE_TYPES: tuple[CovarianceType, ...] = get_args(CovarianceType)
"""All covariance types."""


def covariance_shape(covariance_type: CovarianceType, k: int, d: int) -> tuple[int, ...]:
    """Return the shape of the covariances of `k` components in `d` dimensions."""
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
    """Return covariances in the form of another covariance type, as near as it allows.

    Information that the other type cannot hold is dropped: correlations, differences between columns (by the mean
    variance) or between components (by the weighted mean matrix).

    Args:
        covariances: array of the shape of the type `given`.
        weights: weights of the components, shape (k,), with a positive sum.
        d: number of features.
        given: covariance type of `covariances`.
        wanted: covariance type of the result.
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
    """Return the number of free parameters of a mixture of `k` components in `d` dimensions.

    Weights, means and covariances count.
    """
    matrix = d * (d + 1) // 2
    covariance = {"full": k * matrix, "tied": matrix, "diag": k * d, "spherical": k}[covariance_type]
    return (k - 1) + k * d + covariance


def cholesky_factors(covariances: FloatArray, covariance_type: CovarianceType, k: int, d: int) -> FloatArray:
    """Return square roots of the covariances, one a component.

    They are lower triangular matrices (k, d, d) for "full" and "tied", standard deviations (k, d) otherwise.

    Args:
        covariances: array of the shape of the covariance type.
        covariance_type: form of the covariances.
        k: number of components.
        d: number of features.

    Raises:
        numpy.linalg.LinAlgError: a matrix is not positive definite.
    """
    if covariance_type in ("full", "tied"):
        # A view: one tied matrix is factorised once and not copied k times.
        return np.broadcast_to(np.asarray(np.linalg.cholesky(covariances), dtype=np.float64), (k, d, d))
    deviations: FloatArray = np.sqrt(covariances)
    return deviations if covariance_type == "diag" else np.broadcast_to(deviations[:, None], (k, d))


def log_gaussian_density(
    X: FloatArray, means: FloatArray, covariances: FloatArray, covariance_type: CovarianceType
) -> FloatArray:
    """Return the natural logarithm of the density of every component at every row, shape (n, k).

    Args:
        X: rows, shape (n, d).
        means: means of the components, shape (k, d).
        covariances: array of the shape of the covariance type; positive definite.
        covariance_type: form of the covariances.

    Raises:
        numpy.linalg.LinAlgError: a matrix is not positive definite.
    """
    factors = cholesky_factors(covariances, covariance_type, *means.shape)
    columns = [_log_density(X - mean, factor) for mean, factor in zip(means, factors, strict=True)]
    return np.stack(columns, axis=1)


def log_mixture_density(
    X: FloatArray, weights: FloatArray, means: FloatArray, covariances: FloatArray, covariance_type: CovarianceType
) -> tuple[FloatArray, FloatArray]:
    """Return logarithms of the mixture's density (n,) and of the responsibilities of its components (n, k).

    Args:
        X: rows, shape (n, d).
        weights: weights of the components, shape (k,); a component of weight 0 has no responsibility for any row.
        means: means of the components, shape (k, d).
        covariances: array of the shape of the covariance type; positive definite.
        covariance_type: form of the covariances.
    """
    with np.errstate(divide="ignore"):  # log 0 = -inf is the right weight of an empty component
        joint = log_gaussian_density(X, means, covariances, covariance_type) + np.log(weights)
    density: FloatArray = np.asarray(scipy.special.logsumexp(joint, axis=1))
    return density, joint - density[:, None]


def _log_density(residuals: FloatArray, factor: FloatArray) -> FloatArray:
    """Return log N(residual; 0, factor factor^T) of residuals (n, d); a factor of shape (d,) is diagonal."""
    if factor.ndim == 1:
        whitened = (residuals / factor).T
        scales = factor
    else:
        # Solved, not inverted: an explicit inverse loses digits for nearly singular covariances.
        whitened = scipy.linalg.solve_triangular(factor, residuals.T, lower=True)
        scales = np.diagonal(factor)
    log_normaliser = 0.5 * len(scales) * math.log(2 * math.pi) + float(np.log(scales).sum())
    return np.asarray(-0.5 * np.square(whitened).sum(axis=0) - log_normaliser)
