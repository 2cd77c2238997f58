"""The smallest fit worth an audit, a model of how others plug in: an adaptive, recentred mean of clipped rows."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency
from bursar_models.arrays import FloatArray
from bursar_server.vault import (
    ArrayRows,
    Bounds,
    Factor,
    GaussianNoise,
    LaplaceNoise,
    Session,
    Statistic,
    event_of,
    gaussian_for,
    laplace_for,
    sensitivity,
)
from tests.audit.harness import extremes
from tests.audit.target import Target

BITS = 20
UNIT = 2**BITS


@dataclass(frozen=True)
class ClippedSum:
    """Kernel: (1, x - centre clipped to the unit ball), truncated to the lattice."""

    centre: FloatArray
    clip: float = 1.0

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """See `Kernel`."""
        use = present & np.isfinite(block).all(axis=0) & (np.abs(block) < 1e100).all(axis=0)
        x = np.where(use, block, 0.0)[:, use] - self.centre[:, None]
        x = x * np.minimum(1.0, self.clip / np.maximum(np.linalg.norm(x, axis=0), 1e-300)) * (1 - 2.0**-40)
        out[0] += UNIT * int(use.sum())
        out[1:] += np.trunc(x * UNIT).astype(np.int64).sum(axis=1)


def statistic_about(centre: FloatArray, clip: float = 1.0) -> Statistic:
    """Count and clipped sum about a released centre: norms at most sqrt(2), distances at most 2."""
    d = len(centre)
    width = int(np.ceil(np.sqrt(d) * UNIT))
    slack = 2 * int(np.ceil(np.sqrt(d)))
    bounds = Bounds(UNIT + width, 2 * UNIT**2, 2 * width, (2 * UNIT + slack) ** 2)
    return Statistic("clipped sum", ClippedSum(centre, clip), (Factor("row", BITS),), (1 + d,), bounds, 2**BITS)


def toy_reference(statistic: Statistic, rows: ArrayRows) -> FloatArray:
    """The same sum, row by row, in plain arithmetic."""
    centre = statistic.kernel.centre  # type: ignore[attr-defined] # of ClippedSum
    total = np.zeros(1 + len(centre))
    for i, row in enumerate(rows.columns.T):
        if (rows.present is None or rows.present[i]) and np.isfinite(row).all():
            offset = row - centre
            total += np.array([1.0, *(offset / max(1.0, float(np.sqrt(offset @ offset))))])
    return np.asarray(total * UNIT)


def toy(adjacency: Adjacency, *, steps: int = 3, laplace: bool = False, rho: float = 2.0) -> Target:
    """Count and mean in two dimensions; the pair differs in one far row (present or absent; here or opposite)."""
    changed = sensitivity(statistic_about(np.zeros(2)).bounds, adjacency, 1)
    spend = Fraction(rho) / steps
    noise: GaussianNoise | LaplaceNoise = laplace_for(changed, spend) if laplace else gaussian_for(changed, spend)

    def run(session: Session) -> FloatArray:
        centre = np.zeros(2)
        for _ in range(steps):
            count, *sums = session.noisy_sum(statistic_about(centre), noise)
            centre = centre + np.clip(np.array(sums) / max(count, 4.0), -1.0, 1.0)
        return np.array([count, *centre])

    rows = np.linspace(-0.5, 0.5, 24).reshape(2, 12)
    rows[:, -1] = [40.0, 0.0]
    other = rows.copy()
    other[:, -1] = [-40.0, 0.0]
    other = other if adjacency is Adjacency.REPLACE_ONE else other[:, :-1]
    far = [np.array([s * r, t]) for s in (-1, 1) for r in (2.0, 40.0) for t in (0.0, 40.0)]
    return Target(
        name=f"toy {adjacency.value}{' laplace' if laplace else ''}",
        adjacency=adjacency,
        rows=ArrayRows(rows),
        neighbour=ArrayRows(other),
        events=(event_of(changed, noise),) * steps,
        run=run,
        reference=toy_reference,
        features=lambda model: np.asarray(model, dtype=np.float64),
        extremes=extremes(2, *far),
    )
