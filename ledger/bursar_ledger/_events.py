"""Privacy events: frozen values that describe a release, and that anyone can price again at any Renyi order.

An event says which noise was added to integers of which sensitivity. It holds no price; prices are computed
from events (`bursar_ledger._pricing`), by the server before noise is drawn and by the auditor afterwards.

Stability: the names of the classes and of their fields are written into ledgers and never change their meaning.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from fractions import Fraction


class Adjacency(enum.Enum):
    """Effect of one privacy unit on the table; fixed when a dataset is registered, without a default.

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
        epsilon: epsilon of each; positive.
        count: how many such releases; positive.
    """

    epsilon: Fraction
    count: int = 1

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class SelectionEvent:
    """`count` choices among candidates by the exponential mechanism: the index of the largest noisy score, alone.

    Every candidate has an integer score; P(i) is proportional to exp(score_i / scale), which is also the law of the
    largest score after independent Gumbel noise of this scale on each (report noisy max). One privacy unit changes each
    score by at most `sensitivity`, some up and others down, so the logarithms of the candidates' probabilities change
    by amounts that differ by at most eta = 2 sensitivity / scale: a bounded range (Durfee and Rogers 2019), which
    implies eta-DP and (eta^2 / 8)-zCDP (Dong, Durfee and Rogers 2020; Cesar and Rogers 2021).

    Attributes:
        sensitivity: largest change of any one score, in units of the scores; positive.
        scale: scale of the Gumbel noise, in the same units; positive.
        count: how many such choices; positive.
    """

    sensitivity: int
    scale: Fraction
    count: int = 1

    def __post_init__(self) -> None:
        _check(self)

    @property
    def bounded_range(self) -> Fraction:
        """Eta: the most by which the changes of two log-probabilities differ, and the epsilon of each choice."""
        return 2 * self.sensitivity / Fraction(self.scale)


@dataclass(frozen=True)
class ConcentratedEvent:
    """`count` mechanisms that are rho-zero-concentrated differentially private as a whole, interactive ones included.

    What happens inside is not listed, because its parts do not simply add up: of operations on parts of a table, chosen
    one after another, a privacy unit is touched only by those on the parts that hold its rows. Whoever makes the event
    proves that the whole stays within rho.

    Attributes:
        rho: D_a <= a rho for every order a > 1 (Bun and Steinke 2016, Definition 1.1); positive.
        count: how many such mechanisms; positive.
    """

    rho: Fraction
    count: int = 1

    def __post_init__(self) -> None:
        _check(self)


ExactEvent = GaussianEvent | LaplaceEvent | PureEvent | SelectionEvent | ConcentratedEvent


@dataclass(frozen=True)
class ApproximateEvent:
    """`count` releases that fail with probability at most `delta` each and are as private as `event` otherwise.

    Delta-approximate Renyi privacy: for all neighbours P = (1-d) P' + d P'' and Q = (1-d) Q' + d Q'' with some
    d <= delta (the same one for both), P' and Q' as close as `event` says. An (epsilon, delta)-DP black box is
    `ApproximateEvent(PureEvent(epsilon), delta)` (Kairouz, Oh and Viswanath 2015).

    Attributes:
        event: what holds unless the release fails.
        delta: largest probability of failure; positive, below 1.
        count: how many such releases; positive.
    """

    event: ExactEvent
    delta: Fraction
    count: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.event, ExactEvent):
            raise ValueError(f"ApproximateEvent.event must be an event without a failure, got {self.event!r}")
        _check(self)
        if not self.delta < 1:
            raise ValueError(f"ApproximateEvent.delta must be below 1, got {self.delta!r}")


Event = ExactEvent | ApproximateEvent


def _check(event: Event) -> None:
    """Check that every number is positive, exact and of its declared type. Raises ValueError."""
    for name, declared in _NUMBERS[type(event)]:
        value = getattr(event, name)
        kind = int if declared == "int" else (int, Fraction)
        if isinstance(value, bool) or not isinstance(value, kind) or not value > 0:
            expected = "a positive int" if kind is int else "a positive Fraction"
            raise ValueError(f"{type(event).__name__}.{name} must be {expected}, got {value!r}")


_NUMBERS = {
    # Names and declared types of the fields that are numbers; annotations are strings here.
    kind: [(field.name, field.type) for field in dataclasses.fields(kind) if field.type in ("int", "Fraction")]
    for kind in (GaussianEvent, LaplaceEvent, PureEvent, SelectionEvent, ConcentratedEvent, ApproximateEvent)
}
