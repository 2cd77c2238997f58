"""Plan of FitSeparatedGMM: every check and the cost, from a request and the public schema. Reads no rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bursar_ledger import Adjacency, ConcentratedEvent
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits._requests import (
    LARGEST,
    ModelColumns,
    Violations,
    amount_of,
    by_column,
    check_enum,
    columns_of,
    left_out,
    model_columns,
    stop_if,
)
from bursar_server.fits._seam import (
    JSON,
    BoundedColumn,
    InvalidFieldsError,
    Plan,
    PublicTable,
    Released,
)
from bursar_server.fits.mixtures.radius_statistics import RADIUS_LATTICE, RADIUS_LEVELS, RADIUS_SHARE, radius_bounds
from bursar_server.fits.mixtures.statistics import LATTICE, BallFrame, Moments, moment_bounds
from bursar_server.fits.separated_gmm._aggregate import answer_std, shares
from bursar_server.fits.separated_gmm._estimate import SETTLED_STEPS, precisions, released_components
from bursar_server.fits.separated_gmm._parts import LEAST_SHARE, SplitSettings
from bursar_server.fits.separated_gmm._preflight import ESTIMATION, expected_mean_error, preflight, warnings
from bursar_server.vault import MAX_ROWS, gaussian_for, noise_std, part_sensitivity

MAX_COMPONENTS, MAX_COLUMNS = 32, 128
"""Limits of public numbers, which bound the time of a fit and the size of an answer. Chosen, not tuned."""

EM_STEPS = 6
"""Steps where components overlap; each takes a part of the remainder, and all but the first are averaged.

Chosen, not tuned.
"""

_OUTER_STEPS = 3
"""Steps of progress: splitting, the leaves' moments, and the end."""

_TAIL = 8.0
"""Deviations by which rows may be farther from a mean than most: fewer than one in 1e14 are beyond."""

_FINEST = 2.0**-24
"""Least sigma_min over the radius of the ball to which rows are clipped: 32 steps of the rows' lattice."""

_LEAST_WEIGHT = 1.0 / MAX_ROWS
"""Least weight of a component: one row of the largest table. Predictions divide by its square."""

_MOMENTS = {
    fit_pb2.COVARIANCE_TYPE_UNSPECIFIED: Moments.FULL,
    fit_pb2.COVARIANCE_TYPE_FULL: Moments.FULL,
    fit_pb2.COVARIANCE_TYPE_DIAG: Moments.DIAG,
    fit_pb2.COVARIANCE_TYPE_SPHERICAL: Moments.SPHERICAL,
}


_PAPERS = (fit_pb2.SEPARATED_VARIANT_EASY, fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE)
"""Variants that follow the paper where a request leaves things open: spheres, and hard parts."""

_VARIANTS = {True: "sample_and_aggregate", False: "recursive"}


@dataclass(frozen=True, kw_only=True)
class SeparatedPlan(Plan):
    """Plan with the parameters of its run.

    Attributes:
        settings: public parameters.
        per_column: True if every column has its own unit, so that spheres are not spheres in the data's units.
        own: columns in their own units and in the model's space.
    """

    settings: SplitSettings
    per_column: bool
    own: ModelColumns


def plan(request: fit_pb2.FitSeparatedGMMRequest, table: PublicTable, released: Released) -> SeparatedPlan:
    """Check a request against the public schema and decide the cost.

    Raises InvalidFieldsError naming every field that is wrong.
    """
    violations: Violations = []
    amount = amount_of(request.spend, violations)
    if amount.pure:
        text = "splits and estimates have Gaussian noise, which no pure epsilon pays for; expected rho or epsilon_delta"
        violations.append(("spend.epsilon", text))
    _check_choices(request, violations)
    named = columns_of(request.columns, table, violations, most=MAX_COLUMNS)
    own = model_columns(named, request.transforms, violations)
    _check_numbers(request, violations)
    stop_if(violations)
    settings = _settings(request, own.columns, table, amount.value, violations)
    stop_if(violations)
    try:
        noise = _noise_summary(settings)
    except ValueError as error:
        raise InvalidFieldsError(("spend", str(error))) from None
    return SeparatedPlan(
        columns=own.names,
        events=tuple(map(ConcentratedEvent, shares(settings) if settings.aggregate else (settings.rho, settings.form))),
        iterations=EM_STEPS + _OUTER_STEPS,
        noise=noise,
        parameters={**_parameters(request, own.columns, settings), **own.parameters},
        expected=by_column("mean_error", own.names, expected_mean_error(settings, table.rows), own.unit),
        transforms=own.transforms,
        sum_units=tuple(map(float, settings.frame.scale)),
        warnings=(*warnings(settings, table.rows), *left_out(named)),
        preflight=preflight(settings, table.rows),
        settings=settings,
        per_column=request.units == fit_pb2.COLUMN_UNITS_BOUNDS,
        own=own,
    )


