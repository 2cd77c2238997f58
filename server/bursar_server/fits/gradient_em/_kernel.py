"""Compiled passes over rows: a look at the columns' scales, and the gradient of each model, as exact integer sums.

A gradient has the same shape for all models. A row has K responsibilities, and about each component a vector and a
squared residual. The vector goes through a transform into the unit ball (or box), everything is truncated to integers,
and responsibilities times (count, vector, residual) are summed. `_add` does that for every model, and privacy rests on
it alone; what a model computes before affects utility only. Every row gets the same passes, present or not, and none of
them is on subnormal numbers, which would take longer (`LEAST`; `bench/kernels.py times` measures it). No arithmetic
here may be reordered, except in `_dot`, whose sums of integers are exact in any order; so a row's integers are a
function of that row and of released parameters alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

SLICE = 128
"""Number of rows processed together, one array per quantity, so that loops run over adjacent rows and vectorise.

Chosen, not tuned.
"""

BITS = 18
"""Lattice of responsibilities, and of all their factors: 2^-18 each."""

UNIT = float(2**BITS)

LOOK_BITS = 25
"""Lattice of a look: 2^-25. The squares of all its numbers together stay below 2^63."""

LOOK_UNIT = float(2**LOOK_BITS)

LEAST = 2.0**-100
"""Numbers of rows and of steps below it become 0, far below every lattice: squares of less could be subnormal."""

NORM, RADIAL, BOX, CELLS = range(4)
"""Transforms: clip the norm to 1; Catoni's truncation of the norm; its smoothed form of every coordinate.

CELLS is none: squared residuals are counted by cells, and vectors left out.
"""

CATONI = 2.0 * math.sqrt(2.0) / 3.0
"""Largest value of Catoni's function u - u^3 / 6, at sqrt 2."""

TERMS = 20
"""Number of terms of the polynomial for the smoothed truncation; a multiple of four."""

UNCLIPPED = 1e6
"""Clip of residuals, in standard deviations, that means none."""

FAR = 1e9
"""Clip of arguments of the smoothed truncation, which is at its limit far before; it keeps squares finite."""

# nogil lets threads sum blocks in parallel; numpy's error model divides by zero without a branch or an exception.
_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_options)
def _load(block, first, present, centre, unit, half, nullable, z, missing, valid):  # type: ignore[no-untyped-def]
    """Set z[i, r], missing[i, r] and valid[r] to a slice in units of `unit` about `centre`, clipped to +-`half`.

    A number that is not finite is missing (and 0) in a nullable column; in other columns its row becomes invalid.
    Numbers below `LEAST` become 0 before they are multiplied.
    """
    for r in range(SLICE):
        valid[r] = 1.0 if present[first + r] else 0.0
    for i in range(z.shape[0]):
        inverse = 1.0 / unit[i]  # a factor, because divisions took a fifth of the time
        c, kept, least = centre[i], nullable[i], LEAST * unit[i]  # here, or the loop does not vectorise
        # A column of a width below LEAST would be clipped to subnormal numbers.
        most = half[i] if half[i] >= LEAST else 0.0
        column = block[i, first : first + SLICE]  # a view: the sign of `first + r` would be checked, at twice the time
        for r in range(SLICE):
            x = column[r] - c
            x = (0.0 if abs(x) < least else x) * inverse  # NaN stays
            finite = abs(x) < 1e100  # false for NaN
            missing[i, r] = 0.0 if finite else 1.0
            z[i, r] = min(max(x, -most), most) if finite else 0.0
        for r in range(SLICE * (not kept)):
            valid[r] = valid[r] if missing[i, r] == 0.0 else 0.0


@njit(**_options)
def _flushed(numbers):  # type: ignore[no-untyped-def]
    """Return public numbers with those below `LEAST` as 0, because a row's numbers are combined with them."""
    kept = np.empty_like(numbers)
    flat, out = numbers.ravel(), kept.ravel()
    for i in range(flat.shape[0]):  # a loop is compiled in a tenth of the time of `np.where`
        out[i] = 0.0 if abs(flat[i]) < LEAST else flat[i]
    return kept


