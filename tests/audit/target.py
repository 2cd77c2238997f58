"""Subjects of the audit: a fit on a pair of neighbouring tables, observed at the release boundary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bursar_ledger import Adjacency, Event, GaussianEvent, LaplaceEvent, SelectionEvent, cost_units
from bursar_server.vault import (
    ArrayRows,
    Choice,
    ExactNoise,
    FitBudget,
    Meter,
    NoiseSource,
    Release,
    Session,
    Statistic,
    SyntheticBudget,
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
        unit_rows: the column that says how many rows a row's unit has, where statistics are bounded by units; the
            search is for units then, of 1 to `unit_cap` rows. None: it is for rows, of which a unit has `unit_cap`.
        brief: most runs are stopped after their last release, since what follows takes long.
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
    unit_rows: int | None = None
    brief: bool = False

    session: Callable[..., Session] = Session
    source: Callable[[], NoiseSource] = ExactNoise
    meter: Callable[[FitBudget], Meter] = Meter

    @property
    def debited(self) -> int:
        """Cost of the debit in the ledger's units."""
        return cost_units(self.events, ORDER)

    @property
    def claims(self) -> tuple[GaussianEvent | LaplaceEvent, ...]:
        """The debited events one by one, in the order of the releases."""
        return tuple(one for event in self.events for one in _single(event))

    @property
    def chosen(self) -> tuple[SelectionEvent, ...]:
        """The debited choices one by one, in their order."""
        choices = [event for event in self.events if isinstance(event, SelectionEvent)]
        return tuple(SelectionEvent(one.sensitivity, one.scale) for one in choices for _ in range(one.count))


def _single(event: Event) -> list[GaussianEvent | LaplaceEvent]:
    if isinstance(event, GaussianEvent):
        return [GaussianEvent(event.l2_squared, event.scale)] * event.count
    if isinstance(event, LaplaceEvent):
        return [LaplaceEvent(event.l1, event.scale, groups=event.groups)] * event.count
    if isinstance(event, SelectionEvent):
        return []
    raise NotImplementedError(
        f"the audit has no residuals for {type(event).__name__}; add its test before a fit uses it"
    )


