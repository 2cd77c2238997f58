"""FitGradientEM under audit: every model and variant, both adjacencies, both laws, rows of units, missing features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar_ledger import Adjacency
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, PublicTable, gradient_em
from bursar_server.vault import ArrayRows, Session, Statistic
from tests.audit import moments
from tests.audit.gradient_em_reference import reference
from tests.audit.harness import extremes
from tests.audit.target import Target

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE

RHO = types_pb2.Spend(rho=2.0)
"""So that mu = 2, where tests have the most power."""

PURE = types_pb2.Spend(epsilon=6.0)

COLUMNS = (
    BoundedColumn("m", -2.0, 2.0, nullable=True),
    BoundedColumn("x", -1.0, 3.0),
    BoundedColumn("v", -2.0, 2.0),
    BoundedColumn("y", 0.0, 8.0),
)
"""Columns of the audited tables; the middle of their bounds and the half-widths differ."""

BASE = 24
"""Rows that both tables have, besides broken ones."""

BROKEN = np.array([np.nan, -np.inf, np.inf, 1e308, -1e308, 5e-324, -0.0])
"""Values that an import never stores, and a kernel must survive: another one in each column."""

SMALL = 1e-6
"""A scale s: far rows have gradients of a million times as much."""

Fields = dict[str, Any]
"""Fields of the request."""

_MODELS: dict[str, tuple[fit_pb2.LatentModel.ValueType, tuple[str, ...], str]] = {
    "symmetric": (fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE, ("x", "v"), ""),
    "mixture": (fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE, ("x", "v"), ""),
    "regressions": (fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS, ("x", "v"), "y"),
    "missing": (fit_pb2.LATENT_MODEL_MISSING_COVARIATES, ("m", "x"), "y"),
}


@dataclass(frozen=True)
class Unit:
    """Two rows in half-widths of the bounds: of the unit that changes, and what stands in its place."""

    here: tuple[float, ...]
    there: tuple[float, ...]


UNITS = {
    "symmetric": Unit((0.3, 1e3), (0.3, -1e3)),
    "mixture": Unit((0.5, 1e3), (0.5, -1e3)),
    "regressions": Unit((1e3, 1e3, 1e3), (1e3, 1e3, -1e3)),
    "missing": Unit((np.nan, 1e3, 1e3), (1e3, 1e3, -1e3)),
}
"""Far out, so that what bounds a row's gradient is reached; the only row without m is the one that changes."""


def fit_gradient_em(
    adjacency: Adjacency, model: str, *, cap: int = 1, iterations: int = 2, unit: Unit | None = None, **fields: Any
) -> Target:
    """FitGradientEM on clusters of rows, some broken rows, and a unit that changes as much as it can.

    Args:
        adjacency: of the pair.
        model: by its name in `UNITS`.
        cap: rows of a privacy unit.
        iterations: steps.
        unit: that changes; the model's worst one unless given.
        fields: of the request, besides.
    """
    rows, neighbour, far = pair(adjacency, model, cap, unit or UNITS[model])
    plan = planned(adjacency, model, cap=cap, iterations=iterations, slots=rows.slots, **fields)

    def run(session: Session) -> fit_pb2.GradientEMModel:
        return gradient_em.run(plan, session)

    return Target(
        name=f"FitGradientEM {model} {adjacency.value}",
        adjacency=adjacency,
        rows=rows,
        neighbour=neighbour,
        events=plan.events,
        run=run,
        reference=_summed,
        features=numbers_of,
        extremes=extremes(len(far), *far.T, *_nulls(model, far).T),
        unit_cap=cap,
    )


def _summed(statistic: Statistic, rows: ArrayRows) -> FloatArray:
    """Return the reference of a release: those of a private start are FitDPEM's."""
    return (moments.reference if is_of_start(statistic) else reference)(statistic, rows)


def is_of_start(statistic: Statistic) -> bool:
    """Return whether a statistic is that of a private start."""
    return hasattr(statistic.kernel, "moments")


def planned(
    adjacency: Adjacency, model: str, *, cap: int = 1, slots: int = 0, **fields: Any
) -> gradient_em.GradientEMPlan:
    """The plan of a request. Noise of the model is known unless `noise_std` is given, so that far rows are far."""
    number, columns, target = _MODELS[model]
    defaults: Fields = {"spend": RHO, "noise_std": 0.6 if target else 0.3}
    if model == "mixture":
        defaults["given"] = start([[2.0, 0.0], [0.0, 0.0]])
    if model == "symmetric":
        defaults["given"] = start([[1.0, 0.0]])
    request = fit_pb2.FitGradientEMRequest(model=number, columns=columns, target=target, **(defaults | fields))
    table = PublicTable("audit", COLUMNS, adjacency, cap, slots if adjacency is RO else None)
    return gradient_em.plan(request, table, lambda entry: None)


