"""Search for Gaussian atoms that explain moments: CL-OMPR, one atom after another, replaced and refined together.

Sources and differences from them are in `_decoding.py`, which uses the search. Every function here is total, and the
same input gives the same atoms.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from numpy.random import Generator  # noqa: TID251 - the type only

from bursar_models._moment_fit import Fit, Mixture, Problem, evaluate, is_dense, jacobian, refine
from bursar_models._starts import public_generator
from bursar_models.arrays import FloatArray

CANDIDATES = 256
"""Number of places where a search for the next atom starts; one in four anywhere in the box, the others in the cloud.

Chosen, not tuned.
"""

CLIMBERS = 12
"""Number of candidates that climb: the best of the places; at least two for each atom to add. Chosen, not tuned."""

CLIMB_STEPS = 15
"""Number of steps of each climber.

A step multiplies the distance to a peak by at most about a third, so 15 reach it.
"""

SPREAD_CEILINGS = (1 / 4, 1 / 16, 1 / 8, 1 / 32)
"""Highest spread while atoms are added, as a share of the cloud's variance.

The replicates take turns, because the right ceiling depends on the unknown width of the clusters. Chosen, not tuned.
"""

ROUNDS = 20
"""Number of rounds in which the first k atoms are added, and maximum number of rounds of replacements.

So up to k = 20 atoms come one at a time. Chosen, not tuned.
"""

MISSES = 2
"""Number of successive replacements that gain less than `GAIN` and end a replicate. Chosen, not tuned."""

GAIN = 1e-3
"""Share of the loss that a replacement must save. Chosen, not tuned: smaller gains vanish in the final refinement."""

AGREEING = 3
"""Number of replicates that reach the smallest loss (within `AGREEMENT`) and end the restarts. Chosen, not tuned."""

AGREEMENT = 1e-4
"""Relative difference of two losses that count as the same minimum: several times the error of the last steps."""

GROWING_STEPS = 2
"""Number of refining steps after each change of atoms.

