"""The recursion: parts are split in two where a wide gap is found, until there are k of them or no gap is left.

Kamath et al. 2019, algorithms 3 and 4 (RPGMP): search among rows as they are where components are far apart, then in
the space of noisy principal directions; each half is located and split again. A part that cannot be split is an
ordinary outcome. Every decision is a function of released numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bursar_server.fits.dpem._released import decode
from bursar_server.fits.dpem._statistics import Moments, Weights
from bursar_server.fits.separated_gmm._locate import Ball, round_share, shrinks, tighten
from bursar_server.fits.separated_gmm._parts import LEAST_SHARE, Parts
from bursar_server.fits.separated_gmm._search import BINS, SplitFamily
from bursar_server.fits.separated_gmm._statistics import (
    EVERYBODY,
    NOWHERE,
    FloatArray,
    Sample,
    Slab,
    View,
    ball_statistic,
    lattice_directions,
    lattice_point,
    slab_statistic,
)
from bursar_server.vault import Node

LOCATION, DIRECTIONS, SPLITS = 0.12, 0.08, 0.28
"""Most that a path may spend on balls, principal directions, and splits, as shares of the spend."""

_FIRST_PASS = 0.7
"""Of the shares for splits that first attempts may use; second attempts use what is left."""

_PCA_PART = 0.7
"""Of what is left for principal directions, for one set of them."""

_PCA_WEIGHTS = Weights(0.1, 0.1, 1.0)

_RAW_DIRECTIONS, _PROJECTED_DIRECTIONS, _REFINED_DIRECTIONS = 100, 30, 20
"""Random directions: in all; for every principal direction; around the best, for every principal direction."""

_SAMPLE = 60_000
"""About how many rows a search looks at."""

_CAP = 0.85
"""Of the smallest component: rows on either side of a gap that are enough."""

_WIDER = 0.15
"""Of that number: what a wider gap is worth."""

_ENOUGH, _ABOVE_NOISE, _EMPTY = 0.4, 5.0, 0.15
"""A split stands if both sides have this part of the smallest component's rows, and so many deviations of the noise,
and the gap no more than this part of them. Of one component the gap has more: 0.34 of the fewer rows if it is normal,
0.2 if it is uniform."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A part that may be split.

    Attributes:
        node: its rows.
        ball: that holds them.
        rows: about how many there are.
        located, directed, split: what its path has spent, as shares.
        basis: (m, d) orthonormal principal directions that it inherited; None if it has to find its own.
        attempts: how often a split was looked for.
    """

    node: Node
    ball: Ball
    rows: float
    located: float = 0.0
    directed: float = 0.0
    split: float = 0.0
    basis: FloatArray | None = None
    attempts: int = 0


def grow(parts: Parts, root: Node) -> list[Leaf]:
    """Split until there are k leaves, or nothing more is found. At least one leaf; total."""
    return _Growth(parts).leaves(root)


class _Growth:
    def __init__(self, parts: Parts) -> None:
        s = parts.settings
        self.parts = parts
        self.round = round_share(s.k, s.d, s.sigma_min, LOCATION)
        self.reserve = 2.0 * self.round
        self.smallest = 1.0
        self.generator = np.random.default_rng(s.seed)  # noqa: TID251 - public directions, from a public seed
        self.keys = self.generator.integers(0, 2**63, s.d + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def leaves(self, root: Node) -> list[Leaf]:
        k = self.parts.settings.k
        leaf = Leaf(root, Ball(np.zeros(self.parts.settings.d), 1.0, 1.0), 1.0)
        leaf = self._locate_all(leaf)
        leaf = replace(leaf, rows=leaf.ball.rows)
        self.smallest = max(self.parts.settings.min_weight * leaf.rows, 1.0)
        leaves = [leaf]
        while len(leaves) < k:
            candidates = [leaf for leaf in leaves if leaf.attempts < 2 and leaf.rows >= 2.0 * _ENOUGH * self.smallest]
            if not candidates:
                break
            chosen = min(candidates, key=lambda leaf: (leaf.attempts, -leaf.rows))
            leaves = [leaf for leaf in leaves if leaf is not chosen] + self._attempt(chosen, k - len(leaves))
        return [self._settle(leaf) for leaf in leaves]

    def _locate(self, leaf: Leaf) -> Leaf:
        ball = tighten(self.parts, leaf.node, leaf.ball, self.round, self.smallest)
        return replace(leaf, ball=ball, located=leaf.located + self.round)

    def _locate_all(self, leaf: Leaf) -> Leaf:
        while leaf.located + self.round + self.reserve <= LOCATION:
            before, leaf = leaf.ball, self._locate(leaf)
            if not shrinks(before, leaf.ball):
                break
        return leaf

    def _settle(self, leaf: Leaf) -> Leaf:
        """What was kept back for the location of final leaves."""
        for _ in range(2):
            if leaf.located + self.round > LOCATION * (1.0 + 1e-9):
                break
            before, leaf = leaf.ball, self._locate(leaf)
            if not shrinks(before, leaf.ball):
                break
        return leaf

    def _attempt(self, leaf: Leaf, remaining: int) -> list[Leaf]:
        """The two halves of a leaf, or the leaf with one attempt more."""
        s = self.parts.settings
        first = leaf.attempts == 0
        leaf = replace(leaf, attempts=leaf.attempts + 1, basis=leaf.basis if first else None)
        if first:
            levels = min(remaining, math.ceil(math.log2(remaining + 1)) + 1)
            budget = (_FIRST_PASS * SPLITS - leaf.split) / levels
        else:
            budget = SPLITS - leaf.split
        if budget < LEAST_SHARE:
            return [leaf]
        if s.d <= 2 or s.d <= remaining + 1:
            return self._search(leaf, np.zeros((0, s.d)), budget, projected=True)[1]
        if not s.easy and leaf.basis is None and self._is_blurred(leaf):
            split, leaves = self._search(leaf, np.zeros((0, s.d)), 0.5 * budget, projected=False)
            if split:
                return leaves
            (leaf,), budget = leaves, 0.5 * budget
        if leaf.basis is None:
            leaf = self._direct(leaf, min(s.d, remaining + 1))
        if leaf.basis is None:
            return [leaf]
        return self._search(leaf, leaf.basis, budget, projected=True)[1]

    def _is_blurred(self, leaf: Leaf) -> bool:
        """Whether noise on second moments could hide the principal directions."""
        s = self.parts.settings
        rho = float(s.rho) * _PCA_PART * (DIRECTIONS - leaf.directed)
        change = leaf.ball.radius**2 * (2.0**0.5 if s.replaces else 1.0) * s.unit_cap
        noise = math.sqrt(2.0 * s.d) * change / math.sqrt(2.0 * max(rho, 1e-300))
        return noise > 0.3 * self.smallest * s.separation**2

    def _direct(self, leaf: Leaf, m: int) -> Leaf:
        """The leaf with noisy principal directions of its own."""
        s, share = self.parts.settings, _PCA_PART * (DIRECTIONS - leaf.directed)
        if share < LEAST_SHARE:
            return leaf
        statistic = ball_statistic(s.frame, leaf.ball.centre, leaf.ball.radius, Moments.FULL, _PCA_WEIGHTS)
        flat, std = self.parts.release(leaf.node, statistic, share)
        second = decode(flat, 1, s.d, Moments.FULL, _PCA_WEIGHTS, std).seconds[0]
        basis = np.linalg.eigh(second)[1][:, ::-1][:, :m].T
        return replace(leaf, directed=leaf.directed + share, basis=np.ascontiguousarray(basis))

    def _search(self, leaf: Leaf, basis: FloatArray, budget: float, *, projected: bool) -> tuple[bool, list[Leaf]]:
        """Look for a slab with a gap around it, and split where there is one: (whether it was, the leaves)."""
        s = self.parts.settings
        view = View(lattice_point(leaf.ball.centre), lattice_directions(basis))
        m = view.dimension
        axes = np.eye(m)[: 20 if not projected else m]
        random = _PROJECTED_DIRECTIONS * m if projected else _RAW_DIRECTIONS
        directions = np.concatenate([axes, self.generator.standard_normal((random, m))])
        shares = (0.4, 0.4, 0.2) if projected else (0.7, 0.0, 0.3)
        family = self._family(leaf, view, directions)
        direction, edges = self._choose(leaf, family, shares[0] * budget)
        if shares[1]:
            spread = 0.5 * np.geomspace(1.0, 0.1, _REFINED_DIRECTIONS * m)[:, None]
            around = self.generator.standard_normal((_REFINED_DIRECTIONS * m, m)) / math.sqrt(m)
            length = max(float(np.linalg.norm(direction)), 1.0)
            near = direction / length + spread * around
            family = self._family(leaf, view, np.concatenate([direction[None], near]))
            direction, edges = self._choose(leaf, family, shares[1] * budget)
        leaf = replace(leaf, split=leaf.split + budget)
        direction, longer = view.across(direction)
        edges = np.clip(edges * longer, -NOWHERE, NOWHERE)
        statistic = slab_statistic(s.frame, view.origin, direction, edges)
        flat, std = self.parts.release(leaf.node, statistic, shares[2] * budget)
        inside, outside, between = (float(x) for x in flat)
        fewer = min(inside, outside)
        if fewer < max(_ENOUGH * self.smallest, _ABOVE_NOISE * std) or between > _EMPTY * fewer:
            return False, [leaf]
        low, high = np.rint((edges[0] + edges[1]) / 2.0), np.rint((edges[2] + edges[3]) / 2.0)
        nodes = self.parts.forest.split(leaf.node, Slab(s.frame, view.origin, direction, float(low), float(high)))
        inherited = leaf.basis if projected else None
        halves = [
            Leaf(node, leaf.ball, max(rows, 1.0), leaf.located, leaf.directed, leaf.split, inherited)
            for node, rows in zip(nodes, (outside + between / 2.0, inside + between / 2.0), strict=True)
        ]
        return True, [self._locate_all(half) for half in halves]

    def _family(self, leaf: Leaf, view: View, directions: FloatArray) -> SplitFamily:
        s = self.parts.settings
        part = min(1.0, _SAMPLE / leaf.rows)
        threshold = EVERYBODY if part >= 1.0 else int(part * EVERYBODY)
        reach = 2.0 * leaf.ball.radius * view.unit
        width = 2.0 ** max(0, math.ceil(math.log2(reach / BINS)))
        cap = max(1, round(_CAP * self.smallest * part))
        return SplitFamily(
            s.frame,
            view,
            lattice_directions(directions),
            width,
            math.ceil(1.5 * s.sigma_min * view.unit / width),
            cap,
            round(_WIDER * cap),
            Sample(self.keys, threshold),
        )

    def _choose(self, leaf: Leaf, family: SplitFamily, share: float) -> tuple[FloatArray, FloatArray]:
        group, index = self.parts.forest.search(leaf.node, family, self.parts.noise_of(family, leaf.node, share))
        return family.directions[group], family.edges(index)
