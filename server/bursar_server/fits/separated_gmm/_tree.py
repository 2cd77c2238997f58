"""Recursion: parts are split in two at a wide gap, until there are k of them or no gap is found.

Kamath et al. 2019, algorithm 3 (RPGMP): search among rows as they are if components are far apart, then in the space of
noisy principal directions; each half is located and split again. A part that cannot be split is an ordinary outcome.
Every decision is a function of released numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bursar_models import public_generator
from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.decoding import decode
from bursar_server.fits.mixtures.statistics import Moments, Weights
from bursar_server.fits.separated_gmm._locate import Ball, changes, round_share, tighten
from bursar_server.fits.separated_gmm._parts import LEAST_SHARE, Parts
from bursar_server.fits.separated_gmm._search import BINS, BallFamily, SplitFamily, middle_of
from bursar_server.fits.separated_gmm._statistics import (
    EVERYBODY,
    NOWHERE,
    Round,
    Sample,
    Slab,
    View,
    ball_statistic,
    lattice_directions,
    lattice_point,
    round_statistic,
    slab_statistic,
)
from bursar_server.vault import Node, Rule, Statistic

# "Insensitive": 0.7 and 1.4 times the value found all in at least 7 of 8 fits, errors alike (20,000 rows, k = 8,
# d = 10, rho 0.01), and for principal directions in 6 of 6 (k = 4, d = 30, rho 0.02).
LOCATION, DIRECTIONS, SPLITS = 0.12, 0.08, 0.34
"""Maximum shares of the budget that a path spends on balls, principal directions, and splits. Insensitive."""

_FIRST_PART = 0.7
"""Part of a share that a first attempt takes, of splits and of principal directions; later ones use the remainder.

With 0.5 all splits were found in 6 of those 8 fits, with 0.7 and 0.99 in 8.
"""

_PCA_WEIGHTS = Weights(0.1, 0.1, 1.0)
"""Weights of a release for principal directions, which needs second moments most. Chosen, not tuned."""

_RAW_DIRECTIONS, _PROJECTED_DIRECTIONS, _REFINED_DIRECTIONS = 100, 30, 20
"""Random directions: in all; for every principal direction; around the best, for every principal direction.

Insensitive.
"""

_RAW_AXES = 20
"""Maximum number of columns used as directions, for rows as they are. Chosen, not tuned."""

FEW_MORE = 1.5
"""Columns per principal direction up to which these cost more than they gain. Insensitive."""

_CHOICES = 15.0
"""Approximate logarithm of the number of candidates: a search misses the best score by so many scales of its noise."""

_BALLS, _BALL_DIMENSIONS = 1000, 3
"""Random centres of balls, used twice; and the maximum dimension in which these come near to every group of rows."""

LEAST_RADIUS = 1.5
"""Least radius of a cut, in sigma_min. Insensitive."""

_SAMPLE = 60_000
"""Approximate number of rows that a search uses. Chosen, not tuned."""

CAP = 0.85
"""Rows on either side of a gap that are sufficient, as a share of the smallest component's.

With 0.6 all were found in 6 of those 8 fits, with 0.85 and 0.99 in 8.
"""

BONUS = 0.15
"""Score of a wider gap, as a share of the smallest component's sufficient rows. Insensitive."""

_RESOLVED = 20.0
"""Rows on either side of a gap that are sufficient, in scales of the search's noise, if that is more than `CAP` says.

A search misses the best score by `_CHOICES` scales, so a lower cap makes every gap drown, however many rows are beside
it. Large groups then come apart first, and small ones later.
"""

_ENOUGH, _ABOVE_NOISE, _EMPTY = 0.4, 5.0, 0.15
"""Conditions of a split, as shares of the smallest component's rows and in deviations of the noise.

Both sides need the first share and that many deviations; the gap, with a deviation more, may have the last share of
them. In a single component the gap has more: 0.34 of the fewer rows if it is normal, 0.2 if it is uniform.
"""


@dataclass(frozen=True, eq=False)
class Leaf:
    """Part that may be split.

    Attributes:
        node: rows of the part.
        ball: ball that holds them.
        rows: approximate number of them.
        located: share that its path has spent on balls.
        directed: share that its path has spent on principal directions.
        split: share that its path has spent on splits.
        basis: inherited orthonormal principal directions, (m, d); None if it has to compute its own.
        attempts: number of attempts to split it.
    """

    node: Node
    ball: Ball
    rows: float
    located: float = 0.0
    directed: float = 0.0
    split: float = 0.0
    basis: FloatArray | None = None
    attempts: int = 0


