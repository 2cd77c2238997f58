"""Plan of FitGradientEM: every check, cost and noise, from a request and the public schema. Reads no rows."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits._requests import (
    COLUMN_UNIT,
    MAX_COLUMNS,
    Amount,
    Violations,
    amount_of,
    by_column,
    check_enum,
    check_or_zero,
    checked_array,
    columns_of,
    left_out,
    stop_if,
)
from bursar_server.fits._seam import (
    JSON,
    BoundedColumn,
    Expected,
    InvalidFieldsError,
    Plan,
    PublicTable,
    Released,
)
from bursar_server.fits.gradient_em._gaussian_mixture import LatentMixture
from bursar_server.fits.gradient_em._missing_covariates import MissingCovariates
from bursar_server.fits.gradient_em._mixture_of_regressions import LatentRegressions
from bursar_server.fits.gradient_em._models import Model
from bursar_server.fits.gradient_em._normal import Kind, best_radius, location_gain
from bursar_server.fits.gradient_em._run import GradientSettings, Variant, root_beta
from bursar_server.fits.gradient_em._start import SHARE, opening_steps
from bursar_server.fits.gradient_em._statistics import (
    LOOK_LATTICE,
    RADIUS_BOUNDS,
    GradientFrame,
    Shape,
    Transform,
    count_weight,
    gradient_bounds,
    look_bounds,
)
from bursar_server.fits.gradient_em._symmetric_mixture import LatentSymmetricMixture
from bursar_server.fits.mixtures.radius_statistics import RADIUS_LEVELS, RADIUS_SHARE
from bursar_server.fits.mixtures.steps import of_step, release_noise
from bursar_server.vault import Bounds, Noise, event_of, gaussian_for, laplace_for, noise_std, sensitivity

MAX_COMPONENTS, MAX_ITERATIONS = 64, 200
"""Limits of public numbers, which bound the time of a fit and the size of an answer. Chosen, not tuned."""

_STEPS = {
    fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE: 12,
    fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE: 12,
    fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS: 16,
    fit_pb2.LATENT_MODEL_MISSING_COVARIATES: 20,
}
"""Steps of each model.

Measured: fewer do not settle from a random start; the mean of more offsets their finer division of the budget.
"""

_MIRRORED = 8
"""Further steps of symmetric regressions. Measured in 13 cells (5 to 20 columns, 1,000 to 100,000 rows, epsilon 0.2 to
1, 16 to 100 fits each): errors are 0.95 of those with 16 steps, and with a thousand rows fewer fits fail.
"""

_DOUBLED = 16
"""Further steps of regressions that are not symmetric, each time that components are doubled; for one or two once.

Measured with 12 fits each to 20,000 rows, rho 0.01 and 0.1: all of six lines are found 8 times of 24 without them and
22 with them, all of eight lines 0 and 18 times. One regression of real rows differs half as much between fits.
"""

_LOOK_MIXTURE, _LOOK_REGRESSION = Fraction(1, 20), Fraction(1, 10)
"""Shares of the budget for the look: regressions need a whole matrix. Chosen, not tuned."""

_ZETA = 0.05
"""Failure probability of the paper's bounds if a request leaves it open. Chosen, not tuned."""

_FAR = 1e100
"""Upper bound of numbers of a start, so that their squares stay doubles."""

_LOUD = 0.25
"""Noise on averaged parameters, in units of the model's own noise, from which a preview warns. Chosen, not tuned."""

_VARIANTS = {
    fit_pb2.GRADIENT_VARIANT_RECENTRED: Variant.RECENTRED,
    fit_pb2.GRADIENT_VARIANT_TRUNCATED: Variant.TRUNCATED,
    fit_pb2.GRADIENT_VARIANT_RADIAL: Variant.RADIAL,
    fit_pb2.GRADIENT_VARIANT_CLIPPED: Variant.CLIPPED,
    fit_pb2.GRADIENT_VARIANT_DP_EM: Variant.DP_EM,
}

_REGRESSIONS = (fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS, fit_pb2.LATENT_MODEL_MISSING_COVARIATES)


@dataclass(frozen=True, kw_only=True)
class GradientEMPlan(Plan):
    """Plan with the parameters of its run.

    Attributes:
        settings: public parameters.
        model: number of the model in the contract.
        variant: number of the variant in the contract.
        symmetric: True if two components mirror each other.
        target: target column of regressions, else "".
    """

    settings: GradientSettings
    model: fit_pb2.LatentModel.ValueType
    variant: fit_pb2.GradientVariant.ValueType
    symmetric: bool
    target: str


