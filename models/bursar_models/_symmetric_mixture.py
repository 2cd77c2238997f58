"""Released mixture of two Gaussians that are mirror images of each other (Wang et al. 2020, equation 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from bursar_models._describe import origin, with_errors
from bursar_models._estimator import Estimator
from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._goodness import Goodness, trace_goodness
from bursar_models._gradient_trace import GradientTrace, checked_trace
from bursar_models._intervals import NO_TRACE, Interval, plain
from bursar_models._plot import chosen, feature_names, plot_mixture, put_schema
from bursar_models._portable import Model
from bursar_models._tables import Output
from bursar_models.arrays import FloatArray, IntArray, checked_columns, frozen
from bursar_models.budget import Receipt, ReleaseNoise
from bursar_models.schema import Column
from bursar_models.text import TableText


@dataclass(frozen=True, eq=False, repr=False)
class SymmetricMixture(TableText, Estimator, Model):
    """Symmetric mixture, y = c + z b + noise with z = 1 or -1 equally likely, on d features in the data's own units.

    b and -b are the same model: the start decides which of them is called b. Everything in it is released or public.
    The arrays are read-only copies.

    Attributes:
        beta_: half the difference b of the two means, shape (d,).
        centre_: public point c between the two means, shape (d,).
        noise_std_: standard deviation of the noise in each column, shape (d,), positive.
        columns: names of the features in their order; empty if they have none.
        receipt: receipt of its debit; None for a model that does not come from a server.
        noise: the noise of every kind of release that went into the model.
        iterations: number of noisy gradient steps.
        n_rows: estimated number of rows, from released counts.
        trace: its iterates and errors; None unless gradient EM made the model.
        dummy_: True if a dry run made it from synthetic rows; its numbers carry no information.

    Raises:
        ValueError: a field with a wrong shape, an entry that is not finite, or a standard deviation that is not
            positive.

    Example:
        >>> model = bursar.SymmetricMixture(beta_=[2], centre_=[10], noise_std_=[1], columns=("age",))
        >>> model.means_.tolist()
        [[12.0], [8.0]]
        >>> model.predict({"age": [11, 9]}).tolist()
        [0, 1]
    """

    _task = "density_estimator"

    beta_: FloatArray
    centre_: FloatArray
    noise_std_: FloatArray
    columns: tuple[str, ...] = ()
    receipt: Receipt | None = None
    noise: tuple[ReleaseNoise, ...] = ()
    iterations: int | None = None
    n_rows: float | None = None
    trace: GradientTrace | None = None
    dummy_: bool = False

    def __post_init__(self) -> None:
        beta = frozen("beta_", self.beta_)
        if beta.ndim != 1 or not len(beta):
            raise ValueError(f"beta_: expected shape (d,) with d >= 1, got {beta.shape}")
        std = frozen("noise_std_", self.noise_std_, beta.shape)
        if not ((std > 1e-153) & (std < 1e153)).all():  # whose squares are floats
            raise ValueError("noise_std_: every standard deviation must be above 0, and its square a number")
        checked_trace(self.trace, (2, len(beta)))
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "beta_", beta)
        object.__setattr__(self, "centre_", frozen("centre_", self.centre_, beta.shape))
        object.__setattr__(self, "noise_std_", std)
        object.__setattr__(self, "columns", checked_columns(self.columns, len(beta)))

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return len(self.beta_)

    @property
    def means_(self) -> FloatArray:
        """Means of the two components, c + b and c - b, shape (2, d)."""
        return self.mixture.means_

    @property
    def weights_(self) -> FloatArray:
        """Probabilities of the two components, shape (2,): a half each."""
        return self.mixture.weights_

    @property
    def beta_errors_(self) -> FloatArray | None:
        """Approximate standard error of each number of b, shape (d,): see `GradientTrace`. None without a trace."""
        return None if self.trace is None else self.trace.errors[0]

    @cached_property
    def mixture(self) -> GaussianMixture:
        """Same model as a mixture of two Gaussians with diagonal covariances."""
        return GaussianMixture(
            weights_=np.full(2, 0.5),
            means_=np.stack([self.centre_ + self.beta_, self.centre_ - self.beta_]),
            covariances_=np.tile(np.square(self.noise_std_), (2, 1)),
            covariance_type="diag",
            columns=self.columns,
            receipt=self.receipt,
            noise=self.noise,
            iterations=self.iterations,
            n_rows=self.n_rows,
            trace=self.trace,
            dummy_=self.dummy_,
        )

    def score_samples(self, X: Any) -> FloatArray:
        """Return the natural logarithm of the density at each row, shape (n,).

        Args:
            X: array-like of shape (n, d), or a table that has the model's columns by name.
        """
        return self.mixture.score_samples(X)

    def score(self, X: Any) -> float:
        """Return the mean log-likelihood per row, in nats; `X` as in `score_samples`, at least one row."""
        return self.mixture.score(X)

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probability of z = 1 and of z = -1 for each row, shape (n, 2); `X` as in `score_samples`."""
        return self.mixture.predict_proba(X)

    def predict(self, X: Any) -> IntArray:
        """Return the component of each row, shape (n,): 0 for z = 1, 1 for z = -1; `X` as in `score_samples`."""
        return self.mixture.predict(X)

    @overload
    def sample(
        self,
        n: int = 1,
        random_state: int | np.random.Generator | None = None,  # noqa: TID251 - a caller's generator on released values
        *,
        output: None = None,
    ) -> tuple[FloatArray, IntArray]: ...

    @overload
    def sample(
        self,
        n: int = 1,
        random_state: int | np.random.Generator | None = None,  # noqa: TID251 - a caller's generator on released values
        *,
        output: Output,
    ) -> Any: ...

    def sample(
        self,
        n: int = 1,
        random_state: int | np.random.Generator | None = None,  # noqa: TID251 - a caller's generator on released values
        *,
        output: Output | None = None,
    ) -> Any:
        """Draw synthetic rows (n, d) and the component of each (n,), or a table of both.

        Args:
            n: number of rows, at least 1.
            random_state: seed or numpy generator; None draws fresh randomness. The model is released, so this protects
                nothing.
            output: None for the two arrays; "pandas", "polars", "arrow" or "dict" for a table, as in
                `GaussianMixture.sample`.

        Raises:
            ValueError: `n` is below 1, or `output` is unknown.
            bursar.MissingDependencyError: the library of `output` is not installed.
        """
        return self.mixture.sample(n, random_state, output=output) if output else self.mixture.sample(n, random_state)

    def to_sklearn(self) -> Any:
        """Return a fitted `sklearn.mixture.GaussianMixture` of the two components.

        Raises:
            bursar.Error: scikit-learn is not installed.
        """
        return self.mixture.to_sklearn()

    def plot(self, ax: Any = None, *, columns: str | Sequence[str] | None = None, schema: Sequence[Column] = ()) -> Any:
        """Draw the two components as `GaussianMixture.plot` does, and the centre between them.

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
        shown = self.mixture._components(columns)
        ax = put_schema(plot_mixture(shown, self._title(), ax), shown.names, schema)
        places = chosen(self.columns, self.n_features, columns)
        x, y = (self.centre_[places[0]], self.centre_[places[1]] if len(places) > 1 else 0.0)
        ax.plot(x, y, "+", color="0.15", markersize=10, clip_on=False)
        return ax

    @property
    def goodness(self) -> Goodness | None:
        """Implement `Model.goodness`."""
        return trace_goodness(self.trace)

    def _intervals(self, z: float) -> tuple[Sequence[Interval], Sequence[str]]:
        if self.beta_errors_ is None:
            return (), (NO_TRACE,)
        names = feature_names(self.columns, self.n_features)
        pairs = zip(names, self.beta_, self.beta_errors_, strict=True)
        found = [
            plain(f"beta_.{name}", b, error, z, f"half the means' difference of {name!r}") for name, b, error in pairs
        ]
        return found, ("noise_std_: gradient EM has no error of it",)

    def _parameters(self) -> dict[str, FloatArray]:
        return self.mixture._parameters()

    def _title(self) -> str:
        return f"SymmetricMixture: centre +- b{origin(self.receipt, dummy=self.dummy_)}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        names = self.columns or tuple(f"x{j}" for j in range(self.n_features))
        errors = None if self.beta_errors_ is None else self.beta_errors_[:, None]
        cells = zip(names, self.centre_, with_errors(self.beta_[:, None], errors), self.noise_std_, strict=True)
        return ["column", "centre", "b", "noise"], [[n, f"{c:.4g}", b, f"{s:.4g}"] for n, c, (b,), s in cells]
