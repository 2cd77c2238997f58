"""Compiled passes over rows: positions of rows as integers, and counts of rows by position.

A row becomes a point of a public integer lattice, is moved about released integers and projected on them. All of that
is exact in double numbers: sums of integers whose partial sums stay below 2^53 in any order. So the side of a released
split on which a row lies is a function of that row and of released numbers, the same in every pass. Rows outside of a
part get the same work as those inside, and do not count. No operation is on subnormal numbers, which would take longer
(`LEAST`; `bench/kernels.py times` measures it). Histograms of equal rows take up to a tenth less, because they touch
fewer cells, and those of a sample up to two fifths more, to put them together.
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

POINT_BITS = 29
"""Lattice of points: coordinates are integers up to 2^29, the radius of the public ball."""

POINT = float(2**POINT_BITS)

LEAST = 2.0**-100
"""Positions below it become 0, far below every lattice: squares of less could be subnormal, which takes longer."""

DIRECTION_BITS = 15
"""Lattice of directions: integers of norm about 2^15, of L1 norm at most `MAX_DIRECTION`."""

MAX_DIRECTION = 2**19
"""Largest L1 norm of a direction: products with points, 2^30 apart at most in a coordinate, stay below 2^49."""

_PROJECTED = 2.0**-16
"""Projections are rounded down to multiples of 2^16: below 2^33, so that a second projection stays below 2^52."""

_ALL = np.uint64(2**64 - 1)
"""Threshold of a sample of all rows."""

STEPS_BITS = 4
"""Resolution of squared distances: 2^-4 of an octave."""

# nogil lets threads sum blocks in parallel; numpy's error model divides by zero without a branch or an exception.
_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_options)
def _points(block, first, present, frame, p, valid):  # type: ignore[no-untyped-def]
    """Set p[i, r] to rows of a slice as integers, clipped to the public ball; absent or non-finite ones are invalid."""
    centre, inverse = frame
    norm = np.zeros(SLICE)
    for r in range(SLICE):
        valid[r] = 1.0 if present[first + r] else 0.0
    for i in range(p.shape[0]):
        column = block[i, first : first + SLICE]  # a view: the sign of `first + r` would be checked, at twice the time
        least = LEAST / inverse[i]
        for r in range(SLICE):
            x = column[r] - centre[i]
            x = (0.0 if abs(x) < least else x) * inverse[i]  # NaN stays
            finite = abs(x) < 1e100  # false for NaN
            valid[r] = valid[r] if finite else 0.0
            p[i, r] = x if finite else 0.0
            norm[r] += p[i, r] * p[i, r]
    for r in range(SLICE):
        norm[r] = (POINT * (1.0 - 2.0**-30)) / math.sqrt(max(norm[r], 1.0))
    for i in range(p.shape[0]):
        for r in range(SLICE):
            t = np.trunc(p[i, r] * norm[r])
            p[i, r] = t if abs(t) <= POINT else 0.0  # NaN fails


@njit(**_options)
def _project(p, origin, basis, y):  # type: ignore[no-untyped-def]
    """Set y[j, r] to p - origin if the basis has no rows, else to its products with them, rounded down."""
    if basis.shape[0] == 0:
        for i in range(p.shape[0]):
            for r in range(SLICE):
                y[i, r] = p[i, r] - origin[i]
        return
    for j in range(basis.shape[0]):
        for r in range(SLICE):
            y[j, r] = 0.0
        for i in range(p.shape[0]):
            for r in range(SLICE):
                y[j, r] += basis[j, i] * (p[i, r] - origin[i])
        for r in range(SLICE):
            # Rounded down, not towards zero: a cell about zero would be twice as wide.
            y[j, r] = np.floor(y[j, r] * _PROJECTED)


@njit(**_options)
def _across(p, origin, direction, v):  # type: ignore[no-untyped-def]
    """Set v[r] to <direction, p_r - origin>."""
    for r in range(SLICE):
        v[r] = 0.0
    for i in range(p.shape[0]):
        for r in range(SLICE):
            v[r] += direction[i] * (p[i, r] - origin[i])


@njit(**_options)
def _along(y, first, direction, v):  # type: ignore[no-untyped-def]
    for r in range(SLICE):
        v[r] = 0.0
    for j in range(direction.shape[0]):
        column = y[j, first : first + SLICE]
        for r in range(SLICE):
            v[r] += direction[j] * column[r]


@njit(**_options)
def slab_labels(block, present, labels, frame, origin, direction, low, high):  # type: ignore[no-untyped-def]
    """Set labels[r] to 1 if low <= <direction, p_r - origin> < high, else 0. `frame` is (centre, inverse scale)."""
    p, v, valid = np.empty((origin.shape[0], SLICE)), np.empty(SLICE), np.empty(SLICE)
    for first in range(0, block.shape[1], SLICE):
        _points(block, first, present, frame, p, valid)
        _across(p, origin, direction, v)
        for r in range(SLICE):
            # Invalid rows get a label like others: no statistic counts them.
            labels[first + r] = (low <= v[r]) & (v[r] < high)


@njit(**_options)
def slab_counts(block, present, out, frame, origin, direction, edges):  # type: ignore[no-untyped-def]
    """Add to `out` the numbers of rows with <direction, p - origin> in edges[1:3], beyond edges[0] or [3], or else."""
    p, v, valid = np.empty((origin.shape[0], SLICE)), np.empty(SLICE), np.empty(SLICE)
    inside, outside, rows = 0.0, 0.0, 0.0
    for first in range(0, block.shape[1], SLICE):
        _points(block, first, present, frame, p, valid)
        _across(p, origin, direction, v)
        for r in range(SLICE):
            inside += valid[r] if (edges[1] <= v[r]) & (v[r] < edges[2]) else 0.0
            outside += valid[r] if (v[r] < edges[0]) | (v[r] >= edges[3]) else 0.0
            rows += valid[r]
    out[0] += np.int64(inside)
    out[1] += np.int64(outside)
    out[2] += np.int64(rows - inside - outside)


@njit(**_options)
def _sampled(p, valid, keys, threshold, taken):  # type: ignore[no-untyped-def]
    """Set taken[r] to 1 if a hash of a valid row's own point, with public keys, is at most the threshold, else 0."""
    for r in range(SLICE):
        h = keys[0]
        for i in range(p.shape[0]):
            h += keys[i + 1] * np.uint64(np.int64(p[i, r]))
        # SplitMix64 (Steele, Lea and Flood 2014).
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h ^= h >> np.uint64(31)
        taken[r] = 1 if (h <= threshold) & (valid[r] > 0.0) else 0


