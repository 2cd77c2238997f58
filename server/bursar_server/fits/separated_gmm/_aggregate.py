"""Sample and aggregate: blocks of rows are estimated without noise, and then agreement among the answers is sought.

Kamath et al. 2019, section 6, after Nissim, Raskhodnikova and Smith 2007. A baseline that shows the advantage of the
recursion on rows. Answers agree where many are close together, far from all others: gaps are sought among them, as the
recursion does among rows; each group's answers are averaged, with noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from bursar_ledger import Adjacency
from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.decoding import decode
from bursar_server.fits.mixtures.statistics import (
    LATTICE,
    BallFrame,
    EStep,
    Moments,
    Weights,
    moment_bounds,
    moment_statistic,
)
from bursar_server.fits.separated_gmm._estimate import Estimate
from bursar_server.fits.separated_gmm._lloyd import Spheres
from bursar_server.fits.separated_gmm._parts import LEAST_SHARE, Parts, SplitSettings
from bursar_server.fits.separated_gmm._statistics import NOWHERE, slab_statistic
from bursar_server.fits.separated_gmm._tree import Leaf, grow
from bursar_server.vault import (
    MAX_BLOCK_NUMBERS,
    Session,
    Statistic,
    estimates_cap,
    gaussian_for,
    noise_std,
    part_sensitivity,
)

COUNTING = Fraction(1, 50)
"""Share of the budget for the number of rows, which decides the number of blocks, if it is not public.

Chosen, not tuned.
"""

_ROWS = 10.0
"""Mean number of rows of the smallest component in a block: with fewer, k-means often misses it."""

_MOST_BLOCKS = 8192
"""Maximum number of blocks; with more rows, blocks are larger. Chosen, not tuned."""

_ROOM = 2.0
"""Capacity of a block over the average number of its rows; a block is then hardly ever full."""

_WEIGHTS = Weights(0.3, 1.0, 0.3)
"""Weights of the number of answers, their sum, and their spread. Chosen, not tuned."""

_HALF = 0.5
"""Half-range of a weight, and of a variance's place between its bounds: the clip radius of both."""


def shares(settings: SplitSettings) -> tuple[Fraction, ...]:
    """Return the shares of the budget: for the number of rows, unless it is public, and for all answers."""
    if settings.rows is not None:
        return (settings.rho,)
    return COUNTING * settings.rho, (1 - COUNTING) * settings.rho


def of_answers(settings: SplitSettings) -> SplitSettings:
    """Return the settings of the recursion on answers: the public facts about blocks' estimates.

    A group of answers has as many as there are blocks, so all are equally large; a block's mean is nearer to its
    component's than a row is.
    """
    s = settings
    d = s.d
    return replace(
        s,
        frame=BallFrame(np.zeros(d), np.ones(d)),
        moments=Moments.SPHERICAL,
        sigma_min=s.sigma_min / 8.0,
        min_weight=0.6 / s.k,
        rho=shares(s)[-1],
        adjacency=Adjacency.REPLACE_ONE,
        unit_cap=estimates_cap(s.k, s.adjacency, s.unit_cap),
        easy=False,
        balls=False,
        clusters=True,
    )


def answer_std(settings: SplitSettings, share: float) -> float:
    """Return the standard deviation of the noise on the average's sums. Raises ValueError if the share is too small."""
    s = of_answers(settings)
    change = part_sensitivity(moment_bounds(1, s.d + 2, Moments.SPHERICAL, _WEIGHTS), s.adjacency, s.unit_cap)
    gaussian_for(change, s.rho * Fraction(LEAST_SHARE))
    return noise_std(gaussian_for(change, s.rho * Fraction(share)), LATTICE)


