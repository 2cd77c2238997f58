"""The compiled sketch: phases, cosines and sines of rows on an integer lattice, and their exact sums.

Rows are worked on in slices, one array per quantity, so that every loop runs over neighbouring rows and vectorises. No
arithmetic in here may be reordered, except in `_add`, whose sums of integers below 2^24 are exact in any order; so a
row's integers are a function of that row, of its position in the block, which decides its mask, and of public
parameters. There is no early exit and no branch on data. Everything is a function of any bit pattern: phases, cosines
and sines stay floats, whose operations never trap, until a comparison that NaN fails has bounded them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from bursar_server.fits.sketch._masks import LANES, MASKS

SLICE = 512
"""Rows worked on together: their sums of integers up to 2^15 are at most 2^24, exact in float32."""

TRANSFORM_SLICE = 64
"""Rows that are transformed together: with 128 columns they stay in the first-level cache."""

BITS = 15
"""Lattice of the signature: 2^-15."""

UNIT = 2**BITS

_LARGEST_NORM = np.float32(2.0 ** (2 * BITS) * (1 - 2.0**-21))
"""What a computed c^2 + s^2 is compared with: the exact one is then below 2^30; see the proof."""

_AMPLITUDE = UNIT * (1 - 2.0**-17)
"""Of the polynomials: far enough below `UNIT` for every regular row to pass the comparison."""

_ROUNDER = np.float32(1.5 * 2.0**23)
"""Added to a float32 below 2^22, it leaves the nearest integer in the low bits."""

_ZERO, _ONE, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)

# cos(pi x) and sin(pi x) / x as polynomials in x^2, minimax on [-1/2, 1/2]: errors 4.7e-8 and, times x, 5.9e-7.
_C0 = np.float32(_AMPLITUDE * 0.9999999536185289)
_C1 = np.float32(_AMPLITUDE * -4.934792866997877)
_C2 = np.float32(_AMPLITUDE * 4.058412025497038)
_C3 = np.float32(_AMPLITUDE * -1.3318807162027095)
_C4 = np.float32(_AMPLITUDE * 0.2196977333924919)
_S0 = np.float32(_AMPLITUDE * 3.1415820221086155)
_S1 = np.float32(_AMPLITUDE * -5.167142791944363)
_S2 = np.float32(_AMPLITUDE * 2.5418989853807177)
_S3 = np.float32(_AMPLITUDE * -0.5546360948379352)

_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


def _define_fma(context, a, b, c):  # type: ignore[no-untyped-def]
    """Return a b + c, rounded once: asked for in words, so that no compiler decides where it is done."""
    return types.float32(*3 * [types.float32]), lambda _context, builder, _signature, args: builder.fma(*args)


def _define_flip_if_odd(context, x, rounded):  # type: ignore[no-untyped-def]
    """Return -x if the lowest bit of `rounded` is set (an odd integer plus `_ROUNDER`), else x."""

    def generate(context, builder, _signature, args):  # type: ignore[no-untyped-def]
        bits, number = context.get_value_type(types.int32), context.get_value_type(types.float32)
        x, rounded = (builder.bitcast(arg, bits) for arg in args)
        return builder.bitcast(builder.xor(x, builder.shl(rounded, bits(31))), number)

    return types.float32(*2 * [types.float32]), generate


_fma: Any = intrinsic(_define_fma)
_flip_if_odd: Any = intrinsic(_define_flip_if_odd)


@njit(fastmath={"reassoc", "nsz"}, **_options)
def _add(total, x):  # type: ignore[no-untyped-def]
    # Integers up to 2^15 in absolute value, 512 of them at most: exact in float32 in any order.
    return total + x


@njit(**_options)
def _normalise(block, present, first, lanes, centre, unit, lower, upper, x, limit):  # type: ignore[no-untyped-def]
    """Frame coordinates in the box; `limit` is `_LARGEST_NORM`, or -1 for a row that is absent or not finite.

    Row k of the result is slot first + k of the block, or, with more than one lane, in the order of masks: slot
    l * MASKS + first + g at k = g * lanes + l. Returns how many rows count.
    """
    d, n = x.shape
    valid = 0
    for lane in range(lanes):
        start = first + lane * MASKS
        for g in range(n // lanes):
            limit[g * lanes + lane] = _LARGEST_NORM if present[start + g] else -_ONE
        for i in range(d):
            for g in range(n // lanes):
                raw = block[i, start + g]
                finite = abs(raw) < np.inf  # false for NaN
                z = min(max((raw - centre[i]) / unit[i], lower[i]), upper[i])
                k = g * lanes + lane
                x[i, k] = np.float32(z if finite else 0.0)
                limit[k] = limit[k] if finite else -_ONE
    for k in range(n):
        valid += 1 if limit[k] > _ZERO else 0
    return valid


@njit(**_options)
def _phases(x, w, offset, phase):  # type: ignore[no-untyped-def]
    """Set phase[r] to offset + sum_i w[i] x[i, r], four columns at a time."""
    d, n = x.shape
    for r in range(n):
        phase[r] = offset
    for i in range(d % 4):
        for r in range(n):
            phase[r] = _fma(w[i], x[i, r], phase[r])
    for i in range(d % 4, d, 4):
        a, b, c, e = w[i], w[i + 1], w[i + 2], w[i + 3]
        for r in range(n):
            phase[r] = _fma(a, x[i, r], _fma(b, x[i + 1, r], _fma(c, x[i + 2, r], _fma(e, x[i + 3, r], phase[r]))))


@njit(**_options)
def _exponential(phase, limit, n):  # type: ignore[no-untyped-def]
    """Sums of trunc(UNIT cos(pi phase)) and trunc(UNIT sin(pi phase)) over rows whose c^2 + s^2 is within the limit."""
    cosines, sines = _ZERO, _ZERO
    for r in range(n):
        rounded = phase[r] + _ROUNDER
        x = phase[r] - (rounded - _ROUNDER)
        u = x * x
        c = np.trunc(_fma(_fma(_fma(_fma(_C4, u, _C3), u, _C2), u, _C1), u, _C0))
        s = np.trunc(_fma(_fma(_fma(_S3, u, _S2), u, _S1), u, _S0) * x)
        within = _fma(c, c, s * s) <= limit[r]  # NaN fails
        cosines = _add(cosines, _flip_if_odd(c, rounded) if within else _ZERO)
        sines = _add(sines, _flip_if_odd(s, rounded) if within else _ZERO)
    return np.int64(cosines), np.int64(sines)


@njit(**_options)
def _one_bit(phase, limit, n):  # type: ignore[no-untyped-def]
    """UNIT times the sums of the signs of cos(pi phase) and sin(pi phase), 0 counted as positive."""
    cosines, sines = _ZERO, _ZERO
    for r in range(n):
        rounded = phase[r] + _ROUNDER
        x = phase[r] - (rounded - _ROUNDER)
        valid = limit[r] > _ZERO and abs(x) <= _HALF  # NaN fails
        c = _flip_if_odd(_ONE, rounded)
        s = _flip_if_odd(_ONE if x >= _ZERO else -_ONE, rounded)
        cosines = _add(cosines, c if valid else _ZERO)
        sines = _add(sines, s if valid else _ZERO)
    return UNIT * np.int64(cosines), UNIT * np.int64(sines)


@njit(**_options)
def _add_signature(phase, limit, n, one_bit, out, j, m):  # type: ignore[no-untyped-def]
    c, s = _one_bit(phase, limit, n) if one_bit else _exponential(phase, limit, n)
    out[j] += c
    out[m + j] += s


@njit(**_options)
def dense_sums(  # type: ignore[no-untyped-def]
    block, present, out, centre, unit, lower, upper, one_bit, offsets, W
):
    """Add the block's cosines and sines at all frequencies to out[:2 m]; returns how many rows count.

    `W` (m, d) and `offsets` (m,) are in half turns, float32.
    """
    m, d = W.shape
    x = np.empty((d, SLICE), np.float32)
    limit = np.empty(SLICE, np.float32)
    phase = np.empty(SLICE, np.float32)
    valid = 0
    for first in range(0, block.shape[1], SLICE):
        valid += _normalise(block, present, first, 1, centre, unit, lower, upper, x, limit)
        for j in range(m):
            _phases(x, W[j], offsets[j], phase)
            _add_signature(phase, limit, SLICE, one_bit, out, j, m)
    return valid


@njit(**_options)
def masked_dense_sums(  # type: ignore[no-untyped-def]
    block, present, out, centre, unit, lower, upper, one_bit, offsets, W, starts, masks
):
    """As `dense_sums`, for the slots whose mask has the frequency: those of masks[starts[j] : starts[j + 1]]."""
    m, d = W.shape
    x = np.empty((d, block.shape[1]), np.float32)
    limit = np.empty(block.shape[1], np.float32)
    some = np.empty((d, SLICE), np.float32)
    some_limit = np.empty(SLICE, np.float32)
    phase = np.empty(SLICE, np.float32)
    valid = _normalise(block, present, 0, LANES, centre, unit, lower, upper, x, limit)
    for j in range(m):
        for start in range(starts[j], starts[j + 1], SLICE // LANES):
            end = min(start + SLICE // LANES, starts[j + 1])
            for at in range(start, end):
                for lane in range(LANES):
                    some_limit[(at - start) * LANES + lane] = limit[masks[at] * LANES + lane]
                    for i in range(d):
                        some[i, (at - start) * LANES + lane] = x[i, masks[at] * LANES + lane]
            n = (end - start) * LANES
            _phases(some[:, :n], W[j], offsets[j], phase)
            _add_signature(phase, some_limit, n, one_bit, out, j, m)
    return valid


@njit(**_options)
def _sign_and_transform(v, signs):  # type: ignore[no-untyped-def]
    """Hadamard transform of the columns of v (p, n) times signs (p,), in place, in Sylvester's order."""
    p, n = v.shape
    for i in range(p):
        for r in range(n):
            v[i, r] *= signs[i]
    flat = v.ravel()
    half = 1
    while half < p:
        for base in range(0, p, 2 * half):
            upper, lower = flat[base * n : (base + half) * n], flat[(base + half) * n : (base + 2 * half) * n]
            for q in range(half * n):
                a, b = upper[q], lower[q]
                upper[q] = a + b
                lower[q] = a - b
        half *= 2


