"""Conversion of a caller's data to the arrays that a model needs, and of arrays to read-only fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
ComplexArray = npt.NDArray[np.complex128]
BoolArray = npt.NDArray[np.bool_]

WEIGHT_TOLERANCE = 1e-8
"""Maximum deviation of a sum of weights from 1: far above float64 rounding of thousands of terms."""


def frozen(name: str, value: object, shape: tuple[int, ...] | None = None) -> FloatArray:
    """Return a read-only float64 copy of `value`, array-like of shape `shape` (any shape if None), all finite.

    Raises:
        ValueError: the shape differs, or an entry is not finite.
    """
    try:
        array = np.array(value, dtype=np.float64)
    except OverflowError:  # of a whole number beyond floats, as JSON may have
        raise ValueError(f"{name}: every entry must be finite") from None
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: every entry must be finite")
    # Otherwise a frozen dataclass could still be changed through its arrays.
    array.flags.writeable = False
    return array


def check_centres(name: str, centres: FloatArray) -> tuple[int, int]:
    """Return the shape (k, d) of an array of centres, both at least 1.

    Raises:
        ValueError: not two-dimensional, or empty.
    """
    if centres.ndim != 2 or 0 in centres.shape:
        raise ValueError(f"{name}: expected shape (k, d) with k >= 1 and d >= 1, got {centres.shape}")
    return centres.shape[0], centres.shape[1]


def frozen_weights(value: object, k: int) -> FloatArray:
    """Return a read-only copy of mixture weights of shape (k,), non-negative, that sum to 1 within `WEIGHT_TOLERANCE`.

    Raises:
        ValueError: another shape, a negative weight, or another sum.
    """
    weights = frozen("weights_", value, (k,))
    if not (weights >= 0).all():
        raise ValueError("weights_: every weight must be at least 0")
    if not abs(weights.sum() - 1) <= WEIGHT_TOLERANCE:
        raise ValueError(f"weights_: expected a sum of 1, got {weights.sum():.9g}")
    return weights


def checked_columns(columns: Sequence[str], d: int) -> tuple[str, ...]:
    """Return the column names as a tuple: none, or one for each of the `d` features.

    Raises:
        ValueError: another number of names.
    """
    names = tuple(columns)
    if names and len(names) != d:
        raise ValueError(f"columns: expected {d} names, one for each feature, got {len(names)}")
    return names


def as_rows(X: Any, columns: tuple[str, ...], d: int, *, missing: bool = False) -> FloatArray:
    """Return rows as an array of shape (n, d), from such an array-like or from a table that has `columns` by name.

    A table is any object with column names that returns a column for a name: pandas, polars, pyarrow, a mapping. It may
    have more columns, in any order. If the model has no names, it must have exactly the features, in their order. With
    `missing`, NaN and null stand for a missing value.

    Raises:
        ValueError: a column is missing or holds no numbers, the shape is not (n, d), or an entry is not finite.
    """
    names = _names(X)
    rows = _numbers("X", X) if names is None else _select(X, names, columns or tuple(names))
    if rows.ndim != 2 or rows.shape[1] != d:
        raise ValueError(f"X: expected shape (n, {d}), got {rows.shape}")
    if missing and not np.isinf(rows).any():
        return rows
    if not np.isfinite(rows).all():
        advice = "finite, or NaN where it is missing" if missing else "finite; drop or fill missing values first"
        raise ValueError(f"X: every entry must be {advice}")
    return rows


def as_target(y: Any, X: Any, target: str, n: int) -> FloatArray:
    """Return the target of n rows, all finite, shape (n,): what was given as `y`, or the table's column `target`.

    Raises:
        ValueError: neither is there, or it is not n finite numbers.
    """
    if y is None:
        names = _names(X)
        if not target or names is None or target not in names:
            wanted = (
                f"or an X with the model's target {target!r}" if target else "as the model has no name for its target"
            )
            raise ValueError(f"y: expected the target, array-like of shape (n,), {wanted}")
        y = X[target]
    values = _numbers("y", y)
    if values.shape != (n,):
        raise ValueError(f"y: expected shape ({n},), one number for each row of X, got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("y: every entry must be finite")
    return values


def _names(X: Any) -> list[Any] | None:
    """Return the column names of a table; None for other objects."""
    if isinstance(X, Mapping):
        return list(X)
    # pyarrow's `columns` are arrays; its names are in `column_names`.
    names = getattr(X, "column_names", getattr(X, "columns", None))
    return None if names is None else list(names)


def _select(X: Any, names: list[Any], columns: tuple[Any, ...]) -> FloatArray:
    missing = [name for name in columns if name not in names]
    if missing:
        raise ValueError(f"X: the model's columns {missing} are missing from the table")
    parts = [_numbers(f"X, column {name!r}", X[name]) for name in columns]
    if len({part.shape for part in parts}) > 1:
        raise ValueError("X: all columns must have the same number of rows")
    return np.stack(parts, axis=1) if parts else np.empty((0, 0))


def _numbers(name: str, values: Any) -> FloatArray:
    """Return an array of numbers; None and null become NaN.

    Messages show no value, because they are the caller's rows.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "mMUS":
            return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{name}: expected numbers; text, dates and lists of different lengths are none")
