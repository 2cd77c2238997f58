"""CatalogService: what there is to ask about, what is left, and what the caller has paid for.

Public facts, the ledger's sums and its stored releases; never the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc

from bursar_ledger import DebitRecord, Ledger, ReleaseRecord, UnknownEntryError
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2
from bursar_server import convert
from bursar_server.auth import caller
from bursar_server.config import RequestLimits
from bursar_server.current import Current
from bursar_server.datasets import Datasets
from bursar_server.errors import (
    FitFailedError,
    NoReleaseYetError,
    NotAvailableError,
    ReleaseLostError,
    UnknownReleaseError,
)
from bursar_server.limiting import page
from bursar_server.orders import RESPONSES
from bursar_server.runs import Runs

_LARGEST_PAGE = 1000
_LARGEST_PAGE_OF_SKETCHES = 100
"""Every release of a page is opened for it."""
_LAST_ENTRY = 2**62
"""Beyond every ledger, and within SQLite's integers."""
_FIELDS: Mapping[str, str] = {
    "FitDPEM": "dpem",
    "FitSketchKMeans": "sketch_kmeans",
    "FitMRF": "mrf",
    "FitGradientEM": "gradient_em",
    "FitSeparatedGMM": "separated_gmm",
}
"""Where `GetReleaseResponse` has the model of each method."""


