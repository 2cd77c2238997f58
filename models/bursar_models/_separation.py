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

    def entry_errors(self, covariances: FloatArray) -> FloatArray:
        """Return standard errors of the entries of covariances (k, d, d), or of variances (k, d), of the same shape.

        A covariance's difference from a sphere was shrunk: `covariance_errors` has the error of the size, and that of
        the part of the shape that was kept. That part follows from both, as the rule of shrinking is known. Errors of
        an entry are in proportion to those of a Wishart matrix, which noise on moments in the covariance's own units
        has, too. Off the diagonal they are those before shrinking.
        """
        d, full = covariances.shape[1], covariances.ndim == 3
        diagonals = np.diagonal(covariances, axis1=1, axis2=2) if full else covariances
        levels, numbers = diagonals.mean(axis=1), d * (d + 1) // 2 if full else d
        squares = np.square(covariances).reshape(len(covariances), -1).sum(axis=1)
        total, shape = np.square(self.covariance_errors) * squares, np.maximum(squares - d * levels**2, 0.0)
        # Shrinking keeps 1 - noise / |rest|^2 of the rest, of which shape = keep^2 |rest|^2 is left.
        noise = (numbers - 1.0 + np.sqrt(2.0 * numbers)) * total
        low, high = np.zeros_like(levels), np.ones_like(levels)
        for _ in range(50):  # bisection, to the last bit: the left side rises with what is kept
            keep = (low + high) / 2.0
            above = noise * keep**2 > (1.0 - keep) * (1.0 + keep * (numbers - 1.0)) * shape
            low, high = np.where(above, low, keep), np.where(above, keep, high)
        keep = np.where(shape > 0, low, 0.0)
        relative = total / (1.0 + keep * (numbers - 1.0)) / levels**2
        kept = relative * (1.0 / d + keep * (1.0 - 1.0 / d))
        if not full:
            return np.asarray(diagonals * np.sqrt(kept)[:, None])
        products = diagonals[:, :, None] * diagonals[:, None, :] + np.square(covariances)
        shares = np.where(np.eye(d) > 0, kept[:, None, None], relative[:, None, None])
        return np.asarray(np.sqrt(shares * products / 2.0))

    def __repr__(self) -> str:
        return f"Separation: {len(self.mean_errors)} components of {self.sought} that were looked for"


def checked_separation(separation: Separation | None, shape: tuple[int, int]) -> None:
    """Check that the errors belong to the model that has them.

    Raises:
        ValueError: the errors are those of another number of components or features than `shape` (k, d).
    """
    if separation is not None and separation.mean_errors.shape != shape:
        raise ValueError(f"separation: expected mean_errors of shape {shape}, got {separation.mean_errors.shape}")
