"""Planted bugs of FitSketchKMeans, and the tests of the audit that must see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_models.arrays import FloatArray
from bursar_server.fits.sketch._statistics import sketch_bounds
from bursar_server.fits.sketch._wire import sketch_from
from bursar_server.vault import (
    GaussianNoise,
    Noise,
    OpenDPNoise,
    Session,
    Statistic,
    event_of,
    sensitivity,
)
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
    taking_nulls,
    tampering,
    telling,
    telling_true_n,
    uncapped,
    unpaid,
    with_noise,
)
from tests.audit.sketch import AR, DECODED, MASKED, ONE_BIT, PILOT, RO, Audited, fit_sketch, planned, pure
from tests.audit.sketch_reference import (
    Said,
    Slots,
    contributions,
    first_frequencies,
    into_box,
    members,
    signature,
    windows,
)
from tests.audit.target import Target

Bools = NDArray[np.bool_]

ONE = {"n_frequencies": 1}
"""One frequency, where the count is a large part of the price."""


# Sources of noise


class CountBare(OpenDPNoise):
    """Noise on moments, none on the count, which comes last."""

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        return np.append(OpenDPNoise().add(sums[:-1], noise), sums[-1])


# Sessions that tamper


def with_pieces(audited: Audited, **pieces: Callable[..., Any]) -> Callable[..., Session]:
    """Sessions whose sketch has pieces of its kernel replaced (see `contributions`)."""
    return recounting(lambda kernel, rows, slots: contributions(audited.said[-1], rows, slots, **pieces))


class ScaleFromRows(Session):
    """The sketch after the pilot is made at a scale that raw rows suggest."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
        """See `Session`."""
        if statistic.size != PILOT_SIZE:
            spread = float(np.abs(np.nan_to_num(columns_of(self)).clip(-4.0, 4.0)).mean())
            drawn = statistic.kernel.dense  # type: ignore[attr-defined] # of the sketch
            drawn = drawn * np.float32(1.0 + spread)
            statistic = replace(statistic, kernel=replace(statistic.kernel, dense=drawn))  # type: ignore[type-var]
        return super().noisy_sum(statistic, noise)


class BoxFromRows(Session):
    """Rows are moved into the box that they happen to lie in, as decoders in the literature do."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
        """See `Session`."""
        lower, upper = np.nanquantile(np.nan_to_num(columns_of(self)), [0.1, 0.9], axis=1)
        kernel = statistic.kernel
        frame = replace(kernel.frame, lower=lower, upper=upper + 0.1)  # type: ignore[attr-defined] # of the sketch
        return super().noisy_sum(replace(statistic, kernel=replace(kernel, frame=frame)), noise)  # type: ignore[type-var]


PILOT_SIZE = 2 * 16 + 1


# Pieces of the kernel


def louder(said: Said, phases: FloatArray) -> FloatArray:
    """A signature of length 1.5, whose norm nobody checks."""
    return 1.5 * signature(said, phases)


def poisoned(said: Said, phases: FloatArray) -> FloatArray:
    """exp(i phase) with nothing done about rows that are not finite."""
    return np.stack([np.cos(phases), np.sin(phases)], axis=1)


def by_slot(said: Said, slots: Slots, rows: FloatArray) -> Bools:
    """Choose as many frequencies by the row's slot, which moves when a row before it comes or goes."""
    return windows(said, 7 * slots)


def more_for_some(said: Said, slots: Slots, rows: FloatArray) -> Bools:
    """All frequencies for rows on the right, r for the others."""
    return np.asarray(members(said, slots, rows) | (into_box(said, rows)[:, :1] > 0))


def too_many(said: Said, slots: Slots, rows: FloatArray) -> Bools:
    """Twice as many frequencies as were said, for every row."""
    return np.asarray(members(said, slots, rows) | windows(said, first_frequencies(said, rows) + said.r))


def by_neighbours(said: Said, slots: Slots, rows: FloatArray) -> Bools:
    """Choose as many frequencies by the number of rows."""
    return windows(said, first_frequencies(said, rows) + len(slots))


# Runs that do something else


def choosing_by_rows(target: Target) -> Target:
    """Choose of several decodings the one with the least sum of squares on the rows, as the paper does."""

    def tell(model: Any, session: Session) -> None:
        released = sketch_from(model.sketch, "sketch", [])
        if released is None:
            raise ValueError("a run must end with a well-formed sketch")
        tried = [released.kmeans(2, n_init=1, public_seed=seed).cluster_centers_ for seed in range(4)]
        rows = np.nan_to_num(columns_of(session)).T.clip(-9.0, 9.0)
        squares = [np.square(rows[:, None] - one).sum(axis=2).min(axis=1).sum() for one in tried]
        model.decoded.means.values[:] = tried[int(np.argmin(squares))].ravel()

    return telling(target, tell)


@cache
def mutants() -> tuple[Mutant, ...]:
    """Every planted bug of FitSketchKMeans."""
    return (*wrong_sizes(), *wrong_sensitivities(), *wrong_masks(), *wrong_laws(), *wrong_flows())


