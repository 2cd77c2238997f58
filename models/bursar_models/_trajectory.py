"""Trajectory of a noisy EM: what its last steps released, and the public parameters of what was summed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar_models.arrays import FloatArray, frozen


@dataclass(frozen=True, eq=False, repr=False)
class TrajectoryStep:
    """Release of one EM step of K components in d columns. Everything in it is released or public.

    Positions z are in the unit ball (see `Trajectory`). A row's share of component k is proportional to the
    exponential of log_scale[k] - |y|^2 / 2 with y = factors[k] (z - means[k]), and u = y / radii[k], clipped to
    length 1. The sums over rows are, in this order, of share, share times u, and share times second moments of u,
    which are |u|^2 for spherical covariances, squares for diagonal ones, else those of the lower triangle by rows,
    with sqrt(2) off the diagonal; tied ones are summed over the components. The background's share comes last. The
    arrays are read-only copies.

    Attributes:
        log_scale: shape (K,), or (K + 1,) with a background, whose density does not depend on the position.
        means: shape (K, d).
        factors: lower triangular matrices, shape (K, d, d).
        radii: clip radii, shape (K,), positive.
        precisions: (a, b, c), by which shares, first and second moments were multiplied; in (0, 1].
        sums: noisy sums.
        noise_std: standard deviation of the noise on each of them, positive.

    Raises:
        ValueError: a field with a wrong shape or out of its range.
    """

    log_scale: FloatArray
    means: FloatArray
    factors: FloatArray
    radii: FloatArray
    precisions: FloatArray
    sums: FloatArray
    noise_std: float

    def __post_init__(self) -> None:
        means = frozen("means", self.means)
        if means.ndim != 2 or 0 in means.shape:
            raise ValueError(f"means: expected shape (K, d), got {means.shape}")
        K, d = means.shape
        log_scale, sums = frozen("log_scale", self.log_scale), frozen("sums", self.sums)
        if log_scale.shape not in ((K,), (K + 1,)):
            raise ValueError(f"log_scale: expected shape ({K},) or ({K + 1},), got {log_scale.shape}")
        if sums.ndim != 1:
            raise ValueError(f"sums: expected one dimension, got {sums.ndim}")
        radii, precisions = frozen("radii", self.radii, (K,)), frozen("precisions", self.precisions, (3,))
        if not (radii > 0).all():
            raise ValueError("radii: every entry must be above 0")
        if not ((precisions > 0) & (precisions <= 1)).all():
            raise ValueError("precisions: every entry must be above 0 and at most 1")
        if not 0 < self.noise_std < np.inf:
            raise ValueError(f"noise_std: expected a number above 0, got {self.noise_std}")
        cleaned = {
            "log_scale": log_scale,
            "means": means,
            "factors": frozen("factors", self.factors, (K, d, d)),
            "radii": radii,
            "precisions": precisions,
            "sums": sums,
        }
        for name, array in cleaned.items():  # a frozen dataclass can store its cleaned fields in no other way
            object.__setattr__(self, name, array)

    @property
    def background(self) -> bool:
        """True with a background."""
        return len(self.log_scale) > len(self.means)


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """Last EM steps of a fit: releases that are paid already, from which intervals are computed.

    A row x, which lies within the bounds, has the position z = (x - centre) / scale, clipped to length 1.

    Attributes:
        centre: middle of the ball, shape (d,), in the data's own units.
        scale: half-widths of the ball, shape (d,), positive.
        steps: steps in their order, all of the same size.

    Raises:
        ValueError: a field with a wrong shape or out of its range.
    """

    centre: FloatArray
    scale: FloatArray
    steps: tuple[TrajectoryStep, ...]

    def __post_init__(self) -> None:
        centre = frozen("centre", self.centre)
        scale = frozen("scale", self.scale, centre.shape)
        if centre.ndim != 1 or not (scale > 0).all():
            raise ValueError("scale: expected positive numbers, one for each column")
        object.__setattr__(self, "centre", centre)
        object.__setattr__(self, "scale", scale)
        kinds = {(step.means.shape, step.background, step.sums.shape) for step in self.steps}
        if len(kinds) != 1 or len(centre) != self.steps[0].means.shape[1]:
            raise ValueError("steps: expected at least one, all of the same shapes and of the ball's columns")

    def __repr__(self) -> str:
        return f"Trajectory: {len(self.steps)} steps of {len(self.steps[0].sums)} noisy sums"


def checked_trajectory(trajectory: Trajectory | None, shape: tuple[int, int], numbers: int) -> None:
    """Check that a trajectory belongs to a model of k components in d columns.

    Args:
        trajectory: any.
        shape: (k, d).
        numbers: second moments of one step: those of all components together.

    Raises:
        ValueError: it has other shapes.
    """
    if trajectory is None:
        return
    step, (k, d) = trajectory.steps[0], shape
    if step.means.shape != shape or len(step.sums) != k * (1 + d) + numbers + step.background:
        raise ValueError(f"trajectory: expected steps of {k} components in {d} columns, of the model's covariance type")