def _check_choices(request: fit_pb2.FitSeparatedGMMRequest, violations: Violations) -> None:
    for field, enum in (
        ("covariance_type", fit_pb2.CovarianceType),
        ("variant", fit_pb2.SeparatedVariant),
        ("search", fit_pb2.SeparatedSearch),
        ("estimator", fit_pb2.SeparatedEstimator),
        ("units", fit_pb2.ColumnUnits),
    ):
        check_enum(field, enum, getattr(request, field), violations)
    if request.covariance_type == fit_pb2.COVARIANCE_TYPE_TIED:
        violations.append(("covariance_type", "components have their own; expected full, diag or spherical, got tied"))
    shapes = (fit_pb2.COVARIANCE_TYPE_UNSPECIFIED, fit_pb2.COVARIANCE_TYPE_SPHERICAL)
    if request.variant == fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE and request.covariance_type not in shapes:
        text = "sample and aggregate finds spheres: its blocks are too small for shapes; expected spherical"
        violations.append(("covariance_type", text))


def _check_numbers(request: fit_pb2.FitSeparatedGMMRequest, violations: Violations) -> None:
    k = request.n_components
    if not 1 <= k <= MAX_COMPONENTS:
        violations.append(("n_components", f"expected 1 to {MAX_COMPONENTS}, got {k}"))
    for field in ("sigma_min", "sigma_max"):
        value = getattr(request, field)
        if not 0 < value < LARGEST:
            violations.append((field, f"expected a positive number, the public bound of deviations, got {value}"))
    if not request.sigma_min < request.sigma_max:
        violations.append(("sigma_max", f"expected more than sigma_min, {request.sigma_min}, got {request.sigma_max}"))
    if not (request.radius == 0 or request.sigma_min <= request.radius < LARGEST):
        expected = f"expected sigma_min, {request.sigma_min}, or more, or 0 for the whole of the bounds"
        violations.append(("radius", f"{expected}; got {request.radius}"))
    # A little more than 1 / k, because an analyst's 0.333... times 3 is not 1.
    if not (request.min_weight == 0 or _LEAST_WEIGHT <= request.min_weight <= (1.0 + 1e-12) / max(k, 1)):
        expected = f"expected {_LEAST_WEIGHT:.2g} to 1 / n_components, {1 / max(k, 1):g}, or 0 for half of that"
        violations.append(("min_weight", f"{expected}; got {request.min_weight}"))
    if not 0 <= request.separation < LARGEST:
        text = f"expected a distance of means, or 0 for 6 sqrt(sigma_min sigma_max), got {request.separation}"
        violations.append(("separation", text))


def _settings(
    request: fit_pb2.FitSeparatedGMMRequest,
    columns: tuple[BoundedColumn, ...],
    table: PublicTable,
    rho: Fraction,
    violations: Violations,
) -> SplitSettings:
    lower, upper = (np.array([getattr(c, side) for c in columns], dtype=np.float64) for side in ("lower", "upper"))
    half = upper / 2.0 - lower / 2.0
    unit = half if request.units == fit_pb2.COLUMN_UNITS_BOUNDS else np.ones_like(half)
    d, whole = len(columns), float(np.linalg.norm(half / unit))
    R = min(request.radius or whole, whole)
    ball = min(R + request.sigma_max * (math.sqrt(d) + _TAIL), whole)
    scale = unit * ball
    if not np.all((scale > 1e-140) & (scale < 1e140)):  # variances are squares of it
        violations.append(("columns", "the ball leaves the range of double numbers; narrow the bounds or the radius"))
    if not request.sigma_min >= _FINEST * ball:
        text = f"expected at least 2^-24 of the ball that holds the rows, {_FINEST * ball:g}, got {request.sigma_min}"
        violations.append(("sigma_min", text))
    sigma_max = min(request.sigma_max, ball)
    k, aggregate = request.n_components, request.variant == fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE
    # The baseline reads rows through its blocks alone.
    form = Fraction(0) if aggregate else RADIUS_SHARE * rho
    return SplitSettings(
        frame=BallFrame(lower / 2.0 + upper / 2.0, scale),
        k=k,
        moments=_moments(request),
        radius=R / ball,
        sigma_min=min(request.sigma_min / ball, 1.0),
        sigma_max=sigma_max / ball,
        min_weight=min(request.min_weight, 1.0 / k) or 0.5 / k,
        separation=min(request.separation or 6.0 * math.sqrt(request.sigma_min * sigma_max), 2.0 * ball) / ball,
        rho=rho - form,
        form=form,
        adjacency=table.adjacency,
        unit_cap=table.unit_cap,
        rows=table.rows if table.adjacency is Adjacency.REPLACE_ONE else None,
        seed=request.public_seed,
        easy=request.variant == fit_pb2.SEPARATED_VARIANT_EASY,
        aggregate=aggregate,
        clusters=_estimator(request) == fit_pb2.SEPARATED_ESTIMATOR_CLUSTERS,
        balls=request.search == fit_pb2.SEPARATED_SEARCH_BALLS,
        em_steps=EM_STEPS,
    )


