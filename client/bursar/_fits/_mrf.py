"""Messages of Markov random fields from noisy tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bursar import _convert
from bursar._fits._kind import Asked, Kind, check_dataset, entry_of
from bursar_models import MarkovRandomField
from bursar_models.budget import Receipt
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import MRF, Chain, PaidTables
from bursar_proto.v1 import catalog_pb2, fit_pb2


class MRFKind(Kind[MRF]):
    """Markov random fields."""

    name = "mrf"
    method = "FitMRF"

    def message(self, request: MRF, asked: Asked) -> fit_pb2.FitMRFRequest:
        """Return the request on the wire. Raises InvalidRequestError."""
        if asked.dry and request.reuse:
            text = "a dry run looks no earlier tables up; leave reuse out, and say a spend"
            raise InvalidRequestError.of("reuse", text)
        if asked.spend is None and not request.reuse:
            text = "is missing: new tables need it; tables of earlier releases cost nothing and are named by reuse="
            raise InvalidRequestError.of("spend", text)
        message = self.filled(
            fit_pb2.FitMRFRequest,
            request,
            asked,
            columns=request.columns,
            spend=None if asked.spend is None else _convert.spend_to(asked.spend),
            reuse=_entries(request.reuse, asked.dataset),
            estimate_on_client=request.estimated_by == "client",
        )
        _set_graph(message, request)
        return message

    def result(self, request: MRF, answer: Any, receipt: Receipt | None) -> MarkovRandomField:
        """Return the model, learnt here if the server has not. Raises ServerError."""
        del request
        return _convert.mrf_from(answer, receipt)

    def stored(self, message: catalog_pb2.GetReleaseResponse, receipt: Receipt) -> MarkovRandomField:
        """Return the model, learnt here from the stored tables if the server has not. Raises ServerError."""
        return _convert.mrf_from(message.mrf, receipt)

    def steps_here(self, request: MRF) -> bool:
        """Return whether the model is learnt on this machine."""
        return request.estimated_by == "client"


def _set_graph(message: fit_pb2.FitMRFRequest, request: MRF) -> None:
    match request.cliques:
        case "auto":
            message.auto.SetInParent()
            match request.workload:
                case "pairs" | "triples" as every:
                    message.auto.all_sets_of = {"pairs": 0, "triples": 3}[every]
                case named:
                    for columns, weight in named.items():
                        message.auto.workload.add(columns=columns, weight=weight)
        case "tree":
            message.tree.SetInParent()
            message.tree.share = request.share or 0.0
        case "independent":
            message.independent.SetInParent()
        case Chain() as chain:
            message.chain.columns.extend(chain.columns)
            message.chain.null_category = chain.null or ""
        case cliques:
            precisions = {frozenset(clique): number for clique, number in (request.precisions or {}).items()}
            for clique in cliques:
                message.cliques.cliques.add(columns=clique, precision=precisions.get(frozenset(clique), 0.0))


def _entries(reuse: Sequence[PaidTables], dataset: str) -> list[int]:
    """Return entries of earlier releases, each once, in the order of the first mention. Raises InvalidRequestError."""
    return list(dict.fromkeys(entry for source in reuse for entry in _entries_of(source, dataset)))


def _entries_of(source: PaidTables, dataset: str) -> list[int]:
    if isinstance(source, int):
        return [source]
    check_dataset("reuse", source, dataset, "these tables are")
    paid = entry_of("reuse", source, "give the entries that paid for its tables")
    # The server finds the tables that a release of its own was learnt from; it keeps nothing of a free one.
    free = isinstance(source, MarkovRandomField) and source.receipt is not None and source.receipt.free
    tables = source.tables_ if isinstance(source, MarkovRandomField) and free else ()
    return [paid, *(table.entry for table in tables if table.entry is not None)]
