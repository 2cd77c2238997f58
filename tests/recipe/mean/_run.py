"""The run of FitMean. Total: returns a valid model whatever rows and noise are."""

from __future__ import annotations

from bursar_proto.v1 import fit_pb2
from bursar_server.fits.mean._plan import MeanPlan
from bursar_server.fits.mean._statistics import mean_statistic
from bursar_server.vault import Session


def run(plan: MeanPlan, session: Session) -> fit_pb2.MeanModel:
    """Make the release and return the model."""
    rows, total = map(float, session.noisy_sum(mean_statistic(plan.column), plan.gaussian))
    position = min(1.0, max(-1.0, total / max(1.0, rows)))
    column = plan.column
    session.progress(1, 1)
    return fit_pb2.MeanModel(
        columns=plan.columns,
        mean=(column.lower + column.upper + position * (column.upper - column.lower)) / 2,
        n_rows=rows,
        noise=plan.noise,
    )
