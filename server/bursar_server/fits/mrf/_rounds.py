"""Pairs of columns chosen one after the other, each where the model of the tables so far is furthest from the rows.

The loop of McKenna, Mullins, Sheldon and Miklau 2022 ("AIM") with pairs for candidates and a number of rounds that is
decided before: a choice by the exponential mechanism, the table of the chosen pair, and a new model, all rounds at the
same price. Only which pair is chosen depends on releases. A pair may be chosen again; its tables are averaged.
`_rounds.md` proves what the rounds release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_models.mrf import Graph, ReleasedTable, believed_rows, used_tables
from bursar_models.mrf._estimation import Fitted, continued
from bursar_models.mrf._graph import is_exact, junction_tree
from bursar_models.mrf._intervals import mean_absolute, missed
from bursar_models.mrf._pairs import Pair, joined_cells, pair_marginals
from bursar_server.fits.mrf._selection import Selection
from bursar_server.fits.mrf._statistics import Layout, blocks_of, pairs_statistic, table_bounds
from bursar_server.vault import MAX_ROWS, Candidates, LaplaceNoise, Noise, Session, noise_std

MOST_CELLS = 2**17
"""Maximum number of cells of the junction tree. Larger ones make models better and fits slower, both by little."""

MOST_WORK = 2**34
"""Maximum number of cells that all tables of pairs of all rounds may visit: a minute or two of one CPU."""

MOST_DIRECT = 2**18
"""Maximum number of cells of the tables of all pairs, where they are released: 2 MiB of an answer."""

EVALUATIONS = 40
"""Maximum number of evaluations of each model between rounds, which continues from the one before."""


@dataclass(frozen=True)
class Rounds:
    """Pairs that may be chosen in rounds.

    Attributes:
        pairs: variables, the smaller index first.
        weights: weight of each pair, above 0 to 1.
    """

    pairs: tuple[Pair, ...]
    weights: tuple[Fraction, ...]

    @property
    def columns(self) -> int:
        """Number of variables that are in some pair."""
        return len({variable for pair in self.pairs for variable in pair})

    def limits(self, layout: Layout, times: int) -> tuple[int, int]:
        """Return the numbers of cells that the junction tree may have in the first and in the last of the rounds.

        A forest of these pairs is always within the first. It is the larger one where `MOST_WORK` is exceeded.
        """
        sizes = sorted((math.prod(layout.shape(pair)) for pair in self.pairs), reverse=True)
        states = sum(layout.sizes)
        return states + sum(sizes[: self.columns - 1]), min(MOST_CELLS, MOST_WORK // (times * states))


def choose_in_rounds(
    layout: Layout,
    selection: Selection,
    rounds: Rounds,
    tables: Sequence[ReleasedTable],
    public_rows: float | None,
    release: Callable[[Pair], ReleasedTable],
    session: Session,
) -> tuple[list[Pair], list[float]]:
    """Choose pairs and release their tables, round by round.

    Args:
        layout: layout of the rows; at least two variables.
        selection: choices, one in each round; `cell_cost` is what noise on a cell adds to the distance of its table.
        rounds: pairs that may be chosen.
        tables: tables of single columns, and earlier ones.
        public_rows: number of rows if it is public, else None.
        release: releases the table of a chosen pair.
        session: session that is charged for every choice.

    Returns:
        Each chosen pair once, and by how much each round's model missed the table that was released next.
    """
    names, seen = [variable.name for variable in layout.variables], list(tables)
    graph, chosen, misses = Graph(layout.sizes, ()), list[Pair](), list[float]()
    fitted, statistic = None, pairs_statistic(layout, rounds.pairs)
    first, last = rounds.limits(layout, selection.times)
    for number in range(selection.times):
        fitted = _model(names, graph, seen, public_rows, fitted)
        rows = min(fitted.estimate.n_rows, float(MAX_ROWS))
        marginals = pair_marginals(graph, fitted.estimate.log_potentials)
        candidates = Candidates(
            statistic=statistic,
            blocks=blocks_of(layout, rounds.pairs),
            targets=_targets(layout, rounds.pairs, rows, marginals),
            block_bounds=table_bounds(layout),
            discounts=_discounts(layout, rounds.pairs, selection.cell_cost),
            weights=rounds.weights,
        )
        limit = max(first, last * (number + 1) // selection.times)
        offered = _offered(graph, rounds.pairs, chosen, limit)
        pair = rounds.pairs[session.choose(candidates, offered, selection.noise)]
        table = release(pair)
        seen.append(table)
        noise = table.noise_std * mean_absolute(laplace=table.laplace)
        misses.append(missed(marginals[pair], rows, table.counts, noise))
        larger = Graph(layout.sizes, (*chosen, pair))
        if is_exact(larger):
            graph, chosen = larger, list(dict.fromkeys((*chosen, pair)))
    return chosen, misses


def within_clusters(layout: Layout, pairs: Sequence[Pair], chosen: Sequence[Pair]) -> list[Pair]:
    """Return the chosen pairs, and those others whose table costs no larger junction tree: they are in one cluster."""
    clusters = [set(cluster) for cluster in junction_tree(Graph(layout.sizes, tuple(chosen))).cliques]
    others = [pair for pair in pairs if pair not in chosen and any(set(pair) <= cluster for cluster in clusters)]
    return [*chosen, *others]


def direct_tables(
    layout: Layout, pairs: Sequence[Pair], flat: FloatArray, noise: Noise, entry: int
) -> tuple[ReleasedTable, ...]:
    """Return the tables of a released `pairs_statistic`, without the cells that follow them."""
    names, std = [variable.name for variable in layout.variables], noise_std(noise, layout.lattice)
    return tuple(
        ReleasedTable(
            (names[a], names[b]),
            flat[start : stop - 1].reshape(layout.shape((a, b))),
            std,
            isinstance(noise, LaplaceNoise),
            entry,
        )
        for (a, b), (start, stop) in zip(pairs, blocks_of(layout, pairs), strict=True)
    )


def averaged(tables: Sequence[ReleasedTable]) -> tuple[ReleasedTable, ...]:
    """Return tables of the same entry, columns and noise as one, their mean."""
    groups: dict[tuple[str, ...], list[ReleasedTable]] = {}
    for table in tables:
        groups.setdefault(table.columns, []).append(table)
    return tuple(_mean(group) for group in groups.values())


def _mean(tables: Sequence[ReleasedTable]) -> ReleasedTable:
    first, k = tables[0], len(tables)
    if k == 1:
        return first
    counts = np.mean([table.counts for table in tables], axis=0)
    return ReleasedTable(first.columns, counts, first.noise_std / math.sqrt(k), False, first.entry)


def _model(
    names: Sequence[str],
    graph: Graph,
    tables: Sequence[ReleasedTable],
    public_rows: float | None,
    before: Fitted | None,
) -> Fitted:
    used = used_tables(names, graph, tables)
    start = None if before is None else before.parameters
    return continued(graph, used, believed_rows(public_rows, used), start=start, most=EVALUATIONS)


def _offered(graph: Graph, pairs: Sequence[Pair], chosen: Sequence[Pair], limit: int) -> list[int]:
    """Return the places of pairs that are chosen already, or with which the junction tree is within a limit."""
    cells = joined_cells(graph)
    return [place for place, pair in enumerate(pairs) if pair in chosen or cells[pair] <= limit]


def _targets(
    layout: Layout, pairs: Sequence[Pair], rows: float, marginals: Mapping[Pair, FloatArray]
) -> NDArray[np.int64]:
    """Return the model's tables in lattice units, in the order of `pairs_statistic`; 0 for the empty cells."""
    parts = [part for pair in pairs for part in (rows * marginals[pair].ravel(), np.zeros(1))]
    return np.rint(np.concatenate(parts) / layout.lattice).astype(np.int64)


def _discounts(layout: Layout, pairs: Sequence[Pair], cell_cost: float) -> tuple[int, ...]:
    """Return what noise adds to the distance of each pair's table, in lattice units, rounded up."""
    return tuple(math.ceil(cell_cost * math.prod(layout.shape(pair)) / layout.lattice) for pair in pairs)
