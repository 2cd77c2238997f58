"""Run of FitSeparatedGMM: split the rows at gaps, then estimate the components found.

Kamath et al. 2019, algorithm 4 (PGME), as one interaction that is rho-zCDP as a whole.
"""

from __future__ import annotations

from bursar_server.fits.separated_gmm._aggregate import aggregate
from bursar_server.fits.separated_gmm._easy import balls
from bursar_server.fits.separated_gmm._estimate import Estimate, estimate
from bursar_server.fits.separated_gmm._parts import Parts, SplitSettings
from bursar_server.fits.separated_gmm._tree import grow
from bursar_server.vault import Session


def run(settings: SplitSettings, session: Session, steps: int) -> Estimate:
    """Make the releases. A total function of rows and noise."""
    done = 0

    def progress() -> None:
        nonlocal done
        done = min(done + 1, steps - 1)
        session.progress(done, steps)

    if settings.aggregate:
        result = aggregate(settings, session, progress)
        session.progress(steps, steps)
        return result
    parts = Parts(settings, session.forest(settings.rho))
    leaves = (balls if settings.easy else grow)(parts, parts.forest.tree())
    progress()
    result = estimate(parts, leaves, progress)
    session.progress(steps, steps)
    return result
