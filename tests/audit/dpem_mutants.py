"""Planted bugs of FitDPEM, and the tests of the audit that must see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits.mixtures.statistics import Moments
from bursar_server.vault import ArrayRows, Noise, OpenDPNoise, Session, Statistic
from tests.audit.dpem import AR, PURE, RO, fit_dpem, one_or_background
from tests.audit.faults import (
    Blind,
    Common,
    Integers,
    Mutant,
    Raw,
    Reused,
    Seeded,
    columns_of,
    mispriced,
    planted,
    recounting,
    scaled,
    stopping,
    taking_nulls,
    telling,
    telling_true_n,
    uncapped,
    with_noise,
)
from tests.audit.moments import about_centre, contributions, shares_of
from tests.audit.target import Target
from tests.server.fits.running import NoNoise

ADD_REMOVE, REPLACE = fit_dpem(AR), fit_dpem(RO)
GRID = fit_dpem(AR, mode=fit_pb2.MODE_KMEANS, split=True, iterations=1, declared=48)
HALVES = fit_dpem(RO, mode=fit_pb2.MODE_KMEANS, split=True, iterations=5, columns=3)
MUCH = types_pb2.Spend(rho=1e3)
AFTER_GRID = fit_dpem(AR, mode=fit_pb2.MODE_KMEANS, split=True, iterations=5, declared=48, spend=MUCH)
CELLS = fit_dpem(AR, mode=fit_pb2.MODE_KMEANS, split=True, iterations=7, columns=3, declared=48)


class OneSided(OpenDPNoise):
    """Noise of the right size that only adds, as Gamma and Wishart noise do (Park et al. 2016, equations 16 to 18)."""

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        return sums + np.abs(OpenDPNoise().add(np.zeros_like(sums), noise))


class ScaledByCount(OpenDPNoise):
    """Noise that is larger where a component is emptier (equation 15 there prints the true N_k)."""

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        least = float(sums[:2].min()) / 2.0**36
        return OpenDPNoise().add(sums, type(noise)(noise.scale * (1.0 + 1.0 / (1.0 + 4.0 * least))))


class RawReport(Raw):
    """The fit gets the raw sums of the report alone: those with diagonal second moments."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
        """See `Session`."""
        kernel: Any = statistic.kernel
        if kernel.moments is Moments.DIAG:
            return super().noisy_sum(statistic, noise)
        return Session.noisy_sum(self, statistic, noise)


def with_piece(name: str, piece: Callable[..., FloatArray]) -> Callable[..., Session]:
    """Sessions whose statistics have one piece of their kernel replaced."""
    return recounting(lambda kernel, rows, slots: contributions(kernel, rows, **{name: piece}))


# Pieces of the kernel


def unclipped(step: Any, k: int, z: FloatArray) -> FloatArray:
    """Positions about the centre, as long as they like."""
    return np.asarray((z - step.centres[k]) @ step.whiteners[k].T)


def clipped_wide(step: Any, k: int, z: FloatArray) -> FloatArray:
    """Positions about the centre, clipped to a ball of radius 1.5."""
    u = unclipped(step, k, z)
    return np.asarray(u / np.maximum(1.0, np.linalg.norm(u, axis=1, keepdims=True) / 1.5))


def about_a_far_mean(step: Any, k: int, z: FloatArray) -> FloatArray:
    """Residuals about a noised mean of norm 3 that is subtracted after the clip: their norm reaches 4."""
    return np.asarray(about_centre(step, k, z) - np.array([3.0, 0.0]))


def copied(step: Any, z: FloatArray) -> FloatArray:
    """Assignments to the two nearest cells, each with the whole row."""
    distances = np.linalg.norm(z[:, None, :] - step.means, axis=2)
    return np.asarray(np.argsort(np.argsort(distances, axis=1), axis=1) < 2, dtype=np.float64)


def beyond_one(step: Any, z: FloatArray) -> FloatArray:
    """Responsibilities of the components that sum to one, and the background's besides."""
    shares = shares_of(step, z)
    if not step.background:
        return shares
    rest = shares[:, -1:]
    return np.asarray(np.hstack([shares[:, :-1] / np.maximum(1.0 - rest, 1e-12), rest]))


