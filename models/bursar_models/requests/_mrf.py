"""The request for a Markov random field of discrete columns from noisy contingency tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, cast

from bursar_models.budget import Receipt, positive
from bursar_models.checks import MAX_SEED, Between, different_names, names, whole
from bursar_models.errors import InvalidRequestError
from bursar_models.mrf._estimation import Estimator, Inference
from bursar_models.mrf._markov_random_field import MarkovRandomField, UnitWeights
from bursar_models.requests._json import part
from bursar_models.requests._request import Request
from bursar_models.requests._sketch_kmeans import Computer

TREE_SHARES = (0.05, 0.9)
"""Bounds of the share of the spend for the selection of a tree, tables of single columns included."""

HELD_OUT_SHARES = (0.01, 0.5)
"""Bounds of the share of the spend for the table that tests the graph."""


@part
@dataclass(frozen=True)
class Chain:
    """A time-homogeneous chain: the same transitions between all neighbours in time (Bernstein et al. 2017, 4.2).

    Every row is one person's path. Two tables are paid for, however long it is: first states, and transitions pooled
    over time, in which each of a path's K transitions counts 1/K.

    Attributes:
        columns: columns in the order of time, at least two, all with the same categories, or with the same bins.
        null: category that stands for "not observed". Transitions from null to null are left out then, of K, too, and
            the model hardly knows that null follows null. None counts all.

    Raises:
        InvalidRequestError: fewer than two columns, a column twice, or something else than names.

    Example:
        >>> chain = bursar.Chain(["spring", "summer", "autumn"], null="unknown")
        >>> bursar.MRF(cliques=chain).cliques.null
        'unknown'
    """

    columns: Sequence[str]
    null: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", different_names("chain.columns", self.columns))
        if len(self.columns) < 2:
            raise InvalidRequestError.of("chain.columns", f"must be at least two, got {self.columns!r}")
        if self.null is not None and not (isinstance(self.null, str) and self.null):
            text = f"must be a category, or None if there is none, got {self.null!r}"
            raise InvalidRequestError.of("chain.null", text)


# Tuples and lists are named so that a mistyped "tree", which is a sequence of strings, too, is an error of its type.
CliqueColumns: TypeAlias = tuple[str, ...] | list[str]
"""Names of the columns of one clique."""

MRFGraph: TypeAlias = Literal["auto", "tree", "independent"] | Chain | Sequence[CliqueColumns]
"""Sets of columns with a common table: chosen by the server, none, those of a chain, or the analyst's."""

Workload: TypeAlias = Literal["pairs", "triples"] | Mapping[tuple[str, ...], float]
"""Sets of columns that a model is for: all of two or of three columns, or those that are named, with their weights."""

PaidTables: TypeAlias = MarkovRandomField | Receipt | int
"""Tables of an earlier release of the caller's: the model that has them, its receipt or its entry."""


def _graph(name: str, value: object) -> object:
    """Return a graph, listed cliques as tuples. Raises InvalidRequestError."""
    if isinstance(value, Chain) or value in ("auto", "tree", "independent"):
        return value
    if isinstance(value, str) or not (isinstance(value, Sequence) and value):
        expected = (
            '"auto", "tree", "independent", a bursar.Chain, or a list of cliques such as [("a", "b"), ("b", "c")]'
        )
        raise InvalidRequestError.of(name, f"must be {expected}, got {value!r}")
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for number, columns in enumerate(value):
        clique = different_names(f"{name}[{number}]", columns)
        if not clique:
            raise InvalidRequestError.of(f"{name}[{number}]", "must be at least one column")
        # Listed twice it would be paid for twice.
        if frozenset(clique) in found:
            text = f"{', '.join(clique)} is listed twice; the order does not matter"
            raise InvalidRequestError.of(f"{name}[{number}]", text)
        found[frozenset(clique)] = clique
    return tuple(found.values())


def _numbers(name: str, value: object) -> dict[tuple[str, ...], float]:
    """Return numbers by sets of columns. Raises InvalidRequestError."""
    if not isinstance(value, Mapping):
        expected = 'a mapping from columns to numbers such as {("a", "b"): 4}'
        raise InvalidRequestError.of(name, f"must be {expected}, got {value!r}")
    found: dict[tuple[str, ...], float] = {}
    for columns, precision in value.items():
        clique = different_names(name, columns)
        if any(set(clique) == set(other) for other in found):
            raise InvalidRequestError.of(name, f"{', '.join(clique)} has two; the order does not matter")
        found[clique] = positive(name, precision)
    return found


def _workload(name: str, value: object) -> Workload:
    """Return a workload, named sets as tuples. Raises InvalidRequestError."""
    if value in ("pairs", "triples"):
        return cast(Workload, value)
    if not (isinstance(value, Mapping) and value):
        expected = '"pairs", "triples", or sets of columns with their weights such as {("a", "b", "c"): 2}'
        raise InvalidRequestError.of(name, f"must be {expected}, got {value!r}")
    found = _numbers(name, value)
    if not all(len(columns) >= 2 for columns in found):
        raise InvalidRequestError.of(name, f"must be sets of two or more columns, got {value!r}")
    return found


