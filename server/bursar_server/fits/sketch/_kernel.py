"""Compiled sketch: phases, cosines and sines of rows on an integer lattice, and their exact sums.

Rows are processed in slices, one array per quantity, so that every loop runs over adjacent rows and vectorises. No
arithmetic here may be reordered, except in `_add`, whose sums of integers below 2^24 are exact in any order; so a row's
integers are a function of that row and of public parameters. There is no early exit, no branch on data, and no
operation on subnormal numbers, which would take longer (`LEAST`; `bench/kernels.py times` measures it). If rows
contribute at some of the frequencies only, blocks of equal rows take up to a tenth less, because their lists are fewer.

Everything is defined for any bit pattern: phases, cosines and sines stay floats, whose operations never trap, until a
comparison that NaN fails has bounded them. A row that does not count is NaN.

If a row contributes at r < m frequencies only (Schellekens et al. 2019, definition 3), they are r adjacent ones in a
ring of all, from one that a public hash of the row's own coordinates picks. Every frequency is then used by r / m of
all contents, and by adjacent rows of a block that is sorted by first frequency.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

SLICE = 512
"""Maximum number of rows processed together: their sums of integers up to 2^15 are at most 2^24, exact in float32."""

SHORT_SLICE = 64
"""Rows processed together if there are many columns or a transform, so that they stay in the CPU's cache.

Chosen, not tuned.
"""

_FEW_COLUMNS = 16
"""Maximum number of columns for long slices. Chosen, not tuned."""

_AT_ONCE = 32  # divides both slices

BITS = 15
"""Lattice of the signature: 2^-15."""

UNIT = 2**BITS

_LARGEST_NORM = np.float32(2.0 ** (2 * BITS) * (1 - 2.0**-21))
"""Bound of a computed c^2 + s^2: the exact one is then below 2^30; see the proof."""

_AMPLITUDE = UNIT * (1 - 2.0**-17)
"""Amplitude of the polynomials: far enough below `UNIT` for every regular row to pass the comparison."""

_ROUNDER = np.float32(1.5 * 2.0**23)
"""Added to a float32 below 2^22, it leaves the nearest integer in the low bits."""

LEAST = 2.0**-40
"""Frame coordinates below it become 0: their phases are below the lattice, and squares of less could be subnormal."""

_NAN = np.float32(np.nan)
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

# nogil lets threads sum blocks in parallel; numpy's error model divides by zero without a branch or an exception.
_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


def _define_fma(context, a, b, c):  # type: ignore[no-untyped-def]
    """Define a b + c, rounded once: explicit, so that no compiler decides where operations are fused."""
    return types.float32(*3 * [types.float32]), lambda _context, builder, _signature, args: builder.fma(*args)


def _define_flip_if_odd(context, x, rounded):  # type: ignore[no-untyped-def]
    """Define -x if the lowest bit of `rounded` is set (an odd integer plus `_ROUNDER`), else x."""

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
def _normalise(block, present, first, centre, unit, lower, upper, x):  # type: ignore[no-untyped-def]
    """Set x (d, n) to frame coordinates of the slots from `first` on, in the box; NaN for absent or non-finite rows.

    Coordinates below `LEAST` become 0 before they are divided. Returns the number of rows that count.
    """
    d, n = x.shape
    valid = np.empty(n, np.bool_)
    rows = 0
    for r in range(n):
        valid[r] = present[first + r]
    for i in range(d):
        for r in range(n):
            valid[r] &= abs(block[i, first + r]) < np.inf  # false for NaN
    for i in range(d):
        least = LEAST * unit[i]
        for r in range(n):
            apart = block[i, first + r] - centre[i]
            z = min(max((0.0 if abs(apart) < least else apart) / unit[i], lower[i]), upper[i])
            z = 0.0 if abs(z) < LEAST else z  # possible in a very narrow box
            x[i, r] = np.float32(z) if valid[r] else _NAN
    for r in range(n):
        rows += valid[r]
    return rows


@njit(**_options)
def first_frequencies(x, m, seed, firsts):  # type: ignore[no-untyped-def]
    """Set firsts[r] to the first of the frequencies of row r of x (d, n): a hash of its d numbers and a public seed.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014) after every number. It spreads rows evenly and needs no
    cryptographic strength: privacy holds for any function of the row.
    """
    d, n = x.shape
    column = np.empty(d, np.float32)
    bits = column.view(np.uint32)
    for r in range(n):
        h = seed
        for i in range(d):
            column[i] = x[i, r] + _ZERO  # -0 becomes 0: equal numbers, equal bits
            h = (h ^ np.uint64(bits[i])) + np.uint64(0x9E3779B97F4A7C15)
            h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            h = h ^ (h >> np.uint64(31))
        firsts[r] = np.int64(h % np.uint64(m))


@njit(**_options)
def _sorted_block(block, present, centre, unit, lower, upper, m, seed, x, starts):  # type: ignore[no-untyped-def]
    """Set x (d, CHUNK) to frame coordinates of the whole block, sorted by first frequency.

    Rows whose first frequency is f are starts[f] to starts[f + 1] of x. Returns the number of rows that count.
    """
    d, n = x.shape
    unsorted = np.empty((d, n), np.float32)
    firsts = np.empty(n, np.int64)
    valid = _normalise(block, present, np.int64(0), centre, unit, lower, upper, unsorted)
    first_frequencies(unsorted, m, seed, firsts)
    for f in range(m + 1):
        starts[f] = 0
    for r in range(n):
        starts[firsts[r] + 1] += 1
    for f in range(m):
        starts[f + 1] += starts[f]
    # A counting sort: linear, stable, and without comparisons.
    nexts = starts[:m].copy()
    for r in range(n):
        f = firsts[r]
        for i in range(d):
            x[i, nexts[f]] = unsorted[i, r]
        nexts[f] += 1
    return valid


@njit(**_options)
def _rows_of(j, part, per_row, m, starts):  # type: ignore[no-untyped-def]
    """Return begin and end of part 0 or 1 of the sorted rows at frequency j; the ring's end cuts them in two."""
    if part == 0:
        return starts[max(j - per_row + 1, 0)], starts[j + 1]
    return starts[min(m + j - per_row + 1, m)], starts[m]


