"""Public transforms of columns, made while rows are read: statistics then see the transformed columns and nothing else.

A cell's new value is a total function of that cell and of the column's public bounds. Proof: `_transforms.md`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bursar_models.transforms import log1p
from bursar_server.vault._engine import RowsPart, SpreadRows
from bursar_server.vault._rows import Rows


@dataclass(frozen=True)
class Log1p:
    """Natural logarithm of one plus a column's value.

    Attributes:
        place: index of the column among those that are read.
        lower: lower public bound of the column, at least 0.
        upper: upper public bound, above `lower`.
    """

    place: int
    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not (0.0 <= self.lower < self.upper <= 1e300 and self.ends[0] < self.ends[1]):
            raise ValueError(f"bounds: expected 0 <= lower < upper with two logarithms, got {self.lower}, {self.upper}")

    @property
    def ends(self) -> tuple[float, float]:
        """Bounds of the transformed column."""
        low, high = log1p(np.array([self.lower, self.upper]))
        return float(low), float(high)

    def of(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the transformed cells: within `ends`, or NaN of one bit pattern for NaN."""
        # Clipped before, so that the logarithm exists, and after, so that no rounding leads out of the bounds.
        with np.errstate(all="ignore"):  # no warning may tell what a cell holds
            logs = np.clip(log1p(np.clip(values, self.lower, self.upper)), *self.ends)
        return np.where(np.isnan(values), np.nan, logs)


@dataclass(frozen=True)
class TransformedRows:
    """Rows with transformed columns.

    Attributes:
        rows: rows as they are stored.
        transforms: transforms of different columns.
    """

    rows: Rows
    transforms: tuple[Log1p, ...]

    @property
    def slots(self) -> int:
        """Number of slots, null rows included."""
        return self.rows.slots

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """Implement `Rows.read`."""
        self.rows.read(first, block, present)
        for one in self.transforms:
            block[one.place] = one.of(block[one.place])


@dataclass(frozen=True)
class _TransformedPart:
    """Partition with transformed columns (`RowsPart`); can be pickled."""

    part: RowsPart
    transforms: tuple[Log1p, ...]

    @property
    def slots(self) -> int:
        """Number of slots, null rows included."""
        return self.part.slots

    @contextlib.contextmanager
    def open(self) -> Iterator[Rows]:
        """Implement `RowsPart.open`."""
        with self.part.open() as rows:
            yield TransformedRows(rows, self.transforms)


@dataclass(frozen=True)
class _TransformedSpread(TransformedRows):
    """`SpreadRows` with transformed columns."""

    rows: SpreadRows

    @property
    def parts(self) -> Sequence[RowsPart]:
        """Partitions in the order of their slots."""
        return tuple(_TransformedPart(part, self.transforms) for part in self.rows.parts)


def transformed(rows: Rows, transforms: tuple[Log1p, ...]) -> Rows:
    """Return rows with transformed columns, in partitions if they were."""
    if not transforms:
        return rows
    return _TransformedSpread(rows, transforms) if isinstance(rows, SpreadRows) else TransformedRows(rows, transforms)
