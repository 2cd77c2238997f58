"""FitDPEM under audit, from request to released model: both adjacencies, mixtures, k-means, both laws, every start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from bursar_ledger import Adjacency
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, PublicTable, dpem
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_bounds, moment_statistic
from bursar_server.vault import ArrayRows, Session, event_of, gaussian_for, sensitivity
from tests.audit.harness import extremes
from tests.audit.moments import reference
from tests.audit.target import Target

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE

RHO = types_pb2.Spend(rho=2.0)
"""So that mu = 2, where tests have the most power."""

LITTLE = types_pb2.Spend(rho=0.001)

PURE = types_pb2.Spend(epsilon=6.0)

_FULL = np.tile(0.03 * np.eye(2), (2, 1, 1))
COVARIANCES = {
    None: np.full(2, 0.03),
    fit_pb2.COVARIANCE_TYPE_UNSPECIFIED: _FULL,
    fit_pb2.COVARIANCE_TYPE_FULL: _FULL,
    fit_pb2.COVARIANCE_TYPE_TIED: 0.03 * np.eye(2),
    fit_pb2.COVARIANCE_TYPE_DIAG: np.full((2, 2), 0.03),
    fit_pb2.COVARIANCE_TYPE_SPHERICAL: np.full(2, 0.03),
}
"""Spheres of variance 0.03 as each type has them; None is k-means."""


def pair(adjacency: Adjacency, cap: int) -> tuple[ArrayRows, ArrayRows]:
    """Two clusters of 24 rows, and a unit of `cap` rows far out: present or absent, or as far out at a right angle."""
    rng = np.random.default_rng(5)  # noqa: TID251 - the audit's tables are fixed
    clusters = np.hstack([rng.normal([[x], [0.0]], 0.12, size=(2, 24)) for x in (-0.45, 0.45)])
    here, there = (np.hstack([clusters, np.full((2, cap), [[x], [1e3]])]) for x in (1e3, -1e3))
    if adjacency is RO:
        return ArrayRows(here), ArrayRows(there)
    return ArrayRows(here), ArrayRows(clusters)


def given_start(request: fit_pb2.FitDPEMRequest) -> fit_pb2.StartGiven:
    """Two components, left and right of the middle, so small that far rows are clipped."""
    means = types_pb2.Tensor(shape=[2, 2], values=[-0.45, 0.0, 0.45, 0.0])
    spheres = COVARIANCES[request.covariance_type if request.mode != fit_pb2.MODE_KMEANS else None]
    tensor = types_pb2.Tensor(shape=spheres.shape, values=spheres.ravel().tolist())
    return fit_pb2.StartGiven(means=means, covariances=tensor)


def wider(rows: ArrayRows, columns: int) -> ArrayRows:
    """The rows with columns of zeros besides."""
    return ArrayRows(np.vstack([rows.columns, np.zeros((columns - 2, rows.slots))]))


def fit_dpem(
    adjacency: Adjacency,
    *,
    cap: int = 1,
    split: bool = False,
    iterations: int = 3,
    columns: int = 2,
    declared: int | None = None,
    **fields: object,
) -> Target:
    """FitDPEM with two components on columns whose ball is the unit ball.

    Args:
        adjacency: of the pair.
        cap: rows of a privacy unit.
        split: the private start instead of a given one.
        iterations: steps in all.
        columns: number of columns, two or more.
        declared: number of rows that the owner declared under ADD_REMOVE_ONE.
        fields: of the request, besides.
    """
    rows, neighbour = (wider(one, columns) for one in pair(adjacency, cap))
    bounded = tuple(BoundedColumn(f"x{i}", -1.0, 1.0) for i in range(columns))
    table = PublicTable("audit", bounded, adjacency, cap, rows.slots if adjacency is RO else declared)
    request = fit_pb2.FitDPEMRequest(n_components=2, iterations=iterations, clip_radius=1.0)
    # Far rows go to a background, and no longer change a release by its whole sensitivity.
    usual: dict[str, object] = {"spend": RHO, "background": fit_pb2.BACKGROUND_OFF}
    request.MergeFrom(fit_pb2.FitDPEMRequest(**(usual | fields)))  # type: ignore[arg-type] # checked by protobuf
    if not split:
        request.given.CopyFrom(given_start(request))
    plan = dpem.plan(request, table, lambda entry: None)

    def run(session: Session) -> fit_pb2.GaussianMixtureModel:
        return dpem.run(plan, session)

    return Target(
        name=f"FitDPEM {adjacency.value}",
        adjacency=adjacency,
        rows=rows,
        neighbour=neighbour,
        events=plan.events,
        run=run,
        reference=reference,
        features=numbers_of,
        extremes=extremes(columns, *(np.pad(row, (0, columns - 2)) for row in far_rows())),
        unit_cap=cap,
    )


def one_or_background(adjacency: Adjacency, *, paid: bool = True) -> Target:
    """One release of a component beside a background, with precise counts; the odd row is of the one or of the other.

    Args:
        adjacency: of the pair.
        paid: False to leave the count of the background out of the sensitivity, as it was without one.
    """
    rows, neighbour = pair(adjacency, 1)
    if adjacency is RO:  # in the component, or far from it
        neighbour = ArrayRows(np.hstack([rows.columns[:, :-1], [[0.0], [0.0]]]))
    means, eye, weights = np.zeros((1, 2)), 4.0 * np.eye(2)[None], Weights(1.0, 0.1, 0.1)
    step = EStep(False, np.array([0.0, -4.0]), means, eye, True, means, eye)
    statistic = moment_statistic(BallFrame(np.zeros(2), np.ones(2)), step, Moments.FULL, weights)
    statistic = replace(statistic, bounds=moment_bounds(1, 2, Moments.FULL, weights, background=paid))
    claimed = sensitivity(statistic.bounds, adjacency, 1)
    noise = gaussian_for(claimed, Fraction(2))
    return Target(
        name=f"one component and a background, {adjacency.value}",
        adjacency=adjacency,
        rows=rows,
        neighbour=neighbour,
        events=(event_of(claimed, noise),),
        run=lambda session: session.noisy_sum(statistic, noise),
        reference=reference,
        features=lambda sums: np.asarray(sums),
        extremes=extremes(2, *far_rows()),
    )


def far_rows() -> list[FloatArray]:
    """Rows in eight directions, inside, on and far outside the public ball."""
    angles = np.arange(8) * np.pi / 4
    return [radius * np.array([np.cos(a), np.sin(a)]) for radius in (0.4, 1.0, 1e3) for a in angles]


def numbers_of(model: object) -> FloatArray:
    """Every number of a released mixture."""
    if not isinstance(model, fit_pb2.GaussianMixtureModel):
        raise TypeError(f"expected a GaussianMixtureModel, got {type(model).__name__}")
    report = model.report  # empty unless a k-means has one
    parts = (model.weights, model.means, model.covariances, report.counts, report.sums, report.squares)
    return np.array([*(value for part in parts for value in part.values), model.n_rows, model.background_weight])


_FULL_TYPE, _TIED, _DIAG = (getattr(fit_pb2, f"COVARIANCE_TYPE_{kind}") for kind in ("FULL", "TIED", "DIAG"))
_ON = fit_pb2.BACKGROUND_ON
_SPHERES = fit_pb2.COVARIANCE_TYPE_SPHERICAL
_FIXED, _KMEANS = fit_pb2.MOMENTS_FIXED_ORIGIN, fit_pb2.MODE_KMEANS
_POSTERIOR = fit_pb2.ESTIMATOR_MAXIMUM_A_POSTERIORI

TARGETS: dict[str, Callable[[], Target]] = {
    "full, add or remove": lambda: fit_dpem(AR, covariance_type=_FULL_TYPE),
    "full, replace": lambda: fit_dpem(RO, covariance_type=_FULL_TYPE),
    "units of three rows, add or remove": lambda: fit_dpem(AR, cap=3),
    "units of two rows, replace": lambda: fit_dpem(RO, cap=2, mode=_KMEANS),
    "small spend, add or remove": lambda: fit_dpem(AR, spend=types_pb2.Spend(rho=0.05)),
    "fixed origin, add or remove": lambda: fit_dpem(AR, moments=_FIXED),
    "fixed origin, replace": lambda: fit_dpem(RO, moments=_FIXED),
    # Noise so large that clip radii end within the ball.
    "diagonal, one step, replace": lambda: fit_dpem(RO, covariance_type=_DIAG, iterations=1, spend=LITTLE),
    "background, add or remove": lambda: fit_dpem(AR, background=_ON, split=True, iterations=5),
    "background, replace": lambda: fit_dpem(RO, background=_ON),
    "background, tied, add or remove": lambda: fit_dpem(AR, background=_ON, covariance_type=_TIED),
    "background, diagonal, replace": lambda: fit_dpem(RO, background=_ON, covariance_type=_DIAG),
    "background, spherical, add or remove": lambda: fit_dpem(AR, background=_ON, covariance_type=_SPHERES),
    "background, Laplace, replace": lambda: fit_dpem(RO, background=_ON, spend=PURE),
    "background, one component, replace": lambda: fit_dpem(RO, background=_ON, split=True, n_components=1),
    "background, one component, tied, add or remove": lambda: fit_dpem(
        AR, background=_ON, split=True, n_components=1, covariance_type=_TIED
    ),
    "precise counts beside a background, add or remove": lambda: one_or_background(AR),
    "precise counts beside a background, replace": lambda: one_or_background(RO),
    "full, one step, add or remove": lambda: fit_dpem(AR, iterations=1, spend=LITTLE),
    "tied, maximum a posteriori, add or remove": lambda: fit_dpem(AR, covariance_type=_TIED, estimator=_POSTERIOR),
    "split start, add or remove": lambda: fit_dpem(AR, split=True, iterations=5),
    "split start, replace": lambda: fit_dpem(RO, split=True, iterations=4),
    "k-means, add or remove": lambda: fit_dpem(AR, mode=_KMEANS),
    "k-means, grid, add or remove": lambda: fit_dpem(AR, mode=_KMEANS, split=True, iterations=2, declared=48),
    "k-means, grid, replace": lambda: fit_dpem(RO, mode=_KMEANS, split=True, iterations=2),
    "k-means, cells after a grid, replace": lambda: fit_dpem(
        RO, mode=_KMEANS, split=True, iterations=5, spend=types_pb2.Spend(rho=1e3)
    ),
    "k-means, more cells than there are, add or remove": lambda: fit_dpem(
        AR, mode=_KMEANS, split=True, iterations=7, columns=3, declared=48
    ),
    "k-means, two grids, replace": lambda: fit_dpem(RO, mode=_KMEANS, split=True, iterations=5, columns=3),
    "k-means, split start, replace": lambda: fit_dpem(RO, mode=_KMEANS, split=True, iterations=5, columns=4),
    "k-means, Laplace, add or remove": lambda: fit_dpem(
        AR, mode=_KMEANS, split=True, iterations=5, columns=3, declared=48, spend=PURE
    ),
    "k-means, fixed origin, replace": lambda: fit_dpem(RO, mode=_KMEANS, moments=_FIXED),
    "Laplace, add or remove": lambda: fit_dpem(AR, spend=PURE, iterations=2),
    # Here, too, noise has to be so large that clip radii end within the ball.
    "Laplace, replace": lambda: fit_dpem(RO, spend=types_pb2.Spend(epsilon=0.3), iterations=2),
}
"""Targets of an audit of FitDPEM."""

QUICK = frozenset(
    {
        "full, replace",
        "diagonal, one step, replace",
        "tied, maximum a posteriori, add or remove",
        "split start, replace",
        "background, replace",
        "precise counts beside a background, replace",
        "k-means, add or remove",
        "Laplace, replace",
    }
)
"""Audited in the short runs, too: each kernel, both kinds of noise, both adjacencies."""
