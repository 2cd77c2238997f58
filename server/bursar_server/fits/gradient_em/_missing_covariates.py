"""target = <features, b> + noise, where features may be missing (Wang et al. 2020, section 5.3 and appendix C).

Missing features are normal about their released mean, independent of the others, and missing at random. The target
given what is there is then normal about <b, what is there> with variance v = sigma^2 + |b_missing|^2, and the paper's
gradient y m(b) - K(b) b is sigma^2 times the score of that density: r w_there / v, and (r^2 / v - 1) b_missing / v.
Here the standardised residual is clipped first, and the 1 replaced by the mean of its clipped square, so that the mean
of both parts is zero at the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bursar_server.fits.gradient_em import _kernel, _regression
from bursar_server.fits.gradient_em._normal import clipped_slope, clipped_square
from bursar_server.fits.gradient_em._seam import Answer, Pass, State, View
from bursar_server.fits.gradient_em._statistics import FloatArray, Frame, GradientKernel, Look, Transform

_CLIP = 1.0
"""Standardised residuals are clipped to it where vectors are clipped in norm."""

_UNCLIPPED = 1e6

_LEAST_SHARE = 0.05
"""Of rows in which a feature is there, as far as steps are concerned."""

_LEGENDRE_NODES, _LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(128)
_NODES, _NODE_WEIGHTS = (_LEGENDRE_NODES + 1.0) / 2.0, _LEGENDRE_WEIGHTS / 2.0
"""Of Gauss and Legendre's rule on (0, 1)."""


