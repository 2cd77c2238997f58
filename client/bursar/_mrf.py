"""What may be asked of a Markov random field from noisy tables (Bernstein et al. 2017, corrected by the server)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bursar import _convert
from bursar._arguments import entry_of, names, whole
from bursar._errors import InvalidRequestError
from bursar._privacy import Receipt, Spend, positive
from bursar._sketch_kmeans import Computer, checked_computer
from bursar.models import MarkovRandomField
from bursar.models.mrf._estimation import Estimator, Inference
from bursar.models.mrf._markov_random_field import UnitWeights
from bursar_proto.v1 import fit_pb2

_LAST_ENTRY = 2**64 - 1

MIN_SHARE, MAX_SHARE = 0.05, 0.9
"""Of the spend, that the selection of a tree may have."""


@dataclass(frozen=True)
class Chain:
    """A time-homogeneous chain: the same transitions between all neighbours in time (Bernstein et al. 2017, 4.2).

    Every row is one person's path. Two tables are paid for, however long it is: first states, and transitions pooled
    over time, in which each of a path's K transitions counts 1/K.

    Attributes:
        columns: in the order of time, at least two, all with the same categories, or with the same bins.
        null: category that stands for "not observed". Transitions from null to null are left out then, of K, too, and
            the model hardly knows that null follows null. None counts all.

    Raises:
        InvalidRequestError: fewer than two columns, one of them twice, or something else than names.

    Example:
        >>> chain = bursar.Chain(["spring", "summer", "autumn"], null="unknown")
        >>> data.fit_mrf(cliques=chain, spend=bursar.rho(0.1)).homogeneous_chain
        True
    """

    columns: Sequence[str]
    null: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(_once("chain.columns", self.columns)))
        if len(self.columns) < 2:
            raise InvalidRequestError.of("chain.columns", f"must be at least two, got {self.columns!r}")
        if self.null is not None and not (isinstance(self.null, str) and self.null):
            text = f"must be a category, or None if there is none, got {self.null!r}"
            raise InvalidRequestError.of("chain.null_category", text)


# Tuples and lists are named so that a mistyped "tree", which is a sequence of strings, too, is an error of its type.
CliqueColumns: TypeAlias = tuple[str, ...] | list[str]
"""Names of the columns of one clique."""

MRFGraph: TypeAlias = Literal["tree", "independent"] | Chain | Sequence[CliqueColumns]
"""Which columns have a table together: chosen by the server, none, those of a chain, or as the analyst says."""

PaidTables: TypeAlias = MarkovRandomField | Receipt | int
"""Tables of an earlier release of the caller's: the model that has them, its receipt or its entry."""


@dataclass(frozen=True, kw_only=True)
class MRFSettings:
    """The arguments of `Dataset.fit_mrf` that say what is computed; documented there."""

    cliques: MRFGraph
    spend: Spend | None = None
    columns: Sequence[str] | None = None
    precisions: Mapping[tuple[str, ...], float] | None = None
    share: float | None = None
    estimator: Estimator = "cgm"
    regularization: float | None = None
    inference: Inference = "auto"
    unit_weights: UnitWeights | None = None
    reuse: Sequence[PaidTables] = ()
    estimated_by: Computer = "client"

    def message(self, dataset: str, request_id: str | None) -> fit_pb2.FitMRFRequest:
        """The request on the wire.

        Args:
            dataset: its name.
            request_id: None makes one for what is paid; what is free needs none.

        Raises:
            InvalidRequestError: an argument that no server would accept, or one that says nothing about this graph.
        """
        request = fit_pb2.FitMRFRequest(
            request_id=request_id or "",
            dataset=dataset,
            columns=() if self.columns is None else names(self.columns),
            estimator=_convert.choice("estimator", self.estimator, _convert.MRF_ESTIMATORS),
            inference=_convert.choice("inference", self.inference, _convert.MRF_INFERENCES),
            reuse=_entries(self.reuse, dataset),
            estimate_on_client=checked_computer("estimated_by", self.estimated_by) == "client",
        )
        self._set_graph(request)
        self._set_spend(request)
        if self.regularization is not None:
            request.regularization = positive("regularization", self.regularization)
        if self.unit_weights is not None:
            request.unit_weights = _convert.choice("unit_weights", self.unit_weights, _convert.UNIT_WEIGHTS)
        return request

    def _set_spend(self, request: fit_pb2.FitMRFRequest) -> None:
        if self.spend is not None:
            request.request_id = request.request_id or str(uuid.uuid4())
            request.spend.CopyFrom(_convert.spend_to(self.spend))
        elif not request.reuse:
            text = "is missing: new tables need it; tables of earlier releases cost nothing and are named by reuse="
            raise InvalidRequestError.of("spend", text)

    def _set_graph(self, request: fit_pb2.FitMRFRequest) -> None:
        graph: object = self.cliques
        if self.share is not None and graph != "tree":
            raise InvalidRequestError.of("tree.share", 'is for cliques="tree" only; leave share out')
        if self.precisions is not None and (isinstance(graph, str | Chain)):
            text = "are for cliques that are listed; leave precisions out, or list the cliques"
            raise InvalidRequestError.of("precisions", text)
        match graph:
            case "tree":
                request.tree.SetInParent()
                if self.share is not None:
                    request.tree.share = _checked_share(self.share)
            case "independent":
                request.independent.SetInParent()
            case Chain():
                if self.columns is not None:
                    text = "are those of the chain; leave them out, and add other columns to another model"
                    raise InvalidRequestError.of("columns", text)
                request.chain.columns.extend(graph.columns)
                request.chain.null_category = graph.null or ""
            case _:
                request.cliques.cliques.extend(_cliques(graph, self.precisions or {}))


