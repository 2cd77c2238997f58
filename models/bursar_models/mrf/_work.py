"""Cost estimate of a fit: number of table cells visited.

It uses public sizes only, so time is bounded before anything is charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from bursar_models.mrf._graph import Graph, is_exact, is_forest, tree_cells
from bursar_models.mrf._problem import MAX_ITERATIONS

MAX_WORK = 2_600_000_000
"""Maximum number of cells that a fit may visit, and once more in loopy sweeps: one or two minutes of one CPU.

Measured: 15 to 55 ns for a cell of exact inference, of a step of a chain, or of a sweep for one of a clique's
variables.
"""

MAX_SWEEPS = 20_000
"""Maximum number of sweeps of loopy belief propagation in a fit of any size.

A fit that converges takes some thousands.
"""

TABLE_CELL = 16
"""Visits that a table's cell is worth in each evaluation: posterior means and optimiser take 0.3 to 0.5 us."""

ENOUGH = 60
"""Minimum number of evaluations, without which a fit is refused; few take more than 200, most around 30."""

_SWEEPS = 10
"""Number of sweeps of an evaluation under loopy inference that continues from the last one. Chosen, not tuned."""


def routine(graph: Graph, inference: Literal["auto", "exact", "loopy"]) -> Literal["exact", "loopy"]:
    """Return the method of computing marginals: the requested one, but exact where there is no cycle."""
    exact = inference == "exact" or (inference == "auto" and is_exact(graph)) or is_forest(graph)
    return "exact" if exact else "loopy"


def exact_work(graph: Graph) -> int:
    """Return the visits of one evaluation on a junction tree."""
    return tree_cells(graph)


def sweep_work(graph: Graph) -> int:
    """Return the visits of one sweep of loopy belief propagation."""
    return sum(len(clique) * graph.cells(clique) for clique in graph.cliques)


def most_sweeps(graph: Graph) -> int:
    """Return the maximum number of sweeps of a fit; when they are used up, each evaluation has one."""
    return min(MAX_SWEEPS, MAX_WORK // sweep_work(graph))


def chain_work(steps: int, states: int) -> int:
    """Return the visits of one evaluation of a time-homogeneous chain."""
    return (steps - 1) * states**2


def evaluations(work: int, cells: int) -> int:
    """Return the maximum number of evaluations of marginals of a fit, at least 1.

    Args:
        work: visits of one evaluation by itself.
        cells: number of cells of all tables.
    """
    return max(1, min(MAX_ITERATIONS, MAX_WORK // (work + TABLE_CELL * cells)))


def few_enough(graph: Graph) -> bool:
    """Return whether one evaluation for each clique of a junction tree takes a tenth of `MAX_WORK` at most."""
    return 10 * len(graph.cliques) * exact_work(graph) <= MAX_WORK


def check_work(graph: Graph, inference: Literal["auto", "exact", "loopy"], names: Sequence[str] = ()) -> None:
    """Check that the cost of a fit over a graph's cliques is within `MAX_WORK`.

    Args:
        graph: graph of the model.
        inference: inference of `estimate`.
        names: names of the variables, for the message; empty: their indices.

    Raises:
        ValueError: `ENOUGH` evaluations cost too much; the message says what to do.
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
    """Check that the cost of a fit of a time-homogeneous chain is within `MAX_WORK`.

    Raises:
        ValueError: `ENOUGH` evaluations cost too much; the message has the maximum number of states.
    """
    if evaluations(chain_work(steps, states), states * (states + 1)) < ENOUGH:
        most = math.isqrt(MAX_WORK // ENOUGH // (steps - 1 + TABLE_CELL)) - 1
        raise ValueError(
            f"a chain of {steps} steps among {states} states takes too long to learn; expected fewer steps, or at most "
            f"{most} states"
        )
