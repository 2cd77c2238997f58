"""Run of a noisy EM: T steps decided in advance, and post-processing between them.

Park et al. 2016, algorithm 1, with one joint release per step and a private start; the cost is the plan's for any data.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures import em, splitting
from bursar_server.fits.mixtures.decoding import Released, decode
from bursar_server.fits.mixtures.em import SETTLED, Mixture, Prior, Rules
from bursar_server.fits.mixtures.splitting import Cells
from bursar_server.fits.mixtures.statistics import LATTICE, BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.vault import Noise, Statistic, noise_std


class Sums(Protocol):
    """Source of noisy sums: a session, or a part of a table."""

    @property
    def progress(self) -> Callable[[int, int], None]:
        """Function that is called with (step, steps)."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> NDArray[np.float64]:
        """Implement `Session.noisy_sum`."""


class Phase(enum.Enum):
    """Use of a step's release."""

    SPLIT = "split"
    """One or more cells; afterwards they are split into as many as the next step has."""
    REPAIR = "repair"
    """All k cells; afterwards centres may move from shared clusters to crowded cells."""
    GRID = "grid"
    """The bins of a grid, of which k-means in few columns needs the counts only."""
    LLOYD = "lloyd"
    """The k clusters of a k-means; afterwards only their parameters move."""
    REPORT = "report"
    """The k clusters of a k-means as they are returned; afterwards nothing moves."""
    EM = "em"
    """Responsibilities of a mixture."""


@dataclass(frozen=True)
class Step:
    """Release, decided before any row is read."""

    phase: Phase
    components: int
    moments: Moments
    weights: Weights
    noise: Noise
    background: bool = False

    @property
    def std(self) -> float:
        """Standard deviation of the noise on every number of the release, before its weight is divided out."""
        return noise_std(self.noise, LATTICE)


@dataclass(frozen=True)
class EMSettings:
    """Public settings of the steps beside their releases.

    Attributes:
        frame: map from the data's units into the unit ball.
        components: number of components k.
        cells: number of cells that the start ends with, k or more.
        moments: form of the mixture's covariances.
        recentred: True for moments about released means, False for the paper's fixed origin.
        prior: prior of maximum a posteriori; None for maximum likelihood.
        start: initial mixture; None to split.
        rules: how far clip radii and shapes follow the noise.
        whole: True to balance the means by the first release, where it is of all rows.
    """

    frame: BallFrame
    components: int
    cells: int
    moments: Moments
    recentred: bool
    prior: Prior | None
    start: Mixture | None
    rules: Rules = SETTLED
    whole: bool = False


@dataclass(frozen=True)
class Measured:
    """Release of one EM step, as it left.

    Attributes:
        e_step: public parameters of what was summed, with moments about the components.
        radii: clip radii (K,), in units of the covariances.
        step: step of the plan.
        sums: noisy sums, flat, as the session returned them.
    """

    e_step: EStep
    radii: FloatArray
    step: Step
    sums: FloatArray


def run(settings: EMSettings, steps: tuple[Step, ...], session: Sums) -> Mixture:
    """Run the plan's steps. A total function of rows and noise; returns a valid mixture in the unit ball."""
    return traced(settings, steps, session)[0]


def traced(settings: EMSettings, steps: tuple[Step, ...], session: Sums) -> tuple[Mixture, tuple[Measured, ...]]:
    """Run the plan's steps; returns the mixture, and what its recentred EM steps released."""
    trajectory: list[Measured] = []
    state: Cells | Mixture = splitting.whole_ball(len(settings.frame.scale))
    everything: tuple[FloatArray, float] | None = None
    if settings.start is not None:
        state = settings.start
    for index, step in enumerate(steps):
        if step.phase is Phase.EM:
            mixture = em.merged(_as_mixture(state, settings), step.components, step.std / step.weights.a)
            state = _em_step(settings, step, mixture, session, trajectory)
        elif not isinstance(state, Mixture):  # cells come first, and a mixture never turns into cells again
            # Cells are split into as many as the next step will count.
            after = steps[index + 1].components if index + 1 < len(steps) else settings.cells
            state = _cell_step(settings, step, state, after, session)
            if settings.whole and index == 0 and len(state) == 1:
                everything = (state[0].mean, step.std / step.weights.b / state[0].count)
        session.progress(index + 1, len(steps))
    mixture = em.merged(_as_mixture(state, settings), settings.components)
    if everything is not None and trajectory:
        mixture = em.balanced(mixture, trajectory[-1].radii, *everything)
    return mixture, tuple(trajectory)


def _as_mixture(state: Cells | Mixture, settings: EMSettings) -> Mixture:
    return state if isinstance(state, Mixture) else em.from_cells(state, settings.moments, settings.rules)


def _em_step(settings: EMSettings, step: Step, mixture: Mixture, session: Sums, trajectory: list[Measured]) -> Mixture:
    """Return the mixture after a step, whose release is added to the trajectory."""
    if settings.recentred:
        second_std = step.std / step.weights.c
        e_step, radii = em.recentred_step(mixture, step.moments, second_std, settings.rules, background=step.background)
        flat, released = _released(settings.frame, e_step, step, session)
        trajectory.append(Measured(e_step, radii, step, flat))
        return em.recentred_update(mixture, radii, released, step.moments, settings.prior, settings.rules)
    released = release(settings.frame, em.fixed_origin_step(mixture, step.moments), step, session)
    updated = em.fixed_origin_update(released, step.moments)
    return em.maximum_a_posteriori(updated, settings.prior, step.moments) if settings.prior else updated


def _cell_step(settings: EMSettings, step: Step, cells: Cells, after: int, session: Sums) -> Cells:
    means = np.array([cell.mean for cell in cells])
    eye = np.eye(means.shape[1])
    radii = np.array([cell.radius for cell in cells])
    e_step = EStep(
        hard=True,
        log_scale=np.zeros(len(cells)),
        means=means,
        factors=np.broadcast_to(eye, (len(cells), *eye.shape)).copy(),
        diagonal=True,
        centres=means,
        whiteners=eye / radii[:, None, None],
    )
    released = release(settings.frame, e_step, step, session)
    # Means of cells that will be split again are not averaged: their next release is about other cells.
    averaging = step.components == settings.cells
    cells = splitting.observe(cells, released, step.moments, averaging=averaging)
    return splitting.resize(cells, after) if step.phase is Phase.SPLIT else splitting.repair(cells)


def release(frame: BallFrame, e_step: EStep, step: Step, session: Sums) -> Released:
    """Release a step's joint moments and decode them."""
    return _released(frame, e_step, step, session)[1]


def _released(frame: BallFrame, e_step: EStep, step: Step, session: Sums) -> tuple[FloatArray, Released]:
    """Return a step's noisy sums, as released and decoded."""
    statistic = moment_statistic(frame, e_step, step.moments, step.weights)
    flat = session.noisy_sum(statistic, step.noise)
    K, d = e_step.means.shape
    return flat, decode(flat, K, d, step.moments, step.weights, step.std)