@dataclass(frozen=True, eq=False)
class Cut:
    """Split that was found: the counts that test it, and the rule that makes it."""

    counts: Statistic
    rule: Rule


def grow(parts: Parts, root: Node) -> list[Leaf]:
    """Split until there are k leaves, or no more gaps are found. At least one leaf; total."""
    return _Growth(parts).leaves(root)


def directions_of(parts: Parts, node: Node, ball: Ball, m: int, share: float) -> FloatArray:
    """Return noisy principal directions of the rows of a part, about its ball's centre: (m, d), orthonormal."""
    d = parts.settings.d
    statistic = ball_statistic(parts.settings.frame, ball.centre, ball.radius, Moments.FULL, _PCA_WEIGHTS)
    flat, std = parts.release(node, statistic, share)
    second = decode(flat, 1, d, Moments.FULL, _PCA_WEIGHTS, std).seconds[0]
    # `eigh` sorts ascending, and has an answer for noisy matrices that are not positive, too.
    return np.ascontiguousarray(np.linalg.eigh(second)[1][:, ::-1][:, :m].T)


def sample_of(rows: float, keys: NDArray[np.uint64]) -> tuple[float, Sample]:
    """Return the share of the rows that a search uses, and the sample."""
    part = min(1.0, _SAMPLE / rows)
    return part, Sample(keys, EVERYBODY if part >= 1.0 else int(part * EVERYBODY))


def stands(fewer: float, between: float, std: float, smallest: float) -> bool:
    """Return whether a split with so many rows on a side and in its gap is real, despite the noise."""
    return fewer >= max(_ENOUGH * smallest, _ABOVE_NOISE * std) and between + std <= _EMPTY * fewer


