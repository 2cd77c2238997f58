"""Rows as statistics see them: blocks of a fixed shape, padded with absent records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

CHUNK = 8192
"""Slots in a block. Fixed, so that how a row is rounded cannot depend on how many rows are read with it."""

MAX_ROWS = 2**27 - 1
"""Maximum number of slots of a table.

With up to 2^36 from each slot in a coordinate (`Statistic.largest`), sums reach at most 2^63 - 2^36.
"""

MAX_UNIT_ROWS = 2**26
"""Maximum number of rows of one privacy unit: statistics divide by numbers up to it."""


class Rows(Protocol):
    """Numeric columns of a table, read block by block."""

    @property
    def slots(self) -> int:
        """Number of slots, null rows included; at most `MAX_ROWS`."""

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """Fill `block` (n_columns, CHUNK) and `present` (CHUNK,) with the slots from `first` on.

        Slots past the end, and null rows, are marked absent; their values are ignored. A total function: never raises
        for any content of the table.
        """


@dataclass(frozen=True)
class ArrayRows:
    """Rows in memory.

    Attributes:
        columns: values, (n_columns, n_slots), float64.
        present: mask, (n_slots,), False for null rows; None: all rows are present.
    """

    columns: NDArray[np.float64]
    present: NDArray[np.bool_] | None = None

    @property
    def slots(self) -> int:
        """Number of slots, null rows included."""
        return int(self.columns.shape[1])

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """Implement `Rows.read`."""
        # The padding of the last block is cleared: the buffers still hold the block before it.
        filled = max(0, min(CHUNK, self.slots - first))
        block[:, :filled] = self.columns[:, first : first + filled]
        block[:, filled:] = 0.0
        present[:filled] = True if self.present is None else self.present[first : first + filled]
        present[filled:] = False
