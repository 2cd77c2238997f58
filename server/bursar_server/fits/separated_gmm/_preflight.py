"""Whether a fit is expected to find its components, and how well: rules of thumb, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from bursar_proto.v1 import fit_pb2
from bursar_server.fits.dpem._statistics import LATTICE, moment_bounds
from bursar_server.fits.separated_gmm._estimate import precisions
from bursar_server.fits.separated_gmm._parts import Settings
from bursar_server.vault import gaussian_for, noise_std, part_sensitivity

ESTIMATION = 0.6
"""Share of the spend that is about left for estimates, after splits that went as they should."""

_SPLIT, _DIRECTIONS = 65.0, 13.0
"""Rows of the smallest component, over sqrt(levels / rho) and over what noise on d x d second moments hides."""

_REPLACING = 2.0
"""A search costs twice as much where rows are replaced."""


def preflight(settings: Settings, rows: int | None) -> fit_pb2.Preflight | None:
    """Rules with their margins; None if the number of rows is neither public nor declared."""
    if not rows:
        return None
    margins = _margins(settings, rows, float(settings.rho))
    holds = min(margins.values()) >= 1.0
    return fit_pb2.Preflight(
        rules=[fit_pb2.PreflightRule(name=name, margin=margin) for name, margin in margins.items()],
        predicted_found=settings.k if holds else 1,
        expected_covariance_error=_covariance_error(settings, rows),
        suggested_rho=_suggested(settings, rows),
    )


def expected_mean_error(settings: Settings, rows: int | None) -> tuple[float, ...]:
    """Of the noise on a mean of one of k equal components of middling size, (d,), in the data's units."""
    if not rows:
        return ()
    s = settings
    weights = precisions(s.d, s.moments)
    error = _noise(s) / weights.b * s.k / rows * math.sqrt((1.6 * s.d + 2.0) * s.sigma_min * s.sigma_max)
    return tuple(float(x) for x in error * s.frame.scale)


def warnings(settings: Settings, rows: int | None) -> tuple[str, ...]:
    """What an analyst should know before paying."""
    if not rows:
        return ()
    failed = [name for name, margin in _margins(settings, rows, float(settings.rho)).items() if margin < 1.0]
    if not failed:
        return ()
    return (f"fewer components than asked for may be found: too little for {' and '.join(failed)}",)


def _margins(settings: Settings, rows: int, rho: float) -> Mapping[str, float]:
    s = settings
    smallest = s.min_weight * rows
    factor = s.unit_cap * (_REPLACING if s.replaces else 1.0)
    levels = min(s.k - 1, math.ceil(math.log2(s.k)) + 1)
    if s.k == 1:
        return {"estimates": smallest * math.sqrt(rho) / (10.0 * factor * math.sqrt(s.d))}
    margins = {"gaps between components": smallest / (_SPLIT * factor) * math.sqrt(rho / levels)}
    if s.d > s.k:
        relative = s.d * s.sigma_min * s.sigma_max / s.separation**2
        needed = _DIRECTIONS * factor * (0.5 + relative) * math.sqrt(s.d / rho)
        margins["principal directions"] = smallest / needed
    return margins


def _suggested(settings: Settings, rows: int) -> float:
    """Margins grow with the square root of rho."""
    worst = min(_margins(settings, rows, 1.0).values())
    return float(1.0 / worst**2) if worst > 0 else 0.0


def _noise(settings: Settings) -> float:
    """Deviation of the noise on a sum of moments, all releases of the last phase together."""
    s = settings
    bounds = moment_bounds(s.k, s.d, s.moments, precisions(s.d, s.moments))
    noise = gaussian_for(part_sensitivity(bounds, s.adjacency, s.unit_cap), s.rho * Fraction(ESTIMATION))
    return noise_std(noise, LATTICE)


def _covariance_error(settings: Settings, rows: int) -> float:
    """Relative, before shrinkage."""
    s = settings
    numbers = s.moments.size(s.d) / s.d
    noise = _noise(s) / precisions(s.d, s.moments).c * s.k / rows * (1.6 * s.d + 2.0)
    return float(np.sqrt(numbers * (noise**2 + 2.0 * s.k / rows)))
