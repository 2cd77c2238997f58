"""Fields that requests and plans of several fits share: amounts, columns, transforms and tensors, with their checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_amounts import rho_of
from bursar_models.arrays import FloatArray
from bursar_models.transforms import Transform
from bursar_proto.v1 import types_pb2
from bursar_server.fits._seam import JSON, BoundedColumn, Expected, InvalidFieldsError, PublicTable
from bursar_server.vault import Log1p

MAX_COLUMNS = 64
"""Maximum number of columns of a fit, which bounds its time and the size of its answer. Chosen, not tuned."""

LARGEST = 1e290
"""Upper bound of numbers in requests, so that their products with public numbers stay within doubles."""

COLUMN_UNIT = "the column's unit"
"""Unit of numbers by column that are in the units of the data."""

Violations = list[tuple[str, str]]
"""Pairs of (field of the request, fault and expected value)."""


@dataclass(frozen=True)
class Amount:
    """Budget that an analyst requests.

    Attributes:
        pure: True for an epsilon and Laplace noise, False for a rho and Gaussian noise.
        value: amount; positive.
    """

    pure: bool
    value: Fraction


class Enumeration(Protocol):
    """Generated enumeration."""

    def keys(self) -> Sequence[str]:
        """Return its names."""

    def values(self) -> Sequence[int]:
        """Return its numbers."""


def stop_if(violations: Violations) -> None:
    """Raise InvalidFieldsError if there are violations."""
    if violations:
        raise InvalidFieldsError(*violations)


def amount_of(spend: types_pb2.Spend, violations: Violations) -> Amount:
    """Return the requested amount; an arbitrary positive amount if it is wrong."""
    kind = spend.WhichOneof("amount")
    if kind == "rho":
        return Amount(False, _positive("spend.rho", spend.rho, violations))
    if kind == "epsilon":
        return Amount(True, _positive("spend.epsilon", spend.epsilon, violations))
    if kind == "epsilon_delta":
        epsilon, delta = spend.epsilon_delta.epsilon, spend.epsilon_delta.delta
        _positive("spend.epsilon_delta.epsilon", epsilon, violations)
        if not 0 < delta < 1:
            violations.append(("spend.epsilon_delta.delta", f"expected a number between 0 and 1, got {delta}"))
        return Amount(False, Fraction(1) if violations else _rho_of(epsilon, delta, violations))
    violations.append(("spend", "expected one of rho, epsilon_delta, epsilon"))
    return Amount(False, Fraction(1))


def _rho_of(epsilon: float, delta: float, violations: Violations) -> Fraction:
    try:
        return Fraction(rho_of(epsilon, delta))
    except ValueError:
        violations.append(("spend.epsilon_delta", f"no positive rho implies ({epsilon}, {delta}); spend more"))
        return Fraction(1)


def _positive(field: str, value: float, violations: Violations) -> Fraction:
    if not 0 < value <= 1e6:
        violations.append((field, f"expected a positive number up to 1e6, got {value}"))
        return Fraction(1)
    return Fraction(value)


def columns_of(
    columns: Sequence[str],
    table: PublicTable,
    violations: Violations,
    *,
    most: int = MAX_COLUMNS,
) -> tuple[BoundedColumn, ...]:
    """Return the numeric columns of these names, in their order; all that are never null if there are no names.

    Args:
        columns: names in the request.
        table: public facts of the dataset.
        violations: list to which faults are added.
        most: maximum number of columns.
    """
    known = {column.name: column for column in table.numeric}
    # A nullable column is taken only by name: whoever names no columns should not lose rows to a gap unasked.
    names = list(columns) or [column.name for column in table.numeric if not column.nullable]
    if not 1 <= len(names) <= most:
        named = "" if columns else " that are never null; name those to use"
        violations.append(("columns", f"expected 1 to {most} numeric columns, got {len(names)}{named}"))
        return ()
    if len(set(names)) != len(names):
        violations.append(("columns", "expected each column once"))
    for index, name in enumerate(names):
        if name not in known:
            violations.append(
                (
                    f"columns[{index}]",
                    f"no numeric column of dataset {table.name!r} has this name; it has {', '.join(known)}",
                )
            )
    return tuple(known[name] for name in names if name in known)


def left_out(columns: Iterable[BoundedColumn]) -> tuple[str, ...]:
    """Return a warning about rows without a value in one of the columns, which kernels take for null rows, if any."""
    names = [column.name for column in columns if column.nullable]
    if not names:
        return ()
    some = ", ".join(names)
    return (f"rows without a value in {some} count for nothing; what is expected supposes that there are none",)


def check_enum(field: str, enum: Enumeration, value: int, violations: Violations) -> None:
    """Check that this version knows a value of an enumeration."""
    if value not in enum.values():
        violations.append((field, f"expected one of {', '.join(enum.keys())}, got {value}"))


def check_or_zero(field: str, value: float, limits: tuple[float, float], zero: str, violations: Violations) -> None:
    """Check that a number is within its limits, or 0, which `zero` explains."""
    least, most = limits
    if not (value == 0 or least <= value <= most):
        violations.append((field, f"expected {least} to {most}, or 0 {zero}, got {value}"))


def array_of(tensor: types_pb2.Tensor) -> NDArray[np.float64]:
    """Return the numbers of a well-formed tensor."""
    return np.array(tensor.values, dtype=np.float64).reshape(tuple(tensor.shape))


def checked_array(
    field: str, tensor: types_pb2.Tensor, shape: tuple[int, ...], violations: Violations
) -> NDArray[np.float64] | None:
    """Return the numbers of a finite tensor of this shape; None if it is wrong."""
    if tuple(tensor.shape) != shape or len(tensor.values) != math.prod(shape):
        violations.append(
            (field, f"expected shape {shape} with as many values, got {tuple(tensor.shape)} with {len(tensor.values)}")
        )
        return None
    array = array_of(tensor)
    if not np.all(np.abs(array) < LARGEST):  # NaN fails
        violations.append((field, "expected finite numbers"))
        return None
    return array


def by_column(name: str, columns: Sequence[str], values: Sequence[float], unit: str) -> dict[str, Expected]:
    """Return the expected accuracy of each column under one name; empty if there are no values."""
    return {name: Expected(dict(zip(columns, values, strict=True)), unit)} if values else {}


_NAMES: Mapping[types_pb2.Transform.ValueType, Transform] = {
    types_pb2.TRANSFORM_NONE: "none",
    types_pb2.TRANSFORM_LOG1P: "log1p",
}


def transforms_to(transforms: Sequence[Transform]) -> list[types_pb2.Transform.ValueType]:
    """Return transforms on the wire."""
    return [number for one in transforms for number, name in _NAMES.items() if name == one]


def transforms_from(numbers: Sequence[types_pb2.Transform.ValueType]) -> tuple[Transform, ...]:
    """Return the known ones among transforms on the wire."""
    return tuple(_NAMES[number] for number in numbers if number in _NAMES)


@dataclass(frozen=True)
class ModelColumns:
    """Columns of a fit in the space of its model.

    Attributes:
        columns: columns; their bounds are those of the transformed values.
        own: columns in their own units.
        transforms: transforms of the rows, for `Plan.transforms`.
    """

    columns: tuple[BoundedColumn, ...]
    own: tuple[BoundedColumn, ...]
    transforms: tuple[Log1p, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def transformed(self) -> tuple[str, ...]:
        """Names of the columns that have a transform."""
        return tuple(self.names[one.place] for one in self.transforms)

    @property
    def own_box(self) -> FloatArray:
        """Public bounds in the columns' own units, (2, d)."""
        return np.array([[column.lower for column in self.own], [column.upper for column in self.own]])

    def within(self, means: FloatArray) -> FloatArray:
        """Return means (K, d) moved to the public bounds of the model's space: rows have none outside, noise may."""
        lower, upper = np.array([[column.lower, column.upper] for column in self.columns]).T
        return np.clip(means, lower, upper)

    @property
    def wire(self) -> tuple[types_pb2.Transform.ValueType, ...]:
        """Transform of each column, for a model's message; empty if none has one."""
        logs = {one.place for one in self.transforms}
        kinds = (types_pb2.TRANSFORM_NONE, types_pb2.TRANSFORM_LOG1P)
        return tuple(kinds[place in logs] for place in range(len(self.own))) if logs else ()

    @property
    def unit(self) -> str:
        """Unit of accuracies by column."""
        return f"{COLUMN_UNIT}, of log1p for {', '.join(self.transformed)}" if self.transforms else COLUMN_UNIT

    @property
    def parameters(self) -> Mapping[str, JSON]:
        """Parameter for the ledger's entry; none without transforms."""
        return {"transform": dict.fromkeys(self.transformed, "log1p")} if self.transforms else {}


