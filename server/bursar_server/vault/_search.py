"""A private choice among candidates that are never all in memory, by an exact sampler.

The exponential mechanism (McSherry and Talwar 2007) needs only how many candidates have which score: a score is drawn
in proportion to (number of candidates) exp(score / scale), then one of its candidates evenly. Proof in `_search.md`.
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
"""Bits of the uniform number, and of the weights, with which a draw begins; they do not decide one time in 2^80."""

MOST_REACH = 2**64
"""Scores are 64-bit integers, so no two of them are further apart."""


class Family(Protocol):
    """Candidates in groups, such as the cuts along one direction each; the score of each is an exact integer.

    Scores and their bounds are proven beside the family. Everything here is public or was released: how many groups and
    candidates there are, which sums they need, and how scores are computed from them.
    """

    @property
    def bounds(self) -> ScoreBounds:
        """How far one row can drive the scores of all candidates of all groups apart."""

    @property
    def groups(self) -> int:
        """How many groups there are, at least 1."""

    @property
    def batch(self) -> int:
        """How many groups one pass over the rows serves, at least 1."""

    def statistic(self, first: int, stop: int) -> Statistic:
        """The sums that the scores of groups `first` to `stop` - 1 need, shape (stop - first, ...)."""

    def scores(self, group: int, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Scores of a group's candidates, (n,), from its exact sums, the statistic's shape without the first axis.

        A total function; n >= 1 is public.
        """


@dataclass(frozen=True)
class Counts:
    """How many candidates have which score.

    Attributes:
        top: the largest score.
        offsets: how far below the top there are candidates, ascending from 0; each less than some reach.
        numbers: of candidates at each offset.
        below: of candidates further below.
    """

    top: int
    offsets: tuple[int, ...]
    numbers: tuple[int, ...]
    below: int


class Scores(Protocol):
    """All scores of a paid search, for the source that draws; they stay between the two."""

    def counts(self, reach: int) -> Counts:
        """How many candidates have which score; offsets of `reach` or more are lumped together."""

    def locate(self, score: int, rank: int) -> tuple[int, int]:
        """Group and index within the group of the candidate number `rank` among those with this score.

        After `counts`, for a score that it counted.
        """


class SearchSource(Protocol):
    """Draws one candidate."""

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """Return (group, index within the group) of a candidate, drawn in proportion to exp(score / scale)."""


class ExactSearch:
    """The exact law, with fair coins of OpenDP, which have the operating system's randomness."""

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """See `SearchSource`."""
        return scores.locate(*draw_score(scores.counts, Fraction(noise.scale), fair_bits))


class FamilyScores:
    """Scores of a family, from sums that are made batch by batch and not kept.

    Args:
        family: of candidates.
        exact_sums: sums a statistic over the rows of the part.
    """

    def __init__(self, family: Family, exact_sums: Callable[[Statistic], NDArray[np.int64]]) -> None:
        self._family = family
        self._exact_sums = exact_sums
        self._kept: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._sums: NDArray[np.int64] | None = None

    def counts(self, reach: int) -> Counts:
        """See `Scores`. Keeps for each group how many of its candidates have which score within reach of the top."""
        kept, top, candidates = [], -MOST_REACH, 0
        for first in range(0, self._family.groups, self._family.batch):
            stop = min(first + self._family.batch, self._family.groups)
            sums = self._batch(first, stop)
            for group in range(first, stop):
                scores = self._family.scores(group, sums[group - first])
                candidates += scores.size
                top = max(top, int(scores.max()))
                kept.append(np.unique(scores[scores >= _lowest(top, reach)], return_counts=True))
        lowest = _lowest(top, reach)  # the top has risen since
        self._kept = [(levels[levels >= lowest], numbers[levels >= lowest]) for levels, numbers in kept]
        levels, places = np.unique(np.concatenate([levels for levels, _ in self._kept]), return_inverse=True)
        numbers = np.zeros(levels.size, dtype=np.int64)
        np.add.at(numbers, places, np.concatenate([numbers for _, numbers in self._kept]))
        offsets = tuple(top - level for level in reversed(levels.tolist()))
        return Counts(top, offsets, tuple(reversed(numbers.tolist())), candidates - int(numbers.sum()))

    def locate(self, score: int, rank: int) -> tuple[int, int]:
        """See `Scores`. Looks at the sums of one group again; another pass, if there was more than a batch."""
        for group, (levels, numbers) in enumerate(self._kept):
            here = int(numbers[levels == score].sum())
            if rank < here:
                sums = self._batch(group, group + 1)[0] if self._sums is None else self._sums[group]
                return group, int(np.flatnonzero(self._family.scores(group, sums) == score)[rank])
            rank -= here
        raise IndexError("score and rank: expected a candidate that was counted")

    def _batch(self, first: int, stop: int) -> NDArray[np.int64]:
        """Sums of groups `first` to `stop` - 1; kept if these are all."""
        if self._sums is not None:
            return self._sums
        sums = self._exact_sums(self._family.statistic(first, stop))
        if stop - first == self._family.groups:
            self._sums = sums
        return sums


