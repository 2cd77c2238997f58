"""Mixtures with the noisy sums of their steps, for tests of what is computed from them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from bursar_models import GaussianMixture, Trajectory, TrajectoryStep
from bursar_models._trajectory_fit import features_of

MEANS = np.array([[-0.5, -0.4], [0.5, 0.4]])


def shapes_of(d: int) -> dict[Any, Any]:
    """Covariances of two components in d columns, by their form."""
    return {
        "full": np.broadcast_to(0.02 * np.eye(d), (2, d, d)),
        "tied": 0.02 * np.eye(d),
        "diag": np.full((2, d), 0.02),
        "spherical": np.full(2, 0.02),
    }


SHAPES = shapes_of(2)


def released(
    kind: Any, seed: int, *, noise: float = 20.0, n: int = 20_000, steps: int = 4, d: int = 2
) -> GaussianMixture:
    """A mixture of two Gaussians in the bounds from 9 to 11, with the sums of steps at slightly different places."""
    means = np.pad(MEANS, ((0, 0), (0, d - 2)))
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    z = means[(rng.random(n) < 0.4).astype(int)] + math.sqrt(0.02) * rng.standard_normal((n, d))
    z = np.clip(z, -1, 1)
    z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1.0)  # as a kernel does with corners of the bounds
    made = []
    for _ in range(steps):
        step = TrajectoryStep(
            log_scale=np.array([1.0, 1.0, -6.0]),
            means=means + 0.01 * rng.standard_normal((2, d)),
            factors=np.broadcast_to(np.eye(d) / math.sqrt(0.02), (2, d, d)),
            radii=np.full(2, 4.0),
            precisions=np.array([0.5, 1.0, 1.0]),
            sums=np.zeros(1),
            noise_std=noise,
        )
        units = np.ones(features_of(step, z[:1], kind).shape[1])
        units[[0, 1, -1]] = 0.5
        sums = units * features_of(step, z, kind).sum(axis=0) + noise * rng.standard_normal(len(units))
        made.append(replace(step, sums=sums))
    return GaussianMixture(
        np.array([0.6, 0.4]),
        10 + means,
        shapes_of(d)[kind],
        kind,
        columns=tuple("abcdefghijklmnopqrst"[:d]),
        n_rows=float(n),
        background_weight=0.001,
        bounds_=np.array([[9.0] * d, [11.0] * d]),
        trajectory=Trajectory(np.full(d, 10.0), np.ones(d), tuple(made)),
    )
