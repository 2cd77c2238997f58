"""FitSeparatedGMM's run: split the rows where gaps are, then estimate what was found.

Kamath et al. 2019, algorithm 4 (PGME), as one interaction that is rho-zCDP as a whole.
"""

from __future__ import annotations

from bursar_server.fits.separated_gmm._estimate import Estimate, estimate
from bursar_server.fits.separated_gmm._parts import Parts, Settings
from bursar_server.fits.separated_gmm._tree import grow
from bursar_server.vault import Session


def run(settings: Settings, session: Session, steps: int) -> Estimate:
    """Make the releases. A total function of rows and noise."""
    parts = Parts(settings, session.forest(settings.rho))
    done = 0

    def progress() -> None:
        nonlocal done
        done = min(done + 1, steps - 1)
        session.progress(done, steps)

    leaves = grow(parts, parts.forest.tree())
    progress()
    result = estimate(parts, leaves, progress)
    session.progress(steps, steps)
    return result
