"""Exceptions that the ledger raises; no exception of another library leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._pricing import Budget, Cost, Remainder


_NOTHING = 10**6
"""Part of a limit below which nothing is left, for people: noise so large tells nothing. Decisions compare integers."""


class LedgerError(Exception):
    """Base of all errors of the ledger."""


class BudgetExhaustedError(LedgerError):
    """Raised when a request does not fit into what is left. Depends on the ledger and the request only.

    Attributes:
        requested: the price of the refused request.
        remaining: what is left of the limit that refused, unchanged by the refusal.
        budget: the total in force, of which amounts are shown as parts.
        limit: which one refused: "dataset" (the total), "allowance" (the analyst's part) or "call" (the most that one
            request may cost).
    """

    def __init__(self, requested: Cost, remaining: Remainder, budget: Budget, limit: str = "dataset") -> None:
        super().__init__(f"{_exhausted(requested, remaining, budget, limit)}. Nothing was debited")
        self.requested = requested
        self.remaining = remaining
        self.budget = budget
        self.limit = limit


def _exhausted(requested: Cost, remaining: Remainder, budget: Budget, limit: str) -> str:
    """Say what was asked for and what is left of a limit, or that nothing is."""
    if not remaining.cost_units * _NOTHING >= remaining.cap_cost_units > 0:
        what = {"allowance": "nothing is left of your allowance", "call": "one request may cost nothing"}
        return f"{what.get(limit, 'nothing is left of the budget')}, so no request fits"
    delta = f" and {requested.delta_units} units of delta" if requested.delta_units else ""
    delta_left = f" and {remaining.delta_units} units of delta" if requested.delta_units else ""
    left = {"allowance": "is left of your allowance", "call": "is the most that one request may cost"}
    cost = budget.part(requested.cost_units, requested.order)
    rest = budget.part(remaining.cost_units, remaining.order, is_left=True)
    return f"the request costs {cost}{delta}, and {rest}{delta_left} {left.get(limit, 'is left')}; ask for less"


class RequestIdReusedError(LedgerError):
    """Raised when a principal's request_id comes back with another body."""


class ReleaseExistsError(LedgerError):
    """Raised when a debit that has its release is given other bytes."""


class UnknownDatasetError(LedgerError):
    """Raised for a dataset that was never registered."""


class UnknownEntryError(LedgerError):
    """Raised for an entry number that does not exist or is of another kind."""


class UnknownCredentialError(LedgerError):
    """Raised when a credential that is to be revoked is not in force."""


class DatasetExistsError(LedgerError):
    """Raised when a name is registered already."""


class DatasetRetiredError(LedgerError):
    """Raised when a retired dataset is to be debited or changed."""


class DatasetInUseError(LedgerError):
    """Raised when something of a dataset is to be destroyed that is still needed, or was destroyed before."""


class AccountConflictError(LedgerError):
    """Raised when rows belong to another account, or an account is asked to be what it is not; says which."""


class CredentialExistsError(LedgerError):
    """Raised when the name has a credential in force, or the token was issued before."""


class NameConflictError(LedgerError):
    """Raised for a name that differs from one in the ledger in case only; nothing changed."""


class LastAdministratorError(LedgerError):
    """Raised when the last administrator's credential in force would be revoked, and the caller wants it to stay."""


class LedgerExistsError(LedgerError):
    """Raised when a ledger is to be created where a file is already."""


class LedgerUnavailableError(LedgerError):
    """Raised when the file cannot be read or written now. Asking again with the same request_id is safe."""


class LedgerLostError(LedgerError):
    """Raised when a file lacks entries that were confirmed, or when that cannot be excluded. Nothing was changed."""


class LedgerVersionError(LedgerError):
    """Raised when a file was written by a newer version of this program, whose rules are not known here."""


class LedgerCorruptError(LedgerError):
    """Raised when the file does not verify.

    Attributes:
        problems: one line a finding, naming the entry.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(f"the ledger does not verify and must not be served from: {'; '.join(problems[:5])}")
        self.problems = problems
