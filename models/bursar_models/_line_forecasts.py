"""Forecasts of regressions: errors of coefficients of several fits, and what a regression as prior cannot know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from bursar_models._goodness import contradicted
from bursar_models._regressions import LinearRegression, MixtureOfRegressions
from bursar_models.arrays import FloatArray
from bursar_models.schema import Column, NumericColumn

Lines: TypeAlias = LinearRegression | MixtureOfRegressions

_ONE, _SEVERAL = (1 / 4, 4.0), (1 / 5, 8.0)
"""Factors on the ends of a range, for fits of one line and of more. With them it has nine in ten fits or more to the 11
real tables that they were chosen on, at rho 0.004 to 0.1; without them 67 to 79 in 100, and 55 to 70.
"""

_OTHERS = (1 / 3, 1.0, 3.0)
"""All three factors for two lines and more with a mixture as prior, chosen on the same tables; one line needs none."""

_CONTRADICTED = 1.5
"""Factor where the prior's own counts of residuals contradict it. Where residuals depend on features, bounded gradients
follow a coefficient less, and noise moves it further. Chosen on the same tables and on planted ones.
"""

_HIDDEN, _WIDTH = 1 / 10, 0.1
"""Factor for a prior all of whose features' directions are hidden by noise, for a share of them to that power; and the
share of the noise's own width below which one is. Made-up features have no width there, and noise moves coefficients
further than with that of real ones. Chosen on the same tables at rho 0.004 to 0.1, for one line; for several it does
not help.
"""


def coefficient_errors(models: Sequence[Lines], errors: FloatArray) -> FloatArray:
    """Return errors of coefficients by column, shape (samples, d), as if each column had those of all.

    What the models say of their own errors compares the columns nearly without noise; how large errors are is seen in
    all columns together. A median of 12 errors of one column is off by a third.

    Args:
        models: releases of one request.
        errors: their errors, shape (releases, d).
    """
    if any(model.trace is None for model in models):
        return errors
    own = [np.square(model.trace.errors[:, :-1]).mean(axis=0) for model in models if model.trace is not None]
    unit = np.sqrt(np.median(own, axis=0))
    if not (unit > 0).all():
        return errors
    return np.outer((errors / unit).ravel(), unit)


def line_factors(model: Lines, like: Any, columns: Sequence[Column]) -> tuple[float, float, float] | None:
    """Return factors on the low end, the middle and the high end of the errors of dry runs; None without.

    Args:
        model: a release of the fit on rows like those of the prior.
        like: the prior: a model or a guess.
        columns: public schema of the columns that the prior has.
    """
    several = isinstance(model, MixtureOfRegressions) and model.n_components > 1
    if not isinstance(like, LinearRegression | MixtureOfRegressions):
        return _OTHERS if several else None
    middle = _CONTRADICTED if contradicted(like.goodness) else 1.0
    if not several:
        middle *= _HIDDEN ** _hidden(like, columns)
    low, high = _SEVERAL if several else _ONE
    return low * middle, middle, high * middle


def _hidden(like: Lines, columns: Sequence[Column]) -> float:
    """Return the share of directions of the prior's features that its first release has left no width."""
    look = next((one for one in like.noise if one.name == "look"), None)
    if not isinstance(like, MixtureOfRegressions) or like.feature_covariance_ is None or not like.n_rows or not look:
        return 0.0
    widths = {one.name: one.upper - one.lower for one in columns if isinstance(one, NumericColumn)}
    half, d = np.array([widths[name] / 2 for name in like.columns]), like.n_features
    # The look has all moments of features, target and 1, each over the number of these.
    noise = look.count_std * (d + 2) / like.n_rows
    values = np.linalg.eigvalsh(like.feature_covariance_ / half / half[:, None])
    return float((values <= _WIDTH * noise * math.sqrt(d / 2)).mean())
