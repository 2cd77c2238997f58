"""The public schema of a dataset: declared by its owner, never computed from rows."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers.

    Attributes:
        name: what requests and models call it.
        description: the owner's words.
        lower: rows are clipped to at least this, in the column's own units.
        upper: and to at most this.
        bin_edges: of the public bins that make states of its values in a Markov random field, ascending, one more than
            bins; empty if the owner declared none.
        nullable: whether rows may have no value here; only fits that say so can use such a column.
    """

    name: str
    description: str
    lower: float
    upper: float
    bin_edges: tuple[float, ...] = ()
    nullable: bool = False

    @property
    def domain(self) -> str:
        """The bounds, how many bins there are, and whether values may be missing, for people."""
        bins = len(self.bin_edges) - 1
        in_bins = f", {bins} bin{'s' * (bins > 1)}" if self.bin_edges else ""
        return f"{self.lower:g} to {self.upper:g}{in_bins}{', or null' * self.nullable}"


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories.

    Attributes:
        name: what requests and models call it.
        description: the owner's words.
        categories: all that there can be, whether or not a row has them.
    """

    name: str
    description: str
    categories: tuple[str, ...]

    @property
    def domain(self) -> str:
        """The categories, for people, shortened if they are many."""
        return textwrap.shorten(", ".join(self.categories), width=60, placeholder=" ...")


Column: TypeAlias = NumericColumn | CategoricalColumn
"""One column of a dataset."""