class _Growth:
    def __init__(self, parts: Parts) -> None:
        s = parts.settings
        self.parts = parts
        self.round = round_share(s.k, s.d, s.sigma_min, LOCATION)
        self.reserve = 2.0 * self.round
        self.smallest = self.typical = 0.0  # 0 until the whole table's rows were counted
        self.generator = public_generator(s.seed)
        # Odd factors, so that no bit of a coordinate is lost in the product modulo 2^64.
        self.keys = self.generator.integers(0, 2**63, s.d + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def leaves(self, root: Node) -> list[Leaf]:
        k = self.parts.settings.k
        # The public ball: before the first release nothing else is known.
        leaf = Leaf(root, Ball(np.zeros(self.parts.settings.d), 1.0, 1.0), 1.0)
        leaf = self._locate_all(leaf)
        leaf = replace(leaf, rows=leaf.ball.rows)
        self.smallest = max(self.parts.settings.min_weight * leaf.rows, 1.0)
        self.typical = max(self.smallest, 0.5 * leaf.rows / k)  # a small component is no reason to look for it alone
        leaves = [leaf]
        while len(leaves) < k:
            candidates = [leaf for leaf in leaves if leaf.attempts < 2 and leaf.rows >= 2.0 * _ENOUGH * self.smallest]
            if not candidates:
                break
            # The largest first, since it most likely holds several components; second attempts only when no first is
            # left.
            chosen = min(candidates, key=lambda leaf: (leaf.attempts, -leaf.rows))
            leaves = [leaf for leaf in leaves if leaf is not chosen] + self._attempt(chosen, k - len(leaves))
        return [self._settle(leaf) for leaf in leaves]

    def _locate(self, leaf: Leaf) -> Leaf:
        ball = tighten(self.parts, leaf.node, leaf.ball, self.round, self.smallest)
        return replace(leaf, ball=ball, located=leaf.located + self.round)

    def _locate_all(self, leaf: Leaf) -> Leaf:
        while leaf.located + self.round + self.reserve <= LOCATION:
            before, leaf = leaf.ball, self._locate(leaf)
            if not changes(before, leaf.ball):
                break
        return leaf

    def _settle(self, leaf: Leaf) -> Leaf:
        """Return a final leaf, located with the share that was kept for it."""
        for _ in range(2):
            if leaf.located + self.round > LOCATION * (1.0 + 1e-9):
                break
            before, leaf = leaf.ball, self._locate(leaf)
            if not changes(before, leaf.ball):
                break
        return leaf

    def _attempt(self, leaf: Leaf, remaining: int) -> list[Leaf]:
        """Return the two halves of a leaf, or the leaf with one attempt more."""
        s = self.parts.settings
        first = leaf.attempts == 0
        # A second attempt looks for directions anew: the inherited ones showed no gap.
        leaf = replace(leaf, attempts=leaf.attempts + 1, basis=leaf.basis if first else None)
        if first:
            # The splits that may still follow on one path share what is left of its budget.
            levels = min(remaining, math.ceil(math.log2(remaining + 1)) + 1)
            budget = (_FIRST_PART * SPLITS - leaf.split) / levels
        else:
            budget = SPLITS - leaf.split
        if budget < LEAST_SHARE:
            return [leaf]
        m = min(s.d, remaining + 1, _BALL_DIMENSIONS if s.balls else s.d)
        # So few columns need no principal directions: the search is in all of them.
        if s.d <= max(FEW_MORE * m if not s.balls else m, 2):
            return self._search(leaf, np.zeros((0, s.d)), budget, projected=True)[1]
        # A split in raw directions shrinks the ball, and with it the noise on second moments.
        if leaf.basis is None and self._is_blurred(leaf):
            split, leaves = self._search(leaf, np.zeros((0, s.d)), 0.5 * budget, projected=False)
            if split:
                return leaves
            (leaf,), budget = leaves, 0.5 * budget
        if leaf.basis is None:
            leaf = self._direct(leaf, m)
        if leaf.basis is None:
            return [leaf]
        return self._search(leaf, leaf.basis, budget, projected=True)[1]

    def _is_blurred(self, leaf: Leaf) -> bool:
        """Return whether noise on second moments could hide the principal directions."""
        s = self.parts.settings
        rho = float(s.rho) * _FIRST_PART * (DIRECTIONS - leaf.directed)
        change = leaf.ball.radius**2 * (2.0**0.5 if s.replaces else 1.0) * s.unit_cap
        noise = math.sqrt(2.0 * s.d) * change / math.sqrt(2.0 * max(rho, 1e-300))
        return noise > 0.3 * self.typical * s.separation**2

    def _direct(self, leaf: Leaf, m: int) -> Leaf:
        """Return the leaf with noisy principal directions of its own."""
        share = _FIRST_PART * (DIRECTIONS - leaf.directed)
        if share < LEAST_SHARE:
            return leaf
        basis = directions_of(self.parts, leaf.node, leaf.ball, m, share)
        return replace(leaf, directed=leaf.directed + share, basis=basis)

    def _search(self, leaf: Leaf, basis: FloatArray, budget: float, *, projected: bool) -> tuple[bool, list[Leaf]]:
        """Look for a slab or ball with a gap around it, and split there.

        Return whether it was split, and the leaves.
        """
        view = View(lattice_point(leaf.ball.centre), lattice_directions(basis))
        shares = (0.4, 0.4, 0.2) if projected else (0.7, 0.0, 0.3)
        look = self._balls if self.parts.settings.balls and projected else self._slabs
        if projected and self._is_scarce(leaf, shares[0] * budget):
            shares = (0.8, 0.0, 0.2)
        cut = look(leaf, view, shares[0] * budget, shares[1] * budget, projected=projected)
        # Charged whether or not the split stands: what was asked of the rows is spent.
        leaf = replace(leaf, split=leaf.split + budget)
        flat, std = self.parts.release(leaf.node, cut.counts, shares[2] * budget)
        inside, outside, between = (float(x) for x in flat)
        fewer = min(inside, outside)
        if not stands(fewer, between, std, self.smallest):
            return False, [leaf]
        nodes = self.parts.forest.split(leaf.node, cut.rule)
        # Directions that separated one pair of groups often separate others of the same part, and they are paid for.
        inherited = leaf.basis if projected else None
        halves = [
            Leaf(node, leaf.ball, max(rows, 1.0), leaf.located, leaf.directed, leaf.split, inherited)
            for node, rows in zip(nodes, (outside + between / 2.0, inside + between / 2.0), strict=True)
        ]
        return True, [self._locate_all(half) for half in halves]

    def _is_scarce(self, leaf: Leaf, share: float) -> bool:
        """Return whether a search for this share could not find the best split, so that two searches are too many."""
        directions = np.eye(self.parts.settings.d)[:1]
        family = self._slab_family(leaf, View(lattice_point(leaf.ball.centre), directions[:0]), directions)
        scale = self.parts.noise_of(family, leaf.node, share).scale
        return _CHOICES * scale > self._sufficient(leaf, family.cap, scale)

    def _slabs(self, leaf: Leaf, view: View, first: float, second: float, *, projected: bool) -> Cut:
        """Return the best slab among random directions and, if a second share pays for it, around the best of them."""
        m = view.dimension
        random = _PROJECTED_DIRECTIONS * m if projected else _RAW_DIRECTIONS
        axes = np.eye(m)[: m if projected else _RAW_AXES]
        family = self._slab_family(leaf, view, np.concatenate([axes, self.generator.standard_normal((random, m))]))
        group, index = self._choose(leaf, family, first)
        if second:
            # Far and near ones: how well the first search aimed is not known.
            spread = 0.5 * np.geomspace(1.0, 0.1, _REFINED_DIRECTIONS * m)[:, None] / math.sqrt(m)
            best = family.directions[group] / max(float(np.linalg.norm(family.directions[group])), 1.0)
            near = best + spread * self.generator.standard_normal((_REFINED_DIRECTIONS * m, m))
            family = self._slab_family(leaf, view, np.concatenate([best[None], near]))
            group, index = self._choose(leaf, family, second)
        direction, longer = view.across(family.directions[group])
        # Infinity is no number of the lattice; NOWHERE is beyond every projection.
        edges = np.clip(family.edges(index) * longer, -NOWHERE, NOWHERE)
        low, high = (float(np.rint(edge)) for edge in ((edges[0] + edges[1]) / 2.0, (edges[2] + edges[3]) / 2.0))
        frame = self.parts.settings.frame
        return Cut(slab_statistic(frame, view.origin, direction, edges), Slab(frame, view.origin, direction, low, high))

    def _balls(self, leaf: Leaf, view: View, first: float, second: float, *, projected: bool) -> Cut:
        """Return the best ball about random points, and then about points near the centre of the best."""
        m, reach = view.dimension, leaf.ball.radius * view.lattice
        # Normal directions with radii by the m-th root are uniform in a ball.
        inside = self.generator.standard_normal((_BALLS, m))
        inside *= (self.generator.random((_BALLS, 1)) ** (1.0 / m)) / np.linalg.norm(inside, axis=1, keepdims=True)
        family = self._ball_family(leaf, view, reach * inside)
        group, index = self._choose(leaf, family, first)
        if second:
            size = math.sqrt(float(family.edges(index)[0]))
            near = 0.5 * size / math.sqrt(m) * self.generator.standard_normal((_BALLS, m))
            family = self._ball_family(leaf, view, family.centres[group] + np.concatenate([np.zeros((1, m)), near]))
            group, index = self._choose(leaf, family, second)
        edges, centre, frame = family.edges(index), family.centres[group], self.parts.settings.frame
        return Cut(round_statistic(frame, view, centre, edges), Round(frame, view, centre, middle_of(edges)))

    def _rows(self, leaf: Leaf) -> tuple[int, int, Sample]:
        """Cap and bonus of a search, and the sample that it looks at."""
        part, sample = sample_of(leaf.rows, self.keys)
        cap = max(1, round(CAP * self.smallest * part))
        return cap, round(BONUS * cap), sample

    def _slab_family(self, leaf: Leaf, view: View, directions: FloatArray) -> SplitFamily:
        s = self.parts.settings
        # A power of two, so that edges of bins are exact in floating point.
        width = 2.0 ** max(0, math.ceil(math.log2(2.0 * leaf.ball.radius * view.unit / BINS)))
        least = math.ceil(LEAST_RADIUS * s.sigma_min * view.unit / width)
        return SplitFamily(s.frame, view, lattice_directions(directions), width, least, *self._rows(leaf))

    def _ball_family(self, leaf: Leaf, view: View, centres: FloatArray) -> BallFamily:
        s = self.parts.settings
        least, most = LEAST_RADIUS * s.sigma_min * view.lattice, 2.0 * leaf.ball.radius * view.lattice
        return BallFamily(s.frame, view, centres, least, max(most, 2.0 * least), *self._rows(leaf))

    def _sufficient(self, leaf: Leaf, cap: int, scale: float) -> int:
        """Return the rows beside a gap that are sufficient if the choice has noise of this scale."""
        half = 0.5 * CAP * leaf.rows * sample_of(leaf.rows, self.keys)[0]
        return max(cap, round(min(_RESOLVED * scale, half)))

    def _choose(self, leaf: Leaf, family: SplitFamily | BallFamily, share: float) -> tuple[int, int]:
        noise = self.parts.noise_of(family, leaf.node, share)
        family = replace(family, cap=self._sufficient(leaf, family.cap, noise.scale))
        return self.parts.forest.search(leaf.node, family, noise)
