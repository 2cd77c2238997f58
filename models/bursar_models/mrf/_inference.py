"""Marginals and log-partition functions of discrete Markov random fields: junction trees and loopy belief propagation.

Everything is numpy over whole tables; Python loops run over cliques, never over cells.

Source: Koller and Friedman (2009), "Probabilistic Graphical Models", chapters 10 and 11; Wainwright and Jordan (2008),
"Graphical models, exponential families, and variational inference", section 4 (Bethe).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bursar_models.arrays import FloatArray, IntArray
from bursar_models.mrf._graph import Graph, JunctionTree, check_exact, junction_tree

LOOPY_SWEEPS = 500
"""Maximum number of sweeps of loopy belief propagation; public. Chosen, not tuned: those that converge need fewer."""

LOOPY_TOLERANCE = 1e-8
"""Largest change of a log-message, relative to the largest message if that is above 1, at which sweeps stop."""

LOOPY_DAMPING = 0.5
"""Share of the old message that a new one keeps, on the logarithmic scale.

A half suppresses alternation of two states.
"""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Calibrated junction tree: the model as a directed factorisation, from the roots to the leaves.

    Attributes:
        tree: junction tree.
        conditionals: for each clique of the tree, p(variables that the parent lacks | separator); axes as its
            variables.
        beliefs: probabilities of each clique of the tree; same axes.
        log_partition: A(theta).
    """

    tree: JunctionTree
    conditionals: list[FloatArray]
    beliefs: list[FloatArray]
    log_partition: float


def calibrate(graph: Graph, theta: Sequence[FloatArray], tree: JunctionTree) -> Calibrated:
    """Compute exact inference in two passes over the junction tree.

    The upward pass works on the logarithmic scale, each column of a table relative to its own largest entry. So nothing
    overflows or vanishes, however peaked the potentials are. It leaves p(residual | separator) in every clique. The
    downward pass multiplies these by the parent's marginals of the separator, without further logarithms. Each cell
    costs one exponential.

    Args:
        graph: graph of the model.
        theta: finite log-potentials, one array for each of `graph.cliques`, of its shape.
        tree: `junction_tree(graph)`.
    """
    conditionals, log_partition = _upwards(graph, theta, tree)
    beliefs: list[FloatArray] = []
    for clique, parent, separator, conditional in zip(
        tree.cliques, tree.parents, tree.separators, conditionals, strict=True
    ):
        if parent < 0:
            beliefs.append(conditional)
            continue
        outer = sum_to(beliefs[parent], tree.cliques[parent], separator)
        beliefs.append(conditional * outer.reshape((1,) * (len(clique) - len(separator)) + outer.shape))
    return Calibrated(tree, conditionals, beliefs, log_partition)


def exact(
    graph: Graph, theta: Sequence[FloatArray], tree: JunctionTree | None = None
) -> tuple[list[FloatArray], float]:
    """Return the exact marginals of every clique of the graph, each of sum 1, and the log-partition function A(theta).

    Args:
        graph: graph of the model.
        theta: finite log-potentials, one array for each of `graph.cliques`, of its shape.
        tree: `junction_tree(graph)`; None computes it.

    Raises:
        ValueError: the junction tree is above the limits of `check_exact`.
    """
    if tree is None:
        check_exact(graph)
        tree = cached_tree(graph)
    calibrated = calibrate(graph, theta, tree)
    marginals = [
        sum_to(calibrated.beliefs[home], tree.cliques[home], clique)
        for clique, home in zip(graph.cliques, tree.homes, strict=True)
    ]
    return marginals, calibrated.log_partition


def alone(theta: Sequence[FloatArray]) -> tuple[list[FloatArray], float]:
    """Return marginals and log-partition function of a graph whose cliques are single variables; needs no tree.

    Args:
        theta: finite log-potentials, (states,) each.
    """
    marginals, log_partition = [], 0.0
    for potential in theta:
        # Subtracted before the exponential, which would overflow above 709.
        top = potential.max()
        weights = np.exp(potential - top)
        total = weights.sum()
        marginals.append(weights / total)
        log_partition += float(top + np.log(total))
    return marginals, log_partition