@njit(fastmath={"reassoc", "contract", "nsz"}, **_options)
def _dot(gamma, values):  # type: ignore[no-untyped-def]
    # Products of integers up to 2^18 each, SLICE of them at most: exact in float64 in any order, fused or not.
    total = 0.0
    for r in range(SLICE):
        total += gamma[r] * values[r]
    return total


@njit(**_options)
def _multiply(matrix, z, out):  # type: ignore[no-untyped-def]
    """Set out (d, SLICE) to matrix z, each sum in the order of its columns.

    Tiles of four by four, because most of the time goes into loads and stores.
    """
    d = matrix.shape[0]
    tiled = d - d % 4
    for i in range(d):
        for r in range(SLICE):
            out[i, r] = 0.0
    for i in range(0, tiled, 4):
        # Sums of four products from left to right, as the reference adds them: another order would round otherwise.
        a, b, c, e = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
        for j in range(0, tiled, 4):
            a0, a1, a2, a3 = a[j], a[j + 1], a[j + 2], a[j + 3]
            b0, b1, b2, b3 = b[j], b[j + 1], b[j + 2], b[j + 3]
            c0, c1, c2, c3 = c[j], c[j + 1], c[j + 2], c[j + 3]
            e0, e1, e2, e3 = e[j], e[j + 1], e[j + 2], e[j + 3]
            for r in range(SLICE):
                z0, z1, z2, z3 = z[j, r], z[j + 1, r], z[j + 2, r], z[j + 3, r]
                out[i, r] = out[i, r] + a0 * z0 + a1 * z1 + a2 * z2 + a3 * z3
                out[i + 1, r] = out[i + 1, r] + b0 * z0 + b1 * z1 + b2 * z2 + b3 * z3
                out[i + 2, r] = out[i + 2, r] + c0 * z0 + c1 * z1 + c2 * z2 + c3 * z3
                out[i + 3, r] = out[i + 3, r] + e0 * z0 + e1 * z1 + e2 * z2 + e3 * z3
    for i in range(d):
        for j in range(tiled if i < tiled else 0, d):
            for r in range(SLICE):
                out[i, r] += matrix[i, j] * z[j, r]


@njit(**_options)
def _exp_negative(x):  # type: ignore[no-untyped-def]
    # As FitDPEM's, exp on [-60, 0] to 1e-9 relative, and once more: a compiled file is renewed for its own source only.
    t = max(x, -60.0) / 1024.0
    e = 1.0 + t * (1.0 + t * (0.5 + t * (1.0 / 6.0 + t * (1.0 / 24.0 + t * (1.0 / 120.0)))))
    for _ in range(10):
        e = e * e
    return e


@njit(**_options)
def _share(logs, valid, gamma):  # type: ignore[no-untyped-def]
    """Set gamma to responsibilities: integers >= 0 with sum at most UNIT, UNIT if there is one; 0 if invalid."""
    K = logs.shape[0]
    if K == 1:
        for r in range(SLICE):
            gamma[0, r] = UNIT * valid[r]
        return
    # The largest logarithm is subtracted, so that one component has weight 1 and the sum is never 0.
    top, total, check = np.full(SLICE, -np.inf), np.zeros(SLICE), np.zeros(SLICE)
    for k in range(K):
        for r in range(SLICE):
            top[r] = max(top[r], logs[k, r])
    for k in range(K):
        for r in range(SLICE):
            gamma[k, r] = _exp_negative(min(logs[k, r] - top[r], 0.0))
            total[r] += gamma[k, r]
    for k in range(K):
        for r in range(SLICE):
            share = gamma[k, r] / total[r] * (valid[r] * UNIT * (1.0 - 2.0**-30))
            gamma[k, r] = np.trunc(share) if 0.0 <= share <= UNIT else 0.0  # NaN fails
            check[r] += gamma[k, r]
    for k in range(K):
        for r in range(SLICE):
            gamma[k, r] = gamma[k, r] if check[r] <= UNIT else 0.0


