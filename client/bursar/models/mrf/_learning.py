"""From released tables to the estimate of a field: what a server or a client does with them, by the same code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bursar.models.mrf._estimation import (
    Estimate,
    Estimator,
    Inference,
    estimate,
    estimate_chain,
    estimated_rows,
    merge,
)
from bursar.models.mrf._graph import Graph, check_cliques
from bursar.models.mrf._inference import sum_to
from bursar.models.mrf._markov_random_field import ReleasedTable
from bursar.models.mrf._problem import LEAST_STD, NoisyTable

_BELIEVED = 4.0
"""Standard errors by which noisy totals may miss a public number of rows before they are believed instead."""


@dataclass(frozen=True)
class Learning:
    """What is to be learnt from released tables. All of it is public.

    Attributes:
        names: of the variables.
        sizes: number of states of each.
        cliques: with a potential, as indices of variables; of a chain: none.
        chain: the variables are the steps of a homogeneous chain, at least two of the same states.
        public_rows: number of rows if it is public, else None.
        estimator: see `estimate`.
        regularization: likewise.
        inference: likewise.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    cliques: tuple[tuple[int, ...], ...]
    chain: bool
    public_rows: float | None
    estimator: Estimator = "cgm"
    regularization: float | None = None
    inference: Inference = "auto"

    @property
    def potentials(self) -> tuple[tuple[str, ...], ...]:
        """Names of the columns of each potential; of a chain: of the first states, and of transitions."""
        if self.chain:
            first, second, *_ = self.names
            return (first,), (first, second)
        return tuple(tuple(self.names[variable] for variable in clique) for clique in self._graph.cliques)

    def check(self) -> None:
        """That the tables are within the limits of a server, which bound the memory of an estimate.

        Raises:
            ValueError: they are not.
        """
        graph = Graph(self.sizes[:2], ((0, 1),)) if self.chain else self._graph
        check_cliques(graph, self.names)

    def learn(self, tables: Sequence[ReleasedTable]) -> Estimate:
        """The field, with log-potentials and marginals in the order of `potentials`.

        Args:
            tables: all that were released for it.

        Raises:
            ValueError: no table is of use, or one has another shape than the variables.
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
        )

    def _of_chain(self, tables: Sequence[ReleasedTable]) -> Estimate:
        # Means of what is there, if more than one release has them.
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
    """What tables say about a graph's cliques: they themselves within a clique, sums of them where they hold some.

    Args:
        names: of the graph's variables.
        graph: the graph.
        tables: over any columns.
    """
    indices = {name: index for index, name in enumerate(names)}
    found = []
    for table in tables:
        # Columns that are no variables have numbers of their own, so that they are summed over.
        scope = tuple(indices.get(column, len(indices) + axis) for axis, column in enumerate(table.columns))
        if any(set(scope) <= set(clique) for clique in graph.cliques):
            found.append(NoisyTable(scope, table.counts, table.noise_std, table.laplace))
            continue
        held = [clique for clique in graph.cliques if set(clique) <= set(scope)]
        for clique in held:
            if not any(set(clique) < set(other) for other in held):
                summed = math.sqrt(table.counts.size / graph.cells(clique))
                found.append(NoisyTable(clique, sum_to(table.counts, scope, clique), table.noise_std * summed))
    return found


def believed_rows(public_rows: float | None, tables: Sequence[NoisyTable]) -> float | None:
    """The public number of rows; None to let the tables say it.

    That is where it is private, and where the released totals are far from it: rows that are null, because a value of
    theirs has no state, are in the public number and in no table.
    """
    if public_rows is None or not tables:
        return None
    error = sum(1 / (table.counts.size * max(table.std, LEAST_STD) ** 2) for table in tables) ** -0.5
    believed = abs(estimated_rows(tables) - public_rows) <= _BELIEVED * error
    return float(public_rows) if believed else None
