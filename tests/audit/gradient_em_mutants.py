"""Planted bugs of FitGradientEM, and the tests of the audit that must see them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from scipy import special

from bursar_models.arrays import FloatArray
from bursar_server.fits import gradient_em
from bursar_server.fits.gradient_em._statistics import GradientKernel, Shape, Transform, gradient_bounds
from bursar_server.vault import Bounds, GaussianNoise, Noise, Session, Statistic, event_of, exact_sum, sensitivity
from tests.audit.faults import (
    Blind,
    Common,
    Mutant,
    Raw,
    Recount,
    Reused,
    Seeded,
    columns_of,
    mispriced,
    planted,
    scaled,
    stopping,
    taking_nulls,
    tampering,
    telling_true_n,
    uncapped,
    unpaid,
    with_noise,
)
from tests.audit.gradient_em import (
    ALONE,
    AR,
    BARE,
    BASE,
    BROKEN,
    OPENED,
    PURE,
    RO,
    TRUNCATED,
    Fields,
    fit_gradient_em,
    is_of_start,
    planned,
)
from tests.audit.gradient_em_reference import (
    Parts,
    Pieces,
    Rows,
    bounded,
    by_radius,
    catoni,
    contributions,
    limit_of,
    mixture,
)
from tests.audit.target import Target

BOXED: Fields = BARE | ALONE | TRUNCATED
"""One regression on two features, every coordinate of whose gradient is truncated."""

TAU = 100.0
"""Second moments are declared to be far larger than they are."""


# Sessions that tamper


def with_pieces(**pieces: Any) -> Callable[..., Session]:
    """Sessions whose gradients are the reference's, with some of its pieces replaced."""

    def change(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
        kernel, other = statistic.kernel, Pieces(**pieces)
        if is_gradient(statistic):
            made = Recount(kernel, statistic.lattice, lambda rows, slots: contributions(kernel, rows, other))
            statistic = replace(statistic, kernel=made)
        return statistic, noise

    return tampering(change)


def is_gradient(statistic: Statistic) -> bool:
    """Return whether a statistic is a step's, and not the first look's."""
    return isinstance(statistic.kernel, GradientKernel)


def cumulated(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
    """Counts of the rows that are beyond each edge, under the bounds of counts between two edges."""
    kernel = statistic.kernel
    if hasattr(kernel, "edges"):

        def beyond(columns: FloatArray, slots: object) -> FloatArray:
            return np.asarray(np.cumsum(by_radius(kernel, columns)[:, ::-1], axis=1)[:, ::-1])

        statistic = replace(statistic, kernel=Recount(kernel, statistic.lattice, beyond))
    return statistic, noise


class ExactCounts(Session):
    """A fit that divides by the true number of rows: the tap sees a noisy count, the fit has the exact one."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
        """See `Session`."""
        noisy, exact = super().noisy_sum(statistic, noise), exact_sum(statistic, self._rows, self._columns)
        noisy[0] = exact[0] * statistic.lattice
        return noisy


class RadiusFromRows(Session):
    """Radii that follow how far the rows are spread."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
        """See `Session`."""
        kernel = statistic.kernel
        if isinstance(kernel, GradientKernel):
            spread = np.nanmedian(np.abs(columns_of(self)))
            arguments = list(kernel.arguments)
            arguments[4] = arguments[4] * (1.0 + float(np.clip(spread, 0.0, 1.0)))
            statistic = replace(statistic, kernel=replace(kernel, arguments=tuple(arguments)))
        return super().noisy_sum(statistic, noise)


class RawStart(Raw):
    """The fit gets the raw sums of the private start alone."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
        """See `Session`."""
        if is_of_start(statistic):
            return super().noisy_sum(statistic, noise)
        return Session.noisy_sum(self, statistic, noise)


# Pieces of a row's contribution


def unbounded(vectors: FloatArray, shape: Shape, rows: Rows) -> FloatArray:
    """Gradients as long as they like."""
    return vectors


def bounded_wide(vectors: FloatArray, shape: Shape, rows: Rows) -> FloatArray:
    """Gradients of norm up to 1.5."""
    return np.asarray(1.5 * bounded(vectors / 1.5, shape, rows))


def literal(vectors: FloatArray, shape: Shape, rows: Rows) -> FloatArray:
    """Equation 12 with the correction of appendix D as they are printed, without a clamp."""
    a = np.where(vectors == 0, 1e-8, vectors)
    b = np.abs(a) / shape.root_beta
    low, high = (2**0.5 - a) / b, (2**0.5 + a) / b
    below, above = special.ndtr(-low), special.ndtr(-high)
    with np.errstate(under="ignore"):
        first, second = np.exp(-(low**2) / 2), np.exp(-(high**2) / 2)
    root = math.sqrt(2 * math.pi)
    correction = catoni(np.inf) * (below - above) - (a - a**3 / 6) * (below + above)
    correction += b / root * (1 - a**2 / 2) * (second - first)
    correction += a * b**2 / 2 * (above + below + (high * second + low * first) / root)
    correction += b**3 / (6 * root) * ((2 + low**2) * first - (2 + high**2) * second)
    return np.asarray((a * (1 - b**2 / 2) - a**3 / 6 + correction) / limit_of(shape.root_beta))


def as_if_complete(vectors: FloatArray, shape: Shape, rows: Rows) -> FloatArray:
    """Bounded gradients, divided by the share of a row's numbers that are there."""
    share = 1.0 - rows.missing.mean(axis=1)
    return np.asarray(bounded(vectors, shape, rows) / share[:, None, None])


def nulls_twice(rows: Rows) -> FloatArray:
    """Rows with something missing count 2."""
    return np.asarray(1.0 + rows.missing.any(axis=1))


def unnormalised(logs: FloatArray) -> FloatArray:
    """Densities for responsibilities."""
    return np.asarray(np.exp(logs))


def about_the_means(kernel: Any, rows: Rows) -> Parts:
    """Truncates y - b where only y is to be truncated; no bug of privacy, but not what the fit says."""
    arguments = list(kernel.arguments)
    arguments[3] = arguments[2]
    return mixture(rows, *arguments)


def unclipped(residuals: FloatArray) -> FloatArray:
    """Squared residuals as large as they like."""
    return residuals


# Wrong bounds


def rebounded(target: Target, right: Bounds, wrong: Bounds) -> Target:
    """Gradients under bounds that are wrong, with the noise and the price that follow from them."""
    noise = GaussianNoise(float(target.claims[1].scale) * math.sqrt(wrong.l2_squared / right.l2_squared))
    event = event_of(sensitivity(wrong, target.adjacency, target.unit_cap), noise)

    def change(statistic: Statistic, asked: Noise) -> tuple[Statistic, Noise]:
        if not isinstance(statistic.kernel, GradientKernel):
            return statistic, asked
        return replace(statistic, bounds=wrong), noise

    events = (target.events[0], *[event] * (len(target.claims) - 2), target.events[-1])
    return replace(target, events=events, session=tampering(change))


def vectors_alone(blocks: int, q: int) -> Bounds:
    """Bounds of the vectors without the counts and residuals beside them."""
    right = gradient_bounds(Shape(blocks, q, Transform.NORM))
    return replace(right, l2_squared=2**72, l2_squared_distance=2**74)


# Runs that do something else


def started_at_the_mean(target: Target) -> Target:
    """A start that is the true mean of the rows."""
    plan = planned(AR, "symmetric", iterations=2)

    def run(session: Session) -> object:
        mean = np.nan_to_num(np.clip(columns_of(session), -1.0, 1.0)).mean(axis=1)
        model = replace(plan.settings.model, given=mean[None])  # type: ignore[type-var] # a dataclass
        return gradient_em.run(replace(plan, settings=replace(plan.settings, model=model)), session)

    return replace(target, run=run)


@cache
def mutants() -> tuple[Mutant, ...]:
    """Every planted bug of FitGradientEM."""
    return (*wrong_sizes(), *wrong_sensitivities(), *wrong_rows(), *wrong_laws(), *wrong_flows())


def wrong_sizes() -> list[Mutant]:
    """Too little noise, too much, or more than was paid for."""
    there, apart = fit_gradient_em(AR, "mixture"), fit_gradient_em(RO, "symmetric")
    opened = fit_gradient_em(AR, "mixture", **OPENED)
    quiet = replace(opened, session=with_noise(0.7, is_of_start))
    laplace = fit_gradient_em(RO, "regressions", spend=PURE)
    told = ("T5 arithmetic", "form")
    unsplit = replace(there, session=with_noise(2**-0.5, is_gradient), meter=Blind)
    return [
        planted("noise x 0.5", scaled(there, 0.5), "T1 energy", n=12),
        planted("noise x 0.7", scaled(apart, 0.7), "T1 energy", n=24),
        planted("variance for deviation", scaled(apart, 0.5**0.5), "T1 energy", n=24),
        planted("noise x 1.5", scaled(there, 1.5), "T1 waste", n=12),
        planted("Laplace noise x 0.7", scaled(laplace, 0.7), "T1 energy", n=12),
        planted("spend not split over T", unsplit, "T1 energy", "T5 arithmetic", n=40),
        planted("noise from tau", from_tau(), "T1 energy", "T5 arithmetic", n=30),
        planted("look not paid for", unpaid(there, 0), *told, n=2),
        planted("counts by radius not paid for", unpaid(there, -1), *told, n=2),
        planted("start not paid for", unpaid(opened, 1), *told, n=2),
        planted("noise of the start x 0.7", replace(quiet, meter=Blind), "T1 energy", n=24),
    ]


def from_tau() -> Target:
    """The second form of sigma^2 in theorem 3 beside the s of algorithm 2: too little wherever tau > beta^2 / eps."""
    rows = BASE + len(BROKEN) + 1
    epsilon = planned(RO, "symmetric", slots=rows, iterations=2).settings.steps_rho ** 0.5
    beta = math.log(2 / 0.05) ** 0.5
    printed = rows**0.5 * TAU * epsilon / (2 * beta**2)
    target = fit_gradient_em(RO, "symmetric", tau=TAU, **(TRUNCATED | {"scale": printed}))
    return replace(target, session=with_noise(beta / (TAU * epsilon) ** 0.5, is_gradient), meter=Blind)


def wrong_sensitivities() -> list[Mutant]:
    """Rows that change a gradient more than was debited."""
    cheap, paid = fit_gradient_em(AR, "symmetric"), fit_gradient_em(RO, "symmetric")
    mixture, boxed = fit_gradient_em(AR, "mixture"), fit_gradient_em(RO, "regressions", **BOXED)
    one_coordinate = gradient_bounds(Shape(1, 2, Transform.NORM))
    seen = ("T2 distinguish", "T4 sensitivity", "T5 arithmetic")
    return [
        planted("add-remove sensitivity on a replace pair", mispriced(cheap, paid), *seen[1:], n=2),
        planted("unit cap ignored", uncapped(cheap, fit_gradient_em(AR, "symmetric", cap=3)), *seen, n=160, slow=True),
        planted(
            "one coordinate's bound for all",
            rebounded(boxed, gradient_bounds(Shape(1, 2, Transform.BOX)), one_coordinate),
            seen[1],
            n=2,
        ),
        planted(
            "counts and residuals beside the norm",
            rebounded(mixture, gradient_bounds(Shape(2, 2, Transform.NORM)), vectors_alone(2, 2)),
            seen[1],
            n=2,
        ),
    ]


def wrong_rows() -> list[Mutant]:
    """Rows that contribute more than was proven, or something else."""
    mixture, apart = fit_gradient_em(AR, "mixture"), fit_gradient_em(RO, "symmetric")
    boxed, missing = fit_gradient_em(AR, "regressions", **BOXED), fit_gradient_em(AR, "missing")
    split = fit_gradient_em(RO, "symmetric", **(TRUNCATED | {"scale": 0.3}))
    told, far, seen = "T0 agreement", "T4 sensitivity", "T2 distinguish"
    rows = partial(planted, n=2)
    return [
        planted("clip removed", replace(mixture, session=with_pieces(bounded=unbounded)), told, far, seen, n=60),
        rows("clip x 1.5", replace(apart, session=with_pieces(bounded=bounded_wide)), told, far),
        rows("Catoni's closed form as printed", replace(boxed, session=with_pieces(bounded=literal)), told, far),
        rows("residuals not clipped", replace(mixture, session=with_pieces(clipped=unclipped)), told, far),
        rows("responsibilities not normalised", replace(mixture, session=with_pieces(shares=unnormalised)), told, far),
        rows("gradients completed for nulls", replace(missing, session=with_pieces(bounded=as_if_complete)), told, far),
        rows("rows with nulls counted twice", replace(missing, session=with_pieces(counts=nulls_twice)), told, far),
        rows("a row without a value counts", replace(mixture, session=taking_nulls(0.0)), told),
        rows("a missing value reaches the sums", replace(boxed, session=taking_nulls(None)), told, far),
        rows("rows in all cells up to theirs", replace(mixture, session=tampering(cumulated)), told, far),
        rows("b truncated, too", replace(split, session=with_pieces(parts=about_the_means)), told),
    ]


def wrong_laws() -> list[Mutant]:
    """Noise of the right size that is not independent."""
    there, apart = fit_gradient_em(AR, "mixture"), fit_gradient_em(RO, "symmetric")
    return [
        planted("one draw for all steps", replace(there, source=Reused), "T3 whiteness", n=15),
        planted("noise from a seed", replace(apart, source=Seeded), "T3 whiteness", n=15),
        planted("one draw for all coordinates", replace(there, source=Common), "T3 whiteness", n=40),
    ]


def wrong_flows() -> list[Mutant]:
    """True values that reach the model, or decide what is done."""
    one = fit_gradient_em(AR, "symmetric")
    fewer = fit_gradient_em(AR, "symmetric", iterations=1)
    halting = stopping(one, fewer, lambda columns: not (columns[1] > 100.0).any())
    flows = partial(planted, n=2)
    return [
        flows("raw sums returned", replace(one, session=Raw), "T7 replay"),
        flows("the true n told", telling_true_n(one), "T7 replay"),
        flows("division by the true n", replace(one, session=ExactCounts), "T7 replay"),
        flows("a start from the rows", started_at_the_mean(one), "T7 replay"),
        flows(
            "a start split by true moments",
            replace(fit_gradient_em(AR, "mixture", **OPENED), session=RawStart),
            "T7 replay",
        ),
        flows("a radius from the rows", replace(one, session=RadiusFromRows), "T7 replay"),
        flows("steps until the rows agree", halting, "T7 replay"),
    ]
