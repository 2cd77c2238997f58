"""Exceptions that end a fit request; `wire/statuses.py` converts them to statuses."""

from __future__ import annotations

INTERNAL_TEXT = (
    "the server failed; what was debited stays debited. Give the administrator the incident id in the details"
)
"""Text for all unexpected errors; constant, so that it depends on no data."""


class NotAvailableError(Exception):
    """Error: the contract has this method, but this version of the server does not implement it."""


class CallTooLongError(Exception):
    """Error: the call lasted as long as the server allows.

    Attributes:
        goes_on: True if the fit continues without the call, as every charged fit does.
    """

    goes_on = True

    def __init__(self, *, goes_on: bool = True) -> None:
        super().__init__()
        self.goes_on = goes_on


class FitFailedError(Exception):
    """Error: a fit ended without a model, which is a bug in the fit. Its debit stays, and the cause is not reported.

    Attributes:
        incident: incident id in the operator's log.
    """

    def __init__(self, incident: str) -> None:
        super().__init__(INTERNAL_TEXT)
        self.incident = incident


class FitNotBegunError(Exception):
    """Error: a fit could not begin after its debit. Nothing was read or drawn; a retry runs it under the same debit."""


class ReleaseNotStoredError(Exception):
    """Error: the ledger could not store a release, so nothing was sent. A retry runs the fit under the same debit."""


class ReleaseLostError(Exception):
    """Error: a debit will never have a release, because its fit was interrupted and is not run again."""


class RowsUnavailableError(Exception):
    """Error: the rows of a dataset are missing, or not those that were registered; nothing was debited."""


class UnknownReleaseError(Exception):
    """Error: an entry is not a debit, or another principal's; the message does not distinguish the two."""


class NoReleaseYetError(Exception):
    """Error: a debit has no release yet."""