@dataclass(frozen=True)
class Observation:
    """One run: every release and every choice after noise, the model that left, and the steps that it reported."""

    releases: tuple[Release, ...]
    model: object
    choices: tuple[Choice, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()


class _EnoughError(Exception):
    """All releases that were debited have been seen."""


def observe(target: Target, rows: ArrayRows, source: NoiseSource | None = None, *, stop: bool = False) -> Observation:
    """Run the fit once on a table, through its tap; no further than the last release that was debited if `stop`."""
    releases: list[Release] = []
    choices: list[Choice] = []
    steps: list[tuple[int, int]] = []

    def tap(release: Release) -> None:
        releases.append(release)
        if stop and len(releases) == len(target.claims):
            raise _EnoughError

    session = target.session(
        rows=rows,
        columns=rows.columns.shape[0],
        adjacency=target.adjacency,
        unit_cap=target.unit_cap,
        meter=target.meter(SyntheticBudget(ORDER, target.debited)),
        source=source or target.source(),
        tap=tap,
        choice_tap=choices.append,
        progress=lambda step, of: steps.append((step, of)),
    )
    try:
        model = target.run(session)
    except _EnoughError:
        model = None
    return Observation(tuple(releases), model, tuple(choices), tuple(steps))


@dataclass(frozen=True)
class Choices:
    """The choices of many runs, in scales of the noise that was debited; v is the most blocks that any could take.

    Attributes:
        here, there: (runs, choices, v) scores on the run's table, and on the other; -inf for what was not available.
        chosen: (runs, choices) positions of those that were chosen.
        eta: (choices,) bounded range that was debited.
    """

    here: FloatArray
    there: FloatArray
    chosen: NDArray[np.int64]
    eta: FloatArray


NO_CHOICES = Choices(np.empty((0, 0, 1)), np.empty((0, 0, 1)), np.empty((0, 0), dtype=np.int64), np.empty(0))


@dataclass(frozen=True)
class Sample:
    """Many runs on both tables, in scales of the noise that was debited.

    Attributes:
        residual: (runs, coordinates) release minus the independent reference's sum of the run's table; smoothed where
            the noise is so small that its law, which is on integers, is not nearly that on the line.
        gap: largest difference between what the code sums, or scores, and what the reference does.
        here, there: (runs, coordinates) release minus what the code that ran sums on the run's table, and on the other.
        other: (runs,) False for runs on D, True for runs on D'.
        release: (coordinates,) which release a coordinate belongs to.
        laplace: (coordinates,) the claimed law; Gaussian where False.
        scale: (coordinates,) of the claimed noise, in lattice units.
        limit: (releases,) claimed sensitivity: L2, or L1 for Laplace.
        features: (runs, numbers) of the models; none where runs were stopped before they had one.
        choices: made between releases.
    """

    residual: FloatArray
    gap: float
    here: FloatArray
    there: FloatArray
    other: NDArray[np.bool_]
    release: NDArray[np.int64]
    laplace: NDArray[np.bool_]
    scale: FloatArray
    limit: FloatArray
    features: FloatArray
    choices: Choices = NO_CHOICES


WHOLE_RUNS = 1
"""Number of whole runs on each table, where most runs are stopped."""


def collect(target: Target, n: int) -> Sample | str:
    """Observe n runs on each table. Returns a sentence instead if the releases do not even have the debit's form."""
    claims = target.claims
    others = np.repeat([False, True], n)
    seen = [
        observe(target, target.neighbour if other else target.rows, stop=target.brief and i % n >= WHOLE_RUNS)
        for i, other in enumerate(others)
    ]
    for one in seen:
        if len(one.releases) != len(claims):
            return f"{len(one.releases)} releases where {len(claims)} were debited"
        if len(one.choices) != len(target.chosen):
            return f"{len(one.choices)} choices where {len(target.chosen)} were debited"
    found = np.array([[release.statistic.size for release in one.releases] for one in seen])
    # A set of columns that is chosen has as many cells as it has; `checks.replay` shows that nothing else decides that.
    if not target.chosen and (found != found[0]).any():
        return "the number of released coordinates changes from run to run"
    sizes = found.min(axis=0).tolist()
    lines = [_standardised(target, one.releases, bool(other), sizes) for one, other in zip(seen, others, strict=True)]
    residual, gaps, here, there = (np.array(part) for part in zip(*lines, strict=True))
    choices, gap = _choices(target, seen, others) if target.chosen else (NO_CHOICES, 0.0)
    release = np.repeat(np.arange(len(claims)), sizes)
    models = [np.empty(0) if target.brief else target.features(one.model) for one in seen]
    return Sample(
        residual=residual,
        gap=max(gap, float(np.abs(gaps).max())),
        here=here,
        there=there,
        other=others,
        release=release,
        laplace=np.array([isinstance(claim, LaplaceEvent) for claim in claims])[release],
        scale=np.array([float(claim.scale) for claim in claims])[release],
        limit=np.array([_limit(claim) for claim in claims]),
        features=np.array(models),
        choices=choices,
    )


def _tables(target: Target, other: bool) -> tuple[ArrayRows, ArrayRows]:
    """The table of a run, and the other one."""
    return (target.neighbour, target.rows) if other else (target.rows, target.neighbour)


def _standardised(
    target: Target, releases: tuple[Release, ...], other: bool, sizes: Sequence[int]
) -> tuple[FloatArray, ...]:
    """Residuals of one run against the reference, its largest gap, and residuals of the code on both tables.

    Of each release the last so many cells, where the unit that changes is; gaps are of all.
    """
    table, neighbour = _tables(target, other)
    parts: list[list[FloatArray]] = [[], [], [], []]
    for release, claim, size in zip(releases, target.claims, sizes, strict=True):
        ran, columns, scale = release.statistic, len(table.columns), float(claim.scale)
        expected, here, there = (
            np.asarray((release.noisy - total).ravel(), dtype=np.float64)
            for total in (
                target.reference(ran, table),
                exact_sum(ran, table, columns),
                exact_sum(ran, neighbour, columns),
            )
        )
        gap = np.abs(expected - here).max(keepdims=True) / scale
        kept = (smoothed(expected[-size:], claim), gap, here[-size:] / scale, there[-size:] / scale)
        for part, values in zip(parts, kept, strict=True):
            part.append(values)
    return tuple(np.concatenate(part) for part in parts)


COARSE = 64.0
"""Noise of a smaller scale is looked at as the law on integers that it has."""


def on_integers(laplace: bool, scale: float) -> tuple[NDArray[np.int64], FloatArray]:
    """Integers within 40 scales, ascending, and the chances of noise, which is Gaussian if not Laplace's."""
    k = np.arange(-int(40 * scale) - 2, int(40 * scale) + 3)
    weights = np.exp(-np.abs(k) / scale if laplace else -(k**2) / (2 * scale**2))
    return k, weights / weights.sum()


def smoothed(residual: FloatArray, claim: GaussianEvent | LaplaceEvent) -> FloatArray:
    """Residuals in scales of the noise, with the law on the line if they have the claimed one on the integers.

    Every integer is spread over the quantiles that belong to it.
    """
    scale, laplace = float(claim.scale), isinstance(claim, LaplaceEvent)
    if scale >= COARSE:
        return residual / scale
    k, chances = on_integers(laplace, scale)
    rng = np.random.default_rng()  # noqa: TID251 - where in an integer's quantiles
    # The lower tail is the exact one.
    place = np.searchsorted(k, np.clip(-np.abs(np.rint(residual)), k[0], 0))
    quantile = np.cumsum(chances)[place] - rng.uniform(size=residual.shape) * chances[place]
    law = stats.laplace if laplace else stats.norm
    return np.asarray(np.where(residual > 0, -1.0, 1.0) * law.ppf(np.maximum(quantile, 1e-300)))


def _choices(target: Target, seen: list[Observation], others: NDArray[np.bool_]) -> tuple[Choices, float]:
    """The choices of runs, with the scores that were compared, and the largest gap to the reference's sums."""
    most = max(len(choice.candidates.blocks) for one in seen for choice in one.choices)
    here, there = (np.full((len(seen), len(target.chosen), most), -np.inf) for _ in range(2))
    chosen, gap = np.empty(here.shape[:2], dtype=np.int64), 0.0
    for i, (one, other) in enumerate(zip(seen, others, strict=True)):
        for j, (choice, claim) in enumerate(zip(one.choices, target.chosen, strict=True)):
            ran, offered, scale = choice.candidates, list(choice.available), float(claim.scale)
            chosen[i, j] = choice.chosen
            for scores, table in zip((here, there), _tables(target, bool(other)), strict=True):
                total = exact_sum(ran.statistic, table, len(table.columns))
                scores[i, j, offered] = ran.scores(total)[offered] / scale
                gap = max(gap, float(np.abs(total - target.reference(ran.statistic, table)).max()) / scale)
    eta = np.array([float(2 * one.sensitivity / one.scale) for one in target.chosen])
    return Choices(here, there, chosen, eta), gap


def _limit(claim: GaussianEvent | LaplaceEvent) -> float:
    if isinstance(claim, LaplaceEvent):
        return float(claim.groups * claim.l1 / claim.scale)
    return math.sqrt(claim.l2_squared / claim.scale**2)
