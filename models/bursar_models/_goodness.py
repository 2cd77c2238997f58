"""Tests of whether released numbers contradict the form of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy

from bursar_models._gradient_trace import GradientTrace, RadiusCounts
from bursar_models.arrays import FloatArray

_DOUBTFUL = 1e-3
"""Chance of a false alarm for a model that is right. Chosen: wrong forms that matter are 20 errors away."""

_CONTRADICTED = 0.01
"""The same where a factor on an expected error follows, in place of a warning. Chosen with the factors of forecasts."""

_LAPLACE = 3.0
"""Excess kurtosis of a Laplace law."""

_ROUNDS, _SETTLED = 50, 1e-3
"""Rounds of the fit of a scale, and its change that ends them. Insensitive."""

_FARTHEST = 4.0
"""Farthest logarithm of a scale, over the root of the number of axes: all cells of the law have rows up to there."""

_LEAST_NOISE = 1e-9
"""Least variance of a count's noise over the number of rows: above rounding, and nothing beside sampling."""

_MOSTLY = 1.2816
"""Deviations above the threshold at which nine of ten tests warn."""


@dataclass(frozen=True)
class Goodness:
    """Test of a model's form on what was released.

    Attributes:
        statistic: what was looked at.
        observed: its value.
        error: standard deviation of its noise and sampling.
        expected: its value if the model is right.
        p_value: chance of a value as large as the observed one, or larger, if the model is right, by a normal law.
        doubtful: True if that is below 0.001: intervals of the model are not to be trusted.
        verdict: what follows, in words.
    """

    statistic: str
    observed: float
    error: float
    expected: float
    p_value: float
    doubtful: bool
    verdict: str

    def __str__(self) -> str:
        return (
            f"{self.statistic}: {self.observed:.3g} ± {self.error:.2g} (expected {self.expected:.3g}); {self.verdict}"
        )


def contradicted(goodness: Goodness | None) -> bool:
    """Return whether a release speaks against its own model by a chance below 1 in 100: enough for a forecast."""
    return goodness is not None and goodness.p_value < _CONTRADICTED


def distrust(goodness: Goodness | None, what: str = "all intervals") -> tuple[str, ...]:
    """Return a warning about intervals of a model whose form is doubtful; none for others."""
    doubtful = goodness is not None and goodness.doubtful
    return (f"{what} are not to be trusted: {goodness}",) if doubtful else ()


@dataclass(frozen=True)
class Misfit:
    """Weighted sum of squares that a mixture leaves of noisy sums, and its law if the model is right.

    Attributes:
        observed: its value.
        expected: its mean.
        error: its standard deviation.
        visible: most by which it grows for each nat a row between another density of the rows and the mixture.
    """

    observed: float
    expected: float
    error: float
    visible: float = 0.0


def trajectory_goodness(misfit: Misfit, background: float | None, error: float) -> Goodness:
    """Return the test of a mixture that is fitted to the noisy sums of all steps, by what contradicts it most.

    Tails that are heavier than a Gaussian's, skewness and outliers leave rows that no component explains; they count
    for the background. Other shapes and missing components leave sums that no mixture explains. The smaller chance of
    the two tests counts twice, as there are two.

    Args:
        misfit: what the mixture leaves of the sums.
        background: share of the background in all rows, which may be negative; None without one.
        error: its standard error.
    """
    chance = _chance(misfit.observed, misfit.expected, misfit.error**2) if misfit.error > 0 else 1.0
    found = Goodness(
        "squares that the mixture leaves of the noisy sums of all steps",
        misfit.observed,
        misfit.error,
        misfit.expected,
        chance,
        False,
        "no mixture of this form explains these sums: other shapes, or more groups",
    )
    if background is not None:
        chance = float(scipy.special.ndtr(-background / error)) if error > 0 else 1.0
        other = Goodness(
            "share of the rows that no component explains",
            background,
            error,
            0.0,
            chance,
            False,
            "some rows are no part of any Gaussian: outliers, heavy tails or skewness",
        )
        found = min(found, other, key=lambda one: one.p_value)
        found = replace(found, p_value=min(2.0 * found.p_value, 1.0))
    if found.p_value < _DOUBTFUL:
        verdict = f"{found.verdict}. EM on the rows themselves would end elsewhere, above all in variances"
        return replace(found, doubtful=True, verdict=verdict)
    tests = 1 if background is None else 2
    unseen = _unseen(misfit.expected, misfit.error**2, _DOUBTFUL / tests, misfit.visible)
    verdict = f"nothing released contradicts Gaussians, but other shapes{unseen}"
    if background is not None:
        outside = (_MOSTLY - float(scipy.special.ndtri(_DOUBTFUL / tests))) * error
        verdict += f", nor would less than {100 * outside:.2g} % of the rows outside of all components"
    return replace(found, verdict=verdict)


def trace_goodness(trace: GradientTrace | None) -> Goodness | None:
    """Return the test of a model by gradient EM on its rows' distances; None without counts of them."""
    return None if trace is None else radius_goodness(trace.radii)


