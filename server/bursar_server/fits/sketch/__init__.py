"""FitSketchKMeans: a noisy sketch of random Fourier moments, and k-means or a mixture decoded from it.

Schellekens et al. 2019, corrected. `plan` decides every release from request and public schema; `run` makes them inside
a paid session, or decodes what was released before.
"""

from dataclasses import replace

import numpy as np

from bursar.models import Frequencies
from bursar_server.fits.sketch._model import run
from bursar_server.fits.sketch._plan import SketchPlan, plan
from bursar_server.fits.sketch._statistics import Frame, sketch_statistic
from bursar_server.vault import CHUNK

__all__ = ["SketchPlan", "plan", "run", "warm_up"]


def warm_up() -> None:
    """Compile the kernels on made-up rows, so that the time of the first fit says nothing."""
    frame = Frame(np.zeros(2), np.ones(2), -np.ones(2), np.ones(2))
    dense = Frequencies(8, 2, 0, 1.0)
    fast = replace(dense, structure="hadamard")
    for frequencies, per_row in ((dense, 8), (dense, 4), (fast, 8), (fast, 4)):
        statistic = sketch_statistic(frame, frequencies, "exponential", per_row, 1)
        statistic.kernel(
            np.zeros((2, CHUNK)), np.zeros(CHUNK, dtype=np.bool_), np.zeros(statistic.size, dtype=np.int64)
        )
