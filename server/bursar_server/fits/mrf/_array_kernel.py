"""Tables of FitMRF in terms of the array API, for devices: the same integers as `_kernel`.

States are found by comparisons, everything else is of integers. A table is made by sorting its rows' cells: the number
before a cell's end less the number before its beginning. So no address depends on rows except in the libraries' sorts,
and shapes are public.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits._arrays import here, there
from bursar_server.fits.mrf._kernel import MOST, UNIT

IntArray = NDArray[np.int64]

Reading = tuple[IntArray, IntArray, IntArray, IntArray, NDArray[np.float64], int]
"""Places, sizes, starts, nulls and edges of `_kernel.states`, and the place of divisors of `_kernel.shares`."""

_TABLES = 64
"""Tables that are sorted together: some MB of cells. Chosen, not tuned."""


def add_clique(
    xp: Any,
    device: Any,
    reading: Reading,
    unit: int,
    strides: IntArray,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: IntArray,
) -> None:
    """Implement `_kernel.add_clique`."""
    codes = _states(xp, device, reading, block)
    cells = xp.sum(codes * there(xp, device, strides)[:, None], axis=0)
    _add(xp, cells, _weights(xp, device, reading, unit, block, present), out)


def add_tables(
    xp: Any,
    device: Any,
    reading: Reading,
    unit: int,
    cliques: Sequence[tuple[int, ...]],
    strides: Sequence[tuple[int, ...]],
    offsets: Sequence[int],
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: IntArray,
) -> None:
    """Implement `_kernel.add_tables`; offsets ascend."""
    codes = _states(xp, device, reading, block)
    weights = _weights(xp, device, reading, unit, block, present)
    ends = [*offsets, len(out)]
    for first in range(0, len(cliques), _TABLES):
        group = range(first, min(first + _TABLES, len(cliques)))
        base, end = ends[group.start], ends[group.stop]
        cells = [_cells(codes, cliques[t], strides[t]) + (ends[t] - base) for t in group]
        _add(xp, xp.concat(cells), xp.concat([weights] * len(group)), out[base:end])


def _cells(codes: Any, clique: Sequence[int], strides: Sequence[int]) -> Any:
    """Return the cell of each row in a table."""
    found = codes[clique[0], :] * strides[0]
    for variable, stride in zip(clique[1:], strides[1:], strict=True):
        found = found + codes[variable, :] * stride
    return found


def add_firsts(
    xp: Any,
    device: Any,
    reading: Reading,
    unit: int,
    null: int,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: IntArray,
) -> None:
    """Implement `_kernel.add_firsts`."""
    codes = _states(xp, device, reading, block)
    weights = _weights(xp, device, reading, unit, block, present)
    counted = xp.any(_observed(xp, codes, null), axis=0)
    _add(xp, codes[0, :], weights * xp.astype(counted, xp.int64), out)


def add_transitions(
    xp: Any,
    device: Any,
    reading: Reading,
    size: int,
    null: int,
    block: NDArray[np.float64],
    present: NDArray[np.bool_],
    out: IntArray,
) -> None:
    """Implement `_kernel.add_transitions`."""
    codes = _states(xp, device, reading, block)
    counted = xp.astype(_observed(xp, codes, null), xp.int64)
    number = xp.sum(counted, axis=0)
    divisors = xp.where(number > 0, number, xp.ones_like(number)) * _divisors(xp, device, reading, block)
    weights = counted * (_present(xp, device, present) * (xp.full_like(divisors, UNIT) // divisors))
    _add(xp, xp.reshape(codes[:-1, :] * size + codes[1:, :], (-1,)), xp.reshape(weights, (-1,)), out)


def _states(xp: Any, device: Any, reading: Reading, block: NDArray[np.float64]) -> Any:
    """Implement `_kernel.states`: (c, n)."""
    places, sizes, starts, nulls, edges, _ = reading
    x, edges = there(xp, device, block[places]), there(xp, device, edges)
    codes = []
    for i, (size, start) in enumerate(zip(sizes.tolist(), starts.tolist(), strict=True)):
        if start < 0:
            inside = xp.logical_and(x[i, :] >= 0.0, x[i, :] < size)
            codes.append(xp.astype(xp.where(inside, x[i, :], 0.0), xp.int64))
        elif size == 1:
            codes.append(xp.zeros(x.shape[1], dtype=xp.int64, device=device))
        else:
            number = xp.where(x[i, :] == x[i, :], x[i, :], -np.inf)  # libraries put NaN last
            found = xp.searchsorted(edges[start : start + size - 1], number, side="right")
            codes.append(xp.astype(found, xp.int64))
    return xp.stack(codes) + there(xp, device, nulls)[:, None] * xp.astype(x != x, xp.int64)


def _divisors(xp: Any, device: Any, reading: Reading, block: NDArray[np.float64]) -> Any:
    """Implement `_kernel.shares`."""
    place = reading[-1]
    if place < 0:
        return xp.ones(block.shape[1], dtype=xp.int64, device=device)
    x = there(xp, device, block[place])
    bounded = xp.where(x < MOST, x, float(MOST))
    return xp.astype(xp.where(x >= 1.0, bounded, 1.0), xp.int64)  # NaN fails


def _weights(
    xp: Any, device: Any, reading: Reading, unit: int, block: NDArray[np.float64], present: NDArray[np.bool_]
) -> Any:
    divisors = _divisors(xp, device, reading, block)
    return _present(xp, device, present) * (xp.full_like(divisors, unit) // divisors)


def _present(xp: Any, device: Any, present: NDArray[np.bool_]) -> Any:
    return xp.astype(there(xp, device, present), xp.int64)


def _observed(xp: Any, codes: Any, null: int) -> Any:
    """Return whether transitions are not from null to null: (T - 1, n)."""
    observed = codes != null
    return xp.logical_or(observed[:-1, :], observed[1:, :])


def _add(xp: Any, cells: Any, weights: Any, out: IntArray) -> None:
    """Add weights to out[cells].

    Sums stay below 2^20 times 2^19, the weights of a block's 64 columns or pairs at most.
    """
    order = xp.argsort(cells)
    until = xp.cumulative_sum(xp.take(weights, order), include_initial=True)
    begins = xp.searchsorted(xp.take(cells, order), xp.arange(len(out) + 1, dtype=xp.int64, device=cells.device))
    sums = xp.take(until, begins)
    out += here(sums[1:] - sums[:-1])
