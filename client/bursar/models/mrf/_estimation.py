"""Learning a Markov random field from noisy contingency tables. All of it is post-processing of released values.

Source: Bernstein, McKenna, Sun, Sheldon, Hay, Miklau (2017), sections 3.1 (naive) and 3.2 (collective models).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.optimize import Bounds, minimize
from scipy.special import log_ndtr

from bursar.models._arrays import FloatArray, frozen
from bursar.models.mrf._graph import Graph, check_exact, is_exact
from bursar.models.mrf._inference import LoopyBeliefs, cached_tree, exact, spread, sum_to

Estimator = Literal["cgm", "naive"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
Inference = Literal["auto", "exact", "loopy"]
INFERENCES: tuple[Inference, ...] = get_args(Inference)

MAX_ITERATIONS = 500
"""Most steps of the optimiser; public."""

_ENTROPY = 1.0
"""Weight of the entropy for each cell of a table: see `estimate`."""

_INSIDE = 1 - 1e-9
"""How close to the largest tilt that Laplace noise bears a cell may come."""

_NEAR = 1e-5
"""Exponents below it are expanded."""

_FAR_BELOW = -300.0
"""Ratio from which the mean is expanded; the error is below 1e-9 on both sides."""

_FARTHEST = 1e3
"""Standard deviations by which a count may be below 0 or above the rows; noise does not take it there."""

_LEAST_STD = 1e-6
"""Rows. Less noise counts as this much, so that empty cells keep finite log-potentials."""

_LARGEST = 1e15
"""Counts beyond it are taken to be it; far above any number of rows, and squares stay finite."""

Infer = Callable[[Sequence[FloatArray]], tuple[list[FloatArray], float]]


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """A contingency table as it was released.

    Attributes:
        variables: the variables of its axes, each once, in any order.
        counts: noisy numbers of rows, of any sign; one axis a variable.
        std: standard deviation of the noise on every cell, in rows, at least 0.
        laplace: discrete Laplace noise; discrete Gaussian otherwise.

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


@dataclass(frozen=True, eq=False)
class Estimate:
    """A fitted model p(x) = exp(sum over cliques of theta_C(x_C) - A(theta)).

    Attributes:
        log_potentials: theta_C, one array for each clique of the graph; finite. A constant in each is arbitrary.
        marginals: probabilities of each clique under the model; under loopy inference its approximation.
        log_partition: A(theta), or its Bethe approximation.
        n_rows: number of rows that was used, at least 1.
        iterations: evaluations of the model's marginals.
        inference: how marginals were computed.
    """

    log_potentials: list[FloatArray]
    marginals: list[FloatArray]
    log_partition: float
    n_rows: float
    iterations: int
    inference: Literal["exact", "loopy"]


def estimate(
    graph: Graph,
    tables: Sequence[NoisyTable],
    n_rows: float | None,
    *,
    estimator: Estimator = "cgm",
    regularization: float | None = None,
    inference: Inference = "auto",
) -> Estimate:
    """Fits the potentials of a graph's cliques to noisy tables.

    Args:
        graph: cliques that get a potential.
        tables: each over variables of one clique; several over the same ones are averaged by their precision.
        n_rows: number of rows; None estimates it from the tables' totals (see `estimated_rows`).
        estimator: "cgm", or "naive", which projects every table to the simplex and takes it for the truth.
        regularization: L2 penalty on the log-potentials, in rows: (regularization / 2) |theta|^2 is taken from the
            log-likelihood of all rows. None: none for "cgm", 1 for "naive", whose maximum may not exist without it.
        inference: "exact" on a junction tree, "loopy", or "auto": exact where `check_exact` allows it.

    Returns:
        A model with finite potentials, whatever the counts.

    Raises:
        ValueError: no table; a table that is over no clique of the graph or has another shape; an argument outside its
            range; exact inference above its limits.
    """
    _check(graph, tables, n_rows, estimator, regularization, inference)
    rows = max(estimated_rows(tables) if n_rows is None else float(n_rows), 1.0)
    penalty = (1.0 if estimator == "naive" else 0.0) if regularization is None else regularization
    how: Literal["exact", "loopy"] = "exact" if inference == "exact" or _auto_exact(graph, inference) else "loopy"
    infer = _inference(graph, how)
    merged = merge(tables)
    homes = [_home(graph, table) for table in merged]
    problem = _Problem(graph, merged, homes, infer, rows)
    theta, iterations = (_naive if estimator == "naive" else _cgm)(problem, penalty / rows)
    potentials = problem.potentials(theta)
    marginals, log_partition = infer(potentials)
    return Estimate(potentials, marginals, log_partition, rows, iterations, how)


