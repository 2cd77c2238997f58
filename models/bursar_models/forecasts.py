"""Forecasts: how far noise moves what a fit releases, seen in fits to made-up rows.

Rows are drawn from an earlier model or from a guess, and the same fit is run on them several times with fresh noise.
What differs between those releases is what noise does. All of it is computed from released and public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._goodness import contradicted
from bursar_models._kmeans import KMeans, squared_distances
from bursar_models._line_forecasts import coefficient_errors, line_factors
from bursar_models._lloyd import lloyd
from bursar_models._quantile_errors import quantile_errors
from bursar_models._regressions import LinearRegression, MixtureOfRegressions
from bursar_models._symmetric_mixture import SymmetricMixture
from bursar_models.arrays import FloatArray
from bursar_models.mrf import MarkovRandomField
from bursar_models.schema import Column

REPLICATES = 12
"""Number of fits of a forecast: their median has a relative error of about a quarter by column, less over several."""

_OF_LINES = 16
"""The same for regressions, whose fits take a twentieth of a second and have few numbers."""

_WITH_CELLS = 6, 4, 4, 4
"""The same for mixtures by FitDPEM whose prior has cells of its start. What noise does to rows with their structure
differs much from one set of rows to the next, so that there are three.
"""

_RANGE = 10, 90
"""Percentiles of the errors of single fits that are a forecast's range."""


Number: TypeAlias = float | Mapping[str, float]
"""One number, or one for each column."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Errors of a fit on rows like those that are expected.

    Attributes:
        like: what the rows were drawn from, in words.
        guessed: True if that was no released model.
        replicates: number of fits.
        rows: number of rows in each; noise was scaled to them.
        expected: middle error of a fit by name, as `Preview.expected` has it.
        low: error that one fit in ten is below, by the same names; one in twenty if `wide`.
        high: error that one fit in ten is above; one in twenty if `wide`.
        wide: True where made-up rows show too little of what noise does, so that the range is wider, by what was
            measured on real tables: for mixtures, of which real rows may have several answers that are nearly as good,
            and for all regressions but one line with a mixture as prior.
    """

    like: str
    guessed: bool
    replicates: int
    rows: int
    expected: Mapping[str, Number]
    low: Mapping[str, Number]
    high: Mapping[str, Number]
    wide: bool = False


Factors: TypeAlias = tuple[float, float, float]
"""Factors on the low end, the middle and the high end of the errors of dry runs."""

_MIXTURES: Factors = (1 / 3, 1.0, 16.0)
"""Factors for mixtures. With them a range has nine in ten mixtures by FitDPEM of the real tables that they were chosen
on, with an earlier mixture as prior; without them it has four in ten. FitGradientEM's are alike.
"""

_CELLS: Factors = (1 / 2, 1.0, 2.0)
"""The same for mixtures by FitDPEM where rows with the structure of the cells of the prior's start have a part: at rho
0.02 a range has 93 in 100 fits of seven real tables, and 99 of ten others. Chosen with all of them in sight. For
quantiles of columns, for which it was not chosen, it has 99 and 96.
"""

_QUANTILES: Factors = (1 / 3, 1.0, 3.0)
"""Factors for quantiles of columns without such rows: of 22 real tables a range has 92 in 100 fits by FitGradientEM."""

_CONTRADICTED = 2.0
"""Factor on the middle for mixtures by FitDPEM, if the prior is one whose own noisy sums contradict it: rows that are
no mixture have several answers. Chosen on 22 real tables at rho 0.002 to 0.1.
"""

_SEPARATED: Factors = (1 / 20, 1.0, 32.0)
"""Factors for FitSeparatedGMM, chosen on five real tables: noise decides how many groups are found, too."""


def replicates_of(model: Any, like: Any) -> tuple[int, ...]:
    """Return numbers of fits of a forecast: to rows like the prior's, and to sets of rows with its cells' structure.

    Args:
        model: a release of the fit on rows of the prior.
        like: the prior.
    """
    if isinstance(model, LinearRegression | MixtureOfRegressions):
        return (_OF_LINES,)
    both = isinstance(model, GaussianMixture) and isinstance(like, GaussianMixture)
    return _WITH_CELLS if both and model.trajectory is not None and like.cells is not None else (REPLICATES,)