def chain_marginals(steps: int, first: FloatArray, transition: FloatArray) -> tuple[list[FloatArray], float]:
    """Compute marginals of a time-homogeneous chain of `steps` variables by the forward-backward algorithm.

    Args:
        steps: number of variables, at least 2.
        first: log-potential of the first variable, (S,).
        transition: log-potential of each pair of consecutive variables, (S, S).

    Returns:
        Probabilities of the first state (S,), and of a consecutive pair averaged over time (S, S); and A(theta).
    """
    conditionals = []
    backward = np.zeros(len(first))
    for _ in range(steps - 1):
        total = transition + backward
        top = total.max(axis=1)
        weights = np.exp(total - top[:, None])
        scale = weights.sum(axis=1)
        conditionals.append(weights / scale[:, None])
        backward = top + np.log(scale)
    total = first + backward
    log_partition = float(total.max() + np.log(np.exp(total - total.max()).sum()))
    start = np.exp(total - log_partition)
    # Normalised again, because rounding accumulates over the steps.
    start /= start.sum()
    now, pairs = start, np.zeros(transition.shape)
    for conditional in reversed(conditionals):
        pair = now[:, None] * conditional
        pairs += pair
        now = pair.sum(axis=0)
    return [start, pairs / (steps - 1)], log_partition


def draw(graph: Graph, calibrated: Calibrated, uniforms: FloatArray) -> IntArray:
    """Draw rows of states by ancestral sampling, clique by clique from the roots.

    Args:
        graph: graph of the model.
        calibrated: its calibrated junction tree.
        uniforms: numbers in [0, 1), shape (n, cliques of the tree): one for each row and clique.

    Returns:
        States, shape (n, T).
    """
    tree, n = calibrated.tree, len(uniforms)
    rows = np.zeros((n, len(graph.sizes)), dtype=np.intp)
    for number, conditional in enumerate(calibrated.conditionals):
        separator = tree.separators[number]
        residual = tree.cliques[number][: len(tree.cliques[number]) - len(separator)]
        cells = graph.cells(residual)
        given = _joint_state(graph, rows, separator)
        # All distribution functions in one ascending array, that of separator state s between s and s + 1: one search
        # serves all rows.
        steps = np.cumsum(conditional.reshape(cells, -1).T, axis=1)
        steps /= steps[:, -1:]
        steps += np.arange(len(steps))[:, None]
        found = np.searchsorted(steps.ravel(), given + uniforms[:, number], side="right") - given * cells
        for variable, states in zip(
            residual, np.unravel_index(np.clip(found, 0, cells - 1), graph.shape(residual)), strict=True
        ):
            # Cliques come after their parents, so the separator's states are known by now.
            rows[:, variable] = states
    return rows


def gibbs(graph: Graph, theta: Sequence[FloatArray], rows: IntArray, rng: np.random.Generator, sweeps: int) -> IntArray:  # noqa: TID251 - a caller's generator on released values
    """Return rows (n, T) after `sweeps` rounds of Gibbs sampling from `rows`; each row is an independent chain."""
    rows = rows.copy()
    around = [
        [(clique, table) for clique, table in zip(graph.cliques, theta, strict=True) if variable in clique]
        for variable in range(len(graph.sizes))
    ]
    for _ in range(sweeps):
        for variable, size in enumerate(graph.sizes):
            logits = np.zeros((len(rows), size))
            for clique, table in around[variable]:
                others = [other for other in clique if other != variable]
                moved = np.moveaxis(table, clique.index(variable), -1).reshape(-1, size)
                logits += moved[_joint_state(graph, rows, others)]
            # Gumbel trick: the argmax of logits plus Gumbel noise is a draw from their softmax.
            rows[:, variable] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return rows


def _joint_state(graph: Graph, rows: IntArray, variables: Sequence[int]) -> IntArray:
    """Return the index of each row's cell in a flattened table over `variables`; 0 if there are none."""
    states = np.zeros(len(rows), dtype=np.intp)
    for variable in variables:
        # Row-major order, as numpy flattens tables.
        states = states * graph.sizes[variable] + rows[:, variable]
    return states


@lru_cache(maxsize=64)
def cached_tree(graph: Graph) -> JunctionTree:
    """Return `junction_tree(graph)`, cached."""
    return junction_tree(graph)


def sum_to(table: FloatArray, variables: Sequence[int], kept: Sequence[int]) -> FloatArray:
    """Sum a table over `variables` to those `kept`, with axes in the order of `kept`."""
    away = tuple(axis for axis, variable in enumerate(variables) if variable not in kept)
    rest = [variable for variable in variables if variable in kept]
    summed = table.sum(axis=away) if away else table
    return summed.transpose([rest.index(variable) for variable in kept])


