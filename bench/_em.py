"""Shared parts of the benchmarks of gradient EM: rows of the paper's three models, EM without noise, whole fits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency, cost_units
from bursar_models import uniform_in_ball
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, PublicTable, gradient_em
from bursar_server.vault import ArrayRows, ExactNoise, Meter, Session, SyntheticBudget

Array = NDArray[np.float64]
Fields = dict[str, Any]

ORDER = Fraction(9)

SIGNAL = 3.0
"""Length of the true parameter, in standard deviations of the noise, which is 1 (Wang et al. 2020, appendix J)."""

MISSING = 0.2
"""Probability that a feature is missing; the paper does not say what its own was."""

FEATURES, POINTS, TARGETS = 4.0, 8.0, 12.0
"""Public bounds, +-: of features, of points of a mixture, and of targets."""

DEGREES = 2.5
"""Degrees of freedom of the t distribution: the second moment exists, the third does not."""

CONTAMINATED = 0.02
"""Share of rows in a far corner."""

NOISES = ("normal", "t", "contaminated")


@dataclass(frozen=True, eq=False)
class Model:
    """One of the paper's models.

    Attributes:
        name: the paper's abbreviation.
        draw: from n, d, kind of noise and a generator to rows (n, columns), with the target last, and the truth (d,).
        em: from rows and a start (d,) to the fixed point of EM that knows the noise level.
        fields: of the request.
        unit: that scales of requests count in.
        mirrored: the truth has two signs.
    """

    name: str
    draw: Callable[[int, int, str, np.random.Generator], tuple[Array, Array]]
    em: Callable[[Array, Array, float], Array]
    fields: Fields
    unit: float
    mirrored: bool

    def columns(self, d: int) -> tuple[BoundedColumn, ...]:
        """Return columns with public bounds."""
        if self.name == "GMM":
            return tuple(BoundedColumn(f"x{i}", -POINTS, POINTS) for i in range(d))
        features = [BoundedColumn(f"x{i}", -FEATURES, FEATURES, nullable=self.name == "RMC") for i in range(d)]
        return (*features, BoundedColumn("y", -TARGETS, TARGETS))

    def error(self, found: Array, truth: Array) -> float:
        """Distance of estimate and truth."""
        apart = float(np.linalg.norm(found - truth))
        return min(apart, float(np.linalg.norm(found + truth))) if self.mirrored else apart


def noise(n: int, d: int, kind: str, generator: np.random.Generator) -> Array:
    """Draw noise of variance 1 in every number, (n, d); of contaminated rows it is normal here."""
    if kind == "t":
        return np.asarray(generator.standard_t(DEGREES, (n, d)) / (DEGREES / (DEGREES - 2)) ** 0.5)
    return np.asarray(generator.standard_normal((n, d)))


def truth(d: int, generator: np.random.Generator) -> Array:
    """A random direction."""
    b = generator.standard_normal(d)
    return np.asarray(SIGNAL * b / np.linalg.norm(b))


def far(n: int, kind: str) -> int:
    """Return how many rows are contaminated."""
    return int(CONTAMINATED * n) if kind == "contaminated" else 0


def draw_mixture(n: int, d: int, kind: str, generator: np.random.Generator) -> tuple[Array, Array]:
    """Equation 4: z b + noise."""
    b = truth(d, generator)
    Y = generator.choice([-1.0, 1.0], n)[:, None] * b + noise(n, d, kind, generator)
    Y[: far(n, kind)] = POINTS
    return Y, b


def draw_regressions(n: int, d: int, kind: str, generator: np.random.Generator) -> tuple[Array, Array]:
    """Equation 5: y = z <x, b> + noise."""
    b = truth(d, generator)
    X = generator.standard_normal((n, d))
    y = generator.choice([-1.0, 1.0], n) * (X @ b) + noise(n, 1, kind, generator)[:, 0]
    y[: far(n, kind)] = TARGETS
    return np.column_stack([X, y]), b


def draw_missing(n: int, d: int, kind: str, generator: np.random.Generator) -> tuple[Array, Array]:
    """Equation 6: y = <x, b> + noise, numbers of x missing at random."""
    b = truth(d, generator)
    X = generator.standard_normal((n, d))
    y = X @ b + noise(n, 1, kind, generator)[:, 0]
    y[: far(n, kind)] = TARGETS
    X[generator.random((n, d)) < MISSING] = np.nan
    return np.column_stack([X, y]), b


def fixed_point(step: Callable[[Array], Array], b: Array, steps: int = 300) -> Array:
    """Return the fixed point of EM steps."""
    for _ in range(steps):
        following = step(b)
        moved, b = float(np.linalg.norm(following - b)), following
        if moved < 1e-6:
            break
    return b


def em_mixture(Y: Array, start: Array, sigma: float = 1.0) -> Array:
    """EM of the symmetric mixture of Gaussians."""
    return fixed_point(lambda b: np.asarray(np.tanh(Y @ b / sigma**2) @ Y / len(Y)), start)


def em_regressions(rows: Array, start: Array, sigma: float = 1.0) -> Array:
    """EM of the symmetric mixture of regressions."""
    X, y = rows[:, :-1], rows[:, -1]
    gram = X.T @ X
    return fixed_point(lambda b: np.asarray(np.linalg.solve(gram, X.T @ (np.tanh(y * (X @ b) / sigma**2) * y))), start)


def em_missing(rows: Array, start: Array, sigma: float = 1.0) -> Array:
    """EM of the regression with missing features, which are standard normal."""
    y, absent = rows[:, -1], np.isnan(rows[:, :-1])
    X, hidden = np.where(absent, 0.0, rows[:, :-1]), absent.astype(np.float64)

    def step(b: Array) -> Array:
        variance = sigma**2 + hidden @ b**2
        weighted = hidden * b
        means = X + weighted * ((y - X @ b) / variance)[:, None]
        second = means.T @ means + np.diag(hidden.sum(axis=0)) - (weighted / variance[:, None]).T @ weighted
        return np.asarray(np.linalg.solve(second, means.T @ y))

    return fixed_point(step, start)


MODELS = {
    one.name: one
    for one in (
        Model("GMM", draw_mixture, em_mixture, {"model": fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE}, POINTS, True),
        Model(
            "MRM",
            draw_regressions,
            em_regressions,
            {"model": fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS, "symmetric": True, "target": "y"},
            TARGETS,
            True,
        ),
        Model(
            "RMC",
            draw_missing,
            em_missing,
            {"model": fit_pb2.LATENT_MODEL_MISSING_COVARIATES, "target": "y"},
            TARGETS,
            False,
        ),
    )
}
"""Gaussian mixture, mixture of regressions, regression with missing covariates."""


def start(d: int, public_seed: int) -> Array:
    """A random one for EM without noise, of the server's kind."""
    return np.asarray(uniform_in_ball(1, d, public_seed)[0] * SIGNAL / 2)


