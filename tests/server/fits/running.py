"""Fits in tests: a public table, requests, sessions with any source of noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import Adjacency, cost_units
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, Plan, PublicTable, dpem
from bursar_server.vault import (
    ArrayRows,
    LocalEngine,
    Meter,
    Noise,
    NoiseSource,
    OpenDPNoise,
    PartRelease,
    PartSearch,
    Release,
    SearchSource,
    SelectionNoise,
    Session,
    SyntheticBudget,
    transformed,
)

Array = NDArray[np.float64]
ORDER = Fraction(9)


class NoNoise:
    """Source without noise, for tests of arithmetic only."""

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return the sums as they are."""
        return sums

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Return the position of the largest score."""
        return int(scores.argmax())


def table(
    d: int = 2,
    *,
    bound: float = 10.0,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    unit_cap: int = 1,
    rows: int | None = 5000,
) -> PublicTable:
    """A public table with columns x0, x1, ... in [-bound, bound]."""
    columns = tuple(BoundedColumn(f"x{i}", -bound, bound) for i in range(d))
    return PublicTable("people", columns, adjacency, unit_cap, rows)


def request(**fields: Any) -> fit_pb2.FitDPEMRequest:
    """A valid request but for what is given."""
    defaults: dict[str, Any] = {
        "request_id": "r",
        "dataset": "people",
        "spend": types_pb2.Spend(rho=1.0),
        "n_components": 3,
    }
    return fit_pb2.FitDPEMRequest(**{**defaults, **fields})


def nothing_released(entry: int) -> fit_pb2.GaussianMixtureModel | None:
    """No earlier release."""
    return None


def plan(public: PublicTable | None = None, **fields: Any) -> dpem.DPEMPlan:
    """The plan of a request."""
    return dpem.plan(request(**fields), public or table(), nothing_released)


def session(
    made: Plan,
    X: Array,
    *,
    present: Any = None,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    unit_cap: int = 1,
    source: NoiseSource | None = None,
    search_source: SearchSource | None = None,
    taps: list[Release] | None = None,
    steps: list[tuple[int, int]] | None = None,
    part_tap: Callable[[PartRelease | PartSearch], None] = lambda operation: None,
    device: str | None = None,
) -> Session:
    """Access to stored rows X (n, d) under a meter that knows the price of a plan."""
    return Session(
        rows=transformed(ArrayRows(np.ascontiguousarray(X.T), present), made.transforms),
        columns=X.shape[1],
        adjacency=adjacency,
        unit_cap=unit_cap,
        meter=Meter(SyntheticBudget(ORDER, cost_units(made.events, ORDER))),
        source=source or OpenDPNoise(),
        search_source=search_source,
        engine=LocalEngine(1, device),
        progress=lambda step, of: None if steps is None else steps.append((step, of)),
        part_tap=part_tap,
        tap=lambda release: None if taps is None else taps.append(release),
    )


def run(made: dpem.DPEMPlan, X: Array, **arguments: Any) -> fit_pb2.GaussianMixtureModel:
    """Run a plan of FitDPEM on rows X (n, d); arguments as `session` has them."""
    return dpem.run(made, session(made, X, **arguments))


def array(tensor: types_pb2.Tensor) -> Array:
    """Numbers of a tensor in its shape."""
    return np.array(tensor.values).reshape(tuple(tensor.shape))


def clusters(n: int, seed: int, centres: Array, sd: float = 1.0) -> Array:
    """Rows (n, d) around centres (k, d), about as many around each."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    return centres[np.arange(n) % len(centres)] + sd * generator.standard_normal((n, centres.shape[1]))


def expected_number(plan: Plan, name: str) -> float | None:
    """Return a number that a plan expects; None if it expects none of this name."""
    value = plan.expected[name].value if name in plan.expected else None
    return value if isinstance(value, float) else None


def expected_numbers(plan: Plan, name: str) -> tuple[float, ...]:
    """Return the numbers by column that a plan expects under a name; () if there are none."""
    value = plan.expected[name].value if name in plan.expected else {}
    return tuple(value.values()) if isinstance(value, Mapping) else ()