@njit(**_options)
def _two_phases(x, v, w, v_offset, w_offset, v_phase, w_phase):  # type: ignore[no-untyped-def]
    """Set v_phase[r] to v_offset + sum_i v[i] x[i, r], and w_phase with w: two at a time read x half as often."""
    d, n = x.shape
    for r in range(n):
        v_phase[r] = v_offset
        w_phase[r] = w_offset
    for i in range(d % 4):
        for r in range(n):
            v_phase[r] = _fma(v[i], x[i, r], v_phase[r])
            w_phase[r] = _fma(w[i], x[i, r], w_phase[r])
    for i in range(d % 4, d, 4):
        va, vb, vc, vd = v[i], v[i + 1], v[i + 2], v[i + 3]
        wa, wb, wc, wd = w[i], w[i + 1], w[i + 2], w[i + 3]
        for r in range(n):
            a, b, c, e = x[i, r], x[i + 1, r], x[i + 2, r], x[i + 3, r]
            v_phase[r] = _fma(vd, e, _fma(vc, c, _fma(vb, b, _fma(va, a, v_phase[r]))))
            w_phase[r] = _fma(wd, e, _fma(wc, c, _fma(wb, b, _fma(wa, a, w_phase[r]))))


@njit(**_options)
def _exponential(phase, n):  # type: ignore[no-untyped-def]
    """Return sums of trunc(UNIT cos(pi phase)) and trunc(UNIT sin(pi phase)) over rows with c^2 + s^2 <= UNIT^2."""
    cosines, sines = _ZERO, _ZERO
    for r in range(n):
        # Adding and subtracting 1.5 x 2^23 rounds to the nearest integer without a call, so that the loop vectorises.
        rounded = phase[r] + _ROUNDER
        x = phase[r] - (rounded - _ROUNDER)
        u = x * x
        c = np.trunc(_fma(_fma(_fma(_fma(_C4, u, _C3), u, _C2), u, _C1), u, _C0))
        s = np.trunc(_fma(_fma(_fma(_S3, u, _S2), u, _S1), u, _S0) * x)
        within = _fma(c, c, s * s) <= _LARGEST_NORM  # NaN fails
        cosines = _add(cosines, _flip_if_odd(c, rounded) if within else _ZERO)
        sines = _add(sines, _flip_if_odd(s, rounded) if within else _ZERO)
    return np.int64(cosines), np.int64(sines)