@njit(**_options)
def _room(rows, threshold):  # type: ignore[no-untyped-def]
    """Return the number of places that a sample of a block takes at least: about that of rows that all differ."""
    return min(rows, int(rows * (float(threshold) * 2.0**-64)) + 4)


@njit(**_options)
def _equal(kept, i, j):  # type: ignore[no-untyped-def]
    same = True
    for row in range(kept.shape[0]):
        same = same and kept[row, i] == kept[row, j]
    return same


@njit(**_options)
def _merged(kept, marks, count):  # type: ignore[no-untyped-def]
    """Put equal ones of the first `count` columns together, with the sum of their marks; return how many are left."""
    size = 1
    while size < 2 * count:
        size *= 2
    table, found = np.full(size, -1, dtype=np.int64), 0
    hashes = np.zeros(count, dtype=np.uint64)
    for j in range(kept.shape[0]):
        for r in range(count):
            h = (hashes[r] ^ np.uint64(np.int64(kept[j, r]))) * np.uint64(0x9E3779B97F4A7C15)
            hashes[r] = h ^ (h >> np.uint64(32))
    for r in range(count):
        place = np.int64(hashes[r] & np.uint64(size - 1))
        while table[place] >= 0 and not _equal(kept, table[place], r):
            place = (place + 1) & (size - 1)  # at most half of the places are taken
        if table[place] < 0:
            for j in range(kept.shape[0]):
                kept[j, found] = kept[j, r]
            table[place], marks[found] = found, marks[r]
            found += 1
        else:
            marks[table[place]] += marks[r]
    marks[found:count] = 0
    return found


@njit(**_options)
def _keep(block, present, frame, view, sample, kept, marks):  # type: ignore[no-untyped-def]
    """Put the y of sampled rows side by side, kept[j, :count], and marks[:count]: how many rows each stands for.

    Returns the count. Places without a row, whose mark is 0, fill a sample up to `_room`, and rows that are more than
    that stand together if they are equal: else the time of a search would tell how many rows of a part, of no values,
    or of one point that an analyst has chosen keys for, there are.
    """
    origin, basis = view
    keys, threshold = sample
    m = kept.shape[0]
    p, y, valid = np.empty((origin.shape[0], SLICE)), np.empty((m, SLICE)), np.empty(SLICE)
    taken, index, count = np.ones(SLICE, dtype=np.int64), np.empty(SLICE, dtype=np.int64), 0
    for first in range(0, block.shape[1], SLICE):
        _points(block, first, present, frame, p, valid)
        if threshold < _ALL:
            _sampled(p, valid, keys, threshold, taken)
        _project(p, origin, basis, y)
        for r in range(SLICE):
            index[r] = count  # a row that is not kept is overwritten by the next
            count += taken[r]
        for r in range(SLICE):
            marks[index[r]] = taken[r] if valid[r] > 0.0 else 0
        for j in range(m):
            for r in range(SLICE):
                kept[j, index[r]] = y[j, r]
    room = _room(block.shape[1], threshold)
    if count > room:
        count = _merged(kept, marks, count)
    for r in range(count, room):
        for j in range(m):
            # Apart from each other: adding to one cell again and again takes longer.
            kept[j, r] = POINT * ((r + j) % 16 - 8) / 16.0
    return max(count, room)


