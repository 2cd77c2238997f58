"""A statistic declares what it reads from a row and how much one row can contribute; its sums are exact integers.

A row is turned into bounded factors, each factor is truncated towards zero to its own integer lattice, and the products
of the factors are summed in integers. A statistic *is* what its kernel computes: inexact arithmetic before truncation
costs accuracy, never privacy, as long as a row's integers are a function of that row and of public or released values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_server.vault._rows import CHUNK, Rows
from bursar_server.vault._sensitivity import Bounds

MAX_BITS = 36
"""Contributions stay below 2^36 per coordinate: sums over a block of 8,192 rows are exact in float64 (2^49)."""


class Kernel(Protocol):
    """Adds the integer contributions of a block of rows."""

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """Add to `out` (flat, `Statistic.size`) what the rows of `block` (n_columns, CHUNK) with `present` contribute.

        A total function of any bit patterns, which changes neither `block` nor `present`: others may read them next.
        Must release the interpreter lock to let blocks run side by side.
        """


PlacedKernel = Callable[[int, NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]], None]
"""A `Kernel` that is told the slot of its block's first row before the rest; the vault's own, to find what it noted."""


@dataclass(frozen=True)
class Factor:
    """One factor of a row's contribution: integers of at most `bits` bits."""

    name: str
    bits: int


@dataclass(frozen=True)
class Statistic:
    """The only thing that reads rows.

    Attributes:
        name: for ledgers, previews and tests.
        kernel: block of rows -> integers.
        factors: whose products a row contributes.
        shape: of the sum.
        bounds: what one row can contribute, in lattice units; proven in the file beside the statistic.
    """

    name: str
    kernel: Kernel
    factors: tuple[Factor, ...]
    shape: tuple[int, ...]
    bounds: Bounds

    def __post_init__(self) -> None:
        if not sum(factor.bits for factor in self.factors) <= MAX_BITS:
            raise ValueError(f"the factors of a statistic may have {MAX_BITS} bits together, got {self.factors}")

    @property
    def size(self) -> int:
        """How many numbers a release of this statistic has."""
        return math.prod(self.shape)

    @property
    def lattice(self) -> float:
        """Size of one lattice unit; a power of two, so that scaling a sum by it is exact."""
        return math.ldexp(1.0, -sum(factor.bits for factor in self.factors))


def exact_sum(statistic: Statistic, rows: Rows, columns: int, *, threads: int = 1) -> NDArray[np.int64]:
    """Sum a statistic over all rows, in lattice units, shape `statistic.shape`.

    Exact, hence the same for every number of threads and every order of rows. Memory does not grow with the rows.
    """

    def kernel(first: int, block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        statistic.kernel(block, present, out)

    return placed_sum(kernel, statistic.size, rows, columns, threads=threads).reshape(statistic.shape)


def placed_sum(kernel: PlacedKernel, size: int, rows: Rows, columns: int, *, threads: int = 1) -> NDArray[np.int64]:
    """Sum what a kernel adds to a flat array of `size` numbers over all rows, (size,)."""
    firsts = range(0, rows.slots, CHUNK)
    parts = [firsts[i::threads] for i in range(threads)]
    if threads == 1:
        sums = [_part_sum(kernel, size, rows, columns, parts[0])]
    else:
        with ThreadPoolExecutor(threads) as pool:
            sums = list(pool.map(lambda part: _part_sum(kernel, size, rows, columns, part), parts))
    return np.asarray(np.sum(sums, axis=0, dtype=np.int64))


def _part_sum(kernel: PlacedKernel, size: int, rows: Rows, columns: int, firsts: Iterable[int]) -> NDArray[np.int64]:
    block = np.zeros((columns, CHUNK))
    present = np.zeros(CHUNK, dtype=np.bool_)
    out = np.zeros(size, dtype=np.int64)
    for first in firsts:
        rows.read(first, block, present)
        kernel(first, block, present, out)
    return out
