"""The fake server refuses what the server refuses: one schema, the same requests, both verdicts side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from bursar.testing import FakeServer, _toy
from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.fits import CategoricalColumn, InvalidRequestError, NumericColumn, PublicTable
from bursar_server.process import FITS
from bursar_server.requests import METHODS

SPEND = types_pb2.Spend(rho=0.1)


def table() -> PublicTable:
    """The toy, as a server's plans know it."""
    toy = _toy()
    return PublicTable(
        name=toy.name,
        numeric=tuple(
            NumericColumn(c.name, c.numeric.lower, c.numeric.upper, tuple(c.numeric.bin_edges), c.numeric.nullable)
            for c in toy.columns
            if c.HasField("numeric")
        ),
        adjacency=Adjacency.REPLACE_ONE,
        unit_cap=toy.privacy_unit.max_rows_per_unit,
        rows=toy.public_rows,
        categorical=tuple(
            CategoricalColumn(c.name, tuple(c.categorical.categories)) for c in toy.columns if c.HasField("categorical")
        ),
        names=tuple(c.name for c in toy.columns),
    )


def nothing(entry: int) -> Message | None:
    """No earlier release."""
    return None


def of_server(request: fit_pb2.PreviewRequest) -> str:
    """The field that the server's plan refuses first; "" if it refuses none."""
    field = request.WhichOneof("fit") or ""
    try:
        FITS[METHODS[field]].plan(getattr(request, field), table(), nothing)
    except InvalidRequestError as error:
        return error.violations[0][0]
    return ""


def of_fake(server: FakeServer, request: fit_pb2.PreviewRequest) -> str:
    """The field that the fake server refuses."""
    with grpc.insecure_channel(server.address) as channel:
        call = fit_pb2_grpc.FitServiceStub(channel).Preview.future(request)
        refusal = call.exception()
        if refusal is None:
            return ""
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
        return str(call.details()).partition(":")[0]


def apart(**fields: Any) -> fit_pb2.PreviewRequest:
    """A search for two components, as a server takes it."""
    asked: dict[str, Any] = {
        "dataset": "toy",
        "columns": ["height", "weight"],
        "spend": SPEND,
        "n_components": 2,
        "sigma_min": 1.0,
        "sigma_max": 20.0,
    }
    return fit_pb2.PreviewRequest(separated_gmm=fit_pb2.FitSeparatedGMMRequest(**(asked | fields)))


AGGREGATE = fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE
FULL, TIED = fit_pb2.COVARIANCE_TYPE_FULL, fit_pb2.COVARIANCE_TYPE_TIED
SPHERICAL = fit_pb2.COVARIANCE_TYPE_SPHERICAL


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, ""),
        ({"variant": fit_pb2.SEPARATED_VARIANT_EASY}, ""),
        ({"variant": AGGREGATE}, ""),
        ({"variant": AGGREGATE, "covariance_type": SPHERICAL}, ""),
        ({"variant": AGGREGATE, "covariance_type": FULL}, "covariance_type"),
        ({"covariance_type": TIED}, "covariance_type"),
        ({"n_components": 0}, "n_components"),
        ({"n_components": 32}, ""),
        ({"n_components": 33}, "n_components"),
        ({"sigma_max": 1.0}, "sigma_max"),
        ({"radius": 0.5}, "radius"),
        ({"radius": 1.0}, ""),
        ({"min_weight": 0.5}, ""),
        ({"min_weight": 0.6}, "min_weight"),
        ({"spend": types_pb2.Spend(epsilon=1.0)}, "spend.epsilon"),
    ],
)
def test_separated_mixtures_are_refused_alike(server: FakeServer, fields: dict[str, Any], refused: str) -> None:
    """Every variant and every number at its edge."""
    assert of_server(apart(**fields)) == refused
    assert of_fake(server, apart(**fields)) == refused


def good() -> Iterator[fit_pb2.PreviewRequest]:
    """Requests of every fit that a server takes."""
    of = fit_pb2.PreviewRequest
    shared: dict[str, Any] = {"dataset": "toy", "spend": SPEND}
    both = ["height", "weight"]
    for k in (1, 3):
        yield of(dpem=fit_pb2.FitDPEMRequest(columns=both, n_components=k, **shared))
    yield of(sketch_kmeans=fit_pb2.FitSketchKMeansRequest(columns=both, new_sketch=fit_pb2.NewSketch(), **shared))
    yield of(mrf=fit_pb2.FitMRFRequest(tree=fit_pb2.SelectTree(), **shared))
    yield of(mrf=fit_pb2.FitMRFRequest(independent=fit_pb2.Independent(), columns=["weight", "group"], **shared))
    chain = fit_pb2.HomogeneousChain(columns=["spring", "summer", "autumn"], null_category="unknown")
    yield of(mrf=fit_pb2.FitMRFRequest(chain=chain, **shared))
    for model in (fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE, fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE):
        yield of(gradient_em=fit_pb2.FitGradientEMRequest(columns=both, model=model, **shared))
    for model in (fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS, fit_pb2.LATENT_MODEL_MISSING_COVARIATES):
        yield of(gradient_em=fit_pb2.FitGradientEMRequest(columns=["height"], target="weight", model=model, **shared))
    yield apart()


def test_what_a_server_takes_the_fake_takes(server: FakeServer) -> None:
    """A program that works on the real one works in its tests."""
    found = [(of_server(request), of_fake(server, request)) for request in good()]
    assert found == [("", "")] * len(found)


@pytest.mark.parametrize(
    "request_",
    [
        fit_pb2.PreviewRequest(
            mrf=fit_pb2.FitMRFRequest(
                dataset="toy",
                spend=SPEND,
                cliques=fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=["group", "height"])]),
            )
        ),
        fit_pb2.PreviewRequest(
            gradient_em=fit_pb2.FitGradientEMRequest(
                dataset="toy",
                spend=SPEND,
                columns=["nobody"],
                target="weight",
                model=fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS,
            )
        ),
        apart(columns=["group"]),
    ],
    ids=["a table over a column without states", "a feature that is not there", "a category as a number"],
)
def test_what_the_fake_refuses_a_server_refuses(server: FakeServer, request_: fit_pb2.PreviewRequest) -> None:
    """It is never stricter than the real one."""
    assert of_fake(server, request_)
    assert of_server(request_)
