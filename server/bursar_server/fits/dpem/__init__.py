"""FitDPEM: mixtures of Gaussians and k-means by differentially private EM (Park et al. 2016, corrected).

`plan` decides every release from request and public schema; `run` makes them inside a paid session.
"""

import numpy as np

from bursar_server.fits.dpem._model import run
from bursar_server.fits.dpem._plan import DPEMPlan, plan
from bursar_server.fits.dpem._statistics import EStep, Frame, Moments, Weights, moment_statistic
from bursar_server.vault import CHUNK

__all__ = ["DPEMPlan", "plan", "run", "warm_up"]


def warm_up() -> None:
    """Compile the kernels on made-up rows, so that the time of the first fit says nothing."""
    eye = np.eye(2)[None].copy()
    step = EStep(False, np.zeros(1), np.zeros((1, 2)), eye, True, np.zeros((1, 2)), eye)
    statistic = moment_statistic(Frame(np.zeros(2), np.ones(2)), step, Moments.FULL, Weights(1.0, 1.0, 1.0))
    statistic.kernel(np.zeros((2, CHUNK)), np.zeros(CHUNK, dtype=np.bool_), np.zeros(statistic.size, dtype=np.int64))
