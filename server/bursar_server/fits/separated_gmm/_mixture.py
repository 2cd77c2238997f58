"""Distances of released components from each other, and two of them merged."""

from __future__ import annotations

import math

import numpy as np

from bursar_server.fits.mixtures.em import Mixture


def least_apart(mixture: Mixture) -> tuple[float, int, int]:
    """Return the least deviations of two components from the plane between them, and their indices.

    Infinity if there is only one.
    """
    means, covariances = mixture.means, mixture.covariances
    least, pair = math.inf, (0, 0)
    for k in range(len(means)):
        for j in range(k):
            apart = means[k] - means[j]
            normal = np.linalg.solve(covariances[k] + covariances[j], apart)
            # Rounding may leave a form of a thin covariance below zero.
            reach = math.sqrt(max(float(normal @ covariances[k] @ normal), 0.0))
            reach += math.sqrt(max(float(normal @ covariances[j] @ normal), 0.0))
            deviations = float(normal @ apart) / max(reach, 1e-300)
            if deviations < least:
                least, pair = deviations, (k, j)
    return least, *pair


def joined(mixture: Mixture, k: int, j: int) -> Mixture:
    """Return the mixture with components k and j merged, with their common mean and covariance."""
    others = [i for i in range(len(mixture.counts)) if i not in (k, j)]
    both = mixture.counts[[k, j]] / mixture.counts[[k, j]].sum()
    mean = both @ mixture.means[[k, j]]
    spread = mixture.means[[k, j]] - mean
    covariance = np.tensordot(both, mixture.covariances[[k, j]], axes=1) + (both * spread.T) @ spread
    return Mixture(
        np.append(mixture.counts[others], mixture.counts[[k, j]].sum()),
        np.concatenate([mixture.means[others], mean[None]]),
        np.concatenate([mixture.covariances[others], covariance[None]]),
    )
