"""Statistics of FitGradientEM, and bounds of one row's contribution to them.

Wang et al. 2020, algorithms 1-3, with the transforms that bound a row's gradient; proof in `_statistics.md`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em import _array_kernel, _kernel
from bursar_server.fits.gradient_em._truncation import curve
from bursar_server.fits.mixtures.radius_statistics import radius_bounds
from bursar_server.vault import Bounds, Factor, Kernel, Statistic

LATTICE = 2.0 ** (-2 * _kernel.BITS)
"""Size of one lattice unit of a gradient's release."""

LOOK_LATTICE = 2.0**-_kernel.LOOK_BITS
"""Size of one lattice unit of a look."""

RADIUS_LATTICE = 2.0**-_kernel.BITS
"""Size of one lattice unit of counts by radius."""

RADIUS_BOUNDS = radius_bounds(2**_kernel.BITS)
"""Bounds of one row's contribution to `radius_statistic`, in lattice units."""

_COUNT = Fraction(1, 2)
"""Weight of a count beside the vector's 1: the noise on a number of rows is twice that on a sum of vectors.

Chosen, not tuned.
"""

_RESIDUAL = Fraction(2, 5)
"""Weight of a squared residual beside the vector's 1. Chosen, not tuned."""


class Transform(enum.IntEnum):
    """Transform that bounds a row's vector about a component; numbered as in the kernel."""

    NORM = _kernel.NORM
    """Norm clipped to 1."""
    RADIAL = _kernel.RADIAL
    """Catoni's truncation of the norm, over that function's largest value."""
    BOX = _kernel.BOX
    """Smoothed truncation of every coordinate, over that function's largest value."""


@dataclass(frozen=True)
class GradientFrame:
    """Public map from the data's units: z = (x - centre) / unit, clipped to +-half. Shapes (columns,).

    Attributes:
        centre: middle of the bounds.
        unit: length of one unit.
        half: half-width of the bounds in that unit, at most 1.
        nullable: True if a number may be missing; a missing one in another column makes its row null.
    """

    centre: FloatArray
    unit: FloatArray
    half: FloatArray
    nullable: NDArray[np.bool_]

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.bool_]]:
        """Numbers in the kernels' format."""
        return self.centre, self.unit, self.half, self.nullable


@dataclass(frozen=True)
class Shape:
    """Form of a gradient's release.

    Attributes:
        blocks: number of components, or 1 if they fold into one.
        q: number of coordinates of a vector.
        transform: transform of vectors.
        root_beta: square root of the precision beta of BOX's smoothing.
    """

    blocks: int
    q: int
    transform: Transform
    root_beta: float = 1.0

    @property
    def size(self) -> int:
        """Number of released numbers: counts, vectors, residuals."""
        return self.blocks * (self.q + 2)

    @property
    def kernel(self) -> tuple[int, tuple[float, FloatArray], float, float]:
        """Numbers in the kernels' format."""
        return int(self.transform), curve(self.root_beta), float(_integer(_COUNT)), float(_integer(_RESIDUAL))


@dataclass(frozen=True)
class GradientKernel:
    """Compiled gradient with its arguments."""

    function: Any
    frame: GradientFrame
    arguments: tuple[Any, ...]
    shape: Shape

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """Implement `Kernel.__call__`."""
        self.function(block, present, out, self.frame.arrays, *self.arguments, self.shape.kernel)

    def on(self, xp: Any, device: Any) -> Callable[..., None]:
        """Implement `bursar_server.vault._device.DeviceKernel.on`."""
        same = _array_kernel.SAME[self.function]
        return partial(same, xp, device, self.frame.arrays, self.arguments, self.shape.kernel)

    def __reduce__(self) -> tuple[Callable[..., GradientKernel], tuple[Any, ...]]:
        """Pickle the function's place: numba would send its code, which every worker compiled anew for each fit."""
        return _placed, (list(_array_kernel.SAME).index(self.function), self.frame, self.arguments, self.shape)


def _placed(place: int, *rest: Any) -> GradientKernel:
    return GradientKernel(list(_array_kernel.SAME)[place], *rest)


def gradient_statistic(kernel: GradientKernel) -> Statistic:
    """Return the release of one step."""
    shape = kernel.shape
    return Statistic(
        name=f"gradient of {shape.blocks} x {shape.q} parameters",
        kernel=kernel,
        factors=(Factor("responsibilities", _kernel.BITS), Factor("vectors", _kernel.BITS)),
        shape=(shape.size,),
        bounds=gradient_bounds(shape),
        largest=2 ** (2 * _kernel.BITS),
    )


def gradient_bounds(shape: Shape) -> Bounds:
    """Return bounds of one row's contribution to `gradient_statistic`, in lattice units; from public numbers only."""
    unit, count, residual = 2**_kernel.BITS, _integer(_COUNT), _integer(_RESIDUAL)
    vector = unit * unit * (shape.q if shape.transform is Transform.BOX else 1)
    norm_squared = unit**2 * (count**2 + vector + residual**2)
    longest = unit * shape.q if shape.transform is Transform.BOX else ceil_root(unit * unit * shape.q)
    l1 = unit * (count + longest + residual)
    if shape.blocks == 1:  # both rows have the same count
        distance, distance_squared = unit * (2 * longest + residual), unit**2 * (4 * vector + residual**2)
    else:
        distance, distance_squared = 2 * l1, 2 * norm_squared - 2 * unit**2 * min(0, count**2 - vector)
    return Bounds(l1=l1, l2_squared=norm_squared, l1_distance=distance, l2_squared_distance=distance_squared)


