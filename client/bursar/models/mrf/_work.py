"""What a fit takes: cells that are visited. Public sizes only, so time is bounded before anything is paid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from bursar.models.mrf._graph import Graph, is_exact, is_forest, tree_cells
from bursar.models.mrf._problem import MAX_ITERATIONS

MAX_WORK = 2_600_000_000
"""Cells that a fit may visit, and once more in sweeps of loopy belief propagation: a minute or two of one processor.

Measured: 15 to 55 ns a cell of exact inference, of a step of a chain or of a sweep for one of a clique's variables.
"""

MAX_SWEEPS = 20_000
"""Of loopy belief propagation in a fit, however small the graph is; a fit that converges has some thousands."""

TABLE_CELL = 16
"""Visits that a cell of a table is worth in each evaluation: posterior means and the optimiser take 0.3 to 0.5 us."""

ENOUGH = 60
"""Evaluations without which a fit is refused; few take more than 200, most around 30."""

_SWEEPS = 10
"""Of an evaluation under loopy inference that goes on from the one before."""


def routine(graph: Graph, inference: Literal["auto", "exact", "loopy"]) -> Literal["exact", "loopy"]:
    """How marginals are computed: as asked for, but exactly where there is no cycle."""
    exact = inference == "exact" or (inference == "auto" and is_exact(graph)) or is_forest(graph)
    return "exact" if exact else "loopy"


def exact_work(graph: Graph) -> int:
    """Visits of one evaluation on a junction tree."""
    return tree_cells(graph)


def sweep_work(graph: Graph) -> int:
    """Visits of one sweep of loopy belief propagation."""
    return sum(len(clique) * graph.cells(clique) for clique in graph.cliques)


def most_sweeps(graph: Graph) -> int:
    """Sweeps that a fit may have; when they are used up, each evaluation has one."""
    return min(MAX_SWEEPS, MAX_WORK // sweep_work(graph))


def chain_work(steps: int, states: int) -> int:
    """Visits of one evaluation of a time-homogeneous chain."""
    return (steps - 1) * states**2


def evaluations(work: int, cells: int) -> int:
    """Evaluations of marginals that a fit may have, at least 1.

    Args:
        work: visits of one by itself.
        cells: of all tables.
    """
    return max(1, min(MAX_ITERATIONS, MAX_WORK // (work + TABLE_CELL * cells)))


def check_work(graph: Graph, inference: Literal["auto", "exact", "loopy"], names: Sequence[str] = ()) -> None:
    """Holds what a fit over a graph's cliques takes against `MAX_WORK`.

    Args:
        graph: the graph.
        inference: as for `estimate`.
        names: of the variables, for the message; none: their indices.

    Raises:
        ValueError: it cannot have `ENOUGH` evaluations; the message says what to do.
    """
    how = routine(graph, inference)
    work = exact_work(graph) if how == "exact" else _SWEEPS * sweep_work(graph)
    if evaluations(work, sum(map(graph.cells, graph.cliques))) < ENOUGH:
        largest = max(graph.cliques, key=graph.cells)
        listed = ", ".join(names[v] if names else str(v) for v in largest)
        raise ValueError(
            f"tables of this size take too long to learn from with {how} inference; remove cliques, the largest is "
            f"({listed}), or give their columns fewer bins"
        )


def check_chain_work(steps: int, states: int) -> None:
    """As `check_work`, of a time-homogeneous chain.

    Raises:
        ValueError: it cannot have `ENOUGH` evaluations; the message says how many states it may have.
    """
    if evaluations(chain_work(steps, states), states * (states + 1)) < ENOUGH:
        most = math.isqrt(MAX_WORK // ENOUGH // (steps - 1 + TABLE_CELL)) - 1
        raise ValueError(
            f"a chain of {steps} steps among {states} states takes too long to learn; expected fewer steps, or at most "
            f"{most} states"
        )
