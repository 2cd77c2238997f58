"""Model y = c + z b + noise, z = +-1 equally likely: the symmetric mixture (Wang et al. 2020, section 5.1).

Gradient of a row, for the posterior probability w of z = 1: w (y - c - b) - (1 - w) (y - c + b). Each of the two
residuals is bounded by itself. At the true parameters w times the density is that of the one component, so the mean of
any odd function of its residual is zero, whatever the overlap: bounding moves no fixed point. The posterior has a
factor 2 in its exponent that the paper omits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar_models import uniform_in_ball
from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em import _kernel, _location
from bursar_server.fits.gradient_em._information import hidden_of_means
from bursar_server.fits.gradient_em._kernel import UNCLIPPED
from bursar_server.fits.gradient_em._models import Answer, Pass, State, View
from bursar_server.fits.gradient_em._normal import Kind, Response, best_radius, response
from bursar_server.fits.gradient_em._statistics import GradientFrame, GradientKernel, Look, Transform

_SIGNS = np.array([1.0, -1.0])


@dataclass(frozen=True)
class LatentSymmetricMixture:
    """Symmetric mixture of two Gaussians; a `Model`.

    Attributes:
        frame: frame of the columns.
        middle: point c in the frame's units, (d,).
        public_seed: seed of the start.
        given: initial b in the frame's units, (1, d); None to draw one.
        sigma: standard deviation in the frame's units; None to estimate it.
        paper_weights: True to omit the factor 2, as the paper does.
    """

    frame: GradientFrame
    middle: FloatArray
    public_seed: int
    given: FloatArray | None
    sigma: float | None
    paper_weights: bool

    look = Look.LOCATION
    blocks = 1

    @property
    def q(self) -> int:
        """Number of columns."""
        return len(self.middle)

    @property
    def residual_size(self) -> int:
        """Number of columns."""
        return len(self.middle)

    def view(self, look: FloatArray, noise_std: float, declared: float | None) -> View:
        """Implement `Model.view`: spread about the middle."""
        rows, mean, square = _location.moments(look, noise_std, declared)
        about = square - 2.0 * float(mean @ self.middle) / self.q + float(self.middle @ self.middle) / self.q
        return View(rows, _location.spread(about, noise_std / rows), self.middle, np.empty((0, 0)), np.empty(0))

    def start(self, view: View) -> State:
        """Implement `Model.start`: a random direction, half of the spread along it, and all of it as noise."""
        drawn = view.spread * (self.q / 2.0) ** 0.5 * uniform_in_ball(1, self.q, self.public_seed)
        theta = drawn if self.given is None else self.given
        return State(self.project(view, theta), np.full(2, 0.5), np.array([self.sigma or view.spread]))

    def bounds(self, view: View, state: State, transform: Transform, noise: float) -> tuple[FloatArray, float]:
        """Implement `Model.bounds`: from the noise."""
        return state.sigma * best_radius(Kind.LOCATION, transform, self.q, np.array([noise])), UNCLIPPED

    def prior(self, view: View) -> tuple[FloatArray, float]:
        """Implement `Model.prior`: about 0, as widely as rows are."""
        return np.zeros((1, self.q)), view.spread**2

    def kernel(self, view: View, state: State, bounded: Pass) -> GradientKernel:
        """Implement `Model.kernel`: the two components fold into one block."""
        means = self.middle + _SIGNS[:, None] * state.theta
        half_precision = 0.5 / state.sigma[0] ** 2 * (0.5 if self.paper_weights else 1.0)
        arguments = (
            np.zeros(2),
            np.full(2, half_precision),
            means,
            np.tile(self.middle, (2, 1)) if bounded.split else means,
            np.repeat(bounded.scales, 2),
            np.repeat(_location.residual_scales(state, bounded, self.q), 2),
            _SIGNS,
        )
        return GradientKernel(_kernel.location_sums, self.frame, arguments, bounded.shape)

    def origin(self, state: State) -> FloatArray:
        """Implement `Model.origin`: vectors of the data part are taken about the middle, where b is 0."""
        return np.zeros_like(state.theta)

    def response(self, view: View, state: State, bounded: Pass) -> Response:
        """Implement `Model.response`: that of a normal residual."""
        return response(Kind.LOCATION, bounded.shape.transform, self.q, bounded.reach, state.sigma)

    def hidden(self, view: View, state: State) -> FloatArray:
        """Implement `Model.hidden`: the component of a row is hidden."""
        means = _SIGNS[:, None] * state.theta
        return hidden_of_means(means, state.weights, np.repeat(state.sigma, 2), folded=True)

    def project(self, view: View, theta: FloatArray) -> FloatArray:
        """Implement `Model.project`: at most as far from the middle as the far end of the bounds."""
        reach = self.frame.half + np.abs(self.middle)
        return np.clip(theta, -reach, reach)

    def answer(self, view: View, state: State) -> Answer:
        """Implement `Model.answer`: the two means."""
        means = self.middle + _SIGNS[:, None] * state.theta
        sigma = np.repeat(state.sigma, 2)
        return Answer(self.frame.centre + self.frame.unit * means, np.empty(0), _location.noise_std(self.frame, sigma))

    def errors(self, view: View, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Implement `Model.errors`: the same for both means."""
        return np.tile(np.sqrt(variances) * self.frame.unit, (2, 1)), np.empty(0)
