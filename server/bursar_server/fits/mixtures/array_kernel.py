"""Moments of FitDPEM in terms of the array API, for devices: exactly the same integers as `kernel`.

Operations come in the order of `kernel`: elementwise additions, multiplications, divisions, square roots and
truncations of IEEE 754, which every library rounds alike, and products and sums of integers below 2^53, which are exact
in any order. Operands of divisions are arrays, and exp is `kernel`'s polynomial (`fits._arrays`). Libraries that fuse
operations across calls (graph compilers) would break that; arrays that are evaluated call by call do not.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits._arrays import exp_negative, here, in_order, there
from bursar_server.fits.mixtures.kernel import LEAST, MOMENTS_DIAG, MOMENTS_SPHERICAL, MOMENTS_TIED, POSITION, UNIT

MOST_ROWS = 2**13
"""Maximum number of rows of a block: sums of products up to 2^37 stay below 2^50."""

_NEARLY = UNIT * (1.0 - 2.0**-30)
"""Just below `UNIT`, so that rounding takes no position out of the ball."""


def moment_sums(
    xp: Any,
    device: Any,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: NDArray[np.int64],
    centre: NDArray[np.float64],
    scale: NDArray[np.float64],
    hard: bool,
    log_scale: NDArray[np.float64],
    shares: tuple[NDArray[np.float64], ...],
    places: tuple[NDArray[np.float64], ...],
    diagonal: bool,
    radii: NDArray[np.float64],
    moments: int,
    weights: NDArray[np.float64],
) -> None:
    """Add the moments of a block of up to `MOST_ROWS` rows to `out`, on a device of an array API namespace.

    The other arguments are those of `kernel.moment_sums`.
    """
    a, b, c = (float(weight) for weight in weights)
    on = partial(there, xp, device)
    z, valid = _positions(xp, on(block), on(present), on(centre), on(1.0 / scale), on(LEAST / (1.0 / scale)))
    y, squares = _mapped(xp, z, *(on(one) for one in shares))
    K = squares.shape[0]
    exponents = xp.concat([squares, *(len(log_scale) - K) * [xp.zeros_like(squares[:1, :])]])
    gamma = (_hard if hard else _soft)(xp, exponents, on(log_scale), valid)
    background = math.trunc(a * UNIT) * xp.sum(gamma[K:, :], axis=1)
    gamma = gamma[:K, :]
    if places[1].shape[0] > 0:
        y, squares = _mapped(xp, z, *(on(one) for one in places))
    # Integers from here on, as in the compiled kernel: their sums are exact in whatever order a device adds.
    w = xp.trunc(y * (on(_NEARLY) / xp.maximum(xp.sqrt(squares), on(radii)[:, None]))[:, None, :])
    squares = xp.sum(w * w, axis=1)
    gamma = xp.where(squares <= UNIT * UNIT, gamma, 0.0)
    counts = math.trunc(a * UNIT) * xp.sum(gamma, axis=1)
    sums = xp.sum(w * xp.trunc(b * gamma)[:, None, :], axis=2)
    if moments == MOMENTS_SPHERICAL:
        seconds = xp.sum(gamma * xp.trunc(c / UNIT * squares), axis=1)
    else:
        s = xp.trunc(w * xp.sqrt(c * (gamma / UNIT))[:, None, :])
        seconds = xp.sum(s * s, axis=2)
        if moments != MOMENTS_DIAG:
            products = xp.matmul(s, xp.matrix_transpose(xp.trunc(math.sqrt(2.0) * s)))
            d = s.shape[1]
            inside = xp.eye(d, device=device) > 0.0
            seconds = xp.where(inside, seconds[:, :, None], products)
            seconds = xp.sum(seconds, axis=0)[None, ...] if moments == MOMENTS_TIED else seconds
    found = [here(part) for part in (counts, sums, seconds)]
    if found[2].ndim == 3:
        # A covariance is symmetric: its lower half is released, so that noise is paid for once.
        found[2] = found[2][:, *np.tril_indices(found[2].shape[1])]
    found.append(here(background))
    out += np.concatenate([part.ravel() for part in found]).astype(np.int64)


def _positions(xp: Any, block: Any, present: Any, centre: Any, inverse: Any, least: Any) -> tuple[Any, Any]:
    """Implement `kernel._normalise`; valid is 1.0 or 0.0."""
    x = block - centre[:, None]
    x = xp.where(xp.abs(x) < least[:, None], 0.0, x) * inverse[:, None]
    finite = xp.abs(x) < 1e100
    valid = xp.astype(xp.logical_and(present, xp.all(finite, axis=0)), xp.float64)
    x = xp.where(finite, x, 0.0)
    factor = valid * POSITION / xp.sqrt(xp.maximum(in_order(x * x), xp.ones_like(valid)))
    return xp.trunc(x * factor), valid


def _mapped(xp: Any, z: Any, forms: Any, units: Any, offsets: Any) -> tuple[Any, Any]:
    """Implement `kernel._map`: (K, d, n) and (K, n)."""
    y = xp.matmul(forms, z[None, :, :]) * units[:, :, None] - offsets[:, :, None]
    return y, in_order(y * y)


def _soft(xp: Any, squares: Any, log_scale: Any, valid: Any) -> Any:
    """Implement `kernel._soft`."""
    logs = log_scale[:, None] - 0.5 * squares
    shares = exp_negative(xp, xp.minimum(logs - xp.max(logs, axis=0), xp.zeros_like(logs)))
    total = in_order(shares)
    shares = shares * (valid * UNIT * (1.0 - 2.0**-30) / total)
    gamma = xp.where(xp.logical_and(shares >= 0.0, shares <= UNIT), xp.trunc(shares), 0.0)
    return xp.where(xp.sum(gamma, axis=0) <= UNIT, gamma, 0.0)


def _hard(xp: Any, squares: Any, log_scale: Any, valid: Any) -> Any:
    """Implement `kernel._hard`."""
    best = xp.argmax(log_scale[:, None] - 0.5 * squares, axis=0)
    components = xp.arange(squares.shape[0], device=squares.device)
    return xp.where(best[None, :] == components[:, None], UNIT * valid, 0.0)
