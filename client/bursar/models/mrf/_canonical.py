"""Of all log-potentials that give the same model, one set: the smallest.

Different log-potentials give the same model if they differ by constants, or by a function of variables that several
cliques have and that moves from one of them to another (Wainwright and Jordan 2008, section 3.2, "overcomplete").
Fitting leaves them wherever it went, orders of magnitude above the dependences that they speak of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bursar.models._arrays import FloatArray
from bursar.models.mrf._graph import Graph
from bursar.models.mrf._inference import spread, sum_to

_MOST_SHARED = 512
"""Sets of several variables between which functions are moved; where cliques share more, only those of one variable."""


def canonical(graph: Graph, theta: Sequence[FloatArray]) -> tuple[list[FloatArray], float]:
    """The same model with log-potentials of mean 0 and the least sum of squares.

    What cliques say of variables that they share is divided in inverse proportion to their other cells, for each set of
    shared variables, large ones first, as this changes nothing for those before.

    Args:
        graph: the graph.
        theta: log-potentials, one array for each of `graph.cliques`.

    Returns:
        Log-potentials, and by how much the log-partition function A(theta) is smaller with them. If these numbers are
        so large that something overflows: theta as it is, and 0.
    """
    found = [np.array(table) for table in theta]
    with np.errstate(over="ignore", invalid="ignore"):
        for variables in _shared(graph):
            _divide(graph, found, variables)
        means = [float(table.mean()) for table in found]
        found = [table - mean for table, mean in zip(found, means, strict=True)]
        less = float(np.sum(means))
    if not (np.isfinite(less) and all(np.isfinite(table).all() for table in found)):
        return list(theta), 0.0
    return found, less


def canonical_chain(steps: int, first: FloatArray, transition: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """As `canonical`, of a time-homogeneous chain; of more than two steps only constants are arbitrary."""
    if steps == 2:
        (first, transition), less = canonical(Graph(transition.shape, ((0,), (0, 1))), [first, transition])
        return first, transition, less
    (first,), less = canonical(Graph(first.shape, ()), [first])
    (transition,), more = canonical(Graph(transition.shape, ((0, 1),)), [transition])
    return first, transition, less + (steps - 1) * more


def _divide(graph: Graph, theta: list[FloatArray], variables: tuple[int, ...]) -> None:
    """Move functions of `variables` between the cliques that have them, so that all have the same sums."""
    holders = [index for index, clique in enumerate(graph.cliques) if set(variables) <= set(clique)]
    others = np.array([theta[index].size / graph.cells(variables) for index in holders])
    sums = [sum_to(theta[index], graph.cliques[index], variables) for index in holders]
    wanted = sum((one / cells for one, cells in zip(sums, others, strict=True)), np.zeros(())) / (1 / others).sum()
    for index, one, cells in zip(holders, sums, others, strict=True):
        theta[index] += spread((wanted - one) / cells, variables, graph.cliques[index])


def _shared(graph: Graph) -> list[tuple[int, ...]]:
    """Sets of variables that are all that two cliques or more have in common, and single ones; the largest first."""
    singles = {frozenset([v]) for v in range(len(graph.sizes)) if sum(v in clique for clique in graph.cliques) > 1}
    # Two pairs have no more than one variable in common.
    several = _intersections(graph) if max(map(len, graph.cliques)) > 2 else set()
    return sorted((tuple(sorted(one)) for one in singles | several), key=lambda one: (-len(one), one))


def _intersections(graph: Graph) -> set[frozenset[int]]:
    """Sets of at least two variables that are the intersection of cliques; none if there are too many."""
    closed: set[frozenset[int]] = set()
    found: set[frozenset[int]] = set()
    for clique in map(frozenset, graph.cliques):
        new = {common for other in closed if len(common := clique & other) > 1}
        found |= new
        closed |= {clique, *new}
        if len(found) > _MOST_SHARED:
            return set()
    return found
