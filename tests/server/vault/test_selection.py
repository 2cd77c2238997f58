"""Private choices: scores, their sensitivity, the law of what is chosen, and the meter before the rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bursar_ledger import COST_UNIT, Adjacency, SelectionEvent, cost_units, rdp
from bursar_server.vault import (
    MAX_ROWS,
    MAX_SCORE,
    ArrayRows,
    Bounds,
    Candidates,
    Choice,
    Factor,
    GaussianNoise,
    Kernel,
    Meter,
    NoiseSource,
    OpenDPNoise,
    OverspendError,
    Release,
    Rows,
    SelectionNoise,
    Session,
    Statistic,
    SyntheticBudget,
    event_of,
    sensitivity,
)
from tests.each import each
from tests.server.vault.doubles import Echo, Untouchable
from tests.server.vault.goodness import ALPHA, Bins

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE
ORDER = Fraction(9)
BLOCK = Bounds(1, 1, 2, 2, non_negative=True)
NOISE = SelectionNoise(3.0)
STATES = 2
BLOCKS = ((0, 4), (4, 8), (8, 12))
"""Blocks of `PAIRS`: the tables of columns (0, 1), (0, 2) and (1, 2)."""


def pairs_kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
    """The three tables of two of three columns with two states each, behind one another."""
    states = block[:, present].astype(np.int64)
    for start, (a, b) in zip((0, 4, 8), itertools.combinations(range(3), 2), strict=True):
        out[start : start + 4] += np.bincount(STATES * states[a] + states[b], minlength=4)


def statistic_of(kernel: Kernel, size: int) -> Statistic:
    """A statistic of counts; its own bounds are not those of a block."""
    return Statistic("tables", kernel, (Factor("one", 1),), (size,), Bounds(3, 3, 6, 6, non_negative=True), 1)


PAIRS = statistic_of(pairs_kernel, 12)
TARGETS = np.array([1, 0, 2, 1, 0, 0, 1, 3, 1, 1, 1, 1], dtype=np.int64)
CANDIDATES = Candidates(PAIRS, BLOCKS, TARGETS, BLOCK)


def session(
    rows: Rows,
    *,
    source: NoiseSource | None = None,
    meter: Meter | None = None,
    adjacency: Adjacency = AR,
    unit_cap: int = 1,
    taps: list[Release | Choice] | None = None,
) -> Session:
    """A session of three columns under a debit that covers everything."""
    seen: list[Release | Choice] = [] if taps is None else taps
    return Session(
        rows=rows,
        columns=3,
        adjacency=adjacency,
        unit_cap=unit_cap,
        meter=meter or Meter(SyntheticBudget(ORDER, 2**70)),
        source=source or Echo(),
        tap=seen.append,
        choice_tap=seen.append,
    )


def table(rows: Sequence[tuple[int, ...]]) -> ArrayRows:
    """A table of these rows."""
    return ArrayRows(np.array(rows, dtype=np.float64).reshape(-1, 3).T)


@dataclass
class Counted:
    """Rows that know how often they were read."""

    rows: ArrayRows
    reads: int = 0

    @property
    def slots(self) -> int:
        """See `Rows`."""
        return self.rows.slots

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """See `Rows`."""
        self.reads += 1
        self.rows.read(first, block, present)


# Scores


sums = st.lists(st.integers(-(2**40), 2**40), min_size=6, max_size=6)
spans = st.tuples(st.integers(0, 5), st.integers(1, 6)).filter(lambda span: span[0] < span[1])


@given(sums, sums, st.lists(spans, min_size=1, max_size=4))
def test_a_score_is_the_distance_from_the_targets(
    total: list[int], targets: list[int], blocks: list[tuple[int, int]]
) -> None:
    """Scores are L1 distances, in Python's integers; blocks may overlap and come in any order."""
    made = Candidates(statistic_of(pairs_kernel, 6), tuple(blocks), np.array(targets, dtype=np.int64), BLOCK)
    expected = [sum(abs(total[i] - targets[i]) for i in range(*span)) for span in blocks]
    assert made.scores(np.array(total, dtype=np.int64).reshape(2, 3)).tolist() == expected


parts = st.fractions(0, 1, max_denominator=1000)


