"""A plan refuses what is wrong by the field's name, and its events cost what was offered, not a bit more."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, InvalidFieldsError, PublicTable, dpem
from bursar_server.fits.mixtures.statistics import Moments
from bursar_server.fits.mixtures.steps import Phase, em_weights
from tests.each import each
from tests.server.fits.running import expected_numbers, nothing_released, plan, request, table

NAN, INF = float("nan"), float("inf")


def tensor(*values: float, shape: tuple[int, ...]) -> types_pb2.Tensor:
    """A tensor."""
    return types_pb2.Tensor(shape=shape, values=values)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("n_components", {"n_components": 0}),
    ("n_components", {"n_components": 1_000_000_000}),
    ("iterations", {"iterations": 1_000_000}),
    ("background", {"background": fit_pb2.BACKGROUND_ON, "mode": fit_pb2.MODE_KMEANS}),
    ("background", {"background": fit_pb2.BACKGROUND_ON, "moments": fit_pb2.MOMENTS_FIXED_ORIGIN}),
    ("covariance_type", {"mode": fit_pb2.MODE_KMEANS, "covariance_type": fit_pb2.COVARIANCE_TYPE_FULL}),
    ("estimator", {"mode": fit_pb2.MODE_KMEANS, "estimator": fit_pb2.ESTIMATOR_MAXIMUM_A_POSTERIORI}),
    ("prior", {"prior": fit_pb2.GaussianPrior(kappa=1.0)}),
    *(
        (
            f"prior.{field}",
            {"estimator": fit_pb2.ESTIMATOR_MAXIMUM_A_POSTERIORI, "prior": fit_pb2.GaussianPrior(**{field: x})},
        )
        for field in ("concentration", "kappa", "nu", "scale")
        for x in (NAN, -1.0, INF)
    ),
    *(("clip_radius", {"clip_radius": x}) for x in (-1.0, 1.5)),
    ("start.given.means", {"given": fit_pb2.StartGiven(means=tensor(1.0, shape=(1,)))}),
    ("start.given.means", {"given": fit_pb2.StartGiven(means=tensor(*[NAN] * 6, shape=(3, 2)))}),
    ("start.given.means", {"given": fit_pb2.StartGiven(means=tensor(*[1e280] * 6, shape=(3, 2)))}),
    (
        "start.given.weights",
        {"given": fit_pb2.StartGiven(means=tensor(*[0.0] * 6, shape=(3, 2)), weights=tensor(1, -1, 1, shape=(3,)))},
    ),
    (
        "start.given.covariances",
        {
            "given": fit_pb2.StartGiven(
                means=tensor(*[0.0] * 6, shape=(3, 2)), covariances=tensor(*[1.0] * 12, shape=(3, 2, 2))
            )
        },
    ),
    ("start.released.entry", {"released": fit_pb2.StartReleased(entry=5)}),
]


@each(("field", "fields"), WRONG, ids=lambda value: str(value).replace("\n", " ")[:60])
def test_wrong_field_is_named(field: str, fields: dict[str, Any]) -> None:
    """The refusal has the field's name, once, before any price is known."""
    with pytest.raises(InvalidFieldsError) as caught:
        plan(**fields)
    names = [name for name, _ in caught.value.violations]
    assert field in names
    assert len(set(caught.value.violations)) == len(names)


def test_an_earlier_release_beyond_the_doubles_is_refused() -> None:
    """A model of a huge ball has no place in a tiny one; the request is refused instead of breaking the server."""
    huge = PublicTable("t", (BoundedColumn("x", -1e100, 1e100),), Adjacency.REPLACE_ONE, 1, 50)
    model = fit_pb2.GaussianMixtureModel(
        columns=["x"],
        mode=fit_pb2.MODE_MIXTURE,
        covariance_type=fit_pb2.COVARIANCE_TYPE_FULL,
        weights=tensor(1.0, shape=(1,)),
        means=tensor(1e100, shape=(1, 1)),
        covariances=tensor(1e200, shape=(1, 1, 1)),
        n_rows=50.0,
    )
    asked = fit_pb2.FitDPEMRequest(
        n_components=1,
        spend=types_pb2.Spend(rho=1.0),
        clip_radius=1e-239,
        released=fit_pb2.StartReleased(entry=1),
    )
    with pytest.raises(InvalidFieldsError, match=r"start\.released\.entry"):
        dpem.plan(asked, huge, lambda entry: model)


def test_too_many_numbers_are_refused() -> None:
    """The size of an answer and the time of a fit are bounded by public numbers."""
    with pytest.raises(InvalidFieldsError, match="numbers"):
        plan(table(60), n_components=256, iterations=20, spend=types_pb2.Spend(rho=1e6))


def test_bounds_that_leave_the_doubles_are_refused() -> None:
    """A box as wide as the doubles has no ball around it."""
    wide = PublicTable(
        "w", (BoundedColumn("x", -1e308, 1e308), BoundedColumn("y", -1e308, 1e308)), Adjacency.REPLACE_ONE, 1, 9
    )
    with pytest.raises(InvalidFieldsError, match="clip_radius"):
        plan(wide)