@njit(**_options)
def _into_ball(v, radial):  # type: ignore[no-untyped-def]
    """Replace v[:, r] by integers of norm at most UNIT."""
    factor, check = np.zeros(SLICE), np.zeros(SLICE)
    for j in range(v.shape[0]):
        for r in range(SLICE):
            factor[r] += v[j, r] * v[j, r]
    if radial:
        for r in range(SLICE):
            norm = math.sqrt(factor[r])
            u = min(norm, math.sqrt(2.0))
            # 1e-200 only keeps the division defined: a vector of norm 0 stays 0.
            factor[r] = (u - u * u * u / 6.0) / CATONI / max(norm, 1e-200)
    else:
        for r in range(SLICE):
            factor[r] = 1.0 / max(math.sqrt(factor[r]), 1.0)
    for j in range(v.shape[0]):
        for r in range(SLICE):
            v[j, r] = np.trunc(v[j, r] * factor[r] * (UNIT * (1.0 - 2.0**-30)))
            check[r] += v[j, r] * v[j, r]
    for j in range(v.shape[0]):
        for r in range(SLICE):
            v[j, r] = v[j, r] if check[r] <= UNIT * UNIT else 0.0  # NaN fails


@njit(**_options)
def _into_box(v, curve):  # type: ignore[no-untyped-def]
    """Replace v by integers of at most UNIT each: the truncation of `curve` (`_truncation.curve`)."""
    width_squared, c = curve
    u, x, p = np.empty(SLICE), np.empty(SLICE), np.empty(SLICE)
    for j in range(v.shape[0]):
        for r in range(SLICE):
            a = v[j, r]
            a = FAR if a > FAR else -FAR if a < -FAR else a  # NaN stays
            # Maps the whole line to (-1, 1), on which a polynomial of fixed degree approximates the smoothed
            # truncation.
            u[r] = a / math.sqrt(a * a + width_squared)
            x[r] = 2.0 * u[r] * u[r] - 1.0
            p[r] = 0.0
        for i in range(TERMS - 4, -4, -4):  # four at a time: half of the time went into loads and stores
            for r in range(SLICE):
                p[r] = (((p[r] * x[r] + c[i + 3]) * x[r] + c[i + 2]) * x[r] + c[i + 1]) * x[r] + c[i]
        for r in range(SLICE):
            t = np.trunc(u[r] * p[r] * UNIT)
            t = UNIT if t > UNIT else -UNIT if t < -UNIT else t
            v[j, r] = t if abs(t) <= UNIT else 0.0  # NaN fails