Chosen, not tuned: the last refinement makes up for few steps.
"""

FINAL_STEPS = 40
"""Maximum number of refining steps at the end. `TOLERANCE` usually ends them earlier; a bound keeps decoding total."""


def _places(problem: Problem, cloud: Mixture, present: Mixture, generator: Generator) -> FloatArray:
    """Draw starting places of a search from the cloud and the box, and one beside each atom, shape (places, d)."""
    d = problem.W.shape[1]
    spread = np.exp(0.5 * cloud.log_v[0, 0])
    drawn = cloud.centres + spread * generator.standard_normal((CANDIDATES, d))
    drawn[::4] = generator.uniform(problem.lower, problem.upper, drawn[::4].shape)
    beside = present.centres + np.exp(0.5 * present.log_v[0, 0]) * generator.standard_normal(present.centres.shape)
    places: FloatArray = np.clip(np.concatenate([drawn, beside]), problem.lower, problem.upper)
    return places


def _search(
    problem: Problem, rest: FloatArray, log_v: float, places: FloatArray, climbers: int
) -> tuple[FloatArray, FloatArray]:
    """Return where an atom of spread v agrees with the rest: the best climbers, shape (climbers, d), best first.

    All climb together, in float32, on f(c) = Re sum_j conj(rest_j) exp(i w_j.c - v |w_j|^2 / 2). Steps are those of a
    mean shift, at the curvature of a lone peak. Success lengthens them, failure shortens them.

    Returns:
        The places and their values of f.
    """
    m, d = problem.W.shape
    envelope = np.exp(-0.5 * np.exp(log_v) * problem.radii2[:, 0])
    scale = max(float(np.abs(rest).max(initial=0.0)), 1e-30)  # keeps float32 away from its limits
    real = (rest[:m] / scale * envelope).astype(np.float32)
    imaginary = (rest[m:] / scale * envelope).astype(np.float32)
    W = problem.W.astype(np.float32)
    lower, upper = problem.lower.astype(np.float32), problem.upper.astype(np.float32)
    power = envelope * envelope
    width2 = d * float(power.sum()) / max(float(power @ problem.radii2[:, 0]), 1e-30)
    # Frequencies near 0 would make steps longer than the box.
    width2 = min(width2, float(np.square(problem.upper - problem.lower).sum()))

    def waves(at: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], ...]:
        phase = W @ at.T
        cos, sin = np.cos(phase), np.sin(phase)
        return cos, sin, real @ cos + imaginary @ sin

    c = places.astype(np.float32)
    value = waves(c)[2]
    # Stable, so that ties, and so the model, are the same on every machine.
    c = c[np.argsort(-value, kind="stable")[:climbers]]
    cos, sin, value = waves(c)
    pace = np.ones((len(c), 1), dtype=np.float32)
    for _ in range(CLIMB_STEPS):
        slope = ((imaginary[:, None] * cos - real[:, None] * sin).T @ W).astype(np.float64)
        # Values near or below 0 would make a mean-shift step infinite or turn it around.
        floor = max(0.05 * float(value.max(initial=0)), 1e-30)
        step = slope * (width2 / np.maximum(value, floor)[:, None])
        length = np.linalg.norm(step, axis=1, keepdims=True)
        step = step * np.minimum(1, np.sqrt(width2 * d) / np.maximum(length, 1e-30))
        trial = np.clip(c + (pace * step).astype(np.float32), lower, upper)
        trial_cos, trial_sin, trial_value = waves(trial)
        up = trial_value > value
        c = np.where(up[:, None], trial, c)
        cos, sin, value = np.where(up, trial_cos, cos), np.where(up, trial_sin, sin), np.where(up, trial_value, value)
        # Factors chosen, not tuned: several successes undo one failure.
        pace = np.where(up[:, None], np.minimum(pace * 1.5, 4), pace * 0.4).astype(np.float32)
    order = np.argsort(-value, kind="stable")
    peaks = np.clip(c[order].astype(np.float64), problem.lower, problem.upper)
    return peaks, value[order].astype(np.float64) * scale


def _add(problem: Problem, fit: Fit, count: int, places: FloatArray) -> Mixture:
    """Return the mixture with `count` more atoms, at the highest distinct peaks of the rest."""
    log_v = float(fit.mixture.log_v.mean())
    peaks, values = _search(problem, fit.rest, log_v, places, max(CLIMBERS, 2 * count))
    envelope = np.exp(-np.exp(log_v) * problem.radii2[:, 0])
    # Squared width of the peak of a lone atom; climbers nearer than that are on the same peak.
    apart = problem.W.shape[1] * envelope.sum() / max(float(envelope @ problem.radii2[:, 0]), 1e-30)
    chosen: list[int] = []
    for index in range(len(peaks)):
        if len(chosen) < count and all(np.square(peaks[index] - peaks[c]).sum() > apart for c in chosen):
            chosen.append(index)
    chosen += [index for index in range(len(peaks)) if index not in chosen][: count - len(chosen)]
    beta = np.maximum(values[chosen], 0) / max(float(envelope.sum()), 1e-30)
    mixture = fit.mixture
    spreads = [mixture.log_v]
    if mixture.log_v.size > 1:  # one for each atom and column
        spreads.append(np.full((count, mixture.log_v.shape[1]), log_v))
    return Mixture(
        np.concatenate([mixture.beta, beta]),
        np.concatenate([mixture.centres, peaks[chosen]]),
        np.concatenate(spreads),
    )


def with_more(problem: Problem, cloud: Mixture, fit: Fit, count: int, steps: int, generator: Generator) -> Fit:
    """Return the fit after adding `count` atoms and so many refining steps; arguments are those of `_richer`."""
    places = _places(problem, cloud, fit.mixture, generator)
    return refine(problem, _add(problem, fit, count, places), steps)


def pruned(problem: Problem, fit: Fit, k: int) -> Mixture:
    """Return the mixture reduced to k atoms, without those whose removal costs a linearised fit least.

    Setting parameter l of a least-squares fit to 0 and refitting the others costs theta_l^2 / (H^-1)_ll.
    """
    mixture = fit.mixture
    # Where the Jacobian is too large, only the weights are refitted: a coarser but cheaper saliency.
    directions = jacobian(problem, fit) if is_dense(problem, mixture) else fit.atoms
    H = directions.T @ directions
    diagonal = H.diagonal()
    H[np.diag_indices_from(H)] += (
        problem.prior.terms(mixture)[0][: len(H)] + 1e-6 * diagonal + 1e-9 * diagonal.max() + 1e-200
    )
    variances = np.maximum(np.linalg.pinv(H, hermitian=True).diagonal()[: len(mixture.beta)], 1e-200)
    kept = np.sort(np.argsort(-np.square(mixture.beta) / variances, kind="stable")[:k])
    log_v = mixture.log_v[kept] if len(mixture.log_v) == len(mixture.beta) > 1 else mixture.log_v
    return Mixture(mixture.beta[kept], mixture.centres[kept], log_v)


def _rounds(k: int) -> list[int]:
    """Return the number of atoms that each round adds, k in all."""
    return [int(count) for count in np.diff(np.linspace(0, k, min(k, ROUNDS) + 1).round())]


def _replicate(problem: Problem, k: int, cloud: Mixture, ceiling: float, generator: Generator) -> Fit:
    """Run CL-OMPR once: add k atoms one after another, then replace atoms, then refine all together.

    Args:
        problem: data of the fit.
        k: number of atoms.
        cloud: region where atoms are searched for.
        ceiling: highest spread until the end, as a share of the cloud's variance.
        generator: generator of the places where searches start.
    """
    lowest, highest = problem.log_v_range
    # Never below the lowest: the range of spreads must not become empty.
    highest = max(min(highest, float(cloud.log_v[0, 0]) + float(np.log(ceiling))), lowest)
    capped = replace(problem, log_v_range=(lowest, highest))
    log_v = np.clip(-np.log(max(float(problem.radii2.mean()), 1e-12)), lowest, highest)
    empty = Mixture(np.zeros(0), np.zeros((0, problem.W.shape[1])), np.full((1, 1), float(log_v)))
    fit = evaluate(capped, empty)

    for count in _rounds(k):
        fit = with_more(capped, cloud, fit, count, GROWING_STEPS, generator)
    misses = 0
    for count in _rounds(k):
        more = with_more(capped, cloud, fit, count, GROWING_STEPS, generator)
        trial = refine(capped, pruned(capped, more, k), GROWING_STEPS)
        if trial.loss < fit.loss * (1 - GAIN):
            fit, misses = trial, 0
        else:
            misses += 1
        if misses == MISSES:
            break
    return refine(problem, fit.mixture, FINAL_STEPS)


def find_atoms(problem: Problem, cloud: Mixture, k: int, n_init: int, public_seed: int) -> list[Fit]:
    """Return distinct replicates, the smallest loss first; all atoms of one replicate share one spread."""

    def replicate(index: int) -> Fit:
        ceiling = SPREAD_CEILINGS[index % len(SPREAD_CEILINGS)]
        return _replicate(problem, k, cloud, ceiling, public_generator(public_seed, index))

    fits = [replicate(0)]
    while len(fits) < n_init and sum(fit.loss <= _least(fits) * (1 + AGREEMENT) for fit in fits) < AGREEING:
        fits.append(replicate(len(fits)))
    fits.sort(key=lambda fit: fit.loss)
    return [fits[0], *(fit for before, fit in pairwise(fits) if fit.loss > before.loss * (1 + AGREEMENT))]


def _least(fits: list[Fit]) -> float:
    return min(fit.loss for fit in fits)
