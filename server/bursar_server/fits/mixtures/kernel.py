"""Compiled E-step: responsibilities, recentred positions, and their exact integer sums.

Rows are processed in slices, one array per quantity, so that every loop runs over adjacent rows and vectorises. The two
expensive products, of positions with released matrices and of recentred positions with themselves, are of integers and
stay below 2^53: exact in any order, fused or not, on any machine. Everything else is additions, multiplications,
divisions, square roots and truncations of IEEE 754 in the order written, so a row's integers are a function of that row
and of released parameters alone.

There is no early exit and no branch on data that changes the work, except one that IEEE 754 arithmetic never takes
(`_add_lines`). No operation is on subnormal numbers, which would take longer (`LEAST`). `bench/kernels.py times`
measures the time on chosen rows.

Without products of two columns a component's positions are never stored: computing them twice, for their squared norm
and for their sums, from a slice in the cache takes less time than writing and reading them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

SLICE = 256
"""Maximum number of rows processed together; a power of two, as are its parts. Chosen, not tuned."""

_CACHED = 2**15
"""Maximum size of a slice, rows times components times columns, that stays in the second-level cache: 256 KB."""

_CACHED_FLAT = 2**13
"""Maximum of rows times columns of a slice if no more is stored of a row: 64 KB."""

BITS = 18
"""Lattice of responsibilities, of positions about a component and of their roots of shares: 2^-18 each."""

UNIT = float(2**BITS)

POSITION = float(2**24)
"""Lattice of positions in the public ball: 2^-24."""

LEAST = 2.0**-100
"""Positions below it become 0.

It is far below every lattice, and squares of less could be subnormal, which takes longer.
"""

FORM = float(2**22)
"""Largest number of a released matrix in the kernel's format, which is integers."""

MOST_COLUMNS = 2**12
"""Maximum number of columns: products of a matrix's row and a position then stay below 2^22 2^24 2^6 = 2^52."""

MOMENTS_SPHERICAL, MOMENTS_DIAG, MOMENTS_FULL, MOMENTS_TIED = range(4)

_ROOT = math.sqrt(2.0)

_PADDED = 4
"""Rows of zeros that `_add_products` may read beyond the columns."""

# nogil lets threads sum blocks in parallel; numpy's error model divides by zero without a branch or an exception.
_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
# Only for loops over integers below 2^53, whose sums are exact in any order, fused or not.
_exact: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, **_options}


@njit(**_exact)
def _twelve_dots(s, t, i, j, out):  # type: ignore[no-untyped-def]
    """Add to out[i:i+3, j:j+4] the products of rows of s and t; each number is loaded once for several.

    Products of integers up to 2^18, a slice of them: exact in float64 in any order, fused or not.
    """
    # Named variables stay in registers; a small array would go through memory at every row.
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = 0.0
    for r in range(s.shape[1]):
        x, y, z = s[i, r], s[i + 1, r], s[i + 2, r]
        w = t[j, r]
        a0 += x * w
        b0 += y * w
        c0 += z * w
        w = t[j + 1, r]
        a1 += x * w
        b1 += y * w
        c1 += z * w
        w = t[j + 2, r]
        a2 += x * w
        b2 += y * w
        c2 += z * w
        w = t[j + 3, r]
        a3 += x * w
        b3 += y * w
        c3 += z * w
    out[i, j] += a0
    out[i, j + 1] += a1
    out[i, j + 2] += a2
    out[i, j + 3] += a3
    out[i + 1, j] += b0
    out[i + 1, j + 1] += b1
    out[i + 1, j + 2] += b2
    out[i + 1, j + 3] += b3
    out[i + 2, j] += c0
    out[i + 2, j + 1] += c1
    out[i + 2, j + 2] += c2
    out[i + 2, j + 3] += c3


