"""The compiled tables: states of rows, and exact counts of them in cells.

A state is a function of one number of one row: the position of a category, or how many inner edges of public bins are
not above it. Every comparison is one that NaN fails, and nothing is converted to an integer before comparisons have
bounded it, so everything is defined for any bit pattern. Loops run over all slots, absent ones included, and as often
for every row. Which cell is added to, and how much, depends on the row, and by some nanoseconds so may the time that a
comparison or a division takes. Sums are those of integers: no arithmetic in here rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

BITS = 20
"""Lattice of shares: 2^-20."""

UNIT = 2**BITS

MOST = 2**26
"""Largest number that is divided by: most rows of a table, and beyond its columns."""

_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_options)
def _category(x, size):  # type: ignore[no-untyped-def]
    """The position that x is, truncated, or the first where there is none such."""
    return np.int64(x) if 0.0 <= x < size else 0


@njit(**_options)
def _bin(x, edges, start, size):  # type: ignore[no-untyped-def]
    """How many of the size - 1 ascending inner edges from `start` on are at most x; none for NaN."""
    low, length = 0, size - 1
    while length > 0:  # as often for every x
        half = (length + 1) // 2
        low += half * (edges[start + low + half - 1] <= x)
        length -= half
    return low


@njit(**_options)
def states(block, places, sizes, starts, edges, out):  # type: ignore[no-untyped-def]
    """Set out[i, r] (c, CHUNK) to the state of row r in column i of c: 0 to sizes[i] - 1.

    Column i is block[places[i]]; its inner edges are those of `edges` from starts[i] on, or it is categorical if that
    is negative.
    """
    for i in range(len(places)):
        x, size, start = block[places[i]], sizes[i], starts[i]
        if start < 0:
            for r in range(x.shape[0]):
                out[i, r] = _category(x[r], size)
        else:
            for r in range(x.shape[0]):
                out[i, r] = _bin(x[r], edges, start, size)


@njit(**_options)
def whole(x):  # type: ignore[no-untyped-def]
    """A number to divide by, from 1 to `MOST`; 1 for NaN."""
    return np.int64(min(x, float(MOST))) if x >= 1.0 else 1


@njit(**_options)
def shares(block, place, out):  # type: ignore[no-untyped-def]
    """Set out[r] to K, by which row r is divided: block[place], from 1 to `MOST`; 1 for all if place is negative."""
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
def add_pairs(codes, firsts, seconds, sizes, offsets, present, share, unit, out):  # type: ignore[no-untyped-def]
    """Add floor(unit / share[r]) to one cell of each pair's table.

    Pair p is of columns firsts[p] and seconds[p], and its table begins at out[offsets[p]].
    """
    for r in range(len(present)):
        weight = present[r] * (unit // share[r])
        for p in range(len(firsts)):
            a, b = firsts[p], seconds[p]
            out[offsets[p] + codes[a, r] * sizes[b] + codes[b, r]] += weight


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

    Those from null to null are left out and do not count in K.
    """
    T = codes.shape[0]
    for r in range(len(present)):
        weight = present[r] * (UNIT // (max(_transitions(codes, null, r), 1) * share[r]))
        for t in range(T - 1):
            a, b = codes[t, r], codes[t + 1, r]
            out[a * size + b] += ((a != null) | (b != null)) * weight


@njit(**_options)
def _transitions(codes, null, r):  # type: ignore[no-untyped-def]
    """K: how many transitions of row r are not from null to null."""
    K = 0
    for t in range(codes.shape[0] - 1):
        K += (codes[t, r] != null) | (codes[t + 1, r] != null)
    return K
