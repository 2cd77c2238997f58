"""Schedule of a private k-means: releases, their shares and precisions, by rules from public numbers only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from bursar_ledger import Adjacency
from bursar_server.fits.mixtures.statistics import Moments, Weights
from bursar_server.fits.mixtures.steps import FIRST, Phase, Sketch, Step

_SINGLE = Sketch(Phase.SPLIT, 1, Moments.SPHERICAL, Weights(0.3, 1.0, 0.1))
"""The only release where the spend buys one centre."""

_GRID_WEIGHTS = Weights(1.0, 0.01, 0.01)
"""Weights of a grid, which needs counts only: the others add 0.02 % to the price."""

_OVER, _MOST_CELLS, _MOST_BINS = 12, 256, 2500
"""Cells of the start for each cluster, and maximum numbers of cells and bins. Chosen: measured on real tables."""

_AFTER_GRID_WEIGHTS = Weights(1.0, 0.6, 0.3)
"""Weights of cells that follow a grid, but under pure epsilon: of few rows that are far off the count matters most.
Chosen as `_AFTER_GRID`.
"""

_ASSUMED = 2000
"""Rows of a cluster where no number of rows is public. Chosen, not tuned: splits are guarded by released counts."""

_NOISY, _QUIET = 0.05, 0.03
"""Relative noise of the means, by a release that spends all: above it there are few Lloyd steps, and two grids in three
columns; below it they correct pseudo-rows. Chosen on real tables; grids on drawn rows, too.
"""

_VISIBLE, _VISIBLE_PURE, _HOPELESS, _ONE_CENTRE, _ROUGH = 1.0, 0.3, 0.6, 0.2, 0.25
"""Relative noise of means, above which: cells are not split further; Lloyd steps do not help; there is one centre only;
the analyst is warned. Chosen on real tables.
"""

_COARSE_SHARE = Fraction(1, 3)
"""Share of a grid that is followed by a finer release: rows of a bin are more than those of its halves. Chosen on drawn
and real rows.
"""

_AFTER_GRID, _CALM, _CALM_PURE = 3, 0.03, 0.005
"""Cells for each cluster that follow a grid, and relative noise up to which they do. Chosen of 3, 4 and 6 on drawn and
real rows, in two columns: with more cells, or more noise, a cluster is missed more often.
"""

_GIVEN_SHARE = Fraction(2, 5)
"""Share of the releases that split given cells: about that of as many releases of a private start."""

_REPORT = Fraction(1, 2)
"""Share of the report in that of a Lloyd step: 1 to 5 % of the spend. With a whole one sums of squares at epsilon 0.1
were a little larger on real tables.
"""


@dataclass(frozen=True)
class Quotes:
    """Noise that an amount buys, before it is divided.

    Attributes:
        k: number of clusters.
        d: number of columns.
        rows: public or declared number of rows, or None.
        adjacency: neighbouring relation, which decides what a precise count costs.
        pure: True for Laplace noise, which grows linearly with the number of releases.
        std: function of a release that spends the whole amount: noise on its numbers; raises ValueError if the amount
            is too small.
    """

    k: int
    d: int
    rows: int | None
    adjacency: Adjacency
    pure: bool
    std: Callable[[Sketch], float]

    @property
    def n(self) -> int:
        """Number of rows to plan for."""
        return self.rows or _ASSUMED * self.k

    def lloyd(self, k: int, moments: Moments = Moments.SPHERICAL) -> Sketch:
        """Return a Lloyd step about k centres."""
        # Under REPLACE_ONE counts nearly as precise as sums are free: opposite rows already differ by 2 b.
        a = 0.95 if self.adjacency is Adjacency.REPLACE_ONE and not self.pure else 0.35
        return Sketch(Phase.LLOYD, k, moments, Weights(a, 1.0, 0.3))

    def noise(self, sketch: Sketch) -> float:
        """Return the noise of the mean of all rows, in their radius."""
        return math.sqrt(self.d) * self.std(sketch) / sketch.weights.b / self.n

    def more(self, share: Fraction) -> float:
        """Return the factor on the noise of a release that spends a share only."""
        return float(1 / share) if self.pure else math.sqrt(1 / share)


@dataclass(frozen=True)
class Schedule:
    """Releases of a k-means before their noise is known, and what public numbers say of them.

    Attributes:
        sketches: releases in their order.
        corrected: True if Lloyd steps are quiet enough to correct pseudo-rows.
        warnings: warnings for the analyst.
    """

    sketches: tuple[Sketch, ...]
    corrected: bool
    warnings: tuple[str, ...]


def schedule(quotes: Quotes, *, iterations: int, recentred: bool, splitting: bool) -> Schedule:
    """Return the releases of a k-means.

    Args:
        quotes: noise that the amount buys.
        iterations: number of releases; 0 to choose it.
        recentred: False for the paper's fixed origin.
        splitting: True for a start of its own, False for a given one.

    Raises:
        ValueError: the amount is too small.
    """
    k, pure, more = quotes.k, quotes.pure, quotes.more
    lloyd = quotes.lloyd(k)
    nu = k * quotes.noise(lloyd)
    # Under pure epsilon the price of all second moments is a margin of safety.
    one = quotes.noise(quotes.lloyd(1, Moments.FULL if pure else Moments.SPHERICAL))
    steps = _lloyd_steps(nu, pure=pure)
    early = Fraction(0)
    if splitting:
        early = Fraction(2, 5) if pure else Fraction(13 if nu > _NOISY else 12, 20)
        levels = _levels(quotes, one, early)
        if k > 1 and not iterations and nu * more(1 - early) > _HOPELESS:
            early, steps = Fraction(1), 0
        if quotes.rows and not levels and one * more(early / Fraction(13, 10)) > _ONE_CENTRE and iterations < 2:
            warning = "noise leaves one centre only, and every cluster is there; spend more, or ask for fewer columns"
            return Schedule((_SINGLE,), False, (warning,))
    start: tuple[Sketch, ...] = ()
    if splitting and k > 1:
        if iterations:
            # About half of the releases that were asked for remain for Lloyd steps.
            levels = max(0, min(levels, iterations // 2 - 1))
        # Where noise leaves no Lloyd steps it would leave no halves of bins either.
        single = not steps or 0 < iterations < 4
        start = _grids(quotes, nu, early if steps and iterations != 1 else Fraction(1), single=single)
        start = start or _splitting(quotes, nu, 1, levels, root=iterations != 1)
        steps = iterations - len(start) if iterations else steps
        # Without Lloyd steps nothing is spent after the start.
        early = early if steps else Fraction(1)
    elif k > 1 and not iterations and recentred and nu <= _QUIET:
        # Given centres may belong to a poor optimum, and noise is low enough to find a better one.
        early, levels = _GIVEN_SHARE, math.ceil(math.log2(_most_cells(k) / k))
        start = _grids(quotes, nu, early, single=True) or _splitting(quotes, nu, k, levels, root=False)
    else:
        early, steps = Fraction(0), iterations or steps
    shares = sum((sketch.share for sketch in start), Fraction(0))
    # A number of releases that was asked for includes the report; few Lloyd steps are all needed to move the centres.
    reported = recentred and steps >= (3 if iterations else 1)
    steps -= reported and iterations > 0
    share = (1 - early) / max(steps + reported * _REPORT, Fraction(1))
    sketches = (
        *(replace(sketch, share=early * sketch.share / shares) for sketch in start),
        *steps * (replace(lloyd, share=share),),
        *reported * (replace(lloyd, phase=Phase.REPORT, moments=Moments.DIAG, share=_REPORT * share),),
    )
    rough = nu * more(share) if steps else k * one * more(early)
    warning = f"noise on a cluster's mean is about {rough:.2g} of the cluster's radius; spend more, or ask for fewer"
    warnings = (warning,) if quotes.rows and rough > _ROUGH else ()
    return Schedule(sketches, bool(start) and recentred and nu <= _QUIET, warnings)


def mean_noise(steps: tuple[Step, ...], k: int, d: int, rows: int) -> float:
    """Return the noise per coordinate of a centre, in the unit ball, for k equal clusters that fill it side by side.

    At most that of points in the ball, because noisy centres are drawn to each other.
    """
    last = [step for step in steps if step.phase is not Phase.REPORT][-1]
    if last.phase is Phase.SPLIT and last.moments is Moments.SPHERICAL and k > 1:
        return 1.0 / math.sqrt(d)
    weight = last.weights.a if last.phase is Phase.GRID else last.weights.b
    # The mean of a cluster of several cells has less noise than theirs.
    noise = last.std / weight * math.sqrt(k * last.components) / rows * math.pow(k, -1.0 / d)
    # Averaging J steps with weights 1, ..., J leaves 4 / (3 J) of one step's variance.
    settled = sum(step.phase is Phase.LLOYD for step in steps)
    return min(noise * math.sqrt(min(1.0, 4.0 / (3.0 * max(settled, 1)))), 1.0 / math.sqrt(d))


def _lloyd_steps(nu: float, *, pure: bool) -> int:
    """Return 2 to 16 Lloyd steps: as many as keep the noise of each small. Chosen on real tables."""
    if pure:
        return int(min(max(0.1 / nu, 2), 16))
    return int(min(max(min(0.3 / nu, 4.0) ** 2, 4), 5 if nu > _NOISY else 16))


def _levels(quotes: Quotes, one: float, share: Fraction) -> int:
    """Return how often cells can be halved until noise hides them."""
    cells = _most_cells(quotes.k) if quotes.k > 1 else 1
    levels = math.ceil(math.log2(cells))
    visible = _VISIBLE_PURE if quotes.pure else _VISIBLE
    while levels and one * 2**levels * quotes.more(share / (levels + Fraction(13, 10))) > visible:
        levels -= 1
    return levels


def _most_cells(k: int) -> int:
    return max(k, min(_OVER * k, _MOST_CELLS))


def _splitting(quotes: Quotes, nu: float, cells: int, levels: int, *, root: bool) -> tuple[Sketch, ...]:
    """Return the releases of cells that are halved at each level, after one for the spread of all rows."""
    sizes = (min(cells * 2**level, _most_cells(quotes.k)) for level in range(levels + 1))
    return (*root * (FIRST,), *(_cells(quotes, nu, size) for size in sizes))


def _cells(quotes: Quotes, nu: float, size: int) -> Sketch:
    """Return the release of the moments of cells."""
    # Principal axes matter, but under pure epsilon their price grows with the number of columns.
    full = not quotes.pure or nu <= 0.002
    weights = Weights(0.5, 1.0, 1.0) if quotes.pure and full else Weights(0.6 if full else 0.3, 0.6, 1.0)
    return Sketch(Phase.SPLIT, size, Moments.FULL if full else Moments.DIAG, weights)


def _grids(quotes: Quotes, nu: float, share: Fraction, *, single: bool) -> tuple[Sketch, ...]:
    """Return a grid and what follows it where that is better than splits, else none."""
    d = quotes.d
    if not (d <= 2 or (d == 3 and nu > _NOISY)):
        return ()
    # In two columns a finer grid gains on narrow clusters what it loses on real tables; cells need less noise.
    if single or (d <= 2 and nu > (_CALM_PURE if quotes.pure else _CALM)):
        return (_grid(quotes, share),)
    grid = _grid(quotes, share * _COARSE_SHARE)
    if d <= 2:
        cells = max(quotes.k, min(_AFTER_GRID * quotes.k, _MOST_CELLS))
        second = _cells(quotes, nu, cells)
        second = second if quotes.pure else replace(second, weights=_AFTER_GRID_WEIGHTS)
    else:
        second = replace(grid, components=min(2**d * grid.components, _MOST_BINS))
    return (replace(grid, share=_COARSE_SHARE), replace(second, share=1 - _COARSE_SHARE))


def _grid(quotes: Quotes, share: Fraction) -> Sketch:
    """Return the release of a grid whose bins hold about as many rows each as the noise allows."""
    grid = Sketch(Phase.GRID, 4, Moments.SPHERICAL, _GRID_WEIGHTS)
    wanted = quotes.n / (2.0 * quotes.std(grid) / _GRID_WEIGHTS.a * quotes.more(share))
    d = quotes.d
    side = min(max(wanted ** (1 / d), math.ceil((2 * quotes.k) ** (1 / d))), math.floor(_MOST_BINS ** (1 / d)))
    return replace(grid, components=int(side) ** d)
