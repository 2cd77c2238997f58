"""Sets of columns chosen one after the other, each where the model of the tables so far is furthest from the rows.

The loop of McKenna, Mullins, Sheldon and Miklau 2022 ("AIM") with a number of rounds that is decided before: a choice
by the exponential mechanism, the table of the chosen set, and a new model, all rounds at the same price. Only which set
is chosen depends on releases. A set may be chosen again; its tables are averaged.
`_rounds.md` proves what the rounds release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_models.mrf import Graph, ReleasedTable, believed_rows, used_tables
from bursar_models.mrf._candidates import Clique, candidate_marginals, joined_cells
from bursar_models.mrf._estimation import Fitted, continued
from bursar_models.mrf._graph import MAX_TREE, is_exact, junction_tree, pairs_apart
from bursar_models.mrf._intervals import mean_absolute, missed
from bursar_models.mrf._variables import ordered_of
from bursar_server.fits.mrf._selection import Selection
from bursar_server.fits.mrf._statistics import Layout, blocks_of, table_bounds, tables_statistic
from bursar_server.vault import MAX_ROWS, Candidates, LaplaceNoise, Noise, Session, noise_std

MOST_CELLS = 2**17
"""Maximum number of cells of the junction tree. Larger ones make models better and fits slower, both by little."""

MOST_WORK = 2**34
"""Maximum number of cells that the tables of all candidates of all rounds may visit: a minute or two of one CPU."""

MOST_DIRECT = 2**18
"""Maximum number of cells of the tables of all pairs, or larger sets, where they are released: 2 MiB of an answer."""

EVALUATIONS = 40
"""Maximum number of evaluations of each model between rounds, which continues from the one before."""


@dataclass(frozen=True)
class Rounds:
    """Sets of variables that may be chosen in rounds.

    Attributes:
        cliques: ascending variables of each set, and all pairs within the sets.
        weights: weight of each set, above 0 to 1.
    """

    cliques: tuple[Clique, ...]
    weights: tuple[Fraction, ...]

    @property
    def pairs(self) -> tuple[Clique, ...]:
        """Those sets that are pairs."""
        return tuple(clique for clique in self.cliques if len(clique) == 2)

    @property
    def largest(self) -> tuple[Clique, ...]:
        """Those sets that are within no other."""
        sets = [set(clique) for clique in self.cliques]
        larger = max(map(len, sets), default=0)
        return tuple(
            clique
            for clique, own in zip(self.cliques, sets, strict=True)
            if len(own) == larger or not any(own < other for other in sets)
        )

    @property
    def columns(self) -> int:
        """Number of variables that are in some set."""
        return len({variable for clique in self.cliques for variable in clique})

    def limits(self, layout: Layout, times: int) -> tuple[int, int]:
        """Return the numbers of cells that the junction tree may have in the first and in the last of the rounds.

        A forest of these pairs is always within the first. It is the larger one where `MOST_WORK` is exceeded.
        """
        sizes = sorted((math.prod(layout.shape(pair)) for pair in self.pairs), reverse=True)
        states, sums = sum(layout.sizes), len(self.cliques) // max(len(self.pairs), 1)
        return states + sum(sizes[: self.columns - 1]), min(MOST_CELLS, MOST_WORK // (times * states * sums))

    def fits(self, layout: Layout, times: int) -> bool:
        """Return whether so many rounds are within `MOST_WORK` and `MOST_CELLS`."""
        first, last = self.limits(layout, times)
        return first <= last

    def among(self, kept: Sequence[int]) -> Rounds:
        """Return the sets within some variables, ascending, which get their places there."""
        place = {variable: index for index, variable in enumerate(kept)}
        pairs = zip(self.cliques, self.weights, strict=True)
        found = [(tuple(place[v] for v in one), weight) for one, weight in pairs if set(one) <= place.keys()]
        return Rounds(tuple(one for one, _ in found), tuple(weight for _, weight in found))


def choose_in_rounds(
    layout: Layout,
    selection: Selection,
    rounds: Rounds,
    tables: Sequence[ReleasedTable],
    public_rows: float | None,
    release: Callable[[Clique], ReleasedTable],
    session: Session,
) -> tuple[list[Clique], list[float]]:
    """Choose sets of columns and release their tables, round by round.

    Args:
        layout: layout of the rows; at least two variables.
        selection: choices, one in each round; `cell_cost` is what noise on a cell adds to the distance of its table.
        rounds: sets that may be chosen.
        tables: tables of single columns, and earlier ones.
        public_rows: number of rows if it is public, else None.
        release: releases the table of a chosen set.
        session: session that is charged for every choice.

    Returns:
        Each chosen set once, and by how much each round's model missed the table that was released next.
    """
    graph, chosen, misses = Graph(layout.sizes, ()), list[Clique](), list[float]()
    seen, fitted = list(tables), None
    with_targets = _candidates(layout, selection, rounds.cliques, rounds.weights)
    first, last = rounds.limits(layout, selection.times)
    for number in range(selection.times):
        fitted = _model(layout, graph, seen, public_rows, fitted)
        rows = min(fitted.estimate.n_rows, float(MAX_ROWS))
        marginals = candidate_marginals(graph, fitted.estimate.log_potentials, rounds.cliques)
        candidates = with_targets(targets=_targets(layout, rounds.cliques, rows, marginals))
        limit = max(first, last * (number + 1) // selection.times)
        offered = _offered(graph, rounds.cliques, chosen, limit)
        clique = rounds.cliques[session.choose(candidates, offered, selection.noise)]
        table = release(clique)
        seen.append(table)
        noise = table.noise_std * mean_absolute(laplace=table.laplace)
        misses.append(missed(marginals[clique], rows, table.counts, noise))
        larger = Graph(layout.sizes, widest((*chosen, clique)))
        if is_exact(larger):
            graph, chosen = larger, list(dict.fromkeys((*chosen, clique)))
    return chosen, misses


def choose_held_out(
    layout: Layout,
    selection: Selection,
    cliques: Sequence[Clique],
    tables: Sequence[ReleasedTable],
    public_rows: float | None,
    session: Session,
) -> Clique:
    """Choose the pair of variables whose table the model of all other tables explains worst.

    Args:
        layout: layout of the rows; at least two variables.
        selection: one choice, as in `choose_in_rounds`.
        cliques: cliques of the model, whose inference is exact; a pair within one is chosen only if all are.
        tables: all tables of the model.
        public_rows: number of rows if it is public, else None.
        session: session that is charged for the choice.
    """
    graph, pairs = Graph(layout.sizes, tuple(cliques)), list(combinations(range(len(layout.variables)), 2))
    found = _model(layout, graph, tables, public_rows, None).estimate
    marginals = candidate_marginals(graph, found.log_potentials, pairs)
    weights, rows = (Fraction(1),) * len(pairs), min(found.n_rows, float(MAX_ROWS))
    candidates = _candidates(layout, selection, pairs, weights)(targets=_targets(layout, pairs, rows, marginals))
    cells, apart = joined_cells(graph, pairs), set(pairs_apart(graph))
    # Those whose table the client can compute under the model, too.
    known = [place for place, pair in enumerate(pairs) if cells.get(pair, MAX_TREE + 1) <= MAX_TREE]
    outside = [place for place in known if pairs[place] in apart]
    return pairs[session.choose(candidates, outside or known or range(len(pairs)), selection.noise)]


def widest(cliques: Sequence[Clique]) -> tuple[Clique, ...]:
    """Return those sets that are within no other, each once: tables of the others observe the same potentials."""
    once = list(dict.fromkeys(cliques))
    return tuple(one for one in once if not any(set(one) < set(other) for other in once))


def within_clusters(layout: Layout, cliques: Sequence[Clique], chosen: Sequence[Clique]) -> list[Clique]:
    """Return the chosen sets, and those others whose table costs no larger junction tree: they are in one cluster."""
    clusters = [set(cluster) for cluster in junction_tree(Graph(layout.sizes, tuple(chosen))).cliques]
    others = [one for one in cliques if one not in chosen and any(set(one) <= cluster for cluster in clusters)]
    return [*chosen, *others]


def direct_tables(
    layout: Layout, cliques: Sequence[Clique], flat: FloatArray, noise: Noise, entry: int
) -> tuple[ReleasedTable, ...]:
    """Return the tables of a released `tables_statistic`, without the cells that follow them."""
    names, std = [variable.name for variable in layout.variables], noise_std(noise, layout.lattice)
    return tuple(
        ReleasedTable(
            tuple(names[variable] for variable in clique),
            flat[start : stop - 1].reshape(layout.shape(clique)),
            std,
            isinstance(noise, LaplaceNoise),
            entry,
        )
        for clique, (start, stop) in zip(cliques, blocks_of(layout, cliques), strict=True)
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


def _candidates(
    layout: Layout, selection: Selection, cliques: Sequence[Clique], weights: tuple[Fraction, ...]
) -> Callable[..., Candidates]:
    """Return what makes sets to choose from, given `targets`: their tables under a model."""
    return partial(
        Candidates,
        statistic=tables_statistic(layout, cliques),
        blocks=blocks_of(layout, cliques),
        block_bounds=table_bounds(layout),
        discounts=_discounts(layout, cliques, selection.cell_cost),
        weights=weights,
    )


def _model(
    layout: Layout,
    graph: Graph,
    tables: Sequence[ReleasedTable],
    public_rows: float | None,
    before: Fitted | None,
) -> Fitted:
    used = used_tables([variable.name for variable in layout.variables], graph, tables)
    start, ordered = None if before is None else before.parameters, ordered_of(layout.variables)
    return continued(graph, used, believed_rows(public_rows, used), start=start, most=EVALUATIONS, ordered=ordered)


def _offered(graph: Graph, cliques: Sequence[Clique], chosen: Sequence[Clique], limit: int) -> list[int]:
    """Return the places of sets that are chosen already, or with which the junction tree is known to be in a limit."""
    cells = joined_cells(graph, cliques)
    return [place for place, one in enumerate(cliques) if one in chosen or cells.get(one, limit + 1) <= limit]


def _targets(
    layout: Layout, cliques: Sequence[Clique], rows: float, marginals: Mapping[Clique, FloatArray]
) -> NDArray[np.int64]:
    """Return the model's tables in lattice units, in the order of `tables_statistic`.

    0 for the empty cells, and for sets without marginals, which are not offered.
    """
    parts = [part for one in cliques for part in (_counts(layout, one, rows, marginals), np.zeros(1))]
    return np.rint(np.concatenate(parts) / layout.lattice).astype(np.int64)


def _counts(layout: Layout, clique: Clique, rows: float, marginals: Mapping[Clique, FloatArray]) -> FloatArray:
    found = marginals.get(clique)
    return np.zeros(math.prod(layout.shape(clique))) if found is None else rows * found.ravel()


def _discounts(layout: Layout, cliques: Sequence[Clique], cell_cost: float) -> tuple[int, ...]:
    """Return what noise adds to the distance of each set's table, in lattice units, rounded up."""
    return tuple(math.ceil(cell_cost * math.prod(layout.shape(one)) / layout.lattice) for one in cliques)
