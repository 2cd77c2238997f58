"""Distances between what several mixtures say of each column, for forecasts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from scipy.special import ndtr

from bursar_models._density import reshaped_covariances
from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._symmetric_mixture import SymmetricMixture
from bursar_models.arrays import FloatArray
from bursar_models.transforms import into_model

Mixture: TypeAlias = GaussianMixture | SymmetricMixture

_POINTS, _REACH = 1001, 4.0
"""Points at which distribution functions are compared, and standard deviations around every mean that they span."""


def quantile_errors(models: Sequence[Mixture]) -> FloatArray:
    """Return how far several mixtures are from their middle, by column: shape (releases, d), in the model's space.

    The distance of two laws of a column is the mean distance of their quantiles (1-Wasserstein). Neither order nor
    number of components plays a part. The middle has the median of all distribution functions, at each point.

    Args:
        models: at least three releases of one request.
    """
    mixtures = [one.mixture if isinstance(one, SymmetricMixture) else one for one in models]
    means = [one.means_ for one in mixtures]
    stds = [_deviations(one) for one in mixtures]
    lower = np.min([(mean - _REACH * std).min(axis=0) for mean, std in zip(means, stds, strict=True)], axis=0)
    upper = np.max([(mean + _REACH * std).max(axis=0) for mean, std in zip(means, stds, strict=True)], axis=0)
    first = mixtures[0]
    box = None if first.bounds_ is None else into_model(first.bounds_, first.transforms)
    if box is not None:
        lower, upper = box  # rows that are drawn from a model with bounds are within them
    points = np.linspace(lower, upper, _POINTS)
    laws = np.stack([_law(one, points, mean, std, box) for one, mean, std in zip(mixtures, means, stds, strict=True)])
    away = np.abs(laws - np.median(laws, axis=0)).sum(axis=1) * (upper - lower) / (_POINTS - 1)
    # The middle is of the same fits: as a mean, it would lie nearer to them by this factor.
    return np.asarray(math.sqrt(len(models) / (len(models) - 1)) * away)


def _deviations(model: GaussianMixture) -> FloatArray:
    """Return the standard deviations of components by column, (k, d)."""
    d = model.means_.shape[1]
    found = reshaped_covariances(model.covariances_, model.weights_, d, given=model.covariance_type, wanted="diag")
    return np.sqrt(found)


def _law(
    model: GaussianMixture, points: FloatArray, means: FloatArray, stds: FloatArray, box: FloatArray | None
) -> FloatArray:
    """Return distribution functions of all columns at points (m, d), each column's own: (m, d)."""
    law = np.zeros_like(points)
    for weight, mean, std in zip(model.weights_, means, stds, strict=True):
        law += weight * ndtr((points - mean) / std)
    if box is None or model.background_weight == 0:
        return law
    even = np.clip((points - box[0]) / (box[1] - box[0]), 0.0, 1.0)
    return np.asarray((1.0 - model.background_weight) * law + model.background_weight * even)
