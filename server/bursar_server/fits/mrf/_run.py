"""Run of FitMRF: noisy tables, decided in advance or chosen on the way; then the estimate from them.

Bernstein et al. 2017, section 3, with the noise of the corrected propositions. The plan decides number, sensitivity and
noise of the releases; the pairs that are chosen depend on earlier releases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bursar_ledger import Adjacency, Event
from bursar_models.mrf import Estimate, Graph, Learning, ReleasedTable, believed_rows, estimate, used_tables
from bursar_models.mrf._candidates import Clique
from bursar_models.mrf._estimation import Estimator, Inference
from bursar_models.mrf._graph import pairs_apart
from bursar_models.mrf._intervals import unexplained
from bursar_models.mrf._variables import ordered_of
from bursar_server.fits.mrf._rounds import (
    Rounds,
    averaged,
    choose_held_out,
    choose_in_rounds,
    direct_tables,
    widest,
    within_clusters,
)
from bursar_server.fits.mrf._selection import Selection, select_tree
from bursar_server.fits.mrf._statistics import (
    Layout,
    firsts_statistic,
    table_statistic,
    transitions_statistic,
)
from bursar_server.vault import LaplaceNoise, Noise, Session, Statistic, event_of, noise_std, sensitivity


@dataclass(frozen=True)
class Measurement:
    """Table to be released, decided before any row is read.

    Attributes:
        columns: names of its axes.
        statistic: statistic that is summed.
        noise: noise on every cell.
        pooled: True for a table over the steps of a chain.
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
        """Return the ledger event of the release."""
        return event_of(sensitivity(self.statistic.bounds, adjacency, unit_cap), self.noise)

    def release(self, session: Session, entry: int) -> ReleasedTable:
        """Release the table."""
        counts = session.noisy_sum(self.statistic, self.noise)
        return ReleasedTable(self.columns, counts, self.std, isinstance(self.noise, LaplaceNoise), entry, self.pooled)


@dataclass(frozen=True)
class Pairs:
    """Sets of columns to be chosen, whose tables are released: the pairs of a tree, or any sets, in rounds.

    Attributes:
        selection: choices, and their noise.
        noise: noise on every cell of a chosen set's table.
        rounds: candidates of the rounds; None for a tree.
        direct: tables of some candidates, released once after the rounds; None if they are not.
        direct_sets: their columns.
    """

    selection: Selection
    noise: Noise
    rounds: Rounds | None = None
    direct: Measurement | None = None
    direct_sets: tuple[Clique, ...] = ()


