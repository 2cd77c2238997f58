"""Graphs of discrete variables, their triangulation and junction trees, from public sizes only; allocates no array.

Source: Koller and Friedman (2009), "Probabilistic Graphical Models", chapters 9 (elimination) and 10 (clique trees).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

MAX_VARIABLES = 64
"""Maximum number of variables of one graph. Chosen, not tuned: elimination costs are recomputed for all that remain."""

MAX_CLIQUE = 2**20
"""Maximum number of cells of one clique, and so of one released table: 8 MiB."""

MAX_CELLS = 2**22
"""Maximum number of cells of all cliques together: 32 MiB."""

MAX_TABLE = 2**24
"""Maximum number of cells of one table of the junction tree: 128 MiB."""

MAX_TREE = 2**25
"""Maximum number of cells of all tables of the junction tree together: 256 MiB for one number a cell.

Inference holds two.
"""


@dataclass(frozen=True)
class Graph:
    """Variables 0 to T - 1 with finite states, and the cliques that have a potential.

    Attributes:
        sizes: number of states of each variable, at least 1.
        cliques: sets of variables as ascending tuples, each once, in the given order. A variable in none of them gets a
            clique of its own at the end.

    Raises:
        ValueError: no variable or too many, a size below 1, or a clique that is empty, repeats a variable or names one
            that does not exist.
    """

    sizes: tuple[int, ...]
    cliques: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        sizes = tuple(int(size) for size in self.sizes)
        if not 1 <= len(sizes) <= MAX_VARIABLES:
            raise ValueError(f"sizes: expected 1 to {MAX_VARIABLES} variables, got {len(sizes)}")
        if not all(size >= 1 for size in sizes):
            raise ValueError(f"sizes: every variable must have at least 1 state, got {sizes}")
        cliques = list(dict.fromkeys(_clique(clique, len(sizes)) for clique in self.cliques))
        covered = {variable for clique in cliques for variable in clique}
        # A column in no clique still has a distribution, and needs a potential for it.
        cliques += [(variable,) for variable in range(len(sizes)) if variable not in covered]
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "cliques", tuple(cliques))

    def shape(self, variables: Iterable[int]) -> tuple[int, ...]:
        """Return the shape of a table over `variables`, in their order."""
        return tuple(self.sizes[variable] for variable in variables)

    def cells(self, variables: Iterable[int]) -> int:
        """Return the number of cells of a table over `variables`, as a Python integer of any size."""
        return math.prod(self.shape(variables))


def pairs_apart(graph: Graph) -> list[tuple[int, ...]]:
    """Return the pairs of variables that are in no clique together, ascending."""
    together = {pair for clique in graph.cliques for pair in combinations(clique, 2)}
    return [pair for pair in combinations(range(len(graph.sizes)), 2) if pair not in together]


@dataclass(frozen=True)
class JunctionTree:
    """Cliques of the triangulated graph as a forest with the running intersection property.

    Attributes:
        cliques: variables of each clique, those that its parent lacks first, then the separator. Parents come before
            children.
        parents: index of each clique's parent; -1 for the root of a component.
        separators: variables shared with the parent, in the order of the clique; empty for a root.
        homes: for each clique of the graph, the index of the smallest clique here that contains it.
    """

    cliques: tuple[tuple[int, ...], ...]
    parents: tuple[int, ...]
    separators: tuple[tuple[int, ...], ...]
    homes: tuple[int, ...]


def junction_tree(graph: Graph) -> JunctionTree:
    """Triangulate by min-fill and join the maximal cliques by a maximum spanning tree on separator sizes.

    Deterministic: ties go to the smaller table, then to the lower index.
    """
    cliques = _maximal_cliques(graph)
    parents, order = _spanning_forest(graph, cliques)
    # Parents are named by their place in the new order, in which they come before their children.
    place = {clique: rank for rank, clique in enumerate(order)}
    ordered, separators = [], []
    for index in order:
        parent = parents[index]
        separator = () if parent < 0 else tuple(v for v in cliques[index] if v in cliques[parent])
        ordered.append((*(v for v in cliques[index] if v not in separator), *separator))
        separators.append(separator)
    return JunctionTree(
        cliques=tuple(ordered),
        parents=tuple(-1 if parents[index] < 0 else place[parents[index]] for index in order),
        separators=tuple(separators),
        homes=tuple(_home(graph, ordered, clique) for clique in graph.cliques),
    )


def largest_table(graph: Graph) -> tuple[int, tuple[int, ...]]:
    """Return cells and variables of the largest table of exact inference; nothing is allocated."""
    return max((graph.cells(clique), clique) for clique in _maximal_cliques(graph))


def tree_cells(graph: Graph) -> int:
    """Return the number of cells of all tables of exact inference; nothing is allocated."""
    return sum(graph.cells(clique) for clique in _maximal_cliques(graph))


def check_cliques(graph: Graph, names: Sequence[str] = ()) -> None:
    """Check that a graph's cliques are within `MAX_CLIQUE` and `MAX_CELLS`.

    Args:
        graph: graph to check.
        names: names of the variables, for the message; empty: their indices.

    Raises:
        ValueError: a clique, or all of them together, has too many cells.
    """
    largest = max(graph.cliques, key=graph.cells)
    if graph.cells(largest) > MAX_CLIQUE:
        raise ValueError(
            f"the table over {_listed(largest, names)} has {_count(graph.cells(largest))} cells, more than the limit "
            f"of {_count(MAX_CLIQUE)}: leave out one of its columns, or give them fewer bins"
        )
    total = sum(map(graph.cells, graph.cliques))
    if total > MAX_CELLS:
        raise ValueError(
            f"the tables have {_count(total)} cells together, more than the limit of {_count(MAX_CELLS)}: remove "
            "some, or give their columns fewer bins"
        )


def check_exact(graph: Graph, names: Sequence[str] = ()) -> None:
    """Check that exact inference stays within `MAX_TABLE` and `MAX_TREE`; arguments as in `check_cliques`.

    Raises:
        ValueError: too many cells; the message has their number and the cliques that cause them.
    """
    cells, variables = largest_table(graph)
    total = tree_cells(graph)
    if cells <= MAX_TABLE and total <= MAX_TREE:
        return
    inside = [clique for clique in graph.cliques if len(clique) > 1 and set(clique) <= set(variables)]
    remedy = (
        f"remove a clique among {'; '.join(_listed(clique, names) for clique in inside)}"
        if len(inside) > 1
        else "remove cliques"
    )
    needs = (
        f"a table of {_count(cells)} cells after triangulation, over {_listed(variables, names)}, more than the limit "
        f"of {_count(MAX_TABLE)}"
        if cells > MAX_TABLE
        else f"tables of {_count(total)} cells together after triangulation, more than the limit of {_count(MAX_TREE)}"
    )
    raise ValueError(f"this graph needs {needs}: {remedy}, or ask for loopy inference")


def is_exact(graph: Graph) -> bool:
    """Return whether exact inference is within `MAX_TABLE` and `MAX_TREE`."""
    return largest_table(graph)[0] <= MAX_TABLE and tree_cells(graph) <= MAX_TREE


def is_forest(graph: Graph) -> bool:
    """Return whether no cycle goes through variables and cliques; exact inference then needs no further tables."""
    parts = [{variable} for variable in range(len(graph.sizes))]
    for clique in graph.cliques:
        touched = [part for part in parts if part & set(clique)]
        if len(touched) < len(clique):
            return False
        parts = [part for part in parts if part not in touched] + [set[int]().union(*touched)]
    return True


def _clique(variables: Iterable[int], n: int) -> tuple[int, ...]:
    clique = tuple(sorted(int(variable) for variable in variables))
    if not clique:
        raise ValueError("cliques: a clique must have at least one variable")
    if len(set(clique)) != len(clique):
        raise ValueError(f"cliques: {clique} names a variable twice")
    if not 0 <= clique[0] <= clique[-1] < n:
        raise ValueError(f"cliques: {clique} names a variable that does not exist; there are {n}")
    return clique


def _neighbours(graph: Graph) -> list[set[int]]:
    neighbours: list[set[int]] = [set() for _ in graph.sizes]
    for clique in graph.cliques:
        for variable in clique:
            neighbours[variable].update(clique)
    for variable, others in enumerate(neighbours):
        others.discard(variable)
    return neighbours


@lru_cache(maxsize=64)
def _maximal_cliques(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return the maximal cliques of the triangulated graph, as ascending tuples; cached."""
    neighbours = _neighbours(graph)
    left = set(range(len(graph.sizes)))
    found: list[frozenset[int]] = []
    while left:
        chosen = min(left, key=lambda variable: _elimination_cost(graph, neighbours, variable))
        around = neighbours[chosen]
        clique = frozenset({chosen, *around})
        if not any(clique <= other for other in found):
            found.append(clique)
        for variable in around:
            neighbours[variable] |= around - {variable}
            neighbours[variable].discard(chosen)
        left.discard(chosen)
    return tuple(tuple(sorted(clique)) for clique in found)


