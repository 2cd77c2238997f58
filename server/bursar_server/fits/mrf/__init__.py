"""FitMRF: noisy contingency tables of the cliques of a graph, and a Markov random field learnt from them.

Bernstein et al. 2017, corrected.

| module | purpose |
|---|---|
| `_plan` | the plan: checks a request and decides every release |
| `_schema` | columns as variables, and the graph that a request asks for |
| `_expected` | expected errors of tables and memory of a fit |
| `_reuse` | tables of earlier releases, which a request uses at no cost |
| `_run` | the run: noisy tables, then the estimate from them |
| `_selection` | a tree that is chosen edge by edge |
| `_answer`, `_wire` | variables, tables and fields as messages |
| `_statistics` | contingency tables, and what one row can contribute; proof in `_statistics.md` |
| `_kernel`, `_array_kernel` | the same integers, compiled for CPUs and in terms of the array API |
"""

import numpy as np

from bursar_models.mrf import Variable
from bursar_server.fits.mrf._answer import run
from bursar_server.fits.mrf._plan import MRFPlan, plan
from bursar_server.fits.mrf._statistics import (
    Layout,
    firsts_statistic,
    table_statistic,
    tables_statistic,
    transitions_statistic,
)
from bursar_server.vault import CHUNK

__all__ = ["MRFPlan", "plan", "run", "warm_up"]


def warm_up() -> None:
    """Compile the kernels on synthetic rows, so that the time of the first fit reveals nothing."""
    layout = Layout((Variable("a", ("0", "1")), Variable("b", ("0", "1"), (0.0, 1.0, 2.0))), shares=True)
    for statistic in (
        table_statistic(layout, (0, 1)),
        tables_statistic(layout, [(0, 1)]),
        firsts_statistic(layout, None),
        transitions_statistic(layout, None),
    ):
        statistic.kernel(
            np.zeros((3, CHUNK)), np.zeros(CHUNK, dtype=np.bool_), np.zeros(statistic.size, dtype=np.int64)
        )
