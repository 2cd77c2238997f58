"""Sources of noise and rows that tests of sessions and forests share."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bursar_server.vault import Noise, Scores, SelectionNoise


class Untouchable:
    """Rows and noise of which no one may ask anything."""

    slots = 1

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """Fail: a row was read."""
        pytest.fail("a row was read")

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Fail: noise was drawn."""
        pytest.fail("noise was drawn")

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Fail: noise was drawn."""
        pytest.fail("noise was drawn")


class Echo:
    """A source that adds nothing, so that a test sees the exact sum."""

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return the sums."""
        return sums.copy()

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Return the position of the largest score."""
        return int(scores.argmax())


class Best:
    """Searches without chance: the first of the best candidates."""

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """See `SearchSource`."""
        return scores.locate(scores.counts(1).top, 0)
