"""The compiled E-step: responsibilities, recentred features, and their exact integer sums.

Rows are worked on in slices of `SLICE`, one array per quantity, so that every loop runs over neighbouring rows and
vectorises. No arithmetic in here may be reordered, except in `_dot`, whose sums of integers below 2^53 are exact in any
order; so a row's integers are a function of that row and of released parameters alone. There is no early exit and no
branch on data that changes the work.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

SLICE = 256
"""Rows worked on together: their arrays stay in the first-level cache."""

BITS = 18
"""Lattice of responsibilities, and of positions and features: 2^-18 each."""

UNIT = float(2**BITS)

MOMENTS_SPHERICAL, MOMENTS_DIAG, MOMENTS_FULL, MOMENTS_TIED = range(4)

_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(fastmath={"reassoc", "contract", "nsz"}, **_options)
def _dot(gamma, feature):  # type: ignore[no-untyped-def]
    # Products of integers below 2^18 and 2^18, 8,192 of them at most: exact in float64 in any order, fused or not.
    total = 0.0
    for r in range(SLICE):
        total += gamma[r] * feature[r]
    return total


@njit(**_options)
def _normalise(block, first, present, centre, scale, z, valid):  # type: ignore[no-untyped-def]
    """Positions clipped to the unit ball; a row that is absent or not finite becomes the origin with valid = 0."""
    d = z.shape[0]
    norm = np.zeros(SLICE)
    for r in range(SLICE):
        valid[r] = 1.0 if present[first + r] else 0.0
    for i in range(d):
        for r in range(SLICE):
            x = (block[i, first + r] - centre[i]) / scale[i]
            finite = abs(x) < 1e100  # false for NaN
            valid[r] = valid[r] if finite else 0.0
            z[i, r] = x if finite else 0.0
    for i in range(d):
        for r in range(SLICE):
            z[i, r] *= valid[r]
            norm[r] += z[i, r] * z[i, r]
    for r in range(SLICE):
        norm[r] = 1.0 / math.sqrt(max(norm[r], 1.0))
    for i in range(d):
        for r in range(SLICE):
            z[i, r] *= norm[r]


@njit(**_options)
def _log_densities(z, log_scale, means, factors, diagonal, out):  # type: ignore[no-untyped-def]
    """out[k, r] = log_scale[k] - |factors[k] (z_r - means[k])|^2 / 2 with lower triangular factors."""
    d = z.shape[0]
    y = np.empty(SLICE)
    for k in range(means.shape[0]):
        for r in range(SLICE):
            out[k, r] = 0.0
        for i in range(d):
            for r in range(SLICE):
                y[r] = factors[k, i, i] * (z[i, r] - means[k, i])
            if not diagonal:
                for j in range(i):
                    for r in range(SLICE):
                        y[r] += factors[k, i, j] * (z[j, r] - means[k, j])
            for r in range(SLICE):
                out[k, r] += y[r] * y[r]
        for r in range(SLICE):
            out[k, r] = log_scale[k] - 0.5 * out[k, r]


@njit(**_options)
def _exp_negative(x):  # type: ignore[no-untyped-def]
    # exp on [-60, 0] to 1e-9 relative: Taylor of x / 1024, squared ten times. Unlike a library call it vectorises.
    t = max(x, -60.0) / 1024.0
    e = 1.0 + t * (1.0 + t * (0.5 + t * (1.0 / 6.0 + t * (1.0 / 24.0 + t * (1.0 / 120.0)))))
    for _ in range(10):
        e = e * e
    return e


@njit(**_options)
def _soft(logs, valid, gamma):  # type: ignore[no-untyped-def]
    """Responsibilities in lattice units: non-negative integers, a row's sum at most UNIT; 0 where valid is 0."""
    K = logs.shape[0]
    top = np.full(SLICE, -np.inf)
    total = np.zeros(SLICE)
    check = np.zeros(SLICE)
    for k in range(K):
        for r in range(SLICE):
            top[r] = max(top[r], logs[k, r])
    for k in range(K):
        for r in range(SLICE):
            gamma[k, r] = _exp_negative(min(logs[k, r] - top[r], 0.0))
            total[r] += gamma[k, r]
    for r in range(SLICE):
        total[r] = valid[r] * UNIT * (1.0 - 2.0**-30) / total[r]
    for k in range(K):
        for r in range(SLICE):
            share = gamma[k, r] * total[r]
            gamma[k, r] = np.trunc(share) if 0.0 <= share <= UNIT else 0.0  # NaN fails
            check[r] += gamma[k, r]
    for r in range(SLICE):
        check[r] = 1.0 if check[r] <= UNIT else 0.0
    for k in range(K):
        for r in range(SLICE):
            gamma[k, r] *= check[r]


