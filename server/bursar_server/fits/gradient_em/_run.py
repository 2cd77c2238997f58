"""Run of FitGradientEM: one look at the scales, a private start, T noisy gradient steps, and post-processing between.

Wang et al. 2020, algorithms 1-3, with noise that covers the contribution of a row. By default gradients are bounded
where they are short, about the released parameters, at a radius that follows the released noise level.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em._kernel import CATONI, UNCLIPPED
from bursar_server.fits.gradient_em._models import Answer, Model, Pass, State, View, believed_rows
from bursar_server.fits.gradient_em._normal import unclip
from bursar_server.fits.gradient_em._start import opened
from bursar_server.fits.gradient_em._statistics import (
    LATTICE,
    LOOK_LATTICE,
    RADIUS_LATTICE,
    Shape,
    Sums,
    Transform,
    count_weight,
    decode,
    gradient_statistic,
    look_statistic,
    radius_statistic,
)
from bursar_server.fits.mixtures.radius_statistics import radius_edges
from bursar_server.fits.mixtures.steps import Step
from bursar_server.vault import Noise, Session, noise_std

_RESIDUAL_LIMIT = 1.25
"""Clip of squared residuals in multiples of sigma: at most half of them are clipped, so that outliers hardly count."""

# "Insensitive": 0.7 and 1.4 times the value changed the mean error of 20 fits by about two standard errors at most
# (5 to 14 %; symmetric mixture, mixture of regressions, missing features; d = 10, epsilon 0.5).
_SHRINKAGE, _GROWTH = 0.6, 1.6
"""Bounds of a noise level's change in one step, estimated from noise and moving parameters. Insensitive."""

_LEAST_SIGMA, _MOST_SIGMA = 1e-3, 1.5
"""Bounds of a noise level, in units of the spread. Insensitive."""

_LEAST_WEIGHT = 1e-3
"""Minimum weight of a component, over the number of components. Insensitive."""

_LEAST_SCALE = 1e-12
"""Minimum of a radius or s; its inverse is the maximum."""

_DAMPED = 0.5
"""Minimum step in the second half, where hidden components let errors of parameters decay slowly. Insensitive."""

_ALONE = 0.25
"""Minimum step of a single component, whose gain is as accurate as the scales of the look. Insensitive."""

_SURPRISE, _UNLIKE = 3.0, 4.0
"""Standard deviations of two tests. Insensitive.

First, the excess of a move's mean square over the expected one, beyond which more distance is assumed to remain.
Second, that of a target's distance, beyond which it counts as one before parameters settled.
"""

_FAR_OFF = 0.5
"""Distance of a target, in standard deviations before the first step, that must be detectable. Insensitive."""

_MOST_BRAKE = 10.0
"""Maximum divisor of steps that overshoot. Insensitive."""

_LEAST_LEFT = 0.25
"""Least share of a mean squared residual that is noise. Insensitive."""

_LEAST_KNOWN = 0.05
"""Minimum assumed share of the information that is not hidden. Insensitive."""

_TRUSTED_COUNT = 2.0
"""Minimum count, in standard deviations of its noise; smaller counts are raised to it."""


class Variant(enum.Enum):
    """Method that bounds a row's part of a gradient; see the contract."""

    RECENTRED = "recentred"
    TRUNCATED = "truncated"
    RADIAL = "radial"
    CLIPPED = "clipped"
    DP_EM = "dp_em"

    @property
    def transform(self) -> Transform:
        """Transform of vectors."""
        return {
            Variant.RADIAL: Transform.RADIAL,
            Variant.RECENTRED: Transform.NORM,
            Variant.CLIPPED: Transform.NORM,
        }.get(self, Transform.BOX)

    @property
    def adaptive(self) -> bool:
        """Return whether the radius follows the released noise level, and steps compensate for clipping."""
        return self in (Variant.RECENTRED, Variant.RADIAL)


