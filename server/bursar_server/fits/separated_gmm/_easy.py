"""Easy case of the paper: one set of principal directions, and k balls in their space, one after another.

Kamath et al. 2019, algorithm 1. The paper runs PGLoc on the projected rows outside of earlier balls, for the smallest
ball with half of a component, and then takes a ball eight times as large. This module looks for an equally tight ball
among public points, moves to the noisy mean of its rows, and repeats among points near there as long as the ball
shrinks. Then it looks for a radius about it whose margin is empty. Rows in no ball count for no component, as in the
paper.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bursar_models import public_generator
from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.decoding import decode
from bursar_server.fits.mixtures.statistics import Moments, Weights
from bursar_server.fits.separated_gmm._kernel import POINT
from bursar_server.fits.separated_gmm._locate import Ball, changes, round_share, tighten
from bursar_server.fits.separated_gmm._parts import Parts
from bursar_server.fits.separated_gmm._search import BallFamily, TightFamily, middle_of
from bursar_server.fits.separated_gmm._statistics import (
    Round,
    View,
    ball_statistic,
    lattice_directions,
    lattice_point,
    round_statistic,
)
from bursar_server.fits.separated_gmm._tree import (
    BONUS,
    CAP,
    DIRECTIONS,
    FEW_MORE,
    LEAST_RADIUS,
    LOCATION,
    SPLITS,
    Leaf,
    directions_of,
    sample_of,
    stands,
)
from bursar_server.vault import Family, Node

_CENTRES, _MOST_CENTRES = 100, 1000
"""Number of ball centres in every search: for every direction, and the maximum. Chosen, not tuned."""

_LOOKS = 5
"""Maximum number of searches for a tight ball before the one for its margin. Chosen, not tuned."""

_TIGHT, _MIDDLE, _MARGIN, _TEST = 0.5, 0.1, 0.2, 0.2
"""Shares of a ball's budget for the searches, for the middle of their result, for its margin, and for its counts.

Chosen, not tuned.
"""

_WEIGHTS = Weights(0.4, 1.0, 0.2)
"""Weights of a ball's count, sum and sum of squares. Chosen, not tuned."""

_NEAR, _CLOSE = 300, 0.3
"""Number of points tried about the middle of a tight ball, and their maximum distance in its radii.

Chosen, not tuned.
"""

_SETTLES = 1.25
"""Ratio of successive tight balls below which the search ends. Chosen, not tuned."""

_ROOM = 1.3
"""Start of a ball's margin, over the radius that holds a Gaussian of which half is in the tight ball.

Chosen, not tuned.
"""

_NARROWS = 4.0
"""Maximum ratio of successive tight balls. Chosen, not tuned."""

_NEAREST = 0.05
"""Minimum distance from the centre of the points that are tried next, in its radii. Chosen, not tuned."""


def balls(parts: Parts, root: Node) -> list[Leaf]:
    """Return at most k leaves, each a ball in the space of the principal directions. At least one leaf; total."""
    return _Balls(parts).leaves(root)


