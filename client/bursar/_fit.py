"""One fit over a stream that may break: ask again with the same request_id until the model is there.

The server debits a request_id once and keeps what it released, so asking again costs nothing and gets the same bytes.
Before it is asked, it shows that its ledger is still the one that was seen: on one that was rolled back, the same
request would be a second debit and a second draw.
"""

from __future__ import annotations

import difflib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from bursar import _convert
from bursar._attempts import Begun
from bursar._connection import Connection, Patience, deadline_of, left
from bursar._dry_run import SyntheticRows, callers_level, run_dummy
from bursar._errors import (
    DeadlineError,
    HistoryError,
    NotFoundError,
    OverloadedError,
    ReleaseLostError,
    RepeatedFitWarning,
    ServerError,
    TransportError,
    UnavailableError,
)
from bursar._fits import Asked, kind_of
from bursar._fits._sketch_kmeans import decode_earlier, is_decoded_from_earlier
from bursar._preview import Preview, preview_from
from bursar._progress import OneMore, Report
from bursar._wire_errors import translated
from bursar_models.budget import Receipt
from bursar_models.errors import Error, InvalidRequestError, RefusedError
from bursar_models.requests import Request, SketchKMeans
from bursar_proto.v1 import catalog_pb2, fit_pb2, types_pb2

Result = TypeVar("Result")


class FitLeft(BaseException):
    """The caller left a fit that may have been sent."""


class Stop:
    """Lets another thread leave a fit: its stream ends at once, and it is not asked for again."""

    def __init__(self) -> None:
        self.stopped = False
        self._call: Any = None

    def watch(self, call: Any) -> None:
        """Remember the stream that a stop has to end, and end it if the stop came first."""
        self._call = call
        if self.stopped:
            call.cancel()

    def stop(self) -> None:
        """Leave the fit."""
        self.stopped = True
        if self._call is not None:
            self._call.cancel()


STOP: ContextVar[Stop] = ContextVar("STOP")
"""Stop of the fit in this context; not set where only Ctrl-C can leave it."""


def fit(connection: Connection, request: Request, asked: Asked, report: Report) -> Any:
    """Return the released model of a request, see `_Fit.persist`; or what is decoded here from earlier sketches.

    Raises:
        InvalidRequestError: the request cannot be sent.
        Error: a call failed.
    """
    kind = kind_of(request)
    if isinstance(request, SketchKMeans) and is_decoded_from_earlier(request, asked.spend):

        def fetch(sketch: SketchKMeans[Any]) -> Any:
            return fit(connection, sketch, asked, report)

        return decode_earlier(request, asked, fetch, lambda: _free_receipt(connection, asked))
    counted = OneMore(report) if kind.steps_here(request) else None
    method = getattr(connection.fits, kind.method)
    convert = partial(kind.result, request)
    message = kind.message(request, asked)
    # Here and not before, so that it has no part in the name of a fit that is paid once.
    message.refuse_useless = asked.refuse_useless
    model = _Fit(connection, method, message, convert, counted or report).persist()
    if counted is not None:
        counted.done()
    return model


def dry_run(connection: Connection, request: Request, asked: Asked, rows: SyntheticRows, report: Report) -> Any:
    """Return the model that the server's code makes of synthetic rows.

    Raises:
        InvalidRequestError: the request cannot be sent.
        Error: the call failed.
    """
    kind = kind_of(request)
    if isinstance(request, SketchKMeans) and is_decoded_from_earlier(request, asked.spend):
        model = decode_earlier(request, asked, _no_sketch, _no_receipt)
    else:
        message = fit_pb2.PreviewRequest(**{kind.name: kind.message(request, asked)})
        counted = OneMore(report) if kind.steps_here(request) else None
        model = kind.result(request, run_dummy(connection, message, rows, counted or report), None)
        if counted is not None:
            counted.done()
    return replace(model, dummy_=True)


def preview(connection: Connection, request: Request, asked: Asked) -> Preview:
    """Return the server's preview of a request.

    Raises:
        InvalidRequestError: the request cannot be sent.
        Error: the call failed.
    """
    kind = kind_of(request)
    message = kind.message(request, asked)
    answer = connection.ask(connection.fits.Preview, fit_pb2.PreviewRequest(**{kind.name: message}))
    transforms = asked.transforms(message.columns, request.transform) if hasattr(request, "transform") else ()
    return preview_from(answer, message.columns, transforms)


