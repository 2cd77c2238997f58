"""One mixture fitted to all noisy sums of a trajectory, by generalised least squares, and the errors of its parameters.

Under a mixture with parameters theta the sums s of all steps have the mean n M(theta) and the covariance Omega = n
Cov(f) + noise, where f are the features that were summed: known functions, since what a step sums follows from
earlier releases. Each step's noise is fresh given the steps before, so (B' Omega^-1 B)^-1, with B the derivative of n
M, is the covariance of the estimate by formula, noise and sampling together. Source: Hansen (1982), "Large sample
properties of generalized method of moments estimators", with the model's own weighting matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy

from bursar_models._density import CovarianceType
from bursar_models._goodness import Misfit
from bursar_models._intervals import Interval, covariance_intervals, plain, share, within
from bursar_models._plot import feature_names
from bursar_models._trajectory import Trajectory, TrajectoryStep
from bursar_models.arrays import FloatArray

_ROUNDS = 12
"""Maximum number of Gauss-Newton rounds; 2 to 5 are taken where all is determined."""

_CLOSE = 0.03
"""Length of a round in standard errors at which it is the last: far below what an interval resolves."""

_LONGEST = 0.7
"""Maximum change of one round, in deviations of a component and logarithms of weights: the linear range."""

_DAMPING = 0.1
"""Information that is added to every direction of a round, so that what is not determined stays where it is."""

_MOST_SUMS = 1200
"""Sums that enter one fit; neighbouring steps, which sum nearly the same, are averaged until there are no more."""

_LEAST_POINTS, _MOST_POINTS, _WORK = 2**13, 2**15, 2e7
"""Points that stand for the population near the optimum, fewer where points times sums would exceed `_WORK`."""

_DRAWS, _FINE_POINTS, _FINE_WORK = 8, 2**14, 3e7
"""Sets of points for means over the population where rows are many, and points in each, fewer where points times sums
would exceed `_FINE_WORK`: how far the sets differ says how large the error of their mean is."""

_MANY_ROWS = 10_000
"""Rows up to which the error of sums over few points is small: it moved the background by 0.6 of its error at 20,000
rows, 0.9 at 50,000 and 5 at 1,000,000 (eight groups, epsilon 3)."""

_OPEN_WEIGHT, _OPEN_MEAN, _OPEN_VARIANCE = 1.5, 0.7, 1.0
"""Standard errors beyond which a number is not determined: of a logit, of a mean in deviations, of a log variance.

Beyond them the sums are no longer about linear in the parameters, and a formula says nothing.
"""

_CHUNK = 2**12
"""Points whose features are held at once."""

_LEAST_NOISE = 1e-11
"""Least variance of noise over the largest of sampling: counts of all components add up to the rows, so that without
noise the covariance would be singular, and rounding alone could make it indefinite."""

_ROUNDING = 1e-9
"""Share of the sampling below which a misfit is rounding: far above that of double numbers, far below a test's use."""

_POWERS = 50
"""Powers of a matrix that show its largest eigenvalue: what a sentence says with two digits."""

