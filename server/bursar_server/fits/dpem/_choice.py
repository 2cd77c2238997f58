"""Choice of a number of components from what a fit has released. Post-processing: free, total, and without rows.

Under a mixture with parameters theta the noisy sums of EM steps have the mean n M(theta) and the covariance Omega = n
Cov(f) + noise, f the features that were summed. For each number of components the distance J = |Omega^(-1/2) (sums - n
M)|^2 is minimised from several starts. The number with the least J + penalty is chosen: log det(1 + B' B), B the
whitened derivative of n M, less the logarithm of a component's weight for each of its parameters. Without noise a
parameter costs log n, as in Schwarz's criterion; under noise it costs what the released sums can tell of it. Source:
Andrews and Lu (2001), "Consistent model and moment selection procedures for GMM estimation".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import helmert
from scipy.special import logsumexp

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.em import VARIANCE_FLOOR, Count, Mixture, merged, shaped
from bursar_server.fits.mixtures.points import kronecker, log_gaussians, moments_of, normals, whitened
from bursar_server.fits.mixtures.splitting import inside_ball
from bursar_server.fits.mixtures.statistics import Moments
from bursar_server.fits.mixtures.steps import Measured

_MOST_POINTS, _LEAST_POINTS, _WORK = 2**13, 2**12, 1e6
"""Bounds of the number of points that stand for the population, and points times sums that decide between them."""

_ANYWHERE = 0.05
"""Share of the points that lie anywhere in the box: a wider mixture has rows where the finest one has hardly any."""

_INTEGRATION = 0.1
"""Variance of a mean over the points, in that of a mean over as many independent ones. Chosen: quasi-random points,
whose first two moments are exact, are more precise.
"""

_MOST_STEPS = 8
"""Last steps whose sums are averaged; earlier ones are about parameters that had not settled."""

_SETTLING, _FIRST_ROUNDS, _ROUNDS, _HALVINGS = 20, 2, 6, 4
"""EM steps on the points, Gauss-Newton rounds of each start and of the better one, and lengths that a round tries."""

_CLOSE = 0.2
"""Decrease of J at which a round is the last: far below the cost of one parameter."""

_LONGEST = 0.7
"""Maximum change of one round, in deviations of a component and logarithms of weights: the linear range."""

_DAMPING = 0.1
"""Information that is added to every direction, so that what the sums leave open stays where it is."""

_LEAST_NOISE = 1e-9
"""Least variance over the largest: shares add up to 1, so that without noise the covariance would be singular."""

_LEAST_SHARE = 1e-9
"""Least share of a component or of the background, of which logarithms are taken."""

_HUGE = 1e100
"""Largest number in a derivative or a distance: squares of it stay doubles, so that every function here is total."""


@dataclass(frozen=True)
class Sought:
    """Public part of a choice.

    Attributes:
        least: minimum number of components.
        box: half-widths of the public box in the unit ball, (d,).
    """

    least: int
    box: FloatArray


@dataclass(frozen=True)
class Choice:
    """Choice of a number of components.

    Attributes:
        mixture: mixture of the chosen number.
        scores: criterion of each number from the least on, less that of the chosen one, (c,), non-negative.
        errors: standard errors of these differences, (c,).
    """

    mixture: Mixture
    scores: FloatArray
    errors: FloatArray


@dataclass(frozen=True)
class _Candidate:
    """Mixture in the unit ball of a number of rows, of which the background has a share."""

    rows: float
    beyond: float
    weights: FloatArray
    means: FloatArray
    covariances: FloatArray

    def logs(self, z: FloatArray, box: FloatArray) -> FloatArray:
        """Return log densities times shares at positions (m, d): of the components, then the background, (k + 1, m)."""
        gaussians = log_gaussians(self.means, self.covariances, z) + np.log(self.weights)[:, None]
        uniform = math.log(max(self.beyond, 1e-300)) + _log_uniform(z, box)
        return np.vstack([math.log1p(-self.beyond) + gaussians, uniform])

    def mixture(self) -> Mixture:
        """Return the Gaussians."""
        return Mixture(self.rows * (1.0 - self.beyond) * self.weights, self.means, self.covariances)


@dataclass(frozen=True)
class _Fitted:
    """Candidate at its least J, with the whitened residual and the criterion."""

    candidate: _Candidate
    residual: FloatArray
    score: float


def choose(mixture: Mixture, measured: tuple[Measured, ...], moments: Moments, sought: Sought) -> Choice:
    """Return the choice between the least number of components and those of the mixture.

    Args:
        mixture: what the fit ended with, in the unit ball.
        measured: what its EM steps released, at least one.
        moments: form of the covariances.
        sought: public part.
    """
    most = len(mixture.counts)
    least = min(sought.least, most)
    with np.errstate(all="ignore"):
        fine = _candidate(mixture)
        problem = _Problem(fine, measured, moments, sought.box)
        best, fits = fine, []
        for k in range(most, least - 1, -1):
            starts = (problem.settled(problem.joined(fine, k)), problem.joined(best, k))
            tried = [problem.moved(start, _FIRST_ROUNDS) for start in starts]
            best = problem.moved(min(tried, key=problem.distance), _ROUNDS)
            fits.append(problem.fitted(best))
        fits.reverse()
        scores = np.array([one.score for one in fits])
        chosen = int(np.argmin(scores))
        kept = fits[chosen]
        # The residual of a right model has variance 1 in every direction, and J changes by 2 (r - r') in each.
        errors = np.array([2.0 * float(np.linalg.norm(one.residual - kept.residual)) for one in fits])
    c = kept.candidate
    counts = np.maximum(c.rows * (1.0 - c.beyond) * c.weights, _LEAST_SHARE)
    background = None if mixture.background is None else Count(c.rows * c.beyond, 0.0)
    final = replace(mixture, counts=counts, means=c.means, covariances=c.covariances, background=background)
    return Choice(final, scores - scores[chosen], np.minimum(errors, _HUGE))


def _candidate(mixture: Mixture) -> _Candidate:
    beyond = mixture.background_count if mixture.background is not None else 0.0
    rows = float(np.sum(mixture.counts)) + beyond
    return _Candidate(rows, min(beyond / rows, 0.95), mixture.weights, mixture.means, mixture.covariances)


class _Problem:
    """Averaged sums of the last steps, and what a candidate says about them, on points drawn from the finest one."""

    def __init__(self, fine: _Candidate, measured: tuple[Measured, ...], moments: Moments, box: FloatArray) -> None:
        self._moments, self._box = moments, box
        last = measured[-1]
        steps = [one for one in measured[-_MOST_STEPS:] if len(one.sums) == len(last.sums)]
        self._background = last.e_step.background
        units = np.array([_units(one) for one in steps])
        sums = np.mean([one.sums for one in steps] / units, axis=0)
        noise = np.array([one.step.std for one in steps])[:, None] / units
        self._z, self._log_points = _points(fine, box, len(sums))
        features = np.mean([_features(one, inside_ball(np.clip(self._z, -box, box)), moments) for one in steps], axis=0)
        weights = self._fine = self._densities(fine)[1]
        centred = features - weights @ features
        spread = (centred * weights[:, None]).T @ centred
        # What integration misses is the same for all candidates, and counts as noise.
        rows = fine.rows * (1.0 + _INTEGRATION * fine.rows / len(self._z))
        omega = rows * spread + np.diag(np.sum(noise**2, axis=0) / len(steps) ** 2)
        values, vectors = np.linalg.eigh(_finite(omega))
        whitener = vectors / np.sqrt(np.maximum(values, max(_LEAST_NOISE * float(values[-1]), 1e-300)))
        self._sums, self._features = sums @ whitener, features @ whitener

    def joined(self, candidate: _Candidate, k: int) -> _Candidate:
        """Return a candidate of k components, those that lose least joined."""
        if len(candidate.weights) <= k:
            return candidate
        joint = merged(candidate.mixture(), k)
        covariances = shaped(joint.covariances, joint.counts, self._moments)
        return replace(candidate, weights=joint.weights, means=joint.means, covariances=covariances)

    def settled(self, candidate: _Candidate) -> _Candidate:
        """Return the candidate after EM steps on the points, as if they were rows of the finest mixture."""
        for _ in range(_SETTLING):
            logs = candidate.logs(self._z, self._box)
            shares = np.exp(logs - logsumexp(logs, axis=0))[:-1] * self._fine
            counts, means, covariances = moments_of(self._z, shares, self._moments)
            candidate = replace(candidate, weights=counts / counts.sum(), means=means, covariances=covariances)
        return candidate

    def moved(self, candidate: _Candidate, rounds: int) -> _Candidate:
        """Return the candidate after Gauss-Newton rounds, each of which lowers J."""
        residual = self.residual(candidate)
        for _ in range(rounds):
            move = _gauss_newton(self._design(candidate), residual)
            # Far from the optimum the linear model is wrong, and a whole step could leave the valid range.
            move *= min(1.0, _LONGEST / max(float(np.abs(move).max()), 1e-12))
            lengths = (self._after(candidate, move / 3.0**i) for i in range(_HALVINGS))
            tried = next(((one, r) for one in lengths if _square(r := self.residual(one)) < _square(residual)), None)
            if tried is None:
                break
            gained = _square(residual) - _square(tried[1])
            candidate, residual = tried
            if gained < _CLOSE:
                break
        return candidate

    def distance(self, candidate: _Candidate) -> float:
        """Return J."""
        return _square(self.residual(candidate))

    def residual(self, candidate: _Candidate) -> FloatArray:
        """Return the whitened difference between the released sums and those that the candidate has on average."""
        return _finite(self._sums - candidate.rows * (self._densities(candidate)[1] @ self._features))

    def fitted(self, candidate: _Candidate) -> _Fitted:
        """Return the candidate with its criterion."""
        design, residual = self._design(candidate), self.residual(candidate)
        values = np.linalg.eigvalsh(design.T @ design)
        d, shapes = candidate.means.shape[1], self._moments.size(self._z.shape[1])
        each = 1 + d + (0 if self._moments is Moments.TIED else shapes)
        penalty = float(np.sum(np.log1p(np.maximum(values, 0.0)))) - each * float(np.sum(np.log(candidate.weights)))
        return _Fitted(candidate, residual, _square(residual) + penalty)

    def _densities(self, candidate: _Candidate) -> tuple[FloatArray, FloatArray]:
        """Return log densities times shares (k + 1, m), and the weights of the points (m,) under a candidate."""
        logs = candidate.logs(self._z, self._box)
        return logs, np.exp(logsumexp(logs, axis=0) - self._log_points) / len(self._z)

    def _design(self, candidate: _Candidate) -> FloatArray:
        """Return the derivative of the whitened sums by rows, background, weights, whitened means and shapes."""
        logs, weights = self._densities(candidate)
        shares = np.exp(logs - logsumexp(logs, axis=0))
        gaussians, points = shares[:-1], len(self._z)
        K = len(candidate.weights)
        y = whitened(candidate.means, candidate.covariances, self._z)
        scores = [np.ones((points, 1))]
        if self._background:
            inside = shares[-1] / max(candidate.beyond, _LEAST_SHARE) - gaussians.sum(axis=0) / (1.0 - candidate.beyond)
            scores.append(inside[:, None])
        if K > 1:
            scores.append((gaussians - candidate.weights[:, None] * gaussians.sum(axis=0)).T @ helmert(K).T)
        shapes = gaussians[:, :, None] * _shape_scores(y, self._moments)
        scores.append(_flat(gaussians[:, :, None] * y))
        scores.append(shapes.sum(axis=0) if self._moments is Moments.TIED else _flat(shapes))
        return _finite(candidate.rows * self._features.T @ (weights[:, None] * np.hstack(scores)))

    def _after(self, candidate: _Candidate, move: FloatArray) -> _Candidate:
        """Return the candidate after a move along the columns of `_design`."""
        K, d = candidate.means.shape
        at = 1 + self._background
        logs, shifts, shapes = np.split(move[at:], [K - 1, K - 1 + K * d])
        lowers = np.linalg.cholesky(candidate.covariances)
        values, vectors = np.linalg.eigh(_matrices(shapes, K, d, self._moments))
        # L exp(S) L', as the exponential keeps a covariance positive.
        changes = (vectors * np.exp(values)[:, None, :]) @ np.swapaxes(vectors, 1, 2)
        matrices = lowers @ changes @ np.swapaxes(lowers, 1, 2)
        exponents = np.log(candidate.weights) + (helmert(K).T @ logs if K > 1 else 0.0)
        weights = np.maximum(np.exp(exponents - logsumexp(exponents)), _LEAST_SHARE)
        return _Candidate(
            candidate.rows * math.exp(move[0]),
            min(max(candidate.beyond + float(move[1]), 0.0), 0.95) if self._background else candidate.beyond,
            weights / weights.sum(),
            inside_ball(candidate.means + np.einsum("kij,kj->ki", lowers, shifts.reshape(K, d))),
            shaped(matrices, weights, self._moments, VARIANCE_FLOOR / d),
        )


def _gauss_newton(design: FloatArray, residual: FloatArray) -> FloatArray:
    """Return the damped least-squares solution (p,) of design (m, p), finite for any finite numbers."""
    # By eigenvalues: a solver of equations raises where two components are one and damping is lost to rounding.
    values, vectors = np.linalg.eigh(_finite(design.T @ design))
    rounding = len(values) * np.finfo(np.float64).eps * abs(float(values[-1]))
    along = vectors.T @ _finite(design.T @ residual)
    return _finite(vectors @ (along / (np.maximum(values, rounding) + _DAMPING)))


def _square(residual: FloatArray) -> float:
    return float(residual @ residual)


def _finite(numbers: Any) -> FloatArray:
    return np.asarray(np.clip(np.nan_to_num(numbers), -_HUGE, _HUGE))


def _flat(scores: FloatArray) -> FloatArray:
    return np.swapaxes(scores, 0, 1).reshape(scores.shape[1], -1)


def _units(one: Measured) -> FloatArray:
    """Return by what each number of a release was multiplied."""
    (K, d), weights = one.e_step.means.shape, one.step.weights
    units = np.full(len(one.sums), weights.c)
    units[:K], units[K : K + K * d] = weights.a, weights.b
    if one.e_step.background:
        units[-1] = weights.a
    return units


def _points(fine: _Candidate, box: FloatArray, sums: int) -> tuple[FloatArray, FloatArray]:
    """Return points (m, d), and the logarithm of the density that they are drawn from, (m,).

    They are drawn from the components, of which small ones have more than their share, and from anywhere in the box.
    """
    K, d = fine.means.shape
    count = min(max(_WORK / sums, _LEAST_POINTS), _MOST_POINTS)
    anywhere = int(_ANYWHERE * count)
    halves = np.maximum((count - anywhere) / 2.0 * (0.5 * fine.weights + 0.5 / K), d + 2.0).astype(np.int64)
    lowers = np.linalg.cholesky(fine.covariances)
    drawn = [mean + normals(int(h), d) @ low.T for mean, low, h in zip(fine.means, lowers, halves, strict=True)]
    z = np.concatenate([*drawn, (2.0 * kronecker(anywhere, d) - 1.0) * box])
    gaussians = log_gaussians(fine.means, fine.covariances, z) + np.log(2.0 * halves / len(z))[:, None]
    return z, logsumexp(np.vstack([gaussians, _log_uniform(z, box) + math.log(anywhere / len(z))]), axis=0)


def _log_uniform(z: FloatArray, box: FloatArray) -> FloatArray:
    """Return the log density of the box at positions (m, d), (m,)."""
    inside = np.all(np.abs(z) <= box * (1.0 + 1e-12), axis=1)
    return np.where(inside, -float(np.sum(np.log(2.0 * box))), -np.inf)


def _shape_scores(y: FloatArray, moments: Moments) -> FloatArray:
    """Return derivatives of log densities by shapes, (K, m, f), at whitened positions (K, m, d)."""
    if moments is Moments.SPHERICAL:
        return np.asarray(np.sum(y**2 - 1.0, axis=2, keepdims=True) / 2.0)
    diagonal = (y**2 - 1.0) / 2.0
    if moments is Moments.DIAG:
        return np.asarray(diagonal)
    rows, columns = np.tril_indices(y.shape[2], -1)
    return np.concatenate([diagonal, math.sqrt(0.5) * y[:, :, rows] * y[:, :, columns]], axis=2)


def _matrices(shapes: FloatArray, K: int, d: int, moments: Moments) -> FloatArray:
    """Return the symmetric matrices (K, d, d) of moves along `_shape_scores`."""
    packed = np.broadcast_to(shapes.reshape(-1, moments.size(d)), (K, moments.size(d)))
    matrices = packed[:, :d, None] * np.eye(d)  # one number for spheres
    if moments in (Moments.FULL, Moments.TIED):
        rows, columns = np.tril_indices(d, -1)
        matrices[:, rows, columns] = matrices[:, columns, rows] = math.sqrt(0.5) * packed[:, d:]
    return np.asarray(matrices)


def _features(one: Measured, z: FloatArray, moments: Moments) -> FloatArray:
    """Return what one row adds to a release, in records, at positions (m, d), (m, numbers)."""
    step, (K, d) = one.e_step, one.e_step.means.shape
    y = np.einsum("kij,nkj->nki", step.factors, z[:, None, :] - step.means, optimize=True)
    squares = np.square(y).sum(axis=2)
    logs = np.broadcast_to(step.log_scale, (len(z), len(step.log_scale))).copy()
    logs[:, :K] -= squares / 2.0
    shares = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    u = y / np.maximum(np.sqrt(squares), one.radii)[:, :, None]
    first = shares[:, :K, None] * u
    if moments is Moments.SPHERICAL:
        second = shares[:, :K] * np.square(u).sum(axis=2)
    elif moments is Moments.DIAG:
        second = (first * u).reshape(len(z), -1)
    else:
        rows, columns = np.tril_indices(d)
        second = first[:, :, rows] * u[:, :, columns] * np.where(rows == columns, 1.0, math.sqrt(2.0))
        second = second.sum(axis=1) if moments is Moments.TIED else second.reshape(len(z), -1)
    return np.hstack([shares[:, :K], first.reshape(len(z), -1), second, shares[:, K:]])
