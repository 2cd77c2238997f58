"""Rows without a value in a column that a fit needs are null rows to it, whatever else they have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, CodedColumn, PublicTable, mrf
from bursar_server.fits._requests import Violations, columns_of
from bursar_server.vault import ArrayRows
from tests.conformance.checks import Case, Silent, plain_rows, run
from tests.conformance.requests import TABLE as ALL
from tests.conformance.requests import VARIANTS, fit_of, method_of
from tests.server.fits.running import nothing_released

EDGES = (0.0, 0.5, 1.0)
TABLE = PublicTable(
    "people",
    (BoundedColumn("x", 0.0, 1.0, EDGES), BoundedColumn("gap", 0.0, 1.0, EDGES, nullable=True)),
    Adjacency.REPLACE_ONE,
    1,
    5000,
    (CodedColumn("c", ("a", "b")),),
)
SPEND = types_pb2.Spend(rho=1.0)
LEAVING_OUT = [name for name, request in VARIANTS.items() if method_of(request) != "FitMRF"]
"""Variants without a rule of their own for the last of their columns."""

Told = tuple[bytes, list[tuple[int, int]]]


def _case(name: str, nullable: bool) -> Case:
    """A variant on a table of 61 rows of which every column may be null, or those that need it."""
    numeric = tuple(replace(column, nullable=nullable or column.nullable) for column in ALL.numeric)
    return Case(name, fit_of(name), VARIANTS[name], replace(ALL, numeric=numeric, rows=61))


def holed(name: str, instead: float = np.nan) -> tuple[Told, Told]:
    """Return what is told of rows without a value in their last column, and of null rows in their place.

    With a number `instead`, the fit takes it for the missing value.
    """
    with_holes, without = _case(name, nullable=True), _case(name, nullable=False)
    full = plain_rows(without)
    lacking = np.arange(full.columns.shape[1]) % 3 == 0
    last = np.where(lacking, instead, full.columns[-1])
    return (
        run(with_holes, ArrayRows(np.vstack([full.columns[:-1], last])), Silent()).told,
        run(without, ArrayRows(full.columns, ~lacking), Silent()).told,
    )


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if "by steps" in one else ()) for one in LEAVING_OUT]
)
def test_a_row_without_a_value_is_a_null_row(name: str) -> None:
    """The same model, to the bit, as if the row were not there; also of the row's other columns nothing counts."""
    found, expected = holed(name)
    assert found == expected


@pytest.mark.parametrize("name", ["mixture", "k-means", "components", "regression", "dense sketch", "separated"])
def test_a_row_that_counts_without_a_value_is_seen(name: str) -> None:
    """The comparison above finds the bug in every fit, planted as a value in the middle of the bounds."""
    found, expected = holed(name, instead=0.5)
    assert found != expected


def test_columns_that_may_be_null_are_taken_if_they_are_named() -> None:
    """A fit without names has those that are never null, and says how to have others where there are none."""
    violations: Violations = []
    assert [column.name for column in columns_of([], TABLE, violations)] == ["x"]
    assert [column.name for column in columns_of(["gap", "x"], TABLE, violations)] == ["gap", "x"]
    assert violations == []
    columns_of([], replace(TABLE, numeric=TABLE.numeric[1:]), violations)
    assert violations == [("columns", "expected 1 to 64 numeric columns, got 0 that are never null; name those to use")]


@pytest.mark.parametrize("name", ["mixture", "k-means", "components", "dense sketch", "separated", "regression"])
def test_the_preview_says_that_they_count_for_nothing(name: str) -> None:
    """It knows the schema alone, so it cannot say how many there are."""
    text = "rows without a value in x, y count for nothing; what is expected supposes that there are none"
    assert text in _case(name, nullable=True).plan.warnings
    assert not any("without a value" in warning for warning in _case(name, nullable=False).plan.warnings)


def test_a_field_has_a_state_for_it() -> None:
    """The last one, beside the bins; the column is among those that are taken where none is named."""
    asked = fit_pb2.FitMRFRequest(request_id="r", spend=SPEND, independent=fit_pb2.Independent())
    variables = mrf.plan(asked, TABLE, nothing_released).settings.layout.variables
    assert [one.name for one in variables] == ["c", "x", "gap"]
    assert variables[2].states == ("[0, 0.5)", "[0.5, 1]", "null")
    assert (variables[1].nullable, variables[2].nullable, variables[2].bins) == (False, True, 2)