def _reuse(name: str, value: object) -> tuple[PaidTables, ...]:
    """Return sources of earlier tables as a tuple. Raises InvalidRequestError."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        expected = "a list of earlier models, their receipts or their entries"
        raise InvalidRequestError.of(name, f"must be {expected}, got {type(value).__name__}")
    return tuple(_source(name, one) for one in value)


def _source(name: str, value: object) -> PaidTables:
    match value:
        case MarkovRandomField() | Receipt():
            return value
        case int():
            return whole(name, value, 1, MAX_SEED)
    expected = "a model with a receipt, a receipt, or the entry of one"
    raise InvalidRequestError.of(name, f"must be a list of each {expected}, got {type(value).__name__}")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MRF(Request):
    """Learn a Markov random field of discrete columns from noisy tables (Bernstein et al. 2017, corrected).

    The contingency tables are what is paid for: every cell of every table gets noise, once. The model is learnt from
    them on this machine. The tables come with the model, a `MarkovRandomField`, and later fits may use them again for
    free. Fit it with a spend for new tables, and without one if `reuse` has all tables.

    Attributes:
        cliques: columns that have a table together. "auto" lets the server choose pairs, or what `workload` says, one
            after the other, each where the model of the tables so far is furthest from the rows; "tree" lets it choose
            a tree of strong dependences. A part of the spend pays for the choice. A list such as
            `[("age", "work"), ("work", "income")]` has one or more columns each; "independent" is one table for each
            column; a `bursar.Chain` has its columns in the order of time, with the same transitions between all
            neighbours.
        columns: categorical columns, and numeric ones that the schema has bins for, in the order that the model has
            them; those in no clique get a table of their own. None for those of the listed cliques in the order of the
            schema; for "auto", "tree" and "independent" all that there are. Not with a chain.
        precisions: precisions of listed cliques relative to one another, such as `{("age", "work"): 4}`: the noise on a
            clique's table is divided by the square root of its precision. It is 1 for None, and for those left out.
        share: share of the spend for the choice of a tree, one-way tables included, 0.05 to 0.9; None leaves it to the
            server, which takes a third.
        estimator: "cgm" infers the true tables and the model together and knows the law of the noise; "nlbp" does it by
            the paper's own loop; "naive" takes each table, less its noise, for the truth.
        regularization: L2 penalty on the log-potentials, in rows; None is none, and 1 for "naive" where tables form
            cycles.
        inference: "exact" on a junction tree, refused where its tables are above the server's limit; "loopy" belief
            propagation; "auto" for exact where that is possible. A graph without cycles is always exact.
        unit_weights: weight of a row where a person may have several: "shares" counts each of K rows as 1/K, for the
            price of one row; "rows" counts each as 1, for the price of all that a person may have. None is "shares", or
            "rows" where a row is the privacy unit.
        reuse: earlier models of this dataset, their receipts or their entries. All their tables are used beside the new
            ones, and cliques that are within one of them are not paid for again.
        workload: tables that the model is for, for "auto": all "pairs" of columns, all "triples", or sets of columns
            with their weights, such as `{("age", "work", "income"): 2, ("sex", "income"): 1}`. Only these sets, and
            sets of two or more columns within them, are chosen, and count as much as the sets that contain them.
        held_out: share of the spend for a test of the graph, 0.01 to 0.5: the table of one more pair of columns that
            have none, chosen where the model is furthest from the rows, is released, and the model is not learnt from
            it, see `MarkovRandomField.goodness`. None for no test. A chain, and cliques that have all pairs, get none.
        estimated_by: "client", or "server" if this machine is too slow: the owner's server learns the model then, for
            free, and the fit takes longer.

    Raises:
        InvalidRequestError: an argument is outside its range, or says nothing about this graph.

    Example:
        >>> bursar.MRF(cliques=[("age", "work"), ("work", "income")])
        bursar.MRF(cliques=[['age', 'work'], ['work', 'income']])
    """

    cliques: Annotated[MRFGraph, _graph] = "auto"
    columns: Annotated[Sequence[str] | None, names] = None
    precisions: Annotated[Mapping[tuple[str, ...], float] | None, _numbers] = None
    share: Annotated[float | None, Between(*TREE_SHARES)] = None
    estimator: Estimator = "cgm"
    regularization: Annotated[float | None, positive] = None
    inference: Inference = "auto"
    unit_weights: UnitWeights | None = None
    reuse: Annotated[Sequence[PaidTables], _reuse] = ()
    workload: Annotated[Workload, _workload] = "pairs"
    held_out: Annotated[float | None, Between(*HELD_OUT_SHARES)] = None
    # Which machine estimates changes no release, so that it is no part of equality and digest.
    estimated_by: Computer = field(default="client", compare=False)

    def _check(self) -> None:
        if self.share is not None and self.cliques != "tree":
            raise InvalidRequestError.of("share", 'is for cliques="tree" only; leave share out')
        if self.workload != "pairs" and self.cliques != "auto":
            raise InvalidRequestError.of("workload", 'is for cliques="auto" only; leave workload out')
        if self.columns is not None and isinstance(self.cliques, Chain):
            text = "are those of the chain; leave them out, and add other columns to another model"
            raise InvalidRequestError.of("columns", text)
        if self.precisions is None:
            return
        if isinstance(self.cliques, str | Chain):
            text = "are for cliques that are listed; leave precisions out, or list the cliques"
            raise InvalidRequestError.of("precisions", text)
        listed = [set(clique) for clique in self.cliques]
        for clique in self.precisions:
            if set(clique) not in listed:
                text = f"{', '.join(clique)} is none of the listed cliques; list it, too"
                raise InvalidRequestError.of("precisions", text)

    def result_type(self) -> type[MarkovRandomField]:
        """Return the class of the fit's result."""
        return MarkovRandomField
