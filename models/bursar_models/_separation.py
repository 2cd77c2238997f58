"""Result of a search for separated components beside the mixture: number sought, and errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar_models._gradient_trace import RadiusCounts
from bursar_models.arrays import FloatArray, frozen


@dataclass(frozen=True, eq=False, repr=False)
class Separation:
    """Result of a search for separated components (Kamath et al. 2019, adapted). All of it is released or public.

    The errors are approximate standard errors from the noise of the releases and the sampling of the rows together.
    They are computed from public numbers and released values. They do not cover a component that was not found, rows
    that were counted for the wrong component, or a wrong model. The arrays are read-only copies.

    Attributes:
        sought: number of components sought, at least the number found.
        mean_errors: standard errors of the means, shape (found, d), not negative, in the data's own units.
        weight_errors: standard errors of the weights, shape (found,), not negative.
        covariance_errors: relative errors of the covariances, shape (found,), not negative: Frobenius norm of a
            covariance's error over that of the covariance.
        radii: release that tests the mixture's form: `model.goodness`. None by sample and aggregate.

    Raises:
        ValueError: a field with a wrong shape or out of its range.
    """

    sought: int
    mean_errors: FloatArray
    weight_errors: FloatArray
    covariance_errors: FloatArray
    radii: RadiusCounts | None = None

    def __post_init__(self) -> None:
        means = frozen("mean_errors", self.mean_errors)
        if means.ndim != 2:
            raise ValueError(f"mean_errors: expected shape (found, d), got {means.shape}")
        found = len(means)
        errors = {
            "mean_errors": means,
            "weight_errors": frozen("weight_errors", self.weight_errors, (found,)),
            "covariance_errors": frozen("covariance_errors", self.covariance_errors, (found,)),
        }
        for name, values in errors.items():
            if not (values >= 0).all():
                raise ValueError(f"{name}: every entry must be at least 0")
            # A frozen dataclass can store its cleaned fields in no other way.
            object.__setattr__(self, name, values)
        if not self.sought >= found:
            raise ValueError(f"sought: expected at least {found}, as many as were found, got {self.sought}")

    def uneven(self, weights: FloatArray, covariance_type: str) -> float:
        """Return about the sum of squared relative errors of a covariance's axes, (k,) weights averaged.

        Spheres err in their scale, which moves all d axes at once: d / 2 times as much in squares' law.
        """
        d = int(self.mean_errors.shape[1])
        factor = d * (1.0 + d / 2.0 if covariance_type == "spherical" else 1.0)
        return factor * float(np.sum(weights * np.square(self.covariance_errors)))

    def __repr__(self) -> str:
        return f"Separation: {len(self.mean_errors)} components of {self.sought} that were looked for"


def checked_separation(separation: Separation | None, shape: tuple[int, int]) -> None:
    """Check that the errors belong to the model that has them.

    Raises:
        ValueError: the errors are those of another number of components or features than `shape` (k, d).
    """
    if separation is not None and separation.mean_errors.shape != shape:
        raise ValueError(f"separation: expected mean_errors of shape {shape}, got {separation.mean_errors.shape}")
