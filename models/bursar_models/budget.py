"""Budget amounts: the budget requested for a fit, its cost, the remaining budget, and the receipt of a debit.

The server enforces amounts as integers; the floats beside them are for people.
"""

from __future__ import annotations

import enum
import math
import numbers
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, TypeAlias

import bursar_amounts
from bursar_amounts import (
    COST_UNIT,
    Part,
    amount_text,
    bound_text,
    epsilon_text,
    exact_text,
    float_down,
    float_up,
)
from bursar_models.errors import InvalidRequestError
from bursar_models.text import harmless, html_bar, html_table, text_bar, text_table


class NeighbouringRelation(enum.Enum):
    """Neighbouring relation: the change of a table by one privacy unit; fixed when a dataset is registered."""

    REPLACE_ONE = "replace_one"
    """One slot's content is replaced by any other content; the number of slots is public."""
    ADD_REMOVE_ONE = "add_remove_one"
    """One slot's content is present or absent; the number of rows is private."""


@dataclass(frozen=True)
class PrivacyUnit:
    """Privacy unit, whose presence is protected: a row, or all rows that share a value of a column.

    Attributes:
        unit_column: name of that column; None if a row is a unit.
        max_rows_per_unit: maximum number of rows of one unit that are kept.
    """

    unit_column: str | None
    max_rows_per_unit: int


@dataclass(frozen=True, repr=False)
class Rho:
    """Budget in zero-concentrated differential privacy (Bun and Steinke 2016); the fit adds Gaussian noise.

    Attributes:
        value: parameter rho, positive and finite.

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
    """Pair (epsilon, delta); requests the largest rho that implies it (Canonne, Kamath, Steinke 2020, Prop. 12).

    Attributes:
        epsilon: parameter epsilon, positive and finite.
        delta: parameter delta, between 0 and 1, both excluded.

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
    """Budget in pure differential privacy; the fit adds Laplace noise.

    Attributes:
        epsilon: parameter epsilon, positive and finite.

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
    """Budget of all that one request may cost; the server determines the amount at the debit."""

    def __repr__(self) -> str:
        return "bursar.what_is_left()"


@dataclass(frozen=True, repr=False)
class Percent:
    """Budget as a part of the dataset's whole budget; the fit adds Gaussian noise.

    Attributes:
        value: percent, above 0 and at most 100.

    Raises:
        InvalidRequestError: a number outside its range.
    """

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", positive("spend.percent", self.value))
        if not self.value <= 100:
            raise InvalidRequestError.of("spend.percent", f"must be at most 100, got {self.value!r}")

    def __repr__(self) -> str:
        return f"bursar.percent({exact_text(self.value)})"


Amount: TypeAlias = Rho | EpsilonDelta | Pure
"""Spend that is an amount: neither a part of a budget nor what is left of one."""

Spend: TypeAlias = Amount | Percent | WhatIsLeft
"""Budget requested for one fit; the fit divides it among its releases."""

LimitName: TypeAlias = Literal["dataset", "allowance", "call"]
"""Limit that may refuse a request: the dataset's budget, the caller's allowance, or the limit of one request."""


def rho(value: float) -> Rho:
    """Return a budget of `value` in zero-concentrated differential privacy; fits add Gaussian noise.

    Raises:
        InvalidRequestError: not a positive finite number.
    """
    return Rho(value)


def epsilon_delta(epsilon: float, delta: float) -> EpsilonDelta:
    """Return a budget of the largest rho that implies (epsilon, delta); fits add Gaussian noise.

    Raises:
        InvalidRequestError: epsilon not positive and finite, or delta not between 0 and 1.
    """
    return EpsilonDelta(epsilon, delta)


def pure(epsilon: float) -> Pure:
    """Return a budget of `epsilon` in pure differential privacy; fits add Laplace noise.

    Raises:
        InvalidRequestError: not a positive finite number.
    """
    return Pure(epsilon)


def percent(value: float) -> Percent:
    """Return a budget of `value` percent of the dataset's whole budget; fits add Gaussian noise.

    It is the largest rho that so much of the budget pays for, so ten fits of 10 percent fit into it.

    Raises:
        InvalidRequestError: not a number above 0 and at most 100.
    """
    return Percent(value)


def what_is_left() -> WhatIsLeft:
    """Return a budget of all that one request may cost at its debit; fits add Gaussian noise.

    That is the least of the dataset's remaining budget, the caller's remaining allowance, and the limit of one request.
    There is no such budget with Laplace noise: use `bursar.pure(data.available().pure_epsilon)`.
    """
    return WhatIsLeft()


def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest rho that implies (epsilon, delta), which `bursar.epsilon_delta` requests, rounded down.

    Raises:
        InvalidRequestError: a number outside its range, or no positive rho implies the pair.

    Example:
        >>> round(bursar.rho_of(1, 1e-6), 4)
        0.0244
    """
    pair = EpsilonDelta(epsilon, delta)
    try:
        return bursar_amounts.rho_of(pair.epsilon, pair.delta)
    except ValueError as error:
        raise InvalidRequestError.of("epsilon", f"no positive rho implies {pair!r}; take a larger one") from error


