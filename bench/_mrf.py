"""Shared parts of the benchmarks of random fields: models that are known, their tables, noise, divergences."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_amounts import rho_of
from bursar_ledger import Adjacency, cost_units
from bursar_models import MarkovRandomField
from bursar_models.mrf import Graph, NoisyTable, Variable
from bursar_models.mrf._inference import cached_tree, calibrate, draw, exact
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, PublicTable, mrf
from bursar_server.vault import (
    ArrayRows,
    Bounds,
    ExactNoise,
    Meter,
    Noise,
    Rows,
    Session,
    SyntheticBudget,
    gaussian_for,
    laplace_for,
    noise_std,
    sensitivity,
)

Array = NDArray[np.float64]
States = NDArray[np.uint8]
Clique = tuple[int, ...]

DELTA = 1e-6
BLOCK = 100_000
"""Rows that are drawn at a time."""

LEAST_POTENTIAL = 1e-12
"""A Dirichlet draw below it, which double precision may return as 0, counts as this much."""


def third_order(nodes: int) -> list[Clique]:
    """Pairs of nodes at distance 1 to 3."""
    return [(i, j) for i, j in combinations(range(nodes), 2) if j - i <= 3]


def chain(nodes: int) -> list[Clique]:
    """Pairs of neighbours."""
    return [(i, i + 1) for i in range(nodes - 1)]


def erdos_renyi(nodes: int, edges: int, generator: np.random.Generator) -> list[Clique]:
    """A connected graph of so many edges, each as likely as any other: G(n, M), given that it is connected."""
    pairs = list(combinations(range(nodes), 2))
    while True:
        chosen = [pairs[index] for index in generator.choice(len(pairs), edges, replace=False)]
        component = list(range(nodes))
        for i, j in chosen:
            component = [component[i] if one == component[j] else one for one in component]
        if len(set(component)) == 1:
            return sorted(chosen)


def chow_liu(sizes: tuple[int, ...], rows: States) -> list[Clique]:
    """The tree of the largest likelihood on these rows (Chow and Liu 1968): not private."""
    graph = Graph(sizes, ())
    information = {}
    for pair in combinations(range(len(sizes)), 2):
        joint = table_of(graph, pair, rows) / len(rows)
        alone = np.outer(joint.sum(axis=1), joint.sum(axis=0))
        information[pair] = float(np.sum(joint[joint > 0] * np.log(joint[joint > 0] / alone[joint > 0])))
    component, edges = list(range(len(sizes))), []
    for i, j in sorted(information, key=lambda pair: -information[pair]):
        if component[i] != component[j]:
            edges.append((i, j))
            component = [component[i] if one == component[j] else one for one in component]
    return sorted(edges)


@dataclass(frozen=True, eq=False)
class World:
    """A known random field and rows drawn from it.

    Attributes:
        graph: its graph.
        theta: its log-potentials.
        marginals: exact probabilities of its cliques.
        log_partition: A(theta).
        rows: states of drawn rows, (n, T).
    """

    graph: Graph
    theta: list[Array]
    marginals: list[Array]
    log_partition: float
    rows: States

    def tables(self, n: int) -> list[NDArray[np.int64]]:
        """Contingency tables of the cliques, of the first n rows."""
        return [table_of(self.graph, clique, self.rows[:n]) for clique in self.graph.cliques]

    def entropy(self) -> float:
        """Return the entropy of the true distribution, in nats."""
        return self.log_partition - inner(self.theta, self.marginals)

    def divergence(self, log_potentials: Sequence[Array], log_partition: float) -> float:
        """KL(truth || model) in nats: exact, as both have potentials on the same cliques.

        E_p log p - E_p log q, where each is linear in p's marginals of the cliques.
        """
        return log_partition - inner(log_potentials, self.marginals) - self.entropy()


def log_partition_of(graph: Graph, theta: Sequence[Array]) -> float:
    """A(theta), exactly."""
    return exact(graph, theta)[1]


def inner(theta: Sequence[Array], marginals: Sequence[Array]) -> float:
    """Sum over cliques and cells of log-potential times probability."""
    return float(sum(np.vdot(one, other) for one, other in zip(theta, marginals, strict=True)))


def table_of(graph: Graph, clique: Clique, rows: States) -> NDArray[np.int64]:
    """Numbers of rows (n, T) in each cell of a clique's table."""
    shape = graph.shape(clique)
    cells = np.ravel_multi_index([rows[:, variable] for variable in clique], shape)
    return np.bincount(cells, minlength=graph.cells(clique)).reshape(shape).astype(np.int64)