def estimated_rows(tables: Sequence[NoisyTable]) -> float:
    """Number of rows from the totals of noisy tables: their inverse-variance mean, at least 1.

    A total has the variance cells std^2. Noise of different tables is independent.
    """
    totals = np.array([np.clip(table.counts, -_LARGEST, _LARGEST).sum() for table in tables])
    precisions = np.array([1 / (table.counts.size * max(table.std, _LEAST_STD) ** 2) for table in tables])
    return max(float(totals @ (precisions / precisions.sum())), 1.0)


def merge(tables: Sequence[NoisyTable]) -> list[NoisyTable]:
    """One table for each set of variables, axes ascending: the mean by precision. A mean counts as Gaussian."""
    groups: dict[tuple[int, ...], list[NoisyTable]] = {}
    for table in tables:
        groups.setdefault(tuple(sorted(table.variables)), []).append(table)
    return [_mean(variables, group) for variables, group in groups.items()]


def project_to_simplex(values: FloatArray) -> FloatArray:
    """The nearest point with entries of at least 0 and sum 1, in Euclidean distance (Duchi et al. 2008, figure 1)."""
    # A shift of all values changes nothing, and keeps small differences of large values.
    flat = values.ravel() - values.max()
    descending = -np.sort(-flat)
    thresholds = (np.cumsum(descending) - 1) / np.arange(1, flat.size + 1)
    threshold = thresholds[np.flatnonzero(descending > thresholds)[-1]]
    projected = np.maximum(flat - threshold, 0.0)
    return np.asarray((projected / projected.sum()).reshape(values.shape))


class _Problem:
    """Parameters of all tables as one vector, and the model's marginals over their cells."""

    def __init__(self, graph: Graph, tables: list[NoisyTable], homes: list[int], infer: Infer, rows: float) -> None:
        self.tables = tables
        self._graph, self._homes, self._infer = graph, homes, infer
        self._bounds = np.cumsum([0, *(table.counts.size for table in tables)])
        self.rows = rows
        self.stds = self.spread_out([max(table.std, _LEAST_STD) for table in tables])
        counts = np.concatenate([table.counts.ravel() for table in tables])
        self.counts = np.clip(counts, -_FARTHEST * self.stds, rows + _FARTHEST * self.stds)
        self.laplace = np.repeat([table.laplace for table in tables], np.diff(self._bounds))
        self.cells = self.spread_out([float(table.counts.size) for table in tables])

    def spread_out(self, values: Sequence[float]) -> FloatArray:
        """A value for each table as one for each cell."""
        return np.repeat(np.asarray(values, dtype=np.float64), np.diff(self._bounds))

    def potentials(self, theta: FloatArray) -> list[FloatArray]:
        """Log-potentials of the graph's cliques: sums of those of the tables inside them."""
        potentials = [np.zeros(self._graph.shape(clique)) for clique in self._graph.cliques]
        for number, (table, home) in enumerate(zip(self.tables, self._homes, strict=True)):
            part = theta[self._bounds[number] : self._bounds[number + 1]].reshape(table.counts.shape)
            potentials[home] += spread(part, table.variables, self._graph.cliques[home])
        return potentials

    def marginals(self, theta: FloatArray) -> tuple[FloatArray, float]:
        """Probabilities of all cells of the tables, and the log-partition function."""
        tables, log_partition = self._infer(self.potentials(theta))
        parts = [
            sum_to(tables[home], self._graph.cliques[home], table.variables).ravel()
            for table, home in zip(self.tables, self._homes, strict=True)
        ]
        return np.concatenate(parts), log_partition


