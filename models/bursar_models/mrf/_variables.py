"""Variables of a Markov random field, and conversion between tables of labels and tables of states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar_models._tables import Categories, Output, as_table
from bursar_models.arrays import FloatArray, IntArray

NULL = "null"
"""Label of the state of a number that is missing."""

_MISSING = (NULL, "None", "nan", "<NA>")
"""Text of a missing value: `NULL`, and those of Python, numpy and pandas."""


@dataclass(frozen=True)
class Variable:
    """Column as the model sees it.

    Attributes:
        name: name of the column.
        states: labels: categories, or the bins of a numeric column as text; each once.
        edges: edges of a numeric column's bins, ascending and finite; empty for a categorical column. Bin i contains
            edges[i] <= x < edges[i + 1], the last one its upper edge, too. There is one more than states; or as many,
            and the last state, `NULL`, is that of a number that is missing.

    Raises:
        ValueError: no state, a label twice, or edges that do not fit.
    """

    name: str
    states: tuple[str, ...]
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "states", tuple(self.states))
        object.__setattr__(self, "edges", tuple(float(edge) for edge in self.edges))
        if not 1 <= len(self.states) == len(set(self.states)):
            raise ValueError(f"states: {self.name!r} must have at least one state, and each once")
        if not self.edges:
            return
        # The state of nulls has no edges: it comes last, after the bins.
        bins = len(self.states) - (self.nullable and self.states[-1] == NULL)
        if not bins == self.bins >= 1 or not all(map(math.isfinite, self.edges)):
            text = f"{len(self.states) + 1} finite edges, or one fewer if the last state is {NULL!r}, or none"
            raise ValueError(f"edges: {self.name!r} must have {text}")
        if not all(low < high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"edges: those of {self.name!r} must ascend")

    @property
    def bins(self) -> int:
        """Number of ordered bins; 0 for a categorical column."""
        return max(len(self.edges) - 1, 0)

    @property
    def nullable(self) -> bool:
        """True if the last state is that of a number that is missing."""
        return 0 < self.bins < len(self.states)

    def encode(self, values: Sequence[Any]) -> IntArray:
        """Return states of a column's values: labels as they are or as text, or numbers of a numeric column.

        A number outside the bins goes to the nearest bin, as on the server; a missing one to the state of null.

        Raises:
            ValueError: a value is neither a label nor a number, or missing where no state is null.
        """
        if self.edges and (numbers := _numbers(values)) is not None:
            missing = np.isnan(numbers)
            if missing.any() and not self.nullable:
                raise ValueError(f"column {self.name!r}: a value is missing; drop or fill missing values first")
            found = np.clip(np.searchsorted(self.edges, numbers, side="right") - 1, 0, self.bins - 1)
            return np.where(missing, self.bins, found).astype(np.intp)
        lookup: dict[Any, int] = {label: state for state, label in enumerate(self.states)}
        lookup |= dict.fromkeys(_MISSING, self.bins) if self.nullable else {}
        return np.array([self._state(lookup, value) for value in values], dtype=np.intp)

    def _state(self, lookup: dict[Any, int], value: Any) -> int:
        state = lookup.get(value)
        if state is None:
            state = lookup.get(str(value))
            if state is None:
                raise ValueError(
                    f"column {self.name!r}: a value is none of the model's {len(self.states)} states; "
                    "leave out such rows, or map them to a state"
                )
            lookup[value] = state
        return state


def ordered_of(variables: Sequence[Variable]) -> dict[int, int]:
    """Return the number of ordered bins, the first states, of each variable that has any, by its index."""
    return {index: variable.bins for index, variable in enumerate(variables) if variable.edges}


def encode_table(table: Any, variables: Sequence[Variable]) -> IntArray:
    """Return states (n, T) of a table that has every variable's column by name.

    The table is a mapping, or of pandas, pyarrow or polars.

    Raises:
        ValueError: a column is missing, columns have different lengths, or a value has no state.
    """
    columns = [_column(table, variable.name) for variable in variables]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("table: all columns must have the same number of rows")
    return np.stack([variable.encode(column) for variable, column in zip(variables, columns, strict=True)], axis=1)


def decode_table(rows: IntArray, variables: Sequence[Variable], uniforms: FloatArray | None, output: Output) -> Any:
    """Return a table with the original categories, without a value where a number is missing.

    Args:
        rows: states (n, T).
        variables: variables of the columns.
        uniforms: position of a number in its bin, in [0, 1), shape (n, T); None returns the bins' labels instead.
        output: library of the table, as in `as_table`.

    Raises:
        ValueError: `output` is unknown.
        bursar.MissingDependencyError: the library of `output` is not installed.
    """
    columns = {
        variable.name: (
            _within(variable, states, uniforms[:, number])
            if variable.edges and uniforms is not None
            else _labelled(variable, states)
        )
        for number, (variable, states) in enumerate(zip(variables, rows.T, strict=True))
    }
    return as_table(columns, output)


def _within(variable: Variable, states: IntArray, uniforms: FloatArray) -> FloatArray:
    """Return a number in each state's bin, or NaN for null; clipped so that rounding moves none into the next bin."""
    bins = np.minimum(states, variable.bins - 1)
    low, high = np.array(variable.edges)[bins], np.array(variable.edges)[bins + 1]
    drawn = np.clip(low + (high - low) * uniforms, low, np.nextafter(high, low))
    return np.where(states == bins, drawn, np.nan)


def _labelled(variable: Variable, states: IntArray) -> Categories:
    """Return the labels of states, none for null."""
    if not variable.nullable:
        return Categories(states, variable.states)
    return Categories(np.where(states < variable.bins, states, -1), variable.states[:-1])


def _column(table: Any, name: str) -> Sequence[Any]:
    # pyarrow's `columns` are arrays; its names are in `column_names`.
    names = table if isinstance(table, Mapping) else getattr(table, "column_names", getattr(table, "columns", None))
    if names is None:
        raise ValueError(f"table: expected a table with columns by name, got {type(table).__name__}")
    if name not in list(names):
        raise ValueError(f"table: the model's column {name!r} is missing from the table")
    column = table[name]
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _numbers(values: Sequence[Any]) -> FloatArray | None:
    """Return numbers as an array; None if one of the values is not a number."""
    if any(isinstance(value, str) for value in values):
        return None
    try:
        # pandas' `NA` is neither a number nor text.
        return np.array([math.nan if value is None or str(value) == "<NA>" else float(value) for value in values])
    except TypeError:
        return None
