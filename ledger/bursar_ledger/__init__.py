"""bursar_ledger: privacy losses, budgets, the filter and the ledger that holds them. Knows neither wire nor rows."""

from ._budget import Budget, Remaining
from ._canonical import Entry
from ._conversion import epsilon_of, rho_of
from ._events import Adjacency, Event, GaussianEvent, LaplaceEvent, PureEvent
from ._ledger import Ledger
from ._pricing import COST_UNIT, DELTA_UNIT, Price, cost_units, laplace_rdp, price, pure_rdp, rdp
from ._replay import DatasetTotals
from ._values import (
    Credential,
    DatasetState,
    Debit,
    DebitRecord,
    DebitRequest,
    DebitStatus,
    Registration,
    ReleaseRecord,
    Role,
)
from ._verify import Verification, verify
from .errors import (
    BudgetExhaustedError,
    CredentialExistsError,
    DatasetExistsError,
    LedgerCorruptError,
    LedgerError,
    LedgerExistsError,
    LedgerUnavailableError,
    ReleaseExistsError,
    RequestIdReusedError,
    UnknownCredentialError,
    UnknownDatasetError,
    UnknownEntryError,
)

__all__ = [
    "COST_UNIT",
    "DELTA_UNIT",
    "Adjacency",
    "Budget",
    "BudgetExhaustedError",
    "Credential",
    "CredentialExistsError",
    "DatasetExistsError",
    "DatasetState",
    "DatasetTotals",
    "Debit",
    "DebitRecord",
    "DebitRequest",
    "DebitStatus",
    "Entry",
    "Event",
    "GaussianEvent",
    "LaplaceEvent",
    "Ledger",
    "LedgerCorruptError",
    "LedgerError",
    "LedgerExistsError",
    "LedgerUnavailableError",
    "Price",
    "PureEvent",
    "Registration",
    "ReleaseExistsError",
    "ReleaseRecord",
    "Remaining",
    "RequestIdReusedError",
    "Role",
    "UnknownCredentialError",
    "UnknownDatasetError",
    "UnknownEntryError",
    "Verification",
    "cost_units",
    "epsilon_of",
    "laplace_rdp",
    "price",
    "pure_rdp",
    "rdp",
    "rho_of",
    "verify",
]
