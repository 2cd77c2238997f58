"""Planted bugs: each a `Target` with one thing wrong, and the tests of the audit that must see it.

Bugs are put in through constructors: another source of noise, a session that tampers with what it is asked, a kernel
with one piece replaced, or a run that does something else. The code of the fit stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Event
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2
from bursar_server.vault import (
    ArrayRows,
    GaussianNoise,
    Meter,
    Noise,
    OpenDPNoise,
    SelectionNoise,
    Session,
    Statistic,
    exact_sum,
)
from tests.audit.dpem import AR, PURE, RO, fit_dpem
from tests.audit.moments import BuggyKernel, about_centre
from tests.audit.target import Target

Integers = NDArray[np.int64]


class Blind(Meter):
    """A meter that lets everything pass, as if the bug were in it, too."""

    def charge(self, event: Event) -> None:
        """Count nothing."""


ADD_REMOVE, REPLACE = fit_dpem(AR), fit_dpem(RO)


# Sources of noise


@dataclass
class Scaled(OpenDPNoise):
    """Noise of another size than asked for."""

    factor: float

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        return super().add(sums, type(noise)(self.factor * noise.scale))

    def argmax(self, scores: Integers, noise: SelectionNoise) -> int:
        """See `NoiseSource`."""
        return super().argmax(scores, SelectionNoise(self.factor * noise.scale))


class Reused(OpenDPNoise):
    """One draw for all releases of a run."""

    def __init__(self) -> None:
        self._draws: dict[int, Integers] = {}

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        fresh = OpenDPNoise().add(np.zeros_like(sums), noise)
        return sums + self._draws.setdefault(sums.size, fresh)


class Seeded(OpenDPNoise):
    """The same draws in every run."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(7)  # noqa: TID251 - the bug

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        return np.asarray(sums + (self._generator.normal(size=sums.shape) * noise.scale).astype(np.int64))


class Common(OpenDPNoise):
    """One draw for all coordinates of a release."""

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        return sums + OpenDPNoise().add(np.zeros(1, dtype=np.int64), noise)


class NoNoise:
    """The raw sum as the release."""

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        return sums.copy()

    def argmax(self, scores: Integers, noise: SelectionNoise) -> int:
        """See `NoiseSource`."""
        return int(scores.argmax())


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


# Sessions that tamper


def tampering(change: Callable[[Statistic, Noise], tuple[Statistic, Noise]]) -> Callable[..., Session]:
    """Sessions whose `noisy_sum` is asked for something else than the fit asks for."""

    class Tampered(Session):
        """See `tampering`."""

        def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
            """See `Session`."""
            return super().noisy_sum(*change(statistic, noise))

    return Tampered