def spread(table: FloatArray, variables: Sequence[int], over: Sequence[int]) -> FloatArray:
    """Return a view of a table over `variables` that broadcasts against tables over `over`, which contains them."""
    ordered = [variable for variable in over if variable in variables]
    moved = table.transpose([list(variables).index(variable) for variable in ordered])
    sizes = iter(moved.shape)
    return moved.reshape([next(sizes) if variable in variables else 1 for variable in over])


def _upwards(graph: Graph, theta: Sequence[FloatArray], tree: JunctionTree) -> tuple[list[FloatArray], float]:
    """Return conditionals of the cliques given their separators, and the log-partition function."""
    terms: list[list[FloatArray]] = [[] for _ in tree.cliques]
    for clique, home, table in zip(graph.cliques, tree.homes, theta, strict=True):
        terms[home].append(spread(table, clique, tree.cliques[home]))
    conditionals: list[FloatArray] = [np.empty(0)] * len(tree.cliques)
    log_partition = 0.0
    for index in reversed(range(len(tree.cliques))):
        clique, separator, parent = tree.cliques[index], tree.separators[index], tree.parents[index]
        total = _sum_terms(terms[index], graph.shape(clique))
        flat = total.reshape(graph.cells(clique[: len(clique) - len(separator)]), -1)
        top = flat.max(axis=0)
        # Relative to each column's own maximum, so that no column vanishes.
        flat -= top
        np.exp(flat, out=flat)
        scale = flat.sum(axis=0)
        flat /= scale
        message = top + np.log(scale)
        conditionals[index] = total
        if parent < 0:
            log_partition += float(message[0])
        else:
            terms[parent].append(spread(message.reshape(graph.shape(separator)), separator, tree.cliques[parent]))
        terms[index] = []
    return conditionals, log_partition


def _sum_terms(terms: Sequence[FloatArray], shape: tuple[int, ...]) -> FloatArray:
    """Return the sum of tables that broadcast to `shape`, as a new array."""
    partial: FloatArray = np.zeros((1,) * len(shape))
    # Small tables first, so that only the last addition runs over all cells.
    *small, last = sorted(terms, key=lambda term: term.size)
    for term in small:
        partial = partial + term
    # In C order, because the caller writes through a reshaped view, which would otherwise be a copy.
    total: FloatArray = np.empty(shape)
    np.add(partial, last, out=total)
    return total


@dataclass(frozen=True, eq=False)
class _Group:
    """Cliques of one shape, stacked.

    Attributes:
        members: indices of the cliques in the graph, g of them.
        slots: shape (g, width): number of the edge between clique and variable, in the order of all edges.
        shape: shape of one clique's table.
    """

    members: list[int]
    slots: list[list[int]]
    shape: tuple[int, ...]


