"""What a fit is given: noisy sums and nothing else, under a meter that knows the debit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import COST_UNIT, Adjacency, ConcentratedEvent, Event, rdp
from bursar_server.vault._blocks import BlockEstimator, block_estimates
from bursar_server.vault._engine import Engine, LocalEngine
from bursar_server.vault._errors import OverspendError
from bursar_server.vault._noise import Noise, NoiseSource, SelectionNoise
from bursar_server.vault._parts import Forest, PartRelease, PartSearch
from bursar_server.vault._rows import Rows
from bursar_server.vault._search import ExactSearch, SearchSource
from bursar_server.vault._selection import Candidates
from bursar_server.vault._sensitivity import estimates_cap, event_of, sensitivity
from bursar_server.vault._statistic import Statistic, exact_sum


class Meter:
    """Stops a fit that would spend more than its debit.

    Prices are the ledger's: Renyi divergence at the dataset's order, exact sums, rounded up once.
    """

    def __init__(self, order: Fraction, debited_units: int) -> None:
        self._order = order
        self._debited = Fraction(debited_units, COST_UNIT)
        self._spent = Fraction(0)

    def charge(self, event: Event) -> None:
        """Count an event. Raises OverspendError, and counts nothing, if the debit does not cover it."""
        spent = self._spent + rdp(event, self._order)
        if not spent <= self._debited:
            raise OverspendError(f"{event!r} is not covered by the debit; a fit must release what its plan says")
        self._spent = spent

    @property
    def unspent(self) -> Fraction:
        """What the debit still covers, as Renyi divergence at the order."""
        return self._debited - self._spent


@dataclass(frozen=True)
class Release:
    """One noisy release as the audit's tap sees it: after noise, so it says nothing that was not paid for.

    Attributes:
        statistic: what was summed.
        noisy: sum plus noise, in lattice units, shape `statistic.shape`.
        noise: what was added.
        event: what the meter was charged.
    """

    statistic: Statistic
    noisy: NDArray[np.int64]
    noise: Noise
    event: Event


@dataclass(frozen=True)
class Choice:
    """One private choice as the audit's tap sees it: after noise, as `Release`.

    Attributes:
        candidates: among which it was made.
        available: indices of the blocks that could be chosen.
        chosen: the one that was.
        noise: what was added to the scores.
        event: what the meter was charged.
    """

    candidates: Candidates
    available: tuple[int, ...]
    chosen: int
    noise: SelectionNoise
    event: Event


class Session:
    """One paid fit's access to one table.

    Args:
        rows: the table's rows, restricted to the fit's columns and in their order.
        columns: how many columns.
        adjacency: of the dataset.
        unit_cap: most rows of one privacy unit.
        meter: knows the debit.
        source: of noise; anything but `ExactNoise` is for tests.
        engine: reads the rows, for exact sums.
        progress: called with (step, steps) at data-independent points.
        tap: sees every release; for audits inside the process.
        choice_tap: sees every choice; the same callable may be given for both, to see their order.
        part_tap: sees every operation on a part of the table; likewise.
        search_source: draws the candidates of searches on parts; anything but `ExactSearch` is for tests.
    """

    def __init__(
        self,
        *,
        rows: Rows,
        columns: int,
        adjacency: Adjacency,
        unit_cap: int,
        meter: Meter,
        source: NoiseSource,
        engine: Engine | None = None,
        progress: Callable[[int, int], None] = lambda step, steps: None,
        tap: Callable[[Release], None] = lambda release: None,
        choice_tap: Callable[[Choice], None] = lambda choice: None,
        part_tap: Callable[[PartRelease | PartSearch], None] = lambda operation: None,
        search_source: SearchSource | None = None,
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._adjacency = adjacency
        self._unit_cap = unit_cap
        self._meter = meter
        self._source = source
        self._engine = engine or LocalEngine()
        self._tap = tap
        self._choice_tap = choice_tap
        self._part_tap = part_tap
        self._search_source = search_source or ExactSearch()
        self._scored: tuple[Candidates, NDArray[np.int64]] | None = None
        self.progress = progress

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> NDArray[np.float64]:
        """Release the sum of a statistic over all rows, in real units, shape `statistic.shape`.

        The meter is charged first; then rows are read, summed exactly, and noise is added. Raises OverspendError before
        anything is read if the debit does not cover the release.
        """
        event = event_of(sensitivity(statistic.bounds, self._adjacency, self._unit_cap), noise)
        self._meter.charge(event)
        exact = exact_sum(statistic, self._rows, self._columns, engine=self._engine)
        noisy = self._source.add(exact, noise)
        self._tap(Release(statistic, noisy, noise, event))
        return noisy.astype(np.float64) * statistic.lattice

    def choose(self, candidates: Candidates, available: Sequence[int], noise: SelectionNoise) -> int:
        """Choose the block with the largest score after noise: its index in `candidates.blocks`, one of `available`.

        The meter is charged first, for every choice; then rows are read and scored. For further choices among the same
        object the scores are kept here, so that no second pass is made.

        Args:
            candidates: blocks, and the public numbers that they are compared with.
            available: indices of the blocks that may be chosen, each once; public or released.
            noise: on every score.

        Raises:
            ValueError: `available` is empty, or has an index twice or out of range.
            OverspendError: the debit does not cover the choice; nothing was read.
        """
        offered = tuple(available)
        n = len(candidates.blocks)
        if not offered or len(set(offered)) != len(offered) or not all(0 <= index < n for index in offered):
            raise ValueError(f"available: expected at least one of the indices 0 to {n - 1}, each once, got {offered}")
        event = event_of(sensitivity(candidates.block_bounds, self._adjacency, self._unit_cap), noise)
        self._meter.charge(event)
        chosen = offered[self._source.argmax(self._scores(candidates)[list(offered)], noise)]
        self._choice_tap(Choice(candidates, offered, chosen, noise, event))
        return chosen

    def forest(self, rho: Fraction) -> Forest:
        """Buy operations on parts of the table that are rho-zCDP together, however many parts there will be.

        The meter is charged here, once. Raises OverspendError if the debit does not cover it.
        """
        self._meter.charge(ConcentratedEvent(rho))
        return Forest(
            rho,
            rows=self._rows,
            columns=self._columns,
            adjacency=self._adjacency,
            unit_cap=self._unit_cap,
            source=self._source,
            search_source=self._search_source,
            engine=self._engine,
            tap=self._part_tap,
        )

    def blocks(self, rho: Fraction, estimator: BlockEstimator) -> Forest:
        """Buy operations on the estimates of blocks of rows that are rho-zCDP together.

        The forest's table has the estimates as its rows. It is one in which a privacy unit replaces some rows, so
        releases are priced under `REPLACE_ONE`, with `estimates_cap` as the unit's cap, whatever the dataset's are. The
        meter is charged here, once; then rows are read. Raises OverspendError if the debit does not cover it.
        """
        self._meter.charge(ConcentratedEvent(rho))
        width, estimates = estimator.shape
        return Forest(
            rho,
            rows=block_estimates(self._rows, self._columns, estimator, engine=self._engine),
            columns=width,
            adjacency=Adjacency.REPLACE_ONE,
            unit_cap=estimates_cap(estimates, self._adjacency, self._unit_cap),
            source=self._source,
            search_source=self._search_source,
            engine=LocalEngine(self._engine.threads),  # estimates are here, wherever the rows are
            tap=self._part_tap,
        )

    def _scores(self, candidates: Candidates) -> NDArray[np.int64]:
        """Exact scores, which stay inside; for calls that have been paid for."""
        if self._scored is None or self._scored[0] is not candidates:
            exact = exact_sum(candidates.statistic, self._rows, self._columns, engine=self._engine)
            self._scored = candidates, candidates.scores(exact)
        return self._scored[1]
