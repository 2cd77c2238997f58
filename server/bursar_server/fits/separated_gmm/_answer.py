"""Released components as a message, in the data's own units."""

from __future__ import annotations

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_proto.filling import tensor_of
from bursar_proto.v1 import fit_pb2
from bursar_server.fits.mixtures.radius_statistics import radius_message
from bursar_server.fits.mixtures.statistics import Moments
from bursar_server.fits.separated_gmm._plan import SeparatedPlan, form_std
from bursar_server.fits.separated_gmm._run import run as run_steps
from bursar_server.vault import Session

_TYPES = {
    Moments.FULL: fit_pb2.COVARIANCE_TYPE_FULL,
    Moments.DIAG: fit_pb2.COVARIANCE_TYPE_DIAG,
    Moments.SPHERICAL: fit_pb2.COVARIANCE_TYPE_SPHERICAL,
}


def run(plan: SeparatedPlan, session: Session) -> fit_pb2.SeparatedGMM:
    """Split and estimate, and return the model. Total: returns a valid model for any rows and noise."""
    settings = plan.settings
    result, radii = run_steps(settings, session, plan.iterations)
    scale = settings.frame.scale
    moments = Moments.DIAG if plan.per_column and settings.moments is Moments.SPHERICAL else settings.moments
    total = float(np.sum(result.counts))
    weights = result.counts / total
    rows = settings.rows or total
    # Public numbers may count padded rows, which are no sample of anything.
    sampled = min(rows, total)
    return fit_pb2.SeparatedGMM(
        columns=plan.columns,
        covariance_type=_TYPES[moments],
        found=len(weights),
        weights=tensor_of(weights),
        means=tensor_of(plan.own.within(settings.frame.centre + scale * result.means)),
        covariances=tensor_of(_shaped(result.covariances * scale[:, None] * scale, moments)),
        mean_errors=tensor_of(scale * result.mean_errors),
        weight_errors=tensor_of(weight_errors(weights, sampled, result.count_errors / total)),
        covariance_errors=tensor_of(result.covariance_errors),
        iterations=plan.iterations,
        noise=plan.noise,
        n_rows=rows,
        transforms=plan.own.wire,
        bounds=tensor_of(plan.own.own_box),
        radii=None if radii is None else radius_message(radii, form_std(settings), settings.d),
    )


def weight_errors(weights: FloatArray, rows: float, noise: FloatArray) -> FloatArray:
    """Return standard errors of weights (K,), of sampling and of independent noise on counts, as shares of all rows."""
    squares = np.square(noise)
    # A weight is a count over the sum of all, in which its own noise is, too.
    others = weights**2 * np.maximum(squares.sum() - squares, 0.0)
    return np.asarray(np.sqrt(weights * (1.0 - weights) / rows + (1.0 - weights) ** 2 * squares + others))


def _shaped(covariances: FloatArray, moments: Moments) -> FloatArray:
    """Return covariances in the contract's shape."""
    if moments is Moments.FULL:
        return covariances
    diagonals = np.diagonal(covariances, axis1=1, axis2=2)
    return np.asarray(diagonals[:, 0] if moments is Moments.SPHERICAL else diagonals)
