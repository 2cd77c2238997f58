"""A catalogue of all statistics of all fits, with random public parameters, and what single rows add to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bursar_models import Frequencies
from bursar_server.fits.gradient_em._statistics import (
    Look,
    Transform,
    gradient_statistic,
    look_statistic,
    radius_statistic,
)
from bursar_server.fits.mixtures.radius_statistics import radius_statistic as mixture_radii
from bursar_server.fits.mixtures.statistics import BallFrame as Ball
from bursar_server.fits.mixtures.statistics import EStep, Moments, Weights, moment_statistic
from bursar_server.fits.mrf._statistics import (
    Layout,
    firsts_statistic,
    table_statistic,
    tables_statistic,
    transitions_statistic,
)
from bursar_server.fits.separated_gmm._search import BallFamily, RadiusFamily, ReachFamily, SplitFamily, TightFamily
from bursar_server.fits.separated_gmm._statistics import (
    EVERYBODY,
    Sample,
    View,
    ball_statistic,
    distance_statistic,
    histogram_statistic,
    lattice_directions,
    round_statistic,
    slab_statistic,
)
from bursar_server.fits.sketch._statistics import MAX_COUNT_WEIGHT, sketch_statistic
from bursar_server.fits.sketch._statistics import SketchFrame as Box
from bursar_server.vault import Statistic
from tests.server.fits import gradient
from tests.server.fits.fielding import variables
from tests.server.fits.running import Array

Generator = np.random.Generator  # noqa: TID251 - parameters and rows of a test

WIDTH = 512
"""Slots of the blocks in which single rows are: of every kernel's slices a multiple."""

ODD = (0.0, -0.0, 5e-324, 1e-310, 1e-160, 0.5, 1.0, -1.0, 1e3, -1e3, 1e99, 1e300, -1e308, np.inf, -np.inf, np.nan)
"""Values that a column may hold."""

EXACT, NEARLY = 1.0, 1.0 - 2.0**-10
"""Parts of the declared number that the search reaches: all of it, or all but a thousandth."""


@dataclass(frozen=True)
class Entry:
    """A statistic of the catalogue.

    Attributes:
        function: that makes it.
        about: what is special, for the test's name.
        made: the statistic with random public parameters.
        columns: of its rows.
        reached: part of the declared number that some row has to reach.
        whole: numbers that a row may hold besides, such as categories.
    """

    function: Callable[..., Statistic]
    about: str
    made: Callable[[Generator], Statistic]
    columns: int
    reached: float
    whole: int = 2

    @property
    def name(self) -> str:
        """Return the name for the test."""
        return f"{self.function.__name__} {self.about}".strip()


def contribution(statistic: Statistic, row: Array) -> Any:
    """Return what one row (columns,) adds, by the kernel that fits run; int64."""
    block = np.zeros((len(row), WIDTH))
    block[:, 1] = row
    out = np.zeros(statistic.size, dtype=np.int64)
    statistic.kernel(block, np.arange(WIDTH) == 1, out)
    return out


def largest_of(statistic: Statistic, row: Array) -> int:
    """Largest absolute value of a coordinate, as an integer that cannot overflow."""
    out = contribution(statistic, row)
    return max(int(out.max()), -int(out.min()))


def rows(entry: Entry, generator: Generator) -> Iterator[Array]:
    """Corners, axes, equal numbers, odd ones at random, and plain ones of all sizes."""
    c = entry.columns
    for value in (*ODD, *range(2, entry.whole)):
        yield np.full(c, value)
        for i in range(c):
            yield np.where(np.arange(c) == i, value, 0.0)
    for _ in range(12):
        yield generator.choice(ODD, c)
        yield np.concatenate([generator.integers(0, entry.whole, c - 1), generator.integers(0, 5, 1)]).astype(float)
        yield generator.choice([-1.0, 1.0], c) * 10.0 ** generator.uniform(-2, 4)
        yield generator.standard_normal(c) * 10.0 ** generator.uniform(-2, 2)