@njit(**_options)
def _add(logs, vectors, residuals, valid, signs, transform, curve, count, weight, gamma, sums):  # type: ignore[no-untyped-def]
    """Add the rows of a slice to `sums`: counts, vectors, residuals of every block, in units of 2^-36.

    With `signs` the components fold into one block: the signed sum of their vectors, and a row counts once.

    Args:
        logs: log weights of the components, up to a constant, (K, SLICE).
        vectors: vectors, (K, q, SLICE); overwritten.
        residuals: squared residuals, (K, SLICE); 1 and more count as 1; overwritten.
        valid: 1.0, or 0.0 for rows that contribute nothing, (SLICE,).
        signs: signs +-1, (K,), or empty.
        transform: NORM, RADIAL, BOX or CELLS.
        curve: polynomial of BOX; edges of CELLS, in ascending order.
        count: a row's count, integer.
        weight: largest value of the residual, integer.
        gamma: scratch, (K, SLICE).
        sums: sums that are added to, (blocks (q + 2),).
    """
    K, q = vectors.shape[:2]
    _share(logs, valid, gamma)
    if transform == CELLS:
        edges, within = curve[1], np.empty(SLICE)
        for c in range(edges.shape[0] - 1):
            for k in range(K):
                for r in range(SLICE):
                    # Every cell is looked at for every row: no number of a row is an address. NaN is in none.
                    within[r] = 1.0 if residuals[k, r] >= edges[c] and residuals[k, r] < edges[c + 1] else 0.0
                sums[c] += _dot(gamma[k], within)
        return
    folded = signs.shape[0] > 0
    blocks = 1 if folded else K
    if folded:
        for r in range(SLICE):
            # A folded row counts once, whatever the responsibilities of its components.
            sums[0] += UNIT * valid[r] * count
    for k in range(K):
        if transform == BOX:
            _into_box(vectors[k], curve)
        else:
            _into_ball(vectors[k], transform == RADIAL)
        for r in range(SLICE):
            share = residuals[k, r] * weight
            # Capped in integers: a far row counts as the most expensive one, and no more.
            part = np.trunc(share) if share <= weight else weight
            residuals[k, r] = part if share >= 0.0 else 0.0  # NaN fails
        block, sign = (0, signs[k]) if folded else (k, 1.0)
        if not folded:
            for r in range(SLICE):
                sums[k] += gamma[k, r] * count
        for j in range(q):
            sums[blocks + block * q + j] += sign * _dot(gamma[k], vectors[k, j])
        sums[blocks * (1 + q) + block] += _dot(gamma[k], residuals[k])


@njit(**_options)
def location_sums(  # type: ignore[no-untyped-def]
    block, present, out, frame, log_weights, half_precisions, means, origins, scales, residual_scales, signs, shape
):
    """Add to `out` the gradients of a mixture.

    About component k the vector is (z - origins[k]) / scales[k], the residual |z - means[k]|^2. `frame` is (centre,
    unit, half, nullable); `shape` is (transform, curve, count, weight) of `_add`. Residuals are divided by
    `residual_scales`.
    """
    K, d = means.shape
    # A row's number times or minus a tiny parameter could be subnormal, although neither of them is.
    means, origins = _flushed(means), _flushed(origins)
    centre, unit, half, nullable = frame
    transform, curve, count, weight = shape
    z, missing, valid = np.empty((d, SLICE)), np.empty((d, SLICE)), np.empty(SLICE)
    vectors, residuals = np.empty((K, d, SLICE)), np.empty((K, SLICE))
    logs, gamma = np.empty((K, SLICE)), np.empty((K, SLICE))
    sums = np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for k in range(K):
            for r in range(SLICE):
                residuals[k, r] = 0.0
            inverse = 1.0 / scales[k]
            for i in range(d):
                for r in range(SLICE):
                    apart = z[i, r] - means[k, i]
                    residuals[k, r] += apart * apart
                    vectors[k, i, r] = (z[i, r] - origins[k, i]) * inverse
            for r in range(SLICE):
                logs[k, r] = log_weights[k] - half_precisions[k] * residuals[k, r]
                residuals[k, r] /= residual_scales[k]
        _add(logs, vectors, residuals, valid, signs, transform, curve, count, weight, gamma, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])


