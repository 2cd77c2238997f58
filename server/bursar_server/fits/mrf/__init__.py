"""FitMRF: noisy contingency tables of the cliques of a graph, and a Markov random field learnt from them.

Bernstein et al. 2017, corrected. `plan` decides every release from request and public schema; `run` makes them inside a
paid session, or computes from what was released before.
"""

import numpy as np

from bursar.models.mrf import Variable
from bursar_server.fits.mrf._model import run
from bursar_server.fits.mrf._plan import MRFPlan, plan
from bursar_server.fits.mrf._statistics import (
    Layout,
    firsts_statistic,
    pairs_statistic,
    table_statistic,
    transitions_statistic,
)
from bursar_server.vault import CHUNK

__all__ = ["MRFPlan", "plan", "run", "warm_up"]


def warm_up() -> None:
    """Compile the kernels on made-up rows, so that the time of the first fit says nothing."""
    layout = Layout((Variable("a", ("0", "1")), Variable("b", ("0", "1"), (0.0, 1.0, 2.0))), shares=True)
    for statistic in (
        table_statistic(layout, (0, 1)),
        pairs_statistic(layout, [(0, 1)]),
        firsts_statistic(layout, None),
        transitions_statistic(layout, None),
    ):
        statistic.kernel(
            np.zeros((3, CHUNK)), np.zeros(CHUNK, dtype=np.bool_), np.zeros(statistic.size, dtype=np.int64)
        )
