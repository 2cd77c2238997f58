"""FitSketchKMeans in tests: requests, plans, runs, and sketches of other sites."""

from __future__ import annotations

from typing import Any

import numpy as np

from bursar_models import Frequencies
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import PublicTable, sketch
from tests.server.fits.running import Array, nothing_released, session, table

RHO = types_pb2.Spend(rho=1.0)
PURE = types_pb2.Spend(epsilon=1.0)


def new_request(**fields: Any) -> fit_pb2.FitSketchKMeansRequest:
    """A valid request for a new sketch of known scale but for what is given; `new_sketch` takes a dictionary."""
    new = fit_pb2.NewSketch(**{"n_frequencies": 100, **fields.pop("new_sketch", {"sigma": 0.1})})
    defaults: dict[str, Any] = {"request_id": "r", "dataset": "people", "spend": RHO, "n_clusters": 3, "n_init": 2}
    return fit_pb2.FitSketchKMeansRequest(new_sketch=new, **{**defaults, **fields})


def plan(public: PublicTable | None = None, **fields: Any) -> sketch.SketchPlan:
    """The plan of a request for a new sketch."""
    return sketch.plan(new_request(**fields), public or table(), nothing_released)


def run(made: sketch.SketchPlan, X: Array, **arguments: Any) -> fit_pb2.SketchModel:
    """Run a plan on rows X (n, d); arguments as `running.session` has them."""
    return sketch.run(made, session(made, X, **arguments))


def nothing(d: int = 2) -> Array:
    """No rows at all, for what computes from released numbers."""
    return np.zeros((0, d))


def foreign_sketch(m: int = 20, d: int = 2, seed: int = 0, **fields: Any) -> fit_pb2.Sketch:
    """A valid sketch of another site, of rows x0, x1, ... in [-10, 10], but for what is given."""
    frequencies = Frequencies(m, d, 0, 0.1)
    generator = np.random.default_rng(seed)  # noqa: TID251 - numbers of a test

    def every_column(value: float) -> types_pb2.Tensor:
        return types_pb2.Tensor(shape=[d], values=[value] * d)

    defaults: dict[str, Any] = {
        "columns": [f"x{i}" for i in range(d)],
        "centre": every_column(0.0),
        "unit": every_column(10.0),
        "lower": every_column(-10.0),
        "upper": every_column(10.0),
        "frequencies": fit_pb2.Frequencies(
            m=m,
            d=d,
            public_seed=0,
            law=fit_pb2.FREQUENCY_LAW_ADAPTED_RADIUS,
            structure=fit_pb2.FREQUENCY_STRUCTURE_DENSE,
            sigma=0.1,
            digest=frequencies.digest(),
        ),
        "signature": fit_pb2.SIGNATURE_EXPONENTIAL,
        "frequencies_per_row": m,
        "sums": types_pb2.Tensor(shape=[2, m], values=generator.normal(0.0, 100.0, 2 * m).tolist()),
        "noise_std": 10.0,
        "n_rows": 1000.0,
        "n_rows_std": 0.0,
        "sites": 1,
    }
    return fit_pb2.Sketch(**{**defaults, **fields})