def unfloored(step: Any, z: FloatArray) -> FloatArray:
    """Responsibilities from an indefinite covariance: the density of the second component is negative."""
    offsets = z[:, None, :] - step.means
    log = step.log_scale - 0.5 * np.square(np.einsum("kij,nkj->nki", step.factors, offsets)).sum(axis=2)
    density = np.exp(log - log.max(axis=1, keepdims=True)) * np.array([1.0, -0.6]) + np.array([0.0, 0.3])
    return np.asarray(density / density.sum(axis=1, keepdims=True))


def mutants() -> list[Mutant]:
    """Every planted bug that applies to FitDPEM."""
    return [*wrong_sizes(), *wrong_sensitivities(), *wrong_laws(), *wrong_flows()]


def wrong_sizes() -> list[Mutant]:
    """Too little noise, or too much."""
    laplace = fit_dpem(RO, spend=PURE, iterations=2)
    unsplit = replace(ADD_REMOVE, session=with_noise(3**-0.5), meter=Blind)
    return [
        planted("noise x 0.5", scaled(ADD_REMOVE, 0.5), "T1 energy", "T2 distinguish", n=200, slow=True),
        planted("noise x 0.7", scaled(REPLACE, 0.7), "T1 energy", n=20),
        planted("noise x 0.9", scaled(REPLACE, 0.9), "T1 energy", n=60),
        planted("Laplace noise x 0.7", scaled(laplace, 0.7), "T1 energy", n=20),
        planted("noise x 1.5", scaled(ADD_REMOVE, 1.5), "T1 waste", n=20),
        planted("no noise", replace(ADD_REMOVE, source=NoNoise), "T1 energy", "T2 distinguish", n=50),
        planted("spend not split over T", unsplit, "T1 energy", "T2 distinguish", "T5 arithmetic", n=300, slow=True),
        planted("noise scaled by a true count", replace(lonely(), source=ScaledByCount), "T1 sides", n=150, slow=True),
    ]


def wrong_sensitivities() -> list[Mutant]:
    """Rows that change a release more than was debited."""
    # k-means about a fixed origin: here far rows differ by the whole sensitivity in every step
    kmeans, fixed = fit_pb2.MODE_KMEANS, fit_pb2.MOMENTS_FIXED_ORIGIN
    origin = mispriced(*(fit_dpem(adjacency, mode=kmeans, moments=fixed) for adjacency in (AR, RO)))
    units = uncapped(ADD_REMOVE, fit_dpem(AR, cap=3))
    # In k-means clip radii end within the ball at any spend.
    unclipped_ball = replace(fit_dpem(AR, mode=kmeans), session=with_piece("offsets", unclipped))
    wide_ball = replace(fit_dpem(RO, mode=kmeans), session=with_piece("offsets", clipped_wide))
    far_mean = replace(ADD_REMOVE, session=with_piece("offsets", about_a_far_mean))
    two_bins, two_halves, two_cells, two_after = (
        replace(target, session=with_piece("shares", copied)) for target in (GRID, HALVES, CELLS, AFTER_GRID)
    )
    alone = replace(one_or_background(RO, paid=False), meter=Blind)
    several = fit_dpem(AR, background=fit_pb2.BACKGROUND_ON, split=True, iterations=5)
    sharing = replace(several, session=with_piece("shares", beyond_one))
    negative = replace(ADD_REMOVE, session=with_piece("shares", unfloored))
    report = fit_dpem(AR, mode=kmeans)
    unpaid = replace(report, events=report.events[:-1], meter=Blind)
    priced = ("T2 distinguish", "T4 sensitivity", "T5 arithmetic")
    told = ("T0 agreement", "T2 distinguish", "T4 sensitivity")
    return [
        planted("add-remove sensitivity on a replace pair", origin, *priced, n=550, slow=True),
        planted("unit cap ignored", units, *priced, n=90, slow=True),
        planted("clip removed", unclipped_ball, *told, n=100, slow=True),
        planted("clip x 1.5", wide_ball, *told, n=1_400, slow=True),
        planted("scatter about the noised mean", far_mean, *told, n=50, slow=True),
        planted("a row in two bins", two_bins, "T0 agreement", "T4 sensitivity", n=10, slow=True),
        planted("a row in two halves", two_halves, "T0 agreement", "T4 sensitivity", n=10, slow=True),
        planted("a row in two cells", two_cells, "T0 agreement", "T4 sensitivity", n=10, slow=True),
        planted("a row in two cells after a grid", two_after, "T0 agreement", "T4 sensitivity", n=10, slow=True),
        planted("a report that no one paid for", unpaid, "T5 arithmetic", n=10),
        planted("a background that no one paid for", alone, "T4 sensitivity", n=10),
        planted("shares and a background beyond one", sharing, "T0 agreement", "T4 sensitivity", n=10),
        planted("indefinite covariance in the E-step", negative, "T0 agreement", "T4 sensitivity", n=10),
        planted("a row without a value counts", lacking(0.0), "T0 agreement", n=10),
        planted("a missing value reaches the sums", lacking(None), "T0 agreement", "T4 sensitivity", n=10),
    ]