@dataclass(frozen=True)
class _RadiusKernel:
    """Counts of rows by squared residual about their components; `edges` of the cells in the gradient's units."""

    gradient: GradientKernel
    edges: FloatArray

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        self.gradient.function(block, present, out, self.gradient.frame.arrays, *self.gradient.arguments, self._shape)

    def on(self, xp: Any, device: Any) -> Callable[..., None]:
        """Implement `bursar_server.vault._device.DeviceKernel`."""
        same = _array_kernel.SAME[self.gradient.function]
        return partial(same, xp, device, self.gradient.frame.arrays, self.gradient.arguments, self._shape)

    @property
    def _shape(self) -> tuple[int, tuple[float, FloatArray], float, float]:
        return _kernel.CELLS, (0.0, self.edges), 0.0, 0.0


def radius_statistic(kernel: GradientKernel, edges: FloatArray) -> Statistic:
    """Return the last release: numbers of rows by their squared residual, as a gradient's kernel has it.

    Args:
        kernel: kernel of a gradient at the parameters that are returned.
        edges: edges of the cells, ascending, (cells + 1,).
    """
    cells = len(edges) - 1
    return Statistic(
        name="rows by their distance from the model",
        kernel=_RadiusKernel(kernel, edges),
        factors=(Factor("responsibilities", _kernel.BITS),),
        shape=(cells,),
        bounds=RADIUS_BOUNDS,
        largest=2**_kernel.BITS,
    )


class Look(enum.Enum):
    """Kind of the first release, of d columns in the frame's units."""

    LOCATION = "location"
    """(1, z / sqrt d, |z|^2 / d)."""
    REGRESSION = "regression"
    """svec of w w^T, w = (1, z) / sqrt(d + 1)."""
    MISSING = "missing"
    """(1, y, y^2), then (m, m z, m z^2) / sqrt(d - 1) of the features, m = 1 where they are present."""

    def size(self, d: int) -> int:
        """Return the number of released numbers."""
        return {
            Look.LOCATION: d + 2,
            Look.REGRESSION: (d + 1) * (d + 2) // 2,
            Look.MISSING: 3 * d,
        }[self]

    @property
    def norm_squared(self) -> int:
        """Largest squared norm of a row; the kernel drops rows above it."""
        return {Look.LOCATION: 3, Look.REGRESSION: 1, Look.MISSING: 6}[self]

    @property
    def distance_squared(self) -> int:
        """Largest squared distance of two rows."""
        return {Look.LOCATION: 4, Look.REGRESSION: 2, Look.MISSING: 8}[self]


@dataclass(frozen=True)
class _LookKernel:
    look: Look
    frame: GradientFrame

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        self._function(block, present, out, self.frame.arrays, self._limit)

    def on(self, xp: Any, device: Any) -> Callable[..., None]:
        """Implement `bursar_server.vault._device.DeviceKernel`."""
        return partial(_array_kernel.SAME[self._function], xp, device, self.frame.arrays, self._limit)

    @property
    def _function(self) -> Any:
        return {
            Look.LOCATION: _kernel.location_look,
            Look.REGRESSION: _kernel.regression_look,
            Look.MISSING: _kernel.missing_look,
        }[self.look]

    @property
    def _limit(self) -> int:
        return self.look.norm_squared << 2 * _kernel.LOOK_BITS


def look_statistic(look: Look, frame: GradientFrame) -> Statistic:
    """Return the first release: location and spread of the rows."""
    d = len(frame.centre)
    kernel: Kernel = _LookKernel(look, frame)
    return Statistic(
        name="a look at the columns' scales",
        kernel=kernel,
        factors=(Factor("moments", _kernel.LOOK_BITS),),
        shape=(look.size(d),),
        bounds=look_bounds(look, d),
        largest=2**_kernel.LOOK_BITS,
    )


def look_bounds(look: Look, d: int) -> Bounds:
    """Return bounds of one row's contribution to `look_statistic`, in lattice units."""
    unit, size = 2**_kernel.LOOK_BITS, look.size(d)
    norm_squared = look.norm_squared * unit**2
    l1 = ceil_root(norm_squared * size)
    # Truncation moves each entry of either row by less than 1, their difference likewise; rounding by far less.
    distance = ceil_root(look.distance_squared * unit**2) + ceil_root(size) + 1
    return Bounds(l1=l1, l2_squared=norm_squared, l1_distance=2 * l1, l2_squared_distance=distance**2)


@dataclass(frozen=True)
class Sums:
    """Gradient's release, in rows.

    Attributes:
        counts: noisy numbers of rows, (blocks,).
        vectors: noisy sums of transformed vectors of norm (or coordinates) up to 1, (blocks, q).
        residuals: noisy sums of clipped squared residuals, up to 1 each, (blocks,).
    """

    counts: FloatArray
    vectors: FloatArray
    residuals: FloatArray


def decode(flat: FloatArray, shape: Shape) -> Sums:
    """Divide the weights out of a release."""
    blocks, q = shape.blocks, shape.q
    return Sums(
        counts=flat[:blocks] / float(_COUNT),
        vectors=flat[blocks : blocks * (1 + q)].reshape(blocks, q),
        residuals=flat[blocks * (1 + q) :] / float(_RESIDUAL),
    )


def count_weight() -> float:
    """Return the weight of counts: their noise is that of vectors divided by it."""
    return float(_COUNT)


def _integer(weight: Fraction) -> int:
    return int(weight * 2**_kernel.BITS)


def ceil_root(x: int) -> int:
    """Return the least integer whose square is at least x."""
    root = math.isqrt(x)
    return root if root * root == x else root + 1
