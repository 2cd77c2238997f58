"""Searches over streamed candidates: counts and places, and the exact law of what is drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from bursar_ledger import Adjacency
from bursar_server.vault import (
    ArrayRows,
    Bounds,
    Counts,
    ExactSearch,
    Factor,
    Meter,
    OpenDPNoise,
    ScoreBounds,
    SelectionNoise,
    Session,
    Statistic,
    SyntheticBudget,
    _search,
)
from bursar_server.vault._noise import fair_bits
from bursar_server.vault._sampling import decay
from bursar_server.vault._search import MOST_REACH, FamilyScores, _place, _weights, draw_score
from tests.server.vault.goodness import ALPHA, Bins

Coins = Callable[[int], int]


def exponential(exponent: Fraction) -> Fraction:
    """exp(-exponent) to 140 digits, by its power series at a millionth of it, squared back."""
    halvings = 20
    x, term, total = -exponent / 2**halvings, Fraction(1), Fraction(1)
    for n in range(1, 60):
        term = _short(term * x / n)
        total += term
    for _ in range(halvings):
        total = _short(total**2)
    return total


def _short(value: Fraction) -> Fraction:
    """Round to some 200 digits."""
    return Fraction(round(value * 2**700), 2**700)


# A family whose scores are written down


@dataclass(frozen=True, eq=False)
class Written:
    """Groups of candidates whose scores are known; each group's sum is its number, times the rows."""

    groups_of_scores: tuple[tuple[int, ...], ...]
    batch: int = 1

    @property
    def bounds(self) -> ScoreBounds:
        """See `Family`."""
        return ScoreBounds(1, 2)

    @property
    def groups(self) -> int:
        """See `Family`."""
        return len(self.groups_of_scores)

    def statistic(self, first: int, stop: int) -> Statistic:
        """Numbers of the groups."""

        def kernel(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
            out += np.arange(first, stop) * int(present.sum())

        return Statistic("numbers", kernel, (Factor("one", 8),), (stop - first, 1), Bounds(1, 1, 1, 1), stop)

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what is written, if the sums are this group's."""
        assert sums.tolist() == [group]
        return np.array(self.groups_of_scores[group], dtype=np.int64)


def numbers_of_one_row(statistic: Statistic) -> NDArray[np.int64]:
    """Sums over a table of one row."""
    out, present = np.zeros(statistic.size, dtype=np.int64), np.ones(1, dtype=np.bool_)
    statistic.kernel(np.zeros((1, 1)), present, out)
    return out.reshape(statistic.shape)


SCORES = st.integers(-9, 9) | st.sampled_from([-(2**61), 2**61])
GROUPS = st.lists(st.lists(SCORES, min_size=1, max_size=8).map(tuple), min_size=1, max_size=6).map(tuple)


@given(GROUPS, st.integers(1, 7), st.integers(1, 20) | st.sampled_from([100, MOST_REACH]))
def test_counts_are_those_of_all_candidates(groups: tuple[tuple[int, ...], ...], batch: int, reach: int) -> None:
    """Every batch gives exactly the candidates less than `reach` below the top, score by score, and how many not."""
    counted = FamilyScores(Written(groups, batch), numbers_of_one_row).counts(reach)
    every = [score for group in groups for score in group]
    top = max(every)
    near = sorted({top - score for score in every if top - score < reach})
    assert (counted.top, counted.offsets) == (top, tuple(near))
    assert counted.numbers == tuple(every.count(top - offset) for offset in near)
    assert counted.below == len(every) - sum(counted.numbers)


@given(GROUPS, st.integers(1, 7))
def test_each_candidate_has_one_rank(groups: tuple[tuple[int, ...], ...], batch: int) -> None:
    """Scores with ranks and candidates are the same thing twice."""
    scores = FamilyScores(Written(groups, batch), numbers_of_one_row)
    counted = scores.counts(MOST_REACH)
    found = [
        scores.locate(counted.top - offset, rank)
        for offset, number in zip(counted.offsets, counted.numbers, strict=True)
        for rank in range(number)
    ]
    places = [(group, index) for group, inside in enumerate(groups) for index in range(len(inside))]
    assert sorted(found) == places
    assert [groups[g][i] for g, i in found] == sorted((groups[g][i] for g, i in places), reverse=True)


@pytest.mark.parametrize(("batch", "passes"), [(1, 3), (2, 1), (5, 1)])
def test_sums_of_one_batch_are_not_made_again(batch: int, passes: int) -> None:
    """A pass for each batch, and one for the candidate if there was more than one."""
    made: list[str] = []

    def sums(statistic: Statistic) -> NDArray[np.int64]:
        made.append(statistic.name)
        return numbers_of_one_row(statistic)

    scores = FamilyScores(Written(((1, 2), (4, 3)), batch), sums)
    assert scores.locate(scores.counts(MOST_REACH).top, 0) == (1, 0)
    assert len(made) == passes


def test_a_score_that_was_not_counted_is_refused() -> None:
    """A source that draws what is not there is told so."""
    scores = FamilyScores(Written(((1, 2),)), numbers_of_one_row)
    scores.counts(MOST_REACH)
    for score, rank in ((3, 0), (2, 1)):
        with pytest.raises(IndexError, match="score and rank"):
            scores.locate(score, rank)


# The sampler, with certainty


def test_scores_do_not_decide_how_many_exponentials_are_enclosed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of a draw's time, which would tell how many different gaps there are between scores."""
    made: list[Fraction] = []

    def counted(exponent: Fraction, bits: int) -> tuple[int, int]:
        made.append(exponent)
        return decay(exponent, bits)

    monkeypatch.setattr(_search, "decay", counted)
    found = []
    for offsets in ((0,), (0, 1, 3, 7, 12, 20, 1000)):
        made.clear()
        _weights(offsets, Fraction(30), 64)
        found.append(len(made))
    assert found[0] == found[1]


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 60), max_size=5).map(lambda gaps: tuple(itertools.accumulate(gaps, initial=0))),
    st.lists(st.integers(1, 2**40), min_size=6, max_size=6),
    st.fractions(Fraction(1, 50), 200, max_denominator=1000),
    st.integers(0, 5),
    st.integers(3, 8),
)
def test_what_is_decided_is_right(
    offsets: tuple[int, ...], numbers: list[int], scale: Fraction, below: int, bits: int
) -> None:
    """A place is given only if every completion of the number falls there, for every number of a few bits."""
    counted = Counts(0, offsets, tuple(numbers[: len(offsets)]), below)
    weights = [number * exponential(offset / scale) for offset, number in zip(offsets, counted.numbers, strict=True)]
    ends = [Fraction(0), *itertools.accumulate(weights)]
    most = ends[-1] + Fraction(below, 2**bits)  # what lies below weighs at most that, and may weigh nothing
    places = [_place(counted, scale, drawn, bits) for drawn in range(2**bits)]
    for drawn, place in enumerate(places):
        if place is not None:
            assert ends[place] <= drawn * ends[-1] / 2**bits
            assert (drawn + 1) * most / 2**bits <= ends[place + 1]
    longer = [_place(counted, scale, drawn << 200, bits + 200) for drawn in range(2**bits)]
    assert all(
        place in (None, more) for place, more in zip(places, longer, strict=True)
    )  # more bits change no decision
    assert None not in longer  # these numbers begin in an interval that the boundaries, being irrational, do not


