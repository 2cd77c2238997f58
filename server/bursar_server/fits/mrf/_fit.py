"""FitMRF's run: noisy tables, decided in advance or, for a tree, chosen on the way; then the estimate from them.

Bernstein et al. 2017, section 3, with the noise of the corrected propositions. How many releases there are, of which
sensitivity and with which noise, is the plan's; which pairs a tree joins depends on what was released before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bursar.models.mrf import (
    Estimate,
    Graph,
    NoisyTable,
    ReleasedTable,
    estimate,
    estimate_chain,
    estimated_rows,
)
from bursar.models.mrf._estimation import Estimator, Inference, merge
from bursar.models.mrf._inference import sum_to
from bursar_ledger import Adjacency, Event
from bursar_server.fits.mrf._selection import Selection, select_tree
from bursar_server.fits.mrf._statistics import (
    Layout,
    firsts_statistic,
    table_statistic,
    transitions_statistic,
)
from bursar_server.vault import LaplaceNoise, Noise, Session, Statistic, event_of, noise_std, sensitivity

_BELIEVED = 4.0
"""Standard errors by which noisy totals may miss a public number of rows before they are believed instead."""


@dataclass(frozen=True)
class Measurement:
    """A table to be released, decided before any row is read.

    Attributes:
        columns: names of its axes.
        statistic: whose sum it is.
        noise: on every cell.
        pooled: over the steps of a chain.
    """

    columns: tuple[str, ...]
    statistic: Statistic
    noise: Noise
    pooled: bool = False

    @property
    def std(self) -> float:
        """Standard deviation of the noise on every cell, in rows or units."""
        return noise_std(self.noise, self.statistic.lattice)

    def event(self, adjacency: Adjacency, unit_cap: int) -> Event:
        """What it is for the ledger."""
        return event_of(sensitivity(self.statistic.bounds, adjacency, unit_cap), self.noise)

    def release(self, session: Session, entry: int) -> ReleasedTable:
        """Make it."""
        counts = session.noisy_sum(self.statistic, self.noise)
        return ReleasedTable(self.columns, counts, self.std, isinstance(self.noise, LaplaceNoise), entry, self.pooled)


@dataclass(frozen=True)
class Tree:
    """A tree to be selected.

    Attributes:
        selection: the noise of every choice.
        pair_noise: on every cell of a chosen pair's table.
    """

    selection: Selection
    pair_noise: Noise


@dataclass(frozen=True)
class Settings:
    """What is released, and what becomes of it.

    Attributes:
        layout: of rows.
        cliques: with a potential, as indices of variables; of a tree or chain: none.
        measurements: tables that are decided; of a tree: of single variables.
        tree: is selected after them, and its pairs released; None: there is none.
        chain: the variables are the steps of a homogeneous chain.
        null: of a chain: the state that stands for "not observed"; None: there is none.
        earlier: tables of earlier releases.
        public_rows: number of rows if it is public, else None.
        estimator: see `estimate`.
        regularization: see `estimate`.
        inference: see `estimate`.
    """

    layout: Layout
    cliques: tuple[tuple[int, ...], ...]
    measurements: tuple[Measurement, ...]
    tree: Tree | None
    chain: bool
    null: int | None
    earlier: tuple[ReleasedTable, ...]
    public_rows: int | None
    estimator: Estimator
    regularization: float | None
    inference: Inference


@dataclass(frozen=True)
class Result:
    """What a run ends with.

    Attributes:
        cliques: names of the columns of each potential.
        tables: new ones, then earlier ones, as released.
        estimate: from them.
    """

    cliques: tuple[tuple[str, ...], ...]
    tables: tuple[ReleasedTable, ...]
    estimate: Estimate


def chain_measurements(
    layout: Layout, null: int | None, noises: tuple[Noise, Noise]
) -> tuple[Measurement, Measurement]:
    """First states, then transitions, of paths."""
    first, second, *_ = (variable.name for variable in layout.variables)
    return (
        Measurement((first,), firsts_statistic(layout, null), noises[0], pooled=True),
        Measurement((first, second), transitions_statistic(layout, null), noises[1], pooled=True),
    )


def table_measurement(layout: Layout, clique: tuple[int, ...], noise: Noise) -> Measurement:
    """The table of a clique."""
    columns = tuple(layout.variables[variable].name for variable in clique)
    return Measurement(columns, table_statistic(layout, clique), noise)


def run(settings: Settings, entry: int, iterations: int, session: Session) -> Result:
    """Release what is new and fit the model to all tables. A total function of rows and noise.

    Args:
        settings: of the plan.
        entry: that paid for what is new.
        iterations: steps of progress; the last is the estimate.
        session: of the debit.
    """
    steps = iter(range(1, iterations))
    new: list[ReleasedTable] = []

    def release(measurement: Measurement) -> None:
        new.append(measurement.release(session, entry))
        session.progress(next(steps), iterations)

    for measurement in settings.measurements:
        release(measurement)
    cliques = settings.cliques
    if settings.tree is not None:
        cliques = tuple(_selected(settings, settings.tree, new, session, steps, iterations))
        for pair in cliques:
            release(table_measurement(settings.layout, pair, settings.tree.pair_noise))
    tables = (*new, *settings.earlier)
    result = _chain(settings, tables) if settings.chain else _field(settings, cliques, tables)
    session.progress(iterations, iterations)
    return result


def _selected(
    settings: Settings,
    tree: Tree,
    new: Sequence[ReleasedTable],
    session: Session,
    steps: Iterator[int],
    iterations: int,
) -> Iterator[tuple[int, int]]:
    """The edges of the tree, from tables of single variables."""
    layout = settings.layout
    singles = Graph(layout.sizes, ())
    tables = _used(layout, singles, (*new, *settings.earlier))
    found = estimate(singles, tables, _rows(settings, tables))
    for pair in select_tree(layout, tree.selection, found.marginals, found.n_rows, session):
        session.progress(next(steps), iterations)
        yield pair


def _field(settings: Settings, cliques: tuple[tuple[int, ...], ...], tables: tuple[ReleasedTable, ...]) -> Result:
    layout = settings.layout
    graph = Graph(layout.sizes, cliques)
    used = _used(layout, graph, tables)
    found = estimate(
        graph,
        used,
        _rows(settings, used),
        estimator=settings.estimator,
        regularization=settings.regularization,
        inference=settings.inference,
    )
    names = tuple(tuple(layout.variables[variable].name for variable in clique) for clique in graph.cliques)
    return Result(names, tables, found)


def _chain(settings: Settings, tables: tuple[ReleasedTable, ...]) -> Result:
    layout = settings.layout
    # Means of what is there, if more than one release has them.
    (firsts,), (transitions,) = (
        merge([NoisyTable(axes, t.counts, t.noise_std, t.laplace) for t in tables if len(t.columns) == len(axes)])
        for axes in ((0,), (0, 1))
    )
    found = estimate_chain(
        len(layout.variables),
        layout.sizes[0],
        transitions,
        firsts,
        _rows(settings, (firsts, transitions)),
        estimator=settings.estimator,
        regularization=settings.regularization,
    )
    first, second, *_ = (variable.name for variable in layout.variables)
    return Result(((first,), (first, second)), tables, found)


def _used(layout: Layout, graph: Graph, tables: Sequence[ReleasedTable]) -> list[NoisyTable]:
    """What tables say about a graph's cliques: they themselves within a clique, sums of them where they hold some."""
    indices = {variable.name: index for index, variable in enumerate(layout.variables)}
    found = []
    for table in tables:
        # Columns that are no variables have numbers of their own, so that they are summed over.
        scope = tuple(indices.get(column, len(indices) + axis) for axis, column in enumerate(table.columns))
        if any(set(scope) <= set(clique) for clique in graph.cliques):
            found.append(NoisyTable(scope, table.counts, table.noise_std, table.laplace))
            continue
        held = [clique for clique in graph.cliques if set(clique) <= set(scope)]
        for clique in held:
            if not any(set(clique) < set(other) for other in held):
                summed = math.sqrt(table.counts.size / graph.cells(clique))
                found.append(NoisyTable(clique, sum_to(table.counts, scope, clique), table.noise_std * summed))
    return found


def _rows(settings: Settings, tables: Sequence[NoisyTable]) -> float | None:
    """The public number of rows; None to let the tables say it.

    That is where it is private, and where the released totals are far from it: rows that are null, because a value of
    theirs has no state, are in the public number and in no table.
    """
    if settings.public_rows is None:
        return None
    error = sum(1 / (table.counts.size * table.std**2) for table in tables) ** -0.5
    believed = abs(estimated_rows(tables) - settings.public_rows) <= _BELIEVED * error
    return float(settings.public_rows) if believed else None
