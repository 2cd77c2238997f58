"""Planted bugs of FitSketchKMeans, in the manner of `mutants.py`, and the tests of the audit that must see them."""

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
from tests.audit.mutants import (
    Blind,
    Common,
    Integers,
    Mutant,
    Raw,
    Reused,
    Scaled,
    Seeded,
    _mutant,
    taking_for,
    tampering,
)
from tests.audit.sketch import AR, DECODED, MASKED, ONE_BIT, PILOT, RO, Audited, fit_sketch, planned, pure
from tests.audit.sketch_reference import (
    BuggyKernel,
    Said,
    Slots,
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

    def change(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
        return replace(statistic, kernel=BuggyKernel(audited.said[-1], statistic.lattice, pieces)), noise

    return tampering(change)


def with_noise(factor: float, *, size: int | None = None) -> Callable[..., Session]:
    """Sessions that take too little noise for releases (of this size), and know it."""

    def change(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
        return statistic, type(noise)(factor * noise.scale) if size in (None, statistic.size) else noise

    return tampering(change)


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


def columns_of(session: Session) -> FloatArray:
    """The raw rows, which no fit may read."""
    columns: FloatArray = session._rows.columns  # type: ignore[attr-defined] # the bug
    return columns


PILOT_SIZE = 2 * 16 + 1


# Pieces of the kernel


def louder(said: Said, phases: FloatArray) -> FloatArray:
    """A signature of length 1.5, whose norm nobody checks."""
    return 1.5 * signature(said, phases)


def poisoned(said: Said, phases: FloatArray) -> FloatArray:
    """exp(i phase) with nothing done about rows that are not finite."""
    return np.stack([np.cos(phases), np.sin(phases)], axis=1)


def by_slot(said: Said, slots: Slots, rows: FloatArray) -> Bools:
    """As many frequencies as were said, chosen by the row's slot, which moves when a row before it comes or goes."""
    return windows(said, 7 * slots)


def more_for_some(said: Said, slots: Slots, rows: FloatArray) -> Bools:
    """All frequencies for rows on the right, r for the others."""
    return np.asarray(members(said, slots, rows) | (into_box(said, rows)[:, :1] > 0))


def too_many(said: Said, slots: Slots, rows: FloatArray) -> Bools:
    """Twice as many frequencies as were said, for every row."""
    return np.asarray(members(said, slots, rows) | windows(said, first_frequencies(said, rows) + said.r))


def by_neighbours(said: Said, slots: Slots, rows: FloatArray) -> Bools:
    """As many frequencies as were said, chosen by how many rows there are."""
    return windows(said, first_frequencies(said, rows) + len(slots))


# Runs that do something else


def telling_true_n(target: Target) -> Target:
    """The true number of rows in the sketch."""

    def run(session: Session) -> object:
        model, present = target.run(session), session._rows.present  # type: ignore[attr-defined] # the bug
        slots = columns_of(session).shape[1]
        model.sketch.n_rows = float(slots if present is None else present.sum())  # type: ignore[attr-defined]
        return model

    return replace(target, run=run)


def choosing_by_rows(target: Target) -> Target:
    """Of several decodings the one with the least sum of squares on the rows, as replicates are chosen in the paper."""

    def run(session: Session) -> object:
        model = target.run(session)
        released = sketch_from(model.sketch, "sketch", [])  # type: ignore[attr-defined]
        if released is None:
            raise ValueError("a run must end with a well-formed sketch")
        tried = [released.kmeans(2, n_init=1, public_seed=seed).cluster_centers_ for seed in range(4)]
        rows = np.nan_to_num(columns_of(session)).T.clip(-9.0, 9.0)
        squares = [np.square(rows[:, None] - one).sum(axis=2).min(axis=1).sum() for one in tried]
        model.decoded.means.values[:] = tried[int(np.argmin(squares))].ravel()  # type: ignore[attr-defined]
        return model

    return replace(target, run=run)


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
    whole = with_noise(0.5**0.5, size=2 * 6 + 1)
    return [
        _mutant("noise x 0.5", replace(there, source=lambda: Scaled(0.5)), "T1 energy", n=20),
        _mutant("noise x 0.7", replace(apart, source=lambda: Scaled(0.7)), "T1 energy", n=20),
        _mutant("noise x 1.5", replace(there, source=lambda: Scaled(1.5)), "T1 waste", n=20),
        _mutant("Laplace noise x 0.7", replace(laplace, source=lambda: Scaled(0.7)), "T1 energy", n=20),
        _mutant(
            "proposition 1, Laplace",
            replace(laplace, session=printed, meter=Blind),
            "T1 energy",
            "T2 distinguish",
            "T5 arithmetic",
            n=140,
        ),
        _mutant(
            "proposition 1, Gaussian",
            replace(masked, session=printed, meter=Blind),
            "T1 energy",
            "T2 distinguish",
            "T5 arithmetic",
            n=80,
        ),
        _mutant(
            "spend not split with the pilot",
            replace(piloted, session=whole, meter=Blind),
            "T1 energy",
            "T5 arithmetic",
            n=40,
        ),
        _mutant(
            "pilot not paid for", replace(piloted, events=piloted.events[1:], meter=Blind), "T5 arithmetic", "form", n=2
        ),
    ]


def wrong_sensitivities() -> list[Mutant]:
    """Rows that change a release more than was debited."""
    there = fit_sketch(AR)
    louder_kernel = replace(there, session=with_pieces(planned(AR), parts=louder))
    trusting = replace(there, session=with_pieces(planned(AR), parts=poisoned))
    seen = ("T2 distinguish", "T4 sensitivity", "T5 arithmetic")
    return [
        _mutant("add-remove sensitivity on a replace pair", mispriced(), *seen, n=150),
        _mutant("unit cap ignored", uncapped(), *seen, n=60),
        _mutant("count left out of the price", uncounted(), "T4 sensitivity", n=2),
        _mutant("signature of length 1.5", louder_kernel, "T0 agreement", "T4 sensitivity", n=5),
        _mutant("rows that are not numbers poison the sum", trusting, "T0 agreement", "T4 sensitivity", n=5),
    ]


def wrong_masks() -> list[Mutant]:
    """Frequencies of a row that are not a public function of what it holds, or too many."""
    masked, plan = fit_sketch(AR, **MASKED), planned(AR, **MASKED)

    def with_mask(chosen: Callable[[Said, Slots, FloatArray], Bools]) -> Target:
        return replace(masked, session=with_pieces(plan, chosen=chosen))

    seen = ("T0 agreement", "T4 sensitivity")
    return [
        _mutant("a mask by the slot", with_mask(by_slot), "T0 agreement", "T4 placement", n=5),
        _mutant("more frequencies for some rows", with_mask(more_for_some), *seen, n=5),
        _mutant("masks of 2 r frequencies", with_mask(too_many), *seen, n=5),
        _mutant("a mask by the number of rows", with_mask(by_neighbours), "T0 agreement", "T2 distinguish", n=60),
    ]


def wrong_laws() -> list[Mutant]:
    """Noise of the right size that is not independent."""
    alike = fit_sketch(AR, **(PILOT | {"n_frequencies": 16}))
    there = fit_sketch(AR)
    return [
        _mutant("the pilot's noise used again", replace(alike, source=Reused), "T3 whiteness", n=30),
        _mutant("noise from the public seed", replace(there, source=Seeded), "T3 whiteness", n=30),
        _mutant("one draw for all moments", replace(there, source=Common), "T3 whiteness", n=30),
    ]


def wrong_flows() -> list[Mutant]:
    """True values that reach the model, or decide what is done."""
    there, piloted, one = fit_sketch(AR), fit_sketch(AR, **PILOT), fit_sketch(AR, **ONE)
    return [
        _mutant("raw sum returned", replace(there, session=Raw), "T6 black box", "T7 replay", n=60),
        _mutant("count not noised", replace(one, source=CountBare), "T1 energy", "T6 black box", n=300),
        _mutant("the true n", telling_true_n(there), "T6 black box", "T7 replay", n=40),
        _mutant("scale from the rows", replace(piloted, session=ScaleFromRows), "T7 replay", n=2),
        _mutant("box from the rows", replace(there, session=BoxFromRows), "T0 agreement", "T7 replay", n=2),
        _mutant("replicate chosen on the rows", choosing_by_rows(fit_sketch(AR, **DECODED)), "T7 replay", n=2),
    ]


def mispriced() -> Target:
    """A replace pair under the noise, the events and the session of an add-remove plan."""
    cheap, paid = fit_sketch(AR, **ONE_BIT), fit_sketch(RO, **ONE_BIT)
    return replace(
        paid, run=cheap.run, events=cheap.events, reference=cheap.reference, session=taking_for(adjacency=AR)
    )


def uncapped() -> Target:
    """Units of three rows under the noise, the events and the session of a plan for single rows."""
    single = fit_sketch(AR)
    return replace(fit_sketch(AR, cap=3), run=single.run, events=single.events, session=taking_for(unit_cap=1))


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
