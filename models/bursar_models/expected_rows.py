"""Rows that are expected: drawn from an earlier model or from a guess, for forecasts. Nothing private is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import erfinv

from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._kmeans import KMeans
from bursar_models._portable import Model
from bursar_models._regressions import LinearRegression, MixtureOfRegressions
from bursar_models._starts import public_generator
from bursar_models._symmetric_mixture import SymmetricMixture
from bursar_models._tilted_rows import rows_of_mixture
from bursar_models.arrays import FloatArray
from bursar_models.budget import positive
from bursar_models.errors import InvalidRequestError
from bursar_models.mrf import MarkovRandomField
from bursar_models.schema import CategoricalColumn, Column, NumericColumn
from bursar_models.transforms import into_units

_INNER = 0.15, 0.85
"""Part of each column's bounds in which a guess without means has them. Chosen, not tuned."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """Belief of an analyst about the rows before any release: groups of numbers, each normal around a mean.

    Attributes:
        weights: shares of the groups, positive; they are scaled to sum 1.
        spread: standard deviation within a group, of all columns or by column, in their units.
        means: shape (k, d), for all numeric columns that are fitted, in their order; None puts them apart from one
            another in the inner part of the bounds.

    Raises:
        InvalidRequestError: a number that is not positive and finite, or shapes that do not fit.

    Example:
        >>> guess = bursar.Guess(weights=[2, 1], spread={"height": 8, "weight": 10})
        >>> preview = data.preview(bursar.DPEM(n_components=2), spend=bursar.rho(0.1), like=guess)
        >>> sorted(preview.expected)
        ['mean_error', 'quantile_error']
    """

    weights: Sequence[float]
    spread: float | Mapping[str, float]
    means: npt.ArrayLike | None = None

    def __post_init__(self) -> None:
        if not len(self.weights):
            raise InvalidRequestError.of("like.weights", "must have a share for each group, got none")
        for weight in self.weights:
            positive("like.weights", weight)
        for one in self.spread.values() if isinstance(self.spread, Mapping) else [self.spread]:
            positive("like.spread", one)

    def rows(self, columns: Sequence[NumericColumn], n: int, seed: int) -> FloatArray:
        """Draw rows, (n, d), which may lie outside of the bounds.

        Raises:
            InvalidRequestError: the guess does not have the columns.
        """
        k, d = len(self.weights), len(columns)
        ends = np.array([[column.lower, column.upper] for column in columns]).reshape(d, 2)
        if self.means is None:
            from scipy.stats import qmc  # here, because it takes .4 s of every process that imports the models

            places = qmc.Halton(d, scramble=False).random(k + 1)[1:]  # its first point is a corner
            places = _INNER[0] + (_INNER[1] - _INNER[0]) * places
            means = (1 - places) * ends[:, 0] + places * ends[:, 1]
        else:
            means = np.array(self.means, dtype=np.float64)
        if means.shape != (k, d) or not np.isfinite(means).all():
            text = f"must be finite and of shape ({k}, {d}), a row for each weight and a column for each of the fit's"
            raise InvalidRequestError.of("like.means", f"{text}; got {means.shape}")
        spread = np.array([self._spread(column.name) for column in columns])
        shares = np.array(self.weights, dtype=np.float64)
        rng = public_generator(seed)
        group = rng.choice(k, n, p=shares / shares.sum())
        return np.asarray(means[group] + spread * rng.standard_normal((n, d)))

    def _spread(self, name: str) -> float:
        if not isinstance(self.spread, Mapping):
            return self.spread
        if name not in self.spread:
            raise InvalidRequestError.of("like.spread", f"has no {name!r}, one of the fit's columns")
        return self.spread[name]


Like: TypeAlias = Model | Guess
"""Prior of a forecast: a model or a guess of what rows look like."""


def rows_like(
    like: Like, columns: Sequence[Column], n: int, seed: int, *, cells: bool = False
) -> dict[str, FloatArray]:
    """Draw rows like those of a model or a guess: values by column, (n,) each, positions for categories.

    Features of regressions are normal where the model has their moments, else uniform over their bounds. A guess has
    groups in numeric columns, and all categories alike.

    Args:
        like: model or guess.
        columns: public schema of the columns that a fit has.
        n: number of rows.
        seed: seed of the rows.
        cells: True for the structure of the cells of a mixture's start, where it has them: see `rows_of_mixture`.

    Raises:
        InvalidRequestError: the model does not have these columns, or no rows can be drawn from such a model.
    """
    numeric = [column for column in columns if isinstance(column, NumericColumn)]
    match like:
        case Guess():
            drawn = dict(zip([column.name for column in numeric], like.rows(numeric, n, seed).T, strict=True))
            chosen = [column for column in columns if isinstance(column, CategoricalColumn)]
            rng = public_generator(seed, 1)
            drawn |= {column.name: rng.choice(column.categories, n) for column in chosen}
        case GaussianMixture() if cells:
            drawn = _named(like.columns, rows_of_mixture(like, n, seed))
        case GaussianMixture() | SymmetricMixture():
            drawn = _named(like.columns, like.sample(n, seed)[0])
        case KMeans():
            drawn = _named(like.columns, into_units(_balls(like).sample(n, seed, bounded=False)[0], like.transforms))
        case MarkovRandomField():
            drawn = like.sample(n, seed, output="dict")
        case LinearRegression() | MixtureOfRegressions():
            drawn = _on_lines(like, numeric, n, seed)
        case _:
            text = f"must be a bursar.Guess or a model that rows can be drawn from, got {type(like).__name__}"
            raise InvalidRequestError.of("like", text)
    if absent := [column.name for column in columns if column.name not in drawn]:
        raise InvalidRequestError.of("like", f"is a model without {absent[0]!r}, one of the fit's columns")
    return {column.name: _values(column, drawn[column.name]) for column in columns}


def _named(names: Sequence[str], rows: FloatArray) -> dict[str, FloatArray]:
    if not names:
        raise InvalidRequestError.of("like", "is a model without names of columns; give it `columns`")
    return dict(zip(names, rows.T, strict=True))


def _values(column: Column, values: Any) -> FloatArray:
    if isinstance(column, NumericColumn):
        return np.clip(np.asarray(values, dtype=np.float64), column.lower, column.upper)
    places = {category: place for place, category in enumerate(column.categories)}
    try:
        return np.array([places[str(value)] for value in values], dtype=np.float64)
    except KeyError:
        raise InvalidRequestError.of("like", f"is a model with other categories of {column.name!r}") from None


def _balls(model: KMeans) -> GaussianMixture:
    """Return the mixture of a sphere for each cluster."""
    least = 1e-12 * max(float(model.variances_.max()), 1e-300)  # an empty cluster may have none
    return GaussianMixture(
        model.weights_, model.cluster_centers_, np.maximum(model.variances_, least), "spherical", columns=model.columns
    )


def _on_lines(
    model: LinearRegression | MixtureOfRegressions, columns: Sequence[NumericColumn], n: int, seed: int
) -> dict[str, FloatArray]:
    rng, known = public_generator(seed), {column.name: column for column in columns}
    if absent := [name for name in model.columns if name not in known]:
        raise InvalidRequestError.of("like", f"is a model of {absent[0]!r}, which is none of the fit's columns")
    if not model.columns or not model.target:
        raise InvalidRequestError.of("like", "is a model without names of columns; give it `columns` and `target`")
    lower, upper = np.array([[known[name].lower, known[name].upper] for name in model.columns]).T
    moments = _feature_moments(model)
    if moments is None:
        X = rng.uniform(lower, upper, (n, len(lower)))
    else:
        deviations = np.sqrt(np.diagonal(moments[1]))
        scale = np.where(deviations > 0, deviations, 1.0)  # units of features may be far apart
        values, vectors = np.linalg.eigh(moments[1] / np.outer(scale, scale))
        root = scale[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))
        X = np.clip(moments[0] + rng.standard_normal((n, len(lower))) @ root.T, lower, upper)
    # Another seed for the rest, so that targets do not depend on how many numbers the features took.
    lines, rng = X @ np.atleast_2d(model.coef_).T + np.atleast_1d(model.intercept_), public_generator(seed + 1)
    z = rng.choice(lines.shape[1], n, p=model.weights_ if isinstance(model, MixtureOfRegressions) else None)
    y = lines[np.arange(n), z] + np.atleast_1d(model.noise_std_)[z] * _residuals(model, n, seed + 2)
    return dict(zip([*model.columns, model.target], [*X.T, y], strict=True))


def _residuals(model: LinearRegression | MixtureOfRegressions, n: int, seed: int) -> FloatArray:
    """Draw residuals in units of the noise, (n,): as far from a line as the released counts by distance have rows."""
    rng = public_generator(seed)
    radii = None if model.trace is None else model.trace.radii
    if radii is None or not (radii.counts > 0).any():
        return rng.standard_normal(n)
    shares = np.maximum(radii.counts, 0.0)
    cell = rng.choice(len(shares), n, p=shares / shares.sum())
    lower, upper = np.concatenate([[0.0], radii.levels]), np.concatenate([radii.levels, [1.0]])
    below = rng.uniform(lower[cell], upper[cell])
    # A share of a normal law within a distance; the sign of a residual is not released.
    return np.asarray(rng.choice([-1.0, 1.0], n) * np.sqrt(2.0) * erfinv(np.minimum(below, 1.0 - 1e-12)))


def _feature_moments(model: LinearRegression | MixtureOfRegressions) -> tuple[FloatArray, FloatArray] | None:
    """Return means and covariance of a regression's features; None where the model does not know them."""
    if isinstance(model, MixtureOfRegressions):
        spread = model.feature_covariance_
    else:
        spread = None if model.feature_std_ is None else np.diag(np.square(model.feature_std_))
    return None if model.feature_means_ is None or spread is None else (model.feature_means_, spread)
