"""Means, covariances and weights of the components found, from noisy moments of parts or of responsibilities.

Kamath et al. 2019, algorithms 4 and 6 (PGME, PSGE), with squares about released centres instead of pairs of rows; and
EM steps on FitDPEM's statistic (Park et al. 2016), which count a row for several components where these overlap.
Post-processing of released values only, and total.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.decoding import Released, decode, unclip
from bursar_server.fits.mixtures.em import Mixture, recentred_step
from bursar_server.fits.mixtures.statistics import LATTICE, Moments, Weights, moment_bounds, moment_statistic
from bursar_server.fits.separated_gmm._correct import STEPS, Borders, moved
from bursar_server.fits.separated_gmm._mixture import least_apart
from bursar_server.fits.separated_gmm._parts import Parts, SplitSettings
from bursar_server.fits.separated_gmm._refine import refine
from bursar_server.fits.separated_gmm._statistics import ball_statistic
from bursar_server.fits.separated_gmm._tree import Leaf
from bursar_server.vault import Node

_REFINEMENT = 0.35
"""Share of the remaining budget for a second search in leaves, if there are fewer than components.

Chosen, not tuned.
"""

_FIRST = 0.2
"""Share of the remaining budget for the moments of the leaves as they were split. Chosen, not tuned."""

SETTLED_STEPS = 2
"""Number of releases after those of the leaves, if components do not overlap. Chosen, not tuned."""

_APART = 3.0
"""Deviations from the plane between two components from which they do not overlap: 0.1 % of each is beyond it."""


_LEAST_WEIGHT = 0.15
"""Minimum weight of counts, sums and second moments over the largest of the three. Chosen, not tuned."""

_BLURRED = 0.5
"""Relative error of a covariance from which its shape is not visible. Chosen, not tuned."""

_UNKNOWN = 1e6
"""Variance of unreleased numbers, in the unit ball, where nothing is larger than one."""

_CONDITION = 1e-12
"""Minimum ratio of eigenvalues: below it a matrix in doubles may not be positive definite."""

_BACKGROUND = 1e-4
"""Weight of the background component, as wide as the ball: it gets a row if all others are some ten deviations away."""

_AGREE = 4.0
"""Excess, in deviations, of the difference of two releases from which they are not averaged. Chosen, not tuned."""

_FAR_INSIDE = 0.05
"""Mean square, in clip radii, of rows that hardly reach the sphere, so that clipping needs no correction."""


@dataclass(frozen=True, eq=False)
class Moment:
    """Noisy moments of K components from one release, in the unit ball; no shrinkage.

    Attributes:
        counts: rows, (K,), positive.
        count_std: standard deviation of the noise on the counts.
        means: means, (K, d).
        mean_variance: variance of the noise on a coordinate of a mean, (K,).
        covariances: covariances, (K, d, d), symmetric.
        covariance_variance: variance of the noise on a diagonal entry, (K,); half of it off the diagonal.
        reach: about the distance from a mean at which rows were clipped, (K,).
    """

    counts: FloatArray
    count_std: float
    means: FloatArray
    mean_variance: FloatArray
    covariances: FloatArray
    covariance_variance: FloatArray
    reach: FloatArray


@dataclass(frozen=True, eq=False)
class Estimate:
    """Parameters in the unit ball with their standard errors.

    Attributes:
        counts: rows, (K,), positive.
        means: means, (K, d).
        covariances: covariances, (K, d, d), of the requested form.
        mean_errors: standard errors of the means, (K, d).
        count_errors: standard errors of the counts from the noise alone, (K,).
        covariance_errors: relative errors of the covariances in Frobenius norm, (K,).
    """

    counts: FloatArray
    means: FloatArray
    covariances: FloatArray
    mean_errors: FloatArray
    count_errors: FloatArray
    covariance_errors: FloatArray

    @property
    def mixture(self) -> Mixture:
        """Mixture in the format of FitDPEM's E-step."""
        return Mixture(self.counts, self.means, self.covariances)

    @property
    def seen(self) -> Mixture:
        """Mixture widened by the uncertainty of the means, for clip radii that reach all rows."""
        noise = np.mean(self.mean_errors**2, axis=1)[:, None, None] * np.eye(self.means.shape[1])
        return Mixture(self.counts, self.means, np.asarray(self.covariances + noise))


