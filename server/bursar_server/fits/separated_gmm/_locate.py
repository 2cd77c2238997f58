"""Ball that holds nearly all rows of a part: its centre by a noisy mean, its radius by a private choice.

Kamath et al. 2019, algorithm 5 (PGLoc): every round shrinks the ball by about n sqrt(rho / d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.decoding import Released, decode
from bursar_server.fits.mixtures.statistics import Moments, Weights
from bursar_server.fits.separated_gmm._parts import Parts, SplitSettings
from bursar_server.fits.separated_gmm._search import RADIUS_UNIT, RadiusFamily, ReachFamily
from bursar_server.fits.separated_gmm._statistics import View, ball_statistic, lattice_point
from bursar_server.vault import Node

_WEIGHTS = Weights(0.4, 1.0, 0.2)
"""Weights of a part's count, sum and sum of squares. Chosen, not tuned."""

_MEAN = 0.5
"""Share of a round for the mean; the rest is for the radius. Chosen, not tuned."""

_SHRINKS = 1.5
"""Ratio of successive balls below which rounds end. Chosen, not tuned."""

_OUTSIDE = 0.02
"""Share of the smallest component's rows that may lie outside of a ball. Chosen, not tuned."""

_REACH = 0.25
"""Share of a radius's budget for its upper bound, if most of every component is within it. Chosen, not tuned."""

_LEFT_OUT, _SURE, _SMALLER = 0.65, 0.2, 0.1
"""Shares of the smallest component's rows that may lie outside.

By target, by the noise of the choice, and for a smaller radius. Together they are less than one, so that no component
is left out that is as far away as it may be.
"""

_BEYOND = 4.0
"""Deviations, beside sqrt(d), from a mean to the farthest of its rows. Chosen, not tuned."""

BLIND = 0.4
"""Share of the rows that noise may leave outside of a radius before no radius is requested at all.

Chosen, not tuned.
"""


@dataclass(frozen=True, eq=False)
class Ball:
    """Released ball of the unit ball that holds nearly all rows of a part, with their approximate number."""

    centre: FloatArray
    radius: float
    rows: float

    def misses(self, released: Released) -> bool:
        """Return whether most rows lie beyond: the choice of a radius before a split may leave a small component out.

        Clipping moves such rows to the ball's surface. Others are inside by the factor that balls are inflated by.
        """
        count, d = float(released.safe_counts()[0]), len(self.centre)
        by_mean = float(np.sum(released.mean_u() ** 2)) - d * (released.sum_std / count) ** 2
        by_square = (float(np.trace(released.seconds[0])) - released.second_std * math.sqrt(d)) / count
        return self.radius < 1.0 and max(by_mean, by_square) > (1.0 + _inflation(d) ** -2.0) / 2.0

    def everywhere(self) -> Ball:
        """Return the public ball with as many rows."""
        return Ball(np.zeros_like(self.centre), 1.0, self.rows)


def round_share(k: int, d: int, sigma_min: float, cap: float) -> float:
    """Return the cost of a round, so that `cap` pays for all rounds on the way to a leaf of a tree with k leaves."""
    far = math.ceil(max(0.0, math.log(1.0 / (10.0 * math.sqrt(d) * sigma_min)) / math.log(20.0)))
    return cap / (math.ceil(math.log2(k + 1)) + 4 + far)


def tighten(parts: Parts, node: Node, ball: Ball, share: float, smallest: float = 0.0) -> Ball:
    """Return a better centre and a ball about it, by one round. `smallest` is the smallest component's number of rows.

    If it is 0, the part is the whole table, and the least weight's share of it is used.
    """
    s = parts.settings
    statistic = ball_statistic(s.frame, ball.centre, ball.radius, Moments.SPHERICAL, _WEIGHTS)
    flat, std = parts.release(node, statistic, _MEAN * share)
    released = decode(flat, 1, s.d, Moments.SPHERICAL, _WEIGHTS, std)
    rows = max(float(released.counts[0]), 2.0 * released.count_std, 1.0)
    if ball.misses(released):
        return replace(ball.everywhere(), rows=rows)
    centre = ball.centre + ball.radius * released.mean_u()[0]
    centre /= max(1.0, float(np.linalg.norm(centre)))
    smallest = smallest or max(s.min_weight * rows, 1.0)
    return _radius(parts, node, Ball(centre, ball.radius, rows), (1.0 - _MEAN) * share, smallest, ball)


def _inflation(d: int) -> float:
    """Return the factor on a radius that was chosen, for rows of a component that lies at it."""
    return 1.05 + 0.8 / math.sqrt(d)


def _radius(parts: Parts, node: Node, ball: Ball, share: float, smallest: float, before: Ball) -> Ball:
    s = parts.settings
    family = radii(s, ball.centre, ball.radius)
    reach = _reach(parts, node, family, _REACH * share, smallest)
    if reach < math.inf:
        share *= 1.0 - _REACH
    scale = parts.noise_of(family, node, share).scale / RADIUS_UNIT
    target = scale * (math.log(family.steps) + 9.0)
    if target > 0.25 * ball.rows:
        target = scale * (math.log(family.steps) + 4.0)
    target = max(_OUTSIDE * smallest, target)
    if target > BLIND * ball.rows:
        return Ball(before.centre, before.radius, ball.rows)
    tilt = min(0.05 * scale, 0.2 * ball.rows / family.steps)
    family = replace(family, target=round(target), tilt=max(1, round(tilt * RADIUS_UNIT)))
    _, index = parts.forest.search(node, family, parts.noise_of(family, node, share))
    inflated = family.radius(index) * _inflation(s.d) * (1.0 + target / ball.rows)
    return Ball(ball.centre, min(inflated, reach, 2.0), ball.rows)


def _reach(parts: Parts, node: Node, radii: RadiusFamily, share: float, smallest: float) -> float:
    """Return a radius that holds nearly all rows of all components, despite outliers; infinity if too noisy.

    If less than three quarters of a component's rows are outside of some radius, its mean is hardly farther out, and
    its other rows are no farther from that than public bounds allow.
    """
    s = parts.settings
    family = ReachFamily(radii.frame, radii.view, radii.least, radii.most, round(_LEFT_OUT * smallest), 1)
    noise = parts.noise_of(family, node, share)
    if noise.scale / RADIUS_UNIT * (math.log(family.steps) + 4.0) > _SURE * smallest:
        return math.inf
    tilt = min(2.0 * noise.scale, _SMALLER * smallest * RADIUS_UNIT / family.steps)
    _, index = parts.forest.search(node, replace(family, tilt=max(1, round(tilt))), noise)
    return family.radius(index) + s.sigma_max * (math.sqrt(s.d) + _BEYOND)


def radii(settings: SplitSettings, centre: FloatArray, radius: float) -> RadiusFamily:
    """Return candidates of a radius about a centre, up to twice `radius`; the target is still to be set."""
    d = settings.d
    least = 0.5 * settings.sigma_min * math.sqrt(d)
    view = View(lattice_point(centre), np.zeros((0, d)))
    return RadiusFamily(settings.frame, view, least, max(2.0 * radius, 2.0 * least), 0, 0)


def changes(before: Ball, after: Ball) -> bool:
    """Return whether another round is worth its cost: the ball shrank, or it missed its rows and is the public one."""
    return after.radius * _SHRINKS < before.radius or before.radius < 1.0 == after.radius
