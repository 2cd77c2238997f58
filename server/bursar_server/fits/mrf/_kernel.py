"""Compiled tables: states of rows, and exact counts of them in cells.

A state is a function of one number of one row: the position of a category, or the number of inner bin edges that are
not above it, or null. Every comparison is one that NaN fails, but the one that finds NaN, and no number is converted to
an integer before comparisons have bounded it, so everything is defined for any bit pattern. Loops run over all slots,
absent ones included, and equally often for every row. The cell that is added to, and the amount, depend on the row; so,
by some nanoseconds, may the time of an addition to memory or of a division (`bench/kernels.py times`). Sums are of
integers: no arithmetic here rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

BITS = 20
"""Lattice of shares: 2^-20."""

UNIT = 2**BITS

MOST = 2**26
"""Largest divisor: the maximum number of rows of a table, and larger than its number of columns."""

# nogil lets threads sum blocks in parallel; numpy's error model divides by zero without a branch or an exception.
_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_options)
def _category(x, size):  # type: ignore[no-untyped-def]
    """Return the position x, truncated; 0 if there is no such position."""
    return np.int64(x) if 0.0 <= x < size else 0


@njit(**_options)
def _bins(x, edges, start, size, low):  # type: ignore[no-untyped-def]
    """Set low[r] to the number of the size - 1 ascending inner edges from `start` on that are at most x[r]; 0 for NaN.

    All rows bisect together, without a branch on the comparison: a CPU predicts such a branch for equal rows only, and
    other rows would take three times as long.
    """
    low[:] = 0
    length = size - 1
    while length > 0:  # the number of rounds is public: equally many for every x
        half = (length + 1) // 2
        for r in range(x.shape[0]):
            low[r] += half * (edges[start + low[r] + half - 1] <= x[r])
        length -= half


@njit(**_options)
def states(block, places, sizes, starts, nulls, edges, out):  # type: ignore[no-untyped-def]
    """Set out[i, r] (c, CHUNK) to the state of row r in column i of c: 0 to sizes[i] - 1, or null.

    Column i is block[places[i]]; its inner edges are those of `edges` from starts[i] on, and nulls[i] is the state of
    NaN; or it is categorical if starts[i] is negative.
    """
    for i in range(len(places)):
        x, size, start = block[places[i]], sizes[i], starts[i]
        if start < 0:
            for r in range(x.shape[0]):
                out[i, r] = _category(x[r], size)
        else:
            _bins(x, edges, start, size, out[i])
            for r in range(x.shape[0]):
                out[i, r] += nulls[i] * (x[r] != x[r])  # NaN is in bin 0 so far


@njit(**_options)
def whole(x):  # type: ignore[no-untyped-def]
    """Return a divisor, from 1 to `MOST`; 1 for NaN."""
    return np.int64(min(x, float(MOST))) if x >= 1.0 else 1


@njit(**_options)
def shares(block, place, out):  # type: ignore[no-untyped-def]
    """Set out[r] to K, the divisor of row r: block[place], from 1 to `MOST`; 1 for all if place is negative."""
    for r in range(len(out)):
        out[r] = 1 if place < 0 else whole(block[place, r])


@njit(**_options)
def add_clique(codes, strides, present, share, unit, out):  # type: ignore[no-untyped-def]
    """Add floor(unit / share[r]) to the cell of each row: out[sum over i of strides[i] codes[i, r]]."""
    for r in range(len(present)):
        cell = 0
        for i in range(len(strides)):
            cell += strides[i] * codes[i, r]
        out[cell] += present[r] * (unit // share[r])


@njit(**_options)
def add_tables(codes, members, strides, starts, offsets, present, share, unit, out):  # type: ignore[no-untyped-def]
    """Add floor(unit / share[r]) to one cell of each of several tables.

    Table t begins at out[offsets[t]]. Its columns are members[starts[t]] to members[starts[t + 1] - 1], with `strides`.
    """
    for r in range(len(present)):
        weight = present[r] * (unit // share[r])
        for t in range(len(offsets)):
            cell = offsets[t]
            for i in range(starts[t], starts[t + 1]):
                cell += strides[i] * codes[members[i], r]
            out[cell] += weight


@njit(**_options)
def add_firsts(codes, null, present, share, unit, out):  # type: ignore[no-untyped-def]
    """Add floor(unit / share[r]) to the first state of each path that is not null throughout.

    No state is null if `null` is negative.
    """
    for r in range(len(present)):
        counts = _transitions(codes, null, r) > 0
        out[codes[0, r]] += present[r] * counts * (unit // share[r])


@njit(**_options)
def add_transitions(codes, size, null, present, share, out):  # type: ignore[no-untyped-def]
    """Add floor(UNIT / (K share[r])) to out[a size + b] for each of the K transitions from a to b of a path.

    Transitions from null to null are left out and do not count in K.
    """
    T = codes.shape[0]
    for r in range(len(present)):
        weight = present[r] * (UNIT // (max(_transitions(codes, null, r), 1) * share[r]))
        for t in range(T - 1):
            a, b = codes[t, r], codes[t + 1, r]
            out[a * size + b] += ((a != null) | (b != null)) * weight


@njit(**_options)
def _transitions(codes, null, r):  # type: ignore[no-untyped-def]
    """Return K, the number of transitions of row r that are not from null to null."""
    K = 0
    for t in range(codes.shape[0] - 1):
        K += (codes[t, r] != null) | (codes[t + 1, r] != null)
    return K
