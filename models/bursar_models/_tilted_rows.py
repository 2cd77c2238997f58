"""Rows that have the structure of a start's cells, and the moments of the mixture that it became."""

from __future__ import annotations

import numpy as np

from bursar_models._density import CovarianceType, reshaped_covariances
from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._starts import public_generator
from bursar_models._trajectory import TrajectoryStep
from bursar_models._trajectory_fit import features_of, units_of
from bursar_models.arrays import FloatArray
from bursar_models.transforms import into_model

_MOST_MOMENTS, _WORK = 600, 6_000_000
"""Maximum number of moments that rows are drawn to, and numbers of the points by which that is found: seconds."""

_POOL = 4
"""Rows drawn for each that is kept. Chosen, not tuned."""

_ROUNDS, _RIDGE, _SETTLED, _SHORTEST = 40, 1e-3, 1e-6, 1e-6
"""Newton rounds, squared error of a moment, in its deviations, that costs as much as a nat, gain of the last round, and
shortest part of a round. Chosen, not tuned: moments that no weights reach stay away.
"""


def rows_of_mixture(model: GaussianMixture, n: int, seed: int) -> FloatArray:
    """Draw rows, (n, d), in own units: of the start's cells where they are known, with the moments of the model.

    Moments also differ by what noise does to them, another one for each seed: the model is as uncertain as that. Among
    all weights of rows of the cells with these moments, the ones taken change the least: they are exponential in
    the moments. So a fit of as many components as the model has the model as one of its answers, as on rows of the
    model, and the others that the cells leave open. Source: Csiszar (1975), "I-divergence geometry of probability
    distributions and minimization problems".

    Args:
        model: mixture. Its moments are the shares of its components, and first and second moments by them.
        n: number of rows.
        seed: public seed.
    """
    kind: CovarianceType = "full" if _moments(model, "full") <= _MOST_MOMENTS else "diag"
    cells = _finer(model)
    if cells is None or _moments(model, kind) > _MOST_MOMENTS:
        return model.sample(n, seed)[0]
    step, points = _step_of(model), _WORK // _moments(model, kind)

    def features(rows: FloatArray) -> FloatArray:
        return features_of(step, into_model(rows, model.transforms), kind)

    draws, of_cells = (one.sample(points, public_generator(seed, i))[0] for i, one in enumerate((model, cells)))
    aim, base = features(draws), features(of_cells)
    aim += _noise(model, aim.shape[1], seed)
    scale = np.maximum(aim.std(axis=0), base.std(axis=0)) + 1e-9
    tilt = _tilt((base - aim.mean(axis=0)) / scale) / scale
    rows = cells.sample(_POOL * n, public_generator(seed, 2))[0]
    chunks = np.array_split(rows, max(1, len(rows) // points))
    logs = np.concatenate([features(chunk) @ tilt for chunk in chunks])
    weights = np.exp(logs - logs.max())
    return rows[public_generator(seed, 3).choice(len(rows), n, p=weights / weights.sum())]


def _tilt(features: FloatArray) -> FloatArray:
    """Return the exponents (p,) that bring the weighted means of features (m, p) to 0, as far as weights can."""
    tilt = np.zeros(features.shape[1])

    def weighed(at: FloatArray) -> tuple[float, FloatArray]:
        logs = features @ at
        weights = np.exp(logs - logs.max())
        value = float(logs.max() + np.log(weights.mean()) + _RIDGE / 2 * at @ at)
        return value, weights / weights.sum()

    value, weights = weighed(tilt)
    for _ in range(_ROUNDS):
        mean = weights @ features
        slope = mean + _RIDGE * tilt
        curve = (features * weights[:, None]).T @ features - np.outer(mean, mean) + _RIDGE * np.eye(len(tilt))
        step = -np.linalg.solve(curve, slope)
        gain, part = -float(slope @ step), 1.0
        if not gain > _SETTLED:
            break
        while part > _SHORTEST and not weighed(tilt + part * step)[0] < value - 1e-4 * part * gain:
            part /= 2
        tilt = tilt + part * step
        value, weights = weighed(tilt)
    return tilt


def _noise(model: GaussianMixture, size: int, seed: int) -> FloatArray:
    """Return noise as large as that of the model's moments, which average about half of its steps; 0 if not known."""
    trajectory = model.trajectory
    if trajectory is None or model.n_rows is None or len(trajectory.steps[-1].sums) != size:
        return np.zeros(size)
    step = trajectory.steps[-1]
    std = step.noise_std / units_of(step, size) / max(model.n_rows, 1.0) / max(len(trajectory.steps) / 2, 1.0) ** 0.5
    return np.asarray(std * public_generator(seed, 4).standard_normal(size))


def _finer(model: GaussianMixture) -> GaussianMixture | None:
    """Return the mixture of the start's cells; None without any."""
    if model.cells is None:
        return None
    return GaussianMixture(
        model.cells.weights,
        model.cells.means,
        model.cells.covariances,
        "full",
        background_weight=model.background_weight,
        bounds_=model.bounds_,
        transforms=model.transforms,
    )


def _moments(model: GaussianMixture, kind: CovarianceType) -> int:
    k, d = model.means_.shape
    return int(k * (1 + d + (d if kind == "diag" else d * (d + 1) // 2)) + (model.background_weight > 0))


def _step_of(model: GaussianMixture) -> TrajectoryStep:
    """Return the step of EM that a mixture is a fixed point of, in the model's space."""
    k, d = model.means_.shape
    covariances = reshaped_covariances(
        model.covariances_, model.weights_, d, given=model.covariance_type, wanted="full"
    )
    lowers = np.linalg.cholesky(covariances)
    logs = np.log(np.maximum(model.weights_, 1e-12)) - np.log(np.diagonal(lowers, axis1=1, axis2=2)).sum(axis=1)
    if model.background_weight > 0 and model.bounds_ is not None:
        box = into_model(model.bounds_, model.transforms)
        odds = np.log(model.background_weight / (1 - model.background_weight))
        logs = np.append(logs, odds - np.log(box[1] - box[0]).sum() + d / 2 * np.log(2 * np.pi))
    factors = np.linalg.inv(lowers)
    far = np.full(k, np.sqrt(3.0 * (d + 4)))  # further than nearly all rows of a Gaussian
    return TrajectoryStep(logs, model.means_, np.tril(factors), far, np.ones(3), np.zeros(1), 1.0)
