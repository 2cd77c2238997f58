"""What was released: frozen values that anyone can price again, at any Renyi order, with other tools.

An event says which noise was added to an integer vector of which sensitivity. It holds no price; prices are computed
from events (`bursar_ledger._pricing`), by the server before noise is drawn and by the auditor afterwards.

Stability: the names of the classes and of their fields are written into ledgers and never change their meaning.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from fractions import Fraction


class Adjacency(enum.Enum):
    """What one privacy unit may do to the table; fixed when a dataset is registered, without a default.

    The sensitivity of an event has been computed for the dataset's adjacency, so prices do not depend on it again.
    """

    REPLACE_ONE = "replace_one"
    """One slot's content is replaced by any other content, the null row included; the number of slots is public."""
    ADD_REMOVE_ONE = "add_remove_one"
    """One slot's content is present or is the null row, which contributes zero to every sum."""


@dataclass(frozen=True)
class GaussianEvent:
    """`count` releases of integer vectors, each with discrete Gaussian noise N_Z(0, scale^2) on every coordinate.

    Canonne, Kamath and Steinke 2020, Theorem 14: each is (l2_squared / (2 scale^2))-zCDP, for integer shifts, as the
    continuous Gaussian is for all.

    Attributes:
        l2_squared: squared L2 sensitivity of the integer vector, in lattice units squared; positive.
        scale: sigma in lattice units; positive.
        count: how many such releases; positive.
    """

    l2_squared: int
    scale: Fraction
    count: int = 1

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class LaplaceEvent:
    """`count` releases of integer vectors, each with discrete Laplace noise on every coordinate.

    Attributes:
        l1: largest L1 change of one group of coordinates, in lattice units; positive.
        scale: b in lattice units, P(x) proportional to exp(-|x| / b); positive.
        count: how many such releases; positive.
        groups: how many disjoint groups of coordinates may change by `l1` each. One group is a vector of L1 sensitivity
            `l1`; C cells of a table that change by one are C groups with l1 = 1.
    """

    l1: int
    scale: Fraction
    count: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class PureEvent:
    """`count` releases by mechanisms known only to be epsilon-differentially private.

    Attributes:
        epsilon: of each; positive.
        count: how many such releases; positive.
    """

    epsilon: Fraction
    count: int = 1

    def __post_init__(self) -> None:
        _check(self)


Event = GaussianEvent | LaplaceEvent | PureEvent


def _check(event: Event) -> None:
    """Raises ValueError unless every field is a positive exact number of its declared type."""
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        kind = int if field.type == "int" else (int, Fraction)  # annotations are strings here
        if isinstance(value, bool) or not isinstance(value, kind) or not value > 0:
            expected = "a positive int" if kind is int else "a positive Fraction"
            raise ValueError(f"{type(event).__name__}.{field.name} must be {expected}, got {value!r}")
