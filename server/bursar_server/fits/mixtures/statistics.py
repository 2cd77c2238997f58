"""The one statistic of EM steps, responsibilities times (a, b u, c svec(u u^T)), and bounds of one row's contribution.

Park et al. 2016, section 4 and equations 8-12, as one joint vector of sums; proof in `statistics.md`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures import array_kernel, kernel
from bursar_server.vault import Bounds, Factor, Statistic

AffineMaps = tuple[FloatArray, FloatArray, FloatArray]
"""Forms, units and offsets of `affine_maps`."""

LATTICE = 2.0 ** (-2 * kernel.BITS)
"""Size of one lattice unit of a release."""


_LEAST_RADIUS = 1e-60
"""Minimum radius: positions divided by it stay finite."""

_INTERVALS = 128
"""Number of intervals of the certified search in `_single_distance`; more give a tighter bound. Chosen, not tuned."""


class Moments(enum.IntEnum):
    """Second moments that are released beside counts and sums; numbered as in the kernel."""

    SPHERICAL = kernel.MOMENTS_SPHERICAL
    """|u|^2 of each component."""
    DIAG = kernel.MOMENTS_DIAG
    """u_i^2 of each component."""
    FULL = kernel.MOMENTS_FULL
    """svec(u u^T) of each component: the diagonal, and sqrt(2) times what is below it."""
    TIED = kernel.MOMENTS_TIED
    """svec(u u^T) summed over the components."""

    def size(self, d: int) -> int:
        """Return the number of second moments of a component (TIED: of the mixture) in d dimensions."""
        return (1, d, d * (d + 1) // 2, d * (d + 1) // 2)[self]


def trace_noise(second_std: float, d: int, moments: Moments) -> float:
    """Return the standard deviation of the noise on the trace of a second moment."""
    return second_std * (1.0 if moments is Moments.SPHERICAL else math.sqrt(d))


def spectral_noise(second_std: float, d: int, moments: Moments) -> float:
    """Return about the largest eigenvalue of the noise on a second moment.

    It is sqrt(2 d) standard deviations for a symmetric matrix.
    """
    if moments is Moments.SPHERICAL:
        return second_std / d
    if moments is Moments.DIAG:
        return second_std * math.sqrt(2.0 * math.log(d + 1.0))
    return second_std * math.sqrt(2.0 * d)


@dataclass(frozen=True)
class Weights:
    """Relative precisions of counts, sums and second moments: the same noise is added to a N, b S and c M."""

    a: float
    b: float
    c: float

    def __post_init__(self) -> None:
        if not (0 < self.a <= 1 and 0 < self.b <= 1 and 0 < self.c <= 1):
            raise ValueError(f"weights must satisfy 0 < a, b, c <= 1, got {self}")


@dataclass(frozen=True)
class BallFrame:
    """Public map from the data's units into the unit ball: z = (x - centre) / scale, clipped to norm 1. Shapes (d,)."""

    centre: FloatArray
    scale: FloatArray


@dataclass(frozen=True)
class EStep:
    """Parameters of an E-step, released or public, in the unit ball.

    Attributes:
        hard: True to assign a row to its best component as a whole, False for proportional responsibilities.
        log_scale: log weight plus log determinant of the factor, (K,); or (K + 1,) with a background, the same density
            everywhere: its log weight plus log density, less that of (2 pi)^(-d / 2).
        means: means, (K, d).
        factors: lower triangular matrices, (K, d, d); factors[k]^T factors[k] is the precision.
        diagonal: True if factors and whiteners are diagonal; saves time only.
        centres: origins of the moments, (K, d).
        whiteners: lower triangular matrices, (K, d, d); u = whiteners[k] (z - centres[k]), clipped to the unit ball. A
            second pass is saved if they are factors[k] over a number, and the centres are the means.
    """

    hard: bool
    log_scale: FloatArray
    means: FloatArray
    factors: FloatArray
    diagonal: bool
    centres: FloatArray
    whiteners: FloatArray

    @property
    def background(self) -> bool:
        """True with a background, of which only the count is released."""
        return len(self.log_scale) > len(self.means)


