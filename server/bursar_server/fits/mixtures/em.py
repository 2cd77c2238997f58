"""EM steps: whitened moments in, parameters out. Post-processing of released values only, and total.

Park et al. 2016, section 4.1, equation 12 and the MAP estimates below it, on moments about each component's released
mean, in units of its released covariance, and clipped there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.decoding import Released, pool_variances, unclip
from bursar_server.fits.mixtures.splitting import Cells, inside_ball
from bursar_server.fits.mixtures.statistics import EStep, Moments, spectral_noise, trace_noise

VARIANCE_FLOOR = 1e-6
"""Least eigenvalue of a covariance in the unit ball: a thousandth of the ball's radius, squared."""

_VARIANCE_CEILING = 4.0
"""Largest eigenvalue: the squared diameter of the ball. Without it noise could multiply a covariance at every step."""

_LEAST_TAIL, _LARGEST_TAIL = 1e-6, 0.15
"""Bounds of the share of a Gaussian beyond the clip radius.

Between them it is about the relative noise of the moments, so that neither clipping bias nor noise dominates. Chosen,
not tuned.
"""

_BEYOND, _LEAST_BORDER = 6.0, 0.05
"""Squared distance beyond the border to the background where clip radii end, and the share of a Gaussian that is always
within the least of them as its complement. Chosen on real tables.
"""

_LARGEST_SQUARE = 4000.0
"""Largest squared clip radius, in units of the covariance."""

_START, _UNSEEN = 0.01, 1e-4
"""Weight of a background before its first release, and while its count does not exceed its noise: a larger one would
cost every row some density. Chosen on real tables.
"""

_CLEAR_COUNT = 3.0
"""Count of a component that is merged and not left out, in deviations of its noise. Chosen, not tuned."""

_LUCK = 0.7
"""Deviation of the logarithm of what luck multiplies losses by. Chosen, not tuned."""

_BEYOND_CLIPS = 0.85
"""Shift of a mean by what lies beyond its clip radius, in deviations over the squared radius, to expect of skewed rows:
the largest of .5 to .85 measured on the four plans of the demo.
"""

_RATIO_PER_NOISE, _LARGEST_LEAST_RATIO = 0.2, 0.7
"""Least eigenvalue of one step, in the largest of its noise, and the maximum of that. Chosen on real tables."""

_CLEARLY = 1.5
"""Factor on the expected squared length of the noise. Pure noise seldom exceeds it, so settled parameters average.

Chosen, not tuned.
"""

_DOUBTFUL, _CLEAR = 1.0, 2.0
"""Excess of a shape's squared distance over that of its noise, in the deviations of pure noise, at which a step begins
to count and is taken whole. Chosen on real tables.
"""

_TRUSTED = 0.8
"""Largest eigenvalue of the noise on a shape up to which a clear step is taken whole. Chosen on real tables."""

_LEAST_RATIO, _LARGEST_RATIO = 0.02, 20.0
"""Bounds of a covariance's eigenvalues in units of the previous one's.

Chosen, not tuned: limit the damage of one step.
"""


@dataclass(frozen=True)
class Rules:
    """Public numbers that say how far clip radii and shapes follow the noise.

    Attributes:
        tail: share of a Gaussian beyond its clip radius, in relative noise of its second moments.
        largest_tail: maximum of that share.
        growth: least squared clip radius, in the inverse of that noise; 0 for none.
        floor: least eigenvalue of a covariance in the unit ball.
        cautious: True to draw the shapes of a step together as far as noise explains their differences, and to let no
            direction fall below its noise in one step.
        log_uniform: log density of the background, uniform over the public box; None if there is none.
    """

    tail: float = 1.0
    largest_tail: float = _LARGEST_TAIL
    growth: float = 0.0
    floor: float = VARIANCE_FLOOR
    cautious: bool = False
    log_uniform: float | None = None


SETTLED = Rules()
"""Rules for components that are known to be Gaussian."""


@dataclass(frozen=True)
class Count:
    """Released count of the background: average over releases, and the standard deviation of its noise."""

    value: float
    std: float


@dataclass(frozen=True)
class Prior:
    """Dirichlet(concentration) and normal-inverse-Wishart(0, kappa, nu, scale I) prior, in the unit ball."""

    concentration: float
    kappa: float
    nu: float
    scale: float