def implied_rho(spend: Amount) -> Fraction:
    """Return the rho that a spend implies (Bun and Steinke 2016, Prop. 1.4, for a pure epsilon).

    Raises:
        InvalidRequestError: not an amount, or an (epsilon, delta) that no positive rho implies.
    """
    match spend:
        case Rho():
            return Fraction(spend.value)
        case EpsilonDelta():
            return Fraction(rho_of(spend.epsilon, spend.delta))
        case Pure():
            return Fraction(spend.epsilon) ** 2 / 2
    raise InvalidRequestError.of(
        "spend", f"must be bursar.rho(...), bursar.epsilon_delta(...) or bursar.pure(...), got {spend!r}"
    )


def convert(spend: Amount, delta: float) -> float:
    """Return the epsilon at `delta` that a spend implies, rounded up. No server is asked.

    Add up in rho, and convert the sum: epsilons of several fits add up to more than they imply together.

    Args:
        spend: an amount; a preview says what percents of a budget imply.
        delta: between 0 and 1, both excluded.

    Raises:
        InvalidRequestError: another spend, or a delta outside its range.

    Example:
        >>> round(bursar.convert(bursar.rho(0.01), 1e-6), 3)
        0.622
        >>> bursar.convert(bursar.pure(0.5), 1e-6)
        0.5
    """
    if not 0 < delta < 1:
        raise InvalidRequestError.of("delta", f"must be between 0 and 1, got {delta!r}")
    epsilon = bursar_amounts.epsilon_of(implied_rho(spend), delta)
    return min(epsilon, spend.epsilon) if isinstance(spend, Pure) else epsilon


@dataclass(frozen=True, repr=False)
class Price:
    """Cost as the ledger charges it. As text "epsilon 0.31 (12.3%)": percent of the dataset's budget.

    Attributes:
        cost_units: Renyi divergence at the account's order, in units of 2^-40, rounded up.
        delta_units: failure probability in units of 2^-60, rounded up.
        rho: same cost as rho, for people.
        epsilon: epsilon that it implies by itself at the delta of the budget, rounded up; infinite if that is unknown.
        share: part of the dataset's budget; infinite if that is unknown.
    """

    cost_units: int
    delta_units: int
    rho: float
    epsilon: float = math.inf
    share: float = math.inf

    def __str__(self) -> str:
        return amount_text(self.epsilon, self.share)

    def __repr__(self) -> str:
        return f"Price: {self}, rho={self.rho:.6g}"


