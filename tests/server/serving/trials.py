"""Requests of dry runs on one table, and the runs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from bursar_ledger import Adjacency
from bursar_proto.v1 import dummy_pb2, fit_pb2, types_pb2
from bursar_server.fits import (
    BoundedColumn,
    CodedColumn,
    PublicFacts,
    PublicTable,
)
from bursar_server.fits.registry import FITS
from bursar_server.jobs.job import Run
from bursar_server.jobs.trial import Dummies

TABLE = PublicTable(
    name="people",
    numeric=(
        BoundedColumn("x", -1.0, 1.0, (-1.0, 0.0, 1.0)),
        BoundedColumn("y", 0.0, 10.0),
        BoundedColumn("z", 5.0, 6.0, (), nullable=True),
    ),
    adjacency=Adjacency.REPLACE_ONE,
    unit_cap=3,
    rows=3000,
    categorical=(CodedColumn("town", ("here", "there", "nowhere")),),
    names=("x", "y", "z", "town"),
)


SPEND = types_pb2.Spend(rho=0.5)


REQUESTS: dict[str, fit_pb2.PreviewRequest] = {
    "dpem": fit_pb2.PreviewRequest(
        dpem=fit_pb2.FitDPEMRequest(dataset="people", spend=SPEND, columns=["x", "y"], n_components=2, iterations=3)
    ),
    "sketch_kmeans": fit_pb2.PreviewRequest(
        sketch_kmeans=fit_pb2.FitSketchKMeansRequest(
            dataset="people",
            spend=SPEND,
            columns=["x", "y"],
            n_clusters=2,
            n_init=1,
            new_sketch=fit_pb2.NewSketch(n_frequencies=40),
        )
    ),
    "mrf": fit_pb2.PreviewRequest(
        mrf=fit_pb2.FitMRFRequest(dataset="people", spend=SPEND, independent=fit_pb2.Independent())
    ),
    "gradient_em": fit_pb2.PreviewRequest(
        gradient_em=fit_pb2.FitGradientEMRequest(
            dataset="people",
            spend=SPEND,
            model=fit_pb2.LATENT_MODEL_MISSING_COVARIATES,
            target="y",
            columns=["x", "z"],
            iterations=3,
        )
    ),
    "separated_gmm": fit_pb2.PreviewRequest(
        separated_gmm=fit_pb2.FitSeparatedGMMRequest(
            dataset="people", spend=SPEND, columns=["x", "y"], n_components=2, sigma_min=0.1, sigma_max=2
        )
    ),
}


def dummies(table: PublicTable = TABLE, **arguments: Any) -> Dummies:
    """Dummy runs of all fits on one table."""
    return Dummies(fits=FITS, facts=lambda name: PublicFacts(table, Fraction(9)), **arguments)


def made(runner: Dummies, field: str, **fields: Any) -> dummy_pb2.DummyModel:
    """Return what a dummy run of a fit answers with."""
    order = runner.order(dummy_pb2.DummyRequest(fit=REQUESTS[field], **fields))
    return dummy_pb2.DummyResponse.FromString(runner.run(order, Run(incident="test"))).model