def radius_goodness(radii: RadiusCounts | None, uneven: float = 0.0) -> Goodness | None:
    """Return the test of a model on its rows' distances; None without counts of them.

    Counts are compared with the law of the squared residual, whose scale and number of rows are fitted to them: a wrong
    noise level is no other form.

    Args:
        radii: counts of rows by distance.
        uneven: expected sum of squared relative errors of a covariance's axes, which mix scales.
    """
    if radii is None:
        return None
    rows, scale = max(float(radii.counts.sum()), 1.0), 0.0
    # The law bends with the scale: one linear step would leave a misfit where the noise level is off by a third.
    most = _FARTHEST / radii.size**0.5
    ends = 2.0 * scipy.special.gammaincinv(0.5 * radii.size, radii.levels)
    for _ in range(_ROUNDS):
        shares, slope, covariance = _radius_law(radii, rows, ends * math.exp(-scale), uneven)
        directions = np.column_stack([shares, slope])
        weighted = np.linalg.solve(covariance, directions)
        moved = float(np.linalg.solve(directions.T @ weighted, weighted.T @ radii.counts)[1]) / rows
        before, scale = scale, min(max(scale + min(max(moved, -0.5 * most), 0.5 * most), -most), most)
        if abs(scale - before) < _SETTLED:
            break
    p_value, unseen = _misfit(radii, directions, covariance, shares * rows)
    beyond, expected = radii.counts[-2:].sum() / rows, float(shares[-2:].sum())
    error = float(np.sqrt(covariance[-2:, -2:].sum())) / rows
    doubtful = p_value < _DOUBTFUL
    verdict = f"nothing released contradicts normal residuals, but others{unseen}"
    if doubtful:
        verdict = (
            "residuals are not normal: outliers, heavy tails, skewness, a column of few values or bounds that "
            "cut many rows; estimates may be further off than their errors"
        )
    text = f"share of the rows beyond {radii.levels[-2]:.3g} of a normal law, and shares of {len(shares)} distances"
    return Goodness(text, float(beyond), error, expected, p_value, doubtful, verdict)


