"""The one statistic of FitDPEM, responsibilities times (a, b u, c svec(u u^T)), and what one row can contribute.

Park et al. 2016, section 4 and equations 8-12, as one joint vector of sums; proof in `_statistics.md`.
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

from bursar_server.fits.dpem import _array_kernel, _kernel
from bursar_server.vault import Bounds, Factor, Statistic

FloatArray = NDArray[np.float64]

AffineMaps = tuple[FloatArray, FloatArray, FloatArray]
"""Forms, units and offsets of `affine_maps`."""

LATTICE = 2.0 ** (-2 * _kernel.BITS)
"""Size of one lattice unit of a release."""


_LEAST_RADIUS = 1e-60
"""Positions are divided by radii, which must leave them finite."""

_INTERVALS = 128
"""Of the certified search in `_single_distance`; more are tighter."""


class Moments(enum.IntEnum):
    """Which second moments are released beside counts and sums; numbered as the kernel has them."""

    SPHERICAL = _kernel.MOMENTS_SPHERICAL
    """|u|^2 of each component."""
    DIAG = _kernel.MOMENTS_DIAG
    """u_i^2 of each component."""
    FULL = _kernel.MOMENTS_FULL
    """svec(u u^T) of each component: the diagonal, and sqrt(2) times what is below it."""
    TIED = _kernel.MOMENTS_TIED
    """svec(u u^T) summed over the components."""

    def size(self, d: int) -> int:
        """How many second moments a component (TIED: the mixture) has in d dimensions."""
        return (1, d, d * (d + 1) // 2, d * (d + 1) // 2)[self]


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
class Frame:
    """Public map from the data's units into the unit ball: z = (x - centre) / scale, clipped to norm 1. Shapes (d,)."""

    centre: FloatArray
    scale: FloatArray


@dataclass(frozen=True)
class EStep:
    """What the E-step reads: released or public parameters in the unit ball.

    Attributes:
        hard: all of a row to the best component, instead of in proportion.
        log_scale: (K,) log weight plus log determinant of the factor.
        means: (K, d).
        factors: (K, d, d) lower triangular, factors[k]^T factors[k] the precision.
        diagonal: factors and whiteners are diagonal; saves time only.
        centres: (K, d) origins of the moments.
        whiteners: (K, d, d) lower triangular; u = whiteners[k] (z - centres[k]), clipped to the unit ball. A second
            pass is saved where they are factors[k] over a number, and the centres are the means.
    """

    hard: bool
    log_scale: FloatArray
    means: FloatArray
    factors: FloatArray
    diagonal: bool
    centres: FloatArray
    whiteners: FloatArray


@dataclass(frozen=True)
class _MomentKernel:
    frame: Frame
    step: EStep
    moments: Moments
    weights: FloatArray

    def __post_init__(self) -> None:
        if not self.step.means.shape[1] <= _kernel.MOST_COLUMNS:
            raise ValueError(f"expected at most {_kernel.MOST_COLUMNS} columns, got {self.step.means.shape[1]}")

    @cached_property
    def shares(self) -> AffineMaps:
        """Of positions, into those whose squared norm is in a component's exponent."""
        return affine_maps(self.step.factors, self.step.means)

    @cached_property
    def radii(self) -> FloatArray | None:
        """Of the unit ball of moments, (K,), in the units of `shares`; None if moments are about something else."""
        s = self.step
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            radii = np.asarray(s.factors[:, 0, 0] / s.whiteners[:, 0, 0])
            same = np.allclose(s.whiteners * radii[:, None, None], s.factors, rtol=1e-9, atol=0.0)
        return radii if same and np.array_equal(s.centres, s.means) and np.all(radii > _LEAST_RADIUS) else None

    @cached_property
    def places(self) -> AffineMaps:
        """Of positions, into those that moments are taken of; without components where `radii` say it all."""
        matrices, origins = self.step.whiteners, self.step.centres
        return affine_maps(matrices[:0], origins[:0]) if self.radii is not None else affine_maps(matrices, origins)

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """Of `_kernel.moment_sums` and `_array_kernel.moment_sums`, after the rows and the sums."""
        radii = np.ones(len(self.step.means)) if self.radii is None else self.radii
        step = (self.step.hard, self.step.log_scale, self.shares, self.places, self.step.diagonal, radii)
        return (self.frame.centre, self.frame.scale, *step, int(self.moments), self.weights)

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        _kernel.moment_sums(block, present, out, *self.arguments)

    def on(self, xp: Any, device: Any) -> _OnDevice:
        """See `bursar_server.vault._device.DeviceKernel`."""
        return _OnDevice(self, xp, device)