@pytest.mark.parametrize("numbers", [(1, 1, 2), (1, 1, 1), (3, 2, 5), (1, 2, 1)])
def test_a_boundary_within_the_rounding_is_not_decided(numbers: tuple[int, int, int]) -> None:
    """Scores a billionth of the scale apart: where the boundaries lie is not known to a few bits, but is to 60."""
    counted, scale, total = Counts(0, (0, 1, 2), numbers, 0), Fraction(10**9), sum(numbers)
    for bits in (8, 16, 24):
        for edge in (numbers[0], numbers[0] + numbers[1]):
            near = 2**bits * edge // total
            assert _place(counted, scale, near, bits) is None
            if edge * 2**bits % total == 0:  # the boundary is a little above, because scores fall
                assert _place(counted, scale, near << 60, bits + 60) == (0 if edge == numbers[0] else 1)


@given(st.fractions(Fraction(1, 10**30), 200), st.integers(4, 200))
def test_the_ends_of_an_exponential_enclose_it(exponent: Fraction, bits: int) -> None:
    """Below and above, and no more than two units apart where it matters."""
    low, high = decay(exponent, bits)
    assert low <= exponential(exponent) * 2**bits <= high
    assert high - low <= 2
    assert high <= 2**bits


def scripted(*answers: int) -> Coins:
    """Coins that fall as written, and fail when more are asked for."""
    left = list(answers)
    return lambda bits: left.pop(0) if left else pytest.fail("more coins than written")


def boundary(bits: int) -> int:
    """The first bits of 1 / (1 + exp(-1 / 2)): between two candidates that are one apart at a scale of two."""
    near: Fraction = 2**bits / (1 + exponential(Fraction(1, 2)))
    return math.floor(near)