def _radius_law(
    radii: RadiusCounts, rows: float, ends: FloatArray, uneven: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the law of counts by distance: shares, their derivatives, and the covariance of noise and sampling.

    Args:
        radii: counts; their number of axes and their noise count here.
        rows: number of rows.
        ends: ends of the cells, in units of the variance; derivatives are by its logarithm.
        uneven: as for `radius_goodness`.
    """
    x, half = np.concatenate([[0.0], ends]), 0.5 * radii.size
    shares = np.diff(scipy.special.gammainc(half, 0.5 * x), append=1.0)
    slope = np.diff(-x * _chi_squared(x, half), append=0.0)
    # Cells add up to the rows, so that without noise the covariance would be singular.
    noise = radii.count_std**2 + _LEAST_NOISE * rows
    covariance = noise * np.eye(len(shares)) + rows * (np.diag(shares) - np.outer(shares, shares))
    # To second order, squares on axes of scales 1 + e_i have the chi-squared law, moved by the sum of e_i^2 times the
    # slope of the density with four more degrees of freedom: u^2 / 4 of its transform, u = 2 i t / (1 - 2 i t).
    more, least = half + 2.0, np.maximum(x, 1e-300)
    bent = rows * uneven * np.diff(_chi_squared(least, more) * ((more - 1.0) / least - 0.5), append=0.0)
    return shares, slope, covariance + np.outer(bent, bent)


def _chi_squared(x: FloatArray, half: float) -> FloatArray:
    """Return the density of squared distances with 2 `half` degrees of freedom."""
    least = np.maximum(0.5 * x, 1e-300)
    return np.asarray(np.exp((half - 1.0) * np.log(least) - 0.5 * x - scipy.special.gammaln(half)) / 2.0)


def table_goodness(
    columns: tuple[str, ...],
    cells: FloatArray,
    rows: float,
    counts: FloatArray,
    std: float,
    *,
    laplace: bool,
    pairs: int,
) -> Goodness:
    """Return the test of a graph on the noisy table of two columns that are in no clique together.

    The model's errors in either column alone are no matter of the graph: what changes of the two margins explain of the
    difference is left out, so that their dependence is compared. A cell's variance is that of noise and sampling.

    Args:
        columns: names of the two columns.
        cells: the model's probabilities.
        rows: number of rows, at least 1.
        counts: noisy counts, of the shape of `cells`.
        std: standard deviation of the noise on each.
        laplace: True if the noise has a Laplace law.
        pairs: number of pairs that the table could have been of: it was chosen because it contradicts the model.
    """
    a, b = cells.shape
    expected = rows * cells
    variances = std**2 + np.maximum(expected, 1.0)
    # Generalised least squares on the margins' directions, as blocks, since a table may have many cells.
    squares, products = expected**2 / variances, expected * (counts - expected) / variances
    information = np.block(
        [[np.diag(squares.sum(axis=1)), squares], [squares.T, np.diag(squares.sum(axis=0))]]
    ) + 1e-9 * max(float(squares.sum()), 1e-300) * np.eye(a + b)  # both margins have the same total
    moved = np.linalg.solve(information, np.concatenate([products.sum(axis=1), products.sum(axis=0)]))
    left = counts - expected - expected * (moved[:a, None] + moved[None, a:])
    dof = max((a - 1) * (b - 1), 1)
    excess = _LAPLACE * float(np.square(std**2 / variances).sum()) * dof / (a * b) if laplace else 0.0
    observed = float((np.square(left) / variances).sum())
    p_value = min(pairs * _chance(observed, dof, 2.0 * dof + excess), 1.0)
    doubtful, names = p_value < _DOUBTFUL, " and ".join(map(repr, columns))
    # Cells that change by s sqrt(m) are s^2 / 2 nats away: at most this much is added where the change is most visible.
    visible = 2.0 * float((rows * expected / variances).max())
    unseen = _unseen(dof, 2.0 * dof + excess, _DOUBTFUL / pairs, visible)
    verdict = f"the table that was held out does not contradict the graph, but a dependence{unseen}"
    if doubtful:
        verdict = (
            f"{names} depend on each other beyond the graph. Tables that were released hold; what is between other "
            "columns may be wrong: ask for more pairs, or for those that matter"
        )
    text = f"misfit of the table of {names}, which the model was not learnt from"
    return Goodness(text, observed, (2.0 * dof + excess) ** 0.5, float(dof), p_value, doubtful, verdict)


def residual_goodness(observed: float, replicates: FloatArray) -> Goodness:
    """Return the test of a mixture decoded from a sketch on what it leaves unexplained of the sketch.

    Args:
        observed: mean square of unexplained moments, in squared deviations of the noise.
        replicates: the same of sketches of rows drawn from the mixture, (replicates,), at least 2; taken as normal.
    """
    expected, n = float(np.mean(replicates)), len(replicates)
    error = float(np.std(replicates, ddof=1)) * (1.0 + 1.0 / n) ** 0.5
    p_value = float(scipy.special.stdtr(n - 1, (expected - observed) / error)) if error > 0 else 1.0
    doubtful = p_value < _DOUBTFUL
    least = expected + error * (_MOSTLY - float(scipy.special.stdtrit(n - 1, _DOUBTFUL)))
    verdict = (
        "the mixture explains the sketch as well as one that is right would; one that leaves less than "
        f"{least:.3g} unexplained would mostly not have been found"
    )
    if doubtful:
        verdict = "the mixture does not explain the sketch: other shapes than these, outliers or more groups"
    return Goodness("unexplained part of the sketch", observed, error, expected, p_value, doubtful, verdict)


def _misfit(
    radii: RadiusCounts, directions: FloatArray, covariance: FloatArray, expected: FloatArray
) -> tuple[float, str]:
    """Return the chance of counts that combinations of directions (n, p) explain as badly, or worse.

    The weighted sum of squares has a chi-squared law, see `_chance`. With it comes what of other laws is unseen, in
    words: see `_unseen`.
    """
    inverse = np.linalg.inv(covariance)
    weights = inverse - inverse @ directions @ np.linalg.solve(
        directions.T @ inverse @ directions, directions.T @ inverse
    )
    dof = float(len(directions) - directions.shape[1])
    excess = _LAPLACE * radii.count_std**4 * float(np.square(np.diag(weights)).sum()) if radii.laplace else 0.0
    roots = np.sqrt(np.maximum(expected, 0.0))
    visible = 2.0 * float(expected.sum()) * float(np.linalg.eigvalsh(roots[:, None] * weights * roots)[-1])
    chance = _chance(max(float(radii.counts @ weights @ radii.counts), 0.0), dof, 2.0 * dof + excess)
    return chance, _unseen(dof, 2.0 * dof + excess, _DOUBTFUL, visible)


def _unseen(mean: float, variance: float, level: float, visible: float) -> str:
    """Return the end of a sentence about other forms than the model's: how near they are where the test hardly warns.

    Args:
        mean: mean of the weighted sum of squares if the model is right.
        variance: its variance.
        level: chance of a false alarm.
        visible: most by which it grows for each nat a row between the rows and the model.
    """
    if not (visible > 0 and mean > 0):
        return " would not have been found"
    scale = variance / (2.0 * mean)
    beyond = scale * float(scipy.special.chdtri(mean / scale, level)) - mean
    # What is added also spreads the sum, about as it spreads a non-central chi-squared number.
    half = _MOSTLY**2 * variance / mean
    least = beyond + half + (half**2 + _MOSTLY**2 * variance + 2.0 * half * beyond) ** 0.5
    return f" nearer than {least / visible:.2g} nats a row would mostly not have been found"


def _chance(squares: float, mean: float, variance: float) -> float:
    """Return the chance of a weighted sum of squares as large, or larger.

    Its law is taken for that of a multiple of a chi-squared number (Satterthwaite 1946).
    """
    scale = variance / (2.0 * mean)
    return float(scipy.special.chdtrc(mean / scale, squares / scale))