@dataclass(frozen=True)
class GradientSettings:
    """Public settings of the steps beside their releases.

    Attributes:
        model: model to fit.
        variant: method that bounds gradients.
        shape: shape of every gradient.
        step_size: step size eta.
        averaged: number of averaged last iterates if steps are not tracked; about that number if they are.
        tracked: True if steps shrink as parameters settle, and the result is the mean of all that have settled.
        sigma_known: True if the analyst gave the noise level.
        scale: s or C of the variants that do not adapt; None: computed from `tau`, `zeta` and the spread.
        tau: bound of second moments in squared units; None: computed from the spread.
        zeta: failure probability of the paper's bounds.
        steps_rho: cost of all steps together, as zero-concentrated divergence.
        look_noise: noise on the look.
        noise: noise on every gradient.
        radii_noise: noise on the counts by radius.
        T: number of steps.
        declared: public number of rows, which may be inexact; None if there is none.
        opening: releases of a private start; empty for a start that is random or given.
    """

    model: Model
    variant: Variant
    shape: Shape
    step_size: float
    averaged: int
    tracked: bool
    sigma_known: bool
    scale: float | None
    tau: float | None
    zeta: float
    steps_rho: float
    look_noise: Noise
    noise: Noise
    radii_noise: Noise
    T: int
    declared: float | None
    opening: tuple[Step, ...]

    @property
    def steps(self) -> int:
        """Number of releases: the look, those of the start, T gradients, and the counts by radius."""
        return 2 + len(self.opening) + self.T

    @property
    def std(self) -> float:
        """Standard deviation of the noise on a sum of bounded vectors of norm up to 1."""
        return noise_std(self.noise, LATTICE)

    @property
    def radii_std(self) -> float:
        """Standard deviation of the noise on each count by radius, in rows."""
        return noise_std(self.radii_noise, RADIUS_LATTICE)


@dataclass(frozen=True)
class Result:
    """Result of a run, in the data's own units except for `scales`.

    Attributes:
        answer: averaged parameters.
        averaged: number of averaged steps.
        weights: weights, (components,).
        coefficient_errors: standard errors, shaped as the answer's coefficients.
        intercept_errors: standard errors, shaped as the answer's intercepts.
        iterates: iterates, (T + 1, components, columns), with intercepts as one more column for regressions.
        scales: radius or s of each step, (T,), the blocks' root mean square.
        rows: estimated number of rows.
        radii: noisy numbers of rows by their distance from the answer, (cells,).
    """

    answer: Answer
    averaged: int
    weights: FloatArray
    coefficient_errors: FloatArray
    intercept_errors: FloatArray
    iterates: FloatArray
    scales: FloatArray
    rows: float
    radii: FloatArray


def root_beta(q: int, zeta: float) -> float:
    """Return the square root of the precision beta = sqrt(log(q / zeta)) of the smoothing (algorithm 2, line 1)."""
    return float(math.log(q / zeta) ** 0.25)


@dataclass(frozen=True)
class _Track:
    """Estimate of the uncertainty of the released parameters of each block.

    A step asks for a move to a target, which is the fixed point plus noise of known variance if steps are linear. So
    parameters are moved by the share of their own uncertainty in that of the move, as a Kalman filter does. A move that
    is too long for chance shows that more distance remains, and one that reverses the last move shows overshooting.

    Attributes:
        variance: variance of the parameters, (blocks, q).
        brake: divisor of steps, (blocks, 1).
        move: last requested move, (blocks, q).
        noise: variance of that move, (blocks, q).
        step: share of it that was made, (blocks, q).
    """

    variance: FloatArray
    brake: FloatArray
    move: FloatArray
    noise: FloatArray
    step: FloatArray

    def after(self, move: FloatArray, noise: FloatArray, least: FloatArray) -> _Track:
        """Return the track after another move, of which a share is made.

        The share is at least `least` (blocks, q), unless there is a brake.
        """
        # Never released again: a step that was too long once would be too long again.
        brake = np.maximum(self.brake, self._overshoot(move, noise))
        chance = 1.0 + _SURPRISE * math.sqrt(2.0 / move.shape[1])
        expected = self.variance + noise
        surprising = np.mean(move**2 / expected, axis=1, keepdims=True) > chance
        # The remaining distance is about equal for all parameters, so those with the least noise show it best.
        left = np.sum((move**2 - noise) / expected**2, axis=1, keepdims=True) / np.sum(
            1.0 / expected**2, axis=1, keepdims=True
        )
        variance = np.where(surprising, np.maximum(self.variance, left), self.variance)
        step = np.maximum(variance / (variance + noise), least) / brake
        return _Track((1.0 - step) ** 2 * variance + step**2 * noise, brake, move, noise, step)

    def _overshoot(self, move: FloatArray, noise: FloatArray) -> FloatArray:
        """Return by what factor steps were too long, (blocks, 1), from a move against the last one; 0 if unclear."""
        noisy = np.sum(self.noise, axis=1, keepdims=True)
        size = np.sum(self.move**2, axis=1, keepdims=True) - noisy
        along = np.sum(move * self.move + self.step * self.noise, axis=1, keepdims=True)
        deviation = np.sqrt(
            np.sum(self.noise * noise, axis=1, keepdims=True)
            + np.maximum(size, 0.0) * np.mean(noise, axis=1, keepdims=True)
        )
        slope = (1.0 - along / np.maximum(size, np.maximum(noisy, 1e-300))) / np.maximum(self.step.mean(), 1e-3)
        return np.where(along < -2.0 * deviation, np.minimum(slope, _MOST_BRAKE), 0.0)


