"""Errors raised by values on both sides: a wrong field, a missing library, and their base class."""

from __future__ import annotations


class Error(Exception):
    """Base class of all errors of this package.

    Attributes:
        request_id: idempotency key of the fit; `Dataset.fit(..., request_id=error.request_id)` with the same
            arguments resumes it without a second debit. None for calls that debit nothing.
        code: of the catalogue of errors, docs/reference/errors.md; empty for what was found before anything was sent.
        entry: entry of the ledger that paid for the fit, if that is known.
        retry_after: seconds after which the server suggests a retry; None if it suggests none, as for a request that
            would be refused again.
    """

    request_id: str | None = None
    code: str = ""
    entry: int | None = None
    retry_after: float | None = None


class RefusedError(Error):
    """Error: the server refused the request before any debit."""


class InvalidRequestError(RefusedError):
    """Error: a field of the request is wrong; also raised before sending.

    Attributes:
        violations: pairs of a field's name and the description of its fault.
    """

    def __init__(self, message: str, *, violations: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.violations = violations

    @classmethod
    def of(cls, field: str, description: str) -> InvalidRequestError:
        """Return the error for one wrong field."""
        return cls(f"{field}: {description}", violations=((field, description),))


class MissingDependencyError(Error, ImportError):
    """Error: an optional library is not installed."""