def start(coefficients: list[list[float]]) -> fit_pb2.GradientStart:
    """A given start."""
    values = np.array(coefficients)
    return fit_pb2.GradientStart(coefficients=types_pb2.Tensor(shape=values.shape, values=values.ravel().tolist()))


def pair(adjacency: Adjacency, model: str, cap: int, unit: Unit) -> tuple[ArrayRows, ArrayRows, FloatArray]:
    """Two neighbouring tables and, (columns, 2), the rows of the unit that changes, and what is in its place."""
    rng = np.random.default_rng(5)  # noqa: TID251 - the audit's tables are fixed
    _, names, target = _MODELS[model]
    count = len(names) + bool(target)
    base = rng.uniform(-0.6, 0.6, size=(count, BASE))
    if target:
        base[-1] = 0.5 * base[0] * np.where(np.arange(BASE) % 2, 1.0, -1.0) + 0.05 * rng.normal(size=BASE)
    else:
        base = rng.normal(0.0, 0.1, size=base.shape)
        base[0] += np.where(np.arange(BASE) % 2, 0.5, -0.5)
    broken = np.array([np.roll(BROKEN, i) for i in range(count)])
    far = _in_units(model, np.array([unit.here, unit.there]).T)
    fixed = np.hstack([_in_units(model, base), broken])
    here, there = (np.hstack([fixed, np.tile(one[:, None], (1, cap))]) for one in far.T)
    if adjacency is AR:
        return ArrayRows(here), ArrayRows(fixed), far
    return ArrayRows(here), ArrayRows(there), far


def _in_units(model: str, z: FloatArray) -> FloatArray:
    """Convert half-widths about the middle of the bounds to the data's own units, (columns, n)."""
    _, names, target = _MODELS[model]
    found = {column.name: column for column in COLUMNS}
    columns = [found[name] for name in (*names, *([target] if target else []))]
    middle, half = (np.array([(c.upper + s * c.lower) / 2 for c in columns])[:, None] for s in (1, -1))
    return np.asarray(middle + half * z)


def _nulls(model: str, far: FloatArray) -> FloatArray:
    """The same rows without their first number where it may be missing; (columns, 2) or none."""
    return np.vstack([np.full((1, 2), np.nan), far[1:]]) if model == "missing" else far[:, :0]


def numbers_of(model: object) -> FloatArray:
    """Every number of a released model."""
    if not isinstance(model, fit_pb2.GradientEMModel):
        raise TypeError(f"expected a GradientEMModel, got {type(model).__name__}")
    tensors = (
        model.weights,
        model.coefficients,
        model.intercepts,
        model.noise_std,
        model.coefficient_errors,
        model.intercept_errors,
        model.iterates,
        model.scales,
        model.feature_means,
        model.feature_std,
        model.feature_covariance,
        model.radii.counts,
    )
    rest = [model.iterations, model.averaged, model.step_size, model.n_rows, model.variant]
    return np.array([*rest, *(value for tensor in tensors for value in tensor.values)], dtype=np.float64)


RECENTRED = fit_pb2.GRADIENT_VARIANT_RECENTRED
TRUNCATED: Fields = {"variant": fit_pb2.GRADIENT_VARIANT_TRUNCATED, "scale": SMALL}
RADIAL: Fields = {"variant": fit_pb2.GRADIENT_VARIANT_RADIAL}
CLIPPED: Fields = {"variant": fit_pb2.GRADIENT_VARIANT_CLIPPED, "scale": SMALL}
DP_EM: Fields = {"variant": fit_pb2.GRADIENT_VARIANT_DP_EM}
ESTIMATED: Fields = {"noise_std": 0.0}
RANDOM: Fields = {"random": fit_pb2.StartAtRandom(public_seed=3)}
SYMMETRIC: Fields = {"symmetric": True}
BARE: Fields = {"without_intercept": True}
ALONE: Fields = {"n_components": 1}
OPENED: Fields = {"given": None}
"""A mixture that starts by private splitting."""

