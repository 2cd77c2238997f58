"""Sessions: a fit's access to one table, which gives noisy sums and choices under a meter that holds the debit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency, ConcentratedEvent, Event
from bursar_server.vault._blocks import BlockEstimator, block_estimates
from bursar_server.vault._engine import Engine, LocalEngine
from bursar_server.vault._meter import Meter
from bursar_server.vault._noise import Noise, NoiseSource, SelectionNoise
from bursar_server.vault._parts import Forest, PartRelease, PartSearch
from bursar_server.vault._rows import Rows
from bursar_server.vault._search import ExactSearch, SearchSource
from bursar_server.vault._selection import Candidates
from bursar_server.vault._sensitivity import estimates_cap, event_of, sensitivity
from bursar_server.vault._statistic import Statistic, exact_sum


@dataclass(frozen=True)
class Release:
    """One noisy release, as an audit's tap receives it: after noise, so it reveals only what was charged.

    Attributes:
        statistic: statistic that was summed.
        noisy: sum plus noise, in lattice units, shape `statistic.shape`.
        noise: noise that was added.
        event: event that the meter was charged.
    """

    statistic: Statistic
    noisy: NDArray[np.int64]
    noise: Noise
    event: Event


@dataclass(frozen=True)
class Choice:
    """One private choice, as an audit's tap receives it: after noise, so it reveals only what was charged.

    Attributes:
        candidates: candidates of the choice.
        available: indices of the blocks that could be chosen.
        chosen: index of the chosen block.
        noise: noise on the scores.
        event: event that the meter was charged.
    """

    candidates: Candidates
    available: tuple[int, ...]
    chosen: int
    noise: SelectionNoise
    event: Event


class Session:
    """Access of one charged fit to one table.

    Args:
        rows: the table's rows, restricted to the fit's columns and in their order.
        columns: number of columns.
        adjacency: neighbouring relation of the dataset.
        unit_cap: maximum number of rows of one privacy unit.
        meter: meter that holds the debit.
        source: source of noise; sources other than `ExactNoise` are for tests.
        engine: engine that reads the rows, for exact sums.
        progress: called with (step, steps) at data-independent points.
        tap: receives every release; for audits inside the process.
        choice_tap: receives every choice; pass the same callable as `tap` to record the order of both.
        part_tap: receives every operation on a part of the table; pass the same callable to record the order of all.
        search_source: source of the candidates of searches on parts; sources other than `ExactSearch` are for tests.
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
        # Only the latest sum is kept: choices among the same blocks follow one another.
        self._summed: tuple[Statistic, NDArray[np.int64]] | None = None
        self.progress = progress

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> NDArray[np.float64]:
        """Release the sum of a statistic over all rows, in real units, shape `statistic.shape`.

        The meter is charged first; then rows are read, summed exactly, and noise is added.

        Raises:
            OverspendError: the debit does not cover the release; nothing was read.
        """
        event = event_of(sensitivity(statistic.bounds, self._adjacency, self._unit_cap), noise)
        self._meter.charge(event)
        # Rows are read only after the charge: a failure in between wastes budget but releases nothing.
        exact = exact_sum(statistic, self._rows, self._columns, engine=self._engine)
        noisy = self._source.add(exact, noise)
        # The tap comes after the noise, so that a hook for audits is no way round it.
        self._tap(Release(statistic, noisy, noise, event))
        # The lattice is a power of two, so the product is exact; an integer beyond 2^53 is rounded here, after the
        # noise.
        return noisy.astype(np.float64) * statistic.lattice

    def choose(self, candidates: Candidates, available: Sequence[int], noise: SelectionNoise) -> int:
        """Choose the block with the largest noisy score; return its index in `candidates.blocks`, one of `available`.

        The meter is charged first, for every choice; then rows are read and scored. The exact sum is cached for further
        choices among blocks of the same statistic, which need no second pass.

        Args:
            candidates: blocks, and the public numbers with which they are compared.
            available: indices of the blocks that may be chosen, each once; public or released.
            noise: noise on every score.

        Raises:
            ValueError: `available` is empty, or has an index twice or out of range.
            OverspendError: the debit does not cover the choice; nothing was read.
        """
        # Checked before the charge, so that a fit with a wrong index loses no budget. Everything checked is public or
        # released.
        offered = tuple(available)
        n = len(candidates.blocks)
        if not offered or len(set(offered)) != len(offered) or not all(0 <= index < n for index in offered):
            raise ValueError(f"available: expected at least one of the indices 0 to {n - 1}, each once, got {offered}")
        # A score depends on one block, so the bounds of a block are enough, however many blocks there are.
        event = event_of(sensitivity(candidates.block_bounds, self._adjacency, self._unit_cap), noise)
        self._meter.charge(event)
        chosen = offered[self._source.argmax(self._scores(candidates)[list(offered)], noise)]
        self._choice_tap(Choice(candidates, offered, chosen, noise, event))
        return chosen

    def forest(self, rho: Fraction) -> Forest:
        """Charge rho and return a forest: operations on parts of the table that together are rho-zCDP.

        The number of parts is not limited by rho. The meter is charged here, once.

        Raises:
            OverspendError: the debit does not cover rho.
        """
        # As a whole, and now: later operations depend on earlier answers, and the path meter holds them all to this
        # rho.
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
        """Charge rho for a forest on the table of block estimates; its operations together are rho-zCDP.

        The rows of the forest's table are the estimates. A privacy unit replaces some of these rows, so releases are
        priced under `REPLACE_ONE` with `estimates_cap` as the unit's cap, whatever the dataset's adjacency and cap. The
        meter is charged here, once; then rows are read.

        Raises:
            OverspendError: the debit does not cover rho; nothing was read.
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
            engine=LocalEngine(self._engine.threads),  # estimates are in this process's memory
            tap=self._part_tap,
        )

    def _scores(self, candidates: Candidates) -> NDArray[np.int64]:
        """Return exact scores. They must stay inside this class; call only after the choice was charged."""
        statistic = candidates.statistic
        # By identity: kernels may hold arrays, for which == has no single answer.
        if self._summed is None or self._summed[0] is not statistic:
            self._summed = statistic, exact_sum(statistic, self._rows, self._columns, engine=self._engine)
        return candidates.scores(self._summed[1])