FIELDS = st.fixed_dictionaries(
    {
        "n_components": st.integers(1, 20),
        "iterations": st.integers(0, 30),
        "mode": st.sampled_from([fit_pb2.MODE_MIXTURE, fit_pb2.MODE_KMEANS]),
        "moments": st.sampled_from([fit_pb2.MOMENTS_RECENTRED, fit_pb2.MOMENTS_FIXED_ORIGIN]),
    }
)


@settings(max_examples=60)
@given(FIELDS, st.floats(1e-6, 100.0), st.sampled_from(Adjacency), st.integers(1, 7), st.integers(1, 6))
def test_events_cost_what_was_offered(
    fields: dict[str, Any], rho: float, adjacency: Adjacency, cap: int, d: int
) -> None:
    """The releases together cost at most rho, and within 1e-12 of it; there are as many as iterations."""
    made = plan(table(d, adjacency=adjacency, unit_cap=cap), spend=types_pb2.Spend(rho=rho), **fields)
    cost = sum(
        (Fraction(e.l2_squared) / (2 * e.scale**2) * e.count for e in made.events if isinstance(e, GaussianEvent)),
        Fraction(),
    )
    assert Fraction(rho) * (1 - Fraction(1, 10**12)) <= cost <= Fraction(rho)
    assert len(made.events) == made.iterations == sum(noise.times for noise in made.noise)
    assert fields["iterations"] in (0, made.iterations)


@settings(max_examples=30)
@given(FIELDS, st.floats(1e-3, 100.0), st.sampled_from(Adjacency))
def test_pure_spend_is_divided_exactly(fields: dict[str, Any], epsilon: float, adjacency: Adjacency) -> None:
    """Laplace releases whose epsilons add up to at most what was offered."""
    made = plan(table(adjacency=adjacency), spend=types_pb2.Spend(epsilon=epsilon), **fields)
    assert all(isinstance(event, LaplaceEvent) for event in made.events)
    total = sum((Fraction(e.l1) / e.scale for e in made.events if isinstance(e, LaplaceEvent)), Fraction())
    assert Fraction(epsilon) * (1 - Fraction(1, 10**12)) <= total <= Fraction(epsilon)


def test_a_unit_of_m_rows_needs_m_times_the_noise() -> None:
    """The cap of a unit scales the noise of every release."""
    one, four = (plan(table(unit_cap=m), iterations=10) for m in (1, 4))
    ratios = [b.count_std / a.count_std for a, b in zip(one.noise, four.noise, strict=True)]
    assert ratios == pytest.approx([4.0] * len(ratios))


def test_add_remove_one_needs_less_noise() -> None:
    """Presence moves a sum less than replacement: by sqrt 2 where the bound is orthogonal rows."""
    replace, add = (plan(table(adjacency=adjacency), iterations=10) for adjacency in Adjacency)
    for a, b in zip(add.noise, replace.noise, strict=True):
        assert a.count_std < b.count_std <= 2.001 * a.count_std


def test_default_number_of_steps_is_the_papers_for_three_components() -> None:
    """J = 10 for three components; log2 k more steps for more; as few where nothing is known of the number of rows."""
    unknown = table(adjacency=Adjacency.ADD_REMOVE_ONE, rows=None)
    assert plan(unknown).iterations == 10
    assert plan(unknown, n_components=10).iterations == 12
    assert plan(table(adjacency=Adjacency.ADD_REMOVE_ONE, rows=None), spend=types_pb2.Spend(rho=10.0)).iterations == 10


@pytest.mark.parametrize("spend", [types_pb2.Spend(rho=0.02), types_pb2.Spend(epsilon=3.0)], ids=["rho", "epsilon"])
def test_more_rows_buy_more_steps(spend: types_pb2.Spend) -> None:
    """Steps are added while the noise of each stays small, up to 21; where noise rules there are five."""
    steps = [plan(table(rows=n), spend=spend).iterations for n in (10, 1000, 10_000, 100_000, 10**7)]
    assert steps == sorted(steps)
    assert steps[0] == 5
    assert steps[-1] == 31
    assert 10 < max(steps[2], steps[3]) <= 31


def test_noise_leaves_room_for_fewer_components() -> None:
    """A plan has fewer components where noise would rule, and says so; a given start keeps its own."""
    spend = types_pb2.Spend(rho=0.001)
    made = [plan(table(5, rows=n), spend=spend, n_components=8) for n in (100, 20_000, 40_000, 10**6)]
    found = [one.settings.components for one in made]
    assert found == sorted(found)
    assert found[0] == 1
    assert 1 < found[1] < found[-1] == 8
    assert [bool(one.warnings) for one in made] == [k < 8 for k in found]
    seeded = plan(table(5, rows=100), spend=spend, n_components=8, random=fit_pb2.StartAtRandom(public_seed=1))
    assert seeded.settings.components == 8
    # In many columns one Gaussian is better at a noise that few columns bear: handwritten digits have thin directions.
    wide = [plan(table(d, rows=6000), spend=types_pb2.Spend(rho=0.5), n_components=8) for d in (16, 64)]
    assert [one.settings.components for one in wide] == [8, 1]


