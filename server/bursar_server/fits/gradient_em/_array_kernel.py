"""Gradients and looks of FitGradientEM in terms of the array API, for devices: the same integers as `_kernel`.

Whole blocks at a time, otherwise in the order of `_kernel`, with elementwise operations of IEEE 754. Only sums of
integers are left to the library, because they are exact in any order. Operands of divisions are arrays
(`fits._arrays`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits._arrays import exp_negative, here, in_order, there
from bursar_server.fits.gradient_em import _kernel
from bursar_server.fits.gradient_em._kernel import (
    BOX,
    CATONI,
    CELLS,
    FAR,
    LEAST,
    LOOK_UNIT,
    RADIAL,
    TERMS,
    UNCLIPPED,
    UNIT,
)

_NEARLY = UNIT * (1.0 - 2.0**-30)
"""Just below `UNIT`, so that rounding takes no vector out of the ball."""

_LOOKED = 1024
"""Rows of a look that are processed together: each has thousands of numbers. Chosen, not tuned."""


def location_sums(
    xp: Any,
    device: Any,
    frame: Any,
    arguments: Any,
    shape: Any,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: NDArray[np.int64],
) -> None:
    """Implement `_kernel.location_sums`."""
    log_weights, half_precisions, means, origins, scales, residual_scales, signs = arguments
    z, _, valid = _load(xp, device, frame, block, present)
    means, origins = (there(xp, device, _flushed(numbers))[:, :, None] for numbers in (means, origins))
    log_weights, half_precisions, inverse, residual_scales = (
        there(xp, device, numbers)[:, None] for numbers in (log_weights, half_precisions, 1.0 / scales, residual_scales)
    )
    apart = z[None, :, :] - means
    squares = in_order(apart * apart)
    vectors = (z[None, :, :] - origins) * inverse[:, :, None]
    logs = log_weights - half_precisions * squares
    _add(xp, device, logs, vectors, squares / residual_scales, valid, signs, shape, out)


def regression_sums(
    xp: Any,
    device: Any,
    frame: Any,
    arguments: Any,
    shape: Any,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: NDArray[np.int64],
) -> None:
    """Implement `_kernel.regression_sums`."""
    log_weights, half_precisions, coefficients, (whitener, shift, intercept), scales, residual_scales, signs = arguments
    z, _, valid = _load(xp, device, frame, block, present)
    z = z - there(xp, device, _flushed(shift))[:, None]
    white, coefficients = (there(xp, device, _flushed(numbers)) for numbers in (whitener, coefficients))
    log_weights, half_precisions, inverse, residual_scales = (
        there(xp, device, numbers)[:, None] for numbers in (log_weights, half_precisions, 1.0 / scales, residual_scales)
    )
    features = xp.zeros_like(z[:-1, :])
    for j in range(features.shape[0]):
        features = features + white[:, j][:, None] * z[j, :][None, :]
    if intercept:
        features = xp.concat([xp.ones_like(z[:1, :]), features])
    left = xp.stack([z[-1, :]] * coefficients.shape[0])
    for j in range(features.shape[0]):
        left = left - coefficients[:, j][:, None] * features[j, :][None, :]
    vectors = left[:, None, :] * features[None, :, :] * inverse[:, :, None]
    squares = left * left
    logs = log_weights - half_precisions * squares
    _add(xp, device, logs, vectors, squares / residual_scales, valid, signs, shape, out)


def missing_sums(
    xp: Any,
    device: Any,
    frame: Any,
    arguments: Any,
    shape: Any,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: NDArray[np.int64],
) -> None:
    """Implement `_kernel.missing_sums`."""
    coefficients, (spread, shift), sigma, clip, clipped_square, scale, residual_scale = arguments
    most = max(clipped_square, clip * clip - clipped_square)
    z, missing, valid = _load(xp, device, frame, block, present)
    z = z - there(xp, device, _flushed(shift))[:, None]
    missing, b = missing[:-1, :], there(xp, device, _flushed(coefficients))
    features = z[:-1, :] * there(xp, device, _flushed(spread))[:, None] * (1.0 - missing)
    features = xp.concat([xp.ones_like(z[:1, :]), features])
    left, variance = z[-1, :], xp.full_like(z[-1, :], sigma * sigma)
    for i in range(missing.shape[0]):
        variance = variance + missing[i, :] * (b[1 + i] * b[1 + i])
    for j in range(features.shape[0]):
        left = left - b[j] * features[j, :]
    root = xp.sqrt(variance)
    left = left / root
    t = _clamped(xp, left, clip)
    residuals = left * left / there(xp, device, residual_scale)
    scales = there(xp, device, scale)
    if clip < UNCLIPPED:
        longest = most * most * (1.0 - xp.full_like(variance, sigma * sigma) / variance)
        for j in range(features.shape[0]):
            longest = longest + clip * clip * features[j, :] * features[j, :]
        longest = sigma * sigma * xp.sqrt(longest / variance)
        scales = xp.where(longest > scale, longest, scale)
    absent = xp.concat([xp.zeros_like(z[:1, :]), missing])
    parts = t * features / root[None, :]
    parts = parts + absent * (t * t - clipped_square) * b[:, None] / variance[None, :]
    vectors = sigma * sigma * parts / scales[None, :]
    _add(xp, device, xp.zeros_like(z[:1, :]), vectors[None, :, :], residuals[None, :], valid, np.empty(0), shape, out)


def location_look(
    xp: Any,
    device: Any,
    frame: Any,
    limit: int,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: NDArray[np.int64],
) -> None:
    """Implement `_kernel.location_look`."""
    for some in _slices(block):
        z, _, valid = _load(xp, device, frame, block[:, some], present[some])
        d = z.shape[0]
        squares = in_order(z * z / there(xp, device, float(d)))
        parts = [xp.ones_like(z[:1, :]), z / there(xp, device, math.sqrt(d)), squares[None, :]]
        _add_checked(xp, xp.concat(parts), valid, limit, out)


def regression_look(
    xp: Any,
    device: Any,
    frame: Any,
    limit: int,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: NDArray[np.int64],
) -> None:
    """Implement `_kernel.regression_look`."""
    i, j = np.tril_indices(block.shape[0] + 1)
    factors = there(xp, device, np.where(i == j, 1.0, math.sqrt(2.0)))[:, None]
    rows, columns = there(xp, device, i), there(xp, device, j)
    for some in _slices(block):
        z, _, valid = _load(xp, device, frame, block[:, some], present[some])
        w = xp.concat([xp.ones_like(z[:1, :]), z])
        products = xp.take(w, rows, axis=0) * xp.take(w, columns, axis=0) * factors
        _add_checked(xp, products / there(xp, device, float(w.shape[0])), valid, limit, out)


def missing_look(
    xp: Any,
    device: Any,
    frame: Any,
    limit: int,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: NDArray[np.int64],
) -> None:
    """Implement `_kernel.missing_look`."""
    for some in _slices(block):
        z, missing, valid = _load(xp, device, frame, block[:, some], present[some])
        x, y = z[:-1, :], z[-1:, :]
        shares = (1.0 - missing[:-1, :]) / there(xp, device, math.sqrt(x.shape[0]))
        parts = [xp.ones_like(y), y, y * y, shares, shares * x, shares * (x * x)]
        _add_checked(xp, xp.concat(parts), valid, limit, out)


SAME: dict[Any, Callable[..., None]] = {
    _kernel.location_sums: location_sums,
    _kernel.regression_sums: regression_sums,
    _kernel.missing_sums: missing_sums,
    _kernel.location_look: location_look,
    _kernel.regression_look: regression_look,
    _kernel.missing_look: missing_look,
}
"""Compiled function -> function that computes the same integers here."""


def _slices(block: NDArray[np.float64]) -> list[slice]:
    return [slice(first, first + _LOOKED) for first in range(0, block.shape[1], _LOOKED)]


def _load(xp: Any, device: Any, frame: Any, block: NDArray[np.float64], present: NDArray[np.bool_]) -> tuple[Any, ...]:
    """Implement `_kernel._load`: z and missing (columns, n), valid (n,)."""
    centre, unit, half, nullable = frame
    centre, least, inverse, half, nullable = (
        there(xp, device, numbers)[:, None] for numbers in (centre, LEAST * unit, 1.0 / unit, _flushed(half), nullable)
    )
    x = there(xp, device, block) - centre
    x = xp.where(xp.abs(x) < least, 0.0, x) * inverse
    finite = xp.abs(x) < 1e100
    counted = xp.all(xp.logical_or(finite, nullable), axis=0)
    valid = xp.astype(xp.logical_and(there(xp, device, present), counted), xp.float64)
    z = xp.where(finite, xp.minimum(xp.maximum(x, -half), half), 0.0)
    return z, 1.0 - xp.astype(finite, xp.float64), valid


def _flushed(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Implement `_kernel._flushed`."""
    return np.where(np.abs(numbers) < LEAST, 0.0, numbers)


