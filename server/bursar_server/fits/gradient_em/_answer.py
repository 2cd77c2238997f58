"""Released model as a message, in the data's own units."""

from __future__ import annotations

from bursar_proto.filling import tensor_of
from bursar_proto.v1 import fit_pb2
from bursar_server.fits.gradient_em._plan import GradientEMPlan
from bursar_server.fits.gradient_em._run import run as run_steps
from bursar_server.fits.mixtures.radius_statistics import radius_message
from bursar_server.vault import LaplaceNoise, Session


def run(plan: GradientEMPlan, session: Session) -> fit_pb2.GradientEMModel:
    """Make the plan's releases and return the model. Total: returns a valid model for any rows and noise."""
    result = run_steps(plan.settings, session)
    answer, settings = result.answer, plan.settings
    return fit_pb2.GradientEMModel(
        model=plan.model,
        columns=plan.columns[:-1] if plan.target else plan.columns,
        target=plan.target,
        weights=tensor_of(result.weights),
        coefficients=tensor_of(answer.coefficients),
        intercepts=tensor_of(answer.intercepts) if plan.target else None,
        noise_std=tensor_of(answer.noise_std),
        coefficient_errors=tensor_of(result.coefficient_errors),
        intercept_errors=tensor_of(result.intercept_errors) if plan.target else None,
        iterates=tensor_of(result.iterates),
        variant=plan.variant,
        iterations=settings.T,
        averaged=result.averaged,
        step_size=settings.step_size,
        scales=tensor_of(result.scales),
        n_rows=result.rows,
        noise=plan.noise,
        symmetric=plan.symmetric,
        radii=radius_message(
            result.radii,
            settings.radii_std,
            settings.model.residual_size,
            laplace=isinstance(settings.radii_noise, LaplaceNoise),
        ),
        feature_means=None if answer.feature_means is None else tensor_of(answer.feature_means),
        feature_std=None if answer.feature_std is None else tensor_of(answer.feature_std),
        feature_covariance=None if answer.feature_covariance is None else tensor_of(answer.feature_covariance),
    )
