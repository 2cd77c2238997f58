"""Refusals of FitSeparatedGMM before a debit, its price, and what a preview says."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from bursar_ledger import Adjacency, ConcentratedEvent
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, InvalidFieldsError, PublicTable
from bursar_server.fits.mixtures.statistics import Moments
from bursar_server.fits.separated_gmm import _plan
from tests.each import each
from tests.server.fits.running import array, expected_numbers
from tests.server.fits.separated import mixture, plan, run, table

EASY, SAMPLED = fit_pb2.SEPARATED_VARIANT_EASY, fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE


@each(
    ("field", "fields"),
    [
        ("spend.epsilon", {"spend": types_pb2.Spend(epsilon=1.0)}),
        ("spend", {"spend": types_pb2.Spend(rho=1e-9)}),
        ("n_components", {"n_components": 0}),
        ("n_components", {"n_components": 33}),
        ("min_weight", {"min_weight": 0.34}),
        ("min_weight", {"min_weight": -0.1}),
        ("sigma_min", {"sigma_min": 0.0}),
        ("sigma_min", {"sigma_min": 1e-7}),
        ("sigma_max", {"sigma_max": 0.3}),
        ("radius", {"radius": 0.2}),
        ("separation", {"separation": -1.0}),
        ("covariance_type", {"covariance_type": fit_pb2.COVARIANCE_TYPE_TIED}),
        ("covariance_type", {"variant": SAMPLED, "covariance_type": fit_pb2.COVARIANCE_TYPE_FULL}),
        ("covariance_type", {"variant": SAMPLED, "covariance_type": fit_pb2.COVARIANCE_TYPE_DIAG}),
        ("spend", {"variant": SAMPLED, "spend": types_pb2.Spend(rho=1e-8)}),
    ],
)
def test_what_is_wrong_is_named(field: str, fields: dict[str, Any]) -> None:
    """Every wrong field is in the error, which says what was expected."""
    with pytest.raises(InvalidFieldsError) as caught:
        plan(**fields)
    assert field in [name for name, _ in caught.value.violations]


def test_columns_are_limited() -> None:
    """A hundred and twenty-eight columns, not one more."""
    assert len(plan(table(128)).columns) == _plan.MAX_COLUMNS
    with pytest.raises(InvalidFieldsError, match="128"):
        plan(table(129))


@pytest.mark.parametrize("rho", [1e-6, 0.3, 1e6])
def test_the_price_is_the_spend(rho: float) -> None:
    """One event that is the spend to the last digit."""
    form = Fraction(rho) / 20
    expected = ConcentratedEvent(Fraction(rho) - form), ConcentratedEvent(form)
    assert plan(spend=types_pb2.Spend(rho=rho)).events == expected


@pytest.mark.parametrize("rho", [1e-6, 0.3, 1e6])
@pytest.mark.parametrize(("adjacency", "rows"), [*product(Adjacency, [5000]), (Adjacency.ADD_REMOVE_ONE, None)])
def test_sample_and_aggregate_costs_the_spend(adjacency: Adjacency, rows: int | None, rho: float) -> None:
    """The answers cost it to the last digit, with the number of rows unless it is public."""
    public = table(adjacency=adjacency, rows=rows)
    events = plan(public, variant=SAMPLED, spend=types_pb2.Spend(rho=rho)).events
    assert len(events) == (1 if adjacency is Adjacency.REPLACE_ONE else 2)
    assert sum((event.rho for event in events if isinstance(event, ConcentratedEvent)), Fraction(0)) == Fraction(rho)


def test_every_variant_has_rules_of_its_own() -> None:
    """Answers of blocks are fewer than rows; balls of the easy case share the budget, and were tried with so many."""
    enough, some = table(rows=10**9), table(2, bound=1000.0, rows=20_000, adjacency=Adjacency.ADD_REMOVE_ONE)
    assert not any(plan(enough, variant=variant).warnings for variant in (0, EASY, SAMPLED))
    assert "12 components" in plan(enough, variant=EASY, n_components=13, min_weight=0.05).warnings[0]
    made = {variant: plan(some, variant=variant, spend=types_pb2.Spend(rho=0.5)) for variant in (0, EASY, SAMPLED)}
    margins = {v: {rule.name: rule.margin for rule in one.preflight.rules} for v, one in made.items() if one.preflight}
    gaps = "gaps between components"
    assert margins[0][gaps] > margins[EASY][gaps] > 1 > margins[SAMPLED][gaps]
    assert "balls of answers" in made[SAMPLED].warnings[0]
    assert not made[0].warnings


@pytest.mark.parametrize(("rho", "found", "error"), [(0.5, 2, (1.0, 1e9)), (32.0, 4, (1e-3, 0.05))])
def test_a_preview_of_answers_is_what_was_measured(rho: float, found: int, error: tuple[float, float]) -> None:
    """20,000 rows, two columns, four components: two or three were found, nowhere near, and then all, within 0.03."""
    public = table(2, bound=1010.0, rows=20_000, adjacency=Adjacency.ADD_REMOVE_ONE)
    widths = {"sigma_min": 0.2, "sigma_max": 2.0, "radius": 1000.0, "min_weight": 0.15, "n_components": 4}
    made = plan(public, variant=SAMPLED, spend=types_pb2.Spend(rho=rho), **widths)
    assert made.preflight is not None
    assert abs(made.preflight.predicted_found - found) <= 1
    assert error[0] < max(expected_numbers(made, "mean_error")) < error[1]


def test_what_the_papers_variants_leave_open_is_as_in_the_paper() -> None:
    """Spheres, and hard parts; what is asked for is done."""
    for variant in (EASY, SAMPLED):
        open_settings = plan(variant=variant).settings
        assert open_settings.moments is Moments.SPHERICAL
        assert open_settings.clusters
    ours = plan(
        variant=EASY,
        covariance_type=fit_pb2.COVARIANCE_TYPE_FULL,
        estimator=fit_pb2.SEPARATED_ESTIMATOR_EM,
    ).settings
    assert ours.moments is Moments.FULL
    assert not ours.clusters
    assert plan().settings.moments is Moments.FULL
    assert not plan().settings.clusters


def test_lengths_are_of_the_ball_that_holds_the_rows() -> None:
    """The ball reaches as far beyond the means as rows do, and no farther than the bounds."""
    settings = plan(table(4), radius=20.0).settings
    ball = 20.0 + 3.0 * (2.0 + 8.0)
    assert settings.frame.scale == pytest.approx(np.full(4, ball))
    assert settings.radius == pytest.approx(20.0 / ball)
    assert settings.sigma_min == pytest.approx(0.3 / ball)
    assert settings.separation == pytest.approx(6.0 * math.sqrt(0.9) / ball)
    assert settings.min_weight == pytest.approx(1 / 6)
    whole = plan(table(4)).settings
    assert whole.frame.scale == pytest.approx(np.full(4, 200.0))
    assert whole.radius == 1.0


def test_units_of_the_bounds() -> None:
    """Lengths are half-widths, every column's own."""
    columns = (BoundedColumn("a", 0.0, 2.0), BoundedColumn("b", 100.0, 300.0))
    public = PublicTable("people", columns, Adjacency.REPLACE_ONE, 1, 5000)
    made = plan(public, units=fit_pb2.COLUMN_UNITS_BOUNDS, sigma_min=0.01, sigma_max=0.1)
    assert made.settings.frame.scale == pytest.approx(np.array([1.0, 100.0]) * math.sqrt(2))
    assert made.settings.frame.centre.tolist() == [1.0, 200.0]


