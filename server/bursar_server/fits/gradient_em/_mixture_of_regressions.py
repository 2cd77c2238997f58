"""target = <features, b_z> + noise, z hidden: a mixture of linear regressions (Wang et al. 2020, section 5.2).

Gradient of a row about component k: gamma_k r_k w, with residual r_k and features w, over the released sum of
responsibilities. In working features, whitened by the look, a step of size 1 is a full EM step. As in the symmetric
mixture, a bounded odd function of r_k w has mean zero at the truth. `symmetric` is the paper's model: b and -b with
equal weights and no intercept; its posterior has the factor 2 that the paper leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar_server.fits.gradient_em import _kernel, _regression
from bursar_server.fits.gradient_em._information import hidden_of_lines
from bursar_server.fits.gradient_em._kernel import UNCLIPPED
from bursar_server.fits.gradient_em._normal import Kind, Response, best_radius, response
from bursar_server.fits.gradient_em._seam import Answer, Pass, State, View
from bursar_server.fits.gradient_em._statistics import FloatArray, Frame, GradientKernel, Look, Transform

_SIGNS = np.array([1.0, -1.0])


@dataclass(frozen=True)
class MixtureOfRegressions:
    """See the module.

    Attributes:
        frame: of the features, then the target.
        k: components, 1 for a single regression.
        symmetric: two, b and -b; k is 2.
        intercept: whether there is one.
        public_seed: of the start.
        given: slopes (blocks, d) and intercepts (blocks,) in the data's own units to start from; None to draw them.
        given_weights: (k,) to start from.
        sigma: of the target, in the frame's units; None to estimate it.
        paper_weights: without the factor 2.
    """

    frame: Frame
    k: int
    symmetric: bool
    intercept: bool
    public_seed: int
    given: tuple[FloatArray, FloatArray] | None
    given_weights: FloatArray
    sigma: float | None
    paper_weights: bool

    look = Look.REGRESSION
    residual_size = 1

    @property
    def blocks(self) -> int:
        """One if symmetric."""
        return 1 if self.symmetric else self.k

    @property
    def q(self) -> int:
        """Features, and 1 for the intercept."""
        return len(self.frame.centre) - 1 + self.intercept

    def view(self, look: FloatArray, noise_std: float, declared: float | None) -> View:
        """Whitens the features."""
        return _regression.view_of_moments(self.frame, look, noise_std, declared, intercept=self.intercept)

    def start(self, view: View) -> State:
        """Random slopes."""
        if self.given is None:
            theta = _regression.random_start(view, self.blocks, self.q, self.public_seed, intercept=self.intercept)
        else:
            theta = _regression.into_working(self.frame, view, *self.given, intercept=self.intercept)
        sigma = np.full(self.blocks, self.sigma or _regression.start_sigma(view))
        return State(self.project(view, theta), self.given_weights, sigma)

    def bounds(self, view: View, state: State, transform: Transform, noise: float) -> tuple[FloatArray, float]:
        """By the noise on each component's rows."""
        shares = np.ones(1) if self.symmetric else state.weights
        return state.sigma * best_radius(Kind.REGRESSION, transform, self.q, noise / shares), UNCLIPPED

    def prior(self, view: View) -> tuple[FloatArray, float]:
        """About 0; all together explain the target's variance."""
        return np.zeros((self.blocks, self.q)), view.spread**2 / self.q

    def kernel(self, view: View, state: State, bounded: Pass) -> GradientKernel:
        """Symmetric: the two components fold into one block."""
        fold = _SIGNS if self.symmetric else np.empty(0)
        copies = 2 if self.symmetric else 1
        theta = _SIGNS[:, None] * state.theta if self.symmetric else state.theta
        sigma = np.repeat(state.sigma, copies)
        arguments = (
            np.log(state.weights) - np.log(sigma),
            0.5 / sigma**2 * (0.5 if self.paper_weights else 1.0),
            theta,
            (view.whitener, view.shift, self.intercept),
            np.repeat(bounded.scales, copies),
            bounded.residual_limit**2 * sigma**2,
            fold,
        )
        return GradientKernel(_kernel.regression_sums, self.frame, arguments, bounded.shape)

    def origin(self, state: State) -> FloatArray:
        """Nothing can be split off: w w^T b is data."""
        return state.theta

    def response(self, view: View, state: State, bounded: Pass) -> Response:
        """Of a normal residual times normal features."""
        return response(Kind.REGRESSION, bounded.shape.transform, self.q, bounded.reach, state.sigma)

    def hidden(self, view: View, state: State) -> FloatArray:
        """Which component a row follows."""
        if self.k == 1:
            return np.zeros(1)
        theta = _SIGNS[:, None] * state.theta if self.symmetric else state.theta
        sigma = np.repeat(state.sigma, 2) if self.symmetric else state.sigma
        return hidden_of_lines(theta, state.weights, sigma, intercept=self.intercept, folded=self.symmetric)

    def project(self, view: View, theta: FloatArray) -> FloatArray:
        """Not larger than the spread of the target allows."""
        return _regression.project(view, theta, _regression.REACH if self.blocks > 1 else _regression.REACH_ALONE)

    def answer(self, view: View, state: State) -> Answer:
        """Slopes and intercepts; symmetric: of b and -b."""
        if self.symmetric:
            state = State(_SIGNS[:, None] * state.theta, state.weights, np.repeat(state.sigma, 2))
        return _regression.answer(self.frame, view, state, intercept=self.intercept)

    def errors(self, view: View, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Symmetric: the same for both."""
        if self.symmetric:
            variances = np.repeat(variances, 2, axis=0)
        return _regression.errors(self.frame, view, variances, intercept=self.intercept)
