"""Counts of FitSeparatedGMM and bounds of one row's contribution to them; proof in `_statistics.md`.

Sums and second moments are FitDPEM's statistic (`moment_statistic`), about released centres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.fits.separated_gmm import _kernel
from bursar_server.vault import Bounds, Statistic

EVERYBODY = 2**64 - 1
"""Threshold of a sample that contains every row."""

NOWHERE = 2.0**60
"""Edge that no row is beyond."""


@dataclass(frozen=True, eq=False)
class View:
    """Projection of rows: integers, released or public.

    Attributes:
        origin: point of the lattice, (d,).
        basis: directions on which points are projected, (m, d), or (0, d) for points as they are.
    """

    origin: FloatArray
    basis: FloatArray

    @property
    def dimension(self) -> int:
        """Dimension of the projection: m, or d."""
        return len(self.basis) or len(self.origin)

    @property
    def unit(self) -> float:
        """Radius of the public ball in units of <direction, y>, for a direction of norm 2^15."""
        return 2.0 ** (
            _kernel.POINT_BITS + (2 * _kernel.DIRECTION_BITS - 16 if len(self.basis) else _kernel.DIRECTION_BITS)
        )

    def across(self, direction: FloatArray) -> tuple[FloatArray, float]:
        """Return a direction (m,) of the projection as a direction (d,) of points, and the factor of its products."""
        if not len(self.basis):
            return direction, 1.0
        return lattice_directions((direction @ self.basis)[None])[0], 2.0 ** (16 - _kernel.DIRECTION_BITS)

    @property
    def lattice(self) -> float:
        """Radius of the public ball in units of y."""
        return self.unit * 2.0**-_kernel.DIRECTION_BITS

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """Origin and basis in the kernels' format."""
        return self.origin, self.basis


def lattice_frame(frame: BallFrame) -> tuple[FloatArray, FloatArray]:
    """Return the frame in the kernels' format."""
    return frame.centre, 1.0 / frame.scale


def lattice_point(z: FloatArray) -> FloatArray:
    """Return a point of the unit ball (d,) on the lattice."""
    return np.clip(np.rint(z * _kernel.POINT), -_kernel.POINT, _kernel.POINT)


def lattice_directions(u: FloatArray) -> FloatArray:
    """Return directions (m, d) of any length as integers of norm about 2^15; zeros stay zeros."""
    norms = np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300)
    directions = np.trunc(u / norms * 2.0**_kernel.DIRECTION_BITS)
    fits = np.sum(np.abs(directions), axis=1, keepdims=True) <= _kernel.MAX_DIRECTION  # NaN fails
    return np.where(fits, directions, 0.0)


@dataclass(frozen=True, eq=False)
class Slab:
    """Rule: rows between two parallel planes, low <= <direction, p - origin> < high, are in part 1, all others in 0.

    Attributes:
        frame: public map into the unit ball.
        origin: point of the lattice, (d,).
        direction: integers, (d,).
        low: lower plane, integer.
        high: upper plane, integer.
    """

    frame: BallFrame
    origin: FloatArray
    direction: FloatArray
    low: float
    high: float
    ways: int = 2

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """Implement `Rule.__call__`."""
        frame = lattice_frame(self.frame)
        _kernel.slab_labels(block, present, labels, frame, self.origin, self.direction, self.low, self.high)


@dataclass(frozen=True, eq=False)
class _SlabCounts:
    frame: BallFrame
    origin: FloatArray
    direction: FloatArray
    edges: FloatArray

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        _kernel.slab_counts(block, present, out, lattice_frame(self.frame), self.origin, self.direction, self.edges)


