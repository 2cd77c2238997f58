"""The compiled passes over rows: a look at the columns' scales, and the gradient of each model, as exact integer sums.

A gradient has one shape for all models. A row has K responsibilities, and about each component a vector and a squared
residual. The vector goes through a transform into the unit ball (or box), everything is truncated to integers, and
responsibilities times (count, vector, residual) are summed. `_add` does that for every model and carries the privacy;
what a model computes before it is utility only. Every row gets the same operations, present or not, and its integers
are a function of that row and of released parameters alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

SLICE = 64
"""Rows that are loaded together: a block lies by columns, and rows are worked on one by one."""

BITS = 18
"""Lattice of responsibilities, and of everything that they multiply: 2^-18 each."""

UNIT = float(2**BITS)

LOOK_BITS = 25
"""Lattice of a look: 2^-25. Squares of all its numbers together stay below 2^63."""

LOOK_UNIT = float(2**LOOK_BITS)

NORM, RADIAL, BOX = range(3)
"""Transforms: clip the norm to 1; Catoni's truncation of the norm; its smoothed form of every coordinate."""

CATONI = 2.0 * math.sqrt(2.0) / 3.0
"""Largest value of Catoni's function u - u^3 / 6, at sqrt 2."""

_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_options)
def smoothed(a, root_beta):  # type: ignore[no-untyped-def]
    """E phi(a (1 + eta)), eta normal with standard deviation 1 / root_beta, phi Catoni's truncation: total and odd.

    Wang et al. 2020, equations 9-12, by the moments of a truncated normal variable. In floating point the closed form
    is not bounded; the caller's clamp is what is relied on.
    """
    size = abs(a)
    if not size >= 1e-8:  # NaN, too
        return a if size < 1e-8 else 0.0
    limit = CATONI * math.erf(root_beta / math.sqrt(2.0))
    if size > 1e3:
        return math.copysign(limit, a)
    b = size / root_beta
    low, high = (-math.sqrt(2.0) - size) / b, (math.sqrt(2.0) - size) / b
    density_low = math.exp(-0.5 * low * low) / math.sqrt(2.0 * math.pi)
    density_high = math.exp(-0.5 * high * high) / math.sqrt(2.0 * math.pi)
    below, above = 0.5 * math.erfc(-low / math.sqrt(2.0)), 0.5 * math.erfc(high / math.sqrt(2.0))
    m0 = 1.0 - below - above
    m1 = density_low - density_high
    m2 = m0 + low * density_low - high * density_high
    m3 = 2.0 * m1 + low * low * density_low - high * high * density_high
    first = size * m0 + b * m1
    third = size**3 * m0 + 3.0 * size * size * b * m1 + 3.0 * size * b * b * m2 + b**3 * m3
    return math.copysign(min(max(first - third / 6.0 + CATONI * (above - below), 0.0), limit), a)


@njit(**_options)
def _load(block, first, present, centre, unit, half, nullable, z, missing, valid):  # type: ignore[no-untyped-def]
    """Rows of a slice in units of `unit` about `centre`, clipped to +-`half`.

    A number that is not finite is missing (and 0) in a nullable column; in any other its row becomes invalid.
    """
    for r in range(SLICE):
        valid[r] = 1.0 if present[first + r] else 0.0
    for i in range(z.shape[1]):
        for r in range(SLICE):
            x = (block[i, first + r] - centre[i]) / unit[i]
            finite = abs(x) < 1e100  # false for NaN
            missing[r, i] = 0.0 if finite else 1.0
            valid[r] = valid[r] if finite or nullable[i] else 0.0
            z[r, i] = min(max(x, -half[i]), half[i]) if finite else 0.0


@njit(**_options)
def _share(logs, valid, gamma):  # type: ignore[no-untyped-def]
    """Responsibilities in lattice units: integers >= 0 with sum at most UNIT, UNIT if there is one; 0 if invalid."""
    K = logs.shape[0]
    if K == 1:
        gamma[0] = UNIT * valid
        return
    top, total, check = -np.inf, 0.0, 0.0
    for k in range(K):
        top = max(top, logs[k])
    for k in range(K):
        gamma[k] = math.exp(min(logs[k] - top, 0.0))
        total += gamma[k]
    for k in range(K):
        share = gamma[k] / total * (valid * UNIT * (1.0 - 2.0**-30))
        gamma[k] = np.trunc(share) if 0.0 <= share <= UNIT else 0.0  # NaN fails
        check += gamma[k]
    for k in range(K):
        gamma[k] = gamma[k] if check <= UNIT else 0.0