def _clamped(xp: Any, x: Any, limit: float) -> Any:
    """Return numbers within +-limit; NaN stays."""
    return xp.where(x > limit, limit, xp.where(x < -limit, -limit, x))


def _share(xp: Any, logs: Any, valid: Any) -> Any:
    """Implement `_kernel._share`: (K, n)."""
    if logs.shape[0] == 1:
        return UNIT * valid[None, :]
    shares = exp_negative(xp, xp.minimum(logs - xp.max(logs, axis=0), xp.zeros_like(logs)))
    shares = shares / in_order(shares)[None, :] * (valid * _NEARLY)
    gamma = xp.where(xp.logical_and(shares >= 0.0, shares <= UNIT), xp.trunc(shares), 0.0)
    return xp.where(xp.sum(gamma, axis=0) <= UNIT, gamma, 0.0)


def _into_ball(xp: Any, device: Any, v: Any, radial: bool) -> Any:
    """Implement `_kernel._into_ball`: (K, q, n)."""
    norm = xp.sqrt(in_order(v * v))
    if radial:
        root = math.sqrt(2.0)
        u = xp.where(norm > root, root, norm)
        cubic = (u - u * u * u / there(xp, device, 6.0)) / there(xp, device, CATONI)
        factor = cubic / xp.maximum(norm, xp.full_like(norm, 1e-200))
    else:
        factor = xp.ones_like(norm) / xp.maximum(norm, xp.ones_like(norm))
    v = xp.trunc(v * factor[:, None, :] * _NEARLY)
    within = xp.sum(v * v, axis=1) <= UNIT * UNIT  # NaN fails
    return xp.where(within[:, None, :], v, 0.0)


