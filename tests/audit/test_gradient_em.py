"""FitGradientEM passes the audit: every model and variant, adjacencies, noises, units of rows, missing features."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent
from bursar_proto.v1 import fit_pb2, types_pb2
from tests.audit import checks
from tests.audit.faults import Raw
from tests.audit.gradient_em import (
    ALONE,
    AR,
    BARE,
    PURE,
    RADIAL,
    RO,
    TRUNCATED,
    Fields,
    Unit,
    fit_gradient_em,
    planned,
    start,
)
from tests.audit.harness import verdict
from tests.audit.target import Sample, Target, collect, observe

GIVEN: Fields = ALONE | {"given": start([[1.0, -1.0]])}
"""One regression from given slopes: from noisy ones it is luck how far a row can pull."""

TIGHT: dict[str, tuple[Adjacency, str, Fields, float]] = {
    "one block": (AR, "symmetric", {}, 0.999),
    "several blocks": (AR, "mixture", {}, 0.999),
    "every coordinate": (AR, "regressions", GIVEN | BARE | TRUNCATED, 0.999),
    "a radius, replaced": (RO, "regressions", GIVEN | RADIAL, 0.95),
    "several blocks, replaced": (RO, "mixture", {}, 0.95),
    "missing features, replaced": (RO, "missing", {}, 0.95),
    "pure epsilon, every coordinate, replaced": (RO, "regressions", GIVEN | BARE | TRUNCATED | {"spend": PURE}, 0.95),
    "pure epsilon, a radius, replaced": (RO, "regressions", GIVEN | RADIAL | {"spend": PURE}, 0.8),
}


@pytest.mark.parametrize("name", TIGHT)
def test_gradients_reach_their_bounds(name: str) -> None:
    """A row can do what a step is charged for, and no more; look and counts by radius are left out."""
    adjacency, model, fields, least = TIGHT[name]
    audited = fit_gradient_em(adjacency, model, iterations=1, **fields)
    seen = observe(audited, audited.rows)
    steps = replace(audited, events=audited.events[1:-1])
    finding, reach = checks.sensitivity_search(steps, replace(seen, releases=seen.releases[1:-1]), rounds=10)
    assert not finding.rejects
    assert least <= reach <= 1.0


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("model", ["symmetric", "mixture", "regressions", "missing"])
def test_look_steps_and_counts_add_up_to_the_spend(adjacency: Adjacency, model: str) -> None:
    """Events that are added up by hand spend nothing twice and leave hardly anything."""
    rho, epsilon, T = Fraction(0.7), Fraction(1.3), 7
    spends = types_pb2.Spend(rho=float(rho)), types_pb2.Spend(epsilon=float(epsilon))
    gaussian, laplace = (planned(adjacency, model, cap=3, slots=50, iterations=T, spend=s).events for s in spends)
    concentrated = [one.l2_squared / (2 * one.scale**2) for one in gaussian if isinstance(one, GaussianEvent)]
    pure = [one.groups * one.l1 / one.scale for one in laplace if isinstance(one, LaplaceEvent)]
    assert len(concentrated) == len(pure) == T + 2
    little = Fraction(1, 10**9)
    assert rho * (1 - little) <= sum(concentrated) <= rho
    assert epsilon * (1 - little) <= sum(pure) <= epsilon


def told_apart(audited: Target, n: int) -> checks.Finding:
    """T6 on all numbers of a model of one step."""
    samples = [collect(audited, n) for _ in range(2)]
    assert all(isinstance(sample, Sample) for sample in samples)
    return checks.black_box(*samples)  # type: ignore[arg-type] # as was asserted


def test_a_model_tells_no_more_than_was_paid() -> None:
    """T6 on models of one step, whose numbers are functions of two noisy releases; it condemns if it rejects twice."""
    assert not all(told_apart(fit_gradient_em(AR, "symmetric", iterations=1), 40).rejects for _ in range(2))


def test_a_model_of_raw_sums_tells_more() -> None:
    """T6 rejects where the fit is given raw sums."""
    assert told_apart(replace(fit_gradient_em(AR, "symmetric", iterations=1), session=Raw), 30).rejects


HUGE: list[tuple[str, Fields]] = [
    ("symmetric", TRUNCATED),
    ("mixture", {"variant": fit_pb2.GRADIENT_VARIANT_CLIPPED, "scale": 1e-9}),
    ("regressions", TRUNCATED),
    ("missing", TRUNCATED | {"scale": 1e-9}),
]


@pytest.mark.parametrize(("model", "fields"), HUGE, ids=[model for model, _ in HUGE])
def test_a_row_a_million_times_beyond_the_scale_is_worth_one_row(model: str, fields: Fields) -> None:
    """Far rows with s or C as small as may be asked for: the change stays below the price, in integers."""
    audited = fit_gradient_em(AR, model, iterations=1, **fields)
    seen = observe(audited, audited.rows)
    for release in seen.releases:
        for row in audited.extremes.T:
            values = checks.contribution(release.statistic, row).astype(object)
            assert (values**2).sum() <= release.statistic.bounds.l2_squared
            assert np.abs(values).sum() <= release.statistic.bounds.l1


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_null_is_worth_no_more_than_a_number(adjacency: Adjacency) -> None:
    """A unit that only loses or gains its null, or has all features missing: nothing is condemned."""
    unit = Unit((np.nan, 0.2, 0.9), (0.7, 0.2, 0.9))
    kwargs: dict[str, Any] = {"iterations": 1, "unit": unit}
    said = verdict(fit_gradient_em(adjacency, "missing", **kwargs), 10)
    assert said.condemned == frozenset(), said.findings
