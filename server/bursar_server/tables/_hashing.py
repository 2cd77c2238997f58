"""Keyed hashes of whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNIT_BYTES = 16


def row_digests(columns: Sequence[NDArray[Any]], key: bytes, size: int) -> NDArray[np.uint64]:
    """Keyed BLAKE2b (RFC 7693) of each row, shape (n, size / 8).

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
    """Keyed BLAKE2b of each text, shape (n, 2): two of 2^27 texts agree with a probability below 2^-74."""
    return _joined([blake2b(text, digest_size=UNIT_BYTES, key=key).digest() for text in texts], UNIT_BYTES)


def _joined(digests: Sequence[bytes], size: int) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, size // 8)
