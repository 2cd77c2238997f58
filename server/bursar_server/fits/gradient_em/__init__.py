"""FitGradientEM: latent-variable models by differentially private gradient EM (Wang et al. 2020, corrected).

`plan` decides every release from request and public schema; `run` makes them inside a paid session.
"""

import numpy as np

from bursar_server.fits.gradient_em import _kernel
from bursar_server.fits.gradient_em._model import run
from bursar_server.fits.gradient_em._plan import GradientEMPlan, plan
from bursar_server.fits.gradient_em._statistics import Frame, GradientKernel, Look, Shape, Transform, look_statistic
from bursar_server.vault import CHUNK

__all__ = ["GradientEMPlan", "plan", "run", "warm_up"]


def warm_up() -> None:
    """Compile the kernels on made-up rows, so that the time of the first fit says nothing."""
    frame = Frame(np.zeros(2), np.ones(2), np.ones(2), np.zeros(2, dtype=np.bool_))
    block, absent = np.zeros((2, CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
    shape = Shape(1, 2, Transform.NORM)
    one, many, signs = np.ones(1), np.ones((1, 2)), np.empty(0)
    maps = (np.eye(1), np.zeros(2), True)
    for kernel in (
        GradientKernel(_kernel.location_sums, frame, (one, one, many, many, one, one, signs), shape),
        GradientKernel(_kernel.regression_sums, frame, (one, one, many, maps, one, one, signs), shape),
        GradientKernel(_kernel.missing_sums, frame, (np.ones(2), (one, np.zeros(2)), 1.0, 1.0, 1.0, 1.0, 1.0), shape),
    ):
        kernel(block, absent, np.zeros(shape.size, dtype=np.int64))
    for look in Look:
        statistic = look_statistic(look, frame)
        statistic.kernel(block, absent, np.zeros(statistic.size, dtype=np.int64))
