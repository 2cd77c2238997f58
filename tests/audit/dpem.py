"""FitDPEM under audit: targets for both adjacencies, mixtures and k-means, Gaussian and Laplace noise, every start."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from bursar_ledger import Adjacency
from bursar_server.fits.dpem import _fit
from bursar_server.fits.dpem._em import Mixture
from bursar_server.fits.dpem._fit import Phase, Settings, Step
from bursar_server.fits.dpem._statistics import Frame, Moments, Weights, moment_bounds
from bursar_server.vault import ArrayRows, Session, event_of, gaussian_for, laplace_for, sensitivity
from tests.audit.harness import extremes
from tests.audit.moments import reference
from tests.audit.target import FloatArray, Target

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE
FRAME = Frame(np.zeros(2), np.ones(2))
SPEND = Fraction(2)
"""rho in all, so that mu = 2, where tests have the most power."""


def given_start() -> Mixture:
    """Two components, left and right of the middle."""
    means = np.array([[-0.45, 0.0], [0.45, 0.0]])
    return Mixture(np.array([24.0, 24.0]), means, np.tile(0.03 * np.eye(2), (2, 1, 1)))


def pair(adjacency: Adjacency) -> tuple[ArrayRows, ArrayRows]:
    """Two clusters of 24 rows, and a row far out: present or null, or as far out at a right angle to where it was."""
    rng = np.random.default_rng(5)  # noqa: TID251 - the audit's tables are fixed
    clusters = np.hstack([rng.normal([[x], [0.0]], 0.12, size=(2, 24)) for x in (-0.45, 0.45)])
    here, there = np.hstack([clusters, [[1e3], [1e3]]]), np.hstack([clusters, [[-1e3], [1e3]]])
    if adjacency is RO:
        return ArrayRows(here), ArrayRows(there)
    return ArrayRows(here), ArrayRows(there, np.arange(49) < 48)


def dpem(
    adjacency: Adjacency,
    *,
    phases: tuple[tuple[Phase, int], ...] = ((Phase.EM, 2),) * 3,
    moments: Moments = Moments.FULL,
    recentred: bool = True,
    kmeans: bool = False,
    start: Mixture | None = None,
    laplace: Fraction | None = None,
) -> Target:
    """FitDPEM with two components in two dimensions.

    Args:
        adjacency: of the pair.
        phases: of each step, with its number of components.
        moments: released by every step.
        recentred: as in `Settings`.
        kmeans: as in `Settings`.
        start: as in `Settings`.
        laplace: pure epsilon in all instead of rho = 2.
    """
    weights = Weights(1.0, 1.0, 1.0)
    changed = sensitivity(moment_bounds(2, moments, weights), adjacency, 1)
    T = len(phases)
    noise = gaussian_for(changed, SPEND / T) if laplace is None else laplace_for(changed, laplace / T)
    steps = tuple(Step(phase, K, moments, weights, noise) for phase, K in phases)
    settings = Settings(FRAME, 2, moments, recentred, None, kmeans, start)

    def run(session: Session) -> Mixture:
        return _fit.run(settings, steps, session)

    rows, neighbour = pair(adjacency)
    return Target(
        name=f"dpem {adjacency.value}",
        adjacency=adjacency,
        rows=rows,
        neighbour=neighbour,
        events=(event_of(changed, noise),) * T,
        run=run,
        reference=reference,
        features=numbers_of,
        extremes=extremes(2, *far_rows()),
    )


def far_rows() -> list[FloatArray]:
    """Rows in eight directions, inside, on and far outside the public ball."""
    angles = np.arange(8) * np.pi / 4
    return [radius * np.array([np.cos(a), np.sin(a)]) for radius in (0.4, 1.0, 1e3) for a in angles]


def numbers_of(model: object) -> FloatArray:
    """Every number of a mixture."""
    if not isinstance(model, Mixture):
        raise TypeError(f"expected a Mixture, got {type(model).__name__}")
    return np.concatenate([model.counts, model.means.ravel(), model.covariances.ravel()])


def targets() -> dict[str, Target]:
    """What an audit of FitDPEM covers."""
    em, lloyd = Phase.EM, Phase.LLOYD
    start = given_start()
    split = ((Phase.SPLIT, 1), (Phase.REPAIR, 2), (em, 2))
    return {
        "mixture, add or remove": dpem(AR, start=start),
        "mixture, replace": dpem(RO, start=start),
        "fixed origin, replace": dpem(RO, start=start, recentred=False),
        "diagonal, one step": dpem(RO, start=start, moments=Moments.DIAG, phases=((em, 2),)),
        "tied, add or remove": dpem(AR, start=start, moments=Moments.TIED),
        "split start, add or remove": dpem(AR, phases=split),
        "split start, replace": dpem(RO, phases=split),
        "k-means, add or remove": dpem(
            AR, start=start, kmeans=True, moments=Moments.SPHERICAL, phases=((lloyd, 2),) * 3
        ),
        "k-means, replace": dpem(RO, start=start, kmeans=True, moments=Moments.SPHERICAL, phases=((lloyd, 2),) * 3),
        "laplace, add or remove": dpem(AR, start=start, laplace=Fraction(6), phases=((em, 2),) * 2),
        "laplace, replace": dpem(RO, start=start, laplace=Fraction(6), phases=((em, 2),) * 2),
    }
