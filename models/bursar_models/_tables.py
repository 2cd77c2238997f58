"""Tables that models return, in the library that the caller uses; none of these libraries is required."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from bursar_models.arrays import FloatArray, IntArray
from bursar_models.optional import require

Output: TypeAlias = Literal["pandas", "polars", "arrow", "dict"]
"""A pandas or polars DataFrame, a pyarrow Table, or a dict of arrays by name."""

OUTPUTS: tuple[Output, ...] = get_args(Output)

_PACKAGES: dict[Output, str] = {"pandas": "pandas", "polars": "polars", "arrow": "pyarrow"}


@dataclass(frozen=True, eq=False)
class Categories:
    """Column of categories.

    Attributes:
        codes: index of each row's state, shape (n,); -1 where it has none.
        states: all possible states, whether or not a row has them.
    """

    codes: IntArray
    states: tuple[str, ...]

    def labels(self) -> Any:
        """Return each row's state as text, or None, as an array."""
        return np.array([*self.states, None], dtype=object)[self.codes]


def as_table(columns: Mapping[str, FloatArray | IntArray | npt.NDArray[np.str_] | Categories], output: Output) -> Any:
    """Return a table of columns by name; categories keep all their states if the library has a type for them.

    NaN is null in polars and Arrow.

    Args:
        columns: columns by name, all of one length.
        output: name of the library.

    Raises:
        ValueError: `output` is unknown.
        bursar.MissingDependencyError: the library is not installed.
    """
    if output not in OUTPUTS:
        raise ValueError(f"output: expected one of {OUTPUTS}, got {output!r}")
    package: Any = require(_PACKAGES[output]) if output in _PACKAGES else None
    cells = {
        name: _categorical(package, column, output)
        if isinstance(column, Categories)
        else _with_nulls(package, column, output)
        for name, column in columns.items()
    }
    if output == "dict":
        return cells
    return package.table(cells) if output == "arrow" else package.DataFrame(cells)


def spread(attribute: str, features: tuple[str, ...], values: FloatArray | None) -> dict[str, FloatArray]:
    """Return the columns of an array (k, d), named by attribute and feature; none if there is no array.

    The attribute is part of the name, because a feature could be called "weights_".
    """
    if values is None:
        return {}
    return {f"{attribute}.{name}": values[:, place] for place, name in enumerate(features)}


def _with_nulls(package: Any, column: Any, output: Output) -> Any:
    """Return a column with nulls for NaN, where a library has both."""
    if output not in ("polars", "arrow") or column.dtype.kind != "f":
        return column
    return package.array(column, from_pandas=True) if output == "arrow" else package.Series(column, nan_to_null=True)


def _categorical(package: Any, column: Categories, output: Output) -> Any:
    states = list(column.states)
    match output:
        case "pandas":
            return package.Categorical.from_codes(column.codes, categories=states)
        case "polars":
            return package.Series(column.labels().tolist(), dtype=package.Enum(states))
        case "arrow":
            codes = package.array(column.codes.astype(np.int32), mask=column.codes < 0)
            return package.DictionaryArray.from_arrays(codes, states)
        case "dict":
            return column.labels()
