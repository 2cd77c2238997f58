"""Released linear regressions: one whose features may be missing, and a mixture of several (Wang et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, overload

import numpy as np
import scipy

from bursar_models._describe import origin, with_errors
from bursar_models._estimator import Estimator, named_features
from bursar_models._goodness import Goodness, trace_goodness
from bursar_models._gradient_trace import GradientTrace, checked_trace
from bursar_models._intervals import NO_TRACE, NO_WEIGHTS, Interval, plain
from bursar_models._intervals import spread as spread_intervals
from bursar_models._plot import feature_names, plot_coefficients
from bursar_models._portable import Model
from bursar_models._tables import spread
from bursar_models.arrays import FloatArray, IntArray, as_rows, as_target, checked_columns, frozen, frozen_weights
from bursar_models.budget import Receipt, ReleaseNoise
from bursar_models.optional import require
from bursar_models.text import TableText


@dataclass(frozen=True, eq=False, repr=False)
class LinearRegression(TableText, Estimator, Model):
    """Linear regression, target = <features, coef> + intercept + noise, in the data's own units.

    Features may be missing: they then count as independent and normal, with public or released means and standard
    deviations. Everything in it is released or public. The arrays are read-only copies. Names and shapes are those of
    `sklearn.linear_model.LinearRegression`.

    Attributes:
        coef_: coefficients, shape (d,).
        intercept_: intercept in the target's unit, 0 if there is none.
        noise_std_: standard deviation of the target given all features, in the target's unit, positive.
        feature_means_: values that replace missing features, shape (d,); None if none may be missing.
        feature_std_: standard deviations of missing features, shape (d,), not negative; None if none may be missing.
        columns: names of the features in their order; empty if they have none.
        target: name of the explained column; empty if it has none.
        receipt: receipt of its debit; None for a model that does not come from a server.
        noise: the noise of every kind of release that went into the model.
        iterations: number of noisy gradient steps.
        n_rows: estimated number of rows, from released counts.
        trace: its iterates and errors; None unless gradient EM made the model.
        dummy_: True if a dry run made it from synthetic rows; its numbers carry no information.

    Raises:
        ValueError: a field with a wrong shape, an entry that is not finite, a standard deviation out of its range, or
            means of features without their standard deviations.

    Example:
        >>> model = bursar.LinearRegression([2, -1], 1, 0.5, columns=("age", "dose"), target="cost")
        >>> model.predict({"dose": [1], "age": [3]}).tolist()
        [6.0]
        >>> model.score({"age": [3, 4], "dose": [1, 1], "cost": [6, 8]})
        1.0
    """

    _task = "regressor"

    coef_: FloatArray
    intercept_: float
    noise_std_: float
    feature_means_: FloatArray | None = None
    feature_std_: FloatArray | None = None
    columns: tuple[str, ...] = ()
    target: str = ""
    receipt: Receipt | None = None
    noise: tuple[ReleaseNoise, ...] = ()
    iterations: int | None = None
    n_rows: float | None = None
    trace: GradientTrace | None = None
    dummy_: bool = False

    def __post_init__(self) -> None:
        coef = frozen("coef_", self.coef_)
        if coef.ndim != 1 or not len(coef):
            raise ValueError(f"coef_: expected shape (d,) with d >= 1, got {coef.shape}")
        if not -math.inf < self.intercept_ < math.inf:
            raise ValueError(f"intercept_: expected a finite number, got {self.intercept_}")
        if not 0 < self.noise_std_ < math.inf:
            raise ValueError(f"noise_std_: expected a number above 0, got {self.noise_std_}")
        checked_trace(self.trace, (1, len(coef) + 1))
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "coef_", coef)
        object.__setattr__(self, "columns", checked_columns(self.columns, len(coef)))
        if (self.feature_means_ is None) != (self.feature_std_ is None):
            raise ValueError("feature_means_ and feature_std_: expected both or neither")
        if self.feature_means_ is not None:
            std = frozen("feature_std_", self.feature_std_, coef.shape)
            if not (std >= 0).all():
                raise ValueError("feature_std_: every standard deviation must be at least 0")
            object.__setattr__(self, "feature_means_", frozen("feature_means_", self.feature_means_, coef.shape))
            object.__setattr__(self, "feature_std_", std)

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return len(self.coef_)

    @property
    def coef_errors_(self) -> FloatArray | None:
        """Approximate standard error of each coefficient, shape (d,): see `GradientTrace`. None without a trace."""
        return None if self.trace is None else self.trace.errors[0, :-1]

    @property
    def intercept_error_(self) -> float | None:
        """Approximate standard error of the intercept: see `GradientTrace`. None without a trace."""
        return None if self.trace is None else float(self.trace.errors[0, -1])

    @overload
    def predict(self, X: Any, *, return_std: Literal[False] = False) -> FloatArray: ...

    @overload
    def predict(self, X: Any, *, return_std: Literal[True]) -> tuple[FloatArray, FloatArray]: ...

    def predict(self, X: Any, *, return_std: bool = False) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Return the expected target of each row, shape (n,), in its unit.

        Args:
            X: array-like of shape (n, d), or a table that has the model's columns by name. NaN is a missing feature, if
                the model has `feature_means_`.
            return_std: True to return the standard deviation of the target, shape (n,), too: the noise and the effect
                of missing features, but not the errors of the coefficients.

        Raises:
            ValueError: a column is missing, the shape is not (n, d), or an entry is infinite, or NaN without
                `feature_means_`.
        """
        if self.feature_means_ is None or self.feature_std_ is None:
            rows = as_rows(X, self.columns, self.n_features)
            variances = np.zeros(len(rows))
        else:
            rows = as_rows(X, self.columns, self.n_features, missing=True)
            absent = np.isnan(rows)
            rows = np.where(absent, self.feature_means_, rows)
            variances = absent @ np.square(self.coef_ * self.feature_std_)
        expected = rows @ self.coef_ + self.intercept_
        return (expected, np.sqrt(variances + self.noise_std_**2)) if return_std else expected

    def score(self, X: Any, y: Any = None) -> float:
        """Return the share of the variance of `y` that the predictions explain (R^2), at most 1.

        Args:
            X: rows as in `predict`; at least two.
            y: target, array-like of shape (n,), not all the same; None takes the table's column of that name.

        Raises:
            ValueError: `X` is not as in `predict`, or `y` is not n finite numbers.
        """
        expected = self.predict(X)
        values = as_target(y, X, self.target, len(expected))
        return float(1 - np.square(values - expected).sum() / np.square(values - values.mean()).sum())

    def to_sklearn(self) -> Any:
        """Return a fitted `sklearn.linear_model.LinearRegression` with these parameters.

        It takes no missing features: replace them with `feature_means_` first.

        Raises:
            bursar.Error: scikit-learn is not installed.
        """
        linear_model = require("sklearn.linear_model")
        model = linear_model.LinearRegression()
        model.coef_, model.intercept_, model.n_features_in_ = self.coef_.copy(), self.intercept_, self.n_features
        return named_features(model, self.columns)

    def plot(self, ax: Any = None) -> Any:
        """Draw the coefficients, each with a bar of two standard errors on both sides if these are known.

        Each is in units of the target per unit of its own feature, so that lengths compare features only as far as
        their units do.

        Args:
            ax: matplotlib axes to draw on; None makes a figure.

        Returns:
            The axes.

        Raises:
            bursar.MissingDependencyError: matplotlib is not installed.
        """
        return plot_coefficients(
            feature_names(self.columns, self.n_features),
            self.coef_[None],
            None if self.coef_errors_ is None else self.coef_errors_[None],
            (),
            _per_unit(self.target),
            f"{self._title()}; intercept {self._table()[1][-1][1]}",
            ax,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.feature_means_ is not None
        return tags

    @property
    def goodness(self) -> Goodness | None:
        """Implement `Model.goodness`."""
        return trace_goodness(self.trace)

    def _intervals(self, z: float) -> tuple[Sequence[Interval], Sequence[str]]:
        if self.trace is None:
            return (), (NO_TRACE,)
        names = feature_names(self.columns, self.n_features)
        found = _coefficients(names, self.coef_[None], np.array([self.intercept_]), self.trace.errors, z)
        return [replace(one, name=one.name.replace("[0]", "", 1)) for one in found], (_NO_NOISE,)

    def _parameters(self) -> dict[str, FloatArray]:
        names, errors = feature_names(self.columns, self.n_features), self.coef_errors_
        return {
            **spread("coef_", names, self.coef_[None]),
            **spread("coef_errors_", names, None if errors is None else errors[None]),
            "intercept_": np.array([self.intercept_]),
            **({} if self.intercept_error_ is None else {"intercept_error_": np.array([self.intercept_error_])}),
            "noise_std_": np.array([self.noise_std_]),
        }

    def _title(self) -> str:
        target = f" of {self.target!r}" if self.target else ""
        return f"LinearRegression{target}: noise {self.noise_std_:.4g}{origin(self.receipt, dummy=self.dummy_)}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        estimates = np.append(self.coef_, self.intercept_)[:, None]
        cells = with_errors(estimates, None if self.trace is None else self.trace.errors.T)
        names = [*feature_names(self.columns, self.n_features), "intercept"]
        return ["feature", "coefficient"], [[name, *cell] for name, cell in zip(names, cells, strict=True)]


@dataclass(frozen=True, eq=False, repr=False)
class MixtureOfRegressions(TableText, Estimator, Model):
    """Mixture of `k` linear regressions of one target, of which each row follows one; in the data's own units.

    Given its features, a row's target is <features, coef_[z]> + intercept_[z] + noise, with z drawn by `weights_`.
    Everything in it is released or public. The arrays are read-only copies.

    Attributes:
        coef_: coefficients, shape (k, d).
        intercept_: intercepts, shape (k,), zeros if there are none.
        weights_: probabilities of the components, shape (k,), non-negative, sum 1.
        noise_std_: standard deviation of the target given features and component, shape (k,), positive.
        symmetric: True for two components b and -b of equal weight without intercept; the start decides which is b.
        feature_means_: means of the features in the first release, shape (d,), shrunk as far as noise explains them;
            None in releases of older servers.
        feature_covariance_: their covariance, shape (d, d), shrunk in the same way: forecasts draw features from both.
        columns: names of the features in their order; empty if they have none.
        target: name of the explained column; empty if it has none.
        receipt: receipt of its debit; None for a model that does not come from a server.
        noise: the noise of every kind of release that went into the model.
        iterations: number of noisy gradient steps.
        n_rows: estimated number of rows, from released counts.
        trace: its iterates and errors; None unless gradient EM made the model.
        dummy_: True if a dry run made it from synthetic rows; its numbers carry no information.

    Raises:
        ValueError: a field with a wrong shape, an entry that is not finite, weights that do not sum to 1, a standard
            deviation that is not positive, or a model that is called symmetric and is not.

    Example:
        >>> model = bursar.MixtureOfRegressions(
        ...     coef_=[[2], [-2]],
        ...     intercept_=[0, 0],
        ...     weights_=[0.5, 0.5],
        ...     noise_std_=[1, 1],
        ...     columns=("dose",),
        ...     target="gain",
        ... )
        >>> model.predict_proba({"dose": [1, 1], "gain": [2, 0]}).round(2).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """

    _task = "regressor"

    coef_: FloatArray
    intercept_: FloatArray
    weights_: FloatArray
    noise_std_: FloatArray
    symmetric: bool = False
    feature_means_: FloatArray | None = None
    feature_covariance_: FloatArray | None = None
    columns: tuple[str, ...] = ()
    target: str = ""
    receipt: Receipt | None = None
    noise: tuple[ReleaseNoise, ...] = ()
    iterations: int | None = None
    n_rows: float | None = None
    trace: GradientTrace | None = None
    dummy_: bool = False

    def __post_init__(self) -> None:
        coef = frozen("coef_", self.coef_)
        if coef.ndim != 2 or 0 in coef.shape:
            raise ValueError(f"coef_: expected shape (k, d) with k >= 1 and d >= 1, got {coef.shape}")
        k, d = coef.shape
        intercept, std = frozen("intercept_", self.intercept_, (k,)), frozen("noise_std_", self.noise_std_, (k,))
        if not (std > 0).all():
            raise ValueError("noise_std_: every standard deviation must be above 0")
        if self.symmetric and not (k == 2 and np.allclose(coef[0], -coef[1]) and not intercept.any()):
            raise ValueError("symmetric: expected coefficients b and -b, and no intercept")
        if (self.feature_means_ is None) != (self.feature_covariance_ is None):
            raise ValueError("feature_means_ and feature_covariance_: expected both or neither")
        if self.feature_means_ is not None:
            covariance = frozen("feature_covariance_", self.feature_covariance_, (d, d))
            if not (np.diagonal(covariance) >= 0).all():
                raise ValueError("feature_covariance_: every variance must be at least 0")
            object.__setattr__(self, "feature_means_", frozen("feature_means_", self.feature_means_, (d,)))
            object.__setattr__(self, "feature_covariance_", covariance)
        checked_trace(self.trace, (k, d + 1))
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "coef_", coef)
        object.__setattr__(self, "intercept_", intercept)
        object.__setattr__(self, "weights_", frozen_weights(self.weights_, k))
        object.__setattr__(self, "noise_std_", std)
        object.__setattr__(self, "columns", checked_columns(self.columns, d))

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return len(self.coef_)

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return int(self.coef_.shape[1])

    @property
    def coef_errors_(self) -> FloatArray | None:
        """Approximate standard error of each coefficient, shape (k, d): see `GradientTrace`. None without a trace."""
        return None if self.trace is None else self.trace.errors[:, :-1]

    @property
    def intercept_errors_(self) -> FloatArray | None:
        """Approximate standard error of each intercept, shape (k,), 0 if there are none. None without a trace."""
        return None if self.trace is None else self.trace.errors[:, -1]

    def component(self, number: int) -> LinearRegression:
        """Return the regression of one component; it has `to_sklearn`, which mixtures lack.

        Args:
            number: 0 to k - 1.

        Raises:
            IndexError: there is no such component.
        """
        if not 0 <= number < self.n_components:
            raise IndexError(f"number: expected 0 to {self.n_components - 1}, got {number}")
        trace = self.trace
        one = slice(number, number + 1)
        return LinearRegression(
            coef_=self.coef_[number],
            intercept_=float(self.intercept_[number]),
            noise_std_=float(self.noise_std_[number]),
            columns=self.columns,
            target=self.target,
            receipt=self.receipt,
            dummy_=self.dummy_,
            noise=self.noise,
            iterations=self.iterations,
            n_rows=self.n_rows,
            trace=None if trace is None else replace(trace, iterates=trace.iterates[:, one], errors=trace.errors[one]),
        )

    def predict_components(self, X: Any) -> FloatArray:
        """Return the expected target of each row under each component, shape (n, k), in its unit.

        Args:
            X: array-like of shape (n, d), or a table that has the model's columns by name.
        """
        return np.asarray(as_rows(X, self.columns, self.n_features) @ self.coef_.T + self.intercept_)

    def predict(self, X: Any) -> FloatArray:
        """Return the expected target of each row, shape (n,), whatever its component; `X` as in `predict_components`.

        For a symmetric model it is 0 everywhere: use `predict_components`.
        """
        return self.predict_components(X) @ self.weights_

    def predict_proba(self, X: Any, y: Any = None) -> FloatArray:
        """Return the probability of each component for each row, given its target, too, shape (n, k).

        Args:
            X: rows as in `predict_components`.
            y: target, array-like of shape (n,), in its unit; None takes the table's column of that name.

        Raises:
            ValueError: `X` is not as in `predict_components`, or `y` is not n finite numbers.
        """
        joint = self._log_joint(X, y)
        return np.asarray(np.exp(joint - scipy.special.logsumexp(joint, axis=1, keepdims=True)))

    def score_samples(self, X: Any, y: Any = None) -> FloatArray:
        """Return the natural logarithm of the density of each row's target given its features, shape (n,).

        Args:
            X: rows as in `predict_components`.
            y: target as in `predict_proba`.
        """
        return np.asarray(scipy.special.logsumexp(self._log_joint(X, y), axis=1))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean of `score_samples`, in nats per row; at least one row."""
        return float(self.score_samples(X, y).mean())

    def sample(
        self,
        X: Any,
        random_state: int | np.random.Generator | None = None,  # noqa: TID251 - a caller's generator on released values
    ) -> tuple[FloatArray, IntArray]:
        """Return a synthetic target for each row (n,), and the component that it was drawn from (n,).

        Args:
            X: rows as in `predict_components`.
            random_state: seed or numpy generator; None draws fresh randomness. The model is released, so this protects
                nothing.
        """
        rng = np.random.default_rng(random_state)  # noqa: TID251 - a caller's generator on released values
        lines = self.predict_components(X)
        z = rng.choice(self.n_components, size=len(lines), p=self.weights_ / self.weights_.sum())
        noise = self.noise_std_[z] * rng.standard_normal(len(lines))
        return lines[np.arange(len(lines)), z] + noise, z

    def plot(self, ax: Any = None) -> Any:
        """Draw the coefficients of all components beside each other, with bars of two standard errors.

        Each is in units of the target per unit of its own feature, so that lengths compare features only as far as
        their units do.

        Args:
            ax: matplotlib axes to draw on; None makes a figure.

        Returns:
            The axes.

        Raises:
            bursar.MissingDependencyError: matplotlib is not installed.
        """
        intercepts = [row[-2] for row in self._table()[1]]
        return plot_coefficients(
            feature_names(self.columns, self.n_features),
            self.coef_,
            self.coef_errors_,
            [f"{z}: {self.weights_[z]:.1%}, intercept {intercept}" for z, intercept in enumerate(intercepts)],
            _per_unit(self.target),
            self._title(),
            ax,
        )

    def _log_joint(self, X: Any, y: Any) -> FloatArray:
        """Return the logarithm of weight times density, shape (n, k)."""
        lines = self.predict_components(X)
        standard = (as_target(y, X, self.target, len(lines))[:, None] - lines) / self.noise_std_
        with np.errstate(divide="ignore"):  # log 0 = -inf is the right weight of an empty component
            weights = np.log(self.weights_)
        return np.asarray(weights - 0.5 * np.square(standard) - np.log(self.noise_std_) - 0.5 * math.log(2 * math.pi))

    @property
    def goodness(self) -> Goodness | None:
        """Implement `Model.goodness`."""
        return trace_goodness(self.trace)

    def _intervals(self, z: float) -> tuple[Sequence[Interval], Sequence[str]]:
        if self.trace is None:
            return (), (NO_TRACE,)
        names = feature_names(self.columns, self.n_features)
        return _coefficients(names, self.coef_, self.intercept_, self.trace.errors, z), (NO_WEIGHTS, _NO_NOISE)

    def _warnings(self) -> tuple[str, ...]:
        apart = math.inf if self.trace is None else self._least_apart()
        return (*super()._warnings(), *([_CLOSE_LINES.format(apart)] if apart < _CLOSE else []))

    def _least_apart(self) -> float:
        """Return the least distance of two lines in noise levels, as far as errors tell; infinity for one line.

        A coefficient's error is the noise level over the root of the component's rows and of the feature's mean square,
        or larger, where components are hard to tell apart.
        """
        if self.trace is None or self.n_rows is None:
            return math.inf
        found = [math.inf]
        for one, other in combinations(range(self.n_components), 2):
            errors = np.maximum(self.trace.errors[one], self.trace.errors[other])
            moved = np.append(self.coef_[one] - self.coef_[other], self.intercept_[one] - self.intercept_[other])
            rows = max(self.n_rows * float(min(self.weights_[one], self.weights_[other])), 1.0)
            found.append(float(np.linalg.norm(moved[errors > 0] / errors[errors > 0])) / math.sqrt(rows))
        return min(found)

    def _parameters(self) -> dict[str, FloatArray]:
        names = feature_names(self.columns, self.n_features)
        return {
            "weights_": self.weights_,
            **spread("coef_", names, self.coef_),
            **spread("coef_errors_", names, self.coef_errors_),
            "intercept_": self.intercept_,
            **({} if self.intercept_errors_ is None else {"intercept_errors_": self.intercept_errors_}),
            "noise_std_": self.noise_std_,
        }

    def _title(self) -> str:
        target = f" of {self.target!r}" if self.target else ""
        kind = "b and -b" if self.symmetric else f"{self.n_components} components"
        return f"MixtureOfRegressions{target}: {kind}{origin(self.receipt, dummy=self.dummy_)}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        estimates = np.column_stack([self.coef_, self.intercept_])
        cells = with_errors(estimates, None if self.trace is None else self.trace.errors)
        parts = zip(self.weights_, cells, self.noise_std_, strict=True)
        names = feature_names(self.columns, self.n_features)
        return (
            ["weight", *names, "intercept", "noise"],
            [[f"{weight:.4g}", *numbers, f"{std:.4g}"] for weight, numbers, std in parts],
        )


def _per_unit(target: str) -> str:
    return f"{target or 'target'} per unit of the feature"


_CLOSE = 2.0
"""Least distance of two lines, by their errors, at which intervals hold.

Measured: it is 0.6 to 1.5 for lines 2.5 noise levels apart, whose intervals hold in three of four cases, and 2.4 to 3.4
for those 3.6 to 4 apart.
"""

_CLOSE_LINES = (
    "all intervals are not to be trusted: two lines are about {:.1f} noise levels apart by their errors; below 2 steps "
    "have mostly not settled, and more iterations help"
)

_NO_NOISE = "noise_std_: gradient EM has no error of it"


def _coefficients(
    names: Sequence[str], coef: FloatArray, intercepts: FloatArray, errors: FloatArray, z: float
) -> list[Interval]:
    """Return intervals of coefficients (k, d) and intercepts (k,); `errors` (k, d + 1) are 0 for what is not fitted."""
    found = spread_intervals("coef_", "coefficient", names, coef, errors[:, :-1], z)
    return found + [
        plain(f"intercept_[{k}]", intercept, error, z, f"intercept of component {k}")
        for k, (intercept, error) in enumerate(zip(intercepts, errors[:, -1], strict=True))
        if error > 0
    ]
