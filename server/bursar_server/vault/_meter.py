"""Budgets of one fit and the meter that enforces them: a debit's for stored rows, a made-up one for synthetic rows."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from fractions import Fraction
from typing import Protocol

from bursar_ledger import COST_UNIT, Debit, DebitStatus, Event, rdp
from bursar_server.vault._errors import OverspendError
from bursar_server.vault._rows import Rows


@dataclass(frozen=True)
class PaidBudget:
    """Budget of one charged fit. Made from the debit alone, and small enough to be sent to the fit's process.

    Attributes:
        entry: number of the debit's entry.
        order: Renyi order at which it was priced.
        cost_units: debited cost, in the ledger's units.
    """

    debit: InitVar[Debit]
    entry: int = field(init=False)
    order: Fraction = field(init=False)
    cost_units: int = field(init=False)

    def __post_init__(self, debit: Debit) -> None:
        if not isinstance(debit, Debit):
            raise TypeError(f"expected a Debit, which Ledger.debit makes, got {type(debit).__name__}")
        if debit.status is DebitStatus.RELEASED:
            # A second draw of noise under one debit would be unaccounted.
            raise ValueError(f"entry {debit.entry} has its release already; expected a debit without one")
        # Fields are copied from the debit and are no arguments, so that no caller can make a budget without a debit.
        for name, value in (
            ("entry", debit.entry),
            ("order", debit.price.order),
            ("cost_units", debit.price.cost_units),
        ):
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class SyntheticBudget:
    """Budget of a fit on synthetic rows. No source of stored rows accepts it.

    Attributes:
        order: Renyi order of prices.
        cost_units: cost in the ledger's units; 0 for a fit that releases nothing new.
    """

    order: Fraction
    cost_units: int


FitBudget = PaidBudget | SyntheticBudget
"""Limit on what one fit may release of the rows that it is given."""


class RowSource(Protocol):
    """Rows of one fit, and what it may release of them: a small frozen value that can be pickled, and holds no row."""

    @property
    def budget(self) -> FitBudget:
        """Budget that the meter enforces."""

    def open(self) -> Rows:
        """Open the rows, restricted to the fit's columns and in their order."""


class Meter:
    """Stops a fit that would spend more than its budget.

    Prices are the ledger's: Renyi divergence at the dataset's order, exact sums, rounded up once.
    """

    def __init__(self, budget: FitBudget) -> None:
        self._order = budget.order
        # The ledger rounds the sum of the plan's prices up once, so a fit that follows its plan always fits in.
        self._debited = Fraction(budget.cost_units, COST_UNIT)
        self._spent = Fraction(0)

    def charge(self, event: Event) -> None:
        """Count an event. Raises OverspendError, and counts nothing, if the budget does not cover it."""
        # Exact fractions: a sum of floats could be rounded down and let one release too many through.
        spent = self._spent + rdp(event, self._order)
        if not spent <= self._debited:
            raise OverspendError(f"{event!r} is not covered by the debit; a fit must release what its plan says")
        self._spent = spent

    @property
    def unspent(self) -> Fraction:
        """Remainder of the budget, as Renyi divergence at the order."""
        return self._debited - self._spent
