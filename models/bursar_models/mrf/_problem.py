"""Noisy tables, and the optimization problem of the parameters that they observe."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bursar_models.arrays import FloatArray, IntArray, frozen
from bursar_models.mrf._descent import Solve, minimized
from bursar_models.mrf._posterior import Posterior

_FLAT = 1e-12
"""Least second derivative, so that a flat direction has a finite step."""

FARTHEST = 1e3
"""Standard deviations to which counts may be below 0 or above the number of rows; noise never takes them there."""

LEAST_STD = 1e-6
"""Minimum standard deviation of noise, in rows, so that empty cells keep finite log-potentials."""

MAX_ITERATIONS = 500
"""Maximum number of evaluations of marginals; public. Few fits take more than 200 (`ENOUGH` in `_work.py`)."""

_FAR = 4.0
"""Mean of the wide half of a prior, over the average count of the table's cells. Chosen, not tuned: "several"."""

_LEAST_MEAN = 1e-6
"""Minimum of expected counts, in standard deviations of the noise: smaller ones cannot be told from it."""

Infer = Callable[[Sequence[FloatArray]], tuple[list[FloatArray], float]]
"""Function from an array of parameters for each table to marginals of the tables and the log-partition function."""


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """Contingency table as it was released.

    Attributes:
        variables: variables of its axes, each once, in any order.
        counts: noisy numbers of rows, of any sign; one axis a variable.
        std: standard deviation of the noise on every cell, in rows, at least 0.
        laplace: True for discrete Laplace noise, False for discrete Gaussian noise.

    Raises:
        ValueError: a field with a wrong shape or an entry outside its range; the message names the field.
    """

    variables: tuple[int, ...]
    counts: FloatArray
    std: float
    laplace: bool = False

    def __post_init__(self) -> None:
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "variables", tuple(int(variable) for variable in self.variables))
        object.__setattr__(self, "counts", frozen("counts", self.counts))
        if not 0 < len(self.variables) == len(set(self.variables)) == self.counts.ndim:
            raise ValueError(f"variables: expected {self.counts.ndim} different ones, one for each axis of counts")
        if not 0 <= self.std < math.inf:
            raise ValueError(f"std: expected a finite number of at least 0, got {self.std!r}")


class Problem:
    """Tables and the parameters that they observe, one for each cell, as vectors.

    Args:
        tables: noisy tables, one for each array of parameters.
        rows: number of rows.
        infer: function from an array of parameters for each table to the model's probabilities of its cells, and the
            log-partition function, whose gradient these are.
        multiples: ratio of a table's parameters to its log-potentials.
        starts: guesses of the parameters, an array for each table. The first are those of the model to which the prior
            leans, none of them positive.
        expected: counts of each table under that model, positive; None for a table with a flat prior.
        scopes: variables of each table, as far as sums over others may move from one table to another.
        limit: maximum number of evaluations of marginals.
    """

    def __init__(
        self,
        tables: Sequence[NoisyTable],
        rows: float,
        infer: Infer,
        multiples: Sequence[float],
        starts: Sequence[Sequence[FloatArray]],
        expected: Sequence[FloatArray | None],
        scopes: Sequence[tuple[int, ...]] = (),
        limit: int = MAX_ITERATIONS,
    ) -> None:
        self.rows, self._infer, self.limit = rows, infer, limit
        self._shapes = [table.counts.shape for table in tables]
        self._lengths = [table.counts.size for table in tables]
        ends = np.cumsum(self._lengths).tolist()
        self._firsts = np.array([0, *ends[:-1]])
        self._places = [slice(end - length, end) for end, length in zip(ends, self._lengths, strict=True)]
        self._shared = _Shared.of(scopes, self._shapes)
        self.stds = self._repeated([max(table.std, LEAST_STD) for table in tables])
        self.cells = self._repeated([float(length) for length in self._lengths])
        self.multiples = self._repeated(multiples)
        guesses = [np.concatenate([part.ravel() for part in start]) for start in starts]
        # The uniform model has a finite objective whatever the tables say, so that descent always has a start.
        self.neutral, self.starts = guesses[0], [np.zeros(len(self.stds)), *guesses]
        self.posterior = posterior_of(tables, rows, expected)

    @property
    def counts(self) -> FloatArray:
        """Noisy counts, clipped to the range that noise can reach."""
        return self.posterior.counts

    def split(self, values: FloatArray) -> list[FloatArray]:
        """Return a vector as one array for each table."""
        return [values[place].reshape(shape) for place, shape in zip(self._places, self._shapes, strict=True)]

    def marginals(self, theta: FloatArray) -> tuple[FloatArray, float]:
        """Return probabilities of all cells of the tables, and the log-partition function."""
        tables, log_partition = self._infer(self.split(theta))
        return np.concatenate([table.ravel() for table in tables]), log_partition

    def solver(self, marginals: FloatArray, own: FloatArray) -> Solve:
        """Return an approximate inverse of the second derivatives diag(marginals + own) + those of dependent cells.

        Some directions do not change the model: a constant for all cells of a table, and functions of one variable, or
        of those of a smaller table, that move from one table to another. In them only `own` is curved, often by orders
        of magnitude less than the diagonal suggests, so that descent would be slow; they get their own steps.
        """
        # For independent cells the second derivative of A is about the marginal itself.
        diagonal, curved, shared = 1 / (marginals + own + _FLAT), own + _FLAT, self._shared
        totals = np.add.reduceat(curved, self._firsts)
        rows = shared.sums(curved)

        def solve(vector: FloatArray) -> FloatArray:
            steps = np.repeat(np.add.reduceat(vector, self._firsts) / totals, self._lengths)
            # Moves between tables leave their sum as it is, hence the mean of all moves is taken off.
            moves = shared.less_mean(shared.less_mean(shared.sums(vector)) / rows)
            return np.asarray(diagonal * vector + steps + shared.spread(moves, len(vector)))

        return solve

    def _repeated(self, values: Sequence[float]) -> FloatArray:
        return np.repeat(np.asarray(values, dtype=np.float64), self._lengths)


