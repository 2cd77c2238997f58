"""Estimator "nlbp", the paper's own: expectation maximization whose expectation is non-linear belief propagation.

Source: Bernstein et al. (2017), algorithms 1 and 2; Sun, Sheldon and Kumar (2015), "Message passing for collective
graphical models", section 4. Steps: Birgin, Martinez and Raydan (2000), "Nonmonotone spectral projected gradient
methods on convex sets".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_models.mrf._problem import Problem, likeliest

_PROGRESS = 0.01
"""Nats a cell: less progress of the tables' likelihood counts as none. Noise takes a half (normal) or one (Laplace)."""

_INEXACT = 0.1
"""Allowed gap of an expectation, as a share of the likelihood gained in the step before. Chosen, not tuned."""

_INNER = 50
"""Maximum number of passes of belief propagation for one expectation. Chosen, not tuned."""

_SUFFICIENT = 1e-4
"""Share of the decrease predicted by the slope from which a step is accepted; the usual constant."""

_HALVINGS = 20
"""Maximum number of trials of one step: 20 halvings reach 1e-6 of it."""

_RECENT = 5
"""Number of recent values of which a new one need only be below the largest; the paper on steps uses 10."""

_LONGEST = 1e6
"""Maximum factor between a step and the damped one; a safeguard of the paper on steps against vanishing curvature."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Likeliest tables for some potentials.

    Attributes:
        counts: tables n, one number for each cell: the model's with the potentials theta + evidence.
        evidence: derivatives of log p(y | n).
        gap: upper bound, in nats, of the distance of the objective from its maximum.
        iterations: number of passes of belief propagation.
    """

    counts: FloatArray
    evidence: FloatArray
    gap: float
    iterations: int


def log_likelihood(problem: Problem, counts: FloatArray) -> float:
    """Return the logarithm of p(y | n) up to a constant: Laplace or normal noise on every cell."""
    return float(_log_densities(problem, counts).sum())


def expectation_maximization(
    problem: Problem, penalty: FloatArray, limit: int | None = None, progress: float = _PROGRESS
) -> tuple[FloatArray, int]:
    """Fit "nlbp": alternate between the likeliest tables and the potentials that fit them (algorithm 2).

    Without a penalty the tables determine the potentials, because they are the model's for theta + evidence. Then
    no step lowers log p(y | n), by more than the gap of its tables, and the limit is its largest value over the
    marginal polytope: a step is a proximal one, with N times the divergence from the model before it for a distance.
    That limit fits the noise as well as tables can, with probabilities of 0. So it matters where it starts, at the
    closed form of `starting_points`, and that it ends early: when a step gains little, or the passes are used up.

    Args:
        problem: tables and parameters.
        penalty: penalty on the squares of the parameters, over the number of rows.
        limit: maximum number of evaluations of marginals; None: the problem's limit.
        progress: progress, in nats a cell, below which the loop ends.

    Returns:
        Parameters of the tables, and the number of evaluations.
    """
    little = progress * len(problem.counts)
    limit = problem.limit if limit is None else limit
    theta, evidence = problem.starts[-1], np.zeros_like(problem.neutral)
    best, used = log_likelihood(problem, problem.rows * problem.marginals(theta)[0]), 1
    # The log-likelihood is at most 0, so no step can gain more than this.
    gain = -best
    while used < limit and gain > little:
        allowed = _INEXACT * gain
        found = nonlinear_belief_propagation(problem, theta, evidence, allowed, min(_INNER, limit - used))
        used += found.iterations
        reached = log_likelihood(problem, found.counts)
        evidence, gain = found.evidence, reached - best
        if not reached > best:
            # Either nothing can be gained, or the tables were too inexact to show it: ask for a smaller gap.
            gain = allowed
            continue
        theta, best = theta + evidence, reached
        if penalty.any() and used < limit:
            theta, more = likeliest(problem, found.counts / problem.rows, penalty, [theta], limit - used)
            used += more
    return theta, used


