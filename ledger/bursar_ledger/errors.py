"""Everything that the ledger raises on purpose; foreign errors do not leave it.

LedgerError
├── BudgetExhaustedError      the request does not fit; nothing changed
├── RequestIdReusedError      the same request_id with another body
├── ReleaseExistsError        the debit has other released bytes already
├── UnknownDatasetError, UnknownEntryError, UnknownCredentialError
├── DatasetExistsError, CredentialExistsError, LedgerExistsError
├── LedgerUnavailableError    the file cannot be read or written now (busy, full, missing)
└── LedgerCorruptError        the file is not what this program wrote; names the entry
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._budget import Remaining
    from ._pricing import Price


class LedgerError(Exception):
    """Base of all errors of the ledger."""


class BudgetExhaustedError(LedgerError):
    """Raised when a request does not fit into what is left. Depends on the ledger and the request only.

    Attributes:
        requested: the price of the refused request.
        remaining: what is left, unchanged by the refusal.
    """

    def __init__(self, requested: Price, remaining: Remaining) -> None:
        delta = f" and {requested.delta_units} units of delta" if requested.delta_units else ""
        delta_left = f" and {remaining.delta_units} units of delta" if requested.delta_units else ""
        super().__init__(
            f"the request costs rho = {requested.rho:.6g}{delta}, and rho = {remaining.rho:.6g}{delta_left} is left; "
            "ask for less. Nothing was debited"
        )
        self.requested = requested
        self.remaining = remaining


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
    """Raised when a name or the same content is registered already."""


class CredentialExistsError(LedgerError):
    """Raised when the name has a credential in force, or the token was issued before."""


class LedgerExistsError(LedgerError):
    """Raised when a ledger is to be created where a file is already."""


class LedgerUnavailableError(LedgerError):
    """Raised when the file cannot be read or written now. Asking again with the same request_id is safe."""


class LedgerCorruptError(LedgerError):
    """Raised when the file does not verify.

    Attributes:
        problems: one line a finding, naming the entry.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(f"the ledger does not verify and must not be served from: {'; '.join(problems[:5])}")
        self.problems = problems
