"""FitDPEM: mixtures of Gaussians and k-means by differentially private EM (Park et al. 2016, corrected).

| module | purpose |
|---|---|
| `_plan` | the plan: checks a request and decides every release |
| `_mixture` | components, cells and steps of a mixture, by public rules, and its start without splitting |
| `_kmeans_schedule` | the releases of a k-means, by public rules |
| `_kmeans` | its run: a start of many cells, and Lloyd steps; proof in `_kmeans.md` |
| `_pseudo_rows` | rows drawn from released cells, and k-means on them, for free |
| `_choice` | a number of components chosen from what was released |
| `_answer` | the run, and its model as a message |

Statistic, kernels and EM steps are shared with FitSeparatedGMM: `bursar_server.fits.mixtures`.
"""

import numpy as np

from bursar_server.fits.dpem._answer import run
from bursar_server.fits.dpem._plan import DPEMPlan, plan
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.vault import CHUNK

__all__ = ["DPEMPlan", "plan", "run", "warm_up"]


def warm_up() -> None:
    """Compile the kernels on synthetic rows, so that the time of the first fit reveals nothing."""
    eye = np.eye(2)[None].copy()
    step = EStep(False, np.zeros(1), np.zeros((1, 2)), eye, True, np.zeros((1, 2)), eye)
    statistic = moment_statistic(BallFrame(np.zeros(2), np.ones(2)), step, Moments.FULL, Weights(1.0, 1.0, 1.0))
    statistic.kernel(np.zeros((2, CHUNK)), np.zeros(CHUNK, dtype=np.bool_), np.zeros(statistic.size, dtype=np.int64))
