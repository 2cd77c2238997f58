"""Releases of the caller, as the catalogue lists them, page by page."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from bursar import _convert
from bursar._connection import Connection
from bursar._errors import NotFoundError, ServerError
from bursar._fits import BY_NAME
from bursar._listing import Listing
from bursar_models import FrequencyLaw, FrequencyStructure, Model, Signature, Sketch
from bursar_models._tables import Output, as_table
from bursar_models.budget import Price, Receipt
from bursar_models.checks import whole
from bursar_proto.v1 import catalog_pb2


class _Page(Protocol):
    @property
    def next_page_token(self) -> int: ...


PageT = TypeVar("PageT", bound=_Page)

_LAST_ENTRY = 2**62
"""Number beyond every ledger."""


class ReleaseState(enum.Enum):
    """State of a debit."""

    RUNNING_OR_INTERRUPTED = "running_or_interrupted"
    """No release yet: the same request_id joins the fit, or runs it under the same debit if it was interrupted."""
    RELEASED = "released"
    """`Client.model` gets the stored release, and so does the same request_id."""
    FAILED = "failed"
    """The fit ended without a model and is never run again."""


_STATES = {
    ReleaseState.RUNNING_OR_INTERRUPTED: catalog_pb2.RELEASE_STATE_RUNNING_OR_INTERRUPTED,
    ReleaseState.RELEASED: catalog_pb2.RELEASE_STATE_RELEASED,
    ReleaseState.FAILED: catalog_pb2.RELEASE_STATE_FAILED,
}


@dataclass(frozen=True)
class ReleaseSummary:
    """One of the caller's own debits.

    Attributes:
        entry: position of the debit in the ledger.
        dataset: its name.
        request_id: the fit's idempotency key.
        method: what was fitted.
        price: what was debited.
        time: RFC 3339; informational.
        released: whether there is a model to be had; the same as `state is ReleaseState.RELEASED`.
        state: what became of it.
    """

    entry: int
    dataset: str
    request_id: str
    method: str
    price: Price
    time: str
    released: bool
    state: ReleaseState


class Releases(Listing[ReleaseSummary]):
    """Debits, which show themselves as a table."""

    _names = ("release", "releases")
    _headers = ("entry", "dataset", "method", "state", "paid", "time")

    def to_table(self, output: Output = "pandas") -> Any:
        """Return a table with a row each: entry, dataset, method, state, epsilon, share, rho, time and request_id.

        Args:
            output: "pandas" or "polars" for a DataFrame, "arrow" for a pyarrow Table, "dict" for arrays by name.

        Raises:
            ValueError: another output.
            bursar.MissingDependencyError: its library is not installed.
        """
        columns: dict[str, Any] = {
            "entry": np.array([one.entry for one in self], dtype=np.int64),
            "dataset": np.array([one.dataset for one in self], dtype=np.str_),
            "method": np.array([one.method for one in self], dtype=np.str_),
            "state": np.array([one.state.value for one in self], dtype=np.str_),
            "epsilon": np.array([one.price.epsilon for one in self], dtype=np.float64),
            "share": np.array([one.price.share for one in self], dtype=np.float64),
            "rho": np.array([one.price.rho for one in self], dtype=np.float64),
            "time": np.array([one.time for one in self], dtype=np.str_),
            "request_id": np.array([one.request_id for one in self], dtype=np.str_),
        }
        return as_table(columns, output)

    def _row(self, one: ReleaseSummary) -> list[str]:
        return [str(one.entry), one.dataset, one.method, one.state.value, str(one.price), one.time]


@dataclass(frozen=True)
class SketchSummary:
    """One of the caller's own sketches, without its numbers; `Dataset.model(entry)` gets them for free.

    Attributes:
        entry: position of its debit in the ledger.
        dataset: its name.
        request_id: the idempotency key that it was asked for with.
        price: what was debited.
        time: RFC 3339; informational.
        columns: that it is of.
        m: number of frequencies.
        r: of them, how many each row was asked for.
        law: of the frequencies' lengths.
        structure: of the frequency matrix.
        signature: what was summed.
        sigma: the scale that the frequencies are tuned to, in the sketch's units.
        noise_std: standard deviation of the noise on each sum.
        n_rows: number of rows: public under REPLACE_ONE, noisy under ADD_REMOVE_ONE.
    """

    entry: int
    dataset: str
    request_id: str
    price: Price
    time: str
    columns: tuple[str, ...]
    m: int
    r: int
    law: FrequencyLaw
    structure: FrequencyStructure
    signature: Signature
    sigma: float
    noise_std: float
    n_rows: float


class Sketches(Listing[SketchSummary]):
    """Sketches, which show themselves as a table."""

    _names = ("sketch", "sketches")
    _headers = ("entry", "dataset", "columns", "frequencies", "sigma", "paid")

    def _row(self, one: SketchSummary) -> list[str]:
        columns = ", ".join(one.columns)
        return [str(one.entry), one.dataset, columns, str(one.m), f"{one.sigma:.4g}", str(one.price)]


def list_releases(connection: Connection, dataset: str) -> Releases:
    """Return the caller's own debits on a dataset, oldest first; on all of them if its name is empty.

    Raises:
        Error: the call failed.
    """

    def page(token: int) -> catalog_pb2.ListReleasesResponse:
        request = catalog_pb2.ListReleasesRequest(dataset=dataset, page_token=token)
        return connection.ask(connection.catalog.ListReleases, request)

    return Releases(_release_from(release) for answer in _pages(page) for release in answer.releases)


def list_unfetched(connection: Connection, dataset: str) -> Releases:
    """Return the debits whose models did not come back, oldest first; of all datasets if the name is empty.

    Raises:
        Error: the call failed.
    """
    names = connection.attempts.unfetched()
    return (
        Releases(one for one in list_releases(connection, dataset) if one.request_id in names) if names else Releases()
    )


def get_release(connection: Connection, dataset: str, paid: ReleaseSummary | Receipt | int) -> Model | Sketch:
    """Fetch what one of the caller's own debits released, on a dataset; on any if its name is empty.

    Raises:
        InvalidRequestError: what was given names no entry.
        NotFoundError: there is no such debit, it is not that of the receipt, or it has no release yet.
        HistoryError: the server's ledger is not the one that was seen before.
        Error: the call failed.
    """
    entry = whole("entry", paid.entry if isinstance(paid, ReleaseSummary | Receipt) else paid, 1, _LAST_ENTRY)
    answer = connection.ask(connection.catalog.GetRelease, catalog_pb2.GetReleaseRequest(entry=entry))
    if dataset and answer.receipt.dataset != dataset:
        text = f"entry {entry} of the ledger is a debit of yours on {answer.receipt.dataset!r}, not on {dataset!r}"
        raise NotFoundError(f"{text}: client.model has those of all datasets")
    if isinstance(paid, Receipt) and paid.ledger_head != answer.receipt.ledger_head.hex():
        raise NotFoundError(
            f"entry {entry} of this server's ledger is another debit than the receipt's: ask its server"
        )
    connection.history.add_receipt(answer.receipt.entry, answer.receipt.ledger_head)
    model = _model_from(answer)
    connection.attempts.end(answer.receipt.request_id, fetched=True)
    return model


def list_sketches(connection: Connection, dataset: str) -> Sketches:
    """Return the caller's own sketches of a dataset, oldest first.

    Raises:
        Error: the call failed.
    """

    def page(token: int) -> catalog_pb2.ListSketchesResponse:
        request = catalog_pb2.ListSketchesRequest(dataset=dataset, page_token=token)
        return connection.ask(connection.catalog.ListSketches, request)

    return Sketches(_sketch_from(sketch) for answer in _pages(page) for sketch in answer.sketches)


def _pages(page: Callable[[int], PageT]) -> list[PageT]:
    """Return all pages, from that of token 0 on; each has the token of the next, or 0 if it is the last."""
    pages = [page(0)]
    token = 0
    while pages[-1].next_page_token > token:  # a smaller one would never end
        token = pages[-1].next_page_token
        pages.append(page(token))
    return pages


def _model_from(message: catalog_pb2.GetReleaseResponse) -> Model | Sketch:
    """Return the model of the type that its fit returned, or the sketch. Raises ServerError for what is none."""
    receipt = _convert.receipt_from(message.receipt, replayed=True)
    kind = BY_NAME.get(message.WhichOneof("model") or "")
    if kind is None:
        raise ServerError("the server sent a kind of model that this client does not know: upgrade bursar")
    found: Model | Sketch = kind.stored(message, receipt)
    return found


def _release_from(message: catalog_pb2.ReleaseSummary) -> ReleaseSummary:
    return _convert.value_of(ReleaseSummary, message, state=_convert.named(_STATES, message.state))


def _sketch_from(message: catalog_pb2.SketchSummary) -> SketchSummary:
    sketch, frequencies = message.sketch, message.sketch.frequencies
    law: Any = _convert.named(_convert.FREQUENCY_LAWS, frequencies.law)
    structure: Any = _convert.named(_convert.FREQUENCY_STRUCTURES, frequencies.structure)
    signature: Any = _convert.named(_convert.SIGNATURES, sketch.signature)
    return _convert.value_of(
        SketchSummary,
        message,
        columns=tuple(sketch.columns),
        m=frequencies.m,
        r=sketch.frequencies_per_row,
        law=law,
        structure=structure,
        signature=signature,
        sigma=frequencies.sigma,
        noise_std=sketch.noise_std,
        n_rows=sketch.n_rows,
    )
