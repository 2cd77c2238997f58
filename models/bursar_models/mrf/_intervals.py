"""Intervals of a field's probabilities and bounds of its tables' errors, from the noisy tables behind it.

Sources: the noise of the tables is known; no bound of a released table's error is above that of theorem 5 of McKenna,
Mullins, Sheldon and Miklau 2022 ("AIM") with a sharper quantile of the noise. Bounds of tables that no release has use
that the server chose others; their constants are calibrated, see `Evidence.error`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import scipy

from bursar_models.arrays import FloatArray
from bursar_models.mrf._direct import between_variances
from bursar_models.mrf._inference import spread, sum_to

Marginal = Callable[[Sequence[str]], FloatArray]
"""Function from names of columns to the model's joint probabilities."""

Bounds = tuple[FloatArray, FloatArray]
"""Lower and upper ends of the intervals of a table's cells."""

ROUNDS_WEIGHT, EDGE_WEIGHT = 1.6, 0.8
"""Weights in a bound at 95 % of columns that no table has: what rounds left unexplained, and a tree's weakest edge.

0.8 for edges covers 97 % of pairs of six real tables at epsilon 0.1, 1 and 3, and 97 % of 1,554 pairs of five others.
0.8 for rounds covers 97 % of the six, but 79 to 92 % of pairs of three of the others: so it is twice as much.
"""

_SPREAD = 0.43
"""Standard deviation of the logarithm of such an error over its bound, in the same runs."""

_OF_ROUNDS, _OF_TRIPLES, _OF_TREES = 0.28, 0.37, 0.45
"""Median of such an error over its bound at 95 %: of pairs and triples after rounds, and of pairs beside a tree."""


_MANY, _EARLY = 48, 12
"""Number of rounds above which models of the later half miss less than pairs and triples that were not chosen, and
number of those that are left out then.

One or two fits each: by all rounds from the 21st on 88 to 90 % of triples were below their bounds in wives at epsilon
1, 82 and 95 % in illness at 1, 72 % there at 3, 92 % in marketing at 10. By those from the 13th on these bounds are 1.2
to 3 times as large, and so all or nearly all are.
"""