@dataclass(frozen=True)
class Mixture:
    """Released parameters in the unit ball.

    Attributes:
        counts: counts of the components, (K,), positive.
        means: means, (K, d).
        covariances: covariances, (K, d, d), positive definite, of the form of the released moments.
        age: number of releases that the parameters average.
        background: count of the background; None before its first release.
    """

    counts: FloatArray
    means: FloatArray
    covariances: FloatArray
    age: int = 0
    background: Count | None = None

    @property
    def weights(self) -> FloatArray:
        """Weights (K,), positive, sum 1."""
        return self.counts / np.sum(self.counts)

    @property
    def background_count(self) -> float:
        """Count of the background, positive."""
        rows = float(np.sum(self.counts))
        if self.background is None:
            return _START * rows
        clear = self.background.value >= 2.0 * self.background.std
        return max(self.background.value if clear else _UNSEEN * rows, 1.0)


def from_cells(cells: Cells, moments: Moments, rules: Rules = SETTLED) -> Mixture:
    """Return the cells of the start as Gaussians, with eigenvalues within a factor of ten of their mean.

    Cautious rules draw them together as far as noise explains their differences, and then let eigenvalues be as small
    as their noise.
    """
    counts = np.array([cell.count for cell in cells])
    means = np.array([cell.mean for cell in cells])
    matrices = np.array([cell.covariance for cell in cells])
    values = np.linalg.eigvalsh(matrices)
    levels = np.maximum(np.mean(values, axis=1), rules.floor)
    least = 0.1 * levels
    if rules.cautious:
        noise = np.array([cell.noise for cell in cells])
        each, d = noise / spectral_noise(1.0, means.shape[1], moments), means.shape[1]
        pooled = np.tensordot(counts / np.sum(counts), matrices, axes=1)
        level = max(float(np.trace(pooled)) / d, rules.floor)
        # Noise may leave an empty cell without width: such a component would never get a row again.
        levels = np.maximum(levels, np.minimum(noise, level))
        # In units of a matrix with thin directions of noise rows lie far out, and covariances would grow.
        of_pooled = np.array([np.linalg.norm(counts / np.sum(counts) * each)])
        pooled = _drawn(pooled[None], level * np.eye(d), of_pooled, moments) * (levels / level)[:, None, None]
        matrices = _drawn(matrices, pooled, each, moments)
        least = np.maximum(np.minimum(noise, least), 1e-3 * levels)
    values, vectors = np.linalg.eigh(matrices)
    values = np.clip(values, least[:, None], 10.0 * levels[:, None])
    covariances = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return Mixture(counts, means, shaped(covariances, counts, moments, rules.floor))


def without_noise(mixture: Mixture, K: int, count_std: float) -> Mixture:
    """Return the mixture without components that may be nothing but noise of this deviation, at least the K largest."""
    # Components that could be noise are the smallest ones, so the largest are kept.
    order = np.argsort(-mixture.counts)
    clear = int(np.sum(mixture.counts > _CLEAR_COUNT * count_std))
    kept = order[: max(K, clear)]
    return replace(
        mixture, counts=mixture.counts[kept], means=mixture.means[kept], covariances=mixture.covariances[kept]
    )


def merged(
    mixture: Mixture, K: int, count_std: float = 0.0, luck: Callable[[int], FloatArray] | None = None
) -> Mixture:
    """Return the mixture with pairs of components joined until there are at most K: those that lose least (Runnalls).

    Runnalls 2007: the loss is a bound of the Kullback-Leibler divergence from the mixture before. It is free, because
    it reads released parameters only. Components that may be nothing but noise of this deviation are left out before.
    With `luck`, a function that returns as many normal numbers, losses are multiplied by lognormal ones first.
    """
    if len(mixture.counts) <= K:
        return mixture
    kept = without_noise(mixture, K, count_std)
    counts, means, covariances = kept.counts, kept.means, kept.covariances
    while len(counts) > K:
        # All pairs anew in every round: components are few, and a merge changes the losses of its pairs.
        pairs = list(combinations(range(len(counts)), 2))
        i, j = (np.array(side) for side in zip(*pairs, strict=True))
        total = counts[i] + counts[j]
        p, q = (counts[i] / total)[:, None], (counts[j] / total)[:, None]
        mean, apart = p * means[i] + q * means[j], means[i] - means[j]
        between = (p * q)[:, :, None] * apart[:, :, None] * apart[:, None, :]
        joint = p[:, :, None] * covariances[i] + q[:, :, None] * covariances[j] + between
        logs = np.linalg.slogdet(covariances)[1]
        losses = total * np.linalg.slogdet(joint)[1] - counts[i] * logs[i] - counts[j] * logs[j]
        if luck is not None:
            losses *= np.exp(_LUCK * luck(len(losses)))
        best = int(np.argmin(losses))
        others = np.delete(np.arange(len(counts)), [i[best], j[best]])
        counts = np.append(counts[others], total[best])
        means = np.append(means[others], mean[best][None], axis=0)
        covariances = np.append(covariances[others], joint[best][None], axis=0)
    return replace(mixture, counts=counts, means=means, covariances=covariances, age=1)