def with_background(mixture: Mixture) -> Mixture:
    """Return the mixture with one more component for rows far from all others, which no longer widen these.

    It adds no noise, because the responsibilities of a row still sum to one.
    """
    d = mixture.means.shape[1]
    return Mixture(
        np.append(mixture.counts, _BACKGROUND * np.sum(mixture.counts)),
        np.concatenate([mixture.means, np.zeros((1, d))]),
        np.concatenate([mixture.covariances, np.eye(d)[None] / d]),
    )


def estimate(parts: Parts, leaves: list[Leaf], progress: Callable[[], None]) -> Estimate:
    """Spend the remaining budget on the components of the leaves, or those found inside them."""
    s = parts.settings
    moments: list[Moment] = []
    smallest = s.min_weight * sum(leaf.rows for leaf in leaves)
    refined = None
    if not (s.clusters or s.easy):
        refined = refine(parts, leaves, smallest, _REFINEMENT * min(parts.left(leaf.node) for leaf in leaves))
    if refined is None:
        moments.append(of_leaves(parts, leaves))
        current = combine(s, moments)
        overlapping = not s.clusters and least_apart(current.mixture)[0] < _APART
        overlapping = overlapping and _is_clear(parts, leaves, current)
    else:
        current, overlapping = _start(s, refined), True
    progress()
    steps = s.em_steps if overlapping else SETTLED_STEPS
    nodes = [leaf.node for leaf in leaves] if s.clusters else [parts.forest.tree()]
    if overlapping:
        moments = []  # a plane between components that overlap leaves out what is beyond it
    done = 0
    while done < steps:
        # Divided anew each time: the number of steps may have risen, and nothing may be left over.
        share = min(parts.left(node) for node in nodes) / (steps - done)
        if s.clusters:
            moments.append(of_clusters(parts, leaves, current, share))
        else:
            moments.append(of_responsibilities(parts, nodes[0], current, share))
        # After each release, because the next one is taken about the estimate of all releases so far.
        current = combine(s, moments, overlapping=overlapping)
        done += 1
        if done == 1 and not (overlapping or s.clusters) and not np.all(_agree(s.d, moments[0], moments[1])):
            steps = s.em_steps  # leaves held foreign rows, or clipped their own: it takes longer to settle
        progress()
    return without_borders(s, [leaf.node for leaf in leaves], moments) if s.clusters else current


def without_borders(settings: SplitSettings, nodes: Sequence[Node], moments: list[Moment]) -> Estimate:
    """Return the estimate whose own rows, divided like the table, have the released moments of parts."""
    rows = combine(settings, moments).counts
    borders, corrected = Borders(settings.frame, nodes), moments
    for _ in range(STEPS):
        about = combine(settings, corrected).mixture
        exchanges = borders.exchanges(about, [m.reach for m in moments])
        corrected = []
        for m, exchange in zip(moments, exchanges, strict=True):
            counts, means, covariances = moved(m.counts, m.means, m.covariances, about, exchange, rows)
            corrected.append(replace(m, counts=counts, means=means, covariances=covariances))
    return combine(settings, corrected)


def _is_clear(parts: Parts, leaves: list[Leaf], current: Estimate) -> bool:
    """Return whether each of several steps is precise enough to distinguish overlapping components from noise."""
    s, node = parts.settings, leaves[0].node
    weights = precisions(s.d, s.moments)
    bounds = moment_bounds(len(leaves), s.d, s.moments, weights)
    std = parts.std(node, bounds, LATTICE, min(parts.left(leaf.node) for leaf in leaves) / s.em_steps)
    return _clear(s.d, std / weights.c / float(np.median(current.counts)), s.moments)


def _start(settings: SplitSettings, mixture: Mixture) -> Estimate:
    """Return a mixture with covariances within their public bounds."""
    K = len(mixture.counts)
    covariances = np.array([shrink(settings, c, 0.0, 1e300)[0] for c in mixture.covariances])
    unknown = np.ones(K)
    return Estimate(mixture.counts, mixture.means, covariances, np.zeros_like(mixture.means), unknown, unknown)


