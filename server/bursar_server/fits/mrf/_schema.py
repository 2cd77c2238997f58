"""Public columns as variables of a field, and the requested graph, checked by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, combinations, pairwise

from bursar_models.mrf import MAX_CELLS, MAX_CLIQUE, MAX_VARIABLES, NULL, Graph, Variable, check_cliques, check_exact
from bursar_models.mrf._estimation import Inference
from bursar_models.mrf._work import check_chain_work, check_work
from bursar_proto.v1 import fit_pb2
from bursar_server.fits._requests import Violations
from bursar_server.fits._seam import BoundedColumn, CodedColumn, PublicTable
from bursar_server.fits.mrf._rounds import MOST_CELLS as MOST_TREE
from bursar_server.fits.mrf._rounds import Rounds
from bursar_server.fits.mrf._statistics import Layout

LEAST_PRECISION, MOST_PRECISION = 1e-6, 1e6
"""Bounds of a clique's precision relative to the others. Chosen, not tuned."""

MOST_CLIQUES = 2016
"""Maximum number of cliques in a request: the number of pairs of 64 columns."""

MOST_NAMED = 2**16
"""Maximum number of pairs in the sets of a workload, as often as they are named: a tenth of a second to add up."""

MOST_CANDIDATES = 4096
"""Maximum number of candidates; 64 columns have 2,016 pairs. A thousand take a tenth of a second in each round."""

LESS = "leave out columns, give them fewer bins, or name a workload of fewer or smaller sets"
"""Advice where there is too much to choose from."""


@dataclass(frozen=True)
class Wanted:
    """Clique of a request.

    Attributes:
        columns: names, in the request's order.
        precision: positive precision, relative to that of other cliques.
    """

    columns: tuple[str, ...]
    precision: Fraction


def with_states(table: PublicTable) -> dict[str, BoundedColumn | CodedColumn]:
    """Return columns with a state in every row, by name, in the schema's order: categorical, and numeric with bins."""
    found: dict[str, BoundedColumn | CodedColumn] = {column.name: column for column in table.categorical}
    found |= {column.name: column for column in table.numeric if column.bins}
    return {name: found[name] for name in table.names or found if name in found}


def variable_of(column: BoundedColumn | CodedColumn) -> Variable:
    """Return a column with states as a variable: its categories, or its bins as text and, if it may be null, `NULL`."""
    if isinstance(column, CodedColumn):
        return Variable(column.name, column.categories)
    return Variable(column.name, (*_labels(column.bins), *([NULL] * column.nullable)), column.bins)


def chosen(field: str, names: Sequence[str], table: PublicTable, violations: Violations) -> tuple[Variable, ...]:
    """Return the variables of these names, in their order, without wrong ones."""
    known, found = with_states(table), []
    stateless = {column.name for column in table.numeric} - known.keys()
    if len(set(names)) != len(names):
        violations.append((field, "expected each column once"))
    if not 1 <= len(names) <= MAX_VARIABLES:
        violations.append((field, f"expected 1 to {MAX_VARIABLES} columns with states, got {len(names)}"))
        return ()
    for index, name in enumerate(names):
        if name in known:
            found.append(variable_of(known[name]))
        elif name in stateless:
            text = "is numeric and has no bins in the schema, so it has no states; ask the owner for bins"
            violations.append((f"{field}[{index}]", text))
        else:
            text = f"dataset {table.name!r} has no column of this name that has states; it has {', '.join(known)}"
            violations.append((f"{field}[{index}]", text))
    return tuple(found)


