"""Reading requests: the checks that all fits share. Each names the field that is wrong and says what was expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import rho_of
from bursar_proto.v1 import types_pb2
from bursar_server.fits._seam import InvalidRequestError, NumericColumn, PublicTable

MAX_COLUMNS = 64
"""Most columns of a fit: its time and the size of its answer stay bounded."""

LARGEST = 1e290
"""Numbers of requests stay below it, so that their products with public numbers stay doubles."""

Violations = list[tuple[str, str]]
"""Pairs of (field of the request, what was wrong and what was expected)."""


@dataclass(frozen=True)
class Amount:
    """What an analyst offers.

    Attributes:
        pure: an epsilon for Laplace noise; else a rho for Gaussian noise.
        value: the amount; positive.
    """

    pure: bool
    value: Fraction


class Enumeration(Protocol):
    """A generated enumeration."""

    def keys(self) -> Sequence[str]:
        """Its names."""

    def values(self) -> Sequence[int]:
        """Its numbers."""


def stop_if(violations: Violations) -> None:
    """Raise InvalidRequestError if anything was wrong so far."""
    if violations:
        raise InvalidRequestError(*violations)


def amount_of(spend: types_pb2.Spend, violations: Violations) -> Amount:
    """The amount that a spend offers; some positive amount where it is wrong."""
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
    nullable: bool = False,
    most: int = MAX_COLUMNS,
) -> tuple[NumericColumn, ...]:
    """The numeric columns of these names, in their order; all that the fit can use if there are no names.

    Args:
        columns: of the request.
        table: that it asks about.
        violations: get what is wrong.
        nullable: whether the fit has a rule for rows without a value; if not, columns that may be null are refused.
        most: how many there may be.
    """
    known = {column.name: column for column in table.numeric}
    names = list(columns) or [column.name for column in table.numeric if nullable or not column.nullable]
    if not 1 <= len(names) <= most:
        violations.append(("columns", f"expected 1 to {most} numeric columns, got {len(names)}"))
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
        elif not nullable:
            check_never_null(f"columns[{index}]", known[name], violations)
    return tuple(known[name] for name in names if name in known)


def check_never_null(field: str, column: NumericColumn, violations: Violations) -> None:
    """That every row that is present has a value in this column."""
    if column.nullable:
        violations.append(
            (
                field,
                f"{column.name!r} may be null, and this fit has no rule for rows without a value; leave it out, or ask "
                "the owner for a dataset where rows without it are left out",
            )
        )


def check_enum(field: str, enum: Enumeration, value: int, violations: Violations) -> None:
    """A value of an enumeration that this version knows."""
    if value not in enum.values():
        violations.append((field, f"expected one of {', '.join(enum.keys())}, got {value}"))


def array_of(tensor: types_pb2.Tensor) -> NDArray[np.float64]:
    """The numbers of a well-formed tensor."""
    return np.array(tensor.values, dtype=np.float64).reshape(tuple(tensor.shape))


def tensor_of(array: NDArray[np.float64]) -> types_pb2.Tensor:
    """Numbers on the wire."""
    return types_pb2.Tensor(shape=array.shape, values=array.ravel().tolist())


def checked_array(
    field: str, tensor: types_pb2.Tensor, shape: tuple[int, ...], violations: Violations
) -> NDArray[np.float64] | None:
    """The numbers of a tensor that has this shape and is finite; None where it is wrong."""
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