_LEAST_SHARE = 1e-4
"""Least share of a background in covariances; an estimate may be less, even below 0, as noise is."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """Mixture in the data's own units, and the covariance of its parameters.

    Attributes:
        weights: shape (k,), sum 1.
        means: shape (k, d).
        covariances: shape (k, d, d).
        background: share of the background in all rows, around 0 or above; None without one.
        n_rows: number of rows.
        weight_errors: standard errors of the weights' logits, shape (k,).
        mean_covariances: covariances of the means' errors, shape (k, d, d).
        covariance_errors: standard errors of the entries of the covariances, shape (k, d, d).
        background_error: standard error of the background's share.
        settled: whether the last round moved less than what an interval resolves.
        misfit: what the mixture leaves of the sums.
    """

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray
    background: float | None
    n_rows: float
    weight_errors: FloatArray
    mean_covariances: FloatArray
    covariance_errors: FloatArray
    background_error: float
    settled: bool
    misfit: Misfit


def fit_trajectory(
    trajectory: Trajectory,
    bounds: FloatArray,
    covariance_type: CovarianceType,
    start: tuple[FloatArray, FloatArray, FloatArray],
    background: float,
    n_rows: float,
) -> Fitted:
    """Return the mixture that explains all sums best, and its errors.

    Args:
        trajectory: steps.
        bounds: bounds of the columns, shape (2, d), in the data's own units.
        covariance_type: form of the covariances.
        start: released weights (k,), means (k, d) and covariances (k, d, d).
        background: released share of the background.
        n_rows: released number of rows, positive.
    """
    scale = trajectory.scale
    theta = _Mixture(
        max(n_rows, 1.0),
        background,
        np.maximum(start[0], 1e-6) / np.maximum(start[0], 1e-6).sum(),
        (start[1] - trajectory.centre) / scale,
        np.asarray(np.linalg.cholesky(start[2] / np.outer(scale, scale))),
    )
    box = (bounds - trajectory.centre) / scale
    sums = len(trajectory.steps[0].sums) * len(trajectory.steps)
    # Most rounds are far from the optimum, where few points show the way; those near it take as many as pay.
    problem = _Problem(trajectory, box, covariance_type, len(theta.means), _LEAST_POINTS)
    theta, last, settled = _settled(problem, theta)
    more, many = int(min(_WORK / sums, _MOST_POINTS)), theta.rows > _MANY_ROWS
    if settled and (more > _LEAST_POINTS or many):
        problem = _Problem(trajectory, box, covariance_type, len(theta.means), max(more, _LEAST_POINTS))
        if many:
            problem.refine(theta, int(min(_FINE_WORK / sums, _FINE_POINTS)))
        theta, last, settled = _settled(problem, theta)
    # Without the damping, which would make what the sums leave open look known.
    values, vectors = np.linalg.eigh(last.design.T @ last.design)
    spread = vectors / np.sqrt(np.maximum(values, 1e-9))
    integration = spread @ (spread.T @ (last.design.T @ last.integration))
    return problem.in_units(theta, trajectory, np.hstack([spread, integration]), settled, last.misfit())


def _settled(problem: _Problem, theta: _Mixture) -> tuple[_Mixture, _Linear, bool]:
    """Return the mixture after rounds of Gauss-Newton, what the last one began with, and whether it was short."""
    settled = False
    for _ in range(_ROUNDS):
        last = problem.linear(theta)
        information = last.design.T @ last.design
        move = np.linalg.solve(information + _DAMPING * np.eye(len(information)), last.design.T @ last.residual)
        # Far from the optimum the linear model is wrong, and a whole step could leave the valid range.
        move *= min(1.0, _LONGEST / max(float(np.abs(move).max()), 1e-12))
        theta = problem.moved(theta, np.asarray(move))
        settled = math.sqrt(float(move @ information @ move) / len(move)) < _CLOSE
        if settled:
            break
    return theta, last, settled


@dataclass(frozen=True, eq=False)
class _Linear:
    """Sums near a mixture, to first order, in units in which their covariance is 1.

    Attributes:
        design: derivative of the expected sums by the parameters, (numbers, parameters).
        residual: sums less the expected ones, (numbers,).
        root: Cholesky factor of the covariance in records, (numbers, numbers).
        spread: part of that covariance that is sampling, not noise.
        integration: columns whose product with its transpose is the covariance of the error of sums over points, which
            adds to that of noise and sampling, (numbers, draws).
        rows: number of rows.
    """

    design: FloatArray
    residual: FloatArray
    root: FloatArray
    spread: FloatArray
    integration: FloatArray
    rows: float

    def misfit(self) -> Misfit:
        """Return what no move along the design explains, each direction weighed by the share of sampling in it.

        A wrong form shows where rows do, and most directions hold noise alone: the sum of all squares (Hansen's test)
        drowns it. With these weights the test is the locally most powerful one, on average over random changes of the
        density (Goeman, van de Geer and van Houwelingen 2006, "Testing against a high dimensional alternative").
        """
        half = scipy.linalg.solve_triangular(self.root, self.spread, lower=True)
        sampling = scipy.linalg.solve_triangular(self.root, half.T, lower=True)
        basis = np.linalg.qr(self.design)[0]
        left = self.residual - basis @ (basis.T @ self.residual)
        weights = sampling - basis @ (basis.T @ sampling)
        weights -= (weights @ basis) @ basis.T
        expected = float(np.trace(weights))
        if not expected > _ROUNDING * float(np.trace(sampling)):  # as few sums as parameters
            return Misfit(0.0, 0.0, 0.0)
        weighted = weights @ self.integration
        inner = self.integration.T @ weighted
        squares = np.square(weights).sum() + 2.0 * np.square(weighted).sum() + np.square(inner).sum()
        expected += float(np.trace(inner))
        error = math.sqrt(2.0 * float(squares))
        # A density that is s^2 / 2 nats away moves the mean of a feature by at most s deviations.
        visible = 2.0 * self.rows * _largest(weights, sampling)
        return Misfit(float(left @ sampling @ left), expected, error, visible)


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Parameters in the unit ball; `lowers` are Cholesky factors of the covariances."""

    rows: float
    background: float
    weights: FloatArray
    means: FloatArray
    lowers: FloatArray


class _Problem:
    """Sums of a trajectory in records, in groups of neighbouring steps, and what a mixture says about them.

    Args:
        trajectory: steps.
        box: bounds in the unit ball's units, shape (2, d).
        covariance_type: form of the covariances.
        components: number of components of the mixture; steps may have had more.
        points: about how many points stand for the population.
    """

    def __init__(
        self, trajectory: Trajectory, box: FloatArray, covariance_type: CovarianceType, components: int, points: int
    ) -> None:
        steps, self._box, self._kind = trajectory.steps, box, covariance_type
        self._background = steps[0].background
        K, d = self._shape = components, steps[0].means.shape[1]
        size = len(steps[0].sums)
        count = min(len(steps), max(_MOST_SUMS // size, 1))
        self._groups = [[steps[i] for i in places] for places in np.array_split(np.arange(len(steps)), count)]
        sums, variances = [], []
        for group in self._groups:
            units = np.array([units_of(step, size) for step in group])
            sums.append(np.mean([step.sums for step in group] / units, axis=0))
            noise = np.array([step.noise_std for step in group])[:, None] / units
            variances.append(np.sum(noise**2, axis=0) / len(group) ** 2)
        self._sums, self._variances = np.concatenate(sums), np.concatenate(variances)
        self._normals = _normals(max(_per_component(points, K), _enough(covariance_type, d)), d)
        self._uniforms = self._in_box(_LEAST_POINTS // 4, seed=1)
        self._correction, self._errors = np.zeros(len(self._sums)), np.zeros((len(self._sums), 0))
        self._shapes = _shape_basis(covariance_type, d)
        self._scores, self._exact, self._missing = _scores(self._normals, self._shapes)
        self._helmert = scipy.linalg.helmert(K).T if K > 1 else np.zeros((1, 0))

    def refine(self, theta: _Mixture, points: int) -> None:
        """Correct means over mixtures near this one by those over more points, and estimate what error is left."""
        K, d = self._shape
        count, found = _per_component(points, K), []
        for seed in range(2, 2 + 2 * _DRAWS, 2):
            uniforms = self._in_box(count, seed=seed + 1) if self._background else self._uniforms
            found.append(self._mean(theta, *_weighted_normals(count, d, seed=seed), uniforms))
        middle = np.mean(found, axis=0)
        self._correction = middle - self._mean(theta, self._normals, np.ones(len(self._normals)), self._uniforms)
        self._errors = (np.array(found) - middle).T / math.sqrt(_DRAWS * (_DRAWS - 1))

    def _mean(self, theta: _Mixture, normals: FloatArray, weights: FloatArray, uniforms: FloatArray) -> FloatArray:
        """Return the mean of the features over a mixture, as a sum over points with weights."""
        found = np.zeros(len(self._sums))
        for weight, mean, lower in zip(theta.weights, theta.means, theta.lowers, strict=True):
            for first in range(0, len(normals), _CHUNK):
                part = slice(first, first + _CHUNK)
                features = self._features(np.clip(mean + normals[part] @ lower.T, *self._box))
                found += (1.0 - theta.background) * weight / len(normals) * (weights[part, None] * features).sum(axis=0)
        if self._background:
            found += theta.background * self._features(uniforms).mean(axis=0)
        return found

    def _in_box(self, count: int, *, seed: int) -> FloatArray:
        """Return quasi-random points (count, d) of the box."""
        return np.asarray(self._box[0] + (self._box[1] - self._box[0]) * _sobol(count, len(self._box[0]), seed=seed))

    def linear(self, theta: _Mixture) -> _Linear:
        """Return the sums near a mixture."""
        numbers = len(self._sums)
        second, gaussians, slopes = np.zeros((numbers, numbers)), [], []
        beta = max(theta.background, _LEAST_SHARE) if self._background else 0.0
        for weight, mean, lower in zip(theta.weights, theta.means, theta.lowers, strict=True):
            total, along = np.zeros(numbers), np.zeros((numbers, self._scores.shape[1]))
            for first in range(0, len(self._normals), _CHUNK):
                part = slice(first, first + _CHUNK)
                features = self._features(np.clip(mean + self._normals[part] @ lower.T, *self._box))
                share = 1.0 / len(self._normals)
                second += (1.0 - beta) * weight * share * features.T @ features
                total += share * features.sum(axis=0)
                along += share * features.T @ self._scores[part]
            second += (1.0 - beta) * weight * along @ self._missing @ along.T
            gaussians.append(total)
            slopes.append((1.0 - beta) * weight * along @ self._exact)
        by_component, uniform = np.array(gaussians), np.zeros(numbers)
        gaussian = theta.weights @ by_component
        if self._background:
            features, share = self._features(self._uniforms), 1.0 / len(self._uniforms)
            uniform = share * features.sum(axis=0)
            second += beta * share * features.T @ features
        by_weight = (1.0 - beta) * (theta.weights[:, None] * (by_component - gaussian)).T @ self._helmert
        d = theta.means.shape[1]
        by_shape = [slope[:, d:] for slope in slopes]
        if self._kind == "tied":
            by_shape = [np.sum(by_shape, axis=0)]
        slope = np.hstack([by_weight, *(slope[:, :d] for slope in slopes), *by_shape])
        mean = (1.0 - beta) * gaussian + beta * uniform
        rows = theta.rows
        spread = rows * (second - np.outer(mean, mean))
        least = _LEAST_NOISE * float(np.diagonal(spread).max())
        root = scipy.linalg.cholesky(spread + np.diag(np.maximum(self._variances, least)), lower=True)
        expected = (1.0 - theta.background) * gaussian + theta.background * uniform + self._correction
        columns = [rows * expected[:, None]]
        if self._background:
            columns.append(rows * (uniform - gaussian)[:, None])
        design = np.hstack([*columns, rows * slope])
        both = scipy.linalg.solve_triangular(root, np.column_stack([design, self._sums - rows * expected]), lower=True)
        errors = scipy.linalg.solve_triangular(root, rows * self._errors, lower=True)
        return _Linear(both[:, :-1], both[:, -1], root, spread, errors, rows)

    def moved(self, theta: _Mixture, move: FloatArray) -> _Mixture:
        """Return the parameters after a move along the columns of `linear`."""
        rows, share, logs, shifts, shapes = self._parts(move)
        values, vectors = np.linalg.eigh(shapes)
        # L exp(S) L', as the exponential keeps a covariance positive.
        matrices = theta.lowers @ (vectors * np.exp(values)[:, None, :]) @ np.swapaxes(vectors, 1, 2)
        matrices = matrices @ np.swapaxes(theta.lowers, 1, 2)
        weights = np.log(theta.weights) + logs
        return replace(
            theta,
            rows=theta.rows * math.exp(rows),
            background=min(theta.background + share, 0.95),
            weights=np.exp(weights - scipy.special.logsumexp(weights)),
            means=theta.means + np.einsum("kij,kj->ki", theta.lowers, shifts),
            lowers=np.linalg.cholesky((matrices + np.swapaxes(matrices, 1, 2)) / 2),
        )

    def in_units(
        self, theta: _Mixture, trajectory: Trajectory, spread: FloatArray, settled: bool, misfit: Misfit
    ) -> Fitted:
        """Return mixture and errors; `spread` times its transpose is the covariance of the parameters."""
        parts = [self._parts(column) for column in spread.T]
        logs = np.array([part[2] for part in parts])  # (p, k)
        relative = logs - logs @ theta.weights[:, None]
        shifts = np.einsum("kij,pkj->pki", theta.lowers, np.array([part[3] for part in parts]))
        shapes = np.array([part[4] for part in parts])
        changes = theta.lowers @ shapes @ np.swapaxes(theta.lowers, 1, 2)
        scale = trajectory.scale
        outer = np.outer(scale, scale)
        return Fitted(
            weights=theta.weights,
            means=trajectory.centre + scale * theta.means,
            covariances=theta.lowers @ np.swapaxes(theta.lowers, 1, 2) * outer,
            background=theta.background if self._background else None,
            n_rows=theta.rows,
            weight_errors=np.sqrt(np.sum(relative**2, axis=0)) / np.maximum(1.0 - theta.weights, 1e-12),
            mean_covariances=np.einsum("pki,pkj->kij", shifts, shifts) * outer,
            covariance_errors=np.sqrt(np.sum(changes**2, axis=0)) * outer,
            background_error=math.sqrt(sum(part[1] ** 2 for part in parts)),
            settled=settled,
            misfit=misfit,
        )

    def _parts(self, move: FloatArray) -> tuple[float, float, FloatArray, FloatArray, FloatArray]:
        """Return changes of log rows, background, log weights (k,), whitened means (k, d) and shapes (k, d, d)."""
        K, d = self._shape
        at = 1 + self._background
        weights, means, shapes = np.split(move[at:], [K - 1, K - 1 + K * d])
        free = np.broadcast_to(shapes.reshape(-1, len(self._shapes)), (K, len(self._shapes)))
        return (
            float(move[0]),
            float(move[1]) if self._background else 0.0,
            self._helmert @ weights,
            means.reshape(K, d),
            np.tensordot(free, self._shapes, axes=1),
        )

    def _features(self, z: FloatArray) -> FloatArray:
        """Return what one row adds to each group's sums, in records, for positions (N, d)."""
        norms = np.linalg.norm(z, axis=1, keepdims=True)
        z = z / np.maximum(norms, 1.0)
        return np.hstack(
            [sum(features_of(step, z, self._kind) for step in group) / len(group) for group in self._groups]
        )


def _largest(first: FloatArray, second: FloatArray) -> float:
    """Return the largest eigenvalue of the product of two covariance matrices, to about a hundredth."""
    vector, length = first.sum(axis=1), 0.0
    for _ in range(_POWERS):
        norm = float(np.linalg.norm(vector))
        if norm == 0.0:
            return 0.0
        vector = first @ (second @ (vector / norm))
        length = float(np.linalg.norm(vector))
    return length


def features_of(step: TrajectoryStep, z: FloatArray, kind: CovarianceType) -> FloatArray:
    """Return the features of one step at positions (N, d), in records, (N, numbers)."""
    K, d = step.means.shape
    y = np.einsum("kij,nkj->nki", step.factors, z[:, None, :] - step.means, optimize=True)
    squares = np.square(y).sum(axis=2)
    logs = np.broadcast_to(step.log_scale, (len(z), len(step.log_scale))).copy()
    logs[:, :K] -= squares / 2
    logs -= logs.max(axis=1, keepdims=True)
    shares = np.exp(logs)
    shares /= shares.sum(axis=1, keepdims=True)
    u = y / np.maximum(np.sqrt(squares), step.radii)[:, :, None]
    first = shares[:, :K, None] * u
    if kind == "spherical":
        second = shares[:, :K] * np.square(u).sum(axis=2)
    elif kind == "diag":
        second = (first * u).reshape(len(z), -1)
    else:
        rows, columns = np.tril_indices(d)
        second = first[:, :, rows] * u[:, :, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))
        second = second.sum(axis=1) if kind == "tied" else second.reshape(len(z), -1)
    return np.hstack([shares[:, :K], first.reshape(len(z), -1), second, shares[:, K:]])


def units_of(step: TrajectoryStep, size: int) -> FloatArray:
    """Return by what each number of a release was multiplied, (size,)."""
    K, d = step.means.shape
    a, b, c = step.precisions
    units = np.full(size, c)
    units[:K], units[K : K + K * d] = a, b
    if step.background:
        units[-1] = a
    return units


def _shape_basis(kind: CovarianceType, d: int) -> FloatArray:
    """Return the symmetric matrices (f, d, d) that a covariance of this form varies along."""
    if kind == "spherical":
        return np.eye(d)[None]
    diagonal = np.eye(d)[:, :, None] * np.eye(d)[:, None, :]
    if kind == "diag":
        return diagonal
    rows, columns = np.tril_indices(d, -1)
    off = np.zeros((len(rows), d, d))
    off[np.arange(len(rows)), rows, columns] = off[np.arange(len(rows)), columns, rows] = math.sqrt(0.5)
    return np.concatenate([diagonal, off])


def _sobol(count: int, d: int, *, seed: int) -> FloatArray:
    """Return quasi-random points (count, d) of the unit cube."""
    from scipy.stats import qmc  # here, because it takes .4 s of every process that imports the models

    return np.asarray(qmc.Sobol(d, seed=seed).random(count))


def _per_component(points: int, components: int) -> int:
    """Return how many of all points are of one component: a power of two, as quasi-random points should be."""
    return int(2 ** max(math.floor(math.log2(points / components)), 6))


def _enough(kind: CovarianceType, d: int) -> int:
    """Return how many points the scores of one component take at least, a power of two.

    Half of the points are the others' mirror images, which say nothing new of squares: four for each shape, or the
    squares' own covariance is too near to a singular one.
    """
    return 1 << (8 * len(_shape_basis(kind, d)) - 1).bit_length()


def _scores(normals: FloatArray, shapes: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return derivatives of a normal log density by mean and shape at points, and what makes their moments exact.

    Means of products of two scores over few points are far from those of the normal law: where a shape has hundreds of
    entries, by a factor of 2 and more along some, so that rounds overshoot. So features are split into what is linear
    in the scores, whose moments are known, and the rest, over the points: a regression estimator.

    Returns:
        Scores (N, s); a matrix (s, s) that makes derivatives of the mean products of features and scores; and one that
        makes of these, from both sides, what second moments of features over the points lack.
    """
    squares = np.einsum("ni,fij,nj->nf", normals, shapes, normals, optimize=True)
    scores = np.hstack([normals, (squares - np.trace(shapes, axis1=1, axis2=2)) / 2])
    exact = np.diag(np.concatenate([np.ones(normals.shape[1]), np.square(shapes).sum(axis=(1, 2)) / 2]))
    inverse = np.linalg.inv(scores.T @ scores / len(scores))
    missing = inverse @ exact @ inverse - inverse
    return scores, inverse @ exact, (missing + missing.T) / 2


def _normals(count: int, d: int) -> FloatArray:
    """Return an even number of quasi-random normal points (count, d) with mean 0 and covariance 1, odd moments 0."""
    half = scipy.special.ndtri(np.clip(_sobol(count // 2, d, seed=0), 1e-12, 1 - 1e-12))
    points = np.concatenate([half, -half])
    root = np.linalg.cholesky(points.T @ points / count)
    return np.asarray(scipy.linalg.solve_triangular(root, points.T, lower=True).T)


def _weighted_normals(count: int, d: int, *, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return quasi-random points (count, d) and weights of mean 1, with which they are normal without bias.

    Clipping and the background follow the length of a point, far out. So one coordinate of the cube is the length, with
    the third power of it as the chance of one that is larger: a tenth of the points is for the farthest thousandth.
    """
    cube = np.clip(_sobol(count // 2, d + 1, seed=seed), 1e-12, 1 - 1e-12)
    beyond, directions = cube[:, 0] ** 3, scipy.special.ndtri(cube[:, 1:])
    lengths = np.sqrt(2.0 * scipy.special.gammainccinv(d / 2.0, beyond))
    half = directions * (lengths / np.linalg.norm(directions, axis=1))[:, None]
    weights = 3.0 * cube[:, 0] ** 2
    return np.concatenate([half, -half]), np.tile(weights / weights.mean(), 2)


def trajectory_intervals(
    columns: tuple[str, ...], covariance_type: CovarianceType, fitted: Fitted, z: float
) -> tuple[list[Interval], list[str]]:
    """Return intervals of `z` standard errors on both sides, and what the sums do not determine, in words."""
    k, d = fitted.means.shape
    names = feature_names(columns, d)
    found: list[Interval] = []
    open_: list[str] = []
    variances = np.diagonal(fitted.covariances, axis1=1, axis2=2)

    # What the sums leave open has no interval at all: a wide one would look like an answer.
    def add(interval: Interval, *, known: bool) -> None:
        if known:
            found.append(interval)
        else:
            open_.append(interval.name)

    if fitted.background is not None:
        error = fitted.background_error
        add(within("background_weight", max(fitted.background, 0.0), error, z, "share of the background"), known=True)
    for i, (weight, error) in enumerate(zip(fitted.weights, fitted.weight_errors, strict=True)):
        if k > 1:
            add(share(f"weights_[{i}]", weight, error, z, f"weight of component {i}"), known=error < _OPEN_WEIGHT)
    for i in range(k):
        for j, name in enumerate(names):
            error = math.sqrt(fitted.mean_covariances[i, j, j])
            row = plain(f"means_[{i}].{name}", fitted.means[i, j], error, z, f"mean of {name!r} in component {i}")
            add(row, known=error < _OPEN_MEAN * math.sqrt(variances[i, j]))
    for row, error in covariance_intervals(names, fitted.covariances, fitted.covariance_errors, z, covariance_type):
        add(row, known=error < _OPEN_VARIANCE)
    notes = []
    if open_:
        reason = "not determined: the noisy sums leave it open, so that the released number may be anything"
        notes.append(f"{', '.join(open_)}: {reason}")
    if not fitted.settled:
        notes.append(
            f"all intervals: the fit to the noisy sums had not settled after {_ROUNDS} rounds; they may be too narrow"
        )
    return found, notes
