"""FitMRF under audit: adjacencies, noises, rows and shares of units, chains, chosen pairs, earlier tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bursar_ledger import Adjacency
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, CodedColumn, PublicTable, mrf
from bursar_server.fits.mrf import MRFPlan
from bursar_server.vault import ArrayRows, Session
from tests.audit.harness import extremes
from tests.audit.mrf_reference import Column, Reference, Said, said
from tests.audit.target import Target

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE

RHO = types_pb2.Spend(rho=2.0)
"""So that mu = 2, where tests have the most power."""

STATES = ("-", "u", "v")

EDGES = (0.0, 1.0, 4.0, 10.0)

CATEGORICAL = tuple(CodedColumn(name, STATES) for name in ("a", "b", "s1", "s2", "s3", "s4"))

NUMERIC = (
    BoundedColumn("x", 0.0, 10.0, EDGES),
    BoundedColumn("m", 0.0, 10.0, EDGES, nullable=True),
    BoundedColumn("unbinned", 0.0, 1.0),
)

STEPS = ("s1", "s2", "s3", "s4")

BASE = 24
"""Rows that both tables have, besides broken ones."""

BROKEN = np.array([np.nan, -np.inf, np.inf, -1.0, 1e308, 2.5, 3.0, -0.0, 5e-324])
"""Values that an import never stores, and a kernel must survive: in every column, K included."""

Fields = dict[str, Any]
"""Fields of the request, and `cap`."""


def pure(cells: int) -> types_pb2.Spend:
    """An epsilon at which Laplace noise on this many changed cells is about as easy to see through as mu = 2."""
    return types_pb2.Spend(epsilon=2.0 * cells**0.5)


def cliques(*listed: str, precisions: Sequence[float] = ()) -> fit_pb2.Cliques:
    """Cliques of columns with names of one letter."""
    given = dict(zip(listed, precisions, strict=False))
    return fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=list(one), precision=given.get(one, 0.0)) for one in listed])


@dataclass(frozen=True)
class Audited:
    """A plan, and what its ledger entry says.

    Attributes:
        plan: of the request.
        said: of its releases.
    """

    plan: MRFPlan
    said: Said

    def run(self, session: Session) -> fit_pb2.MRFModel:
        """The fit."""
        return mrf.run(self.plan, session)

    @property
    def shares(self) -> bool:
        """Return whether rows have K for a last number."""
        return len(self.plan.columns) > len(self.said.columns)


def public(adjacency: Adjacency, cap: int = 1, declared: int | None = None) -> PublicTable:
    """The schema, with as many rows as `pair` has, or under ADD_REMOVE_ONE as the owner declared, rightly or not."""
    slots = BASE + len(BROKEN) + cap if adjacency is RO else declared
    return PublicTable("audit", NUMERIC, adjacency, cap, slots, CATEGORICAL)


def planned(
    adjacency: Adjacency,
    *,
    cap: int = 1,
    declared: int | None = None,
    earlier: fit_pb2.MRFModel | None = None,
    **fields: Any,
) -> Audited:
    """The plan of a request.

    Args:
        adjacency: of the dataset.
        cap: rows of a privacy unit.
        declared: number of rows that the owner declared, under ADD_REMOVE_ONE.
        earlier: what was released under the entry 1.
        fields: of the request.
    """
    defaults: Fields = {"spend": RHO, "estimator": fit_pb2.MRF_ESTIMATOR_NAIVE}
    request = fit_pb2.FitMRFRequest(**(defaults | fields))
    table = public(adjacency, cap, declared)
    plan = mrf.plan(request, table, lambda entry: earlier if entry == 1 else None)
    return Audited(plan, said(plan.parameters, table))


def fit_mrf(
    adjacency: Adjacency,
    *,
    cap: int = 1,
    whole: bool = False,
    declared: int | None = None,
    earlier: fit_pb2.MRFModel | None = None,
    **fields: Any,
) -> Target:
    """FitMRF on rows in all cells, some broken rows, and a unit that changes as much as it can.

    Args:
        adjacency: of the pair.
        cap: rows of a privacy unit.
        whole: all runs have a model in the end.
        declared: number of rows that the owner declared, under ADD_REMOVE_ONE.
        earlier: what was released under the entry 1.
        fields: of the request.
    """
    audited = planned(adjacency, cap=cap, declared=declared, earlier=earlier, **fields)
    rows, neighbour, far = pair(audited, adjacency, cap)
    return Target(
        name=f"FitMRF {adjacency.value}",
        adjacency=adjacency,
        rows=rows,
        neighbour=neighbour,
        events=audited.plan.events,
        run=audited.run,
        reference=Reference(audited.said),
        features=numbers_of,
        extremes=extremes(len(audited.plan.columns), *broken(audited).T, *far.T),
        unit_cap=cap,
        unit_rows=len(audited.said.columns) if audited.shares else None,
        brief=not whole,
    )


def pair(audited: Audited, adjacency: Adjacency, cap: int) -> tuple[ArrayRows, ArrayRows, FloatArray]:
    """Two neighbouring tables and, (columns, 2), the rows of the unit that changes.

    All rows of the unit are in one cell of every table, and vanish, or are replaced by rows in another cell of each:
    under REPLACE_ONE, where rows are shares, by one row fewer.
    """
    rng = np.random.default_rng(5)  # noqa: TID251 - the audit's tables are fixed
    base = np.array([rng.integers(3, size=BASE) for _ in audited.said.columns]).astype(np.float64)
    base[1:2, ::2] = base[:1, ::2]  # the first two columns depend on each other
    for i, column in enumerate(audited.said.columns):
        if column.edges is not None:
            base[i] = np.array(EDGES)[base[i].astype(int)]  # on the edges, where a bin begins
        if column.nullable:
            base[i, ::4] = np.nan
    if audited.shares:
        base = np.vstack([base, rng.integers(1, cap + 1, size=BASE)])
    far = far_apart(audited, cap)
    fixed = np.hstack([base, broken(audited)])
    here, there = (np.hstack([fixed, np.tile(one[:, None], (1, cap))]) for one in far.T)
    if adjacency is AR:
        return ArrayRows(here), ArrayRows(fixed), far[:, :1]
    slots = here.shape[1]
    gone = 1 if audited.shares and cap > 1 else 0
    return ArrayRows(here), ArrayRows(there, np.arange(slots) < slots - gone), far


def far_apart(audited: Audited, cap: int) -> FloatArray:
    """A row in the last cell of every table, and one in the first; of a chain two with one transition that counts."""
    if audited.said.chain:
        here, there = [0.0, 0.0, 0.0, 1.0], [2.0, 0.0, 0.0, 0.0]
    else:
        here = [_last(column) for column in audited.said.columns]
        there = [0.5 if column.edges is not None else 0.0 for column in audited.said.columns]
    if audited.shares:
        here, there = [*here, float(cap)], [*there, float(max(1, cap - 1))]
    return np.array([here, there]).T


def _last(column: Column) -> float:
    """A value in the last state of a column."""
    return 2.0 if column.edges is None else np.nan if column.nullable else 9.5


def broken(audited: Audited) -> FloatArray:
    """Rows (columns, len(BROKEN)) of numbers that are none, or far outside, another one in each column."""
    return np.array([np.roll(BROKEN, i) for i in range(len(audited.plan.columns))])


def numbers_of(model: object) -> FloatArray:
    """Every number of a released field, and the columns that its tables and potentials are over."""
    if not isinstance(model, fit_pb2.MRFModel):
        raise TypeError(f"expected an MRFModel, got {type(model).__name__}")
    places = {one.column: index for index, one in enumerate(model.variables)}
    numbers = [model.n_rows, model.log_partition, model.iterations, model.inference, model.estimator]
    for table in model.tables:
        numbers += [*(places[name] for name in table.columns), *table.counts.values, table.noise_std, table.entry]
    for one in model.potentials:
        numbers += [*(places[name] for name in one.columns), *one.log_potential.values, *one.marginal.values]
    return np.array(numbers, dtype=np.float64)


@cache
def released() -> fit_pb2.MRFModel:
    """A field that was learnt from noisy tables of "a" with "x", under the entry 1."""
    audited = planned(AR, cliques=cliques("ax"))
    counts = types_pb2.Tensor(shape=[3, 3], values=[5.0, 1.0, 0.0, -2.0, 7.0, 3.0, 1.0, 0.0, 9.0])
    table = fit_pb2.NoisyTable(columns=["a", "x"], counts=counts, noise_std=1.5, entry=1)
    variables = [
        fit_pb2.Variable(column=one.name, states=one.states, edges=one.edges)
        for one in audited.plan.settings.layout.variables
    ]
    return fit_pb2.MRFModel(variables=variables, tables=[table], unit_weights=fit_pb2.UNIT_WEIGHTS_ROWS)


TABLES: Fields = {"cliques": cliques("ax", "ab", "b", precisions=(4.0, 1.0, 0.25))}
NULLS: Fields = {"cliques": cliques("ma", "mx")}
"""Tables of a column that may be null; the row that changes is."""

CUBE: Fields = {"cliques": cliques("abx")}
CHAIN: Fields = {"chain": fit_pb2.HomogeneousChain(columns=STEPS, null_category="-")}
PLAIN_CHAIN: Fields = {"chain": fit_pb2.HomogeneousChain(columns=STEPS)}
TREE: Fields = {"tree": fit_pb2.SelectTree(share=0.8), "columns": ["a", "b", "x"]}
AUTO: Fields = {"auto": fit_pb2.ChooseCliques(), "columns": ["a", "b", "x"]}
TRIPLES: Fields = {"auto": fit_pb2.ChooseCliques(all_sets_of=3), "columns": ["a", "b", "x"]}
"""All three columns together may be chosen, too."""

ALL_PAIRS: Fields = {**AUTO, "declared": 10**6}
"""Noise would be small among so many rows, so that tables of all pairs are released, too."""

PAIRS_OF_TRIPLES: Fields = {**TRIPLES, "declared": 400}
"""Noise would be small among so many rows in tables of pairs, and too large in that of all three columns."""

ALONE: Fields = {"independent": fit_pb2.Independent(), "columns": ["x"]}
ROWS: Fields = {"unit_weights": fit_pb2.UNIT_WEIGHTS_ROWS}
CGM: Fields = {"estimator": fit_pb2.MRF_ESTIMATOR_CGM}
LOOPY: Fields = {
    "cliques": cliques("ab", "bx", "ax"),
    "inference": fit_pb2.MRF_INFERENCE_LOOPY,
    "estimator": fit_pb2.MRF_ESTIMATOR_NLBP,
}

TARGETS: dict[str, Callable[[], Target]] = {
    "one column, add or remove": lambda: fit_mrf(AR, whole=True, **ALONE),
    "one column, replace": lambda: fit_mrf(RO, whole=True, **ALONE),
    "one table, learnt, add or remove": lambda: fit_mrf(AR, whole=True, **CUBE),
    "one table, learnt, Laplace, replace": lambda: fit_mrf(RO, whole=True, spend=pure(2), **CUBE),
    "tables, add or remove": lambda: fit_mrf(AR, **TABLES, **CGM),
    "tables, replace": lambda: fit_mrf(RO, **TABLES),
    "tables in a cycle, replace": lambda: fit_mrf(RO, **LOOPY),
    "tables, Laplace, add or remove": lambda: fit_mrf(AR, spend=pure(3), **TABLES),
    "tables, Laplace, replace": lambda: fit_mrf(RO, spend=pure(6), **TABLES),
    "tables, small spend, replace": lambda: fit_mrf(RO, spend=types_pb2.Spend(rho=0.05), **TABLES),
    "tables with nulls, replace": lambda: fit_mrf(RO, **NULLS),
    "tables with nulls, shares of units, add or remove": lambda: fit_mrf(AR, cap=3, **NULLS),
    "rows of units, add or remove": lambda: fit_mrf(AR, cap=3, **TABLES, **ROWS),
    "rows of units, Laplace, replace": lambda: fit_mrf(RO, cap=3, spend=pure(6), **TABLES, **ROWS),
    "shares of units, add or remove": lambda: fit_mrf(AR, cap=3, **TABLES),
    "shares of units, replace": lambda: fit_mrf(RO, cap=3, **TABLES),
    "shares of units, Laplace, replace": lambda: fit_mrf(RO, cap=3, spend=pure(6), **TABLES),
    "chain, add or remove": lambda: fit_mrf(AR, **CHAIN),
    "chain, replace": lambda: fit_mrf(RO, **CHAIN),
    "chain, no null, Laplace, replace": lambda: fit_mrf(RO, spend=pure(4), **PLAIN_CHAIN),
    "chain, shares of units, replace": lambda: fit_mrf(RO, cap=3, **CHAIN),
    "chain, rows of units, Laplace, add or remove": lambda: fit_mrf(AR, cap=2, spend=pure(2), **CHAIN, **ROWS),
    "tree, add or remove": lambda: fit_mrf(AR, **TREE, **CGM),
    "tree, replace": lambda: fit_mrf(RO, **TREE),
    "tree, Laplace, replace": lambda: fit_mrf(RO, spend=pure(10), **TREE),
    "tree, shares of units, replace": lambda: fit_mrf(RO, cap=3, **TREE),
    "tree, rows of units, add or remove": lambda: fit_mrf(AR, cap=2, **TREE, **ROWS),
    "rounds, add or remove": lambda: fit_mrf(AR, **AUTO, **CGM),
    "rounds and all pairs, add or remove": lambda: fit_mrf(AR, **ALL_PAIRS),
    "rounds and all pairs, shares of units, add or remove": lambda: fit_mrf(AR, cap=3, **ALL_PAIRS),
    "rounds, replace": lambda: fit_mrf(RO, **AUTO),
    "rounds, Laplace, replace": lambda: fit_mrf(RO, spend=pure(10), **AUTO),
    "rounds, shares of units, replace": lambda: fit_mrf(RO, cap=3, **AUTO),
    "rounds, rows of units, add or remove": lambda: fit_mrf(AR, cap=2, **AUTO, **ROWS),
    "rounds of triples, add or remove": lambda: fit_mrf(AR, **TRIPLES),
    "rounds of triples, shares of units, replace": lambda: fit_mrf(RO, cap=3, **TRIPLES),
    "rounds of triples and all pairs, add or remove": lambda: fit_mrf(AR, **PAIRS_OF_TRIPLES),
    "rounds of triples and all pairs, shares of units, add or remove": lambda: fit_mrf(
        AR, cap=3, **TRIPLES, declared=1200
    ),
    "tables and one held out, add or remove": lambda: fit_mrf(AR, held_out=0.3, **TABLES),
    "rounds and a table held out, Laplace, replace": lambda: fit_mrf(RO, spend=pure(10), held_out=0.3, **AUTO),
    "beside an earlier table, add or remove": lambda: fit_mrf(AR, earlier=released(), reuse=[1], **TABLES),
    "tree beside an earlier table, replace": lambda: fit_mrf(RO, earlier=released(), reuse=[1], **TREE),
}
"""Targets of an audit of FitMRF."""

_SLOW = frozenset(
    {
        "rounds and all pairs, add or remove",
        "rounds of triples, add or remove",
        "rounds, shares of units, replace",
        "one column, replace",
        "one table, learnt, add or remove",
        "one table, learnt, Laplace, replace",
        "tables, Laplace, add or remove",
        "tables in a cycle, replace",
        "tables, small spend, replace",
        "rows of units, Laplace, replace",
        "shares of units, Laplace, replace",
        "tables with nulls, shares of units, add or remove",
        "chain, add or remove",
        "chain, no null, Laplace, replace",
        "chain, rows of units, Laplace, add or remove",
        "tree, add or remove",
        "tree, shares of units, replace",
        "tree, rows of units, add or remove",
        "tree beside an earlier table, replace",
        "rounds, add or remove",
        "rounds and a table held out, Laplace, replace",
        "rounds and all pairs, shares of units, add or remove",
        "rounds, Laplace, replace",
        "rounds, rows of units, add or remove",
        "rounds of triples, shares of units, replace",
        "rounds of triples and all pairs, add or remove",
        "rounds of triples and all pairs, shares of units, add or remove",
    }
)
QUICK = TARGETS.keys() - _SLOW
"""Audited in the short runs, too."""
