"""Protocol of a fit: a plan made from public facts, and a run inside a charged session.

`plan` is a pure function of request and public table. The ledger is debited for `Plan.events`, a preview shows them,
and the session's meter refuses any other release. Imports no fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from bursar_ledger import Adjacency, Event
from bursar_models.transforms import Transform
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.vault import Log1p, Session

JSON = str | int | float | bool | None | list["JSON"] | dict[str, "JSON"]


UNIT_ROWS = ""
"""Name among a plan's columns for K: the number of rows of the row's privacy unit in the table, after the cap.

A whole number from 1 to the cap for every present row, 1 if a row is the unit. K is a function of the unit's own rows,
so the sum of 1/K over them is 1, whatever other rows the table has. No column of a manifest may have this name.
"""


@dataclass(frozen=True)
class BoundedColumn:
    """Column of numbers with finite public bounds, lower < upper.

    Attributes:
        name: name in requests.
        lower: least value, in the column's own unit.
        upper: greatest value.
        bins: edges of the public bins that are the states of its values, ascending from lower to upper, one more than
            states; () if the schema has none. State i is bins[i] <= x < bins[i + 1], the last one its upper edge, too.
        nullable: True if a present row may have no value here; a session's rows then hold NaN.
        transform: transform that the owner declared for fits that have any, "none" or "log1p".
    """

    name: str
    lower: float
    upper: float
    bins: tuple[float, ...] = ()
    nullable: bool = False
    transform: Transform = "none"


@dataclass(frozen=True)
class CodedColumn:
    """Column of names from a public list.

    Attributes:
        name: name in requests.
        categories: distinct names; rows hold positions in this list, 0, 1, ...
    """

    name: str
    categories: tuple[str, ...]


@dataclass(frozen=True)
class PublicTable:
    """Public facts of a dataset, and all that a plan may depend on.

    Attributes:
        name: name of the dataset.
        numeric: numeric columns, in the manifest's order.
        adjacency: neighbouring relation of the dataset.
        unit_cap: maximum number of rows of one privacy unit.
        rows: number of slots under REPLACE_ONE; number that the owner declared, or None, under ADD_REMOVE_ONE.
        categorical: categorical columns, in the manifest's order.
        names: names of all columns, in the manifest's order; if empty, categorical columns come before numeric ones.
    """

    name: str
    numeric: tuple[BoundedColumn, ...]
    adjacency: Adjacency
    unit_cap: int
    rows: int | None
    categorical: tuple[CodedColumn, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublicFacts:
    """Facts that a dry run may use.

    Attributes:
        table: facts on which its plan may depend.
        order: Renyi order at which its releases are priced.
    """

    table: PublicTable
    order: Fraction


class InvalidFieldsError(Exception):
    """Error: a request is wrong, so no debit was made.

    Attributes:
        violations: pairs of (field of the request, fault and expected value).
    """

    def __init__(self, *violations: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in violations))
        self.violations = violations


@dataclass(frozen=True)
class Expected:
    """Expected accuracy of a fit, in one respect.

    Attributes:
        value: one number, or one for each column by its name.
        unit: unit of the number; "" for ratios and shares.
    """

    value: float | Mapping[str, float]
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a fit's releases, decided before any row is read. Fits extend it with their own parameters.

    A plan without events is free: it computes from earlier releases. It runs without a debit, in a session that has no
    rows and can release nothing.

    Attributes:
        columns: names of the columns that the session's rows must have, in order; `UNIT_ROWS` may be among them.
        events: every release, priced by the ledger.
        iterations: number of steps that progress will report.
        noise: noise of the releases, for people.
        parameters: public parameters for the ledger's entry.
        expected: expected accuracies, by the names of `fit_pb2.Expected`; unknown ones are left out.
        sum_units: units of the sums, as in `PreviewResponse.sum_units`.
        warnings: warnings for the analyst, as in `PreviewResponse.warnings`.
        useless: True if the public rule of docs/useless.md says so.
        preflight: result of the preflight, as in `PreviewResponse.preflight`.
        transforms: transforms of the columns, by their places; a session's rows are the transformed ones.
        memory: bytes, about, that the process of the run takes at its peak; 0 if that is not estimated.
        of_entry: for a plan without events, the debit of the release from which it computes, 0 if there is none; for
            any other plan that is run, its own debit.
    """

    columns: tuple[str, ...]
    events: tuple[Event, ...]
    iterations: int
    noise: tuple[types_pb2.ReleaseNoise, ...]
    parameters: Mapping[str, JSON]
    expected: Mapping[str, Expected] = field(default_factory=dict)
    sum_units: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()
    useless: bool = False
    preflight: fit_pb2.Preflight | None = None
    transforms: tuple[Log1p, ...] = ()
    memory: int = 0
    of_entry: int = 0


RequestT = TypeVar("RequestT", contravariant=True)
PlanT = TypeVar("PlanT", bound=Plan)
ModelT = TypeVar("ModelT", covariant=True)

Released = Callable[[int], Message | None]
"""Function entry -> model that the same method released to the same analyst from the same dataset.

None if there is none.
"""


class Fit(Protocol[RequestT, PlanT, ModelT]):
    """Fitting method; the package `dpem` is one, as a module."""

    def plan(self, request: RequestT, table: PublicTable, released: Released) -> PlanT:
        """Return the plan of a request.

        Raises:
            InvalidFieldsError: a field is wrong; names every such field.
        """

    def run(self, plan: PlanT, session: Session) -> ModelT:
        """Return a valid model for any rows and noise, after `progress(iterations, iterations)`."""


AnyFit = Fit[Any, Any, Any]
"""Fitting method with any request, plan and model."""
