"""FitSketchKMeans under audit: adjacencies, noises, signatures, structures, masks, pilots and units of several rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar_ledger import Adjacency
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, PublicTable, sketch
from bursar_server.fits.sketch import SketchPlan
from bursar_server.vault import ArrayRows, Session
from tests.audit.harness import extremes
from tests.audit.sketch_reference import Said, contributions, reference, said
from tests.audit.target import Target

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE

Fields = dict[str, Any]
"""Fields of `NewSketch`, and of the request."""

RHO = types_pb2.Spend(rho=2.0)
"""So that mu = 2, where tests have the most power."""

COLUMNS = (BoundedColumn("x", -1.0, 1.0), BoundedColumn("y", 0.0, 4.0))
"""Columns of unlike widths about unlike middles."""

BROKEN = np.array([[np.nan, 0.3, -np.inf, 5.0, 0.1], [1.0, np.inf, np.nan, 1e308, -1e308]])
"""Rows of which the first three are not finite, and the others far outside the box."""

UNIT_AT = 48 + BROKEN.shape[1]
"""First slot of the unit that changes."""

PLACES = (UNIT_AT, 8192 + 77)
"""Slots in different blocks."""

RESTLESS = 60
"""Random rows from which the search starts where nobody knows the frequencies before the run."""


def pure(coordinates: int) -> types_pb2.Spend:
    """An epsilon at which Laplace noise on this many coordinates is about as easy to see through as mu = 2."""
    return types_pb2.Spend(epsilon=2.0 * coordinates**0.5)


@dataclass(frozen=True)
class Audited:
    """A plan, and what it says it will release.

    Attributes:
        plan: of the request.
        said: its releases as the ledger's entry describes them.
    """

    plan: SketchPlan
    said: tuple[Said, ...]


def planned(
    adjacency: Adjacency, *, cap: int = 1, slots: int = UNIT_AT + 1, clusters: int = 0, **fields: Any
) -> Audited:
    """The plan of a request.

    Args:
        adjacency: of the dataset.
        cap: rows of a privacy unit.
        slots: of the table.
        clusters: to decode; 0 for the sketch alone.
        fields: of `NewSketch`, and `spend` and `decoding` of the request.
    """
    table = PublicTable("audit", COLUMNS, adjacency, cap, slots if adjacency is RO else None)
    spend, decoding = fields.pop("spend", RHO), fields.pop("decoding", fit_pb2.DECODING_KMEANS)
    new = fit_pb2.NewSketch(**({"n_frequencies": 8, "sigma": 0.01, "public_seed": 3} | fields))
    request = fit_pb2.FitSketchKMeansRequest(
        new_sketch=new,
        spend=spend,
        n_clusters=clusters,
        n_init=2,
        decoding=decoding,
    )
    plan = sketch.plan(request, table, lambda entry: None)
    return Audited(plan, said(plan.parameters, table))


def fit_sketch(adjacency: Adjacency, *, cap: int = 1, **fields: Any) -> Target:
    """FitSketchKMeans on two clusters, some broken rows, and a unit that changes as much as it can.

    Args:
        adjacency: of the pair.
        cap: rows of a privacy unit.
        fields: of `NewSketch`, and `spend`, `clusters` and `decoding`.
    """
    audited = planned(adjacency, cap=cap, slots=UNIT_AT + cap, **fields)
    rows, neighbour, far = pair(audited, adjacency, cap)

    def run(session: Session) -> fit_pb2.SketchModel:
        return sketch.run(audited.plan, session)

    return Target(
        name=f"FitSketchKMeans {adjacency.value}",
        adjacency=adjacency,
        rows=rows,
        neighbour=neighbour,
        events=audited.plan.events,
        run=run,
        reference=reference(audited.said),
        features=numbers_of,
        extremes=extremes(2, *BROKEN.T, *far.T, *box_corners(), *(anywhere() if len(audited.said) > 1 else ())),
        unit_cap=cap,
        places=PLACES if audited.said[-1].r < audited.said[-1].m else PLACES[:1],
    )


def pair(audited: Audited, adjacency: Adjacency, cap: int) -> tuple[ArrayRows, ArrayRows, FloatArray]:
    """Two neighbouring tables and, (d, 2), what the changed unit holds in them: there or not, or far apart."""
    rng = np.random.default_rng(5)  # noqa: TID251 - the audit's tables are fixed
    clusters = np.hstack([rng.normal([[x], [2.0]], [[0.1], [0.3]], size=(2, 24)) for x in (-0.45, 0.45)])
    far = far_apart(audited, adjacency)
    fixed = np.hstack([clusters, BROKEN])
    here, there = (np.hstack([fixed, np.tile(one[:, None], (1, cap))]) for one in far.T)
    if adjacency is RO:
        return ArrayRows(here), ArrayRows(there), far
    return ArrayRows(here), ArrayRows(fixed), far


def far_apart(audited: Audited, adjacency: Adjacency) -> FloatArray:
    """Two rows (d, 2) at the unit's slot whose sketches differ as much as two can, found among random ones.

    All phases of one must be about half a turn from the other's (by Kronecker's theorem there are such rows) and, for
    the L1 norm, lie between the axes.
    """
    release, norm = audited.said[-1], 1 if types_are_pure(audited.plan) else 2
    rng = np.random.default_rng(6)  # noqa: TID251 - the audit's tables are fixed
    rows = rng.uniform(release.lower, release.upper, size=(12_000 if adjacency is RO else 1000, 2)).T
    slots = np.full(rows.shape[1], UNIT_AT)
    values = contributions(release, rows, slots)
    longest = np.argsort(-(np.abs(values) ** norm).sum(axis=1))[:30]
    if adjacency is AR:
        return rows[:, longest[:2]]
    apart = [(np.abs(values - values[i]) ** norm).sum(axis=1) for i in longest]
    best = int(np.argmax([one.max() for one in apart]))
    return np.array([rows[:, longest[best]], rows[:, int(np.argmax(apart[best]))]]).T


def types_are_pure(plan: SketchPlan) -> bool:
    """Return whether a plan's noise is Laplace's."""
    return "Laplace" in type(plan.events[0]).__name__


def box_corners() -> list[FloatArray]:
    """Corners of the box, points in it, and points far beyond."""
    return [np.array([x, y]) for x in (-1.0, 0.2, 1.0, 1e6) for y in (0.0, 1.7, 4.0, -1e6)]


def anywhere() -> FloatArray:
    """Random rows (RESTLESS, 2) in the box."""
    rng = np.random.default_rng(7)  # noqa: TID251 - the audit's rows are fixed
    return rng.uniform([column.lower for column in COLUMNS], [column.upper for column in COLUMNS], size=(RESTLESS, 2))


def numbers_of(model: object) -> FloatArray:
    """Every number of a released sketch and of what was decoded from it."""
    if not isinstance(model, fit_pb2.SketchModel):
        raise TypeError(f"expected a SketchModel, got {type(model).__name__}")
    one, decoded = model.sketch, model.decoded
    frame = [*one.centre.values, *one.unit.values, *one.lower.values, *one.upper.values]
    scales = [one.noise_std, one.n_rows, one.n_rows_std, one.frequencies.sigma, one.pilot_sigma, model.residual]
    mixture = [*decoded.weights.values, *decoded.means.values, *decoded.covariances.values, decoded.n_rows]
    return np.array([*one.sums.values, *frame, *scales, *mixture])


HADAMARD: Fields = {"structure": fit_pb2.FREQUENCY_STRUCTURE_HADAMARD, "n_frequencies": 5}
ONE_BIT: Fields = {"signature": fit_pb2.SIGNATURE_ONE_BIT}
BOUNDS: Fields = {"units": fit_pb2.COLUMN_UNITS_BOUNDS}
MASKED: Fields = {"n_frequencies": 20, "frequencies_per_row": 2}
"""A tenth of the frequencies per row: here the paper's proposition 1 is wrong by sqrt(10)."""

