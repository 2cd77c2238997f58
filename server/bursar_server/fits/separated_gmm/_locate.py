"""A ball that holds nearly all rows of a part: its centre by a noisy mean, its radius by a private choice.

Kamath et al. 2019, algorithm 5 (PGLoc): every round shrinks the ball by about n sqrt(rho / d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bursar_server.fits.dpem._released import decode
from bursar_server.fits.dpem._statistics import Moments, Weights
from bursar_server.fits.separated_gmm._parts import Parts, Settings
from bursar_server.fits.separated_gmm._search import RADIUS_UNIT, RadiusFamily, ReachFamily
from bursar_server.fits.separated_gmm._statistics import FloatArray, View, ball_statistic, lattice_point
from bursar_server.vault import Node

_WEIGHTS = Weights(0.4, 1.0, 0.2)
"""Of a part's count, sum and sum of squares."""

_MEAN = 0.5
"""Share of a round for the mean; the rest is for the radius."""

_SHRINKS = 1.5
"""A round that shrinks the ball by less is the last."""

_OUTSIDE = 0.02
"""Of the smallest component: how many rows may lie outside of a ball."""

_REACH = 0.25
"""Share of a radius for what it is at most, if most of every component is within it."""

_LEFT_OUT, _SURE, _SMALLER = 0.65, 0.2, 0.1
"""Of the smallest component: how many rows may lie outside then, how many more by the noise of the choice, and for the
sake of a smaller radius. Together less than all, so that none is left out that is as far away as it may be."""

_BEYOND = 4.0
"""Deviations, beside sqrt(d), from a mean to the farthest of its rows."""

BLIND = 0.4
"""A radius that would leave out more of the rows because of its noise is not asked for."""


@dataclass(frozen=True, eq=False)
class Ball:
    """Released: a ball of the unit ball that holds nearly all rows of a part, and about how many rows there are."""

    centre: FloatArray
    radius: float
    rows: float


def round_share(k: int, d: int, sigma_min: float, cap: float) -> float:
    """What a round costs, so that `cap` pays for all rounds on the way to a leaf of a tree with k leaves."""
    far = math.ceil(max(0.0, math.log(1.0 / (10.0 * math.sqrt(d) * sigma_min)) / math.log(20.0)))
    return cap / (math.ceil(math.log2(k + 1)) + 4 + far)


def tighten(parts: Parts, node: Node, ball: Ball, share: float, smallest: float = 0.0) -> Ball:
    """One round: a better centre, and a ball about it. `smallest` is the number of rows of the smallest component.

    0: the part is the whole table, and it is the least weight's share of that.
    """
    s = parts.settings
    statistic = ball_statistic(s.frame, ball.centre, ball.radius, Moments.SPHERICAL, _WEIGHTS)
    flat, std = parts.release(node, statistic, _MEAN * share)
    released = decode(flat, 1, s.d, Moments.SPHERICAL, _WEIGHTS, std)
    rows = max(float(released.counts[0]), 2.0 * released.count_std, 1.0)
    centre = ball.centre + ball.radius * released.mean_u()[0]
    centre /= max(1.0, float(np.linalg.norm(centre)))
    smallest = smallest or max(s.min_weight * rows, 1.0)
    return _radius(parts, node, Ball(centre, ball.radius, rows), (1.0 - _MEAN) * share, smallest, ball)


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
    inflated = family.radius(index) * (1.05 + 0.8 / math.sqrt(s.d)) * (1.0 + target / ball.rows)
    return Ball(ball.centre, min(inflated, reach, 2.0), ball.rows)


def _reach(parts: Parts, node: Node, radii: RadiusFamily, share: float, smallest: float) -> float:
    """A radius that holds nearly all rows of all components, however far away other rows are; infinity if too noisy.

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


def radii(settings: Settings, centre: FloatArray, radius: float) -> RadiusFamily:
    """Candidates about a centre, up to twice a radius; the target is to be set."""
    d = settings.d
    least = 0.5 * settings.sigma_min * math.sqrt(d)
    view = View(lattice_point(centre), np.zeros((0, d)))
    return RadiusFamily(settings.frame, view, least, max(2.0 * radius, 2.0 * least), 0, 0)


def shrinks(before: Ball, after: Ball) -> bool:
    """Whether another round is worth its price."""
    return after.radius * _SHRINKS < before.radius
