"""FitSeparatedGMM in tests: public tables, requests, runs, and mixtures whose components are apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import PublicTable, separated_gmm
from tests.server.fits import running
from tests.server.fits.running import Array, session

table = partial(running.table, bound=100.0)
"""A public table with columns x0, x1, ... in [-100, 100], unless `bound` says otherwise."""


def request(**fields: Any) -> fit_pb2.FitSeparatedGMMRequest:
    """A valid request for three components but for what is given."""
    defaults: dict[str, Any] = {
        "request_id": "r",
        "dataset": "people",
        "spend": types_pb2.Spend(rho=0.5),
        "n_components": 3,
        "sigma_min": 0.3,
        "sigma_max": 3.0,
    }
    return fit_pb2.FitSeparatedGMMRequest(**{**defaults, **fields})


def plan(public: PublicTable | None = None, **fields: Any) -> separated_gmm.SeparatedPlan:
    """The plan of a request."""
    return separated_gmm.plan(request(**fields), public or table(), lambda entry: None)


def run(made: separated_gmm.SeparatedPlan, X: Array, **arguments: Any) -> fit_pb2.SeparatedGMM:
    """Run a plan on rows X (n, d); arguments as `session` has them."""
    return separated_gmm.run(made, session(made, X, **arguments))


def mixture(n: int, means: Array, seed: int, covariances: Array | None = None) -> Array:
    """Rows (n, d) of Gaussians about means (k, d), about as many of each."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    noise = generator.standard_normal((n, means.shape[1]))
    of = np.arange(n) % len(means)
    if covariances is not None:
        noise = np.einsum("nij,nj->ni", np.linalg.cholesky(covariances)[of], noise)
    return np.asarray(means[of] + noise)


def worst_distance(found: Array, means: Array) -> float:
    """Return the largest distance of a mean to the nearest that was found."""
    return float(np.linalg.norm(found[None] - means[:, None], axis=2).min(axis=1).max())
