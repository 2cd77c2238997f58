"""Exact private choice among more candidates than fit into memory.

The exponential mechanism (McSherry and Talwar 2007) needs only the number of candidates for each score: a score is
drawn with probability proportional to (number of candidates) exp(score / scale), then one of its candidates uniformly.
Proof: `_search.md`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar_server.vault._noise import SelectionNoise, fair_bits
from bursar_server.vault._sampling import decay
from bursar_server.vault._sensitivity import ScoreBounds
from bursar_server.vault._statistic import Statistic

FIRST_BITS = 128
"""Initial number of bits of the uniform number and of the weights.

They fail to decide with a probability below 2^-60 (`_search.md`).
"""

MOST_REACH = 2**64
"""Maximum distance of two scores, which are 64-bit integers."""


class Family(Protocol):
    """Candidates in groups, such as the cuts along each direction; the score of each is an exact integer.

    Scores and their bounds are proven beside the family. All parameters are public or released: the numbers of groups
    and candidates, the sums they need, and how scores are computed from these.
    """

    @property
    def bounds(self) -> ScoreBounds:
        """Bounds on how far one row can drive the scores of all candidates of all groups apart."""

    @property
    def groups(self) -> int:
        """Number of groups, at least 1."""

    @property
    def batch(self) -> int:
        """Number of groups that one pass over the rows serves, at least 1."""

    def statistic(self, first: int, stop: int) -> Statistic:
        """Return the sums that the scores of groups `first` to `stop` - 1 need, shape (stop - first, ...)."""

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the scores of a group's candidates, (n,), from its exact sums.

        The sums have the statistic's shape without the first axis. A total function; n >= 1 is public.
        """


@dataclass(frozen=True)
class Counts:
    """Number of candidates for each score.

    Attributes:
        top: largest score.
        offsets: distances below the top at which there are candidates, ascending from 0, each less than the reach.
        numbers: number of candidates at each offset.
        below: number of candidates further below.
    """

    top: int
    offsets: tuple[int, ...]
    numbers: tuple[int, ...]
    below: int


class Scores(Protocol):
    """Scores of a charged search, as the source that draws may read them. They must not leave the source."""

    def counts(self, reach: int) -> Counts:
        """Return the number of candidates for each score; offsets of `reach` or more are counted together."""

    def locate(self, score: int, rank: int) -> tuple[int, int]:
        """Return the group and the index in the group of the candidate with number `rank` among those with this score.

        Call it after `counts`, for a score that was counted.
        """


class SearchSource(Protocol):
    """Source that draws one candidate."""

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """Return (group, index within the group) of a candidate, drawn in proportion to exp(score / scale)."""


class ExactSearch:
    """Source with the exact law; its fair coins are OpenDP's, from the operating system's randomness."""

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """Implement `SearchSource.draw`."""
        return scores.locate(*draw_score(scores.counts, Fraction(noise.scale), fair_bits))


