"""Released mixture as a message, in the data's own units."""

from __future__ import annotations

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_proto.filling import tensor_of
from bursar_proto.v1 import fit_pb2
from bursar_server.fits.dpem._choice import Choice, choose
from bursar_server.fits.dpem._kmeans import KMeansSettings, Report
from bursar_server.fits.dpem._kmeans import run as run_kmeans
from bursar_server.fits.dpem._plan import DPEMPlan
from bursar_server.fits.mixtures.em import Mixture
from bursar_server.fits.mixtures.statistics import BallFrame, Moments
from bursar_server.fits.mixtures.steps import Measured, traced
from bursar_server.vault import Session

_MOST_STEPS, _MOST_NUMBERS = 20, 2**16
"""Maximum number of steps that an answer repeats, and of numbers in them: half a megabyte."""

_TYPES = {
    Moments.FULL: fit_pb2.COVARIANCE_TYPE_FULL,
    Moments.TIED: fit_pb2.COVARIANCE_TYPE_TIED,
    Moments.DIAG: fit_pb2.COVARIANCE_TYPE_DIAG,
    Moments.SPHERICAL: fit_pb2.COVARIANCE_TYPE_SPHERICAL,
}


def run(plan: DPEMPlan, session: Session) -> fit_pb2.GaussianMixtureModel:
    """Make the plan's releases and return the model. Total: returns a valid model for any rows and noise."""
    settings = plan.settings
    kmeans, trajectory, report, choice, cells = isinstance(settings, KMeansSettings), None, None, None, None
    if isinstance(settings, KMeansSettings):
        mixture, reported = run_kmeans(settings, plan.steps, session)
        report = None if reported is None else _report(reported, float(settings.frame.scale[0]))
    else:
        found = traced(settings, plan.steps, session)
        mixture, measured = found.mixture, found.measured
        trajectory = _trajectory(measured, settings.frame)
        cells = _cells(found.cells, settings.frame)
        if plan.sought is not None:
            choice = choose(mixture, measured, settings.moments, plan.sought)
            mixture = choice.mixture
    beyond = mixture.background_count if mixture.background is not None else 0.0
    rows = float(np.sum(mixture.counts)) + beyond
    scale = settings.frame.scale
    covariances = mixture.covariances * np.outer(scale, scale)
    return fit_pb2.GaussianMixtureModel(
        columns=plan.columns,
        covariance_type=_TYPES[settings.moments],
        mode=fit_pb2.MODE_KMEANS if kmeans else fit_pb2.MODE_MIXTURE,
        weights=tensor_of(mixture.weights),
        means=tensor_of(plan.own.within(settings.frame.centre + scale * mixture.means)),
        covariances=tensor_of(_as_typed(covariances, settings.moments)),
        iterations=plan.iterations,
        noise=plan.noise,
        n_rows=float(plan.public_rows if plan.public_rows is not None else rows),
        background_weight=beyond / rows,
        bounds=None if kmeans else tensor_of(plan.own.own_box),
        trajectory=trajectory,
        transforms=plan.own.wire,
        report=report,
        choice=None if choice is None else _choice(choice),
        cells=cells,
    )


def _cells(mixture: Mixture | None, frame: BallFrame) -> fit_pb2.StartCells | None:
    """Return what the start ended with; None if that is no more than the result, or if there is no room."""
    if mixture is None or mixture.covariances.size > _MOST_NUMBERS:
        return None
    return fit_pb2.StartCells(
        weights=tensor_of(mixture.weights),
        means=tensor_of(frame.centre + frame.scale * mixture.means),
        covariances=tensor_of(mixture.covariances * np.outer(frame.scale, frame.scale)),
    )


def _choice(choice: Choice) -> fit_pb2.ComponentChoice:
    least = len(choice.mixture.counts) - int(np.argmin(choice.scores))
    return fit_pb2.ComponentChoice(least=least, scores=tensor_of(choice.scores), errors=tensor_of(choice.errors))


def _report(report: Report, unit: float) -> fit_pb2.ClusterReport:
    """Return a report in the data's own units; all columns of a k-means have the same one."""
    released, radii = report.released, unit * report.radii
    squares = np.diagonal(released.seconds, axis1=1, axis2=2)
    return fit_pb2.ClusterReport(
        counts=tensor_of(released.counts),
        sums=tensor_of(radii[:, None] * released.sums),
        squares=tensor_of(np.square(radii)[:, None] * squares),
        radii=tensor_of(radii),
        count_std=released.count_std,
        sum_std=released.sum_std,
        square_std=released.second_std,
    )


def _trajectory(measured: tuple[Measured, ...], frame: BallFrame) -> fit_pb2.MixtureTrajectory | None:
    """Return the last releases of one size, as they left, with what was summed; None if there is none, or no room."""
    if not measured:
        return None
    last = measured[-1]
    K, d = last.e_step.means.shape
    room = _MOST_NUMBERS // (len(last.sums) + K * (d * d + d + 2))
    kept = measured[-min(_MOST_STEPS, room) :] if room > 0 else ()
    # Earlier steps may have had more components.
    steps = [_measured(one) for one in kept if len(one.sums) == len(last.sums)]
    if not steps:
        return None
    return fit_pb2.MixtureTrajectory(centre=tensor_of(frame.centre), scale=tensor_of(frame.scale), steps=steps)


def _measured(one: Measured) -> fit_pb2.MixtureStep:
    w = one.step.weights
    return fit_pb2.MixtureStep(
        log_scale=tensor_of(one.e_step.log_scale),
        means=tensor_of(one.e_step.means),
        factors=tensor_of(one.e_step.factors),
        radii=tensor_of(one.radii),
        precisions=tensor_of(np.array([w.a, w.b, w.c])),
        sums=tensor_of(one.sums),
        noise_std=one.step.std,
    )


def _as_typed(covariances: FloatArray, moments: Moments) -> FloatArray:
    """Return covariances without the repetitions of the covariance type: (k,), (k, d), (d, d) or (k, d, d)."""
    if moments is Moments.SPHERICAL:
        return covariances[:, 0, 0]
    if moments is Moments.DIAG:
        return np.diagonal(covariances, axis1=1, axis2=2)
    return covariances[0] if moments is Moments.TIED else covariances
