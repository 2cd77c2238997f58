"""The tables of FitMRF once more, slowly: from Bernstein et al. 2017, sections 3 and 4.2, in plain arithmetic.

Written from what the ledger's entry and the public schema say of a release, not from the compiled kernels, in pieces,
so that a mutant can plant its bug in one of them. Shares are truncated to multiples of 2^-20.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_server.fits import PublicTable
from bursar_server.vault import ArrayRows, Statistic

UNIT = 2**20
MOST = 2**26
"""Most rows of a table; nothing is divided by more."""

Cells = Iterator[tuple[int, int]]
"""Positions in a flat sum, and what a row adds there."""


@dataclass(frozen=True)
class Column:
    """A column of the model: its states, of a numeric one the inner edges of its bins, and whether the last is null."""

    name: str
    size: int
    edges: tuple[float, ...] | None
    nullable: bool = False


@dataclass(frozen=True)
class Said:
    """Ledger entry's words on a fit, and the schema of its columns.

    Attributes:
        columns: of a row, in order; K comes after them where rows are shares.
        shares: every row counts 1 / K.
        chain: columns are the steps of a homogeneous chain.
        null: its state that stands for "not observed"; -1 if there is none.
        largest: columns of the largest sets that may be chosen.
    """

    columns: tuple[Column, ...]
    shares: bool
    chain: bool
    null: int
    largest: int = 2

    @property
    def unit(self) -> int:
        """Return what a row counts in a table of cells, in lattice units, before it is divided by K."""
        return UNIT if self.shares else 1


def said(parameters: Mapping[str, Any], table: PublicTable) -> Said:
    """Return them from an entry's parameters."""
    columns = tuple(_column(name, table) for name in parameters["columns"])
    null, categories = parameters["null_category"], {one.name: one.categories for one in table.categorical}
    state = -1 if null is None else categories[columns[0].name].index(null)
    shares, chain = parameters["unit_weights"] == "shares", parameters["graph"] == "chain"
    return Said(columns, shares, chain, state, parameters["all_sets_of"] or 2)


def _column(name: str, table: PublicTable) -> Column:
    for one in table.categorical:
        if one.name == name:
            return Column(name, len(one.categories), None)
    binned = next(one for one in table.numeric if one.name == name)
    return Column(name, len(binned.bins) - 1 + binned.nullable, binned.bins[1:-1], binned.nullable)


States = Callable[[Said, FloatArray], list[int]]
Shares = Callable[[Said, FloatArray], int]
Counts = Callable[[Said, list[int]], int]
Transitions = Callable[[Said, list[int]], list[tuple[int, int]]]
Added = Callable[[Said, int, int], int]
Places = Callable[[Said, list[int]], list[list[int]]]


def states(said: Said, row: FloatArray) -> list[int]:
    """States of a row: a bin is closed on its left; what lies in none goes to the nearest, or to the first category."""
    return [_state(column, x) for column, x in zip(said.columns, row.tolist(), strict=False)]


def _state(column: Column, x: float) -> int:
    if column.edges is None:
        return math.floor(x) if 0 <= x < column.size else 0
    return column.size - 1 if column.nullable and math.isnan(x) else sum(x >= edge for edge in column.edges)


def share(said: Said, row: FloatArray) -> int:
    """K of a row: a whole number from 1 to `MOST`; what is no number counts as 1."""
    if not said.shares:
        return 1
    x = float(row[len(said.columns)])
    return 1 if not x >= 1 else MOST if x >= MOST else math.floor(x)


def transitions(said: Said, path: list[int]) -> list[tuple[int, int]]:
    """Those that are not from null to null."""
    return [step for step in pairwise(path) if step != (said.null, said.null)]


def added(said: Said, unit: int, divisor: int) -> int:
    """Return what is added to a cell: rounded down, so that the cells of a unit never sum to more than 1."""
    return unit // divisor


def places(said: Said, path: list[int]) -> list[list[int]]:
    """Places where a row counts in a table of cells: its states, a missing value's, too."""
    return [path]


@dataclass(frozen=True)
class Pieces:
    """Pieces of a row's contribution; a mutant has others.

    Attributes:
        states: of a row.
        share: K, by which a row is divided.
        transitions: of a path, that are counted.
        count: by how much a path's transitions are divided; None: by how many are counted.
        added: to a cell.
        places: where a row counts in a table of cells.
    """

    states: States = states
    share: Shares = share
    transitions: Transitions = transitions
    count: Counts | None = None
    added: Added = added
    places: Places = places


def cells(said: Said, statistic: Statistic, row: FloatArray, pieces: Pieces) -> Cells:
    """Yield a row's contribution to a statistic, by the statistic's public name."""
    path, k, size = pieces.states(said, row), pieces.share(said, row), said.columns[0].size
    if said.chain:
        steps = pieces.transitions(said, path)
        if not steps:
            return
        if statistic.name == "first states":
            yield path[0], pieces.added(said, said.unit, k)
            return
        count = len(steps) if pieces.count is None else pieces.count(said, path)
        for a, b in steps:
            yield a * size + b, pieces.added(said, UNIT, count * k)
        return
    start = 0
    for clique in _cliques(said, statistic):
        shape = [said.columns[index].size for index in clique]
        for place in pieces.places(said, path):
            yield start + int(np.ravel_multi_index([place[i] for i in clique], shape)), pieces.added(said, said.unit, k)
        start += math.prod(shape) + 1  # each of several tables is followed by a cell that stays empty


def _cliques(said: Said, statistic: Statistic) -> list[tuple[int, ...]]:
    """Return the cliques of the tables that a statistic consists of, one after the other."""
    if statistic.name.startswith("tables of"):
        number = int(statistic.name.split(" ")[2])
        sets = [one for k in range(2, said.largest + 1) for one in combinations(range(len(said.columns)), k)]
        # All candidates, smaller sets first, or the largest, or the pairs; three columns have one number for each.
        alike = [[one for one in sets if len(one) == k] for k in (said.largest, 2)]
        return next(some for some in (sets, *alike) if len(some) == number)
    names = [one.name for one in said.columns]
    return [tuple(names.index(name) for name in statistic.name.removeprefix("table of ").split(", "))]


@dataclass(frozen=True)
class Reference:
    """The sum of a statistic over a table, in lattice units; as a kernel, too, with some of its pieces replaced.

    Attributes:
        said: what the entry says.
        pieces: of a row's contribution.
        kept: sums of statistics by name and table; there are few of both, and many runs.
    """

    said: Said
    pieces: Pieces = field(default_factory=Pieces)
    kept: dict[tuple[str, int], tuple[ArrayRows, FloatArray]] = field(default_factory=dict)

    def __call__(self, statistic: Statistic, rows: ArrayRows) -> FloatArray:
        """See `Target.reference`."""
        key = statistic.name, id(rows)
        if key not in self.kept:
            present = np.ones(rows.slots, dtype=np.bool_) if rows.present is None else rows.present
            out = np.zeros(statistic.size, dtype=np.int64)
            self.add(statistic, rows.columns, present, out)
            self.kept[key] = rows, out.reshape(statistic.shape).astype(np.float64)  # with rows, so that ids stay theirs
        return self.kept[key][1]

    def add(self, statistic: Statistic, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """Add what rows contribute to `out`."""
        for row in block[:, present].T:
            for cell, weight in cells(self.said, statistic, row, self.pieces):
                out[cell] += weight


@dataclass(frozen=True)
class BuggyKernel:
    """The reference as the kernel of a statistic."""

    reference: Reference
    statistic: Statistic

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """See `Kernel`."""
        self.reference.add(self.statistic, block, present, out)
