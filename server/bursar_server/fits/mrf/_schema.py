"""Public columns as variables of a field, and the graph that a request asks for, checked by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from bursar.models.mrf import MAX_VARIABLES, Graph, Variable, check_cliques, check_exact
from bursar.models.mrf._estimation import Inference
from bursar.models.mrf._work import check_chain_work, check_work
from bursar_proto.v1 import fit_pb2
from bursar_server.fits._requests import Violations, check_never_null
from bursar_server.fits._seam import NumericColumn, PublicTable

LEAST_PRECISION, MOST_PRECISION = 1e-6, 1e6
"""Of a clique, relative to the others."""

MOST_CLIQUES = 2016
"""Listed in a request; as many as 64 columns have pairs."""


@dataclass(frozen=True)
class Wanted:
    """A clique that a request lists.

    Attributes:
        columns: names, in the request's order.
        precision: positive; relative to the others'.
    """

    columns: tuple[str, ...]
    precision: Fraction


def variables_of(table: PublicTable) -> dict[str, Variable]:
    """Columns with a state in every row, by name, in the schema's order: categorical ones, numeric ones with bins."""
    categorical = [Variable(column.name, column.categories) for column in table.categorical]
    numeric = [Variable(c.name, _labels(c.bins), c.bins) for c in table.numeric if c.bins and not c.nullable]
    found = {variable.name: variable for variable in (*categorical, *numeric)}
    return {name: found[name] for name in table.names or found if name in found}


def chosen(field: str, names: Sequence[str], table: PublicTable, violations: Violations) -> tuple[Variable, ...]:
    """The variables of these names, in their order; fewer where some are wrong."""
    known, found = variables_of(table), []
    stateless = {column.name: column for column in table.numeric if column.name not in known}
    if len(set(names)) != len(names):
        violations.append((field, "expected each column once"))
    if not 1 <= len(names) <= MAX_VARIABLES:
        violations.append((field, f"expected 1 to {MAX_VARIABLES} columns with states, got {len(names)}"))
        return ()
    for index, name in enumerate(names):
        if name in known:
            found.append(known[name])
        elif name in stateless:
            _check_has_states(f"{field}[{index}]", stateless[name], violations)
        else:
            text = f"dataset {table.name!r} has no column of this name that has states; it has {', '.join(known)}"
            violations.append((f"{field}[{index}]", text))
    return tuple(found)


def _check_has_states(field: str, column: NumericColumn, violations: Violations) -> None:
    """That a numeric column has bins, and a value in every row."""
    check_never_null(field, column, violations)
    if not column.bins:
        text = "is numeric and has no bins in the schema, so it has no states; ask the owner for bins"
        violations.append((field, text))


def listed_cliques(request: fit_pb2.Cliques, violations: Violations) -> tuple[Wanted, ...]:
    """The cliques of a request; whether their columns exist is not checked here."""
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


def check_members(listed: Sequence[Wanted], names: Sequence[str], table: PublicTable, violations: Violations) -> None:
    """That the first clique with columns that have no states, or are not among those of the request, is named."""
    states = variables_of(table)
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
    """That the tables of a graph's cliques are not too large."""
    try:
        check_cliques(graph, [variable.name for variable in variables])
    except ValueError as error:
        violations.append((field, str(error)))


def check_time(
    field: str, graph: Graph, inference: Inference, variables: Sequence[Variable], violations: Violations
) -> None:
    """That a model is learnt in a minute or two, if its tables are not too large anyway."""
    if any(name == field for name, _ in violations):
        return
    try:
        check_work(graph, inference, [variable.name for variable in variables])
    except ValueError as error:
        violations.append((field, str(error)))


def check_chain_time(steps: int, variables: Sequence[Variable], violations: Violations) -> None:
    """As `check_time`, of a chain."""
    if variables and not any(name == "chain.columns" for name, _ in violations):
        try:
            check_chain_work(steps, len(variables[0].states))
        except ValueError as error:
            violations.append(("chain.columns", str(error)))


def too_dense(graph: Graph, variables: Sequence[Variable]) -> str:
    """Why exact inference is out of reach, and what to do; empty if it is not."""
    try:
        check_exact(graph, [variable.name for variable in variables])
    except ValueError as error:
        return str(error)
    return ""


def _labels(edges: Sequence[float]) -> tuple[str, ...]:
    """Names of bins: short ones if they differ."""
    short, long = ([f"[{low:{form}}, {high:{form}})" for low, high in pairwise(edges)] for form in ("g", ".17g"))
    labels = short if len(set(short)) == len(short) else long
    return (*labels[:-1], labels[-1][:-1] + "]")
