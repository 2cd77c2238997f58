"""Released cluster centres, with scikit-learn's names and shapes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from bursar_models._bootstrap import decoding_errors
from bursar_models._cluster_report import ClusterReport, checked_report, report_intervals, report_means
from bursar_models._decoding import Decoded
from bursar_models._describe import component_table, origin, with_errors
from bursar_models._estimator import Estimator, named_features
from bursar_models._intervals import (
    CELLS,
    CENTRES,
    NO_ERRORS,
    REPLICATES,
    Interval,
    Intervals,
    positive,
    share,
    two_sided,
)
from bursar_models._intervals import spread as spread_intervals
from bursar_models._plot import Components, chosen, feature_names, plot_centres, put_schema
from bursar_models._portable import Model
from bursar_models._tables import Output, as_table, spread
from bursar_models.arrays import FloatArray, IntArray, as_rows, check_centres, checked_columns, frozen, frozen_weights
from bursar_models.budget import Receipt, ReleaseNoise
from bursar_models.optional import require
from bursar_models.schema import Column
from bursar_models.text import harmless, html_table, text_table
from bursar_models.transforms import (
    Transform,
    checked_transforms,
    into_model,
    into_units,
    names_in_model,
    said_transforms,
)

if TYPE_CHECKING:
    from bursar_models._sketch import Sketch


@dataclass(frozen=True, eq=False, repr=False)
class KMeans(Estimator, Model):
    """Model of `k` cluster centres on `d` features. All of it is released or public.

    The features are the columns in their own units or, with a transform, log(1 + x) of them: that is the model's space,
    and centres, variances and distances are numbers of it. Rows that go in are in the columns' own units.

    The arrays are read-only copies. Names and shapes are those of `sklearn.cluster.KMeans`.

    Attributes:
        cluster_centers_: centres of the clusters, shape (k, d).
        weights_: share of the rows in each cluster, shape (k,), non-negative, sum 1.
        variances_: mean squared distance of a cluster's rows to its centre, per column, shape (k,), non-negative.
        columns: names of the features in their order; empty if they have none.
        receipt: receipt of its debit; None for a model that does not come from a server.
        noise: the noise of every kind of release that went into the model.
        iterations: number of noisy steps.
        n_rows: estimated number of rows: public under REPLACE_ONE, a sum of noisy counts under ADD_REMOVE_ONE.
        sketch: sketch from which it was decoded, for other decodings; None for a model without one.
        dummy_: True if a dry run made it from synthetic rows; its numbers carry no information.
        transforms: transform of each column, "none" or "log1p"; () if none has one.
        report: what was released of the rows nearest to the centres, from which `intervals` are computed; None unless
            FitDPEM made the model, where noise left no room for it, and in releases of older servers.

    Raises:
        ValueError: a field with a wrong shape, an entry that is not finite, or weights that do not sum to 1.

    Example:
        >>> model = bursar.KMeans(cluster_centers_=[[0], [5]], weights_=[0.3, 0.7], variances_=[1, 4], columns=("age",))
        >>> model.predict({"name": ["x", "y"], "age": [0.5, 4]}).tolist()
        [0, 1]
        >>> ax = model.plot()
    """

    _task = "clusterer"

    cluster_centers_: FloatArray
    weights_: FloatArray
    variances_: FloatArray
    columns: tuple[str, ...] = ()
    receipt: Receipt | None = None
    noise: tuple[ReleaseNoise, ...] = ()
    iterations: int | None = None
    n_rows: float | None = None
    sketch: Sketch | None = None
    dummy_: bool = False
    transforms: tuple[Transform, ...] = ()
    report: ClusterReport | None = None

    def __post_init__(self) -> None:
        centres = frozen("cluster_centers_", self.cluster_centers_)
        k, d = check_centres("cluster_centers_", centres)
        variances = frozen("variances_", self.variances_, (k,))
        if not (variances >= 0).all():
            raise ValueError("variances_: every variance must be at least 0")
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "cluster_centers_", centres)
        object.__setattr__(self, "weights_", frozen_weights(self.weights_, k))
        object.__setattr__(self, "variances_", variances)
        object.__setattr__(self, "columns", checked_columns(self.columns, d))
        object.__setattr__(self, "transforms", checked_transforms(self.transforms, d))
        checked_report(self.report, (k, d))

    @property
    def n_clusters(self) -> int:
        """Number of clusters, k."""
        return len(self.cluster_centers_)

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return int(self.cluster_centers_.shape[1])

    @property
    def own_centers_(self) -> FloatArray:
        """Centres in the columns' own units, shape (k, d)."""
        return into_units(self.cluster_centers_, self.transforms)

    def transform(self, X: Any, *, output: Output | None = None) -> Any:
        """Return the distance of each row to each centre, shape (n, k).

        Args:
            X: array-like of shape (n, d), or a table that has the model's columns by name.
            output: "pandas" or "polars" for a DataFrame, "arrow" for a pyarrow Table, "dict" for arrays by name, under
                `get_feature_names_out()`; None for an array, unless `set_output` said otherwise.

        Raises:
            ValueError: X does not fit the model, or another output.
            bursar.MissingDependencyError: the library of `output` is not installed.
        """
        distances = np.sqrt(self._squared_distances(X))
        output = output or getattr(self, "_output", None)
        if output is None:
            return distances
        table = as_table(dict(zip(self.get_feature_names_out(), distances.T, strict=True)), output)
        if output == "pandas" and hasattr(X, "index"):
            table.index = X.index  # as scikit-learn does, so that distances can stand beside their rows
        return table

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Return the names of the distances, "kmeans0" and so on, as scikit-learn has them.

        Args:
            input_features: not used.
        """
        del input_features
        return np.array([f"kmeans{number}" for number in range(self.n_clusters)], dtype=object)

    def set_output(self, *, transform: Output | Literal["default"] | None = None) -> Self:
        """Choose what `transform` returns in a `Pipeline`, and return the model, whose numbers stay as they are.

        Args:
            transform: as `output` of `transform`; "default" for arrays, None changes nothing.
        """
        if transform is not None:
            object.__setattr__(self, "_output", None if transform == "default" else transform)
        return self

    def predict(self, X: Any) -> IntArray:
        """Return the index of the nearest centre of each row, shape (n,); `X` as in `transform`."""
        nearest: IntArray = self._squared_distances(X).argmin(axis=1)
        return nearest

    def score(self, X: Any) -> float:
        """Return the minus the sum of squared distances of the rows to their nearest centres; `X` as in `transform`."""
        return -float(self._squared_distances(X).min(axis=1).sum())

    def to_sklearn(self) -> Any:
        """Return a fitted `sklearn.cluster.KMeans` with these centres, without labels and inertia, which need rows.

        It has no transforms: features are those of the model's space, named such as "log1p(income)".

        Raises:
            bursar.Error: scikit-learn is not installed.
        """
        cluster = require("sklearn.cluster")
        model = cluster.KMeans(self.n_clusters, init=self.cluster_centers_, n_init=1, max_iter=1)
        # Fitting the centres to themselves sets the private fields that `predict` needs; coinciding centres would warn.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(self.cluster_centers_)
        model.cluster_centers_ = self.cluster_centers_.copy()
        # They would describe the centres themselves, not the rows.
        del model.labels_, model.inertia_
        return named_features(model, names_in_model(self.columns, self.transforms))

    def intervals(self, level: float = 0.95, *, replicates: int = REPLICATES, public_seed: int = 0) -> Intervals:
        """Return intervals of centres and weights, of a sketch's also of variances, at no cost to privacy.

        By FitDPEM they are about the means and shares of the rows nearest to the returned centres, in closed form from
        the last release. Of a sketch a bootstrap decodes sketches of rows that are drawn from the released model:
        seconds to minutes on this machine, with a bar on terminals. The same seed gives the same intervals.

        Args:
            level: share of fits in which an interval is meant to contain its target, above 0 and below 1.
            replicates: number of decodings, at least 2.
            public_seed: seed of the bootstrap, at least 0; it protects nothing.

        Raises:
            ValueError: an argument out of its range.
        """
        z, names = two_sided(level), feature_names(self.columns, self.n_features)
        if self.report is not None:
            features = names_in_model(names, self.transforms)
            found, left_out = report_intervals(self.report, self.cluster_centers_, names, z, features)
            return Intervals(level, CELLS, tuple(found), tuple(left_out))
        if self.sketch is None:
            return super().intervals(level)
        model = Decoded(self.weights_, self.cluster_centers_, self.variances_, residual=0.0, mass=1.0)
        errors = decoding_errors(self.sketch, model, mixture=False, replicates=replicates, public_seed=public_seed)
        rows = [
            share(f"weights_[{k}]", weight, error, z, f"share of the rows in cluster {k}")
            for k, (weight, error) in enumerate(zip(self.weights_, errors.weights, strict=True))
        ]
        rows += spread_intervals(
            "cluster_centers_", "centre", names, self.cluster_centers_, errors.centres, z, "cluster"
        )
        rows += [
            positive(f"variances_[{k}]", variance, error, z, f"mean squared distance per column in cluster {k}")
            for k, (variance, error) in enumerate(zip(self.variances_, errors.variances, strict=True))
        ]
        return Intervals(level, CENTRES, tuple(rows))

    def plot(self, ax: Any = None, *, columns: str | Sequence[str] | None = None, schema: Sequence[Column] = ()) -> Any:
        """Draw the centres on two columns, each with a circle at its cluster's root mean square distance per column.

        On one column: the centres, their shares of the rows, and that distance as a bar. Bars on two columns are two
        standard errors about the means of the rows nearest to each centre, if `report` has them.

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
        places = chosen(self.columns, self.n_features, columns)
        names = feature_names(self.columns, self.n_features)
        shown = Components(
            names=tuple(names[place] for place in places),
            weights=self.weights_,
            centres=self.cluster_centers_[:, places],
            covariances=self.variances_[:, None, None] * np.eye(len(places)),
            transforms=tuple(self.transforms[place] for place in places) if self.transforms else (),
        )
        if self.report is not None:
            means, errors = report_means(self.report, self.cluster_centers_)
            shown = replace(shown, means=means[:, places], errors=errors[:, places])
        return put_schema(plot_centres(shown, self._title(), ax), shown.names, schema)

    def _squared_distances(self, X: Any) -> FloatArray:
        rows = into_model(as_rows(X, self.columns, self.n_features), self.transforms)
        return squared_distances(rows, self.cluster_centers_)

    def _intervals(self, z: float) -> tuple[Sequence[Interval], Sequence[str]]:
        del z
        return (), (NO_ERRORS,)

    def _parameters(self) -> dict[str, FloatArray]:
        centres = spread("cluster_centers_", feature_names(self.columns, self.n_features), self.cluster_centers_)
        own = spread("own_centers_", feature_names(self.columns, self.n_features), self.own_centers_)
        return {"weights_": self.weights_, **centres, "variances_": self.variances_, **(own if self.transforms else {})}

    def _title(self) -> str:
        space = said_transforms(self.columns, self.transforms)
        return f"KMeans: {self.n_clusters} clusters{space}{origin(self.receipt, dummy=self.dummy_)}"

    def __repr__(self) -> str:
        return harmless(f"{self._title()}{self._subtitle()}\n{text_table(*self._table())}")

    def _repr_html_(self) -> str:
        return html_table(f"{self._title()}{self._subtitle()}", *self._table())

    def _subtitle(self) -> str:
        return (
            ""
            if self.report is None or self.transforms
            else "; mean: of the rows nearest to it, with one standard error"
        )

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Return headers and cells: one row a cluster, with its weight, its centre, and the mean of a report."""
        headers, cells = component_table(self.columns, self.weights_, self.own_centers_)
        if self.report is None or self.transforms:
            return headers, cells
        means = with_errors(*report_means(self.report, self.cluster_centers_))
        rows = [[*row, *mean] for row, mean in zip(cells, means, strict=True)]
        return [*headers, *(f"mean {name}" for name in headers[1:])], rows


def squared_distances(X: FloatArray, centres: FloatArray) -> FloatArray:
    """Return the squared Euclidean distance of each row (n, d) to each centre (k, d), shape (n, k)."""
    # By differences: |x|^2 - 2 x.c + |c|^2 cancels for clusters far from the origin.
    return np.stack([np.square(X - centre).sum(axis=1) for centre in centres], axis=1)