def listed_cliques(request: fit_pb2.Cliques, violations: Violations) -> tuple[Wanted, ...]:
    """Return the cliques of a request; `check_members` checks that their columns exist."""
    if not 1 <= len(request.cliques) <= MOST_CLIQUES:
        text = f"expected 1 to {MOST_CLIQUES} cliques, got {len(request.cliques)}; for none, ask for independent"
        violations.append(("cliques", text))
        return ()
    wanted: list[Wanted] = []
    seen = set[frozenset[str]]()
    for index, clique in enumerate(request.cliques):
        field, columns = f"cliques[{index}]", tuple(clique.columns)
        if not 1 <= len(columns) == len(set(columns)):
            violations.append((f"{field}.columns", "expected at least one column, and each once"))
        if frozenset(columns) in seen:
            violations.append((f"{field}.columns", "is there already; expected each clique once"))
        seen.add(frozenset(columns))
        precision = clique.precision or 1.0
        if not LEAST_PRECISION <= precision <= MOST_PRECISION:
            text = f"expected {LEAST_PRECISION:g} to {MOST_PRECISION:g}, or 0 for 1, got {precision}"
            violations.append((f"{field}.precision", text))
            precision = 1.0
        wanted.append(Wanted(columns, Fraction(precision)))
    return tuple(wanted)


def candidates_of(request: fit_pb2.ChooseCliques, variables: Sequence[Variable], violations: Violations) -> Rounds:
    """Return the sets of columns that may be chosen: those of the workload, and all sets of two or more within them.

    Each weighs as much as the sets of the workload that contain it together. Within named sets, those of so many
    columns that there would be more than `MOST_CANDIDATES`, or too many cells, are no candidates, and neither are those
    with a table beyond the limit on the junction tree.
    """
    names, sizes = [variable.name for variable in variables], [len(variable.states) for variable in variables]
    before, workload = len(violations), _workload(request, names, violations)
    if len(violations) > before or not workload:
        return Rounds((), ())
    weights = _within(workload, 2)
    for k in range(3, max(map(len, workload)) + 1):
        # Checked before the sets are made: a named set of 60 columns has 34,220 triples and half a million quadruples.
        if request.workload and not sum(math.comb(len(one), k) for one in workload) <= MOST_NAMED:
            break
        larger = {
            one: weight
            for one, weight in _within(workload, k).items()
            if not request.workload or math.prod(sizes[v] for v in one) <= MOST_TREE
        }
        cells = sum(math.prod(sizes[v] for v in one) for one in (*weights, *larger))
        if request.workload and not (len(weights) + len(larger) <= MOST_CANDIDATES and cells <= MAX_CELLS):
            break
        weights |= larger
    # The exact choice takes weights from 0 to 1; a factor that all have in common changes no order.
    most = max(weights.values())
    return Rounds(tuple(weights), tuple(weight / most for weight in weights.values()))


def _within(workload: Mapping[tuple[int, ...], Fraction], k: int) -> dict[tuple[int, ...], Fraction]:
    """Return the sets of k columns within the sets of a workload, ascending, with the sums of their weights."""
    found: dict[tuple[int, ...], Fraction] = {}
    for places, weight in workload.items():
        for one in combinations(places, k):
            found[one] = found.get(one, Fraction(0)) + weight
    return dict(sorted(found.items()))


def _workload(
    request: fit_pb2.ChooseCliques, names: Sequence[str], violations: Violations
) -> dict[tuple[int, ...], Fraction]:
    """Return the sets of a workload as places of columns, with their weights; all pairs where none is named."""
    if request.all_sets_of not in (0, 2, 3) or (request.all_sets_of and request.workload):
        text = f"expected 2 or 3, or 0 and a named workload, got {request.all_sets_of}"
        violations.append(("auto.all_sets_of", text))
        return {}
    if not request.workload:
        size = min(request.all_sets_of or 2, len(names))
        return dict.fromkeys(combinations(range(len(names)), size), Fraction(1)) if len(names) >= 2 else {}
    if not len(request.workload) <= MOST_CLIQUES:
        violations.append(("auto.workload", f"expected at most {MOST_CLIQUES} sets, got {len(request.workload)}"))
        return {}
    named = sum(math.comb(len(one.columns), 2) for one in request.workload)
    if not named <= MOST_NAMED:
        text = f"expected sets of at most {MOST_NAMED:,} pairs together, got {named:,}; name fewer or smaller sets"
        violations.append(("auto.workload", text))
        return {}
    found: dict[tuple[int, ...], Fraction] = {}
    for index, one in enumerate(request.workload):
        places = tuple(sorted(names.index(column) for column in one.columns if column in names))
        if not 2 <= len(one.columns) == len(set(one.columns)) == len(places):
            text = f"expected two or more of the model's columns, each once; they are {', '.join(names)}"
            violations.append((f"auto.workload[{index}].columns", text))
        weight = one.weight or 1.0
        if not LEAST_PRECISION <= weight <= MOST_PRECISION:
            text = f"expected {LEAST_PRECISION:g} to {MOST_PRECISION:g}, or 0 for 1, got {one.weight}"
            violations.append((f"auto.workload[{index}].weight", text))
            weight = 1.0
        found[places] = found.get(places, Fraction(0)) + Fraction(weight)
    return found


