"""Released tables and the learnt field as a message."""

from __future__ import annotations

from bursar_proto.v1 import fit_pb2
from bursar_server.fits.mrf._plan import MRFPlan
from bursar_server.fits.mrf._run import run as run_settings
from bursar_server.fits.mrf._wire import model_to
from bursar_server.vault import Session


def run(plan: MRFPlan, session: Session) -> fit_pb2.MRFModel:
    """Make the plan's releases and return the model. Total: returns a valid model for any rows and noise."""
    result = run_settings(plan.settings, plan.of_entry, plan.iterations, session)
    return model_to(plan.settings, result, plan.null_category, plan.noise)
