"""One fit over a stream that may break: ask again with the same request_id until the model is there.

The server debits a request_id once and keeps what it released, so asking again costs nothing and gets the same bytes.
Before it is asked, it shows that its ledger is still the one that was seen: on one that was rolled back, the same
request would be a second debit and a second draw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import grpc

from bursar import _convert
from bursar._connection import Connection
from bursar._dummy import Dummy, run_dummy
from bursar._errors import (
    DeadlineError,
    Error,
    HistoryError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from bursar._gradient_em import GradientEMModel, gradient_em_from
from bursar._history import History
from bursar._patience import Patience, deadline_of, left
from bursar._privacy import Receipt
from bursar._progress import Report
from bursar._separated_gmm import separated_gmm_from
from bursar._wire_errors import translated
from bursar.models import GaussianMixture, KMeans, MarkovRandomField
from bursar_proto.v1 import fit_pb2, types_pb2

Result = TypeVar("Result")


def fit_dpem(
    connection: Connection, request: fit_pb2.FitDPEMRequest, report: Report, dummy: Dummy | None = None
) -> GaussianMixture | KMeans:
    """The released model of a request, see `_Fit.persist`; or that of a dummy run, see `run_dummy`.

    Raises:
        Error: likewise.
    """
    if dummy is not None:
        made = run_dummy(connection, fit_pb2.PreviewRequest(dpem=request), dummy, report)
        return replace(_convert.mixture_from(made, None), dummy_=True)
    return _Fit(connection, connection.fits.FitDPEM, request, _convert.mixture_from, report).persist()


def fit_sketch(
    connection: Connection, request: fit_pb2.FitSketchKMeansRequest, report: Report, dummy: Dummy | None = None
) -> _convert.SketchModel:
    """The sketch of a request and what was decoded from it; as `fit_dpem`.

    Raises:
        Error: likewise.
    """
    if dummy is not None:
        made = _understood(
            request,
            "decode_on_client",
            lambda: run_dummy(connection, fit_pb2.PreviewRequest(sketch_kmeans=request), dummy, report),
        )
        found = _convert.sketch_model_from(made, None)
        # The wire says of a sketch what it is, because it may be sent again.
        return found if found.decoded is None else replace(found, decoded=replace(found.decoded, dummy_=True))
    fit = _Fit(connection, connection.fits.FitSketchKMeans, request, _convert.sketch_model_from, report)
    return _understood(request, "decode_on_client", fit.persist)


def fit_mrf(
    connection: Connection, request: fit_pb2.FitMRFRequest, report: Report, dummy: Dummy | None = None
) -> MarkovRandomField:
    """The released model of a request; as `fit_dpem`.

    Raises:
        Error: likewise.
    """
    if dummy is not None:
        made = _understood(
            request,
            "estimate_on_client",
            lambda: run_dummy(connection, fit_pb2.PreviewRequest(mrf=request), dummy, report),
        )
        return replace(_convert.mrf_from(made, None), dummy_=True)
    fit = _Fit(connection, connection.fits.FitMRF, request, _convert.mrf_from, report)
    return _understood(request, "estimate_on_client", fit.persist)


def fit_gradient_em(
    connection: Connection, request: fit_pb2.FitGradientEMRequest, report: Report, dummy: Dummy | None = None
) -> GradientEMModel:
    """The released model of a request; as `fit_dpem`.

    Raises:
        Error: likewise.
    """
    if dummy is not None:
        made = run_dummy(connection, fit_pb2.PreviewRequest(gradient_em=request), dummy, report)
        return replace(gradient_em_from(made, None), dummy_=True)
    return _Fit(connection, connection.fits.FitGradientEM, request, gradient_em_from, report).persist()


def fit_separated_gmm(
    connection: Connection, request: fit_pb2.FitSeparatedGMMRequest, report: Report, dummy: Dummy | None = None
) -> GaussianMixture:
    """The released model of a request; as `fit_dpem`.

    Raises:
        Error: likewise.
    """
    convert = partial(separated_gmm_from, sought=request.n_components)
    if dummy is not None:
        made = run_dummy(connection, fit_pb2.PreviewRequest(separated_gmm=request), dummy, report)
        return replace(convert(made, None), dummy_=True)
    return _Fit(connection, connection.fits.FitSeparatedGMM, request, convert, report).persist()


def _understood(request: Any, flag: str, ask: Callable[[], Result]) -> Result:
    """The answer; asked for once more, without a flag that the server is too old to know. Raises as `ask` does.

    Such a server computes itself what the flag says that is computed here.
    """
    try:
        return ask()
    except InvalidRequestError as error:
        unknown = any(field == "request" and "does not know" in text for field, text in error.violations)
        if not (unknown and getattr(request, flag)):
            raise
        setattr(request, flag, False)
    return ask()


FitRequest: TypeAlias = (
    fit_pb2.FitDPEMRequest
    | fit_pb2.FitSketchKMeansRequest
    | fit_pb2.FitMRFRequest
    | fit_pb2.FitGradientEMRequest
    | fit_pb2.FitSeparatedGMMRequest
)
"""A request of any fit."""


@dataclass(frozen=True)
class _Fit(Generic[Result]):
    """One request and what its answer means.

    Attributes:
        connection: to the server.
        method: of the service; its responses are a receipt, progress and a model.
        request: has a request_id, which may be empty for what is free.
        convert: makes the result of the wire's model and the receipt.
        report: told of progress.
    """

    connection: Connection
    method: grpc.UnaryStreamMultiCallable[Any, Any]
    request: FitRequest
    convert: Callable[[Any, Receipt], Result]
    report: Report

    def persist(self) -> Result:
        """The result, asked for again when the server is busy and when a stream broke.

        A stream that breaks is asked for again at most `len(connection.retry_delays)` times, a busy server as long as
        it says when, and `connection.patience` lasts; always with the same request_id.

        Raises:
            Error: a refusal at once; a broken stream after the last repetition, or when no time is left for the next
                one. Whatever it is, it carries the request_id.
        """
        try:
            return self._persist()
        except Error as error:
            error.request_id = self.request.request_id or None
            raise

    def _persist(self) -> Result:
        deadline = deadline_of(self.connection.timeout)
        patience, delays = Patience(self.connection.patience), iter(self.connection.retry_delays)
        while True:
            try:
                return self._attempt(deadline)
            except (OverloadedError, UnavailableError, DeadlineError) as error:
                delay = next(delays, None) if error.retry_after is None else None
                if delay is None or isinstance(error, OverloadedError):
                    patience.pause(error, deadline)
                    continue
                if deadline is not None and time.monotonic() + delay >= deadline:
                    raise
            time.sleep(delay)

    def _attempt(self, deadline: float | None) -> Result:
        connection = self.connection
        connection.check_history(left(deadline))
        with translated():
            call = self.method(self.request, timeout=left(deadline), metadata=connection.metadata)
            try:
                receipt, model = _read(call, self.report, connection.history)
                replayed = ("bursar-replayed", "true") in {tuple(pair) for pair in call.trailing_metadata()}
            finally:
                # Does nothing to a stream that has ended; tells the server at once about a caller who pressed Ctrl-C.
                call.cancel()
        if receipt is None or model is None:
            raise UnavailableError("the stream ended before the model")
        _check_afterwards(connection, deadline)
        return self.convert(model, _convert.receipt_from(receipt, replayed=replayed))


def _check_afterwards(connection: Connection, deadline: float | None) -> None:
    try:
        connection.check_history(left(deadline))
    except HistoryError:
        raise
    except Error:
        # The model is here and paid for, and its receipt is kept: the next call asks again.
        return


def _read(responses: Iterable[Any], report: Report, history: History) -> tuple[types_pb2.Receipt | None, Any]:
    receipt, model = None, None
    for response in responses:
        match response.WhichOneof("event"):
            case "receipt":
                receipt = response.receipt
                _remember(receipt, history)
            case "progress":
                report(response.progress.step, response.progress.steps)
            case "model":
                model = response.model
    return receipt, model


def _remember(receipt: types_pb2.Receipt, history: History) -> None:
    # What is free and computed from no release of this server has no entry, and no head that could be compared.
    if receipt.entry > 0 or not receipt.free:
        history.add_receipt(receipt.entry, receipt.ledger_head)
