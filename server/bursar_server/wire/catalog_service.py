"""CatalogService: datasets, remaining budgets, and the caller's own debits and releases.

It returns public facts, the ledger's sums and stored releases; never data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc

from bursar_ledger import DatasetState, DebitRecord, Ledger, ReleaseRecord, SpendingLimits, UnknownEntryError
from bursar_proto.filling import message_of
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2, types_pb2
from bursar_server.access.auth import Current, caller
from bursar_server.config import RequestLimits
from bursar_server.fits.contract import METHODS
from bursar_server.jobs.errors import (
    FitFailedError,
    NoReleaseYetError,
    NotAvailableError,
    ReleaseLostError,
    UnknownReleaseError,
)
from bursar_server.jobs.limits import page
from bursar_server.jobs.paid import Runs
from bursar_server.tables.catalogue import Datasets
from bursar_server.wire import messages

_LARGEST_PAGE = 1000
"""Maximum number of debits of a page, which keeps it far below the 4 MiB that gRPC's clients accept."""

_LARGEST_PAGE_OF_SKETCHES = 100
"""Maximum number of debits of a page of sketches: every release of it is opened."""
_LAST_ENTRY = 2**62
"""Number beyond every ledger entry, within SQLite's integers."""


class CatalogService(catalog_pb2_grpc.CatalogServiceServicer):
    """Service that reports ledger and manifests as of now: an administrator may import while the server runs.

    `runs` decide whether a debit may still get a release; `note` returns a signed checkpoint as text, "" for none.
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
        """List the datasets that the caller may see."""
        who = caller()
        states = self._current.get("datasets", self._ledger.datasets)
        return catalog_pb2.ListDatasetsResponse(
            datasets=[self._described(state.name, who.name) for state in states if who.may_see(state.name)]
        )

    def GetDataset(  # noqa: N802  the contract's name
        self, request: catalog_pb2.GetDatasetRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetDatasetResponse:
        """Return one dataset."""
        return catalog_pb2.GetDatasetResponse(dataset=self._described(request.dataset, caller().name))

    def ListReleases(  # noqa: N802  the contract's name
        self, request: catalog_pb2.ListReleasesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListReleasesResponse:
        """Return a page of the caller's own debits, of one dataset or of all."""
        records, more = self._page(request, _LARGEST_PAGE)
        summaries = [_summary(record, self._price(record)) for record in records]
        return catalog_pb2.ListReleasesResponse(releases=summaries, next_page_token=more)

    def ListSketches(  # noqa: N802  the contract's name
        self, request: catalog_pb2.ListSketchesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListSketchesResponse:
        """Return the sketches among a page of the caller's own debits."""
        records, more = self._page(request, _LARGEST_PAGE_OF_SKETCHES)
        sketches = [
            _sketch(record, self._price(record), self._ledger.release(record.entry))
            for record in records
            if _has_sketch(record)
        ]
        return catalog_pb2.ListSketchesResponse(sketches=[one for one in sketches if one], next_page_token=more)

    def _price(self, record: ReleaseRecord) -> types_pb2.Price:
        return messages.price(record.price, self._datasets.state(record.dataset).budget)

    def _page(
        self, request: catalog_pb2.ListReleasesRequest | catalog_pb2.ListSketchesRequest, largest: int
    ) -> tuple[tuple[ReleaseRecord, ...], int]:
        """Return the caller's own debits, of one dataset or of all, and the token of the next page."""
        dataset = self._datasets.state(request.dataset).name if request.dataset else None
        size = page(self._most, request.page_size, largest)
        after = min(request.page_token, _LAST_ENTRY)
        # One more than the page holds shows whether there is another page.
        found = self._ledger.releases(principal=caller().name, dataset=dataset, after=after, limit=size + 1)
        # A page may be shorter than its size: what the token of now may not see was paid for with an earlier one.
        shown = tuple(record for record in found[:size] if caller().may_see(record.dataset))
        return shown, found[size - 1].entry if len(found) > size else 0

    def GetRelease(  # noqa: N802  the contract's name
        self, request: catalog_pb2.GetReleaseRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetReleaseResponse:
        """Return the stored release of one of the caller's own debits."""
        record = self._own(request.entry)
        paid = record.request
        method = METHODS.get(paid.method)
        if method is None:
            raise NotAvailableError(f"releases of {paid.method} are not available in this version of the server")
        awaited = self._runs.awaited(paid.principal, paid.request_id)  # first, since a run ends once it is stored
        release = self._ledger.release(record.entry)
        if release is None:
            raise NoReleaseYetError if awaited else ReleaseLostError
        message = method.response.FromString(release)
        if not message.HasField("model"):
            if self._ledger.is_lost(record.entry):
                raise ReleaseLostError
            raise FitFailedError(f"entry-{record.entry}")
        asked: Mapping[str, Any] = paid.parameters
        answer = catalog_pb2.GetReleaseResponse(
            receipt=messages.receipt(record, self._datasets.state(paid.dataset)),
            n_components=asked.get("n_components", 0),
        )
        getattr(answer, method.field).CopyFrom(message.model)
        return answer

    def _own(self, entry: int) -> DebitRecord:
        """Return a debit of the caller's. Raises UnknownReleaseError for all other entries alike."""
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
        """Return size and head of the ledger, and its head at the size that the caller has seen."""
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
        """Return one dataset for one caller. Raises UnknownDatasetError."""
        return self._current.get(
            ("described", name, principal),
            lambda: self._dataset(self._datasets.state(name), self._ledger.limits(name, principal)),
        )

    def _dataset(self, state: DatasetState, limits: SpendingLimits) -> catalog_pb2.Dataset:
        """Return a dataset as an analyst with these limits sees it."""
        manifest, budget = self._datasets.manifest(state), state.budget
        return catalog_pb2.Dataset(
            name=state.name,
            description=manifest.description,
            columns=[_column(column) for column in manifest.columns],
            adjacency=messages.ADJACENCIES[state.adjacency],
            privacy_unit=catalog_pb2.PrivacyUnit(
                unit_column=manifest.unit.column or "", max_rows_per_unit=manifest.unit.max_rows
            ),
            public_rows=manifest.public_rows or 0,
            total=types_pb2.EpsilonDelta(epsilon=budget.epsilon, delta=budget.delta),
            remaining=messages.remaining(limits.dataset, budget),
            available=messages.remaining(limits.available, budget),
            allowance_remaining=None if limits.allowance is None else messages.remaining(limits.allowance, budget),
            call_limit=None if limits.call is None else messages.remaining(limits.call, budget),
            retired=state.retired,
        )


def _column(column: Any) -> catalog_pb2.Column:
    message = catalog_pb2.Column(name=column.name, description=column.description)
    if column.kind == "numeric":
        message.numeric.CopyFrom(
            catalog_pb2.NumericColumn(
                lower=column.lower,
                upper=column.upper,
                bin_edges=column.edges,
                nullable=column.nullable,
                transform=types_pb2.Transform.Value(f"TRANSFORM_{column.transform.upper()}"),
            )
        )
    else:
        message.categorical.CopyFrom(catalog_pb2.CategoricalColumn(categories=column.categories))
    return message


def _summary(record: ReleaseRecord, price: types_pb2.Price) -> catalog_pb2.ReleaseSummary:
    state = _state(record)
    return message_of(catalog_pb2.ReleaseSummary, record, price=price, released=bool(record.size), state=state)


def _has_sketch(record: ReleaseRecord) -> bool:
    return record.method == "FitSketchKMeans" and bool(record.size)


def _sketch(record: ReleaseRecord, price: types_pb2.Price, release: bytes | None) -> catalog_pb2.SketchSummary | None:
    """Return the properties of a sketch without its sums; None for a release without one."""
    message = fit_pb2.FitSketchKMeansResponse.FromString(release or b"")
    if not message.model.HasField("sketch"):
        return None
    sketch = message.model.sketch
    sketch.ClearField("sums")
    sketch.entry = record.entry
    return message_of(catalog_pb2.SketchSummary, record, price=price, sketch=sketch)


def _state(record: ReleaseRecord) -> catalog_pb2.ReleaseState.ValueType:
    if record.size is None:
        return catalog_pb2.RELEASE_STATE_RUNNING_OR_INTERRUPTED
    # The empty release marks a fit that raised.
    return catalog_pb2.RELEASE_STATE_RELEASED if record.size else catalog_pb2.RELEASE_STATE_FAILED
