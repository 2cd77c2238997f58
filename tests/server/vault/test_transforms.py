"""A transformed cell is a function of that cell and of public bounds, within its bounds to the last bit."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bursar_models.transforms import log1p
from bursar_server.vault import CHUNK, ArrayRows, Log1p, Rows, SpreadRows, transformed

Array = NDArray[np.float64]
Of = Callable[[Array], Array]

SIGNALLING = float(np.array([0x7FF0000000000001], dtype=np.uint64).view(np.float64)[0])

ODD = (
    SIGNALLING,
    0.0,
    -0.0,
    5e-324,
    1e-310,
    2.0**-61,
    1e-17,
    0.5,
    1.0,
    -1.0,
    -0.5,
    1e3,
    1e99,
    1e300,
    -1e308,
    np.inf,
    -np.inf,
    np.nan,
)
"""Values that a column may hold."""

BOUNDS = [(0.0, 1.0), (0.0, 20_000.0), (3.0, 7.0), (0.0, 1e100), (1e15, 1e15 + 2.0), (0.1, 0.1 + 1e-15)]


def block_of(values: Array) -> Array:
    """Values at the beginning of a block, and random ones behind."""
    rest = np.random.default_rng(1).uniform(-5, 50, CHUNK - len(values))  # noqa: TID251 - rows of a test
    return np.concatenate([values, rest])


def is_within(of: Of, ends: tuple[float, float]) -> bool:
    """Return whether all cells are NaN, all alike, or between the ends."""
    cells = of(block_of(np.array(ODD)))
    missing = np.isnan(cells)
    alike = len(set(cells[missing].view(np.uint64).tolist())) <= 1
    return alike and bool(np.all((cells[~missing] >= ends[0]) & (cells[~missing] <= ends[1])))


def is_of_the_cell_alone(of: Of) -> bool:
    """Return whether a cell's bits are the same by itself, at every place of a block, and beside any other cells."""
    values = np.array(ODD)
    alone = np.concatenate([of(np.array([value])) for value in values])
    blocks = [np.roll(block_of(values), shift) for shift in (0, 1, 7, CHUNK // 2, CHUNK - 3)]
    seen = [
        np.roll(of(block), -shift)[: len(values)]
        for block, shift in zip(blocks, (0, 1, 7, CHUNK // 2, -3), strict=True)
    ]
    return all(np.array_equal(one.view(np.uint64), alone.view(np.uint64)) for one in seen)


@pytest.mark.parametrize(("lower", "upper"), BOUNDS)
def test_a_cell_is_transformed_by_itself_and_stays_within(lower: float, upper: float) -> None:
    """Every bit pattern stays within; NaN stays one NaN; the bounds themselves become the ends."""
    log = Log1p(0, lower, upper)
    assert is_within(log.of, log.ends)
    assert is_of_the_cell_alone(log.of)
    assert log.of(np.array([lower, upper, -np.inf, np.inf])).tolist() == [*log.ends, *log.ends]


def test_planted_bugs_are_seen() -> None:
    """No clip, a scale by the block's largest value, a mean for missing cells, and the sign of zero are all found."""
    log = Log1p(0, 0.0, 20_000.0)

    def unclipped(x: Array) -> Array:
        return log1p(np.where(x > 0, x, 0.0))

    def scaled(x: Array) -> Array:
        return np.asarray(log.of(x) / np.nan_to_num(log.of(x)).max())

    def filled(x: Array) -> Array:
        return np.where(np.isnan(x), np.nanmean(np.append(log.of(x), 0.0)), log.of(x))

    def vectorised(x: Array) -> Array:
        return log.of(x) + (1e-16 if len(x) > 8 else 0.0)

    with np.errstate(all="ignore"):
        assert not is_within(unclipped, log.ends)
        assert not is_of_the_cell_alone(scaled)
        assert not is_of_the_cell_alone(filled)
        assert not is_of_the_cell_alone(vectorised)


@given(
    bounds=st.tuples(st.floats(0, 1e100), st.floats(1e-6, 1e100)),
    cells=st.lists(st.floats(width=64), min_size=1, max_size=20),
)
def test_any_cell_within_any_bounds(bounds: tuple[float, float], cells: list[float]) -> None:
    """The ends hold exactly, whatever the logarithm's last bit."""
    lower, upper = bounds[0], bounds[0] + bounds[1]
    try:
        log = Log1p(0, lower, upper)
    except ValueError:
        assert float(np.log1p(upper)) <= np.nextafter(np.log1p(lower), np.inf)  # too close to tell apart
        return
    found = log.of(np.array(cells))
    assert np.array_equal(np.isnan(found), np.isnan(cells))
    assert all(log.ends[0] <= one <= log.ends[1] for one in found[~np.isnan(found)])


@given(st.floats(0, 1e300))
def test_is_the_logarithm(x: float) -> None:
    """It is so to a few units of the last place, small numbers included."""
    assert float(log1p(np.array([x]))[0]) == pytest.approx(np.log1p(x), rel=1e-15, abs=2.0**-60)


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(-1.0, 1.0), (-1e-300, 1.0), (1.0, 1.0), (2.0, 1.0), (0.0, 1e-30), (np.nan, 1.0), (0.0, np.inf)],
)
def test_bounds_without_two_logarithms_are_refused(lower: float, upper: float) -> None:
    """The refusal comes when the transform is made, which is before the debit."""
    with pytest.raises(ValueError, match="bounds"):
        Log1p(0, lower, upper)


def test_only_transformed_columns_change() -> None:
    """Other columns, the mask and the number of slots are as stored."""
    columns = np.random.default_rng(2).uniform(-3, 9, (3, CHUNK + 100))  # noqa: TID251 - rows of a test
    stored = ArrayRows(columns, np.arange(CHUNK + 100) % 3 > 0)
    log = Log1p(1, 0.0, 5.0)
    found = transformed(stored, (log,))
    block, present = np.zeros((3, CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
    for first in (0, CHUNK):
        found.read(first, block, present)
        filled = min(CHUNK, stored.slots - first)
        expected = columns[:, first : first + filled].copy()
        expected[1] = log.of(expected[1])
        np.testing.assert_array_equal(block[:, :filled], expected)
        assert stored.present is not None
        np.testing.assert_array_equal(present[:filled], stored.present[first : first + filled])
        assert not present[filled:].any()
    assert found.slots == stored.slots
    assert transformed(stored, ()) is stored


@pytest.mark.parametrize("unit_rows", [1, 3])
def test_neighbours_stay_neighbours(unit_rows: int) -> None:
    """Tables that differ in a unit's slots, whatever they hold, differ in no other slot afterwards."""
    rng = np.random.default_rng(3)  # noqa: TID251 - rows of a test
    for _ in range(50):
        columns = rng.choice([*ODD, *rng.uniform(-9, 99, 20)], (2, 500))
        slots = rng.choice(500, unit_rows, replace=False)
        other, present = columns.copy(), np.ones(500, dtype=np.bool_)
        other[:, slots] = rng.choice(ODD, (2, unit_rows))
        present[slots] = rng.random(unit_rows) < 0.5
        seen = []
        for rows in (ArrayRows(columns), ArrayRows(other, present)):
            block, mask = np.zeros((2, CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
            transformed(rows, (Log1p(0, 0.0, 50.0),)).read(0, block, mask)
            seen.append((block.view(np.uint64), mask))
        differ = (seen[0][0] != seen[1][0]).any(axis=0) | (seen[0][1] != seen[1][1])
        assert set(np.flatnonzero(differ)) <= set(slots)


@dataclass(frozen=True)
class Part:
    """A partition in memory."""

    columns: Array

    @property
    def slots(self) -> int:
        """Number of slots."""
        return int(self.columns.shape[1])

    @contextlib.contextmanager
    def open(self) -> Iterator[Rows]:
        """Open it."""
        yield ArrayRows(self.columns)


@dataclass(frozen=True)
class Spread(ArrayRows):
    """A table in two partitions."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Partitions."""
        return Part(self.columns[:, :CHUNK]), Part(self.columns[:, CHUNK:])


def test_partitions_are_transformed_where_they_are_read() -> None:
    """A part that was pickled gives the same bits as the table."""
    columns = np.random.default_rng(4).uniform(-3, 9, (2, CHUNK + 5))  # noqa: TID251 - rows of a test
    found = transformed(Spread(columns), (Log1p(0, 0.0, 5.0),))
    assert isinstance(found, SpreadRows)
    whole, piece, present = np.zeros((2, CHUNK)), np.zeros((2, CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
    for number, part in enumerate(found.parts):
        found.read(number * CHUNK, whole, present)
        with pickle.loads(pickle.dumps(part)).open() as rows:  # noqa: S301 - this test's own
            rows.read(0, piece, present)
        np.testing.assert_array_equal(piece, whole)
    assert [part.slots for part in found.parts] == [CHUNK, 5]