def test_spheres_in_units_of_the_bounds_are_answered_by_diagonals() -> None:
    """They are no spheres in the data's units."""
    columns = (BoundedColumn("a", -1.0, 1.0), BoundedColumn("b", -100.0, 100.0))
    public = PublicTable("people", columns, Adjacency.REPLACE_ONE, 1, 3000)
    spherical = fit_pb2.COVARIANCE_TYPE_SPHERICAL
    made = plan(
        public,
        units=fit_pb2.COLUMN_UNITS_BOUNDS,
        covariance_type=spherical,
        sigma_min=0.005,
        sigma_max=0.1,
        n_components=2,
    )
    X = mixture(3000, np.array([[-30.0, -30.0], [30.0, 30.0]]), 3) * np.array([0.01, 1.0])
    model = run(made, X)
    assert model.covariance_type == fit_pb2.COVARIANCE_TYPE_DIAG
    assert array(model.covariances) == pytest.approx(np.tile([1e-4, 1.0], (2, 1)), rel=0.3)


def test_a_preview_says_whether_components_will_be_found() -> None:
    """Many rows: all of them; few: a warning, and a spend with which the rules hold; unknown: nothing."""
    enough = plan(table(rows=100_000))
    assert enough.preflight is not None
    assert enough.preflight.predicted_found == 3
    assert not enough.warnings
    few = plan(table(rows=200))
    assert few.preflight is not None
    assert few.preflight.predicted_found < 3
    assert "gaps between components" in few.warnings[0]
    assert "bounding ball" in few.warnings[0]
    mended = plan(table(rows=200), spend=types_pb2.Spend(rho=few.preflight.suggested_rho * 1.001))
    assert mended.preflight is not None
    assert mended.preflight.predicted_found == 3
    unknown = plan(table(adjacency=Adjacency.ADD_REMOVE_ONE, rows=None))
    assert unknown.preflight is None
    assert not expected_numbers(unknown, "mean_error")