def balanced(mixture: Mixture, radii: FloatArray, mean: FloatArray, std: float) -> Mixture:
    """Return the mixture with means moved so that together they have the mean of all rows.

    Clip radii cut tails off, so that means of skewed components lie too near to their bulk. The first release clips
    nothing, and tells how much is missing in all. Components get it in proportion to their deviations over their
    squared radii, as a tail loses whose rows beyond a distance fall as its cube. This is the posterior mean of such
    shifts under the noise of the first release, so where noise hides them nothing moves.

    Args:
        mixture: mixture after its last step.
        radii: clip radii of that step, (K,).
        mean: released mean of all rows, (d,).
        std: standard deviation of its noise per coordinate.
    """
    values, vectors = np.linalg.eigh(mixture.covariances)
    roots = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    tails = _BEYOND_CLIPS * roots / np.square(radii)[:, None, None]
    together = np.tensordot(mixture.weights, tails, axes=1)
    missing = mean - mixture.weights @ mixture.means
    skew = together @ np.linalg.solve(together @ together + std**2 * np.eye(len(mean)), missing)
    return replace(mixture, means=inside_ball(mixture.means + tails @ skew))


def shaped(
    covariances: FloatArray, counts: FloatArray, moments: Moments, floors: float | FloatArray = VARIANCE_FLOOR
) -> FloatArray:
    """Return covariances (K, d, d) in the form of the moments, with eigenvalues clipped.

    They are at least `floors`, one number or (K,), and at most the ceiling.
    """
    K, d = covariances.shape[:2]
    floors = np.broadcast_to(floors, K)[:, None]
    diagonals = np.diagonal(covariances, axis1=1, axis2=2)
    if moments in (Moments.SPHERICAL, Moments.DIAG):
        if moments is Moments.SPHERICAL:
            diagonals = np.broadcast_to(diagonals.mean(axis=1)[:, None], (K, d))
        return np.asarray(np.clip(diagonals, floors, _VARIANCE_CEILING)[:, :, None] * np.eye(d))
    if moments is Moments.TIED:
        pooled = np.tensordot(counts / np.sum(counts), covariances, axes=1)
        covariances = np.broadcast_to(pooled, (K, d, d))
    values, vectors = np.linalg.eigh(covariances)
    # Noise may leave a matrix indefinite; clipped eigenvalues keep every step total.
    values = np.clip(values, floors, _VARIANCE_CEILING)
    return np.asarray((vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2))


def recentred_step(
    mixture: Mixture, moments: Moments, second_std: float, rules: Rules = SETTLED, *, background: bool = False
) -> tuple[EStep, FloatArray]:
    """Return the E-step with moments about the means in units of the covariances, and its clip radii (K,).

    The radii are in those units.
    """
    K, d = mixture.means.shape
    # A wider ball clips less but needs more noise: the tail is as large as the relative noise.
    noise = second_std / mixture.counts
    tails = np.clip(rules.tail * noise, _LEAST_TAIL, rules.largest_tail)
    if moments is Moments.TIED:
        tails = np.full(K, tails.min())
    squares = chdtri(d, tails)
    if rules.growth:
        farthest = (1.0 + np.linalg.norm(mixture.means, axis=1)) ** 2 / np.linalg.eigvalsh(mixture.covariances)[:, 0]
        # No row of the public ball is farther out.
        squares = np.minimum(np.maximum(squares, rules.growth / noise), np.minimum(farthest, _LARGEST_SQUARE))
    if background:
        squares = np.minimum(squares, np.maximum(_borders(mixture, rules), chdtri(d, _LEAST_BORDER)))
    if moments is Moments.TIED:  # one matrix for all has one unit
        squares = np.full(K, squares.max())
    radii = np.sqrt(squares)
    # Whiteners are factors over a number, which saves the kernel a second pass.
    step = _e_step(mixture, moments, rules.log_uniform if background else None)
    return replace(step, whiteners=step.factors / radii[:, None, None]), radii


