"""Checks of what a caller passes, which several fits share. Each error names the field, before anything is sent."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Protocol

import numpy.typing as npt

from bursar._errors import InvalidRequestError
from bursar._privacy import Receipt
from bursar.models._arrays import FloatArray, frozen


class _Released(Protocol):
    """A model or a sketch: something that may have a receipt."""

    @property
    def receipt(self) -> Receipt | None: ...


def entry_of(field: str, released: _Released | Receipt, otherwise: str) -> int:
    """The ledger's entry of an earlier release, given by its receipt or by what has the receipt.

    Raises:
        InvalidRequestError: there is no receipt, or it names no debit; the message says what to do `otherwise`.
    """
    receipt = released if isinstance(released, Receipt) else released.receipt
    if receipt is None:
        raise InvalidRequestError.of(field, f"this {type(released).__name__} has no receipt; {otherwise}")
    if receipt.entry < 1:
        raise InvalidRequestError.of(field, f"its receipt is free and names no entry of the ledger; {otherwise}")
    return receipt.entry


def names(columns: Sequence[str], field: str = "columns") -> list[str]:
    """Names of columns, which the argument `field` gives, as a list.

    Raises:
        InvalidRequestError: something else than a list of names.
    """
    # A string is a sequence of strings, and never what was meant.
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InvalidRequestError.of(field, f"must be a list of names, got {columns!r}")
    return list(columns)


def whole(field: str, value: int, low: int, high: int) -> int:
    """`value` as an int from `low` to `high`; numpy's integers will do, floats will not.

    Raises:
        InvalidRequestError: no whole number of that range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high:
        raise InvalidRequestError.of(field, f"must be a whole number from {low} to {high}, got {value!r}")
    return number


def numbers(field: str, value: npt.ArrayLike) -> FloatArray:
    """`value` as a read-only array.

    Raises:
        InvalidRequestError: an entry is not a finite number.
    """
    try:
        return frozen(field, value)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError.of(field, "must be an array of finite numbers") from error
