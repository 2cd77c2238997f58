"""The audit sees the planted bugs of every fit: the matrix of mutants and the tests that must condemn them."""

from __future__ import annotations

import pytest

from tests.audit.faults import Mutant
from tests.audit.fits import FITS
from tests.audit.harness import rejecting
from tests.audit.mrf_mutants import CHOICE_RUNS, SINGLE_CHOICES
from tests.refresh_planted_bugs import PAGE, page


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(one, id=f"{fit}-{one.bug}", marks=[pytest.mark.slow] if one.slow else [])
        for fit, covered in FITS.items()
        for one in covered.mutants()
    ],
)
def test_a_planted_bug_is_condemned(mutant: Mutant) -> None:
    """Every test that should see the bug rejects."""
    assert rejecting(mutant.target, mutant.seen_by, mutant.n) == mutant.seen_by


@pytest.mark.slow
@pytest.mark.parametrize("bug", SINGLE_CHOICES)
def test_a_choice_that_tells_too_much_is_condemned(bug: str) -> None:
    """T8 rejects on the pair of tables where one choice tells most."""
    choice = SINGLE_CHOICES[bug]()
    assert choice.audit(CHOICE_RUNS).rejects


def test_the_page_lists_every_planted_bug() -> None:
    """A bug that is left out, or planted for fewer tests, changes a page that readers see."""
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.refresh_planted_bugs"