@dataclass(frozen=True)
class _OnDevice:
    kernel: _MomentKernel
    xp: Any
    device: Any

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        _array_kernel.moment_sums(self.xp, self.device, block, present, out, *self.kernel.arguments)


def affine_maps(matrices: FloatArray, origins: FloatArray) -> AffineMaps:
    """Maps z -> matrices[k] (z - origins[k]) of positions in units of 1 / `POSITION`, as kernels take them.

    Args:
        matrices: (K, d, d); any numbers, of which only finite ones below 1e60 make sense.
        origins: (K, d), likewise.

    Returns:
        forms (K, d, d), integers up to `FORM`; units (K, d), powers of two; offsets (K, d): forms z units - offsets.
    """
    matrices, origins = (np.clip(np.nan_to_num(numbers), -1e60, 1e60) for numbers in (matrices, origins))
    exponents = np.frexp(np.abs(matrices).max(axis=2, initial=0.0))[1] - int(math.log2(_kernel.FORM))
    forms = np.rint(np.ldexp(matrices, -exponents[:, :, None]))
    offsets = np.einsum("kij,kj->ki", np.ldexp(forms, exponents[:, :, None]), origins)
    return forms, np.ldexp(1.0 / _kernel.POSITION, exponents), offsets


def moment_statistic(frame: Frame, step: EStep, moments: Moments, weights: Weights) -> Statistic:
    """The joint moments of one step: K counts, K x d sums, then second moments, flat, times a, b and c."""
    K, d = step.means.shape
    kernel = _MomentKernel(frame, step, moments, np.array([weights.a, weights.b, weights.c]))
    groups = 1 if moments is Moments.TIED else K
    return Statistic(
        name=f"moments of {K} components",
        kernel=kernel,
        factors=(Factor("responsibilities", _kernel.BITS), Factor("features", _kernel.BITS)),
        shape=(K + K * d + groups * moments.size(d),),
        bounds=moment_bounds(K, d, moments, weights),
    )


@lru_cache(maxsize=256)  # asked in plans and in every step, of the same few schedules: milliseconds of exact fractions
def moment_bounds(K: int, d: int, moments: Moments, weights: Weights) -> Bounds:
    """What one row can contribute to `moment_statistic`, in lattice units; a function of public numbers only."""
    a, b, c = (Fraction(w) for w in (weights.a, weights.b, weights.c))
    unit = 2**_kernel.BITS
    rounding = 1 + Fraction(
        1, 2**40
    )  # a float product may exceed the real one by 2^-53 of itself before it is truncated
    norm_squared = a * a + b * b + c * c
    if K == 1:
        distance_squared = _single_distance(b * b, c * c, d, moments)
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
    """Least <f(u), f(u')> over the unit ball: min of a2 + b2 t + c2 t^2 (diag: c2 t^2 / d) over t in [-1, 1]."""
    c2 = c2 / d if moments is Moments.DIAG else c2
    if b2 <= 2 * c2:
        return a2 - b2 * b2 / (4 * c2)
    return a2 - b2 + c2


def _single_distance(b2: Fraction, c2: Fraction, d: int, moments: Moments) -> Fraction:
    """Largest |f(u) - f(u')|^2 over the unit ball for equal counts: max of 2 b2 (1 - t) + 2 c2 (1 - t^2 / e)."""
    if moments is Moments.SPHERICAL:
        # (2 - x)^2 b2 + (x (2 - x))^2 c2 over [0, 1], a falling and a rising term: by intervals.
        ends = [Fraction(i, _INTERVALS) for i in range(_INTERVALS + 1)]
        return max((2 - x) ** 2 * b2 + (y * (2 - y)) ** 2 * c2 for x, y in pairwise(ends))
    e = d if moments is Moments.DIAG else 1
    if b2 * e <= 2 * c2:
        return 2 * b2 + 2 * c2 + b2 * b2 * e / (2 * c2)
    return 4 * b2 + 2 * c2 * (1 - Fraction(1, e))


def _l1_moments(d: int, moments: Moments) -> Fraction:
    """Largest L1 norm of a component's second moments over the unit ball."""
    if moments in (Moments.FULL, Moments.TIED):  # (1 - 1/sqrt 2) |u|_2^2 + |u|_1^2 / sqrt 2, with |u|_1^2 <= d
        return 1 + Fraction(d - 1) * Fraction(7072, 10000)
    return Fraction(1)


def _ceil_sqrt(x: Fraction) -> int:
    root = math.isqrt(math.ceil(x))
    return root if root * root >= x else root + 1
