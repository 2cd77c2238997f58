"""Every error that this package raises on purpose, sorted by what the caller can do about it.

Error                              base of all; `request_id` names the fit it belongs to
 +- RefusedError                   the server said no and debited nothing; change something and ask again
 |   +- InvalidRequestError        a field is wrong; `violations` says which and why
 |   +- NotFoundError              there is no such dataset, token or release
 |   +- BudgetExhaustedError       the price is above what is left; `requested` and `remaining` say by how much
 |   +- RequestIdReusedError       this request_id has been used for another request; leave it out for a new fit
 |   +- DatasetRetiredError        nothing new is fitted to this dataset; what was released can still be had
 |   +- AuthenticationError        the token is missing, wrong or revoked
 |   +- PermissionDeniedError      the token's role may not do this
 |   +- NotImplementedByServerError this server is older than the method
 |   +- OverloadedError            the server takes no more now; ask again after `retry_after` seconds
 +- TransportError                 perhaps it was carried out; ask again with the same request_id
 |   +- UnavailableError           no connection, or it broke
 |   +- DeadlineError              no answer within the time that was allowed
 +- ServerError                    it failed, perhaps after a debit; the same request_id costs no second one
 |   +- ReleaseLostError           it was debited and will never be released; a new fit is a new debit
 +- HistoryError                   the ledger is not the one that was seen before; nothing more is sent
 +- MissingDependencyError         an optional library is missing; the message has the command that installs it

Neither gRPC's exceptions nor its status codes leave this package; the original is the `__cause__`.
"""

from __future__ import annotations

from bursar._history_head import HistoryHead
from bursar_models.budget import LimitName, Price, Remaining
from bursar_models.errors import Error, RefusedError


class NotFoundError(RefusedError):
    """There is no such dataset, token or release, or this token may not know of it."""


class BudgetExhaustedError(RefusedError):
    """The price is above what is left. The refusal changed nothing.

    Attributes:
        requested: what the fit would have debited; None if the server did not say.
        remaining: what is left of `limit`; None if the server did not say.
        limit: what the price is above: "dataset", the budget that everybody shares; "allowance", the caller's part of
            it; "call", the most that one request may cost. None if the server did not say.
    """

    def __init__(
        self,
        message: str,
        *,
        requested: Price | None = None,
        remaining: Remaining | None = None,
        limit: LimitName | None = None,
    ) -> None:
        super().__init__(message)
        self.requested = requested
        self.remaining = remaining
        self.limit = limit


class RequestIdReusedError(RefusedError):
    """This request_id has been used for another request."""


class DatasetRetiredError(RefusedError):
    """Nothing new is fitted to this dataset; earlier request_ids still get what was released."""


class AuthenticationError(RefusedError):
    """The token is missing, malformed, unknown or revoked."""


class PermissionDeniedError(RefusedError):
    """The role of this token may not do this."""


class NotImplementedByServerError(RefusedError):
    """The server does not have this method."""


class OverloadedError(RefusedError):
    """The server takes no more now: it is busy, it stops, or you call too often. Nothing was debited.

    The same request may be sent again after `retry_after` seconds. It has been, for as long as the client's `patience`
    allowed. Without `retry_after` it would be refused again, as a message that is too large is.
    """


class TransportError(Error):
    """It is not known whether the request was carried out."""


class RepeatedFitWarning(UserWarning):
    """The same fit was paid within the last day, and this one is another debit.

    `warnings.simplefilter("error", bursar.RepeatedFitWarning)` stops such a fit before it is sent.
    """


class UnavailableError(TransportError):
    """There was no connection, or it broke before the answer was complete."""


class DeadlineError(TransportError):
    """The answer did not come within the time that was allowed."""


class ServerError(Error):
    """The server failed, with the one constant text it has for that, or sent what is no valid answer.

    Attributes:
        incident: what the administrator finds the failure under; None if the server gave none.
    """

    def __init__(self, message: str, *, incident: str | None = None) -> None:
        super().__init__(message)
        self.incident = incident


class ReleaseLostError(ServerError):
    """The fit was debited, but what it released is lost and is never drawn again. A new request_id is a new debit."""


class HistoryError(Error):
    """The server's ledger is not the one that was seen before, or has lost entries. This client sends nothing more.

    Perhaps an old copy of the ledger was put back, so that budget that was spent would be spent again.

    Attributes:
        seen: how far the ledger had come when it was seen before.
        found: what the server shows now; None if it shows nothing.
    """

    def __init__(self, message: str, *, seen: HistoryHead, found: HistoryHead | None) -> None:
        super().__init__(message)
        self.seen = seen
        self.found = found