def world(graph: Graph, n: int, generator: np.random.Generator) -> World:
    """Potentials from a flat Dirichlet distribution on each clique's cells (paper, section 4.1), and n rows."""
    theta = [
        np.log(np.maximum(generator.dirichlet(np.ones(graph.cells(c))), LEAST_POTENTIAL)).reshape(graph.shape(c))
        for c in graph.cliques
    ]
    marginals, log_partition = exact(graph, theta)
    tree = cached_tree(graph)
    calibrated = calibrate(graph, theta, tree)
    blocks = [
        draw(graph, calibrated, generator.random((min(BLOCK, n - first), len(tree.cliques)))).astype(np.uint8)
        for first in range(0, n, BLOCK)
    ]
    return World(graph, theta, marginals, log_partition, np.concatenate(blocks))


ONE_CELL = Bounds(l1=1, l2_squared=1, l1_distance=2, l2_squared_distance=2, non_negative=True)
"""A row adds 1 to one cell of a table."""


def noise_for(tables: int, epsilon: float, *, pure: bool) -> Noise:
    """Noise on each of several tables that together cost pure epsilon, or (epsilon, `DELTA`), under ADD_REMOVE_ONE."""
    one = sensitivity(ONE_CELL, Adjacency.ADD_REMOVE_ONE, 1)
    if pure:
        return laplace_for(one, Fraction(epsilon) / tables)
    return gaussian_for(one, Fraction(rho_of(epsilon, DELTA)) / tables)


def released(graph: Graph, tables: Sequence[NDArray[np.int64]], noise: Noise, *, pure: bool) -> list[NoisyTable]:
    """The cliques' tables with exact noise."""
    source, std = ExactNoise(), noise_std(noise, 1.0)
    return [
        NoisyTable(clique, source.add(table, noise).astype(np.float64), std, pure)
        for clique, table in zip(graph.cliques, tables, strict=True)
    ]


def without_noise(graph: Graph, tables: Sequence[NDArray[np.int64]]) -> list[NoisyTable]:
    """The cliques' tables as they are."""
    return [
        NoisyTable(clique, table.astype(np.float64), 0.0) for clique, table in zip(graph.cliques, tables, strict=True)
    ]


# --- whole fits ---------------------------------------------------------------------------------------------

ORDER = Fraction(9)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model that the server fitted, with indices of variables for names.

    Attributes:
        graph: its graph.
        theta: log-potentials of the graph's cliques.
        log_partition: A(theta), or its Bethe approximation.
        marginals: of the cliques under the model.
        tables: the noisy tables that it was learnt from.
        evaluations: of the model's marginals.
    """

    graph: Graph
    theta: list[Array]
    log_partition: float
    marginals: list[Array]
    tables: list[NoisyTable]
    evaluations: int

    def score(self, rows: States) -> float:
        """Mean log-probability of rows (n, T), in nats."""
        return score(self.graph, self.theta, self.log_partition, rows)


def score(graph: Graph, theta: Sequence[Array], log_partition: float, rows: States) -> float:
    """Mean log-probability of rows (n, T) under a model, in nats."""
    frequencies = [table_of(graph, clique, rows) / len(rows) for clique in graph.cliques]
    return inner(theta, frequencies) - log_partition


def numeric_columns(sizes: Sequence[int]) -> tuple[BoundedColumn, ...]:
    """Columns x0, x1, ... with as many bins as there are states, whose values are their states."""
    return tuple(
        BoundedColumn(f"x{i}", 0.0, float(size), tuple(float(edge) for edge in range(size + 1)))
        for i, size in enumerate(sizes)
    )


def fit(request: fit_pb2.FitMRFRequest, rows: Rows, columns: tuple[BoundedColumn, ...]) -> fit_pb2.MRFModel:
    """One fit as the server runs it, under ADD_REMOVE_ONE: plan, meter, exact sums, exact noise, estimate.

    Args:
        request: names all columns, in their order, or needs all.
        rows: their values; one row is one privacy unit.
        columns: of the public table.
    """
    request.columns[:] = [column.name for column in columns]
    table = PublicTable("bench", columns, Adjacency.ADD_REMOVE_ONE, 1, rows.slots)
    plan = mrf.plan(request, table, lambda entry: None)
    session = Session(
        rows=rows,
        columns=len(columns),
        adjacency=table.adjacency,
        unit_cap=1,
        meter=Meter(SyntheticBudget(ORDER, cost_units(plan.events, ORDER))),
        source=ExactNoise(),
    )
    return mrf.run(plan, session)


def fitted(model: fit_pb2.MRFModel) -> Fitted:
    """A model from the wire."""
    names = [variable.column for variable in model.variables]
    sizes = tuple(len(variable.states) for variable in model.variables)
    cliques = [tuple(names.index(column) for column in potential.columns) for potential in model.potentials]
    graph = Graph(sizes, tuple(cliques))
    theta: dict[Clique, Array] = {clique: np.zeros(graph.shape(clique)) for clique in graph.cliques}
    marginals = dict(theta)
    for clique, potential in zip(cliques, model.potentials, strict=True):
        ascending, order = tuple(sorted(clique)), np.argsort(clique)
        theta[ascending] = array(potential.log_potential).transpose(order)
        marginals[ascending] = array(potential.marginal).transpose(order)
    tables = [
        NoisyTable(tuple(names.index(column) for column in one.columns), array(one.counts), one.noise_std, one.laplace)
        for one in model.tables
    ]
    return Fitted(
        graph,
        [theta[clique] for clique in graph.cliques],
        model.log_partition,
        [marginals[clique] for clique in graph.cliques],
        tables,
        model.iterations,
    )


def markov_random_field(one: Fitted) -> MarkovRandomField:
    """The SDK's model."""
    names = [f"x{i}" for i in range(len(one.graph.sizes))]
    return MarkovRandomField(
        variables_=tuple(
            Variable(name, tuple(map(str, range(size)))) for name, size in zip(names, one.graph.sizes, strict=True)
        ),
        cliques_=tuple(tuple(names[v] for v in clique) for clique in one.graph.cliques),
        log_potentials_=tuple(one.theta),
        marginals_=tuple(one.marginals),
        log_partition_=one.log_partition,
    )


