"""One choice of FitMRF's tree on the worst pair of tables for it: how often each of two edges is chosen on either.

What one row adds to one score it takes from another, so the odds between them change by the whole of e^eta, and no
more if the choice was priced as it was made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency, SelectionEvent, cost_units
from bursar_models.arrays import FloatArray
from bursar_models.mrf import Variable
from bursar_server.fits.mrf._selection import Selection, select_tree
from bursar_server.fits.mrf._statistics import Layout, table_bounds
from bursar_server.vault import (
    ArrayRows,
    FitBudget,
    Meter,
    NoiseSource,
    OpenDPNoise,
    Session,
    SyntheticBudget,
    pure_selection_for,
    sensitivity,
)
from tests.audit.checks import Finding, odds
from tests.audit.target import ORDER

CELLS = 8
"""States of three columns of two states."""

TARGET = 10
"""Rows in each cell of a pair's table, if columns are independent and even."""


@dataclass(frozen=True)
class OneChoice:
    """The first choice of a tree of three columns, "a", "b" and "c", between (a, b) and (a, c).

    Attributes:
        adjacency: of the pair, and of the dataset.
        rows: table D, (columns, slots).
        neighbour: table D'.
        selection: of the plan.
        event: that was debited for it.
        session: what the choice is given.
        source: makes its noise.
        meter: makes its meter.
    """

    adjacency: Adjacency
    rows: ArrayRows
    neighbour: ArrayRows
    selection: Selection
    event: SelectionEvent
    session: Callable[..., Session] = Session
    source: Callable[[], NoiseSource] = OpenDPNoise
    meter: Callable[[FitBudget], Meter] = Meter

    def audit(self, n: int) -> Finding:
        """T8 on n choices from each table."""
        eta = float(2 * self.event.sensitivity / self.event.scale)
        return odds(self._counts(self.rows, n), self._counts(self.neighbour, n), eta)

    def _counts(self, rows: ArrayRows, n: int) -> NDArray[np.int64]:
        made = [self._chosen(rows) for _ in range(n)]
        return np.array([made.count((0, 1)), made.count((0, 2))])

    def _chosen(self, rows: ArrayRows) -> tuple[int, int]:
        session = self.session(
            rows=rows,
            columns=len(rows.columns),
            adjacency=self.adjacency,
            unit_cap=1,
            meter=self.meter(SyntheticBudget(ORDER, cost_units([self.event], ORDER))),
            source=self.source(),
        )
        even = [np.full(2, 0.5)] * 3
        return next(iter(select_tree(LAYOUT, self.selection, even, 4.0 * TARGET, session)))


LAYOUT = Layout(tuple(Variable(name, ("0", "1")) for name in "abc"), shares=False)


def one_choice(adjacency: Adjacency, epsilon: Fraction = Fraction(2)) -> OneChoice:
    """The choice at an epsilon, on tables where one row changes both scores as much as any can, against each other."""
    changed = sensitivity(table_bounds(LAYOUT), adjacency, 1)
    noise = pure_selection_for(changed, epsilon)
    rows, neighbour = worst_tables(adjacency)
    event = SelectionEvent(changed.l1_total, Fraction(noise.scale))
    return OneChoice(adjacency, rows, neighbour, Selection(1, noise, 0.0), event)


def priced_for(adjacency: Adjacency, other: Adjacency) -> OneChoice:
    """A pair of one adjacency under the noise and the price of the other."""
    cheap, pair = one_choice(other), one_choice(adjacency)

    def session(**arguments: object) -> Session:
        return Session(**{**arguments, "adjacency": other})  # type: ignore[arg-type] # of Session

    return replace(pair, selection=cheap.selection, event=cheap.event, session=session)


def worst_tables(adjacency: Adjacency) -> tuple[ArrayRows, ArrayRows]:
    """Tables whose scores of (a, b) and (a, c) differ by +D and -D, and are near each other and far above (b, c)'s."""
    rng = np.random.default_rng(11)  # noqa: TID251 - the audit's tables are fixed
    replaced = adjacency is Adjacency.REPLACE_ONE
    best: tuple[float, NDArray[np.int64]] | None = None
    for _ in range(4000):
        counts = rng.multinomial(4 * TARGET - 1, rng.dirichlet(np.ones(CELLS)))
        here, there = scores_of(counts, CELLS - 1), scores_of(counts, 0 if replaced else None)
        if (here - there)[:2].tolist() == [1 + replaced, -1 - replaced]:
            both = here + there
            far_off = float(abs(both[0] - both[1]) + max(0, both[2] - both[:2].min() + 20))
            best = (far_off, counts) if best is None or far_off < best[0] else best
    if best is None:
        raise RuntimeError("no such tables were found")
    base = rows_of(best[1])
    last, first = np.ones((3, 1)), np.zeros((3, 1))
    slots = base.shape[1] + 1
    if replaced:
        return ArrayRows(np.hstack([base, last])), ArrayRows(np.hstack([base, first]))
    return ArrayRows(np.hstack([base, last])), ArrayRows(np.hstack([base, first]), np.arange(slots) < slots - 1)


def scores_of(counts: NDArray[np.int64], extra: int | None) -> NDArray[np.int64]:
    """L1 distances of the pairs' tables from even ones, with one more row in a cell, or none."""
    table = counts.copy()
    if extra is not None:
        table[extra] += 1
    cube = table.reshape(2, 2, 2)
    pairs = combinations(range(3), 2)
    return np.array([np.abs(cube.sum(axis=3 - a - b) - TARGET).sum() for a, b in pairs])


def rows_of(counts: NDArray[np.int64]) -> FloatArray:
    """Rows (3, n) with these counts of states."""
    states = np.array(np.unravel_index(np.arange(CELLS), (2, 2, 2)), dtype=np.float64)
    return np.repeat(states, counts, axis=1)
