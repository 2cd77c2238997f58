"""The audit sees the planted bugs of FitMRF."""

from __future__ import annotations

import pytest

from tests.audit.harness import rejecting
from tests.audit.mrf_mutants import SINGLE_CHOICES, bare_choices, mutants
from tests.audit.mutants import Mutant


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.bug)
def test_a_planted_bug_is_condemned(mutant: Mutant) -> None:
    """Every test that should see the bug rejects."""
    assert rejecting(mutant.target, mutant.seen_by, mutant.n) == mutant.seen_by


@pytest.mark.parametrize("bug", SINGLE_CHOICES)
def test_a_choice_that_tells_too_much_is_condemned(bug: str) -> None:
    """T8 rejects twice on the pair of tables where one choice tells most."""
    choice = SINGLE_CHOICES[bug]()
    assert all(choice.audit(500).rejects for _ in range(2))  # of 250 runs, half the noise passes 3 in 100


@pytest.mark.slow
def test_choices_without_noise_are_condemned() -> None:
    """T8 rejects twice on the choices of whole fits."""
    mutant = bare_choices()
    for _ in range(2):
        assert rejecting(mutant.target, mutant.seen_by, mutant.n) == mutant.seen_by