def _checked_share(share: float) -> float:
    if not MIN_SHARE <= positive("tree.share", share) <= MAX_SHARE:
        raise InvalidRequestError.of("tree.share", f"must be {MIN_SHARE} to {MAX_SHARE}, got {share!r}")
    return float(share)


def _cliques(graph: object, precisions: object) -> list[fit_pb2.Clique]:
    """Messages of a listed graph. Raises InvalidRequestError."""
    if isinstance(graph, str) or not (isinstance(graph, Sequence) and graph):
        expected = '"tree", "independent", a bursar.Chain, or a list of cliques such as [("a", "b"), ("b", "c")]'
        raise InvalidRequestError.of("cliques", f"must be {expected}, got {graph!r}")
    found: dict[frozenset[str], fit_pb2.Clique] = {}
    for number, columns in enumerate(graph):
        field = f"cliques[{number}]"
        clique = _once(f"{field}.columns", columns)
        if not clique:
            raise InvalidRequestError.of(f"{field}.columns", "must be at least one column")
        if frozenset(clique) in found:
            raise InvalidRequestError.of(field, f"{', '.join(clique)} is listed twice; the order does not matter")
        found[frozenset(clique)] = fit_pb2.Clique(columns=clique)
    _set_precisions(found, precisions)
    return list(found.values())


def _set_precisions(cliques: Mapping[frozenset[str], fit_pb2.Clique], precisions: object) -> None:
    if not isinstance(precisions, Mapping):
        expected = 'a mapping from listed cliques to numbers such as {("a", "b"): 4}'
        raise InvalidRequestError.of("precisions", f"must be {expected}, got {precisions!r}")
    for columns, precision in precisions.items():
        clique = cliques.get(frozenset(_once("precisions", columns)))
        if clique is None:
            text = f"{', '.join(columns)} is none of the listed cliques; list it, too"
            raise InvalidRequestError.of("precisions", text)
        if clique.precision:
            raise InvalidRequestError.of("precisions", f"{', '.join(columns)} has two; the order does not matter")
        clique.precision = positive("precisions", precision)


def _once(field: str, columns: object) -> list[str]:
    """Names of columns, each once. Raises InvalidRequestError."""
    # A string is a sequence of strings, and never what was meant.
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not all(isinstance(c, str) for c in columns):
        raise InvalidRequestError.of(field, f"must be a tuple or a list of names, got {columns!r}")
    if len(set(columns)) != len(columns):
        raise InvalidRequestError.of(field, f"must have each column once, got {columns!r}")
    return list(columns)


def _entries(reuse: object, dataset: str) -> list[int]:
    """Entries of earlier releases, each once, in the order of the first mention. Raises InvalidRequestError."""
    if isinstance(reuse, str) or not isinstance(reuse, Sequence):
        expected = "a list of earlier models, their receipts or their entries"
        raise InvalidRequestError.of("reuse", f"must be {expected}, got {type(reuse).__name__}")
    return list(dict.fromkeys(entry for source in reuse for entry in _entries_of(source, dataset)))


def _entries_of(source: object, dataset: str) -> list[int]:
    match source:
        case int():
            return [whole("reuse", source, 1, _LAST_ENTRY)]
        case MarkovRandomField() | Receipt():
            receipt = source if isinstance(source, Receipt) else source.receipt
            if receipt is not None and receipt.dataset != dataset:
                text = f"these tables are of dataset {receipt.dataset!r}, not of {dataset!r}"
                raise InvalidRequestError.of("reuse", text)
            paid = entry_of("reuse", source, "give the entries that paid for its tables")
            # The server finds the tables that a release of its own was learnt from; of a free one it keeps nothing.
            tables = source.tables_ if isinstance(source, MarkovRandomField) and receipt and receipt.free else ()
            return [paid, *(table.entry for table in tables if table.entry is not None)]
    expected = "a model with a receipt, a receipt, or the entry of one"
    raise InvalidRequestError.of("reuse", f"must be a list of each {expected}, got {type(source).__name__}")
