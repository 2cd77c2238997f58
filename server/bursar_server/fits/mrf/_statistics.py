"""Statistics of FitMRF: contingency tables of rows, and bounds of the contribution of a row or a privacy unit.

Bernstein et al. 2017, sections 3 (tables of cliques) and 4.2 (pooled transitions). Proof in `_statistics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_models.mrf import Variable
from bursar_server.fits._seam import UNIT_ROWS
from bursar_server.fits.mrf import _array_kernel, _kernel
from bursar_server.vault import Bounds, Factor, Kernel, Statistic

IntArray = NDArray[np.int64]

_NONE = -1


@dataclass(frozen=True)
class Layout:
    """Layout of rows, and the weight of each.

    Attributes:
        variables: public columns as states, in the order of a row.
        shares: True if every row counts 1 / K of a unit that has K rows, the last number of the row; False if every row
            counts 1.
    """

    variables: tuple[Variable, ...]
    shares: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of a row's numbers."""
        return (*(variable.name for variable in self.variables), *((UNIT_ROWS,) if self.shares else ()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of states of each variable."""
        return tuple(len(variable.states) for variable in self.variables)

    @property
    def unit(self) -> int:
        """Maximum total weight of a privacy unit's rows, or a row's weight: in lattice units."""
        return _kernel.UNIT if self.shares else 1

    @property
    def bits(self) -> int:
        """Bits of the lattice of a table of cells."""
        return _kernel.BITS if self.shares else 0

    @property
    def lattice(self) -> float:
        """Size of one lattice unit of a table of cells, in rows or units."""
        return math.ldexp(1.0, -self.bits)

    def shape(self, clique: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a clique's table."""
        return tuple(self.sizes[variable] for variable in clique)


@dataclass(frozen=True)
class _Rows:
    """Rows in the format of the compiled functions: states of chosen variables, and the divisor of each row."""

    layout: Layout
    chosen: tuple[int, ...]

    def codes(self, block: FloatArray) -> IntArray:
        """Return the states (chosen variables, CHUNK)."""
        places, *_ = self._public
        out = np.empty((len(places), block.shape[1]), dtype=np.int64)
        _kernel.states(block, *self._public, out)
        return out

    def shares(self, block: FloatArray) -> IntArray:
        """Return K of each row, 1 if all rows count 1: (CHUNK,)."""
        out = np.empty(block.shape[1], dtype=np.int64)
        _kernel.shares(block, self._divisors, out)
        return out

    @property
    def reading(self) -> _array_kernel.Reading:
        """Arguments of the functions of `_array_kernel`."""
        return *self._public, self._divisors

    @property
    def _divisors(self) -> int:
        return len(self.layout.variables) if self.layout.shares else _NONE

    @cached_property
    def _public(self) -> tuple[IntArray, IntArray, IntArray, IntArray, FloatArray]:
        variables = [self.layout.variables[index] for index in self.chosen]
        starts, edges = [], list[float]()
        for variable in variables:
            starts.append(len(edges) if variable.edges else _NONE)
            edges += variable.edges[1:-1]
        sizes = [len(variable.states) - variable.nullable for variable in variables]
        nulls = [size * variable.nullable for size, variable in zip(sizes, variables, strict=True)]
        return _ints(self.chosen), _ints(sizes), _ints(starts), _ints(nulls), np.array(edges, dtype=np.float64)


@dataclass(frozen=True)
class _CliqueKernel:
    rows: _Rows
    shape: tuple[int, ...]

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: IntArray) -> None:
        _kernel.add_clique(
            self.rows.codes(block), self._strides, present, self.rows.shares(block), self.rows.layout.unit, out
        )

    def on(self, xp: Any, device: Any) -> Callable[..., None]:
        """Implement `bursar_server.vault._device.DeviceKernel`."""
        return partial(_array_kernel.add_clique, xp, device, self.rows.reading, self.rows.layout.unit, self._strides)

    @cached_property
    def _strides(self) -> IntArray:
        return _ints(_strides_of(self.shape))


@dataclass(frozen=True)
class _TablesKernel:
    rows: _Rows
    cliques: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: IntArray) -> None:
        codes, shares = self.rows.codes(block), self.rows.shares(block)
        members, strides = (_ints([one for each in parts for one in each]) for parts in (self.cliques, self._strides))
        starts = _ints([0, *np.cumsum([len(clique) for clique in self.cliques])])
        offsets, unit = _ints(self.offsets), self.rows.layout.unit
        _kernel.add_tables(codes, members, strides, starts, offsets, present, shares, unit, out)

    def on(self, xp: Any, device: Any) -> Callable[..., None]:
        """Implement `bursar_server.vault._device.DeviceKernel`."""
        arguments = (self.rows.reading, self.rows.layout.unit, self.cliques, self._strides, self.offsets)
        return partial(_array_kernel.add_tables, xp, device, *arguments)

    @cached_property
    def _strides(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_strides_of(self.rows.layout.shape(clique)) for clique in self.cliques)