def wrong_laws() -> list[Mutant]:
    """Noise of the right size that is not independent, or not centred."""
    return [
        planted("noise used again in every step", replace(ADD_REMOVE, source=Reused), "T3 whiteness", n=25),
        planted("noise from a seed", replace(REPLACE, source=Seeded), "T3 whiteness", n=50),
        planted("one draw for all coordinates", replace(REPLACE, source=Common), "T3 whiteness", n=50),
        planted("one-sided noise", replace(ADD_REMOVE, source=OneSided), "T3 whiteness", n=25),
    ]


def wrong_flows() -> list[Mutant]:
    """True values that reach the model, or decide what is done."""
    one, clusters = fit_dpem(AR, iterations=1), fit_dpem(AR, mode=fit_pb2.MODE_KMEANS)
    halting = stopping(ADD_REMOVE, fit_dpem(AR, iterations=2), lambda columns: columns[0].mean() > 0)
    return [
        planted("raw value returned", replace(one, session=Raw), "T6 black box", "T7 replay", n=80),
        planted("bins kept by their true counts", replace(GRID, session=Raw), "T7 replay", n=10),
        planted("bins halved by their true counts", replace(HALVES, session=Raw), "T7 replay", n=10),
        planted("cells where the true counts of bins are", replace(AFTER_GRID, session=Raw), "T7 replay", n=10),
        planted("a report without noise", replace(clusters, session=RawReport), "T7 replay", n=10),
        planted("cells split by their true moments", replace(CELLS, session=Raw), "T7 replay", n=10),
        planted("division by the true n", telling_true_n(ADD_REMOVE), "T7 replay", n=10),
        planted("the true n, 1 or 2", telling_true_n(tiny()), "T6 black box", "T7 replay", n=50),
        planted("the number of slots in the model", telling_slots(ADD_REMOVE), "T7 replay", n=10),
        planted("parity of the slots in the progress", telling_parity(ADD_REMOVE), "T7 replay", n=10),
        planted("steps until convergence", halting, "T7 replay", "form", n=10),
    ]


def lonely() -> Target:
    """One step on a table whose second component holds the changed row alone."""
    target = fit_dpem(AR, iterations=1)
    columns = target.rows.columns[:, np.r_[0:24, 48]]
    return replace(target, rows=ArrayRows(columns), neighbour=ArrayRows(columns[:, :24]))


def one_row_or_two() -> tuple[ArrayRows, ArrayRows]:
    """A table of two rows, and the same without the second, which is far out."""
    rows = np.array([[-0.45, 1e3], [0.0, 1e3]])
    return ArrayRows(rows), ArrayRows(rows[:, :1])


def lacking(value: float | None) -> Target:
    """Both tables with rows that have no value in the first column, which count (see `Nullable`)."""
    holes = np.array([[np.nan] * 3, [0.0] * 3])
    rows, neighbour = (ArrayRows(np.hstack([holes, one.columns])) for one in (ADD_REMOVE.rows, ADD_REMOVE.neighbour))
    return replace(ADD_REMOVE, rows=rows, neighbour=neighbour, session=taking_nulls(value))


def tiny() -> Target:
    """One step on two rows or one, where the number of rows is most of what there is to know."""
    rows, neighbour = one_row_or_two()
    return replace(fit_dpem(AR, iterations=1), rows=rows, neighbour=neighbour)


def telling_slots(target: Target) -> Target:
    """The number of slots in the model, which under ADD_REMOVE_ONE is that of the rows."""

    def tell(model: Any, session: Session) -> None:
        model.n_rows += columns_of(session).shape[1]

    return telling(target, tell)


def telling_parity(target: Target) -> Target:
    """One step more in the totals of progress where the number of slots is odd."""

    def run(session: Session) -> object:
        progress = session.progress
        session.progress = lambda step, steps: progress(step, steps + columns_of(session).shape[1] % 2)
        return target.run(session)

    return replace(target, run=run)