def search(entry: Entry, seed: int, statistic: Statistic | None = None) -> tuple[float, str | None]:
    """The largest part of the declared number that a row reaches, and a sentence if one goes beyond it."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - parameters and rows of a test
    made = statistic or entry.made(generator)
    best, row = -1, np.zeros(entry.columns)
    for candidate in rows(entry, generator):
        found = largest_of(made, candidate)
        if found > best:
            best, row = found, candidate
    for _ in range(30):
        moved = row + generator.standard_normal(entry.columns) * 10.0 ** generator.uniform(-6, 1)
        found = largest_of(made, moved)
        if found >= best:
            best, row = found, moved
    beyond = f"{made.name}: {best} of a row, {made.largest} declared" if best > made.largest else None
    return best / made.largest, beyond


# --- the catalogue ------------------------------------------------------------------------------------------

MOMENTS = [Moments.SPHERICAL, Moments.DIAG, Moments.FULL, Moments.TIED]
WEIGHTS = {"count": (1.0, 0.5, 0.3), "sum": (0.3, 1.0, 0.2), "second": (0.2, 0.3, 1.0), "small": (0.15, 0.3, 0.21)}


def moved(K: int, d: int, moments: Moments, weights: tuple[float, ...], hard: bool, generator: Generator) -> Statistic:
    """A step of FitDPEM with random means, factors, centres and whiteners, some of them of odd sizes.

    Half of the soft ones have a background, which takes hardly anything near the means.
    """
    diagonal = moments in (Moments.SPHERICAL, Moments.DIAG)
    size = 10.0 ** generator.uniform(-1, 2)
    lower = np.tril(generator.standard_normal((K, d, d)), -1) * (not diagonal) + size * np.eye(d)
    means = generator.uniform(-0.3, 0.3, (K, d))
    own = generator.random() < 0.5
    whiteners = np.tile(np.eye(d) * 10.0 ** generator.uniform(0, 3), (K, 1, 1)) if own else lower
    scales = np.append(generator.standard_normal(K), [-30.0] * (own and not hard))
    step = EStep(hard, scales, means, lower, diagonal, 0.5 * means if own else means, whiteners)
    return moment_statistic(Ball(np.zeros(d), np.ones(d)), step, moments, Weights(*weights))


def by_radius(K: int, d: int, generator: Generator) -> Statistic:
    """Counts by radius about random means, with factors of odd sizes."""
    lower = np.tril(generator.standard_normal((K, d, d)), -1) + 10.0 ** generator.uniform(-1, 2) * np.eye(d)
    means = generator.uniform(-0.3, 0.3, (K, d))
    step = EStep(False, generator.standard_normal(K), means, lower, False, means, lower)
    return mixture_radii(Ball(np.zeros(d), np.ones(d)), step)


def about_ball(moments: Moments, generator: Generator) -> Statistic:
    """A ball of FitSeparatedGMM."""
    centre, radius = generator.uniform(-0.3, 0.3, 2), generator.uniform(0.01, 1.0)
    return ball_statistic(Ball(np.zeros(2), np.ones(2)), centre, radius, moments, Weights(1.0, 0.5, 0.5))


def located(K: int, transform: Transform, folded: bool, generator: Generator) -> Statistic:
    """A gradient of a mixture; its rows are in units of the scale, and far beyond it."""
    signs = np.where(np.arange(K) % 2, -1.0, 1.0) if folded else None
    scale = 10.0 ** generator.uniform(-8, -1)
    return gradient.located(generator.uniform(-0.5, 0.5, (K, 2)), scale, transform, signs=signs, precision=1e4)


def regressed(transform: Transform, folded: bool, generator: Generator) -> Statistic:
    """A gradient of a mixture of regressions."""
    signs = np.array([1.0, -1.0]) if folded else None
    scale = 10.0 ** generator.uniform(-8, -1)
    return gradient.regressed(generator.uniform(-0.5, 0.5, (2, 3)), scale, transform, signs=signs, precision=1e4)


def with_missing(transform: Transform, clip: float, generator: Generator) -> Statistic:
    """A gradient of a regression of which features are missing."""
    sigma, scale = generator.uniform(0.05, 0.5), 10.0 ** generator.uniform(-8, -1)
    coefficients = generator.uniform(-0.5, 0.5, 3)
    return gradient.regressed_with_missing(coefficients, sigma, scale, transform, clip=clip, square=0.9)


def sketched(signature: Any, structure: Any, per_row: int, weight: int, generator: Generator) -> Statistic:
    """A sketch at 8 frequencies."""
    frequencies = Frequencies(8, 3, int(generator.integers(2**31)), 0.1, structure=structure)
    frame = Box(np.zeros(3), np.ones(3), np.full(3, -100.0), np.full(3, 100.0))
    return sketch_statistic(frame, frequencies, signature, per_row, weight)


def cells(make: Callable[..., Statistic], *arguments: Any, shares: bool, sizes: tuple[int, ...]) -> Any:
    """A table of FitMRF; the last column says how many rows a unit has where rows are shares."""
    layout = Layout(variables(*sizes), shares)
    return lambda generator: make(layout, *arguments)


def view(generator: Generator) -> View:
    """Points as they are, or projected."""
    origin = np.trunc(generator.uniform(-0.5, 0.5, 2) * 2.0**29)
    return View(origin, lattice_directions(generator.standard_normal((int(generator.integers(0, 3)), 2))))


def sample(generator: Generator) -> Sample:
    """All rows."""
    return Sample(generator.integers(0, 2**63, 3, dtype=np.uint64) * np.uint64(2) + np.uint64(1), EVERYBODY)


UNIT_BALL = Ball(np.zeros(2), np.ones(2))


def slabs(generator: Generator) -> Statistic:
    """Counts of rows between planes."""
    edges = np.sort(np.trunc(generator.uniform(-(2.0**44), 2.0**44, 4)))
    return slab_statistic(
        UNIT_BALL, view(generator).origin, lattice_directions(generator.normal(size=(1, 2)))[0], edges
    )


def rounds(generator: Generator) -> Statistic:
    """Counts of rows about a point."""
    seen = view(generator)
    return round_statistic(UNIT_BALL, seen, np.zeros(seen.dimension), np.sort(generator.uniform(0, 2.0**60, 2)))


def along(generator: Generator) -> Statistic:
    """Histograms that a search along directions makes."""
    seen = view(generator)
    directions = lattice_directions(generator.standard_normal((3, seen.dimension)))
    return SplitFamily(UNIT_BALL, seen, directions, 2.0**36, 5, 9, 1, sample(generator)).statistic(0, 3)


def at_distances(kind: type[BallFamily] | type[TightFamily], generator: Generator) -> Statistic:
    """Histograms of distances that a search of balls makes."""
    seen = view(generator)
    centres = np.trunc(generator.uniform(-1, 1, (3, seen.dimension)) * 2.0**28)
    shape: dict[str, Any] = {"least": 2.0**20, "most": 2.0**29, "cap": 9, "sample": sample(generator)}
    if kind is BallFamily:
        shape["bonus"] = 1
    return kind(frame=UNIT_BALL, view=seen, centres=centres, **shape).statistic(0, 3)


def at_radii(kind: type[RadiusFamily] | type[ReachFamily], generator: Generator) -> Statistic:
    """Histograms of distances that a search of a radius makes."""
    seen = View(view(generator).origin, np.zeros((0, 2)))
    return kind(UNIT_BALL, seen, 0.01, 1.0, 5, 1).statistic(0, 1)


def catalogue() -> Iterator[Entry]:
    """All statistics of all fits, in all their forms."""
    for moments in MOMENTS:
        for kind, weights in WEIGHTS.items():
            for K, d, hard in ((1, 1, True), (1, 2, False), (2, 3, True), (3, 2, False)):
                # Soft responsibilities lose a place each to truncation, and something to a background.
                reached = (EXACT if weights[0] == 1.0 else NEARLY) if hard else 1.0 - 2.0**-9
                about = f"{moments.name} {kind} K={K} d={d} {'hard' if hard else 'soft'}"
                yield Entry(moment_statistic, about, partial(moved, K, d, moments, weights, hard), d, reached)
    for K, d in ((1, 1), (3, 2)):
        yield Entry(mixture_radii, f"mixture K={K} d={d}", partial(by_radius, K, d), d, NEARLY)
    for moments in MOMENTS:
        yield Entry(ball_statistic, moments.name, partial(about_ball, moments), 2, EXACT)
    for transform in Transform:
        box = EXACT if transform is Transform.BOX else NEARLY
        yield Entry(gradient_statistic, f"{transform.name} one", partial(located, 1, transform, False), 2, box)
        yield Entry(gradient_statistic, f"{transform.name} three", partial(located, 3, transform, False), 2, NEARLY)
        yield Entry(gradient_statistic, f"{transform.name} folded", partial(located, 2, transform, True), 2, NEARLY)
        yield Entry(gradient_statistic, f"{transform.name} lines", partial(regressed, transform, False), 3, NEARLY)
        yield Entry(
            gradient_statistic, f"{transform.name} lines folded", partial(regressed, transform, True), 3, NEARLY
        )
        for clip in (1.5, 1e6):
            # A row's weight falls with the length that its vector could have, whatever its residual.
            reached = box if clip > 2 else 0.2
            about = f"{transform.name} missing, clip {clip:g}"
            yield Entry(gradient_statistic, about, partial(with_missing, transform, clip), 3, reached)
    for made, d, reached in (
        (partial(located, 1, Transform.NORM, False), 2, EXACT),
        (partial(located, 3, Transform.NORM, False), 2, NEARLY),
        (partial(regressed, Transform.NORM, True), 3, NEARLY),
        (partial(with_missing, Transform.NORM, 1.5), 3, EXACT),
    ):
        yield Entry(radius_statistic, f"{d} columns", lambda g, made=made: gradient.by_radius(made(g)), d, reached)  # type: ignore[misc]
    for look in Look:
        # Rows are checked by the declared number; products of two entries of w have at most sqrt(2) / (columns + 1).
        reached = math.sqrt(2.0) / 4.0 * NEARLY if look is Look.REGRESSION else NEARLY
        yield Entry(look_statistic, look.value, lambda _, look=look: gradient.looked(look, 3), 3, reached)  # type: ignore[misc]
    for structure in ("dense", "hadamard"):
        for signature, per_row in (("exponential", 8), ("one_bit", 8), ("exponential", 3), ("one_bit", 3)):
            for weight in (0, 1, MAX_COUNT_WEIGHT):
                reached = EXACT if weight or signature == "one_bit" else NEARLY
                about = f"{structure} {signature} {per_row} of 8, count {weight}"
                yield Entry(
                    sketch_statistic, about, partial(sketched, signature, structure, per_row, weight), 3, reached
                )
    for shares in (False, True):
        about = "shares" if shares else "rows"
        path: dict[str, Any] = {"shares": shares, "sizes": (3, 3, 3)}
        table: dict[str, Any] = {"shares": shares, "sizes": (2, 3, 4)}
        columns = 3 + shares
        yield Entry(table_statistic, about, cells(table_statistic, (0, 2), **table), columns, EXACT, 4)
        yield Entry(tables_statistic, about, cells(tables_statistic, [(0, 1), (0, 1, 2)], **table), columns, EXACT, 4)
        for null in (None, 0):
            yield Entry(
                firsts_statistic, f"{about} null {null}", cells(firsts_statistic, null, **path), columns, EXACT, 3
            )
            made = cells(transitions_statistic, null, **path)
            yield Entry(transitions_statistic, f"{about} null {null}", made, columns, EXACT, 3)
    yield Entry(slab_statistic, "", slabs, 2, EXACT)
    yield Entry(round_statistic, "", rounds, 2, EXACT)
    yield Entry(histogram_statistic, "SplitFamily", along, 2, EXACT)
    for ball in (BallFamily, TightFamily):
        yield Entry(distance_statistic, ball.__name__, partial(at_distances, ball), 2, EXACT)
    for radius in (RadiusFamily, ReachFamily):
        yield Entry(distance_statistic, radius.__name__, partial(at_radii, radius), 2, EXACT)


CATALOGUE = list(catalogue())