@njit(**_options)
def _one_bit(phase, n):  # type: ignore[no-untyped-def]
    """Return UNIT times the sums of the signs of cos(pi phase) and sin(pi phase), 0 counted as positive."""
    cosines, sines = _ZERO, _ZERO
    for r in range(n):
        rounded = phase[r] + _ROUNDER
        x = phase[r] - (rounded - _ROUNDER)
        valid = abs(x) <= _HALF  # NaN fails
        c = _flip_if_odd(_ONE, rounded)
        s = _flip_if_odd(_ONE if x >= _ZERO else -_ONE, rounded)
        cosines = _add(cosines, c if valid else _ZERO)
        sines = _add(sines, s if valid else _ZERO)
    return UNIT * np.int64(cosines), UNIT * np.int64(sines)


@njit(**_options)
def _add_signature(phase, n, one_bit, out, j, m):  # type: ignore[no-untyped-def]
    c, s = _one_bit(phase, n) if one_bit else _exponential(phase, n)
    out[j] += c
    out[m + j] += s


@njit(**_options)
def _padded(phase, n):  # type: ignore[no-untyped-def]
    """Pad n phases with NaN, which does not count, to a multiple of the loops' width, and return that number."""
    end = -(-n // _AT_ONCE) * _AT_ONCE
    for r in range(n, end):
        phase[r] = _NAN
    return end


@njit(**_options)
def _phases(x, first, w, offset, phase):  # type: ignore[no-untyped-def]
    """Set phase[r] to offset + sum_i w[i] x[i, first + r], in the order of `_two_phases`."""
    d, n = x.shape[0], len(phase)
    for r in range(n):
        phase[r] = offset
    for i in range(d % 4):
        a = x[i, first : first + n]
        for r in range(n):
            phase[r] = _fma(w[i], a[r], phase[r])
    for i in range(d % 4, d, 4):
        wa, wb, wc, wd = w[i], w[i + 1], w[i + 2], w[i + 3]
        a, b = x[i, first : first + n], x[i + 1, first : first + n]
        c, e = x[i + 2, first : first + n], x[i + 3, first : first + n]
        for r in range(n):
            phase[r] = _fma(wd, e[r], _fma(wc, c[r], _fma(wb, b[r], _fma(wa, a[r], phase[r]))))


@njit(**_options)
def dense_sums(  # type: ignore[no-untyped-def]
    block, present, out, centre, unit, lower, upper, one_bit, offsets, W
):
    """Add the block's cosines and sines at all frequencies to out[:2 m]; returns the number of rows that count.

    `W` (m, d) and `offsets` (m,) are in half turns, float32.
    """
    m, d = W.shape
    # The slice's coordinates are read once for every two frequencies, so they should stay in the nearest cache.
    n = SLICE if d <= _FEW_COLUMNS else SHORT_SLICE
    x = np.empty((d, n), np.float32)
    phase = np.empty((2, n), np.float32)
    valid = 0
    for first in range(0, block.shape[1], n):
        valid += _normalise(block, present, first, centre, unit, lower, upper, x)
        for j in range(0, m, 2):
            # For odd m the last frequency is computed twice and added once.
            k = min(j + 1, m - 1)
            _two_phases(x, W[j], W[k], offsets[j], offsets[k], phase[0], phase[1])
            _add_signature(phase[0], n, one_bit, out, j, m)
            if k > j:
                _add_signature(phase[1], n, one_bit, out, k, m)
    return valid


@njit(**_options)
def masked_dense_sums(  # type: ignore[no-untyped-def]
    block, present, out, centre, unit, lower, upper, one_bit, offsets, W, per_row, seed
):
    """Add sums as `dense_sums`, every row at `per_row` frequencies from the one that `first_frequencies` picks."""
    m, d = W.shape
    x = np.empty((d, block.shape[1]), np.float32)
    starts = np.empty(m + 1, np.int64)
    phase = np.empty(SLICE, np.float32)
    valid = _sorted_block(block, present, centre, unit, lower, upper, m, seed, x, starts)
    for j in range(m):
        used = 0
        for part in range(2):
            first, end = _rows_of(j, part, per_row, m, starts)
            while first < end:
                n = min(end - first, SLICE - used)
                _phases(x, first, W[j], offsets[j], phase[used : used + n])
                first += n
                used += n
                if used == SLICE:
                    _add_signature(phase, used, one_bit, out, j, m)
                    used = 0
        _add_signature(phase, _padded(phase, used), one_bit, out, j, m)
    return valid


@njit(**_options)
def _sign_and_transform(v, signs):  # type: ignore[no-untyped-def]
    """Transform v (p, n) in place: H times signs (p,) times v, H in Sylvester's order; two levels at a time."""
    p, n = v.shape
    for i in range(p):
        for r in range(n):
            v[i, r] *= signs[i]
    flat = v.ravel()
    half = 1
    while 4 * half <= p:
        s = half * n  # the compiler vectorises this form only, with the stride as a product
        for base in range(0, p * n, 4 * s):
            q = flat[base : base + 4 * s]
            for r in range(s):
                a, b, c, e = q[r], q[r + s], q[r + 2 * s], q[r + 3 * s]
                a, b = a + b, a - b
                c, e = c + e, c - e
                q[r] = a + c
                q[r + s] = b + e
                q[r + 2 * s] = a - c
                q[r + 3 * s] = b - e
        half *= 4
    if half < p:
        s = half * n
        for r in range(s):
            a, b = flat[r], flat[r + s]
            flat[r] = a + b
            flat[r + s] = a - b


@njit(**_options)
def _transform(x, first, signs, v):  # type: ignore[no-untyped-def]
    """Set v (p, n) to H D3 H D2 H D1 x of n rows from `first` on; signs (3, p)."""
    d, (p, n) = x.shape[0], v.shape
    for i in range(p):
        for r in range(n):
            v[i, r] = x[i, first + r] if i < d else _ZERO
    for factor in range(3):
        _sign_and_transform(v, signs[factor])


@njit(**_options)
def hadamard_sums(  # type: ignore[no-untyped-def]
    block, present, out, centre, unit, lower, upper, one_bit, offsets, signs, scales
):
    """Add sums as `dense_sums`, with the phases scales[b, j] (H D3 H D2 H D1 x)_j of each block b of frequencies.

    `signs` (B, 3, p) and `scales` (B, p) are float32, the latter in half turns.
    """
    m, d, p = offsets.shape[0], lower.shape[0], signs.shape[2]
    n = SHORT_SLICE
    x = np.empty((d, n), np.float32)
    v = np.empty((p, n), np.float32)
    phase = np.empty(n, np.float32)
    valid = 0
    for first in range(0, block.shape[1], n):
        valid += _normalise(block, present, first, centre, unit, lower, upper, x)
        for b in range(signs.shape[0]):
            _transform(x, np.int64(0), signs[b], v)  # a literal would be compiled once more
            for j in range(b * p, min(b * p + p, m)):
                scale, products = scales[b, j - b * p], v[j - b * p]
                for r in range(n):
                    phase[r] = _fma(scale, products[r], offsets[j])
                _add_signature(phase, n, one_bit, out, j, m)
    return valid


@njit(**_options)
def masked_hadamard_sums(  # type: ignore[no-untyped-def]
    block, present, out, centre, unit, lower, upper, one_bit, offsets, signs, scales, per_row, seed
):
    """Add sums as `hadamard_sums`, every row at `per_row` frequencies. Rows are still transformed as a whole."""
    m, d, p = offsets.shape[0], lower.shape[0], signs.shape[2]
    n = SHORT_SLICE
    x = np.empty((d, block.shape[1]), np.float32)
    starts = np.empty(m + 1, np.int64)
    v = np.empty((p, n), np.float32)
    phase = np.empty(n, np.float32)
    valid = _sorted_block(block, present, centre, unit, lower, upper, m, seed, x, starts)
    for slice_start in range(0, block.shape[1], n):
        for b in range(signs.shape[0]):
            _transform(x, slice_start, signs[b], v)
            for j in range(b * p, min(b * p + p, m)):
                scale, products = scales[b, j - b * p], v[j - b * p]
                used = 0
                for part in range(2):
                    first, end = _rows_of(j, part, per_row, m, starts)
                    first, end = max(first, slice_start), min(end, slice_start + n)
                    for r in range(first, end):
                        phase[used] = _fma(scale, products[r - slice_start], offsets[j])
                        used += 1
                _add_signature(phase, _padded(phase, used), one_bit, out, j, m)
    return valid