class FamilyScores:
    """Scores of a family, from sums that are computed batch by batch and not kept.

    Args:
        family: candidates.
        exact_sums: function that sums a statistic over the rows of the part.
    """

    def __init__(self, family: Family, exact_sums: Callable[[Statistic], NDArray[np.int64]]) -> None:
        self._family = family
        self._exact_sums = exact_sums
        self._kept: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._sums: NDArray[np.int64] | None = None

    def counts(self, reach: int) -> Counts:
        """Implement `Scores.counts`. Keeps the counts of each group that are within reach of the top."""
        kept, top, candidates = [], -MOST_REACH, 0
        for first in range(0, self._family.groups, self._family.batch):
            stop = min(first + self._family.batch, self._family.groups)
            sums = self._batch(first, stop)
            for group in range(first, stop):
                scores = self._family.scores(group, sums[group - first])
                candidates += scores.size
                # The top of all groups so far: only scores within reach of it are kept, which bounds memory.
                top = max(top, int(scores.max()))
                kept.append(np.unique(scores[scores >= _lowest(top, reach)], return_counts=True))
        lowest = _lowest(top, reach)  # higher than for earlier groups: the top may have risen since
        self._kept = [(levels[levels >= lowest], numbers[levels >= lowest]) for levels, numbers in kept]
        levels, places = np.unique(np.concatenate([levels for levels, _ in self._kept]), return_inverse=True)
        numbers = np.zeros(levels.size, dtype=np.int64)
        np.add.at(numbers, places, np.concatenate([numbers for _, numbers in self._kept]))
        offsets = tuple(top - level for level in reversed(levels.tolist()))
        return Counts(top, offsets, tuple(reversed(numbers.tolist())), candidates - int(numbers.sum()))

    def locate(self, score: int, rank: int) -> tuple[int, int]:
        """Implement `Scores.locate`.

        Computes the sums of one group again, by another pass if there was more than one batch.
        """
        for group, (levels, numbers) in enumerate(self._kept):
            here = int(numbers[levels == score].sum())
            if rank < here:
                sums = self._batch(group, group + 1)[0] if self._sums is None else self._sums[group]
                return group, int(np.flatnonzero(self._family.scores(group, sums) == score)[rank])
            rank -= here
        raise IndexError("score and rank: expected a candidate that was counted")

    def _batch(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the sums of groups `first` to `stop` - 1; cache them if these are all groups."""
        if self._sums is not None:
            return self._sums
        sums = self._exact_sums(self._family.statistic(first, stop))
        if stop - first == self._family.groups:
            self._sums = sums
        return sums


def draw_score(
    counts: Callable[[int], Counts], scale: Fraction, coins: Callable[[int], int], *, bits: int = FIRST_BITS
) -> tuple[int, int]:
    """Draw a score with probability proportional to (number of candidates) exp(score / scale), and a rank among them.

    A uniform number in [0, 1) is compared with the cumulative distribution, from the top score down. Both are known to
    `bits` bits. Where these do not decide, more bits are drawn and the weights are computed again.

    Args:
        counts: function reach -> number of candidates for each score within this reach of the top.
        scale: scale of the noise, positive.
        coins: function n -> integer of n fair, independent bits.
        bits: initial number of bits.

    Returns:
        The score, and the candidate's number among those with this score.
    """
    drawn, counted = coins(bits), None
    while True:
        if counted is None or counted.below:
            # A score `bits * scale` below the top weighs less than exp(-bits) of it, below the resolution of the
            # uniform number.
            counted = counts(min(math.ceil(bits * scale), MOST_REACH))
        place = _place(counted, scale, drawn, bits)
        if place is not None:
            return counted.top - counted.offsets[place], _evenly(counted.numbers[place], coins)
        # The bits that were drawn stay the leading ones: the number is one uniform number, known to more digits.
        drawn, bits = drawn << bits | coins(bits), 2 * bits


def _place(counted: Counts, scale: Fraction, drawn: int, bits: int) -> int | None:
    """Return where the cumulative distribution passes a number in [drawn, drawn + 1) / 2^bits; None if undecided."""
    weights = _weights(counted.offsets, scale, bits)
    lows = list(accumulate(low * number for (low, _), number in zip(weights, counted.numbers, strict=True)))
    highs = list(accumulate(high * number for (_, high), number in zip(weights, counted.numbers, strict=True)))
    # Bounds of number times total weight. Candidates out of reach weigh less than one unit each.
    least, largest = drawn * lows[-1], (drawn + 1) * (highs[-1] + counted.below)
    place = bisect_left(lows, -(-largest >> bits))
    if place == len(lows) and not counted.below:
        place -= 1  # the last score has the rest of the distribution: a uniform number is below 1
    if place == len(lows) or (place > 0 and highs[place - 1] << bits > least):
        return None
    return place


def _weights(offsets: tuple[int, ...], scale: Fraction, bits: int) -> list[tuple[int, int]]:
    """Return integers below and above 2^bits exp(-offset / scale) for each offset; the first offset is 0."""
    low = high = 1 << bits
    made = [(low, high)]
    # Powers of two make up all gaps: an enclosure costs far more than a multiplication, and how many different gaps
    # there are depends on rows. Beyond the reach `decay` has its answer at once.
    powers = [decay(2**i / scale, bits) for i in range(MOST_REACH.bit_length())]
    for before, after in pairwise(offsets):
        # Rounded down and up at every step, so that the pair still encloses the true weight.
        for i in range((after - before).bit_length()):
            if after - before >> i & 1:
                low, high = low * powers[i][0] >> bits, -(-high * powers[i][1] >> bits)
        made.append((low, high))
    return made


def _evenly(number: int, coins: Callable[[int], int]) -> int:
    """Draw an integer from 0 to `number` - 1 uniformly, by rejection."""
    # Rejection, because a remainder of fair bits would favour small numbers.
    bits = (number - 1).bit_length()
    while not (rank := coins(bits)) < number:
        pass
    return rank


def _lowest(top: int, reach: int) -> int:
    """Return the lowest 64-bit integer that is less than `reach` below the top."""
    return max(top - reach + 1, -(2**63))