def _elimination_cost(graph: Graph, neighbours: list[set[int]], variable: int) -> tuple[int, int, int]:
    """Return the cost of eliminating a variable: edges added, then cells of its table, then its index."""
    around = neighbours[variable]
    # A missing edge is counted from both ends, and each variable once as missing from its own neighbours.
    fill = sum(len(around - neighbours[a]) - 1 for a in around) // 2
    return fill, graph.cells({variable, *around}), variable


def _spanning_forest(graph: Graph, cliques: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Return parents, -1 for roots, and an order from the roots, by Prim's algorithm.

    It starts from the largest table of each component.
    """
    parents = [-1] * len(cliques)
    sets = [set(clique) for clique in cliques]
    order: list[int] = []
    left = set(range(len(cliques)))
    while left:
        root = min(left, key=lambda index: (-graph.cells(cliques[index]), index))
        # Number of variables shared with the tree so far, and the clique of the tree that shares them.
        best = {index: (len(sets[index] & sets[root]), root) for index in left}
        chosen = root
        while True:
            order.append(chosen)
            left.discard(chosen)
            for index in left:
                shared = len(sets[index] & sets[chosen])
                if shared > best[index][0]:
                    best[index] = (shared, chosen)
            chosen = min(left, key=lambda index: (-best[index][0], index), default=-1)
            if chosen < 0 or best[chosen][0] == 0:
                break
            parents[chosen] = best[chosen][1]
    return parents, order


def _home(graph: Graph, cliques: list[tuple[int, ...]], clique: tuple[int, ...]) -> int:
    holders = [index for index, other in enumerate(cliques) if set(clique) <= set(other)]
    return min(holders, key=lambda index: (graph.cells(cliques[index]), index))


def _listed(clique: Iterable[int], names: Sequence[str]) -> str:
    return "(" + ", ".join(str(names[v]) if names else str(v) for v in clique) + ")"


def _count(cells: int) -> str:
    """Return a readable number of cells; Python integers above the range of floats included."""
    if cells < 10**7:
        return f"{cells:,}"
    digits = str(cells)
    return f"{digits[0]}.{digits[1]}e{len(digits) - 1}"
