"""Tables of the caller's earlier releases, which a request uses free of charge.

A field names, beside its own tables, those of earlier releases from which it was learnt, each with the entry of its
debit. They are read from that entry's own release, so that no table counts twice, however it was reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bursar_models.mrf import ReleasedTable
from bursar_proto.v1 import fit_pb2
from bursar_server.fits._requests import Violations
from bursar_server.fits._seam import BoundedColumn, CodedColumn, Released
from bursar_server.fits.mrf._schema import variable_of
from bursar_server.fits.mrf._wire import table_from, variable_from, weights_of

MOST_REUSED = 16
"""Maximum number of entries in a request. Chosen, not tuned."""

MOST_CELLS = 7 * 2**20
"""Maximum number of cells of all their tables: an answer has room for no more."""


_TOO_MANY = f"with it, earlier tables have more than {MOST_CELLS:,} cells, the limit for an answer; reuse fewer entries"


@dataclass(frozen=True)
class Kind:
    """Properties that tables must share to be used together.

    Attributes:
        shares: True if rows count as shares of their unit.
        chain: columns of a homogeneous chain; None for tables of cells.
        null_category: category of a homogeneous chain that means "not observed"; empty if it has none.
    """

    shares: bool
    chain: tuple[str, ...] | None
    null_category: str


@dataclass(frozen=True)
class Earlier:
    """Tables of earlier releases.

    Attributes:
        tables: tables, each once.
        by_entry: tables of each entry of the request.
    """

    tables: tuple[ReleasedTable, ...]
    by_entry: tuple[tuple[ReleasedTable, ...], ...]

    def covers(self, columns: Sequence[str]) -> bool:
        """Return whether some table of cells is over all these columns."""
        return any(set(columns) <= set(table.columns) for table in self.tables)


def earlier_tables(
    request: fit_pb2.FitMRFRequest,
    kind: Kind,
    schema: Mapping[str, BoundedColumn | CodedColumn],
    released: Released,
    violations: Violations,
) -> Earlier:
    """Return the tables of the entries that a request names.

    Args:
        request: request as it was sent.
        kind: kind of the new model's tables.
        schema: present columns of the dataset that have states, by name.
        released: models of the caller's earlier releases.
        violations: list to which a fault is added for every wrong entry.
    """
    if not len(request.reuse) <= MOST_REUSED:
        violations.append(("reuse", f"expected at most {MOST_REUSED} entries, got {len(request.reuse)}"))
        return Earlier((), ())
    if len(set(request.reuse)) != len(request.reuse):
        violations.append(("reuse", "expected each entry once"))
    tables: dict[tuple[int, tuple[str, ...]], ReleasedTable] = {}
    by_entry: list[tuple[ReleasedTable, ...]] = []
    cells = 0
    for index, entry in enumerate(request.reuse):
        came: dict[tuple[int, tuple[str, ...]], ReleasedTable] = {}
        text = f"no field of yours of this dataset is stored under entry {entry}; see your list of releases"
        # A free fit keeps no tables of its own: they are those of the entries that it was made from.
        for paid, model in _paid_by(entry, released):
            text = _misfit(model, kind, schema)
            if text:
                break
            own = {(paid, tuple(m.columns)): m for m in model.tables if m.entry == paid and not m.held_out}
            cells += sum(math.prod(m.counts.shape) for key, m in own.items() if key not in tables and key not in came)
            # Stopped here and not after the loop: decoding the rest of too many tables would take the server's memory.
            if not cells <= MOST_CELLS:
                violations.append((f"reuse[{index}]", _TOO_MANY))
                return Earlier(tuple(tables.values()), tuple(by_entry))
            came |= {key: tables.get(key) or table_from(m) for key, m in own.items()}
        if text:
            violations.append((f"reuse[{index}]", text))
        for key, table in came.items():
            tables.setdefault(key, table)
        by_entry.append(tuple(came.values()))
    return Earlier(tuple(tables.values()), tuple(by_entry))


def check_use(earlier: Earlier, cliques: Sequence[Sequence[str]], violations: Violations) -> None:
    """Check that every entry has a table within a clique, or one that contains a clique."""
    wanted = [set(clique) for clique in cliques]
    for index, tables in enumerate(earlier.by_entry):
        scopes = [set(table.columns) for table in tables]
        # An entry without tables was refused already, with its own reason.
        if scopes and not any(scope <= clique or clique <= scope for scope in scopes for clique in wanted):
            violations.append((f"reuse[{index}]", "none of its tables is of use for this graph; leave it out"))


def _paid_by(entry: int, released: Released) -> Iterator[tuple[int, fit_pb2.MRFModel]]:
    """Yield the releases that were charged for the tables of a field, each with its entry."""
    model = released(entry)
    if not isinstance(model, fit_pb2.MRFModel):
        return
    for paid in dict.fromkeys(table.entry for table in model.tables):
        source = released(paid)
        if isinstance(source, fit_pb2.MRFModel):
            yield paid, source


def _misfit(model: fit_pb2.MRFModel, kind: Kind, schema: Mapping[str, BoundedColumn | CodedColumn]) -> str:
    """Return the reason why a field's own tables cannot be used beside new ones; empty if they can."""
    variables = [variable_from(message) for message in model.variables]
    for variable in variables:
        column = schema.get(variable.name)
        if column is None or variable_of(column) != variable:
            return f"the states of column {variable.name!r} are not those of the schema now; ask for new tables"
    if model.unit_weights != weights_of(kind.shares):
        name = fit_pb2.UnitWeights.Name(model.unit_weights)
        return f"its rows count as {name} says; ask for the same unit_weights, or leave the entry out"
    # A chain's tables are sums over all its steps, and say nothing about two columns alone.
    chain = tuple(variable.name for variable in variables) if model.homogeneous_chain else None
    if chain != kind.chain:
        return "pooled tables are of use for a chain of the same columns only, and no others are; leave the entry out"
    if model.null_category != kind.null_category:
        return f"its null_category is {model.null_category!r}; ask for the same, or leave the entry out"
    return ""
