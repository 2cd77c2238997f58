"""Dry runs: a fit's own code on synthetic rows from the public schema, free of charge.

Plan, statistics, meter and noise are those of the fit; rows and budget are not. A dry run has its own vault, filled
from the public schema and a public seed, and a meter without a debit. It receives the schema and the order at which the
dataset's releases are priced, and no access to the ledger or a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from google.protobuf.message import Message

from bursar_ledger import Adjacency, Cost, price
from bursar_models import made_up_codes, made_up_numbers, made_up_unit_rows
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import dummy_pb2
from bursar_server.fits import UNIT_ROWS, AnyFit, BoundedColumn, InvalidFieldsError, Plan, PublicFacts, PublicTable
from bursar_server.fits.contract import FitRequest, Method
from bursar_server.jobs.errors import NotAvailableError
from bursar_server.jobs.job import Run
from bursar_server.jobs.limits import check_known, previewed
from bursar_server.jobs.runner import InProcess, Job, Runner, run_for_free
from bursar_server.vault import ArrayRows, LocalEngine, Rows, SyntheticBudget

MAX_ROWS = 2**20
"""Maximum number of rows of a dry run, because it takes the server's time for free. Chosen, not tuned."""

MAX_NUMBERS, MAX_SUMS = 2**24, 2**38
"""Maximum number of numbers in the rows, 128 MB, and of additions over all rows and releases, minutes of one CPU."""

DEFAULT_ROWS = 10_000
"""Number of rows if none is public. Chosen, not tuned."""


@dataclass(frozen=True)
class DummyOrder:
    """Planned dry run.

    Attributes:
        facts: public facts of the dataset, with the number of rows in the plan.
        values: the caller's own values by column, instead of synthetic ones.
        warnings: warnings about the rows; a preview has those about the fit.
    """

    method: Method
    facts: PublicFacts
    plan: Plan
    price: Cost
    rows: int
    public_seed: int
    values: Mapping[str, FloatArray]
    warnings: tuple[str, ...]


class Dummies:
    """Planner and runner of fits on synthetic rows.

    `facts` raises for an unknown dataset; `check` applies the owner's limits to request, plan and public number of
    rows, and raises InvalidFieldsError. Fits run in this process unless there is a runner.
    """

    def __init__(
        self,
        *,
        fits: Mapping[str, AnyFit],
        facts: Callable[[str], PublicFacts],
        threads: int = 1,
        runner: Runner | None = None,
        check: Callable[[FitRequest, Plan, int | None], None] = lambda request, plan, rows: None,
    ) -> None:
        self._fits = fits
        self._facts = facts
        self._threads = threads
        self._runner = runner or InProcess(fits)
        self._check = check

    def order(self, request: dummy_pb2.DummyRequest) -> DummyOrder:
        """Check and plan a request; draws no rows yet.

        Raises:
            NotAvailableError: there is no such fit.
            InvalidFieldsError: a field is wrong; names every such field.
            UnknownDatasetError: there is no such dataset.
        """
        check_known(request)
        method, asked = previewed(request.fit)
        fit = self._fits.get(method.name)
        if fit is None:
            raise NotAvailableError(f"{method.name} is not available in this version of the server")
        if asked.spend.WhichOneof("amount") == "remaining":
            text = "a dummy run does not know what is left; expected one of rho, epsilon_delta, epsilon"
            raise InvalidFieldsError(("spend", text))
        facts = self._facts(asked.dataset)
        values = _own_values(request, facts.table)
        given = len(next(iter(values.values()))) if values else 0
        wanted = given or request.rows or facts.table.rows or DEFAULT_ROWS
        rows = min(wanted, MAX_ROWS)
        if given:  # also a declared number
            facts = replace(facts, table=replace(facts.table, rows=rows))
        # Planned with the wanted rows first: how many rows are possible depends on the plan's columns and releases.
        plan: Plan = fit.plan(asked, _with_rows(facts.table, rows), _nothing_released)
        rows = min(rows, _most_rows(plan))
        if rows < wanted:
            if request.rows or given:
                text = f"expected at most {rows} for a dummy run of this fit, or 0 for about the public number"
                raise InvalidFieldsError(("columns" if given else "rows", f"{text}; got {wanted}"))
            plan = fit.plan(asked, _with_rows(facts.table, rows), _nothing_released)
        table = _with_rows(facts.table, rows)
        self._check(asked, plan, table.rows)
        cut = (
            f"{rows} rows were made up where the table has about {wanted}: its rows drown the noise more than these do"
        )
        return DummyOrder(
            method=method,
            facts=replace(facts, table=table),
            plan=plan,
            price=price(plan.events, facts.order),
            rows=rows,
            public_seed=request.public_seed,
            values=values,
            warnings=(cut,) if rows < wanted else (),
        )

    def run(self, order: DummyOrder, run: Run) -> bytes:
        """Draw synthetic rows in a worker, and fit them as if the fit had been charged."""
        table, plan = order.facts.table, order.plan
        job = Job(
            method=order.method.name,
            plan=plan,
            rows=MadeUp(
                table=table,
                columns=plan.columns,
                n=order.rows if plan.events else 0,
                public_seed=order.public_seed,
                values=order.values,
                budget=SyntheticBudget(order.facts.order, order.price.cost_units),
            ),
            adjacency=table.adjacency,
            unit_cap=table.unit_cap,
            engine=LocalEngine(self._threads),
        )
        made = dummy_pb2.DummyModel()
        model: Message = getattr(made, order.method.field)
        model.SetInParent()
        model.ParseFromString(run_for_free(self._runner, job, run))
        if made.sketch_kmeans.HasField("sketch"):
            made.sketch_kmeans.sketch.dummy = True  # it may be sent again, and must not pass for a release
        return dummy_pb2.DummyResponse(model=made).SerializeToString(deterministic=True)