def array(tensor: types_pb2.Tensor) -> Array:
    """Numbers of a tensor in its shape."""
    return np.array(tensor.values).reshape(tuple(tensor.shape))


def cliques_request(cliques: Sequence[Clique], epsilon: float, *, pure: bool) -> fit_pb2.FitMRFRequest:
    """A request for tables over these cliques of columns x0, x1, ..."""
    messages = [fit_pb2.Clique(columns=[f"x{v}" for v in clique]) for clique in cliques]
    return fit_pb2.FitMRFRequest(spend=spend(epsilon, pure=pure), cliques=fit_pb2.Cliques(cliques=messages))


def spend(epsilon: float, *, pure: bool) -> types_pb2.Spend:
    """Pure epsilon, or (epsilon, `DELTA`)."""
    if pure:
        return types_pb2.Spend(epsilon=epsilon)
    return types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=epsilon, delta=DELTA))


def array_rows(states: States) -> ArrayRows:
    """Rows (n, T) for a session."""
    return ArrayRows(np.ascontiguousarray(states.T, dtype=np.float64))


# --- private-pgm --------------------------------------------------------------------------------------------


def private_pgm(
    interpreter: Path, graph: Graph, tables: Sequence[NoisyTable], iterations: int
) -> tuple[Graph, list[Array], float, str]:
    """Mirror descent of private-pgm on the same noisy tables, by an interpreter that has it.

    Returns:
        The graph of its potentials, the potentials, seconds with its compilation, and its version.
    """
    cliques = [table.variables for table in tables]
    arrays: dict[str, Any] = {f"v{c}": np.array(clique) for c, clique in enumerate(cliques)}
    arrays |= {f"y{c}": table.counts for c, table in enumerate(tables)}
    program = Path(__file__).with_name("_private_pgm.py")
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder, "tables.npz"), Path(folder, "potentials.npz")
        stds = np.array([table.std for table in tables])
        np.savez(given, sizes=np.array(graph.sizes), stds=stds, iterations=np.array(iterations), **arrays)
        subprocess.run([interpreter, "-W", "ignore", program, given, answer], check=True)
        found = np.load(answer)
        theirs = Graph(graph.sizes, tuple(cliques))
        places = {tuple(sorted(clique)): c for c, clique in enumerate(cliques)}
        theta = [
            found[f"t{places[clique]}"].astype(np.float64) if clique in places else np.zeros(theirs.shape(clique))
            for clique in theirs.cliques
        ]
        return theirs, theta, float(found["seconds"]), str(found["version"])
