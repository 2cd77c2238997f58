"""What the fake server knows of Markov random fields: invented ones, of which all columns rise and fall together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np

from bursar._convert import tensor_from, tensor_to
from bursar.models import Graph
from bursar.models._arrays import FloatArray
from bursar.models.mrf._inference import chain_marginals, exact
from bursar_proto.v1 import catalog_pb2, fit_pb2

N_ROWS = 1000
TABLE_STD = 10.0
"""Standard deviation that a table of precision 1 claims; its counts have no noise."""

Scope = tuple[str, ...]


def fake_variables(request: fit_pb2.FitMRFRequest, schema: Sequence[catalog_pb2.Column]) -> list[fit_pb2.Variable]:
    """Variables of a model, in its order: as asked for, or as the schema has them.

    Raises:
        ValueError: a column that has no states.
    """
    known = {column.name: column for column in schema if _states(column)}
    listed = {name for clique in request.cliques.cliques for name in clique.columns}
    asked = [*request.chain.columns, *request.columns]
    if unknown := [name for name in (*asked, *sorted(listed)) if name not in known]:
        raise ValueError(f"columns: {unknown[0]!r} is no column with states")
    return [
        fit_pb2.Variable(column=name, states=_states(known[name]), edges=known[name].numeric.bin_edges)
        for name in asked or [name for name in known if name in listed or not listed]
    ]


def unpaid(
    request: fit_pb2.FitMRFRequest, variables: Sequence[fit_pb2.Variable], earlier: Sequence[fit_pb2.MRFModel]
) -> list[Scope]:
    """Columns of the tables that a request needs and no earlier model has; the pairs of a tree are always new."""
    chain = request.WhichOneof("graph") == "chain"
    alike = [model for model in earlier if model.unit_weights == _unit_weights(request)]
    of_chain = [m for m in alike if m.variables == list(variables) and m.null_category == request.chain.null_category]
    have = [table for model in (of_chain if chain else alike) for table in model.tables if table.pooled == chain]
    scopes = _scopes(request, variables)
    if request.WhichOneof("graph") == "tree":
        have = [table for table in have if len(table.columns) == 1]
    return [scope for scope in scopes if not any(set(scope) <= set(table.columns) for table in have)]


def fake_mrf(
    request: fit_pb2.FitMRFRequest,
    variables: Sequence[fit_pb2.Variable],
    earlier: Sequence[fit_pb2.MRFModel],
    entry: int,
) -> fit_pb2.MRFModel:
    """The model of a request, or what a client learns it from.

    Args:
        request: what was asked for.
        variables: `fake_variables` of it.
        earlier: whose tables are used again.
        entry: of the ledger, that pays for the other tables.
    """
    chain = request.WhichOneof("graph") == "chain"
    sizes = [len(variable.states) for variable in variables]
    scopes = [tuple(_names(variables).index(name) for name in scope) for scope in _scopes(request, variables)]
    graph = Graph(tuple(sizes[:2] if chain else sizes), tuple(scopes))
    theta = [_rising(graph.shape(clique)) for clique in graph.cliques]
    marginals, log_partition = chain_marginals(len(variables), *theta) if chain else exact(graph, theta)
    potentials = [
        fit_pb2.Potential(
            columns=[variables[variable].column for variable in clique],
            log_potential=tensor_to(potential),
            marginal=tensor_to(marginal),
        )
        for clique, potential, marginal in zip(graph.cliques, theta, marginals, strict=True)
    ]
    new = {frozenset(scope) for scope in unpaid(request, variables, earlier)}
    # A table may come with several models, and counts once.
    tables = {(t.entry, *t.columns): t for model in earlier for t in model.tables}
    model = fit_pb2.MRFModel(
        variables=variables,
        potentials=potentials,
        tables=[
            *tables.values(),
            *(_table(request, potential, entry) for potential in potentials if frozenset(potential.columns) in new),
        ],
        n_rows=N_ROWS,
        log_partition=log_partition,
        estimator=request.estimator or fit_pb2.MRF_ESTIMATOR_CGM,
        inference=request.inference or fit_pb2.MRF_INFERENCE_EXACT,
        iterations=1,
        homogeneous_chain=chain,
        null_category=request.chain.null_category,
        unit_weights=_unit_weights(request),
    )
    if request.estimate_on_client:
        for potential in model.potentials:
            potential.ClearField("log_potential")
            potential.ClearField("marginal")
        for name in ("n_rows", "log_partition", "iterations"):
            model.ClearField(name)
        model.inference = request.inference
        model.unestimated.regularization = request.regularization
        model.unestimated.public_rows = N_ROWS
    return model


def _states(column: catalog_pb2.Column) -> list[str]:
    """Labels of a column's states; none for numbers without bins."""
    edges = column.numeric.bin_edges
    last = len(edges) - 2
    bins = [f"[{low:g}, {high:g}{']' if i == last else ')'}" for i, (low, high) in enumerate(pairwise(edges))]
    return bins or list(column.categorical.categories)


def _unit_weights(request: fit_pb2.FitMRFRequest) -> fit_pb2.UnitWeights.ValueType:
    return request.unit_weights or fit_pb2.UNIT_WEIGHTS_ROWS


def _names(variables: Sequence[fit_pb2.Variable]) -> list[str]:
    return [variable.column for variable in variables]


def _scopes(request: fit_pb2.FitMRFRequest, variables: Sequence[fit_pb2.Variable]) -> list[Scope]:
    """Columns of every table, each once."""
    names = _names(variables)
    ones: list[Scope] = [(name,) for name in names]
    match request.WhichOneof("graph"):
        case "chain":
            return [(names[0],), (names[0], names[1])]
        case "tree":
            return [*ones, *pairwise(names)]
        case "cliques":
            listed = [tuple(sorted(clique.columns, key=names.index)) for clique in request.cliques.cliques]
            alone = [scope for scope in ones if not any(scope[0] in clique for clique in listed)]
            return [*listed, *alone]
    return ones


def _rising(shape: tuple[int, ...]) -> FloatArray:
    """Log-potentials under which all columns rise together."""
    places = np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij")
    return np.asarray(sum((a * b for a, b in combinations(places, 2)), np.zeros(shape)))


def _table(request: fit_pb2.FitMRFRequest, potential: fit_pb2.Potential, entry: int) -> fit_pb2.NoisyTable:
    scope = set(potential.columns)
    precision = next((c.precision for c in request.cliques.cliques if set(c.columns) == scope), 0.0) or 1.0
    return fit_pb2.NoisyTable(
        columns=potential.columns,
        counts=tensor_to(N_ROWS * tensor_from(potential.marginal)),
        noise_std=TABLE_STD / math.sqrt(precision),
        laplace=request.spend.WhichOneof("amount") == "epsilon",
        entry=entry,
        pooled=request.WhichOneof("graph") == "chain",
    )
