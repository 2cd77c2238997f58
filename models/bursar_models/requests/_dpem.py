"""The request for a mixture of Gaussians, or k-means, by differentially private EM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeAlias, overload

from typing_extensions import TypeVar

from bursar_models._density import CovarianceType
from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._kmeans import KMeans
from bursar_models.budget import Receipt, positive
from bursar_models.checks import MAX_COUNT, MAX_SEED, Whole, names, whole
from bursar_models.errors import InvalidRequestError
from bursar_models.requests._request import Request
from bursar_models.requests._starts import GaussianPrior, GivenStart, RandomStart
from bursar_models.requests._transforms import Transforms

Start: TypeAlias = Literal["splitting"] | RandomStart | GivenStart | GaussianMixture | KMeans | Receipt | int
"""Start of EM: private splitting, a public place, or an earlier release, its receipt or its entry."""

Components: TypeAlias = int | tuple[int, int]
"""Number of components, or the least and the largest number that a fit may choose."""

Mode: TypeAlias = Literal["mixture", "kmeans"]
ModeT = TypeVar("ModeT", bound=Mode, default=Literal["mixture"], covariant=True)


def _components(field: str, value: object) -> Components:
    """Return a number, or the least and the largest one. Raises InvalidRequestError."""
    if not isinstance(value, Sequence):
        return whole(field, value, 1, MAX_COUNT)
    if isinstance(value, str) or len(value) != 2:
        raise InvalidRequestError.of(field, f"must be a whole number or the least and the largest, got {value!r}")
    least, largest = (whole(field, one, 1, MAX_COUNT) for one in value)
    if not least <= largest:
        raise InvalidRequestError.of(field, f"must have the least number first, got {value!r}")
    return least, largest


def _start(field: str, value: object) -> object:
    """Return a start. Raises InvalidRequestError."""
    match value:
        case "splitting" | RandomStart() | GivenStart() | GaussianMixture() | KMeans() | Receipt():
            return value
        case int():
            return whole(field, value, 1, MAX_SEED)
    expected = "'splitting', a RandomStart, a GivenStart, an earlier model or receipt, or its entry"
    raise InvalidRequestError.of(field, f"must be {expected}, got {type(value).__name__}")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DPEM(Request, Generic[ModeT]):
    """Fit a mixture of Gaussians, or cluster centres, by differentially private EM (Park et al. 2016, corrected).

    The fit returns a `GaussianMixture`, or a `KMeans` for mode="kmeans".

    Attributes:
        n_components: number of components; or the least and the largest, such as `(1, 10)`, between which the fit
            chooses from what it releases, at the price of the largest. Not for k-means.
        columns: numeric columns in the order that the model has them; None for all that are never null.
        covariance_type: shape of the covariances; None is "full". Not for k-means.
        estimator: "ml" for maximum likelihood, "map" for maximum a posteriori.
        prior: hyperparameters for estimator="map"; None leaves them to the server.
        mode: "mixture", or "kmeans" for hard assignments to the nearest centre.
        moments: "recentred" about the released means, or the paper's "fixed_origin".
        background: "on" for a uniform component over the public box, for rows that no Gaussian explains; "off" for
            means and covariances that follow such rows. None is "on", but "off" for k-means and moments="fixed_origin".
        iterations: number of noisy steps, the start's included; None lets the server choose from public numbers.
        start: where EM starts: "splitting", which is private, a `RandomStart`, a `GivenStart`, or an earlier model, its
            receipt or its entry. A `GaussianMixture` of another fit is sent as numbers. Starts cost nothing.
        transform: by column, "log1p" to fit log(1 + x) in place of the column, "none" for the column itself, such as
            `{"income": "log1p"}`; None, and columns left out: what the owner declared. The model keeps its numbers in
            the transformed space, and answers in the columns' own units.
        clip_radius: radius of the public ball to which rows are clipped, in half-widths of a column's bounds (for
            spherical covariances and k-means: the largest half-width); None for the ball that holds the whole box.

    Raises:
        InvalidRequestError: an argument is outside its range.

    Example:
        >>> request = bursar.DPEM(n_components=2, columns=["height", "weight"])
        >>> request
        bursar.DPEM(n_components=2, columns=['height', 'weight'])
    """

    n_components: Annotated[Components, _components]
    columns: Annotated[Sequence[str] | None, names] = None
    covariance_type: CovarianceType | None = None
    estimator: Literal["ml", "map"] = "ml"
    prior: GaussianPrior | None = None
    # The type checker has the default from the type parameter; the value is the same.
    mode: ModeT = "mixture"  # type: ignore[assignment]
    moments: Literal["recentred", "fixed_origin"] = "recentred"
    background: Literal["on", "off"] | None = None
    iterations: Annotated[int | None, Whole(1, MAX_COUNT)] = None
    start: Annotated[Start, _start] = "splitting"
    transform: Transforms = None
    clip_radius: Annotated[float | None, positive] = None

    @overload
    def result_type(self: DPEM[Literal["mixture"]]) -> type[GaussianMixture]: ...
    @overload
    def result_type(self: DPEM[Literal["kmeans"]]) -> type[KMeans]: ...
    @overload
    def result_type(self) -> type[GaussianMixture] | type[KMeans]: ...
    def result_type(self) -> type[Any]:
        """Return the class of the fit's result."""
        return KMeans if self.mode == "kmeans" else GaussianMixture
