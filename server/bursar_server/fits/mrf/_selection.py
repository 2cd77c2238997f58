"""A tree of strong dependences, edge by edge, by the exponential mechanism.

Kruskal's algorithm with private choices: each joins two parts of the forest by the pair of columns whose true table is,
after noise, farthest in L1 from what the released tables of single columns say if the two were independent, less what
the noise on a table of so many cells will cost. McKenna, Miklau and Sheldon 2021 ("Winning the NIST contest") choose
edges by such a distance, and McKenna, Mullins, Sheldon and Miklau 2022 ("AIM") with a penalty on cells; Bernstein et
al. 2017 leave the graph to the analyst. What one privacy unit can change in a score is proven in the vault's
`_selection.md`, and what it can contribute to a pair's table in `_statistics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from bursar.models._arrays import FloatArray
from bursar_ledger import Adjacency, Event
from bursar_server.fits.mrf._statistics import Layout, blocks_of, pairs_statistic, table_bounds
from bursar_server.vault import MAX_ROWS, Candidates, SelectionNoise, Session, event_of, sensitivity


@dataclass(frozen=True)
class Selection:
    """The choices of a tree's edges.

    Attributes:
        times: how many.
        noise: on every score, of each choice.
        cell_cost: rows or units by which a score is lower for each cell of the pair's table.
    """

    times: int
    noise: SelectionNoise
    cell_cost: float

    def event(self, layout: Layout, adjacency: Adjacency, unit_cap: int) -> Event:
        """What one choice is for the ledger."""
        return event_of(sensitivity(table_bounds(layout), adjacency, unit_cap), self.noise)

    def std(self, layout: Layout) -> float:
        """Standard deviation of the noise on every score, in rows or units."""
        return float(np.pi / np.sqrt(6.0)) * self.noise.scale * layout.lattice


def select_tree(
    layout: Layout, selection: Selection, singles: Sequence[FloatArray], n_rows: float, session: Session
) -> Iterator[tuple[int, int]]:
    """Choose the edges of a spanning tree, one after the other.

    Args:
        layout: of rows; at least two variables.
        selection: one choice fewer than variables.
        singles: released probabilities of each variable's states.
        n_rows: released number of rows or units.
        session: pays for every choice.

    Yields:
        Pairs of variables, the smaller index first.
    """
    pairs = list(combinations(range(len(layout.variables)), 2))
    candidates = Candidates(
        statistic=pairs_statistic(layout, pairs),
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
    """Tables of pairs whose columns are independent, in lattice units, in the order of `pairs_statistic`.

    The cell after each, which is empty, has what the pair's cells cost less than those of the largest table: the score
    has as much more, whatever the rows are.
    """
    rows = min(max(n_rows, 1.0), float(MAX_ROWS))
    cells = [math.prod(layout.shape(pair)) for pair in pairs]
    targets: list[FloatArray] = []
    for (a, b), size in zip(pairs, cells, strict=True):
        spared = min(cell_cost * (max(cells) - size), float(MAX_ROWS))
        targets += [rows * np.outer(singles[a], singles[b]).ravel(), np.array([spared])]
    return np.rint(np.concatenate(targets) / layout.lattice).astype(np.int64)
