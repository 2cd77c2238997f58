"""Amounts of privacy as the caller sees them: what to spend, what was debited, what is left.

Amounts are integers wherever they are enforced, by the server; the floats beside them are for people.
"""

from __future__ import annotations

import enum
import math
import numbers
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bursar._errors import InvalidRequestError
from bursar._text import html_bar, html_table, text_bar, text_table


class Adjacency(enum.Enum):
    """What one privacy unit may do to a table; fixed when a dataset is registered."""

    REPLACE_ONE = "replace_one"
    """One slot's content is replaced by any other content; the number of slots is public."""
    ADD_REMOVE_ONE = "add_remove_one"
    """One slot's content is present or absent; the number of rows is private."""


@dataclass(frozen=True)
class PrivacyUnit:
    """Whose presence is protected: a row, or all rows that share a value of a column.

    Attributes:
        unit_column: name of that column; None if a row is a unit.
        max_rows_per_unit: at most so many rows of one unit are kept.
    """

    unit_column: str | None
    max_rows_per_unit: int


@dataclass(frozen=True, repr=False)
class Rho:
    """A spend in zero-concentrated differential privacy (Bun and Steinke 2016); the fit adds Gaussian noise.

    Attributes:
        value: rho, positive and finite.

    Raises:
        InvalidRequestError: not a positive finite number.
    """

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", positive("spend.rho", self.value))

    def __repr__(self) -> str:
        return f"bursar.rho({self.value!r})"


@dataclass(frozen=True, repr=False)
class EpsilonDelta:
    """An (epsilon, delta) pair; as a spend, the largest rho that implies it (Canonne, Kamath, Steinke 2020, Prop. 12).

    Attributes:
        epsilon: positive and finite.
        delta: between 0 and 1, both excluded.

    Raises:
        InvalidRequestError: a number outside its range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("spend.epsilon_delta.epsilon", self.epsilon))
        object.__setattr__(self, "delta", positive("spend.epsilon_delta.delta", self.delta))
        if not self.delta < 1:
            raise InvalidRequestError.of("spend.epsilon_delta.delta", f"must be below 1, got {self.delta!r}")

    def __repr__(self) -> str:
        return f"bursar.epsilon_delta({self.epsilon!r}, {self.delta!r})"


@dataclass(frozen=True, repr=False)
class Pure:
    """A spend in pure differential privacy; the fit adds Laplace noise.

    Attributes:
        epsilon: positive and finite.

    Raises:
        InvalidRequestError: not a positive finite number.
    """

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("spend.epsilon", self.epsilon))

    def __repr__(self) -> str:
        return f"bursar.pure({self.epsilon!r})"


@dataclass(frozen=True, repr=False)
class WhatIsLeft:
    """A spend of all that one request may cost; the server decides how much that is when it debits it."""

    def __repr__(self) -> str:
        return "bursar.what_is_left()"


Spend: TypeAlias = Rho | EpsilonDelta | Pure | WhatIsLeft
"""The price a caller is willing to pay for one fit; the fit divides it among its releases."""

LimitName: TypeAlias = Literal["dataset", "allowance", "call"]
"""What may refuse a request: the budget that all share, the caller's allowance in it, or the most for one request."""


def rho(value: float) -> Rho:
    """Spend `value` of zero-concentrated differential privacy; Gaussian noise.

    Raises:
        InvalidRequestError: not a positive finite number.
    """
    return Rho(value)


def epsilon_delta(epsilon: float, delta: float) -> EpsilonDelta:
    """Spend the largest rho that implies (epsilon, delta); Gaussian noise.

    Raises:
        InvalidRequestError: epsilon not positive and finite, or delta not between 0 and 1.
    """
    return EpsilonDelta(epsilon, delta)


def pure(epsilon: float) -> Pure:
    """Spend `epsilon` of pure differential privacy; Laplace noise.

    Raises:
        InvalidRequestError: not a positive finite number.
    """
    return Pure(epsilon)


def what_is_left() -> WhatIsLeft:
    """Spend all that one request may cost now, whatever others debit meanwhile; Gaussian noise.

    That is the least of what is left of the dataset's budget and of the caller's allowance, and of the most that one
    request may cost. There is no such spend with Laplace noise: ask for `bursar.pure(data.available().pure_epsilon)`.
    """
    return WhatIsLeft()


@dataclass(frozen=True, repr=False)
class Price:
    """A cost as the ledger counts it.

    Attributes:
        cost_units: Renyi divergence at the dataset's order, in units of 2^-40, rounded up.
        delta_units: failure probability in units of 2^-60, rounded up.
        rho: the same cost for people.
    """

    cost_units: int
    delta_units: int
    rho: float

    def __repr__(self) -> str:
        return f"Price(rho={self.rho:.6g}, cost_units={self.cost_units}, delta_units={self.delta_units})"


