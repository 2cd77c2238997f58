"""The one statistic of FitSketchKMeans, random Fourier moments of rows, and bounds of one row's contribution.

Schellekens et al. 2019, definitions 1 and 3, unscaled: sums over rows of exp(i w_j x), j = 1 ... m, at r of the m
frequencies for each row. Proof in `_statistics.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bursar_models._frequencies import Frequencies
from bursar_models.arrays import FloatArray
from bursar_server.fits.sketch import _kernel
from bursar_server.vault import Bounds, Factor, Statistic

Float32Array = NDArray[np.float32]

Signature = Literal["exponential", "one_bit"]

LATTICE = 1.0 / _kernel.UNIT
"""Size of one lattice unit of a release."""

MAX_COUNT_WEIGHT = 2**12
"""Maximum weight of the count, so that its contribution stays within the range of a coordinate."""


@dataclass(frozen=True)
class SketchFrame:
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
        """Return the lower and upper corner of the box, in frame coordinates."""
        return (self.lower - self.centre) / self.unit, (self.upper - self.centre) / self.unit


@dataclass(frozen=True, eq=False)
class _SketchKernel:
    """Public parameters in the format of the compiled functions; frequencies and dithers in half turns.

    Attributes:
        dense: frequencies (m, d), or None for those with fast transforms.
        fast: signs (B, 3, p) and scales (B, p) of the transforms, or None for dense frequencies.
        seed: seed of the hash that picks a row's frequencies, if they are not all of them.
    """

    frame: SketchFrame
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
    """Return the weight of the count of rows beside moments: about sqrt(per_row) / 4, at least 1.

    Under Gaussian noise it adds a sixteenth to the squared sensitivity. The count's noise is then four times that of a
    moment over sqrt(per_row), far below the effect of a moment's own noise.
    """
    return max(1, round(math.sqrt(per_row) / 4))


def sketch_statistic(
    frame: SketchFrame, frequencies: Frequencies, signature: Signature, per_row: int, count_weight: int
) -> Statistic:
    """Return the sum of signatures: m real parts, m imaginary parts, then the count if it has a weight.

    "exponential": cos(w_j x') and sin(w_j x'). "one_bit": the signs of cos(w_j x' + dither_j) and of the sine
    (Schellekens and Jacques 2018). A row that is absent or has a number that is not finite contributes nothing.

    Args:
        frame: frame of the d columns.
        frequencies: m frequencies in d columns.
        signature: term that a row adds at one frequency.
        per_row: number r of frequencies of every row: r adjacent ones in a ring of all m, from one that a public hash
            of the row picks. Equal rows have equal frequencies.
        count_weight: factor of the last number, which is this times the number of rows; 0: no such number.

    Raises:
        ValueError: a number outside its range, or a frame of other than d columns.
    """
    if not frame.centre.shape == (frequencies.d,):
        raise ValueError(f"frame: expected {frequencies.d} columns as the frequencies have, got {frame.centre.shape}")
    bounds = sketch_bounds(frequencies.m, per_row, signature, count_weight)
    one_bit = signature == "one_bit"
    # In half turns, so that reducing a phase needs only a rounding and no division by pi.
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
        largest=_kernel.UNIT * max(1, count_weight),
    )


def sketch_bounds(m: int, per_row: int, signature: Signature, count_weight: int) -> Bounds:
    """Return bounds of one row's contribution to `sketch_statistic`, in lattice units; from public numbers only.

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
