"""Protocol of a model of FitGradientEM: its gradient from rows, and the meaning of its parameters. One file a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em._kernel import CATONI
from bursar_server.fits.gradient_em._normal import Response
from bursar_server.fits.gradient_em._statistics import GradientFrame, GradientKernel, Look, Shape, Transform

_DECLARED = 0.25
"""Relative standard deviation of a declared number of rows: slots may be empty, and the declaration outdated.

Chosen, not tuned.
"""


def believed_rows(noisy: float, noise: float, declared: float | None) -> float:
    """Return the number of rows estimated from a noisy count and, if there is one, a declared number."""
    if declared is None:
        return max(noisy, noise, 1.0)
    trust = noise**2 / (noise**2 + (_DECLARED * declared) ** 2)
    return max(trust * declared + (1.0 - trust) * noisy, 1.0)


@dataclass(frozen=True)
class State:
    """Released or public parameters between two steps, in working coordinates (`View`).

    Attributes:
        theta: parameters, (blocks, q).
        weights: probabilities of the components, (components,).
        sigma: standard deviation of the model's noise, (blocks,).
    """

    theta: FloatArray
    weights: FloatArray
    sigma: FloatArray


@dataclass(frozen=True)
class View:
    """Released look: working coordinates, in which parameters have about the size of `spread`.

    Attributes:
        rows: estimated number of rows.
        spread: standard deviation of one of the numbers that the model explains.
        shift: origin of working coordinates, in the frame's units, (columns,).
        whitener: matrix of regressions, (features, features): working features are whitener (z - shift), with variance
            about 1.
        present: share of rows in which each feature is present, (features,).
        line: slopes of one regression of all rows on the working features, (features,); () where the look has none.
        means: means of the features in the frame's units, (features,); () where the look has none.
        covariance: their covariance about these means, (features, features); () where the look has none.
    """

    rows: float
    spread: float
    shift: FloatArray
    whitener: FloatArray
    present: FloatArray
    line: FloatArray = field(default_factory=lambda: np.empty(0))
    means: FloatArray = field(default_factory=lambda: np.empty(0))
    covariance: FloatArray = field(default_factory=lambda: np.empty(0))

    @property
    def unexplained(self) -> float:
        """Standard deviation of the target about `line`, or about its mean; at least a tenth of `spread`."""
        return math.sqrt(max(self.spread**2 - float(self.line @ self.line), 0.01 * self.spread**2))


@dataclass(frozen=True)
class Pass:
    """Bounds of the next gradient.

    Attributes:
        shape: shape of the release.
        scales: radius, or s, of each block's vectors, (blocks,).
        split: True if only the part that depends on data is truncated (BOX); the rest is added afterwards.
        residual_limit: clip of squared residuals, in units of sigma sqrt(size).
        clip: clip of residuals before they make a vector, in standard deviations; `UNCLIPPED`: none.
    """

    shape: Shape
    scales: FloatArray
    split: bool
    residual_limit: float
    clip: float

    @property
    def reach(self) -> FloatArray:
        """Largest norm (BOX: coordinate) of a bounded vector, (blocks,)."""
        largest = {Transform.NORM: 1.0, Transform.RADIAL: CATONI}.get(self.shape.transform)
        return self.scales * (CATONI * math.erf(self.shape.root_beta / 2.0**0.5) if largest is None else largest)


@dataclass(frozen=True)
class Answer:
    """Parameters in the data's own units.

    Attributes:
        coefficients: means, or slopes, (components, columns).
        intercepts: intercepts of regressions, (components,), else (0,).
        noise_std: standard deviations, (components, columns) of mixtures, (components,) of regressions.
        feature_means: means of features, which replace missing ones, (columns,), in models that have them.
        feature_std: standard deviations of missing features, (columns,), in models that have them.
        feature_covariance: covariance of features, (columns, columns), in models that have it.
    """

    coefficients: FloatArray
    intercepts: FloatArray
    noise_std: FloatArray
    feature_means: FloatArray | None = None
    feature_std: FloatArray | None = None
    feature_covariance: FloatArray | None = None


class Model(Protocol):
    """Latent-variable model: everything that a fit needs of it. Its functions are total."""

    @property
    def frame(self) -> GradientFrame:
        """Map from the data's units."""

    @property
    def look(self) -> Look:
        """Kind of the first release."""

    @property
    def blocks(self) -> int:
        """Number of components with their own parameters."""

    @property
    def q(self) -> int:
        """Number of parameters of a block."""

    @property
    def residual_size(self) -> int:
        """Number of coordinates of a residual, each normal with standard deviation sigma."""

    def view(self, look: FloatArray, noise_std: float, declared: float | None) -> View:
        """Return the view of a look, whose numbers have this noise, with this declared number of rows."""

    def start(self, view: View) -> State:
        """Return the state before the first step: public, except for the view."""

    def bounds(self, view: View, state: State, transform: Transform, noise: float) -> tuple[FloatArray, float]:
        """Return norms (blocks,) to which vectors are clipped, and the `clip` of a `Pass`.

        `noise` is the variance of the noise on the mean of vectors of norm up to 1, times the number of rows. The
        larger it is against the sampling variance, the narrower are the best bounds.
        """

    def prior(self, view: View) -> tuple[FloatArray, float]:
        """Return the middle (blocks, q), and the variance of a parameter as far as the look shows it."""

    def kernel(self, view: View, state: State, bounded: Pass) -> GradientKernel:
        """Return the gradient at a state: of every row responsibilities, vectors and squared residuals."""

    def origin(self, state: State) -> FloatArray:
        """Return the origin (blocks, q) of a data part that is split off; theta if no part can be split off."""

    def response(self, view: View, state: State, bounded: Pass) -> Response:
        """Return the response of bounded gradients to a row."""

    def hidden(self, view: View, state: State) -> FloatArray:
        """Return the share (blocks,) of the information that a full step counts and rows do not have."""

    def project(self, view: View, theta: FloatArray) -> FloatArray:
        """Return the nearest parameters in the public region, (blocks, q)."""

    def answer(self, view: View, state: State) -> Answer:
        """Return the parameters in the data's own units."""

    def errors(self, view: View, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return standard errors of coefficients and intercepts, from variances (blocks, q) of theta.

        They are shaped as in `Answer`.
        """
