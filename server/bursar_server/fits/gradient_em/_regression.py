"""Common part of the regressions: working features, and the conversion to the data's own units.

The last column of the frame is the target. Working features are (1, whitener (z - shift)), without the 1 if there is no
intercept; the working target is z_y - shift_y. Without an intercept the origin of both is the data's own zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from bursar_models import uniform_in_ball
from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em._models import Answer, State, View, believed_rows
from bursar_server.fits.gradient_em._statistics import GradientFrame

REACH = 4.0
"""Maximum norm of coefficients, in standard deviations of the target: one component may explain a rare part of it."""

REACH_ALONE = 1.5
"""Maximum norm of coefficients that explain all rows: 1, plus room for noise on that standard deviation.

Chosen, not tuned.
"""

_LEAST_VARIANCE, _LEAST_EIGENVALUE = 1e-6, 0.01
"""Minimum variance of a column with bounds +-1; minimum eigenvalue of features, relative to the mean.

Chosen, not tuned.
"""

_USUAL, _USUAL_SPREAD = 1.0 / 9.0, 1.0
"""Prior of a column's variance with bounds +-1: its median, for bounds at three standard deviations, and log-deviation.

It applies before the look, and after one that noise dominates.
"""

_CERTAIN = 2.0
"""Slope of the look, in standard deviations of its noise, from which steps start at a part of it. Chosen, not tuned."""

_NODES = 256
"""Number of nodes of the integral over possible variances. Chosen, not tuned."""

_START = 0.7
"""Size of a random start, and of its noise, in standard deviations of the target about one regression of all rows.

Chosen, not tuned.
"""


def zero(frame: GradientFrame) -> FloatArray:
    """Return the data's own zero in the frame's units, (columns,)."""
    return -frame.centre / frame.unit


def view_of_moments(
    frame: GradientFrame, look: FloatArray, noise_std: float, declared: float | None, *, intercept: bool
) -> View:
    """Return the view of a `Look.REGRESSION`: means and covariances, shrunk as far as noise allows."""
    size = len(frame.centre) + 1
    moments = np.zeros((size, size))
    moments[np.tril_indices(size)] = look * size
    moments += np.tril(moments, -1).T
    moments[~np.eye(size, dtype=bool)] /= 2.0**0.5
    rows = believed_rows(float(moments[0, 0]), noise_std * size, declared)
    noise = noise_std * size / rows
    mean = np.clip(moments[0, 1:] / rows, -1.0, 1.0)
    second = np.clip(moments[1:, 1:] / rows, -1.0, 1.0)
    means = near_middle(mean, noise / 2.0**0.5)
    shift = means if intercept else zero(frame)
    about = second - np.outer(mean, mean) + np.outer(mean - shift, mean - shift)
    features = _features(about[:-1, :-1], noise)
    spread = cautious(float(about[-1, -1]), noise) ** 0.5
    line = features.line(about[:-1, -1], noise / 2.0**0.5)
    line *= min(1.0, spread / max(float(np.linalg.norm(line)), 1e-300))
    about_means = features if intercept else _features((second - np.outer(mean, mean))[:-1, :-1], noise)
    present = np.ones(size - 2)
    return View(rows, spread, shift, features.whitener, present, line, means[:-1], about_means.covariance)


@dataclass(frozen=True)
class _Features:
    """Released covariance of features.

    Attributes:
        values: its eigenvalues, (features,); noise may have made them negative.
        raised: eigenvalues that features are whitened by, (features,): no direction looks narrower than its noise.
        vectors: eigenvectors as columns, (features, features).
    """

    values: FloatArray
    raised: FloatArray
    vectors: FloatArray

    @property
    def whitener(self) -> FloatArray:
        """Symmetric inverse root, (features, features)."""
        return np.asarray((self.vectors / np.sqrt(self.raised)) @ self.vectors.T)

    @property
    def covariance(self) -> FloatArray:
        """Covariance as released, (features, features), with the directions that noise has left no width."""
        return np.asarray((self.vectors * np.maximum(self.values, 0.0)) @ self.vectors.T)

    def line(self, with_target: FloatArray, noise: float) -> FloatArray:
        """Return slopes of one regression on whitened features, 0 in directions where they may be noise.

        Steps hardly move in directions that are narrower than their noise, so what starts there stays.

        Args:
            with_target: covariances of the features with the target, (features,).
            noise: standard deviation of the noise on each.
        """
        along = self.vectors.T @ with_target / np.sqrt(self.raised)
        share = 1.0 - (_CERTAIN * noise) ** 2 / np.maximum(self.raised * along**2, 1e-300)
        return np.asarray(self.vectors @ (np.maximum(share, 0.0) * along))


def _features(covariance: FloatArray, noise: float) -> _Features:
    """Return a covariance matrix with noise on its entries, shrunk to a multiple of 1 (Ledoit and Wolf 2004)."""
    d = len(covariance)
    mean = cautious(float(np.trace(covariance)) / d, noise / d**0.5)
    dispersion = float(np.sum((covariance - mean * np.eye(d)) ** 2))
    share = min(1.0, noise**2 * by_chance(d * (d + 1) / 2.0) / max(dispersion, 1e-300))
    values, vectors = np.linalg.eigh((1.0 - share) * covariance + share * mean * np.eye(d))
    least = max(_LEAST_EIGENVALUE * mean, min((1.0 - share) * noise * (d / 2.0) ** 0.5, mean))
    return _Features(values, np.maximum(values, least), vectors)


def cautious(variance: float, noise: float) -> float:
    """Return the mean of the variances that a noisy variance leaves possible, at most 1.

    The prior is that of usual columns.
    """
    near = min(max(variance, _LEAST_VARIANCE), 1.0)
    noise = max(noise, 1e-3 * _LEAST_VARIANCE)
    least, most = ndtr((_LEAST_VARIANCE - near) / noise), ndtr((1.0 - near) / noise)
    u = (np.arange(_NODES) + 0.5) / _NODES
    possible = np.clip(near + noise * ndtri(least + (most - least) * u), _LEAST_VARIANCE, 1.0)
    logs = -0.5 * (np.log(possible / _USUAL) / _USUAL_SPREAD) ** 2 - np.log(possible)
    weights = np.exp(logs - logs.max())
    return float(weights @ possible / weights.sum())


def near_middle(means: FloatArray, noise: float) -> FloatArray:
    """Return noisy means, shrunk to the middle of the bounds as far as noise explains them (James and Stein 1961)."""
    share = noise**2 * len(means) / max(float(means @ means), 1e-300)
    return np.asarray(max(1.0 - share, 0.0) * means)


def by_chance(size: float) -> float:
    """Return a number that a sum of so many squares of standard normal numbers hardly ever exceeds."""
    return float(size + 2.0 * (2.0 * size) ** 0.5)


def start_slopes(view: View, blocks: int, q: int, public_seed: int, *, intercept: bool, alone: bool) -> FloatArray:
    """Draw slopes about those of one regression of all rows, with intercepts 0, (blocks, q).

    One regression has the mean of the components' slopes, so they are off by as much as it leaves unexplained. A
    component that is `alone` starts there.
    """
    theta = np.zeros((blocks, q))
    theta[:, intercept:] = view.line
    if not alone:
        theta[:, intercept:] += _START * view.unexplained * uniform_in_ball(blocks, q - intercept, public_seed)
    return theta


def start_sigma(view: View) -> float:
    """Return the initial standard deviation of the noise."""
    return _START * view.unexplained


def into_working(
    frame: GradientFrame, view: View, coefficients: FloatArray, intercepts: FloatArray, *, intercept: bool
) -> FloatArray:
    """Return parameters (blocks, q) from slopes (blocks, d) and intercepts (blocks,) in the data's own units."""
    unit, centre = frame.unit, frame.centre
    slopes = coefficients * (unit[:-1] / unit[-1])
    working = np.linalg.solve(view.whitener, slopes.T).T
    if not intercept:
        return working
    at_shift = intercepts + coefficients @ (centre[:-1] + unit[:-1] * view.shift[:-1])
    constant = (at_shift - centre[-1]) / unit[-1] - view.shift[-1]
    return np.column_stack([constant, working])


