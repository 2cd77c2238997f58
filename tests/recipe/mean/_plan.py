"""The plan of FitMean: from a request and the public schema. Reads no row."""

from __future__ import annotations

from dataclasses import dataclass

from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, InvalidFieldsError, Plan, PublicTable, Released
from bursar_server.fits._requests import COLUMN_UNIT, Violations, amount_of, by_column, columns_of, stop_if
from bursar_server.fits.mean._statistics import mean_statistic
from bursar_server.vault import GaussianNoise, event_of, gaussian_for, noise_std, sensitivity


@dataclass(frozen=True, kw_only=True)
class MeanPlan(Plan):
    """The plan of one noisy mean.

    Attributes:
        column: the column.
        gaussian: noise on its number of rows and their sum.
    """

    column: BoundedColumn
    gaussian: GaussianNoise


def plan(request: fit_pb2.FitMeanRequest, table: PublicTable, released: Released) -> MeanPlan:
    """Check a request against the public schema and decide the release. Raises InvalidFieldsError."""
    violations: Violations = []
    amount = amount_of(request.spend, violations)
    if amount.pure:
        violations.append(("spend.epsilon", "expected rho or epsilon_delta: the noise is Gaussian"))
    columns = columns_of(request.columns, table, violations, most=1)
    stop_if(violations)
    (column,) = columns
    statistic = mean_statistic(column)
    change = sensitivity(statistic.bounds, table.adjacency, table.unit_cap)
    try:
        gaussian = gaussian_for(change, amount.value)
    except ValueError as error:
        raise InvalidFieldsError(("spend", str(error))) from None
    std, half = noise_std(gaussian, statistic.lattice), (column.upper - column.lower) / 2
    return MeanPlan(
        columns=(column.name,),
        events=(event_of(change, gaussian),),
        iterations=1,
        noise=(types_pb2.ReleaseNoise(name="mean", size=2, count_std=std, sum_std=std, times=1),),
        parameters={"column": column.name},
        expected=by_column("mean_error", [column.name], [std * half / table.rows] if table.rows else [], COLUMN_UNIT),
        sum_units=(half,),
        column=column,
        gaussian=gaussian,
    )
