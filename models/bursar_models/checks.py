"""Checks of single arguments. Each returns the checked value in its normal form, or names the field that is wrong."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bursar_models.arrays import FloatArray, frozen
from bursar_models.budget import positive
from bursar_models.errors import InvalidRequestError

MAX_COUNT = 2**32 - 1
"""The contract counts in 32 bits."""

MAX_SEED = 2**64 - 1
"""The contract has seeds and ledger entries of 64 bits."""


def whole(field: str, value: object, low: int, high: int) -> int:
    """Return `value` as an int from `low` to `high`; numpy's integers will do, floats will not.

    Raises:
        InvalidRequestError: it is no whole number of that range.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # whatever is no integer is refused below
    except TypeError:
        number = low - 1
    if not low <= number <= high:
        raise InvalidRequestError.of(field, f"must be a whole number from {low} to {high}, got {value!r}")
    return number


def flag(field: str, value: object) -> bool:
    """Return `value` if it is True or False.

    Raises:
        InvalidRequestError: it is something else. A truthy text or number is a typing error.
    """
    if not isinstance(value, bool | np.bool_):
        raise InvalidRequestError.of(field, f"must be True or False, got {value!r}")
    return bool(value)


def choice(field: str, value: object, words: Iterable[str]) -> str:
    """Return `value` if it is one of `words`.

    Raises:
        InvalidRequestError: it is none of them.
    """
    known = list(words)
    if not isinstance(value, str) or value not in known:
        raise InvalidRequestError.of(field, f"must be one of {', '.join(map(repr, known))}, got {value!r}")
    return value


def names(field: str, value: object) -> tuple[str, ...]:
    """Return a list of column names as a tuple.

    Raises:
        InvalidRequestError: it is no list of names. A single text is refused, too: it is a sequence of letters.
    """
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(name, str) for name in value):
        raise InvalidRequestError.of(field, f"must be a list of names, got {value!r}")
    return tuple(value)


def different_names(field: str, value: object) -> tuple[str, ...]:
    """Return a list of column names, each of which it has once, as a tuple.

    Raises:
        InvalidRequestError: it is no list of names, or has one of them twice.
    """
    found = names(field, value)
    if len(set(found)) != len(found):
        raise InvalidRequestError.of(field, f"must have each column once, got {value!r}")
    return found


def numbers(field: str, value: object) -> FloatArray:
    """Return `value` as a read-only array.

    Raises:
        InvalidRequestError: an entry is not a finite number.
    """
    try:
        return frozen(field, value)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError.of(field, "must be an array of finite numbers") from error


@dataclass(frozen=True)
class Whole:
    """The check of a whole number, for `Annotated`.

    Attributes:
        low: the least number allowed.
        high: the greatest number allowed.
    """

    low: int
    high: int

    def __call__(self, field: str, value: object) -> int:
        """Return `value` as an int. Raises InvalidRequestError."""
        return whole(field, value, self.low, self.high)


@dataclass(frozen=True)
class Between:
    """The check of a positive number that has bounds, for `Annotated`.

    Attributes:
        low: the least number allowed.
        high: the greatest number allowed.
    """

    low: float
    high: float

    def __call__(self, field: str, value: object) -> float:
        """Return `value` as a float. Raises InvalidRequestError."""
        number = positive(field, value)
        if not self.low <= number <= self.high:
            raise InvalidRequestError.of(field, f"must be {self.low:g} to {self.high:g}, got {value!r}")
        return number