@dataclass(frozen=True)
class _MomentKernel:
    frame: BallFrame
    step: EStep
    moments: Moments
    weights: FloatArray

    def __post_init__(self) -> None:
        if not self.step.means.shape[1] <= kernel.MOST_COLUMNS:
            raise ValueError(f"expected at most {kernel.MOST_COLUMNS} columns, got {self.step.means.shape[1]}")
        if len(self.step.log_scale) - len(self.step.means) not in (0, 1):
            raise ValueError("expected a log scale for each component, and at most one for a background")

    @cached_property
    def shares(self) -> AffineMaps:
        """Maps of positions into those whose squared norm is in a component's exponent."""
        return affine_maps(self.step.factors, self.step.means)

    @cached_property
    def radii(self) -> FloatArray | None:
        """Radii (K,) of the unit ball of moments in the units of `shares`; None if moments have another origin."""
        s = self.step
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            radii = np.asarray(s.factors[:, 0, 0] / s.whiteners[:, 0, 0])
            # If whiteners are multiples of factors, positions about the components need no second map.
            same = np.allclose(s.whiteners * radii[:, None, None], s.factors, rtol=1e-9, atol=0.0)
        return radii if same and np.array_equal(s.centres, s.means) and np.all(radii > _LEAST_RADIUS) else None

    @cached_property
    def places(self) -> AffineMaps:
        """Maps of positions into those of which moments are taken; empty if `radii` suffice."""
        matrices, origins = self.step.whiteners, self.step.centres
        return affine_maps(matrices[:0], origins[:0]) if self.radii is not None else affine_maps(matrices, origins)

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments of `kernel.moment_sums` and `array_kernel.moment_sums` after rows and sums."""
        radii = np.ones(len(self.step.means)) if self.radii is None else self.radii
        step = (self.step.hard, self.step.log_scale, self.shares, self.places, self.step.diagonal, radii)
        return (self.frame.centre, self.frame.scale, *step, int(self.moments), self.weights)

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        kernel.moment_sums(block, present, out, *self.arguments)

    def on(self, xp: Any, device: Any) -> _OnDevice:
        """Implement `bursar_server.vault._device.DeviceKernel`."""
        return _OnDevice(self, xp, device)


@dataclass(frozen=True)
class _OnDevice:
    kernel: _MomentKernel
    xp: Any
    device: Any

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        array_kernel.moment_sums(self.xp, self.device, block, present, out, *self.kernel.arguments)


def affine_maps(matrices: FloatArray, origins: FloatArray) -> AffineMaps:
    """Return the maps z -> matrices[k] (z - origins[k]) of positions in units of 1 / `POSITION`, for kernels.

    Args:
        matrices: (K, d, d), any numbers; they are clipped to finite ones up to 1e60.
        origins: (K, d), any numbers, clipped in the same way.

    Returns:
        forms (K, d, d), integers up to `FORM`; units (K, d), powers of two; offsets (K, d): forms z units - offsets.
    """
    matrices, origins = (np.clip(np.nan_to_num(numbers), -1e60, 1e60) for numbers in (matrices, origins))
    # One power of two for each row of a matrix: integers times powers of two keep products exact.
    exponents = np.frexp(np.abs(matrices).max(axis=2, initial=0.0))[1] - int(math.log2(kernel.FORM))
    forms = np.rint(np.ldexp(matrices, -exponents[:, :, None]))
    offsets = np.einsum("kij,kj->ki", np.ldexp(forms, exponents[:, :, None]), origins)
    return forms, np.ldexp(1.0 / kernel.POSITION, exponents), offsets


def moment_statistic(frame: BallFrame, step: EStep, moments: Moments, weights: Weights) -> Statistic:
    """Return the joint moments of one step: K counts, K x d sums, second moments, flat, times a, b and c.

    The count of a background follows at the end, if the step has one.
    """
    K, d = step.means.shape
    sums = _MomentKernel(frame, step, moments, np.array([weights.a, weights.b, weights.c]))
    groups = 1 if moments is Moments.TIED else K
    return Statistic(
        name=f"moments of {K} components",
        kernel=sums,
        factors=(Factor("responsibilities", kernel.BITS), Factor("features", kernel.BITS)),
        shape=(K + K * d + groups * moments.size(d) + step.background,),
        bounds=moment_bounds(K, d, moments, weights, background=step.background),
        largest=2**kernel.BITS * math.ceil(2**kernel.BITS * max(weights.a, weights.b, weights.c)),
    )


@lru_cache(maxsize=256)  # plans and steps need the same few bounds, which take milliseconds of exact fractions
def moment_bounds(K: int, d: int, moments: Moments, weights: Weights, *, background: bool = False) -> Bounds:
    """Return bounds of one row's contribution to `moment_statistic`, in lattice units; from public numbers only."""
    a, b, c = (Fraction(w) for w in (weights.a, weights.b, weights.c))
    unit = 2**kernel.BITS
    rounding = 1 + Fraction(
        1, 2**40
    )  # a float product may exceed the real one by 2^-53 of itself before it is truncated
    norm_squared = a * a + b * b + c * c
    if K == 1:
        distance_squared = _single_distance(b * b, c * c, d, moments)
        if background:  # a row of the component and one of the background have different counts
            distance_squared = max(distance_squared, norm_squared + a * a)
    else:
        distance_squared = 2 * norm_squared - 2 * min(
            Fraction(0), _least_inner_product(a * a, b * b, c * c, d, moments)
        )
    pooled = K if moments is Moments.TIED else 1
    truncation = 2 * _ceil_sqrt(Fraction(1 + K + 9 * d * pooled))
    distance = unit * (_ceil_sqrt(distance_squared * rounding * unit**2) + truncation)
    l1 = math.ceil(
        rounding * unit**2 * (a + b * Fraction(_ceil_sqrt(Fraction(d) * 2**40), 2**20) + c * _l1_moments(d, moments))
    )
    return Bounds(
        l1=l1,
        l2_squared=math.ceil(unit**4 * norm_squared * rounding),
        l1_distance=2 * l1,
        l2_squared_distance=distance * distance,
    )


