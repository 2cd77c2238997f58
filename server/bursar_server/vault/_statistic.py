"""Statistics: functions of one row with proven bounds, whose sums over rows are exact integers.

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
from bursar_server.vault._rows import CHUNK, MAX_ROWS, Rows
from bursar_server.vault._sensitivity import Bounds


class Kernel(Protocol):
    """Function that adds the integer contributions of a block of rows."""

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """Add the contributions of the present rows of `block` (n_columns, CHUNK) to `out` (flat, `Statistic.size`).

        A total function of any bit patterns. Changes neither `block` nor `present`: other kernels may read them next.
        Must release the interpreter lock, so that threads run in parallel.
        """


PlacedKernel = Callable[[int, NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]], None]
"""`Kernel` with an additional first argument, the slot of its block's first row.

The vault uses it to find cached labels.
"""


@dataclass(frozen=True)
class Factor:
    """One factor of a row's contribution: integers of at most `bits` bits."""

    name: str
    bits: int


@dataclass(frozen=True)
class Statistic:
    """Specification of a sum over rows. Only its kernel reads rows.

    Attributes:
        name: name in ledgers, previews and tests.
        kernel: function block of rows -> integers.
        factors: factors whose products a row contributes.
        shape: shape of the sum.
        bounds: bounds of one row's contribution, in lattice units; proven in the file beside the statistic.
        largest: maximum absolute value of any coordinate of one row's contribution, in lattice units; proven in the
            same file.
    """

    name: str
    kernel: Kernel
    factors: tuple[Factor, ...]
    shape: tuple[int, ...]
    bounds: Bounds
    largest: int

    def __post_init__(self) -> None:
        # `largest` is then at most 2^36, so the sum of a block stays below 2^53 and kernels may compute it in float64.
        if not 0 < MAX_ROWS * self.largest < 2**63:
            raise ValueError(
                f"largest: expected a positive integer of which {MAX_ROWS} rows add up to less than 2^63, got "
                f"{self.largest}; use a coarser lattice"
            )

    @property
    def size(self) -> int:
        """Number of numbers in a release of this statistic."""
        return math.prod(self.shape)

    @property
    def lattice(self) -> float:
        """Size of one lattice unit; a power of two, so that scaling a sum by it is exact."""
        return math.ldexp(1.0, -sum(factor.bits for factor in self.factors))


@dataclass(frozen=True)
class Sum:
    """`Task` that sums over all rows what a kernel adds to a flat array.

    Attributes:
        kernel: function block of rows -> integers.
        size: length of the array.
    """

    kernel: PlacedKernel
    size: int

    def part(self, rows: Rows, columns: int, firsts: range) -> NDArray[np.int64]:
        """Implement `Task.part`: return the sum over a span, (size,)."""
        # One buffer for all blocks of a span: memory does not grow with the rows.
        block = np.zeros((columns, CHUNK))
        present = np.zeros(CHUNK, dtype=np.bool_)
        out = np.zeros(self.size, dtype=np.int64)
        for first in firsts:
            rows.read(first, block, present)
            self.kernel(first, block, present, out)
        return out

    def whole(self, parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Implement `Task.whole`: return the sum of the spans' sums, (size,)."""
        total = np.zeros(self.size, dtype=np.int64)
        for part in parts:
            # No overflow: `MAX_ROWS` rows of `largest` stay below 2^63.
            total += part
        return total


@dataclass(frozen=True)
class _Anywhere:
    """Adapter of a plain `Kernel` to `PlacedKernel`: ignores the slot."""

    kernel: Kernel

    def __call__(
        self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]
    ) -> None:
        self.kernel(block, present, out)


_HERE = LocalEngine()


def exact_sum(statistic: Statistic, rows: Rows, columns: int, *, engine: Engine = _HERE) -> NDArray[np.int64]:
    """Return the sum of a statistic over all rows, in lattice units, shape `statistic.shape`.

    Exact, hence the same for every engine and every order of rows. Memory does not grow with the number of rows.
    """
    kernel = _Anywhere(kernel_on(engine, statistic.kernel))
    return engine.run(Sum(kernel, statistic.size), rows, columns).reshape(statistic.shape)


def kernel_on(engine: Engine, kernel: Kernel) -> Kernel:
    """Return the kernel for the engine's device if both support it; otherwise the kernel itself."""
    if isinstance(engine, LocalEngine) and engine.device is not None and isinstance(kernel, DeviceKernel):
        return on_device(kernel, engine.device)
    return kernel