def _moments(request: fit_pb2.FitSeparatedGMMRequest) -> Moments:
    """Return the form of the covariances; the paper's if it is left open and a variant of the paper is requested."""
    left_open = request.covariance_type == fit_pb2.COVARIANCE_TYPE_UNSPECIFIED
    if left_open and request.variant in _PAPERS:
        return Moments.SPHERICAL
    return _MOMENTS.get(request.covariance_type, Moments.FULL)


def _estimator(request: fit_pb2.FitSeparatedGMMRequest) -> fit_pb2.SeparatedEstimator.ValueType:
    """Return the estimator; the paper's if it is left open and a variant of the paper is requested."""
    if request.estimator == fit_pb2.SEPARATED_ESTIMATOR_UNSPECIFIED and request.variant in _PAPERS:
        return fit_pb2.SEPARATED_ESTIMATOR_CLUSTERS
    return request.estimator


def _noise_summary(settings: SplitSettings) -> tuple[types_pb2.ReleaseNoise, ...]:
    """Return the noise of the last moments, if components do not overlap, and of the counts by radius.

    Raises:
        ValueError: the budget is too small for any release.
    """
    s = settings
    if s.aggregate:
        std = answer_std(s, ESTIMATION)
        return (types_pb2.ReleaseNoise(name="answers of blocks", size=s.k * (s.d + 4), sum_std=std, times=1),)
    weights, components = precisions(s.d, s.moments), released_components(s)
    change = part_sensitivity(moment_bounds(components, s.d, s.moments, weights), s.adjacency, s.unit_cap)
    gaussian_for(change, s.rho * Fraction(LEAST_SHARE))
    std = noise_std(gaussian_for(change, s.rho * Fraction(ESTIMATION) / SETTLED_STEPS), LATTICE)
    return (
        types_pb2.ReleaseNoise(
            name="moments of components",
            size=components * (1 + s.d + s.moments.size(s.d)),
            count_std=std / weights.a,
            sum_std=std / weights.b,
            moment_std=std / weights.c,
            times=SETTLED_STEPS,
        ),
        types_pb2.ReleaseNoise(name="form", size=len(RADIUS_LEVELS) + 1, count_std=form_std(s), times=1),
    )


def form_std(settings: SplitSettings) -> float:
    """Return the standard deviation of the noise on each count by radius, in rows.

    Raises:
        ValueError: the budget is too small.
    """
    s = settings
    change = part_sensitivity(radius_bounds(round(1 / RADIUS_LATTICE)), s.adjacency, s.unit_cap)
    return noise_std(gaussian_for(change, s.form), RADIUS_LATTICE)


def _parameters(
    request: fit_pb2.FitSeparatedGMMRequest, columns: tuple[BoundedColumn, ...], settings: SplitSettings
) -> dict[str, JSON]:
    """Return public parameters for the ledger's entry, beside the event."""
    return {
        "n_components": settings.k,
        "variant": "easy" if settings.easy else _VARIANTS[settings.aggregate],
        "search": "balls" if settings.balls else "slabs",
        "estimator": "clusters" if settings.clusters else "em",
        "covariance_type": settings.moments.name.lower(),
        "min_weight": settings.min_weight,
        "sigma_min": request.sigma_min,
        "sigma_max": request.sigma_max,
        "radius": request.radius,
        "columns": [column.name for column in columns],
    }
