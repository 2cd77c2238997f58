"""Common part of the mixtures: rows as points of a box."""

from __future__ import annotations

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em._models import Pass, State, believed_rows
from bursar_server.fits.gradient_em._statistics import GradientFrame


def moments(look: FloatArray, noise_std: float, declared: float | None) -> tuple[float, FloatArray, float]:
    """Return rows, mean (d,) and mean square of a coordinate from a `Look.LOCATION`, within their ranges."""
    d = len(look) - 2
    rows = believed_rows(float(look[0]), noise_std, declared)
    mean = np.clip(look[1:-1] * np.sqrt(d) / rows, -1.0, 1.0)
    return rows, mean, float(np.clip(look[-1] / rows, 1e-6, 1.0))


def residual_scales(state: State, bounded: Pass, d: int) -> FloatArray:
    """Return the squared norms (blocks,) that count as 1."""
    return np.asarray(bounded.residual_limit**2 * d * state.sigma**2)


def spread(square: float, noise: float) -> float:
    """Return the standard deviation of a coordinate, at least its noise: a too narrow start does not recover."""
    return float(max(square, noise, 1e-6) ** 0.5)


def noise_std(frame: GradientFrame, sigma: FloatArray) -> FloatArray:
    """Return standard deviations (k, d) in the data's own units."""
    return np.asarray(sigma[:, None] * frame.unit)
