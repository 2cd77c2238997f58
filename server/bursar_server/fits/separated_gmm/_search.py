"""Candidates of private choices: a radius about a released centre, and a slab or ball with a gap around it.

Scores are integers. Kamath, Sheffet, Singhal and Ullman 2019, section 5.1 (PTerrificBall), in projections: many points
inside, many outside, few in the annulus between, whose width grows with the radius. Proof of the scores' ranges in
`_search.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.statistics import BallFrame
from bursar_server.fits.separated_gmm import _kernel
from bursar_server.fits.separated_gmm._statistics import (
    EVERYBODY,
    NOWHERE,
    Sample,
    View,
    distance_statistic,
    histogram_statistic,
)
from bursar_server.vault import ScoreBounds, Statistic

BINS = 512
"""Bins of a histogram along a direction. Chosen, not tuned."""

PENALTY = 2
"""Cost lambda of a row in the gap."""

_GROWTH = 1.3
"""Ratio of adjacent radii. Chosen, not tuned."""

_GAPS = (0.4, 0.7, 1.0)
"""Widths of gaps over the radius. Chosen, not tuned."""

_LEAST_BINS = 5
"""Minimum number of bins of a radius. Chosen, not tuned."""

_BATCH = 1024
"""Directions that one pass over the rows serves: 4 MB of histograms for every thread."""

RADIUS_UNIT = 64
"""Score of one row beyond a radius: finer than one, so that ties can be broken by less than a row."""

_OCTAVE = 2 ** (_kernel.STEPS_BITS + 1)
"""Steps of squared radii in an octave of radii."""

_TIGHTER = 0.6
"""Value of the least radius against the largest, in shares of the sufficient rows. With more, empty balls would win."""

_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@dataclass(frozen=True)
class Shapes:
    """Candidates of every direction: inside bins [low, high), the gap to [outer_low, outer_high); shapes (c,)."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    outer_low: NDArray[np.int64]
    outer_high: NDArray[np.int64]
    gap: NDArray[np.int64]


