"""What the mixtures have in common: rows as points of a box."""

from __future__ import annotations

import numpy as np

from bursar_server.fits.gradient_em._seam import Pass, State, believed_rows
from bursar_server.fits.gradient_em._statistics import FloatArray, Frame


def moments(look: FloatArray, noise_std: float, declared: float | None) -> tuple[float, FloatArray, float]:
    """Rows, mean (d,) and mean square of a coordinate of a `Look.LOCATION`, all possible values of theirs."""
    d = len(look) - 2
    rows = believed_rows(float(look[0]), noise_std, declared)
    mean = np.clip(look[1:-1] * np.sqrt(d) / rows, -1.0, 1.0)
    return rows, mean, float(np.clip(look[-1] / rows, 1e-6, 1.0))


def residual_scales(state: State, bounded: Pass, d: int) -> FloatArray:
    """(blocks,) squared norms that count as 1."""
    return np.asarray(bounded.residual_limit**2 * d * state.sigma**2)


def spread(square: float, noise: float) -> float:
    """Standard deviation of a coordinate: not below what noise hides, since a start that is too narrow is lost."""
    return float(max(square, noise, 1e-6) ** 0.5)


def noise_std(frame: Frame, sigma: FloatArray) -> FloatArray:
    """(k, d) in the data's own units."""
    return np.asarray(sigma[:, None] * frame.unit)