@njit(**_options)
def _into_ball(v, radial):  # type: ignore[no-untyped-def]
    """Integers of norm at most UNIT in place of v."""
    square, check = 0.0, 0.0
    for j in range(v.shape[0]):
        square += v[j] * v[j]
    norm = math.sqrt(square)
    if radial:
        u = min(norm, math.sqrt(2.0))
        factor = (u - u * u * u / 6.0) / CATONI / max(norm, 1e-200)
    else:
        factor = 1.0 / max(norm, 1.0)
    for j in range(v.shape[0]):
        v[j] = np.trunc(v[j] * factor * (UNIT * (1.0 - 2.0**-30)))
        check += v[j] * v[j]
    for j in range(v.shape[0]):
        v[j] = v[j] if check <= UNIT * UNIT else 0.0  # NaN fails


@njit(**_options)
def _into_box(v, root_beta):  # type: ignore[no-untyped-def]
    """Integers of at most UNIT each in place of v."""
    scale = UNIT / (CATONI * math.erf(root_beta / math.sqrt(2.0)))
    for j in range(v.shape[0]):
        t = np.trunc(smoothed(v[j], root_beta) * scale)
        v[j] = t if abs(t) <= UNIT else 0.0  # NaN fails


@njit(**_options)
def _add(logs, vectors, residuals, valid, signs, transform, root_beta, count, weight, gamma, sums):  # type: ignore[no-untyped-def]
    """Add one row to `sums`: counts, vectors, residuals of every block, in units of 2^-36.

    With `signs` the components fold into one block: the signed sum of their vectors, and the row counts once.

    Args:
        logs: (K,) log weights of the components, up to a constant.
        vectors: (K, q); overwritten.
        residuals: (K,) squared, 1 and more count as 1.
        valid: 1.0, or 0.0 for a row that is to contribute nothing.
        signs: (K,) of +-1, or (0,).
        transform: NORM, RADIAL or BOX.
        root_beta: of BOX.
        count: integer, a row's count.
        weight: integer, the residual's largest value.
        gamma: (K,) scratch.
        sums: (blocks (q + 2),).
    """
    K, q = vectors.shape
    _share(logs, valid, gamma)
    folded = signs.shape[0] > 0
    blocks = 1 if folded else K
    if folded:
        sums[0] += UNIT * valid * count
    for k in range(K):
        if transform == BOX:
            _into_box(vectors[k], root_beta)
        else:
            _into_ball(vectors[k], transform == RADIAL)
        share = residuals[k] * weight
        residual = np.trunc(share) if 0.0 <= share <= weight else (weight if share > weight else 0.0)  # NaN is 0
        block, sign = (0, signs[k]) if folded else (k, 1.0)
        if not folded:
            sums[k] += gamma[k] * count
        for j in range(q):
            sums[blocks + block * q + j] += sign * gamma[k] * vectors[k, j]
        sums[blocks * (1 + q) + block] += gamma[k] * residual


@njit(**_options)
def location_sums(  # type: ignore[no-untyped-def]
    block, present, out, frame, log_weights, half_precisions, means, origins, scales, residual_scales, signs, shape
):
    """Gradients of a mixture: about component k the vector (z - origins[k]) / scales[k], residual |z - means[k]|^2.

    `frame` is (centre, unit, half, nullable); `shape` is (transform, root_beta, count, weight) of `_add`. Residuals are
    divided by `residual_scales`. Adds to `out`.
    """
    K, d = means.shape
    centre, unit, half, nullable = frame
    transform, root_beta, count, weight = shape
    z, missing, valid = np.empty((SLICE, d)), np.empty((SLICE, d)), np.empty(SLICE)
    vectors, residuals, logs, gamma = np.empty((K, d)), np.empty(K), np.empty(K), np.empty(K)
    sums = np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            for k in range(K):
                square = 0.0
                for i in range(d):
                    apart = z[r, i] - means[k, i]
                    square += apart * apart
                    vectors[k, i] = (z[r, i] - origins[k, i]) / scales[k]
                logs[k] = log_weights[k] - half_precisions[k] * square
                residuals[k] = square / residual_scales[k]
            _add(logs, vectors, residuals, valid[r], signs, transform, root_beta, count, weight, gamma, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])


@njit(**_options)
def regression_sums(  # type: ignore[no-untyped-def]
    block, present, out, frame, log_weights, half_precisions, coefficients, maps, scales, residual_scales, signs, shape
):
    """Gradients of a mixture of regressions of the last column on the others.

    Features are w = (1, whitener (z - shift)), without the 1 if there is no intercept, and the target is z_y - shift_y;
    `maps` is (whitener, shift, intercept). About component k the vector is r w / scales[k] and the residual r^2, where
    r is what coefficients[k] leaves of the target. The rest as in `location_sums`.
    """
    K, p = coefficients.shape
    centre, unit, half, nullable = frame
    whitener, shift, intercept = maps
    transform, root_beta, count, weight = shape
    d = centre.shape[0] - 1
    z, missing, valid = np.empty((SLICE, d + 1)), np.empty((SLICE, d + 1)), np.empty(SLICE)
    features, logs, gamma = np.empty(p), np.empty(K), np.empty(K)
    vectors, residuals = np.empty((K, p)), np.empty(K)
    sums = np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            if intercept:
                features[0] = 1.0
            for i in range(d):
                total = 0.0
                for j in range(d):
                    total += whitener[i, j] * (z[r, j] - shift[j])
                features[p - d + i] = total
            for k in range(K):
                left = z[r, d] - shift[d]
                for j in range(p):
                    left -= coefficients[k, j] * features[j]
                for j in range(p):
                    vectors[k, j] = left * features[j] / scales[k]
                logs[k] = log_weights[k] - half_precisions[k] * (left * left)
                residuals[k] = left * left / residual_scales[k]
            _add(logs, vectors, residuals, valid[r], signs, transform, root_beta, count, weight, gamma, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])