def _borders(mixture: Mixture, rules: Rules) -> FloatArray:
    """Return the squared distances (K,) in units of the covariances beyond which rows belong to the background."""
    d = mixture.means.shape[1]
    logs = np.log(mixture.counts / mixture.background_count) - np.linalg.slogdet(mixture.covariances)[1] / 2.0
    return np.asarray(2.0 * (logs - d / 2.0 * math.log(2.0 * math.pi) - (rules.log_uniform or 0.0)) + _BEYOND)


def fixed_origin_step(mixture: Mixture, moments: Moments) -> EStep:
    """Return the paper's E-step: moments about the middle of the public ball, in its own units."""
    step = _e_step(mixture, moments)
    return replace(
        step,
        centres=np.zeros_like(step.means),
        whiteners=np.broadcast_to(np.eye(step.means.shape[1]), step.factors.shape).copy(),
    )


def _e_step(mixture: Mixture, moments: Moments, log_uniform: float | None = None) -> EStep:
    factors = np.linalg.inv(np.linalg.cholesky(mixture.covariances))
    log_scale = np.log(mixture.weights) + np.sum(np.log(np.diagonal(factors, axis1=1, axis2=2)), axis=1)
    if log_uniform is not None:
        share = math.log(mixture.background_count / float(np.sum(mixture.counts)))
        log_scale = np.append(log_scale, share + log_uniform + mixture.means.shape[1] / 2.0 * math.log(2.0 * math.pi))
    diagonal = moments in (Moments.SPHERICAL, Moments.DIAG)
    return EStep(False, log_scale, mixture.means, factors, diagonal, mixture.means, factors)


def recentred_update(
    mixture: Mixture,
    radii: FloatArray,
    released: Released,
    moments: Moments,
    prior: Prior | None = None,
    rules: Rules = SETTLED,
) -> Mixture:
    """Return the M-step on whitened moments, weighed against the previous parameters by how much of the step is noise.

    Maximum likelihood moves the old parameters by a shift and a shape in whitened units, and a prior pulls them back.
    The step is taken whole while it exceeds its noise, and averaged over releases (gain 2 / (age + 2)) afterwards.
    """
    d = mixture.means.shape[1]
    counts, shift = released.safe_counts(), released.mean_u() * radii[:, None]
    sizes = np.sqrt(np.trace(mixture.covariances, axis1=1, axis2=2) / d)
    restored = np.ones(len(radii), dtype=np.bool_)
    if rules.cautious:  # far out there is no tail to put back, and beyond the border it is the background's
        restored = radii**2 < 2.0 * chdtri(d, _LEAST_TAIL)
        if released.background is not None:
            restored &= radii**2 < (1.0 - 1e-9) * _borders(mixture, rules)
    restored = np.full(len(radii), np.all(restored)) if moments is Moments.TIED else restored
    # Later releases weigh more: the first ones are about parameters that had not settled.
    floor = 2.0 / (mixture.age + 2.0)
    shape, shape_gain = _whitened_covariances(released, radii, sizes, counts, moments, restored, rules, floor)
    shift_noise = d * (released.sum_std / counts * radii) ** 2
    gain = _gain(np.sum(shift**2, axis=1), shift_noise, floor)
    lower = np.linalg.cholesky(mixture.covariances)
    target = Mixture(
        counts=counts,
        means=inside_ball(mixture.means + np.einsum("kij,kj->ki", lower, shift)),
        covariances=shaped(lower @ shape @ np.swapaxes(lower, 1, 2), counts, moments, rules.floor),
        background=_averaged(mixture.background, released, floor),
    )
    if prior is not None:
        target = maximum_a_posteriori(target, prior, moments)
    return _blend(mixture, target, gain, shape_gain, moments, rules.floor)