def with_piece(name: str, piece: Callable[..., FloatArray]) -> Callable[..., Session]:
    """Sessions whose statistics have one piece of their kernel replaced."""

    def change(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
        kernel = BuggyKernel(statistic.kernel, statistic.lattice, {name: piece})
        return replace(statistic, kernel=kernel), noise

    return tampering(change)


class Raw(Session):
    """The tap sees a noisy release, the fit gets the raw sum."""

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
        """See `Session`."""
        super().noisy_sum(statistic, noise)
        return np.asarray(exact_sum(statistic, self._rows, self._columns) * statistic.lattice)


def taking_for(**facts: Any) -> Callable[..., Session]:
    """Sessions that take the table for another one, of another adjacency or cap."""

    def session(**arguments: Any) -> Session:
        return Session(**{**arguments, **facts})

    return session


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


def unfloored(step: Any, z: FloatArray) -> FloatArray:
    """Responsibilities from an indefinite covariance: the density of the second component is negative."""
    offsets = z[:, None, :] - step.means
    log = step.log_scale - 0.5 * np.square(np.einsum("kij,nkj->nki", step.factors, offsets)).sum(axis=2)
    density = np.exp(log - log.max(axis=1, keepdims=True)) * np.array([1.0, -0.6]) + np.array([0.0, 0.3])
    return np.asarray(density / density.sum(axis=1, keepdims=True))


# Runs that do something else


def divided_by_true_n(target: Target) -> Target:
    """The true number of rows in the model (allowed where n is public, not under ADD_REMOVE_ONE)."""

    def run(session: Session) -> object:
        model, present = target.run(session), session._rows.present  # type: ignore[attr-defined] # the bug
        model.n_rows = float(session._rows.slots if present is None else present.sum())  # type: ignore[attr-defined]
        return model

    return replace(target, run=run)


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Attributes:
        bug: in words.
        target: with the bug.
        seen_by: tests that must condemn it, each by itself.
        n: runs on each table: so many that a test that should see the bug misses it less than once in 1e6.
    """

    bug: str
    target: Target
    seen_by: frozenset[str]
    n: int


def mutants() -> list[Mutant]:
    """Every planted bug that applies to FitDPEM."""
    return [*wrong_sizes(), *wrong_sensitivities(), *wrong_laws(), *wrong_flows()]


def wrong_sizes() -> list[Mutant]:
    """Too little noise, or too much."""
    laplace = fit_dpem(RO, spend=PURE, iterations=2)
    split = tampering(lambda statistic, noise: (statistic, GaussianNoise(noise.scale / 3**0.5)))
    unsplit = replace(ADD_REMOVE, session=split, meter=Blind)
    return [
        _mutant("noise x 0.5", replace(ADD_REMOVE, source=lambda: Scaled(0.5)), "T1 energy", "T2 distinguish", n=120),
        _mutant("noise x 0.7", replace(REPLACE, source=lambda: Scaled(0.7)), "T1 energy", n=20),
        _mutant("noise x 0.9", replace(REPLACE, source=lambda: Scaled(0.9)), "T1 energy", n=60),
        _mutant("Laplace noise x 0.7", replace(laplace, source=lambda: Scaled(0.7)), "T1 energy", n=20),
        _mutant("noise x 1.5", replace(ADD_REMOVE, source=lambda: Scaled(1.5)), "T1 waste", n=20),
        _mutant("no noise", replace(ADD_REMOVE, source=NoNoise), "T1 energy", "T2 distinguish", n=50),
        _mutant("spend not split over T", unsplit, "T1 energy", "T2 distinguish", "T5 arithmetic", n=400),
        _mutant("noise scaled by a true count", replace(lonely(), source=ScaledByCount), "T1 sides", n=150),
    ]


def wrong_sensitivities() -> list[Mutant]:
    """Rows that change a release more than was debited."""
    unclipped_ball = replace(ADD_REMOVE, session=with_piece("offsets", unclipped))
    wide_ball = replace(REPLACE, session=with_piece("offsets", clipped_wide))
    far_mean = replace(ADD_REMOVE, session=with_piece("offsets", about_a_far_mean))
    negative = replace(ADD_REMOVE, session=with_piece("shares", unfloored))
    return [
        _mutant(
            "add-remove sensitivity on a replace pair",
            mispriced(),
            "T2 distinguish",
            "T4 sensitivity",
            "T5 arithmetic",
            n=800,
        ),
        _mutant("unit cap ignored", uncapped(), "T2 distinguish", "T4 sensitivity", "T5 arithmetic", n=60),
        _mutant("clip removed", unclipped_ball, "T0 agreement", "T2 distinguish", "T4 sensitivity", n=100),
        _mutant("clip x 1.5", wide_ball, "T0 agreement", "T2 distinguish", "T4 sensitivity", n=400),
        _mutant("scatter about the noised mean", far_mean, "T0 agreement", "T2 distinguish", "T4 sensitivity", n=50),
        _mutant("indefinite covariance in the E-step", negative, "T0 agreement", "T4 sensitivity", n=10),
    ]


def wrong_laws() -> list[Mutant]:
    """Noise of the right size that is not independent, or not centred."""
    return [
        _mutant("noise used again in every step", replace(ADD_REMOVE, source=Reused), "T3 whiteness", n=25),
        _mutant("noise from a seed", replace(REPLACE, source=Seeded), "T3 whiteness", n=50),
        _mutant("one draw for all coordinates", replace(REPLACE, source=Common), "T3 whiteness", n=50),
        _mutant("one-sided noise", replace(ADD_REMOVE, source=OneSided), "T3 whiteness", n=25),
    ]


def wrong_flows() -> list[Mutant]:
    """True values that reach the model, or decide what is done."""
    one = fit_dpem(AR, iterations=1)
    return [
        _mutant("raw value returned", replace(one, session=Raw), "T6 black box", "T7 replay", n=80),
        _mutant("division by the true n", divided_by_true_n(ADD_REMOVE), "T7 replay", n=10),
        _mutant("the true n, 1 or 2", divided_by_true_n(tiny()), "T6 black box", "T7 replay", n=50),
        _mutant("the number of slots in the model", telling_slots(ADD_REMOVE), "T7 replay", n=10),
        _mutant("parity of the slots in the progress", telling_parity(ADD_REMOVE), "T7 replay", n=10),
        _mutant("steps until convergence", stopping(ADD_REMOVE), "T7 replay", "form", n=10),
    ]


def _mutant(bug: str, target: Target, *seen_by: str, n: int = 200) -> Mutant:
    return Mutant(bug, target, frozenset(seen_by), n)


def mispriced() -> Target:
    """A replace pair under the noise, the events and the session of an add-remove plan."""
    # k-means about a fixed origin: here far rows differ by the whole sensitivity in every step
    kmeans, fixed = fit_pb2.MODE_KMEANS, fit_pb2.MOMENTS_FIXED_ORIGIN
    cheap, paid = (fit_dpem(adjacency, mode=kmeans, moments=fixed) for adjacency in (AR, RO))
    return replace(paid, run=cheap.run, events=cheap.events, session=taking_for(adjacency=AR))


def uncapped() -> Target:
    """Units of three rows under the noise, the events and the session of a plan for single rows."""
    return replace(fit_dpem(AR, cap=3), run=ADD_REMOVE.run, events=ADD_REMOVE.events, session=taking_for(unit_cap=1))


def lonely() -> Target:
    """One step on a table whose second component holds the changed row alone."""
    target = fit_dpem(AR, iterations=1)
    columns = target.rows.columns[:, np.r_[0:24, 48]]
    return replace(target, rows=ArrayRows(columns), neighbour=ArrayRows(columns[:, :24]))


def one_row_or_two() -> tuple[ArrayRows, ArrayRows]:
    """A table of two rows, and the same without the second, which is far out."""
    rows = np.array([[-0.45, 1e3], [0.0, 1e3]])
    return ArrayRows(rows), ArrayRows(rows[:, :1])


def tiny() -> Target:
    """One step on two rows or one, where the number of rows is most of what there is to know."""
    rows, neighbour = one_row_or_two()
    return replace(fit_dpem(AR, iterations=1), rows=rows, neighbour=neighbour)


def telling_slots(target: Target) -> Target:
    """The number of slots in the model, which under ADD_REMOVE_ONE is that of the rows."""

    def run(session: Session) -> object:
        model: Any = target.run(session)
        model.n_rows += session._rows.slots
        return model

    return replace(target, run=run)


def telling_parity(target: Target) -> Target:
    """One step more in the totals of progress where the number of slots is odd."""

    def run(session: Session) -> object:
        progress = session.progress
        session.progress = lambda step, steps: progress(step, steps + session._rows.slots % 2)
        return target.run(session)

    return replace(target, run=run)


def stopping(target: Target) -> Target:
    """A run that leaves out its last step where the true mean of a column is positive."""

    def run(session: Session) -> object:
        positive = session._rows.columns[0].mean() > 0  # type: ignore[attr-defined] # the bug
        return fit_dpem(AR, iterations=2 if positive else 3).run(session)

    return replace(target, run=run, meter=Blind)
