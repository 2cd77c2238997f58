"""Every pass over rows of FitSeparatedGMM, and the same arithmetic without privacy in plain numpy, for kernels.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits.mixtures.statistics import BallFrame, Moments, Weights
from bursar_server.fits.separated_gmm import _kernel
from bursar_server.fits.separated_gmm._lloyd import Spheres
from bursar_server.fits.separated_gmm._statistics import (
    EVERYBODY,
    Round,
    Sample,
    Slab,
    View,
    ball_statistic,
    distance_statistic,
    histogram_statistic,
    lattice_directions,
    lattice_point,
    one_cell,
    round_statistic,
    slab_statistic,
)
from bursar_server.vault import Statistic

Array = NDArray[np.float64]

Case = tuple[str, Statistic, Array, Callable[[], Any]]
"""Name, statistic, rows (n, d), and the same in plain numpy."""

SLICE = 1000
"""Rows that numpy takes at a time, as in kernels.py; of searches fewer, or what is wider would leave the cache."""

D, M = 10, 3
"""Columns, and directions that a search projects on."""

BINS, DIRECTIONS, CENTRES, STEPS = 512, 90, 1000, 150
"""Sizes of a search, as the fit has them: 30 directions for each that rows are projected on, or 1,000 points."""

STARTS, LLOYD = 4, 12
"""Settings of the k-means of a block, as the fit has them."""

BLOCK = 200
"""Rows of such a block: ten of a component with a twentieth of the rows."""


@dataclass(frozen=True)
class Labels:
    """Statistic of the number of rows that a rule puts into part 1; its own kernel leaves labels."""

    rule: Slab | Round

    def __call__(self, block: Array, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """See `bursar_server.vault.Kernel`."""
        labels = np.zeros(block.shape[1], dtype=np.int16)
        self.rule(block, present, labels)
        out[0] += np.count_nonzero(labels[present])


def cases(X: Array) -> list[Case]:
    """All passes but blocks' and the polish, which is FitDPEM's; rows (n, 10) that are near to the ball of radius 30.

    Searches look at a tenth of the rows: a fit's look at 60,000, however many there are.
    """
    some = X[: len(X) // 10].copy()
    generator = np.random.default_rng(3)
    frame, whole = BallFrame(np.zeros(D), np.full(D, 30.0)), Sample(np.ones(D + 1, dtype=np.uint64), EVERYBODY)
    origin = lattice_point(np.full(D, 0.01))
    basis = np.linalg.qr(generator.standard_normal((D, M)))[0].T
    plain, projected = View(origin, np.zeros((0, D))), View(origin, lattice_directions(basis))
    middle, unit, direction = origin / _kernel.POINT, projected.lattice, projected.basis[0]
    along = lattice_directions(generator.standard_normal((DIRECTIONS, M)))
    centres = 0.1 * generator.standard_normal((CENTRES, M))
    least = 0.005
    norm, width = 2.0**_kernel.DIRECTION_BITS, projected.unit / BINS / 2.0
    edges = np.array([-0.06, -0.05, 0.05, 0.06])
    squares = np.array([0.05, 0.06]) ** 2
    slabs, rounds = edges * plain.unit, squares * unit**2
    slab = Slab(frame, origin, direction, *np.rint(slabs[1:3]).tolist())
    ball = Round(frame, projected, np.zeros(M), float(rounds[0]))
    onto = basis.T.copy()
    balls = onto, np.zeros(M), squares
    return [
        (
            "radii about a point",
            distance_statistic(frame, plain, np.zeros((1, D)), _first_step(least * plain.lattice), STEPS, whole),
            X,
            partial(numpy_radii, X, frame, middle, least**2),
        ),
        (
            f"search, {CENTRES:,} points, m = {M}",
            distance_statistic(frame, projected, centres * unit, _first_step(least * unit), STEPS, whole),
            some,
            partial(numpy_distances, some, frame, middle, onto, centres, least**2),
        ),
        (
            f"search, {DIRECTIONS} directions, m = {M}",
            histogram_statistic(frame, projected, along, BINS, width, whole),
            some,
            partial(numpy_histograms, some, frame, middle, onto, along.T / norm, width / projected.unit),
        ),
        (
            "counts about a slab",
            slab_statistic(frame, origin, direction, slabs),
            X,
            partial(numpy_slab_counts, X, frame, middle, basis[0], edges),
        ),
        (
            "counts about a ball",
            round_statistic(frame, projected, np.zeros(M), rounds),
            X,
            partial(numpy_ball_counts, X, frame, middle, *balls),
        ),
        ("rows of a slab", _labels(slab), X, partial(numpy_slab_rows, X, frame, middle, basis[0], edges)),
        ("rows of a ball", _labels(ball), X, partial(numpy_ball_rows, X, frame, middle, *balls)),
        (
            "sums of a ball",
            ball_statistic(frame, middle, 0.2, Moments.SPHERICAL, Weights(0.4, 1.0, 0.2)),
            X,
            partial(numpy_moments, X, frame, middle, 0.2, products=False),
        ),
        (
            "moments of a ball",
            ball_statistic(frame, middle, 0.2, Moments.FULL, Weights(0.5, 0.7, 1.0)),
            X,
            partial(numpy_moments, X, frame, middle, 0.2, products=True),
        ),
    ]


def sampled(threshold: int) -> Statistic:
    """Return a search along directions among the rows whose hash is at most a threshold; null rows' is 0."""
    frame, along = BallFrame(np.zeros(D), np.full(D, 30.0)), lattice_directions(np.eye(D)[np.arange(DIRECTIONS) % D])
    view = View(lattice_point(np.zeros(D)), np.zeros((0, D)))
    # Without a constant, so that the hash of the point 0, which null rows have, is 0, and in every sample.
    keys = np.array([0, *(2 * np.arange(D) + 2**62 + 1)], dtype=np.uint64)
    return histogram_statistic(frame, view, along, BINS, 2.0**36, Sample(keys, threshold))