def run(settings: GradientSettings, session: Session) -> Result:
    """Make the look, the steps and the counts by radius. A total function of rows and noise."""
    model, T = settings.model, settings.T
    look = session.noisy_sum(look_statistic(model.look, model.frame), settings.look_noise)
    session.progress(1, settings.steps)
    view = model.view(look, noise_std(settings.look_noise, LOOK_LATTICE), settings.declared)
    rows, counts = view.rows, []
    states, passes, targets, noises = [_start(settings, view, session)], [], [], []
    nothing = np.zeros_like(states[0].theta)
    unknown = model.prior(view)[1]
    track = _Track(nothing + unknown, np.ones((settings.shape.blocks, 1)), nothing, nothing, nothing)
    for t in range(T):
        bounded = _pass(settings, view, states[-1])
        statistic = gradient_statistic(model.kernel(view, states[-1], bounded))
        sums = decode(session.noisy_sum(statistic, settings.noise), settings.shape)
        counts.append(float(np.sum(sums.counts)))
        # Counts of all steps are averaged, since the number of rows does not change between them.
        count_std = settings.std / count_weight() * (settings.shape.blocks / len(counts)) ** 0.5
        rows = believed_rows(float(np.mean(counts)), count_std, settings.declared)
        target, noise = _target(settings, view, states[-1], bounded, sums, rows)
        move = target.theta - states[-1].theta
        least = np.minimum(_least_step(settings, target, t), (unknown / (unknown + noise)) ** 2)
        track = track.after(move, noise, least)
        share = track.step if settings.tracked else settings.step_size
        states.append(replace(target, theta=model.project(view, states[-1].theta + share * move)))
        passes.append(bounded)
        targets.append(target.theta)
        noises.append(noise)
        session.progress(settings.steps - T + t, settings.steps)
    end, variances, m = _estimate(settings, view, states, passes, np.array(targets), np.array(noises), rows)
    edges = radius_edges(model.residual_size, passes[-1].residual_limit ** 2 * model.residual_size)
    radii = session.noisy_sum(radius_statistic(model.kernel(view, end, passes[-1]), edges), settings.radii_noise)
    session.progress(settings.steps, settings.steps)
    answers = [model.answer(view, state) for state in states]
    coefficient_errors, intercept_errors = model.errors(view, variances)
    return Result(
        answer=model.answer(view, end),
        averaged=m,
        weights=end.weights,
        coefficient_errors=coefficient_errors,
        intercept_errors=intercept_errors,
        iterates=np.array(
            [np.column_stack([a.coefficients, a.intercepts]) if len(a.intercepts) else a.coefficients for a in answers]
        ),
        scales=np.array([float(np.sqrt(np.mean(bounded.scales**2))) for bounded in passes]),
        rows=rows,
        radii=radii,
    )


def _start(settings: GradientSettings, view: View, session: Session) -> State:
    """Return the state before the first gradient, by the releases of a private start if the plan has some."""
    model, public = settings.model, settings.model.start(view)
    if not settings.opening:
        return public
    found = opened(model.frame, model.blocks, settings.opening, session, settings.steps)
    sigma = np.clip(found.sigma, _LEAST_SIGMA * view.spread, _MOST_SIGMA * view.spread)
    sigma = public.sigma if settings.sigma_known else sigma
    return State(model.project(view, found.theta), found.weights, sigma)