@given(st.integers(0, 2**61), st.integers(0, 2**61), parts, st.integers(1, 4))
def test_worth_moves_by_no_more_than_the_distance(distance: int, discount: int, weight: Fraction, step: int) -> None:
    """It is the integer below w S^2 / (S + N), rises with S, and by no more than S does: the price is that of S."""
    here, there = (
        Candidates(
            statistic_of(pairs_kernel, 1), ((0, 1),), np.zeros(1, dtype=np.int64), BLOCK, (discount,), (weight,)
        ).scores(np.array([S], dtype=np.int64))[0]
        for S in (distance, distance + step)
    )
    exact = weight * Fraction(distance**2, distance + discount) if distance else 0
    assert here == math.floor(exact)
    assert here <= there <= here + step


def test_the_largest_scores_are_exact() -> None:
    """Nothing overflows at the limit of what is accepted."""
    room = MAX_SCORE - MAX_ROWS
    made = Candidates(statistic_of(pairs_kernel, 3), ((0, 3), (1, 2)), np.array([room, 0, 0], dtype=np.int64), BLOCK)
    half = MAX_ROWS // 2
    sums = np.array([0, half - MAX_ROWS, half], dtype=np.int64)
    assert made.scores(sums).tolist() == [MAX_SCORE, MAX_ROWS - half]


def test_targets_are_copied() -> None:
    """Targets that change afterwards change nothing, and those of the candidates cannot be changed."""
    mine = TARGETS.copy()
    made = replace(CANDIDATES, targets=mine)
    mine[:] = 2**62
    assert (made.targets == TARGETS).all()
    with pytest.raises(ValueError, match="read-only"):
        made.targets[0] = 1


@each(
    ("wrong", "message"),
    [
        ({"blocks": ()}, "blocks: expected at least one"),
        ({"blocks": ((0, 4), (4, 13))}, "blocks: expected"),
        ({"blocks": ((-1, 4),)}, "blocks: expected"),
        ({"blocks": ((4, 4),)}, "blocks: expected"),
        ({"blocks": ((5, 4),)}, "blocks: expected"),
        ({"targets": TARGETS[:-1]}, "targets: expected int64 of shape"),
        ({"targets": TARGETS.reshape(3, 4)}, "targets: expected int64 of shape"),
        ({"targets": TARGETS.astype(np.float64)}, "targets: expected int64 of shape"),
        ({"targets": TARGETS.astype(np.int32)}, "targets: expected int64 of shape"),
        ({"targets": TARGETS + 2**60}, "clip them"),
        ({"targets": np.full(12, -(2**63), dtype=np.int64)}, "clip them"),
        ({"block_bounds": Bounds(2**36, 2**72, 2**37, 2**73)}, "clip them"),
        ({"discounts": (1, 2)}, "discounts: expected none, or 3 integers"),
        ({"discounts": (1, 2, -1)}, "discounts: expected none, or 3 integers"),
        ({"discounts": (1, 2, 0.5)}, "discounts: expected none, or 3 integers"),
        ({"weights": (Fraction(1), Fraction(1))}, "weights: expected none, or 3 fractions"),
        ({"weights": (Fraction(1), Fraction(1), Fraction(3, 2))}, "weights: expected none, or 3 fractions"),
        ({"weights": (Fraction(1), Fraction(1), Fraction(-1))}, "weights: expected none, or 3 fractions"),
        ({"weights": (1.0, 1.0, 0.5)}, "weights: expected none, or 3 fractions"),
    ],
)
def test_candidates_that_cannot_be_scored_are_refused(wrong: dict[str, object], message: str) -> None:
    """Blocks outside the sum, targets of another form, and scores that could overflow are refused."""
    with pytest.raises(ValueError, match=message):
        replace(CANDIDATES, **wrong)  # type: ignore[arg-type] # what is wrong


# What one unit can change

CONTENTS = list(itertools.product(range(STATES), repeat=3))


WEIGHED = replace(CANDIDATES, discounts=(0, 1, 3), weights=(Fraction(1, 3), Fraction(1), Fraction(1)))


def scores_of(rows: Sequence[tuple[int, ...]], candidates: Candidates = CANDIDATES) -> NDArray[np.int64]:
    """Scores of a table, from a sum in plain arithmetic."""
    out = np.zeros(12, dtype=np.int64)
    for row in rows:
        for start, (a, b) in zip((0, 4, 8), itertools.combinations(range(3), 2), strict=True):
            out[start + STATES * row[a] + row[b]] += 1
    return candidates.scores(out)


def units(adjacency: Adjacency, cap: int) -> list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]]:
    """All pairs of contents of one unit: nothing and something, or anything and anything."""
    contents = [list(rows) for n in range(cap + 1) for rows in itertools.combinations_with_replacement(CONTENTS, n)]
    return [(a, b) for a in contents for b in ([[]] if adjacency is AR else contents)]