TARGETS: dict[str, Callable[[], Target]] = {
    "symmetric, recentred, add or remove": lambda: fit_gradient_em(AR, "symmetric"),
    "symmetric, recentred, replace": lambda: fit_gradient_em(RO, "symmetric"),
    "symmetric, noise estimated, random start, replace": lambda: fit_gradient_em(
        RO, "symmetric", **(ESTIMATED | RANDOM)
    ),
    "symmetric, the paper's weights, centre, radial, add or remove": lambda: fit_gradient_em(
        AR, "symmetric", paper_weights=True, centre=types_pb2.Tensor(shape=[2], values=[0.5, 0.25]), **RADIAL
    ),
    "symmetric, truncated, add or remove": lambda: fit_gradient_em(AR, "symmetric", **TRUNCATED),
    "symmetric, truncated, replace": lambda: fit_gradient_em(RO, "symmetric", **TRUNCATED),
    "symmetric, truncated, defaults, replace": lambda: fit_gradient_em(
        RO, "symmetric", **(TRUNCATED | ESTIMATED | {"scale": 0.0})
    ),
    "symmetric, clipped, replace": lambda: fit_gradient_em(RO, "symmetric", **CLIPPED),
    "symmetric, dp_em, add or remove": lambda: fit_gradient_em(AR, "symmetric", **DP_EM),
    "symmetric, units of three rows, replace": lambda: fit_gradient_em(RO, "symmetric", cap=3),
    "symmetric, Laplace, truncated, replace": lambda: fit_gradient_em(RO, "symmetric", spend=PURE, **TRUNCATED),
    "symmetric, small spend, add or remove": lambda: fit_gradient_em(
        AR, "symmetric", iterations=4, spend=types_pb2.Spend(rho=0.05)
    ),
    "mixture, recentred, add or remove": lambda: fit_gradient_em(AR, "mixture"),
    "mixture, recentred, replace": lambda: fit_gradient_em(RO, "mixture"),
    "mixture, noise estimated, random start, add or remove": lambda: fit_gradient_em(
        AR, "mixture", n_components=3, **(ESTIMATED | RANDOM)
    ),
    "mixture, private start, add or remove": lambda: fit_gradient_em(AR, "mixture", **OPENED),
    "mixture, private start, Laplace, replace": lambda: fit_gradient_em(RO, "mixture", spend=PURE, **OPENED),
    "mixture, units of their own, radial, replace": lambda: fit_gradient_em(
        RO, "mixture", units=fit_pb2.COLUMN_UNITS_BOUNDS, **RADIAL
    ),
    "mixture, truncated, replace": lambda: fit_gradient_em(RO, "mixture", **TRUNCATED),
    "mixture, clipped, add or remove": lambda: fit_gradient_em(AR, "mixture", **CLIPPED),
    "mixture, dp_em, replace": lambda: fit_gradient_em(RO, "mixture", **DP_EM),
    "mixture, units of three rows, add or remove": lambda: fit_gradient_em(AR, "mixture", cap=3),
    "mixture, Laplace, add or remove": lambda: fit_gradient_em(AR, "mixture", spend=PURE),
    "regressions, recentred, add or remove": lambda: fit_gradient_em(AR, "regressions"),
    "regressions, recentred, replace": lambda: fit_gradient_em(RO, "regressions"),
    "regressions, three, noise estimated, replace": lambda: fit_gradient_em(
        RO, "regressions", n_components=3, **(ESTIMATED | RANDOM)
    ),
    "regressions, one, radial, replace": lambda: fit_gradient_em(RO, "regressions", **(ALONE | RADIAL)),
    "regressions, one, truncated, no intercept, replace": lambda: fit_gradient_em(
        RO, "regressions", iterations=1, **(ALONE | BARE | TRUNCATED)
    ),
    "regressions, symmetric, add or remove": lambda: fit_gradient_em(AR, "regressions", **SYMMETRIC),
    "regressions, symmetric, truncated, replace": lambda: fit_gradient_em(RO, "regressions", **(SYMMETRIC | TRUNCATED)),
    "regressions, symmetric, the paper's weights, clipped, replace": lambda: fit_gradient_em(
        RO, "regressions", paper_weights=True, **(SYMMETRIC | CLIPPED)
    ),
    "regressions, units of three rows, replace": lambda: fit_gradient_em(RO, "regressions", cap=3),
    "regressions, Laplace, replace": lambda: fit_gradient_em(RO, "regressions", spend=PURE),
    "missing, recentred, add or remove": lambda: fit_gradient_em(AR, "missing"),
    "missing, recentred, replace": lambda: fit_gradient_em(RO, "missing"),
    "missing, noise estimated, add or remove": lambda: fit_gradient_em(AR, "missing", **ESTIMATED),
    "missing, truncated, add or remove": lambda: fit_gradient_em(AR, "missing", **TRUNCATED),
    "missing, radial, replace": lambda: fit_gradient_em(RO, "missing", **RADIAL),
    "missing, clipped, replace": lambda: fit_gradient_em(RO, "missing", **CLIPPED),
    "missing, units of three rows, add or remove": lambda: fit_gradient_em(AR, "missing", cap=3),
    "missing, Laplace, add or remove": lambda: fit_gradient_em(AR, "missing", spend=PURE),
}
"""Targets of an audit of FitGradientEM."""

QUICK = frozenset(
    {
        "symmetric, recentred, replace",
        "mixture, recentred, add or remove",
        "mixture, private start, add or remove",
        "regressions, one, truncated, no intercept, replace",
        "missing, recentred, add or remove",
        "missing, Laplace, add or remove",
    }
)
"""Audited in the short runs, too."""
