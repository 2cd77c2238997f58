"""The audit sees the planted bugs of FitGradientEM."""

from __future__ import annotations

import pytest

from bursar_server.vault import ArrayRows
from tests.audit import checks
from tests.audit.checks import Finding
from tests.audit.gradient_em_mutants import mutants
from tests.audit.harness import other_tables
from tests.audit.mutants import Mutant
from tests.audit.target import collect, observe


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.bug)
def test_a_planted_bug_is_condemned(mutant: Mutant) -> None:
    """Every test that should see the bug rejects twice."""
    assert mutant.seen_by <= rejecting(mutant) & rejecting(mutant)


def rejecting(mutant: Mutant) -> set[str]:
    """Of the tests that should see the bug, and only they are made, those that reject once."""
    target, asked = mutant.target, mutant.seen_by
    seen = observe(target, target.rows)
    found: list[Finding] = []
    if "T4 sensitivity" in asked:
        found.append(checks.sensitivity_search(target, seen)[0])
    if "T5 arithmetic" in asked:
        found.append(checks.arithmetic(target, seen))
    if "T7 replay" in asked:
        found.append(checks.replay(target, seen, other_tables(target), ArrayRows(target.extremes)))
    if asked - {"T4 sensitivity", "T5 arithmetic", "T7 replay"}:
        sample = collect(target, mutant.n)
        if isinstance(sample, str):
            found.append(Finding("form", 0.0, sample))
        else:
            statistical = (checks.agreement, checks.distinguish, checks.whiteness)
            found += [*checks.energy(sample), *(check(sample) for check in statistical)]
    return {one.test for one in found if one.rejects}
