"""Run of a private k-means: an over-split start, k-means on pseudo-rows, and averaged Lloyd steps.

Every release is the joint moments of `mixtures.statistics` with hard assignments about released centres. A release has
as many cells as the plan says: where fewer were worth a split the rest are beyond the reach of any row, so that price
and size are the plan's for any data. Everything between releases is post-processing, and total.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.fits.dpem import _pseudo_rows as pseudo_rows
from bursar_server.fits.dpem._pseudo_rows import PseudoRows
from bursar_server.fits.mixtures import splitting
from bursar_server.fits.mixtures.decoding import Released
from bursar_server.fits.mixtures.em import Mixture, shaped
from bursar_server.fits.mixtures.splitting import Cell, Cells, inside_ball
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments
from bursar_server.fits.mixtures.steps import Phase, Step, Sums, release

_OUT_OF_REACH = 10.0
"""Place of cells that are not there: every row is within 2 of every true cell, and at least 9 away from here."""

_LEAST_COUNT, _LEAST_GAIN = 3.0, 0.5
"""Minimum count of a cell that is split, in deviations of its noise, and minimum gain, in what the noise of two means
costs. Chosen on real tables.
"""

WIDER, _LEAST_RADIUS = 1.5, 1e-3
"""Clip radius about a centre of pseudo-rows, in their rms distances, and its minimum. Chosen, not tuned."""

_REPORT_RADIUS, _REPORT_NOISE = 3.5, 0.5
"""Minimum clip radius of the report, in rms distances of a cluster's rows, and noise of a sum in its sampling error up
to which the radius is larger: where noise is low, what is cut off would be seen. Chosen on real tables.
"""

_WIDE_NOISE, _WIDEST, _HALF_BALL = 3e-4, 4.0, 0.5
"""Share of a cluster's sum of squares that noise may add, in averaged steps that do not follow each other, where Lloyd
steps in one column clip farther out than a Gaussian needs, and the largest such radius, in rms distances and in the
ball's: of a long tail a clipped mean is biased. Chosen on single columns of real tables; in two columns single fits
then end in other optima.
"""

_INNER_STEPS, _MEMORY = 5, 0.25
"""Free steps on pseudo-rows after a release, and the minimum weight of the latest correction. Chosen, not tuned."""

_DOUBT = 3.0
"""Share of the bias of clipping that is not believed, for each share by which pseudo-rows are wider than the rows.
Chosen of 0 and 3: without it pairs of clusters narrower than bins end a quarter above Lloyd's algorithm.
"""


@dataclass(frozen=True)
class KMeansSettings:
    """Public settings of a run beside its releases.

    Attributes:
        frame: map from the data's units into the unit ball.
        components: number of clusters k.
        box: half-widths of the public box in the unit ball, (d,).
        recentred: True for Lloyd steps about released centres, False for the paper's fixed origin.
        corrected: True to follow pseudo-rows between releases, corrected by what each release says of them.
        start: initial clusters; None for a start of its own, which for one cluster is the whole ball.
    """

    frame: BallFrame
    components: int
    box: FloatArray
    recentred: bool
    corrected: bool
    start: Mixture | None

    @property
    def moments(self) -> Moments:
        """Form of a cluster's variances."""
        return Moments.SPHERICAL


@dataclass(frozen=True)
class Report:
    """Moments of the rows nearest to the returned centres, clipped to radii (k,) about them."""

    radii: FloatArray
    released: Released


class _Releases:
    """Releases of a plan in their order, each with its progress."""

    def __init__(self, frame: BallFrame, steps: tuple[Step, ...], session: Sums) -> None:
        self.frame = frame
        self.steps = steps
        self.session = session
        self.made = 0

    def make(self, step: Step, cells: Cells, *, fixed: bool = False) -> Released:
        """Release the moments of the rows nearest to each cell, clipped to its radius about it, or about the middle."""
        means = np.full((step.components, len(self.frame.scale)), 0.0)
        # Cells that are missing are put where no row is nearest to them: the release keeps the size and price of the
        # plan.
        means[:, 0] = _OUT_OF_REACH
        means[: len(cells)] = [cell.mean for cell in cells]
        eye, radii = np.eye(means.shape[1]), np.ones(len(means))
        radii[: len(cells)] = [cell.radius for cell in cells]
        if fixed:
            radii[:] = 1.0
        e_step = EStep(
            hard=True,
            log_scale=np.zeros(len(means)),
            means=means,
            factors=np.broadcast_to(eye, (len(means), *eye.shape)).copy(),
            diagonal=True,
            centres=np.zeros_like(means) if fixed else means,
            whiteners=eye / radii[:, None, None],
        )
        released = release(self.frame, e_step, step, self.session)
        self.made += 1
        self.session.progress(self.made, len(self.steps))
        K = len(cells)
        return replace(released, counts=released.counts[:K], sums=released.sums[:K], seconds=released.seconds[:K])


