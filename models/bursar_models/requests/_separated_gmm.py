"""The request for a mixture of separated Gaussians, found by private splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models.budget import positive
from bursar_models.checks import MAX_COUNT, MAX_SEED, Whole, names
from bursar_models.errors import InvalidRequestError
from bursar_models.requests._request import Request
from bursar_models.requests._transforms import Transforms

ColumnUnits: TypeAlias = Literal["common", "bounds"]
"""Unit of distances: the data's, or every column's half-width."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SeparatedGMM(Request):
    """Find Gaussians that lie apart, and estimate each (Kamath et al. 2019, made practical).

    Rows are split in two where a wide gap is found, and each part again, down to single components. The search needs
    no start and no luck, but components that are far enough apart and have enough rows: a preview says whether they
    do. If fewer components than requested are found, those are the result: a `GaussianMixture`.

    Attributes:
        n_components: k, the largest number of components to look for, 1 to 32.
        sigma_min: least standard deviation of a component in any direction, as far as you know without the rows. In the
            data's own units; with units="bounds" in half-widths of the columns' bounds.
        sigma_max: greatest standard deviation of a component in any direction, in the same units. Wrong bounds cost
            accuracy, never privacy.
        columns: numeric columns in the order that the model has them; None for all that are never null.
        radius: R, radius of the ball about the middle of the bounds in which all means lie, in the same units. None
            takes it from the bounds.
        min_weight: least share of the rows in a component, as far as you know; None is 1 / (2 k).
        covariance_type: shape of each covariance: "full", "diag" or "spherical". None is "full" for the variant
            "recursive", and "spherical" for the others.
        separation: least distance of two means, as far as you know, in the same units. It only divides the spend. None
            is 6 times the geometric mean of `sigma_min` and `sigma_max`.
        variant: "recursive"; "easy", algorithm 1 of the paper, for components that are all equally far apart; or
            "sample_and_aggregate", section 6 of the paper, for comparison, which needs covariance_type="spherical".
        search: "slabs" between parallel planes, or "balls" in the space of the principal directions, for groups that
            others surround.
        estimator: "em" for noisy EM steps from the components that were found, or "clusters" as in the paper: every
            row counts for the component it was assigned to. None is "em" for the variant "recursive", and "clusters"
            for the others; "sample_and_aggregate" always averages its blocks' answers.
        units: "common" measures distances as the data do; "bounds" takes every column's half-width as its unit.
        transform: by column, "log1p" to fit log(1 + x) in place of the column, "none" for the column itself; None, and
            columns left out: what the owner declared. Distances are then those of the transformed values.
        public_seed: seed of the directions in which splits are looked for, 0 to 2^64 - 1. It is part of the request
            and protects nothing.

    Raises:
        InvalidRequestError: an argument is outside its range, or arguments contradict each other.

    Example:
        >>> bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=20)
        bursar.SeparatedGMM(n_components=2, sigma_min=1.0, sigma_max=20.0)
    """

    n_components: Annotated[int, Whole(1, MAX_COUNT)]
    sigma_min: Annotated[float, positive]
    sigma_max: Annotated[float, positive]
    columns: Annotated[Sequence[str] | None, names] = None
    radius: Annotated[float | None, positive] = None
    min_weight: Annotated[float | None, positive] = None
    covariance_type: Literal["full", "diag", "spherical"] | None = None
    separation: Annotated[float | None, positive] = None
    variant: Literal["recursive", "easy", "sample_and_aggregate"] = "recursive"
    search: Literal["slabs", "balls"] = "slabs"
    estimator: Literal["em", "clusters"] | None = None
    units: ColumnUnits = "common"
    transform: Transforms = None
    public_seed: Annotated[int, Whole(0, MAX_SEED)] = 0

    def _check(self) -> None:
        if not self.sigma_min < self.sigma_max:
            text = f"must be above sigma_min, {self.sigma_min!r}, got {self.sigma_max!r}"
            raise InvalidRequestError.of("sigma_max", text)
        if self.variant == "sample_and_aggregate" and self.covariance_type not in (None, "spherical"):
            raise InvalidRequestError.of("covariance_type", 'must be "spherical" for variant="sample_and_aggregate"')
        if self.min_weight is not None and not self.min_weight * self.n_components <= 1:
            text = f"must be 1 / n_components or less, since all weights together are 1, got {self.min_weight!r}"
            raise InvalidRequestError.of("min_weight", text)

    def result_type(self) -> type[GaussianMixture]:
        """Return the class of the fit's result."""
        return GaussianMixture
