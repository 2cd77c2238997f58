"""Frequencies of a sketch: public numbers that every machine derives from the same few fields.

A sketch is useless without its frequencies, and only their seed is sent and stored. So this module does not depend on
the version of numpy: the bits are those of PCG64, which numpy promises not to change, and the transforms are written
here. A library's logarithm or exponential may differ in the last bit between machines, so such numbers are rounded to
16 bits. All later arithmetic is exact, or correctly rounded in a fixed order.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import scipy

from bursar_models.arrays import FloatArray

FrequencyLaw = Literal["adapted_radius", "multiscale"]
"""Law of the lengths of frequencies."""

FrequencyStructure = Literal["dense", "hadamard"]
"""Independent directions, or blocks of fast transforms."""

FREQUENCY_LAWS: tuple[FrequencyLaw, ...] = get_args(FrequencyLaw)
FREQUENCY_STRUCTURES: tuple[FrequencyStructure, ...] = get_args(FrequencyStructure)

MAX_FREQUENCIES = 2**14
"""Maximum m. More moments contain nothing more that a mixture of a few hundred components needs."""

MIN_SIGMA = 1e-4
"""Minimum scale, in frame coordinates: frequencies of 1 / sigma distinguish rows that differ by 1e-4 of the bounds."""

MAX_SIGMA = 1e4
"""Maximum scale, in frame coordinates: beyond it every moment of rows in [-1, 1] is 1."""

_LARGEST_RADIUS = 7.0
"""End of the grid of adapted radii; one in 10^10 would be longer."""

_RADIUS_STEPS = 2**14
"""Steps of that grid: linear interpolation then errs by less than 1e-6."""

_SPARE_BLOCKS = 64
"""Draws of blocks beyond three for each: too few are useful for one seed in 10^20 (`_block_signs`)."""

_SMALLEST_BLOCK = 64
"""Minimum number of rows of a Hadamard block. With as many rows as columns, few columns would have few directions."""

_BATCH = 2**18
"""Numbers of sign products computed at once. One block after the other would take seconds for few columns."""


class Stream(enum.IntEnum):
    """Purposes of public random numbers. Each has its own bits, so that a change of one leaves the others unchanged."""

    DIRECTIONS = 0
    RADII = 1
    SCALES = 2
    DITHERS = 3
    SIGNS = 4


def public_uniforms(public_seed: int, stream: Stream, *shape: int) -> FloatArray:
    """Return public random numbers in the open interval (0, 1), the same with every version of numpy.

    They are multiples of 2^-53, from the upper 52 bits of PCG64's raw output; a longer draw begins with a shorter one.
    They serve for frequencies and other public numbers, and are never noise.

    Args:
        public_seed: seed, at least 0.
        stream: stream of the seed from which the numbers come.
        shape: shape of the result.
    """
    sequence = np.random.SeedSequence(public_seed, spawn_key=(int(stream),))  # noqa: TID251 - public, never noise
    bits = np.random.PCG64(sequence).random_raw(int(np.prod(shape)))  # noqa: TID251 - public, never noise
    # The half excludes 0, where inverse transforms are infinite; 52 bits and a half are exact in a float64.
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5).reshape(shape) * 2.0**-52


@dataclass(frozen=True, eq=False)
class HadamardFactors:
    """Factors of fast frequencies, w_(b p + j) = scales[b, j] (H D3 H D2 H D1)[j, :d], with diagonal D1 to D3.

    D1 to D3 hold signs. H is the Hadamard matrix of +1 and -1 in Sylvester's order, H[i, j] = (-1)^popcount(i & j), not
    normalised.

    Attributes:
        signs: (B, 3, p), +1.0 and -1.0: the diagonals of D1, D2 and D3 of each block.
        scales: (B, p), length of a frequency over that of its row of the product. It is 0 for rows of which the sketch
            has no frequency, the last ones of the last block; otherwise positive.
    """

    signs: FloatArray
    scales: FloatArray


@dataclass(frozen=True)
class Frequencies:
    """m frequencies w_j for rows of d columns in frame coordinates: w_j = radius_j direction_j / sigma_j.

    Two objects with equal fields have equal frequencies, on every machine. Another sigma alone keeps directions and
    radii and changes their unit; a larger m begins with the frequencies of a smaller one.

    Attributes:
        m: number of frequencies, 1 to `MAX_FREQUENCIES`.
        d: number of columns, at least 1.
        public_seed: seed, 0 to 2^64 - 1; it is public.
        sigma: standard deviation of a cluster, in frame coordinates, to which the frequencies are tuned, `MIN_SIGMA` to
            `MAX_SIGMA`.
        law: law of the radii. "adapted_radius": density proportional to sqrt(R^2 + R^4 / 4) exp(-R^2 / 2), which avoids
            uninformative frequencies near 0 (Keriven, Bourrier, Gribonval, Perez 2017, section 3.3).
            "multiscale": adapted radius, with the logarithm of each sigma_j uniform between those of sigma and 1.
        structure: "dense": directions independent and uniform on the sphere. "hadamard": blocks of p frequencies
            from products of Hadamard and sign matrices (Chatalic, Gribonval, Keriven 2018), p the smallest power
            of two that is at least d and 64. For large d; for small d it saves nothing.

    Raises:
        ValueError: a field outside its range; the message names it.
    """

    m: int
    d: int
    public_seed: int
    sigma: float
    law: FrequencyLaw = "adapted_radius"
    structure: FrequencyStructure = "dense"

    def __post_init__(self) -> None:
        if not 1 <= self.m <= MAX_FREQUENCIES:
            raise ValueError(f"m: expected 1 to {MAX_FREQUENCIES} frequencies, got {self.m!r}")
        if not self.d >= 1:
            raise ValueError(f"d: expected at least 1 column, got {self.d!r}")
        if not 0 <= self.public_seed < 2**64:
            raise ValueError(f"public_seed: expected 0 to 2^64 - 1, got {self.public_seed!r}")
        if not MIN_SIGMA <= self.sigma <= MAX_SIGMA:
            raise ValueError(f"sigma: expected {MIN_SIGMA:g} to {MAX_SIGMA:g}, got {self.sigma!r}")
        if self.law not in FREQUENCY_LAWS:
            raise ValueError(f"law: expected one of {FREQUENCY_LAWS}, got {self.law!r}")
        if self.structure not in FREQUENCY_STRUCTURES:
            raise ValueError(f"structure: expected one of {FREQUENCY_STRUCTURES}, got {self.structure!r}")

    def matrix(self) -> FloatArray:
        """Return the frequencies as rows, shape (m, d), read-only, in inverse frame units.

        The numbers are float32 stored as float64.
        """
        return self._matrix

    def radii(self) -> FloatArray:
        """Return the length of each frequency, shape (m,), in inverse frame units.

        The lengths are those before the matrix is rounded to float32.
        """
        uniforms = public_uniforms(self.public_seed, Stream.RADII, self.m)
        return _coarse(adapted_radius_quantile(uniforms)) / self._scales()

    def dithers(self) -> FloatArray:
        """Return the phase of each frequency in a one-bit sketch, shape (m,), uniform in (0, 2 pi)."""
        return 2 * np.pi * public_uniforms(self.public_seed, Stream.DITHERS, self.m)

    def factors(self) -> HadamardFactors:
        """Return the factors that a fast transform uses instead of the matrix; only for the structure "hadamard".

        Raises:
            ValueError: the structure is not "hadamard".
        """
        if self.structure != "hadamard":
            raise ValueError(f"structure: expected 'hadamard' for factors, got {self.structure!r}; use matrix()")
        return self._factors

    def digest(self) -> bytes:
        """Return the SHA-256 of the matrix as little-endian float32, row by row.

        Equal digests mean equal frequencies.
        """
        return hashlib.sha256(self._matrix.astype("<f4").tobytes()).digest()

    def differences(self, other: Frequencies) -> str:
        """Return the fields that differ, with the values of both, as text; empty if all are equal."""
        pairs = ((field.name, getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return "; ".join(f"{name} is {there!r} instead of {here!r}" for name, here, there in pairs if here != there)

    @cached_property
    def _matrix(self) -> FloatArray:
        if self.structure == "dense":
            exact = self.radii()[:, None] * _uniform_directions(self.public_seed, self.m, self.d)
        else:
            factors = self._factors
            blocks = factors.scales[:, :, None] * _sign_products(factors.signs, self.d)
            exact = blocks.reshape(-1, self.d)[: self.m]
        # Rounded to float32, the kernel's precision, so that client and server use the same numbers.
        matrix = exact.astype(np.float32).astype(np.float64)
        matrix.flags.writeable = False
        return matrix

    @cached_property
    def _factors(self) -> HadamardFactors:
        p = max(1 << (self.d - 1).bit_length(), _SMALLEST_BLOCK)
        n_blocks = -(-self.m // p)
        signs = _block_signs(self.public_seed, n_blocks, p, self.d)
        norms = _row_norms(_sign_products(signs, self.d).reshape(-1, self.d))
        scales = np.zeros(n_blocks * p)
        scales[: self.m] = self.radii() / norms[: self.m]
        factors = HadamardFactors(signs, scales.reshape(n_blocks, p))
        for array in (factors.signs, factors.scales):
            array.flags.writeable = False
        return factors

    def _scales(self) -> FloatArray:
        if self.law != "multiscale":
            return np.full(self.m, self.sigma)
        return _coarse(self.sigma ** public_uniforms(self.public_seed, Stream.SCALES, self.m))


def adapted_radius_density(radii: FloatArray) -> FloatArray:
    """Return the density of the adapted radius up to a factor, sqrt(R^2 + R^4 / 4) exp(-R^2 / 2), for R >= 0."""
    squares = np.square(radii)
    return np.sqrt(squares + np.square(squares) / 4) * np.exp(-squares / 2)


def adapted_radius_quantile(uniforms: FloatArray) -> FloatArray:
    """Return adapted radii with the given probabilities of a smaller one, in any shape.

    The distribution function is interpolated linearly on a fixed grid, with an error below 1e-6. Radii above 7, which
    one in 10^10 would have, become 7.
    """
    grid = np.linspace(0.0, _LARGEST_RADIUS, _RADIUS_STEPS + 1)
    density = adapted_radius_density(grid)
    cumulated = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp(uniforms, cumulated / cumulated[-1], grid)


def _coarse(values: FloatArray) -> FloatArray:
    """Return values rounded to 16 significant bits.

    That is far finer than any law needs, and far coarser than the differences between machines.
    """
    mantissas, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(mantissas * 2.0**16), exponents - 16))


def _uniform_directions(public_seed: int, m: int, d: int) -> FloatArray:
    """Return unit vectors (m, d), uniform on the sphere: normal vectors over their lengths."""
    normals = _coarse(scipy.special.ndtri(public_uniforms(public_seed, Stream.DIRECTIONS, m, d)))
    return np.asarray(normals / _row_norms(normals)[:, None])


def _row_norms(rows: FloatArray) -> FloatArray:
    """Return the Euclidean lengths of rows (m, d), shape (m,)."""
    # Added up column by column: numpy's own order of summation depends on the CPU.
    squares = np.zeros(len(rows))
    for column in rows.T:
        squares += np.square(column)
    return np.sqrt(squares)


def _block_signs(public_seed: int, n_blocks: int, p: int, d: int) -> FloatArray:
    """Return diagonals of D1, D2, D3 of each block, shape (n_blocks, 3, p), whose products have no row of zeros.

    A row that vanishes on the first d inputs, as one in 30 does at d = 1, would be a frequency 0, which carries no
    information. Blocks with such a row are left out: half of them at d = 1, one in eight at 2, one in a hundred at 3.
    With three times as many draws as blocks and `_SPARE_BLOCKS`, enough remain but for one seed in 10^20.
    """
    draws = public_uniforms(public_seed, Stream.SIGNS, 3 * n_blocks + _SPARE_BLOCKS, 3, p)
    candidates = np.where(draws < 0.5, -1.0, 1.0)
    batch = max(1, _BATCH // (p * d))
    found: list[FloatArray] = []
    for first in range(0, len(candidates), batch):
        some = candidates[first : first + batch]
        useful = np.all(np.any(_sign_products(some, d), axis=2), axis=1)
        found.append(some[useful])
        if sum(map(len, found)) >= n_blocks:
            break
    return np.concatenate(found)[:n_blocks]


def _sign_products(signs: FloatArray, d: int) -> FloatArray:
    """Return the first d columns of H D3 H D2 H D1 of each block, shape (B, p, d), for signs (B, 3, p).

    Exact integers.
    """
    n_blocks, _, p = signs.shape
    columns = np.broadcast_to(np.eye(p, d)[:, None], (p, n_blocks, d))
    for diagonals in signs.transpose(1, 2, 0):
        columns = hadamard_transform(diagonals[:, :, None] * columns)
    return columns.transpose(1, 0, 2)


def hadamard_transform(columns: FloatArray) -> FloatArray:
    """Return H times columns (p, ...), by p log2(p) additions for each column.

    p is a power of two, and H the matrix of +1 and -1 in Sylvester's order.
    """
    p, rest = columns.shape[0], columns.shape[1:]
    half = 1
    while half < p:
        pairs = columns.reshape(p // (2 * half), 2, half, *rest)
        columns = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(p, *rest)
        half *= 2
    return columns