@dataclass(frozen=True)
class MissingCovariates:
    """See the module.

    Attributes:
        frame: of the features, some of them nullable, then the target.
        intercept: whether there is one.
        public_seed: of the start.
        given: as in `MixtureOfRegressions`.
        sigma: likewise.
    """

    frame: Frame
    intercept: bool
    public_seed: int
    given: tuple[FloatArray, FloatArray] | None
    sigma: float | None

    look = Look.MISSING
    blocks = 1
    residual_size = 1

    @property
    def q(self) -> int:
        """Features, and 1 for the intercept."""
        return len(self.frame.centre) - 1 + self.intercept

    def view(self, look: FloatArray, noise_std: float) -> View:
        """Standardises features by what is there of them; correlations are not looked at."""
        d = len(self.frame.centre) - 1
        rows = max(float(look[0]), noise_std, 1.0)
        noise = noise_std / rows
        there, first, second = (part * d**0.5 / rows for part in look[3:].reshape(3, d))
        present = np.clip(there, _LEAST_SHARE, 1.0)
        mean = np.clip(first / present, -1.0, 1.0)
        y_mean, y_second = np.clip(look[1:3] / rows, -1.0, 1.0)
        shift = np.append(mean, y_mean) if self.intercept else _regression.zero(self.frame)
        about = second / present - mean**2 + (mean - shift[:-1]) ** 2
        variance = _shrunk(about, noise * d**0.5 / present)
        y_about = y_second - y_mean**2 + (y_mean - shift[-1]) ** 2
        spread = max(float(y_about), noise, 1e-6) ** 0.5
        return View(rows, spread, shift, np.diag(variance**-0.5), present)

    def start(self, view: View) -> State:
        """Random slopes."""
        if self.given is None:
            theta = _regression.random_start(view, 1, self.q, self.public_seed, intercept=self.intercept)
        else:
            theta = _regression.into_working(self.frame, view, *self.given, intercept=self.intercept)
        return State(self.project(view, theta), np.ones(1), np.array([self.sigma or _regression.start_sigma(view)]))

    def radius(self, view: View, state: State) -> FloatArray:
        """Root mean square of the part that is there, for a residual of the size to which residuals are clipped."""
        present, variance = self._there(view, state)
        return np.asarray(state.sigma**2 * (np.sum(present) / variance) ** 0.5)

    def kernel(self, view: View, state: State, bounded: Pass) -> GradientKernel:
        """One block."""
        clip = self._clip(bounded)
        arguments = (
            state.theta[0],
            (np.diag(view.whitener).copy(), view.shift, self.intercept),
            float(state.sigma[0]),
            clip,
            clipped_square(clip) if clip < _UNCLIPPED else 1.0,
            float(bounded.scales[0]),
            bounded.residual_limit**2,
        )
        return GradientKernel(_kernel.missing_sums, self.frame, arguments, bounded.shape)

    def origin(self, state: State) -> FloatArray:
        """Nothing can be split off."""
        return state.theta

    def gain(self, view: View, state: State, bounded: Pass) -> FloatArray:
        """Of the part that is there, over the patterns in which features may be missing."""
        present, _ = self._there(view, state)
        slopes = state.theta[0, int(self.intercept) :]
        precision = _relative_precision(slopes, float(state.sigma[0]), view.present)
        clip = self._clip(bounded)
        slope = clipped_slope(clip) if clip < _UNCLIPPED else 1.0
        return np.asarray((slope * present * precision[1 - self.intercept :])[None])

    def project(self, view: View, theta: FloatArray) -> FloatArray:
        """Not larger than the spread of the target allows."""
        return _regression.project(view, theta)

    def answer(self, view: View, state: State) -> Answer:
        """Slopes and intercept, and what is believed of features that are missing."""
        unit = self.frame.unit[:-1]
        return replace(
            _regression.answer(self.frame, view, state, intercept=self.intercept),
            feature_means=self.frame.centre[:-1] + unit * view.shift[:-1],
            feature_std=unit / np.diag(view.whitener),
        )

    def errors(self, view: View, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of slopes and intercept."""
        return _regression.errors(self.frame, view, variances, intercept=self.intercept)

    def _there(self, view: View, state: State) -> tuple[FloatArray, float]:
        """Share of rows in which each working feature is there, and the mean variance of the target given what is."""
        slopes = state.theta[0, int(self.intercept) :]
        variance = state.sigma[0] ** 2 + np.sum((1.0 - view.present) * slopes**2)
        return np.append(np.ones(int(self.intercept)), view.present), float(variance)

    def _clip(self, bounded: Pass) -> float:
        return _UNCLIPPED if bounded.shape.transform is Transform.BOX else _CLIP


def _relative_precision(slopes: FloatArray, sigma: float, present: FloatArray) -> FloatArray:
    """E sigma^2 / v over rows, and over those in which each feature is there, (1 + d,); v = sigma^2 + |b_missing|^2.

    1 / v is the integral of exp(-t v) over t > 0. With u = exp(-t sigma^2) it is that over u in (0, 1) of a product of
    p_j + (1 - p_j) u^(b_j^2 / sigma^2). A mean variance instead would let rows that miss a strong feature make the
    steps of those that have it too long. By Jensen's inequality it is never below that, whatever the nodes miss.
    """
    ratio = (slopes / sigma) ** 2
    # (d, nodes); shares are at least `_LEAST_SHARE`, and with them the factors.
    factors = 1.0 + (1.0 - present)[:, None] * np.expm1(np.log(_NODES) * ratio[:, None])
    whole = np.prod(factors, axis=0)
    missing = np.sum((1.0 - present) * ratio)
    least = 1.0 / (1.0 + missing - np.append(0.0, (1.0 - present) * ratio))
    return np.asarray(np.maximum(np.vstack([whole, whole / factors]) @ _NODE_WEIGHTS, least))


def _shrunk(variances: FloatArray, noise: FloatArray) -> FloatArray:
    """Positive variances, drawn to their mean as far as they differ by noise only."""
    mean = max(float(np.mean(variances)), float(np.mean(noise)) / len(variances) ** 0.5, 1e-6)
    share = min(1.0, float(np.sum(noise**2)) / max(float(np.sum((variances - mean) ** 2)), 1e-300))
    return np.asarray(np.maximum((1.0 - share) * variances + share * mean, 0.02 * mean))