class _Balls:
    def __init__(self, parts: Parts) -> None:
        s = parts.settings
        self.parts = parts
        self.round = round_share(1, s.d, s.sigma_min, 0.5 * LOCATION)
        self.generator = public_generator(s.seed)
        self.keys = self.generator.integers(0, 2**63, s.d + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def leaves(self, root: Node) -> list[Leaf]:
        s = self.parts.settings
        ball, spent, smallest = Ball(np.zeros(s.d), 1.0, 1.0), 0.0, 1.0
        while spent + self.round <= 0.5 * LOCATION * (1.0 + 1e-9):
            before, ball = ball, tighten(self.parts, root, ball, self.round)
            spent, smallest = spent + self.round, max(s.min_weight * ball.rows, 1.0)
            if not changes(before, ball):
                break
        m = min(s.d, s.k)
        # Principal directions that keep nearly all columns cost more than they gain.
        basis = np.zeros((0, s.d))
        if s.d > max(FEW_MORE * m, 2):
            basis = directions_of(self.parts, root, ball, m, DIRECTIONS)
        view = View(lattice_point(ball.centre), lattice_directions(basis))
        found: list[Leaf] = []
        rest = Leaf(root, ball, ball.rows)
        for _ in range(s.k):
            halves = self._cut(rest, view, smallest)
            if halves is not None:
                rest, inside = halves
                found.append(inside)
        return [self._settle(leaf, smallest) for leaf in found or [rest]]

    def _settle(self, leaf: Leaf, smallest: float) -> Leaf:
        """Return the leaf with a ball of its own, among all columns."""
        for _ in range(2):
            before, ball = leaf.ball, tighten(self.parts, leaf.node, leaf.ball, 0.25 * LOCATION, smallest)
            leaf = replace(leaf, ball=ball)
            if not changes(before, ball):
                break
        return leaf

    def _cut(self, rest: Leaf, view: View, smallest: float) -> tuple[Leaf, Leaf] | None:
        """Return what is outside of the next ball, and what is inside; None if no ball has an empty margin."""
        s, share = self.parts.settings, SPLITS / self.parts.settings.k
        m, part, sample = view.dimension, *sample_of(rest.rows, self.keys)
        cap = max(1, round(CAP * smallest * part))
        least, most = LEAST_RADIUS * s.sigma_min * view.lattice, 2.0 * rest.ball.radius * view.lattice
        most = max(most, 2.0 * least)
        lengths = self.generator.random((_centres(m), 1)) ** (1.0 / m)
        centres = rest.ball.radius * view.lattice * lengths * self._directions(_centres(m), m)
        radius = math.inf
        for look in range(_LOOKS):
            tight = TightFamily(s.frame, view, centres, least, most, cap, sample)
            group, index = self._choose(rest, tight, _TIGHT / _LOOKS * share)
            before, radius = radius, tight.radius(index)
            centre = self._middle(rest, view, centres[group], radius, _MIDDLE / _LOOKS * share)
            centres = self._near(centre, radius, _NEAR)
            least, most = radius / _NARROWS, radius
            if look > 1 and radius * _SETTLES > before:
                break
        widest = radius * _ROOM * (1.0 + 3.0 / math.sqrt(m))
        centres = self._near(centre, _CLOSE * radius, _NEAR)
        family = BallFamily(s.frame, view, centres, radius, 2.0 * widest, cap, round(BONUS * cap), sample, among=False)
        group, index = self._choose(rest, family, _MARGIN * share)
        edges, centre = family.edges(index), centres[group]
        flat, std = self.parts.release(rest.node, round_statistic(s.frame, view, centre, edges), _TEST * share)
        inside, outside, between = (float(x) for x in flat)
        if not stands(inside, between, std, smallest):
            return None
        nodes = self.parts.forest.split(rest.node, Round(s.frame, view, centre, middle_of(edges)))
        left, held = (max(rows, 1.0) for rows in (outside + between / 2.0, inside + between / 2.0))
        return replace(rest, node=nodes[0], rows=left), replace(rest, node=nodes[1], rows=held)

    def _middle(self, rest: Leaf, view: View, centre: FloatArray, radius: float, share: float) -> FloatArray:
        """Return the noisy mean of a ball's rows, which moves towards their component's mean."""
        s, m = self.parts.settings, view.dimension
        node = self.parts.forest.split(rest.node, Round(s.frame, view, centre, radius**2))[1]
        basis = view.basis / np.linalg.norm(view.basis, axis=1, keepdims=True) if len(view.basis) else np.eye(s.d)
        at = view.origin / POINT + centre / view.lattice @ basis
        inside = radius / view.lattice
        # What the directions do not show of rows is as wide in every other direction as in these.
        across = min(s.sigma_max, inside / math.sqrt(m)) ** 2 * (s.d - m)
        reach = 1.1 * math.sqrt(inside**2 + across)
        flat, std = self.parts.release(node, ball_statistic(s.frame, at, reach, Moments.SPHERICAL, _WEIGHTS), share)
        shift = reach * view.lattice * basis @ decode(flat, 1, s.d, Moments.SPHERICAL, _WEIGHTS, std).mean_u()[0]
        return np.asarray(centre + shift * min(1.0, radius / max(float(np.linalg.norm(shift)), 1e-300)))

    def _near(self, centre: FloatArray, radius: float, number: int) -> FloatArray:
        """Return a point, and points about it at distances up to a radius."""
        lengths = radius * np.geomspace(1.0, _NEAREST, number)[:, None]
        return np.concatenate([centre[None], centre + lengths * self._directions(number, len(centre))])

    def _directions(self, number: int, m: int) -> FloatArray:
        normal = self.generator.standard_normal((number, m))
        return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))

    def _choose(self, leaf: Leaf, family: Family, share: float) -> tuple[int, int]:
        return self.parts.forest.search(leaf.node, family, self.parts.noise_of(family, leaf.node, share))


def _centres(m: int) -> int:
    """Return the number of centres of a search in `m` dimensions."""
    return min(_CENTRES * (m + 1), _MOST_CENTRES)
