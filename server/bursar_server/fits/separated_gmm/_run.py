"""Run of FitSeparatedGMM: split the rows at gaps, then estimate the components found.

Kamath et al. 2019, algorithm 4 (PGME), as one interaction that is rho-zCDP as a whole.
"""

from __future__ import annotations

from dataclasses import replace

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.em import recentred_step
from bursar_server.fits.mixtures.radius_statistics import radius_statistic
from bursar_server.fits.separated_gmm._aggregate import aggregate
from bursar_server.fits.separated_gmm._easy import balls
from bursar_server.fits.separated_gmm._estimate import SETTLED_STEPS, Estimate, estimate
from bursar_server.fits.separated_gmm._parts import Parts, SplitSettings
from bursar_server.fits.separated_gmm._tree import grow
from bursar_server.vault import Session

_TOLD = 2 + SETTLED_STEPS
"""Steps that are reported before the end: those that every run has, the splits, the leaves' moments and what follows.

Whether there are further ones depends on releases. A run that is cut off is drawn again under the same debit, so that
its progress must tell nothing of its first draw.
"""


def run(settings: SplitSettings, session: Session, steps: int) -> tuple[Estimate, FloatArray | None]:
    """Make the releases; return the estimate, and its rows by their distance. A total function of rows and noise."""
    done = 0

    def progress() -> None:
        nonlocal done
        if done < _TOLD:
            done += 1
            session.progress(done, steps)

    if settings.aggregate:
        result, radii = aggregate(settings, session, progress), None
    else:
        parts = Parts(settings, session.forest(settings.rho))
        leaves = (balls if settings.easy else grow)(parts, parts.forest.tree())
        progress()
        result = estimate(parts, leaves, progress)
        radii = _radii(settings, session, result)
    session.progress(steps, steps)
    return result, radii


def _radii(settings: SplitSettings, session: Session, result: Estimate) -> FloatArray:
    """Return the noisy numbers of rows by their distance from the components that are returned."""
    s = settings
    step, _ = recentred_step(result.mixture, s.moments, 1.0)  # clip radii, which no count needs
    parts = Parts(replace(s, rho=s.form), session.forest(s.form))
    return parts.release(parts.forest.tree(), radius_statistic(s.frame, step), 1.0)[0]
