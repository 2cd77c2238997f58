"""Which frequencies a slot is sketched at, when it is not at all of them: a public function of its number.

Schellekens et al. 2019, definition 3, draws r of the m frequencies for every row. Here slots whose numbers are equal
modulo `MASKS` share a draw, and draws are dealt like cards, so that every frequency is met equally often: a moment is
then the sum over r / m of the rows, not over a random number of them near that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bursar.models._frequencies import Stream, public_uniforms
from bursar_server.vault import CHUNK

LANES = 8
"""Slots of a block that share a mask; they are far apart, and are worked on side by side."""

MASKS = CHUNK // LANES
"""How many different masks there are: slot s has number s modulo this."""

IntArray = NDArray[np.int64]


@lru_cache(maxsize=8)
def masks_by_frequency(m: int, per_row: int, public_seed: int) -> tuple[IntArray, IntArray]:
    """The masks that have each frequency: those of j, ascending, are numbers[starts[j] : starts[j + 1]].

    Every mask has exactly `per_row` different frequencies, any two frequencies are in equally many masks or one more or
    less, and each mask by itself is uniform among the subsets of that size.

    Args:
        m: number of frequencies.
        per_row: r, 1 to m.
        public_seed: the frequencies' seed; masks have a stream of their own.

    Returns:
        starts (m + 1,) and numbers (MASKS * per_row,), read-only.

    Raises:
        ValueError: per_row is not between 1 and m.
    """
    if not 1 <= per_row <= m:
        raise ValueError(f"per_row: expected 1 to {m} of {m} frequencies, got {per_row}")
    members = np.zeros((MASKS, m), dtype=np.bool_)
    # The rest of a uniform subset is a uniform subset: dealing the smaller of the two takes fewer cards.
    dealt = min(per_row, m - per_row)
    for number, hand in enumerate(_hands(m, dealt, public_seed)):
        members[number, hand] = True
    if dealt != per_row:
        members = ~members
    numbers = np.nonzero(members.T)[1]
    starts = np.concatenate([[0], np.cumsum(members.sum(axis=0))])
    for array in (starts, numbers):
        array.flags.writeable = False
    return starts, numbers


def frequency_shares(m: int, per_row: int, public_seed: int) -> NDArray[np.float64]:
    """Part of the slots that are sketched at each frequency, shape (m,): per_row / m up to one mask of `MASKS`.

    Arguments and errors as `masks_by_frequency`. A sum over these times (per_row / m) / share is what it would be were
    all equal: post-processing.
    """
    starts, _ = masks_by_frequency(m, per_row, public_seed)
    return np.asarray(np.diff(starts) / MASKS)


def _hands(m: int, size: int, public_seed: int) -> Iterator[IntArray]:
    """`MASKS` hands of `size` different cards out of m, dealt from one shuffled deck after another.

    Where a deck ends within a hand, the cards that the hand has already stay in the new deck for the next.
    """
    decks = iter(np.argsort(public_uniforms(public_seed, Stream.MASKS, MASKS * size // m + 2, m), axis=1))
    deck = next(decks)
    for _ in range(MASKS):
        if len(deck) < size:
            hand, fresh = deck, next(decks)
            new = fresh[~np.isin(fresh, hand)][: size - len(hand)]
            hand = np.concatenate([hand, new])
            deck = fresh[~np.isin(fresh, new)]
        else:
            hand, deck = deck[:size], deck[size:]
        yield hand