def plan(request: fit_pb2.FitGradientEMRequest, table: PublicTable, released: Released) -> GradientEMPlan:
    """Check a request against the public schema and decide every release.

    Raises InvalidFieldsError naming every field that is wrong.
    """
    violations: Violations = []
    amount = amount_of(request.spend, violations)
    _check_choices(request, violations)
    stop_if(violations)
    _check_numbers(request, violations)
    stop_if(violations)
    columns = _columns(request, table, violations)
    stop_if(violations)
    frame = _frame(request, columns, violations)
    stop_if(violations)
    model = _model(request, frame, violations)
    stop_if(violations)
    try:
        settings = _settings(request, model, amount, table, _iterations(request))
    except ValueError as error:
        raise InvalidFieldsError(("spend", str(error))) from None
    look, gradient = look_bounds(model.look, len(columns)), gradient_bounds(settings.shape)
    d, unit_cap = len(columns), table.unit_cap
    events = (
        event_of(sensitivity(look, table.adjacency, unit_cap), settings.look_noise),
        *(event_of(of_step(step, d, table.adjacency, unit_cap), step.noise) for step in settings.opening),
        *settings.T * (event_of(sensitivity(gradient, table.adjacency, unit_cap), settings.noise),),
        event_of(sensitivity(RADIUS_BOUNDS, table.adjacency, unit_cap), settings.radii_noise),
    )
    return GradientEMPlan(
        columns=tuple(column.name for column in columns),
        events=events,
        iterations=settings.steps,
        noise=_noise_summary(settings, len(columns)),
        expected=_expected(request, settings, columns, table.rows),
        sum_units=() if request.model in _REGRESSIONS else tuple(map(float, frame.unit)),
        warnings=(
            *_warnings(settings, table.rows),
            *left_out(column for column in columns if not _may_miss(request, column)),
        ),
        parameters=_parameters(request, columns, settings),
        settings=settings,
        model=request.model,
        variant=next(number for number, value in _VARIANTS.items() if value is settings.variant),
        symmetric=_is_symmetric(request),
        target=request.target,
    )


def _settings(
    request: fit_pb2.FitGradientEMRequest, model: Model, amount: Amount, table: PublicTable, T: int
) -> GradientSettings:
    """Return a look, the private start of a Gaussian mixture, T equal steps and counts by radius.

    Raises ValueError if the amount is too small, or far too large.
    """
    variant, zeta = _variant(request), request.zeta or _ZETA
    smoothing = root_beta(model.q, zeta) if variant.transform is Transform.BOX else 1.0
    shape = Shape(model.blocks, model.q, variant.transform, smoothing)
    share = _LOOK_REGRESSION if request.model in _REGRESSIONS else _LOOK_MIXTURE
    look = look_bounds(model.look, len(model.frame.centre))
    opened = request.model == fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE and request.WhichOneof("start") is None
    opening = opening_steps(model.blocks, model.q, amount, table) if opened else ()
    # What the look, the counts by radius and the start leave over is for the steps.
    steps = amount.value * (1 - share - RADIUS_SHARE - (SHARE if opened else 0))
    return GradientSettings(
        model=model,
        variant=variant,
        shape=shape,
        step_size=request.step_size or 1.0,
        averaged=_averaged(request, T),
        tracked=variant.adaptive and not (request.step_size or request.averaged),
        sigma_known=request.noise_std > 0,
        scale=request.scale or None,
        tau=request.tau or None,
        zeta=zeta,
        steps_rho=float(steps * steps / 2 if amount.pure else steps),
        look_noise=_noise(look, amount, amount.value * share, table),
        noise=_noise(gradient_bounds(shape), amount, steps / T, table),
        radii_noise=_noise(RADIUS_BOUNDS, amount, amount.value * RADIUS_SHARE, table),
        T=T,
        declared=float(table.rows) if table.rows else None,
        opening=opening,
    )


def _is_symmetric(request: fit_pb2.FitGradientEMRequest) -> bool:
    return request.model == fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE or request.symmetric


def _has_components(request: fit_pb2.FitGradientEMRequest) -> bool:
    """Return whether the number of components is a choice."""
    if request.model == fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS:
        return not request.symmetric
    return request.model == fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE


def _has_intercept(request: fit_pb2.FitGradientEMRequest) -> bool:
    return request.model in _REGRESSIONS and not request.without_intercept and not request.symmetric