@dataclass
class Clock:
    """Clock of a fit's steps, in seconds of one processor.

    Attributes:
        ends: in order.
    """

    ends: list[float] = field(default_factory=list)

    def __call__(self, step: int, steps: int) -> None:
        self.ends.append(time.process_time())


def fit(
    request: fit_pb2.FitGradientEMRequest,
    rows: Array,
    columns: tuple[BoundedColumn, ...],
    clock: Clock | None = None,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> fit_pb2.GradientEMModel:
    """One fit as the server runs it: plan, meter, exact sums, exact noise; by one thread.

    Args:
        request: names columns, or needs all of them.
        rows: (n, columns) of the request, the target last.
        columns: of the public table; n is public under REPLACE_ONE, and declared otherwise.
        clock: told when steps end.
        adjacency: of the table.
    """
    table = PublicTable("bench", columns, adjacency, 1, len(rows))
    plan = gradient_em.plan(request, table, lambda entry: None)
    session = Session(
        rows=ArrayRows(np.ascontiguousarray(rows.T)),
        columns=rows.shape[1],
        adjacency=adjacency,
        unit_cap=1,
        meter=Meter(SyntheticBudget(ORDER, cost_units(plan.events, ORDER))),
        source=ExactNoise(),
        progress=clock or Clock(),
    )
    return gradient_em.run(plan, session)


def spend(epsilon: float, n: int) -> types_pb2.Spend:
    """(epsilon, 1/n), as in the paper."""
    return types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=epsilon, delta=1.0 / n))


def array(tensor: types_pb2.Tensor) -> Array:
    """Numbers of a tensor in its shape."""
    return np.array(tensor.values).reshape(tuple(tensor.shape))