@njit(**_options)
def slab_histograms(block, present, out, frame, view, directions, bins, width, sample):  # type: ignore[no-untyped-def]
    """Add to `out` (directions x bins, flat) the histograms of <direction, y> in bins of `width` about 0.

    Rows beyond the first or last bin count there. `view` is (origin, basis), `sample` is (keys, threshold).
    """
    kept, v = np.zeros((directions.shape[1], block.shape[1] + SLICE)), np.empty(SLICE)
    marks = np.zeros(block.shape[1] + SLICE, dtype=np.int64)
    count = _keep(block, present, frame, view, sample, kept, marks)
    inverse, middle, last = 1.0 / width, bins // 2, float(bins - 1)
    for f in range(directions.shape[0]):
        start = f * bins
        for first in range(0, count, SLICE):
            _along(kept, first, directions[f], v)
            for r in range(SLICE):
                v[r] = min(max(np.floor(v[r] * inverse) + middle, 0.0), last)
            for r in range(min(SLICE, count - first)):
                out[start + np.int64(v[r])] += marks[first + r]


@njit(**_options)
def _squares(y, first, centre, squares):  # type: ignore[no-untyped-def]
    """Set squares[r] to |y_r - centre|^2, rounded, always in this order."""
    for r in range(SLICE):
        squares[r] = 0.0
    for j in range(centre.shape[0]):
        column = y[j, first : first + SLICE]
        for r in range(SLICE):
            apart = column[r] - centre[j]
            squares[r] += apart * apart


@njit(**_options)
def distance_histograms(block, present, out, frame, view, centres, base, sample):  # type: ignore[no-untyped-def]
    """Add to `out` (centres x steps, flat) the numbers of y by steps of their squared distance to each centre.

    A step contains the double numbers with the same exponent and the same first `STEPS_BITS` digits; `base` is the
    first. Rows beyond the first or last step count there.
    """
    kept, squares = np.zeros((centres.shape[1], block.shape[1] + SLICE)), np.empty(SLICE)
    marks = np.zeros(block.shape[1] + SLICE, dtype=np.int64)
    count = _keep(block, present, frame, view, sample, kept, marks)
    # Exponent and leading digits of a non-negative double ascend with it, so a shift of its bits is an exact
    # logarithmic step.
    bits = squares.view(np.int64)
    steps = out.shape[0] // centres.shape[0]
    for f in range(centres.shape[0]):
        start = f * steps
        for first in range(0, count, SLICE):
            _squares(kept, first, centres[f], squares)
            for r in range(min(SLICE, count - first)):
                out[start + min(max((bits[r] >> (52 - STEPS_BITS)) - base, 0), steps - 1)] += marks[first + r]


@njit(**_options)
def ball_labels(block, present, labels, frame, view, centre, limit):  # type: ignore[no-untyped-def]
    """Set labels[r] to 1 if |y_r - centre|^2 < limit, else 0."""
    origin, basis = view
    p, y = np.empty((origin.shape[0], SLICE)), np.empty((centre.shape[0], SLICE))
    squares, valid = np.empty(SLICE), np.empty(SLICE)
    for first in range(0, block.shape[1], SLICE):
        _points(block, first, present, frame, p, valid)
        _project(p, origin, basis, y)
        _squares(y, 0, centre, squares)
        for r in range(SLICE):
            labels[first + r] = squares[r] < limit


@njit(**_options)
def ball_counts(block, present, out, frame, view, centre, edges):  # type: ignore[no-untyped-def]
    """Add to `out` the numbers of rows with |y - centre|^2 below edges[0], from edges[1] on, and between."""
    origin, basis = view
    p, y = np.empty((origin.shape[0], SLICE)), np.empty((centre.shape[0], SLICE))
    squares, valid = np.empty(SLICE), np.empty(SLICE)
    inside, outside, rows = 0.0, 0.0, 0.0
    for first in range(0, block.shape[1], SLICE):
        _points(block, first, present, frame, p, valid)
        _project(p, origin, basis, y)
        _squares(y, 0, centre, squares)
        for r in range(SLICE):
            inside += valid[r] if squares[r] < edges[0] else 0.0
            outside += valid[r] if squares[r] >= edges[1] else 0.0
            rows += valid[r]
    out[0] += np.int64(inside)
    out[1] += np.int64(outside)
    out[2] += np.int64(rows - inside - outside)