def _cgm(problem: _Problem, penalty: float) -> tuple[FloatArray, int]:
    """Log-potentials of the tables, and the number of evaluations."""
    rows = problem.rows
    entropy = _ENTROPY * problem.cells
    observed = problem.counts / rows

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        marginals, log_partition = problem.marginals(theta)
        log_masses, means = _tilted(problem, -entropy / rows * theta)
        value = log_partition + float((log_masses / entropy).sum()) + 0.5 * penalty * float(theta @ theta)
        return value, marginals - means / rows + penalty * theta

    # Exponential tails of Laplace noise bear a tilt of less than their own rate.
    lowest = np.where(problem.laplace, -_INSIDE * math.sqrt(2) * rows / (problem.stds * entropy), -np.inf)
    weights = entropy * np.square(problem.stds / rows)
    return _minimized(objective, weights + penalty + np.maximum(observed, 0.1 / problem.cells), problem, lowest)


def _tilted(problem: _Problem, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For every cell log of the integral of p(y | n) exp(tilt n) over n >= 0, up to a constant, and its derivative."""
    log_masses, means = np.empty_like(tilts), np.empty_like(tilts)
    for function, chosen in ((tilted_laplace, problem.laplace), (tilted_gaussian, ~problem.laplace)):
        log_masses[chosen], means[chosen] = function(problem.counts[chosen], problem.stds[chosen], tilts[chosen])
    return log_masses, means


def tilted_gaussian(counts: FloatArray, stds: FloatArray, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Posterior of counts n >= 0 with the density exp(tilt n), up to scale, before Gaussian noise.

    Args:
        counts: noisy counts y.
        stds: standard deviations of the noise, positive.
        tilts: of any sign.

    Returns:
        The logarithm of the integral over n of density and likelihood, up to a constant in the tilt; and its derivative
        in the tilt, which is the posterior mean: positive, ascending in y and in the tilt.
    """
    ratios = counts / stds + tilts * stds
    # Far below 0 differences of large numbers are replaced by expansions in 1 / ratio.
    far = ratios < _FAR_BELOW
    inverse = 1 / np.square(np.where(far, ratios, _FAR_BELOW))
    log_masses = log_ndtr(np.where(far, _FAR_BELOW, ratios))
    excess = np.exp(-0.5 * np.square(np.where(far, _FAR_BELOW, ratios)) - log_masses) / math.sqrt(2 * math.pi)
    near_values = tilts * counts + 0.5 * np.square(tilts * stds) + log_masses
    far_values = -0.5 * np.square(counts / stds) + 0.5 * np.log(inverse / (2 * math.pi)) + np.log1p(-inverse)
    far_means = stds * np.sqrt(inverse) * (1 - 2 * inverse)
    return np.where(far, far_values, near_values), np.where(far, far_means, stds * (ratios + excess))


def tilted_laplace(counts: FloatArray, stds: FloatArray, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """As `tilted_gaussian`, before Laplace noise; tilts below sqrt(2) / std, where the mean goes to infinity.

    With b = std / sqrt(2) the posterior is exponential on both sides of y: with rate a = 1 / b + tilt, of any sign,
    from 0 up to y, and rate c = 1 / b - tilt from there on.
    """
    scales = stds / math.sqrt(2)
    y = np.maximum(counts, 0.0)
    rising, falling = 1 / scales + tilts, 1 / scales - tilts
    exponents = -rising * y
    # All masses are over exp(top), the largest density there is.
    top = np.maximum(exponents, 0.0)
    near = np.abs(exponents) < _NEAR
    rates = np.where(near, 1.0, rising)
    below = np.where(near, y * (1 - np.abs(exponents) / 2), -np.expm1(-np.abs(exponents)) / np.abs(rates))
    slopes = np.where(near, -0.5 * y * y * (1 + 2 * exponents / 3 - top), (y * np.exp(exponents - top) - below) / rates)
    above = np.exp(-top) / falling
    masses = below + above
    return tilts * y + top + np.log(masses), y + (slopes + above / falling) / masses


def _naive(problem: _Problem, penalty: float) -> tuple[FloatArray, int]:
    """Log-potentials of the tables, and the number of evaluations."""
    parts = np.split(problem.counts, np.cumsum([table.counts.size for table in problem.tables])[:-1])
    observed = np.concatenate([project_to_simplex(part / problem.rows) for part in parts])

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        marginals, log_partition = problem.marginals(theta)
        value = log_partition - theta @ observed + 0.5 * penalty * theta @ theta
        return value, marginals - observed + penalty * theta

    return _minimized(objective, penalty + np.maximum(observed, 0.1 / problem.cells), problem)


def _minimized(
    objective: Callable[[FloatArray], tuple[float, FloatArray]],
    curvatures: FloatArray,
    problem: _Problem,
    lowest: FloatArray | None = None,
) -> tuple[FloatArray, int]:
    """The minimum above `lowest`, from 0, by L-BFGS in coordinates that approximate second derivatives make alike."""
    scales = np.sqrt(curvatures)

    def scaled(point: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = objective(point / scales)
        return value, gradient / scales

    found = minimize(
        scaled,
        np.zeros_like(scales),
        jac=True,
        method="L-BFGS-B",
        bounds=None if lowest is None else Bounds(lowest * scales, np.inf),
        options={"maxiter": MAX_ITERATIONS, "maxcor": 20, "gtol": 0.0, "ftol": _tolerance(problem)},
    )
    return np.asarray(found.x / scales), int(found.nfev)


def _tolerance(problem: _Problem) -> float:
    """Relative progress of a step at which fitting ends: little against the divergence that noise leaves anyhow.

    That is of the order of half the cells' variances, of noise and of sampling, over their means and the rows.
    """
    divergence = float((1 + np.square(problem.stds) * problem.cells / problem.rows).sum()) / (2 * problem.rows)
    return min(max(1e-5 * divergence, 1e-11), 1e-7)


def _inference(graph: Graph, how: Literal["exact", "loopy"]) -> Infer:
    if how == "loopy":
        return LoopyBeliefs(graph)
    check_exact(graph)
    tree = cached_tree(graph)
    return lambda theta: exact(graph, theta, tree)


def _auto_exact(graph: Graph, inference: Inference) -> bool:
    return inference == "auto" and is_exact(graph)


def _mean(variables: tuple[int, ...], tables: list[NoisyTable]) -> NoisyTable:
    precisions = np.array([max(table.std, _LEAST_STD) ** -2 for table in tables])
    shares = precisions / precisions.sum()
    counts = sum(
        (share * sum_to(table.counts, table.variables, variables) for share, table in zip(shares, tables, strict=True)),
        np.zeros(()),
    )
    laplace = len(tables) == 1 and tables[0].laplace
    return NoisyTable(variables, np.asarray(counts), float(precisions.sum() ** -0.5), laplace)


def _home(graph: Graph, table: NoisyTable) -> int:
    holders = [index for index, clique in enumerate(graph.cliques) if set(table.variables) <= set(clique)]
    if not holders:
        raise ValueError(f"tables: {table.variables} is within no clique of the graph")
    if table.counts.shape != graph.shape(table.variables):
        raise ValueError(
            f"tables: {table.variables} has shape {table.counts.shape}, not {graph.shape(table.variables)}"
        )
    return min(holders, key=lambda index: (graph.cells(graph.cliques[index]), index))


def _check(
    graph: Graph,
    tables: Sequence[NoisyTable],
    n_rows: float | None,
    estimator: str,
    regularization: float | None,
    inference: str,
) -> None:
    if not tables:
        raise ValueError("tables: expected at least one")
    if n_rows is not None and not math.isfinite(n_rows):
        raise ValueError(f"n_rows: expected a finite number, got {n_rows!r}")
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator: expected one of {ESTIMATORS}, got {estimator!r}")
    if regularization is not None and not 0 <= regularization < math.inf:
        raise ValueError(f"regularization: expected a finite number of at least 0, got {regularization!r}")
    if inference not in INFERENCES:
        raise ValueError(f"inference: expected one of {INFERENCES}, got {inference!r}")
