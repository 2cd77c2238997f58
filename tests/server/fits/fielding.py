"""FitMRF in tests: public tables with states, requests, plans and runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency
from bursar_models.mrf import MarkovRandomField, Variable
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, CodedColumn, PublicTable, mrf
from bursar_server.vault import ArrayRows, LocalEngine, Statistic, exact_sum
from tests.server.fits.running import Array, array, nothing_released, session

RHO = types_pb2.Spend(rho=1.0)
PURE = types_pb2.Spend(epsilon=2.0)
AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE

SIZES = {"a": 2, "b": 3, "c": 4, "d": 3}
"""Categorical columns of `people`, and their numbers of categories."""
EDGES = (0.0, 1.0, 2.5, 10.0)
"""Edges of the bins of its numeric column x; y has none."""


def people(*, adjacency: Adjacency = RO, unit_cap: int = 1, rows: int | None = 5000, **sizes: int) -> PublicTable:
    """A public table: categorical a, b, c, d (or as `sizes` says), x in bins and y without."""
    categorical = tuple(
        CodedColumn(name, tuple(f"{name}{i}" for i in range(size))) for name, size in (sizes or SIZES).items()
    )
    numeric = (BoundedColumn("x", 0.0, 10.0, EDGES), BoundedColumn("y", 0.0, 1.0))
    return PublicTable("people", numeric, adjacency, unit_cap, rows, categorical)


def cliques(*columns: Sequence[str], precisions: Sequence[float] = ()) -> fit_pb2.Cliques:
    """A listed graph."""
    given = [*precisions, *[0.0] * len(columns)]
    return fit_pb2.Cliques(
        cliques=[fit_pb2.Clique(columns=c, precision=p) for c, p in zip(columns, given, strict=False)]
    )


PAIRS = cliques("ab", "bc", "cd")


def request(**fields: Any) -> fit_pb2.FitMRFRequest:
    """A valid request but for what is given; for three pairs where no graph is."""
    defaults: dict[str, Any] = {"request_id": "r", "dataset": "people", "spend": RHO}
    if not {"cliques", "tree", "auto", "chain", "independent"} & fields.keys():
        defaults["cliques"] = PAIRS
    merged = {**defaults, **fields}
    return fit_pb2.FitMRFRequest(**{name: value for name, value in merged.items() if value is not None})


def plan(public: PublicTable | None = None, released: Any = nothing_released, **fields: Any) -> mrf.MRFPlan:
    """The plan of a request."""
    return mrf.plan(request(**fields), public or people(), released)


def run(made: mrf.MRFPlan, X: Array, **arguments: Any) -> fit_pb2.MRFModel:
    """Run a plan on rows X (n, columns of the plan); arguments as `running.session` has them."""
    return mrf.run(made, session(made, X, **arguments))


def nothing(made: mrf.MRFPlan) -> Array:
    """No rows at all."""
    return np.zeros((0, len(made.columns)))


def rows_of(n: int, seed: int = 0) -> Array:
    """Rows of a, b, c, d (n, 4), each column a noisy copy of the one before."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    columns = [generator.integers(0, 2, n)]
    for size in (3, 4, 3):
        copied = (columns[-1] + 1) % size
        columns.append(np.where(generator.random(n) < 0.7, copied, generator.integers(0, size, n)))
    return np.stack(columns, axis=1).astype(np.float64)


def variables(*sizes: int) -> tuple[Variable, ...]:
    """Categorical variables v0, v1, ..."""
    return tuple(Variable(f"v{i}", tuple(map(str, range(size)))) for i, size in enumerate(sizes))


def summed(statistic: Statistic, X: Array, present: Any = None, threads: int = 1) -> NDArray[np.int64]:
    """The exact sum over rows X (n, columns)."""
    return exact_sum(statistic, ArrayRows(np.ascontiguousarray(X.T), present), X.shape[1], engine=LocalEngine(threads))


def field_of(model: fit_pb2.MRFModel) -> MarkovRandomField:
    """The model as a client has it, whose constructor checks every field."""
    return MarkovRandomField(
        variables_=tuple(Variable(v.column, tuple(v.states), tuple(v.edges)) for v in model.variables),
        cliques_=tuple(tuple(p.columns) for p in model.potentials),
        log_potentials_=tuple(array(p.log_potential) for p in model.potentials),
        marginals_=tuple(array(p.marginal) for p in model.potentials),
        log_partition_=model.log_partition,
        n_rows=model.n_rows,
        inference="loopy" if model.inference == fit_pb2.MRF_INFERENCE_LOOPY else "exact",
        homogeneous_chain=model.homogeneous_chain,
    )
