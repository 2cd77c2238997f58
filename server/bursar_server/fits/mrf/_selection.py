"""Selection of a tree of strong dependences, edge by edge, by the exponential mechanism.

Kruskal's algorithm with private choices. Each choice joins two parts of the forest by a pair of columns. A pair's score
is the L1 distance of its true table from the product of the released tables of single columns, less the cost of noise
on a table of so many cells. McKenna, Miklau and Sheldon 2021 ("Winning the NIST contest") choose edges by such a
distance, and McKenna, Mullins, Sheldon and Miklau 2022 ("AIM") with a penalty on cells; Bernstein et al. 2017 leave the
graph to the analyst. The vault's `_selection.md` proves how far one privacy unit can change a score, and
`_statistics.md` bounds its contribution to a pair's table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency, Event
from bursar_models.arrays import FloatArray
from bursar_server.fits.mrf._statistics import Layout, blocks_of, table_bounds, tables_statistic
from bursar_server.vault import MAX_ROWS, Candidates, SelectionNoise, Session, event_of, sensitivity


@dataclass(frozen=True)
class Selection:
    """Choices of a tree's edges.

    Attributes:
        times: number of choices.
        noise: noise on every score of each choice.
        cell_cost: rows or units by which each cell of a pair's table lowers its score.
    """

    times: int
    noise: SelectionNoise
    cell_cost: float

    def event(self, layout: Layout, adjacency: Adjacency, unit_cap: int) -> Event:
        """Return the ledger event of one choice."""
        return event_of(sensitivity(table_bounds(layout), adjacency, unit_cap), self.noise)

    def std(self, layout: Layout) -> float:
        """Return the standard deviation of the noise on every score, in rows or units."""
        return float(np.pi / np.sqrt(6.0)) * self.noise.scale * layout.lattice


def select_tree(
    layout: Layout, selection: Selection, singles: Sequence[FloatArray], n_rows: float, session: Session
) -> Iterator[tuple[int, int]]:
    """Choose the edges of a spanning tree, one after the other.

    Args:
        layout: layout of the rows; at least two variables.
        selection: choices, one fewer than variables.
        singles: released probabilities of each variable's states.
        n_rows: released number of rows or units.
        session: session that is charged for every choice.

    Yields:
        Pairs of variables, the smaller index first.
    """
    pairs = list(combinations(range(len(layout.variables)), 2))
    candidates = Candidates(
        statistic=tables_statistic(layout, pairs),
        blocks=blocks_of(layout, pairs),
        targets=targets_of(layout, pairs, singles, n_rows, selection.cell_cost),
        block_bounds=table_bounds(layout),
    )
    part = list(range(len(layout.variables)))
    for _ in range(selection.times):
        available = [index for index, (a, b) in enumerate(pairs) if part[a] != part[b]]
        a, b = pairs[session.choose(candidates, available, selection.noise)]
        joined = part[b]
        part = [part[a] if one == joined else one for one in part]
        yield a, b


def targets_of(
    layout: Layout, pairs: Sequence[tuple[int, int]], singles: Sequence[FloatArray], n_rows: float, cell_cost: float
) -> NDArray[np.int64]:
    """Return the tables of pairs whose columns are independent, in lattice units, in the order of `tables_statistic`.

    The empty cell after each table has a target of the difference between the cost of the largest table's cells and
    that of the pair's. It increases the score by as much for any rows.
    """
    rows = min(max(n_rows, 1.0), float(MAX_ROWS))
    cells = [math.prod(layout.shape(pair)) for pair in pairs]
    targets: list[FloatArray] = []
    for (a, b), size in zip(pairs, cells, strict=True):
        spared = min(cell_cost * (max(cells) - size), float(MAX_ROWS))
        targets += [rows * np.outer(singles[a], singles[b]).ravel(), np.array([spared])]
    return np.rint(np.concatenate(targets) / layout.lattice).astype(np.int64)
