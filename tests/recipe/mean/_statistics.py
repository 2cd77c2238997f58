"""The statistic of FitMean: the number of rows and the sum of one column; proof in `_statistics.md`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits import BoundedColumn
from bursar_server.vault import Bounds, Factor, Statistic

BITS = 18
UNIT = 2**BITS


@dataclass(frozen=True)
class MeanKernel:
    """Adds count and position of each row, where the column's bounds are at -1 and 1.

    Attributes:
        centre: middle of the bounds.
        half_width: of the bounds.
    """

    centre: float
    half_width: float

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """Implement `Kernel`."""
        with np.errstate(all="ignore"):
            position = (block[0] - self.centre) / self.half_width
            valid = present & (np.abs(position) <= 1.0)  # NaN fails
        out[0] += UNIT * np.count_nonzero(valid)
        out[1] += np.sum(np.trunc(UNIT * np.where(valid, position, 0.0)).astype(np.int64))


def mean_statistic(column: BoundedColumn) -> Statistic:
    """Return the statistic of one column."""
    kernel = MeanKernel((column.lower + column.upper) / 2, (column.upper - column.lower) / 2)
    bounds = Bounds(2 * UNIT, 2 * UNIT**2, 2 * UNIT, 4 * UNIT**2)
    return Statistic("mean", kernel, (Factor("position", BITS),), (2,), bounds, UNIT)
