"""Share of the information about parameters that a mixture hides, from rows drawn from released parameters.

The information of a sample is that of one with known components, less the variance of what these would contribute
(Louis 1982). Draws have a fixed public seed: everything is a function of released numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from bursar_models import public_generator
from bursar_models.arrays import FloatArray

_ROWS = 2_000
"""Number of drawn rows, in all components together; at least 50 of each. Chosen, not tuned."""


def hidden_of_means(means: FloatArray, weights: FloatArray, sigma: FloatArray, *, folded: bool) -> FloatArray:
    """Return the hidden share (K,) for Gaussians with means (K, d); folded: (1,) for two mirrored ones."""
    K, d = means.shape
    normal = _normal(max(_ROWS // K, 50), d)
    return _mean_over_components(
        [(mean + spread * normal, means, None) for mean, spread in zip(means, sigma, strict=True)],
        weights,
        sigma,
        folded=folded,
    )


def hidden_of_lines(
    coefficients: FloatArray, weights: FloatArray, sigma: FloatArray, *, intercept: bool, folded: bool
) -> FloatArray:
    """Return the hidden share (K,) for regressions with coefficients (K, q) on normal features.

    Folded: (1,) for two mirrored ones.
    """
    K, q = coefficients.shape
    drawn = _normal(max(_ROWS // K, 50), q + 1)
    features = drawn[:, :q].copy()
    if intercept:
        features[:, 0] = 1.0
    rows = [
        ((features @ line + spread * drawn[:, q])[:, None], coefficients, features)
        for line, spread in zip(coefficients, sigma, strict=True)
    ]
    return _mean_over_components(rows, weights, sigma, folded=folded)


def _mean_over_components(
    rows: Sequence[tuple[FloatArray, FloatArray, FloatArray | None]],
    weights: FloatArray,
    sigma: FloatArray,
    *,
    folded: bool,
) -> FloatArray:
    """Return hidden information over information with known components, both summed over parameters."""
    hidden = known = np.zeros(1 if folded else len(weights))
    for (y, parameters, features), weight in zip(rows, weights, strict=True):
        if features is None:
            squares = np.array([np.sum((y - mean) ** 2, axis=1) for mean in parameters]).T
            size, lever = y.shape[1], np.ones(len(y))
            both = np.sum((2.0 * y) ** 2, axis=1)
        else:
            squares = (y - features @ parameters.T) ** 2
            size, lever = 1, np.sum(features**2, axis=1)
            both = (2.0 * y[:, 0]) ** 2
        logs = np.log(weights) - size * np.log(sigma) - 0.5 * squares / sigma**2
        gamma = np.exp(logs - logs.max(axis=1, keepdims=True))
        gamma /= gamma.sum(axis=1, keepdims=True)
        if folded:
            said = (gamma[:, 0] * gamma[:, 1] * both * lever / sigma[0] ** 2)[:, None]
            full = (np.full(len(y), float(size)) * lever)[:, None]
        else:
            said = gamma * (1.0 - gamma) * squares / sigma**2 * lever[:, None]
            full = gamma * size * lever[:, None]
        hidden, known = hidden + weight * said.mean(axis=0), known + weight * full.mean(axis=0)
    return np.asarray(np.clip(hidden / np.maximum(known, 1e-300), 0.0, 1.0))


@lru_cache(maxsize=64)
def _normal(rows: int, size: int) -> FloatArray:
    generator = public_generator(rows, size)  # rows of a model, not of a table
    return generator.standard_normal((rows, size))
