"""What a fit is given: noisy sums and nothing else, under a meter that knows the debit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import COST_UNIT, Adjacency, Event, rdp
from bursar_server.vault._noise import Noise, NoiseSource
from bursar_server.vault._rows import Rows
from bursar_server.vault._sensitivity import event_of, sensitivity
from bursar_server.vault._statistic import Statistic, exact_sum


class OverspendError(Exception):
    """A fit asked for more than was debited; nothing was read, no noise drawn. A bug in the fit, never in the data."""


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


class Session:
    """One paid fit's access to one table.

    Args:
        rows: the table's rows, restricted to the fit's columns and in their order.
        columns: how many columns.
        adjacency: of the dataset.
        unit_cap: most rows of one privacy unit.
        meter: knows the debit.
        source: of noise; anything but `OpenDPNoise` is for tests.
        threads: for exact sums.
        progress: called with (step, steps) at data-independent points.
        tap: sees every release; for audits inside the process.
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
        threads: int = 1,
        progress: Callable[[int, int], None] = lambda step, steps: None,
        tap: Callable[[Release], None] = lambda release: None,
    ) -> None:
        self._rows = rows
        self._columns = columns
        self._adjacency = adjacency
        self._unit_cap = unit_cap
        self._meter = meter
        self._source = source
        self._threads = threads
        self._tap = tap
        self.progress = progress

    def noisy_sum(self, statistic: Statistic, noise: Noise) -> NDArray[np.float64]:
        """Release the sum of a statistic over all rows, in real units, shape `statistic.shape`.

        The meter is charged first; then rows are read, summed exactly, and noise is added. Raises OverspendError before
        anything is read if the debit does not cover the release.
        """
        event = event_of(sensitivity(statistic.bounds, self._adjacency, self._unit_cap), noise)
        self._meter.charge(event)
        exact = exact_sum(statistic, self._rows, self._columns, threads=self._threads)
        noisy = self._source.add(exact, noise)
        self._tap(Release(statistic, noisy, noise, event))
        return noisy.astype(np.float64) * statistic.lattice