PILOT: Fields = {"sigma": None, "pilot": fit_pb2.PilotSketch(share=0.5, n_frequencies=16), "n_frequencies": 6}
DECODED: Fields = {"n_frequencies": 8, "sigma": 0.1, "clusters": 2}

TARGETS: dict[str, Callable[[], Target]] = {
    "add or remove": lambda: fit_sketch(AR),
    "replace": lambda: fit_sketch(RO),
    "one bit, add or remove": lambda: fit_sketch(AR, **ONE_BIT),
    "one bit, replace, own units": lambda: fit_sketch(RO, **ONE_BIT, **BOUNDS),
    "fast, replace": lambda: fit_sketch(RO, **HADAMARD),
    "fast, one bit, masked, add or remove": lambda: fit_sketch(AR, **(HADAMARD | ONE_BIT | MASKED)),
    "masked, add or remove": lambda: fit_sketch(AR, **MASKED),
    "masked, replace": lambda: fit_sketch(RO, **MASKED),
    "masked, most of them, one bit, replace": lambda: fit_sketch(RO, frequencies_per_row=6, **ONE_BIT),
    "Laplace, add or remove": lambda: fit_sketch(AR, n_frequencies=6, spend=pure(12)),
    "Laplace, replace": lambda: fit_sketch(RO, n_frequencies=6, spend=pure(12)),
    "Laplace, masked, replace": lambda: fit_sketch(RO, spend=pure(4), **MASKED),
    "Laplace, fast, one bit, masked, add or remove": lambda: fit_sketch(
        AR, spend=pure(4), **(HADAMARD | ONE_BIT | MASKED)
    ),
    "units of two rows, replace": lambda: fit_sketch(RO, cap=2),
    "units of three rows, one bit, add or remove": lambda: fit_sketch(AR, cap=3, **ONE_BIT),
    "small spend, add or remove": lambda: fit_sketch(AR, spend=types_pb2.Spend(rho=0.05)),
    "pilot, add or remove": lambda: fit_sketch(AR, **PILOT),
    "pilot, replace": lambda: fit_sketch(RO, **PILOT),
    "pilot, Laplace, add or remove": lambda: fit_sketch(AR, spend=pure(22), **PILOT),
    "decoded, add or remove": lambda: fit_sketch(AR, **DECODED),
    "pilot, decoded as a mixture, replace": lambda: fit_sketch(
        RO, clusters=2, decoding=fit_pb2.DECODING_MIXTURE, **PILOT
    ),
}
"""Targets of an audit of FitSketchKMeans."""

_SLOW = frozenset(
    {
        "one bit, add or remove",
        "small spend, add or remove",
        "pilot, replace",
        "fast, one bit, masked, add or remove",
        "masked, most of them, one bit, replace",
        "Laplace, replace",
        "Laplace, fast, one bit, masked, add or remove",
        "units of three rows, one bit, add or remove",
        "pilot, Laplace, add or remove",
        "pilot, decoded as a mixture, replace",
    }
)
QUICK = TARGETS.keys() - _SLOW
"""Audited in the short runs, too."""

FAR_OFF = frozenset({"pilot, replace", "pilot, decoded as a mixture, replace"})
"""Cases where the pilot chooses the scale: at some, no two rows in the box have all phases half a turn apart."""
