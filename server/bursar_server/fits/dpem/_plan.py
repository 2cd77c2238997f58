"""Plan of FitDPEM: every check, cost and noise, from a request and the public schema. Reads no rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits._requests import (
    Amount,
    ModelColumns,
    Violations,
    amount_of,
    by_column,
    check_enum,
    check_or_zero,
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
from bursar_server.fits.dpem._choice import Sought
from bursar_server.fits.dpem._kmeans import KMeansSettings
from bursar_server.fits.dpem._kmeans_schedule import Quotes, Schedule, mean_noise
from bursar_server.fits.dpem._kmeans_schedule import schedule as kmeans_schedule
from bursar_server.fits.dpem._mixture import Size, rules_for, size_of, start_mixture
from bursar_server.fits.mixtures.em import SETTLED, Prior
from bursar_server.fits.mixtures.statistics import BallFrame, Moments
from bursar_server.fits.mixtures.steps import (
    EMSettings,
    Sketch,
    Step,
    default_iterations,
    of_step,
    price,
    release_noise,
    released_numbers,
    sketch,
)
from bursar_server.vault import event_of

MAX_COMPONENTS, MAX_ITERATIONS, MAX_RELEASED = 256, 200, 2**20
"""Limits on public numbers: the time of a fit and the size of an answer stay bounded."""

_MOST_COMPARED = 800
"""Numbers of the largest mixture of a choice: its time grows with their square."""

_MOMENTS = {
    fit_pb2.COVARIANCE_TYPE_UNSPECIFIED: Moments.FULL,
    fit_pb2.COVARIANCE_TYPE_FULL: Moments.FULL,
    fit_pb2.COVARIANCE_TYPE_TIED: Moments.TIED,
    fit_pb2.COVARIANCE_TYPE_DIAG: Moments.DIAG,
    fit_pb2.COVARIANCE_TYPE_SPHERICAL: Moments.SPHERICAL,
}


@dataclass(frozen=True, kw_only=True)
class DPEMPlan(Plan):
    """Plan with the parameters of its run.

    Attributes:
        settings: public parameters.
        own: columns in their own units and in the model's space.
        steps: releases.
        public_rows: number of slots if it is public, else None.
        sought: public part of the choice of a number of components; None if the request says it.
    """

    settings: EMSettings | KMeansSettings
    own: ModelColumns
    steps: tuple[Step, ...]
    public_rows: int | None
    sought: Sought | None = None


def plan(request: fit_pb2.FitDPEMRequest, table: PublicTable, released: Released) -> DPEMPlan:
    """Check a request against the public schema and decide every release.

    Raises InvalidFieldsError naming every field that is wrong.
    """
    violations: Violations = []
    amount = amount_of(request.spend, violations)
    named = columns_of(request.columns, table, violations)
    own = model_columns(named, request.transforms, violations)
    columns = own.columns
    k, T = _sizes(request, violations)
    kmeans, moments, recentred = _model(request, violations)
    background = _background(request, violations)
    _check_choice(request, len(columns), moments, violations)
    prior = _prior(request, len(columns), kmeans, violations)
    # Checked in stages: what follows computes with the values that were checked before, and would raise on others.
    stop_if(violations)
    frame = _frame(columns, request.clip_radius, common=moments is Moments.SPHERICAL, violations=violations)
    stop_if(violations)
    names = own.names
    start = start_mixture(request, own, k, frame, moments, released, violations)
    stop_if(violations)
    d, splitting = len(columns), start is None
    # The background's density needs the public box itself, not the ball around it.
    box = np.array([[column.lower for column in columns], [column.upper for column in columns]])
    half = (box[1] / 2.0 - box[0] / 2.0) / frame.scale
    try:
        settings: EMSettings | KMeansSettings
        warnings: tuple[str, ...] = ()
        if kmeans:
            clusters = _clusters(k, d, T, amount, table, recentred=recentred, splitting=splitting)
            sketches, warnings = clusters.sketches, clusters.warnings
            settings = KMeansSettings(frame, k, half, recentred, clusters.corrected, start)
        else:
            size = _size(
                k, d, T, moments, amount, table, recentred=recentred, splitting=splitting, background=background
            )
            kind = {"recentred": recentred, "splitting": splitting, "pure": amount.pure}
            rules = SETTLED
            if recentred:
                rules = rules_for(d, moments, -float(np.sum(np.log(2.0 * half))) if background else None)
            # A prior, and a choice of the number of components, pull the means on purpose.
            whole = recentred and not background and prior is None and not request.least_components
            kind |= {"background": background, "whole": whole}
            sketches = sketch(size.components, d, size.iterations, moments, cells=size.cells, **kind)
            settings = EMSettings(frame, size.components, size.cells, moments, recentred, prior, start, rules, whole)
            if size.components < k:
                warnings = (f"noise leaves room for {size.components} of {k} components; spend more, or ask for fewer",)
        steps = price(sketches, d, amount.value, table.adjacency, table.unit_cap, pure=amount.pure)
    except ValueError as error:
        raise InvalidFieldsError(("spend", str(error))) from None
    if not sum(released_numbers(s.components, d, s.moments, background=s.background) for s in sketches) <= MAX_RELEASED:
        text = f"components, columns and iterations together may release {MAX_RELEASED} numbers; ask for fewer"
        raise InvalidFieldsError(("n_components", text))
    return DPEMPlan(
        columns=names,
        events=tuple(event_of(of_step(s, d, table.adjacency, table.unit_cap), s.noise) for s in steps),
        iterations=len(steps),
        noise=tuple(_noise_summary(steps, d)),
        expected=by_column("mean_error", names, _expected_mean_error(steps, settings, table.rows), own.unit),
        sum_units=tuple(map(float, frame.scale)),
        warnings=(*warnings, *left_out(named)),
        parameters={**_parameters(settings, request, names), **own.parameters},
        transforms=own.transforms,
        settings=settings,
        own=own,
        steps=steps,
        public_rows=table.rows if table.adjacency is Adjacency.REPLACE_ONE else None,
        sought=Sought(request.least_components, half) if request.least_components else None,
    )


def _clusters(
    k: int, d: int, T: int, amount: Amount, table: PublicTable, *, recentred: bool, splitting: bool
) -> Schedule:
    """Return the releases of k-means, from public numbers. Raises ValueError as `price` does."""

    def std(single: Sketch) -> float:
        (step,) = price((single,), d, amount.value, table.adjacency, table.unit_cap, pure=amount.pure)
        return step.std

    quotes = Quotes(k, d, table.rows, table.adjacency, amount.pure, std)
    return kmeans_schedule(quotes, iterations=T, recentred=recentred, splitting=splitting)


def _size(
    k: int,
    d: int,
    T: int,
    moments: Moments,
    amount: Amount,
    table: PublicTable,
    *,
    recentred: bool,
    splitting: bool,
    background: bool,
) -> Size:
    """Return numbers of components, cells and steps, from public numbers. Raises ValueError as `price` does."""
    # From public numbers only: all three are visible in previews, progress and price.
    if not recentred:
        return Size(k, k, T or default_iterations(k, splitting=splitting))
    em = sketch(k, d, 1, moments, recentred=True, splitting=False, pure=amount.pure)
    (single,) = price(em, d, amount.value, table.adjacency, table.unit_cap, pure=amount.pure)
    size = size_of(k, d, T, single, table.rows, splitting=splitting, background=background, pure=amount.pure)
    for cells in (size.cells, min(size.cells, 2 * size.components)):
        if T or size.iterations * released_numbers(cells, d, Moments.FULL) <= MAX_RELEASED:
            return replace(size, cells=cells)
    # This plan would pass MAX_RELEASED and be refused: it gets fewer steps, and no more cells than components.
    base = default_iterations(size.components, splitting=splitting)
    room = MAX_RELEASED // released_numbers(size.components, d, Moments.FULL)
    return Size(size.components, size.components, min(size.iterations, max(base, room)))


def _sizes(request: fit_pb2.FitDPEMRequest, violations: Violations) -> tuple[int, int]:
    if not 1 <= request.n_components <= MAX_COMPONENTS:
        violations.append(("n_components", f"expected 1 to {MAX_COMPONENTS}, got {request.n_components}"))
    check_or_zero("iterations", request.iterations, (1, MAX_ITERATIONS), "to let the server choose", violations)
    return request.n_components, request.iterations


def _model(request: fit_pb2.FitDPEMRequest, violations: Violations) -> tuple[bool, Moments, bool]:
    """Return whether it is k-means, the second moments, and whether moments are recentred."""
    for field, enum in (
        ("mode", fit_pb2.Mode),
        ("covariance_type", fit_pb2.CovarianceType),
        ("estimator", fit_pb2.Estimator),
        ("moments", fit_pb2.Moments),
    ):
        check_enum(field, enum, getattr(request, field), violations)
    kmeans = request.mode == fit_pb2.MODE_KMEANS
    if kmeans and request.covariance_type != fit_pb2.COVARIANCE_TYPE_UNSPECIFIED:
        violations.append(("covariance_type", "k-means has none; leave it out"))
    moments = Moments.SPHERICAL if kmeans else _MOMENTS.get(request.covariance_type, Moments.FULL)
    return kmeans, moments, request.moments != fit_pb2.MOMENTS_FIXED_ORIGIN


def _background(request: fit_pb2.FitDPEMRequest, violations: Violations) -> bool:
    """Return whether the mixture has a background: by default wherever it can have one."""
    check_enum("background", fit_pb2.Background, request.background, violations)
    possible = request.mode != fit_pb2.MODE_KMEANS and request.moments != fit_pb2.MOMENTS_FIXED_ORIGIN
    if request.background == fit_pb2.BACKGROUND_ON and not possible:
        violations.append(("background", "only mixtures with recentred moments have one; leave it out"))
    return possible and request.background != fit_pb2.BACKGROUND_OFF


def _check_choice(request: fit_pb2.FitDPEMRequest, d: int, moments: Moments, violations: Violations) -> None:
    """Check a request in which the fit chooses the number of components."""
    least, most = request.least_components, request.n_components
    if not least:
        return
    field = "least_components"
    if not least <= most:
        violations.append((field, f"expected at most n_components, which is {most}, got {least}"))
    for name, value, without in (
        ("mode", "kmeans", fit_pb2.MODE_KMEANS),
        ("moments", "fixed_origin", fit_pb2.MOMENTS_FIXED_ORIGIN),
        ("estimator", "map", fit_pb2.ESTIMATOR_MAXIMUM_A_POSTERIORI),
    ):
        if getattr(request, name) == without:
            violations.append((field, f"a fit with {name} {value!r} chooses no number; say one in n_components"))
    if request.WhichOneof("start") not in (None, "splitting"):
        violations.append((field, "only a fit that starts by splitting chooses a number; say one in n_components"))
    if request.iterations == 1:
        violations.append(("iterations", "a choice of the number of components needs at least 2, got 1"))
    # Tied components share one covariance, so that one more adds a count and a mean only.
    each = released_numbers(1, d, moments) if moments is not Moments.TIED else 1 + d
    room = (_MOST_COMPARED - (moments.size(d) if moments is Moments.TIED else 0)) // each
    if not most <= max(room, 1):
        text = f"a fit of {d} such columns chooses among at most {max(room, 1)} components, got {most}"
        violations.append(("n_components", f"{text}; ask for fewer, for fewer columns, or for 'diag' covariances"))


def _prior(request: fit_pb2.FitDPEMRequest, d: int, kmeans: bool, violations: Violations) -> Prior | None:
    """Return the prior, the paper's where the request has zeros; None for maximum likelihood."""
    given = request.prior
    if request.estimator != fit_pb2.ESTIMATOR_MAXIMUM_A_POSTERIORI:
        if request.HasField("prior"):
            violations.append(("prior", "only maximum a posteriori has one; set estimator, or leave it out"))
        return None
    if kmeans:
        violations.append(("estimator", "k-means has no prior; leave it out"))
    for field in ("kappa", "nu", "scale"):
        if not 0 <= getattr(given, field) <= 1e9:
            violations.append((f"prior.{field}", f"expected a number from 0 to 1e9, got {getattr(given, field)}"))
    if not (given.concentration == 0 or 1 <= given.concentration <= 1e9):
        violations.append(("prior.concentration", f"expected a number from 1 to 1e9, got {given.concentration}"))
    return Prior(given.concentration or 2.0, given.kappa or 1.0, given.nu or d + 2.0, given.scale or 0.1)


