"""What kernels in terms of the array API have in common: operations that every library makes alike.

Of IEEE 754's, additions, multiplications, square roots, comparisons and truncations are the same wherever they are made
one by one. So are divisions of an array by an array; where one of the two is a plain number, torch multiplies by a
reciprocal, which rounds twice. Hence what kernels divide, and by what, goes through `there`; powers of two need not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def there(xp: Any, device: Any, numbers: ArrayLike) -> Any:
    """A copy of numbers on a device of a namespace of the array API; one alone has the shape (1,)."""
    return xp.asarray(np.array(numbers, ndmin=1), device=device)


def here(array: Any) -> NDArray[Any]:
    """As numpy's array, from whatever device."""
    for to_numpy in ("get", "cpu"):  # cupy's and torch's names for it
        array = getattr(array, to_numpy)() if hasattr(array, to_numpy) else array
    return np.from_dlpack(array)


def in_order(terms: Any) -> Any:
    """Sum over the last axis but one, from the first to the last: these terms are rounded."""
    total = terms[..., 0, :]
    for i in range(1, terms.shape[-2]):
        total = total + terms[..., i, :]
    return total


def exp_negative(xp: Any, x: Any) -> Any:
    """The polynomial that compiled kernels have for exp on [-60, 0]; NaN stays NaN."""
    t = xp.maximum(x, xp.full_like(x, -60.0)) / 1024.0
    e = 1.0 + t * (1.0 + t * (0.5 + t * (1.0 / 6.0 + t * (1.0 / 24.0 + t * (1.0 / 120.0)))))
    for _ in range(10):
        e = e * e
    return e
