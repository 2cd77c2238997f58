"""Private start of a Gaussian mixture: the public ball, split along released principal axes until there are k cells.

The releases are those of FitDPEM's start (`fits/mixtures`): joint moments of the rows nearest to each cell. EM from
random means ends in a local optimum more often the more components there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits._requests import Amount
from bursar_server.fits._seam import PublicTable
from bursar_server.fits.gradient_em._models import State
from bursar_server.fits.gradient_em._statistics import GradientFrame
from bursar_server.fits.mixtures.statistics import BallFrame, Moments
from bursar_server.fits.mixtures.steps import EMSettings, Phase, Step, default_iterations, price, sketch
from bursar_server.fits.mixtures.steps import run as run_steps
from bursar_server.vault import Noise, Session, Statistic

SHARE = Fraction(1, 4)
"""Share of the budget for the start. Measured: 2/5 and 3/5 find no more components, and leave larger errors."""

_LEAST_WEIGHT = 1e-3
"""Minimum weight of a component, over their number: one without rows would stay so."""


def opening_steps(k: int, d: int, amount: Amount, table: PublicTable) -> tuple[Step, ...]:
    """Return the releases that split the ball into k cells, for `SHARE` of an amount. Raises ValueError as `price`."""
    T = default_iterations(k, splitting=True)
    whole = sketch(k, d, T, Moments.SPHERICAL, recentred=True, splitting=True, pure=amount.pure)
    early = tuple(one for one in whole if one.phase is not Phase.EM)
    return price(early, d, SHARE * amount.value, table.adjacency, table.unit_cap, pure=amount.pure)


@dataclass(frozen=True)
class _Opening:
    """Session whose first releases are the look and the start."""

    session: Session
    steps: int

    def progress(self, step: int, steps: int) -> None:
        """Report a step of the start, after the look."""
        del steps
        self.session.progress(1 + step, self.steps)

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> NDArray[np.float64]:
        """Implement `Session.noisy_sum`."""
        return self.session.noisy_sum(statistic, noise)


def opened(frame: GradientFrame, k: int, steps: tuple[Step, ...], session: Session, progress: int) -> State:
    """Return means, weights and standard deviations of the cells that the releases lead to. Total.

    Args:
        frame: frame of the columns.
        k: number of components.
        steps: releases of the plan.
        session: source of noisy sums.
        progress: number of steps of the whole fit.
    """
    # The ball holds the public box, so that no row that is within its bounds is clipped.
    radius = float(np.linalg.norm(frame.half))
    ball = BallFrame(frame.centre, frame.unit * radius)
    settings = EMSettings(ball, k, k, Moments.SPHERICAL, recentred=True, prior=None, start=None)
    found = run_steps(settings, steps, _Opening(session, progress))
    counts = np.maximum(found.counts, _LEAST_WEIGHT * found.counts.sum() / k)
    sigma = radius * np.sqrt(np.trace(found.covariances, axis1=1, axis2=2) / len(frame.half))
    return State(radius * found.means, counts / counts.sum(), sigma)