COMMON: list[tuple[int, ...]] = [(0, 1, 1), (1, 1, 0), (0, 0, 0), (1, 1, 1)]


@pytest.mark.parametrize(("adjacency", "cap"), [(AR, 1), (AR, 2), (RO, 1), (RO, 2)])
def test_no_unit_changes_a_score_or_the_choice_by_more_than_is_charged(adjacency: Adjacency, cap: int) -> None:
    """Scores, the range of the privacy loss and the choice's divergence hold over all contents of a unit."""
    changed = sensitivity(BLOCK, adjacency, cap)
    event = event_of(changed, NOISE)
    assert isinstance(event, SelectionEvent)
    eta, price = float(event.bounded_range), float(rdp(event, ORDER))
    largest = 0
    for here, there in units(adjacency, cap):
        weighed = [scores_of(COMMON + rows, WEIGHED) for rows in (here, there)]
        assert np.abs(weighed[0] - weighed[1]).max() <= changed.l1_total
        scores = [scores_of(COMMON + rows) for rows in (here, there)]
        largest = max(largest, int(np.abs(scores[0] - scores[1]).max()))
        p, q = (softmax(score, NOISE.scale) for score in scores)
        assert np.ptp(np.log(p / q)) <= eta * (1 + 1e-12)
        assert math.log((p**9 * q**-8.0).sum()) / 8 <= price * (1 + 1e-12)
    assert largest == changed.l1_total == event.sensitivity


# The law of the choice


