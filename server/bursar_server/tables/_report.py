"""Report of an import, by column: computed from the rows, so for the administrator alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bursar_server.tables._cells import Raw, is_empty, is_known, texts
from bursar_server.tables._manifest import Categorical, Numeric

ACCEPTED = Fraction(1, 5)
"""Largest share of bad rows, or of bad values of a column, that is accepted without being asked for."""

EXAMPLES = 5
"""Maximum number of different bad cells of a column that are kept."""


@dataclass(frozen=True)
class ColumnReport:
    """Counts of one column's cells.

    Attributes:
        bad: number of cells that hold something which is no number, or none of the categories.
        clipped_low: number of values of present rows that were moved up to the lower bound.
        clipped_high: number of values of present rows that were moved down to the upper bound.
        examples: up to `EXAMPLES` different bad cells, the first of the source; kept out of `repr`.
    """

    name: str
    bad: int = 0
    missing: int = 0
    clipped_low: int = 0
    clipped_high: int = 0
    examples: tuple[str, ...] = field(default=(), repr=False)

    @property
    def clipped(self) -> int:
        """Number of values of present rows that were moved to a bound."""
        return self.clipped_low + self.clipped_high

    def plus(
        self,
        cells: pa.Array,
        raw: Raw,
        column: Numeric | Categorical,
        present: NDArray[np.bool_],
    ) -> ColumnReport:
        """Return the counts with those of more cells; `raw` is their `parse`, `present` the mask of present rows."""
        unread = cells.filter(pa.array(~is_known(raw)))
        empty = is_empty(unread, column)
        low = high = 0
        if isinstance(column, Numeric):
            low = int(np.count_nonzero((raw < column.lower) & np.isfinite(raw) & present))
            high = int(np.count_nonzero((raw > column.upper) & np.isfinite(raw) & present))
        return ColumnReport(
            self.name,
            self.bad + int(np.count_nonzero(~empty)),
            self.missing + int(np.count_nonzero(empty)),
            self.clipped_low + low,
            self.clipped_high + high,
            _examples(self.examples, unread.filter(pa.array(~empty))),
        )


@dataclass(frozen=True)
class ImportReport:
    """Report of an import.

    Counts, examples and fingerprint depend on the data: they are for the administrator only, and appear in no ledger,
    log or answer.

    Attributes:
        null_rows: number of rows that lack a required number, category or unit.
        rows_without_unit: number of those that lack the unit alone.
        rows_over_cap: number of rows left out because their unit had more than the cap.
        fingerprint: digest by which the table is recognised (`Fingerprint`); kept out of `repr`.
    """

    dataset_id: str
    directory: Path
    rows_read: int
    null_rows: int
    rows_without_unit: int
    rows_over_cap: int
    columns: tuple[ColumnReport, ...]
    fingerprint: bytes = field(repr=False)

    def share(self, n: int) -> Fraction:
        """Return a number of rows as a share of all."""
        return Fraction(n, self.rows_read) if self.rows_read else Fraction(0)

    def percent(self, n: int) -> str:
        """Return a number of rows as a share of all, for people."""
        return f"{float(self.share(n)):.1%}"

    def problems(self, accepted: Fraction | None) -> list[str]:
        """Return why the table is refused; none if it is not."""
        limit = ACCEPTED if accepted is None else accepted
        # A nullable column's bad values make no bad row, and are lost all the same.
        found = [
            f"{column.name}: {self.percent(column.bad)} of the values are bad"
            for column in self.columns
            if self.share(column.bad) > limit
        ]
        if self.share(self.null_rows) > limit:
            found.append(f"{self.percent(self.null_rows)} of the rows are bad")
        if accepted is None:
            found += [
                f"{column.name}: no value could be read"
                for column in self.columns
                if self.rows_read and column.bad + column.missing == self.rows_read
            ]
        return found


def _examples(known: tuple[str, ...], bad: pa.Array) -> tuple[str, ...]:
    if len(known) >= EXAMPLES or not len(bad):
        return known
    found: Sequence[Any] = texts(bad).unique()[: 2 * EXAMPLES].to_pylist()
    new = [text.decode(errors="backslashreplace") for text in found]
    return tuple(dict.fromkeys((*known, *new)))[:EXAMPLES]