def block_statistic(k: int) -> Statistic:
    """Return the k-means of blocks of `BLOCK` rows as if it were a statistic, to be timed as those are."""
    return Statistic(name="blocks", kernel=_Blocks(k), factors=(), shape=(1,), bounds=one_cell(1), largest=1)


@dataclass(frozen=True)
class _Blocks:
    k: int

    def __call__(self, block: Array, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        estimator = Spheres(BallFrame(np.zeros(D), np.full(D, 30.0)), self.k, 1e-4, 1.0, 1, BLOCK)
        for first in range(0, block.shape[1] - BLOCK + 1, BLOCK):
            estimator(np.ascontiguousarray(block[:, first : first + BLOCK]), present[first : first + BLOCK])


def _labels(rule: Slab | Round) -> Statistic:
    return Statistic(name="rows of a part", kernel=Labels(rule), factors=(), shape=(1,), bounds=one_cell(1), largest=1)


def _first_step(length: float) -> int:
    """Return the first step of squared distances, as kernels number them."""
    return int(np.array([length**2]).view(np.int64)[0]) >> (52 - _kernel.STEPS_BITS)


def _positions(X: Array, frame: BallFrame, middle: Array) -> Iterator[Array]:
    """Yield positions about a point, of rows that are clipped to the ball."""
    for first in range(0, len(X), SLICE):
        z = (X[first : first + SLICE] - frame.centre) / frame.scale
        z /= np.maximum(np.sqrt(np.einsum("ij,ij->i", z, z)), 1.0)[:, None]
        yield z - middle


def _steps(squares: Array, least: float) -> NDArray[np.int64]:
    first = int(np.array([least]).view(np.int64)[0]) >> (52 - _kernel.STEPS_BITS)
    return np.asarray(np.clip((squares.view(np.int64) >> (52 - _kernel.STEPS_BITS)) - first, 0, STEPS - 1))


def numpy_radii(X: Array, frame: BallFrame, middle: Array, least: float) -> Array:
    """Rows by their distance from a point."""
    found = np.zeros(STEPS)
    for y in _positions(X, frame, middle):
        found += np.bincount(_steps(np.einsum("ij,ij->i", y, y), least), minlength=STEPS)
    return found


def numpy_distances(X: Array, frame: BallFrame, middle: Array, onto: Array, centres: Array, least: float) -> Array:
    """Rows by their distance from each of many points; squares by one matrix product."""
    found, lengths = np.zeros(len(centres) * STEPS), np.einsum("ij,ij->i", centres, centres)
    twice, offsets = -2.0 * centres.T, STEPS * np.arange(len(centres))
    for slice_ in _positions(X, frame, middle):
        for y in np.array_split(slice_ @ onto, max(1, len(slice_) // 100)):
            squares = np.maximum(y @ twice + np.einsum("ij,ij->i", y, y)[:, None] + lengths, 1e-300)
            found += np.bincount((_steps(squares, least) + offsets).ravel(), minlength=len(found))
    return found


def numpy_histograms(X: Array, frame: BallFrame, middle: Array, onto: Array, along: Array, width: float) -> Array:
    """Rows by their places along each of many directions."""
    found = np.zeros(along.shape[1] * BINS)
    offsets, scaled = BINS * np.arange(along.shape[1]), along / width
    for y in _positions(X, frame, middle):
        bins = np.clip(np.floor((y @ onto) @ scaled) + BINS // 2, 0, BINS - 1).astype(np.int64)
        found += np.bincount((bins + offsets).ravel(), minlength=len(found))
    return found


def numpy_slab_counts(X: Array, frame: BallFrame, middle: Array, direction: Array, edges: Array) -> Array:
    """Rows inside of a slab's gap, and outside."""
    found = np.zeros(2)
    for y in _positions(X, frame, middle):
        v = y @ direction
        found += np.count_nonzero((edges[1] <= v) & (v < edges[2])), np.count_nonzero((v < edges[0]) | (v >= edges[3]))
    return found


def numpy_slab_rows(X: Array, frame: BallFrame, middle: Array, direction: Array, edges: Array) -> int:
    """Return how many rows are between two planes."""
    found = 0
    for y in _positions(X, frame, middle):
        v = y @ direction
        found += int(np.count_nonzero((edges[1] <= v) & (v < edges[2])))
    return found


def numpy_ball_counts(X: Array, frame: BallFrame, middle: Array, onto: Array, centre: Array, squares: Array) -> Array:
    """Rows inside of a ball's gap, and outside."""
    found = np.zeros(2)
    for y in _positions(X, frame, middle):
        seen = y @ onto - centre
        lengths = np.einsum("ij,ij->i", seen, seen)
        found += np.count_nonzero(lengths < squares[0]), np.count_nonzero(lengths >= squares[1])
    return found


def numpy_ball_rows(X: Array, frame: BallFrame, middle: Array, onto: Array, centre: Array, squares: Array) -> int:
    """Return how many rows are in a ball."""
    found = 0
    for y in _positions(X, frame, middle):
        seen = y @ onto - centre
        found += int(np.count_nonzero(np.einsum("ij,ij->i", seen, seen) < squares[0]))
    return found


def numpy_moments(X: Array, frame: BallFrame, middle: Array, radius: float, *, products: bool) -> None:
    """Sum and second moments of positions in a ball, clipped to it."""
    for y in _positions(X, frame, middle):
        y *= (1.0 / np.maximum(np.sqrt(np.einsum("ij,ij->i", y, y)), radius))[:, None]
        _ = y.sum(axis=0), y.T @ y if products else np.einsum("ij,ij->", y, y)


# --- blocks of rows that are estimated by themselves --------------------------------------------------------


def block_spheres(X: Array, k: int) -> None:
    """k-means of every block, as the fit does it; X (n, 10)."""
    estimator = Spheres(BallFrame(np.zeros(D), np.full(D, 30.0)), k, 1e-4, 1.0, 1, BLOCK)
    present = np.ones(BLOCK, dtype=np.bool_)
    for first in range(0, len(X) - BLOCK + 1, BLOCK):
        estimator(np.ascontiguousarray(X[first : first + BLOCK].T), present)


def numpy_spheres(X: Array, k: int) -> None:
    """The same by matrix products."""
    generator = np.random.default_rng(0)
    for first in range(0, len(X) - BLOCK + 1, BLOCK):
        z = X[first : first + BLOCK] / 30.0
        z = z / np.maximum(np.sqrt(np.einsum("ij,ij->i", z, z)), 1.0)[:, None]
        norms, found = np.einsum("ij,ij->i", z, z), []
        for _ in range(STARTS):
            centres = z[generator.integers(BLOCK)][None]
            while len(centres) < k:
                least = np.maximum(_apart(z, norms, centres).min(axis=1), 0.0)
                centres = np.vstack([centres, z[np.searchsorted(np.cumsum(least), generator.random() * least.sum())]])
            for _ in range(LLOYD):
                nearest = np.zeros((BLOCK, k))
                nearest[np.arange(BLOCK), _apart(z, norms, centres).argmin(axis=1)] = 1.0
                sizes = nearest.sum(axis=0)
                centres = np.where(sizes[:, None] > 0, nearest.T @ z / np.maximum(sizes, 1.0)[:, None], centres)
            found.append((float(_apart(z, norms, centres).min(axis=1).sum()), centres))
        least = _apart(z, norms, min(found, key=lambda one: one[0])[1])
        np.bincount(least.argmin(axis=1), weights=least.min(axis=1), minlength=k)


def _apart(z: Array, norms: Array, centres: Array) -> Array:
    """Squared distances, (n, k)."""
    return np.asarray(norms[:, None] - 2.0 * z @ centres.T + np.einsum("ij,ij->i", centres, centres))
