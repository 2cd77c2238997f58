"""Least squares of Gaussian atoms against random Fourier moments, inside a box: what a search for atoms refines with.

A mixture's moment at a frequency w is the sum of beta_k exp(i w.c_k - v |w|^2 / 2). Weights, centres and spreads are
fitted together, by Levenberg-Marquardt, or by L-BFGS-B where the Jacobian would be too large. Every function here is
total: any moments, finite or not, give a valid fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from bursar_models.arrays import ComplexArray, FloatArray

TOLERANCE = 1e-6
"""Relative gain of a refining step below which refining ends.

Far below `AGREEMENT`, so that equal minima compare equal.
"""

DENSE_WORK = 5e8
"""Multiplications in one product J^T J up to which it is formed; above it L-BFGS-B refines, without a Jacobian."""

MAX_MOMENT = 1e6
"""Limit to which moments are clipped.

A true one is at most 1; noise can be larger, and clipping keeps squares finite.
"""


@dataclass(frozen=True)
class Prior:
    """Squared errors added to the loss; precisions are in units of the squared moments."""

    weight: float  # precision of k beta about 1
    place: FloatArray  # (d,), precision of a centre's coordinates about `mean`
    mean: FloatArray  # (d,)
    spread: float  # precision of a log-variance about `log_v`
    log_v: float

    def terms(self, mixture: Mixture) -> tuple[FloatArray, FloatArray]:
        """Return precision and target of each parameter, in the order of `Mixture.pack`."""
        k, spreads = len(mixture.beta), mixture.log_v.size
        precision = [np.full(k, self.weight * k * k), np.tile(self.place, k), np.full(spreads, self.spread)]
        target = [np.full(k, 1 / max(k, 1)), np.tile(self.mean, k), np.full(spreads, self.log_v)]
        return np.concatenate(precision), np.concatenate(target)


@dataclass(frozen=True)
class Problem:
    """The data of the fit: minimise |y - A(theta) beta|^2 in the box."""

    W: FloatArray  # (m, d)
    W2: FloatArray  # (m, d), squares
    radii2: FloatArray  # (m, 1), |w|^2
    y: FloatArray  # (2m,): real parts, then imaginary parts
    lower: FloatArray  # (d,)
    upper: FloatArray
    log_v_range: tuple[float, float]
    prior: Prior

    def spread_frequencies(self, mixture: Mixture) -> FloatArray:
        """Return the squared frequencies that multiply a column of spreads.

        They are (m, d), or their sums (m, 1) for round atoms.
        """
        return self.radii2 if mixture.log_v.shape[1] == 1 else self.W2


@dataclass(frozen=True)
class Mixture:
    """Atoms. `log_v` is (1, 1), one log-variance for all atoms, or (k, d), log-variances of each atom and column."""

    beta: FloatArray  # (k,)
    centres: FloatArray  # (k, d)
    log_v: FloatArray

    def pack(self) -> FloatArray:
        return np.concatenate([self.beta, self.centres.ravel(), self.log_v.ravel()])

    def unpack(self, theta: FloatArray) -> Mixture:
        k, size = len(self.beta), self.centres.size
        return Mixture(
            theta[:k],
            theta[k : k + size].reshape(self.centres.shape),
            theta[k + size :].reshape(self.log_v.shape),
        )


@dataclass(frozen=True)
class Fit:
    """Mixture with its residual."""

    mixture: Mixture
    atoms: FloatArray  # (2m, k)
    rest: FloatArray  # (2m,)
    loss: float  # squared rest and prior


def pose(matrix: FloatArray, moments: ComplexArray, lower: FloatArray, upper: FloatArray) -> Problem:
    """Return the data of a fit. Moments that are not numbers become 0, large ones are clipped.

    The prior only holds the mass at 1.
    """
    W = np.asarray(matrix, dtype=np.float64)
    z = np.asarray(moments, dtype=np.complex128)
    y = np.nan_to_num(np.concatenate([z.real, z.imag]), nan=0.0, posinf=MAX_MOMENT, neginf=-MAX_MOMENT)
    W2 = W * W
    radii2 = W2.sum(axis=1, keepdims=True)
    scale = 1 / max(float(radii2.mean()), 1e-12)  # the spread at which an atom fades at the typical frequency
    lower, upper = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    widest = max(float(np.square(upper - lower).max()), 1e-12)
    return Problem(
        W,
        W2,
        radii2,
        np.clip(y, -MAX_MOMENT, MAX_MOMENT),
        lower,
        upper,
        (float(np.log(min(1e-4 * scale, widest))), float(np.log(widest))),
        Prior(1e3 * len(y), np.zeros(len(lower)), np.zeros(len(lower)), 0.0, 0.0),
    )


def normalised(beta: FloatArray) -> FloatArray:
    total = float(beta.sum())
    return beta / total if total > 0 else np.full(len(beta), 1 / len(beta))


def residual(fit: Fit, noise_std: float) -> float:
    """Return the root mean square of the rest, in noise standard deviations.

    Noise that is not a positive number counts as very small.
    """
    std = noise_std if np.isfinite(noise_std) and noise_std > 1e-12 else 1e-12
    return float(np.sqrt(fit.rest @ fit.rest / max(len(fit.rest), 1)) / std)


def evaluate(problem: Problem, mixture: Mixture) -> Fit:
    phase = problem.W @ mixture.centres.T
    envelope = np.exp(-0.5 * (problem.spread_frequencies(mixture) @ np.exp(mixture.log_v).T))
    atoms = np.concatenate([np.cos(phase) * envelope, np.sin(phase) * envelope])
    rest = problem.y - atoms @ mixture.beta
    precision, target = problem.prior.terms(mixture)
    return Fit(mixture, atoms, rest, float(rest @ rest + precision @ np.square(mixture.pack() - target)))


def _bounds(problem: Problem, mixture: Mixture) -> tuple[FloatArray, FloatArray]:
    k, spreads = len(mixture.beta), mixture.log_v.size
    low = np.concatenate([np.zeros(k), np.tile(problem.lower, k), np.full(spreads, problem.log_v_range[0])])
    high = np.concatenate([np.full(k, np.inf), np.tile(problem.upper, k), np.full(spreads, problem.log_v_range[1])])
    return low, high


def jacobian(problem: Problem, fit: Fit) -> FloatArray:
    """Return derivatives of the model's moments by (beta, centres, log_v), shape (2m, parameters)."""
    m, d = problem.W.shape
    mixture = fit.mixture
    k = len(mixture.beta)
    weighted = fit.atoms * mixture.beta
    J = np.empty((2 * m, k * (d + 1) + mixture.log_v.size))
    J[:, :k] = fit.atoms
    by_centre = J[:, k : k * (d + 1)].reshape(2 * m, k, d)
    np.multiply(-weighted[m:, :, None], problem.W[:, None, :], out=by_centre[:m])
    np.multiply(weighted[:m, :, None], problem.W[:, None, :], out=by_centre[m:])
    shares = weighted.sum(axis=1, keepdims=True) if mixture.log_v.shape[0] == 1 else weighted
    decay = -0.5 * np.tile(problem.spread_frequencies(mixture), (2, 1))
    by_spread = shares[:, :, None] * decay[:, None, :] * np.exp(mixture.log_v)
    J[:, k * (d + 1) :] = by_spread.reshape(2 * m, -1)
    return J


