"""Dummy runs: a fit's own code on rows that are made up from the public schema, for nothing and about nobody.

Plan, statistics, meter and noise are those of the fit; the rows and the purse are not. A dummy run has a vault of its
own, filled from the public schema and a public seed, and a meter that was never debited. It is given the schema and the
order at which the dataset's releases are priced, and nothing through which the ledger or a snapshot could be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from google.protobuf.message import Message

from bursar.models import made_up_codes, made_up_numbers, made_up_unit_rows
from bursar_ledger import Adjacency, Price, price
from bursar_proto.v1 import dummy_pb2
from bursar_server.computing import Run
from bursar_server.errors import NotAvailableError
from bursar_server.fits import UNIT_ROWS, InvalidRequestError, NumericColumn, Plan, PublicTable
from bursar_server.fits._seam import Fit
from bursar_server.fitting import InProcess, Job, Runner
from bursar_server.requests import METHODS, FitRequest, check_known, previewed
from bursar_server.vault import ArrayRows, LocalEngine, Rows

MAX_ROWS = 2**20
"""Most rows of a dummy run: it costs the server time, and nobody anything."""

MAX_NUMBERS, MAX_SUMS = 2**24, 2**38
"""Most numbers in the rows, held in memory at 8 bytes each; and most that are added up over all rows and releases."""

DEFAULT_ROWS = 10_000
"""Where no number of rows is public."""


@dataclass(frozen=True)
class PublicFacts:
    """What a dummy run knows of a dataset.

    Attributes:
        table: all that its plan may depend on.
        order: at which its releases are priced.
    """

    table: PublicTable
    order: Fraction


@dataclass(frozen=True)
class DummyOrder:
    """A fit to be tried.

    Attributes:
        field: of the answer that has its model.
        facts: of the dataset, with the number of rows that the plan was told.
        plan: what the fit would release.
        price: what it would debit.
        rows: how many are made up.
        public_seed: of them.
        warnings: what an analyst should know about the rows; of the fit a preview tells.
    """

    field: str
    facts: PublicFacts
    plan: Plan
    price: Price
    rows: int
    public_seed: int
    warnings: tuple[str, ...]


class Dummies:
    """Plans and runs fits on made-up rows.

    Args:
        fits: the registry, by name of the RPC.
        facts: of a dataset by its name. Raises what callers are told if there is none.
        threads: that sum rows for one fit.
        runner: runs the fits; where it is called, if nothing else is said.
        check: of the owner's limits on request, plan and public number of rows. Raises InvalidRequestError.
    """

    def __init__(
        self,
        *,
        fits: Mapping[str, Fit[Any, Any, Any]],
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
        """Check and plan a request; makes nothing up yet.

        Raises:
            NotAvailableError: there is no such fit.
            InvalidRequestError: naming every field that is wrong.
            UnknownDatasetError: there is no such dataset.
        """
        check_known(request)
        field, asked = previewed(request.fit)
        fit = self._fits.get(METHODS[field])
        if fit is None:
            raise NotAvailableError(f"{METHODS[field]} is not available in this version of the server")
        if asked.spend.WhichOneof("amount") == "remaining":
            text = "a dummy run does not know what is left; expected one of rho, epsilon_delta, epsilon"
            raise InvalidRequestError(("spend", text))
        facts = self._facts(asked.dataset)
        wanted = request.rows or facts.table.rows or DEFAULT_ROWS
        rows = min(wanted, MAX_ROWS)
        plan: Plan = fit.plan(asked, _with_rows(facts.table, rows), _nothing_released)
        rows = min(rows, _most_rows(plan))
        if rows < wanted:
            if request.rows:
                text = f"expected at most {rows} for a dummy run of this fit, or 0 for about the public number"
                raise InvalidRequestError(("rows", f"{text}; got {wanted}"))
            plan = fit.plan(asked, _with_rows(facts.table, rows), _nothing_released)
        table = _with_rows(facts.table, rows)
        self._check(asked, plan, table.rows)
        cut = (
            f"{rows} rows were made up where the table has about {wanted}: its rows drown the noise more than these do"
        )
        return DummyOrder(
            field=field,
            facts=replace(facts, table=table),
            plan=plan,
            price=price(plan.events, facts.order),
            rows=rows,
            public_seed=request.public_seed,
            warnings=(cut,) if rows < wanted else (),
        )

    def run(self, order: DummyOrder, run: Run) -> bytes:
        """What a worker does: make rows up, and fit them as if they had been paid for."""
        table, plan = order.facts.table, order.plan
        job = Job(
            method=METHODS[order.field],
            plan=plan,
            rows=MadeUp(table, plan.columns, order.rows if plan.events else 0, order.public_seed),
            adjacency=table.adjacency,
            unit_cap=table.unit_cap,
            order=order.facts.order,
            debited_units=order.price.cost_units,
            engine=LocalEngine(self._threads),
        )
        made = dummy_pb2.DummyModel()
        model: Message = getattr(made, order.field)
        model.SetInParent()
        model.ParseFromString(self._runner.run(job, run.advance))
        if made.sketch_kmeans.HasField("sketch"):
            made.sketch_kmeans.sketch.dummy = True  # it may be sent again, and must not pass for a release
        return dummy_pb2.DummyResponse(model=made).SerializeToString(deterministic=True)


@dataclass(frozen=True)
class MadeUp:
    """Rows of nobody (`bursar_server.fitting.RowSource`); attributes as of `made_up_rows`."""

    table: PublicTable
    columns: tuple[str, ...]
    n: int
    public_seed: int

    def open(self) -> Rows:
        """Make them up."""
        return made_up_rows(self.table, self.columns, self.n, self.public_seed)


def made_up_rows(table: PublicTable, columns: tuple[str, ...], n: int, public_seed: int) -> ArrayRows:
    """Rows of nobody with these columns in their order, all present.

    Args:
        table: the public schema.
        columns: names, or `UNIT_ROWS`.
        n: how many rows.
        public_seed: of them.
    """
    numeric = {column.name: column for column in table.numeric}
    sizes = {column.name: len(column.categories) for column in table.categorical}

    def made_up(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        if name == UNIT_ROWS:
            return made_up_unit_rows(n, public_seed, cap=table.unit_cap)
        if name in sizes:
            return made_up_codes(name, n, public_seed, categories=sizes[name])
        column: NumericColumn = numeric[name]
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


def _with_rows(table: PublicTable, rows: int) -> PublicTable:
    """Under REPLACE_ONE fits rely on the number of slots; elsewhere they know what they would know of the table."""
    return replace(table, rows=rows) if table.adjacency is Adjacency.REPLACE_ONE else table


def _most_rows(plan: Plan) -> int:
    """As many as fit into the server's memory and time; 1 at least."""
    sums = sum(release.size * release.times for release in plan.noise)
    return max(1, min(MAX_NUMBERS // max(1, len(plan.columns)), MAX_SUMS // max(1, sums)))


def _nothing_released(entry: int) -> Message | None:
    text = (
        f"a dummy run looks nothing up in the ledger, so it cannot use entry {entry}; give numbers instead of an "
        "entry, or leave it out"
    )
    raise InvalidRequestError(("entry", text))
