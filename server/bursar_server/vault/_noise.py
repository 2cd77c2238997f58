"""The one source of noise: exact discrete samplers over 64-bit integers, and OpenDP's choices and coins.

No other module of the server draws noise. There is no seed, no environment variable and no configuration on this path.
Tests pass a session another source through its constructor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from opendp import domains, measurements, measures, metrics, mod

from bursar_server.vault import _sampling

# Not through `opendp.prelude`, which imports polars and scikit-learn where installed and delays every start by seconds.
mod.enable_features("contrib")

MAX_SCALE = 2.0**56
"""Maximum scale.

A sum of up to 2^26 rows is at most 2^62 and has 64 scales of room to 2^63, where integers saturate; larger sums have
less.
"""


@dataclass(frozen=True)
class GaussianNoise:
    """Discrete Gaussian noise on every coordinate; `scale` is sigma in lattice units."""

    scale: float

    def __post_init__(self) -> None:
        _check_scale(self.scale)


@dataclass(frozen=True)
class LaplaceNoise:
    """Discrete Laplace noise on every coordinate; `scale` is b in lattice units."""

    scale: float

    def __post_init__(self) -> None:
        _check_scale(self.scale)


@dataclass(frozen=True)
class SelectionNoise:
    """Gumbel noise on every score before the largest is chosen; `scale` is in lattice units.

    A score q is chosen with probability proportional to exp(q / scale).
    """

    scale: float

    def __post_init__(self) -> None:
        _check_scale(self.scale)


Noise = GaussianNoise | LaplaceNoise
"""Noise that is added to a sum."""


def noise_std(noise: Noise, lattice: float) -> float:
    """Return the standard deviation of the noise on one number of a release, in real units."""
    # The variance of a Laplace variable with scale b is 2 b^2. Discreteness is neglected: scales are far above 1.
    return (1.0 if isinstance(noise, GaussianNoise) else math.sqrt(2.0)) * noise.scale * lattice


class NoiseSource(Protocol):
    """Source of noise on integer sums, and of noisy choices among integer scores."""

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return `sums` plus independent noise on every coordinate."""

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Return the position of the largest of `scores` (n,), n >= 1, after independent noise on each."""


class OpenDPNoise:
    """Noise from the operating system's randomness through OpenDP.

    Its algorithms are 1 to 3 of Canonne, Kamath and Steinke (2020).
    """

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return `sums` (any shape) plus independent noise on every coordinate."""
        return np.asarray(measurement_of(noise)(sums.ravel().tolist()), dtype=np.int64).reshape(sums.shape)

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Return the position of the largest of `scores` (n,), n >= 1, after independent Gumbel noise on each."""
        return int(selection_of(noise)(scores.tolist()))


class ExactNoise(OpenDPNoise):
    """Noise of the same laws drawn a vector at a time by `_sampling`.

    About thirty times as fast; choices are OpenDP's.
    """

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return `sums` (any shape) plus independent noise on every coordinate; results saturate at 64 bits."""
        draw = _sampling.gaussian if isinstance(noise, GaussianNoise) else _sampling.laplace
        # Drawn without the sums, so that time and number of draws do not depend on them.
        drawn = draw(noise.scale, sums.size).reshape(sums.shape)
        return _saturating(sums, drawn)


def _saturating(sums: NDArray[np.int64], drawn: NDArray[Any]) -> NDArray[np.int64]:
    """Return sums + drawn, clipped to 64-bit integers; `drawn` is int64 or Python integers."""
    # Clipping is post-processing of sum plus noise. Wrapping would be, too, but would turn a large number into its
    # opposite.
    limits = np.iinfo(np.int64)
    if drawn.dtype == object:
        return np.asarray(np.clip(sums.astype(object) + drawn, limits.min, limits.max), dtype=np.int64)
    # A sum has overflowed exactly if both summands have the sign that the wrapped total has not.
    total = sums + drawn
    overflowed = ((sums ^ total) & (drawn ^ total)) < 0
    return np.where(overflowed, np.where(drawn < 0, limits.min, limits.max), total)


def measurement_of(noise: Noise) -> Any:
    """Return OpenDP's measurement that adds this noise to integers.

    Its map prices L2 (Gaussian) or L1 (Laplace) distances.
    """
    # "i64" as a string: OpenDP maps Python's `int` to i32, which would saturate every sum on this lattice.
    domain = domains.vector_domain(domains.atom_domain(T="i64"))
    if isinstance(noise, GaussianNoise):
        return measurements.make_gaussian(domain, metrics.l2_distance(T=float), scale=noise.scale)
    return measurements.make_laplace(domain, metrics.l1_distance(T="i64"), scale=noise.scale)


def selection_of(noise: SelectionNoise) -> Any:
    """Return OpenDP's report-noisy-max with Gumbel noise.

    Its map prices the largest change of any score, either way.
    """
    domain, metric = domains.vector_domain(domains.atom_domain(T="i64")), metrics.linf_distance(T="i64")
    # OpenDP chooses the law by the measure: Gumbel for zero-concentrated divergence, permute-and-flip for pure.
    return measurements.make_noisy_max(domain, metric, measures.zero_concentrated_divergence(), scale=noise.scale)


def fair_bits(number: int) -> int:
    """Return an integer of `number` fair, independent bits; 0 if `number` is 0."""
    size = -(-number // 8)
    # Randomised response on zeros flips each bit with probability f / 2; f = 1 is exact in floating point.
    domain = domains.bitvector_domain(max_weight=1)
    coins = measurements.make_randomized_response_bitvec(domain, metrics.discrete_distance(), f=1.0)
    return int.from_bytes(coins(bytes(size)), "big") & ((1 << number) - 1)


def _check_scale(scale: float) -> None:
    if not 0 < scale <= MAX_SCALE:
        raise ValueError(f"a noise scale must lie in (0, {MAX_SCALE:g}], got {scale}")