def _frame(
    columns: tuple[BoundedColumn, ...], clip_radius: float, *, common: bool, violations: Violations
) -> BallFrame:
    """Return the ball about the middle of the bounds with half-widths as units, or the largest for all if `common`."""
    lower, upper = (np.array([getattr(c, side) for c in columns], dtype=np.float64) for side in ("lower", "upper"))
    # Halved first: the width of bounds could overflow.
    half = upper / 2.0 - lower / 2.0
    # Spherical covariances have one width for all columns, so all columns need one unit.
    unit = np.full_like(half, half.max()) if common else half
    whole = float(np.linalg.norm(half / unit))
    if not 0 <= clip_radius <= whole * (1 + 1e-9):
        expected = f"expected 0, or a number up to {whole:.6g}, the ball that holds the whole box"
        violations.append(("clip_radius", f"{expected}; got {clip_radius}"))
        # Goes on with a valid value, so that all other fields are checked, too.
        clip_radius = whole
    # 0 is a field that was not sent.
    scale = unit * (clip_radius or whole)
    if not np.all((scale > 1e-140) & (scale < 1e140)):  # variances are squares of it
        violations.append(
            ("clip_radius", "the ball leaves the range of double numbers; narrow the bounds or the radius")
        )
    return BallFrame(lower / 2.0 + upper / 2.0, scale)