def of_leaves(parts: Parts, leaves: list[Leaf], *, again: bool = True) -> Moment:
    """Return moments of every leaf about the centre of its ball.

    They are released once more if balls turn out to miss their rows and `again` is True.
    """
    s, share = parts.settings, _FIRST * min(parts.left(leaf.node) for leaf in leaves)
    rows = min(leaf.rows for leaf in leaves)
    moments = s.moments
    weights = precisions(s.d, moments)
    noise = parts.std(leaves[0].node, moment_bounds(1, s.d, moments, weights), LATTICE, share) / weights.c / rows
    if not _clear(s.d, noise, moments):
        # A trace is one number for d squared ones: all precision goes into it.
        moments = Moments.SPHERICAL
        weights = precisions(s.d, moments)
    statistics = [ball_statistic(s.frame, leaf.ball.centre, leaf.ball.radius, moments, weights) for leaf in leaves]
    made = parts.releases([leaf.node for leaf in leaves], statistics, share)
    seen = [decode(flat, 1, s.d, moments, weights, std) for flat, std in made]
    missed = [leaf.ball.misses(released) for leaf, released in zip(leaves, seen, strict=True)]
    # Once at most: a pass for every leaf could leave later releases too little for any noise that there is.
    if again and any(missed):
        balls = [leaf.ball.everywhere() if miss else leaf.ball for leaf, miss in zip(leaves, missed, strict=True)]
        moved = [replace(leaf, ball=ball) for leaf, ball in zip(leaves, balls, strict=True)]
        return of_leaves(parts, moved, again=False)
    read = []
    for leaf, released in zip(leaves, seen, strict=True):
        lower = np.asarray(np.eye(s.d)[None] * leaf.ball.radius, dtype=np.float64)
        read.append(_read(released, leaf.ball.centre[None], lower, np.ones(1), moments, s.moments))
    return _joined(read)


def precisions(d: int, moments: Moments, *, blurred: bool = False) -> Weights:
    """Return the weights of counts, sums and second moments.

    They minimise the squared error of a mean, in deviations, and of a covariance, relative. With squared clip radius v
    the noise counts for 2, d v and q v^2 / d, and weights go with the fourth roots. Second moments that are too noisy
    for more than a trace get no more than sums.
    """
    v = 1.6 * d + 2.0
    second = v * v / (d * d) if moments is Moments.SPHERICAL else moments.size(d) * v * v / d
    roots = np.array([2.0, d * v, d * v if blurred and moments is not Moments.SPHERICAL else second]) ** 0.25
    a, b, c = (float(w) for w in np.maximum(roots / roots.max(), _LEAST_WEIGHT))
    return Weights(a, b, c)


def _clear(d: int, noise: float, moments: Moments) -> bool:
    """Return whether second moments with this noise, in clip radii and rows of one, show more than a trace."""
    return math.sqrt(moments.size(d) / d) * noise * (1.6 * d + 2.0) < _BLURRED


def of_clusters(parts: Parts, leaves: list[Leaf], current: Estimate, share: float) -> Moment:
    """Return moments of every leaf about the released mean, in units of the released covariance."""
    s = parts.settings
    nodes = [leaf.node for leaf in leaves]
    weights = _weights(parts, nodes[0], current, 1, share)
    seen = current.seen
    ones = [
        Mixture(seen.counts[k : k + 1], seen.means[k : k + 1], seen.covariances[k : k + 1]) for k in range(len(leaves))
    ]
    std = parts.std(nodes[0], moment_bounds(1, s.d, s.moments, weights), LATTICE, share)
    steps = [recentred_step(one, s.moments, std / weights.c) for one in ones]
    statistics = [moment_statistic(s.frame, step, s.moments, weights) for step, _ in steps]
    read = []
    for one, (_, radii), (flat, noise) in zip(ones, steps, parts.releases(nodes, statistics, share), strict=True):
        released = decode(flat, 1, s.d, s.moments, weights, noise)
        lower = np.asarray(np.linalg.cholesky(one.covariances), dtype=np.float64)
        read.append(_read(released, one.means, lower, radii, s.moments, s.moments))
    return _joined(read)


def released_components(settings: SplitSettings) -> int:
    """Return the number of components in a release of the last phase, if all are found."""
    return settings.k + (0 if settings.clusters else 1)


