"""Tables that a model gives: in the library that the caller works with, none of which this package needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from bursar.models._arrays import FloatArray, IntArray
from bursar.models._optional import require

Output: TypeAlias = Literal["pandas", "polars", "arrow", "dict"]
"""A pandas or polars DataFrame, a pyarrow Table, or a dict of arrays by name."""

OUTPUTS: tuple[Output, ...] = get_args(Output)

_PACKAGES: dict[Output, str] = {"pandas": "pandas", "polars": "polars", "arrow": "pyarrow"}


@dataclass(frozen=True, eq=False)
class Categories:
    """A column of categories.

    Attributes:
        codes: index of each row's state, shape (n,).
        states: all that there can be, whether or not a row has them.
    """

    codes: IntArray
    states: tuple[str, ...]

    def labels(self) -> Any:
        """Each row's state, as an array of text."""
        return np.array(self.states, dtype=object)[self.codes]


def as_table(columns: Mapping[str, FloatArray | IntArray | Categories], output: Output) -> Any:
    """A table of columns by name; categories keep all their states, if the library has a type for that.

    Args:
        columns: all of one length.
        output: the library's name.

    Raises:
        ValueError: another output.
        bursar.MissingDependencyError: the library is not installed.
    """
    if output not in OUTPUTS:
        raise ValueError(f"output: expected one of {OUTPUTS}, got {output!r}")
    package: Any = require(_PACKAGES[output]) if output in _PACKAGES else None
    cells = {
        name: _categorical(package, column, output) if isinstance(column, Categories) else column
        for name, column in columns.items()
    }
    if output == "dict":
        return cells
    return package.table(cells) if output == "arrow" else package.DataFrame(cells)


def spread(attribute: str, features: tuple[str, ...], values: FloatArray | None) -> dict[str, FloatArray]:
    """Columns of an array (k, d), named by the attribute that has it and the feature; none if there is no such array.

    A feature may be called as anything, so its name alone would not do beside weights.
    """
    if values is None:
        return {}
    return {f"{attribute}.{name}": values[:, place] for place, name in enumerate(features)}


def _categorical(package: Any, column: Categories, output: Output) -> Any:
    states = list(column.states)
    match output:
        case "pandas":
            return package.Categorical.from_codes(column.codes, categories=states)
        case "polars":
            return package.Series(column.labels().tolist(), dtype=package.Enum(states))
        case "arrow":
            return package.DictionaryArray.from_arrays(column.codes.astype(np.int32), states)
        case "dict":
            return column.labels()
