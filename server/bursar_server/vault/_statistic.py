"""A statistic declares what it reads from a row and how much one row can contribute; its sums are exact integers.

A row is turned into bounded factors, each factor is truncated towards zero to its own integer lattice, and the products
of the factors are summed in integers. A statistic *is* what its kernel computes: inexact arithmetic before truncation
costs accuracy, never privacy, as long as a row's integers are a function of that row and of public or released values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_server.vault._device import DeviceKernel, on_device
from bursar_server.vault._engine import Engine, LocalEngine
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


@dataclass(frozen=True)
class Sum:
    """A `Task`: the sum over all rows of what a kernel adds to a flat array.

    Attributes:
        kernel: block of rows -> integers.
        size: of the array.
    """

    kernel: PlacedKernel
    size: int

    def part(self, rows: Rows, columns: int, firsts: range) -> NDArray[np.int64]:
        """See `Task`; shape (size,)."""
        block = np.zeros((columns, CHUNK))
        present = np.zeros(CHUNK, dtype=np.bool_)
        out = np.zeros(self.size, dtype=np.int64)
        for first in firsts:
            rows.read(first, block, present)
            self.kernel(first, block, present, out)
        return out

    def whole(self, parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
        """See `Task`; shape (size,)."""
        total = np.zeros(self.size, dtype=np.int64)
        for part in parts:
            total += part
        return total


@dataclass(frozen=True)
class _Anywhere:
    """A kernel that has noted nothing, so that places of blocks are nothing to it."""

    kernel: Kernel

    def __call__(
        self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]
    ) -> None:
        self.kernel(block, present, out)


_HERE = LocalEngine()


def exact_sum(statistic: Statistic, rows: Rows, columns: int, *, engine: Engine = _HERE) -> NDArray[np.int64]:
    """Sum a statistic over all rows, in lattice units, shape `statistic.shape`.

    Exact, hence the same for every engine and every order of rows. Memory does not grow with the rows.
    """
    kernel = _Anywhere(kernel_on(engine, statistic.kernel))
    return engine.run(Sum(kernel, statistic.size), rows, columns).reshape(statistic.shape)


def kernel_on(engine: Engine, kernel: Kernel) -> Kernel:
    """The kernel as the engine's device runs it, if it has one and the kernel can be run there; else as it is."""
    if isinstance(engine, LocalEngine) and engine.device is not None and isinstance(kernel, DeviceKernel):
        return on_device(kernel, engine.device)
    return kernel