def factors_of(model: Any, like: Any, columns: Sequence[Column]) -> dict[str, Factors]:
    """Return factors on errors, by their names, where rows like these foretell too little of a model's; {} elsewhere.

    Args:
        model: a release of the fit on such rows.
        like: what the rows are drawn from.
        columns: public schema of the rows.
    """
    if isinstance(model, LinearRegression | MixtureOfRegressions):
        lines = line_factors(model, like, columns)
        return {} if lines is None else {"coef_error": lines}
    if not isinstance(model, GaussianMixture):
        return {}
    if model.separation is not None:
        return {"mean_error": _SEPARATED, "quantile_error": _SEPARATED}
    both = model.trajectory is not None and isinstance(like, GaussianMixture) and like.trajectory is not None
    middle = _CONTRADICTED if both and contradicted(like.goodness) else 1.0
    factors = {"mean_error": _MIXTURES, "quantile_error": _QUANTILES}
    return {name: (low, middle, high) for name, (low, _, high) in factors.items()}


def joined(
    found: Sequence[Mapping[str, tuple[Number, Number, Number]]],
) -> dict[str, tuple[Number, Number, Number]]:
    """Return the geometric means of middle errors on several sets of rows, with the least low and largest high ones."""

    def over(numbers: Sequence[Number], of: Callable[[list[float]], float]) -> Number:
        first = numbers[0]
        if isinstance(first, Mapping):
            return {name: of([number[name] for number in numbers]) for name in first}  # type: ignore[index]
        return of(numbers)  # type: ignore[arg-type]

    def mean(numbers: list[float]) -> float:
        return float(math.prod(number ** (1 / len(numbers)) for number in numbers))

    each = {name: list(zip(*(one[name] for one in found), strict=True)) for name in found[0]}
    return {name: (over(low, min), over(middle, mean), over(high, max)) for name, (low, middle, high) in each.items()}


def with_cells(
    plain: Mapping[str, tuple[Number, Number, Number]],
    cells: Sequence[Mapping[str, tuple[Number, Number, Number]]],
    factors: Mapping[str, Factors],
) -> dict[str, tuple[Number, Number, Number]]:
    """Return errors on rows like the prior's, and on sets of rows with the structure of its cells, as one forecast.

    Rows of a mixture have one best answer, and rows of cells several: both err.

    Args:
        plain: low, middle and high errors on the prior's rows.
        cells: the same on each set of the others.
        factors: those of the prior's rows by name; of them the middle one counts.
    """
    middles = {name: (1.0, middle, 1.0) for name, (_, middle, _) in factors.items()}
    return scaled(joined([scaled(plain, middles), joined(cells)]), dict.fromkeys(plain, _CELLS))


def scaled(
    found: Mapping[str, tuple[Number, Number, Number]], factors: Mapping[str, Factors]
) -> dict[str, tuple[Number, Number, Number]]:
    """Return low, middle and high errors times factors, by name; those without factors stay as they are."""

    def times(number: Number, factor: float) -> Number:
        if isinstance(number, Mapping):
            return {name: factor * value for name, value in number.items()}
        return factor * number

    made = {}
    for name, (low, middle, high) in found.items():
        lower, inner, upper = factors.get(name, (1.0, 1.0, 1.0))
        made[name] = times(low, lower), times(middle, inner), times(high, upper)
    return made


def foretold(models: Sequence[Any], rows: Mapping[str, FloatArray]) -> dict[str, tuple[Number, Number, Number]]:
    """Return low, middle and high errors of fits of the same request to the same rows, by name.

    mean_error and coef_error are distances by column from the middle of all fits, over components as a root mean
    square; those of coefficients are put together over columns, in proportion to the models' own errors. quantile_error
    is the mean distance of a column's quantiles from the middle ones of all fits. table_error is the total variation
    distance from the rows' own table, at the worst released table. relative_sse is the sum of squares over that of
    Lloyd's algorithm.

    Args:
        models: at least three releases of one request, models of one class.
        rows: values by column.
    """
    first = models[0]
    match first:
        case MarkovRandomField():
            distances = [[error] for model in models if (error := _table_error(model, rows)) is not None]
            return _summaries("table_error", (), np.array(distances)) if distances else {}
        case GaussianMixture() | SymmetricMixture():
            found = _summaries("mean_error", first.columns, spreads([model.means_ for model in models]))
            return found | _summaries("quantile_error", first.columns, quantile_errors(models))
        case KMeans():
            found = _summaries("mean_error", first.columns, spreads([model.cluster_centers_ for model in models]))
            if first.sketch is not None:
                X = np.stack([rows[name] for name in first.columns], axis=1)
                found |= _summaries("relative_sse", (), _relative_sse(models, X)[:, None])
            return found
        case LinearRegression() | MixtureOfRegressions():
            errors = spreads([np.atleast_2d(one.coef_) for one in models])
            return _summaries("coef_error", first.columns, coefficient_errors(models, errors))
    return {}


