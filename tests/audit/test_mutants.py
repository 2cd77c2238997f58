"""The audit sees planted bugs: the matrix of mutants and the tests that must condemn them."""

from __future__ import annotations

import pytest

from tests.audit.harness import rejecting
from tests.audit.mutants import Mutant, mutants

LONG = {
    "add-remove sensitivity on a replace pair",
    "clip removed",
    "clip x 1.5",
    "scatter about the noised mean",
    "spend not split over T",
}
"""Bugs that need many runs to be seen, or many tables."""


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(one, id=one.bug, marks=[pytest.mark.slow] if one.bug in LONG else []) for one in mutants()],
)
def test_a_planted_bug_is_condemned(mutant: Mutant) -> None:
    """Every test that should see the bug rejects."""
    assert rejecting(mutant.target, mutant.seen_by, mutant.n) == mutant.seen_by
