"""Columns as a fit sees them: with the public transforms that the owner declared or the request asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_models.transforms import Transform
from bursar_proto.v1 import types_pb2
from bursar_server.fits._requests import Violations, check_enum
from bursar_server.fits._seam import COLUMN_UNIT, JSON, BoundedColumn
from bursar_server.vault import Log1p

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
