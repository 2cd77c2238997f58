"""Public schema of a dataset: declared by its owner, never computed from rows."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TypeAlias

from bursar_models.transforms import Transform


@dataclass(frozen=True)
class NumericColumn:
    """Column of numbers.

    Attributes:
        name: name in requests and models.
        description: description by the data owner.
        lower: lower bound to which values are clipped, in the column's own units.
        upper: upper bound to which values are clipped, in the column's own units.
        bin_edges: edges of the public bins that are the states of its values in a Markov random field, ascending, one
            more than bins; empty if the owner declared none.
        nullable: True if rows may have no value here. In fits of this column that have no rule for them, such rows
            count for nothing.
        transform: what mixtures and clusters fit in place of the column unless a request says otherwise.
    """

    name: str
    description: str
    lower: float
    upper: float
    bin_edges: tuple[float, ...] = ()
    nullable: bool = False
    transform: Transform = "none"

    @property
    def domain(self) -> str:
        """Bounds, number of bins, transform, and whether values may be missing, as text for people."""
        bins = len(self.bin_edges) - 1
        in_bins = f", {bins} bin{'s' * (bins > 1)}" if self.bin_edges else ""
        space = "" if self.transform == "none" else f", {self.transform}"
        return f"{self.lower:g} to {self.upper:g}{in_bins}{space}{', or null' * self.nullable}"


@dataclass(frozen=True)
class CategoricalColumn:
    """Column of categories.

    Attributes:
        name: name in requests and models.
        description: description by the data owner.
        categories: all possible categories, whether or not a row has them.
    """

    name: str
    description: str
    categories: tuple[str, ...]

    @property
    def domain(self) -> str:
        """Categories as text for people, shortened if there are many."""
        return textwrap.shorten(", ".join(self.categories), width=60, placeholder=" ...")


Column: TypeAlias = NumericColumn | CategoricalColumn
"""Column of a dataset."""
