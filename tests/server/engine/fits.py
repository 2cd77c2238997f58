"""Every kind of release of every fit, without noise, on people who never were: what engines must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar_ledger import Adjacency, cost_units
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.dummy import made_up_rows
from bursar_server.fits import (
    CategoricalColumn,
    NumericColumn,
    PublicTable,
    dpem,
    gradient_em,
    mrf,
    separated_gmm,
    sketch,
)
from bursar_server.vault import ArrayRows, Engine, Meter, Rows, Scores, SelectionNoise, Session
from tests.server.fits.running import ORDER, NoNoise

MODULES: Mapping[str, Any] = {
    "dpem": dpem,
    "gradient_em": gradient_em,
    "mrf": mrf,
    "separated_gmm": separated_gmm,
    "sketch": sketch,
}
_RHO = types_pb2.Spend(rho=1.0)
_XY = ["x", "y"]

TABLE = PublicTable(
    "people",
    (
        NumericColumn("x", -1.0, 1.0, (-1.0, -0.2, 0.3, 1.0)),
        NumericColumn("y", 0.0, 10.0),
        NumericColumn("m", -2.0, 2.0, nullable=True),
    ),
    Adjacency.ADD_REMOVE_ONE,
    1,
    20_000,
    tuple(CategoricalColumn(name, tuple("pqr")) for name in ("a", "b", "c")),
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


REQUESTS: Mapping[str, tuple[str, Any]] = {
    "mixture": ("dpem", _dpem()),
    "k-means": ("dpem", _dpem(mode=fit_pb2.MODE_KMEANS, clip_radius=1.0)),
    "diagonal": ("dpem", _dpem(covariance_type=3, moments=2, columns=["x"])),
    "location": ("gradient_em", _gradient(model=1, noise_std=0.5)),
    "regressions": ("gradient_em", _gradient(model=2, columns=["x"], target="y", n_components=2)),
    "one regression": ("gradient_em", _gradient(model=2, columns=["x"], target="y", symmetric=True, variant=4)),
    "missing": ("gradient_em", _gradient(model=3, columns=["m", "x"], target="y", averaged=1)),
    "components": ("gradient_em", _gradient(model=4, n_components=2, units=2)),
    "dense sketch": ("sketch", _sketch(new_sketch=_new(sigma=0.2))),
    "fast sketch": (
        "sketch",
        _sketch(
            new_sketch=_new(
                structure=fit_pb2.FREQUENCY_STRUCTURE_HADAMARD, pilot=fit_pb2.PilotSketch(share=0.2, n_frequencies=16)
            )
        ),
    ),
    "one bit": (
        "sketch",
        _sketch(new_sketch=_new(sigma=0.2, frequencies_per_row=4, signature=fit_pb2.SIGNATURE_ONE_BIT)),
    ),
    "cliques": ("mrf", _field(cliques=_cliques(("a", "x"), ("b", "c")))),
    "tree": ("mrf", _field(tree=fit_pb2.SelectTree(share=0.3), columns=["a", "b", "c", "x"])),
    "chain": ("mrf", _field(chain=fit_pb2.HomogeneousChain(columns=["b", "c"], null_category="r"))),
    "separated": ("separated_gmm", _separated()),
    "separated, aggregated": ("separated_gmm", _separated(estimator=2, min_weight=0.1)),
    "separated, searched": ("separated_gmm", _separated(search=2, min_weight=0.1, separation=1.0, radius=2.0)),
    "separated, projected": ("separated_gmm", _separated(variant=3, public_seed=9)),
    "separated, by steps": ("separated_gmm", _separated(variant=2, units=2)),
}
"""By what they show: the fit, and its request."""

FEW = ("mixture", "components", "dense sketch", "tree", "separated")
"""One of each fit."""


@dataclass(frozen=True)
class Best:
    """Searches without chance: the first of the best candidates."""

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """See `SearchSource`."""
        return scores.locate(scores.counts(1).top, 0)


def planned(name: str) -> Any:
    """The plan of a request of `REQUESTS`."""
    module, request = REQUESTS[name]
    return MODULES[module].plan(request, TABLE, lambda entry: None)


def fitted(name: str, rows: Rows, engine: Engine) -> bytes:
    """The model that an engine's exact integers make, as it would be stored; rows have the columns of the plan."""
    plan = planned(name)
    session = Session(
        rows=rows,
        columns=len(plan.columns),
        adjacency=TABLE.adjacency,
        unit_cap=TABLE.unit_cap,
        meter=Meter(ORDER, cost_units(plan.events, ORDER)),
        source=NoNoise(),
        search_source=Best(),
        engine=engine,
    )
    model: bytes = MODULES[REQUESTS[name][0]].run(plan, session).SerializeToString(deterministic=True)
    return model


def people(name: str, n: int) -> ArrayRows:
    """Made-up rows with the columns of a plan, every seventh slot null."""
    rows = made_up_rows(TABLE, planned(name).columns, n, 5)
    return ArrayRows(rows.columns, np.arange(n) % 7 > 0)
