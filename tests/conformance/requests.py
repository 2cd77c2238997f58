"""Requests of every fit in its variants, for one public table: what the conformance checks and the engines' tests run.

A new fit adds its requests to `VARIANTS`; everything in this folder is then asked of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, CodedColumn, PublicTable
from bursar_server.fits.registry import FITS as FITS

_RHO = types_pb2.Spend(rho=1.0)
_PURE = types_pb2.Spend(epsilon=2.0)
_RANDOM = fit_pb2.StartAtRandom(public_seed=3)
_XY = ["x", "y"]
_LOG = [types_pb2.ColumnTransform(column="y", transform=types_pb2.TRANSFORM_LOG1P)]

TABLE = PublicTable(
    "people",
    (
        BoundedColumn("x", -1.0, 1.0, (-1.0, -0.2, 0.3, 1.0)),
        BoundedColumn("y", 0.0, 10.0),
        BoundedColumn("m", -2.0, 2.0, (-2.0, -0.5, 0.5, 2.0), nullable=True),
    ),
    Adjacency.ADD_REMOVE_ONE,
    1,
    20_000,
    tuple(CodedColumn(name, tuple("pqr")) for name in ("a", "b", "c")),
)


def _cliques(*listed: tuple[str, ...]) -> fit_pb2.Cliques:
    return fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=one) for one in listed])


def _new(**fields: Any) -> fit_pb2.NewSketch:
    return fit_pb2.NewSketch(n_frequencies=16, **fields)


def _dpem(**fields: Any) -> Any:
    return fit_pb2.FitDPEMRequest(**{"spend": _RHO, "columns": _XY, "n_components": 2, "iterations": 2, **fields})


def _gradient(**fields: Any) -> Any:
    return fit_pb2.FitGradientEMRequest(**{"spend": _RHO, "columns": _XY, "iterations": 2, **fields})


def _separated(**fields: Any) -> Any:
    defaults = {"spend": _RHO, "columns": _XY, "n_components": 2, "sigma_min": 0.05, "sigma_max": 0.3}
    return fit_pb2.FitSeparatedGMMRequest(**{**defaults, **fields})


def _sketch(**fields: Any) -> Any:
    defaults = {"spend": _RHO, "columns": _XY, "n_clusters": 2, "n_init": 1}
    return fit_pb2.FitSketchKMeansRequest(**{**defaults, **fields})


def _field(**fields: Any) -> Any:
    return fit_pb2.FitMRFRequest(**{"spend": _RHO, **fields})


VARIANTS: Mapping[str, Any] = {
    "mixture": _dpem(),
    "k-means": _dpem(mode=fit_pb2.MODE_KMEANS, clip_radius=1.0),
    "diagonal": _dpem(covariance_type=3, moments=2, columns=["x"]),
    "location": _gradient(model=1, noise_std=0.5),
    "regressions": _gradient(model=2, columns=["x"], target="y", n_components=2),
    "one regression": _gradient(model=2, columns=["x"], target="y", symmetric=True, variant=4),
    "missing": _gradient(model=3, columns=["m", "x"], target="y", averaged=1),
    "components": _gradient(model=4, n_components=2, units=2),
    "dense sketch": _sketch(new_sketch=_new(sigma=0.2)),
    "fast sketch": _sketch(
        new_sketch=_new(
            structure=fit_pb2.FREQUENCY_STRUCTURE_HADAMARD, pilot=fit_pb2.PilotSketch(share=0.2, n_frequencies=16)
        )
    ),
    "one bit": _sketch(new_sketch=_new(sigma=0.2, frequencies_per_row=4, signature=fit_pb2.SIGNATURE_ONE_BIT)),
    "cliques": _field(cliques=_cliques(("a", "x"), ("b", "c"))),
    "tree": _field(tree=fit_pb2.SelectTree(share=0.3), columns=["a", "b", "c", "x"]),
    "rounds": _field(columns=["a", "b", "c", "x"]),
    "chain": _field(chain=fit_pb2.HomogeneousChain(columns=["b", "c"], null_category="r")),
    "separated": _separated(),
    "separated, aggregated": _separated(estimator=2, min_weight=0.1),
    "separated, searched": _separated(search=2, min_weight=0.1, separation=1.0, radius=2.0),
    "separated, projected": _separated(variant=3, public_seed=9),
    "separated, by steps": _separated(variant=2, units=2),
    "mixture, tied, pure": _dpem(covariance_type=2, spend=_PURE),
    "mixture, spherical": _dpem(covariance_type=4),
    "mixture, fixed origin": _dpem(moments=2),
    "mixture, a posteriori": _dpem(estimator=2),
    "mixture, random start": _dpem(random=_RANDOM),
    "mixture, log1p": _dpem(transforms=_LOG),
    "k-means, log1p": _dpem(mode=fit_pb2.MODE_KMEANS, transforms=_LOG),
    "separated, log1p": _separated(transforms=_LOG),
    "sketch, log1p": _sketch(new_sketch=_new(sigma=0.2, transforms=_LOG), decoding=fit_pb2.DECODING_MIXTURE),
    "mixture, one step": _dpem(iterations=1),
    "mixture, one component": _dpem(n_components=1),
    "mixture, nine components": _dpem(n_components=9, iterations=4),
    "mixture, default steps": _dpem(n_components=3, iterations=0),
    "k-means, random start": _dpem(mode=fit_pb2.MODE_KMEANS, random=_RANDOM),
    "k-means, cells after a grid": _dpem(mode=fit_pb2.MODE_KMEANS, iterations=5),
    "location, pure": _gradient(model=1, noise_std=0.5, spend=_PURE),
    "location, box": _gradient(model=1, noise_std=0.5, variant=2, scale=0.1),
    "location, paper's weights": _gradient(model=1, noise_std=1.0, step_size=0.3, paper_weights=True),
    "components, radial": _gradient(model=4, n_components=2, units=2, variant=3),
    "components, random start": _gradient(model=4, n_components=4, random=_RANDOM, variant=4),
    "regression": _gradient(model=2, columns=["x"], target="y", n_components=1, without_intercept=True),
    "missing, box": _gradient(model=3, columns=["m", "x"], target="y", averaged=1, variant=2, scale=0.1),
    "dense sketch, pure": _sketch(new_sketch=_new(sigma=0.2), spend=_PURE),
    "sketch of a mixture": _sketch(new_sketch=_new(sigma=0.2), decoding=fit_pb2.DECODING_MIXTURE),
    "sketch alone": _sketch(new_sketch=_new(sigma=0.2), n_clusters=0),
    "independent": _field(independent=fit_pb2.Independent(), columns=["a", "b", "c", "x"]),
    "cliques, nulls": _field(cliques=_cliques(("a", "m"), ("m", "x"))),
    "cliques, pure": _field(cliques=_cliques(("a", "x"), ("b", "c")), spend=_PURE),
    "cliques, naive": _field(cliques=_cliques(("a", "x"), ("b", "c")), estimator=fit_pb2.MRF_ESTIMATOR_NAIVE),
    "cliques, loopy": _field(cliques=_cliques(*zip("abc", "bca", strict=True)), inference=2),
    "tree, nonlinear": _field(
        tree=fit_pb2.SelectTree(share=0.3), columns=["a", "b", "c"], estimator=fit_pb2.MRF_ESTIMATOR_NLBP
    ),
    "rounds, pure, weighted": _field(
        auto=fit_pb2.ChooseCliques(
            workload=[fit_pb2.WeightedSet(columns=["a", "b", "x"], weight=2.0), fit_pb2.WeightedSet(columns=["b", "c"])]
        ),
        spend=_PURE,
        columns=["a", "b", "c", "x"],
    ),
    "rounds of triples": _field(auto=fit_pb2.ChooseCliques(all_sets_of=3), columns=["a", "b", "c"]),
    "rounds of triples, answered by pairs": _field(
        auto=fit_pb2.ChooseCliques(all_sets_of=3), columns=["a", "b", "c", "x"], spend=types_pb2.Spend(rho=0.015)
    ),
    "cliques, tested": _field(cliques=_cliques(("a", "x"), ("b", "c")), held_out=0.1),
    "chain, naive": _field(chain=fit_pb2.HomogeneousChain(columns=["b", "c"]), estimator=fit_pb2.MRF_ESTIMATOR_NAIVE),
}
"""Requests that are charged, by what is special about them."""

FEW = ("mixture", "components", "dense sketch", "tree", "separated")
"""One of each fit."""

FREE: Mapping[str, tuple[str, Any]] = {
    "decoded again": (
        "dense sketch",
        fit_pb2.FitSketchKMeansRequest(columns=_XY, entry=1, n_clusters=3, n_init=1),
    ),
    "estimated again": ("cliques", fit_pb2.FitMRFRequest(cliques=_cliques(("a",), ("b",)), reuse=[1])),
}
"""Requests that cost nothing: the variant whose release they start from, and the request."""

CAPS: Mapping[str, int] = {"mixture": 3, "cliques": 3, "separated": 2, "dense sketch": 2}
"""Variants that are also asked of tables with several rows of one privacy unit, and the most of them."""

DECLARED: Mapping[str, int] = {
    "rounds": 10_000,
    "rounds of triples, answered by pairs": 10_000,
    "mixture, default steps": 10_000_000,
}
"""Variants that are also asked of tables with so many declared rows: tables of all pairs are released then, and a
mixture starts from four cells for each component.
"""


def method_of(request: Message) -> str:
    """Return the name of the RPC that takes a request."""
    return type(request).__name__.removesuffix("Request")


def fit_of(name: str) -> Any:
    """Return the fit that a variant is for."""
    return FITS[method_of(VARIANTS[name])]


def tables(rows: int) -> Iterator[tuple[str, PublicTable]]:
    """Yield public tables with a number of rows, by the name of their adjacency."""
    for adjacency in (Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE):
        yield adjacency.value, replace(TABLE, adjacency=adjacency, rows=rows)
