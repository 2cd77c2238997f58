"""A unit changes the estimates of few blocks, whatever is estimated, and where rows stand does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from bursar_ledger import Adjacency, ConcentratedEvent, cost_units
from bursar_server.vault import (
    CHUNK,
    MAX_BLOCK_NUMBERS,
    ArrayRows,
    Meter,
    OpenDPNoise,
    OverspendError,
    Session,
    SyntheticBudget,
    _blocks,
    estimates_cap,
)
from bursar_server.vault._blocks import block_estimates, row_hashes

Array = NDArray[np.float64]
ORDER = Fraction(9)


@dataclass(frozen=True)
class Fingerprint:
    """Tells everything of a block: its size, its sum, and a sum in which the order matters; twice."""

    blocks: int = 40
    capacity: int = 8
    shape: tuple[int, int] = (3, 2)

    def __call__(self, rows: Array, present: NDArray[np.bool_]) -> tuple[Array, NDArray[np.bool_]]:
        """See `BlockEstimator`."""
        # Whole numbers and exact sums, so that the same rows give the same bits.
        sums = rows[:, present].sum(axis=0)
        made = np.array([present.sum(), sums.sum(), sums @ np.arange(1.0, len(sums) + 1.0)])
        return np.repeat(made[:, None], 2, axis=1), np.array([True, bool(present.any())])


def generator(seed: int) -> np.random.Generator:  # noqa: TID251 - likewise
    """Return the generator of a test's rows."""
    return np.random.default_rng(seed)  # noqa: TID251 - rows of a test


def changed(a: ArrayRows, b: ArrayRows) -> int:
    """Count the slots in which two tables differ."""
    assert a.present is not None
    assert b.present is not None
    return int(((a.columns != b.columns).any(axis=0) | (a.present != b.present)).sum())


def pair(adjacency: Adjacency, unit_cap: int, seed: int) -> tuple[ArrayRows, ArrayRows]:
    """Neighbouring tables: the unit's slots are anywhere."""
    draw = generator(seed)
    n = int(draw.integers(unit_cap, 600))
    X = draw.integers(-5, 6, (2, n)).astype(np.float64)
    unit = draw.choice(n, unit_cap, replace=False)
    Y, present, gone = X.copy(), np.ones(n, dtype=np.bool_), np.ones(n, dtype=np.bool_)
    if adjacency is Adjacency.ADD_REMOVE_ONE:
        gone[unit] = False
    else:
        Y[:, unit] = draw.integers(-5, 6, (2, unit_cap))
        gone[unit] = draw.random(unit_cap) < 0.8
    return ArrayRows(X, present), ArrayRows(Y, gone)


def most_changed(adjacency: Adjacency, unit_cap: int) -> int:
    """Slots of estimates that a unit changed in one of many pairs of tables."""
    made = Fingerprint()
    pairs = [pair(adjacency, unit_cap, seed) for seed in range(60)]
    return max(changed(*(block_estimates(rows, 2, made) for rows in some)) for some in pairs)


@pytest.mark.parametrize("unit_cap", [1, 3])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_unit_changes_as_many_estimates_as_are_paid_for(adjacency: Adjacency, unit_cap: int) -> None:
    """And no more; and so many, in some of the pairs, so that the bound is no larger than it has to be."""
    assert most_changed(adjacency, unit_cap) == estimates_cap(2, adjacency, unit_cap)


def test_blocks_by_place_would_change_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug that a hash of the row is there for: where a row is not in the source, those after it move."""
    X = generator(1).integers(-5, 6, (2, 400)).astype(np.float64)
    tables = [ArrayRows(X), ArrayRows(X[:, 1:])]
    made = Fingerprint()
    assert changed(*(block_estimates(rows, 2, made) for rows in tables)) <= 2
    monkeypatch.setattr(_blocks, "row_hashes", lambda block: np.arange(block.shape[1], dtype=np.uint64))
    assert changed(*(block_estimates(rows, 2, made) for rows in tables)) > 40


def test_rows_stand_where_they_like() -> None:
    """The same rows in another order give the same estimates."""
    X = generator(2).standard_normal((2, 3 * CHUNK))
    some, mixed = Fingerprint(capacity=500), X[:, generator(3).permutation(X.shape[1])]
    assert changed(block_estimates(ArrayRows(X), 2, some), block_estimates(ArrayRows(mixed), 2, some)) == 0


def test_the_lowest_hashes_of_a_block_are_kept() -> None:
    """However many rows there are beside the few that fit: against all of them sorted at once."""
    X = generator(4).standard_normal((2, 5 * CHUNK + 17))
    present: NDArray[np.bool_] = np.asarray(generator(5).random(X.shape[1]) < 0.7)
    some = Fingerprint(blocks=7, capacity=5)
    found = block_estimates(ArrayRows(X, present), 2, some)
    hashes = row_hashes(X)
    for block in range(7):
        mine = np.flatnonzero(present & (hashes % np.uint64(7) == block))
        first = mine[np.argsort(hashes[mine])][:5]
        assert found.columns[:, 2 * block].tolist() == some(X[:, first], np.ones(5, dtype=np.bool_))[0][:, 0].tolist()


def test_hashes_are_spread() -> None:
    """Forty blocks of distinct rows are equally large, as far as chance lets them; a false alarm in 1e9."""
    found = block_estimates(ArrayRows(generator(6).standard_normal((2, 8000))), 2, Fingerprint(capacity=8000))
    sizes = found.columns[0, ::2]
    assert sizes.sum() == 8000
    assert np.all(np.abs(sizes - 200) < 6.8 * np.sqrt(200))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (MAX_BLOCK_NUMBERS, 2)])
def test_too_many_numbers_are_refused(shape: tuple[int, int]) -> None:
    """And none."""
    with pytest.raises(ValueError, match="numbers"):
        block_estimates(ArrayRows(np.zeros((2, 3))), 2, Fingerprint(blocks=shape[0], capacity=shape[1]))


def test_a_table_of_more_answers_than_rows_may_be_is_refused() -> None:
    """The refusal comes before any row is read: sums over answers are exact for as many as over rows."""
    many = Fingerprint(blocks=2**15, capacity=1, shape=(1, 2**12))
    with pytest.raises(ValueError, match="134217727 rows of all blocks, got 32768 x 4096"):
        block_estimates(ArrayRows(np.zeros((2, 3))), 2, many)


def test_units_have_rows() -> None:
    """A cap of none is no cap."""
    with pytest.raises(ValueError, match="unit_cap"):
        estimates_cap(1, Adjacency.REPLACE_ONE, 0)


class Counted:
    """Rows that count how often they are read."""

    slots, reads = 10, 0

    def read(self, first: int, block: Array, present: NDArray[np.bool_]) -> None:
        """See `Rows`."""
        self.reads += 1
        present[:] = False


def test_blocks_are_paid_for_before_they_are_read() -> None:
    """A session whose debit does not cover them reads nothing; one whose debit does, everything, once."""
    rows = Counted()
    session = Session(
        rows=rows,
        columns=2,
        adjacency=Adjacency.REPLACE_ONE,
        unit_cap=1,
        meter=Meter(SyntheticBudget(ORDER, cost_units([ConcentratedEvent(Fraction(1, 2))], ORDER))),
        source=OpenDPNoise(),
    )
    with pytest.raises(OverspendError):
        session.blocks(Fraction(1), Fingerprint())
    assert rows.reads == 0
    forest = session.blocks(Fraction(1, 2), Fingerprint())
    assert rows.reads == 1
    assert forest.left(forest.tree()) == Fraction(1, 2)
