"""The audit sees the planted bugs of FitSketchKMeans."""

from __future__ import annotations

import pytest

from tests.audit.harness import rejecting
from tests.audit.mutants import Mutant
from tests.audit.sketch_mutants import mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.bug)
def test_a_planted_bug_is_condemned(mutant: Mutant) -> None:
    """Every test that should see the bug rejects."""
    assert rejecting(mutant.target, mutant.seen_by, mutant.n) == mutant.seen_by
