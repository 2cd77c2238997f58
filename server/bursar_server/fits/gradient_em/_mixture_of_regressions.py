"""Model target = <features, b_z> + noise, z hidden: a mixture of linear regressions (Wang et al. 2020, section 5.2).

Gradient of a row about component k: gamma_k r_k w, with residual r_k and features w, over the released sum of
responsibilities. In working features, whitened by the look, a step of size 1 is a full EM step. As in the symmetric
mixture, a bounded odd function of r_k w has mean zero at the truth. `symmetric` is the paper's model: b and -b with
equal weights and no intercept; its posterior has the factor 2 that the paper omits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em import _kernel, _regression
from bursar_server.fits.gradient_em._information import hidden_of_lines
from bursar_server.fits.gradient_em._kernel import UNCLIPPED
from bursar_server.fits.gradient_em._models import Answer, Pass, State, View
from bursar_server.fits.gradient_em._normal import Kind, Response, best_radius, response
from bursar_server.fits.gradient_em._statistics import GradientFrame, GradientKernel, Look, Transform

_SIGNS = np.array([1.0, -1.0])


@dataclass(frozen=True)
class LatentRegressions:
    """Mixture of linear regressions; a `Model`.

    Attributes:
        frame: frame of the features, then the target.
        k: number of components, 1 for a single regression.
        symmetric: True for two components, b and -b; k is 2.
        intercept: True if there is an intercept.
        public_seed: seed of the start.
        given: initial slopes (blocks, d) and intercepts (blocks,) in the data's own units; None to draw them.
        given_weights: initial weights, (k,).
        sigma: standard deviation of the target in the frame's units; None to estimate it.
        paper_weights: True to omit the factor 2, as the paper does.
    """

    frame: GradientFrame
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
        """Number of components; 1 if symmetric."""
        return 1 if self.symmetric else self.k

    @property
    def q(self) -> int:
        """Number of features, and 1 for the intercept."""
        return len(self.frame.centre) - 1 + self.intercept

    def view(self, look: FloatArray, noise_std: float, declared: float | None) -> View:
        """Implement `Model.view`: whitens the features. The mean of b and -b is 0, whatever chance makes of it."""
        view = _regression.view_of_moments(self.frame, look, noise_std, declared, intercept=self.intercept)
        return replace(view, line=np.zeros_like(view.line)) if self.symmetric else view

    def start(self, view: View) -> State:
        """Implement `Model.start`: random coefficients about one regression of all rows; a single one at it."""
        if self.given is None:
            # By components, not blocks: b and -b have one block, and no step could tell them apart if they began at 0.
            theta = _regression.start_slopes(
                view, self.blocks, self.q, self.public_seed, intercept=self.intercept, alone=self.k == 1
            )
        else:
            theta = _regression.into_working(self.frame, view, *self.given, intercept=self.intercept)
        sigma = np.full(self.blocks, self.sigma or _regression.start_sigma(view))
        return State(self.project(view, theta), self.given_weights, sigma)

    def bounds(self, view: View, state: State, transform: Transform, noise: float) -> tuple[FloatArray, float]:
        """Implement `Model.bounds`: from the noise on each component's rows."""
        shares = np.ones(1) if self.symmetric else state.weights
        return state.sigma * best_radius(Kind.REGRESSION, transform, self.q, noise / shares), UNCLIPPED

    def prior(self, view: View) -> tuple[FloatArray, float]:
        """Implement `Model.prior`: about 0; all coefficients together explain the target's variance."""
        return np.zeros((self.blocks, self.q)), view.spread**2 / self.q

    def kernel(self, view: View, state: State, bounded: Pass) -> GradientKernel:
        """Implement `Model.kernel`: the two components of the symmetric model fold into one block."""
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
        """Implement `Model.origin`: no part can be split off, because w w^T b depends on data."""
        return state.theta

    def response(self, view: View, state: State, bounded: Pass) -> Response:
        """Implement `Model.response`: that of a normal residual times normal features."""
        return response(Kind.REGRESSION, bounded.shape.transform, self.q, bounded.reach, state.sigma)

    def hidden(self, view: View, state: State) -> FloatArray:
        """Implement `Model.hidden`: the component of a row is hidden."""
        if self.k == 1:
            return np.zeros(1)
        theta = _SIGNS[:, None] * state.theta if self.symmetric else state.theta
        sigma = np.repeat(state.sigma, 2) if self.symmetric else state.sigma
        return hidden_of_lines(theta, state.weights, sigma, intercept=self.intercept, folded=self.symmetric)

    def project(self, view: View, theta: FloatArray) -> FloatArray:
        """Implement `Model.project`: coefficients within the spread of the target."""
        return _regression.project(view, theta, _regression.REACH if self.blocks > 1 else _regression.REACH_ALONE)

    def answer(self, view: View, state: State) -> Answer:
        """Implement `Model.answer`: slopes and intercepts; those of b and -b if symmetric."""
        if self.symmetric:
            state = State(_SIGNS[:, None] * state.theta, state.weights, np.repeat(state.sigma, 2))
        return _regression.answer(self.frame, view, state, intercept=self.intercept)

    def errors(self, view: View, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Implement `Model.errors`: the same for both components if symmetric."""
        if self.symmetric:
            variances = np.repeat(variances, 2, axis=0)
        return _regression.errors(self.frame, view, variances, intercept=self.intercept)
