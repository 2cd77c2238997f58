"""Model of k Gaussians, each with one standard deviation in every column of the frame.

Gradient of a row about component k: gamma_k (z - mu_k), over the released sum of responsibilities. Weights come from
those sums, standard deviations from released squared residuals.
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


@dataclass(frozen=True)
class LatentMixture:
    """Mixture of k Gaussians; a `Model`.

    Attributes:
        frame: frame of the columns.
        k: number of components, at least 2.
        public_seed: seed of a random start.
        given: initial means (k, d) in the frame's units; None to draw them.
        given_weights: initial weights, (k,).
        sigma: standard deviation in the frame's units; None to estimate it.
    """

    frame: GradientFrame
    k: int
    public_seed: int
    given: FloatArray | None
    given_weights: FloatArray
    sigma: float | None

    look = Look.LOCATION

    @property
    def blocks(self) -> int:
        """Number of components."""
        return self.k

    @property
    def q(self) -> int:
        """Number of columns."""
        return len(self.frame.centre)

    @property
    def residual_size(self) -> int:
        """Number of columns."""
        return self.q

    def view(self, look: FloatArray, noise_std: float, declared: float | None) -> View:
        """Implement `Model.view`: spread about the mean."""
        rows, mean, square = _location.moments(look, noise_std, declared)
        about = square - float(mean @ mean) / self.q
        return View(rows, _location.spread(about, noise_std / rows), mean, np.empty((0, 0)), np.empty(0))

    def start(self, view: View) -> State:
        """Implement `Model.start`: random means about that of all rows; the more of them, the narrower."""
        drawn = view.shift + view.spread * self.q**0.5 * uniform_in_ball(self.k, self.q, self.public_seed)
        theta = drawn if self.given is None else self.given
        sigma = self.sigma or view.spread * self.k ** (-1.0 / self.q)
        return State(self.project(view, theta), self.given_weights, np.full(self.k, sigma))

    def bounds(self, view: View, state: State, transform: Transform, noise: float) -> tuple[FloatArray, float]:
        """Implement `Model.bounds`: from the noise on each component's rows."""
        return state.sigma * best_radius(Kind.LOCATION, transform, self.q, noise / state.weights), UNCLIPPED

    def prior(self, view: View) -> tuple[FloatArray, float]:
        """Implement `Model.prior`: about the mean of all rows, as widely as they are."""
        return np.tile(view.shift, (self.k, 1)), view.spread**2

    def kernel(self, view: View, state: State, bounded: Pass) -> GradientKernel:
        """Implement `Model.kernel`: a block for each component."""
        arguments = (
            np.log(state.weights) - self.q * np.log(state.sigma),
            0.5 / state.sigma**2,
            state.theta,
            np.zeros_like(state.theta) if bounded.split else state.theta,
            bounded.scales,
            _location.residual_scales(state, bounded, self.q),
            np.empty(0),
        )
        return GradientKernel(_kernel.location_sums, self.frame, arguments, bounded.shape)

    def origin(self, state: State) -> FloatArray:
        """Implement `Model.origin`: vectors of the data part are taken about the middle of the bounds."""
        return np.zeros_like(state.theta)

    def response(self, view: View, state: State, bounded: Pass) -> Response:
        """Implement `Model.response`: that of a normal residual."""
        return response(Kind.LOCATION, bounded.shape.transform, self.q, bounded.reach, state.sigma)

    def hidden(self, view: View, state: State) -> FloatArray:
        """Implement `Model.hidden`: the component of a row is hidden."""
        return hidden_of_means(state.theta, state.weights, state.sigma, folded=False)

    def project(self, view: View, theta: FloatArray) -> FloatArray:
        """Implement `Model.project`: into the bounds."""
        return np.clip(theta, -self.frame.half, self.frame.half)

    def answer(self, view: View, state: State) -> Answer:
        """Implement `Model.answer`: the means."""
        return Answer(
            self.frame.centre + self.frame.unit * state.theta,
            np.empty(0),
            _location.noise_std(self.frame, state.sigma),
        )

    def errors(self, view: View, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Implement `Model.errors`: those of the means."""
        return np.sqrt(variances) * self.frame.unit, np.empty(0)
