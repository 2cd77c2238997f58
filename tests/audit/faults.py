"""Parts of planted bugs, for every fit: a `Target` with one thing wrong, and the tests that must see it.

Bugs are put in through constructors: another source of noise, a session that tampers with what it is asked, a kernel
with one piece replaced, or a run that does something else. The code of the fit stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency, Event
from bursar_models.arrays import FloatArray
from bursar_server.vault import Meter, Noise, OpenDPNoise, SelectionNoise, Session, Statistic, exact_sum
from tests.audit.target import Target

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Attributes:
        bug: in words.
        target: with the bug.
        seen_by: tests that must condemn it, each by itself.
        n: runs on each table: so many that a test that should see the bug misses it less than once in 1e6.
        slow: whether it takes so many runs, or tables, that only the long tests plant it.
    """

    bug: str
    target: Target
    seen_by: frozenset[str]
    n: int
    slow: bool = False


def planted(bug: str, target: Target, *seen_by: str, n: int = 200, slow: bool = False) -> Mutant:
    """A planted bug and the tests that must see it."""
    return Mutant(bug, target, frozenset(seen_by), n, slow)


class Blind(Meter):
    """A meter that lets everything pass, as if the bug were in it, too."""

    def charge(self, event: Event) -> None:
        """Count nothing."""


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


def scaled(target: Target, factor: float) -> Target:
    """A target with noise of another size than was debited."""
    return replace(target, source=lambda: Scaled(factor))


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


# Sessions that tamper


def tampering(change: Callable[[Statistic, Noise], tuple[Statistic, Noise]]) -> Callable[..., Session]:
    """Sessions whose `noisy_sum` is asked for something else than the fit asks for."""

    class Tampered(Session):
        """See `tampering`."""

        def noisy_sum(self, statistic: Statistic, noise: Noise) -> FloatArray:
            """See `Session`."""
            return super().noisy_sum(*change(statistic, noise))

    return Tampered


def with_noise(factor: float, applies: Callable[[Statistic], bool] = lambda statistic: True) -> Callable[..., Session]:
    """Sessions that ask for other noise, on the statistics to which it applies, and know it."""

    def change(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
        return statistic, type(noise)(noise.scale * factor) if applies(statistic) else noise

    return tampering(change)


@dataclass(frozen=True)
class Recount:
    """A kernel that adds contributions of its own, cut to the lattice, in the place of another one.

    Attributes:
        kernel: whose parameters it shows.
        lattice: of the statistic.
        contributions: rows (columns, n) and their slots (n,) -> (n, size), in units of a row.
    """

    kernel: Any
    lattice: float
    contributions: Callable[[FloatArray, Integers], FloatArray]

    def __getattr__(self, name: str) -> Any:
        """Parameters of the kernel that it stands in for."""
        return getattr(object.__getattribute__(self, "kernel"), name)

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: Integers) -> None:
        """See `Kernel`."""
        slots = np.flatnonzero(present)
        with np.errstate(invalid="ignore"):  # of the cosines of what is not a number
            values = self.contributions(block[:, slots], slots) / self.lattice
        # What is not a number becomes about what a cast makes of it, a very negative integer.
        whole = np.trunc(np.clip(np.nan_to_num(values, nan=-(2.0**50)), -(2.0**50), 2.0**50))
        out += whole.astype(np.int64).sum(axis=0)


def recounting(contributions: Callable[[Any, FloatArray, Integers], FloatArray]) -> Callable[..., Session]:
    """Sessions whose statistics add other contributions: of the kernel, rows and slots (see `Recount`)."""

    def change(statistic: Statistic, noise: Noise) -> tuple[Statistic, Noise]:
        kernel = statistic.kernel
        made = Recount(kernel, statistic.lattice, lambda rows, slots: contributions(kernel, rows, slots))
        return replace(statistic, kernel=made), noise

    return tampering(change)


@dataclass(frozen=True)
class Nullable:
    """A kernel that does something about rows without a value, in the place of another one, whose parameters it shows.

    Attributes:
        kernel: that leaves such rows out.
        value: that is taken for a missing one; None: what a missing one makes of a sum that it reaches.
    """

    kernel: Any
    value: float | None

    def __getattr__(self, name: str) -> Any:
        """Parameters of the kernel that it stands in for."""
        return getattr(object.__getattribute__(self, "kernel"), name)

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: Integers) -> None:
        """See `Kernel`."""
        missing = np.isnan(block)
        self.kernel(block if self.value is None else np.where(missing, self.value, block), present, out)
        if self.value is None:
            out -= 2**50 * int(np.count_nonzero(missing.any(axis=0) & present))  # as `Recount`


def taking_nulls(value: float | None) -> Callable[..., Session]:
    """Sessions whose statistics count rows without a value (see `Nullable`)."""
    return tampering(lambda statistic, noise: (replace(statistic, kernel=Nullable(statistic.kernel, value)), noise))


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


# Runs that do something else, and events that say something else


def columns_of(session: Session) -> FloatArray:
    """The raw rows, which no fit may read."""
    columns: FloatArray = session._rows.columns  # type: ignore[attr-defined] # of the audit's tables
    return columns


def true_n(session: Session) -> float:
    """The true number of rows, which a fit may read where it is public, and not under ADD_REMOVE_ONE."""
    present = session._rows.present  # type: ignore[attr-defined] # of the audit's tables
    return float(session._rows.slots if present is None else present.sum())


def telling(target: Target, tell: Callable[[Any, Session], None]) -> Target:
    """Something that the rows say, put into the model after the run."""

    def run(session: Session) -> object:
        model = target.run(session)
        tell(model, session)
        return model

    return replace(target, run=run)


def telling_true_n(target: Target) -> Target:
    """The true number of rows in the model, or in the sketch that it has."""

    def tell(model: Any, session: Session) -> None:
        getattr(model, "sketch", model).n_rows = true_n(session)

    return telling(target, tell)


def stopping(target: Target, fewer: Target, stops: Callable[[FloatArray], bool]) -> Target:
    """A run that leaves its last release out where the rows say so."""
    return replace(
        target, run=lambda session: (fewer if stops(columns_of(session)) else target).run(session), meter=Blind
    )


def mispriced(cheap: Target, paid: Target) -> Target:
    """A replace pair under the noise, the events and the session of an add-remove plan."""
    return replace(paid, run=cheap.run, events=cheap.events, session=taking_for(adjacency=Adjacency.ADD_REMOVE_ONE))


def uncapped(single: Target, several: Target) -> Target:
    """Units of several rows under the noise, the events and the session of a plan for single rows."""
    return replace(several, run=single.run, events=single.events, session=taking_for(unit_cap=1))


def unpaid(target: Target, index: int) -> Target:
    """One event fewer in the ledger."""
    events = list(target.events)
    del events[index]
    return replace(target, events=tuple(events), meter=Blind)