def softmax(scores: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    """The exponential mechanism's law."""
    weights = np.exp((scores - scores.max()) / scale)
    return np.asarray(weights / weights.sum())


N = 1700
GAINS = np.array([40, *[0] * 16, 12, 24, 40], dtype=np.int64)
"""Scores for one row. Sixteen low ones share the probability with one high one, as tells scales apart best."""
OFFERED = tuple(range(len(GAINS) - 2, 0, -1))
"""Not the first and not the last, and from behind."""
GROUP = np.array([-1, *[0] * 8, *[1] * 8, 2, 3, -1])
"""Group in which a block is counted."""
SCALE = 8.3


def gains_kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
    """`GAINS` per row."""
    out += GAINS * int(present.sum())


GAINING = Candidates(
    statistic_of(gains_kernel, len(GAINS)),
    tuple((i, i + 1) for i in range(len(GAINS))),
    np.zeros(len(GAINS), dtype=np.int64),
    Bounds(40, 1600, 40, 1600),
)


def chosen_at(scale: float) -> NDArray[np.int64]:
    """Groups of N choices under this noise."""
    one = session(ArrayRows(np.zeros((3, 1))), source=OpenDPNoise())
    return GROUP[[one.choose(GAINING, OFFERED, SelectionNoise(scale)) for _ in range(N)]]


def law_at(scale: float) -> NDArray[np.float64]:
    """Exact probabilities of the groups."""
    offered = list(OFFERED)
    return np.asarray(np.bincount(GROUP[offered], weights=softmax(GAINS[offered], scale)))


BINS = Bins(np.arange(3), law_at(SCALE))


def test_choices_have_the_exact_law() -> None:
    """Probabilities in proportion to exp(score / scale) agree, and do not depend on the last choice."""
    chosen, law = chosen_at(SCALE), law_at(SCALE)
    assert BINS.p_value(chosen) > ALPHA
    same = float((law**2).sum())
    assert abs((chosen[1:] == chosen[:-1]).mean() - same) < 6 * math.sqrt(same / N)


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_test_of_the_law_sees_a_wrong_scale(factor: float) -> None:
    """Noise 30 % too small and noise 30 % too large are both rejected, as the computed power promises."""
    assert BINS.power(law_at(factor * SCALE), N) > 1 - 1e-9
    assert not BINS.p_value(chosen_at(factor * SCALE)) > ALPHA


# The session


@pytest.mark.parametrize("missing", [1, 2**30])
def test_a_choice_beyond_the_debit_reads_no_row_and_draws_no_noise(missing: int) -> None:
    """One unit less than the price was debited: the fit is stopped before anything is touched or tapped."""
    price = cost_units([SelectionEvent(1, Fraction(3))], ORDER)
    taps: list[Release | Choice] = []
    paid, untouchable = Meter(SyntheticBudget(ORDER, price - missing)), Untouchable()
    with pytest.raises(OverspendError):
        session(untouchable, source=untouchable, meter=paid, taps=taps).choose(CANDIDATES, [0, 1], NOISE)
    assert taps == []
    assert paid.unspent == Fraction(price - missing, COST_UNIT)


@pytest.mark.parametrize("available", [[], [0, 0], [3], [-1], [0, 1, 2, 3]])
def test_an_offer_that_is_none_is_refused(available: list[int]) -> None:
    """Nothing to choose from, the same twice, or a block that is not there: refused before the meter and the rows."""
    paid, untouchable = Meter(SyntheticBudget(ORDER, 2**60)), Untouchable()
    with pytest.raises(ValueError, match="available: expected"):
        session(untouchable, source=untouchable, meter=paid).choose(CANDIDATES, available, NOISE)
    assert paid.unspent == Fraction(2**60, COST_UNIT)


@pytest.mark.parametrize(
    ("adjacency", "cap", "bounds", "expected"),
    [
        (AR, 1, BLOCK, 1),
        (AR, 3, BLOCK, 3),
        (RO, 1, BLOCK, 2),
        (RO, 3, BLOCK, 6),
        (RO, 3, replace(BLOCK, per_unit=True), 2),
        (RO, 3, Bounds(5, 25, 4, 16), 15),
    ],
)
def test_a_choice_is_charged_for_the_tables_adjacency_and_cap(
    adjacency: Adjacency, cap: int, bounds: Bounds, expected: int
) -> None:
    """The session prices by what one unit can change in one block's sum; a fit cannot choose."""
    taps: list[Release | Choice] = []
    paid = Meter(SyntheticBudget(ORDER, 2**60))
    one = session(table(COMMON), meter=paid, adjacency=adjacency, unit_cap=cap, taps=taps)
    one.choose(replace(CANDIDATES, block_bounds=bounds), [0, 1], NOISE)
    assert taps[0].event == SelectionEvent(expected, Fraction(3))
    assert paid.unspent == Fraction(2**60, COST_UNIT) - rdp(taps[0].event, ORDER)


def test_without_noise_the_largest_score_is_chosen_among_those_offered() -> None:
    """The choice is made on exact scores of the session's rows, and only what is offered is chosen."""
    scores = scores_of(COMMON)
    assert scores.tolist() == [4, 4, 2]
    one = session(table(COMMON))
    for offered in ([0, 1], [1, 0], [0, 2], [2], [0]):
        assert one.choose(CANDIDATES, offered, NOISE) == max(offered, key=lambda index: scores[index])


def test_every_choice_is_paid_and_rows_are_read_once() -> None:
    """Further choices among blocks of the same sum cost the same and make no second pass; even one among one costs."""
    rows, paid = Counted(table(COMMON)), Meter(SyntheticBudget(ORDER, 2**60))
    one, price = session(rows, meter=paid), rdp(SelectionEvent(1, Fraction(3)), ORDER)
    for choices, offered in enumerate(([0, 1, 2], [0, 1], [1]), start=1):
        one.choose(CANDIDATES, offered, NOISE)
        assert rows.reads == 1
        assert paid.unspent == Fraction(2**60, COST_UNIT) - choices * price


def test_other_candidates_are_scored_anew() -> None:
    """Only the sum is kept: other targets, discounts and statistics, and releases between, are not confused."""
    rows = Counted(table(COMMON))
    one = session(rows)
    far = replace(CANDIDATES, targets=TARGETS + 100 * (np.arange(12) // 4 == 1))
    dear = replace(far, discounts=(0, 10**9, 0))
    other = replace(far, statistic=statistic_of(lambda block, present, out: None, 12))
    assert [one.choose(made, [0, 1], NOISE) for made in (CANDIDATES, far, dear, CANDIDATES)] == [0, 1, 0, 0]
    assert rows.reads == 1
    assert [one.choose(made, [0, 1], NOISE) for made in (other, CANDIDATES)] == [1, 0]
    assert rows.reads == 3
    assert one.noisy_sum(PAIRS, GaussianNoise(1.0)).sum() * 2 == 3 * len(COMMON)
    assert one.choose(CANDIDATES, [0, 1], NOISE) == 0


def test_the_taps_see_releases_and_choices_in_their_order() -> None:
    """A choice is tapped after noise: among what, what was offered, what was chosen, under which noise."""
    taps: list[Release | Choice] = []
    one = session(table(COMMON), taps=taps)
    one.noisy_sum(PAIRS, GaussianNoise(1.0))
    index = one.choose(CANDIDATES, [2, 0], NOISE)
    assert [type(tap) for tap in taps] == [Release, Choice]
    assert taps[1] == Choice(CANDIDATES, (2, 0), index, NOISE, SelectionEvent(1, Fraction(3)))
