"""FitGradientEM: latent-variable models by differentially private gradient EM (Wang et al. 2020, corrected).

| module | purpose |
|---|---|
| `_plan` | the plan: checks a request and decides every release |
| `_run` | the run: a look at the scales, then noisy gradient steps |
| `_start` | the private start of a Gaussian mixture, by the releases of `fits/mixtures` |
| `_answer` | the released model as a message |
| `_statistics` | gradients and looks, and what one row can contribute; proof in `_statistics.md` |
| `_kernel`, `_array_kernel` | the same integers, compiled for CPUs and in terms of the array API |
| `_models` | what `_run` needs of a model |
| `_gaussian_mixture`, `_symmetric_mixture` | models of points |
| `_mixture_of_regressions`, `_missing_covariates` | models of regressions |
| `_location`, `_regression` | code shared by models of points, and by models of regressions |
| `_normal`, `_truncation`, `_information` | arithmetic of truncated residuals, and standard errors |
"""

import numpy as np

from bursar_server.fits.gradient_em import _kernel
from bursar_server.fits.gradient_em._answer import run
from bursar_server.fits.gradient_em._plan import GradientEMPlan, plan
from bursar_server.fits.gradient_em._statistics import (
    GradientFrame,
    GradientKernel,
    Look,
    Shape,
    Transform,
    look_statistic,
)
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.vault import CHUNK

__all__ = ["GradientEMPlan", "plan", "run", "warm_up"]


def warm_up() -> None:
    """Compile the kernels on synthetic rows, so that the time of the first fit reveals nothing."""
    frame = GradientFrame(np.zeros(2), np.ones(2), np.ones(2), np.zeros(2, dtype=np.bool_))
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
    eye = np.eye(2)[None].copy()
    cell = EStep(True, np.zeros(1), np.zeros((1, 2)), eye, True, np.zeros((1, 2)), eye)
    opening = moment_statistic(BallFrame(np.zeros(2), np.ones(2)), cell, Moments.FULL, Weights(1.0, 1.0, 1.0))
    for statistic in (opening, *(look_statistic(look, frame) for look in Look)):
        statistic.kernel(block, absent, np.zeros(statistic.size, dtype=np.int64))
