"""The sums of FitSketchKMeans once more, slowly: from Schellekens et al. 2019, definitions 1 to 3, in plain numpy.

Written from the formulas and from what the ledger's entry says of the sketch, not from the compiled kernel, in pieces,
so that a mutant can plant its bug in one of them. Real numbers: the kernel truncates them to multiples of 2^-15, and
computes phases in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from bursar_ledger import Adjacency
from bursar_models import Frequencies
from bursar_models.arrays import FloatArray
from bursar_server.fits import PublicTable
from bursar_server.vault import ArrayRows, Statistic

Bools = NDArray[np.bool_]
Slots = NDArray[np.int64]


@dataclass(frozen=True)
class Said:
    """A release as a ledger's entry describes it.

    Attributes:
        centre, unit, lower, upper: of the columns, (d,), the data's units.
        frequencies: at which rows are looked at.
        one_bit: signs instead of cosines and sines.
        r: frequencies per row.
        weight: of the count of rows; 0 for none.
    """

    centre: FloatArray
    unit: FloatArray
    lower: FloatArray
    upper: FloatArray
    frequencies: Frequencies
    one_bit: bool
    r: int
    weight: int

    @property
    def m(self) -> int:
        """Number of frequencies."""
        return self.frequencies.m


Positions = Callable[[Said, FloatArray], FloatArray]
Signatures = Callable[[Said, FloatArray], FloatArray]
Members = Callable[[Said, Slots, FloatArray], Bools]


def said(parameters: Mapping[str, Any], table: PublicTable) -> tuple[Said, ...]:
    """The releases of an entry in their order: a pilot sketch, if it names one, and the sketch."""
    columns = [column for name in parameters["columns"] for column in table.numeric if column.name == name]
    lower, upper = (np.array([getattr(column, side) for column in columns]) for side in ("lower", "upper"))
    half = (upper - lower) / 2
    unit = half if parameters["units"] == "bounds" else np.full_like(half, half.max())
    frame = ((lower + upper) / 2, unit, lower, upper)
    described = [(parameters, parameters["signature"], parameters["frequencies_per_row"])]
    if parameters["pilot"] is not None:
        pilot = parameters["pilot"]
        described.insert(0, (pilot, "exponential", pilot["n_frequencies"]))
    return tuple(
        Said(*frame, _frequencies(one, len(columns)), signature == "one_bit", r, _weight(r, table.adjacency))
        for one, signature, r in described
    )


def _frequencies(one: Mapping[str, Any], d: int) -> Frequencies:
    """Those that an entry describes; their scale is 1 if it does not say, since a pilot will."""
    structure = one.get("structure", "dense")
    return Frequencies(one["n_frequencies"], d, int(one["public_seed"]), one["sigma"] or 1.0, one["law"], structure)


def _weight(r: int, adjacency: Adjacency) -> int:
    """A quarter of sqrt(r), at least 1, where the number of rows is not public."""
    return 0 if adjacency is Adjacency.REPLACE_ONE else max(1, round(math.sqrt(r) / 4))


def into_box(said: Said, rows: FloatArray) -> FloatArray:
    """Frame coordinates (n, d) of rows (d, n), moved into the box; NaN for those with a number that is not finite."""
    broken: Bools = ~np.asarray(np.isfinite(rows).all(axis=0))
    with np.errstate(over="ignore"):  # what is infinite is beyond the box
        z = (np.where(broken, 0.0, rows).T - said.centre) / said.unit
    inside = np.clip(z, (said.lower - said.centre) / said.unit, (said.upper - said.centre) / said.unit)
    return np.asarray(np.where(broken[:, None], np.nan, inside))


def matrix(frequencies: Frequencies) -> FloatArray:
    """w_j as rows (m, d). Structured ones as the product of matrices that they are the fast form of."""
    if frequencies.structure == "dense":
        return frequencies.matrix()
    factors = frequencies.factors()
    h = hadamard(factors.signs.shape[2]).astype(np.float64)
    blocks = [
        np.diag(scales) @ h @ np.diag(signs[2]) @ h @ np.diag(signs[1]) @ h @ np.diag(signs[0])
        for signs, scales in zip(factors.signs, factors.scales, strict=True)
    ]
    return np.asarray(np.concatenate(blocks)[: frequencies.m, : frequencies.d])


def signature(said: Said, phases: FloatArray) -> FloatArray:
    """exp(i phase), or the signs of its parts about a dither, (n, 2, m); nothing for a row that is not finite."""
    turned = phases + said.frequencies.dithers() if said.one_bit else phases
    parts = np.stack([np.cos(turned), np.sin(turned)], axis=1)
    parts = np.where(parts >= 0, 1.0, -1.0) if said.one_bit else parts
    broken: Bools = np.asarray(np.isnan(phases).any(axis=1))
    return np.where(broken[:, None, None], 0.0, parts)


def members(said: Said, slots: Slots, rows: FloatArray) -> Bools:
    """Return which frequencies a row is looked at in, (n, m).

    By what it holds, whatever its slot and its neighbours are.
    """
    return windows(said, first_frequencies(said, rows))


def windows(said: Said, firsts: Slots) -> Bools:
    """The r frequencies from each of `firsts` on, in a ring of all m; (n, m)."""
    return np.asarray((np.arange(said.m) - firsts[:, None]) % said.m < said.r)


def first_frequencies(said: Said, rows: FloatArray) -> Slots:
    """SplitMix64's finaliser over the float32 frame coordinates, from the public seed on, modulo m; (n,)."""
    if said.r == said.m:
        return np.zeros(rows.shape[1], dtype=np.int64)
    bits = (into_box(said, rows).astype(np.float32) + np.float32(0.0)).view(np.uint32)
    return np.array([_mixed(row, said.frequencies.public_seed) % said.m for row in bits.tolist()], dtype=np.int64)


