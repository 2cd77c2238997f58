"""One fit over a stream that may break: ask again with the same request_id until the model is there.

The server debits a request_id once and keeps what it released, so asking again costs nothing and gets the same bytes.
Before it is asked, it shows that its ledger is still the one that was seen: on one that was rolled back, the same
request would be a second debit and a second draw.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from bursar import _convert
from bursar._connection import Connection
from bursar._errors import DeadlineError, Error, HistoryError, UnavailableError
from bursar._history import History
from bursar._progress import Report
from bursar._wire_errors import translated
from bursar.models import GaussianMixture, KMeans
from bursar_proto.v1 import fit_pb2, types_pb2


def fit_dpem(connection: Connection, request: fit_pb2.FitDPEMRequest, report: Report) -> GaussianMixture | KMeans:
    """The released model of a request, repeated at most `len(connection.retry_delays)` times.

    Raises:
        Error: a refusal at once; a broken stream after the last repetition, or when no time is left for the next one.
            Whatever it is, it carries the request_id.
    """
    try:
        return _persist(connection, request, report)
    except Error as error:
        error.request_id = request.request_id
        raise


def _persist(connection: Connection, request: fit_pb2.FitDPEMRequest, report: Report) -> GaussianMixture | KMeans:
    deadline = None if connection.timeout is None else time.monotonic() + connection.timeout
    for delay in connection.retry_delays:
        try:
            return _attempt(connection, request, report, deadline)
        except (UnavailableError, DeadlineError):
            if deadline is not None and time.monotonic() + delay >= deadline:
                raise
        time.sleep(delay)
    return _attempt(connection, request, report, deadline)


def _attempt(
    connection: Connection, request: fit_pb2.FitDPEMRequest, report: Report, deadline: float | None
) -> GaussianMixture | KMeans:
    connection.check_history(_left(deadline))
    with translated():
        call = connection.fits.FitDPEM(request, timeout=_left(deadline), metadata=connection.metadata)
        try:
            receipt, model = _read(call, report, connection.history)
            replayed = ("bursar-replayed", "true") in {tuple(pair) for pair in call.trailing_metadata()}
        finally:
            # Does nothing to a stream that has ended; tells the server at once about a caller who pressed Ctrl-C.
            call.cancel()
    if receipt is None or model is None:
        raise UnavailableError("the stream ended before the model")
    _check_afterwards(connection, deadline)
    return _convert.mixture_from(model, _convert.receipt_from(receipt, replayed=replayed))


def _check_afterwards(connection: Connection, deadline: float | None) -> None:
    try:
        connection.check_history(_left(deadline))
    except HistoryError:
        raise
    except Error:
        # The model is here and paid for, and its receipt is kept: the next call asks again.
        return


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())


def _read(
    responses: Iterable[fit_pb2.FitDPEMResponse], report: Report, history: History
) -> tuple[types_pb2.Receipt | None, fit_pb2.GaussianMixtureModel | None]:
    receipt, model = None, None
    for response in responses:
        match response.WhichOneof("event"):
            case "receipt":
                receipt = response.receipt
                history.add_receipt(receipt.entry, receipt.ledger_head)
            case "progress":
                report(response.progress.step, response.progress.steps)
            case "model":
                model = response.model
    return receipt, model