def _check_choices(request: fit_pb2.FitGradientEMRequest, violations: Violations) -> None:
    """Check fields that only some models and variants have."""
    for field, enum in (
        ("model", fit_pb2.LatentModel),
        ("variant", fit_pb2.GradientVariant),
        ("units", fit_pb2.ColumnUnits),
    ):
        check_enum(field, enum, getattr(request, field), violations)
    model, variant = request.model, request.variant
    if model == fit_pb2.LATENT_MODEL_UNSPECIFIED:
        violations.append(("model", "is missing; expected one of the latent models"))
        return
    regression = model in _REGRESSIONS
    mixture_of_regressions = model == fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS
    no_origin = "only mixtures of regressions have it: missing features are believed near their means, not near 0"
    symmetric_mixture = model == fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE
    truncated = variant in (fit_pb2.GRADIENT_VARIANT_TRUNCATED, fit_pb2.GRADIENT_VARIANT_DP_EM)
    fixed = truncated or variant == fit_pb2.GRADIENT_VARIANT_CLIPPED
    of_regressions, of_mixtures = "only regressions have it", "only mixtures of points have it"
    for field, allowed, whose in (
        ("target", regression, of_regressions),
        ("without_intercept", mixture_of_regressions, no_origin if regression else of_regressions),
        ("symmetric", mixture_of_regressions, "only mixtures of regressions have it"),
        ("n_components", _has_components(request), "this model's number is fixed"),
        ("units", not regression, of_mixtures),
        ("paper_weights", symmetric_mixture or request.symmetric, "only symmetric models have it"),
        ("scale", fixed, "only the variants truncated, dp_em and clipped have it"),
        ("zeta", truncated, "only the variants truncated and dp_em have it"),
        ("tau", truncated, "only the variants truncated and dp_em have it"),
        ("step_size", variant != fit_pb2.GRADIENT_VARIANT_DP_EM, "dp_em makes whole M-steps"),
    ):
        if getattr(request, field) and not allowed:
            violations.append((field, f"{whose}; leave it out"))
    if request.HasField("centre") and not symmetric_mixture:
        violations.append(("centre", "only a symmetric mixture has it; leave it out"))
    if variant == fit_pb2.GRADIENT_VARIANT_DP_EM and regression:
        violations.append(
            ("variant", "dp_em needs an M-step that is a mean over rows; expected another for regressions")
        )
    if regression and not request.target:
        violations.append(("target", "is missing; expected the numeric column that is to be explained"))


def _iterations(request: fit_pb2.FitGradientEMRequest) -> int:
    lines = request.model == fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS and not request.symmetric
    doublings = math.ceil(math.log2(max(request.n_components, 2))) if lines else 0
    mirrored = _MIRRORED if request.symmetric else 0
    return request.iterations or _STEPS[request.model] + mirrored + _DOUBLED * doublings