def check_candidates(field: str, rounds: Rounds, layout: Layout, violations: Violations) -> None:
    """Check that sets to choose from are few, their tables can be compared at once, and each can be in the model."""
    tables = sorted((math.prod(layout.shape(one)), len(one)) for one in rounds.cliques)
    # In order of size, so that the message can say how many of the smallest fit.
    totals = accumulate(cells for cells, _ in tables)
    fit = sum(
        number <= MOST_CANDIDATES and total <= MAX_CELLS and cells <= (MAX_CLIQUE if size == 2 else MOST_TREE)
        for number, ((cells, size), total) in enumerate(zip(tables, totals, strict=True), 1)
    )
    if fit < len(tables):
        text = (
            f"the tables of the {len(tables):,} sets of columns to choose from have {sum(c for c, _ in tables):,} "
            f"cells, the largest {tables[-1][0]:,}, more than the limits of {MOST_CANDIDATES:,} sets, {MAX_CELLS:,} "
            f"cells, {MAX_CLIQUE:,} for a pair and {MOST_TREE:,} for a larger set; the {fit:,} smallest fit, of up to "
            f"{tables[fit - 1][0] if fit else 0:,} cells: {LESS}"
        )
        violations.append((field, text))


def check_members(listed: Sequence[Wanted], names: Sequence[str], table: PublicTable, violations: Violations) -> None:
    """Check that cliques have only columns with states that are among those of the request.

    Reports the first that does not.
    """
    states = with_states(table)
    for index, one in enumerate(listed):
        field = f"cliques[{index}].columns"
        if not set(one.columns) <= states.keys():
            chosen(field, one.columns, table, violations)
            return
        if missing := [column for column in one.columns if column not in names]:
            text = f"has {', '.join(missing)}, not among columns; add it there, or leave columns out"
            violations.append((field, text))
            return


def check_size(field: str, graph: Graph, variables: Sequence[Variable], violations: Violations) -> None:
    """Check that the tables of a graph's cliques are not too large."""
    try:
        check_cliques(graph, [variable.name for variable in variables])
    except ValueError as error:
        violations.append((field, str(error)))


def check_time(
    field: str, graph: Graph, inference: Inference, variables: Sequence[Variable], violations: Violations
) -> None:
    """Check that a model is learnt in a minute or two, unless its tables are too large anyway."""
    if any(name == field for name, _ in violations):
        return
    try:
        check_work(graph, inference, [variable.name for variable in variables])
    except ValueError as error:
        violations.append((field, str(error)))


def check_chain_time(steps: int, variables: Sequence[Variable], violations: Violations) -> None:
    """Check that a chain is learnt in a minute or two, unless its tables are too large anyway."""
    if variables and not any(name == "chain.columns" for name, _ in violations):
        try:
            check_chain_work(steps, len(variables[0].states))
        except ValueError as error:
            violations.append(("chain.columns", str(error)))


def too_dense(graph: Graph, variables: Sequence[Variable]) -> str:
    """Return why exact inference is not possible, and the remedy; empty if it is."""
    try:
        check_exact(graph, [variable.name for variable in variables])
    except ValueError as error:
        return str(error)
    return ""


def _labels(edges: Sequence[float]) -> tuple[str, ...]:
    """Return the names of bins: short ones if they differ."""
    labels = _printed(edges, "g")
    if len(set(labels)) < len(labels):
        labels = _printed(edges, ".17g")
    return (*labels[:-1], labels[-1][:-1] + "]")


def _printed(edges: Sequence[float], form: str) -> list[str]:
    numbers = [f"{edge:{form}}" for edge in edges]
    return [f"[{low}, {high})" for low, high in pairwise(numbers)]
