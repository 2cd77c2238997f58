"""The sums of FitGradientEM once more, slowly: from Wang et al. 2020, section 5 and appendix C, in plain numpy.

Written from the formulas, not from the compiled kernels, in pieces, so that a mutant can plant its bug in one of them.
Real numbers: the kernels truncate every factor to multiples of 2^-18, and looks to multiples of 2^-25. Parameters of a
step are read from its statistic; the replay of the audit shows that they are functions of earlier releases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bursar_models.arrays import FloatArray
from bursar_server.fits.gradient_em import _kernel
from bursar_server.fits.gradient_em._statistics import GradientFrame, Look, Shape, Transform
from bursar_server.vault import ArrayRows, Statistic

COUNT, RESIDUAL = 0.5, 0.4
"""Weights of a row's count and of its squared residual beside its vector's 1."""

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Rows in the units of a frame.

    Attributes:
        z: (n, columns), 0 where a number is missing.
        missing: (n, columns).
    """

    z: FloatArray
    missing: Bools


@dataclass(frozen=True)
class Parts:
    """Parts that a model makes of rows.

    Attributes:
        logs: (n, K) of the components' densities.
        vectors: (n, K, q) in units of the radius or of s.
        residuals: (n, K) squared, in units of the largest.
    """

    logs: FloatArray
    vectors: FloatArray
    residuals: FloatArray


def loaded(frame: GradientFrame, columns: FloatArray) -> Rows:
    """Rows (columns, n) that count: those with a number wherever there must be one."""
    with np.errstate(over="ignore", invalid="ignore"):
        x = ((columns - frame.centre[:, None]) / frame.unit[:, None]).T
    there = np.isfinite(x) & (np.abs(x) < 1e100)
    counted = (there | frame.nullable).all(axis=1)
    z = np.where(there, np.clip(x, -frame.half, frame.half), 0.0)
    return Rows(z[counted], ~there[counted])


def parts_of(kernel: Any, rows: Rows) -> Parts:
    """Return the parts by the model."""
    models: dict[Any, Callable[..., Parts]] = {
        _kernel.location_sums: mixture,
        _kernel.regression_sums: regressions,
        _kernel.missing_sums: missing_covariates,
    }
    return models[kernel.function](rows, *kernel.arguments)


def mixture(
    rows: Rows,
    log_weights: FloatArray,
    half_precisions: FloatArray,
    means: FloatArray,
    origins: FloatArray,
    scales: FloatArray,
    limits: FloatArray,
    signs: FloatArray,
) -> Parts:
    """Section 5.1: points about component means."""
    squares = np.square(rows.z[:, None, :] - means).sum(axis=2)
    vectors = (rows.z[:, None, :] - origins) / scales[:, None]
    return Parts(log_weights - half_precisions * squares, vectors, squares / limits)


def regressions(
    rows: Rows,
    log_weights: FloatArray,
    half_precisions: FloatArray,
    coefficients: FloatArray,
    maps: tuple[FloatArray, FloatArray, bool],
    scales: FloatArray,
    limits: FloatArray,
    signs: FloatArray,
) -> Parts:
    """Section 5.2: residual times features."""
    whitener, shift, intercept = maps
    about = rows.z - shift
    features = about[:, :-1] @ whitener.T
    if intercept:
        features = np.column_stack([np.ones(len(features)), features])
    left = about[:, [-1]] - features @ coefficients.T
    vectors = left[:, :, None] * features[:, None, :] / scales[:, None]
    return Parts(log_weights - half_precisions * left**2, vectors, left**2 / limits)


def missing_covariates(
    rows: Rows,
    coefficients: FloatArray,
    maps: tuple[FloatArray, FloatArray],
    sigma: float,
    clip: float,
    clipped_square: float,
    scale: float,
    limit: float,
) -> Parts:
    """Section 5.3: the target given the features that are there; sigma^2 times the score, of a clipped residual."""
    spread, shift = maps
    features = np.where(rows.missing[:, :-1], 0.0, (rows.z - shift)[:, :-1] * spread)
    absent = rows.missing[:, :-1].astype(np.float64)
    features = np.column_stack([np.ones(len(features)), features])
    absent = np.column_stack([np.zeros(len(absent)), absent])
    deviation = np.sqrt(sigma**2 + absent @ coefficients**2)[:, None]
    left = ((rows.z - shift)[:, [-1]] - features @ coefficients[:, None]) / deviation
    t = np.clip(left, -clip, clip)
    score = t * features / deviation + absent * (t**2 - clipped_square) * coefficients / deviation**2
    longest = np.zeros_like(deviation)
    if clip < _kernel.UNCLIPPED:  # of the vectors that such a row has for any residual
        part = max(clipped_square, clip**2 - clipped_square) * np.maximum(1.0 - (sigma / deviation) ** 2, 0.0) ** 0.5
        ends = clip**2 * np.sum(features**2, axis=1, keepdims=True) + part**2
        longest = sigma**2 * np.sqrt(ends) / deviation
    vectors = sigma**2 * score / np.maximum(scale, longest)
    return Parts(np.zeros((len(features), 1)), vectors[:, None, :], left**2 / limit)


def shares(logs: FloatArray) -> FloatArray:
    """Responsibilities (n, K), which sum to 1."""
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(density / density.sum(axis=1, keepdims=True))