def run(settings: KMeansSettings, steps: tuple[Step, ...], session: Sums) -> tuple[Mixture, Report | None]:
    """Make the plan's releases; return the clusters and their report, if the plan has one.

    A total function of rows and noise.
    """
    releases = _Releases(settings.frame, steps, session)
    early = tuple(step for step in steps if step.phase not in (Phase.LLOYD, Phase.REPORT))
    lloyd = tuple(step for step in steps if step.phase is Phase.LLOYD)
    if not early:
        d = len(settings.box)
        cells = splitting.whole_ball(d) if settings.start is None else _cells_of(settings.start)
        return _reported(settings, steps, releases, _settle(settings, lloyd, releases, cells, None))
    # The plan ends at the root where noise would rule any further split: every cluster is then the one shrunk centre.
    if early[-1].phase is Phase.SPLIT and early[-1].moments is Moments.SPHERICAL:
        return _same(_shrunk_root(early[0], releases), settings.components), None
    pseudo = (_binned if early[0].phase is Phase.GRID else _split)(settings, early, releases)
    given = None if settings.start is None else settings.start.means
    cells = _settle(settings, lloyd, releases, _clustered(pseudo, settings.components, given), pseudo)
    return _reported(settings, steps, releases, cells)


def _reported(
    settings: KMeansSettings, steps: tuple[Step, ...], releases: _Releases, cells: Cells
) -> tuple[Mixture, Report | None]:
    """Return the cells as clusters, with the release of the plan's last step if that reports them."""
    step, mixture = steps[-1], _as_mixture(cells)
    if step.phase is not Phase.REPORT:
        return mixture, None
    d = len(settings.box)
    # Released moments alone: radii must not depend on rows in any other way.
    variances = np.array([float(np.trace(cell.covariance)) / d for cell in cells])
    counts = np.array([cell.count for cell in cells])
    # No row is farther from a centre than the farthest corner of the box.
    farthest = np.linalg.norm(np.abs(mixture.means) + settings.box, axis=1)
    quiet = _REPORT_NOISE * np.sqrt(variances * counts) / (step.std / step.weights.b)
    radii = np.minimum(np.maximum(_REPORT_RADIUS * np.sqrt(d * variances), quiet), farthest)
    radii = np.maximum(radii, _LEAST_RADIUS)
    about = tuple(replace(cell, radius=float(radius)) for cell, radius in zip(cells, radii, strict=True))
    return mixture, Report(radii, releases.make(step, about))


def _shrunk_root(step: Step, releases: _Releases) -> Cell:
    """Return the whole ball after a release, its mean drawn to the middle as far as it may be noise."""
    (ball,) = splitting.whole_ball(len(releases.frame.scale))
    (cell,) = splitting.observe((ball,), released := releases.make(step, (ball,)), step.moments, averaging=False)
    # Two deviations (of Laplace noise) more than its expected square: with hardly any spend the middle itself.
    d = len(cell.mean)
    return replace(cell, mean=_stein(cell.mean, released.sum_std / cell.count * math.sqrt(1.0 + math.sqrt(20.0 / d))))


def _stein(shift: FloatArray, std: FloatArray | float) -> FloatArray:
    """Shrink shifts (..., d) as far as noise of this deviation per coordinate explains them (James, Stein 1961)."""
    square = np.sum(shift**2, axis=-1)
    keep = np.maximum(0.0, 1.0 - shift.shape[-1] * np.square(std) / np.maximum(square, 1e-300))
    return np.asarray(shift * keep[..., None])


def _split(settings: KMeansSettings, steps: tuple[Step, ...], releases: _Releases) -> PseudoRows:
    """Split cells while noise allows, up to the plan's number, and draw pseudo-rows from the last ones."""
    cells: Cells = splitting.whole_ball(len(settings.box)) if settings.start is None else _cells_of(settings.start)
    if steps[0].moments is Moments.SPHERICAL:
        cells, steps = (_shrunk_root(steps[0], releases),), steps[1:]
    parents = cells
    released = None
    for index, step in enumerate(steps):
        released = releases.make(step, cells)
        cells = _observed(cells, parents, released, step.moments)
        if index + 1 < len(steps):
            cells, parents = _halved(cells, parents, released, steps[index + 1].components)
    count_std = released.count_std if released is not None else 0.0
    return pseudo_rows.from_cells(cells, count_std, settings.box)


