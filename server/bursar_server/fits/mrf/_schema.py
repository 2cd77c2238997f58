"""Public columns as variables of a field, and the requested graph, checked by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, combinations, pairwise

from bursar_models.mrf import MAX_CELLS, MAX_CLIQUE, MAX_VARIABLES, Graph, Variable, check_cliques, check_exact
from bursar_models.mrf._estimation import Inference
from bursar_models.mrf._work import check_chain_work, check_work
from bursar_proto.v1 import fit_pb2
from bursar_server.fits._requests import Violations, check_never_null
from bursar_server.fits._seam import BoundedColumn, CodedColumn, PublicTable
from bursar_server.fits.mrf._rounds import Rounds
from bursar_server.fits.mrf._statistics import Layout

LEAST_PRECISION, MOST_PRECISION = 1e-6, 1e6
"""Bounds of a clique's precision relative to the others. Chosen, not tuned."""

MOST_CLIQUES = 2016
"""Maximum number of cliques in a request: the number of pairs of 64 columns."""

MOST_NAMED = 2**16
"""Maximum number of pairs in the sets of a workload, as often as they are named: a tenth of a second to add up."""

LESS = "leave out columns, give them fewer bins, or name a workload of fewer pairs"
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
    found |= {column.name: column for column in table.numeric if column.bins and not column.nullable}
    return {name: found[name] for name in table.names or found if name in found}


def variable_of(column: BoundedColumn | CodedColumn) -> Variable:
    """Return a column with states as a variable: its states are its categories, or its bins as text."""
    if isinstance(column, CodedColumn):
        return Variable(column.name, column.categories)
    return Variable(column.name, _labels(column.bins), column.bins)


def chosen(field: str, names: Sequence[str], table: PublicTable, violations: Violations) -> tuple[Variable, ...]:
    """Return the variables of these names, in their order, without wrong ones."""
    known, found = with_states(table), []
    stateless = {column.name: column for column in table.numeric if column.name not in known}
    if len(set(names)) != len(names):
        violations.append((field, "expected each column once"))
    if not 1 <= len(names) <= MAX_VARIABLES:
        violations.append((field, f"expected 1 to {MAX_VARIABLES} columns with states, got {len(names)}"))
        return ()
    for index, name in enumerate(names):
        if name in known:
            found.append(variable_of(known[name]))
        elif name in stateless:
            _check_has_states(f"{field}[{index}]", stateless[name], violations)
        else:
            text = f"dataset {table.name!r} has no column of this name that has states; it has {', '.join(known)}"
            violations.append((f"{field}[{index}]", text))
    return tuple(found)


def _check_has_states(field: str, column: BoundedColumn, violations: Violations) -> None:
    """Check that a numeric column has bins, and a value in every row."""
    check_never_null(field, column, violations)
    if not column.bins:
        text = "is numeric and has no bins in the schema, so it has no states; ask the owner for bins"
        violations.append((field, text))


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


def candidates_of(request: fit_pb2.ChooseCliques, names: Sequence[str], violations: Violations) -> Rounds:
    """Return the pairs that may be chosen: all, or those within a set of the workload, weighted by these sets."""
    weights: dict[tuple[int, int], Fraction] = {}
    if not len(request.workload) <= MOST_CLIQUES:
        violations.append(("auto.workload", f"expected at most {MOST_CLIQUES} sets, got {len(request.workload)}"))
        return Rounds((), ())
    named = sum(math.comb(len(one.columns), 2) for one in request.workload)
    if not named <= MOST_NAMED:
        text = f"expected sets of at most {MOST_NAMED:,} pairs together, got {named:,}; name fewer or smaller sets"
        violations.append(("auto.workload", text))
        return Rounds((), ())
    for index, one in enumerate(request.workload):
        places = sorted(names.index(column) for column in one.columns if column in names)
        if not 2 <= len(one.columns) == len(set(one.columns)) == len(places):
            text = f"expected two or more of the model's columns, each once; they are {', '.join(names)}"
            violations.append((f"auto.workload[{index}].columns", text))
        weight = one.weight or 1.0
        if not LEAST_PRECISION <= weight <= MOST_PRECISION:
            text = f"expected {LEAST_PRECISION:g} to {MOST_PRECISION:g}, or 0 for 1, got {one.weight}"
            violations.append((f"auto.workload[{index}].weight", text))
            weight = 1.0
        for pair in combinations(places, 2):
            weights[pair] = weights.get(pair, Fraction(0)) + Fraction(weight)
    pairs = sorted(weights) or list(combinations(range(len(names)), 2))
    most = max(weights.values(), default=Fraction(1))
    return Rounds(tuple(pairs), tuple(weights.get(pair, most) / most for pair in pairs))


def check_candidates(field: str, rounds: Rounds, layout: Layout, violations: Violations) -> None:
    """Check that the tables of all pairs that may be chosen can be compared at once."""
    sizes = sorted(math.prod(layout.shape(pair)) for pair in rounds.pairs)
    fit = sum(size <= MAX_CLIQUE and total <= MAX_CELLS for size, total in zip(sizes, accumulate(sizes), strict=True))
    if fit < len(sizes):
        text = (
            f"the tables of the {len(sizes):,} pairs to choose from have {sum(sizes):,} cells, the largest "
            f"{sizes[-1]:,}, more than the limits of {MAX_CELLS:,} and {MAX_CLIQUE:,}; the {fit:,} smallest fit, of up "
            f"to {sizes[fit - 1] if fit else 0:,} cells: {LESS}"
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
