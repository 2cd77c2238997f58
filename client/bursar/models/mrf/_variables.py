"""Variables of a Markov random field, and tables of their labels as tables of states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar.models._arrays import FloatArray, IntArray
from bursar.models._tables import Categories, Output, as_table


@dataclass(frozen=True)
class Variable:
    """A column as the model sees it.

    Attributes:
        name: of the column.
        states: labels: categories, or the bins of a numeric column as text; each once.
        edges: of a numeric column, ascending and finite, one more than states; empty for a categorical one. Bin i has
            edges[i] <= x < edges[i + 1], the last one its upper edge too.

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
        if len(self.edges) != len(self.states) + 1 or not all(map(math.isfinite, self.edges)):
            raise ValueError(f"edges: {self.name!r} must have {len(self.states) + 1} finite edges, or none")
        if not all(low < high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"edges: those of {self.name!r} must ascend")

    def encode(self, values: Sequence[Any]) -> IntArray:
        """States of a column's values: labels as they are or as text, or numbers of a numeric column.

        A number outside the bins goes to the nearest one, as on the server.

        Raises:
            ValueError: a value that is no label and no number.
        """
        if self.edges and (numbers := _numbers(values)) is not None:
            if np.isnan(numbers).any():
                raise ValueError(f"column {self.name!r}: a value is missing; drop or fill missing values first")
            found = np.searchsorted(self.edges, numbers, side="right") - 1
            return np.asarray(np.clip(found, 0, len(self.states) - 1), dtype=np.intp)
        lookup: dict[Any, int] = {label: state for state, label in enumerate(self.states)}
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


def encode_table(table: Any, variables: Sequence[Variable]) -> IntArray:
    """States (n, T) of a table that has every variable's column by name: a mapping, pandas, pyarrow or polars.

    Raises:
        ValueError: a column is missing, columns have different lengths, or a value has no state.
    """
    columns = [_column(table, variable.name) for variable in variables]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("table: all columns must have the same number of rows")
    return np.stack([variable.encode(column) for variable, column in zip(variables, columns, strict=True)], axis=1)


def decode_table(rows: IntArray, variables: Sequence[Variable], uniforms: FloatArray | None, output: Output) -> Any:
    """A table with the original categories.

    Args:
        rows: states (n, T).
        variables: of its columns.
        uniforms: where in its bin a number lies, in [0, 1), shape (n, T); None gives the bins' labels instead.
        output: as in `as_table`.

    Raises:
        ValueError: another output.
        bursar.MissingDependencyError: the package for it is not installed.
    """
    columns = {
        variable.name: (
            _within(variable, states, uniforms[:, number])
            if variable.edges and uniforms is not None
            else Categories(states, variable.states)
        )
        for number, (variable, states) in enumerate(zip(variables, rows.T, strict=True))
    }
    return as_table(columns, output)


def _within(variable: Variable, states: IntArray, uniforms: FloatArray) -> FloatArray:
    """A number in each state's bin, which rounding does not take into the next one."""
    low, high = np.array(variable.edges)[states], np.array(variable.edges)[states + 1]
    return np.asarray(np.clip(low + (high - low) * uniforms, low, np.nextafter(high, low)))


def _column(table: Any, name: str) -> Sequence[Any]:
    # pyarrow has its names in `column_names`, and its arrays in `columns`.
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
    """Numbers as an array; None if one is none."""
    if any(isinstance(value, str) for value in values):
        return None
    try:
        return np.array([math.nan if value is None else float(value) for value in values])
    except TypeError:  # pandas has a missing value that is no number and no text
        return None