class LoopyBeliefs:
    """Loopy belief propagation on the factor graph, which starts where its last call ended.

    Messages between cliques and variables are rows of one array, padded to the largest number of states; the cliques of
    one shape are updated at once. After `most` sweeps in all, each call makes a single sweep.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        sweeps: int = LOOPY_SWEEPS,
        tolerance: float = LOOPY_TOLERANCE,
        damping: float = LOOPY_DAMPING,
        most: float = math.inf,
    ) -> None:
        self._graph, self._left = graph, most
        self._sweeps, self._tolerance, self._damping = sweeps, tolerance, damping
        edges = [(index, variable) for index, clique in enumerate(graph.cliques) for variable in clique]
        self._owner = np.array([variable for _, variable in edges])
        self._groups = _grouped(graph, {edge: slot for slot, edge in enumerate(edges)})
        self._padding = np.arange(max(graph.sizes)) >= np.array(graph.sizes)[:, None]
        self._to_variable = np.zeros((len(edges), max(graph.sizes)))

    def __call__(self, theta: Sequence[FloatArray]) -> tuple[list[FloatArray], float]:
        """Return pseudo-marginals of every clique, each of sum 1, and the Bethe log-partition function."""
        stacked = [np.stack([theta[member] for member in group.members]) for group in self._groups]
        for _ in range(int(max(1, min(self._sweeps, self._left)))):
            self._left -= 1
            new = self._sweep(stacked)
            change, scale = np.abs(new - self._to_variable).max(), np.abs(new).max()
            self._to_variable = self._damping * self._to_variable + (1 - self._damping) * new
            if change <= self._tolerance * max(scale, 1.0):
                break
        return self._results(stacked, self._variable_beliefs())

    def _variable_beliefs(self) -> FloatArray:
        """Return normalised log-beliefs of the variables, (T, states); padding is -inf."""
        total = np.zeros(self._padding.shape)
        np.add.at(total, self._owner, self._to_variable)
        # Padding takes part in no maximum and in no sum of exponentials.
        total[self._padding] = -np.inf
        total -= total.max(axis=1, keepdims=True)
        return total - _log_sum(total, (1,))

    def _sweep(self, stacked: list[FloatArray]) -> FloatArray:
        """Return new messages from all cliques to all their variables, each with its largest entry 0."""
        from_variable = self._variable_beliefs()[self._owner] - self._to_variable
        new = np.zeros_like(self._to_variable)
        for group, theta in zip(self._groups, stacked, strict=True):
            total, width = self._clique_logs(group, theta, from_variable), len(group.shape)
            for axis in range(width):
                slots = [row[axis] for row in group.slots]
                others = tuple(1 + other for other in range(width) if other != axis)
                out = _log_sum(total, others).reshape(len(group.members), -1)
                out = out - from_variable[slots, : group.shape[axis]]
                new[slots, : group.shape[axis]] = out - out.max(axis=1, keepdims=True)
        return new

    def _clique_logs(self, group: _Group, theta: FloatArray, from_variable: FloatArray) -> FloatArray:
        total = theta
        for axis, size in enumerate(group.shape):
            incoming = from_variable[[row[axis] for row in group.slots], :size]
            total = total + incoming.reshape(
                len(group.members), *(size if a == axis else 1 for a in range(len(group.shape)))
            )
        return total

    def _results(self, stacked: list[FloatArray], log_beliefs: FloatArray) -> tuple[list[FloatArray], float]:
        from_variable = log_beliefs[self._owner] - self._to_variable
        marginals: list[FloatArray] = [np.empty(0)] * len(self._graph.cliques)
        bethe = 0.0
        for group, theta in zip(self._groups, stacked, strict=True):
            logs = self._clique_logs(group, theta, from_variable)
            # Subtracted first: added to a large logarithm, the logarithm of the sum would lose its digits.
            axes = tuple(range(1, logs.ndim))
            logs = logs - logs.max(axis=axes, keepdims=True)
            tables = np.exp(logs)
            scales = tables.sum(axis=axes, keepdims=True)
            tables, logs = tables / scales, logs - np.log(scales)
            bethe += float((tables * (theta - logs)).sum())
            for member, table in zip(group.members, tables, strict=True):
                marginals[member] = table
        degrees = np.bincount(self._owner, minlength=len(self._graph.sizes))
        beliefs = np.exp(log_beliefs)
        entropies = -(beliefs * np.where(beliefs > 0, log_beliefs, 0.0)).sum(axis=1)
        # Each variable's entropy is in all of its cliques, and is taken back from all but one.
        return marginals, bethe + float(((1 - degrees) * entropies).sum())


def loopy(
    graph: Graph,
    theta: Sequence[FloatArray],
    *,
    sweeps: int = LOOPY_SWEEPS,
    tolerance: float = LOOPY_TOLERANCE,
    damping: float = LOOPY_DAMPING,
) -> tuple[list[FloatArray], float]:
    """Return pseudo-marginals of every clique, and the Bethe log-partition function, by loopy belief propagation.

    Exact where the factor graph has no cycle; elsewhere an approximation that may not have converged after `sweeps`.

    Args:
        graph: graph of the model.
        theta: finite log-potentials, one array for each of `graph.cliques`, of its shape.
        sweeps: maximum number of sweeps over all messages.
        tolerance: change of messages that ends the sweeps, as `LOOPY_TOLERANCE`.
        damping: share of the old message that a new one keeps, 0 to below 1.
    """
    return LoopyBeliefs(graph, sweeps=sweeps, tolerance=tolerance, damping=damping)(theta)


def _grouped(graph: Graph, slots: dict[tuple[int, int], int]) -> list[_Group]:
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, clique in enumerate(graph.cliques):
        by_shape[graph.shape(clique)].append(index)
    return [
        _Group(
            members,
            [[slots[index, variable] for variable in graph.cliques[index]] for index in members],
            shape,
        )
        for shape, members in by_shape.items()
    ]


def _log_sum(logs: FloatArray, axes: tuple[int, ...]) -> FloatArray:
    """Return the logarithm of the sum of exponentials over `axes`, which are kept; every slice has a finite entry."""
    if not axes:
        return logs
    top = logs.max(axis=axes, keepdims=True)
    summed: FloatArray = top + np.log(np.exp(logs - top).sum(axis=axes, keepdims=True))
    return summed
