"""Cells that the start of a mixture ended with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar_models._density import cholesky_factors
from bursar_models.arrays import FloatArray, check_centres, frozen, frozen_weights


@dataclass(frozen=True, eq=False, repr=False)
class StartCells:
    """Gaussians of the start, more than the model's, in the model's space. They are from the same releases.

    The arrays are read-only copies.

    Attributes:
        weights: shape (m,), non-negative, sum 1.
        means: shape (m, d).
        covariances: shape (m, d, d).

    Raises:
        ValueError: a field with a wrong shape or out of its range.
    """

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray

    def __post_init__(self) -> None:
        means = frozen("means", self.means)
        m, d = check_centres("means", means)
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "weights", frozen_weights(self.weights, m))
        object.__setattr__(self, "covariances", frozen("covariances", self.covariances, (m, d, d)))
        try:
            cholesky_factors(self.covariances, "full", m, d)
        except np.linalg.LinAlgError as error:
            raise ValueError("covariances: every one must be positive definite") from error

    def __repr__(self) -> str:
        return f"StartCells: {len(self.means)} Gaussians"
