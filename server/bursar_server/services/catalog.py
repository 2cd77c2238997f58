"""CatalogService: what there is to ask about, and what is left. Public facts and the ledger's sums; never the data."""

from __future__ import annotations

import grpc

from bursar_ledger import Ledger
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc
from bursar_server import convert
from bursar_server.auth import caller
from bursar_server.datasets import Datasets


class CatalogService(catalog_pb2_grpc.CatalogServiceServicer):
    """Reads ledger and manifests afresh at every call, as an administrator may import while the server runs.

    Args:
        ledger: knows budgets and debits.
        datasets: know public schemas.
    """

    def __init__(self, ledger: Ledger, datasets: Datasets) -> None:
        self._ledger = ledger
        self._datasets = datasets

    def ListDatasets(  # noqa: N802  the contract's name
        self, request: catalog_pb2.ListDatasetsRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListDatasetsResponse:
        """All datasets."""
        return catalog_pb2.ListDatasetsResponse(
            datasets=[self._datasets.describe(state) for state in self._ledger.datasets()]
        )

    def GetDataset(  # noqa: N802  the contract's name
        self, request: catalog_pb2.GetDatasetRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetDatasetResponse:
        """One dataset."""
        return catalog_pb2.GetDatasetResponse(dataset=self._datasets.describe(self._datasets.state(request.dataset)))

    def ListReleases(  # noqa: N802  the contract's name
        self, request: catalog_pb2.ListReleasesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListReleasesResponse:
        """The caller's own debits, of one dataset or of all."""
        dataset = self._datasets.state(request.dataset).name if request.dataset else None
        return catalog_pb2.ListReleasesResponse(
            releases=[
                catalog_pb2.ReleaseSummary(
                    entry=record.entry,
                    dataset=record.dataset,
                    request_id=record.request_id,
                    method=record.method,
                    price=convert.price(record.price),
                    time=record.time,
                    released=record.released,
                )
                for record in self._ledger.releases(principal=caller().name, dataset=dataset)
            ]
        )
