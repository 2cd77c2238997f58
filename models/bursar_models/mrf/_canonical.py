"""Canonical log-potentials: of all that give the same model, the smallest.

Different log-potentials give the same model if they differ by constants, or by a function of shared variables that
moves from one clique to another (Wainwright and Jordan 2008, section 3.2, "overcomplete"). Fitting ends at arbitrary
ones, often orders of magnitude above the dependences that they express.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_models.mrf._graph import Graph
from bursar_models.mrf._inference import spread, sum_to

_MOST_SHARED = 512
"""Maximum number of sets of several variables between which functions are moved; beyond it only single variables.

Chosen, not tuned: bounds the quadratic search for intersections.
"""


def canonical(graph: Graph, theta: Sequence[FloatArray]) -> tuple[list[FloatArray], float]:
    """Return log-potentials of the same model with mean 0 and the least sum of squares.

    Functions of shared variables are divided among their cliques in inverse proportion to the cliques' other cells.
    Large sets of variables come first, because this changes nothing for sets before.

    Args:
        graph: graph of the model.
        theta: log-potentials, one array for each of `graph.cliques`.

    Returns:
        Log-potentials, and the decrease of the log-partition function A(theta). If something overflows: theta
        unchanged, and 0.
    """
    found = [np.array(table) for table in theta]
    # Potentials of a wild noisy table may overflow when they are added: the model is then left as it was.
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
    """Return canonical log-potentials of a time-homogeneous chain, and the decrease of its log-partition function.

    With more than two steps only constants are arbitrary.
    """
    if steps == 2:
        (first, transition), less = canonical(Graph(transition.shape, ((0,), (0, 1))), [first, transition])
        return first, transition, less
    (first,), less = canonical(Graph(first.shape, ()), [first])
    (transition,), more = canonical(Graph(transition.shape, ((0, 1),)), [transition])
    return first, transition, less + (steps - 1) * more


def _divide(graph: Graph, theta: list[FloatArray], variables: tuple[int, ...]) -> None:
    """Move functions of `variables` between the cliques that contain them, so that all have the same sums."""
    holders = [index for index, clique in enumerate(graph.cliques) if set(variables) <= set(clique)]
    others = np.array([theta[index].size / graph.cells(variables) for index in holders])
    sums = [sum_to(theta[index], graph.cliques[index], variables) for index in holders]
    wanted = sum((one / cells for one, cells in zip(sums, others, strict=True)), np.zeros(())) / (1 / others).sum()
    for index, one, cells in zip(holders, sums, others, strict=True):
        theta[index] += spread((wanted - one) / cells, variables, graph.cliques[index])


def _shared(graph: Graph) -> list[tuple[int, ...]]:
    """Return the sets of variables that two or more cliques share, and single shared variables; the largest first."""
    singles = {frozenset([v]) for v in range(len(graph.sizes)) if sum(v in clique for clique in graph.cliques) > 1}
    # Different pairs share at most one variable, so only larger cliques have intersections to look for.
    several = _intersections(graph) if max(map(len, graph.cliques)) > 2 else set()
    return sorted((tuple(sorted(one)) for one in singles | several), key=lambda one: (-len(one), one))


def _intersections(graph: Graph) -> set[frozenset[int]]:
    """Return the sets of at least two variables that are intersections of cliques; none if there are too many."""
    closed: set[frozenset[int]] = set()
    found: set[frozenset[int]] = set()
    for clique in map(frozenset, graph.cliques):
        new = {common for other in closed if len(common := clique & other) > 1}
        found |= new
        closed |= {clique, *new}
        if len(found) > _MOST_SHARED:
            return set()
    return found
