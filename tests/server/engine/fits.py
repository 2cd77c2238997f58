"""Every kind of release of every fit, without noise, on people who never were: what engines must agree on."""

from __future__ import annotations

from typing import Any

import numpy as np

from bursar_ledger import cost_units
from bursar_server.jobs.trial import made_up_rows
from bursar_server.vault import (
    ArrayRows,
    Engine,
    Meter,
    Rows,
    Session,
    SyntheticBudget,
    transformed,
)
from tests.conformance.requests import TABLE, VARIANTS, fit_of
from tests.server.fits.running import ORDER, NoNoise
from tests.server.vault.doubles import Best


def planned(name: str) -> Any:
    """Return the plan of a request of `VARIANTS`."""
    return fit_of(name).plan(VARIANTS[name], TABLE, lambda entry: None)


def fitted(name: str, rows: Rows, engine: Engine) -> bytes:
    """The model that an engine's exact integers make, as it would be stored; rows are the stored ones."""
    plan = planned(name)
    session = Session(
        rows=transformed(rows, plan.transforms),
        columns=len(plan.columns),
        adjacency=TABLE.adjacency,
        unit_cap=TABLE.unit_cap,
        meter=Meter(SyntheticBudget(ORDER, cost_units(plan.events, ORDER))),
        source=NoNoise(),
        search_source=Best(),
        engine=engine,
    )
    model: bytes = fit_of(name).run(plan, session).SerializeToString(deterministic=True)
    return model


def people(name: str, n: int) -> ArrayRows:
    """Made-up rows with the columns of a plan, every seventh slot null."""
    rows = made_up_rows(TABLE, planned(name).columns, n, 5)
    return ArrayRows(rows.columns, np.arange(n) % 7 > 0)