def aggregate(settings: SplitSettings, session: Session, progress: Callable[[], None]) -> Estimate:
    """Make the releases. A total function of rows and noise."""
    rows = float(settings.rows) if settings.rows is not None else _counted(settings, session)
    estimator = blocks_of(settings, rows)
    inner = of_answers(settings)
    parts = Parts(inner, session.blocks(inner.rho, estimator))
    progress()
    leaves = grow(parts, parts.forest.tree())
    progress()
    share = min(parts.left(leaf.node) for leaf in leaves)
    statistics = [_about(leaf, inner.d) for leaf in leaves]
    made = parts.releases([leaf.node for leaf in leaves], statistics, share)
    return _read(settings, estimator, rows, leaves, made)


def _counted(settings: SplitSettings, session: Session) -> float:
    """Return an estimate of the number of rows, at least one."""
    s = settings
    parts = Parts(replace(s, rho=shares(s)[0]), session.forest(shares(s)[0]))
    everywhere = np.array([-NOWHERE, -NOWHERE, NOWHERE, NOWHERE])
    statistic = slab_statistic(s.frame, np.zeros(s.d), np.zeros(s.d), everywhere)
    flat, _ = parts.release(parts.forest.tree(), statistic, 1.0)
    return float(np.clip(flat[0], 1.0, 2.0**26))


def blocks_of(settings: SplitSettings, rows: float) -> Spheres:
    """Return the blocks for this number of rows: their number and capacity."""
    s = settings
    size = _ROWS / s.min_weight
    number = int(np.clip(rows / size, 1.0, _MOST_BLOCKS))
    most = max(1, MAX_BLOCK_NUMBERS // (number * s.d))
    capacity = int(np.clip(math.ceil(_ROOM * max(rows / number, size)), 1, most))
    return Spheres(s.frame, s.k, s.sigma_min**2, s.sigma_max**2, number, capacity)


def _about(leaf: Leaf, d: int) -> Statistic:
    """Return moments of a group's answers about its ball's centre, in its radius.

    Further numbers about their middle.
    """
    frame = BallFrame(np.append(np.zeros(d), [_HALF, _HALF]), np.full(d + 2, 2.0))
    centre = np.append(leaf.ball.centre, [0.0, 0.0]) / 2.0
    whitener = np.diag(np.append(np.full(d, 1.0 / leaf.ball.radius), [1.0, 1.0]))[None] * 2.0
    step = EStep(True, np.zeros(1), centre[None], whitener, True, centre[None], whitener)
    return moment_statistic(frame, step, Moments.SPHERICAL, _WEIGHTS)


def _read(
    settings: SplitSettings, estimator: Spheres, rows: float, leaves: list[Leaf], made: list[tuple[FloatArray, float]]
) -> Estimate:
    s = settings
    d, K = s.d, len(leaves)
    means, noise, weights, places = np.empty((K, d)), np.empty(K), np.empty(K), np.empty(K)
    for k, (leaf, (flat, std)) in enumerate(zip(leaves, made, strict=True)):
        released = decode(flat, 1, d + 2, Moments.SPHERICAL, _WEIGHTS, std)
        answer = released.mean_u()[0]
        noise[k] = released.sum_std / released.safe_counts()[0]
        means[k] = leaf.ball.centre + leaf.ball.radius * answer[:d]
        weights[k], places[k] = answer[d:] + _HALF
    means *= np.minimum(1.0, s.radius / np.maximum(np.linalg.norm(means, axis=1), 1e-300))[:, None]
    shares_of = np.clip(weights, 0.5 * s.min_weight, 1.0)
    counts = np.maximum(rows * shares_of / np.sum(shares_of), 1.0)
    variances = estimator.variance(places)
    radii = np.array([leaf.ball.radius for leaf in leaves])
    mean_errors = np.sqrt((radii * noise) ** 2 + variances / counts)
    relative = np.sqrt((noise * math.log(estimator.high / estimator.low)) ** 2 + 2.0 / (d * counts))
    return Estimate(
        counts=counts,
        means=means,
        covariances=variances[:, None, None] * np.eye(d),
        mean_errors=np.repeat(mean_errors[:, None], d, axis=1),
        count_errors=noise * rows,
        covariance_errors=np.minimum(relative, estimator.high / estimator.low),
    )
