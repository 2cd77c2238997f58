"""What the fake server fits by gradient EM: components that are evenly spread over the bounds, without noise."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bursar._convert import tensor_from, tensor_to
from bursar.models._arrays import FloatArray
from bursar_proto.v1 import fit_pb2

STEPS = 4
"""Gradient steps of a fake fit that leaves them to the server."""

N_ROWS = 1000.0

_REGRESSIONS = (fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS, fit_pb2.LATENT_MODEL_MISSING_COVARIATES)


def fake_gradient_em(
    request: fit_pb2.FitGradientEMRequest, bounds: Mapping[str, tuple[float, float]]
) -> fit_pb2.GradientEMModel:
    """The model of a request, without its noise.

    Args:
        request: what was asked for.
        bounds: of all numeric columns.

    Raises:
        ValueError: a column that has no bounds, no column at all, or no intercept where features are missing.
    """
    regression = request.model in _REGRESSIONS
    if request.without_intercept and request.model != fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS:
        raise ValueError("without_intercept: only mixtures of regressions have it; leave it out")
    asked = [*request.columns, *([request.target] if regression else [])]
    if unknown := [name for name in asked if name not in bounds]:
        raise ValueError(f"columns: {unknown[0]!r} is no numeric column")
    if not request.columns:
        raise ValueError("columns: expected at least one")
    model = _regression(request, bounds) if regression else _mixture(request, bounds)
    coefficients = tensor_from(model.coefficients)
    end = coefficients
    if regression:
        end = np.column_stack([coefficients, tensor_from(model.intercepts)])
        model.intercept_errors.CopyFrom(tensor_to(np.abs(end[:, -1]) / 100))
    steps = request.iterations or STEPS
    # From nothing straight to the end.
    path = np.linspace(0, 1, steps + 1)[:, None, None] * end
    model.model, model.columns[:], model.iterations = request.model, request.columns, steps
    model.coefficient_errors.CopyFrom(tensor_to(np.abs(coefficients) / 100))
    model.iterates.CopyFrom(tensor_to(path))
    model.scales.CopyFrom(tensor_to(np.full(steps, request.scale or 1.0)))
    heavy = request.heavy_tails and request.model == fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS
    unsaid = fit_pb2.GRADIENT_VARIANT_RADIAL if heavy else fit_pb2.GRADIENT_VARIANT_RECENTRED
    model.variant = request.variant or unsaid
    model.averaged, model.step_size = request.averaged or 1, request.step_size or 1.0
    model.n_rows = N_ROWS
    return model


def _mixture(
    request: fit_pb2.FitGradientEMRequest, bounds: Mapping[str, tuple[float, float]]
) -> fit_pb2.GradientEMModel:
    lower, upper = np.array([bounds[name] for name in request.columns]).T
    symmetric = request.model == fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE
    k = 2 if symmetric else request.n_components or 2
    means = lower + (np.arange(k)[:, None] + 0.5) / k * (upper - lower)
    if symmetric and request.HasField("centre"):
        means += tensor_from(request.centre) - (lower + upper) / 2
    half = (upper - lower) / 2
    unit = half if request.units == fit_pb2.COLUMN_UNITS_BOUNDS else np.full(len(half), half.max())
    known = request.noise_std * (unit if request.units == fit_pb2.COLUMN_UNITS_BOUNDS else np.ones(len(half)))
    std = known if request.noise_std else unit / k
    return fit_pb2.GradientEMModel(
        weights=tensor_to(np.full(k, 1 / k)),
        coefficients=tensor_to(means[::-1] if symmetric else means),
        noise_std=tensor_to(np.broadcast_to(std, means.shape)),
    )


def _regression(
    request: fit_pb2.FitGradientEMRequest, bounds: Mapping[str, tuple[float, float]]
) -> fit_pb2.GradientEMModel:
    """Component number c of k climbs (c + 1) / k of the target's range where all features cross theirs."""
    lower, upper = np.array([bounds[name] for name in request.columns]).T
    lowest, highest = bounds[request.target]
    k = 1
    if request.model == fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS:
        k = request.n_components or 2
    slopes = (highest - lowest) / (len(lower) * (upper - lower))
    climbs: FloatArray = np.array([1.0, -1.0]) if request.symmetric else (np.arange(k) + 1) / k
    coefficients = climbs[:, None] * slopes
    middle = (lowest + highest) / 2 - coefficients @ ((lower + upper) / 2)
    model = fit_pb2.GradientEMModel(
        target=request.target,
        weights=tensor_to(np.full(k, 1 / k)),
        coefficients=tensor_to(coefficients),
        intercepts=tensor_to(np.zeros(k) if request.symmetric or request.without_intercept else middle),
        noise_std=tensor_to(np.full(k, request.noise_std or (highest - lowest) / 10)),
        symmetric=request.symmetric,
    )
    if request.model == fit_pb2.LATENT_MODEL_MISSING_COVARIATES:
        model.feature_means.CopyFrom(tensor_to((lower + upper) / 2))
        model.feature_std.CopyFrom(tensor_to((upper - lower) / 4))
    return model