@lru_cache(maxsize=32)
def shapes(least: int) -> Shapes:
    """Return all slabs of at least `least` bins half-width, with gaps of all widths; never empty."""
    parts, half = [], float(min(max(least, _LEAST_BINS), BINS // 2))
    while half <= BINS // 2:
        h = round(half)
        middles = np.arange(0, BINS, max(1, h // 5))
        for index, ratio in enumerate(_GAPS):
            gap = max(1, round(ratio * h))
            low, high = middles - h, middles + h + 1
            parts.append(np.stack([low, high, low - gap, high + gap, np.full_like(low, index)]))
        half *= _GROWTH
    edges = np.concatenate(parts, axis=1)
    # Slabs at the rim lose the part beyond it, and stay candidates: the last bins hold all rows that lie beyond.
    edges[:4] = np.clip(edges[:4], 0, BINS)
    return Shapes(*(np.ascontiguousarray(row) for row in edges))


@njit(**_options)
def _slab_scores(counts, low, high, outer_low, outer_high, gap, cap, bonus, out):  # type: ignore[no-untyped-def]
    """Set out to max(0, min(inside, outside, cap) - 2 between) + bonus of its gap, for every candidate."""
    # Cumulative counts: a candidate's three counts are then differences, whatever its width.
    below = np.zeros(counts.shape[0] + 1, dtype=np.int64)
    for b in range(counts.shape[0]):
        below[b + 1] = below[b] + counts[b]
    for c in range(low.shape[0]):
        inside = below[high[c]] - below[low[c]]
        wide = below[outer_high[c]] - below[outer_low[c]]
        score = min(inside, below[-1] - wide, cap) - PENALTY * (wide - inside)
        out[c] = max(score, 0) + bonus * gap[c]


@dataclass(frozen=True, eq=False)
class SplitFamily:
    """Slabs along public or released directions.

    Attributes:
        frame: public map into the unit ball.
        view: origin and basis of the projection.
        directions: integers, (groups, m).
        width: width of a bin, a power of two.
        least: number of bins of the smallest half-width.
        cap: sufficient number of rows on either side.
        bonus: score of every wider gap, in rows.
        sample: rows that are used.
    """

    frame: BallFrame
    view: View
    directions: FloatArray
    width: float
    least: int
    cap: int
    bonus: int
    sample: Sample
    batch: int = _BATCH

    @property
    def bounds(self) -> ScoreBounds:
        """Bounds of scores; proof in `_search.md`."""
        return ScoreBounds(range_one=1 + PENALTY, range_replaced=2 * (1 + PENALTY))

    @property
    def groups(self) -> int:
        """Number of directions."""
        return len(self.directions)

    def statistic(self, first: int, stop: int) -> Statistic:
        """Implement `Family.statistic`."""
        return histogram_statistic(self.frame, self.view, self.directions[first:stop], BINS, self.width, self.sample)

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Implement `Family.scores`; the same candidates for every direction."""
        s = shapes(self.least)
        out = np.empty(len(s.low), dtype=np.int64)
        _slab_scores(sums, s.low, s.high, s.outer_low, s.outer_high, s.gap, self.cap, self.bonus, out)
        return out

    def edges(self, index: int) -> FloatArray:
        """Return outer low, low, high and outer high edge of a candidate, in units of <direction, y>."""
        s = shapes(self.least)
        bins = np.array([s.outer_low[index], s.low[index], s.high[index], s.outer_high[index]])
        edges = (bins - BINS // 2) * self.width
        edges[bins <= 0] = -NOWHERE  # the first and the last bin hold all that lies beyond
        edges[bins >= BINS] = NOWHERE
        return edges


class _Distances:
    """Common part of families of balls: rows are counted by steps of their distance from each centre."""

    frame: BallFrame
    view: View
    centres: FloatArray
    least: float
    most: float
    sample: Sample

    @property
    def groups(self) -> int:
        """Number of centres."""
        return len(self.centres)

    @property
    def steps(self) -> int:
        """Number of steps of distance."""
        return _step_of(self.most) - _step_of(self.least) + 2

    def statistic(self, first: int, stop: int) -> Statistic:
        """Implement `Family.statistic`."""
        centres = self.centres[first:stop]
        return distance_statistic(self.frame, self.view, centres, _step_of(self.least), self.steps, self.sample)


@dataclass(frozen=True, eq=False)
class BallFamily(_Distances):
    """Balls about public or released points: the paper's shape, in a space of few dimensions.

    Attributes:
        frame: public map into the unit ball.
        view: origin and basis of the projection.
        centres: centres (groups, m) in units of y.
        least: least radius, in units of y.
        most: largest radius, in units of y.
        cap: sufficient number of rows on either side.
        bonus: score of every wider gap, in rows.
        sample: rows that are used.
        among: True if many rows must be outside, too.
    """

    frame: BallFrame
    view: View
    centres: FloatArray
    least: float
    most: float
    cap: int
    bonus: int
    sample: Sample
    among: bool = True
    batch: int = _BATCH

    @property
    def bounds(self) -> ScoreBounds:
        """Bounds of scores; proof in `_search.md`."""
        return ScoreBounds(range_one=1 + PENALTY, range_replaced=2 * (1 + PENALTY))

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Implement `Family.scores`; the same candidates for every centre."""
        s = ball_shapes(self.steps)
        out = np.empty(len(s.low), dtype=np.int64)
        if not self.among:
            sums = np.append(sums, self.cap)  # a step beyond all others, with as many rows as are enough
        _slab_scores(sums, s.low, s.high, s.outer_low, s.outer_high, s.gap, self.cap, self.bonus, out)
        return out

    def edges(self, index: int) -> FloatArray:
        """Return the squared inner and outer radius of a candidate's gap."""
        s = ball_shapes(self.steps)
        inner, outer = int(s.high[index]), int(s.outer_high[index])
        base = _step_of(self.least)
        return np.array([_edge(base + inner), _edge(base + outer) if outer < self.steps else NOWHERE**2])


@lru_cache(maxsize=32)
def ball_shapes(steps: int) -> Shapes:
    """Return all balls whose radius is the lower edge of every fourth step, with gaps of all widths."""
    radii = np.arange(1, steps, 4)
    parts = []
    for index, ratio in enumerate(_GAPS):
        outer = radii + round(_OCTAVE * math.log2(1.0 + ratio))
        whole = outer <= max(steps, outer[0])
        some = radii[whole]
        nothing = np.zeros_like(some)
        parts.append(np.stack([nothing, some, nothing, np.minimum(outer[whole], steps), np.full_like(some, index)]))
    return Shapes(*(np.ascontiguousarray(row) for row in np.concatenate(parts, axis=1)))


def middle_of(edges: FloatArray) -> float:
    """Return the squared radius in the middle of a gap between two squared radii."""
    return float(np.mean(np.sqrt(edges))) ** 2


@dataclass(frozen=True, eq=False)
class TightFamily(_Distances):
    """Balls about public or released points: the best have enough rows inside, and among those the smallest.

    Kamath et al. 2019, theorem 4.11 (PGLoc).

    Attributes:
        frame: public map into the unit ball.
        view: origin and basis of the projection.
        centres: centres (groups, m) in units of y.
        least: least radius, in units of y.
        most: largest radius, in units of y.
        sample: rows that are used.
        cap: sufficient number of rows inside.
    """

    frame: BallFrame
    view: View
    centres: FloatArray
    least: float
    most: float
    cap: int
    sample: Sample
    batch: int = _BATCH

    @property
    def bounds(self) -> ScoreBounds:
        """Bounds of scores; proof in `_search.md`."""
        return ScoreBounds(range_one=RADIUS_UNIT, range_replaced=2 * RADIUS_UNIT)

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Implement `Family.scores`: a candidate is the upper edge of a step."""
        # At least one unit a step, so that of two balls with the same rows the smaller is better.
        tilt = max(1, round(RADIUS_UNIT * _TIGHTER * self.cap / len(sums)))
        return np.asarray(RADIUS_UNIT * np.minimum(np.cumsum(sums), self.cap) - tilt * np.arange(len(sums)))

    def radius(self, index: int) -> float:
        """Return the radius of a candidate, in units of y."""
        return math.sqrt(_edge(_step_of(self.least) + index + 1))


@dataclass(frozen=True, eq=False)
class _Radii:
    """Common part of families of radii about a point. A candidate is the upper edge of a step.

    Attributes:
        frame: public map into the unit ball.
        view: the point, without basis.
        least: least radius, in the unit ball.
        most: largest radius, in the unit ball.
        target: number of rows that may lie outside.
        tilt: score of every step to a larger radius, in units of 1 / `RADIUS_UNIT` rows.
    """

    frame: BallFrame
    view: View
    least: float
    most: float
    target: int
    tilt: int
    groups: int = 1
    batch: int = 1

    @cached_property
    def _base(self) -> int:
        return _step_of(self.least * self.view.lattice)

    @property
    def steps(self) -> int:
        """Number of radii."""
        return _step_of(self.most * self.view.lattice) - self._base + 2

    def statistic(self, first: int, stop: int) -> Statistic:
        """Implement `Family.statistic`."""
        everybody = Sample(np.ones(self.view.dimension + 1, dtype=np.uint64), EVERYBODY)
        point = np.zeros((1, self.view.dimension))
        return distance_statistic(self.frame, self.view, point, self._base, self.steps, everybody)

    def radius(self, index: int) -> float:
        """Return the radius of a candidate, in the unit ball."""
        return math.sqrt(_edge(self._base + index + 1)) / self.view.lattice


class RadiusFamily(_Radii):
    """Radii of which the best leaves `target` rows outside; among equals the smaller is better."""

    @property
    def bounds(self) -> ScoreBounds:
        """Bounds of scores; proof in `_search.md`."""
        return ScoreBounds(range_one=2 * RADIUS_UNIT, range_replaced=2 * RADIUS_UNIT)

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Implement `Family.scores`."""
        beyond = sums.sum() - np.cumsum(sums)
        return np.asarray(-RADIUS_UNIT * np.abs(beyond - self.target) - self.tilt * np.arange(len(sums)))


class ReachFamily(_Radii):
    """Radii of which the best is the smallest that leaves at most `target` rows outside."""

    @property
    def bounds(self) -> ScoreBounds:
        """Bounds of scores; proof in `_search.md`."""
        return ScoreBounds(range_one=RADIUS_UNIT, range_replaced=RADIUS_UNIT)

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Implement `Family.scores`."""
        beyond = sums.sum() - np.cumsum(sums)
        return np.asarray(-RADIUS_UNIT * np.maximum(beyond - self.target, 0) - self.tilt * np.arange(len(sums)))


def _step_of(length: float) -> int:
    """Return the step of squared distances that contains a length in units of y."""
    # As `distance_histograms` takes steps from the bits of squared distances.
    return int(np.array([length**2]).view(np.int64)[0]) >> (52 - _kernel.STEPS_BITS)


def _edge(step: int) -> float:
    """Return the lower edge of a step of squared distances."""
    return float(np.array([step << (52 - _kernel.STEPS_BITS)], dtype=np.int64).view(np.float64)[0])
