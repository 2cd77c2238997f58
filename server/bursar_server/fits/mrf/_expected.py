"""Expected errors of tables and memory of a fit, from public numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import combinations

import numpy as np

from bursar_models.mrf import Graph
from bursar_models.mrf._descent import remembered
from bursar_models.mrf._graph import tree_cells
from bursar_models.mrf._intervals import mean_absolute
from bursar_models.mrf._work import routine
from bursar_server.fits._seam import Expected, PublicTable
from bursar_server.fits.mrf._run import MRFSettings, Pairs, table_measurement
from bursar_server.vault import LaplaceNoise, Noise

SKEW = 1.5
"""Exponent of Zipf's law for the states of a column, from which follows how many cells of a table have hardly any rows.

An estimate is nowhere much further from 0 than the rows are, so noise on such cells is mostly removed. Among 0, 0.5, 1,
1.5, 2 and powers of a half this one explains the pairs of eight real tables best: how many rows noise moves in them is
right to a factor of two at noise from 0.03 to 10 times an average cell.
"""

KEPT = 0.75
"""Part of that noise that an estimate keeps, as other tables say something of the same cells, too.

Real tables at epsilon 0.1, 0.3, 1 and 3, medians over their pairs: 0.56 to 0.92 with trees, 0.47 to 0.95 with "auto",
whose pairs that are not chosen have 0.37 to 1.42: those further off are chosen.
"""

OF_RELEASED, OF_CHOOSABLE, LEFT = 1.6, 3.0, 0.03
"""95 % of errors are below so many times the expected one: of tables that are certainly released, and of others that
may be chosen in rounds; those are not below the third, as a model of chosen tables has an error that no budget lowers.

Chosen on real tables, and compared with others: docs/intervals.md.
"""

BASE = 236 * 2**20
"""Bytes of a process that fits the smallest tables: Python, its libraries and the rows that are read at a time."""

OF_PARAMETER, OF_CELL, OF_CANDIDATE = 400, 120, 52
"""Bytes of a cell of a table that the estimate is fitted to, beside the steps that its search remembers; of a cell of
the junction tree; and of a cell of a table that may be chosen. Measured with one thread: see docs/fit-mrf.md."""


def choosable(settings: MRFSettings) -> Sequence[tuple[int, ...]]:
    """Return the sets of columns that may be chosen."""
    if settings.pairs is not None and settings.pairs.rounds is not None:
        return settings.pairs.rounds.cliques
    return list(combinations(range(len(settings.layout.sizes)), 2))


def expected_of(settings: MRFSettings, table: PublicTable) -> dict[str, Expected]:
    """Return the expected errors of tables, as total variation; none where no number of rows is public.

    "table_error" is half of the total absolute noise in a table's cells, as a share of the rows, at the worst new one,
    at most 1. "table_errors" says what an estimate keeps of it, of each table that is asked for, or may be chosen, and
    of earlier ones; "table_bounds" what 95 % of the errors are below.
    """
    found = [(one.std, one.statistic.size, one.noise) for one in settings.measurements]
    if settings.pairs is not None:
        pair = table_measurement(settings.layout, (0, 1), settings.pairs.noise)
        largest = max(map(math.prod, map(settings.layout.shape, choosable(settings))))
        found.append((pair.std, largest, pair.noise))
    if not table.rows:
        return {}
    # Where rows count as shares of units, the least number of units that the cap allows.
    people = table.rows / (table.unit_cap if settings.layout.shares else 1)
    errors = [_mean(std, noise) * size / (2.0 * people) for std, size, noise in found]
    told = {"table_error": Expected(min(1.0, max(errors)))} if errors else {}
    if settings.chain:
        return told
    errors_of, bounds_of = _of_tables(settings, people)
    return {**told, "table_errors": Expected(errors_of), "table_bounds": Expected(bounds_of)}


def memory_of(settings: MRFSettings) -> int:
    """Return about the bytes that a process of the fit takes at its peak; of pairs that may be chosen, likely ones."""
    layout, pairs = settings.layout, settings.pairs
    offered = 0
    if settings.chain:
        steps, states = len(layout.sizes), layout.sizes[0]
        fitted, visited = states * (states + 1), (steps - 1) * states**2
    elif pairs is None:
        graph = Graph(layout.sizes, settings.cliques)
        fitted = sum(map(graph.cells, graph.cliques))
        visited = tree_cells(graph) if routine(graph, settings.inference) == "exact" else fitted
    else:
        offered = sum(map(math.prod, map(layout.shape, choosable(settings))))
        # Large tables have much noise and are rarely chosen: as if each column were joined with the narrowest one.
        fitted = visited = math.ceil(sum(layout.sizes) * min(layout.sizes) * pairs.selection.times / len(layout.sizes))
        if pairs.rounds is not None:
            visited = min(pairs.rounds.limits(layout, pairs.selection.times)[1], math.prod(layout.sizes))
            fitted = min(fitted, visited)
    steps_kept = 2 * 8 * remembered(max(fitted, 1)) * fitted
    return BASE + steps_kept + OF_PARAMETER * fitted + OF_CELL * visited + OF_CANDIDATE * offered


def _of_tables(settings: MRFSettings, people: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return the expected error of each table that is asked for, or may be chosen, by its columns, and its bound."""
    layout, pairs = settings.layout, settings.pairs
    # Whichever released table contains a clique tells it too, summed over the columns that the clique has not got.
    tables = [(set(one.columns), one.statistic.size, _mean(one.std, one.noise)) for one in settings.measurements]
    tables += [
        (set(one.columns), one.counts.size, one.noise_std * mean_absolute(laplace=one.laplace))
        for one in settings.earlier
    ]
    found, bounds = dict[str, float](), dict[str, float]()
    for clique in settings.cliques if pairs is None else choosable(settings):
        shape, names = layout.shape(clique), [layout.variables[variable].name for variable in clique]
        sure = [
            mean * math.sqrt(size / math.prod(shape)) for columns, size, mean in tables if columns.issuperset(names)
        ]
        if pairs is not None:
            chosen = _mean(table_measurement(layout, clique, pairs.noise).std, pairs.noise)
            # A tree's pairs have errors if they are chosen: what it leaves out falls with no budget.
            sure += _of_direct(pairs, clique) if pairs.rounds is not None else [chosen]
        least = min(sure if pairs is None else [*sure, chosen])
        expected, name = _kept(shape, least / people), ", ".join(names)
        bound = OF_RELEASED * _kept(shape, min(sure) / people) if sure else max(OF_CHOOSABLE * expected, LEFT)
        found[name], bounds[name] = min(1.0, expected), min(1.0, bound)
    return found, bounds


def _of_direct(pairs: Pairs, clique: tuple[int, ...]) -> list[float]:
    """Return the mean absolute noise on a cell of a set's direct table; nothing if there is none."""
    if pairs.direct is None or clique not in pairs.direct_sets:
        return []
    return [_mean(pairs.direct.std, pairs.direct.noise)]


def _mean(std: float, noise: Noise) -> float:
    """Return the mean absolute value of noise of a standard deviation."""
    return std * mean_absolute(laplace=isinstance(noise, LaplaceNoise))


def _kept(shape: Sequence[int], noise: float) -> float:
    """Return the distance that an estimate keeps of noise on a cell, which is a share of the rows.

    Noise moves no cell of independent columns by Zipf's law further than its rows.
    """
    alone = [np.arange(1, size + 1) ** -SKEW for size in shape]
    cells = reduce(np.multiply.outer, [one / one.sum() for one in alone])
    return float(KEPT * np.minimum(cells, noise).sum() / 2.0)