def _summaries(name: str, columns: Sequence[str], errors: FloatArray) -> dict[str, tuple[Number, Number, Number]]:
    """Return percentiles of errors, shape (samples, columns) or (samples, 1) without names of columns."""
    found = np.percentile(errors, [_RANGE[0], 50, _RANGE[1]], axis=0)
    if not columns:
        return {name: (float(found[0, 0]), float(found[1, 0]), float(found[2, 0]))}
    low, middle, high = (dict(zip(columns, map(float, one), strict=True)) for one in found)
    return {name: (low, middle, high)}


def spreads(found: Sequence[FloatArray]) -> FloatArray:
    """Return how far each of several releases of centres is from their middle, by column: shape (releases, d).

    Components have no order: each release is put into that of the most central one. Where releases differ in number,
    the larger ones are the measure, and a component that a smaller one lacks is at its nearest.

    Args:
        found: centres, (k, d) each.
    """
    k = max(len(one) for one in found)
    whole = [one for one in found if len(one) == k]
    far = [[_matched(one, other)[1] for other in whole] for one in whole]
    middle = whole[int(np.median(far, axis=1).argmin())]
    for _ in range(2):
        ordered = np.stack([one[_matched(one, middle)[0]] for one in found])
        middle = np.median(ordered, axis=0)
    # The middle is of the same fits: as a mean, it would lie nearer to them by this factor.
    inner = math.sqrt(len(found) / (len(found) - 1))
    return np.asarray(inner * np.sqrt(np.square(ordered - middle).mean(axis=1)))


def _matched(centres: FloatArray, to: FloatArray) -> tuple[npt.NDArray[np.intp], float]:
    """Return which of the centres belongs to each of others, and the sum of their squared distances."""
    scale = np.maximum(to.std(axis=0), 1e-12 * np.abs(to).max() + 1e-300)
    far = np.square((centres[:, None] - to) / scale).sum(axis=2)
    of, others = scipy.optimize.linear_sum_assignment(far)
    nearest = far.argmin(axis=0)
    nearest[others] = of
    return nearest, float(far[nearest, np.arange(len(to))].sum())


def _table_error(model: MarkovRandomField, rows: Mapping[str, FloatArray]) -> float | None:
    """Return the total variation distance between model and rows at the worst of the released tables of known rows."""
    variables = {variable.name: variable for variable in model.variables_ if variable.name in rows}
    states = {
        name: one.encode(rows[name].tolist()) if one.edges else rows[name].astype(np.intp)
        for name, one in variables.items()
    }
    worst = None
    for names in dict.fromkeys(table.columns for table in model.tables_ if not table.pooled):
        if not set(names) <= states.keys():
            continue
        # Pooled tables are sums over a chain's steps, and no table of the rows.
        probabilities = model.marginal(names)
        place = np.ravel_multi_index([states[name] for name in names], probabilities.shape)
        shares = np.bincount(place, minlength=probabilities.size) / len(place)
        worst = max(worst or 0.0, float(np.abs(probabilities.ravel() - shares).sum()) / 2)
    return worst


def _relative_sse(models: Sequence[KMeans], X: FloatArray) -> FloatArray:
    """Return sums of squares over that of Lloyd's algorithm from the best of the centres, (models,)."""
    sums = np.array([squared_distances(X, model.cluster_centers_).min(axis=1).sum() for model in models])
    return np.asarray(sums / lloyd(X, models[int(sums.argmin())].cluster_centers_).inertia)
