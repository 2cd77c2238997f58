"""Synthetic rows for dry runs: drawn from a public schema and a public seed, without any data.

Every column has its own generator, made from the seed and the column's name, so its values do not depend on which other
columns are requested. Columns are independent of each other, because no dependence is public.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from bursar_models.arrays import FloatArray

NULL_SHARE = 0.1
"""Share of the rows without a value in a column that may be null.

Chosen, not tuned: enough for a program to meet nulls.
"""


def made_up_numbers(
    name: str, n: int, public_seed: int, *, lower: float, upper: float, edges: Sequence[float] = (), nullable: bool
) -> FloatArray:
    """Draw numbers of one column, (n,): uniform over the bounds, or over the bins and then inside each; NaN where null.

    Args:
        name: name of the column.
        n: number of rows.
        public_seed: seed of all columns, 0 to 2^64 - 1.
        lower: least value.
        upper: greatest value.
        edges: edges of the public bins, ascending; empty if there are none.
        nullable: True if a tenth of the rows have no value.
    """
    generator = _generator(name, public_seed)
    places = generator.random(n)
    ends = np.array(edges if len(edges) else (lower, upper), dtype=np.float64)
    bins = generator.integers(len(ends) - 1, size=n)
    # A weighted mean of both ends: the width of the bounds may overflow a double.
    values = np.clip((1.0 - places) * ends[bins] + places * ends[bins + 1], lower, upper)
    return np.where(generator.random(n) < NULL_SHARE, np.nan, values) if nullable else values


def made_up_codes(name: str, n: int, public_seed: int, *, categories: int) -> FloatArray:
    """Draw positions in a list of `categories` names, as whole numbers, (n,); all equally likely."""
    return _generator(name, public_seed).integers(categories, size=n).astype(np.float64)


def made_up_unit_rows(n: int, public_seed: int, *, cap: int) -> FloatArray:
    """Draw privacy units and return the number of rows of each row's unit, (n,).

    Units have 1 to `cap` rows, all numbers equally likely. The last unit has the rows that remain.
    """
    sizes = _generator("", public_seed).integers(1, cap + 1, size=n)
    people = int(np.searchsorted(np.cumsum(sizes), n)) + 1
    sizes = sizes[:people]
    sizes[-1] -= int(sizes.sum()) - n
    return np.repeat(sizes, sizes).astype(np.float64)


def _generator(name: str, public_seed: int) -> np.random.Generator:  # noqa: TID251 - synthetic rows, from a public seed
    words = hashlib.sha256(name.encode()).digest()[:8]
    return np.random.default_rng([public_seed, int.from_bytes(words, "big")])  # noqa: TID251 - likewise
