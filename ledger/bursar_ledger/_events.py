"""Privacy events: frozen values that describe a release, and that anyone can price again at any Renyi order.

An event says which noise was added to integers of which sensitivity. It holds no price; prices are computed
from events (`bursar_ledger._pricing`), by the server before noise is drawn and by the auditor afterwards.

Entries hold events and fractions as JSON values, in the form that the functions below write and read.

Stability: the names of the classes and of their fields are written into ledgers, auditors' tools read the JSON forms,
and neither ever changes its meaning.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple


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


_EVENTS: dict[str, type[Any]] = {
    "gaussian": GaussianEvent,
    "laplace": LaplaceEvent,
    "pure": PureEvent,
    "selection": SelectionEvent,
    "concentrated": ConcentratedEvent,
    "approximate": ApproximateEvent,
}
"""Events by the names that entries have for them."""

_NUMBERS = {
    # Names and declared types of the fields that are numbers; annotations are strings here.
    kind: [(field.name, field.type) for field in dataclasses.fields(kind) if field.type in ("int", "Fraction")]
    for kind in _EVENTS.values()
}


_FRACTION = re.compile(r"(-?[0-9]{1,1000})/([0-9]{1,1000})")
_GAUSSIAN = frozenset({"mechanism", "l2_squared", "scale", "count"})
_NAMES = {kind: name for name, kind in _EVENTS.items()}


def encode_fraction(value: Fraction | int) -> str:
    """Encode a rational number as "numerator/denominator" in lowest terms."""
    return f"{value.numerator}/{value.denominator}"


@functools.lru_cache(maxsize=1024)  # a ledger has few fractions, and an audit reads them in every entry
def decode_fraction(text: str) -> Fraction:
    """Decode what `encode_fraction` wrote.

    Raises:
        ValueError: any other form (a decimal, an exponent, not in lowest terms).
    """
    numbers = _ratio(text)
    if numbers is None:
        raise ValueError(f"expected a fraction in lowest terms, got {text!r}")
    return Fraction(*numbers)


def _ratio(text: str) -> tuple[int, int] | None:
    """Return numerator and denominator, if `text` is what `encode_fraction` writes; else None."""
    # Fraction() alone would also take "1e999999999", and hours over it.
    found = _FRACTION.fullmatch(text)
    if found is None:
        return None
    above, below = int(found[1]), int(found[2])
    # Written again, zeros in front and "-0" are seen.
    return (above, below) if below and math.gcd(above, below) == 1 and f"{above}/{below}" == text else None


def encode_event(event: Event) -> dict[str, object]:
    """Encode an event as a JSON object: "mechanism", and its fields with fractions as "numerator/denominator"."""
    kind = type(event)
    fields = {name: encode(getattr(event, name)) for name, (encode, _) in _FIELDS[kind].items()}
    return {"mechanism": _NAMES[kind], **fields}


def decode_event(value: Mapping[str, Any]) -> Event:
    """Decode what `encode_event` wrote.

    Raises:
        ValueError: an unknown mechanism, or fields that are missing, unknown or out of range.
    """
    fields = dict(value)
    name = fields.pop("mechanism", None)
    if name not in _EVENTS:
        raise ValueError(f"mechanism must be one of {', '.join(_EVENTS)}, got {name!r}")
    kind = _EVENTS[name]
    declared = _FIELDS[kind]
    if fields.keys() != declared.keys():
        raise ValueError(f"a {name} event has the fields {', '.join(declared)}, got {', '.join(fields)}")
    event: Event = kind(**{name: decode(fields[name]) for name, (_, decode) in declared.items()})
    return event


class GaussianNumbers(NamedTuple):
    """Gaussian event as four integers: `times` is its count, numerator / denominator its scale in lowest terms."""

    l2_squared: int
    times: int
    numerator: int
    denominator: int


def gaussian_numbers(value: object) -> GaussianNumbers | None:
    """Return the integers of a Gaussian event that `decode_event` accepts; None for any other value.

    Almost all events of an audit are Gaussian, and this takes a third of the time.
    """
    if type(value) is not dict or value.keys() != _GAUSSIAN or value["mechanism"] != "gaussian":
        return None
    l2_squared, count, scale = value["l2_squared"], value["count"], value["scale"]
    # True is an int, too.
    if type(l2_squared) is not int or type(count) is not int or type(scale) is not str:
        return None
    numbers = _ratio(scale)
    if numbers is None or not (l2_squared > 0 and count > 0 and numbers[0] > 0):
        return None
    return GaussianNumbers(l2_squared, count, *numbers)


def decode_events(values: Iterable[Any]) -> tuple[list[GaussianNumbers], list[Event]]:
    """Decode a debit's events, checked as by `decode_event`: the Gaussian ones as numbers, and the others."""
    gaussian, others = list[GaussianNumbers](), list[Event]()
    for value in values:
        if (numbers := gaussian_numbers(value)) is not None:
            gaussian.append(numbers)
        else:
            others.append(decode_event(value))
    return gaussian, others


def _decode_inner(value: Any) -> Event:
    if not isinstance(value, dict):
        raise ValueError("the event of an approximate event must be an object")
    return decode_event(value)


_Coding = tuple[Callable[[Any], object], Callable[[Any], object]]
_CODINGS: dict[str, _Coding] = {
    "int": (int, lambda value: value),
    "Fraction": (encode_fraction, decode_fraction),
    "ExactEvent": (encode_event, _decode_inner),
}
_FIELDS: dict[type[Any], dict[str, _Coding]] = {
    # Annotations are strings here. Looked up once: an audit decodes millions of events.
    kind: {field.name: _CODINGS[str(field.type)] for field in dataclasses.fields(kind)}
    for kind in _EVENTS.values()
}
