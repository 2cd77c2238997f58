"""Fits that have no rule for missing values refuse columns that may have some, before any debit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import (
    BoundedColumn,
    CodedColumn,
    InvalidFieldsError,
    Plan,
    PublicTable,
    dpem,
    mrf,
    sketch,
)
from bursar_server.fits._requests import Violations, columns_of
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


def mixture(columns: list[str]) -> Plan:
    """A plan of FitDPEM."""
    asked = fit_pb2.FitDPEMRequest(request_id="r", n_components=2, spend=SPEND, columns=columns)
    return dpem.plan(asked, TABLE, nothing_released)


def sketched(columns: list[str]) -> Plan:
    """A plan of FitSketchKMeans."""
    asked = fit_pb2.FitSketchKMeansRequest(
        request_id="r", n_clusters=2, spend=SPEND, columns=columns, new_sketch=fit_pb2.NewSketch()
    )
    return sketch.plan(asked, TABLE, lambda entry: None)


PLANS: list[tuple[Callable[[list[str]], Plan], tuple[str, ...]]] = [
    (mixture, ("x",)),
    (sketched, ("x",)),
]


@pytest.mark.parametrize(("plan", "usual"), PLANS, ids=lambda value: getattr(value, "__name__", None))
def test_a_column_that_may_be_null_is_refused(plan: Callable[[list[str]], Plan], usual: tuple[str, ...]) -> None:
    """The refusal names its place in the request, once; without names a fit takes the usable columns."""
    with pytest.raises(InvalidFieldsError, match="'gap' may be null, and this fit has no rule") as caught:
        plan(["x", "gap"])
    assert [name for name, _ in caught.value.violations] == ["columns[1]"]
    assert set(plan([]).columns) >= set(usual)
    assert "gap" not in plan([]).columns


def test_a_field_has_a_state_for_it() -> None:
    """The last one, beside the bins; the column is among those that are taken where none is named."""
    asked = fit_pb2.FitMRFRequest(request_id="r", spend=SPEND, independent=fit_pb2.Independent())
    variables = mrf.plan(asked, TABLE, nothing_released).settings.layout.variables
    assert [one.name for one in variables] == ["c", "x", "gap"]
    assert variables[2].states == ("[0, 0.5)", "[0.5, 1]", "null")
    assert (variables[1].nullable, variables[2].nullable, variables[2].bins) == (False, True, 2)


def test_a_fit_with_a_rule_gets_them() -> None:
    """Named or not."""
    violations: Violations = []
    for names in ([], ["x", "gap"]):
        assert [column.name for column in columns_of(names, TABLE, violations, nullable=True)] == ["x", "gap"]
    assert violations == []
