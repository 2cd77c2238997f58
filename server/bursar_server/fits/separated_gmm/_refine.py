"""Components without a wide gap between them: noisy EM inside parts that could not be split, and a check of its result.

Beyond Kamath et al. 2019, whose components are farther apart. A part gets as many components as are still missing, by
FitDPEM (Park et al. 2016, from a start by splitting along principal axes). Those that turn out to overlap are merged
again, so that one component stays one. All decisions use released values.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits.mixtures.em import Mixture
from bursar_server.fits.mixtures.statistics import BallFrame
from bursar_server.fits.mixtures.steps import EMSettings, Step, default_iterations, price, sketch
from bursar_server.fits.mixtures.steps import run as run_steps
from bursar_server.fits.separated_gmm._mixture import joined, least_apart
from bursar_server.fits.separated_gmm._parts import Parts
from bursar_server.fits.separated_gmm._tree import Leaf
from bursar_server.vault import GaussianNoise, Noise, Statistic, part_sensitivity

_SETTLING = 8
"""Steps beyond FitDPEM's default: overlapping components settle slowly. Chosen, not tuned."""

_DISTINCT = 1.5
"""Minimum deviations from the plane between two components that count as two.

Gaussians that are four deviations apart are at 2. Measured on one component: a normal one stays below 1, one that is
uniform over a square below 1.45.
"""

_HALVES = 0.8
"""Distance of the means of a normal component's halves from its own mean, in deviations: sqrt(2 / pi)."""

_CLEAR = 1.0
"""Relative error of a covariance, with a later step's noise, from which there is no second search.

Chosen, not tuned.
"""

_SIZE = 0.5
"""Minimum rows of a component, as a share of the smallest component's. Chosen, not tuned."""


_ROUNDS, _FIRST = 3, 0.4
"""Maximum number of moves (two components merged, another halved), and share of the first search. Chosen, not tuned."""

_AGAIN = 8
"""Number of steps of a later search. Chosen, not tuned."""


class _Within:
    """Noisy sums over one part, in FitDPEM's protocol."""

    def __init__(self, parts: Parts, leaf: Leaf) -> None:
        self.parts = parts
        self.leaf = leaf

    def progress(self, step: int, steps: int) -> None:
        """Ignore progress: only the outer run reports it."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> NDArray[np.float64]:
        """Implement `Session.noisy_sum`."""
        return self.parts.forest.noisy_sum(self.leaf.node, statistic, GaussianNoise(noise.scale))


def refine(parts: Parts, leaves: list[Leaf], smallest: float, share: float) -> Mixture | None:
    """Return the components of all leaves; None if no leaf has more than one, or none could have."""
    missing = parts.settings.k - len(leaves)
    found: list[Mixture | None] = []
    more = False
    for leaf in leaves:
        K = min(missing + 1, int(leaf.rows / smallest))
        if missing < 1 or K < 2 or not _is_clear(parts, leaf, K, smallest, share):
            found.append(None)
            continue
        mixture = _searched(parts, leaf, K, smallest, share)
        found.append(mixture)
        more = more or len(mixture.counts) > 1
    if not more:
        return None
    return _together([_alone(parts, leaf) if m is None else m for leaf, m in zip(leaves, found, strict=True)], parts)


def _is_clear(parts: Parts, leaf: Leaf, K: int, smallest: float, share: float) -> bool:
    """Return whether noise on a covariance of a component of typical size leaves its shape visible.

    Else noise looks like shape. A smaller one may be lost; that is no reason to leave all others together.
    """
    s = parts.settings
    step = _steps(parts, leaf, K, _FIRST * share, again=False)[-1]
    noise = step.std / step.weights.c / max(smallest, leaf.rows / K) * (1.6 * s.d + 2.0)
    return noise * math.sqrt(s.moments.size(s.d) / s.d) < _CLEAR


def _steps(parts: Parts, leaf: Leaf, K: int, share: float, *, again: bool) -> tuple[Step, ...]:
    """Return FitDPEM's releases of the first search or a later one."""
    s = parts.settings
    T = _AGAIN if again else default_iterations(K, splitting=True) + _SETTLING
    sketches = sketch(K, s.d, T, s.moments, recentred=True, splitting=not again, pure=False)
    amount = parts.amount(leaf.node, share)
    return price(sketches, s.d, amount, s.adjacency, s.unit_cap, pure=False, rule=part_sensitivity)