def _noise_summary(steps: tuple[Step, ...], d: int) -> list[types_pb2.ReleaseNoise]:
    # Equal steps in a row are one line of the preview: dozens of lines would hide the different ones.
    return [release_noise(step, d, step.phase.value, len(list(group))) for step, group in groupby(steps)]


def _expected_mean_error(
    steps: tuple[Step, ...], settings: EMSettings | KMeansSettings, rows: int | None
) -> tuple[float, ...]:
    """Return the noise on a mean, for k equal settled components that fill the public ball side by side."""
    # Without a number of rows there is nothing to divide the noise by; a guess would look like a promise.
    if not rows:
        return ()
    if isinstance(settings, KMeansSettings):
        noise = mean_noise(steps, settings.components, len(settings.frame.scale), rows)
        return tuple(float(s) for s in noise * settings.frame.scale)
    d, k, last = len(settings.frame.scale), settings.components, steps[-1]
    per_radius = last.std / last.weights.b * k / rows
    if settings.recentred:
        # Averaging J settled steps with weights 1, ..., J would leave 4 / (3 J) of one step's variance. Measured: 4
        # times that, because steps that look larger than noise are taken whole.
        per_radius *= min(1.0, (16.0 / (3.0 * sum(step.phase is last.phase for step in steps))) ** 0.5)
    return tuple(float(s) for s in per_radius * settings.frame.scale * k ** (-1.0 / d))


def _parameters(
    settings: EMSettings | KMeansSettings, request: fit_pb2.FitDPEMRequest, names: tuple[str, ...]
) -> dict[str, JSON]:
    """Return public parameters for the ledger's entry, beside the events."""
    # Earlier entries have no such key, and their bytes stay as they are.
    least = {"least_components": request.least_components} if request.least_components else {}
    return {
        "n_components": settings.components,
        **least,
        "mode": "mixture" if isinstance(settings, EMSettings) else "kmeans",
        "covariance_type": settings.moments.name.lower(),
        "moments": "recentred" if settings.recentred else "fixed_origin",
        "estimator": "map" if isinstance(settings, EMSettings) and settings.prior else "ml",
        "background": isinstance(settings, EMSettings) and settings.rules.log_uniform is not None,
        "start": request.WhichOneof("start") or "splitting",
        "columns": list(names),
    }