@dataclass(frozen=True, repr=False)
class Remaining:
    """Remainder of a dataset's budget, of an allowance inside it, or of the limit of one request.

    As text "epsilon 1.86 (45.1%)": percent of the dataset's budget, rounded down, so that a request for it fits.

    Attributes:
        cost_units: remaining cost in the unit of `Price.cost_units`; the server compares this and `delta_units`.
        delta_units: remaining failure probability in the unit of `Price.delta_units`.
        cap_cost_units: cost of the whole budget, allowance or limit, in the same unit.
        cap_delta_units: failure probability of the whole, in the same unit.
        rho: largest rho that one request may still request, rounded down.
        pure_epsilon: largest pure epsilon that one request may still request, rounded down.
        order: Renyi order alpha at which the dataset's entries are priced.
        delta: delta at which amounts are shown as epsilon; 0 if it is unknown.
        budget_cost_units: cost of the dataset's whole budget; 0 if it is `cap_cost_units`.
    """

    cost_units: int
    delta_units: int
    cap_cost_units: int
    cap_delta_units: int
    rho: float
    pure_epsilon: float
    order: float
    delta: float = 0.0
    budget_cost_units: int = 0

    @property
    def share(self) -> float:
        """Remaining part of the budget, allowance or limit, from 0 to 1; 0 for an empty one."""
        return self.cost_units / self.cap_cost_units if self.cap_cost_units > 0 else 0.0

    @property
    def percent(self) -> str:
        """Remaining percent of the dataset's budget as text, rounded down: `bursar.percent` of it fits."""
        return self._part(self.cost_units).percent

    @property
    def epsilon(self) -> float:
        """Epsilon at `delta` that spending all of it would imply, rounded up."""
        return self._part(self.cost_units).epsilon

    def rho_of(self, units: int) -> float:
        """Return the largest rho of which so many units of cost pay, at the dataset's order."""
        return float_down(Fraction(units) / (COST_UNIT * Fraction(self.order)))

    def units_of(self, rho: float | Fraction) -> int:
        """Return the units of cost of a rho, rounded down, at the dataset's order."""
        return math.floor(COST_UNIT * Fraction(self.order) * Fraction(rho))

    def price(self, cost_units: int, delta_units: int = 0) -> Price:
        """Return a cost of so many units, such as the sum of several prices."""
        part = self._part(cost_units)
        return Price(cost_units, delta_units, float_up(part.rho), part.epsilon, part.share)

    def less(self, cost_units: int) -> Remaining:
        """Return what is left after a cost of so many units; nothing if it is more than there is."""
        left = max(self.cost_units - cost_units, 0)
        kept = left / self.cost_units if left else 0.0
        return replace(self, cost_units=left, rho=self.rho_of(left), pure_epsilon=self.pure_epsilon * kept)

    def _part(self, cost_units: int) -> Part:
        budget, order = self.budget_cost_units or self.cap_cost_units, Fraction(self.order)
        return Part(cost_units, budget, order, Fraction(self.delta), is_left=True)

    def __str__(self) -> str:
        return str(self._part(self.cost_units))

    def __repr__(self) -> str:
        part = self._part(self.cost_units)
        at = exact_text(self.delta)
        return f"Remaining: epsilon {epsilon_text(part.epsilon)} at delta {at}, {part.percent} of the budget"

    def _repr_html_(self) -> str:
        return f"<div>{html_bar(self.share)} left: {self}</div>"


@dataclass(frozen=True, repr=False)
class Limits:
    """Limits within which one request of the caller must stay, all at once.

    Attributes:
        dataset: remaining budget of the dataset, which all principals share.
        allowance: remaining budget of the caller's allowance; None if there is no allowance.
        call: limit of one request; None if there is no such limit.
        available: smallest of the limits, which is the cost that one request may have now.
    """

    dataset: Remaining
    allowance: Remaining | None
    call: Remaining | None
    available: Remaining

    def _named(self) -> list[tuple[str, Remaining]]:
        """Return the limits that exist with their names; the smallest comes last."""
        found = [("dataset", self.dataset), ("allowance", self.allowance), ("one request", self.call)]
        return [*((name, left) for name, left in found if left is not None), ("available now", self.available)]

    def __repr__(self) -> str:
        header = ["limit", f"left at delta {exact_text(self.dataset.delta)}", "", "or pure epsilon"]
        rows = [
            [name, str(left), text_bar(left.share), bound_text(left.pure_epsilon, 6, is_left=True)]
            for name, left in self._named()
        ]
        return f"Limits\n{text_table(header, rows)}"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{left._repr_html_()}</td></tr>" for name, left in self._named())
        return f"<div><p>Limits</p><table><tbody>{rows}</tbody></table></div>"