class CatalogService(catalog_pb2_grpc.CatalogServiceServicer):
    """Tells what ledger and manifests say at this moment, as an administrator may import while the server runs.

    Args:
        ledger: knows budgets and debits.
        datasets: know public schemas.
        runs: know which debits may still get a release.
        note: gives a signed checkpoint of now, as text; "" for none.
        most: the owner's limits on one request.
    """

    def __init__(
        self, ledger: Ledger, datasets: Datasets, runs: Runs, note: Callable[[], str], most: RequestLimits
    ) -> None:
        self._note = note
        self._most = most
        self._runs = runs
        self._ledger = ledger
        self._current = Current(ledger)
        self._datasets = datasets

    def ListDatasets(  # noqa: N802  the contract's name
        self, request: catalog_pb2.ListDatasetsRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListDatasetsResponse:
        """All datasets that there are for the caller."""
        who = caller()
        states = self._current.get("datasets", self._ledger.datasets)
        return catalog_pb2.ListDatasetsResponse(
            datasets=[self._described(state.name, who.name) for state in states if who.may_see(state.name)]
        )

    def GetDataset(  # noqa: N802  the contract's name
        self, request: catalog_pb2.GetDatasetRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetDatasetResponse:
        """One dataset."""
        return catalog_pb2.GetDatasetResponse(dataset=self._described(request.dataset, caller().name))

    def ListReleases(  # noqa: N802  the contract's name
        self, request: catalog_pb2.ListReleasesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListReleasesResponse:
        """A page of the caller's own debits, of one dataset or of all."""
        records, more = self._page(request, _LARGEST_PAGE)
        return catalog_pb2.ListReleasesResponse(releases=[_summary(record) for record in records], next_page_token=more)

    def ListSketches(  # noqa: N802  the contract's name
        self, request: catalog_pb2.ListSketchesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListSketchesResponse:
        """The sketches among a page of the caller's own debits."""
        records, more = self._page(request, _LARGEST_PAGE_OF_SKETCHES)
        sketches = [_sketch(record, self._ledger.release(record.entry)) for record in records if _has_sketch(record)]
        return catalog_pb2.ListSketchesResponse(sketches=[one for one in sketches if one], next_page_token=more)

    def _page(
        self, request: catalog_pb2.ListReleasesRequest | catalog_pb2.ListSketchesRequest, largest: int
    ) -> tuple[tuple[ReleaseRecord, ...], int]:
        """The caller's own debits, of one dataset or of all, and the token of the next page."""
        dataset = self._datasets.state(request.dataset).name if request.dataset else None
        size = page(self._most, request.page_size, largest)
        after = min(request.page_token, _LAST_ENTRY)
        # One more than the page holds says whether there is another one.
        found = self._ledger.releases(principal=caller().name, dataset=dataset, after=after, limit=size + 1)
        # A page may be shorter than its size: what the token of now may not see was paid for with an earlier one.
        shown = tuple(record for record in found[:size] if caller().may_see(record.dataset))
        return shown, found[size - 1].entry if len(found) > size else 0

    def GetRelease(  # noqa: N802  the contract's name
        self, request: catalog_pb2.GetReleaseRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetReleaseResponse:
        """What one of the caller's own debits released, as it is stored."""
        record = self._own(request.entry)
        paid = record.request
        if paid.method not in _FIELDS:
            raise NotAvailableError(f"releases of {paid.method} are not available in this version of the server")
        awaited = self._runs.awaited(paid.principal, paid.request_id)  # first, since a run ends once it is stored
        release = self._ledger.release(record.entry)
        if release is None:
            raise NoReleaseYetError if awaited else ReleaseLostError
        message = RESPONSES[paid.method].FromString(release)
        if not message.HasField("model"):
            raise FitFailedError(f"entry-{record.entry}")
        adjacency = self._datasets.state(paid.dataset).adjacency
        asked: Mapping[str, Any] = paid.parameters
        answer = catalog_pb2.GetReleaseResponse(
            receipt=convert.receipt(record, paid.dataset, paid.request_id, adjacency),
            n_components=asked["n_components"] if paid.method == "FitSeparatedGMM" else 0,
        )
        getattr(answer, _FIELDS[paid.method]).CopyFrom(message.model)
        return answer

    def _own(self, entry: int) -> DebitRecord:
        """A debit of the caller's. Raises UnknownReleaseError for everything else alike."""
        try:
            record = self._ledger.debit_entry(min(entry, _LAST_ENTRY))
        except UnknownEntryError:
            raise UnknownReleaseError from None
        who = caller()
        if record.request.principal != who.name or not who.may_see(record.request.dataset):
            raise UnknownReleaseError
        return record

    def GetHistory(  # noqa: N802  the contract's name
        self, request: catalog_pb2.GetHistoryRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetHistoryResponse:
        """Size and head of the ledger, and what its head was at the size that the caller knows."""
        note = self._note()  # first, so that it is never ahead of size and head
        size, head = self._ledger.newest()
        return catalog_pb2.GetHistoryResponse(
            ledger_id=self._current.get("ledger_id", lambda: self._ledger.ledger_id),
            size=size,
            head=head,
            head_at_size=self._ledger.hash_at(min(request.size, _LAST_ENTRY)),
            checkpoint=note,
        )

    def _described(self, name: str, principal: str) -> catalog_pb2.Dataset:
        """One dataset for one caller. Raises UnknownDatasetError."""
        return self._current.get(
            ("described", name, principal),
            lambda: self._datasets.describe(self._datasets.state(name), self._ledger.limits(name, principal)),
        )


def _summary(record: ReleaseRecord) -> catalog_pb2.ReleaseSummary:
    return catalog_pb2.ReleaseSummary(
        entry=record.entry,
        dataset=record.dataset,
        request_id=record.request_id,
        method=record.method,
        price=convert.price(record.price),
        time=record.time,
        released=bool(record.size),
        state=_state(record),
    )


def _has_sketch(record: ReleaseRecord) -> bool:
    return record.method == "FitSketchKMeans" and bool(record.size)


def _sketch(record: ReleaseRecord, release: bytes | None) -> catalog_pb2.SketchSummary | None:
    """What a sketch is, without its sums; None for a release without one."""
    message = fit_pb2.FitSketchKMeansResponse.FromString(release or b"")
    if not message.model.HasField("sketch"):
        return None
    sketch = message.model.sketch
    sketch.ClearField("sums")
    sketch.entry = record.entry
    return catalog_pb2.SketchSummary(
        entry=record.entry,
        dataset=record.dataset,
        request_id=record.request_id,
        price=convert.price(record.price),
        time=record.time,
        sketch=sketch,
    )


def _state(record: ReleaseRecord) -> catalog_pb2.ReleaseState.ValueType:
    if record.size is None:
        return catalog_pb2.RELEASE_STATE_RUNNING_OR_INTERRUPTED
    # The empty release stands for a fit that raised.
    return catalog_pb2.RELEASE_STATE_RELEASED if record.size else catalog_pb2.RELEASE_STATE_FAILED
