"""Steps of a noisy EM: their schedule and precisions, decided before the debit, and their run.

Park et al. 2016, algorithm 1, with one joint release per step and a private start; the cost is the plan's for any data.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import types_pb2
from bursar_server.fits.mixtures import em, points, splitting
from bursar_server.fits.mixtures.decoding import Released, decode
from bursar_server.fits.mixtures.em import SETTLED, Mixture, Prior, Rules
from bursar_server.fits.mixtures.splitting import Cells
from bursar_server.fits.mixtures.statistics import (
    LATTICE,
    BallFrame,
    EStep,
    Moments,
    Weights,
    moment_bounds,
    moment_statistic,
)
from bursar_server.vault import Bounds, Noise, Sensitivity, Statistic, gaussian_for, laplace_for, noise_std, sensitivity


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


@dataclass(frozen=True)
class Traced:
    """Mixture, and what it was made of. All of it is released.

    Attributes:
        mixture: result.
        measured: what its recentred EM steps released.
        cells: mixture that the start ended with; None if it had no more components than the result.
    """

    mixture: Mixture
    measured: tuple[Measured, ...]
    cells: Mixture | None


def run(settings: EMSettings, steps: tuple[Step, ...], session: Sums) -> Mixture:
    """Run the plan's steps. A total function of rows and noise; returns a valid mixture in the unit ball."""
    return traced(settings, steps, session).mixture


def traced(settings: EMSettings, steps: tuple[Step, ...], session: Sums) -> Traced:
    """Run the plan's steps; returns the mixture with what it was made of."""
    trajectory: list[Measured] = []
    cells: Mixture | None = None
    state: Cells | Mixture = splitting.whole_ball(len(settings.frame.scale))
    everything: tuple[FloatArray, float] | None = None
    if settings.start is not None:
        state = settings.start
    for index, step in enumerate(steps):
        if step.phase is Phase.EM:
            before = _as_mixture(state, settings)
            mixture = _reduced(before, step, settings)
            if len(mixture.counts) < len(before.counts):
                cells = before
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
    return Traced(mixture, tuple(trajectory), cells)


def _reduced(mixture: Mixture, step: Step, settings: EMSettings) -> Mixture:
    """Return the mixture with the components of a step."""
    count_std = step.std / step.weights.a
    if settings.cells > 2 * settings.components and len(mixture.counts) > step.components:
        return points.reduced(mixture, step.components, settings.moments, count_std)
    return em.merged(mixture, step.components, count_std)


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


_CELL_WEIGHTS = Weights(0.6, 0.6, 1.0)
"""Weights while splitting, which needs principal axes most. Chosen, not tuned."""

_REPAIR_WEIGHTS = Weights(0.8, 0.8, 1.0)
"""Weights of repairs, between those of splitting and of settling. Chosen, not tuned."""

_FIXED_WEIGHTS = Weights(1.0, 1.0, 1.0)
"""Weights of the paper's fixed-origin steps: equal noise on all numbers."""

_POLISH, _REPAIRS, _STEPS_WITHOUT_SPLITTING = 7, 2, 10
"""Steps after the start, repairs among them, and steps without splitting.

Chosen, not tuned.
"""


_SOFT, _SOFT_OF_MANY = 3, Fraction(3, 5)
"""EM steps with two cells for each component, before they are merged, and the share of the EM steps with more of them.
Chosen on real tables: many small cells find where values repeat, and need time for it.
"""


@dataclass(frozen=True)
class Sketch:
    """Step before its noise is known."""

    phase: Phase
    components: int
    moments: Moments
    weights: Weights
    share: Fraction = Fraction(1)
    background: bool = False


FIRST = Sketch(Phase.SPLIT, 1, Moments.SPHERICAL, Weights(1.0, 1.0, 1.0), Fraction(3, 10))
"""First step of a start that splits: centre and spread of all rows. Its relative share is chosen, not tuned."""


_WHOLE_SHARE = 3 * FIRST.share
"""Share of a first step that means are balanced by. Chosen: its noise is then below what tails lack, on the demo."""


def default_iterations(k: int, *, splitting: bool) -> int:
    """Return the minimum number of steps if the request leaves it open: those of the start, then those of settling."""
    if not splitting:
        return _STEPS_WITHOUT_SPLITTING
    return 1 + _levels(k) + _POLISH