def model_columns(
    columns: tuple[BoundedColumn, ...], asked: Sequence[types_pb2.ColumnTransform], violations: Violations
) -> ModelColumns:
    """Return the columns of a fit in the space of its model.

    Args:
        columns: columns in their own units, with the owner's transforms, in the model's order.
        asked: transforms of the request, which come before the owner's.
        violations: list to which faults are added.
    """
    wanted = {column.name: column.transform for column in columns}
    for index, one in enumerate(asked):
        field = f"transforms[{index}]"
        check_enum(f"{field}.transform", types_pb2.Transform, one.transform, violations)
        if one.column not in wanted:
            text = f"no column of this fit has this name; it has {', '.join(wanted)}"
            violations.append((f"{field}.column", text))
        elif one.column in {other.column for other in asked[:index]}:
            violations.append((f"{field}.column", "expected each column once"))
        else:
            wanted[one.column] = _NAMES.get(one.transform, wanted[one.column])
    found, logs = [], []
    for place, column in enumerate(columns):
        if wanted[column.name] != "log1p":
            found.append(column)
            continue
        try:
            log = Log1p(place, column.lower, column.upper)
        # The column stays in the result, so that the faults of other fields are found in the same answer.
        except ValueError:
            text = (
                f"log1p needs bounds of at least 0 that differ in their logarithms, and {column.name!r} has "
                f"{column.lower:g} to {column.upper:g}; leave the transform out, or ask the owner for other bounds"
            )
            violations.append(("transforms", text))
            found.append(column)
            continue
        found.append(replace(column, lower=log.ends[0], upper=log.ends[1], bins=()))
        logs.append(log)
    return ModelColumns(tuple(found), columns, tuple(logs))
