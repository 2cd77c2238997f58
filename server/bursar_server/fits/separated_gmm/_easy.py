"""The paper's easy case: one set of principal directions, and k balls in their space, one after another.

Kamath et al. 2019, algorithm 1. Where it runs PGLoc on the projected rows that no earlier ball has, for the smallest
ball with half of a component in it, and then takes a ball that is eight times as large, this looks for a ball that is
as tight among public points, then among points near that one, as long as it shrinks, and then for the radius about it
whose margin is empty. What is in no ball in the end counts for no component, as in the paper.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bursar.models import public_generator
from bursar_server.fits.separated_gmm._locate import Ball, round_share, shrinks, tighten
from bursar_server.fits.separated_gmm._parts import Parts
from bursar_server.fits.separated_gmm._search import BallFamily, TightFamily, middle_of
from bursar_server.fits.separated_gmm._statistics import (
    FloatArray,
    Round,
    View,
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
"""Of balls, in every search: for every direction, and the most."""

_LOOKS = 5
"""Most searches for a tight ball, before the one for its margin."""

_TIGHT, _MARGIN, _TEST = 0.5, 0.3, 0.2
"""Shares of a ball for the searches, for its margin, and for its counts."""

_SETTLES = 1.25
"""A tight ball that is not that much smaller than the one before is the last."""

_ROOM = 1.7
"""Where the margin of a ball may end, over the radius that holds a Gaussian of which half is in the tight ball."""

_NARROWS = 4.0
"""How much smaller a tight ball may be than the one before."""

_NEAREST = 0.05
"""How near to the centre of a ball the nearest of the points are that are tried next, in its radii."""


def balls(parts: Parts, root: Node) -> list[Leaf]:
    """At most k leaves, each a ball in the space of the principal directions. At least one leaf; total."""
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
            before, ball = ball, tighten(self.parts, root, ball, self.round, smallest)
            spent, smallest = spent + self.round, max(s.min_weight * ball.rows, 1.0)
            if not shrinks(before, ball):
                break
        m = min(s.d, s.k)
        # Directions of nearly all columns are not worth their price.
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
        """With a ball of its own, among all columns."""
        for _ in range(2):
            before, ball = leaf.ball, tighten(self.parts, leaf.node, leaf.ball, 0.25 * LOCATION, smallest)
            leaf = replace(leaf, ball=ball)
            if not shrinks(before, ball):
                break
        return leaf

    def _cut(self, rest: Leaf, view: View, smallest: float) -> tuple[Leaf, Leaf] | None:
        """What is outside of the next ball, and what is inside; None if there is none with a margin that is empty."""
        s, share = self.parts.settings, SPLITS / self.parts.settings.k
        m, part, sample = view.dimension, *sample_of(rest.rows, self.keys)
        cap = max(1, round(CAP * smallest * part))
        least, most = LEAST_RADIUS * s.sigma_min * view.lattice, 2.0 * rest.ball.radius * view.lattice
        most = max(most, 2.0 * least)
        lengths = self.generator.random((_centres(m), 1)) ** (1.0 / m)
        centres = rest.ball.radius * view.lattice * lengths * self._directions(m)
        radius = math.inf
        for look in range(_LOOKS):
            tight = TightFamily(s.frame, view, centres, least, most, cap, sample)
            group, index = self._choose(rest, tight, _TIGHT / _LOOKS * share)
            before, radius = radius, tight.radius(index)
            centres = self._near(centres[group], radius)
            least, most = radius / _NARROWS, radius
            if look > 1 and radius * _SETTLES > before:
                break
        widest = radius * _ROOM * (1.0 + 3.0 / math.sqrt(m))
        family = BallFamily(s.frame, view, centres, radius, widest, cap, round(BONUS * cap), sample, among=False)
        group, index = self._choose(rest, family, _MARGIN * share)
        edges, centre = family.edges(index), centres[group]
        flat, std = self.parts.release(rest.node, round_statistic(s.frame, view, centre, edges), _TEST * share)
        inside, outside, between = (float(x) for x in flat)
        if not stands(inside, between, std, smallest):
            return None
        nodes = self.parts.forest.split(rest.node, Round(s.frame, view, centre, middle_of(edges)))
        left, held = (max(rows, 1.0) for rows in (outside + between / 2.0, inside + between / 2.0))
        return replace(rest, node=nodes[0], rows=left), replace(rest, node=nodes[1], rows=held)

    def _near(self, centre: FloatArray, radius: float) -> FloatArray:
        """A point, and points about it at all distances up to a radius."""
        m = len(centre)
        lengths = radius * np.geomspace(1.0, _NEAREST, _centres(m) - 1)[:, None]
        return np.concatenate([centre[None], centre + lengths * self._directions(m)[1:]])

    def _directions(self, m: int) -> FloatArray:
        normal = self.generator.standard_normal((_centres(m), m))
        return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))

    def _choose(self, leaf: Leaf, family: Family, share: float) -> tuple[int, int]:
        return self.parts.forest.search(leaf.node, family, self.parts.noise_of(family, leaf.node, share))


def _centres(m: int) -> int:
    """Of a search in so many dimensions."""
    return min(_CENTRES * (m + 1), _MOST_CENTRES)
