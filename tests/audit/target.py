"""What is audited: a fit on a pair of neighbouring tables, observed at the release boundary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency, Event, GaussianEvent, LaplaceEvent, cost_units
from bursar_server.vault import (
    ArrayRows,
    Choice,
    Meter,
    NoiseSource,
    OpenDPNoise,
    Release,
    Session,
    Statistic,
    exact_sum,
)

FloatArray = NDArray[np.float64]

ORDER = Fraction(9)
"""Renyi order at which audited debits are priced; any would do."""


@dataclass(frozen=True)
class Target:
    """A fit, a worst-case pair of tables, and an independent account of what it should release.

    A new fit plugs in with the first block of attributes. The second block is where mutants are injected.

    Attributes:
        name: for reports.
        adjacency: of the pair, and of the dataset.
        rows: the table D, (n_columns, n_slots).
        neighbour: D', which differs in one privacy unit whose change reaches the sensitivity.
        events: what the ledger was debited, from the fit's plan.
        run: the fit bound to its plan; its result is given to `features`.
        reference: (statistic, table) -> the exact sum in lattice units, written from the paper and not from the kernel.
            It may read the statistic's parameters, which `checks.replay` shows to be functions of earlier releases.
        features: every number of a model, flat.
        extremes: (n_columns, m) rows from which the search for the sensitivity starts.
        unit_cap: most rows of a privacy unit.
        places: slots at which single rows are tried; more than one where a statistic may treat slots differently.
        session: what the fit is given.
        source: makes the source of noise of each run.
        meter: (order, units) -> meter.
    """

    name: str
    adjacency: Adjacency
    rows: ArrayRows
    neighbour: ArrayRows
    events: tuple[Event, ...]
    run: Callable[[Session], object]
    reference: Callable[[Statistic, ArrayRows], FloatArray]
    features: Callable[[object], FloatArray]
    extremes: FloatArray
    unit_cap: int = 1
    places: tuple[int, ...] = (0,)

    session: Callable[..., Session] = Session
    source: Callable[[], NoiseSource] = OpenDPNoise
    meter: Callable[[Fraction, int], Meter] = Meter

    @property
    def debited(self) -> int:
        """Cost of the debit in the ledger's units."""
        return cost_units(self.events, ORDER)

    @property
    def claims(self) -> tuple[GaussianEvent | LaplaceEvent, ...]:
        """The debited events one by one, in the order of the releases."""
        return tuple(one for event in self.events for one in _single(event))


def _single(event: Event) -> list[GaussianEvent | LaplaceEvent]:
    if isinstance(event, GaussianEvent):
        return [GaussianEvent(event.l2_squared, event.scale)] * event.count
    if isinstance(event, LaplaceEvent):
        return [LaplaceEvent(event.l1, event.scale, groups=event.groups)] * event.count
    raise NotImplementedError(
        f"the audit has no residuals for {type(event).__name__}; add its test before a fit uses it"
    )


@dataclass(frozen=True)
class Observation:
    """One run: every release and every choice after noise, and the model that left."""

    releases: tuple[Release, ...]
    model: object
    choices: tuple[Choice, ...] = ()


def observe(target: Target, rows: ArrayRows, source: NoiseSource | None = None) -> Observation:
    """Run the fit once on a table, through its tap."""
    releases: list[Release] = []
    choices: list[Choice] = []
    session = target.session(
        rows=rows,
        columns=rows.columns.shape[0],
        adjacency=target.adjacency,
        unit_cap=target.unit_cap,
        meter=target.meter(ORDER, target.debited),
        source=source or target.source(),
        tap=releases.append,
        choice_tap=choices.append,
    )
    model = target.run(session)
    return Observation(tuple(releases), model, tuple(choices))


@dataclass(frozen=True)
class Sample:
    """Many runs on both tables, in scales of the noise that was debited.

    Attributes:
        residual: (runs, coordinates) release minus the independent reference's sum of the run's table.
        here, there: (runs, coordinates) release minus what the code that ran sums on the run's table, and on the other.
        other: (runs,) False for runs on D, True for runs on D'.
        release: (coordinates,) which release a coordinate belongs to.
        laplace: (coordinates,) the claimed law; Gaussian where False.
        limit: (releases,) claimed sensitivity: L2, or L1 for Laplace.
        features: (runs, numbers) of the models.
    """

    residual: FloatArray
    here: FloatArray
    there: FloatArray
    other: NDArray[np.bool_]
    release: NDArray[np.int64]
    laplace: NDArray[np.bool_]
    limit: FloatArray
    features: FloatArray


def collect(target: Target, n: int) -> Sample | str:
    """Observe n runs on each table. Returns a sentence instead if the releases do not even have the debit's form."""
    claims = target.claims
    others = np.repeat([False, True], n)
    seen = [observe(target, target.neighbour if other else target.rows) for other in others]
    for one in seen:
        if len(one.releases) != len(claims):
            return f"{len(one.releases)} releases where {len(claims)} were debited"
    sizes = [release.statistic.size for release in seen[0].releases]
    if any([release.statistic.size for release in one.releases] != sizes for one in seen):
        return "the number of released coordinates changes from run to run"
    lines = [_standardised(target, one.releases, bool(other)) for one, other in zip(seen, others, strict=True)]
    residual, here, there = (np.array(part) for part in zip(*lines, strict=True))
    release = np.repeat(np.arange(len(claims)), sizes)
    return Sample(
        residual=residual,
        here=here,
        there=there,
        other=others,
        release=release,
        laplace=np.array([isinstance(claim, LaplaceEvent) for claim in claims])[release],
        limit=np.array([_limit(claim) for claim in claims]),
        features=np.array([target.features(one.model) for one in seen]),
    )


def _standardised(target: Target, releases: tuple[Release, ...], other: bool) -> tuple[FloatArray, ...]:
    """Residuals of one run against the reference, the code on the run's table, and the code on the other table."""
    table, neighbour = (target.neighbour, target.rows) if other else (target.rows, target.neighbour)
    parts: list[list[FloatArray]] = [[], [], []]
    for release, claim in zip(releases, target.claims, strict=True):
        ran, columns = release.statistic, len(table.columns)
        sums = (target.reference(ran, table), exact_sum(ran, table, columns), exact_sum(ran, neighbour, columns))
        for part, total in zip(parts, sums, strict=True):
            part.append(np.asarray((release.noisy - total).ravel() / float(claim.scale), dtype=np.float64))
    return tuple(np.concatenate(part) for part in parts)


def _limit(claim: GaussianEvent | LaplaceEvent) -> float:
    if isinstance(claim, LaplaceEvent):
        return float(claim.groups * claim.l1 / claim.scale)
    return math.sqrt(claim.l2_squared / claim.scale**2)
