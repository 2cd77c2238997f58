"""FitGradientEM in tests: public tables, requests, runs, and kernels with simple arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, PublicTable, gradient_em
from bursar_server.fits.gradient_em import _kernel
from bursar_server.fits.gradient_em._statistics import (
    GradientFrame,
    GradientKernel,
    Look,
    Shape,
    Transform,
    gradient_statistic,
    look_statistic,
    radius_statistic,
)
from bursar_server.vault import Statistic
from tests.server.fits.running import Array, session

SYMMETRIC = fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE
MIXTURE = fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE
REGRESSIONS = fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS
MISSING = fit_pb2.LATENT_MODEL_MISSING_COVARIATES


def table(
    d: int = 2,
    *,
    bound: float = 8.0,
    target: float | None = None,
    nullable: int = 0,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    rows: int | None = 5000,
) -> PublicTable:
    """Columns x0, x1, ... in [-bound, bound], the first of them nullable, and perhaps y in [-target, target]."""
    columns = [BoundedColumn(f"x{i}", -bound, bound, nullable=i < nullable) for i in range(d)]
    if target is not None:
        columns.append(BoundedColumn("y", -target, target))
    return PublicTable("people", tuple(columns), adjacency, 1, rows)


def request(**fields: Any) -> fit_pb2.FitGradientEMRequest:
    """A valid request for a symmetric mixture but for what is given."""
    defaults: dict[str, Any] = {
        "request_id": "r",
        "dataset": "people",
        "spend": types_pb2.Spend(rho=1.0),
        "model": SYMMETRIC,
    }
    return fit_pb2.FitGradientEMRequest(**{**defaults, **fields})


def plan(public: PublicTable | None = None, **fields: Any) -> gradient_em.GradientEMPlan:
    """The plan of a request."""
    return gradient_em.plan(request(**fields), public or table(), lambda entry: None)


def run(made: gradient_em.GradientEMPlan, X: Array, **arguments: Any) -> fit_pb2.GradientEMModel:
    """Run a plan on rows X (n, d); arguments as `session` has them."""
    return gradient_em.run(made, session(made, X, **arguments))


def frame(columns: int, nullable: bool = False) -> GradientFrame:
    """Data that is in the frame's units already; the last column is never nullable."""
    may_be_null = np.full(columns, nullable)
    may_be_null[-1] = False
    return GradientFrame(np.zeros(columns), np.ones(columns), np.ones(columns), may_be_null)


def located(
    means: Array, scale: float, transform: Transform, *, signs: Array | None = None, precision: float = 4.0
) -> Statistic:
    """The gradient of a mixture about means (K, d)."""
    K, d = means.shape
    fold = np.empty(0) if signs is None else signs
    every = np.ones(K)
    arguments = (0 * every, precision / 2 * every, means, means, scale * every, scale**2 * every, fold)
    shape = Shape(K if signs is None else 1, d, transform, 1.3)
    return gradient_statistic(GradientKernel(_kernel.location_sums, frame(d), arguments, shape))


def regressed(
    coefficients: Array, scale: float, transform: Transform, *, signs: Array | None = None, precision: float = 4.0
) -> Statistic:
    """The gradient of a mixture of regressions with coefficients (K, 1 + d), intercepts first."""
    K, p = coefficients.shape
    fold = np.empty(0) if signs is None else signs
    every = np.ones(K)
    maps = (np.eye(p - 1), np.zeros(p), True)
    arguments = (0 * every, precision / 2 * every, coefficients, maps, scale * every, scale**2 * every, fold)
    shape = Shape(K if signs is None else 1, p, transform, 1.3)
    return gradient_statistic(GradientKernel(_kernel.regression_sums, frame(p), arguments, shape))


def regressed_with_missing(
    coefficients: Array, sigma: float, scale: float, transform: Transform, *, clip: float = 1e6, square: float = 1.0
) -> Statistic:
    """The gradient of a regression with missing features and coefficients (1 + d,), intercept first."""
    p = len(coefficients)
    maps = (np.ones(p - 1), np.zeros(p))
    arguments = (coefficients, maps, sigma, clip, square, scale, 1.0)
    shape = Shape(1, p, transform, 1.3)
    return gradient_statistic(GradientKernel(_kernel.missing_sums, frame(p, nullable=True), arguments, shape))


def by_radius(gradient: Statistic) -> Statistic:
    """Counts by radius about the parameters of a gradient, in cells that its residuals reach."""
    kernel: Any = gradient.kernel
    return radius_statistic(kernel, np.array([0.0, 0.1, 0.5, 1.0, 3.0, np.inf]))


def looked(look: Look, columns: int) -> Statistic:
    """A look at columns that are in the frame's units already."""
    found = look_statistic(look, frame(columns, nullable=look is Look.MISSING))
    return dataclasses.replace(found, name=look.value)


def contribution(statistic: Statistic, row: Array) -> Array:
    """Return what one row (columns,) contributes, in lattice units; by the kernel, on one slice."""
    block = np.zeros((len(row), _kernel.SLICE))
    block[:, 0] = row
    present = np.arange(_kernel.SLICE) == 0
    out = np.zeros(statistic.size, dtype=np.int64)
    statistic.kernel(block, present, out)
    return out.astype(np.float64)
