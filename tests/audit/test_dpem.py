"""FitDPEM passes the audit: both adjacencies, mixtures, k-means, both kinds of noise, given and private starts."""

from __future__ import annotations

import pytest

from tests.audit.dpem import targets
from tests.audit.harness import verdict

SLOW = {
    "fixed origin, add or remove",
    "full, one step, add or remove",
    "split start, add or remove",
    "k-means, fixed origin, replace",
}
"""In the long runs only: each shares its kernel, and what it is charged, with one of the quick ones."""


@pytest.mark.parametrize("name", [name for name in targets() if name not in SLOW])
def test_fit_dpem_is_not_condemned(name: str) -> None:
    """No test rejects twice; the search reaches the sensitivity that was debited and does not pass it."""
    said = verdict(targets()[name], 60)
    assert said.condemned == frozenset(), said.findings
    assert 0.95 <= said.reach <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", targets())
def test_fit_dpem_is_not_condemned_on_many_runs(name: str) -> None:
    """The same on a thousand runs for each table, where noise too small by a tenth shows."""
    said = verdict(targets()[name], 1000)
    assert said.condemned == frozenset(), said.findings
    assert 0.95 <= said.reach <= 1.0
