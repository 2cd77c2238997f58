"""All pairs of variables of a model at once: their tables, and the cost of joining them.

Source: Koller and Friedman (2009), "Probabilistic Graphical Models", section 10.3.3 (queries outside of a clique).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_models.mrf._graph import Graph, JunctionTree
from bursar_models.mrf._inference import cached_tree, calibrate, spread, sum_to

Pair = tuple[int, int]


def pair_marginals(graph: Graph, theta: Sequence[FloatArray]) -> dict[Pair, FloatArray]:
    """Return the exact probabilities of all pairs of variables, the smaller index first.

    A variable's joint table with one clique of the junction tree gives that with the next. The work is the cells of the
    junction tree times the states of all variables.

    Args:
        graph: graph of the model, with exact inference.
        theta: finite log-potentials, one array for each of `graph.cliques`, of its shape.
    """
    tree = cached_tree(graph)
    beliefs = calibrate(graph, theta, tree).beliefs
    neighbours = _neighbours(tree)
    singles = {v: sum_to(b, c, (v,)) for c, b in zip(tree.cliques, beliefs, strict=True) for v in c}
    found: dict[Pair, FloatArray] = {}
    for a in range(len(graph.sizes)):
        for scope, table in _joint_tables(tree, beliefs, neighbours, a):
            for b in scope:
                if b > a and (a, b) not in found:
                    found[a, b] = sum_to(table, scope, (a, b))
    for a, b in combinations(range(len(graph.sizes)), 2):
        found.setdefault((a, b), np.outer(singles[a], singles[b]))
    return found


def joined_cells(graph: Graph) -> dict[Pair, int]:
    """Return the cells of a junction tree in which a pair has become a clique, for each pair; nothing is allocated.

    A variable joins all cliques of the graph's junction tree on its way to the other one. Triangulation from the
    beginning mostly needs fewer cells.
    """
    tree = cached_tree(graph)
    neighbours, cells = _neighbours(tree), [graph.cells(clique) for clique in tree.cliques]
    added: dict[Pair, int] = {}
    for a, size in enumerate(graph.sizes):
        for place, path in _walk(tree, neighbours, a):
            cost = (size - 1) * sum(cells[one] for one in path)
            for b in tree.cliques[place]:
                pair = (min(a, b), max(a, b))
                added[pair] = min(added.get(pair, cost), cost)
    pairs = combinations(range(len(graph.sizes)), 2)
    return {pair: sum(cells) + added.get(pair, math.prod(graph.shape(pair))) for pair in pairs}


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
) -> Iterator[tuple[tuple[int, ...], FloatArray]]:
    """Yield, for each clique of a variable's component, the probabilities of the variable with the clique's."""
    home = next(place for place, clique in enumerate(tree.cliques) if variable in clique)
    stack = [(other, home, tree.cliques[home], beliefs[home]) for other in neighbours[home]]
    yield tree.cliques[home], beliefs[home]
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
        yield scope, table
        stack += [(other, place, scope, table) for other in neighbours[place] if other != before]
