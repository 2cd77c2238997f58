"""The request for a mixture, or a regression with something hidden, by differentially private gradient EM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeAlias, overload

import numpy.typing as npt
from typing_extensions import TypeVar

from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._gradient_trace import GradientVariant
from bursar_models._kmeans import KMeans
from bursar_models._regressions import LinearRegression, MixtureOfRegressions
from bursar_models._symmetric_mixture import SymmetricMixture
from bursar_models.budget import positive
from bursar_models.checks import MAX_COUNT, Whole, names, numbers
from bursar_models.errors import InvalidRequestError
from bursar_models.requests._request import Request
from bursar_models.requests._separated_gmm import ColumnUnits
from bursar_models.requests._starts import GivenCoefficients, RandomStart

LatentModel: TypeAlias = Literal[
    "symmetric_mixture", "mixture_of_regressions", "missing_covariates", "gaussian_mixture"
]
"""The models that gradient EM fits."""

GradientEMModel: TypeAlias = SymmetricMixture | MixtureOfRegressions | LinearRegression | GaussianMixture
"""The results of gradient EM."""

GradientStart: TypeAlias = RandomStart | GivenCoefficients | GradientEMModel | KMeans
"""Start of gradient EM: at random, at numbers that the caller gives, or at an earlier model."""

LatentT = TypeVar("LatentT", bound=LatentModel, covariant=True)

MIXTURES = frozenset({"symmetric_mixture", "gaussian_mixture"})
REGRESSIONS = frozenset({"mixture_of_regressions", "missing_covariates"})

_ONLY_OF: dict[str, frozenset[str]] = {
    "columns": MIXTURES,
    "units": MIXTURES,
    "target": REGRESSIONS,
    "features": REGRESSIONS,
    "fit_intercept": frozenset({"mixture_of_regressions"}),
    "n_components": frozenset({"gaussian_mixture", "mixture_of_regressions"}),
    "symmetric": frozenset({"mixture_of_regressions"}),
    "centre": frozenset({"symmetric_mixture"}),
    "paper_weights": frozenset({"symmetric_mixture", "mixture_of_regressions"}),
}
"""Arguments that say something about some models alone."""

_RESULTS: dict[str, type[Any]] = {
    "symmetric_mixture": SymmetricMixture,
    "gaussian_mixture": GaussianMixture,
    "mixture_of_regressions": MixtureOfRegressions,
    "missing_covariates": LinearRegression,
}

_STARTS = {**{model: (kind,) for model, kind in _RESULTS.items()}, "gaussian_mixture": (GaussianMixture, KMeans)}
"""Earlier models that each model may start from."""


def _target(field: str, value: object) -> str:
    """Return the name of the target. Raises InvalidRequestError."""
    if not (isinstance(value, str) and value):
        text = f"is missing: name the numeric column that the regression explains, got {value!r}"
        raise InvalidRequestError.of(field, text)
    return value


def _start(field: str, value: object) -> object:
    """Return a start. Raises InvalidRequestError."""
    match value:
        case RandomStart() | GivenCoefficients() | KMeans():
            return value
        case SymmetricMixture() | GaussianMixture() | MixtureOfRegressions() | LinearRegression():
            return value
    expected = "a RandomStart, a GivenCoefficients, or an earlier model of this kind"
    raise InvalidRequestError.of(field, f"must be {expected}, got {type(value).__name__}")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GradientEM(Request, Generic[LatentT]):
    """Fit a mixture, or a regression with something hidden, by private gradient EM (Wang et al. 2020, corrected).

    Every step sums a bounded gradient over the rows and releases the sum with noise; the number of steps is fixed
    before. The fit returns a `SymmetricMixture`, a `GaussianMixture`, a `MixtureOfRegressions` or a `LinearRegression`,
    as `model` says, with approximate standard errors and its `trace`.

    Attributes:
        model: "symmetric_mixture": two Gaussians at centre + b and centre - b; "gaussian_mixture": `n_components`
            Gaussians, each with one standard deviation in every column; "mixture_of_regressions": each row follows one
            of `n_components` linear regressions; "missing_covariates": one linear regression, in which features that
            the schema calls nullable may be missing.
        columns: numeric columns of a mixture in the order that the model has them; None for all that are never null.
        target: numeric column that a regression explains.
        features: numeric columns that explain the target, in the order that the model has them; None for all but the
            target, in other models than "missing_covariates" without those that may be null.
        n_components: k, number of components of a Gaussian mixture or a mixture of regressions; None is 2.
        symmetric: two regressions b and -b of equal weight without intercept, as in Wang et al. 2020.
        fit_intercept: False for mixtures of regressions through the origin of the data's own units.
        variant: bound of a row's part in a gradient. "recentred": residuals about the released model, clipped to a
            multiple of the released noise level; "radial": Catoni's truncation of their norm; "truncated": algorithm 2
            of the paper, Catoni's truncation of every coordinate; "clipped": algorithm 1, norms of the gradients about
            each component clipped to `scale` in every step; "dp_em": algorithm 3, truncated sums of the M-step itself,
            for mixtures only. None is "recentred", or "radial" for mixtures of regressions with `heavy_tails`.
        heavy_tails: True where rows may lie far out; it changes the default variant only.
        iterations: T, number of noisy gradient steps; None lets the server choose from public numbers.
        step_size: eta of every step; None for full EM steps at first, and shorter ones as parameters settle.
        averaged: number of last iterates whose mean is the estimate; None is the server's choice, 1 takes the last one.
        noise_std: standard deviation of the model's noise if it is known without the rows: in the target's unit, or the
            columns' common unit (with units="bounds" in half-widths of the bounds). None estimates it from released
            sums.
        scale: s of the variants "truncated" and "dp_em", C of "clipped", in half-widths of the bounds (for regressions
            times the target's); None takes it from released and public numbers.
        zeta: failure probability of the variants "truncated" and "dp_em"; None is 0.05.
        tau: bound of a coordinate's second moment in the variants "truncated" and "dp_em", in squared units of `scale`;
            None takes it from released sums. A wrong one costs accuracy, never privacy.
        start: a `RandomStart`, a `GivenCoefficients`, or an earlier model of this kind, whose numbers are sent; for a
            Gaussian mixture any `GaussianMixture` or `KMeans`. None is a private start by splitting for a Gaussian
            mixture, and a random one with public seed 0 for other models.
        centre: point between the two means of a symmetric mixture, array-like of shape (n_columns,), in the data's own
            units; None is the middle of the bounds. It must be known without the rows.
        units: unit of a mixture's distances: "common" is the data's own; "bounds" takes every column's half-width as
            its unit.
        paper_weights: posterior weights as the paper prints them, which lack a factor 2 in the exponent; for symmetric
            models only.

    Raises:
        InvalidRequestError: an argument is outside its range, or says nothing about this model.

    Example:
        >>> bursar.GradientEM(model="mixture_of_regressions", target="weight")
        bursar.GradientEM(model='mixture_of_regressions', target='weight')
    """

    model: LatentT
    columns: Annotated[Sequence[str] | None, names] = None
    target: Annotated[str | None, _target] = None
    features: Annotated[Sequence[str] | None, names] = None
    n_components: Annotated[int | None, Whole(1, MAX_COUNT)] = None
    symmetric: bool = False
    fit_intercept: bool = True
    variant: GradientVariant | None = None
    heavy_tails: bool = False
    iterations: Annotated[int | None, Whole(1, MAX_COUNT)] = None
    step_size: Annotated[float | None, positive] = None
    averaged: Annotated[int | None, Whole(1, MAX_COUNT)] = None
    noise_std: Annotated[float | None, positive] = None
    scale: Annotated[float | None, positive] = None
    zeta: Annotated[float | None, positive] = None
    tau: Annotated[float | None, positive] = None
    start: Annotated[GradientStart | None, _start] = None
    centre: Annotated[npt.ArrayLike | None, numbers] = None
    units: ColumnUnits = "common"
    paper_weights: bool = False

    def _check(self) -> None:
        for name in self.changed():
            models = _ONLY_OF.get(name)
            if models is not None and self.model not in models:
                text = f"is not for model={self.model!r}, but for {', '.join(sorted(models))}; leave {name} out"
                raise InvalidRequestError.of(name, text)
        if self.paper_weights and self.model == "mixture_of_regressions" and not self.symmetric:
            raise InvalidRequestError.of(
                "paper_weights", "is for symmetric models; leave it out, or say symmetric=True"
            )
        if self.model in REGRESSIONS:
            self._check_regression()
        self._check_start()

    def _check_regression(self) -> None:
        if _target("target", self.target) in (self.features or ()):
            text = f"must not have the target, {self.target!r}, which they are to explain"
            raise InvalidRequestError.of("features", text)

    def _check_start(self) -> None:
        if self.start is None or isinstance(self.start, RandomStart | GivenCoefficients):
            return
        kinds = _STARTS[self.model]
        if not isinstance(self.start, kinds):
            expected = " or a ".join(kind.__name__ for kind in kinds)
            text = f"must be a {expected} for model={self.model!r}, got {type(self.start).__name__}"
            raise InvalidRequestError.of("start", text)
        if isinstance(self.start, MixtureOfRegressions) and self.symmetric and not self.start.symmetric:
            raise InvalidRequestError.of("start", "must be a symmetric model for a symmetric one")

    @overload
    def result_type(self: GradientEM[Literal["symmetric_mixture"]]) -> type[SymmetricMixture]: ...
    @overload
    def result_type(self: GradientEM[Literal["gaussian_mixture"]]) -> type[GaussianMixture]: ...
    @overload
    def result_type(self: GradientEM[Literal["mixture_of_regressions"]]) -> type[MixtureOfRegressions]: ...
    @overload
    def result_type(self: GradientEM[Literal["missing_covariates"]]) -> type[LinearRegression]: ...
    @overload
    def result_type(self) -> type[GradientEMModel]: ...
    def result_type(self) -> type[Any]:
        """Return the class of the fit's result."""
        return _RESULTS[self.model]