@dataclass(frozen=True)
class MRFSettings:
    """Releases of a run, and their use.

    Attributes:
        layout: layout of the rows.
        cliques: cliques with a potential, as indices of variables; empty for a chain, and where pairs are chosen.
        measurements: tables that are decided; where pairs are chosen those of single variables.
        pairs: pairs that are chosen after them; None if there are none.
        chain: True if the variables are the steps of a homogeneous chain.
        null: state of a chain that means "not observed"; None if there is none.
        held_out: choice of a pair whose table tests the graph, and that table's noise; None without a test.
        earlier: tables of earlier releases.
        public_rows: number of rows if it is public, else None.
        estimator: estimator of `estimate`.
        regularization: penalty of `estimate`.
        inference: inference of `estimate`.
        here: True if this server estimates, False if the client does.
    """

    layout: Layout
    cliques: tuple[tuple[int, ...], ...]
    measurements: tuple[Measurement, ...]
    pairs: Pairs | None
    chain: bool
    null: int | None
    held_out: Pairs | None
    earlier: tuple[ReleasedTable, ...]
    public_rows: int | None
    estimator: Estimator
    regularization: float | None
    inference: Inference
    here: bool

    def learning(self, cliques: tuple[tuple[int, ...], ...]) -> Learning:
        """Return the learning specification over these cliques."""
        return Learning(
            names=tuple(variable.name for variable in self.layout.variables),
            sizes=self.layout.sizes,
            cliques=cliques,
            chain=self.chain,
            public_rows=self.public_rows,
            estimator=self.estimator,
            regularization=self.regularization,
            inference=self.inference,
            ordered=ordered_of(self.layout.variables),
        )


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        learning: specification of the field.
        tables: released tables, new ones before earlier ones.
        estimate: estimate from them; None if the client makes it.
        unexplained: by how much models of the later rounds missed the next table; None without rounds.
    """

    learning: Learning
    tables: tuple[ReleasedTable, ...]
    estimate: Estimate | None
    unexplained: float | None = None


def chain_measurements(
    layout: Layout, null: int | None, noises: tuple[Noise, Noise]
) -> tuple[Measurement, Measurement]:
    """Return the tables of first states and of transitions of paths."""
    first, second, *_ = (variable.name for variable in layout.variables)
    return (
        Measurement((first,), firsts_statistic(layout, null), noises[0], pooled=True),
        Measurement((first, second), transitions_statistic(layout, null), noises[1], pooled=True),
    )


def table_measurement(layout: Layout, clique: tuple[int, ...], noise: Noise) -> Measurement:
    """Return the table of a clique."""
    columns = tuple(layout.variables[variable].name for variable in clique)
    return Measurement(columns, table_statistic(layout, clique), noise)


def run(settings: MRFSettings, entry: int, iterations: int, session: Session) -> Result:
    """Release new tables and, if this server estimates, fit the model. A total function of rows and noise.

    Args:
        settings: settings of the plan.
        entry: ledger entry of the debit.
        iterations: number of steps of progress: releases, and the estimate if it is made here.
        session: session of the debit.
    """
    steps = itertools.count(1)
    new: list[ReleasedTable] = []

    def step() -> None:
        session.progress(next(steps), iterations)

    def release(measurement: Measurement) -> ReleasedTable:
        new.append(measurement.release(session, entry))
        step()
        return new[-1]

    for measurement in settings.measurements:
        release(measurement)
    cliques, misses = settings.cliques, list[float]()
    direct: tuple[ReleasedTable, ...] = ()
    if settings.pairs is not None:
        chosen, misses = _chosen(settings, settings.pairs, (*new, *settings.earlier), session, step, release)
        if settings.pairs.direct is not None:
            layout, sets, every = settings.layout, settings.pairs.direct_sets, settings.pairs.direct
            direct = direct_tables(layout, sets, session.noisy_sum(every.statistic, every.noise), every.noise, entry)
            step()
            chosen = within_clusters(layout, sets, chosen)
        cliques = widest(chosen)
    tables, learning = (*averaged(new), *direct, *settings.earlier), settings.learning(cliques)
    if settings.held_out is not None:
        tables = (*tables, _held_out(settings, settings.held_out, cliques, tables, session, step, release))
    found = learning.learn(tables) if settings.here else None
    if next(steps) <= iterations:  # if the client learns, the last release was the last step
        session.progress(iterations, iterations)
    return Result(learning, tables, found, unexplained(misses))


def _held_out(
    settings: MRFSettings,
    pairs: Pairs,
    cliques: tuple[Clique, ...],
    tables: Sequence[ReleasedTable],
    session: Session,
    step: Callable[[], None],
    release: Callable[[Measurement], ReleasedTable],
) -> ReleasedTable:
    """Choose a pair outside of the cliques and release its table; where they have all pairs, it is one table more."""
    layout, public_rows = settings.layout, settings.public_rows
    pair = choose_held_out(layout, pairs.selection, cliques, tables, public_rows, session)
    step()
    apart = pair in pairs_apart(Graph(layout.sizes, cliques))
    return replace(release(table_measurement(layout, pair, pairs.noise)), held_out=apart)


def _chosen(
    settings: MRFSettings,
    pairs: Pairs,
    tables: Sequence[ReleasedTable],
    session: Session,
    step: Callable[[], None],
    release: Callable[[Measurement], ReleasedTable],
) -> tuple[list[Clique], list[float]]:
    """Choose sets of columns from tables of single variables and earlier ones, and release their tables.

    Returns the sets, and for each round by how much its model missed the table that was released next.
    """
    layout = settings.layout

    def measured(clique: Clique) -> ReleasedTable:
        step()
        return release(table_measurement(layout, clique, pairs.noise))

    if pairs.rounds is not None:
        public_rows = settings.public_rows
        return choose_in_rounds(layout, pairs.selection, pairs.rounds, tables, public_rows, measured, session)
    singles = Graph(layout.sizes, ())
    used = used_tables([variable.name for variable in layout.variables], singles, tables)
    found = estimate(singles, used, believed_rows(settings.public_rows, used), ordered=ordered_of(layout.variables))
    chosen = list[Clique]()
    for pair in select_tree(layout, pairs.selection, found.marginals, found.n_rows, session):
        step()
        chosen.append(pair)
    for clique in chosen:
        release(table_measurement(layout, clique, pairs.noise))
    return chosen, []