def _least_inner_product(a2: Fraction, b2: Fraction, c2: Fraction, d: int, moments: Moments) -> Fraction:
    """Return the least <f(u), f(u')> over the unit ball: min over t in [-1, 1] of a2 + b2 t + c2 t^2 (diag: / d)."""
    c2 = c2 / d if moments is Moments.DIAG else c2
    if b2 <= 2 * c2:
        return a2 - b2 * b2 / (4 * c2)
    return a2 - b2 + c2


def _single_distance(b2: Fraction, c2: Fraction, d: int, moments: Moments) -> Fraction:
    """Return the largest |f(u) - f(u')|^2 over the unit ball for equal counts.

    It is the maximum of 2 b2 (1 - t) + 2 c2 (1 - t^2 / e).
    """
    if moments is Moments.SPHERICAL:
        # (2 - x)^2 b2 + (x (2 - x))^2 c2 over [0, 1], a falling and a rising term: by intervals.
        ends = [Fraction(i, _INTERVALS) for i in range(_INTERVALS + 1)]
        return max((2 - x) ** 2 * b2 + (y * (2 - y)) ** 2 * c2 for x, y in pairwise(ends))
    e = d if moments is Moments.DIAG else 1
    if b2 * e <= 2 * c2:
        return 2 * b2 + 2 * c2 + b2 * b2 * e / (2 * c2)
    return 4 * b2 + 2 * c2 * (1 - Fraction(1, e))


def _l1_moments(d: int, moments: Moments) -> Fraction:
    """Return the largest L1 norm of a component's second moments over the unit ball."""
    if moments in (Moments.FULL, Moments.TIED):  # (1 - 1/sqrt 2) |u|_2^2 + |u|_1^2 / sqrt 2, with |u|_1^2 <= d
        return 1 + Fraction(d - 1) * Fraction(7072, 10000)
    return Fraction(1)


def _ceil_sqrt(x: Fraction) -> int:
    root = math.isqrt(math.ceil(x))
    return root if root * root >= x else root + 1
