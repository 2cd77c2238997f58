"""Learning of a field from released tables: the same code runs on the server and in the client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bursar_models.mrf._estimation import (
    Estimate,
    Estimator,
    Inference,
    estimate,
    estimate_chain,
    estimated_rows,
    merge,
)
from bursar_models.mrf._graph import Graph, check_cliques
from bursar_models.mrf._inference import sum_to
from bursar_models.mrf._markov_random_field import ReleasedTable
from bursar_models.mrf._problem import LEAST_STD, NoisyTable

_BELIEVED = 4.0
"""Deviation of noisy totals from a public number of rows, in standard errors, from which the totals are used instead.

Exceeded by chance once in 16,000 fits.
"""


@dataclass(frozen=True)
class Learning:
    """Specification of a field to learn from released tables; all of it is public.

    Attributes:
        names: names of the variables.
        sizes: number of states of each variable.
        cliques: cliques with a potential, as indices of variables; empty for a chain.
        chain: True if the variables are the steps of a homogeneous chain, at least two with the same states.
        public_rows: number of rows if it is public, else None.
        estimator: estimator of `estimate`.
        regularization: penalty of `estimate`.
        inference: inference of `estimate`.
        ordered: number of ordered bins of each variable that has any, by its index.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    cliques: tuple[tuple[int, ...], ...]
    chain: bool
    public_rows: float | None
    estimator: Estimator = "cgm"
    regularization: float | None = None
    inference: Inference = "auto"
    ordered: Mapping[int, int] = field(default_factory=dict)

    @property
    def potentials(self) -> tuple[tuple[str, ...], ...]:
        """Names of the columns of each potential; for a chain, those of the first state and of a transition."""
        if self.chain:
            first, second, *_ = self.names
            return (first,), (first, second)
        return tuple(tuple(self.names[variable] for variable in clique) for clique in self._graph.cliques)

    def check(self) -> None:
        """Check that the tables are within the limits of a server, which bound the memory of an estimate.

        Raises:
            ValueError: the tables are too large.
        """
        graph = Graph(self.sizes[:2], ((0, 1),)) if self.chain else self._graph
        check_cliques(graph, self.names)

    def learn(self, tables: Sequence[ReleasedTable]) -> Estimate:
        """Estimate the field, with log-potentials and marginals in the order of `potentials`.

        Args:
            tables: all tables released for the field.

        Raises:
            ValueError: no table can be used, or one has another shape than the variables.
        """
        if not all(table.counts.ndim == len(table.columns) for table in tables):
            raise ValueError("tables: expected one axis for each column")
        return self._of_chain(tables) if self.chain else self._of_graph(tables)

    @property
    def _graph(self) -> Graph:
        return Graph(self.sizes, self.cliques)

    def _of_graph(self, tables: Sequence[ReleasedTable]) -> Estimate:
        used = used_tables(self.names, self._graph, tables)
        return estimate(
            self._graph,
            used,
            believed_rows(self.public_rows, used),
            estimator=self.estimator,
            regularization=self.regularization,
            inference=self.inference,
            ordered=self.ordered,
        )

    def _of_chain(self, tables: Sequence[ReleasedTable]) -> Estimate:
        # Several releases of the same table are averaged.
        found = [
            merge([NoisyTable(axes, t.counts, t.noise_std, t.laplace) for t in tables if len(t.columns) == len(axes)])
            for axes in ((0,), (0, 1))
        ]
        if not all(found):
            raise ValueError("tables: expected those of first states and of transitions")
        (firsts,), (transitions,) = found
        return estimate_chain(
            len(self.names),
            self.sizes[0],
            transitions,
            firsts,
            believed_rows(self.public_rows, (firsts, transitions)),
            estimator=self.estimator,
            regularization=self.regularization,
        )


def used_tables(names: Sequence[str], graph: Graph, tables: Sequence[ReleasedTable]) -> list[NoisyTable]:
    """Return the information of tables about a graph's cliques: tables within a clique, and sums over larger tables.

    Tables that are held out have no part in it.

    Args:
        names: names of the graph's variables.
        graph: graph of the model.
        tables: released tables over any columns.
    """
    indices = {name: index for index, name in enumerate(names)}
    found = []
    for table in tables:
        if table.held_out:
            continue
        # Columns that are not variables get indices beyond them, and are summed out.
        scope = tuple(indices.get(column, len(indices) + axis) for axis, column in enumerate(table.columns))
        if any(set(scope) <= set(clique) for clique in graph.cliques):
            found.append(NoisyTable(scope, table.counts, table.noise_std, table.laplace))
            continue
        held = [clique for clique in graph.cliques if set(clique) <= set(scope)]
        for clique in held:
            # Only the largest: a clique within another would count the same noisy cells twice.
            if not any(set(clique) < set(other) for other in held):
                summed = math.sqrt(table.counts.size / graph.cells(clique))
                found.append(NoisyTable(clique, sum_to(table.counts, scope, clique), table.noise_std * summed))
    return found


def believed_rows(public_rows: float | None, tables: Sequence[NoisyTable]) -> float | None:
    """Return the public number of rows; None if it should be estimated from the tables.

    It is estimated where it is private, and where the released totals are far from it: rows that are null, because one
    of their values has no state, are in the public number and in no table.
    """
    if public_rows is None or not tables:
        return None
    error = sum(1 / (table.counts.size * max(table.std, LEAST_STD) ** 2) for table in tables) ** -0.5
    believed = abs(estimated_rows(tables) - public_rows) <= _BELIEVED * error
    return float(public_rows) if believed else None