@pytest.mark.parametrize(("nudge", "expected"), [(-1, 7), (1, 6)])
@pytest.mark.parametrize("doublings", [1, 2, 3])
def test_a_number_beside_a_boundary_is_refined(nudge: int, expected: int, doublings: int) -> None:
    """Bits that agree with the boundary decide nothing: more are drawn until they do, and the right side is found."""
    first, calls = 8, []
    last = first * 2**doublings
    near = boundary(last) + nudge * 2  # agrees with the boundary in all but the last bits
    pieces, known = [near >> (last - first)], first
    while known < last:
        pieces.append(near >> (last - 2 * known) & (2**known - 1))
        known *= 2

    def counts(reach: int) -> Counts:
        calls.append(reach)
        return Counts(7, (0, 1), (1, 1), 0)

    score, rank = draw_score(counts, Fraction(2), scripted(*pieces, 0), bits=first)
    assert (score, rank) == (expected, 0)
    assert calls == [16]  # nothing was lumped together, so scores are counted once


def test_candidates_below_are_counted_when_the_number_falls_there() -> None:
    """One of two million is seen at first: a number near one makes the reach double, and then finds the others."""
    calls: list[int] = []

    def counts(reach: int) -> Counts:
        calls.append(reach)
        far = 30
        return Counts(0, (0, far), (1, 2**21), 0) if reach > far else Counts(0, (0,), (1,), 2**21)

    assert draw_score(counts, Fraction(1), scripted(2**16 - 1, 2**16 - 1, 2**32 - 1, 5), bits=16) == (-30, 5)
    assert calls == [16, 32]
    calls.clear()
    assert draw_score(counts, Fraction(1), scripted(0, 0), bits=16) == (0, 0)
    assert calls == [16]


def test_ranks_are_drawn_evenly_and_rejected_beyond_the_last() -> None:
    """Five candidates with one score take three bits, and those that say five or more are drawn again."""
    counts = Counts(3, (0,), (5,), 0)
    assert draw_score(lambda reach: counts, Fraction(1), scripted(0, 7, 5, 4), bits=8) == (3, 4)
    assert draw_score(lambda reach: counts, Fraction(1), scripted(0, 2), bits=8) == (3, 2)


@pytest.mark.parametrize("scale", [2.0**-60, 1e-6, 1.0])
def test_a_gap_of_a_million_scales_is_never_crossed(scale: float) -> None:
    """Nothing overflows, nothing vanishes: the top is drawn."""
    far = tuple(-math.ceil(10**6 * scale) - i for i in range(50))
    scores = FamilyScores(Written(((0, 0), far)), numbers_of_one_row)
    assert {ExactSearch().draw(scores, SelectionNoise(scale)) for _ in range(40)} == {(0, 0), (0, 1)}


@pytest.mark.parametrize("scores", [(0, -(2**61)), (2**61, -(2**61)), (5, 4)])
def test_the_largest_scale_levels_all_scores_that_are_near(scores: tuple[int, ...]) -> None:
    """The extremes of scores are 32 or 64 scales apart at 2^56; small differences do not count."""
    drawn = [
        ExactSearch().draw(FamilyScores(Written((scores,)), numbers_of_one_row), SelectionNoise(2.0**56))[1]
        for _ in range(60)
    ]
    assert set(drawn) == ({0} if scores[0] - scores[1] > 1 else {0, 1})


# The law, measured


class Bag:
    """Fair coins in bulk, so that thousands of draws take a second."""

    def __init__(self) -> None:
        self.bits = self.left = 0

    def __call__(self, number: int) -> int:
        """The next bits of the bag."""
        if self.left < number:
            self.bits, self.left = fair_bits(2**13), 2**13
        drawn = self.bits & ((1 << number) - 1)
        self.bits, self.left = self.bits >> number, self.left - number
        return drawn


N = 2000
GAINS = ((40, 0, 0, 0, 12), (0, 0, 0, 0, 24, 0, 0), (0, 0, 0, 0, 0, 0, 0, 24))
"""Two thirds of the candidates are level at the bottom, as tells scales apart best."""
SCALE = 9.7
LEVELS = {40: 0, 24: 1, 12: 2, 0: 3}


def law_at(scale: float) -> NDArray[np.float64]:
    """Exact probabilities of every candidate, group by group."""
    flat = np.array([score for group in GAINS for score in group])
    weights = np.exp((flat - flat.max()) / scale)
    return np.asarray(weights / weights.sum())


