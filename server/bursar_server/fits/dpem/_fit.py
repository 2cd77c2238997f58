"""FitDPEM's run: T noisy steps, decided in advance, and post-processing between them.

Park et al. 2016, algorithm 1, with one joint release per step and a private start; the price is the plan's, whatever
the data.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_server.fits.dpem import _cells, _em
from bursar_server.fits.dpem._cells import Cells
from bursar_server.fits.dpem._em import Mixture, Prior
from bursar_server.fits.dpem._released import Released, decode
from bursar_server.fits.dpem._statistics import LATTICE, EStep, Frame, Moments, Weights, moment_statistic
from bursar_server.vault import Noise, Statistic, noise_std


class Sums(Protocol):
    """What gives noisy sums: a session, or a part of a table."""

    @property
    def progress(self) -> Callable[[int, int], None]:
        """Called with (step, steps)."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> NDArray[np.float64]:
        """See `Session.noisy_sum`."""


class Phase(enum.Enum):
    """What a step's release is used for."""

    SPLIT = "split"
    """One or more cells; afterwards they are split into as many as the next step has."""
    REPAIR = "repair"
    """All k cells; afterwards centres may move from shared clusters to crowded cells."""
    LLOYD = "lloyd"
    """All k cells; afterwards only their parameters move."""
    EM = "em"
    """Responsibilities of a mixture."""


@dataclass(frozen=True)
class Step:
    """One release, decided before any row is read."""

    phase: Phase
    components: int
    moments: Moments
    weights: Weights
    noise: Noise

    @property
    def std(self) -> float:
        """Standard deviation of the noise on every number of the release, before its weight is divided out."""
        return noise_std(self.noise, LATTICE)


@dataclass(frozen=True)
class Settings:
    """What the steps need to know beside their releases; all public.

    Attributes:
        frame: from the data's units into the unit ball.
        components: k.
        moments: form of the mixture's covariances; SPHERICAL for k-means.
        recentred: moments about released means; False for the paper's fixed origin.
        prior: for maximum a posteriori; None for maximum likelihood.
        kmeans: hard assignments throughout.
        start: a mixture to begin with; None to split.
    """

    frame: Frame
    components: int
    moments: Moments
    recentred: bool
    prior: Prior | None
    kmeans: bool
    start: Mixture | None


def run(settings: Settings, steps: tuple[Step, ...], session: Sums) -> Mixture:
    """Run the plan's steps. A total function of rows and noise; returns a valid mixture in the unit ball."""
    state: Cells | Mixture = _cells.whole_ball(len(settings.frame.scale))
    if settings.start is not None:
        state = _cells_of(settings.start) if settings.kmeans else settings.start
    for index, step in enumerate(steps):
        if step.phase is Phase.EM:
            state = _em_step(settings, step, _as_mixture(state, settings.moments), session)
        elif not isinstance(state, Mixture):  # cells come first, and a mixture never turns into cells again
            after = steps[index + 1].components if index + 1 < len(steps) else settings.components
            state = _cell_step(settings, step, state, after, session)
        session.progress(index + 1, len(steps))
    return _as_mixture(state, settings.moments)


def _as_mixture(state: Cells | Mixture, moments: Moments) -> Mixture:
    return state if isinstance(state, Mixture) else _em.from_cells(state, moments)


def _em_step(settings: Settings, step: Step, mixture: Mixture, session: Sums) -> Mixture:
    if settings.recentred:
        second_std = step.std / step.weights.c
        e_step, radii = _em.recentred_step(mixture, step.moments, second_std)
        released = _release(settings.frame, e_step, step, session)
        return _em.recentred_update(mixture, radii, released, step.moments, settings.prior)
    released = _release(settings.frame, _em.fixed_origin_step(mixture, step.moments), step, session)
    updated = _em.fixed_origin_update(released, step.moments)
    return _em.maximum_a_posteriori(updated, settings.prior, step.moments) if settings.prior else updated


def _cell_step(settings: Settings, step: Step, cells: Cells, after: int, session: Sums) -> Cells:
    means = np.array([cell.mean for cell in cells])
    eye = np.eye(means.shape[1])
    radii = np.array([cell.radius for cell in cells])
    fixed = step.phase is Phase.LLOYD and not settings.recentred
    e_step = EStep(
        hard=True,
        log_scale=np.zeros(len(cells)),
        means=means,
        factors=np.broadcast_to(eye, (len(cells), *eye.shape)).copy(),
        diagonal=True,
        centres=np.zeros_like(means) if fixed else means,
        whiteners=np.broadcast_to(eye, (len(cells), *eye.shape)).copy() if fixed else eye / radii[:, None, None],
    )
    released = _release(settings.frame, e_step, step, session)
    if fixed:
        return _cells.observe_fixed(cells, released)
    averaging = step.components == settings.components
    cells = _cells.observe(cells, released, step.moments, averaging=averaging)
    if step.phase is Phase.SPLIT:
        return _cells.resize(cells, after)
    return _cells.repair(cells) if step.phase is Phase.REPAIR else cells


def _cells_of(mixture: Mixture) -> Cells:
    """A start that was not split as cells; half as wide again as it says, since it may be a guess."""
    return tuple(
        _cells.Cell(float(n), m, c, 0.0, min(2.0, 1.5 * float(np.sqrt(np.trace(c)))))
        for n, m, c in zip(mixture.counts, mixture.means, mixture.covariances, strict=True)
    )


def _release(frame: Frame, e_step: EStep, step: Step, session: Sums) -> Released:
    statistic = moment_statistic(frame, e_step, step.moments, step.weights)
    flat = session.noisy_sum(statistic, step.noise)
    K, d = e_step.means.shape
    return decode(flat, K, d, step.moments, step.weights, step.std)