@njit(**_options)
def _add_products(s, t, d, out):  # type: ignore[no-untyped-def]
    """Add the products of rows i of s and j < i of t to out[i, j]; other numbers of `out` become arbitrary.

    `s` and `t` have `_PADDED` rows more than d, of any numbers of their lattice, and so has `out`.
    """
    for i in range(0, d, 3):
        for j in range(0, i + 2, 4):
            _twelve_dots(s, t, i, j, out)


@njit(**_exact)
def _multiply(forms, z, y):  # type: ignore[no-untyped-def]
    """Set y to the lower triangular `forms` (d, d) times z (d, n): integers, below 2^52 in any order."""
    d, n = z.shape
    for i in range(d):
        # The diagonal sets, the rest adds, so that y needs no pass that clears it.
        a = forms[i, i]
        for r in range(n):
            y[i, r] = a * z[i, r]
    # Two rows of the matrix and four columns at a time: a number that was loaded serves several products.
    for i in range(0, d - 1, 2):
        a = forms[i + 1, i]
        for r in range(n):
            y[i + 1, r] += a * z[i, r]
        for j in range(0, i - 3, 4):
            a0, a1, a2, a3 = forms[i, j], forms[i, j + 1], forms[i, j + 2], forms[i, j + 3]
            b0, b1, b2, b3 = forms[i + 1, j], forms[i + 1, j + 1], forms[i + 1, j + 2], forms[i + 1, j + 3]
            for r in range(n):
                p, q, u, v = z[j, r], z[j + 1, r], z[j + 2, r], z[j + 3, r]
                y[i, r] += (a0 * p + a1 * q) + (a2 * u + a3 * v)
                y[i + 1, r] += (b0 * p + b1 * q) + (b2 * u + b3 * v)
        for j in range(i - i % 4, i):
            a, b = forms[i, j], forms[i + 1, j]
            for r in range(n):
                y[i, r] += a * z[j, r]
                y[i + 1, r] += b * z[j, r]
    if d % 2 == 1:
        for j in range(d - 1):
            a = forms[d - 1, j]
            for r in range(n):
                y[d - 1, r] += a * z[j, r]


@njit(**_options)
def _normalise(block, first, present, centre, inverse, z, norm, valid):  # type: ignore[no-untyped-def]
    """Set z to positions clipped to the unit ball, integers; an absent or non-finite row is the origin with valid = 0.

    Distances below `LEAST` become 0 before they are multiplied. `inverse` is 1 / scale.
    """
    d, n = z.shape
    # In the data's units: the comparison comes before the multiplication that could be subnormal.
    least = LEAST / inverse
    for r in range(n):
        valid[r] = 1.0 if present[first + r] else 0.0
        norm[r] = 0.0
    for i in range(d % 2):
        a = block[i, first : first + n]  # a view: an index `first + r` would be checked for its sign, at twice the time
        for r in range(n):
            x = a[r] - centre[i]
            x = (0.0 if abs(x) < least[i] else x) * inverse[i]  # NaN stays
            finite = abs(x) < 1e100  # false for NaN
            valid[r] = valid[r] if finite else 0.0
            x = x if finite else 0.0
            z[i, r] = x
            norm[r] += x * x
    for i in range(d % 2, d, 2):
        c, e, s, t = centre[i], centre[i + 1], inverse[i], inverse[i + 1]
        f, g = least[i], least[i + 1]
        a, b = block[i, first : first + n], block[i + 1, first : first + n]
        for r in range(n):
            x, y = a[r] - c, b[r] - e
            x, y = (0.0 if abs(x) < f else x) * s, (0.0 if abs(y) < g else y) * t
            fine, finite = abs(x) < 1e100, abs(y) < 1e100
            valid[r] = valid[r] if fine & finite else 0.0
            x, y = x if fine else 0.0, y if finite else 0.0
            z[i, r], z[i + 1, r] = x, y
            norm[r] = norm[r] + x * x + y * y
    for r in range(n):
        # Inside the ball the factor is the same for all rows; outside it moves the row to the border.
        norm[r] = valid[r] * POSITION / math.sqrt(max(norm[r], 1.0))
    for i in range(d):
        for r in range(n):
            z[i, r] = np.trunc(z[i, r] * norm[r])