def _least_step(settings: GradientSettings, state: State, t: int) -> float:
    """Return the minimum step where noise is small: first 1, then a half; a quarter for a single component."""
    if len(state.weights) == 1:
        return _ALONE
    return 1.0 if 2 * t < settings.T else _DAMPED


def _pass(settings: GradientSettings, view: View, state: State) -> Pass:
    """Return the bounds of the next gradient, a public function of released values."""
    model, clip = settings.model, UNCLIPPED
    if settings.variant.adaptive:
        noise = settings.std**2 / (view.rows * settings.averaged)
        radius, clip = model.bounds(view, state, settings.shape.transform, noise)
        scales = radius / (CATONI if settings.variant is Variant.RADIAL else 1.0)
    else:
        scale = settings.scale or _fixed_scale(settings, view)
        scales = np.full(model.blocks, min(max(scale, _LEAST_SCALE), 1.0 / _LEAST_SCALE))
    return Pass(settings.shape, scales, settings.shape.transform is Transform.BOX, _RESIDUAL_LIMIT, clip)


def _fixed_scale(settings: GradientSettings, view: View) -> float:
    """Return C, the root mean square of a vector at the start; or s, from s^2 = n tau eps / (4 beta^2) (algorithm 2).

    eps is the paper's: the root of the zero-concentrated divergence of all steps together.
    """
    if settings.variant is Variant.CLIPPED:
        return view.spread * math.sqrt(settings.model.q)
    tau = settings.tau or view.spread**2
    beta = settings.shape.root_beta**2
    return math.sqrt(view.rows * tau * math.sqrt(settings.steps_rho)) / (2.0 * beta)


def _target(
    settings: GradientSettings, view: View, state: State, bounded: Pass, sums: Sums, rows: float
) -> tuple[State, FloatArray]:
    """Return the state after a whole step, and the variances of its theta from the noise alone."""
    model, blocks = settings.model, settings.shape.blocks
    least = max(_TRUSTED_COUNT * settings.std / count_weight(), 1.0)
    # One block has all rows, whose number is known better than this step's count says.
    N = np.maximum(sums.counts, least) if blocks > 1 else np.array([max(rows, least)])
    gain = model.response(view, state, bounded).gain if settings.variant.adaptive else np.ones_like(state.theta)
    # Bounding shortens the mean gradient by the gain.
    unit = bounded.reach[:, None] / (N[:, None] * gain)
    theta = (model.origin(state) if bounded.split else state.theta) + unit * sums.vectors
    weights = state.weights
    if blocks > 1:
        floored = np.maximum(N / N.sum(), _LEAST_WEIGHT / blocks)
        weights = floored / floored.sum()
    return State(theta, weights, _sigma(settings, view, state, sums.residuals / N)), (unit * settings.std) ** 2


def _sigma(settings: GradientSettings, view: View, state: State, mean_residuals: FloatArray) -> FloatArray:
    """Return the M-step of the noise level, from clipped squares."""
    if settings.sigma_known:
        return state.sigma
    factor = unclip(mean_residuals, settings.model.residual_size, _RESIDUAL_LIMIT)
    sigma = state.sigma * np.clip(factor, _SHRINKAGE, _GROWTH)
    return np.clip(sigma, _LEAST_SIGMA * view.spread, _MOST_SIGMA * view.spread)


