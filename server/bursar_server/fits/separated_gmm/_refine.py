"""Components that no wide gap separates: noisy EM inside parts that could not be split, and a check of what it says.

Beyond Kamath et al. 2019, whose components are farther apart. A part gets as many components as are still missing, by
FitDPEM (Park et al. 2016, from a start by splitting along principal axes); those that turn out to overlap are joined
again, so that one component stays one. All that decides is released.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits.dpem import _fit
from bursar_server.fits.dpem._em import Mixture
from bursar_server.fits.dpem._schedule import default_iterations, price, sketch
from bursar_server.fits.dpem._statistics import Frame
from bursar_server.fits.separated_gmm._mixture import joined, least_apart
from bursar_server.fits.separated_gmm._parts import Parts
from bursar_server.fits.separated_gmm._tree import Leaf
from bursar_server.vault import GaussianNoise, Noise, Statistic, part_sensitivity

_SETTLING = 8
"""Steps beyond FitDPEM's default: components that overlap settle slowly."""

_DISTINCT = 1.5
"""Components count as two if the plane between them is so many deviations from both.

Gaussians that are four deviations apart are at 2. Measured on one component: a normal one stays below 1, one that is
uniform over a square below 1.45.
"""

_HALVES = 0.8
"""Means of a normal component's halves, in deviations from its own: sqrt(2 / pi)."""

_CLEAR = 1.0
"""Relative error of a covariance, with a later step's noise, from which it is not looked at a second time."""

_SIZE = 0.5
"""Of the smallest component's rows: what a component must have in the end."""


_ROUNDS, _FIRST = 3, 0.4
"""How often two components are joined and another is halved, if there is more than one; the share of the first look."""

_AGAIN = 8
"""Steps of a later look."""


class _Within:
    """Noisy sums over one part, as FitDPEM asks for them."""

    def __init__(self, parts: Parts, leaf: Leaf) -> None:
        self.parts = parts
        self.leaf = leaf

    def progress(self, step: int, steps: int) -> None:
        """Nobody is told."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> NDArray[np.float64]:
        """See `Session.noisy_sum`."""
        return self.parts.forest.noisy_sum(self.leaf.node, statistic, GaussianNoise(noise.scale))


def refine(parts: Parts, leaves: list[Leaf], smallest: float, share: float) -> Mixture | None:
    """The components of all leaves; None if no leaf has more than one, or none could have."""
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
    """Whether noise on a covariance of the smallest component leaves its shape to be seen; else noise makes shapes."""
    s = parts.settings
    step = _steps(parts, leaf, K, _FIRST * share, again=False)[-1]
    noise = step.std / step.weights.c / smallest * (1.6 * s.d + 2.0)
    return noise * math.sqrt(s.moments.size(s.d) / s.d) < _CLEAR


def _steps(parts: Parts, leaf: Leaf, K: int, share: float, *, again: bool) -> tuple[_fit.Step, ...]:
    """FitDPEM's releases: the first look, or a later one."""
    s = parts.settings
    T = _AGAIN if again else default_iterations(K, kmeans=False, splitting=True) + _SETTLING
    sketches = sketch(K, s.d, T, s.moments, kmeans=False, recentred=True, splitting=not again, pure=False)
    amount = parts.amount(leaf.node, share)
    return price(sketches, s.d, amount, s.adjacency, s.unit_cap, pure=False, rule=part_sensitivity)


def _searched(parts: Parts, leaf: Leaf, K: int, smallest: float, share: float) -> Mixture:
    """Components of a leaf that are apart: by FitDPEM, and moves from where there are too many to where too few are.

    A move joins the two that are least apart and halves the longest, as Ueda et al. (2000) have it, and runs a few more
    steps. What is left of the share stays unspent.
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
    """K components: the longest are halved."""
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
    """FitDPEM on the rows of a leaf, within its ball, in the public ball's units."""
    s = parts.settings
    c, r = leaf.ball.centre, leaf.ball.radius
    steps = _steps(parts, leaf, K, share, again=start is not None)
    frame = Frame(s.frame.centre + s.frame.scale * c, s.frame.scale * r)
    within = Mixture(start.counts, (start.means - c) / r, start.covariances / r**2) if start else None
    settings = _fit.Settings(frame, K, s.moments, True, None, False, within)
    mixture = _fit.run(settings, steps, _Within(parts, leaf))
    return Mixture(mixture.counts, c + r * mixture.means, r**2 * mixture.covariances)


def _distinct(mixture: Mixture, smallest: float) -> Mixture:
    """Without components that are too small, and with those that overlap joined."""
    kept = mixture.counts >= min(_SIZE * smallest, float(mixture.counts.max()))
    mixture = Mixture(mixture.counts[kept], mixture.means[kept], mixture.covariances[kept])
    while len(mixture.counts) > 1:
        deviations, k, j = least_apart(mixture)
        if deviations >= _DISTINCT:
            break
        mixture = joined(mixture, k, j)
    return mixture


def _alone(parts: Parts, leaf: Leaf) -> Mixture:
    """A leaf that is one component: a sphere as large as its ball suggests."""
    s = parts.settings
    sigma = float(np.clip(leaf.ball.radius / (s.d**0.5 + 3.0), s.sigma_min, s.sigma_max))
    return Mixture(np.array([leaf.rows]), leaf.ball.centre[None], sigma**2 * np.eye(s.d)[None])


def _together(mixtures: list[Mixture], parts: Parts) -> Mixture:
    """All components, the largest k of them."""
    counts = np.concatenate([m.counts for m in mixtures])
    order = np.argsort(-counts)[: parts.settings.k]
    means = np.concatenate([m.means for m in mixtures])
    covariances = np.concatenate([m.covariances for m in mixtures])
    return Mixture(counts[order], means[order], covariances[order])