def columns_of(request: Request, asked: Asked) -> list[str]:
    """Return the names of a fit's columns, the target of a regression among them.

    Raises:
        InvalidRequestError: the request cannot be sent.
    """
    message = kind_of(request).message(request, asked)
    return [*message.columns, *filter(None, [getattr(message, "target", "")])]


def _no_sketch(sketch: SketchKMeans[Any]) -> Any:
    raise InvalidRequestError.of("sketch", f"a dry run looks nothing up in the ledger, got {sketch!r}")


def _no_receipt() -> Receipt:
    raise InvalidRequestError.of("sketch", "a dry run has no receipt")


def _free_receipt(connection: Connection, asked: Asked) -> Receipt:
    """Return the receipt of what is computed here, and from no release of this server."""
    message = get_dataset(connection, asked.dataset)
    limits = _convert.limits_from(message)
    return Receipt(
        dataset=asked.dataset,
        request_id=asked.request_id,
        entry=0,
        price=limits.dataset.price(0),
        remaining=limits.dataset,
        ledger_head="",
        adjacency=_convert.named(_convert.ADJACENCIES, message.adjacency),
        allowance_remaining=limits.allowance,
        free=True,
    )


def get_dataset(connection: Connection, name: str) -> catalog_pb2.Dataset:
    """Return what the server says about one dataset.

    Raises:
        NotFoundError: there is none of this name.
        Error: the call failed.
    """
    try:
        return connection.ask(connection.catalog.GetDataset, catalog_pb2.GetDatasetRequest(dataset=name)).dataset
    except NotFoundError as error:
        error.args = (f"no dataset {name!r}{_others(connection, name)} [{error.code}]",)
        raise


def _others(connection: Connection, name: str) -> str:
    """Return what to say about the datasets that this caller may use, which are all that the server lists."""
    answer = connection.ask(connection.catalog.ListDatasets, catalog_pb2.ListDatasetsRequest())
    names = sorted(dataset.name for dataset in answer.datasets)
    if not names:
        return ". You may use none: ask the owner"
    close = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else "."
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{meant} You may use: {', '.join(names[:_MOST_NAMES])}{more}"


_MOST_NAMES = 10
"""Names that an error lists at most."""

_SECONDS = 3.0
"""Longest wait for the server's word on whether a fit was paid, after an error or Ctrl-C."""


@contextmanager
def paid_once(connection: Connection, request: Request, asked: Asked) -> Iterator[Asked]:
    """Give a paid fit its name, and note how it ends; an error or interrupt says whether it was paid.

    The name is `asked.request_id` if the caller gave one.

    Raises:
        InvalidRequestError: the request cannot be sent.
        RepeatedFitWarning: if warnings are errors: the same fit was paid within a day.
        BaseException: whatever ended the fit, with what was paid in its message or note.
    """
    if asked.spend is None:
        yield asked
        return
    name, is_new, earlier = begin(connection, request, asked)
    try:
        if earlier is not None:
            text = f"the same fit was paid {earlier.ago}; request_id={earlier.request_id!r} returns its model for free"
            warnings.warn(f"{text}, this one is another debit", RepeatedFitWarning, stacklevel=callers_level())
        yield replace(asked, request_id=name)
    except BaseException as error:
        # Forget a name only if nothing was debited under it: the same fit once more has to find a name that was paid.
        refused = is_new and name not in connection.attempts.entries and isinstance(error, RefusedError | Warning)
        connection.attempts.end(name, forget=refused or _is_over(error))
        if isinstance(error, TransportError):
            error.entry, told = _paid(connection, asked.dataset, name)
            error.args = (f"{error}. {told}",)
        elif not isinstance(error, Error):
            error.add_note(f"bursar: {_paid(connection, asked.dataset, name)[1]}")
        raise
    connection.attempts.end(name, fetched=True)


def begin(connection: Connection, request: Request, asked: Asked) -> Begun:
    """Note a paid fit, and give it its name. Raises InvalidRequestError if the request cannot be sent."""
    message: Message = kind_of(request).message(request, replace(asked, request_id=""))
    return connection.attempts.begin(message.SerializeToString(deterministic=True), asked.dataset, asked.request_id)


