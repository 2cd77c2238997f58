"""Fits pass the audit: adjacencies, models, noises, starts, units of several rows and whatever else a fit may do."""

from __future__ import annotations

import pytest

from tests.audit.fits import FITS, Runs
from tests.audit.harness import verdict

ALL = [(fit, name) for fit, covered in FITS.items() for name in covered.targets]


@pytest.mark.parametrize(("fit", "name"), [one for one in ALL if one[1] in FITS[one[0]].quick])
def test_a_fit_is_not_condemned(fit: str, name: str) -> None:
    """No test rejects twice; the search comes near the sensitivity that was debited and does not pass it."""
    _audit(fit, name, FITS[fit].short(name))


@pytest.mark.slow
@pytest.mark.parametrize(("fit", "name"), ALL)
def test_a_fit_is_not_condemned_on_many_runs(fit: str, name: str) -> None:
    """The same on so many runs for each table that noise too small by a tenth shows."""
    _audit(fit, name, FITS[fit].long(name))


def _audit(fit: str, name: str, runs: Runs) -> None:
    said = verdict(FITS[fit].targets[name](), runs.n)
    assert said.condemned == frozenset(), said.findings
    assert runs.reach <= said.reach <= 1.0
