"""The statistic of FitDPEM once more, slowly: from Park et al. 2016, section 4, with recentred moments, in plain numpy.

Written from the formulas, not from the compiled kernel, in pieces, so that a mutant can plant its bug in one of them.
Real numbers: the kernel truncates them, which moves a sum of n rows by less than n lattice units of one factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.statistics import Moments
from bursar_server.vault import ArrayRows, Statistic

Positions = Callable[[Any, FloatArray], FloatArray]
Shares = Callable[[Any, FloatArray], FloatArray]
Offsets = Callable[[Any, int, FloatArray], FloatArray]


def into_ball(frame: Any, rows: FloatArray) -> FloatArray:
    """Positions z (n, d) of rows (d, n), drawn into the public ball; rows that are not numbers are left out."""
    rows = rows[:, (np.abs(rows) < 1e100).all(axis=0)]
    z = ((rows - frame.centre[:, None]) / frame.scale[:, None]).T
    return np.asarray(z / np.maximum(1.0, np.linalg.norm(z, axis=1, keepdims=True)))


def shares_of(step: Any, z: FloatArray) -> FloatArray:
    """Responsibilities (n, K), with a background (n, K + 1), or one-hot assignments to the most likely component."""
    offsets = z[:, None, :] - step.means
    squares = np.square(np.einsum("kij,nkj->nki", step.factors, offsets)).sum(axis=2)
    log = step.log_scale - 0.5 * np.hstack([squares, np.zeros((len(z), int(step.background)))])
    if step.hard:
        return np.asarray(np.eye(log.shape[1])[np.argmax(log, axis=1)])
    density = np.exp(log - log.max(axis=1, keepdims=True))
    return np.asarray(density / density.sum(axis=1, keepdims=True))


def about_centre(step: Any, k: int, z: FloatArray) -> FloatArray:
    """Positions u (n, d) about the centre of component k in its released radius, clipped to the unit ball."""
    u = (z - step.centres[k]) @ step.whiteners[k].T
    return np.asarray(u / np.maximum(1.0, np.linalg.norm(u, axis=1, keepdims=True)))


def second_moments(u: FloatArray, moments: Moments) -> FloatArray:
    """Return what is released of u u^T, (n, q).

    |u|^2, the diagonal, or the lower triangle, sqrt(2) times off the diagonal.
    """
    if moments is Moments.SPHERICAL:
        return np.asarray(np.square(u).sum(axis=1, keepdims=True))
    if moments is Moments.DIAG:
        return np.square(u)
    products = u[:, :, None] * u[:, None, :] * (np.sqrt(2.0) - (np.sqrt(2.0) - 1.0) * np.eye(u.shape[1]))
    return np.asarray(products[:, *np.tril_indices(u.shape[1])])


def contributions(
    kernel: Any,
    rows: FloatArray,
    *,
    positions: Positions = into_ball,
    shares: Shares = shares_of,
    offsets: Offsets = about_centre,
) -> FloatArray:
    """Every row's vector (n, size): K counts, K x d sums, second moments of each component, or of all if tied.

    The count of a background is the last number.
    """
    a, b, c = kernel.weights
    z = positions(kernel.frame, rows)
    gamma = shares(kernel.step, z)
    gamma, background = np.split(gamma, [len(kernel.step.means)], axis=1)
    u = [offsets(kernel.step, k, z) for k in range(gamma.shape[1])]
    sums = [gamma[:, [k]] * u[k] for k in range(gamma.shape[1])]
    seconds = [gamma[:, [k]] * second_moments(u[k], kernel.moments) for k in range(gamma.shape[1])]
    if kernel.moments is Moments.TIED:
        seconds = [np.sum(seconds, axis=0)]
    return np.hstack([a * gamma, *(b * block for block in sums), *(c * block for block in seconds), a * background])


def by_radius(statistic: Statistic, rows: ArrayRows) -> FloatArray:
    """Counts by squared distance from the means of a step, in lattice units, weighted by responsibilities."""
    kernel: Any = statistic.kernel
    z = into_ball(kernel.frame, rows.columns if rows.present is None else rows.columns[:, rows.present])
    offsets = z[:, None, :] - kernel.step.means
    squares = np.square(np.einsum("kij,nkj->nki", kernel.step.factors, offsets)).sum(axis=2)
    return np.histogram(squares, kernel.edges, weights=shares_of(kernel.step, z))[0] / statistic.lattice


def reference(statistic: Statistic, rows: ArrayRows) -> FloatArray:
    """The sum over a table, in lattice units, from the parameters that the statistic was released with."""
    present = slice(None) if rows.present is None else rows.present
    return np.asarray(contributions(statistic.kernel, rows.columns[:, present]).sum(axis=0) / statistic.lattice)
