"""Array API operations that kernels share: those whose results are the same in every library.

Elementwise additions, multiplications, square roots, comparisons and truncations of IEEE 754 are the same everywhere.
So are divisions of an array by an array; but with a plain number torch multiplies by a reciprocal, which rounds twice.
Hence operands of divisions are arrays made by `there`; powers of two need not be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def there(xp: Any, device: Any, numbers: ArrayLike) -> Any:
    """Return a copy of numbers on a device of a namespace of the array API; one alone has the shape (1,)."""
    return xp.asarray(np.array(numbers, ndmin=1), device=device)


def here(array: Any) -> NDArray[Any]:
    """Return a device's array as numpy's array."""
    for to_numpy in ("get", "cpu"):  # cupy's and torch's names for it
        array = getattr(array, to_numpy)() if hasattr(array, to_numpy) else array
    return np.from_dlpack(array)


def in_order(terms: Any) -> Any:
    """Return the sum over the last axis but one, added from first to last, because these terms are rounded."""
    total = terms[..., 0, :]
    for i in range(1, terms.shape[-2]):
        total = total + terms[..., i, :]
    return total


def exp_negative(xp: Any, x: Any) -> Any:
    """Return the polynomial for exp on [-60, 0] that compiled kernels use; NaN stays NaN."""
    t = xp.maximum(x, xp.full_like(x, -60.0)) / 1024.0
    e = 1.0 + t * (1.0 + t * (0.5 + t * (1.0 / 6.0 + t * (1.0 / 24.0 + t * (1.0 / 120.0)))))
    for _ in range(10):
        e = e * e
    return e
