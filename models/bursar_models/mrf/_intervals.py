"""Intervals of a field's probabilities and bounds of its tables' errors, from the noisy tables behind it.

Sources: the noise of the tables is known; the bound of a table's error is theorem 5 of McKenna, Mullins, Sheldon and
Miklau 2022 ("AIM") with a sharper quantile of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import ndtri
from scipy.stats import chi2, gamma

from bursar_models.arrays import FloatArray
from bursar_models.mrf._inference import spread, sum_to

Marginal = Callable[[Sequence[str]], FloatArray]
"""Function from names of columns to the model's joint probabilities."""

Bounds = tuple[FloatArray, FloatArray]
"""Lower and upper ends of the intervals of a table's cells."""


@dataclass(frozen=True)
class TableError:
    """Total variation distance between the model's table of some columns and that of the rows, as a share of the rows.

    Attributes:
        columns: names of the columns.
        measured: True if a released table has all of them.
        expected: what the noise of that table alone is expected to make, 0 to 1; None if there is none.
        bound: what the distance exceeds in at most 1 - level of fits, 0 to 1. If the table is measured: the distance
            from the model to the noisy table, and a quantile of the noise. If not: what no table that agrees with the
            measured ones exceeds, whatever the dependence that the model does not know.
        level: level of the bound.
    """

    columns: tuple[str, ...]
    measured: bool
    expected: float | None
    bound: float
    level: float


@dataclass(frozen=True, eq=False)
class Observed:
    """Noisy counts of some columns, summed from the tables that have all of them, with the noise on a cell.

    Attributes:
        counts: mean of the tables' sums by precision, one axis a column.
        std: standard deviation of the noise on a cell.
        laplace: True if the noise is that of one table of discrete Laplace noise, not summed.
    """

    counts: FloatArray
    std: float
    laplace: bool


