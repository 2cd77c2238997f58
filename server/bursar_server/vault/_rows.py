"""Rows as statistics see them: blocks of a fixed shape, padded with null rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

CHUNK = 8192
"""Slots in a block. Fixed, so that a row's value can never depend on how many neighbours it has."""

MAX_ROWS = 2**27
"""Most slots of a table: with contributions below 2^36 (`Statistic`), sums stay below 2^63 in int64."""

MAX_UNIT_ROWS = 2**26
"""Most rows of one privacy unit: statistics divide by numbers up to it."""


class Rows(Protocol):
    """A table's numeric columns, readable by block."""

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
    """Rows held in memory.

    Attributes:
        columns: (n_columns, n_slots), float64.
        present: (n_slots,), False for null rows; left out: all present.
    """

    columns: NDArray[np.float64]
    present: NDArray[np.bool_] | None = None

    @property
    def slots(self) -> int:
        """Number of slots, null rows included."""
        return int(self.columns.shape[1])

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """See `Rows.read`."""
        filled = max(0, min(CHUNK, self.slots - first))
        block[:, :filled] = self.columns[:, first : first + filled]
        block[:, filled:] = 0.0
        present[:filled] = True if self.present is None else self.present[first : first + filled]
        present[filled:] = False
