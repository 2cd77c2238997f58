"""Exact sums: the same integers for every order, place, chunk and number of threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bursar_server.vault import CHUNK, MAX_ROWS, ArrayRows, Bounds, Factor, LocalEngine, Statistic, exact_sum

BOUNDS = Bounds(1, 1, 1, 1)
BITS = 18


def outer_kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
    """Product of two clipped columns, each truncated to 18 bits; anything that is not a number counts as zero."""
    factors = np.trunc(np.clip(np.nan_to_num(block, nan=0.0), -1, 1) * (2**BITS - 1)).astype(np.int64)
    total = factors[0, present] @ factors[1, present]
    out += np.array([total, -total])


LARGEST = 2**36
"""Most that a row may add to a number."""

OUTER = Statistic("outer", outer_kernel, (Factor("weight", BITS), Factor("value", BITS)), (2,), BOUNDS, LARGEST)

values = st.floats(width=64, allow_nan=True, allow_infinity=True)
tables = st.lists(st.tuples(values, values), max_size=30)


def brute_force(rows: list[tuple[float, float]]) -> list[int]:
    """The same sum in Python's integers."""
    top = 2**BITS - 1

    def factor(x: float) -> int:
        return 0 if x != x else int(max(-1.0, min(1.0, x)) * top)

    total = sum(factor(a) * factor(b) for a, b in rows)
    return [total, -total]


@settings(max_examples=40)
@given(tables, st.data())
def test_sums_do_not_depend_on_order_place_or_threads(rows: list[tuple[float, float]], data: st.DataObject) -> None:
    """Rows in any order over several blocks, null rows between them, on any number of threads: the same integers."""
    slots = data.draw(st.integers(max(1, len(rows)), 3 * CHUNK + 5), label="slots")
    seed, threads = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(1, 5))
    places = np.random.default_rng(seed).permutation(slots)[: len(rows)]  # noqa: TID251 - a test's own places
    columns, present = np.full((2, slots), 0.77), np.zeros(slots, dtype=np.bool_)
    columns[:, places] = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    present[places] = True
    assert exact_sum(OUTER, ArrayRows(columns, present), 2, engine=LocalEngine(threads)).tolist() == brute_force(rows)


@pytest.mark.parametrize("slots", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_every_slot_is_read_once(slots: int) -> None:
    """Tables of every length around a block's: no slot is left out, none is counted twice, padding counts as null."""
    top = 2**BITS - 1
    assert exact_sum(OUTER, ArrayRows(np.ones((2, slots))), 2, engine=LocalEngine(2))[0] == slots * top**2


def test_rows_without_a_mask_are_all_present_and_padding_is_not() -> None:
    """A block past the end of the table is marked absent, whatever the buffer held before."""
    block, present = np.full((1, CHUNK), np.nan), np.ones(CHUNK, dtype=np.bool_)
    ArrayRows(np.arange(CHUNK + 3.0).reshape(1, -1)).read(CHUNK, block, present)
    assert block[0, :4].tolist() == [CHUNK, CHUNK + 1, CHUNK + 2, 0.0]
    assert present.nonzero()[0].tolist() == [0, 1, 2]


def test_a_sum_of_the_largest_contributions_is_exact() -> None:
    """Integers stay exact where float64 sums would not."""

    def top(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        out += int(present.sum()) * (2**36 - 1)

    slots = 20 * CHUNK + 1
    statistic = Statistic("top", top, (Factor("one", 36),), (1,), BOUNDS, LARGEST - 1)
    assert exact_sum(statistic, ArrayRows(np.zeros((1, slots))), 1, engine=LocalEngine(3))[0] == slots * (2**36 - 1)


def test_size_and_lattice_follow_from_shape_and_factors() -> None:
    """A lattice unit is two to minus the bits of all factors; the size is that of the shape."""
    statistic = Statistic("s", outer_kernel, (Factor("a", 20), Factor("b", 10)), (3, 4), BOUNDS, 1)
    assert (statistic.size, statistic.lattice) == (12, 2.0**-30)


def test_a_statistic_says_how_much_a_row_adds_to_a_number() -> None:
    """It has to; and it is refused if so much from every row there may be leaves 64 bits, or if it is not positive."""
    with pytest.raises(TypeError, match="largest"):
        Statistic("s", outer_kernel, (), (1,), BOUNDS)  # type: ignore[call-arg]
    most = (2**63 - 1) // MAX_ROWS
    assert Statistic("s", outer_kernel, (), (1,), BOUNDS, most).largest == 2**36 + 2**9
    for largest in (0, -1, most + 1, 2**63):
        with pytest.raises(ValueError, match="134217727 rows add up to less than 2\\^63"):
            Statistic("s", outer_kernel, (), (1,), BOUNDS, largest)


@dataclass(frozen=True)
class _Full:
    """A table of as many slots as there may be, none of which is looked at."""

    slots: int = MAX_ROWS

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """See `Rows`."""
        present[:] = np.arange(first, first + CHUNK) < self.slots


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_table_of_the_largest_contributions_fits_into_64_bits(sign: int) -> None:
    """Every slot there may be contributes the most there may be: the sum is exact, and a slot more would not fit."""

    def top(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        out += sign * int(present.sum()) * LARGEST

    statistic = Statistic("top", top, (Factor("one", 36),), (1,), BOUNDS, LARGEST)
    total = MAX_ROWS * LARGEST
    assert exact_sum(statistic, _Full(), 1, engine=LocalEngine(2)).tolist() == [sign * total]
    assert total < 2**63 == total + LARGEST
