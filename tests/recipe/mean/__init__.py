"""FitMean: the noisy mean of one column, the worked example of the recipe in CONTRIBUTING.md.

| module | purpose |
|---|---|
| `_plan` | the plan: checks a request and decides the release |
| `_run` | the run: one noisy sum, and the model as a message |
| `_statistics` | number of rows and their sum, and what one row can contribute; proof in `_statistics.md` |
"""

from bursar_server.fits.mean._plan import MeanPlan, plan
from bursar_server.fits.mean._run import run

__all__ = ["MeanPlan", "plan", "run"]