def draw_score(
    counts: Callable[[int], Counts], scale: Fraction, coins: Callable[[int], int], *, bits: int = FIRST_BITS
) -> tuple[int, int]:
    """Draw (score, rank): a score in proportion to (number of candidates) exp(score / scale), and which of them.

    A uniform number in [0, 1) is compared with the cumulative distribution, from the top score down. Both are known to
    `bits` bits; where these do not decide, more are drawn, and weights computed anew.

    Args:
        counts: how many candidates have which score, within a reach.
        scale: of the noise, positive.
        coins: n -> an integer of n fair, independent bits.
        bits: with which to begin.
    """
    drawn, counted = coins(bits), None
    while True:
        if counted is None or counted.below:
            counted = counts(min(math.ceil(bits * scale), MOST_REACH))
        place = _place(counted, scale, drawn, bits)
        if place is not None:
            return counted.top - counted.offsets[place], _evenly(counted.numbers[place], coins)
        drawn, bits = drawn << bits | coins(bits), 2 * bits


def _place(counted: Counts, scale: Fraction, drawn: int, bits: int) -> int | None:
    """Where the cumulative distribution passes a number in [drawn, drawn + 1) / 2^bits; None if that is not decided."""
    weights = _weights(counted.offsets, scale, bits)
    lows = list(accumulate(low * number for (low, _), number in zip(weights, counted.numbers, strict=True)))
    highs = list(accumulate(high * number for (_, high), number in zip(weights, counted.numbers, strict=True)))
    # Number times total, from its least to its largest value; candidates below weigh less than one unit each.
    least, largest = drawn * lows[-1], (drawn + 1) * (highs[-1] + counted.below)
    place = bisect_left(lows, -(-largest >> bits))
    if place == len(lows) and not counted.below:
        place -= 1  # nothing lies beyond the last, and no uniform number reaches one
    if place == len(lows) or (place > 0 and highs[place - 1] << bits > least):
        return None
    return place


def _weights(offsets: tuple[int, ...], scale: Fraction, bits: int) -> list[tuple[int, int]]:
    """Integers around 2^bits exp(-offset / scale), below and above, for each offset; the first is 0."""
    low = high = 1 << bits
    made = [(low, high)]
    decays: dict[int, tuple[int, int]] = {}
    for before, after in pairwise(offsets):
        gap = after - before
        if gap not in decays:
            decays[gap] = decay(gap / scale, bits)
        low, high = low * decays[gap][0] >> bits, -(-high * decays[gap][1] >> bits)
        made.append((low, high))
    return made


def _evenly(number: int, coins: Callable[[int], int]) -> int:
    """Each of 0 to `number` - 1 with the same probability."""
    bits = (number - 1).bit_length()
    while not (rank := coins(bits)) < number:
        pass
    return rank


def _lowest(top: int, reach: int) -> int:
    """The lowest 64-bit integer less than `reach` below the top."""
    return max(top - reach + 1, -(2**63))