def sketch(
    k: int,
    d: int,
    T: int,
    moments: Moments,
    *,
    recentred: bool,
    splitting: bool,
    pure: bool,
    cells: int | None = None,
    background: bool = False,
    whole: bool = False,
) -> tuple[Sketch, ...]:
    """Return T steps to k components in d dimensions.

    Splitting begins with one step for the spread of all rows, then 1, 2, 4, ... cells, in fewer and larger jumps if T
    is small. The remaining steps polish by repairs and EM steps, the first of them with all `cells` (None: k). All
    EM steps but the first count a background if asked to: cells that are too wide would lose all their rows to it.
    If means are to be those of all rows (`whole`), the first release is more precise, because they are balanced by it.
    """
    # A fixed origin has fixed weights; recentred steps have those that minimise the loss by noise.
    em = Sketch(Phase.EM, k, moments, em_weights(d, k, moments, pure=pure) if recentred else _FIXED_WEIGHTS)
    if not splitting:
        return (em, *(T - 1) * (replace(em, background=background),))
    cells = cells or k
    start = _splitting_steps(cells, T)
    rest = T - len(start)
    repairs = min(_REPAIRS, max(rest - 3, 0)) if cells > 1 else 0
    repair = Sketch(Phase.REPAIR, cells, Moments.FULL, _REPAIR_WEIGHTS)
    wide = replace(em, components=cells, weights=em_weights(d, cells, moments, pure=pure)) if cells > k else em
    soft = max(_SOFT, int((rest - repairs) * _SOFT_OF_MANY)) if cells > 2 * k else _SOFT
    settling = [wide if i < soft else em for i in range(rest - repairs)]
    settling[1:] = [replace(step, background=background) for step in settling[1:]]
    # With many settling steps the start gets a larger share each, because settling cannot mend a wrong start.
    boost = max(Fraction(1), Fraction(T, default_iterations(cells, splitting=True)))
    early = len(start) + repairs
    if whole and start[0] == FIRST:
        start = (replace(FIRST, share=_WHOLE_SHARE), *start[1:])
    sketches = (*start, *repairs * (repair,), *settling)
    return (*(replace(s, share=s.share * boost) for s in sketches[:early]), *sketches[early:])


def _splitting_steps(k: int, T: int) -> tuple[Sketch, ...]:
    # The step for the spread of all rows pays where two steps are left for what it improves.
    spread = T >= 3 or (k == 1 and T == 2)
    levels = min(_levels(k), T - spread - 1) if k > 1 else 0
    if T == 1:
        levels, spread = 1, False
    elif k > 1:
        levels = max(levels, 1)
    sizes = [min(2**i, k) if levels == _levels(k) else math.ceil(k ** (i / levels)) for i in range(levels)]
    return (*spread * (FIRST,), *(Sketch(Phase.SPLIT, size, Moments.FULL, _CELL_WEIGHTS) for size in sizes))


def _levels(k: int) -> int:
    return math.ceil(math.log2(k)) if k > 1 else 0


def em_weights(d: int, k: int, moments: Moments, *, pure: bool) -> Weights:
    """Return the weights a, b, c that minimise the expected excess loss of a recentred EM step at a given price.

    In whitened units with squared clip radius v, the noise s on every number costs (Kullback-Leibler, to second order,
    up to a common factor) s^2 ((1/2 + d/4) / a^2 + (d v / 2) / b^2 + (q v^2 / 4) / c^2), q second moments of a
    component. Under zCDP the price is that of a^2 + b^2 + c^2, under pure epsilon that of a + b sqrt(d) + c l: the
    minimum has x^2 or x^3 in proportion to cost over price.
    """
    v = 1.6 * d + 2.0  # squared clip radius between those of the noisiest and of the most precise step
    q = 1.0 / d if moments is Moments.SPHERICAL else float(moments.size(d))
    costs = np.array([0.5 + d / 4.0, d * v / 2.0, q * v * v / 4.0])
    # Costs are those of relative errors, so a matrix from all rows counts less.
    if moments is Moments.TIED:  # one matrix for all: its relative noise is k times smaller
        costs[2] /= k * k
    if pure:
        lengths = np.array(
            [1.0, math.sqrt(d), 1.0 + 0.71 * (d - 1) if moments in (Moments.FULL, Moments.TIED) else 1.0]
        )
        weights = np.cbrt(costs / lengths)
    else:
        weights = costs**0.25
    a, b, c = (float(w) for w in weights / weights.max())
    return Weights(a, b, c)


def price(
    sketches: tuple[Sketch, ...],
    d: int,
    amount: Fraction,
    adjacency: Adjacency,
    unit_cap: int,
    *,
    pure: bool,
    rule: Callable[[Bounds, Adjacency, int], Sensitivity] = sensitivity,
) -> tuple[Step, ...]:
    """Divide `amount` (rho, or epsilon if pure) among the steps. Raises ValueError if it is too small.

    `rule` computes the sensitivity that releases are priced by: that of whole tables, or `part_sensitivity` for a part.
    """
    calibrate: Callable[[Sensitivity, Fraction], Noise] = laplace_for if pure else gaussian_for
    total = sum((s.share for s in sketches), Fraction(0))
    return tuple(
        Step(
            s.phase,
            s.components,
            s.moments,
            s.weights,
            calibrate(rule(_bounds(s, d), adjacency, unit_cap), amount * s.share / total),
            s.background,
        )
        for s in sketches
    )


def of_step(step: Sketch | Step, d: int, adjacency: Adjacency, unit_cap: int) -> Sensitivity:
    """Return the sensitivity of a step's release."""
    return sensitivity(_bounds(step, d), adjacency, unit_cap)


def released_numbers(components: int, d: int, moments: Moments, *, background: bool = False) -> int:
    """Return how many numbers a step releases."""
    return background + components * (1 + d) + (1 if moments is Moments.TIED else components) * moments.size(d)


def release_noise(step: Step, d: int, name: str, times: int) -> types_pb2.ReleaseNoise:
    """Return the line of a preview about a step that is made several times."""
    return types_pb2.ReleaseNoise(
        name=name,
        size=released_numbers(step.components, d, step.moments, background=step.background),
        count_std=step.std / step.weights.a,
        sum_std=step.std / step.weights.b,
        moment_std=step.std / step.weights.c,
        times=times,
    )


def _bounds(step: Sketch | Step, d: int) -> Bounds:
    return moment_bounds(step.components, d, step.moments, step.weights, background=step.background)