def _observed(cells: Cells, parents: Cells, released: Released, moments: Moments) -> Cells:
    """Return the cells as released, their means drawn towards their parents' as far as noise explains the distance."""
    # Clip radii grow as noise falls, as if settled: with half of a cell clipped its mean is skewed.
    new = splitting.observe(cells, released, moments, averaging=True)
    return tuple(
        replace(n, mean=p.mean + _stein(n.mean - p.mean, released.sum_std / n.count * c.radius), age=0)
        for n, p, c in zip(new, parents, cells, strict=True)
    )


def _halved(cells: Cells, parents: Cells, released: Released, most: int) -> tuple[Cells, Cells]:
    """Split the cells that promise most, each once, up to `most`; return them with the parent of each."""
    d = len(cells[0].mean)
    gains = [cell.gain() for cell in cells]
    # The largest gains first, since the plan's number of cells may not suffice for all that are worth a split.
    order = sorted(range(len(cells)), key=lambda i: -gains[i])
    chosen = {
        i
        for i in order[: most - len(cells)]
        if cells[i].count > _LEAST_COUNT * released.count_std
        and gains[i] > _LEAST_GAIN * 4.0 * d * (released.sum_std * cells[i].radius) ** 2 / cells[i].count
    }
    new: list[Cell] = []
    above: list[Cell] = []
    for i, cell in enumerate(cells):
        new += splitting.split((cell,), 0) if i in chosen else [cell]
        above += [cell, cell] if i in chosen else [parents[i]]
    return tuple(new), tuple(above)