@njit(**_options)
def hadamard_sums(  # type: ignore[no-untyped-def]
    block, present, out, centre, unit, lower, upper, one_bit, offsets, signs, scales, starts, masks
):
    """As `masked_dense_sums`, with the phases scales[b, j] (H D3 H D2 H D1 x)_j of each block b of frequencies.

    `signs` (B, 3, p) and `scales` (B, p) are float32, the latter in half turns.
    """
    m, d = offsets.shape[0], lower.shape[0]
    p = signs.shape[2]
    n = TRANSFORM_SLICE
    x = np.empty((d, n), np.float32)
    limit = np.empty(n, np.float32)
    some_limit = np.empty(n, np.float32)
    v = np.empty((p, n), np.float32)
    phase = np.empty(n, np.float32)
    next_mask = starts[:-1].copy()
    valid = 0
    for first in range(0, MASKS, n // LANES):
        valid += _normalise(block, present, first, LANES, centre, unit, lower, upper, x, limit)
        for b in range(signs.shape[0]):
            v[:d] = x
            v[d:] = _ZERO
            for factor in range(3):
                _sign_and_transform(v, signs[b, factor])
            for j in range(b * p, min(b * p + p, m)):
                used = 0
                while next_mask[j] < starts[j + 1] and masks[next_mask[j]] < first + n // LANES:
                    g = masks[next_mask[j]] - first
                    for lane in range(LANES):
                        phase[used + lane] = _fma(scales[b, j - b * p], v[j - b * p, g * LANES + lane], offsets[j])
                        some_limit[used + lane] = limit[g * LANES + lane]
                    used += LANES
                    next_mask[j] += 1
                _add_signature(phase, some_limit, used, one_bit, out, j, m)
    return valid