@dataclass(frozen=True, eq=False)
class _Shared:
    """Sums over tables that have variables in common, as vectors.

    Attributes:
        cells: places of the cells that a sum adds, in the vector of all tables.
        groups: number of the sum that each of them belongs to.
        classes: for each sum, the number of its class: those of the same states of the same variables.
        sizes: number of sums of each class, at least 2.
    """

    cells: IntArray
    groups: IntArray
    classes: IntArray
    sizes: FloatArray

    @classmethod
    def of(cls, scopes: Sequence[tuple[int, ...]], shapes: Sequence[tuple[int, ...]]) -> _Shared:
        """Return the sums over all variables, and all scopes of several, that more than one table has.

        Args:
            scopes: variables of each table.
            shapes: shape of each table.
        """
        starts = np.cumsum([0, *map(math.prod, shapes)])
        cells, groups, classes, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        for part in [*dict.fromkeys((v,) for scope in scopes for v in scope), *(s for s in scopes if len(s) > 1)]:
            holders = [place for place, scope in enumerate(scopes) if set(part) <= set(scope)]
            if len(holders) < 2:
                continue
            for place in holders:
                axes = [scopes[place].index(variable) for variable in part]
                shape = tuple(shapes[place][axis] for axis in axes)
                states = np.ravel_multi_index(tuple(np.indices(shapes[place])[axes]), shape).ravel()
                cells.append(starts[place] + np.arange(len(states)))
                groups.append(sum(map(len, classes)) + states)
                classes.append(found + np.arange(math.prod(shape)))
            found += math.prod(shape)
        every = np.concatenate(classes)
        sizes = np.bincount(every, minlength=found).astype(np.float64)
        return cls(np.concatenate(cells), np.concatenate(groups), every, sizes)

    def sums(self, vector: FloatArray) -> FloatArray:
        """Return all sums of a vector of cells."""
        return np.asarray(np.bincount(self.groups, vector[self.cells], len(self.classes)), np.float64)

    def less_mean(self, values: FloatArray) -> FloatArray:
        """Return values of the sums, less the mean of each class."""
        return np.asarray(values - (np.bincount(self.classes, values, len(self.sizes)) / self.sizes)[self.classes])

    def spread(self, values: FloatArray, length: int) -> FloatArray:
        """Return a vector of cells that has the value of each sum at all cells that it adds."""
        return np.asarray(np.bincount(self.cells, values[self.groups], length), np.float64)


def posterior_of(tables: Sequence[NoisyTable], rows: float, expected: Sequence[FloatArray | None]) -> Posterior:
    """Return the posterior of the counts of tables, one after the other; arguments as in `Problem`."""
    lengths = [table.counts.size for table in tables]
    stds = np.repeat([max(table.std, LEAST_STD) for table in tables], lengths)
    near = np.concatenate([_prior_means(*pair) for pair in zip(tables, expected, strict=True)])
    counts = np.concatenate([table.counts.ravel() for table in tables])
    return Posterior(
        # No true count lies so far out: what noise put there would only make the arithmetic overflow.
        counts=np.clip(counts, -FARTHEST * stds, rows + FARTHEST * stds),
        stds=stds,
        laplace=np.repeat([table.laplace for table in tables], lengths),
        near=near,
        far=np.maximum(near, _FAR * rows / np.repeat(lengths, lengths)),
    )


def _prior_means(table: NoisyTable, expected: FloatArray | None) -> FloatArray:
    if expected is None:
        return np.full(table.counts.size, np.inf)
    return np.maximum(expected.ravel(), _LEAST_MEAN * max(table.std, LEAST_STD))


def likeliest(
    problem: Problem,
    observed: FloatArray,
    penalty: FloatArray,
    starts: Sequence[FloatArray],
    limit: int,
    *,
    towards: FloatArray | float = 0.0,
) -> tuple[FloatArray, int]:
    """Return the parameters of maximum likelihood for probabilities `observed`, and the number of evaluations.

    Maximizes theta . observed - A(theta) - sum of penalty (theta - towards)^2 / 2.
    """

    def objective(theta: FloatArray) -> tuple[float, FloatArray, Solve]:
        marginals, log_partition = problem.marginals(theta)
        away = theta - towards
        value = log_partition - float(theta @ observed) + 0.5 * float(penalty * away @ away)
        return value, marginals - observed + penalty * away, problem.solver(marginals, penalty)

    return minimized(objective, starts, np.full(observed.shape, -np.inf), tolerance(problem), limit)


def tolerance(problem: Problem) -> float:
    """Return the progress of a step, in nats, at which fitting ends: little against the divergence that noise causes.

    That divergence is of the order of half the cells' variances, of noise and of sampling, over their means and the
    rows.
    """
    divergence = float((1 + np.square(problem.stds) * problem.cells / problem.rows).sum()) / (2 * problem.rows)
    return min(max(1e-5 * divergence, 1e-10), 1e-6)