@dataclass(frozen=True)
class _FirstsKernel:
    rows: _Rows
    null: int

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: IntArray) -> None:
        codes, shares = self.rows.codes(block), self.rows.shares(block)
        _kernel.add_firsts(codes, self.null, present, shares, self.rows.layout.unit, out)

    def on(self, xp: Any, device: Any) -> Callable[..., None]:
        """Implement `bursar_server.vault._device.DeviceKernel`."""
        return partial(_array_kernel.add_firsts, xp, device, self.rows.reading, self.rows.layout.unit, self.null)


@dataclass(frozen=True)
class _TransitionsKernel:
    rows: _Rows
    null: int

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: IntArray) -> None:
        codes, shares = self.rows.codes(block), self.rows.shares(block)
        _kernel.add_transitions(codes, self.rows.layout.sizes[0], self.null, present, shares, out)

    def on(self, xp: Any, device: Any) -> Callable[..., None]:
        """Implement `bursar_server.vault._device.DeviceKernel`."""
        arguments = (self.rows.reading, self.rows.layout.sizes[0], self.null)
        return partial(_array_kernel.add_transitions, xp, device, *arguments)


def table_bounds(layout: Layout) -> Bounds:
    """Return bounds of the contribution of one row, or of one unit's rows counted as shares, to a table of cells."""
    return _bounds(layout.unit, 1, per_unit=layout.shares)


def table_statistic(layout: Layout, clique: tuple[int, ...]) -> Statistic:
    """Return the count of rows, or of shares, in the cells of a clique; one axis a variable, in the clique's order."""
    shape = layout.shape(clique)
    kernel = _CliqueKernel(_Rows(layout, clique), shape)
    return _statistic("table of " + _listed(layout, clique), kernel, shape, layout.bits, table_bounds(layout))


def tables_statistic(layout: Layout, cliques: Sequence[tuple[int, ...]]) -> Statistic:
    """Return the tables of many cliques, one after the other, each in the order of `table_statistic`.

    Each is followed by one cell without rows, whose target is a public number (see `select_tree`).
    """
    blocks = blocks_of(layout, cliques)
    kernel = _TablesKernel(_everything(layout), tuple(cliques), tuple(start for start, _ in blocks))
    bounds = _bounds(layout.unit, len(cliques), per_unit=layout.shares)
    return _statistic(f"tables of {len(cliques)} sets of columns", kernel, (blocks[-1][1],), layout.bits, bounds)


def blocks_of(layout: Layout, cliques: Sequence[tuple[int, ...]]) -> tuple[tuple[int, int], ...]:
    """Return where each clique's table begins in `tables_statistic`, and where the cell after it ends."""
    ends = np.cumsum([math.prod(layout.shape(clique)) + 1 for clique in cliques]).tolist()
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def firsts_statistic(layout: Layout, null: int | None) -> Statistic:
    """Return the first states of paths: the variables of the layout are in the order of time, and have the same states.

    A path that is null throughout counts nowhere.

    Args:
        layout: layout of the rows; at least two variables.
        null: state that means "not observed"; None if there is none.
    """
    kernel = _FirstsKernel(_everything(layout), _NONE if null is None else null)
    return _statistic("first states", kernel, layout.sizes[:1], layout.bits, table_bounds(layout))


def transitions_statistic(layout: Layout, null: int | None) -> Statistic:
    """Return transitions of paths from axis 0 to axis 1, pooled over time; a path's K transitions count 1 / K each.

    Transitions from null to null are left out, and do not count in K. Arguments as in `firsts_statistic`.
    """
    kernel = _TransitionsKernel(_everything(layout), _NONE if null is None else null)
    bounds = _bounds(_kernel.UNIT, 1, per_unit=layout.shares)
    return _statistic("transitions", kernel, layout.sizes[:1] * 2, _kernel.BITS, bounds)


def _bounds(unit: int, tables: int, *, per_unit: bool) -> Bounds:
    """Return bounds of non-negative numbers whose sum is at most `unit` in each of several tables."""
    l1, l2_squared = tables * unit, tables * unit**2
    return Bounds(
        l1=l1,
        l2_squared=l2_squared,
        l1_distance=2 * l1,
        l2_squared_distance=2 * l2_squared,
        non_negative=True,
        per_unit=per_unit,
    )


def _statistic(name: str, kernel: Kernel, shape: tuple[int, ...], bits: int, bounds: Bounds) -> Statistic:
    factors = (Factor("count", bits),)
    return Statistic(name=name, kernel=kernel, factors=factors, shape=shape, bounds=bounds, largest=2**bits)


def _everything(layout: Layout) -> _Rows:
    return _Rows(layout, tuple(range(len(layout.variables))))


def _strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _listed(layout: Layout, clique: Sequence[int]) -> str:
    return ", ".join(layout.variables[variable].name for variable in clique)


def _ints(numbers: Sequence[int]) -> IntArray:
    return np.array(numbers, dtype=np.int64)