def _is_over(error: BaseException) -> bool:
    """Return whether the server ended a fit without a model."""
    return isinstance(error, ReleaseLostError) or (isinstance(error, ServerError) and error.code == "INTERNAL")


def _paid(connection: Connection, dataset: str, name: str) -> tuple[int | None, str]:
    """Return the entry that paid for a fit, if it is known, and a sentence about it with what to do."""
    entry = connection.attempts.entries.get(name)
    try:
        entry = entry or _entry(connection, dataset, name)
    except Exception:  # whatever it is, the first error is the one to raise
        fate = f"It is not known whether the fit {name!r} was paid. The same fit once more is paid at most once"
        return None, f"{fate}; recover() lists what was paid and not fetched"
    if entry is None:
        return (
            None,
            f"The fit {name!r} was not paid when the server was asked. The same fit once more is paid at most once",
        )
    return entry, (
        f"Entry {entry} of the ledger paid for the fit {name!r}. The same fit once more fetches its model for free; so "
        f"does model({entry}) when it is done"
    )


def _entry(connection: Connection, dataset: str, name: str) -> int | None:
    """Return the entry that paid for a fit; None if none did until now. Raises Error."""
    token, deadline = 0, deadline_of(_SECONDS)
    while True:
        request = catalog_pb2.ListReleasesRequest(dataset=dataset, page_token=token)
        with translated(connection.peer):
            page = connection.catalog.ListReleases(request, timeout=left(deadline), metadata=connection.metadata)
        found = next((one.entry for one in page.releases if one.request_id == name), None)
        if found is not None or not page.next_page_token > token:
            return found
        token = page.next_page_token


@dataclass(frozen=True)
class _Fit(Generic[Result]):
    """One request and what its answer means.

    Attributes:
        request: message of the fit, which has a request_id, empty for what is free.
        convert: makes the result of the wire's model and the receipt.
    """

    connection: Connection
    method: grpc.UnaryStreamMultiCallable[Any, Any]
    request: Any
    convert: Callable[[Any, Receipt], Result]
    report: Report

    def persist(self) -> Result:
        """Return the result; ask again when the server is busy and when a stream broke.

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
                if (stop := STOP.get(None)) is not None and stop.stopped:
                    raise FitLeft from error
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
        with translated(connection.peer):
            call = self.method(self.request, timeout=left(deadline), metadata=connection.metadata)
            try:
                if (stop := STOP.get(None)) is not None:
                    stop.watch(call)
                receipt, model = _read(call, self.report, self._remember)
                replayed = ("bursar-replayed", "true") in {tuple(pair) for pair in call.trailing_metadata()}
            finally:
                # Does nothing to a stream that has ended; tells the server at once about a caller who pressed Ctrl-C.
                call.cancel()
        if receipt is None or model is None:
            raise UnavailableError("the stream ended before the model")
        _check_afterwards(connection, deadline)
        return self.convert(model, _convert.receipt_from(receipt, replayed=replayed))

    def _remember(self, receipt: types_pb2.Receipt) -> None:
        # What is free and computed from no release of this server has no entry, and no head that could be compared.
        if receipt.entry > 0 or not receipt.free:
            self.connection.attempts.entries[receipt.request_id] = receipt.entry
            self.connection.history.add_receipt(receipt.entry, receipt.ledger_head)


def _check_afterwards(connection: Connection, deadline: float | None) -> None:
    try:
        connection.check_history(left(deadline))
    except HistoryError:
        raise
    except Error:
        # The model is here and paid for, and its receipt is kept: the next call asks again.
        return


def _read(
    responses: Iterable[Any], report: Report, remember: Callable[[types_pb2.Receipt], None]
) -> tuple[types_pb2.Receipt | None, Any]:
    receipt, model = None, None
    for response in responses:
        match response.WhichOneof("event"):
            case "receipt":
                receipt = response.receipt
                # At once: if the stream breaks now, the error has to say that the fit was paid.
                remember(receipt)
            case "progress":
                report(response.progress.step, response.progress.steps)
            case "model":
                model = response.model
    return receipt, model