def _gradient(problem: Problem, fit: Fit) -> FloatArray:
    """Return the gradient of half the loss, without forming the Jacobian."""
    m = len(problem.W)
    mixture = fit.mixture
    real, imaginary = fit.rest[:m, None], fit.rest[m:, None]
    agreement = real * fit.atoms[:m] + imaginary * fit.atoms[m:]
    turn = imaginary * fit.atoms[:m] - real * fit.atoms[m:]
    by_centre = mixture.beta[:, None] * (turn.T @ problem.W)
    by_spread = -0.5 * mixture.beta[:, None] * (agreement.T @ problem.spread_frequencies(mixture))
    if mixture.log_v.shape[0] == 1:
        by_spread = by_spread.sum(axis=0, keepdims=True)
    by_spread = by_spread * np.exp(mixture.log_v)
    precision, target = problem.prior.terms(mixture)
    uphill: FloatArray = precision * (mixture.pack() - target)
    uphill -= np.concatenate([agreement.sum(axis=0), by_centre.ravel(), by_spread.ravel()])
    return uphill


def is_dense(problem: Problem, mixture: Mixture) -> bool:
    """Return whether J^T J is small enough to be formed."""
    return 2 * len(problem.W) * mixture.pack().size ** 2 <= DENSE_WORK


