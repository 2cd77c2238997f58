"""Choice of a number of components by a fit, with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar_models.arrays import FloatArray, frozen

_RULED_OUT = 2.0
"""Standard errors from which a score counts as worse than the chosen one."""

_PRICED = 10.0
"""Score from which a number counts as worse whatever its error: by the usual scale of such criteria, very strong."""


@dataclass(frozen=True, eq=False, repr=False)
class ComponentChoice:
    """Number of components that a fit chose, and the scores of all that it could choose.

    A score is twice a log likelihood of the released sums, with a price for each parameter, as in the Bayesian
    information criterion; it is less that of the chosen number, so that it is 0 there and positive elsewhere. The
    arrays are read-only copies.

    Attributes:
        least: number of components that the first score is of; each later one is of one more.
        scores: shape (c,), non-negative, 0 at the chosen number.
        errors: standard errors of the scores, shape (c,), from noise and sampling.

    Raises:
        ValueError: a field with a wrong shape or out of its range.
    """

    least: int
    scores: FloatArray
    errors: FloatArray

    def __post_init__(self) -> None:
        scores = frozen("scores", self.scores)
        if scores.ndim != 1 or len(scores) == 0:
            raise ValueError(f"scores: expected shape (c,), got {scores.shape}")
        errors = frozen("errors", self.errors, scores.shape)
        if not self.least >= 1:
            raise ValueError(f"least: expected 1 or more, got {self.least}")
        if not (scores.min() == 0 and (errors >= 0).all()):
            raise ValueError("scores: expected non-negative numbers, one of them 0, and errors that are not negative")
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "errors", errors)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of components that the scores are of."""
        return tuple(range(self.least, self.least + len(self.scores)))

    @property
    def chosen(self) -> int:
        """Number with the lowest score."""
        return self.least + int(np.argmin(self.scores))

    @property
    def not_ruled_out(self) -> tuple[int, ...]:
        """Other numbers whose score is below 10 or two standard errors: the released sums do not tell them apart."""
        near = (self.scores < _PRICED) | (self.scores < _RULED_OUT * self.errors)
        return tuple(k for k, one in zip(self.numbers, near, strict=True) if one and k != self.chosen)

    def __str__(self) -> str:
        return f"{self.chosen} components, chosen from {self.least} to {self.numbers[-1]}{self.doubt()}"

    def __repr__(self) -> str:
        return f"ComponentChoice: {self}"

    def doubt(self) -> str:
        """Return the numbers that are not ruled out as text after the chosen one; "" if there is none."""
        others = self.not_ruled_out
        return f" ({', '.join(map(str, others))} not ruled out)" if others else ""
