"""Model target = <features, b> + noise, where features may be missing (Wang et al. 2020, section 5.3 and appendix C).

Missing features are normal about their released mean, independent of the others, and missing at random. The target
given the present features is then normal about <b, present features> with variance v = sigma^2 + |b_missing|^2. The
paper's gradient y m(b) - K(b) b is sigma^2 times the score of that density: r w_there / v, and (r^2 / v - 1) b_missing
/ v. Here the standardised residual is clipped first, and the 1 replaced by the mean of its clipped square, so that the
mean of both parts is zero at the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from bursar_models import public_generator
from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em import _kernel, _regression
from bursar_server.fits.gradient_em._models import Answer, Pass, State, View, believed_rows
from bursar_server.fits.gradient_em._normal import MULTIPLES, Response, clipped_slope, clipped_square
from bursar_server.fits.gradient_em._statistics import GradientFrame, GradientKernel, Look, Transform

_CLIPS = (0.5, 1.0, 1.5)
"""Clips of standardised residuals that are tried if vectors are clipped in norm. Chosen, not tuned."""

_LEAST_SHARE = 0.05
"""Minimum assumed share of rows in which a feature is present. Chosen, not tuned."""

_PATTERNS = 512
"""Number of drawn rows with which bounds of vectors are compared. Chosen, not tuned."""


@dataclass(frozen=True)
class _Rows:
    """Rows drawn from the model, with features normal and missing as in the table.

    Attributes:
        there: 1.0 for present features, else 0.0, (rows, features).
        precision: sigma^2 over the variance of the target given the present features, (rows,).
        squares: squared length of the present features, (rows,).
    """

    there: FloatArray
    precision: FloatArray
    squares: FloatArray

    def weights(self, radius: float, clip: float) -> FloatArray:
        """Return weights (rows,) as the kernel computes them; radius in units of sigma."""
        if clip >= _kernel.UNCLIPPED:
            return np.ones(len(self.squares))
        square = clipped_square(clip)
        most = max(square, clip**2 - square)
        longest = np.sqrt(self.precision * (clip**2 * self.squares + most**2 * (1.0 - self.precision)))
        return np.asarray(1.0 / np.maximum(longest / radius, 1.0))


@dataclass(frozen=True)
class MissingCovariates:
    """Regression with missing features; a `Model`.

    Attributes:
        frame: frame of the features, some of them nullable, then the target.
        given: initial slopes and intercepts, as in `LatentRegressions`; None to start at zero.
        sigma: standard deviation of the target in the frame's units; None to estimate it.
    """

    frame: GradientFrame
    given: tuple[FloatArray, FloatArray] | None
    sigma: float | None

    look = Look.MISSING
    blocks = 1
    residual_size = 1

    @property
    def q(self) -> int:
        """Number of features, and 1 for the intercept."""
        return len(self.frame.centre)

    def view(self, look: FloatArray, noise_std: float, declared: float | None) -> View:
        """Implement `Model.view`: standardises features by their present values; ignores correlations."""
        d = len(self.frame.centre) - 1
        rows = believed_rows(float(look[0]), noise_std, declared)
        noise = noise_std / rows
        there, first, second = (part * d**0.5 / rows for part in look[3:].reshape(3, d))
        present = np.clip(_alike(there, noise * d**0.5), _LEAST_SHARE, 1.0)
        mean = np.clip(first / present, -1.0, 1.0)
        y_mean, y_second = np.clip(look[1:3] / rows, -1.0, 1.0)
        middle = _regression.near_middle(mean, noise * d**0.5 / float(np.mean(present)))
        shift = np.append(middle, _regression.near_middle(np.array([y_mean]), noise))
        about = second / present - mean**2 + (mean - shift[:-1]) ** 2
        variance = _shrunk(about, noise * d**0.5 / present)
        y_about = y_second - y_mean**2 + (y_mean - shift[-1]) ** 2
        spread = _regression.cautious(float(y_about), noise) ** 0.5
        return View(rows, spread, shift, np.diag(variance**-0.5), present, means=middle)

    def start(self, view: View) -> State:
        """Implement `Model.start`: zero, because a single component needs no random start."""
        if self.given is None:
            theta = np.zeros((1, self.q))
        else:
            theta = _regression.into_working(self.frame, view, *self.given, intercept=True)
        return State(self.project(view, theta), np.ones(1), np.array([self.sigma or _regression.start_sigma(view)]))

    def bounds(self, view: View, state: State, transform: Transform, noise: float) -> tuple[FloatArray, float]:
        """Implement `Model.bounds`: the radius and clip, of some tried, with the least error of coefficients."""
        rows, sigma = self._rows(view, state), float(state.sigma[0])
        typical = float(np.median(rows.precision * rows.squares)) ** 0.5
        tried = []
        for clip, multiple in product(_CLIPS, MULTIPLES):
            radius = float(multiple) * typical * clip
            weights = rows.weights(radius, clip)
            each = rows.precision * rows.squares / self.q
            gain = clipped_slope(clip) * float(np.mean(weights * each))
            square = clipped_square(clip) * float(np.mean(weights**2 * each))
            tried.append(((square + noise * radius**2) / max(gain**2, 1e-300), radius, clip))
        _, radius, clip = min(tried)
        return np.array([radius * sigma]), clip

    def prior(self, view: View) -> tuple[FloatArray, float]:
        """Implement `Model.prior`: about 0; all coefficients together explain the target's variance."""
        return np.zeros((1, self.q)), view.spread**2 / self.q

    def kernel(self, view: View, state: State, bounded: Pass) -> GradientKernel:
        """Implement `Model.kernel`: one block."""
        clip = bounded.clip
        arguments = (
            state.theta[0],
            (np.diag(view.whitener).copy(), view.shift),
            float(state.sigma[0]),
            clip,
            clipped_square(clip) if clip < _kernel.UNCLIPPED else 1.0,
            float(bounded.scales[0]),
            bounded.residual_limit**2,
        )
        return GradientKernel(_kernel.missing_sums, self.frame, arguments, bounded.shape)

    def origin(self, state: State) -> FloatArray:
        """Implement `Model.origin`: no part can be split off."""
        return state.theta

    def response(self, view: View, state: State, bounded: Pass) -> Response:
        """Implement `Model.response`: that of the present part, over the patterns of missing features."""
        rows, sigma, clip = self._rows(view, state), float(state.sigma[0]), bounded.clip
        weights = rows.weights(float(bounded.scales[0]) / sigma, clip)
        slope, square = (1.0, 1.0) if clip >= _kernel.UNCLIPPED else (clipped_slope(clip), clipped_square(clip))
        gain = slope * self._mean(view, rows, weights * rows.precision)
        return Response(gain, sigma**2 * square * self._mean(view, rows, weights**2 * rows.precision) / gain**2)

    def hidden(self, view: View, state: State) -> FloatArray:
        """Implement `Model.hidden`: 0, because steps count present features only."""
        return np.zeros(1)

    def project(self, view: View, theta: FloatArray) -> FloatArray:
        """Implement `Model.project`: coefficients within the spread of the target."""
        return _regression.project(view, theta, _regression.REACH_ALONE)

    def answer(self, view: View, state: State) -> Answer:
        """Implement `Model.answer`: slopes and intercept, and the distribution of missing features."""
        found = _regression.answer(self.frame, view, state, intercept=True)
        return replace(found, feature_std=self.frame.unit[:-1] / np.diag(view.whitener))

    def errors(self, view: View, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Implement `Model.errors`: those of slopes and intercept."""
        return _regression.errors(self.frame, view, variances, intercept=True)

    def _rows(self, view: View, state: State) -> _Rows:
        """Draw rows of the model: the same ones at every step."""
        uniform, normal = _drawn(self.q - 1)
        there = (uniform < view.present).astype(np.float64)
        slopes, square = state.theta[0, 1:], state.sigma[0] ** 2
        precision = square / (square + (1.0 - there) @ slopes**2)
        return _Rows(there, precision, np.sum(there * normal**2, axis=1) + 1.0)

    def _mean(self, view: View, rows: _Rows, each: FloatArray) -> FloatArray:
        """Return the mean (1, q) over rows of `each` (rows,) times the square of a working feature.

        It is equal within each kind of feature.
        """
        number = np.sum(rows.there, axis=1) + 1.0
        shares = np.maximum(np.mean(rows.there, axis=0), 1.0 / _PATTERNS)
        features = view.present / shares * np.mean((each * rows.squares / number)[:, None] * rows.there, axis=0)
        return np.asarray(np.maximum(np.append(np.mean(each), features), 1e-6)[None])


@lru_cache(maxsize=64)
def _drawn(d: int) -> tuple[FloatArray, FloatArray]:
    generator = public_generator(d)  # rows of a model, not of a table
    return generator.random((_PATTERNS, d)), generator.standard_normal((_PATTERNS, d))


def _alike(values: FloatArray, noise: float) -> FloatArray:
    """Return numbers with noise of this standard deviation, shrunk to their mean as far as noise allows."""
    mean = np.mean(values)
    share = noise**2 * _regression.by_chance(len(values)) / max(float(np.sum((values - mean) ** 2)), 1e-300)
    return np.asarray(mean + max(1.0 - share, 0.0) * (values - mean))


def _shrunk(variances: FloatArray, noise: FloatArray) -> FloatArray:
    """Return positive variances, shrunk to their mean as far as noise explains differences."""
    d = len(variances)
    mean = _regression.cautious(float(np.mean(variances)), float(np.mean(noise)) / d**0.5)
    dispersion = float(np.sum((variances - mean) ** 2))
    share = min(1.0, float(np.mean(noise**2)) * _regression.by_chance(d) / max(dispersion, 1e-300))
    drawn = (1.0 - share) * variances + share * mean
    return np.asarray(np.maximum(drawn, np.maximum(0.02 * mean, np.minimum((1.0 - share) * noise, mean))))