def wrong_sizes() -> list[Mutant]:
    """Too little noise, or too much."""
    there, apart = fit_sketch(AR, **ONE_BIT), fit_sketch(RO, **ONE_BIT)
    masked, laplace = fit_sketch(AR, **MASKED), fit_sketch(AR, spend=pure(4), **MASKED)
    piloted = fit_sketch(AR, **PILOT)
    printed = with_noise((2 / 20) ** 0.5)
    whole = with_noise(0.5**0.5, lambda statistic: statistic.size == 2 * 6 + 1)
    return [
        planted("noise x 0.5", scaled(there, 0.5), "T1 energy", n=20),
        planted("noise x 0.7", scaled(apart, 0.7), "T1 energy", n=20),
        planted("noise x 1.5", scaled(there, 1.5), "T1 waste", n=20),
        planted("Laplace noise x 0.7", scaled(laplace, 0.7), "T1 energy", n=20),
        planted(
            "proposition 1, Laplace",
            replace(laplace, session=printed, meter=Blind),
            "T1 energy",
            "T2 distinguish",
            "T5 arithmetic",
            n=140,
        ),
        planted(
            "proposition 1, Gaussian",
            replace(masked, session=printed, meter=Blind),
            "T1 energy",
            "T2 distinguish",
            "T5 arithmetic",
            n=80,
        ),
        planted(
            "spend not split with the pilot",
            replace(piloted, session=whole, meter=Blind),
            "T1 energy",
            "T5 arithmetic",
            n=40,
        ),
        planted("pilot not paid for", unpaid(piloted, 0), "T5 arithmetic", "form", n=2),
    ]


def wrong_sensitivities() -> list[Mutant]:
    """Rows that change a release more than was debited."""
    there = fit_sketch(AR)
    cheap, paid = fit_sketch(AR, **ONE_BIT), fit_sketch(RO, **ONE_BIT)
    swapped = replace(mispriced(cheap, paid), reference=cheap.reference)
    louder_kernel = replace(there, session=with_pieces(planned(AR), parts=louder))
    trusting = replace(there, session=with_pieces(planned(AR), parts=poisoned))
    seen = ("T2 distinguish", "T4 sensitivity", "T5 arithmetic")
    return [
        planted("add-remove sensitivity on a replace pair", swapped, *seen, n=200),
        planted("unit cap ignored", uncapped(there, fit_sketch(AR, cap=3)), *seen, n=60),
        planted("count left out of the price", uncounted(), "T4 sensitivity", n=2),
        planted("signature of length 1.5", louder_kernel, "T0 agreement", "T4 sensitivity", n=5),
        planted("rows that are not numbers poison the sum", trusting, "T0 agreement", "T4 sensitivity", n=5),
        planted("a row without a value counts", replace(there, session=taking_nulls(0.0)), "T0 agreement", n=5),
    ]


def wrong_masks() -> list[Mutant]:
    """Frequencies of a row that are not a public function of what it holds, or too many."""
    masked, plan = fit_sketch(AR, **MASKED), planned(AR, **MASKED)

    def with_mask(chosen: Callable[[Said, Slots, FloatArray], Bools]) -> Target:
        return replace(masked, session=with_pieces(plan, chosen=chosen))

    seen = ("T0 agreement", "T4 sensitivity")
    return [
        planted("a mask by the slot", with_mask(by_slot), "T0 agreement", "T4 placement", n=5),
        planted("more frequencies for some rows", with_mask(more_for_some), *seen, n=5),
        planted("masks of 2 r frequencies", with_mask(too_many), *seen, n=5),
        planted("a mask by the number of rows", with_mask(by_neighbours), "T0 agreement", "T2 distinguish", n=60),
    ]


def wrong_laws() -> list[Mutant]:
    """Noise of the right size that is not independent."""
    alike = fit_sketch(AR, **(PILOT | {"n_frequencies": 16}))
    there = fit_sketch(AR)
    return [
        planted("the pilot's noise used again", replace(alike, source=Reused), "T3 whiteness", n=30),
        planted("noise from the public seed", replace(there, source=Seeded), "T3 whiteness", n=30),
        planted("one draw for all moments", replace(there, source=Common), "T3 whiteness", n=30),
    ]


def wrong_flows() -> list[Mutant]:
    """True values that reach the model, or decide what is done."""
    there, piloted, one = fit_sketch(AR), fit_sketch(AR, **PILOT), fit_sketch(AR, **ONE)
    return [
        planted("raw sum returned", replace(there, session=Raw), "T6 black box", "T7 replay", n=60),
        planted("count not noised", replace(one, source=CountBare), "T1 energy", "T6 black box", n=300, slow=True),
        planted("the true n", telling_true_n(there), "T6 black box", "T7 replay", n=40),
        planted("scale from the rows", replace(piloted, session=ScaleFromRows), "T7 replay", n=2),
        planted("box from the rows", replace(there, session=BoxFromRows), "T0 agreement", "T7 replay", n=2),
        planted("replicate chosen on the rows", choosing_by_rows(fit_sketch(AR, **DECODED)), "T7 replay", n=2),
    ]


def uncounted() -> Target:
    """Noise and events for the moments alone; the count beside them is noised, but not priced."""
    target, m = fit_sketch(AR, **ONE), 1
    bounds, bare = (sketch_bounds(m, m, "exponential", weight) for weight in (1, 0))
    change = sensitivity(bare, AR, 1)

    def less(noise: Noise) -> Noise:
        return GaussianNoise(noise.scale * (change.l2_squared / sensitivity(bounds, AR, 1).l2_squared) ** 0.5)

    session = tampering(lambda statistic, noise: (replace(statistic, bounds=bare), less(noise)))
    claimed = target.claims[0]
    return replace(target, session=session, events=(event_of(change, less(GaussianNoise(float(claimed.scale)))),))
