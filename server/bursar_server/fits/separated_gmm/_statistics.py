"""The counts of FitSeparatedGMM and what one row can contribute to them; proof in `_statistics.md`.

Sums and second moments are FitDPEM's statistic (`moment_statistic`), about released centres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits.dpem._statistics import EStep, Frame, Moments, Weights, moment_statistic
from bursar_server.fits.separated_gmm import _kernel
from bursar_server.vault import Bounds, Statistic

FloatArray = NDArray[np.float64]

EVERYBODY = 2**64 - 1
"""Threshold of a sample that every row is in."""

NOWHERE = 2.0**60
"""An edge that no row is beyond."""


@dataclass(frozen=True, eq=False)
class View:
    """Where rows are looked at from: integers, released or public.

    Attributes:
        origin: (d,) a point of the lattice.
        basis: (m, d) directions that points are projected on, or (0, d): points as they are.
    """

    origin: FloatArray
    basis: FloatArray

    @property
    def dimension(self) -> int:
        """Of what is seen: m, or d."""
        return len(self.basis) or len(self.origin)

    @property
    def unit(self) -> float:
        """Radius of the public ball in units of <direction, y>, for a direction of norm 2^15."""
        return 2.0 ** (
            _kernel.POINT_BITS + (2 * _kernel.DIRECTION_BITS - 16 if len(self.basis) else _kernel.DIRECTION_BITS)
        )

    def across(self, direction: FloatArray) -> tuple[FloatArray, float]:
        """A direction (m,) of what is seen as one of points, (d,), and how much longer products with it are."""
        if not len(self.basis):
            return direction, 1.0
        return lattice_directions((direction @ self.basis)[None])[0], 2.0 ** (16 - _kernel.DIRECTION_BITS)

    @property
    def lattice(self) -> float:
        """Radius of the public ball in units of y."""
        return self.unit * 2.0**-_kernel.DIRECTION_BITS

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """As kernels take it."""
        return self.origin, self.basis


def lattice_frame(frame: Frame) -> tuple[FloatArray, FloatArray]:
    """As kernels take it."""
    return frame.centre, 1.0 / frame.scale


def lattice_point(z: FloatArray) -> FloatArray:
    """A point of the unit ball (d,) on the lattice."""
    return np.clip(np.rint(z * _kernel.POINT), -_kernel.POINT, _kernel.POINT)


def lattice_directions(u: FloatArray) -> FloatArray:
    """Directions (m, d), whatever their lengths, as integers of norm about 2^15; zeros stay zeros."""
    norms = np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300)
    directions = np.trunc(u / norms * 2.0**_kernel.DIRECTION_BITS)
    fits = np.sum(np.abs(directions), axis=1, keepdims=True) <= _kernel.MAX_DIRECTION  # NaN fails
    return np.where(fits, directions, 0.0)


@dataclass(frozen=True, eq=False)
class Slab:
    """A rule: rows between two parallel planes, low <= <direction, p - origin> < high, are in part 1, all others in 0.

    Attributes:
        frame: public map into the unit ball.
        origin: (d,) a point of the lattice.
        direction: (d,) integers.
        low, high: integers.
    """

    frame: Frame
    origin: FloatArray
    direction: FloatArray
    low: float
    high: float
    ways: int = 2

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """See `Rule`."""
        frame = lattice_frame(self.frame)
        _kernel.slab_labels(block, present, labels, frame, self.origin, self.direction, self.low, self.high)


@dataclass(frozen=True, eq=False)
class _SlabCounts:
    frame: Frame
    origin: FloatArray
    direction: FloatArray
    edges: FloatArray

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        _kernel.slab_counts(block, present, out, lattice_frame(self.frame), self.origin, self.direction, self.edges)


def slab_statistic(frame: Frame, origin: FloatArray, direction: FloatArray, edges: FloatArray) -> Statistic:
    """How many rows have v = <direction, p - origin> in [edges[1], edges[2]), outside of [edges[0], edges[3]), or else.

    Raises ValueError if edges do not ascend.
    """
    if not np.all(np.diff(edges) >= 0):
        raise ValueError("edges: expected four numbers that ascend")
    return Statistic(
        name="rows inside of a gap, outside, and in it",
        kernel=_SlabCounts(frame, origin, direction, edges),
        factors=(),
        shape=(3,),
        bounds=one_cell(1),
    )


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows that a search looks at: those of which a hash of their own point, with public keys, is below a threshold.

    Attributes:
        keys: (d + 1,) odd 64-bit integers.
        threshold: 0 to `EVERYBODY`.
    """

    keys: NDArray[np.uint64]
    threshold: int


