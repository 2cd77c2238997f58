"""Numbers of rows by their distance from a model, for a test of its form; proof in `radius_statistics.md`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from bursar_models.arrays import FloatArray
from bursar_proto.filling import tensor_of
from bursar_proto.v1 import fit_pb2
from bursar_server.fits.mixtures import kernel
from bursar_server.fits.mixtures.statistics import AffineMaps, BallFrame, EStep, affine_maps
from bursar_server.vault import Bounds, Factor, Statistic

RADIUS_LEVELS = (0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.999)
"""Shares of rows within the edges of the cells, if the model is right.

Chosen: most cells are where wrong tails show.
"""

RADIUS_SHARE = Fraction(1, 20)
"""Share of the budget for these counts.

Measured with FitGradientEM: a hundredth of 20,000 rows anywhere in the bounds is then found at epsilon 1.
"""

RADIUS_LATTICE = 2.0**-kernel.BITS
"""Size of one lattice unit of `radius_statistic`."""


def radius_edges(size: int, unit: float = 1.0) -> FloatArray:
    """Return edges between which `RADIUS_LEVELS` of a chi-squared number over `unit` lie, from 0 to infinity."""
    return np.concatenate([[0.0], 2.0 * gammaincinv(0.5 * size, np.array(RADIUS_LEVELS)) / unit, [math.inf]])


@dataclass(frozen=True, eq=False)
class _RadiusKernel:
    frame: BallFrame
    step: EStep
    edges: FloatArray

    @cached_property
    def shares(self) -> AffineMaps:
        """Maps of positions into those whose squared norm is in a component's exponent."""
        return affine_maps(self.step.factors, self.step.means)

    def __call__(self, block: FloatArray, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        step = self.step.log_scale, self.shares, self.step.diagonal
        kernel.radius_counts(block, present, out, self.frame.centre, self.frame.scale, *step, self.edges)


def radius_statistic(frame: BallFrame, step: EStep) -> Statistic:
    """Return the numbers of rows by their squared distance from the means of an E-step, in its own units.

    A row counts for each component with its responsibility, so that under the mixture of the step `RADIUS_LEVELS` of
    the rows are below the cells' ends, however far its components overlap.
    """
    return Statistic(
        name="rows by their distance from the model",
        kernel=_RadiusKernel(frame, step, radius_edges(step.means.shape[1])),
        factors=(Factor("responsibilities", kernel.BITS),),
        shape=(len(RADIUS_LEVELS) + 1,),
        bounds=radius_bounds(2**kernel.BITS),
        largest=2**kernel.BITS,
    )


def radius_bounds(unit: int) -> Bounds:
    """Return bounds of one row's contribution to counts by radius, in lattice units; a whole row has `unit` of them."""
    return Bounds(l1=unit, l2_squared=unit**2, l1_distance=2 * unit, l2_squared_distance=2 * unit**2, non_negative=True)


def radius_message(counts: FloatArray, std: float, size: int, *, laplace: bool = False) -> fit_pb2.RadiusCounts:
    """Return counts with noise of this deviation on each, of squares with `size` degrees of freedom, as a message."""
    levels = tensor_of(np.array(RADIUS_LEVELS))
    return fit_pb2.RadiusCounts(levels=levels, counts=tensor_of(counts), count_std=std, size=size, laplace=laplace)