@dataclass(frozen=True)
class TableError:
    """Total variation distance between the model's table of some columns and that of the rows, as a share of the rows.

    Attributes:
        columns: names of the columns.
        measured: True if a released table has all of them.
        expected: the expected distance, 0 to 1: what noise makes; for columns that the server could have chosen, two or
            in rounds three, the median of such tables. None where only a bound is known.
        bound: what the distance exceeds in about 1 - level of tables, 0 to 1. If the table is measured, from the law of
            its noise. Of columns that the server could have chosen, from what it chose. Of others, what no table that
            agrees with the measured ones exceeds, whatever the dependence that the model does not know.
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

    @property
    def mean(self) -> float:
        """Mean absolute value of the noise on a cell."""
        return self.std * mean_absolute(laplace=self.laplace)

    def moved(self, cells: FloatArray, rows: float) -> float:
        """Return how many cells' noise a model's table keeps: a cell is hardly further off than it has rows."""
        return float(np.minimum(1.0, rows * cells / max(self.mean, 1e-9)).sum())

    def noise(self, cells: float, level: float) -> float:
        """Return a quantile of the sum of the noise's absolute values on so many cells.

        It is that of the gamma distribution with the same mean and variance, which of Laplace noise is exact.
        """
        ratio = float(np.square(self.mean / self.std) / (1 - np.square(self.mean / self.std))) if self.std > 0 else 1.0
        return float(scipy.special.gammaincinv(max(cells, 1e-9) * ratio, level) * self.mean / ratio)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Released numbers that intervals are made from.

    Attributes:
        tables: released tables: names of the axes, noisy counts, noise and its law; none that is pooled.
        sizes: number of states of each column, by name.
        rows: number of rows, at least 1.
        marginal: the model.
        unexplained: what the rounds' models missed, as in `unexplained`; None if there were no rounds.
        choice_std: standard deviation of the noise on the score of a tree's edge, in rows; None if no tree was chosen.
        apart: function from names of columns that no clique has together to the probabilities of the graph alone, which
            `marginal` moves towards a released table, and to the mean `excess` of such tables; None for others.
    """

    tables: Sequence[tuple[tuple[str, ...], FloatArray, float, bool]]
    sizes: Mapping[str, int]
    rows: float
    marginal: Marginal
    unexplained: float | None = None
    choice_std: float | None = None
    apart: Callable[[tuple[str, ...]], tuple[FloatArray, float] | None] = lambda columns: None

    def observed(self, columns: tuple[str, ...]) -> Observed | None:
        """Return the noisy counts of columns; None if no table has all of them."""
        cells = math.prod(self.sizes[name] for name in columns)
        found = []
        for names, counts, std, laplace in self.tables:
            if set(columns) <= set(names):
                places = {name: place for place, name in enumerate(names)}
                summed = sum_to(counts, tuple(range(len(names))), tuple(places[name] for name in columns))
                # Without noise the precision would be infinite, and squares beyond floats raise.
                variance = min(max(std, 1e-6), 1e150) ** 2 * counts.size / cells
                found.append((summed, variance, laplace and counts.size == cells))
        if not found:
            return None
        precisions = np.array([1 / variance for _, variance, _ in found])
        shares = precisions / precisions.sum()
        counts = sum((part * one for part, (one, _, _) in zip(shares, found, strict=True)), np.zeros(()))
        return Observed(np.asarray(counts), float(precisions.sum() ** -0.5), len(found) == 1 and found[0][2])

    def noise(self, columns: tuple[str, ...], observed: Observed) -> FloatArray:
        """Return variances of the noise that is left in the model's cells of a released table, in squared rows.

        A clique's cell is a sum of effects: the mean, one of each column, of each pair and so on (Yates 1937). The
        model has each of them from all tables with its columns, which know sums better than one table does. Outside of
        cliques see `between`.
        """
        apart = self.apart(columns)
        if apart is not None:
            return between_variances(apart[0], observed.counts, observed.std, self.rows, apart[1])
        # A share is a cell over the total, whose noise moves cells of many rows most.
        total = self._std(()) * (self.marginal(columns) - 1 / observed.counts.size)
        return np.asarray(total**2 + self._effects(columns))

    def _effects(self, columns: tuple[str, ...], *, beside: tuple[str, ...] = ()) -> float:
        """Return the variance of the noise in a cell by effects of columns, but for those of `beside` alone."""
        found = 0.0
        for size in range(1, len(columns) + 1):
            for part in combinations(columns, size):
                others = math.prod(self.sizes[name] for name in columns if name not in part)
                own = math.prod(1 - 1 / self.sizes[name] for name in part)
                found += 0.0 if set(part) <= set(beside) else (self._std(part) / others) ** 2 * own
        return found

    def _std(self, columns: tuple[str, ...]) -> float:
        """Return the standard deviation of the noise on a cell of columns of a released table."""
        observed = self.observed(columns)
        return 0.0 if observed is None else observed.std

    def bounds(self, columns: tuple[str, ...], z: float, *, sampling: bool = True) -> Bounds:
        """Return ends of intervals of z standard errors of the cells, from noise and, where it is wanted, sampling.

        Cells that are not measured have the Frechet bounds of the largest measured tables within: these hold whatever
        the dependence.
        """
        observed, shape = self.observed(columns), tuple(self.sizes[name] for name in columns)
        if observed is not None:
            cells = self.marginal(columns)
            chance = np.maximum(cells * (1 - cells), 1 / self.rows) / self.rows if sampling else 0.0
            error = np.sqrt(self.noise(columns, observed) / self.rows**2 + chance)
            return np.maximum(cells - z * error, 0.0), np.minimum(cells + z * error, 1.0)
        low, high = np.zeros(shape), np.ones(shape)
        scope = tuple(range(len(columns)))
        alone = {place: self._alone(columns[place], z, sampling=sampling) for place in scope}
        # Frechet: a cell is at most each margin, and at least their sum less one for each but the first.
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
        """Return probabilities of columns given states of others, and the ends of their intervals.

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
        # Cells of the state share the noise of their total, which other tables tell, too.
        apart, alone = max(observed.moved(joint, self.rows), 1.0), self.observed(tuple(given))
        whole = apart * (observed.std / self.rows) ** 2
        if alone is not None:
            whole = min(whole, float(self.noise(tuple(given), alone)[state]) / self.rows**2)
        own: FloatArray | float
        if self.apart(every) is None:
            # Effects of the columns, of which cells without rows keep a part.
            own = self._effects(every, beside=tuple(given)) / max(1 - 1 / joint.size, 0.5)
        else:
            own = _at(self.noise(every, observed), state)
        parts = own / self.rows**2 * (1 - 1 / apart) + whole / apart**2
        low, high = _ratios(joint, total, parts, whole / apart, whole, self.rows, z)
        return cells, (low, high)

    def error(self, columns: tuple[str, ...], level: float) -> TableError:
        """Return the expected error of the model's table of columns, and a bound.

        A model of a released table is nearer to the truth than the table itself, and no cell is much further off than
        the model has rows there. So the bound is the quantile of the noise on the cells that have rows; what the model
        is further from the noisy table than noise explains is added.
        """
        cells, observed = self.marginal(columns), self.observed(columns)
        if observed is None:
            return self._unmeasured(columns, cells, level)
        away = float(np.abs(self.rows * cells - observed.counts).sum())
        moved = observed.moved(cells, self.rows)
        more = max(away - observed.noise(cells.size, level), 0.0)
        bound = min(observed.noise(moved, level) + more, away + _noise_bound(observed, level)) / (2 * self.rows)
        expected = min(observed.mean * moved / (2 * self.rows), 1.0)
        return TableError(columns, True, expected, min(bound, 1.0), level)

    def _unmeasured(self, columns: tuple[str, ...], cells: FloatArray, level: float) -> TableError:
        """Return the error of a table that no release has: calibrated, and below what is certain."""
        # All cells at once: Bonferroni.
        low, high = self.bounds(columns, float(scipy.special.ndtri(1 - (1 - level) / (2 * cells.size))), sampling=False)
        more, less = np.maximum(high - cells, 0.0), np.maximum(cells - low, 0.0)
        # What is added somewhere is missing elsewhere.
        certain = float(min(more.sum(), less.sum(), 1.0))
        likely = self._likely(columns, cells)
        if likely is None:
            return TableError(columns, False, None, certain, level)
        bound = likely * math.exp(_SPREAD * float(scipy.special.ndtri(level) - scipy.special.ndtri(0.95)))
        part = _OF_TREES if self.unexplained is None else _OF_ROUNDS if len(columns) == 2 else _OF_TRIPLES
        expected = likely * part
        return TableError(columns, False, min(expected, certain), min(bound, certain), level)

    def _likely(self, columns: tuple[str, ...], cells: FloatArray) -> float | None:
        """Return a bound at 95 % for two or three columns that were not chosen; None if nothing is known of them.

        In rounds the pairs that the model explained worst were mostly chosen, so it explains others better; triples
        are about as far off, in units of their spread. In a tree a pair was mostly less dependent than every edge
        between its columns.
        """
        observed = [self.observed((name,)) for name in columns]
        most = 2 if self.unexplained is None else 3
        if not 2 <= len(columns) <= most or not all(observed):
            return None
        alone = _alone(cells)
        kept = zip(observed, alone, strict=True)
        # The columns' own noise moves every table of them, whether its dependence is right or not.
        noise = sum(one.mean * one.moved(part, self.rows) for one, part in kept if one) / (2 * self.rows)
        if self.unexplained is not None:
            spread = column_spread(cells)
            # Rare states that depend on each other may do so nearly completely, so that errors fall more slowly.
            return ROUNDS_WEIGHT * self.unexplained * max(spread, math.sqrt(spread)) + noise
        edge = None if self.choice_std is None else self._weakest(*columns)
        if edge is None or self.choice_std is None:
            return None
        return EDGE_WEIGHT * (edge + self.choice_std / (2 * self.rows)) + noise

    def _weakest(self, a: str, b: str) -> float | None:
        """Return the dependence of the weakest pair on the way between two columns; None if there is no way."""
        part = {name: {name} for name in self.sizes}
        for dependence, (x, y) in self._dependences:
            joined = part[x] | part[y]
            part |= dict.fromkeys(joined, joined)
            if b in part[a]:
                return dependence
        return None

    @cached_property
    def _dependences(self) -> list[tuple[float, tuple[str, str]]]:
        """Distance of each released pair from independence under the model, the largest first."""
        pairs = {
            (names[0], names[1]) for names, *_ in self.tables if len(names) == 2 and set(names) <= self.sizes.keys()
        }
        found = []
        for pair in sorted(pairs):
            cells = self.marginal(pair)
            apart = np.abs(cells - np.outer(cells.sum(axis=1), cells.sum(axis=0))).sum() / 2
            found.append((float(apart), pair))
        return sorted(found, reverse=True)


def mean_absolute(*, laplace: bool) -> float:
    """Return the mean absolute value of noise of standard deviation 1."""
    return math.sqrt(0.5) if laplace else math.sqrt(2 / math.pi)


def column_spread(cells: FloatArray) -> float:
    """Return the product over a table's columns of the sum of sqrt(p (1 - p)) over their states.

    Distances of tables from a model's are about in proportion to it: columns of one frequent state cannot be far off.
    """
    alone = [np.clip(part, 0.0, 1.0) for part in _alone(cells)]
    return math.prod(float(np.sqrt(part * (1 - part)).sum()) for part in alone)


def _alone(cells: FloatArray) -> list[FloatArray]:
    """Return the probabilities of each column of a table."""
    axes = range(cells.ndim)
    return [np.asarray(cells.sum(axis=tuple(other for other in axes if other != axis))) for axis in axes]


def missed(cells: FloatArray, rows: float, counts: FloatArray, noise: float) -> float:
    """Return by how much a model missed a table that was released after it, noise deducted, over `column_spread`.

    Args:
        cells: the model's probabilities.
        rows: number of rows, at least 1.
        counts: noisy counts.
        noise: mean absolute value of the noise on a cell.
    """
    away = float(np.abs(counts - rows * cells).sum())
    left = math.sqrt(max(away**2 - (noise * counts.size) ** 2, 0.0))
    # A column of one certain state would divide by 0.
    return left / (2 * rows) / max(column_spread(cells), 1e-6)


def unexplained(tests: Sequence[float]) -> float | None:
    """Return the mean of what the models of later rounds missed; None if there were no rounds.

    Later is the second half, or of many rounds all from the 13th on.
    """
    later = _EARLY if len(tests) > _MANY else max(0, len(tests) - max(3, len(tests) // 2))
    return float(np.mean(tests[later:])) if tests else None


def _ratios(
    parts: FloatArray, total: float, part: FloatArray | float, shared: float, whole: float, rows: float, z: float
) -> Bounds:
    """Return ends of intervals of z errors of parts of a total: all p at which part - p total may be 0.

    That difference is normal, whatever the total; its variance has sampling added, (total p (1 - p)) / rows. Source:
    Fieller (1954), "Some problems in interval estimation".

    Args:
        parts: estimates.
        total: estimate of the total.
        part: variance of the noise on a part, or on each.
        shared: its covariance with that on the total.
        whole: variance of the noise on the total.
        rows: number of rows, at least 1.
        z: number of errors.
    """
    a = total**2 - z**2 * (whole - total / rows)
    b = parts * total + z**2 * (total / rows / 2 - shared)
    c = np.square(parts) - z**2 * part
    if not a > 0:
        return np.zeros(parts.shape), np.ones(parts.shape)
    reach = np.sqrt(np.maximum(np.square(b) - a * c, 0.0))
    return np.clip((b - reach) / a, 0.0, 1.0), np.clip((b + reach) / a, 0.0, 1.0)


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
        return observed.noise(cells, level)
    chi_squared = 2 * scipy.special.gammaincinv(cells / 2, level)
    return float(observed.std * math.sqrt(cells * chi_squared))
