"""FitGradientEM's run: one look at the scales, then T noisy gradient steps, and post-processing between them.

Wang et al. 2020, algorithms 1-3, with noise that covers what a row can contribute. The default bounds the gradient
where it is short, about the released parameters, at a radius that follows the released noise level.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from bursar_server.fits.gradient_em._kernel import CATONI
from bursar_server.fits.gradient_em._normal import unclip
from bursar_server.fits.gradient_em._seam import Answer, Model, Pass, State, View
from bursar_server.fits.gradient_em._statistics import (
    LATTICE,
    LOOK_LATTICE,
    FloatArray,
    Shape,
    Sums,
    Transform,
    count_weight,
    decode,
    gradient_statistic,
    look_statistic,
)
from bursar_server.vault import Noise, Session, noise_std

_RESIDUAL_LIMIT = 1.25
"""Squared residuals are clipped at this multiple of sigma: half of them or less, so that far rows hardly count."""

_SHRINKAGE, _GROWTH = 0.6, 1.6
"""Bounds of a noise level's change in one step: it is read through noise, and through parameters that move."""

_LEAST_SIGMA, _MOST_SIGMA = 1e-3, 1.5
"""Bounds of a noise level, in units of the spread."""

_LEAST_WEIGHT = 1e-3
"""Of a component, over the number of them."""

_LEAST_SCALE = 1e-12
"""Of a radius or s; its inverse is the largest."""

_TRUSTED_COUNT = 2.0
"""A count below so many standard deviations of its noise is taken to be that many."""

_MOST_MEMORY = 0.95
"""Largest share of an error that a step is believed to keep."""


class Variant(enum.Enum):
    """What bounds a row's part of a gradient; see the contract."""

    RECENTRED = "recentred"
    TRUNCATED = "truncated"
    RADIAL = "radial"
    CLIPPED = "clipped"
    DP_EM = "dp_em"

    @property
    def transform(self) -> Transform:
        """Of vectors."""
        return {
            Variant.RADIAL: Transform.RADIAL,
            Variant.RECENTRED: Transform.NORM,
            Variant.CLIPPED: Transform.NORM,
        }.get(self, Transform.BOX)

    @property
    def adaptive(self) -> bool:
        """The radius follows the released noise level, and steps make up for what it cuts off."""
        return self in (Variant.RECENTRED, Variant.RADIAL)


@dataclass(frozen=True)
class Settings:
    """What the steps need beside their releases; all public.

    Attributes:
        model: what is fitted.
        variant: how.
        shape: of every gradient.
        step_size: eta.
        averaged: how many last iterates.
        sigma_known: the noise level is the analyst's.
        scale: s or C of the variants that do not adapt; None: from `tau`, `zeta` and the spread.
        tau: bound of second moments in squared units; None: from the spread.
        zeta: failure probability of the paper's bounds.
        steps_rho: what the steps cost together, as zero-concentrated divergence.
        look_noise: on the look.
        noise: on every gradient.
        T: steps.
    """

    model: Model
    variant: Variant
    shape: Shape
    step_size: float
    averaged: int
    sigma_known: bool
    scale: float | None
    tau: float | None
    zeta: float
    steps_rho: float
    look_noise: Noise
    noise: Noise
    T: int

    @property
    def std(self) -> float:
        """Standard deviation of the noise on a sum of bounded vectors of norm up to 1."""
        return noise_std(self.noise, LATTICE)


@dataclass(frozen=True)
class Result:
    """What a run ends with, in the data's own units but for `scales`.

    Attributes:
        answer: the averaged parameters.
        weights: (components,).
        coefficient_errors: as the answer's coefficients.
        intercept_errors: as the answer's intercepts.
        iterates: (T + 1, components, columns), with intercepts as one more column for regressions.
        scales: (T,) radius or s, the blocks' root mean square.
        rows: estimated number.
    """

    answer: Answer
    weights: FloatArray
    coefficient_errors: FloatArray
    intercept_errors: FloatArray
    iterates: FloatArray
    scales: FloatArray
    rows: float


def root_beta(q: int, zeta: float) -> float:
    """Square root of the precision beta = sqrt(log(q / zeta)) of the smoothing (algorithm 2, line 1)."""
    return float(math.log(q / zeta) ** 0.25)


def run(settings: Settings, session: Session) -> Result:
    """Make the look and the steps. A total function of rows and noise."""
    model, T = settings.model, settings.T
    look = session.noisy_sum(look_statistic(model.look, model.frame), settings.look_noise)
    session.progress(1, T + 1)
    view = model.view(look, noise_std(settings.look_noise, LOOK_LATTICE))
    rows, counts = view.rows, []
    states, scales = [model.start(view)], []
    variances = np.zeros_like(states[0].theta)
    for t in range(T):
        bounded = _pass(settings, view, states[-1])
        statistic = gradient_statistic(model.kernel(view, states[-1], bounded))
        sums = decode(session.noisy_sum(statistic, settings.noise), settings.shape)
        counts.append(float(np.sum(sums.counts)))
        rows = max(float(np.mean(counts)), 1.0)
        state, variances = _step(settings, view, states[-1], bounded, sums, rows)
        states.append(state)
        scales.append(float(np.sqrt(np.mean(bounded.scales**2))))
        session.progress(t + 2, T + 1)
    return _result(settings, view, states, np.array(scales), variances, rows)


