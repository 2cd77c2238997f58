"""Keyed hashes of whole rows, and a mixer of 64 bits."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNIT_BYTES = 16
"""Size of a unit's digest in bytes: two of 2^27 texts collide with a probability below 2^-74."""


def row_digests(columns: Sequence[NDArray[Any]], key: bytes, size: int) -> NDArray[np.uint64]:
    """Return the keyed BLAKE2b (RFC 7693) of each row, shape (n, size / 8).

    A row's bytes are its values' bytes, eight each: float64 as they are, integers as int64. The order of columns
    matters.
    """
    packed = np.empty((len(columns[0]), len(columns)), dtype="<i8")
    for j, values in enumerate(columns):
        packed[:, j] = values.view("<i8") if values.dtype == np.float64 else values
    rows, width = memoryview(packed.tobytes()), 8 * len(columns)
    return _joined(
        [blake2b(rows[i : i + width], digest_size=size, key=key).digest() for i in range(0, len(rows), width)], size
    )


def text_digests(texts: Sequence[bytes], key: bytes) -> NDArray[np.uint64]:
    """Return the keyed BLAKE2b of each text, shape (n, 2)."""
    return _joined([blake2b(text, digest_size=UNIT_BYTES, key=key).digest() for text in texts], UNIT_BYTES)


def mixed(content: NDArray[np.uint64], ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 pseudorandom bits for each pair of number and ordinal (Steele, Lea, Flood 2014).

    This is SplitMix64: good for ranks and for sums that distinguish tables, without cryptographic strength.
    """
    x = content + ordinals.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)


def _joined(digests: Sequence[bytes], size: int) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, size // 8)