def of_responsibilities(parts: Parts, root: Node, current: Estimate, share: float) -> Moment:
    """Return moments of all rows by their responsibilities: one EM step."""
    s = parts.settings
    K = len(current.counts)
    weights = _weights(parts, root, current, K + 1, share)
    std = parts.std(root, moment_bounds(K + 1, s.d, s.moments, weights), LATTICE, share)
    mixture = with_background(current.seen)
    step, radii = recentred_step(mixture, s.moments, std / weights.c)
    flat, std = parts.release(root, moment_statistic(s.frame, step, s.moments, weights), share)
    released = without_last(decode(flat, K + 1, s.d, s.moments, weights, std))
    lower = np.asarray(np.linalg.cholesky(mixture.covariances[:K]), dtype=np.float64)
    return _read(released, current.means, lower, radii[:K], s.moments, s.moments)


def without_last(released: Released) -> Released:
    """Return the release of all components except the background."""
    return replace(released, counts=released.counts[:-1], sums=released.sums[:-1], seconds=released.seconds[:-1])


def _weights(parts: Parts, node: Node, current: Estimate, K: int, share: float) -> Weights:
    """Return the weights of a release about the components found."""
    s = parts.settings
    weights = precisions(s.d, s.moments)
    std = parts.std(node, moment_bounds(K, s.d, s.moments, weights), LATTICE, share)
    noise = std / weights.c / float(np.median(current.counts))
    return precisions(s.d, s.moments, blurred=not _clear(s.d, noise, s.moments))


def _joined(moments: list[Moment]) -> Moment:
    return Moment(
        np.concatenate([m.counts for m in moments]),
        max(m.count_std for m in moments),
        np.concatenate([m.means for m in moments]),
        np.concatenate([m.mean_variance for m in moments]),
        np.concatenate([m.covariances for m in moments]),
        np.concatenate([m.covariance_variance for m in moments]),
        np.concatenate([m.reach for m in moments]),
    )


def _read(
    released: Released, centres: FloatArray, lower: FloatArray, radii: FloatArray, moments: Moments, wanted: Moments
) -> Moment:
    """Return moments of u = lower^-1 (z - centre) / radius, clipped to the unit ball, in the ball's own units."""
    d = centres.shape[1]
    counts, shift = released.safe_counts(), released.mean_u()
    sizes = np.sum(lower**2, axis=(1, 2)) / d
    bias = (released.sum_std / counts) ** 2  # the square of a noisy shift exceeds that of the shift by its variance
    second = released.seconds / counts[:, None, None] - shift[:, :, None] * shift[:, None, :]
    second += bias[:, None, None] * np.eye(d)
    square = np.trace(second, axis1=1, axis2=2)
    # What clipping took from a Gaussian; far inside of the ball it took nothing.
    unclipped = np.where(square < _FAR_INSIDE, 1.0, d * unclip(square, d) / np.maximum(square, _FAR_INSIDE))
    scale = radii**2 * unclipped
    noise = released.second_std / counts * scale * sizes
    covariances = lower @ (second * scale[:, None, None]) @ np.swapaxes(lower, 1, 2)
    return Moment(
        counts,
        released.count_std,
        centres + np.einsum("kij,kj->ki", lower, shift * radii[:, None]),
        (released.sum_std / counts * radii) ** 2 * sizes,
        covariances,
        _entry_variance(noise, d, moments, wanted),
        radii * np.sqrt(sizes),
    )


def _entry_variance(noise: FloatArray, d: int, moments: Moments, wanted: Moments) -> FloatArray:
    """Return the variance of a diagonal entry; a trace has no information on the shape of a covariance."""
    if moments is Moments.SPHERICAL and wanted is not Moments.SPHERICAL:
        return np.full_like(noise, _UNKNOWN)
    return np.asarray((noise / (d if moments is Moments.SPHERICAL else 1.0)) ** 2)