def _pass(settings: Settings, view: View, state: State) -> Pass:
    """Bounds of the next gradient, a public function of what was released."""
    if settings.variant.adaptive:
        # Half of the residuals are longer; the odd part of them that is cut off costs a few per cent of precision, and
        # the noise falls with the radius.
        radius = settings.model.radius(view, state)
        scales = radius / (CATONI if settings.variant is Variant.RADIAL else 1.0)
    else:
        scale = settings.scale or _fixed_scale(settings, view)
        scales = np.full(settings.model.blocks, min(max(scale, _LEAST_SCALE), 1.0 / _LEAST_SCALE))
    return Pass(settings.shape, scales, settings.shape.transform is Transform.BOX, _RESIDUAL_LIMIT)


def _fixed_scale(settings: Settings, view: View) -> float:
    """C, the root mean square of a vector at the start; or s, from s^2 = n tau eps / (4 beta^2) (algorithm 2).

    eps is the paper's, which is the root of the zero-concentrated divergence that the steps cost together.
    """
    if settings.variant is Variant.CLIPPED:
        return view.spread * math.sqrt(settings.model.q)
    tau = settings.tau or view.spread**2
    beta = settings.shape.root_beta**2
    return math.sqrt(view.rows * tau * math.sqrt(settings.steps_rho)) / (2.0 * beta)


def _step(
    settings: Settings, view: View, state: State, bounded: Pass, sums: Sums, rows: float
) -> tuple[State, FloatArray]:
    """The next state, and the variances that the noise alone gives its theta."""
    model, blocks = settings.model, settings.shape.blocks
    least = max(_TRUSTED_COUNT * settings.std / count_weight(), 1.0)
    N = np.maximum(sums.counts, least) if blocks > 1 else np.array([max(rows, least)])
    gain = model.gain(view, state, bounded) if settings.variant.adaptive else np.ones_like(state.theta)
    unit = settings.step_size * bounded.reach[:, None] / (N[:, None] * gain)
    origin = model.origin(state) if bounded.split else state.theta
    theta = state.theta + settings.step_size * (origin - state.theta) + unit * sums.vectors
    weights = state.weights
    if blocks > 1:
        floored = np.maximum(N / N.sum(), _LEAST_WEIGHT / blocks)
        weights = floored / floored.sum()
    moved = State(model.project(view, theta), weights, _sigma(settings, view, state, sums.residuals / N))
    return moved, (unit * settings.std) ** 2


def _sigma(settings: Settings, view: View, state: State, mean_residuals: FloatArray) -> FloatArray:
    """The M-step of the noise level, from clipped squares."""
    if settings.sigma_known:
        return state.sigma
    factor = unclip(mean_residuals, settings.model.residual_size, _RESIDUAL_LIMIT)
    sigma = state.sigma * np.clip(factor, _SHRINKAGE, _GROWTH)
    return np.clip(sigma, _LEAST_SIGMA * view.spread, _MOST_SIGMA * view.spread)


def _result(
    settings: Settings, view: View, states: list[State], scales: FloatArray, variances: FloatArray, rows: float
) -> Result:
    model, m = settings.model, settings.averaged
    last = states[-m:]
    mean = State(
        theta=np.mean([state.theta for state in last], axis=0),
        weights=np.mean([state.weights for state in last], axis=0),
        sigma=np.sqrt(np.mean([state.sigma**2 for state in last], axis=0)),
    )
    trail = np.array([state.theta for state in states[-m - 1 :]])
    errors = model.errors(view, error_variances(trail, variances, _sampling(settings, mean, rows), settings.step_size))
    answers = [model.answer(view, state) for state in states]
    iterates = [
        np.column_stack([a.coefficients, a.intercepts]) if len(a.intercepts) else a.coefficients for a in answers
    ]
    return Result(model.answer(view, mean), mean.weights, *errors, np.array(iterates), scales, rows)


def _sampling(settings: Settings, state: State, rows: float) -> FloatArray:
    """(blocks, 1) variance of a parameter if it were known which component each row is of, and none were clipped."""
    shares = state.weights if settings.shape.blocks > 1 else np.ones(1)
    return (state.sigma**2 / (rows * shares))[:, None]


def error_variances(trail: FloatArray, noise: FloatArray, sampling: FloatArray, step_size: float) -> FloatArray:
    """Variances (blocks, q) of averaged iterates: of their noise, of the sample, and of what has not settled.

    Near the fixed point steps are linear: an error x becomes rho x + noise. Then the mean square of a step is
    2 noise / (1 + rho), from which rho is read; a step that loses 1 - rho of the error has 1 - (1 - rho) / step_size of
    the information missing. Approximate: one rho for all parameters of a block, and read from few steps.

    Args:
        trail: (m + 1, blocks, q), the iterates that are averaged and the one before them.
        noise: (blocks, q) variance of a step.
        sampling: (blocks, 1) variance of the sample with nothing missing.
        step_size: eta.
    """
    m = len(trail) - 1
    squares = np.mean(np.diff(trail, axis=0) ** 2, axis=(0, 2))[:, None]
    level = np.mean(noise, axis=1, keepdims=True)
    rho = np.clip(2.0 * level / np.maximum(squares, 1e-300) - 1.0, max(0.0, 1.0 - step_size), _MOST_MEMORY)
    stationary = 1.0 / (1.0 - rho**2)
    averaged = noise * np.minimum(stationary, 1.0 / (m * (1.0 - rho) ** 2))
    missing = np.minimum((1.0 - rho) / min(step_size, 1.0), 1.0)
    moved = np.mean((trail[-1] - trail[0]) ** 2, axis=1, keepdims=True)
    unsettled = np.maximum(moved - 2.0 * level * stationary, 0.0) / m
    return np.asarray(averaged + sampling / missing + unsettled)
