"""FitSeparatedGMM: mixtures of well separated Gaussians (Kamath, Sheffet, Singhal and Ullman 2019, made practical).

| module | purpose |
|---|---|
| `_plan`, `_preflight` | the plan: checks a request, decides the price, predicts whether components are found |
| `_run` | the run: split, then estimate |
| `_answer` | the released components as a message |
| `_parts` | public facts of a run, and releases from parts of the table |
| `_tree`, `_locate`, `_search` | the recursion, a ball around a part, private choices; proof in `_search.md` |
| `_easy`, `_aggregate`, `_lloyd` | the paper's easy case, and its baseline by sample and aggregate |
| `_refine`, `_estimate`, `_correct`, `_mixture` | components inside a part, their moments, and corrections |
| `_statistics`, `_kernel` | counts, and what one row can contribute; proof in `_statistics.md` |

Moments and EM steps are shared with FitDPEM: `bursar_server.fits.mixtures`.
"""

import numpy as np

from bursar_server.fits.mixtures.radius_statistics import radius_statistic
from bursar_server.fits.mixtures.statistics import BallFrame, EStep
from bursar_server.fits.separated_gmm._answer import run
from bursar_server.fits.separated_gmm._lloyd import Spheres
from bursar_server.fits.separated_gmm._plan import SeparatedPlan, plan
from bursar_server.fits.separated_gmm._search import BINS, RadiusFamily, SplitFamily
from bursar_server.fits.separated_gmm._statistics import Round, Sample, Slab, View, round_statistic, slab_statistic
from bursar_server.vault import CHUNK

__all__ = ["SeparatedPlan", "plan", "run", "warm_up"]


def warm_up() -> None:
    """Compile the kernels on synthetic rows, so that the time of the first fit reveals nothing."""
    frame, origin = BallFrame(np.zeros(2), np.ones(2)), np.zeros(2)
    eye = np.eye(2)[None].copy()
    view, directions = View(origin, np.zeros((0, 2))), np.eye(2)
    split = SplitFamily(frame, view, directions, 1.0, 5, 1, 0, Sample(np.ones(3, dtype=np.uint64), 0))
    block, absent = np.zeros((2, CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
    for statistic in (
        split.statistic(0, 2),
        RadiusFamily(frame, view, 0.1, 1.0, 1, 1).statistic(0, 1),
        slab_statistic(frame, origin, directions[0], np.arange(4.0)),
        round_statistic(frame, view, origin, np.arange(2.0)),
        radius_statistic(frame, EStep(False, np.zeros(1), origin[None], eye, True, origin[None], eye)),
    ):
        out = np.zeros(statistic.size, dtype=np.int64)
        statistic.kernel(block, absent, out)
    Spheres(frame, 2, 0.1, 1.0, 1, 4)(np.zeros((2, 4)), np.zeros(4, dtype=np.bool_))
    split.scores(0, np.zeros(BINS, dtype=np.int64))
    Slab(frame, origin, directions[0], 0.0, 1.0)(block, absent, np.zeros(CHUNK, dtype=np.int16))
    Round(frame, view, origin, 1.0)(block, absent, np.zeros(CHUNK, dtype=np.int16))