def _averaged(old: Count | None, released: Released, floor: float) -> Count | None:
    """Return the count of the background after a release, averaged as the parameters are."""
    if released.background is None:
        return old
    new = Count(released.background, released.count_std)
    if old is None:
        return new
    step = np.array([(new.value - old.value) ** 2])
    gain = float(_gain(step, np.array([new.std**2]), floor)[0])
    return Count((1.0 - gain) * old.value + gain * new.value, math.hypot((1.0 - gain) * old.std, gain * new.std))


def _blend(
    old: Mixture, new: Mixture, gain: FloatArray, shape_gain: FloatArray, moments: Moments, floor: float
) -> Mixture:
    counts = (1.0 - gain) * old.counts + gain * new.counts
    g = shape_gain[:, None, None]
    return Mixture(
        counts=counts,
        means=(1.0 - gain)[:, None] * old.means + gain[:, None] * new.means,
        covariances=shaped((1.0 - g) * old.covariances + g * new.covariances, counts, moments, floor),
        age=old.age + 1,
        background=new.background,
    )


def _gain(displacement: FloatArray, noise: FloatArray, floor: float) -> FloatArray:
    """Return the share of a step to take: the part of its squared length that is not noise, at least `floor`."""
    # Counts that noise drives to their limit twice have no displacement, and a quotient by it would overflow.
    return np.clip(1.0 - _CLEARLY * noise / np.maximum(displacement, 1e-9 * noise + 1e-300), floor, 1.0)


def _whitened_covariances(
    released: Released,
    radii: FloatArray,
    sizes: FloatArray,
    counts: FloatArray,
    moments: Moments,
    restored: NDArray[np.bool_],
    rules: Rules,
    floor: float,
) -> tuple[FloatArray, FloatArray]:
    """Return covariances (K, d, d) in units of the previous ones, and the share of the step to them to take (K,).

    Clipped tails are put back where they are to be `restored`.
    """
    (K, d), eye = released.sums.shape, np.eye(released.sums.shape[1])
    shift, seconds, totals = released.spread_shift(), released.seconds, counts
    outer = shift[:, :, None] * shift[:, None, :]
    bias = (released.sum_std / counts) ** 2  # the square of a noisy shift exceeds that of the shift by its variance
    if moments is Moments.TIED:
        totals = np.array([counts.sum()])
        outer, bias = np.tensordot(counts, outer, axes=1)[None] / totals, np.array([counts @ bias]) / totals
    second = seconds / totals[:, None, None] - outer + bias[:, None, None] * eye
    mean_square = np.trace(second, axis1=1, axis2=2)
    noise = released.second_std / totals
    unit = radii[: len(totals)] * sizes[: len(totals)]
    trace_std = trace_noise(released.second_std, d, moments) / totals
    restored = restored[: len(totals)]
    least = np.where(restored, 0.05, np.maximum(trace_std, 1e-12))
    plain = np.maximum(mean_square, least) / d
    variance = pool_variances(np.where(restored, unclip(mean_square, d), plain), unit, mean_square, trace_std)
    if moments is Moments.SPHERICAL:
        slope = variance / np.maximum(mean_square, least)
        shape = np.clip((variance * radii**2)[:, None, None] * eye, 0.0, _LARGEST_RATIO)
        return shape, _gain(_squares(shape - eye), d * (slope * noise * radii**2) ** 2, floor)
    scale = radii[: len(totals)] ** 2 * d * variance / np.maximum(mean_square, least)
    raw, noise = second * scale[:, None, None], noise * scale
    shape = _shrunk(raw, noise, moments, cautious=rules.cautious)
    if rules.cautious:
        gain = _gain_of_shrunk(_squares(raw - eye), noise, d, moments, floor)
    else:
        gain = _gain(_squares(shape - eye), moments.size(d) * noise**2, floor)
    return np.broadcast_to(shape, (K, d, d)), np.broadcast_to(gain, K)


def _squares(matrices: FloatArray) -> FloatArray:
    return np.asarray(np.sum(matrices**2, axis=(1, 2)))


