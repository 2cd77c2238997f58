"""What the fake server finds: Gaussians that are evenly spread over the bounds, without noise."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bursar._convert import tensor_to
from bursar.models import CovarianceType, reshaped_covariances
from bursar.models._arrays import FloatArray
from bursar_proto.v1 import fit_pb2

STEPS = 5
"""Steps of a fake fit."""

LITTLE = 1e-3
"""Below this rho the fake server finds only half of the components, rounded up."""

N_ROWS = 1000.0

_MOST_COMPONENTS = 32
_NAMES: dict[int, CovarianceType] = {
    fit_pb2.COVARIANCE_TYPE_FULL: "full",
    fit_pb2.COVARIANCE_TYPE_DIAG: "diag",
    fit_pb2.COVARIANCE_TYPE_SPHERICAL: "spherical",
}


def fake_separated_gmm(
    request: fit_pb2.FitSeparatedGMMRequest, bounds: Mapping[str, tuple[float, float]]
) -> fit_pb2.SeparatedGMM:
    """The model of a request, without its noise.

    Args:
        request: what was asked for.
        bounds: of all numeric columns.

    Raises:
        ValueError: what the server would refuse, too: the message begins with the field.
    """
    _check(request, bounds)
    lower, upper = np.array([bounds[name] for name in request.columns]).T
    k, d = predicted_found(request), len(lower)
    half = (upper - lower) / 2
    unit = half if request.units == fit_pb2.COLUMN_UNITS_BOUNDS else np.ones(d)
    variances = np.square(np.clip(half / k, request.sigma_min * unit, request.sigma_max * unit))
    aggregated = request.variant == fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE
    left_open = fit_pb2.COVARIANCE_TYPE_SPHERICAL if aggregated else fit_pb2.COVARIANCE_TYPE_FULL
    wanted = request.covariance_type or left_open
    if wanted == fit_pb2.COVARIANCE_TYPE_SPHERICAL and request.units == fit_pb2.COLUMN_UNITS_BOUNDS:
        wanted = fit_pb2.COVARIANCE_TYPE_DIAG
    means: FloatArray = lower + (np.arange(k)[:, None] + 0.5) / k * (upper - lower)
    weights = np.full(k, 1 / k)
    covariances = reshaped_covariances(np.tile(variances, (k, 1)), weights, d, given="diag", wanted=_NAMES[wanted])
    return fit_pb2.SeparatedGMM(
        columns=request.columns,
        covariance_type=wanted,
        found=k,
        weights=tensor_to(weights),
        means=tensor_to(means),
        covariances=tensor_to(covariances),
        mean_errors=tensor_to(np.tile(np.sqrt(variances) / 100, (k, 1))),
        weight_errors=tensor_to(weights / 100),
        covariance_errors=tensor_to(np.full(k, 0.05)),
        iterations=STEPS,
        n_rows=N_ROWS,
    )


def _usual(request: fit_pb2.FitSeparatedGMMRequest) -> fit_pb2.CovarianceType.ValueType:
    """What a request gets that leaves the form of covariances open."""
    papers = (fit_pb2.SEPARATED_VARIANT_EASY, fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE)
    return fit_pb2.COVARIANCE_TYPE_SPHERICAL if request.variant in papers else fit_pb2.COVARIANCE_TYPE_FULL


def fake_preflight(request: fit_pb2.FitSeparatedGMMRequest) -> fit_pb2.Preflight:
    """What the fake server expects of a request that it does not refuse."""
    k, found = request.n_components, predicted_found(request)
    return fit_pb2.Preflight(
        rules=[fit_pb2.PreflightRule(name="search", margin=2.0 if found == k else 0.5)],
        predicted_found=found,
        expected_covariance_error=0.05,
        suggested_rho=LITTLE,
    )


def predicted_found(request: fit_pb2.FitSeparatedGMMRequest) -> int:
    """How many components there are to be had for the spend."""
    k = request.n_components
    little = request.spend.WhichOneof("amount") == "rho" and request.spend.rho < LITTLE
    return -(-k // 2) if little else k


def _check(request: fit_pb2.FitSeparatedGMMRequest, bounds: Mapping[str, tuple[float, float]]) -> None:
    if unknown := [name for name in request.columns if name not in bounds]:
        raise ValueError(f"columns: {unknown[0]!r} is no numeric column")
    if not request.columns:
        raise ValueError("columns: expected at least one")
    if not 1 <= request.n_components <= _MOST_COMPONENTS:
        raise ValueError(f"n_components: expected 1 to {_MOST_COMPONENTS}, got {request.n_components}")
    if not 0 < request.sigma_min < request.sigma_max:
        raise ValueError(f"sigma_max: expected more than sigma_min, {request.sigma_min}, got {request.sigma_max}")
    if not (request.radius == 0 or request.radius >= request.sigma_min):
        raise ValueError(f"radius: expected sigma_min, {request.sigma_min}, or more, got {request.radius}")
    if not 0 <= request.min_weight * request.n_components <= 1 + 1e-12:
        raise ValueError(f"min_weight: expected 1 / n_components or less, got {request.min_weight}")
    if request.covariance_type == fit_pb2.COVARIANCE_TYPE_TIED:
        raise ValueError("covariance_type: expected full, diag or spherical, got tied")
    shapes = (fit_pb2.COVARIANCE_TYPE_UNSPECIFIED, fit_pb2.COVARIANCE_TYPE_SPHERICAL)
    if request.variant == fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE and request.covariance_type not in shapes:
        raise ValueError("covariance_type: sample and aggregate finds spheres; expected spherical")
    sampled = request.variant == fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE
    if sampled and (request.covariance_type or _usual(request)) != fit_pb2.COVARIANCE_TYPE_SPHERICAL:
        raise ValueError("covariance_type: sample and aggregate finds spheres; expected spherical")
    if request.spend.WhichOneof("amount") == "epsilon":
        raise ValueError("spend.epsilon: expected rho or epsilon_delta")