def refine(problem: Problem, mixture: Mixture, steps: int) -> Fit:
    """Fit all parameters together inside the box, from a start; the loss never rises."""
    if is_dense(problem, mixture):
        return levenberg_marquardt(problem, mixture, steps)
    return _lbfgs(problem, mixture, 4 * steps)


def levenberg_marquardt(problem: Problem, mixture: Mixture, steps: int) -> Fit:
    """Take damped Gauss-Newton steps on the parameters that are not at a bound, clipped to the bounds."""
    low, high = _bounds(problem, mixture)
    fit = evaluate(problem, mixture)
    # The usual start of Levenberg-Marquardt; the steps adapt it by factors of ten.
    damping = 1e-3
    for _ in range(steps):
        J = jacobian(problem, fit)
        theta = fit.mixture.pack()
        precision, target = problem.prior.terms(fit.mixture)
        downhill = J.T @ fit.rest - precision * (theta - target)
        H = J.T @ J + np.diag(precision)
        # A parameter at a bound is held only if the step would leave the box; otherwise it may return inside.
        free = ~((theta <= low) & (downhill <= 0) | (theta >= high) & (downhill >= 0))
        before, fit, damping = fit, *_damped_step(problem, fit, theta, downhill, H, free, (low, high), damping)
        if not fit.loss < before.loss * (1 - TOLERANCE):
            break
    return fit


def _damped_step(
    problem: Problem,
    fit: Fit,
    theta: FloatArray,
    downhill: FloatArray,
    H: FloatArray,
    free: npt.NDArray[np.bool_],
    bounds: tuple[FloatArray, FloatArray],
    damping: float,
) -> tuple[Fit, float]:
    """Return the first of several shorter and shorter steps that lowers the loss, or no step, and the next damping."""
    diagonal = H.diagonal()[free]
    # Keeps the matrix positive definite where an atom has no weight and so no derivative by its centre.
    diagonal = diagonal + 1e-9 * diagonal.max(initial=0.0) + 1e-200
    inner = H[np.ix_(free, free)]
    for _ in range(6):
        step = np.zeros_like(theta)
        try:
            step[free] = scipy.linalg.cho_solve(
                scipy.linalg.cho_factor(inner + np.diag(damping * diagonal)), downhill[free]
            )
        except scipy.linalg.LinAlgError:
            damping *= 10
            continue
        trial = evaluate(problem, fit.mixture.unpack(np.clip(theta + step, *bounds)))
        if trial.loss < fit.loss:
            return trial, max(damping / 10, 1e-9)
        damping *= 10
    return fit, damping


def _lbfgs(problem: Problem, mixture: Mixture, steps: int) -> Fit:
    """Refine by L-BFGS-B, in coordinates in which all parameters have about the same curvature."""
    from scipy.optimize import minimize  # here: loading it takes as long as the rest of the SDK

    low, high = _bounds(problem, mixture)
    k = len(mixture.beta)
    units = np.ones(len(low))
    units[k:] = 1 / max(float(mixture.beta.mean()), 1e-6)
    units[k : k + mixture.centres.size] *= np.sqrt(problem.W.shape[1] / max(float(problem.radii2.mean()), 1e-12))
    start = evaluate(problem, mixture)
    # L-BFGS-B's tolerances are absolute in part, so the loss starts at 1 whatever the noise.
    scale = 1 / max(start.loss, 1e-200)

    def half_loss(scaled: FloatArray) -> tuple[float, FloatArray]:
        fit = evaluate(problem, mixture.unpack(np.clip(scaled * units, low, high)))
        return 0.5 * scale * fit.loss, scale * units * _gradient(problem, fit)

    found = minimize(
        half_loss,
        mixture.pack() / units,
        jac=True,
        method="L-BFGS-B",
        bounds=np.stack([low / units, high / units], axis=1),
        options={"maxiter": steps, "ftol": TOLERANCE / 10, "gtol": 1e-12},
    )
    end = evaluate(problem, mixture.unpack(np.clip(found.x * units, low, high)))
    return end if end.loss < start.loss else start
