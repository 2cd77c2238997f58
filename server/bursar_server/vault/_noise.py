"""The one source of noise: exact discrete samplers over 64-bit integers, and OpenDP's choices and coins.

Nothing else in the server draws noise. There is no seed, no environment variable and no configuration on this path;
tests hand a session another source through its constructor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from opendp import domains, measurements, measures, metrics, mod

from bursar_server.vault import _sampling

# Without `opendp.prelude`, which loads polars and scikit-learn where they are installed: seconds of every start.
mod.enable_features("contrib")

MAX_SCALE = 2.0**56
"""Integers saturate at 2^63. Sums of 2^26 rows are below 2^62; noise beyond 64 scales does not occur (`_noise.md`)."""


@dataclass(frozen=True)
class GaussianNoise:
    """Discrete Gaussian on every coordinate; `scale` is sigma in lattice units."""

    scale: float

    def __post_init__(self) -> None:
        _check_scale(self.scale)


@dataclass(frozen=True)
class LaplaceNoise:
    """Discrete Laplace on every coordinate; `scale` is b in lattice units."""

    scale: float

    def __post_init__(self) -> None:
        _check_scale(self.scale)


@dataclass(frozen=True)
class SelectionNoise:
    """Gumbel noise on every score before the largest is chosen; `scale` in lattice units.

    A score q is chosen with probability proportional to exp(q / scale).
    """

    scale: float

    def __post_init__(self) -> None:
        _check_scale(self.scale)


Noise = GaussianNoise | LaplaceNoise
"""What is added to a sum."""


def noise_std(noise: Noise, lattice: float) -> float:
    """Standard deviation of the noise on every number of a release, in real units."""
    return (1.0 if isinstance(noise, GaussianNoise) else math.sqrt(2.0)) * noise.scale * lattice


class NoiseSource(Protocol):
    """Adds noise to integers, or says which is the largest after noise."""

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return `sums` plus independent noise on every coordinate."""

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Return the position of the largest of `scores` (n,), n >= 1, after independent noise on each."""


class OpenDPNoise:
    """The operating system's randomness through OpenDP (Canonne, Kamath and Steinke 2020, algorithms 1-3)."""

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return `sums` (any shape) plus independent noise on every coordinate."""
        return np.asarray(measurement_of(noise)(sums.ravel().tolist()), dtype=np.int64).reshape(sums.shape)

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Return the position of the largest of `scores` (n,), n >= 1, after independent Gumbel noise on each."""
        return int(selection_of(noise)(scores.tolist()))


class ExactNoise(OpenDPNoise):
    """The same laws, vectors at a time: `_sampling`, some thirty times as fast; choices are OpenDP's."""

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return `sums` (any shape) plus independent noise on every coordinate; saturates."""
        draw = _sampling.gaussian if isinstance(noise, GaussianNoise) else _sampling.laplace
        drawn = draw(noise.scale, sums.size).reshape(sums.shape)
        return _saturating(sums, drawn)


def _saturating(sums: NDArray[np.int64], drawn: NDArray[Any]) -> NDArray[np.int64]:
    """Return sums + drawn, int64 or Python's integers, or the nearest 64-bit integer."""
    limits = np.iinfo(np.int64)
    if drawn.dtype == object:
        return np.asarray(np.clip(sums.astype(object) + drawn, limits.min, limits.max), dtype=np.int64)
    total = sums + drawn
    overflowed = ((sums ^ total) & (drawn ^ total)) < 0
    return np.where(overflowed, np.where(drawn < 0, limits.min, limits.max), total)


def measurement_of(noise: Noise) -> Any:
    """OpenDP's measurement on integer vectors that adds this noise; its map prices L2 (Gaussian) or L1 distances."""
    # "i64" in words: OpenDP takes Python's int for i32, which saturates at once on this lattice.
    domain = domains.vector_domain(domains.atom_domain(T="i64"))
    if isinstance(noise, GaussianNoise):
        return measurements.make_gaussian(domain, metrics.l2_distance(T=float), scale=noise.scale)
    return measurements.make_laplace(domain, metrics.l1_distance(T="i64"), scale=noise.scale)


def selection_of(noise: SelectionNoise) -> Any:
    """OpenDP's report-noisy-max with Gumbel noise; its map prices how far any one score moves, either way."""
    domain, metric = domains.vector_domain(domains.atom_domain(T="i64")), metrics.linf_distance(T="i64")
    # The measure decides the law of the noise: Gumbel for zero-concentrated divergence, exponential for pure.
    return measurements.make_noisy_max(domain, metric, measures.zero_concentrated_divergence(), scale=noise.scale)


def fair_bits(number: int) -> int:
    """An integer of `number` fair, independent bits; 0 for none."""
    size = -(-number // 8)
    # Randomised response that keeps each bit of zeros with probability 1/2; f = 1 is exact in floating point.
    domain = domains.bitvector_domain(max_weight=1)
    coins = measurements.make_randomized_response_bitvec(domain, metrics.discrete_distance(), f=1.0)
    return int.from_bytes(coins(bytes(size)), "big") & ((1 << number) - 1)


def _check_scale(scale: float) -> None:
    if not 0 < scale <= MAX_SCALE:
        raise ValueError(f"a noise scale must lie in (0, {MAX_SCALE:g}], got {scale}")
