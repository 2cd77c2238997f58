"""What a model is to FitGradientEM: how rows make a gradient, and what parameters mean. One file a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from bursar_server.fits.gradient_em._kernel import CATONI
from bursar_server.fits.gradient_em._normal import Response
from bursar_server.fits.gradient_em._statistics import FloatArray, Frame, GradientKernel, Look, Shape, Transform

_DECLARED = 0.25
"""Standard deviation of a declared number of rows, relative: slots may be empty, and what was declared out of date."""


def believed_rows(noisy: float, noise: float, declared: float | None) -> float:
    """Number of rows from a count with noise of this standard deviation and, if there is one, a declared number."""
    if declared is None:
        return max(noisy, noise, 1.0)
    trust = noise**2 / (noise**2 + (_DECLARED * declared) ** 2)
    return max(trust * declared + (1.0 - trust) * noisy, 1.0)


@dataclass(frozen=True)
class State:
    """Released or public parameters between two steps, in working coordinates (`View`).

    Attributes:
        theta: (blocks, q).
        weights: (components,) probabilities.
        sigma: (blocks,) standard deviation of the model's noise.
    """

    theta: FloatArray
    weights: FloatArray
    sigma: FloatArray


@dataclass(frozen=True)
class View:
    """What the look released: working coordinates, in which parameters have about the size of `spread`.

    Attributes:
        rows: estimated number.
        spread: standard deviation of what the model explains, of one of its numbers.
        shift: (columns,) origin of working coordinates, in the frame's units.
        whitener: (features, features) of regressions: working features are whitener (z - shift), with variance about 1.
        present: (features,) share of rows in which each is there.
    """

    rows: float
    spread: float
    shift: FloatArray
    whitener: FloatArray
    present: FloatArray


@dataclass(frozen=True)
class Pass:
    """How the next gradient is bounded.

    Attributes:
        shape: of the release.
        scales: (blocks,) radius, or s, of each block's vectors.
        split: only the part that depends on data is truncated (BOX); the rest is added afterwards.
        residual_limit: in units of sigma sqrt(size): where squared residuals are clipped.
        clip: in standard deviations: where residuals are clipped before they make a vector; `UNCLIPPED`: nowhere.
    """

    shape: Shape
    scales: FloatArray
    split: bool
    residual_limit: float
    clip: float

    @property
    def reach(self) -> FloatArray:
        """(blocks,) largest norm (BOX: coordinate) of a vector that has been bounded."""
        largest = {Transform.NORM: 1.0, Transform.RADIAL: CATONI}.get(self.shape.transform)
        return self.scales * (CATONI * math.erf(self.shape.root_beta / 2.0**0.5) if largest is None else largest)


@dataclass(frozen=True)
class Answer:
    """Parameters in the data's own units.

    Attributes:
        coefficients: (components, columns): means, or slopes.
        intercepts: (components,) of regressions, else (0,).
        noise_std: (components, columns) of mixtures, (components,) of regressions.
        feature_means: (columns,) that stand for missing features; of models that have them.
        feature_std: (columns,) likewise.
    """

    coefficients: FloatArray
    intercepts: FloatArray
    noise_std: FloatArray
    feature_means: FloatArray | None = None
    feature_std: FloatArray | None = None


class Model(Protocol):
    """A latent-variable model: everything that a fit has to know of it. Its functions are total."""

    @property
    def frame(self) -> Frame:
        """From the data's units."""

    @property
    def look(self) -> Look:
        """What its first release looks at."""

    @property
    def blocks(self) -> int:
        """Components with parameters of their own."""

    @property
    def q(self) -> int:
        """Parameters of a block."""

    @property
    def residual_size(self) -> int:
        """Numbers of a residual, each normal with standard deviation sigma."""

    def view(self, look: FloatArray, noise_std: float, declared: float | None) -> View:
        """Read the look, of which every number has noise of this standard deviation, with this number of rows."""

    def start(self, view: View) -> State:
        """Where the first step begins: public but for the view."""

    def bounds(self, view: View, state: State, transform: Transform, noise: float) -> tuple[FloatArray, float]:
        """(blocks,) to which norm vectors are clipped, and the `clip` of a `Pass`.

        `noise` is the variance of the noise on the mean of vectors of norm up to 1, times the number of rows: the
        larger it is beside what the sample does, the narrower are the best bounds.
        """

    def prior(self, view: View) -> tuple[FloatArray, float]:
        """(blocks, q) the middle, and the variance of a parameter as far as the look can tell."""

    def kernel(self, view: View, state: State, bounded: Pass) -> GradientKernel:
        """The gradient at a state: of every row responsibilities, vectors and squared residuals."""

    def origin(self, state: State) -> FloatArray:
        """(blocks, q) about which a data part that is split off is taken; theta where nothing can be split off."""

    def response(self, view: View, state: State, bounded: Pass) -> Response:
        """What bounded gradients make of a row."""

    def hidden(self, view: View, state: State) -> FloatArray:
        """(blocks,) share of the information about parameters that a full step counts and rows do not have."""

    def project(self, view: View, theta: FloatArray) -> FloatArray:
        """The nearest parameters in the public region, (blocks, q)."""

    def answer(self, view: View, state: State) -> Answer:
        """Parameters in the data's own units."""

    def errors(self, view: View, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Standard errors of coefficients and intercepts from variances (blocks, q) of theta, as `Answer` has them."""