def nonlinear_belief_propagation(
    problem: Problem, theta: FloatArray, evidence: FloatArray, tolerance: float, limit: int
) -> Tables:
    """Return the tables n that maximize theta . n + H(n) + log p(y | n) over the marginal polytope.

    This is algorithm 1 of the paper.

    Its fixed points are n = N marginals(theta + lambda) with lambda in the derivative of log p(y | n): (y - n) / s^2
    for normal noise; for Laplace noise the end of [-1 / b, 1 / b] that points to y, and any number of it where n = y.
    To put the new derivative in the place of the old one oscillates where n is large against the variance of the noise,
    so the paper damps. Here every cell has its own damping 1 / (1 + n / s^2), with b for s, times one common factor; a
    derivative of Laplace noise stays within its interval, which is all the smoothing that the sign needs. That makes it
    a descent on the dual function

        N A(theta + lambda) - lambda . y + sum of s^2 lambda^2 / 2 (normal) or 0 (Laplace)

    whose gradient is n - y (+ s^2 lambda), and the common factor is a line search's.

    Args:
        problem: tables and parameters.
        theta: parameters of the tables.
        evidence: starting value of lambda.
        tolerance: gap between dual function and objective, in nats, at which it ends.
        limit: maximum number of passes of belief propagation, at least 1.
    """
    variances = _variances(problem)
    ends = np.where(problem.posterior.laplace, 1 / np.sqrt(variances), np.inf)
    # Outside of this interval the dual function of Laplace noise is infinite.
    point = np.clip(evidence, -ends, ends)
    value, gradient, counts = dual(problem, theta, point)
    recent, used, stretch = [value], 1, 1.0
    metric = counts + variances
    while used < limit and _gap(problem, point, counts) > tolerance:
        step = np.clip(point - stretch * gradient / metric, -ends, ends) - point
        slope, size = float(step @ gradient), 1.0
        for _ in range(min(_HALVINGS, limit - used)):
            new_value, new_gradient, new_counts = dual(problem, theta, point + size * step)
            used += 1
            if new_value <= max(recent) + _SUFFICIENT * size * slope and np.isfinite(new_gradient).all():
                break
            size *= 0.5
        else:
            break
        moved, changed = size * step, new_gradient - gradient
        curved = float(moved @ changed)
        # Barzilai-Borwein length in the metric of the damping, kept within safeguards.
        stretch = float(np.clip((moved * metric) @ moved / curved, 1 / _LONGEST, _LONGEST)) if curved > 0 else 1.0
        point, value, gradient, counts = point + moved, new_value, new_gradient, new_counts
        recent = [*recent, value][-_RECENT:]
    return Tables(counts, point, _gap(problem, point, counts), used)


def dual(problem: Problem, theta: FloatArray, evidence: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """Return the dual function of `nonlinear_belief_propagation`, its gradient, and the model's tables.

    The gradient is in `evidence`.
    """
    marginals, log_partition = problem.marginals(theta + evidence)
    counts = problem.rows * marginals
    own = _curvature(problem) * evidence
    value = problem.rows * log_partition - float(evidence @ problem.counts) + 0.5 * float(own @ evidence)
    return value, counts - problem.counts + own, counts


def _curvature(problem: Problem) -> FloatArray:
    """Return second derivatives of the likelihood's part of the dual function: s^2 or, for Laplace noise, 0."""
    return np.where(problem.posterior.laplace, 0.0, _variances(problem))


def _variances(problem: Problem) -> FloatArray:
    """Return squares of the scales: s^2 of normal noise, b^2 of Laplace noise."""
    return np.square(problem.stds) / np.where(problem.posterior.laplace, 2.0, 1.0)


def _log_densities(problem: Problem, counts: FloatArray) -> FloatArray:
    ratios = np.abs(counts - problem.counts) / np.sqrt(_variances(problem))
    return np.where(problem.posterior.laplace, -ratios, -0.5 * np.square(ratios))


def _gap(problem: Problem, evidence: FloatArray, counts: FloatArray) -> float:
    """Return the dual function less the objective at n = N marginals(theta + evidence); >= 0 by Fenchel and Young."""
    own = 0.5 * _curvature(problem) * np.square(evidence)
    return float((own + evidence * (counts - problem.counts) - _log_densities(problem, counts)).sum())
