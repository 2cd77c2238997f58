"""Tables of many small sets of variables under a model at once, and the cost of joining each of them.

Source: Koller and Friedman (2009), "Probabilistic Graphical Models", section 10.3.3 (queries outside of a clique).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_models.mrf._graph import Graph, JunctionTree
from bursar_models.mrf._inference import cached_tree, calibrate, spread, sum_to

Clique = tuple[int, ...]


def candidate_marginals(
    graph: Graph, theta: Sequence[FloatArray], cliques: Sequence[Clique]
) -> dict[Clique, FloatArray]:
    """Return the exact probabilities of those sets of variables that have all but one in a clique of the junction tree.

    All sets of one or two variables are such. A variable's joint table with one clique of the junction tree gives that
    with the next. The work is the cells of the junction tree times the states of all variables, and sums of these.

    Args:
        graph: graph of the model, with exact inference.
        theta: finite log-potentials, one array for each of `graph.cliques`, of its shape.
        cliques: sets of variables, ascending.
    """
    tree = cached_tree(graph)
    beliefs = calibrate(graph, theta, tree).beliefs
    neighbours, near = _neighbours(tree), _near(tree, cliques)
    singles = {v: sum_to(b, c, (v,)) for c, b in zip(tree.cliques, beliefs, strict=True) for v in c}
    found: dict[Clique, FloatArray] = {}
    for variable in range(len(graph.sizes)):
        reached = set[int]()
        for place, scope, table in _joint_tables(tree, beliefs, neighbours, variable):
            reached.add(place)
            for one in near[place].get(variable, ()):
                if one not in found:
                    found[one] = sum_to(table, scope, one)
        # In another part of the graph the variable is independent of the clique.
        for place in set(range(len(tree.cliques))) - reached:
            for one in near[place].get(variable, ()):
                others = tuple(v for v in one if v != variable)
                if one not in found:
                    joint = sum_to(beliefs[place], tree.cliques[place], others)
                    found[one] = spread(joint, others, one) * spread(singles[variable], (variable,), one)
    return found


def joined_cells(graph: Graph, cliques: Sequence[Clique]) -> dict[Clique, int]:
    """Return the cells of a junction tree in which a set has become a clique, for the sets of `candidate_marginals`.

    Nothing is allocated. A variable joins all cliques of the graph's junction tree on its way to the others.
    Triangulation from the beginning mostly needs fewer cells.
    """
    tree = cached_tree(graph)
    neighbours, near = _neighbours(tree), _near(tree, cliques)
    cells = [graph.cells(clique) for clique in tree.cliques]
    added: dict[Clique, int] = {}
    for variable, size in enumerate(graph.sizes):
        ways = dict(_walk(tree, neighbours, variable))
        for place, sets in enumerate(near):
            for one in sets.get(variable, ()):
                cost = (size - 1) * sum(cells[p] for p in ways[place]) if place in ways else math.prod(graph.shape(one))
                added[one] = min(added.get(one, cost), cost)
    return {one: sum(cells) + cost for one, cost in added.items()}


def _near(tree: JunctionTree, cliques: Sequence[Clique]) -> list[dict[int, list[Clique]]]:
    """Return, for each clique of the tree, by variable the sets that are within it and that variable."""
    found: list[dict[int, list[Clique]]] = [{} for _ in tree.cliques]
    for place, clique in enumerate(tree.cliques):
        inside = set(clique)
        for one in cliques:
            outside = [v for v in one if v not in inside]
            if len(outside) <= 1:
                found[place].setdefault((outside or one)[0], []).append(one)
    return found


def _neighbours(tree: JunctionTree) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in tree.cliques]
    for child, parent in enumerate(tree.parents):
        if parent >= 0:
            found[child].append(parent)
            found[parent].append(child)
    return found


def _walk(tree: JunctionTree, neighbours: Sequence[Sequence[int]], variable: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the cliques of a variable's component, nearer ones first, each with those on the way that lack it."""
    home = next(place for place, clique in enumerate(tree.cliques) if variable in clique)
    stack: list[tuple[int, int, list[int]]] = [(home, -1, [])]
    while stack:
        place, before, path = stack.pop()
        path = [] if variable in tree.cliques[place] else [*path, place]
        yield place, path
        stack += [(other, place, path) for other in neighbours[place] if other != before]


def _joint_tables(
    tree: JunctionTree, beliefs: Sequence[FloatArray], neighbours: Sequence[Sequence[int]], variable: int
) -> Iterator[tuple[int, Clique, FloatArray]]:
    """Yield, for each clique of a variable's component, its place, and the probabilities of both together."""
    home = next(place for place, clique in enumerate(tree.cliques) if variable in clique)
    stack = [(other, home, tree.cliques[home], beliefs[home]) for other in neighbours[home]]
    yield home, tree.cliques[home], beliefs[home]
    while stack:
        place, before, scope, table = stack.pop()
        clique, belief = tree.cliques[place], beliefs[place]
        if variable not in clique:
            shared = tuple(v for v in clique if v in tree.cliques[before])
            outer = sum_to(table, scope, (variable, *shared))
            inner = spread(sum_to(belief, clique, shared), shared, clique)
            given = np.divide(belief, inner, out=np.zeros(belief.shape), where=inner > 0)
            scope, table = (variable, *clique), spread(outer, (variable, *shared), (variable, *clique)) * given
        else:
            scope, table = clique, belief
        yield place, scope, table
        stack += [(other, place, scope, table) for other in neighbours[place] if other != before]
