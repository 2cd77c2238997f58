"""Fits pass the audit: adjacencies, models, noises, starts, units of several rows and whatever else a fit may do."""

from __future__ import annotations

import math

import pytest

from tests.audit.fits import FITS
from tests.audit.harness import verdict
from tests.audit.target import Target, observe

ALL = [(fit, name) for fit, covered in FITS.items() for name in covered.targets]


LEAST_NUMBERS = 300
"""Released numbers in a short audit: under noise too small by 30 % their energy, .49 chi^2_300, is below the quantile
1e-4 of chi^2_300 except once in 1e6."""


@pytest.mark.parametrize(("fit", "name"), [one for one in ALL if one[1] in FITS[one[0]].quick])
def test_a_fit_is_not_condemned(fit: str, name: str) -> None:
    """No test rejects twice; the search comes near the sensitivity that was debited and does not pass it."""
    target = FITS[fit].targets[name]()
    size = sum(release.statistic.size for release in observe(target, target.rows).releases)
    _audit(target, max(6, math.ceil(LEAST_NUMBERS / (2 * size))), FITS[fit].short_reach(name))


@pytest.mark.slow
@pytest.mark.parametrize(("fit", "name"), ALL)
def test_a_fit_is_not_condemned_on_many_runs(fit: str, name: str) -> None:
    """The same on so many runs for each table that noise too small by a tenth shows."""
    runs = FITS[fit].long(name)
    _audit(FITS[fit].targets[name](), runs.n, runs.reach)


def _audit(target: Target, n: int, reach: float) -> None:
    said = verdict(target, n)
    assert said.condemned == frozenset(), said.findings
    assert reach <= said.reach <= 1.0