def _binned(settings: KMeansSettings, steps: tuple[Step, ...], releases: _Releases) -> PseudoRows:
    """Count the rows in the bins of a grid; a second step is about cells, or about the halves of bins that hold any."""
    extent = np.minimum(settings.box, 1.0)
    d = len(extent)
    bins = round(steps[0].components ** (1.0 / d))
    middles = pseudo_rows.grid(bins, extent)
    released = releases.make(steps[0], _at(middles))
    counts, std = released.counts, released.count_std
    if len(steps) == 1:
        return pseudo_rows.from_grid(counts, std, bins, extent)
    if steps[1].phase is Phase.SPLIT:
        return _refined(settings, steps[1], releases, pseudo_rows.from_grid(counts, std, bins, extent))
    kept = pseudo_rows.visible(counts, std, d)
    # The fullest first, since the plan's number of cells may not suffice for all.
    chosen = np.argsort(np.where(kept, -counts, np.inf), kind="stable")[: min(kept.sum(), steps[1].components // 2**d)]
    finer = pseudo_rows.halves(middles[chosen], extent / bins)
    second = releases.make(steps[1], _at(finer))
    return pseudo_rows.from_halves(counts[chosen], std, second.counts, second.count_std, finer, extent / (2 * bins))


def _refined(settings: KMeansSettings, step: Step, releases: _Releases, pseudo: PseudoRows) -> PseudoRows:
    """Release the moments of cells where pseudo-rows are, and draw new pseudo-rows from those."""
    cells = _clustered(pseudo, step.components, None)
    released = releases.make(step, cells)
    observed = _observed(cells, cells, released, step.moments)
    return pseudo_rows.from_cells(observed, released.count_std, settings.box)


def _at(middles: FloatArray) -> Cells:
    (ball,) = splitting.whole_ball(middles.shape[1])
    return tuple(replace(ball, mean=middle) for middle in middles)


def _clustered(pseudo: PseudoRows, k: int, given: FloatArray | None) -> Cells:
    """Return k-means of pseudo-rows as cells."""
    found = pseudo_rows.cluster(pseudo, k, given)
    d = found.centres.shape[1]
    squares = found.squares / np.maximum(found.counts, 1e-300)
    radii = floored(WIDER * np.sqrt(squares))
    return tuple(
        Cell(max(float(n), 1e-9), mean, np.eye(d) * square / d, 0.0, float(radius))
        for n, mean, square, radius in zip(found.counts, found.centres, squares, radii, strict=True)
    )


def floored(radii: FloatArray) -> FloatArray:
    """Return clip radii (k,) of at least a quarter of the median one, and at most the ball's."""
    return np.clip(radii, max(0.25 * float(np.median(radii)), _LEAST_RADIUS), 1.0)


def _settle(
    settings: KMeansSettings, steps: tuple[Step, ...], releases: _Releases, cells: Cells, pseudo: PseudoRows | None
) -> Cells:
    """Return the cells after Lloyd steps, averaged with gain 2 / (t + 2); or corrected on pseudo-rows."""
    d = len(settings.frame.scale)
    offset, variance = np.zeros((len(cells), d)), np.zeros(len(cells))
    for t, step in enumerate(steps):
        cells = _widened(cells, step, len(steps)) if d == 1 else cells
        released = releases.make(step, cells, fixed=not settings.recentred)
        if not settings.recentred:
            cells = tuple(
                replace(cell, count=float(n), mean=mean)
                for cell, n, mean in zip(cells, released.safe_counts(), released.mean_u(), strict=True)
            )
            continue
        seen = splitting.observe(cells, released, Moments.SPHERICAL, averaging=True)
        old, new = (np.array([cell.mean for cell in state]) for state in (cells, seen))
        gain = 2.0 / (t + 2.0)
        means = old + gain * (new - old)
        if settings.corrected and pseudo is not None:
            counts, radii = released.safe_counts(), np.array([cell.radius for cell in cells])
            noise = (released.sum_std * radii / counts) ** 2
            # Averaged is how far the rows' step lies from that of the pseudo-rows: it changes less than the centres do.
            weight = max(1.0 / (t + 1.0), _MEMORY)
            own = pseudo_rows.step(pseudo, old).centres - _cut_off(pseudo, old, radii, released)
            offset = (1.0 - weight) * offset + weight * (new - own)
            variance = (1.0 - weight) ** 2 * variance + weight**2 * noise
            means = _followed(pseudo, old, _stein(offset, np.sqrt(variance)))
        cells = tuple(
            replace(
                s,
                count=(1.0 - gain) * c.count + gain * s.count,
                mean=m,
                covariance=(1.0 - gain) * c.covariance + gain * s.covariance,
                age=0,
            )
            for c, s, m in zip(cells, seen, inside_ball(means), strict=True)
        )
    return cells


def _widened(cells: Cells, step: Step, steps: int) -> Cells:
    """Return cells of one column with clip radii at least as large as the noise of so many averaged steps allows."""
    # Released moments and public numbers alone: radii must not depend on rows in any other way.
    rms = np.sqrt(np.array([np.trace(cell.covariance) for cell in cells]).clip(min=0.0))
    counts = np.array([cell.count for cell in cells])
    # Noise moves a mean by std radius / count; averaging with growing weights leaves 4 / (3 J) of its square.
    room = np.sqrt(_WIDE_NOISE * 0.75 * steps) * counts * step.weights.b / step.std
    wide = np.minimum(rms * np.minimum(room, _WIDEST), _HALF_BALL)
    return tuple(
        replace(cell, radius=max(cell.radius, float(radius))) for cell, radius in zip(cells, wide, strict=True)
    )


def _cut_off(pseudo: PseudoRows, centres: FloatArray, radii: FloatArray, released: Released) -> FloatArray:
    """Return what clipping takes from the means of pseudo-rows (k, d), as far as they reach no farther than the rows.

    The clipped mean of a long tail is biased. What clipping does to pseudo-rows says by how much, unless they are wider
    than the rows: of two groups in one cell, say.
    """
    cut, squares = pseudo_rows.clipped(pseudo, centres, radii)
    seen = np.trace(released.seconds, axis1=1, axis2=2) / released.safe_counts()
    return np.asarray(cut * np.clip(1.0 - _DOUBT * (squares / np.maximum(seen, 1e-300) - 1.0), 0.0, 1.0)[:, None])


def _followed(pseudo: PseudoRows, centres: FloatArray, offset: FloatArray) -> FloatArray:
    """Return centres after Lloyd steps on pseudo-rows, each corrected by `offset` (k, d)."""
    for _ in range(_INNER_STEPS):
        centres = inside_ball(pseudo_rows.step(pseudo, centres).centres + offset)
    return centres


def _cells_of(mixture: Mixture) -> Cells:
    """Return a given start as cells, with radii half as large again as it says, because it may be a guess."""
    return tuple(
        Cell(float(n), m, c, 0.0, min(1.0, WIDER * float(np.sqrt(np.trace(c)))))
        for n, m, c in zip(mixture.counts, mixture.means, mixture.covariances, strict=True)
    )


def _same(cell: Cell, k: int) -> Mixture:
    """Return k times the same cluster."""
    return _as_mixture(k * (replace(cell, count=cell.count / k),))


def _as_mixture(cells: Cells) -> Mixture:
    counts = np.array([cell.count for cell in cells])
    covariances = np.array([cell.covariance for cell in cells])
    return Mixture(counts, np.array([cell.mean for cell in cells]), shaped(covariances, counts, Moments.SPHERICAL))
