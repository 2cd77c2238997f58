"""What the caller has paid for, as the catalogue lists it, page by page."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bursar import _convert
from bursar._arguments import whole
from bursar._connection import Connection
from bursar._errors import NotFoundError
from bursar._privacy import Price, Receipt
from bursar._text import html_table, text_table
from bursar.models import FrequencyLaw, FrequencyStructure, Signature
from bursar_proto.v1 import catalog_pb2


class _Page(Protocol):
    @property
    def next_page_token(self) -> int: ...


PageT = TypeVar("PageT", bound=_Page)

_LAST_ENTRY = 2**62
"""Beyond every ledger."""


class ReleaseState(enum.Enum):
    """What became of a debit."""

    RUNNING_OR_INTERRUPTED = "running_or_interrupted"
    """No release yet: the same request_id joins the fit, or runs it under the same debit if it was interrupted."""
    RELEASED = "released"
    """The same request_id gets the stored release."""
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


class Releases(list[ReleaseSummary]):
    """Debits, which show themselves as a table."""

    def _table(self) -> tuple[list[str], list[list[str]]]:
        cells = [
            [str(one.entry), one.dataset, one.method, one.state.value, f"{one.price.rho:.6g}", one.time] for one in self
        ]
        return ["entry", "dataset", "method", "state", "rho", "time"], cells

    def _title(self) -> str:
        return f"{len(self)} {'release' if len(self) == 1 else 'releases'}"

    def __repr__(self) -> str:
        return f"{self._title()}\n{text_table(*self._table())}"

    def _repr_html_(self) -> str:
        return html_table(self._title(), *self._table())


@dataclass(frozen=True)
class SketchSummary:
    """One of the caller's own sketches, without its numbers; `Dataset.sketch(entry=...)` gets them for nothing.

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


def list_releases(connection: Connection, dataset: str) -> Releases:
    """The caller's own debits on a dataset, oldest first; on all of them if its name is empty.

    Raises:
        Error: the call failed.
    """

    def page(token: int) -> catalog_pb2.ListReleasesResponse:
        request = catalog_pb2.ListReleasesRequest(dataset=dataset, page_token=token)
        return connection.ask(connection.catalog.ListReleases, request)

    return Releases(_release_from(release) for answer in _pages(page) for release in answer.releases)


def find_release(connection: Connection, dataset: str, paid: ReleaseSummary | Receipt | int) -> ReleaseSummary:
    """The caller's own debit of an entry, on a dataset; on any if its name is empty.

    Raises:
        InvalidRequestError: what was given names no entry.
        NotFoundError: there is no such debit, or its fit ended without a model.
        Error: the call failed.
    """
    entry = whole("entry", paid if isinstance(paid, int) else paid.entry, 1, _LAST_ENTRY)
    # The first debit after the entry before it.
    request = catalog_pb2.ListReleasesRequest(dataset=dataset, page_token=entry - 1, page_size=1)
    found = [*map(_release_from, connection.ask(connection.catalog.ListReleases, request).releases)]
    if not found or found[0].entry != entry:
        where = f" on {dataset!r}" if dataset else ""
        raise NotFoundError(f"entry {entry} of the ledger is no debit of yours{where}: releases() lists those")
    if found[0].state is ReleaseState.FAILED:
        raise NotFoundError(f"the fit of entry {entry} ended without a model, and is never run again")
    return found[0]


def request_of(connection: Connection, paid: ReleaseSummary) -> Any:
    """The request that paid for a debit, if this client sent it.

    Raises:
        NotFoundError: it did not; the message says how the model can be had without a debit.
    """
    request = connection.asked.get(paid.request_id)
    if request is None:
        raise NotFoundError(
            f"entry {paid.entry} is a {paid.method} that this client did not ask for, and the server gives what was "
            f"released to the same request only: fit with the arguments of then and request_id={paid.request_id!r}, "
            "which debits nothing, or load the file in which you saved the model (bursar.models.load)"
        )
    return request


def list_sketches(connection: Connection, dataset: str) -> list[SketchSummary]:
    """The caller's own sketches of a dataset, oldest first.

    Raises:
        Error: the call failed.
    """

    def page(token: int) -> catalog_pb2.ListSketchesResponse:
        request = catalog_pb2.ListSketchesRequest(dataset=dataset, page_token=token)
        return connection.ask(connection.catalog.ListSketches, request)

    return [_sketch_from(sketch) for answer in _pages(page) for sketch in answer.sketches]


def _pages(page: Callable[[int], PageT]) -> list[PageT]:
    """All pages, from that of token 0 on; each has the token of the next, or 0 if it is the last."""
    pages = [page(0)]
    token = 0
    while pages[-1].next_page_token > token:  # a smaller one would never end
        token = pages[-1].next_page_token
        pages.append(page(token))
    return pages


def _release_from(message: catalog_pb2.ReleaseSummary) -> ReleaseSummary:
    return ReleaseSummary(
        entry=message.entry,
        dataset=message.dataset,
        request_id=message.request_id,
        method=message.method,
        price=_convert.price_from(message.price),
        time=message.time,
        released=message.released,
        state=_convert.named(_STATES, message.state),
    )


def _sketch_from(message: catalog_pb2.SketchSummary) -> SketchSummary:
    sketch, frequencies = message.sketch, message.sketch.frequencies
    law: Any = _convert.named(_convert.FREQUENCY_LAWS, frequencies.law)
    structure: Any = _convert.named(_convert.FREQUENCY_STRUCTURES, frequencies.structure)
    signature: Any = _convert.named(_convert.SIGNATURES, sketch.signature)
    return SketchSummary(
        entry=message.entry,
        dataset=message.dataset,
        request_id=message.request_id,
        price=_convert.price_from(message.price),
        time=message.time,
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
