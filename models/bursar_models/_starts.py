"""Public starting points: client and server draw the same points from a seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def uniform_in_ball(n: int, d: int, public_seed: int) -> NDArray[np.float64]:
    """Draw points uniformly in the unit ball, shape (n, d), reproducibly from a public seed."""
    generator = public_generator(public_seed)
    directions = generator.standard_normal((n, d))
    radii = generator.random(n) ** (1.0 / d)
    return np.asarray(radii[:, None] * directions / np.linalg.norm(directions, axis=1)[:, None])


def public_generator(*public_seed: int) -> np.random.Generator:  # noqa: TID251 - the type only
    """Return a generator made from public integers >= 0: for directions and grids, never for noise."""
    seed = public_seed[0] if len(public_seed) == 1 else public_seed
    return np.random.Generator(np.random.PCG64(seed))  # noqa: TID251 - public randomness, never noise
