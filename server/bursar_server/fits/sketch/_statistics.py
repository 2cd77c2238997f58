"""The one statistic of FitSketchKMeans, random Fourier moments of rows, and what one row can contribute.

Schellekens et al. 2019, definitions 1 and 3, unscaled: sums over rows of exp(i w_j x), j = 1 ... m, at r of the m
frequencies for each row. Proof in `_statistics.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bursar.models._frequencies import Frequencies
from bursar_server.fits.sketch import _kernel
from bursar_server.vault import Bounds, Factor, Statistic

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]

Signature = Literal["exponential", "one_bit"]

LATTICE = 1.0 / _kernel.UNIT
"""Size of one lattice unit of a release."""

MAX_COUNT_WEIGHT = 2**12
"""Largest weight of the count: its contribution is a count_weight-th of what a coordinate may have."""


@dataclass(frozen=True)
class Frame:
    """Public map from the data's units: x' = (x - centre) / unit, clipped to the box. Shapes (d,), the data's units.

    Attributes:
        centre: origin of frame coordinates.
        unit: positive; length of one frame coordinate.
        lower: smallest value of a column.
        upper: largest value of a column.
    """

    centre: FloatArray
    unit: FloatArray
    lower: FloatArray
    upper: FloatArray

    def box(self) -> tuple[FloatArray, FloatArray]:
        """Lower and upper corner of the box, in frame coordinates."""
        return (self.lower - self.centre) / self.unit, (self.upper - self.centre) / self.unit


@dataclass(frozen=True, eq=False)
class _SketchKernel:
    """Public numbers as the compiled functions read them; frequencies and dithers in half turns.

    Attributes:
        dense: (m, d) frequencies, or None for those with fast transforms.
        fast: signs (B, 3, p) and scales (B, p) of the transforms, or None for dense frequencies.
        seed: of the hash that picks a row's frequencies, where they are not all of them.
    """

    frame: Frame
    one_bit: bool
    count_weight: int
    per_row: int
    offsets: Float32Array
    dense: Float32Array | None
    fast: tuple[Float32Array, Float32Array] | None
    seed: np.uint64

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        frame = self.frame
        lower, upper = frame.box()
        common = (block, present, out, frame.centre, frame.unit, lower, upper, self.one_bit, self.offsets)
        masked = self.per_row < len(self.offsets)
        if self.fast is not None and masked:
            rows = _kernel.masked_hadamard_sums(*common, *self.fast, self.per_row, self.seed)
        elif self.fast is not None:
            rows = _kernel.hadamard_sums(*common, *self.fast)
        elif masked:
            rows = _kernel.masked_dense_sums(*common, self.dense, self.per_row, self.seed)
        else:
            rows = _kernel.dense_sums(*common, self.dense)
        if self.count_weight:
            out[-1] += self.count_weight * _kernel.UNIT * rows


def default_count_weight(per_row: int) -> int:
    """Weight of the count of rows beside moments at `per_row` frequencies: about sqrt(per_row) / 4, at least 1.

    Under Gaussian noise it adds a sixteenth to the squared sensitivity, and the count's noise is four times that of a
    moment over sqrt(per_row), far below what a moment's own noise does.
    """
    return max(1, round(math.sqrt(per_row) / 4))


def sketch_statistic(
    frame: Frame, frequencies: Frequencies, signature: Signature, per_row: int, count_weight: int
) -> Statistic:
    """Sums of the signature at each frequency: m real parts, m imaginary parts, then the count if it has a weight.

    "exponential": cos(w_j x') and sin(w_j x'). "one_bit": the signs of cos(w_j x' + dither_j) and of the sine
    (Schellekens and Jacques 2018). A row that is absent or has a number that is not finite contributes nothing.

    Args:
        frame: of the d columns.
        frequencies: m of them in d columns.
        signature: of one frequency.
        per_row: r; every row is sketched at r of the m frequencies: r neighbours in a ring of all of them, from one on
            that a public hash of the row picks. Equal rows have equal frequencies.
        count_weight: the last number is this times the number of rows; 0: there is none.

    Raises:
        ValueError: a number outside its range, or a frame of other than d columns.
    """
    if not frame.centre.shape == (frequencies.d,):
        raise ValueError(f"frame: expected {frequencies.d} columns as the frequencies have, got {frame.centre.shape}")
    bounds = sketch_bounds(frequencies.m, per_row, signature, count_weight)
    one_bit = signature == "one_bit"
    offsets = frequencies.dithers() / np.pi if one_bit else np.zeros(frequencies.m)
    dense, fast = None, None
    if frequencies.structure == "dense":
        dense = (frequencies.matrix() / np.pi).astype(np.float32)
    else:
        factors = frequencies.factors()
        fast = factors.signs.astype(np.float32), (factors.scales / np.pi).astype(np.float32)
    seed = np.uint64(frequencies.public_seed)
    kernel = _SketchKernel(frame, one_bit, count_weight, per_row, offsets.astype(np.float32), dense, fast, seed)
    return Statistic(
        name=f"sketch at {frequencies.m} frequencies",
        kernel=kernel,
        factors=(Factor("signature", _kernel.BITS),),
        shape=(2 * frequencies.m + (count_weight > 0),),
        bounds=bounds,
    )


def sketch_bounds(m: int, per_row: int, signature: Signature, count_weight: int) -> Bounds:
    """What one row can contribute to `sketch_statistic`, in lattice units; a function of public numbers only.

    Raises ValueError if per_row is not in 1 to m, count_weight not in 0 to `MAX_COUNT_WEIGHT`, or signature unknown.
    """
    if not 1 <= per_row <= m:
        raise ValueError(f"per_row: expected 1 to {m} of {m} frequencies, got {per_row}")
    if not 0 <= count_weight <= MAX_COUNT_WEIGHT:
        raise ValueError(f"count_weight: expected 0 to {MAX_COUNT_WEIGHT}, got {count_weight}")
    unit, count = _kernel.UNIT, count_weight * _kernel.UNIT
    if signature == "exponential":
        l1, l2_squared = math.isqrt(2 * unit**2), unit**2
    elif signature == "one_bit":
        l1, l2_squared = 2 * unit, 2 * unit**2
    else:
        raise ValueError(f"signature: expected 'exponential' or 'one_bit', got {signature!r}")
    return Bounds(
        l1=per_row * l1 + count,
        l2_squared=per_row * l2_squared + count**2,
        l1_distance=max(2 * per_row * l1, per_row * l1 + count),
        l2_squared_distance=max(4 * per_row * l2_squared, per_row * l2_squared + count**2),
    )