@njit(**_options)
def regression_sums(  # type: ignore[no-untyped-def]
    block, present, out, frame, log_weights, half_precisions, coefficients, maps, scales, residual_scales, signs, shape
):
    """Add to `out` the gradients of a mixture of regressions of the last column on the others.

    Features are w = (1, whitener (z - shift)), without the 1 if there is no intercept, and the target is z_y - shift_y;
    `maps` is (whitener, shift, intercept). About component k the vector is r w / scales[k] and the squared residual is
    r^2, where r is the residual of coefficients[k]. Other arguments are those of `location_sums`.
    """
    K, p = coefficients.shape
    centre, unit, half, nullable = frame
    whitener, shift, intercept = maps
    # A subnormal number makes arithmetic many times slower for some rows: time would tell of them.
    coefficients, whitener, shift = _flushed(coefficients), _flushed(whitener), _flushed(shift)
    offset = 1 if intercept else 0
    transform, curve, count, weight = shape
    d = centre.shape[0] - 1
    z, missing, valid = np.empty((d + 1, SLICE)), np.empty((d + 1, SLICE)), np.empty(SLICE)
    features, left = np.ones((p, SLICE)), np.empty(SLICE)
    vectors, residuals = np.empty((K, p, SLICE)), np.empty((K, SLICE))
    logs, gamma = np.empty((K, SLICE)), np.empty((K, SLICE))
    sums = np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for j in range(d):
            for r in range(SLICE):
                z[j, r] -= shift[j]
        _multiply(whitener, z, features[offset:])
        for k in range(K):
            for r in range(SLICE):
                left[r] = z[d, r] - shift[d]
            for j in range(p):
                for r in range(SLICE):
                    left[r] -= coefficients[k, j] * features[j, r]
            inverse = 1.0 / scales[k]
            for j in range(p):
                for r in range(SLICE):
                    vectors[k, j, r] = left[r] * features[j, r] * inverse
            for r in range(SLICE):
                square = left[r] * left[r]
                logs[k, r] = log_weights[k] - half_precisions[k] * square
                residuals[k, r] = square / residual_scales[k]
        _add(logs, vectors, residuals, valid, signs, transform, curve, count, weight, gamma, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])


@njit(**_options)
def missing_sums(  # type: ignore[no-untyped-def]
    block, present, out, frame, coefficients, maps, sigma, clip, clipped_square, scale, residual_scale, shape
):
    """Add to `out` the gradient of a regression of the last column on the others, some of which may be missing.

    Features are w = (1, (z - shift) spread), normal and independent where they are missing; `maps` is (spread, shift).
    The target given the present features is normal about <b, w> with variance v = sigma^2 + |b_missing|^2. With t the
    clipped standardised residual, the vector is sigma^2 (t w / sqrt v + (t^2 - clipped_square) b_missing / v): the
    score of that density times sigma^2. If residuals are clipped, rows whose vector could exceed `scale` for some
    residual get less weight, regardless of their own residual: then both parts of a vector keep mean zero, which
    clipping the norm would not. The squared residual is that of the clipped one.
    """
    p = coefficients.shape[0]
    centre, unit, half, nullable = frame
    spread, shift = maps
    coefficients, spread, shift = _flushed(coefficients), _flushed(spread), _flushed(shift)
    transform, curve, count, weight = shape
    d = centre.shape[0] - 1
    z, missing, valid = np.empty((d + 1, SLICE)), np.empty((d + 1, SLICE)), np.empty(SLICE)
    features, vectors, residuals = np.ones((p, SLICE)), np.empty((1, p, SLICE)), np.empty((1, SLICE))
    left, variance, t, longest = np.empty(SLICE), np.empty(SLICE), np.empty(SLICE), np.empty(SLICE)
    # The largest |t^2 - clipped_square| for a t within the clip, at t = 0 or at its end.
    most = max(clipped_square, clip * clip - clipped_square)
    logs, gamma, signs = np.zeros((1, SLICE)), np.empty((1, SLICE)), np.empty(0)
    sums = np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            left[r], variance[r] = z[d, r] - shift[d], sigma * sigma
        for i in range(d):
            square = coefficients[1 + i] * coefficients[1 + i]
            for r in range(SLICE):
                features[1 + i, r] = (z[i, r] - shift[i]) * spread[i] * (1.0 - missing[i, r])
                variance[r] += missing[i, r] * square
        for j in range(p):
            for r in range(SLICE):
                left[r] -= coefficients[j] * features[j, r]
        for r in range(SLICE):
            left[r] /= math.sqrt(variance[r])
            t[r] = min(max(left[r], -clip), clip)
            residuals[0, r] = left[r] * left[r] / residual_scale
        for r in range(SLICE):
            # Squared length of the longest vector that this row's pattern of missing features allows, in two parts.
            longest[r] = most * most * (1.0 - sigma * sigma / variance[r])
        for j in range(p):
            for r in range(SLICE):
                longest[r] += clip * clip * features[j, r] * features[j, r]
        for r in range(SLICE):
            longest[r] = sigma * sigma * math.sqrt(longest[r] / variance[r]) if clip < UNCLIPPED else 0.0
        for j in range(p):
            for r in range(SLICE):
                absent = missing[j - 1, r] if j >= 1 else 0.0
                part = t[r] * features[j, r] / math.sqrt(variance[r])
                part += absent * (t[r] * t[r] - clipped_square) * coefficients[j] / variance[r]
                vectors[0, j, r] = sigma * sigma * part / max(scale, longest[r])
        _add(logs, vectors, residuals, valid, signs, transform, curve, count, weight, gamma, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])