def bounded(vectors: FloatArray, shape: Shape, rows: Rows) -> FloatArray:
    """Vectors (n, K, q) of norm up to 1, or of coordinates up to 1."""
    if shape.transform is Transform.BOX:
        return smoothed(vectors, shape.root_beta) / limit_of(shape.root_beta)
    norms = np.linalg.norm(vectors, axis=2, keepdims=True)
    if shape.transform is Transform.NORM:
        return np.asarray(vectors / np.maximum(1.0, norms))
    return np.asarray(vectors / np.maximum(norms, 1e-200) * catoni(norms) / catoni(np.inf))


def catoni(u: FloatArray | float) -> FloatArray:
    """Equation 9: u - u^3 / 6 up to sqrt 2, and constant beyond."""
    v = np.clip(u, -(2.0**0.5), 2.0**0.5)
    return np.asarray(v - v**3 / 6)


def limit_of(root_beta: float) -> float:
    """Largest value of the smoothed truncation: c_phi (2 Phi(sqrt beta) - 1)."""
    return float(catoni(np.inf)) * float(2 * special.ndtr(root_beta) - 1)


def smoothed(a: FloatArray, root_beta: float) -> FloatArray:
    """Equation 10: the mean of `catoni` at a (1 + eta), eta normal of variance 1 / beta, by quadrature."""
    sizes, values = _table(root_beta)
    return np.asarray(np.sign(a) * np.interp(np.abs(a), sizes, values))


@cache
def _table(root_beta: float) -> tuple[FloatArray, FloatArray]:
    quantiles = special.ndtri((np.arange(10_000) + 0.5) / 10_000)
    sizes = np.concatenate([[0.0], np.geomspace(1e-3, 1e5, 600)])
    return sizes, catoni(sizes[:, None] * (1 + quantiles / root_beta)).mean(axis=1)


def clipped(residuals: FloatArray) -> FloatArray:
    """Squared residuals of up to 1."""
    return np.minimum(residuals, 1.0)


def counts(rows: Rows) -> FloatArray:
    """(n,): every row counts 1."""
    return np.ones(len(rows.z))


@dataclass(frozen=True)
class Pieces:
    """Pieces of a row's contribution; a mutant has others."""

    parts: Callable[[Any, Rows], Parts] = parts_of
    shares: Callable[[FloatArray], FloatArray] = shares
    bounded: Callable[[FloatArray, Shape, Rows], FloatArray] = bounded
    clipped: Callable[[FloatArray], FloatArray] = clipped
    counts: Callable[[Rows], FloatArray] = counts


def contributions(kernel: Any, columns: FloatArray, pieces: Pieces) -> FloatArray:
    """Every row's vector (n, size): counts, vectors and residuals, of each component or folded into one."""
    rows = loaded(kernel.frame, columns)
    made = pieces.parts(kernel, rows)
    gamma, signs = pieces.shares(made.logs), _signs(kernel)
    vectors = gamma[:, :, None] * pieces.bounded(made.vectors, kernel.shape, rows)
    residuals = gamma * pieces.clipped(made.residuals)
    counted = gamma * pieces.counts(rows)[:, None]
    if signs.size:
        vectors = (signs[:, None] * vectors).sum(axis=1, keepdims=True)
        residuals = residuals.sum(axis=1, keepdims=True)
        counted = pieces.counts(rows)[:, None]
    return np.hstack(
        [COUNT * counted, vectors.reshape(len(vectors), kernel.shape.blocks * kernel.shape.q), RESIDUAL * residuals]
    )


def by_radius(kernel: Any, columns: FloatArray) -> FloatArray:
    """Every row's vector (n, cells): its responsibilities in the cells of its squared residuals."""
    made = parts_of(kernel.gradient, loaded(kernel.gradient.frame, columns))
    cells = np.searchsorted(kernel.edges, made.residuals, side="right") - 1
    return np.asarray((shares(made.logs)[:, :, None] * (cells[:, :, None] == np.arange(len(kernel.edges) - 1))).sum(1))


def _signs(kernel: Any) -> FloatArray:
    """Return the signs by which components fold into one; none where they do not."""
    return np.empty(0) if kernel.function is _kernel.missing_sums else np.asarray(kernel.arguments[-1])


def looks(look: Look, rows: Rows) -> FloatArray:
    """Every row's first look (n, size): moments of its columns, at most 1 each."""
    z, d = rows.z, rows.z.shape[1]
    one = np.ones((len(z), 1))
    if look is Look.LOCATION:
        return np.hstack([one, z / d**0.5, np.square(z).sum(axis=1, keepdims=True) / d])
    if look is Look.REGRESSION:
        w = np.hstack([one, z]) / (d + 1) ** 0.5
        products = w[:, :, None] * w[:, None, :] * (2**0.5 - (2**0.5 - 1) * np.eye(d + 1))
        return np.asarray(products[:, *np.tril_indices(d + 1)])
    x, y, there = z[:, :-1], z[:, -1:], 1.0 - rows.missing[:, :-1]
    return np.hstack([one, y, y**2, np.hstack([there, there * x, there * x**2]) / (d - 1) ** 0.5])


def reference(statistic: Statistic, rows: ArrayRows) -> FloatArray:
    """See `Target.reference`."""
    present = slice(None) if rows.present is None else rows.present
    return _sum(statistic.kernel, rows.columns[:, present], Pieces()) / statistic.lattice


def _sum(kernel: Any, columns: FloatArray, pieces: Pieces) -> FloatArray:
    if hasattr(kernel, "look"):
        return np.asarray(looks(kernel.look, loaded(kernel.frame, columns)).sum(axis=0))
    if hasattr(kernel, "edges"):
        return np.asarray(by_radius(kernel, columns).sum(axis=0))
    return np.asarray(contributions(kernel, columns, pieces).sum(axis=0))