def drawn_at(scale: float, number: int) -> NDArray[np.int64]:
    """Candidates, by their place in the list of all, of many draws."""
    scores, coins = FamilyScores(Written(GAINS, 2), numbers_of_one_row), Bag()
    counted, memory = scores.counts(MOST_REACH), dict[tuple[int, int], tuple[int, int]]()
    starts = list(itertools.accumulate(map(len, GAINS), initial=0))
    found = []
    for _ in range(number):
        at = draw_score(lambda reach: counted, Fraction(scale), coins)
        group, index = memory.setdefault(at, scores.locate(*at))
        found.append(starts[group] + index)
    return np.array(found)


def bins_at(scale: float) -> Bins:
    """One bin for every candidate."""
    return Bins(np.arange(law_at(scale).size - 1), law_at(scale))


def test_draws_have_the_exact_law() -> None:
    """Every candidate, ties included, is drawn in proportion to exp(score / scale), whatever was drawn before."""
    found, law = drawn_at(SCALE, N), law_at(SCALE)
    assert bins_at(SCALE).p_value(found) > ALPHA
    same = float((law**2).sum())
    assert abs((found[1:] == found[:-1]).mean() - same) < 6 * math.sqrt(same / N)


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_test_of_the_law_sees_a_wrong_scale(factor: float) -> None:
    """Noise 30 % too small and noise 30 % too large are both rejected, as the computed power promises."""
    assert bins_at(SCALE).power(law_at(factor * SCALE), N) > 1 - 1e-9
    assert not bins_at(SCALE).p_value(drawn_at(factor * SCALE, N)) > ALPHA


def test_a_huge_number_of_candidates_weighs_what_it_should() -> None:
    """A trillion at the bottom against one at the top, 27 scales above: about one to two, as computed."""
    counts, scale = Counts(0, (0, 270), (1, 10**12), 0), Fraction(10)
    low = 1 / (1 + math.exp(27) / 10**12)
    coins, number = Bag(), 2000
    drawn = [draw_score(lambda reach: counts, scale, coins) for _ in range(number)]
    below = [rank for score, rank in drawn if score == -270]
    assert stats.binomtest(len(below), number, low).pvalue > ALPHA
    assert stats.kstest(np.array(below) / 10**12, "uniform").pvalue > ALPHA


def test_the_law_holds_through_a_session() -> None:
    """The same from a paid search on a part of a table, coins and all."""
    session = Session(
        rows=ArrayRows(np.zeros((1, 1))),
        columns=1,
        adjacency=Adjacency.ADD_REMOVE_ONE,
        unit_cap=1,
        meter=Meter(SyntheticBudget(Fraction(2), 2**80)),
        source=OpenDPNoise(),
    )
    forest = session.forest(Fraction(10**6))
    root, number = forest.tree(), 300
    found = [forest.search(root, Written(GAINS, 2), SelectionNoise(SCALE)) for _ in range(number)]
    groups = np.array([LEVELS[GAINS[group][index]] for group, index in found])
    flat = np.array([LEVELS[score] for group in GAINS for score in group])
    bins = Bins(np.arange(3), np.asarray(np.bincount(flat, weights=law_at(SCALE)), dtype=np.float64))
    assert bins.p_value(groups) > ALPHA


# The coins


def test_coins_are_fair_and_independent() -> None:
    """Bytes, and pairs of neighbouring bits across the edges of bytes, are level."""
    drawn = np.frombuffer(fair_bits(8 * 25_600).to_bytes(25_600, "big"), dtype=np.uint8)
    assert stats.chisquare(np.bincount(drawn, minlength=256)).pvalue > ALPHA
    bits = np.unpackbits(drawn)
    assert stats.chisquare(np.bincount(2 * bits[1:] + bits[:-1], minlength=4)).pvalue > ALPHA


@pytest.mark.parametrize("number", [0, 1, 3, 8, 13])
def test_as_many_coins_fall_as_are_asked_for(number: int) -> None:
    """Every bit of the number is used, and none beyond."""
    drawn = [fair_bits(number) for _ in range(60)]
    union: Any = 0
    for one in drawn:
        assert 0 <= one < 2**number
        union |= one
    assert union == 2**number - 1


# What is refused


@pytest.mark.parametrize("bounds", [(0, 0), (1, 0), (-1, -2), (1, 3), (2, 5)])
def test_bounds_of_scores_are_positive_and_consistent(bounds: tuple[int, int]) -> None:
    """A range of zero would be a choice for nothing; a replacement is a removal and an addition."""
    with pytest.raises(ValueError, match="bounds of scores"):
        ScoreBounds(*bounds)
