"""The audit sees the planted bugs of FitGradientEM."""

from __future__ import annotations

import pytest

from tests.audit.gradient_em_mutants import mutants
from tests.audit.harness import verdict
from tests.audit.mutants import Mutant


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.bug)
def test_a_planted_bug_is_condemned(mutant: Mutant) -> None:
    """Every test that should see the bug rejects twice, the second time with no more runs than the first."""
    assert mutant.seen_by <= verdict(mutant.target, mutant.n, again=1).condemned