@dataclass(frozen=True, repr=False)
class Remaining:
    """What is left of a dataset's budget, of an allowance inside it, or of the most that one request may cost.

    Attributes:
        cost_units: of `Price.cost_units`; this and `delta_units` are what the server compares.
        delta_units: of `Price.delta_units`.
        cap_cost_units: what there is in all.
        cap_delta_units: likewise.
        rho: the largest rho that one request may still ask for, rounded down.
        pure_epsilon: the largest pure epsilon that one request may still ask for, rounded down.
        order: Renyi order at which the dataset's entries are priced.
    """

    cost_units: int
    delta_units: int
    cap_cost_units: int
    cap_delta_units: int
    rho: float
    pure_epsilon: float
    order: float

    @property
    def share(self) -> float:
        """Part of the budget that is left, from 0 to 1; 0 for a budget of nothing."""
        return self.cost_units / self.cap_cost_units if self.cap_cost_units > 0 else 0.0

    def __repr__(self) -> str:
        return f"Remaining(rho={self.rho:.6g}, pure_epsilon={self.pure_epsilon:.6g}, share={self.share:.1%})"

    def _repr_html_(self) -> str:
        return f"<div>{html_bar(self.share)} left: rho={self.rho:.6g}, or pure epsilon={self.pure_epsilon:.6g}</div>"


@dataclass(frozen=True, repr=False)
class Limits:
    """What one request of the caller has to fit into, all at once.

    Attributes:
        dataset: what is left of the budget that everybody shares.
        allowance: what is left of the caller's part of it; None if there is none.
        call: the most that one request may cost; None if nothing but the rest limits it.
        available: the smallest of them, which is what one request may cost now.
    """

    dataset: Remaining
    allowance: Remaining | None
    call: Remaining | None
    available: Remaining

    def _named(self) -> list[tuple[str, Remaining]]:
        """Those that there are, in words; what one request may cost comes last."""
        found = [("dataset", self.dataset), ("allowance", self.allowance), ("one request", self.call)]
        return [*((name, left) for name, left in found if left is not None), ("available now", self.available)]

    def __repr__(self) -> str:
        rows = [
            [name, f"{left.rho:.6g}", f"{left.pure_epsilon:.6g}", text_bar(left.share), f"{left.share:.1%}"]
            for name, left in self._named()
        ]
        return f"Limits\n{text_table(['limit', 'rho left', 'or pure epsilon', '', 'of it'], rows)}"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{left._repr_html_()}</td></tr>" for name, left in self._named())
        return f"<div><p>Limits</p><table><tbody>{rows}</tbody></table></div>"


@dataclass(frozen=True, repr=False)
class Receipt:
    """What a fit was debited, sent as soon as the debit is durable; or that it was free.

    Keep it: with the ledger's head an auditor can see whether the ledger was rolled back.

    Attributes:
        dataset: its name.
        request_id: the fit's idempotency key; of a free one what the caller named it, which may be nothing.
        entry: position of the debit in the ledger; of what was free, the debit that had paid for what it was computed
            from, or 0 if that was no release of this server.
        price: what was debited.
        remaining: what was left just after the debit; of what was free, what is left now.
        ledger_head: hash of the ledger's newest entry just after the debit (SHA-256), as hexadecimal digits; empty for
            entry 0.
        adjacency: the dataset's.
        allowance_remaining: as `remaining`, of the caller's allowance; None if there is none.
        replayed: the stored release was sent again under the same debit; no part of equality.
        free: nothing was debited: it was computed from what had been released before.
    """

    dataset: str
    request_id: str
    entry: int
    price: Price
    remaining: Remaining
    ledger_head: str
    adjacency: Adjacency
    allowance_remaining: Remaining | None = None
    replayed: bool = field(default=False, compare=False)
    free: bool = False

    def _title(self) -> str:
        whose = f"entry {self.entry} of {self.dataset!r}" if self.entry else f"nothing of {self.dataset!r}"
        again = ", sent again under the same debit" if self.replayed else ""
        return f"Receipt: {whose}, {'free' if self.free else f'debited rho={self.price.rho:.6g}'}{again}"

    def _facts(self) -> list[list[str]]:
        """Names and values."""
        left = f"rho={self.remaining.rho:.6g} ({self.remaining.share:.1%})"
        yours = self.allowance_remaining
        return [
            ["left then", left],
            *([] if yours is None else [["of the allowance", f"rho={yours.rho:.6g} ({yours.share:.1%})"]]),
            ["adjacency", self.adjacency.value],
            ["request id", self.request_id or "none"],
            ["ledger head", self.ledger_head or "none"],
        ]

    def __repr__(self) -> str:
        width = max(len(name) for name, _ in self._facts())
        return "\n".join([self._title(), *(f"  {name.ljust(width)}  {value}" for name, value in self._facts())])

    def _repr_html_(self) -> str:
        return html_table(self._title(), ["", ""], self._facts())


@dataclass(frozen=True)
class ReleaseNoise:
    """The noise of one kind of release of a fit: standard deviations, known without data.

    Attributes:
        name: what is released.
        size: how many numbers.
        count_std: on the number of records in a component; of a sketch, in all; of a contingency table, in each cell;
            of a choice of the largest, on each of what is compared.
        sum_std: on a sum of positions, in records times the clip radius of the step; of a sketch, on each of its sums.
        moment_std: on second moments, in records times the squared radius.
        times: how many such releases.
    """

    name: str
    size: int
    count_std: float
    sum_std: float
    moment_std: float
    times: int


def positive(name: str, value: object) -> float:
    """`value` as a float, if it is a positive finite number.

    Raises:
        InvalidRequestError: it is not; NaN and non-numbers included.
    """
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    if not 0 < number < math.inf:
        raise InvalidRequestError.of(name, f"must be a positive finite number, got {value!r}")
    return number