def _into_box(xp: Any, v: Any, curve: tuple[float, NDArray[np.float64]]) -> Any:
    """Implement `_kernel._into_box`: (K, q, n)."""
    width_squared, coefficients = curve
    a = _clamped(xp, v, FAR)
    u = a / xp.sqrt(a * a + width_squared)
    x = 2.0 * u * u - 1.0
    p = xp.zeros_like(x)
    for c in coefficients[TERMS - 1 :: -1].tolist():
        p = p * x + c
    t = _clamped(xp, xp.trunc(u * p * UNIT), UNIT)
    return xp.where(xp.abs(t) <= UNIT, t, 0.0)  # NaN fails


def _add(
    xp: Any,
    device: Any,
    logs: Any,
    vectors: Any,
    residuals: Any,
    valid: Any,
    signs: NDArray[np.float64],
    shape: tuple[int, tuple[float, NDArray[np.float64]], float, float],
    out: NDArray[np.int64],
) -> None:
    """Implement `_kernel._add`, for a block; (K, n), (K, q, n), (K, n), (n,)."""
    transform, curve, count, weight = shape
    gamma = _share(xp, logs, valid)
    if transform == CELLS:
        cells = [xp.logical_and(residuals >= low, residuals < high) for low, high in pairwise(curve[1].tolist())]
        sums = xp.stack([xp.sum(gamma * xp.astype(within, xp.float64), axis=1) for within in cells])
        out += here(xp.sum(sums, axis=1)).astype(np.int64)
        return
    t = _into_box(xp, vectors, curve) if transform == BOX else _into_ball(xp, device, vectors, transform == RADIAL)
    shares = residuals * weight
    e = xp.where(shares <= weight, xp.trunc(shares), weight)
    e = xp.where(shares >= 0.0, e, 0.0)  # NaN fails
    counts = xp.sum(gamma * count, axis=1)
    sums = xp.sum(gamma[:, None, :] * t, axis=2)
    rest = xp.sum(gamma * e, axis=1)
    if signs.shape[0] > 0:
        counts = xp.sum(UNIT * valid * count)[None]
        sums = xp.sum(there(xp, device, signs)[:, None] * sums, axis=0)
        rest = xp.sum(rest)[None]
    out += np.concatenate([here(part).ravel() for part in (counts, sums, rest)]).astype(np.int64)


def _add_checked(xp: Any, v: Any, valid: Any, limit: int, out: NDArray[np.int64]) -> None:
    """Implement `_kernel._add_checked`, for many rows: (size, n)."""
    t = xp.trunc(v * (LOOK_UNIT * (1.0 - 2.0**-30)))
    t = xp.where(xp.abs(t) <= LOOK_UNIT, t, 0.0)  # NaN fails
    whole = xp.astype(t, xp.int64)
    passed = xp.astype(xp.sum(whole * whole, axis=0) <= limit, xp.float64) * valid
    out += here(xp.sum(t * passed, axis=1)).astype(np.int64)
