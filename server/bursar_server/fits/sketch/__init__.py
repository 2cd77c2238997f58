"""FitSketchKMeans: a noisy sketch of random Fourier moments, and k-means or a mixture decoded from it.

Schellekens et al. 2019, corrected.

| module | purpose |
|---|---|
| `_plan` | the plan: checks a request and decides every release |
| `_choices` | numbers of frequencies and scales, and the accuracy that they promise |
| `_sources` | sketches that cost nothing: earlier ones, and those of other sites |
| `_run` | the run: at most two releases, then merging and decoding |
| `_pilot` | the frequency scale, estimated from a small first release |
| `_answer`, `_wire` | sketches and decoded models as messages |
| `_statistics` | moments of rows, and what one row can contribute; proof in `_statistics.md` |
| `_kernel` | the compiled sums |
"""

from dataclasses import replace

import numpy as np

from bursar_models import Frequencies
from bursar_server.fits.sketch._answer import run
from bursar_server.fits.sketch._plan import SketchPlan, plan
from bursar_server.fits.sketch._statistics import SketchFrame, sketch_statistic
from bursar_server.vault import CHUNK

__all__ = ["SketchPlan", "plan", "run", "warm_up"]


def warm_up() -> None:
    """Compile the kernels on synthetic rows, so that the time of the first fit reveals nothing."""
    frame = SketchFrame(np.zeros(2), np.ones(2), -np.ones(2), np.ones(2))
    dense = Frequencies(8, 2, 0, 1.0)
    fast = replace(dense, structure="hadamard")
    for frequencies, per_row in ((dense, 8), (dense, 4), (fast, 8), (fast, 4)):
        statistic = sketch_statistic(frame, frequencies, "exponential", per_row, 1)
        statistic.kernel(
            np.zeros((2, CHUNK)), np.zeros(CHUNK, dtype=np.bool_), np.zeros(statistic.size, dtype=np.int64)
        )
