"""What every fit has in common: a plan made from public facts, and a run inside a paid session.

`plan` is a pure function of request and public table. The ledger is debited for `Plan.events`, a preview shows them,
and the session's meter holds the run to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from bursar_ledger import Adjacency, Event
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.vault import Session

JSON = str | int | float | bool | None | list["JSON"] | dict[str, "JSON"]


UNIT_ROWS = ""
"""Stands among the columns of a plan for K: how many rows the row's privacy unit has in the table, after the cap.

A whole number from 1 to the cap for every row that is present, 1 where a row is the unit. K is a function of the unit's
own rows, so the sum of 1/K over them is 1 whoever else is in the table. No column of a manifest may have this name.
"""


@dataclass(frozen=True)
class NumericColumn:
    """A column whose public bounds are finite and lower < upper.

    Attributes:
        name: what requests call it.
        lower: least value, in the column's own unit.
        upper: greatest value.
        bins: edges of the public bins that make states of its values, ascending from lower to upper, one more than
            states; () if the schema has none. State i is bins[i] <= x < bins[i + 1], the last one its upper edge, too.
        nullable: whether a row that is present may have no value here; a session's rows hold NaN then.
    """

    name: str
    lower: float
    upper: float
    bins: tuple[float, ...] = ()
    nullable: bool = False


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of names from a public list.

    Attributes:
        name: what requests call it.
        categories: distinct; rows hold positions in this list, 0, 1, ...
    """

    name: str
    categories: tuple[str, ...]


@dataclass(frozen=True)
class PublicTable:
    """What is public about a dataset, and all that a plan may depend on.

    Attributes:
        name: of the dataset.
        numeric: its numeric columns, in the manifest's order.
        adjacency: of the dataset.
        unit_cap: most rows of one privacy unit.
        rows: under REPLACE_ONE the number of slots; under ADD_REMOVE_ONE what the owner declared, or None.
        categorical: its categorical columns, in the manifest's order.
        names: of all columns, in the manifest's order; left out, categorical columns come before numeric ones.
    """

    name: str
    numeric: tuple[NumericColumn, ...]
    adjacency: Adjacency
    unit_cap: int
    rows: int | None
    categorical: tuple[CategoricalColumn, ...] = ()
    names: tuple[str, ...] = ()


class InvalidRequestError(Exception):
    """A request that no debit was made for.

    Attributes:
        violations: pairs of (field of the request, what was wrong and what was expected).
    """

    def __init__(self, *violations: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in violations))
        self.violations = violations


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a fit will release, decided before any row is read. Fits extend it with their own parameters.

    A plan without events is for nothing: it computes from what was released before. It is run without a debit, with a
    session that has no rows and can release nothing.

    Attributes:
        columns: names of the columns that the session's rows must have, in order; among them may be `UNIT_ROWS`.
        events: every release, priced by the ledger.
        iterations: number of steps that progress will report.
        noise: the releases as people read them.
        parameters: for the ledger's entry; public values only.
        expected_mean_error: see `PreviewResponse.expected_mean_error`.
        predicted_snr: see `PreviewResponse.predicted_snr`.
        predicted_relative_sse: see `PreviewResponse.predicted_relative_sse`.
        sum_units: see `PreviewResponse.sum_units`.
        expected_relative_error: see `PreviewResponse.expected_relative_error`.
        expected_coefficient_error: see `PreviewResponse.expected_coefficient_error`.
        expected_table_error: see `PreviewResponse.expected_table_error`.
        warnings: see `PreviewResponse.warnings`.
        preflight: see `PreviewResponse.preflight`.
        of_entry: of a plan without events: the debit whose release it computes from, 0 if there is none; of any other
            plan that is run: its own debit.
    """

    columns: tuple[str, ...]
    events: tuple[Event, ...]
    iterations: int
    noise: tuple[types_pb2.ReleaseNoise, ...]
    parameters: Mapping[str, JSON]
    expected_mean_error: tuple[float, ...] = ()
    predicted_snr: float | None = None
    predicted_relative_sse: float | None = None
    sum_units: tuple[float, ...] = ()
    expected_relative_error: float | None = None
    expected_coefficient_error: tuple[float, ...] = ()
    expected_table_error: float | None = None
    warnings: tuple[str, ...] = ()
    preflight: fit_pb2.Preflight | None = None
    of_entry: int = 0


RequestT = TypeVar("RequestT", contravariant=True)
PlanT = TypeVar("PlanT", bound=Plan)
ModelT = TypeVar("ModelT", covariant=True)

Released = Callable[[int], Message | None]
"""Models that the same method released to the same analyst from the same dataset, by entry; None if there is none."""


class Fit(Protocol[RequestT, PlanT, ModelT]):
    """A fitting method: `dpem` is one, as a module."""

    def plan(self, request: RequestT, table: PublicTable, released: Released) -> PlanT:
        """Raises InvalidRequestError naming every field that is wrong."""

    def run(self, plan: PlanT, session: Session) -> ModelT:
        """Return a valid model whatever rows and noise are, after `progress(iterations, iterations)`."""