@njit(**_options)
def _add_checked(v, valid, limit, sums):  # type: ignore[no-untyped-def]
    """Add trunc(LOOK_UNIT v) of a row to `sums`, or nothing if its squared norm in integers is above `limit`."""
    # Integers, since squares of up to 2^25 summed over many numbers leave the exact range of a double.
    check = np.int64(0)
    for j in range(v.shape[0]):
        t = np.trunc(v[j] * (LOOK_UNIT * (1.0 - 2.0**-30)))
        v[j] = t if abs(t) <= LOOK_UNIT else 0.0  # NaN fails
        check += np.int64(v[j]) * np.int64(v[j])
    passed = valid if check <= limit else 0.0
    for j in range(v.shape[0]):
        sums[j] += v[j] * passed


@njit(**_options)
def location_look(block, present, out, frame, limit):  # type: ignore[no-untyped-def]
    """Add (1, z / sqrt d, |z|^2 / d) of every row."""
    centre, unit, half, nullable = frame
    d = centre.shape[0]
    z, missing, valid = np.empty((d, SLICE)), np.empty((d, SLICE)), np.empty(SLICE)
    v, sums = np.empty(d + 2), np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            v[0], v[d + 1] = 1.0, 0.0
            for i in range(d):
                v[1 + i] = z[i, r] / math.sqrt(d)
                v[d + 1] += z[i, r] * z[i, r] / d
            _add_checked(v, valid[r], limit, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])


@njit(**_options)
def regression_look(block, present, out, frame, limit):  # type: ignore[no-untyped-def]
    """Add the entries on and below the diagonal of w w^T, w = (1, z) / sqrt(columns + 1), those below times sqrt 2."""
    centre, unit, half, nullable = frame
    d = centre.shape[0]
    z, missing, valid = np.empty((d, SLICE)), np.empty((d, SLICE)), np.empty(SLICE)
    w, v, sums = np.empty(d + 1), np.empty(out.shape[0]), np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            w[0] = 1.0
            for i in range(d):
                w[1 + i] = z[i, r]
            at = 0
            for i in range(d + 1):
                for j in range(i + 1):
                    v[at] = w[i] * w[j] * (1.0 if i == j else math.sqrt(2.0)) / (d + 1)
                    at += 1
            _add_checked(v, valid[r], limit, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])


@njit(**_options)
def missing_look(block, present, out, frame, limit):  # type: ignore[no-untyped-def]
    """Add (1, y, y^2), then (m, m z, m z^2) / sqrt d of every feature, m = 1 where it is there."""
    centre, unit, half, nullable = frame
    d = centre.shape[0] - 1
    z, missing, valid = np.empty((d + 1, SLICE)), np.empty((d + 1, SLICE)), np.empty(SLICE)
    v, sums = np.empty(out.shape[0]), np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            v[0], v[1], v[2] = 1.0, z[d, r], z[d, r] * z[d, r]
            for i in range(d):
                there = (1.0 - missing[i, r]) / math.sqrt(d)
                v[3 + i] = there
                v[3 + d + i] = there * z[i, r]
                v[3 + 2 * d + i] = there * (z[i, r] * z[i, r])
            _add_checked(v, valid[r], limit, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])