@dataclass(frozen=True)
class MadeUp:
    """Synthetic rows (`bursar_server.vault.RowSource`).

    Attributes:
        values: the caller's own values by column, (n,) each, instead of drawn ones.
        budget: cost that the fit would be charged; nothing is debited.
    """

    table: PublicTable
    columns: tuple[str, ...]
    n: int
    public_seed: int
    values: Mapping[str, FloatArray]
    budget: SyntheticBudget

    def open(self) -> Rows:
        """Draw the rows."""
        return made_up_rows(self.table, self.columns, self.n, self.public_seed, self.values)


_NO_VALUES: Mapping[str, FloatArray] = MappingProxyType({})


def made_up_rows(
    table: PublicTable,
    columns: tuple[str, ...],
    n: int,
    public_seed: int,
    values: Mapping[str, FloatArray] = _NO_VALUES,
) -> ArrayRows:
    """Draw synthetic rows with these columns in their order, all present.

    Columns are names, or `UNIT_ROWS`; values are the caller's own, (n,) each, instead of drawn ones.
    """
    numeric = {column.name: column for column in table.numeric}
    sizes = {column.name: len(column.categories) for column in table.categorical}

    def made_up(name: str) -> FloatArray:
        if n and name in values:
            return values[name]
        if name == UNIT_ROWS:
            return made_up_unit_rows(n, public_seed, cap=table.unit_cap)
        if name in sizes:
            return made_up_codes(name, n, public_seed, categories=sizes[name])
        column: BoundedColumn = numeric[name]
        return made_up_numbers(
            name,
            n,
            public_seed,
            lower=column.lower,
            upper=column.upper,
            edges=column.bins,
            nullable=column.nullable,
        )

    made = np.empty((len(columns), n))
    for place, name in enumerate(columns):
        made[place] = made_up(name)
    return ArrayRows(made)


def _own_values(request: dummy_pb2.DummyRequest, table: PublicTable) -> Mapping[str, FloatArray]:
    """Return the caller's own values by column, within the schema. Raises InvalidFieldsError."""
    numeric = {column.name: column for column in table.numeric}
    sizes = {column.name: len(column.categories) for column in table.categorical}
    found: dict[str, FloatArray] = {}
    for place, column in enumerate(request.columns):
        where, values = f"columns[{place}]", np.array(column.values, dtype=np.float64)
        first = len(request.columns[0].values)
        if column.name in found or column.name not in numeric | sizes:
            text = f"expected each of the dataset's columns at most once, got {column.name!r}"
            raise InvalidFieldsError((f"{where}.name", text))
        if not 1 <= len(values) == first or request.rows not in (0, first):
            text = f"expected as many values in each column, and `rows` 0 or that number; got {len(values)}"
            raise InvalidFieldsError((f"{where}.values", text))
        if column.name in sizes:
            states = np.arange(sizes[column.name])
            valid = np.isin(values, states).all()
            text = f"expected whole numbers from 0 to {sizes[column.name] - 1}: positions of categories"
        else:
            bounds = numeric[column.name]
            valid = np.all(np.isfinite(values) | (bounds.nullable & np.isnan(values)))
            text = f"expected finite numbers{', or NaN for none' if bounds.nullable else ''}"
            values = np.clip(values, bounds.lower, bounds.upper)
        if not valid:
            raise InvalidFieldsError((f"{where}.values", text))
        found[column.name] = values
    return found


def _with_rows(table: PublicTable, rows: int) -> PublicTable:
    """Return the table with this number of slots under REPLACE_ONE, on which fits rely; unchanged otherwise."""
    return replace(table, rows=rows) if table.adjacency is Adjacency.REPLACE_ONE else table


def _most_rows(plan: Plan) -> int:
    """Return the maximum number of rows within the server's memory and time; at least 1."""
    sums = sum(release.size * release.times for release in plan.noise)
    return max(1, min(MAX_NUMBERS // max(1, len(plan.columns)), MAX_SUMS // max(1, sums)))


def _nothing_released(entry: int) -> Message | None:
    text = (
        f"a dummy run looks nothing up in the ledger, so it cannot use entry {entry}; give numbers instead of an "
        "entry, or leave it out"
    )
    raise InvalidFieldsError(("entry", text))