def combine(settings: SplitSettings, moments: list[Moment], *, overlapping: bool = False) -> Estimate:
    """Return the mean of several releases by precision; where components overlap, later ones count for more."""
    order = np.arange(1.0, len(moments) + 1.0)[:, None] if overlapping else np.ones((len(moments), 1))
    # What an early release saw elsewhere was another set of rows: a mean of the two would describe neither.
    agree = np.array([_agree(settings.d, m, moments[-1]) for m in moments])
    by_mean = _shares(order * agree / np.array([m.mean_variance for m in moments]))
    by_covariance = _shares(order * agree / np.array([m.covariance_variance for m in moments]))
    by_count = _shares(order * agree / np.array([m.count_std**2 for m in moments])[:, None])
    counts = np.sum(by_count * np.array([m.counts for m in moments]), axis=0)
    means = np.einsum("tk,tki->ki", by_mean, np.array([m.means for m in moments]))
    raw = np.einsum("tk,tkij->kij", by_covariance, np.array([m.covariances for m in moments]))
    mean_variance = np.sum(by_mean**2 * np.array([m.mean_variance for m in moments]), axis=0)
    noise = np.sum(by_covariance**2 * np.array([m.covariance_variance for m in moments]), axis=0)
    count_variance = np.sum(by_count**2 * np.array([m.count_std**2 for m in moments])[:, None], axis=0)
    shaped = [shrink(settings, *each) for each in zip(raw, noise, counts, strict=True)]
    covariances = np.array([covariance for covariance, _ in shaped])
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    # Noise may put a mean outside the public ball, where no true mean is.
    means = means * np.minimum(1.0, settings.radius / np.maximum(np.linalg.norm(means, axis=1), 1e-300))[:, None]
    return Estimate(
        counts=counts,
        means=means,
        covariances=covariances,
        mean_errors=np.sqrt(mean_variance[:, None] + variances / counts[:, None]),
        count_errors=np.sqrt(count_variance),
        covariance_errors=np.array([error for _, error in shaped]),
    )


def _agree(d: int, one: Moment, last: Moment) -> FloatArray:
    """Return which components (K,) have the last release's counts, means and sizes in this one, except for noise.

    An earlier release may have clipped more, or contain rows of other components.
    """
    rows = np.minimum(one.counts, last.counts)
    levels = np.trace(last.covariances, axis1=1, axis2=2) / d
    apart = np.sum((one.means - last.means) ** 2, axis=1)
    noise = one.mean_variance + last.mean_variance + np.maximum(levels, 0.0) / rows
    wider = (np.trace(one.covariances, axis1=1, axis2=2) / d - levels) ** 2
    spread = (one.covariance_variance + last.covariance_variance + 2.0 * levels**2 / rows) / d
    near = (one.counts - last.counts) ** 2 <= _AGREE**2 * (one.count_std**2 + last.count_std**2 + rows)
    alike = (apart <= (math.sqrt(d) + _AGREE) ** 2 * noise) & (wider <= _AGREE**2 * spread)
    return np.asarray(alike & near, dtype=np.float64)


def _shares(precisions: FloatArray) -> FloatArray:
    return np.asarray(precisions / np.sum(precisions, axis=0))


def shrink(settings: SplitSettings, raw: FloatArray, noise: float, rows: float) -> tuple[FloatArray, float]:
    """Return a covariance of the requested form from a noisy one, and its relative error.

    Its difference from a multiple of the identity is shrunk as far as noise and sampling explain it. Eigenvalues stay
    within their public bounds.
    """
    d, moments = settings.d, settings.moments
    low, high = settings.sigma_min**2, settings.sigma_max**2
    level = float(np.clip(np.trace(raw) / d, low, high))
    if moments is Moments.SPHERICAL:
        error = math.sqrt(noise / level**2 + 2.0 / (d * rows))
        return level * np.eye(d), min(error, high / low)
    numbers = moments.size(d)
    variance = noise + 2.0 * level**2 / rows
    shape = np.diag(np.diag(raw)) if moments is Moments.DIAG else raw
    rest = shape - np.trace(shape) / d * np.eye(d)
    # Noise alone seldom has a longer square than this.
    noise_squared = (numbers - 1.0 + math.sqrt(2.0 * numbers)) * variance
    keep = max(0.0, 1.0 - noise_squared / max(float(np.sum(rest**2)), 1e-300))
    values, vectors = np.linalg.eigh(level * np.eye(d) + keep * rest)
    values = np.clip(values, max(low, _CONDITION * min(float(values[-1]), high)), high)
    covariance = (vectors * values) @ vectors.T
    error = math.sqrt((1.0 + keep * (numbers - 1)) * variance / float(np.sum(covariance**2)))
    return covariance, min(error, high / low)