def _searched(parts: Parts, leaf: Leaf, K: int, smallest: float, share: float) -> Mixture:
    """Return distinct components of a leaf: by FitDPEM, and moves from crowded to sparse places.

    A move merges the two closest components and halves the longest, as in Ueda et al. (2000), and runs a few more
    steps. The rest of the share stays unspent.
    """
    mixture = _fitted(parts, leaf, K, None, _FIRST * share)
    best = _distinct(mixture, smallest)
    for _ in range(_ROUNDS):
        if not 1 < len(best.counts) < K:
            break
        start = _split(joined(mixture, *least_apart(mixture)[1:]), K)
        mixture = _fitted(parts, leaf, K, start, (1.0 - _FIRST) / _ROUNDS * share)
        again = _distinct(mixture, smallest)
        best = again if len(again.counts) >= len(best.counts) else best
    return best


def _split(mixture: Mixture, K: int) -> Mixture:
    """Return K components: the longest are halved."""
    while len(mixture.counts) < K:
        values, vectors = np.linalg.eigh(mixture.covariances)
        k = int(np.argmax(values[:, -1]))
        axis = np.sqrt(values[k, -1]) * vectors[k, :, -1]
        others = [i for i in range(len(mixture.counts)) if i != k]
        half = mixture.covariances[k] - _HALVES**2 * np.outer(axis, axis)
        mixture = Mixture(
            np.append(mixture.counts[others], [mixture.counts[k] / 2.0] * 2),
            np.concatenate([mixture.means[others], mixture.means[k] + _HALVES * np.array([[1.0], [-1.0]]) * axis]),
            np.concatenate([mixture.covariances[others], [half, half]]),
        )
    return mixture


def _fitted(parts: Parts, leaf: Leaf, K: int, start: Mixture | None, share: float) -> Mixture:
    """Run FitDPEM on the rows of a leaf, within its ball; the result is in the public ball's units."""
    s = parts.settings
    c, r = leaf.ball.centre, leaf.ball.radius
    steps = _steps(parts, leaf, K, share, again=start is not None)
    frame = BallFrame(s.frame.centre + s.frame.scale * c, s.frame.scale * r)
    within = Mixture(start.counts, (start.means - c) / r, start.covariances / r**2) if start else None
    settings = EMSettings(frame, K, K, s.moments, True, None, within)
    mixture = run_steps(settings, steps, _Within(parts, leaf))
    return Mixture(mixture.counts, c + r * mixture.means, r**2 * mixture.covariances)


def _distinct(mixture: Mixture, smallest: float) -> Mixture:
    """Return the mixture without too small components, and with overlapping ones merged."""
    kept = mixture.counts >= min(_SIZE * smallest, float(mixture.counts.max()))
    mixture = Mixture(mixture.counts[kept], mixture.means[kept], mixture.covariances[kept])
    while len(mixture.counts) > 1:
        deviations, k, j = least_apart(mixture)
        if deviations >= _DISTINCT:
            break
        mixture = joined(mixture, k, j)
    return mixture


def _alone(parts: Parts, leaf: Leaf) -> Mixture:
    """Return a leaf as one component: a sphere as large as its ball suggests."""
    s = parts.settings
    sigma = float(np.clip(leaf.ball.radius / (s.d**0.5 + 3.0), s.sigma_min, s.sigma_max))
    return Mixture(np.array([leaf.rows]), leaf.ball.centre[None], sigma**2 * np.eye(s.d)[None])


def _together(mixtures: list[Mixture], parts: Parts) -> Mixture:
    """Return all components, at most the largest k."""
    counts = np.concatenate([m.counts for m in mixtures])
    order = np.argsort(-counts)[: parts.settings.k]
    means = np.concatenate([m.means for m in mixtures])
    covariances = np.concatenate([m.covariances for m in mixtures])
    return Mixture(counts[order], means[order], covariances[order])
