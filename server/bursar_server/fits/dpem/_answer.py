"""Released mixture as a message, in the data's own units."""

from __future__ import annotations

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2
from bursar_server.fits._requests import tensor_of
from bursar_server.fits.dpem._kmeans import KMeansSettings
from bursar_server.fits.dpem._kmeans import run as run_kmeans
from bursar_server.fits.dpem._plan import DPEMPlan
from bursar_server.fits.mixtures.statistics import Moments
from bursar_server.fits.mixtures.steps import run as run_steps
from bursar_server.vault import Session

_TYPES = {
    Moments.FULL: fit_pb2.COVARIANCE_TYPE_FULL,
    Moments.TIED: fit_pb2.COVARIANCE_TYPE_TIED,
    Moments.DIAG: fit_pb2.COVARIANCE_TYPE_DIAG,
    Moments.SPHERICAL: fit_pb2.COVARIANCE_TYPE_SPHERICAL,
}


def run(plan: DPEMPlan, session: Session) -> fit_pb2.GaussianMixtureModel:
    """Make the plan's releases and return the model. Total: returns a valid model for any rows and noise."""
    settings = plan.settings
    kmeans = isinstance(settings, KMeansSettings)
    if isinstance(settings, KMeansSettings):
        mixture = run_kmeans(settings, plan.steps, session)
    else:
        mixture = run_steps(settings, plan.steps, session)
    beyond = mixture.background_count if mixture.background is not None else 0.0
    rows = float(np.sum(mixture.counts)) + beyond
    scale = settings.frame.scale
    covariances = mixture.covariances * np.outer(scale, scale)
    return fit_pb2.GaussianMixtureModel(
        columns=plan.columns,
        covariance_type=_TYPES[settings.moments],
        mode=fit_pb2.MODE_KMEANS if kmeans else fit_pb2.MODE_MIXTURE,
        weights=tensor_of(mixture.weights),
        means=tensor_of(settings.frame.centre + scale * mixture.means),
        covariances=tensor_of(_as_typed(covariances, settings.moments)),
        iterations=plan.iterations,
        noise=plan.noise,
        n_rows=float(plan.public_rows if plan.public_rows is not None else rows),
        background_weight=beyond / rows,
        bounds=None if kmeans else tensor_of(plan.box),
    )


def _as_typed(covariances: FloatArray, moments: Moments) -> FloatArray:
    """Return covariances without the repetitions of the covariance type: (k,), (k, d), (d, d) or (k, d, d)."""
    if moments is Moments.SPHERICAL:
        return covariances[:, 0, 0]
    if moments is Moments.DIAG:
        return np.diagonal(covariances, axis1=1, axis2=2)
    return covariances[0] if moments is Moments.TIED else covariances