@dataclass(frozen=True, eq=False)
class Evidence:
    """Released numbers that intervals are made from.

    Attributes:
        tables: released tables: names of the axes, noisy counts, noise and its law; none that is pooled.
        sizes: number of states of each column, by name.
        rows: number of rows, at least 1.
        marginal: the model.
    """

    tables: Sequence[tuple[tuple[str, ...], FloatArray, float, bool]]
    sizes: Mapping[str, int]
    rows: float
    marginal: Marginal

    def observed(self, columns: tuple[str, ...]) -> Observed | None:
        """Return the noisy counts of columns; None if no table has all of them."""
        cells = math.prod(self.sizes[name] for name in columns)
        found = []
        for names, counts, std, laplace in self.tables:
            if set(columns) <= set(names):
                places = {name: place for place, name in enumerate(names)}
                summed = sum_to(counts, tuple(range(len(names))), tuple(places[name] for name in columns))
                # Without noise the precision would be infinite.
                variance = max(std, 1e-6) ** 2 * counts.size / cells
                found.append((summed, variance, laplace and counts.size == cells))
        if not found:
            return None
        precisions = np.array([1 / variance for _, variance, _ in found])
        shares = precisions / precisions.sum()
        counts = sum((part * one for part, (one, _, _) in zip(shares, found, strict=True)), np.zeros(()))
        return Observed(np.asarray(counts), float(precisions.sum() ** -0.5), len(found) == 1 and found[0][2])

    def bounds(self, columns: tuple[str, ...], z: float, *, sampling: bool = True) -> Bounds:
        """Return ends of intervals of z standard errors of the cells, from noise and, where it is wanted, sampling.

        Cells that are not measured have the Frechet bounds of the largest measured tables within: these hold whatever
        the dependence.
        """
        observed, shape = self.observed(columns), tuple(self.sizes[name] for name in columns)
        if observed is not None:
            cells = self.marginal(columns)
            chance = np.maximum(cells * (1 - cells), 1 / self.rows) / self.rows if sampling else 0.0
            error = np.sqrt((observed.std / self.rows) ** 2 + chance)
            return np.maximum(cells - z * error, 0.0), np.minimum(cells + z * error, 1.0)
        low, high = np.zeros(shape), np.ones(shape)
        scope = tuple(range(len(columns)))
        alone = {place: self._alone(columns[place], z, sampling=sampling) for place in scope}
        for size in range(1, len(columns)):
            for part in combinations(scope, size):
                if self.observed(tuple(columns[place] for place in part)) is None:
                    continue
                lower, upper = self.bounds(tuple(columns[place] for place in part), z, sampling=sampling)
                high = np.minimum(high, spread(upper, part, scope))
                others = [spread(alone[place][0] - 1, (place,), scope) for place in scope if place not in part]
                low = np.maximum(low, spread(lower, part, scope) + sum(others, np.zeros((1,) * len(scope))))
        return low, high

    def _alone(self, name: str, z: float, *, sampling: bool) -> Bounds:
        if self.observed((name,)) is None:
            return np.zeros(self.sizes[name]), np.ones(self.sizes[name])
        return self.bounds((name,), z, sampling=sampling)

    def conditional(self, columns: tuple[str, ...], given: Mapping[str, int], z: float) -> tuple[FloatArray, Bounds]:
        """Return probabilities of columns given states of others, and the ends of their intervals, by the delta rule.

        Without a table of all of them the ends are ratios of bounds.
        """
        every, state = (*columns, *given), tuple(given.values())
        joint = _at(self.marginal(every), state)
        total, observed = float(joint.sum()), self.observed(every)
        cells = joint / total if total > 0 else np.full(joint.shape, 1 / joint.size)
        nothing = np.zeros(joint.shape), np.ones(joint.shape)
        if observed is None:
            low, high = (_at(ends, state) for ends in self.bounds(every, z))
            below, above = (float(ends[state]) for ends in self.bounds(tuple(given), z))
            upper = np.minimum(high / below, 1.0) if below > 0 else nothing[1]
            return cells, (np.minimum(low / above if above > 0 else nothing[0], upper), upper)
        noise = observed.std / self.rows
        # The rule is linear in the total, which has to be well above its own error.
        if not total > 2 * z * math.sqrt(joint.size * noise**2 + total / self.rows):
            return cells, nothing
        variance = (noise / total) ** 2 * (1 - 2 * cells + joint.size * np.square(cells))
        held = self.rows * total
        error = np.sqrt(variance + np.maximum(cells * (1 - cells), 1 / held) / held)
        return cells, (np.maximum(cells - z * error, 0.0), np.minimum(cells + z * error, 1.0))

    def error(self, columns: tuple[str, ...], level: float) -> TableError:
        """Return the expected error of the model's table of columns, and a bound."""
        cells, observed = self.marginal(columns), self.observed(columns)
        if observed is None:
            # All cells at once: Bonferroni.
            low, high = self.bounds(columns, float(ndtri(1 - (1 - level) / (2 * cells.size))), sampling=False)
            more, less = np.maximum(high - cells, 0.0), np.maximum(cells - low, 0.0)
            # What is added somewhere is missing elsewhere.
            return TableError(columns, False, None, float(min(more.sum(), less.sum(), 1.0)), level)
        mean = 1 / math.sqrt(2) if observed.laplace else math.sqrt(2 / math.pi)
        away = float(np.abs(self.rows * cells - observed.counts).sum())
        bound = (away + _noise_bound(observed, level)) / (2 * self.rows)
        expected = min(mean * observed.std * cells.size / (2 * self.rows), 1.0)
        return TableError(columns, True, expected, min(bound, 1.0), level)


def _at(table: FloatArray, state: tuple[int, ...]) -> FloatArray:
    """Return a table at states of its last axes."""
    for place in reversed(state):
        table = table[..., place]
    return table


def _noise_bound(observed: Observed, level: float) -> float:
    """Return what the sum of the noise's absolute values stays below with probability `level`.

    Laplace: a sum of exponentials. Otherwise by Cauchy and Schwarz from the sum of squares of normal noise.
    """
    cells = observed.counts.size
    if observed.laplace:
        return float(observed.std / math.sqrt(2) * gamma.ppf(level, cells))
    return float(observed.std * math.sqrt(cells * chi2.ppf(level, cells)))