@njit(**_options)
def _hard(logs, valid, gamma):  # type: ignore[no-untyped-def]
    """All of UNIT to the component with the largest score, the first among equals."""
    K = logs.shape[0]
    best = np.zeros(SLICE)
    top = np.full(SLICE, -np.inf)
    for k in range(K):
        for r in range(SLICE):
            better = logs[k, r] > top[r]
            best[r] = k if better else best[r]
            top[r] = logs[k, r] if better else top[r]
    for k in range(K):
        for r in range(SLICE):
            gamma[k, r] = UNIT * valid[r] if best[r] == k else 0.0


@njit(**_options)
def _recentre(z, centre, whitener, diagonal, u):  # type: ignore[no-untyped-def]
    """Set u to whitener (z - centre) clipped to the unit ball, in lattice units: integers of norm at most UNIT."""
    d = z.shape[0]
    norm = np.zeros(SLICE)
    check = np.zeros(SLICE)
    for i in range(d):
        for r in range(SLICE):
            u[i, r] = whitener[i, i] * (z[i, r] - centre[i])
        if not diagonal:
            for j in range(i):
                for r in range(SLICE):
                    u[i, r] += whitener[i, j] * (z[j, r] - centre[j])
        for r in range(SLICE):
            norm[r] += u[i, r] * u[i, r]
    for r in range(SLICE):
        norm[r] = UNIT * (1.0 - 2.0**-30) / math.sqrt(max(norm[r], 1.0))
    for i in range(d):
        for r in range(SLICE):
            u[i, r] = np.trunc(u[i, r] * norm[r])
            check[r] += u[i, r] * u[i, r]
    for i in range(d):
        for r in range(SLICE):
            u[i, r] = u[i, r] if check[r] <= UNIT * UNIT else 0.0  # NaN fails


@njit(**_options)
def _add_moments(gamma, u, moments, c, feature, out):  # type: ignore[no-untyped-def]
    """Add the second moments of one component to `out`, which starts where they do."""
    d = u.shape[0]
    if moments == MOMENTS_SPHERICAL:
        for r in range(SLICE):
            feature[r] = 0.0
        for i in range(d):
            for r in range(SLICE):
                feature[r] += u[i, r] * u[i, r]
        for r in range(SLICE):
            feature[r] = np.trunc(c / UNIT * feature[r])
        out[0] += _dot(gamma, feature)
    elif moments == MOMENTS_DIAG:
        for i in range(d):
            for r in range(SLICE):
                feature[r] = np.trunc(c / UNIT * (u[i, r] * u[i, r]))
            out[i] += _dot(gamma, feature)
    else:
        at = 0
        for i in range(d):
            for j in range(i + 1):
                weight = c / UNIT if i == j else c * math.sqrt(2.0) / UNIT
                for r in range(SLICE):
                    feature[r] = np.trunc(weight * (u[i, r] * u[j, r]))
                out[at] += _dot(gamma, feature)
                at += 1


@njit(**_options)
def moment_sums(  # type: ignore[no-untyped-def]
    block, present, out, centre, scale, hard, log_scale, means, factors, diagonal, centres, whiteners, moments, weights
):
    """Add the block's moments to `out`: K counts, K x d sums, then second moments (K x q, or q if tied), flat.

    `weights` are (a, b, c), each in [0, 1]; everything is in units of 2^-36.
    """
    K, d = means.shape
    q = (1, d, d * (d + 1) // 2, d * (d + 1) // 2)[moments]
    a = np.trunc(weights[0] * UNIT)
    z = np.empty((d, SLICE))
    u = np.empty((d, SLICE))
    valid = np.empty(SLICE)
    feature = np.empty(SLICE)
    logs = np.empty((K, SLICE))
    gamma = np.empty((K, SLICE))
    sums = np.zeros(out.shape[0])
    for first in range(0, block.shape[1], SLICE):
        _normalise(block, first, present, centre, scale, z, valid)
        _log_densities(z, log_scale, means, factors, diagonal, logs)
        if hard:
            _hard(logs, valid, gamma)
        else:
            _soft(logs, valid, gamma)
        for k in range(K):
            _recentre(z, centres[k], whiteners[k], diagonal, u)
            for r in range(SLICE):
                feature[r] = a
            sums[k] += _dot(gamma[k], feature)
            for i in range(d):
                for r in range(SLICE):
                    feature[r] = np.trunc(weights[1] * u[i, r])
                sums[K + k * d + i] += _dot(gamma[k], feature)
            start = K + K * d + (0 if moments == MOMENTS_TIED else k * q)
            _add_moments(gamma[k], u, moments, weights[2], feature, sums[start:])
    for j in range(out.shape[0]):
        out[j] += np.int64(sums[j])
