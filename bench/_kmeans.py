"""Shared parts of k-means benchmarks: fits as the server runs them, rows, sums of squares, figures of others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency, cost_units
from bursar_proto.v1 import types_pb2
from bursar_server.fits import BoundedColumn, PublicTable
from bursar_server.vault import CHUNK, ArrayRows, ExactNoise, LocalEngine, Meter, Rows, Session, SyntheticBudget

Array = NDArray[np.float64]

ORDER = Fraction(9)
THREADS = 2

DELTA = 1e-6
CLUSTERS = DIMENSIONS = 10
BOUND = 10.0
"""Half-width of the public box of the mixtures."""

EPSILONS = (0.1, 0.5, 1.0, 2.0)
GOOGLE_LSH = {0.1: 1.52, 0.5: 1.23, 1.0: 1.19, 2.0: 1.10}
"""google/differential-privacy, LSH clustering of revision b5b0286e, by epsilon at delta 1e-6: medians of 5 runs.

Measured earlier on the same law of data, 100,000 rows, with bounds taken from the data.
"""


@dataclass(frozen=True)
class Box:
    """Public bounds of columns, (d,) each."""

    lower: Array
    upper: Array


EARTH = Box(np.array([-180.0, -90.0]), np.array([180.0, 90.0]))
"""Bounds of longitude and latitude."""


def cube(d: int, bound: float) -> Box:
    """The box [-bound, bound]^d."""
    return Box(np.full(d, -bound), np.full(d, bound))


def fit(
    method: Any,
    request: Any,
    rows: Rows,
    box: Box,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    threads: int = THREADS,
    source: ExactNoise | None = None,
) -> tuple[Any, Any]:
    """One fit as the server runs it: plan, meter, exact sums, exact noise. Returns plan and model."""
    bounds = zip(box.lower.tolist(), box.upper.tolist(), strict=True)
    columns = tuple(BoundedColumn(f"x{i}", lower, upper) for i, (lower, upper) in enumerate(bounds))
    request.columns[:] = [column.name for column in columns]
    plan = method.plan(request, PublicTable("bench", columns, adjacency, 1, rows.slots), lambda entry: None)
    session = Session(
        rows=rows,
        columns=len(columns),
        adjacency=adjacency,
        unit_cap=1,
        meter=Meter(SyntheticBudget(ORDER, cost_units(plan.events, ORDER))),
        source=source or ExactNoise(),
        engine=LocalEngine(threads),
    )
    return plan, method.run(plan, session)


def array_rows(X: Array) -> ArrayRows:
    """Rows (n, d) for a session."""
    return ArrayRows(np.ascontiguousarray(X.T))


def array(tensor: types_pb2.Tensor) -> Array:
    """Numbers of a tensor in its shape."""
    return np.array(tensor.values).reshape(tuple(tensor.shape))


def spend(epsilon: float, *, pure: bool) -> types_pb2.Spend:
    """Pure epsilon, or (epsilon, `DELTA`)."""
    if pure:
        return types_pb2.Spend(epsilon=epsilon)
    return types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=epsilon, delta=DELTA))


@dataclass(frozen=True)
class MixtureRows:
    """Rows of ten unit Gaussians with means N(0, (1.5 k^(1/d))^2 I), clipped to the box, drawn when they are read.

    The mixtures of Schellekens et al. 2019, section 5. Every block is a function of seed and position alone, by a
    counter-based generator, so that a table of any size needs the memory of one block.
    """

    slots: int
    seed: int

    @property
    def means(self) -> Array:
        """Return the means of the Gaussians, (k, d)."""
        generator = np.random.default_rng(self.seed)
        return np.asarray(1.5 * CLUSTERS ** (1 / DIMENSIONS) * generator.standard_normal((CLUSTERS, DIMENSIONS)))

    def read(self, first: int, block: Array, present: NDArray[np.bool_]) -> None:
        """See `bursar_server.vault.Rows`; `first` is a multiple of the block's size."""
        filled = max(0, min(CHUNK, self.slots - first))
        generator = np.random.Generator(np.random.Philox(key=self.seed, counter=first << 128))
        labels = generator.integers(CLUSTERS, size=CHUNK)
        generator.standard_normal(out=block)
        block += self.means.T[:, labels]
        np.clip(block, -BOUND, BOUND, out=block)
        present[:filled] = True
        present[filled:] = False

    def blocks(self) -> Iterator[Array]:
        """All rows, (d, up to CHUNK) at a time, in an array that is used again."""
        block, present = np.empty((DIMENSIONS, CHUNK)), np.empty(CHUNK, dtype=np.bool_)
        for first in range(0, self.slots, CHUNK):
            self.read(first, block, present)
            yield block[:, : min(CHUNK, self.slots - first)]

    def first(self, n: int) -> Array:
        """The first n rows, (n, d)."""
        head = MixtureRows(min(n, self.slots), self.seed)
        return np.concatenate([block.T.copy() for block in head.blocks()])


def sums_of_squares(blocks: Iterator[Array], models: list[Array]) -> list[float]:
    """Return for each model's centres (k, d) the sum over all rows of the squared distance to the nearest."""
    totals = np.zeros(len(models))
    for block in blocks:
        squares = float(np.square(block).sum())
        for i, centres in enumerate(models):
            distances = np.square(centres).sum(axis=1)[:, None] - 2 * centres @ block
            totals[i] += squares + float(distances.min(axis=0).sum())
    return [float(total) for total in totals]


def sum_of_squares(X: Array, centres: Array) -> float:
    """Sum over rows (n, d) of the squared distance to the nearest centre."""
    parts = (X[first : first + CHUNK].T for first in range(0, len(X), CHUNK))
    return sums_of_squares(parts, [centres])[0]