@pytest.mark.parametrize("spend", [types_pb2.Spend(rho=0.0001), types_pb2.Spend(epsilon=0.02)], ids=["rho", "epsilon"])
def test_where_noise_rules_a_mixture_is_one_gaussian_of_the_same_spend(spend: types_pb2.Spend) -> None:
    """It is then no worse than one Gaussian, because it is the same releases: as many, at the same price."""
    many, one = (plan(table(5, rows=3000), spend=spend, n_components=k) for k in (8, 1))
    assert (many.events, many.steps) == (one.events, one.steps)
    assert [step.phase for step in many.steps] == [Phase.SPLIT, *4 * [Phase.EM]]
    # Where noise rules less it has time to settle: one that is wide in some directions and thin in others needs it.
    spends = (types_pb2.Spend(rho=rho) for rho in (0.004, 0.006))
    assert [len(plan(table(20, rows=8000), spend=one, n_components=1).steps) for one in spends] == [5, 8]


def test_low_noise_doubles_the_cells_of_the_start_or_doubles_them_again() -> None:
    """Several cells for each component and some EM steps with them, more if they are many; the rest as asked for."""
    for rows, cells, soft in ((20_000, 6, 3), (10**6, 12, 14)):
        made = plan(table(20, rows=rows), spend=types_pb2.Spend(rho=0.1))
        sizes = [(step.phase.value, step.components) for step in made.steps]
        assert sizes[-1] == ("em", 3)
        assert sizes.count(("em", cells)) == soft
        assert ("repair", cells) in sizes
    # A start of two components needs less noise for it than one of three.
    for rho, k, cells in ((0.03, 2, 2), (0.03, 3, 6), (0.06, 2, 4)):
        wide = plan(table(20, rows=20_000), spend=types_pb2.Spend(rho=rho), n_components=k)
        assert max(step.components for step in wide.steps) == cells


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, True),
        ({"background": fit_pb2.BACKGROUND_ON}, True),
        ({"background": fit_pb2.BACKGROUND_OFF}, False),
        ({"moments": fit_pb2.MOMENTS_FIXED_ORIGIN}, False),
        ({"iterations": 10, "random": fit_pb2.StartAtRandom(public_seed=1)}, True),
    ],
    ids=str,
)
def test_every_em_step_but_the_first_counts_the_background(fields: dict[str, Any], steps: bool) -> None:
    """One more number in each of these releases, and none in the others."""
    made = plan(**fields)
    em = [step.background for step in made.steps if step.phase is Phase.EM]
    assert em == [False, *[steps] * (len(em) - 1)]
    assert not any(step.background for step in made.steps if step.phase is not Phase.EM)
    assert made.parameters["background"] is steps


def test_left_out_columns_mean_all_numeric_ones() -> None:
    """A request without columns is about all of them, in the schema's order."""
    assert dpem.plan(request(), table(4), nothing_released).columns == ("x0", "x1", "x2", "x3")


@pytest.mark.parametrize("moments", [Moments.SPHERICAL, Moments.DIAG, Moments.FULL, Moments.TIED])
@pytest.mark.parametrize("pure", [False, True])
def test_weights_minimise_the_expected_loss(moments: Moments, pure: bool) -> None:
    """No small change of a, b, c at the same price lowers the loss that `em_weights` states."""
    d, k = 4, 3
    v, q = 1.6 * d + 2, 1 / d if moments is Moments.SPHERICAL else moments.size(d)
    costs = np.array([0.5 + d / 4, d * v / 2, q * v * v / 4 / (k * k if moments is Moments.TIED else 1)])
    lengths = np.array([1.0, np.sqrt(d), 1 + 0.71 * (d - 1) if moments in (Moments.FULL, Moments.TIED) else 1.0])

    def loss(x: Any) -> float:
        price = (lengths @ x) ** 2 if pure else x @ x
        return float(price * np.sum(costs / x**2))

    w = em_weights(d, k, moments, pure=pure)
    best = np.array([w.a, w.b, w.c])
    for i in range(3):
        for factor in (0.98, 1.02):
            changed = best.copy()
            changed[i] *= factor
            assert loss(best) < loss(changed)


def test_expected_error_needs_a_public_number_of_rows() -> None:
    """Nothing is promised without a public or declared number of rows."""
    assert expected_numbers(plan(table(adjacency=Adjacency.ADD_REMOVE_ONE, rows=None)), "mean_error") == ()
    small, large = (expected_numbers(plan(table(rows=n), iterations=10), "mean_error") for n in (1000, 4000))
    assert np.array(small) == pytest.approx(4 * np.array(large))