@njit(**_options)
def _diagonal(forms, units):  # type: ignore[no-untyped-def]
    scales = np.empty(units.shape[0])
    for i in range(units.shape[0]):
        scales[i] = forms[i, i] * units[i]  # exact: units are powers of two
    return scales


@njit(**_options)
def _squares(z, scales, offsets, squares):  # type: ignore[no-untyped-def]
    """Set squares (n,) to the squared norm of z scales - offsets, in `_map`'s arithmetic, four columns at a time."""
    d, n = z.shape
    for r in range(n):
        squares[r] = 0.0
    for i in range(d % 4):
        s, o = scales[i], offsets[i]
        for r in range(n):
            a = z[i, r] * s - o
            squares[r] += a * a
    for i in range(d % 4, d, 4):
        s0, s1, s2, s3 = scales[i], scales[i + 1], scales[i + 2], scales[i + 3]
        o0, o1, o2, o3 = offsets[i], offsets[i + 1], offsets[i + 2], offsets[i + 3]
        for r in range(n):
            a, b = z[i, r] * s0 - o0, z[i + 1, r] * s1 - o1
            c, e = z[i + 2, r] * s2 - o2, z[i + 3, r] * s3 - o3
            squares[r] = squares[r] + a * a + b * b + c * c + e * e


@njit(**_options)
def _map(z, forms, units, offsets, diagonal, y, squares):  # type: ignore[no-untyped-def]
    """Set y (d, n) to forms z units - offsets, and squares (n,) to its squared norm."""
    d, n = z.shape
    for r in range(n):
        squares[r] = 0.0
    if diagonal:
        x, scales = z, _diagonal(forms, units)
    else:
        _multiply(forms, z, y)
        x, scales = y, units
    for i in range(d % 2):
        for r in range(n):
            a = x[i, r] * scales[i] - offsets[i]
            y[i, r] = a
            squares[r] += a * a
    for i in range(d % 2, d, 2):
        s, t, o, q = scales[i], scales[i + 1], offsets[i], offsets[i + 1]
        for r in range(n):
            a, b = x[i, r] * s - o, x[i + 1, r] * t - q
            y[i, r], y[i + 1, r] = a, b
            squares[r] = squares[r] + a * a + b * b


@njit(**_options)
def _exp_negative(x):  # type: ignore[no-untyped-def]
    # exp on [-60, 0] to 1e-9 relative: Taylor of x / 1024, squared ten times. Unlike a library call it vectorises.
    t = max(x, -60.0) / 1024.0
    e = 1.0 + t * (1.0 + t * (0.5 + t * (1.0 / 6.0 + t * (1.0 / 24.0 + t * (1.0 / 120.0)))))
    for _ in range(10):
        e = e * e
    return e


@njit(**_options)
def _soft(squares, log_scale, valid, top, total, check, gamma):  # type: ignore[no-untyped-def]
    """Set gamma to responsibilities in lattice units: integers >= 0, a row's sum at most UNIT; 0 where valid is 0."""
    K, n = gamma.shape
    for r in range(n):
        top[r], total[r], check[r] = -np.inf, 0.0, 0.0
    for k in range(K):
        for r in range(n):
            gamma[k, r] = log_scale[k] - 0.5 * squares[k, r]
            top[r] = max(top[r], gamma[k, r])
    for k in range(K):
        for r in range(n):
            gamma[k, r] = _exp_negative(min(gamma[k, r] - top[r], 0.0))
            total[r] += gamma[k, r]
    for r in range(n):
        # Slightly less than UNIT, so that rounding does not lift a row's sum above it; `check` would then drop the row.
        total[r] = valid[r] * UNIT * (1.0 - 2.0**-30) / total[r]
    for k in range(K):
        for r in range(n):
            share = gamma[k, r] * total[r]
            gamma[k, r] = np.trunc(share) if 0.0 <= share <= UNIT else 0.0  # NaN fails
            check[r] += gamma[k, r]
    for r in range(n):
        # The bound of the proof is enforced on the integers themselves, whatever the arithmetic before did.
        check[r] = 1.0 if check[r] <= UNIT else 0.0
    for k in range(K):
        for r in range(n):
            gamma[k, r] *= check[r]