def _mixed(numbers: list[int], h: int) -> int:
    for number in numbers:
        h = ((h ^ number) + 0x9E3779B97F4A7C15) % 2**64
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        h = (h ^ h >> 27) * 0x94D049BB133111EB % 2**64
        h ^= h >> 31
    return h


def contributions(
    said: Said,
    rows: FloatArray,
    slots: Slots,
    *,
    positions: Positions = into_box,
    parts: Signatures = signature,
    chosen: Members = members,
) -> FloatArray:
    """Every row's vector (n, size): m real parts, m imaginary parts, and the weighted count."""
    z = positions(said, rows)
    summed = parts(said, z @ matrix(said.frequencies).T) * chosen(said, slots, rows)[:, None, :]
    counts = np.asarray(np.isfinite(rows).all(axis=0))[:, None] * float(said.weight)
    return np.hstack([summed.reshape(len(z), 2 * said.m), counts[:, : int(said.weight > 0)]])


def reference(releases: tuple[Said, ...]) -> Callable[[Statistic, ArrayRows], FloatArray]:
    """The sum of a statistic over a table, in lattice units, for one of the releases that an entry describes."""

    def total(statistic: Statistic, rows: ArrayRows) -> FloatArray:
        one = which(releases, statistic)
        slots = np.arange(rows.slots) if rows.present is None else np.flatnonzero(rows.present)
        return np.asarray(contributions(one, rows.columns[:, slots], slots).sum(axis=0) / statistic.lattice)

    return total


def which(releases: tuple[Said, ...], statistic: Statistic) -> Said:
    """The release that a statistic is for. After a pilot its scale is read off the kernel: nobody knows it before."""
    if len(releases) == 1:
        return releases[0]
    pilot, main = releases
    drawn: FloatArray = statistic.kernel.dense.astype(np.float64) * np.pi  # type: ignore[attr-defined] # of the sketch
    if drawn.shape == (pilot.m, len(pilot.unit)) and np.allclose(drawn, matrix(pilot.frequencies), rtol=1e-5):
        return pilot
    sigma = float(np.linalg.norm(main.frequencies.matrix()) / np.linalg.norm(drawn))
    return replace(main, frequencies=replace(main.frequencies, sigma=sigma))