def test_a_preview_says_when_fit_dpem_would_serve_better() -> None:
    """It does where noise hides gaps, and where means are declared closer than gaps need; not elsewhere."""
    for fields, words in (
        ({}, None),
        ({"separation": 5.0 * math.sqrt(0.9)}, None),
        ({"spend": types_pb2.Spend(rho=1e-6)}, "noise hides nearly all gaps"),
        ({"separation": 3.0 * math.sqrt(0.9)}, "too close for gaps"),
        ({"separation": 3.0 * math.sqrt(0.9), "n_components": 1}, None),
    ):
        found = [text for text in plan(table(rows=50_000), **fields).warnings if "FitDPEM finds more" in text]
        assert len(found) == (words is not None)
        assert words is None or words in found[0]


def test_small_components_do_not_hide_the_directions_of_large_ones() -> None:
    """A least weight that is smaller than that of most components takes from the margin of gaps alone."""
    made = [plan(table(40, rows=3000), min_weight=weight).preflight for weight in (1 / 6, 0.02)]
    even, small = ({rule.name: rule.margin for rule in one.rules} for one in made if one is not None)
    assert even["principal directions"] == pytest.approx(small["principal directions"])
    assert even["gaps between components"] > 5.0 * small["gaps between components"]


def test_a_preview_of_one_component_has_no_gaps() -> None:
    """There is nothing to split."""
    preflight = plan(n_components=1).preflight
    assert preflight is not None
    assert [rule.name for rule in preflight.rules] == ["bounding ball", "estimates"]


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 1e6])
@pytest.mark.parametrize("unit_cap", [1, 3])
def test_total_for_any_spend_that_was_accepted(rho: float, unit_cap: int) -> None:
    """However little or much is spent, a model comes back that is within its public bounds."""
    made = plan(table(unit_cap=unit_cap), spend=types_pb2.Spend(rho=rho))
    model = run(made, mixture(400, np.array([[-20.0, 0.0], [20.0, 0.0]]), 4), unit_cap=unit_cap)
    assert 1 <= model.found <= 3
    assert np.all(np.abs(array(model.means)) <= 100.0)
    assert np.all(np.linalg.eigvalsh(array(model.covariances)) > 0)
