"""Conversion of a cell of any content to a value within the public schema, or to null.

The functions are total and treat each cell by itself: the result for one row must not depend on other rows, neither on
their values nor on whether they parse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bursar_server.tables._manifest import Categorical, Numeric

Raw = NDArray[np.float64] | NDArray[np.int32]
"""Cells of a column as numbers or codes."""

NO_CATEGORY = -1
"""Code of a cell without one of the declared categories."""


@dataclass(frozen=True)
class Block:
    """Consecutive rows after cleaning.

    Attributes:
        values: one array (n,) a column, in the manifest's order: float64 within bounds, or NaN of one bit pattern where
            a nullable column has no value; or int32 codes. Null rows hold 0.0 and -1.
        present: mask (n,), False for null rows.
        unit_rows: K, number of rows that the row's unit has in the whole table, (n,); 0 for null rows. None before the
            cap on the rows of a unit was applied, and where none is.
    """

    values: tuple[Raw, ...]
    present: NDArray[np.bool_]
    unit_rows: NDArray[np.int32] | None = None

    @property
    def rows(self) -> int:
        """Number of present rows."""
        return int(np.count_nonzero(self.present))

    def only(self, keep: NDArray[np.bool_]) -> Block:
        """Return the same slots with rows outside `keep` made null. K is dropped, because it may change."""
        empty = [
            np.zeros((), x.dtype) if x.dtype == np.float64 else np.array(NO_CATEGORY, x.dtype) for x in self.values
        ]
        return Block(
            tuple(np.where(keep, x, e) for x, e in zip(self.values, empty, strict=True)),
            self.present & keep,
        )


def parse(cells: Sequence[pa.Array], columns: Sequence[Numeric | Categorical]) -> tuple[Raw, ...]:
    """Return each column's cells as numbers or codes; NaN and NO_CATEGORY for invalid cells."""
    return tuple(
        numbers(array) if isinstance(column, Numeric) else codes(array, column.categories)
        for array, column in zip(cells, columns, strict=True)
    )


def clean(raw: Sequence[Raw], columns: Sequence[Numeric | Categorical]) -> Block:
    """Return rows within the schema: clipped, or null if one cell is not a finite number or has no category.

    In a column that the schema declares nullable, such a cell is missing and the row keeps its other values. A row
    without any value is null. `raw` is the result of `parse`.
    """
    known = [is_known(x) for x in raw]
    present = np.logical_or.reduce(known)
    for has_value, column in zip(known, columns, strict=True):
        if not _is_nullable(column):
            present &= has_value
    return Block(tuple(_within(x, column, present) for x, column in zip(raw, columns, strict=True)), present)


def is_known(raw: Raw) -> NDArray[np.bool_]:
    """Return the mask of parsed cells that are finite numbers, or have a category."""
    return np.asarray(np.isfinite(raw) if raw.dtype == np.float64 else raw != NO_CATEGORY)


def is_empty(cells: pa.Array) -> NDArray[np.bool_]:
    """Return the mask of cells without content: null, an empty text, or NaN in a column of numbers."""
    if _is_text(cells.type):
        return np.asarray(pc.binary_length(texts(cells)).fill_null(0).to_numpy(zero_copy_only=False) == 0)
    nothing = cells.is_null(nan_is_null=pa.types.is_floating(cells.type))
    return np.asarray(nothing.to_numpy(zero_copy_only=False))


def _is_nullable(column: Numeric | Categorical) -> bool:
    return isinstance(column, Numeric) and column.nullable


def numbers(cells: pa.Array) -> NDArray[np.float64]:
    """Return the cells as float64; NaN for cells that are not numbers. Text is parsed as Python parses it."""
    if not _is_text(cells.type):
        return np.asarray(cells.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False))
    # Distinct texts are parsed one by one: Arrow's cast would fail for the whole column because of one cell.
    encoded = texts(cells).dictionary_encode()
    parsed = np.array([_number(text) for text in encoded.dictionary.to_pylist()] + [np.nan])
    return np.asarray(parsed[encoded.indices.fill_null(len(parsed) - 1).to_numpy(zero_copy_only=False)])


def codes(cells: pa.Array, categories: Sequence[str]) -> NDArray[np.int32]:
    """Return the position of each cell in `categories`, compared as text, byte for byte; NO_CATEGORY for others."""
    known = {name.encode(): code for code, name in enumerate(categories)}
    # Distinct texts are looked up once each.
    encoded = texts(cells).dictionary_encode()
    found = np.array(
        [known.get(text, NO_CATEGORY) for text in encoded.dictionary.to_pylist()] + [NO_CATEGORY], dtype=np.int32
    )
    return np.asarray(found[encoded.indices.fill_null(len(found) - 1).to_numpy(zero_copy_only=False)])


def texts(cells: pa.Array) -> pa.Array:
    """Return the cells as bytes, numbers as their shortest text. Bytes, because text in a file may be invalid UTF-8."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if not _is_text(cells.type):
        cells = cells.cast(pa.string())
    return cells.cast(pa.binary())


def is_readable(kind: pa.DataType, *, as_number: bool) -> bool:
    """Return whether cells of an Arrow type can be read: decided by type, so that reading cells never raises."""
    try:
        empty = pa.nulls(0, kind)
        _ = numbers(empty) if as_number else texts(empty)
    except pa.ArrowException:
        return False
    return True


def _within(raw: Raw, column: Numeric | Categorical, present: NDArray[np.bool_]) -> Raw:
    if isinstance(column, Categorical):
        return np.where(present, raw, np.int32(NO_CATEGORY))
    # Equal values must have equal bytes, because rows are hashed: adding zero turns -0.0 into 0.0, and all NaNs become
    # one bit pattern. In a column that is not nullable no present row has a NaN.
    finite = np.isfinite(raw)
    values = np.clip(np.where(finite, raw, 0.0), column.lower, column.upper) + 0.0
    return np.where(present, np.where(finite, values, np.nan), 0.0)


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(check(value) for check in _TEXT)


_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
