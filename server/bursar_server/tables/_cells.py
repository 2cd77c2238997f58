"""Conversion of a cell of any content to a value within the public schema, or to null.

The functions are total and treat each cell by itself: the result for one row must not depend on other rows, neither on
their values nor on whether they parse.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bursar_server.tables._manifest import Categorical, Dates, Numeric

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
        numbers(array, column) if isinstance(column, Numeric) else codes(array, column)
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


def is_empty(cells: pa.Array, column: Numeric | Categorical) -> NDArray[np.bool_]:
    """Return the mask of cells without a value, among cells that are not known: empty, or declared to be null."""
    if isinstance(column, Numeric) and not _is_text(cells.type):
        # A number or date is unknown if it is null, NaN, declared to be null, or infinite; the last alone is bad.
        return np.asarray(~np.isinf(numbers(cells, column)))
    keys = {"", *map(column.key, column.null_values)} if isinstance(column, Categorical) else {"", *column.null_values}
    nulls = _nulls(column) if isinstance(column, Numeric) else []

    def says_nothing(text: bytes) -> bool:
        said = _decoded(text)
        return (
            column.key(said) in keys
            if isinstance(column, Categorical)
            else said.strip() in keys or _number(text, column) in nulls
        )

    return _by_text(cells, says_nothing, True, np.bool_)


def _is_nullable(column: Numeric | Categorical) -> bool:
    return isinstance(column, Numeric) and column.nullable


def numbers(cells: pa.Array, column: Numeric) -> NDArray[np.float64]:
    """Return the cells as float64; NaN for cells that hold no value.

    Text is parsed as Python parses it, after thousands and decimals were replaced.
    """
    if column.date is not None:
        return _steps(_days(cells, column, column.date), column.date)
    if _is_text(cells.type):
        # Distinct texts are parsed one by one: Arrow's cast would fail for the whole column because of one cell.
        raw = _by_text(cells, lambda text: _number(text, column), np.nan, np.float64)
    else:
        raw = np.asarray(cells.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False))
    nulls = _nulls(column)
    return np.where(np.isin(raw, nulls), np.nan, raw) if nulls else raw


def codes(cells: pa.Array, column: Categorical) -> NDArray[np.int32]:
    """Return the position of each cell's category; NO_CATEGORY for cells without one.

    Cells are compared as text, letter by letter unless the column says otherwise.
    """
    code = {name: number for number, name in enumerate(column.categories)}
    known = {column.key(name): number for name, number in code.items()}
    known |= {column.key(spelling): code[name] for spelling, name in column.aliases.items()}
    nothing = {"", *map(column.key, column.null_values)} - set(known)
    other = NO_CATEGORY if column.other is None else code[column.other]

    def found(text: bytes) -> int:
        key = column.key(_decoded(text))
        return NO_CATEGORY if key in nothing else known.get(key, other)

    return _by_text(cells, found, NO_CATEGORY, np.int32)


def texts(cells: pa.Array) -> pa.Array:
    """Return the cells as bytes, numbers as their shortest text. Bytes, because text in a file may be invalid UTF-8."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if not _is_text(cells.type):
        cells = cells.cast(pa.string())
    return cells.cast(pa.binary())


def without_views(cells: pa.Array) -> pa.Array:
    """Return the same cells; views of text, which polars makes, as text, because Arrow cannot filter views."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return cells.cast(plain[cells.type]) if cells.type in plain else cells


def is_readable(kind: pa.DataType, column: Numeric | None) -> bool:
    """Return whether cells of an Arrow type can be read: decided by type, so that reading cells never raises."""
    try:
        empty = pa.nulls(0, kind)
        _ = texts(empty) if column is None else numbers(empty, column)
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


def _by_text(cells: pa.Array, convert: Callable[[bytes], Any], null: Any, kind: Any) -> NDArray[Any]:
    """Return a function of each cell's text, computed once for each distinct text; `null` for null cells."""
    encoded = texts(cells).dictionary_encode()
    found = np.array([*map(convert, encoded.dictionary.to_pylist()), null], dtype=kind)
    return np.asarray(found[encoded.indices.fill_null(len(found) - 1).to_numpy(zero_copy_only=False)])


def _decoded(text: bytes) -> str:
    # Total, and different bytes stay different.
    return text.decode(errors="surrogateescape")


def _number(text: bytes, column: Numeric) -> float:
    if column.thousands or column.decimal != ".":
        written = _decoded(text).strip()
        if not _written(column.decimal, column.thousands).fullmatch(written):
            return float("nan")
        text = (written.replace(column.thousands, "") if column.thousands else written).replace(",", ".").encode()
    try:
        return float(text)
    except ValueError:
        return float("nan")


@functools.cache
def _written(decimal: str, thousands: str) -> re.Pattern[str]:
    """Return the form of a number: groups are of three digits, so that "1,5" is not taken for 15."""
    whole = rf"[0-9]{{1,3}}(?:{re.escape(thousands)}[0-9]{{3}})+|[0-9]+" if thousands else "[0-9]+"
    return re.compile(rf"[+-]?(?:{whole})(?:{re.escape(decimal)}[0-9]*)?(?:[eE][+-]?[0-9]{{1,3}})?")


def _nulls(column: Numeric) -> list[float]:
    """Return the numbers that mean that there is no value."""
    if column.date is not None:
        return []
    return [number for text in column.null_values if np.isfinite(number := _number(text.encode(), column))]


def _days(cells: pa.Array, column: Numeric, dates: Dates) -> NDArray[np.datetime64]:
    """Return the cells' days; NaT for cells that hold none."""
    nulls = {text.strip() for text in column.null_values}
    if _is_text(cells.type):
        return _by_text(cells, lambda text: _day(_decoded(text).strip(), dates.format, nulls), _NO_DAY, _DAY)
    if not (pa.types.is_temporal(cells.type) or pa.types.is_null(cells.type)):
        raise pa.ArrowTypeError("expected dates")
    days = cells.cast(pa.date32(), safe=False)
    found = np.asarray(days.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)).astype(_DAY)
    missing = np.array([_day(text, dates.format, set()) for text in nulls], dtype=_DAY)
    found[days.is_null().to_numpy(zero_copy_only=False) | np.isin(found, missing)] = _NO_DAY
    return found


def _day(text: str, form: str, nulls: AbstractSet[str]) -> np.datetime64:
    if text in nulls:
        return _NO_DAY
    try:
        return np.datetime64(datetime.datetime.strptime(text, form).date())
    except ValueError:
        return _NO_DAY


def _steps(days: NDArray[np.datetime64], dates: Dates) -> NDArray[np.float64]:
    """Return the whole days, calendar months or calendar years from a public day; NaN for NaT."""
    kind = {"days": "datetime64[D]", "months": "datetime64[M]", "years": "datetime64[Y]"}[dates.unit]
    steps = (days.astype(kind) - np.datetime64(dates.since).astype(kind)).astype(np.int64)
    return np.where(np.isnat(days), np.nan, steps.astype(np.float64))


_DAY: Any = "datetime64[D]"
_NO_DAY = np.datetime64("NaT", "D")