@njit(**_options)
def _hard(squares, log_scale, valid, top, best, gamma):  # type: ignore[no-untyped-def]
    """Set gamma to UNIT for the component with the largest score, the first among equals, and to 0 for others."""
    K, n = gamma.shape
    for r in range(n):
        top[r], best[r] = -np.inf, 0.0
    for k in range(K):
        for r in range(n):
            score = log_scale[k] - 0.5 * squares[k, r]
            # Selects instead of branches, so that time does not depend on which component wins; a NaN never does.
            better = score > top[r]
            best[r] = k if better else best[r]
            top[r] = score if better else top[r]
    for k in range(K):
        for r in range(n):
            gamma[k, r] = UNIT * valid[r] if best[r] == k else 0.0


@njit(**_options)
def _shrink(squares, radius, factor):  # type: ignore[no-untyped-def]
    """Set factor to the scale that moves positions with these squared norms into the ball of radius UNIT."""
    for r in range(factor.shape[0]):
        factor[r] = UNIT * (1.0 - 2.0**-30) / max(math.sqrt(squares[r]), radius)


@njit(**_options)
def _clip(y, squares, radius, gamma):  # type: ignore[no-untyped-def]
    """Set y to y / radius clipped to the unit ball, integers, and squares to their sums of squares.

    Where that is more than UNIT^2, gamma becomes 0. All numbers are finite (see the proof).
    """
    d, n = y.shape
    factor = np.empty(n)
    _shrink(squares, radius, factor)
    for r in range(n):
        squares[r] = 0.0
    for i in range(d % 2):
        for r in range(n):
            v = np.trunc(y[i, r] * factor[r])
            y[i, r] = v
            squares[r] += v * v
    for i in range(d % 2, d, 2):
        for r in range(n):
            v, w = np.trunc(y[i, r] * factor[r]), np.trunc(y[i + 1, r] * factor[r])
            y[i, r], y[i + 1, r] = v, w
            squares[r] = squares[r] + v * v + w * w
    for r in range(n):
        # As in `_soft`: the norm of the integers is checked, not assumed.
        gamma[r] = gamma[r] if squares[r] <= UNIT * UNIT else 0.0


@njit(**_options)
def _truncated(x, y):  # type: ignore[no-untyped-def]
    # Compiled without reordering, unlike its callers: a product that is not an integer must be rounded as written.
    return np.trunc(x * y)


@njit(**_options)
def _root_of(c, gamma):  # type: ignore[no-untyped-def]
    # At most sqrt(c), as gamma is at most UNIT.
    return math.sqrt(c * (gamma / UNIT))


@njit(**_options)
def _placed(z, scale, offset, factor):  # type: ignore[no-untyped-def]
    # The same arithmetic as `_map` and `_clip`, which must not be reordered either.
    return np.trunc((z * scale - offset) * factor)


@njit(**_exact)
def _two_dots(gamma, w, root):  # type: ignore[no-untyped-def]
    """Return the sums of gamma w and of trunc(w root)^2, exact as in `_twelve_dots`."""
    first, second = 0.0, 0.0
    for r in range(w.shape[0]):
        first += gamma[r] * w[r]
        a = _truncated(w[r], root[r])
        second += a * a
    return first, second


@njit(**_options)
def _features(gamma, weights, shares, roots):  # type: ignore[no-untyped-def]
    """Set shares to trunc(b gamma), and roots to sqrt(c gamma / UNIT)."""
    for r in range(gamma.shape[0]):
        shares[r] = np.trunc(weights[1] * gamma[r])
        roots[r] = _root_of(weights[2], gamma[r])