@dataclass(frozen=True, eq=False)
class _SlabHistograms:
    frame: Frame
    view: View
    directions: FloatArray
    bins: int
    width: float
    sample: Sample

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        frame = lattice_frame(self.frame)
        sample = self.sample.keys, np.uint64(self.sample.threshold)
        _kernel.slab_histograms(
            block, present, out, frame, self.view.arrays, self.directions, self.bins, self.width, sample
        )


def histogram_statistic(
    frame: Frame, view: View, directions: FloatArray, bins: int, width: float, sample: Sample
) -> Statistic:
    """Histograms of <direction, y> for each of the directions, in bins of `width` about 0; never released."""
    return Statistic(
        name=f"histograms along {len(directions)} directions",
        kernel=_SlabHistograms(frame, view, directions, bins, width, sample),
        factors=(),
        shape=(len(directions), bins),
        bounds=one_cell(len(directions)),
    )


@dataclass(frozen=True, eq=False)
class _DistanceHistograms:
    frame: Frame
    view: View
    centres: FloatArray
    base: int
    sample: Sample

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        frame = lattice_frame(self.frame)
        sample = self.sample.keys, np.uint64(self.sample.threshold)
        _kernel.distance_histograms(block, present, out, frame, self.view.arrays, self.centres, self.base, sample)


def distance_statistic(
    frame: Frame, view: View, centres: FloatArray, base: int, steps: int, sample: Sample
) -> Statistic:
    """How many rows are at each of `steps` steps of distance from each of the centres (n, m); never released."""
    return Statistic(
        name=f"rows by their distance from {len(centres)} points",
        kernel=_DistanceHistograms(frame, view, centres, base, sample),
        factors=(),
        shape=(len(centres), steps),
        bounds=one_cell(len(centres)),
    )


@dataclass(frozen=True, eq=False)
class Round:
    """A rule: rows of which y is in a ball, |y - centre|^2 < limit, are in part 1, all others in 0.

    Attributes:
        frame: public map into the unit ball.
        view: from where.
        centre: (m,).
        limit: squared radius.
    """

    frame: Frame
    view: View
    centre: FloatArray
    limit: float
    ways: int = 2

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """See `Rule`."""
        frame = lattice_frame(self.frame)
        _kernel.ball_labels(block, present, labels, frame, self.view.arrays, self.centre, self.limit)


@dataclass(frozen=True, eq=False)
class _RoundCounts:
    frame: Frame
    view: View
    centre: FloatArray
    edges: FloatArray

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        _kernel.ball_counts(block, present, out, lattice_frame(self.frame), self.view.arrays, self.centre, self.edges)


def round_statistic(frame: Frame, view: View, centre: FloatArray, edges: FloatArray) -> Statistic:
    """How many rows have |y - centre|^2 below edges[0], from edges[1] on, and between.

    Raises ValueError if edges do not ascend.
    """
    if not edges[0] <= edges[1]:
        raise ValueError("edges: expected two numbers that ascend")
    return Statistic(
        name="rows inside of a gap, outside, and in it",
        kernel=_RoundCounts(frame, view, centre, edges),
        factors=(),
        shape=(3,),
        bounds=one_cell(1),
    )


def one_cell(tables: int) -> Bounds:
    """What a row contributes that is counted in at most one cell of each of several tables."""
    return Bounds(
        l1=tables, l2_squared=tables, l1_distance=2 * tables, l2_squared_distance=2 * tables, non_negative=True
    )


def ball_statistic(frame: Frame, centre: FloatArray, radius: float, moments: Moments, weights: Weights) -> Statistic:
    """Count, sum and second moments of u = (z - centre) / radius, clipped to the unit ball."""
    d = len(centre)
    whitener = np.eye(d)[None] / radius
    step = EStep(True, np.zeros(1), centre[None], whitener, True, centre[None], whitener)
    return moment_statistic(frame, step, moments, weights)