def _estimate(
    settings: GradientSettings,
    view: View,
    states: list[State],
    passes: list[Pass],
    targets: FloatArray,
    noises: FloatArray,
    rows: float,
) -> tuple[State, FloatArray, int]:
    """Return the estimate, the variances (blocks, q) of its theta, and the number of averaged steps."""
    model = settings.model
    middle, unknown = model.prior(view)
    m = settings.averaged
    if settings.tracked:
        enough = settings.T if len(states[0].weights) == 1 else m
        m = settled(targets, noises, max(settings.T // 3, 1), enough, unknown)
    last, rest = states[-m:], 1.0 / noises[-m:]
    end = State(
        theta=np.mean([state.theta for state in last], axis=0),
        weights=np.mean([state.weights for state in last], axis=0),
        sigma=np.sqrt(np.mean([state.sigma**2 for state in last], axis=0)),
    )
    if not settings.tracked and not settings.sigma_known:
        # Squared residuals were about each state, and are larger by its distance from the mean that is returned.
        away = np.mean([np.square(state.theta - end.theta).sum(axis=1) for state in last], axis=0)
        left = np.maximum(end.sigma**2 - away / model.residual_size, _LEAST_LEFT * end.sigma**2)
        end = replace(end, sigma=np.sqrt(left))
    if settings.tracked:
        # Of targets, not of states, which still have a part of where the steps began.
        theta = np.sum(rest * targets[-m:], axis=0) / np.sum(rest, axis=0)
        # A wide pass estimates the noise level with more noise, and about less accurate parameters.
        weight = np.mean(rest, axis=2)
        sigma = np.sqrt(np.sum(weight * [state.sigma**2 for state in last], axis=0) / np.sum(weight, axis=0))
        end = replace(end, theta=model.project(view, theta), sigma=sigma)
    known = np.maximum(1.0 - model.hidden(view, end), _LEAST_KNOWN)[:, None]
    shares = end.weights[:, None] if settings.shape.blocks > 1 else np.ones((1, 1))
    sampling = model.response(view, end, passes[-1]).variance / (rows * shares * known)
    if settings.tracked:
        noise = 1.0 / (np.sum(rest, axis=0) * known**2)
    else:
        noise = averaged_noise(noises[-1], known, settings.step_size, m)
    variances = noise + sampling + _unsettled(targets[-m:], noises[-m:])
    if settings.tracked:
        # Where errors are as large as the parameters, a shrunk estimate is nearer to the truth.
        share = unknown / (unknown + np.mean(variances, axis=1, keepdims=True))
        end = replace(end, theta=model.project(view, middle + share * (end.theta - middle)))
        # Noise that moves steps far has a second-order effect, because the model is not linear there.
        nonlinear = unknown * (1.0 - unknown / (unknown + np.mean(noises[-m:], axis=(0, 2))))[:, None] ** 2
        variances = np.minimum(share * variances + nonlinear, unknown)
    return end, variances, m


def settled(targets: FloatArray, noises: FloatArray, least: int, enough: int, unknown: float) -> int:
    """Return the number of last steps whose targets (T, blocks, q) differ by no more than noise of these variances.

    It is at least `least`, and more than `enough` only if a target that is off by half of the initial uncertainty, in
    standard deviations, would be detected: older targets are less likely to have settled.
    """
    T, q = len(targets), targets.shape[2]
    chance = 1.0 + _UNLIKE * math.sqrt(2.0 / q)
    for m in range(least, T):
        rest = np.sum(1.0 / noises[-m:], axis=0)
        mean = np.sum(targets[-m:] / noises[-m:], axis=0) / rest
        apart = np.mean((targets[-m - 1] - mean) ** 2 / (noises[-m - 1] + 1.0 / rest), axis=1)
        hides = chance * np.mean(noises[-m - 1], axis=1) > _FAR_OFF**2 * unknown
        if not np.all(apart <= chance) or (m >= enough and np.any(hides)):
            return m
    return T


def averaged_noise(noise: FloatArray, known: FloatArray, step_size: float, m: int) -> FloatArray:
    """Return the variance (blocks, q) of the mean of m settled iterates, of whose information a share is not hidden.

    An error x becomes (1 - step_size known) x plus step_size times noise of variance `noise`, so that the stationary
    variance is noise step_size / (known (2 - step_size known)), and that of a long mean noise / (m known^2).
    """
    stationary = step_size / (known * np.maximum(2.0 - step_size * known, _LEAST_KNOWN))
    return np.asarray(noise * np.minimum(stationary, 1.0 / (m * known**2)))


def _unsettled(targets: FloatArray, noises: FloatArray) -> FloatArray:
    """Return the excess (blocks, 1) of the difference of the halves of averaged targets over that from noise."""
    half = len(targets) // 2
    if half == 0:
        return np.zeros((targets.shape[1], 1))
    apart = np.mean(targets[-half:], axis=0) - np.mean(targets[:half], axis=0)
    noise = (np.sum(noises[-half:], axis=0) + np.sum(noises[:half], axis=0)) / half**2
    return np.asarray(np.maximum(np.mean(apart**2 - noise, axis=1, keepdims=True), 0.0) / 4.0)