def project(view: View, theta: FloatArray, reach: float) -> FloatArray:
    """Move each block into a ball of `reach` standard deviations of the target."""
    norms = np.linalg.norm(theta, axis=1, keepdims=True)
    return np.asarray(theta * np.minimum(1.0, reach * view.spread / np.maximum(norms, 1e-300)))


def answer(frame: GradientFrame, view: View, state: State, *, intercept: bool) -> Answer:
    """Return slopes, intercepts and noise in the data's own units."""
    unit, centre = frame.unit, frame.centre
    coefficients = _slopes(frame, view, state.theta, intercept=intercept)
    intercepts = np.zeros(len(state.theta))
    if intercept:
        origin = centre[:-1] + unit[:-1] * view.shift[:-1]
        intercepts = centre[-1] + unit[-1] * (view.shift[-1] + state.theta[:, 0]) - coefficients @ origin
    means = centre[:-1] + unit[:-1] * view.means
    covariance = view.covariance * np.outer(unit[:-1], unit[:-1]) if view.covariance.size else None
    return Answer(coefficients, intercepts, state.sigma * unit[-1], feature_means=means, feature_covariance=covariance)


def errors(
    frame: GradientFrame, view: View, variances: FloatArray, *, intercept: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the standard errors of slopes (blocks, d) and intercepts (blocks,)."""
    unit, centre = frame.unit, frame.centre
    scale = unit[-1] / unit[:-1]
    slopes = np.sqrt(variances[:, intercept:] @ (view.whitener**2)) * scale
    intercepts = np.zeros(len(variances))
    if intercept:
        lever = (view.whitener @ (centre[:-1] / unit[:-1] + view.shift[:-1])) ** 2
        intercepts = unit[-1] * np.sqrt(variances[:, 0] + variances[:, 1:] @ lever)
    return slopes, intercepts


def _slopes(frame: GradientFrame, view: View, theta: FloatArray, *, intercept: bool) -> FloatArray:
    return np.asarray(theta[:, intercept:] @ view.whitener * (frame.unit[-1] / frame.unit[:-1]))
