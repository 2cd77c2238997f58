"""Forests at work, in little: a private histogram tree and a private decision tree, each in some forty lines."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from bursar_ledger import Adjacency, ConcentratedEvent, cost_units
from bursar_server.vault import (
    ArrayRows,
    Bounds,
    Factor,
    Forest,
    Meter,
    Node,
    OpenDPNoise,
    ScoreBounds,
    Session,
    Statistic,
    SyntheticBudget,
    gaussian_for,
    part_sensitivity,
    search_noise_for,
)

ORDER = Fraction(9)
STEPS = 64
"""Columns lie in [0, 1); they are cut at multiples of 1 / 64."""


def cells(column: NDArray[np.float64]) -> NDArray[np.int64]:
    """The step in which each value lies; anything that is no number is in the first."""
    return np.clip(np.nan_to_num(column * STEPS), 0, STEPS - 1).astype(np.int64)


@dataclass(frozen=True)
class Cut:
    """Rows with a column's step below a threshold, and the others."""

    column: int
    step: int
    ways: int = 2

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """See `Rule`."""
        labels[:] = cells(block[self.column]) >= self.step


def forest_of(rows: NDArray[np.float64], rho: Fraction, adjacency: Adjacency) -> Forest:
    """A forest that was debited exactly."""
    meter = Meter(SyntheticBudget(ORDER, cost_units([ConcentratedEvent(rho)], ORDER)))
    return Session(
        rows=ArrayRows(rows),
        columns=len(rows),
        adjacency=adjacency,
        unit_cap=1,
        meter=meter,
        source=OpenDPNoise(),
    ).forest(rho)


# A histogram tree: cells that hold enough rows are halved, as in PrivTree (Zhang, Xiao and Xie 2016)


def count_kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
    """One per row."""
    out += int(present.sum())


COUNT = Statistic("count", count_kernel, (Factor("one", 0),), (1,), Bounds(1, 1, 1, 1, non_negative=True), 1)


def histogram(
    forest: Forest, depth: int, rho: Fraction, least: float, adjacency: Adjacency
) -> dict[tuple[int, int], float]:
    """Noisy counts of cells [start, stop) of the first column, finer where there are more rows."""
    noise = gaussian_for(part_sensitivity(COUNT.bounds, adjacency, 1), rho / (depth + 1))
    found: dict[tuple[int, int], float] = {}
    level: list[tuple[Node, int, int]] = [(forest.tree(), 0, STEPS)]
    while level:
        counts = forest.noisy_sums([(node, COUNT, noise) for node, _, _ in level])  # one pass for a whole level
        deeper = []
        for (node, start, stop), count in zip(level, counts, strict=True):
            middle = (start + stop) // 2
            if STEPS >> depth < stop - start and count[0] > least:
                left, right = forest.split(node, Cut(0, middle))
                deeper += [(left, start, middle), (right, middle, stop)]
            else:
                found[start, stop] = float(count[0])
        level = deeper
    return found


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_histogram_tree_is_finer_where_rows_are(adjacency: Adjacency) -> None:
    """Every level has all of rho / (depth + 1), whatever the number of cells: a narrow peak is found to a step."""
    rng = np.random.default_rng(5)  # noqa: TID251 - public rows of a test
    rows = np.concatenate([rng.uniform(0, 1, 4000), rng.uniform(37 / STEPS, 38 / STEPS, 20_000)])[None]
    found = histogram(forest_of(rows, Fraction(1, 10), adjacency), 6, Fraction(1, 10), 2500.0, adjacency)
    assert sorted(step for span in found for step in range(*span)) == list(range(STEPS))
    assert found[37, 38] == pytest.approx(20_000 + 4000 / STEPS, abs=150)
    assert len(found) == 7
    for (start, stop), count in found.items():
        true = int(((cells(rows[0]) >= start) & (cells(rows[0]) < stop)).sum())
        assert count == pytest.approx(true, abs=100)  # sigma is 8.4 at most


# A decision tree: each cut is chosen by the exponential mechanism (Friedman and Schuster 2010), leaves are counted


def cells_of_classes(columns: int) -> Statistic:
    """Counts by column, step and class; the class is the last column of the rows."""

    def kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        classes = (block[-1, present] >= 0.5).astype(np.int64)
        counts = out.reshape(columns, STEPS, 2)
        for column in range(columns):
            np.add.at(counts[column], (cells(block[column, present]), classes), 1)

    return Statistic("cells", kernel, (Factor("one", 0),), (columns, STEPS, 2), Bounds(columns, columns, 8, 8), 1)


CLASSES = Statistic(
    "classes",
    lambda block, present, out: np.add.at(out, (block[-1, present] >= 0.5).astype(np.int64), 1),
    (Factor("one", 0),),
    (2,),
    Bounds(1, 1, 2, 2, non_negative=True),
    1,
)


@dataclass(frozen=True)
class Cuts:
    """All cuts of two columns; a cut's score is how many rows the larger class of each side has.

    A row that comes raises each score by 0 or 1, so a replacement moves them apart by 2.
    """

    groups: int = 2
    batch: int = 2
    bounds: ScoreBounds = ScoreBounds(1, 2)  # noqa: RUF009 - it is frozen

    def statistic(self, first: int, stop: int) -> Statistic:
        """Counts of both columns, in one batch or by themselves."""
        whole = cells_of_classes(2)

        def kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
            both = np.zeros((2, STEPS, 2), dtype=np.int64)
            whole.kernel(block, present, both.reshape(-1))
            out += both[first:stop].ravel()

        return Statistic("cells", kernel, whole.factors, (stop - first, STEPS, 2), whole.bounds, 1)

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the scores of cuts at steps 1 to 63."""
        left = np.cumsum(sums, axis=0)[:-1]
        return np.asarray(left.max(axis=1) + (sums.sum(axis=0) - left).max(axis=1))


def grown(forest: Forest, node: Node, depth: int, rho: Fraction) -> list[tuple[Node, NDArray[np.float64]]]:
    """Leaves with noisy counts of their classes; rho is for every path below the node."""
    noise = gaussian_for(part_sensitivity(CLASSES.bounds, Adjacency.REPLACE_ONE, 1), rho / (depth + 1))
    if depth == 0:
        return [(node, forest.noisy_sum(node, CLASSES, noise))]
    each = rho / (depth + 1)
    column, at = forest.search(node, Cuts(), search_noise_for(Cuts().bounds, Adjacency.REPLACE_ONE, 1, each))
    return [
        leaf
        for child in forest.split(node, Cut(column, at + 1))
        for leaf in grown(forest, child, depth - 1, rho - each)
    ]


def test_a_decision_tree_learns_what_no_single_cut_tells() -> None:
    """One corner against the rest: two levels of private cuts find it (79 % after one), and leaves say their class."""
    rng = np.random.default_rng(6)  # noqa: TID251 - public rows of a test
    points = rng.uniform(0, 1, (2, 20_000))
    classes = (points[0] < 0.3) | (points[1] >= 0.7)
    rho = Fraction(1, 100)
    forest = forest_of(np.vstack([points, classes]), rho, Adjacency.REPLACE_ONE)
    leaves = grown(forest, forest.tree(), 2, rho)
    right = sum(float(counts.max()) for _, counts in leaves) / 20_000
    assert len(leaves) == 4
    assert right > 0.95
    assert all(forest.left(leaf) < rho / 10**9 for leaf, _ in leaves)
