"""What the mixtures have in common: rows as points of a box."""

from __future__ import annotations

import numpy as np

from bursar_server.fits.gradient_em._normal import location_gain
from bursar_server.fits.gradient_em._seam import Pass, State, View
from bursar_server.fits.gradient_em._statistics import FloatArray, Frame, Transform


def moments(look: FloatArray, noise_std: float) -> tuple[float, FloatArray, float]:
    """Rows, mean (d,) and mean square of a coordinate of a `Look.LOCATION`, all possible values of theirs."""
    d = len(look) - 2
    rows = max(float(look[0]), noise_std, 1.0)
    mean = np.clip(look[1:-1] * np.sqrt(d) / rows, -1.0, 1.0)
    return rows, mean, float(np.clip(look[-1] / rows, 1e-6, 1.0))


def residual_scales(state: State, bounded: Pass, d: int) -> FloatArray:
    """(blocks,) squared norms that count as 1."""
    return np.asarray(bounded.residual_limit**2 * d * state.sigma**2)


def gain(view: View, state: State, bounded: Pass) -> FloatArray:
    """See `Model.gain`."""
    d = len(view.shift)
    transform = bounded.shape.transform
    if transform is Transform.BOX:
        return np.ones_like(state.theta)
    each = [location_gain(transform, d, round(float(r), 2)) for r in bounded.reach / state.sigma]
    return np.array(each)[:, None] * np.ones(d)


def noise_std(frame: Frame, sigma: FloatArray) -> FloatArray:
    """(k, d) in the data's own units."""
    return np.asarray(sigma[:, None] * frame.unit)
