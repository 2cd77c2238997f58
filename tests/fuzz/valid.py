"""Requests of every method that work on the tables of `server`, or nearly: what the fuzzer exchanges fields of."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from bursar_models import Frequencies
from bursar_proto.v1 import admin_pb2, audit_pb2, catalog_pb2, dummy_pb2, fit_pb2, types_pb2

_RHO = types_pb2.Spend(rho=0.01)
_EPSILON = types_pb2.Spend(epsilon=0.5)
_PAIR = types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=0.3, delta=1e-6))
_REST = types_pb2.Spend(remaining=types_pb2.WhatIsLeft())
_XY = ["x", "y"]


def _tensor(*values: float, shape: Sequence[int]) -> types_pb2.Tensor:
    return types_pb2.Tensor(shape=shape, values=values)


def _cliques(*listed: tuple[str, ...]) -> fit_pb2.Cliques:
    return fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=one, precision=i) for i, one in enumerate(listed)])


_START = fit_pb2.StartGiven(
    means=_tensor(0.1, 1.0, -0.2, 7.0, shape=(2, 2)),
    weights=_tensor(0.4, 0.6, shape=(2,)),
    covariances=_tensor(*[0.1, 0.0, 0.0, 1.0] * 2, shape=(2, 2, 2)),
)
FOREIGN = fit_pb2.Sketch(
    columns=_XY,
    centre=_tensor(0.0, 5.0, shape=(2,)),
    unit=_tensor(5.0, 5.0, shape=(2,)),
    lower=_tensor(-1.0, 0.0, shape=(2,)),
    upper=_tensor(1.0, 10.0, shape=(2,)),
    frequencies=fit_pb2.Frequencies(
        m=4,
        d=2,
        public_seed=1,
        sigma=0.2,
        law=fit_pb2.FREQUENCY_LAW_ADAPTED_RADIUS,
        structure=fit_pb2.FREQUENCY_STRUCTURE_DENSE,
        digest=Frequencies(4, 2, 1, 0.2).digest(),
    ),
    signature=fit_pb2.SIGNATURE_EXPONENTIAL,
    frequencies_per_row=4,
    sums=_tensor(*[5.0] * 8, shape=(2, 4)),
    noise_std=1.0,
    n_rows=60.0,
    sites=1,
)

# Of each fit; "dataset" and "spend" are put in below.
_DPEM: Sequence[Mapping[str, Any]] = (
    {"n_components": 2, "iterations": 2, "columns": _XY},
    {"n_components": 3, "iterations": 3, "columns": _XY, "mode": fit_pb2.MODE_KMEANS, "clip_radius": 1.0},
    {"n_components": 2, "iterations": 2, "columns": ["x"], "covariance_type": 3, "moments": 2},
    {
        "n_components": 2,
        "iterations": 2,
        "columns": _XY,
        "estimator": 2,
        "prior": fit_pb2.GaussianPrior(concentration=2, kappa=1, nu=4, scale=0.1),
        "random": fit_pb2.StartAtRandom(public_seed=3),
    },
    {"n_components": 2, "iterations": 2, "columns": _XY, "given": _START},
    {"n_components": 2, "iterations": 1, "columns": _XY, "released": fit_pb2.StartReleased(entry=25)},
)
_SEPARATED: Sequence[Mapping[str, Any]] = (
    {"n_components": 2, "sigma_min": 0.05, "sigma_max": 0.3, "columns": _XY},
    {
        "n_components": 3,
        "sigma_min": 0.05,
        "sigma_max": 0.3,
        "columns": _XY,
        "search": 2,
        "estimator": 2,
        "min_weight": 0.1,
        "separation": 1.0,
        "radius": 2.0,
    },
    {"n_components": 2, "sigma_min": 0.05, "sigma_max": 0.3, "columns": _XY, "variant": 2, "units": 2},
    {"n_components": 2, "sigma_min": 0.05, "sigma_max": 0.3, "columns": _XY, "variant": 3, "public_seed": 9},
)
_GRADIENT: Sequence[Mapping[str, Any]] = (
    {"model": 1, "columns": _XY, "iterations": 3, "centre": _tensor(0.0, 5.0, shape=(2,)), "noise_std": 0.5},
    {"model": 1, "columns": _XY, "iterations": 2, "variant": 2, "scale": 1.0, "zeta": 0.05, "tau": 1.0},
    {"model": 2, "columns": ["x"], "target": "y", "n_components": 2, "iterations": 2, "step_size": 0.5},
    {"model": 2, "columns": ["x"], "target": "y", "symmetric": True, "variant": 4, "scale": 1.0, "iterations": 2},
    {"model": 3, "columns": ["m", "x"], "target": "y", "iterations": 2, "averaged": 1},
    {"model": 4, "columns": _XY, "n_components": 2, "iterations": 2, "units": 2, "variant": 5, "scale": 0.5},
    {
        "model": 2,
        "columns": ["x"],
        "target": "y",
        "n_components": 1,
        "iterations": 1,
        "heavy_tails": True,
        "given": fit_pb2.GradientStart(
            coefficients=_tensor(1.0, shape=(1, 1)), intercepts=_tensor(2.0, shape=(1,)), weights=_tensor(1, shape=(1,))
        ),
    },
)
_SKETCH: Sequence[Mapping[str, Any]] = (
    {"columns": _XY, "n_clusters": 2, "n_init": 1, "new_sketch": fit_pb2.NewSketch(n_frequencies=16, sigma=0.2)},
    {
        "columns": _XY,
        "n_clusters": 2,
        "n_init": 2,
        "decoding": 2,
        "decode_on_client": True,
        "new_sketch": fit_pb2.NewSketch(
            n_frequencies=32,
            frequencies_per_row=4,
            law=fit_pb2.FREQUENCY_LAW_MULTISCALE,
            signature=fit_pb2.SIGNATURE_ONE_BIT,
            units=fit_pb2.COLUMN_UNITS_BOUNDS,
            schema=fit_pb2.ScaleFromSchema(),
        ),
    },
    {
        "columns": _XY,
        "new_sketch": fit_pb2.NewSketch(
            n_frequencies=16,
            structure=fit_pb2.FREQUENCY_STRUCTURE_HADAMARD,
            pilot=fit_pb2.PilotSketch(share=0.2, n_frequencies=16),
        ),
    },
)
_FIELD: Sequence[Mapping[str, Any]] = (
    {"cliques": _cliques(("a", "x"), ("t1", "t2")), "estimator": 2},
    {"tree": fit_pb2.SelectTree(share=0.3), "columns": ["a", "t1", "t2", "x"], "estimate_on_client": True},
    {"auto": fit_pb2.ChooseCliques(workload=[fit_pb2.WeightedSet(columns=["a", "t1", "x"])])},
    {"chain": fit_pb2.HomogeneousChain(columns=["t1", "t2"], null_category="-"), "regularization": 0.5},
    {"independent": fit_pb2.Independent(), "columns": ["a", "y"], "inference": 2, "estimator": 3, "unit_weights": 1},
)


def _paid(make: Any, fields: Sequence[Mapping[str, Any]], spends: Sequence[types_pb2.Spend]) -> tuple[Any, ...]:
    datasets = ("people", "person", "people", "little")
    return tuple(
        make(request_id="fresh", dataset=dataset, spend=spend, **one)
        for one, spend, dataset in zip(
            [*fields, *fields], itertools.cycle(spends), itertools.cycle(datasets), strict=False
        )
    )


_FITS: Mapping[str, tuple[Any, ...]] = {
    "dpem": _paid(fit_pb2.FitDPEMRequest, _DPEM, (_RHO, _PAIR, _EPSILON, _REST, _RHO)),
    "separated_gmm": _paid(fit_pb2.FitSeparatedGMMRequest, _SEPARATED, (_RHO, _PAIR, _REST)),
    "gradient_em": _paid(fit_pb2.FitGradientEMRequest, _GRADIENT, (_RHO, _PAIR, _EPSILON, _REST)),
    "sketch_kmeans": (
        *_paid(fit_pb2.FitSketchKMeansRequest, _SKETCH, (_RHO, _EPSILON, _PAIR, _REST)),
        fit_pb2.FitSketchKMeansRequest(dataset="people", columns=_XY, n_clusters=1, n_init=1, foreign=[FOREIGN]),
        fit_pb2.FitSketchKMeansRequest(dataset="people", columns=_XY, n_clusters=2, n_init=1, entry=25),
        fit_pb2.FitSketchKMeansRequest(dataset="people", n_clusters=2, entry=25, decode_on_client=True),
    ),
    "mrf": (
        *_paid(fit_pb2.FitMRFRequest, _FIELD, (_RHO, _EPSILON, _PAIR, _REST)),
        fit_pb2.FitMRFRequest(dataset="people", cliques=_cliques(("a", "x")), reuse=[25]),
        fit_pb2.FitMRFRequest(dataset="people", cliques=_cliques(("x",)), reuse=[25], estimate_on_client=True),
    ),
}
"""Fits by the field of a preview that has them."""

_PREVIEWS = tuple(fit_pb2.PreviewRequest(**{name: one}) for name, requests in _FITS.items() for one in requests)
_FIT = "/bursar.v1.FitService/"
_CATALOG = "/bursar.v1.CatalogService/"
_ADMIN = "/bursar.v1.AdminService/"
_AUDIT = "/bursar.v1.AuditService/"
_ENTRIES = (1, 12, 25, 40, 2**62)

VALID: Mapping[str, tuple[Message, ...]] = {
    f"{_FIT}FitDPEM": _FITS["dpem"],
    f"{_FIT}FitSeparatedGMM": _FITS["separated_gmm"],
    f"{_FIT}FitGradientEM": _FITS["gradient_em"],
    f"{_FIT}FitSketchKMeans": _FITS["sketch_kmeans"],
    f"{_FIT}FitMRF": _FITS["mrf"],
    f"{_FIT}Preview": _PREVIEWS,
    "/bursar.v1.DummyService/RunDummy": tuple(
        dummy_pb2.DummyRequest(fit=one, rows=rows, public_seed=5)
        for one, rows in zip(_PREVIEWS, itertools.cycle((20, 0, 1)), strict=False)
    ),
    f"{_CATALOG}ListDatasets": (catalog_pb2.ListDatasetsRequest(),),
    f"{_CATALOG}GetDataset": tuple(catalog_pb2.GetDatasetRequest(dataset=name) for name in ("people", "closed")),
    f"{_CATALOG}ListReleases": (
        catalog_pb2.ListReleasesRequest(dataset="people", page_size=3, page_token=20),
        catalog_pb2.ListReleasesRequest(page_size=5),
    ),
    f"{_CATALOG}ListSketches": (catalog_pb2.ListSketchesRequest(dataset="people", page_size=3, page_token=20),),
    f"{_CATALOG}GetRelease": tuple(catalog_pb2.GetReleaseRequest(entry=entry) for entry in _ENTRIES),
    f"{_CATALOG}GetHistory": tuple(catalog_pb2.GetHistoryRequest(size=entry) for entry in _ENTRIES),
    f"{_ADMIN}IssueToken": (
        admin_pb2.IssueTokenRequest(
            name="somebody", role=admin_pb2.ROLE_ANALYST, reason="why", days=3, datasets=["people"]
        ),
        admin_pb2.IssueTokenRequest(name="s", role=admin_pb2.ROLE_AUDITOR),
    ),
    f"{_ADMIN}RevokeToken": (admin_pb2.RevokeTokenRequest(name="somebody", reason="why"),),
    f"{_ADMIN}ListTokens": (admin_pb2.ListTokensRequest(),),
    f"{_AUDIT}ListEntries": tuple(audit_pb2.ListEntriesRequest(first=entry, limit=4) for entry in _ENTRIES),
    f"{_AUDIT}Verify": (audit_pb2.VerifyRequest(),),
    "/grpc.health.v1.Health/Check": (health_pb2.HealthCheckRequest(), health_pb2.HealthCheckRequest(service="x")),
    "/grpc.health.v1.Health/List": (health_pb2.HealthListRequest(),),
    "/grpc.health.v1.Health/Watch": (health_pb2.HealthCheckRequest(),),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="bursar.v1.FitService"),
        reflection_pb2.ServerReflectionRequest(file_by_filename="bursar_proto/v1/fit.proto"),
        reflection_pb2.ServerReflectionRequest(
            file_containing_extension=reflection_pb2.ExtensionRequest(containing_type="a.B", extension_number=1)
        ),
    ),
}
"""Requests by the method's name on the wire."""