@dataclass(frozen=True, repr=False)
class Receipt:
    """Receipt of a debit, sent as soon as the debit is durable, or of a free request.

    Keep it: with the log head an auditor can detect that the ledger was rolled back.

    Attributes:
        dataset: name of the dataset.
        request_id: idempotency key of the fit; for a free request the caller's name for it, which may be empty.
        entry: position of the debit in the ledger. For a free request, the debit of the release from which it was
            computed, or 0 if that was no release of this server.
        price: cost that was debited.
        remaining: remaining budget just after the debit; for a free request, the remaining budget now.
        ledger_head: hash of the ledger's newest entry just after the debit (SHA-256), as hexadecimal digits; empty for
            entry 0.
        adjacency: neighbouring relation of the dataset.
        allowance_remaining: remaining budget of the caller's allowance, as of `remaining`; None without an allowance.
        replayed: True if the stored release was sent again under the same debit; ignored by equality.
        free: True if nothing was debited, because the result was computed from earlier releases.
        warnings: what a preview warned of when it was debited, from public numbers.
    """

    dataset: str
    request_id: str
    entry: int
    price: Price
    remaining: Remaining
    ledger_head: str
    adjacency: NeighbouringRelation
    allowance_remaining: Remaining | None = None
    replayed: bool = field(default=False, compare=False)
    free: bool = False
    warnings: tuple[str, ...] = ()

    def _title(self) -> str:
        whose = f"entry {self.entry} of {self.dataset!r}" if self.entry else f"nothing of {self.dataset!r}"
        again = ", sent again under the same debit" if self.replayed else ""
        return f"Receipt: {whose}, {'free' if self.free else f'debited {self.price}'}{again}"

    def _facts(self) -> list[list[str]]:
        """Return names and values."""
        yours = self.allowance_remaining
        return [
            ["left then", str(self.remaining)],
            *([] if yours is None else [["of the allowance", str(yours)]]),
            ["adjacency", self.adjacency.value],
            ["request id", self.request_id or "none"],
            ["ledger head", self.ledger_head or "none"],
            *(["warning", warning] for warning in self.warnings),
        ]

    def __repr__(self) -> str:
        width = max(len(name) for name, _ in self._facts())
        lines = (f"  {name.ljust(width)}  {value}" for name, value in self._facts())
        return harmless("\n".join([self._title(), *lines]))

    def _repr_html_(self) -> str:
        return html_table(self._title(), ["", ""], self._facts())


@dataclass(frozen=True)
class ReleaseNoise:
    """The noise of one kind of release of a fit: standard deviations, known without data.

    Attributes:
        name: name of the release.
        size: number of released numbers.
        count_std: standard deviation of the number of records in a component; of a sketch: of all records; of a
            contingency table: of each cell; of a choice of the largest: of each score.
        sum_std: standard deviation of a sum of positions, in records times the clip radius of the step; of a sketch: of
            each of its sums.
        moment_std: standard deviation of second moments, in records times the squared radius.
        times: number of such releases.
    """

    name: str
    size: int
    count_std: float
    sum_std: float
    moment_std: float
    times: int


def positive(name: str, value: object) -> float:
    """Return `value` as a float if it is a positive finite number.

    Raises:
        InvalidRequestError: the value is not, NaN and non-numbers included.
    """
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:  # of a whole number beyond floats
        number = math.inf
    if not 0 < number < math.inf:
        raise InvalidRequestError.of(name, f"must be a positive finite number, got {value!r}")
    return number