def _averaged(request: fit_pb2.FitGradientEMRequest, T: int) -> int:
    """Return the number of averaged steps: the last half; more if all components are one and steps settle at once."""
    alone = request.model == fit_pb2.LATENT_MODEL_MISSING_COVARIATES or request.n_components == 1
    return request.averaged or (T - T // 3 if alone else (T + 1) // 2)


def _variant(request: fit_pb2.FitGradientEMRequest) -> Variant:
    """Return the variant.

    Measured with t-distributed and contaminated noise, radial is as good for mixtures of regressions only.
    """
    heavy = request.heavy_tails and request.model == fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS
    return _VARIANTS.get(request.variant, Variant.RADIAL if heavy else Variant.RECENTRED)


def _check_numbers(request: fit_pb2.FitGradientEMRequest, violations: Violations) -> None:
    least = 1 if request.model == fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS else 2
    check_or_zero("n_components", request.n_components, (least, MAX_COMPONENTS), "for 2", violations)
    check_or_zero("iterations", request.iterations, (1, MAX_ITERATIONS), "to let the server choose", violations)
    T = _iterations(request)
    if not request.averaged <= T:
        violations.append(("averaged", f"expected at most as many as iterations, {T}, got {request.averaged}"))
    if not 0 <= request.step_size <= 2:
        violations.append(("step_size", f"expected a number up to 2, or 0 for 1, got {request.step_size}"))
    if not 0 <= request.zeta < 1:
        violations.append(("zeta", f"expected a number between 0 and 1, or 0 for {_ZETA}, got {request.zeta}"))
    for field in ("scale", "tau"):
        value = getattr(request, field)
        if not (value == 0 or 1e-9 <= value <= 1e9):
            violations.append((field, f"expected 1e-9 to 1e9, or 0 to let the server choose, got {value}"))


def _columns(
    request: fit_pb2.FitGradientEMRequest, table: PublicTable, violations: Violations
) -> tuple[BoundedColumn, ...]:
    """Return the columns of rows; for regressions the features, then the target."""
    known = {column.name: column for column in table.numeric}
    names, target = list(request.columns), request.target
    if target and target in names:
        violations.append(("columns", f"has the target {target!r}; a column cannot explain itself, leave it out"))
        return ()
    if target and target not in known:
        text = f"no numeric column of dataset {table.name!r} has this name; it has {', '.join(known)}"
        violations.append(("target", text))
        return ()
    # A regression that names no features takes every other column: gaps only where the model is made for them.
    if target and not names:
        names = [c.name for c in table.numeric if c.name != target and (not c.nullable or _may_miss(request, c))]
        if not 1 <= len(names) <= MAX_COLUMNS:
            violations.append(("columns", f"expected 1 to {MAX_COLUMNS} features beside the target, got {len(names)}"))
            return ()
    columns = columns_of(names, table, violations)
    return (*columns, known[target]) if target else columns


def _frame(
    request: fit_pb2.FitGradientEMRequest, columns: tuple[BoundedColumn, ...], violations: Violations
) -> GradientFrame:
    """Return the frame with half-widths of the bounds as units.

    For mixtures the largest for all, unless requested otherwise.
    """
    lower, upper = (np.array([getattr(c, side) for c in columns], dtype=np.float64) for side in ("lower", "upper"))
    width = upper / 2.0 - lower / 2.0
    common = request.model not in _REGRESSIONS and request.units != fit_pb2.COLUMN_UNITS_BOUNDS
    unit = np.full_like(width, width.max()) if common else width
    if not np.all((unit > 1e-140) & (unit < 1e140)):  # variances are squares of it
        violations.append(("columns", "the bounds leave the range of double numbers; narrow them"))
    may_miss = np.array([_may_miss(request, column) for column in columns], dtype=np.bool_)
    return GradientFrame(lower / 2.0 + upper / 2.0, unit, width / unit, may_miss)


def _may_miss(request: fit_pb2.FitGradientEMRequest, column: BoundedColumn) -> bool:
    """Return whether rows may have no value in this column, and count all the same."""
    is_feature = request.model == fit_pb2.LATENT_MODEL_MISSING_COVARIATES and column.name != request.target
    return column.nullable and is_feature


def _model(request: fit_pb2.FitGradientEMRequest, frame: GradientFrame, violations: Violations) -> Model:
    """Return the model of a request. Raises InvalidFieldsError as `plan`."""
    regression = request.model in _REGRESSIONS
    k = (request.n_components or 2) if _has_components(request) else 2 if _is_symmetric(request) else 1
    blocks = k if _has_components(request) else 1
    intercept = _has_intercept(request)
    seed = request.random.public_seed
    sigma = _sigma(request, frame, regression, violations)
    middle = _middle(request, frame, violations)
    given, weights = None, np.full(k, 1.0 / k)
    if request.HasField("given"):
        shape = (blocks, len(frame.centre) - regression)
        given = _given(request.given, shape, intercept, violations)
        # Squares of numbers far beyond the bounds would overflow in the kernel.
        _check_near(frame, *given, violations)
        if request.given.weights.values:
            weights = _weights(request.given.weights, k, blocks, violations)
    stop_if(violations)
    if request.model == fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE:
        start = None if given is None else given[0] / frame.unit
        return LatentSymmetricMixture(frame, middle, seed, start, sigma, request.paper_weights)
    if request.model == fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE:
        start = None if given is None else (given[0] - frame.centre) / frame.unit
        return LatentMixture(frame, k, seed, start, weights, sigma)
    if request.model == fit_pb2.LATENT_MODEL_MISSING_COVARIATES:
        return MissingCovariates(frame, given, sigma)
    return LatentRegressions(frame, k, request.symmetric, intercept, seed, given, weights, sigma, request.paper_weights)


def _sigma(
    request: fit_pb2.FitGradientEMRequest, frame: GradientFrame, regression: bool, violations: Violations
) -> float | None:
    """Return the given noise level in the frame's units."""
    if request.noise_std == 0:
        return None
    bounds = request.units == fit_pb2.COLUMN_UNITS_BOUNDS and not regression
    unit = 1.0 if bounds else float(frame.unit[-1])
    if not 1e-6 * unit <= request.noise_std <= 1e3 * unit:  # NaN fails
        expected = f"expected {1e-6 * unit:g} to {1e3 * unit:g}, or 0 to have it estimated"
        violations.append(("noise_std", f"{expected}; got {request.noise_std}"))
        return None
    return request.noise_std / unit


def _given(
    given: fit_pb2.GradientStart, shape: tuple[int, int], intercept: bool, violations: Violations
) -> tuple[FloatArray, FloatArray]:
    """Return initial coefficients and intercepts; zeros where they are wrong."""
    if given.intercepts.values and not intercept:
        violations.append(("start.given.intercepts", "this model has none; leave them out"))
    coefficients = checked_array("start.given.coefficients", given.coefficients, shape, violations)
    intercepts = None
    if given.intercepts.values:
        intercepts = checked_array("start.given.intercepts", given.intercepts, shape[:1], violations)
    return (
        np.zeros(shape) if coefficients is None else coefficients,
        np.zeros(shape[0]) if intercepts is None else intercepts,
    )


def _check_near(frame: GradientFrame, coefficients: FloatArray, intercepts: FloatArray, violations: Violations) -> None:
    """Check that a start is within `_FAR` in the units of the bounds."""
    unit, centre = frame.unit, frame.centre
    d = coefficients.shape[1]
    with np.errstate(over="ignore"):
        if d == len(unit):
            sizes = (np.abs(coefficients) + np.abs(centre)) / unit
        else:
            at_zero = np.abs(intercepts) + np.abs(coefficients) @ np.abs(centre[:d]) + np.abs(centre[d])
            sizes = np.column_stack([np.abs(coefficients) * (unit[:d] / unit[d]), at_zero / unit[d]])
    if not np.all(sizes < _FAR):
        violations.append(("start.given", f"expected a start within {_FAR:g} half-widths of the bounds"))


def _weights(tensor: types_pb2.Tensor, k: int, blocks: int, violations: Violations) -> FloatArray:
    """Return the weights to start from; equal where they are wrong."""
    if blocks == 1:
        violations.append(("start.given.weights", "this model's weights are fixed; leave them out"))
    weights = checked_array("start.given.weights", tensor, (k,), violations)
    if weights is None or not np.all((weights > 0) & (weights < 1e6)):
        violations.append(("start.given.weights", "expected positive numbers below 1e6"))
        return np.full(k, 1.0 / k)
    floored = np.maximum(weights / weights.sum(), 1e-6)
    return np.asarray(floored / floored.sum())


def _middle(request: fit_pb2.FitGradientEMRequest, frame: GradientFrame, violations: Violations) -> FloatArray:
    """Return the centre of a symmetric mixture in the frame's units; the middle of the bounds where it is wrong."""
    middle = np.zeros_like(frame.centre)
    if request.HasField("centre"):
        centre = checked_array("centre", request.centre, frame.centre.shape, violations)
        if centre is not None and not np.all(np.abs(centre - frame.centre) <= frame.half * frame.unit * (1.0 + 1e-9)):
            violations.append(("centre", "expected a point within the bounds of the columns"))
        elif centre is not None:
            middle = (centre - frame.centre) / frame.unit
    return middle


def _noise(bounds: Bounds, amount: Amount, value: Fraction, table: PublicTable) -> Noise:
    """Return the noise of a release with these bounds.

    Raises ValueError if the amount is too small or far too large.
    """
    change = sensitivity(bounds, table.adjacency, table.unit_cap)
    return laplace_for(change, value) if amount.pure else gaussian_for(change, value)


def _noise_summary(settings: GradientSettings, columns: int) -> tuple[types_pb2.ReleaseNoise, ...]:
    look = noise_std(settings.look_noise, LOOK_LATTICE)
    std = settings.std
    return (
        types_pb2.ReleaseNoise(
            name="look", size=settings.model.look.size(columns), count_std=look, sum_std=look * columns**0.5, times=1
        ),
        *(release_noise(step, columns, "start", 1) for step in settings.opening),
        types_pb2.ReleaseNoise(
            name="gradient", size=settings.shape.size, count_std=std / count_weight(), sum_std=std, times=settings.T
        ),
        types_pb2.ReleaseNoise(name="form", size=len(RADIUS_LEVELS) + 1, count_std=settings.radii_std, times=1),
    )


def _loudness(settings: GradientSettings, rows: int | None) -> float:
    """Return about the effect of noise on averaged parameters, in units of sigma; 0 if rows or radius are unknown."""
    if not rows or not settings.variant.adaptive:
        return 0.0
    return settings.std * settings.shape.blocks * settings.model.q / rows / math.sqrt(settings.averaged)


def _warnings(settings: GradientSettings, rows: int | None) -> tuple[str, ...]:
    """Return warnings about the noise, from a public or declared number of rows."""
    noise = _loudness(settings, rows)
    if noise <= _LOUD:
        return ()
    return (
        f"noise alone is expected to move the parameters by about {noise:.2g} of the model's own noise level; "
        "spend more, or ask for fewer columns or components",
    )


def _expected(
    request: fit_pb2.FitGradientEMRequest,
    settings: GradientSettings,
    columns: tuple[BoundedColumn, ...],
    rows: int | None,
) -> dict[str, Expected]:
    """Return all accuracies that follow from public numbers."""
    names = [column.name for column in columns]
    relative = _loudness(settings, rows)
    means, coefficients = _mean_error(request, settings, rows), _coefficient_error(request, settings, rows)
    return {
        **by_column("mean_error", names, means, COLUMN_UNIT),
        **by_column("coef_error", names[:-1], coefficients, "the target's unit over the column's"),
        **({"relative_error": Expected(relative, "the model's noise level")} if relative else {}),
    }


def _mean_error(
    request: fit_pb2.FitGradientEMRequest, settings: GradientSettings, rows: int | None
) -> tuple[float, ...]:
    """Return the noise on an averaged mean, for k equal components far apart; () if the radius follows released values.

    Steps are tracked and all that have settled are averaged, about `averaged` or more: the error may be less.
    """
    model = settings.model
    sigma = _sigma(request, model.frame, request.model in _REGRESSIONS, [])
    if not rows or sigma is None or request.model in _REGRESSIONS or not settings.variant.adaptive:
        return ()
    noise = settings.std * (model.blocks / (rows * settings.averaged)) ** 0.5
    radius = float(best_radius(Kind.LOCATION, settings.shape.transform, model.q, np.array([noise**2]))[0])
    gain = location_gain(settings.shape.transform, model.q, round(radius, 2))
    error = noise * (model.blocks / rows) ** 0.5 * radius * sigma / gain
    return tuple(float(s) for s in error * model.frame.unit)


def _coefficient_error(
    request: fit_pb2.FitGradientEMRequest, settings: GradientSettings, rows: int | None
) -> tuple[float, ...]:
    """Return the noise on each feature's coefficient, in the target's unit over the feature's, if `noise_std` is given.

    A feature that is uniform over its bounds has a standard deviation of their half-width over sqrt(3).
    """
    relative, frame = _loudness(settings, rows), settings.model.frame
    if not (relative and request.noise_std and request.model in _REGRESSIONS):
        return ()
    return tuple(float(error) for error in relative * request.noise_std * math.sqrt(3.0) / frame.unit[:-1])


def _parameters(
    request: fit_pb2.FitGradientEMRequest, columns: tuple[BoundedColumn, ...], settings: GradientSettings
) -> dict[str, JSON]:
    """Return public parameters for the ledger's entry: all choices, null where the request left them open.

    A given start may have thousands of numbers, and is recorded as the SHA-256 of its message.
    """
    regression, boxed = request.model in _REGRESSIONS, settings.shape.transform is Transform.BOX
    given = request.given.SerializeToString(deterministic=True) if request.HasField("given") else None
    return {
        "model": fit_pb2.LatentModel.Name(request.model).removeprefix("LATENT_MODEL_").lower(),
        "variant": settings.variant.value,
        "columns": [column.name for column in columns],
        "target": request.target,
        "n_components": 2 if _is_symmetric(request) else settings.model.blocks,
        "symmetric": _is_symmetric(request),
        "intercept": _has_intercept(request),
        "units": None if regression else "bounds" if request.units == fit_pb2.COLUMN_UNITS_BOUNDS else "common",
        "centre": list(request.centre.values) if request.HasField("centre") else None,
        "paper_weights": request.paper_weights,
        "iterations": settings.T,
        "step_size": settings.step_size,
        "averaged": settings.averaged,
        "noise_std": request.noise_std or None,
        "scale": settings.scale,
        "tau": settings.tau,
        "zeta": settings.zeta if boxed else None,
        "start": request.WhichOneof("start") or ("splitting" if settings.opening else "random"),
        "public_seed": None if given is not None or settings.opening else str(request.random.public_seed),
        "start_sha256": hashlib.sha256(given).hexdigest() if given is not None else None,
    }
