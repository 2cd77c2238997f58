"""Sketches and decoded models as messages."""

from __future__ import annotations

import numpy as np

from bursar_models import Decoded, Sketch
from bursar_proto.filling import tensor_of
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits._requests import transforms_to
from bursar_server.fits.sketch._plan import SketchPlan
from bursar_server.fits.sketch._run import run as run_settings
from bursar_server.fits.sketch._wire import noise_of, sketch_to
from bursar_server.vault import Session


def run(plan: SketchPlan, session: Session) -> fit_pb2.SketchModel:
    """Make the plan's releases and return the model. Total: returns a valid model for any rows and noise."""
    result = run_settings(plan.settings, plan.iterations, session)
    model = fit_pb2.SketchModel()
    if result.source is not None:
        model.sketch.CopyFrom(sketch_to(result.source, plan.of_entry))
    if result.decoded is not None:
        noise = (*plan.noise[:-1], noise_of(result.merged))
        model.decoded.CopyFrom(_decoded(result.merged, result.decoded, noise))
        model.residual = result.decoded.residual
    elif plan.settings.decoding.n_clusters:
        model.noise.extend(plan.noise)
    return model


def _decoded(
    sketch: Sketch, decoded: Decoded, noise: tuple[types_pb2.ReleaseNoise, ...]
) -> fit_pb2.GaussianMixtureModel:
    mixture = decoded.variances.ndim == 2
    return fit_pb2.GaussianMixtureModel(
        columns=sketch.columns,
        covariance_type=fit_pb2.COVARIANCE_TYPE_DIAG if mixture else fit_pb2.COVARIANCE_TYPE_SPHERICAL,
        mode=fit_pb2.MODE_MIXTURE if mixture else fit_pb2.MODE_KMEANS,
        weights=tensor_of(decoded.weights),
        means=tensor_of(decoded.centres),
        covariances=tensor_of(decoded.variances),
        iterations=1 if sketch.pilot_sigma is None else 2,
        noise=noise,
        n_rows=sketch.n_rows,
        transforms=transforms_to(sketch.transforms),
        bounds=tensor_of(np.stack([sketch.lower, sketch.upper])) if mixture else None,
    )