def _gain_of_shrunk(displacement: FloatArray, noise: FloatArray, d: int, moments: Moments, floor: float) -> FloatArray:
    """Return the share (K,) of a step to take to shapes that `_shrunk` has drawn the noise out of, at least `floor`.

    `_gain` would take the same noise off the step a second time: covariances that are far too wide in a few thin
    directions would hardly move. Here noise only decides whether a step is clear, and large noise shortens it.

    Args:
        displacement: squared distances (K,) of the shapes from the identity, before they were shrunk.
        noise: standard deviations (K,) of the noise on each of their numbers.
        d: number of columns.
        moments: form of the shapes.
        floor: minimum.
    """
    noise, numbers = np.maximum(noise, 1e-12), moments.size(d)
    excess = (displacement / noise**2 - numbers) / math.sqrt(2.0 * numbers)
    clear = np.clip((excess - _DOUBTFUL) / (_CLEAR - _DOUBTFUL), 0.0, 1.0)
    trusted = np.minimum(1.0, _TRUSTED / (spectral_noise(1.0, d, moments) * noise)) ** 2
    return np.asarray(np.maximum(clear * trusted, floor))


def _shrunk(shape: FloatArray, noise: FloatArray, moments: Moments, *, cautious: bool) -> FloatArray:
    """Shrink towards a multiple of the identity as far as the rest is noise, and bound the eigenvalues.

    Cautious: towards a multiple of what all components have in common, which is shrunk in the same way.
    """
    d = shape.shape[1]
    eye = np.eye(d)
    level = np.trace(shape, axis1=1, axis2=2)[:, None, None] / d
    least: FloatArray | float = _LEAST_RATIO
    if cautious:
        level = np.maximum(level, _LEAST_RATIO)
        relative = np.maximum(noise / level[:, 0, 0], 1e-12)
        precision = relative**-2.0
        common = np.tensordot(precision / np.sum(precision), shape / level, axes=1)[None]
        common = _drawn(common, eye, np.array([np.sum(precision) ** -0.5]), moments)
        shape = level * _drawn(shape / level, common, relative, moments)
        least = np.clip(_RATIO_PER_NOISE * spectral_noise(1.0, d, moments) * noise, least, _LARGEST_LEAST_RATIO)[
            :, None
        ]
    else:
        shape = _drawn(shape, level * eye, noise, moments)
    values, vectors = np.linalg.eigh(shape)
    values = np.clip(values, least, _LARGEST_RATIO)
    return np.asarray((vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2))


def _drawn(matrices: FloatArray, to: FloatArray, noise: FloatArray, moments: Moments) -> FloatArray:
    """Return matrices (K, d, d) drawn towards others as far as noise on each number explains the difference."""
    rest = np.sum((matrices - to) ** 2, axis=(1, 2))
    numbers = moments.size(matrices.shape[1]) - 1
    keep = np.maximum(0.0, 1.0 - numbers * noise**2 / np.maximum(rest, 1e-300))
    return np.asarray(to + keep[:, None, None] * (matrices - to))


def fixed_origin_update(released: Released, moments: Moments) -> Mixture:
    """Return the paper's M-step: Sigma = M / N - mu mu^T from raw moments.

    Eigenvalues are raised to at least their noise: a variance that noise made tiny would attract every row.
    """
    counts, means = released.safe_counts(), released.mean_u()
    (K, d), outer = means.shape, means[:, :, None] * means[:, None, :]
    if moments is Moments.TIED:
        pooled = released.seconds[0] / counts.sum() - np.tensordot(counts / counts.sum(), outer, axes=1)
        raw, noise = np.broadcast_to(pooled, (K, d, d)), np.full(K, released.second_std / counts.sum())
    else:
        raw, noise = released.seconds / counts[:, None, None] - outer, released.second_std / counts
    floors = np.clip(spectral_noise(1.0, d, moments) * noise, VARIANCE_FLOOR, 1.0)
    return Mixture(counts, means, shaped(raw, counts, moments, floors))


def maximum_a_posteriori(mixture: Mixture, prior: Prior, moments: Moments) -> Mixture:
    """Return the paper's MAP estimates from the maximum-likelihood ones (section 4.1)."""
    d, N, mu = mixture.means.shape[1], mixture.counts, mixture.means
    n = N[:, None, None]
    pull = prior.kappa * n / (prior.kappa + n) * mu[:, :, None] * mu[:, None, :]
    covariances = (prior.scale * np.eye(d) + n * mixture.covariances + pull) / (prior.nu + n + d + 2.0)
    return replace(
        mixture,
        counts=np.maximum(N + prior.concentration - 1.0, 1e-12),
        means=N[:, None] / (N[:, None] + prior.kappa) * mu,
        covariances=shaped(covariances, N, moments),
    )
