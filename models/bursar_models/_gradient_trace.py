"""Trace of a gradient EM: its iterates, and the expected error of the estimate from noise and sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from bursar_models.arrays import FloatArray, frozen

GradientVariant = Literal["recentred", "truncated", "radial", "clipped", "dp_em"]
"""Method that bounds a row's part of a gradient."""

GRADIENT_VARIANTS: tuple[GradientVariant, ...] = get_args(GradientVariant)
"""All variants."""


@dataclass(frozen=True, eq=False)
class RadiusCounts:
    """Noisy numbers of rows by their distance from the model: the release that tests its form.

    If the model is right, squared distances of a component's rows, over its variance, have a chi-squared law.

    Attributes:
        levels: shares of rows that are expected below the upper ends of all cells but the last, shape (cells - 1,),
            ascending within 0 and 1.
        counts: numbers of rows in the cells, shape (cells,).
        count_std: standard deviation of the noise on each.
        size: degrees of freedom: number of columns of a mixture, 1 for regressions.
        laplace: True if the noise has a Laplace law, for pure epsilon; False for a normal one.

    Raises:
        ValueError: a field with a wrong shape or out of its range.
    """

    levels: FloatArray
    counts: FloatArray
    count_std: float
    size: int
    laplace: bool = False

    def __post_init__(self) -> None:
        levels = frozen("levels", self.levels)
        if levels.ndim != 1 or not (np.diff(levels, prepend=0.0, append=1.0) > 0).all():
            raise ValueError("levels: expected ascending numbers above 0 and below 1")
        if not 0 < self.count_std < np.inf:
            raise ValueError(f"count_std: expected a number above 0, got {self.count_std}")
        if not self.size >= 1:
            raise ValueError(f"size: expected at least 1, got {self.size}")
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "counts", frozen("counts", self.counts, (len(levels) + 1,)))


@dataclass(frozen=True, eq=False, repr=False)
class GradientTrace:
    """Trace of a gradient EM of T steps (Wang et al. 2020, corrected). Everything in it is released or public.

    k components have p numbers each: those of the d columns, and for regressions the intercept as one more. The arrays
    are read-only copies.

    Attributes:
        variant: method that bounded a row's part of a gradient.
        iterates: shape (T + 1, k, p), in the data's own units: the start, then the result of each step.
        errors: approximate standard errors of the estimate, shape (k, p), not negative, from the noise of the releases
            and the sampling of the rows together. They are computed from public numbers and released iterates, through
            the linearised last steps. They do not cover a wrong model, a local optimum, or the bias of clipping.
        scales: radius, or s, of each step, shape (T,), not negative, in half-widths of the bounds (of regressions times
            the target's).
        step_size: eta; 1 is a full EM step.
        averaged: number of last iterates whose mean is the estimate, 1 to T + 1.
        radii: release that tests the model's form: `model.goodness`. None for models of older servers.

    Raises:
        ValueError: a field with a wrong shape or out of its range.
    """

    variant: GradientVariant
    iterates: FloatArray
    errors: FloatArray
    scales: FloatArray
    step_size: float
    averaged: int
    radii: RadiusCounts | None = None

    def __post_init__(self) -> None:
        if self.variant not in GRADIENT_VARIANTS:
            raise ValueError(f"variant: expected one of {GRADIENT_VARIANTS}, got {self.variant!r}")
        iterates = frozen("iterates", self.iterates)
        if iterates.ndim != 3 or 0 in iterates.shape:
            raise ValueError(f"iterates: expected shape (T + 1, k, p), got {iterates.shape}")
        steps = len(iterates) - 1
        errors, scales = frozen("errors", self.errors, iterates.shape[1:]), frozen("scales", self.scales, (steps,))
        for name, values in (("errors", errors), ("scales", scales)):
            if not (values >= 0).all():
                raise ValueError(f"{name}: every entry must be at least 0")
        if not 0 < self.step_size < np.inf:
            raise ValueError(f"step_size: expected a number above 0, got {self.step_size}")
        if not 1 <= self.averaged <= steps + 1:
            raise ValueError(f"averaged: expected 1 to {steps + 1}, got {self.averaged}")
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "iterates", iterates)
        object.__setattr__(self, "errors", errors)
        object.__setattr__(self, "scales", scales)

    @property
    def iterations(self) -> int:
        """Number of noisy gradient steps, T."""
        return len(self.scales)

    def moves(self) -> FloatArray:
        """Return the root mean square move of each step, shape (T,), in units of `errors`.

        Where the last ones are about 1 or less, the steps mostly follow the noise. Where they are far above it, more
        steps would help.
        """
        unit = np.where(self.errors > 0, self.errors, np.inf)
        return np.asarray(np.sqrt(np.square(np.diff(self.iterates, axis=0) / unit).mean(axis=(1, 2))))

    def __repr__(self) -> str:
        return (
            f"GradientTrace: {self.iterations} {self.variant} steps of size {self.step_size:g}, "
            f"the last {self.averaged} averaged"
        )


def checked_trace(trace: GradientTrace | None, shape: tuple[int, int]) -> None:
    """Check that a trace belongs to the model that has it.

    Raises:
        ValueError: its iterates have another shape than (T + 1, *shape).
    """
    if trace is not None and trace.errors.shape != shape:
        raise ValueError(f"trace: expected iterates of shape (T + 1, {shape[0]}, {shape[1]})")
