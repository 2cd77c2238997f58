"""Released mixture of Gaussians, with scikit-learn's names and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from threadpoolctl import threadpool_limits

from bursar_models._bootstrap import Errors, decoding_errors
from bursar_models._component_choice import ComponentChoice
from bursar_models._decoding import Decoded
from bursar_models._density import (
    COVARIANCE_TYPES,
    CovarianceType,
    cholesky_factors,
    covariance_shape,
    log_mixture_density,
    n_parameters,
    reshaped_covariances,
)
from bursar_models._describe import component_table, origin
from bursar_models._estimator import Estimator, named_features
from bursar_models._goodness import (
    Goodness,
    distrust,
    radius_goodness,
    residual_goodness,
    trace_goodness,
    trajectory_goodness,
)
from bursar_models._gradient_trace import GradientTrace, checked_trace
from bursar_models._intervals import (
    DECODED,
    MIXTURE,
    NO_ERRORS,
    NO_WEIGHTS,
    REPLICATES,
    Interval,
    Intervals,
    covariance_intervals,
    positive,
    share,
    two_sided,
    within,
)
from bursar_models._intervals import spread as spread_intervals
from bursar_models._plot import Components, chosen, feature_names, plot_mixture, put_schema
from bursar_models._portable import Model
from bursar_models._separation import Separation, checked_separation
from bursar_models._start_cells import StartCells
from bursar_models._tables import Output, as_table, spread
from bursar_models._trajectory import Trajectory, checked_trajectory
from bursar_models._trajectory_fit import Fitted, fit_trajectory, trajectory_intervals
from bursar_models.arrays import FloatArray, IntArray, as_rows, check_centres, checked_columns, frozen, frozen_weights
from bursar_models.budget import Receipt, ReleaseNoise
from bursar_models.optional import require
from bursar_models.schema import Column
from bursar_models.text import TableText
from bursar_models.transforms import (
    Transform,
    checked_transforms,
    into_model,
    into_units,
    log_slopes,
    means_in_units,
    names_in_model,
    said_transforms,
    slopes,
)

if TYPE_CHECKING:
    from bursar_models._sketch import Sketch

_DRAWS = 50
"""Maximum number of draws for a row within the bounds."""


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(TableText, Estimator, Model):
    """Mixture of `k` Gaussians on `d` features. Everything in it is released or public.

    The features are the columns in their own units or, with a transform, log(1 + x) of them: that is the model's space,
    and means and covariances are numbers of it. Rows that go in and come out, and `bounds_`, are in the columns' own
    units, and densities are per own unit.

    The arrays are read-only copies. Names and shapes are those of `sklearn.mixture.GaussianMixture`.

    Attributes:
        weights_: weights of the components, shape (k,), non-negative, sum 1.
        means_: means of the components, shape (k, d).
        covariances_: covariances, of shape (k, d, d) if "full", (d, d) if "tied", (k, d) if "diag", (k,) if
            "spherical".
        covariance_type: form of the covariances.
        columns: names of the features in their order; empty if they have none.
        receipt: receipt of its debit; None for a model that does not come from a server.
        noise: the noise of every kind of release that went into the model.
        iterations: number of noisy steps.
        n_rows: estimated number of rows: public under REPLACE_ONE, a sum of noisy counts under ADD_REMOVE_ONE.
        sketch: sketch from which it was decoded, for other decodings; None for a model without one.
        trace: iterates of the means and their errors; None unless gradient EM made the model.
        separation: number of components sought and errors of those found; None unless the fit of separated components
            made the model.
        background_weight: weight of the background, a uniform distribution over the box of the bounds, for rows that no
            Gaussian explains. `weights_` are those of the Gaussians among themselves, whose part is the rest.
        bounds_: public bounds of the columns in their own units, shape (2, d), lower and upper; None for a model that
            knows none. The background is uniform over their box in the model's space.
        dummy_: True if a dry run made it from synthetic rows; its numbers carry no information.
        trajectory: what the last EM steps released, from which `intervals` are computed; None unless FitDPEM made the
            model, and in releases of older servers.
        transforms: transform of each column, "none" or "log1p"; () if none has one.
        choice: scores of the numbers of components that the fit could choose; None unless it chose.
        cells: Gaussians that the start ended with, if they were more than the model's: for forecasts.

    Raises:
        ValueError: a field with a wrong shape, an entry that is not finite, weights that do not sum to 1, or a
            covariance that is not positive definite.

    Example:
        >>> model = bursar.GaussianMixture(
        ...     weights_=[0.3, 0.7],
        ...     means_=[[0], [5]],
        ...     covariances_=[1, 4],
        ...     covariance_type="spherical",
        ...     columns=("age",),
        ... )
        >>> model.predict({"age": [0.5, 4]}).tolist()
        [0, 1]
        >>> model.sample(3, random_state=0, output="dict")["age"].round(2).tolist()
        [-0.13, 6.28, 5.21]
    """

    _task = "density_estimator"

    weights_: FloatArray
    means_: FloatArray
    covariances_: FloatArray
    covariance_type: CovarianceType = "full"
    columns: tuple[str, ...] = ()
    receipt: Receipt | None = None
    noise: tuple[ReleaseNoise, ...] = ()
    iterations: int | None = None
    n_rows: float | None = None
    sketch: Sketch | None = None
    trace: GradientTrace | None = None
    separation: Separation | None = None
    background_weight: float = 0.0
    bounds_: FloatArray | None = None
    dummy_: bool = False
    trajectory: Trajectory | None = None
    transforms: tuple[Transform, ...] = ()
    choice: ComponentChoice | None = None
    cells: StartCells | None = None

    def __post_init__(self) -> None:
        if self.covariance_type not in COVARIANCE_TYPES:
            raise ValueError(f"covariance_type: expected one of {COVARIANCE_TYPES}, got {self.covariance_type!r}")
        means = frozen("means_", self.means_)
        k, d = check_centres("means_", means)
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "means_", means)
        object.__setattr__(self, "weights_", frozen_weights(self.weights_, k))
        object.__setattr__(self, "covariances_", _frozen_covariances(self.covariances_, self.covariance_type, k, d))
        object.__setattr__(self, "columns", checked_columns(self.columns, d))
        if self.bounds_ is not None:
            object.__setattr__(self, "bounds_", _frozen_bounds(self.bounds_, d))
        object.__setattr__(self, "transforms", checked_transforms(self.transforms, d, self.bounds_))
        if not 0 <= self.background_weight < 1:
            raise ValueError(
                f"background_weight: expected a number from 0 to less than 1, got {self.background_weight}"
            )
        if self.background_weight > 0 and self.bounds_ is None:
            raise ValueError("bounds_: a background needs the bounds of its box")
        checked_trace(self.trace, (k, d))
        if self.cells is not None and self.cells.means.shape[1] != d:
            raise ValueError(f"cells: expected {d} columns, got {self.cells.means.shape[1]}")
        checked_separation(self.separation, (k, d))
        if self.choice is not None and self.choice.chosen != k:
            raise ValueError(f"choice: expected one of the model's {k} components, got {self.choice}")
        # The steps of a fit that chose had the largest number.
        K = k if self.choice is None or self.trajectory is None else len(self.trajectory.steps[0].means)
        moments = int(np.prod(covariance_shape(self.covariance_type, K, d)))
        if self.covariance_type in ("full", "tied"):
            moments = moments * (d + 1) // (2 * d)
        checked_trajectory(self.trajectory, (K, d), moments)
        if self.trajectory is not None and self.bounds_ is None:
            raise ValueError("bounds_: a trajectory needs the bounds of its rows")

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return len(self.means_)

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return int(self.means_.shape[1])

    @property
    def own_means_(self) -> FloatArray:
        """Means of the components in the columns' own units, shape (k, d): with log1p, of exp(z) - 1 for Gaussian z."""
        return means_in_units(self.means_, self._variances(), self.transforms)

    @property
    def own_medians_(self) -> FloatArray:
        """Medians of the components in the columns' own units, shape (k, d)."""
        return into_units(self.means_, self.transforms)

    @property
    def mean_errors_(self) -> FloatArray | None:
        """Approximate standard error of each mean, shape (k, d): see `Separation` and `GradientTrace`."""
        if self.separation is not None:
            return self.separation.mean_errors
        return None if self.trace is None else self.trace.errors

    @property
    def weight_errors_(self) -> FloatArray | None:
        """Approximate standard error of each weight, shape (k,): see `Separation`; None without one."""
        return None if self.separation is None else self.separation.weight_errors

    @property
    def covariance_errors_(self) -> FloatArray | None:
        """Approximate relative error of each covariance, shape (k,): see `Separation`; None without one."""
        return None if self.separation is None else self.separation.covariance_errors

    @property
    def found_(self) -> int | None:
        """Number of components found, which is k; None unless the fit of separated components made the model."""
        return None if self.separation is None else self.n_components

    def score_samples(self, X: Any) -> FloatArray:
        """Return the natural logarithm of the mixture's density at each row, shape (n,), the background's included.

        Args:
            X: array-like of shape (n, d), or a table that has the model's columns by name.
        """
        rows = as_rows(X, self.columns, self.n_features)
        densities, volumes = self._log_densities(rows)[0], log_slopes(rows, self.transforms)
        if self.bounds_ is None or self.background_weight == 0:
            return densities + volumes
        inside = np.all((rows >= self.bounds_[0]) & (rows <= self.bounds_[1]), axis=1)
        box = into_model(self.bounds_, self.transforms)
        uniform = np.log(self.background_weight) - np.sum(np.log(box[1] - box[0]))
        both = np.logaddexp(np.log1p(-self.background_weight) + densities, np.where(inside, uniform, -np.inf))
        return np.asarray(both) + volumes

    def score(self, X: Any) -> float:
        """Return the mean log-likelihood per row, in nats; `X` as in `score_samples`, at least one row."""
        return float(self.score_samples(X).mean())

    def bic(self, X: Any) -> float:
        """Return the Bayesian information criterion of the model on rows of yours, in nats; lower is better.

        It compares released models on one set of rows that is public or yours, such as a hold-out. It says nothing
        about the protected rows, and the penalty is that of maximum likelihood: noise is not part of it.

        Args:
            X: as in `score_samples`, at least one row.
        """
        densities = self.score_samples(X)
        return self._n_parameters() * float(np.log(len(densities))) - 2 * float(densities.sum())

    def aic(self, X: Any) -> float:
        """Return Akaike's information criterion of the model on rows of yours, in nats; see `bic`."""
        return 2 * self._n_parameters() - 2 * float(self.score_samples(X).sum())

    def _n_parameters(self) -> int:
        return n_parameters(self.covariance_type, self.n_components, self.n_features) + (self.background_weight > 0)

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probability of each Gaussian for each row, shape (n, k), if the row is not of the background.

        `X` as in `score_samples`.
        """
        return np.exp(self._log_densities(X)[1])

    def predict(self, X: Any) -> IntArray:
        """Return the index of the most probable Gaussian of each row, shape (n,); `X` as in `score_samples`."""
        likeliest: IntArray = self._log_densities(X)[1].argmax(axis=1)
        return likeliest

    @overload
    def sample(
        self,
        n: int = 1,
        random_state: int | np.random.Generator | None = None,  # noqa: TID251 - a caller's generator on released values
        *,
        output: None = None,
        bounded: bool = True,
    ) -> tuple[FloatArray, IntArray]: ...

    @overload
    def sample(
        self,
        n: int = 1,
        random_state: int | np.random.Generator | None = None,  # noqa: TID251 - a caller's generator on released values
        *,
        output: Output,
        bounded: bool = True,
    ) -> Any: ...

    def sample(
        self,
        n: int = 1,
        random_state: int | np.random.Generator | None = None,  # noqa: TID251 - a caller's generator on released values
        *,
        output: Output | None = None,
        bounded: bool = True,
    ) -> Any:
        """Draw synthetic rows (n, d) and the component of each (n,), grouped by component as scikit-learn does.

        Rows of the background come last, with component -1. Rows outside the bounds are drawn again.

        Args:
            n: number of rows, at least 1.
            random_state: seed or numpy generator; None draws fresh randomness. The model is released, so this protects
                nothing.
            output: None for the two arrays. "pandas" or "polars" for one DataFrame, "arrow" for a pyarrow Table, "dict"
                for arrays by name: the model's columns, and "component" as the last one, unless a column has that name.
            bounded: False to keep rows outside the bounds, where Gaussians have some of their mass.

        Raises:
            ValueError: `n` is below 1, or `output` is unknown.
            bursar.MissingDependencyError: the library of `output` is not installed.
        """
        if not n >= 1:
            raise ValueError(f"n: expected at least 1 row, got {n}")
        rng = np.random.default_rng(random_state)  # noqa: TID251 - a caller's generator on released values
        weights, labels = self.weights_ / self.weights_.sum(), np.arange(self.n_components)
        if self.background_weight > 0:
            weights = np.append((1 - self.background_weight) * weights, self.background_weight)
            labels = np.append(labels, -1)
        counts = rng.multinomial(n, weights)
        factors = cholesky_factors(self.covariances_, self.covariance_type, *self.means_.shape)
        # Rows are drawn in the model's space, where the public bounds have other ends if a column is transformed.
        edges = None if self.bounds_ is None else into_model(self.bounds_, self.transforms)
        box = edges if bounded else None
        parts = [
            _normals(rng, mean, factor, count, box)
            for mean, factor, count in zip(self.means_, factors, counts[: self.n_components], strict=True)
        ]
        if self.background_weight > 0 and edges is not None:
            parts.append(rng.uniform(edges[0], edges[1], (int(counts[-1]), self.n_features)))
        rows, labels = into_units(np.concatenate(parts), self.transforms), np.repeat(labels, counts)
        if bounded and self.bounds_ is not None:
            rows = np.clip(rows, *self.bounds_)  # rounding on the way back may lead out by a last bit
        if output is None:
            return rows, labels
        table = dict(zip(feature_names(self.columns, self.n_features), rows.T, strict=True))
        return as_table(table if "component" in table else {**table, "component": labels}, output)

    def intervals(self, level: float = 0.95, *, replicates: int = REPLICATES, public_seed: int = 0) -> Intervals:
        """Return intervals of the released numbers, at no cost to privacy; those without are listed with the reason.

        For a mixture that was decoded from a sketch a bootstrap decodes sketches of rows that are drawn from the
        model: seconds to minutes on this machine, with a bar on terminals. For one by FitDPEM a mixture is fitted to
        the noisy sums of all its last steps, and intervals are about that estimate: seconds. Others have intervals
        from released errors.

        Args:
            level: share of fits in which an interval is meant to contain its target, above 0 and below 1.
            replicates: number of decodings of a bootstrap, at least 2.
            public_seed: seed of the bootstrap, at least 0; the same gives the same intervals. It protects nothing.

        Raises:
            ValueError: an argument out of its range.
        """
        if self._explained is not None:
            z = two_sided(level)
            rows, left_out = trajectory_intervals(self.columns, self.covariance_type, self._explained, z)
            return Intervals(level, MIXTURE, self._with_medians(rows), tuple(left_out), distrust(self.goodness))
        if self.sketch is None or self.covariance_type != "diag":
            found = super().intervals(level)
            return replace(found, rows=self._with_medians(found.rows))
        z, names = two_sided(level), feature_names(self.columns, self.n_features)
        errors = self._decoding_errors(replicates, public_seed)
        rows = [
            share(f"weights_[{k}]", weight, error, z, f"weight of component {k}")
            for k, (weight, error) in enumerate(zip(self.weights_, errors.weights, strict=True))
        ]
        rows += spread_intervals("means_", "mean", names, self.means_, errors.centres, z)
        rows += [
            positive(f"covariances_[{k}].{name}", value, error, z, f"variance of {name!r} in component {k}")
            for k, parts in enumerate(zip(self.covariances_, errors.variances, strict=True))
            for name, value, error in zip(names, *parts, strict=True)
        ]
        warnings = distrust(residual_goodness(errors.residual, errors.residuals))
        return Intervals(level, DECODED, self._with_medians(rows), warnings=warnings)

    def _decoding_errors(self, replicates: int, public_seed: int) -> Errors:
        """Return the errors of a mixture that was decoded from a sketch. Raises ValueError."""
        if self.sketch is None:
            raise ValueError("sketch: the mixture was not decoded from one")
        key = replicates, public_seed
        if key not in self._decoded:
            model = Decoded(self.weights_, self.means_, self.covariances_, residual=0.0, mass=1.0)
            self._decoded[key] = decoding_errors(
                self.sketch, model, mixture=True, replicates=replicates, public_seed=public_seed
            )
        return self._decoded[key]

    @cached_property
    def _decoded(self) -> dict[tuple[int, int], Errors]:
        """Errors by replicates and seed, kept because intervals and goodness share them and each takes long."""
        return {}

    def _with_medians(self, rows: Sequence[Interval]) -> tuple[Interval, ...]:
        """Return intervals, and after them those of the medians in own units that follow from means of log1p."""
        names = feature_names(self.columns, self.n_features)
        logs = {name for name, one in zip(names, self.transforms, strict=bool(self.transforms)) if one == "log1p"}
        medians = {
            f"means_[{k}].{name}": (f"own_medians_[{k}].{name}", f"median of {name!r} in component {k}, in own units")
            for k in range(self.n_components)
            for name in names
            if name in logs
        }
        found = []
        for row in rows:
            if row.name in medians:
                name, about = medians[row.name]
                # The exponential is monotone, so an interval of a mean of logarithms becomes one of the median.
                with np.errstate(over="ignore"):
                    estimate, low, high = np.expm1([row.estimate, row.low, row.high]).tolist()
                found.append(Interval(name, estimate, low, high, about))
        return (*rows, *found)

    @property
    def goodness(self) -> Goodness | None:
        """Test of the mixture's form on what was released, free: seconds at the first time, as `intervals`.

        None where nothing that was released tells: mixtures by sample and aggregate, and by older servers.
        """
        return self._goodness

    @cached_property
    def _goodness(self) -> Goodness | None:
        if self.trace is not None:
            return trace_goodness(self.trace)
        if self.separation is not None:
            return radius_goodness(self.separation.radii, self.separation.uneven(self.weights_, self.covariance_type))
        if self.sketch is not None and self.covariance_type == "diag":
            errors = self._decoding_errors(REPLICATES, 0)
            return residual_goodness(errors.residual, errors.residuals)
        found = self._explained
        return None if found is None else trajectory_goodness(found.misfit, found.background, found.background_error)

    @cached_property
    def _explained(self) -> Fitted | None:
        """Mixture that explains all sums of the trajectory; None without one."""
        if self.trajectory is None or self.bounds_ is None:
            return None
        covariances = reshaped_covariances(
            self.covariances_, self.weights_, self.n_features, given=self.covariance_type, wanted="full"
        )
        start = self.weights_, self.means_, covariances
        rows = 1.0 if self.n_rows is None else self.n_rows
        box = into_model(self.bounds_, self.transforms)
        # Two threads wait for each other at every product, which takes three times as long where CPUs are busy.
        with threadpool_limits(1, user_api="blas"), np.errstate(all="ignore"):
            try:
                return fit_trajectory(self.trajectory, box, self.covariance_type, start, self.background_weight, rows)
            except ValueError as error:  # numbers that no fit releases: of a hand-written file
                raise ValueError(
                    "trajectory: its numbers are so far apart that no mixture can be computed from them; load the "
                    "model from its own file"
                ) from error

    def plot(self, ax: Any = None, *, columns: str | Sequence[str] | None = None, schema: Sequence[Column] = ()) -> Any:
        """Draw the components on two columns, as ellipses of 1 and 2 standard deviations; on one, the density.

        Means that have errors get bars of two standard errors. Other columns are integrated out.

        Args:
            ax: matplotlib axes to draw on; None makes a figure.
            columns: names of one or two; None for the first two.
            schema: public schema, `Dataset.columns`: axes get its descriptions, and dotted lines at its bounds.

        Returns:
            The axes.

        Raises:
            ValueError: a column that the model does not have, or more than two.
            bursar.MissingDependencyError: matplotlib is not installed.
        """
        shown = self._components(columns)
        return put_schema(plot_mixture(shown, self._title(), ax), shown.names, schema)

    def to_sklearn(self) -> Any:
        """Return a fitted `sklearn.mixture.GaussianMixture` with these parameters, without the background.

        scikit-learn has none, so densities there are those of the Gaussians alone. Nor has it transforms: features are
        those of the model's space, named such as "log1p(income)".

        Raises:
            bursar.Error: scikit-learn is not installed.
        """
        mixture = require("sklearn.mixture")
        model = mixture.GaussianMixture(self.n_components, covariance_type=self.covariance_type)
        model.weights_, model.means_ = self.weights_.copy(), self.means_.copy()
        model.covariances_ = self.covariances_.copy()
        model.precisions_cholesky_ = _precisions_cholesky(self.covariances_, self.covariance_type)
        model.precisions_ = _precisions(model.precisions_cholesky_, self.covariance_type)
        model.converged_, model.n_iter_, model.n_features_in_ = True, self.iterations or 0, self.n_features
        return named_features(model, names_in_model(self.columns, self.transforms))

    def _components(self, columns: str | Sequence[str] | None) -> Components:
        """Return the parts of the picture on one or two columns.

        Raises:
            ValueError: a column that the model does not have, or more than two.
        """
        places = chosen(self.columns, self.n_features, columns)
        names = feature_names(self.columns, self.n_features)
        matrices = reshaped_covariances(
            self.covariances_, self.weights_, self.n_features, given=self.covariance_type, wanted="full"
        )
        return Components(
            names=tuple(names[place] for place in places),
            weights=self.weights_,
            centres=self.means_[:, places],
            covariances=matrices[:, places][:, :, places],
            errors=None if self.mean_errors_ is None else self.mean_errors_[:, places],
            transforms=tuple(self.transforms[place] for place in places) if self.transforms else (),
        )

    def _variances(self) -> FloatArray:
        """Return the variance of each column in each component, (k, d)."""
        return reshaped_covariances(
            self.covariances_, self.weights_, self.n_features, given=self.covariance_type, wanted="diag"
        )

    def _log_densities(self, X: Any) -> tuple[FloatArray, FloatArray]:
        rows = into_model(as_rows(X, self.columns, self.n_features), self.transforms)
        return log_mixture_density(rows, self.weights_, self.means_, self.covariances_, self.covariance_type)

    def _intervals(self, z: float) -> tuple[Sequence[Interval], Sequence[str]]:
        if self.mean_errors_ is None:
            return (), (NO_ERRORS,)
        names = feature_names(self.columns, self.n_features)
        means = spread_intervals("means_", "mean", names, self.means_, self.mean_errors_, z)
        if self.separation is None:
            return means, (NO_WEIGHTS, "covariances_: gradient EM has no errors of them")
        pairs = zip(self.weights_, self.separation.weight_errors, strict=True)
        weights = [within(f"weights_[{k}]", *pair, z, f"weight of component {k}") for k, pair in enumerate(pairs)]
        if self.covariance_type != "spherical":
            errors = self.separation.entry_errors(self.covariances_)
            matrices, deviations = (
                reshaped_covariances(one, self.weights_, self.n_features, given=self.covariance_type, wanted="full")
                for one in (self.covariances_, errors)
            )
            entries = covariance_intervals(names, matrices, deviations, z, self.covariance_type)
            return [*weights, *means, *(row for row, _ in entries)], ()
        spheres = zip(self.covariances_, self.separation.covariance_errors, strict=True)
        return [
            *weights,
            *means,
            *(positive(f"covariances_[{k}]", *pair, z, f"variance of component {k}") for k, pair in enumerate(spheres)),
        ], ()

    def _parameters(self) -> dict[str, FloatArray]:
        names = feature_names(self.columns, self.n_features)
        weight_errors = {} if self.weight_errors_ is None else {"weight_errors_": self.weight_errors_}
        return {
            "weights_": self.weights_,
            **weight_errors,
            **spread("means_", names, self.means_),
            **spread("mean_errors_", names, self.mean_errors_),
            **spread("own_means_", names, self.own_means_ if self.transforms else None),
            **spread("own_medians_", names, self.own_medians_ if self.transforms else None),
        }

    def _title(self) -> str:
        sought = "" if self.separation is None else f" of {self.separation.sought} that were looked for"
        if self.choice is not None:
            sought = f", chosen from {self.choice.least} to {self.choice.numbers[-1]}{self.choice.doubt()}"
        background = f", background {self.background_weight:.2g}" if self.background_weight > 0 else ""
        return (
            f"GaussianMixture: {self.n_components} components{sought}, {self.covariance_type} covariances"
            f"{background}{said_transforms(self.columns, self.transforms)}{origin(self.receipt, dummy=self.dummy_)}"
        )

    def _own_errors(self) -> FloatArray | None:
        """Return errors of `own_means_` by the delta rule, as if variances were exact."""
        return None if self.mean_errors_ is None else self.mean_errors_ * slopes(self.own_means_, self.transforms)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        headers, cells = component_table(
            self.columns, self.weights_, self.own_means_, self._own_errors(), self.weight_errors_
        )
        if self.separation is None:
            return headers, cells
        errors = [f"± {error:.1%}" for error in self.separation.covariance_errors]
        return [*headers, "covariance"], [[*row, error] for row, error in zip(cells, errors, strict=True)]


def _frozen_covariances(value: object, covariance_type: CovarianceType, k: int, d: int) -> FloatArray:
    covariances = frozen("covariances_", value, covariance_shape(covariance_type, k, d))
    if covariance_type in ("diag", "spherical"):
        if not (covariances > 0).all():
            raise ValueError("covariances_: every variance must be above 0")
        return covariances
    if not np.allclose(covariances, covariances.swapaxes(-1, -2)):
        raise ValueError("covariances_: every matrix must be symmetric")
    try:
        np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError as error:
        raise ValueError("covariances_: every matrix must be positive definite") from error
    return covariances


def _frozen_bounds(value: object, d: int) -> FloatArray:
    bounds = frozen("bounds_", value, (2, d))
    if not np.all(bounds[0] < bounds[1]):
        raise ValueError("bounds_: every lower bound must be below the upper one")
    return bounds


def _normals(
    rng: np.random.Generator,  # noqa: TID251 - a caller's generator on released values
    mean: FloatArray,
    factor: FloatArray,
    count: int,
    box: FloatArray | None,
) -> FloatArray:
    """Return rows of one Gaussian, (count, d); those outside the box are drawn again, and at last moved to its side."""
    rows = mean + _colour(rng.standard_normal((count, len(mean))), factor)
    if box is None:
        return rows
    for _ in range(_DRAWS):
        outside = np.any((rows < box[0]) | (rows > box[1]), axis=1)
        if not np.any(outside):
            break
        rows[outside] = mean + _colour(rng.standard_normal((int(outside.sum()), len(mean))), factor)
    return np.clip(rows, box[0], box[1])


def _colour(normals: FloatArray, factor: FloatArray) -> FloatArray:
    """Return white noise (n, d) transformed to the covariance factor factor^T; a factor of shape (d,) is diagonal."""
    return normals * factor if factor.ndim == 1 else normals @ factor.T


def _precisions_cholesky(covariances: FloatArray, covariance_type: CovarianceType) -> FloatArray:
    """Return upper triangular U with U U^T = covariance^-1, as scikit-learn stores it; 1 / deviation for variances."""
    if covariance_type in ("diag", "spherical"):
        return 1 / np.sqrt(covariances)
    return np.linalg.inv(np.linalg.cholesky(covariances)).swapaxes(-1, -2)


def _precisions(precisions_cholesky: FloatArray, covariance_type: CovarianceType) -> FloatArray:
    if covariance_type in ("diag", "spherical"):
        return np.square(precisions_cholesky)
    return precisions_cholesky @ precisions_cholesky.swapaxes(-1, -2)