def slab_statistic(frame: BallFrame, origin: FloatArray, direction: FloatArray, edges: FloatArray) -> Statistic:
    """Return the numbers of rows with v = <direction, p - origin> inside, outside and in the gap.

    Inside is [edges[1], edges[2]), outside is beyond [edges[0], edges[3]). Raises ValueError if edges do not ascend.
    """
    if not np.all(np.diff(edges) >= 0):
        raise ValueError("edges: expected four numbers that ascend")
    return Statistic(
        name="rows inside of a gap, outside, and in it",
        kernel=_SlabCounts(frame, origin, direction, edges),
        factors=(),
        shape=(3,),
        bounds=one_cell(1),
        largest=1,
    )


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows that a search uses: those with a hash of their own point, with public keys, below a threshold.

    Attributes:
        keys: odd 64-bit integers, (d + 1,).
        threshold: threshold, 0 to `EVERYBODY`.
    """

    keys: NDArray[np.uint64]
    threshold: int


@dataclass(frozen=True, eq=False)
class _SlabHistograms:
    frame: BallFrame
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
    frame: BallFrame, view: View, directions: FloatArray, bins: int, width: float, sample: Sample
) -> Statistic:
    """Return histograms of <direction, y> for each direction, in bins of `width` about 0; never released."""
    return Statistic(
        name=f"histograms along {len(directions)} directions",
        kernel=_SlabHistograms(frame, view, directions, bins, width, sample),
        factors=(),
        shape=(len(directions), bins),
        bounds=one_cell(len(directions)),
        largest=1,
    )


@dataclass(frozen=True, eq=False)
class _DistanceHistograms:
    frame: BallFrame
    view: View
    centres: FloatArray
    base: int
    sample: Sample

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        frame = lattice_frame(self.frame)
        sample = self.sample.keys, np.uint64(self.sample.threshold)
        _kernel.distance_histograms(block, present, out, frame, self.view.arrays, self.centres, self.base, sample)


def distance_statistic(
    frame: BallFrame, view: View, centres: FloatArray, base: int, steps: int, sample: Sample
) -> Statistic:
    """Return the numbers of rows at each of `steps` steps of distance from each centre (n, m); never released."""
    return Statistic(
        name=f"rows by their distance from {len(centres)} points",
        kernel=_DistanceHistograms(frame, view, centres, base, sample),
        factors=(),
        shape=(len(centres), steps),
        bounds=one_cell(len(centres)),
        largest=1,
    )


@dataclass(frozen=True, eq=False)
class Round:
    """Rule: rows whose y is in a ball, |y - centre|^2 < limit, are in part 1, all others in 0.

    Attributes:
        frame: public map into the unit ball.
        view: origin and basis of the projection.
        centre: centre of the ball, (m,).
        limit: squared radius.
    """

    frame: BallFrame
    view: View
    centre: FloatArray
    limit: float
    ways: int = 2

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], labels: NDArray[np.int16]) -> None:
        """Implement `Rule.__call__`."""
        frame = lattice_frame(self.frame)
        _kernel.ball_labels(block, present, labels, frame, self.view.arrays, self.centre, self.limit)


@dataclass(frozen=True, eq=False)
class _RoundCounts:
    frame: BallFrame
    view: View
    centre: FloatArray
    edges: FloatArray

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        _kernel.ball_counts(block, present, out, lattice_frame(self.frame), self.view.arrays, self.centre, self.edges)


def round_statistic(frame: BallFrame, view: View, centre: FloatArray, edges: FloatArray) -> Statistic:
    """Return the numbers of rows with |y - centre|^2 below edges[0], from edges[1] on, and between.

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
        largest=1,
    )


def one_cell(tables: int) -> Bounds:
    """Return the bounds of a row that is counted in at most one cell of each of several tables."""
    return Bounds(
        l1=tables, l2_squared=tables, l1_distance=2 * tables, l2_squared_distance=2 * tables, non_negative=True
    )


def ball_statistic(
    frame: BallFrame, centre: FloatArray, radius: float, moments: Moments, weights: Weights
) -> Statistic:
    """Return count, sum and second moments of u = (z - centre) / radius, clipped to the unit ball."""
    d = len(centre)
    whitener = np.eye(d)[None] / radius
    step = EStep(True, np.zeros(1), centre[None], whitener, True, centre[None], whitener)
    return moment_statistic(frame, step, moments, weights)
