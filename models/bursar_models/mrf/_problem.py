"""Noisy tables, and the optimization problem of the parameters that they observe."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bursar_models.arrays import FloatArray, frozen
from bursar_models.mrf._descent import Solve, minimized
from bursar_models.mrf._inference import spread, sum_to
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
        self._scopes = [table.variables for table in tables]
        parts = [*dict.fromkeys((v,) for scope in scopes for v in scope), *(s for s in scopes if len(s) > 1)]
        holders = {part: [i for i, scope in enumerate(scopes) if set(part) <= set(scope)] for part in parts}
        self._shared = {part: numbers for part, numbers in holders.items() if len(numbers) > 1}
        self._shapes = [table.counts.shape for table in tables]
        self._lengths = [table.counts.size for table in tables]
        ends = np.cumsum(self._lengths).tolist()
        self._places = [slice(end - length, end) for end, length in zip(ends, self._lengths, strict=True)]
        self.stds = self._repeated([max(table.std, LEAST_STD) for table in tables])
        self.cells = self._repeated([float(length) for length in self._lengths])
        self.multiples = self._repeated(multiples)
        counts = np.concatenate([table.counts.ravel() for table in tables])
        guesses = [np.concatenate([part.ravel() for part in start]) for start in starts]
        # The uniform model has a finite objective whatever the tables say, so that descent always has a start.
        self.neutral, self.starts = guesses[0], [np.zeros(len(counts)), *guesses]
        near = np.concatenate([_prior_means(*pair) for pair in zip(tables, expected, strict=True)])
        self.posterior = Posterior(
            # No true count lies so far out: what noise put there would only make the arithmetic overflow.
            counts=np.clip(counts, -FARTHEST * self.stds, rows + FARTHEST * self.stds),
            stds=self.stds,
            laplace=self._repeated([float(table.laplace) for table in tables]) > 0,
            near=near,
            far=np.maximum(near, _FAR * rows / self.cells),
        )

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
        diagonal, parts = 1 / (marginals + own + _FLAT), self.split(own + _FLAT)
        totals = [float(part.sum()) for part in parts]
        rows = {
            (number, part): sum_to(parts[number], self._scopes[number], part)
            for part, numbers in self._shared.items()
            for number in numbers
        }

        def solve(vector: FloatArray) -> FloatArray:
            pieces = self.split(vector)
            steps = [np.full(piece.shape, piece.sum() / total) for piece, total in zip(pieces, totals, strict=True)]
            # Moves between tables leave their sum as it is, hence the mean of all moves is taken off.
            for part, numbers in self._shared.items():
                sums = [sum_to(pieces[number], self._scopes[number], part) for number in numbers]
                moves = [
                    (one - mean) / rows[number, part]
                    for mean in [np.mean(sums, axis=0)]
                    for one, number in zip(sums, numbers, strict=True)
                ]
                for mean in [np.mean(moves, axis=0)]:
                    for move, number in zip(moves, numbers, strict=True):
                        steps[number] += spread(move - mean, part, self._scopes[number])
            return np.asarray(diagonal * vector + np.concatenate([step.ravel() for step in steps]))

        return solve

    def _repeated(self, values: Sequence[float]) -> FloatArray:
        return np.repeat(np.asarray(values, dtype=np.float64), self._lengths)


def _prior_means(table: NoisyTable, expected: FloatArray | None) -> FloatArray:
    if expected is None:
        return np.full(table.counts.size, np.inf)
    return np.maximum(expected.ravel(), _LEAST_MEAN * max(table.std, LEAST_STD))


def likeliest(
    problem: Problem, observed: FloatArray, penalty: FloatArray, starts: Sequence[FloatArray], limit: int
) -> tuple[FloatArray, int]:
    """Return the parameters of maximum likelihood for probabilities `observed`, and the number of evaluations.

    Maximizes theta . observed - A(theta) - sum of penalty theta^2 / 2.
    """

    def objective(theta: FloatArray) -> tuple[float, FloatArray, Solve]:
        marginals, log_partition = problem.marginals(theta)
        value = log_partition - float(theta @ observed) + 0.5 * float(penalty * theta @ theta)
        return value, marginals - observed + penalty * theta, problem.solver(marginals, penalty)

    return minimized(objective, starts, np.full(observed.shape, -np.inf), tolerance(problem), limit)


def tolerance(problem: Problem) -> float:
    """Return the progress of a step, in nats, at which fitting ends: little against the divergence that noise causes.

    That divergence is of the order of half the cells' variances, of noise and of sampling, over their means and the
    rows.
    """
    divergence = float((1 + np.square(problem.stds) * problem.cells / problem.rows).sum()) / (2 * problem.rows)
    return min(max(1e-5 * divergence, 1e-10), 1e-6)