@njit(**_exact)
def _add_pairs(w, gamma, weights, feature, s, t, firsts, seconds, products):  # type: ignore[no-untyped-def]
    """Add one component's moments: count and sums to `firsts`, second moments to `seconds` and `products`.

    Second moments are of s = trunc(w sqrt(c gamma / UNIT)), off the diagonal with t = trunc(sqrt(2) s) for one factor.
    `firsts` is the count, then the sums of trunc(b gamma) w.
    """
    d, n = w.shape
    a = np.trunc(weights[0] * UNIT)
    rows = 0.0
    for r in range(n):
        rows += gamma[r]
    firsts[0] += a * rows
    _features(gamma, weights, feature[0], feature[1])
    for i in range(d):
        first, second = _two_dots(feature[0], w[i], feature[1])
        firsts[1 + i] += first
        seconds[i * (i + 3) // 2] += second
        for r in range(n):
            s[i, r] = _truncated(w[i, r], feature[1, r])
            t[i, r] = _truncated(_ROOT, s[i, r])
    _add_products(s, t, d, products)


@njit(**_exact)
def _sums_diag(z, scales, offsets, factor, shares, roots, squares, sums):  # type: ignore[no-untyped-def]
    """Set sums[0], sums[1] to those of shares w and of trunc(w roots)^2, and squares to those of w. All are integers.

    w = trunc((z scales - offsets) factor).
    """
    d, n = z.shape
    for r in range(n):
        squares[r] = 0.0
    for i in range(d % 2):
        scale, offset, first, second = scales[i], offsets[i], 0.0, 0.0
        for r in range(n):
            w = _placed(z[i, r], scale, offset, factor[r])
            a = _truncated(w, roots[r])
            squares[r] += w * w
            first += shares[r] * w
            second += a * a
        sums[0, i], sums[1, i] = first, second
    for i in range(d % 2, d, 2):
        s, t, o, q = scales[i], scales[i + 1], offsets[i], offsets[i + 1]
        first0 = first1 = second0 = second1 = 0.0
        for r in range(n):
            v, w = _placed(z[i, r], s, o, factor[r]), _placed(z[i + 1, r], t, q, factor[r])
            a, b = _truncated(v, roots[r]), _truncated(w, roots[r])
            squares[r] += v * v + w * w
            first0 += shares[r] * v
            first1 += shares[r] * w
            second0 += a * a
            second1 += b * b
        sums[0, i], sums[0, i + 1], sums[1, i], sums[1, i + 1] = first0, first1, second0, second1


@njit(**_exact)
def _sums_spherical(z, scales, offsets, factor, shares, squares, sums):  # type: ignore[no-untyped-def]
    """Set sums[0] and squares as `_sums_diag` does, without second moments."""
    d, n = z.shape
    for r in range(n):
        squares[r] = 0.0
    for i in range(d % 4):
        scale, offset, first = scales[i], offsets[i], 0.0
        for r in range(n):
            w = _placed(z[i, r], scale, offset, factor[r])
            squares[r] += w * w
            first += shares[r] * w
        sums[0, i] = first
    for i in range(d % 4, d, 4):
        s0, s1, s2, s3 = scales[i], scales[i + 1], scales[i + 2], scales[i + 3]
        o0, o1, o2, o3 = offsets[i], offsets[i + 1], offsets[i + 2], offsets[i + 3]
        first0 = first1 = first2 = first3 = 0.0
        for r in range(n):
            a, b = _placed(z[i, r], s0, o0, factor[r]), _placed(z[i + 1, r], s1, o1, factor[r])
            c, e = _placed(z[i + 2, r], s2, o2, factor[r]), _placed(z[i + 3, r], s3, o3, factor[r])
            squares[r] += (a * a + b * b) + (c * c + e * e)
            first0 += shares[r] * a
            first1 += shares[r] * b
            first2 += shares[r] * c
            first3 += shares[r] * e
        sums[0, i], sums[0, i + 1], sums[0, i + 2], sums[0, i + 3] = first0, first1, first2, first3


@njit(**_exact)
def _add_lines(z, scales, offsets, clip, moments, weights, feature, sums, firsts, seconds):  # type: ignore[no-untyped-def]
    """Add one component's moments of single columns, from positions z scales - offsets with these squares.

    Spherical: gamma trunc(c |w|^2 / UNIT). Diagonal: squares of trunc(w sqrt(c gamma / UNIT)). w is clipped as by
    `_clip`, and gamma becomes 0 where `_clip` would set it to 0. That is known after the sums are made; if it ever
    happens (see the proof), they are made once more.
    """
    d, n = z.shape
    squares, radius, gamma = clip
    shares, roots, factor = feature[0], feature[1], feature[2]
    _shrink(squares, radius, factor)
    # A second round changes nothing more: rows that failed have gamma 0 by then.
    refused = True
    while refused:
        _features(gamma, weights, shares, roots)
        if moments == MOMENTS_DIAG:
            _sums_diag(z, scales, offsets, factor, shares, roots, squares, sums)
        else:
            _sums_spherical(z, scales, offsets, factor, shares, squares, sums)
        refused = False
        for r in range(n):
            fails = not squares[r] <= UNIT * UNIT and gamma[r] > 0.0
            refused = refused or fails
            gamma[r] = 0.0 if fails else gamma[r]
    rows, square = 0.0, 0.0
    for r in range(n):
        rows += gamma[r]
        square += gamma[r] * _truncated(weights[2] / UNIT, squares[r])
    firsts[0] += np.trunc(weights[0] * UNIT) * rows
    for i in range(d):
        firsts[1 + i] += sums[0, i]
    if moments == MOMENTS_DIAG:
        for i in range(d):
            seconds[i] += sums[1, i]
    else:
        seconds[0] += square


@njit(**_options)
def moment_sums(  # type: ignore[no-untyped-def]
    block, present, out, centre, scale, hard, log_scale, shares, places, diagonal, radii, moments, weights
):
    """Add the block's moments to `out`: K counts, K x d sums, second moments (K x q, or q if tied), flat.

    If `log_scale` has one number more than there are components, it is the log density of a background, the same for
    all rows, and the background's count follows at the end. `shares` maps positions to those whose squared norm is in
    the exponent of each component: (forms, units, offsets) of shapes (K, d, d), (K, d) and (K, d). `places` maps them
    to positions about the components, in the same format, and is empty if the two are the same. `weights` are
    (a, b, c), each in [0, 1]; everything is in units of 2^-36.
    """
    K, d = shares[1].shape
    q = (1, d, d * (d + 1) // 2, d * (d + 1) // 2)[moments]
    groups = 1 if moments == MOMENTS_TIED else K
    off_diagonal = moments in (MOMENTS_FULL, MOMENTS_TIED)
    stored, own = off_diagonal or not diagonal, places[1].shape[0] > 0
    n = SLICE
    # Slices shrink with columns and components, so that they stay in the cache.
    while n > 32 and (n * K * d > _CACHED if stored else n * d > _CACHED_FLAT):
        n //= 2
    z, s, t = np.empty((d, n)), np.zeros((_PADDED + d, n)), np.zeros((_PADDED + d if off_diagonal else 0, n))
    y = np.empty((K if stored else 0, d, n))
    # The squares of a background, in the last row if there is one, are and remain 0.
    squares, gamma = np.zeros((log_scale.shape[0], n)), np.empty((log_scale.shape[0], n))
    valid, top, total, check, feature = np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty((3, n))
    products = np.zeros((groups if off_diagonal else 1, _PADDED + d, _PADDED + d))
    inverse, background = 1.0 / scale, 0.0
    sums, firsts, found = np.zeros(out.shape[0]), np.zeros((K, 1 + d)), np.empty((2, d))
    lines, about, origins = np.ones((K, d)), np.ones((K, d)), np.zeros((K, d))
    if diagonal:
        forms, units, offsets = places if own else shares
        for k in range(K):
            line, place = _diagonal(shares[0][k], shares[1][k]), _diagonal(forms[k], units[k])
            for i in range(d):
                lines[k, i], about[k, i], origins[k, i] = line[i], place[i], offsets[k, i]
    for first in range(0, block.shape[1], n):
        _normalise(block, first, present, centre, inverse, z, total, valid)
        for k in range(K):
            if stored:
                _map(z, shares[0][k], shares[1][k], shares[2][k], diagonal, y[k], squares[k])
            else:
                _squares(z, lines[k], shares[2][k], squares[k])
        if hard:
            _hard(squares, log_scale, valid, top, total, gamma)
        else:
            _soft(squares, log_scale, valid, top, total, check, gamma)
        for k in range(K):
            if own and stored:
                _map(z, places[0][k], places[1][k], places[2][k], diagonal, y[k], squares[k])
            elif own:
                _squares(z, about[k], origins[k], squares[k])
            seconds = sums[K + K * d + (0 if moments == MOMENTS_TIED else k) * q :]
            if off_diagonal:
                pairs = products[0 if moments == MOMENTS_TIED else k]
                _clip(y[k], squares[k], radii[k], gamma[k])
                _add_pairs(y[k], gamma[k], weights, feature, s, t, firsts[k], seconds, pairs)
            else:
                x = y[k] if stored else z
                clip = squares[k], radii[k], gamma[k]
                _add_lines(x, about[k], origins[k], clip, moments, weights, feature, found, firsts[k], seconds)
        for k in range(K, log_scale.shape[0]):
            for r in range(n):
                background += gamma[k, r]
    if log_scale.shape[0] > K:
        sums[-1] = np.trunc(weights[0] * UNIT) * background
    for k in range(K):
        sums[k] = firsts[k, 0]
        for i in range(d):
            sums[K + k * d + i] = firsts[k, 1 + i]
    for g in range(groups if off_diagonal else 0):
        at = K + K * d + g * q
        for i in range(d):
            for j in range(i):
                sums[at + j] = products[g, i, j]
            at += i + 1
    for j in range(out.shape[0]):
        # Exact: sums of a block stay below 2^53.
        out[j] += np.int64(sums[j])


@njit(**_options)
def radius_counts(block, present, out, centre, scale, log_scale, shares, diagonal, edges):  # type: ignore[no-untyped-def]
    """Add to `out` (cells,) the responsibilities of the rows whose squared distance is within each cell, in UNITs.

    Arguments are those of `moment_sums`; `edges` of the cells ascend.
    """
    K, d = shares[1].shape
    n = SLICE
    while n > 32 and n * d > _CACHED_FLAT:
        n //= 2
    z, y, squares, gamma = np.empty((d, n)), np.empty((d, n)), np.empty((K, n)), np.empty((K, n))
    valid, top, total, check = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    inverse, sums = 1.0 / scale, np.zeros(out.shape[0])
    for first in range(0, block.shape[1], n):
        _normalise(block, first, present, centre, inverse, z, total, valid)
        for k in range(K):
            _map(z, shares[0][k], shares[1][k], shares[2][k], diagonal, y, squares[k])
        _soft(squares, log_scale, valid, top, total, check, gamma)
        for c in range(out.shape[0]):
            for k in range(K):
                for r in range(n):
                    # Every cell is compared with every row: no number of a row is an address.
                    inside = squares[k, r] >= edges[c] and squares[k, r] < edges[c + 1]
                    sums[c] += gamma[k, r] if inside else 0.0
    for c in range(out.shape[0]):
        # Exact: sums of a block stay below 2^53.
        out[c] += np.int64(sums[c])