@njit(**_options)
def missing_sums(  # type: ignore[no-untyped-def]
    block, present, out, frame, coefficients, maps, sigma, clip, clipped_square, scale, residual_scale, shape
):
    """Gradient of a regression of the last column on the others, of which some numbers are missing.

    Features are w = (1, (z - shift) spread), normal and independent where they are missing; `maps` is (spread, shift,
    intercept). The target given what is there is normal about <b, w> with variance v = sigma^2 + |b_missing|^2. With t
    the clipped standardised residual, the vector is sigma^2 (t w / sqrt v + (t^2 - clipped_square) b_missing / v): the
    score of that density times sigma^2. The residual is the square of what is clipped.
    """
    p = coefficients.shape[0]
    centre, unit, half, nullable = frame
    spread, shift, intercept = maps
    transform, root_beta, count, weight = shape
    d = centre.shape[0] - 1
    z, missing, valid = np.empty((SLICE, d + 1)), np.empty((SLICE, d + 1)), np.empty(SLICE)
    features, vectors = np.empty(p), np.empty((1, p))
    residuals, logs, gamma, signs = np.empty(1), np.zeros(1), np.empty(1), np.empty(0)
    sums = np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            if intercept:
                features[0] = 1.0
            left, variance = z[r, d] - shift[d], sigma * sigma
            for i in range(d):
                features[p - d + i] = (z[r, i] - shift[i]) * spread[i] * (1.0 - missing[r, i])
                variance += missing[r, i] * (coefficients[p - d + i] * coefficients[p - d + i])
            for j in range(p):
                left -= coefficients[j] * features[j]
            left /= math.sqrt(variance)
            t = min(max(left, -clip), clip)
            for j in range(p):
                absent = missing[r, j - (p - d)] if j >= p - d else 0.0
                part = t * features[j] / math.sqrt(variance)
                part += absent * (t * t - clipped_square) * coefficients[j] / variance
                vectors[0, j] = sigma * sigma * part / scale
            residuals[0] = left * left / residual_scale
            _add(logs, vectors, residuals, valid[r], signs, transform, root_beta, count, weight, gamma, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])


@njit(**_options)
def _add_checked(v, valid, limit, sums):  # type: ignore[no-untyped-def]
    """Add trunc(LOOK_UNIT v) of a row to `sums`, or nothing if its squared norm in integers is above `limit`."""
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
    z, missing, valid = np.empty((SLICE, d)), np.empty((SLICE, d)), np.empty(SLICE)
    v, sums = np.empty(d + 2), np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            v[0], v[d + 1] = 1.0, 0.0
            for i in range(d):
                v[1 + i] = z[r, i] / math.sqrt(d)
                v[d + 1] += z[r, i] * z[r, i] / d
            _add_checked(v, valid[r], limit, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])


@njit(**_options)
def regression_look(block, present, out, frame, limit):  # type: ignore[no-untyped-def]
    """Add the entries on and below the diagonal of w w^T, w = (1, z) / sqrt(columns + 1), those below times sqrt 2."""
    centre, unit, half, nullable = frame
    d = centre.shape[0]
    z, missing, valid = np.empty((SLICE, d)), np.empty((SLICE, d)), np.empty(SLICE)
    w, v, sums = np.empty(d + 1), np.empty(out.shape[0]), np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            w[0] = 1.0
            for i in range(d):
                w[1 + i] = z[r, i]
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
    z, missing, valid = np.empty((SLICE, d + 1)), np.empty((SLICE, d + 1)), np.empty(SLICE)
    v, sums = np.empty(out.shape[0]), np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _load(block, first, present, centre, unit, half, nullable, z, missing, valid)
        for r in range(SLICE):
            v[0], v[1], v[2] = 1.0, z[r, d], z[r, d] * z[r, d]
            for i in range(d):
                there = (1.0 - missing[r, i]) / math.sqrt(d)
                v[3 + i] = there
                v[3 + d + i] = there * z[r, i]
                v[3 + 2 * d + i] = there * (z[r, i] * z[r, i])
            _add_checked(v, valid[r], limit, sums)
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])
