"""Promises of previews beside the price: units, and errors from public numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, CodedColumn, Plan, PublicTable, dpem, gradient_em, mrf, separated_gmm
from bursar_server.fits.mrf._plan import MRFPlan
from bursar_server.vault import OpenDPNoise
from tests.server.fits.fielding import field_of
from tests.server.fits.running import expected_number, expected_numbers, session

TABLE = PublicTable(
    name="people",
    numeric=(BoundedColumn("x", -1.0, 1.0), BoundedColumn("y", 0.0, 40.0)),
    adjacency=Adjacency.REPLACE_ONE,
    unit_cap=1,
    rows=2000,
    categorical=(CodedColumn("town", tuple("abcdefgh")), CodedColumn("work", ("yes", "no"))),
)


def errors_of(plan: Plan, name: str = "table_errors") -> Mapping[str, float]:
    """Return the expected error of each table, or its bound."""
    value = plan.expected[name].value
    assert isinstance(value, Mapping)
    return value


def nothing(entry: int) -> Message | None:
    """No earlier release."""
    return None


def lines(rho: float = 0.1, **fields: Any) -> fit_pb2.FitGradientEMRequest:
    """One regression of y on x."""
    return fit_pb2.FitGradientEMRequest(
        dataset="people",
        spend=types_pb2.Spend(rho=rho),
        model=fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS,
        target="y",
        columns=["x"],
        **fields,
    )


def field(rho: float = 0.1, epsilon: float | None = None) -> fit_pb2.FitMRFRequest:
    """Tables of all pairs that there are."""
    spend = types_pb2.Spend(rho=rho) if epsilon is None else types_pb2.Spend(epsilon=epsilon)
    cliques = fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=["town", "work"])])
    return fit_pb2.FitMRFRequest(dataset="people", spend=spend, cliques=cliques)


@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_the_distance_of_a_table_is_that_of_drawn_noise(epsilon: float | None) -> None:
    """Total variation between the noisy table and the true one, for both laws; the mean of 400 draws is within 10%."""
    plan: MRFPlan = mrf.plan(field(epsilon=epsilon), TABLE, nothing)
    (one,) = plan.settings.measurements
    draws = [
        np.abs(OpenDPNoise().add(np.zeros(one.statistic.shape, dtype=np.int64), one.noise)).sum() for _ in range(400)
    ]
    # 16 cells a draw: the mean of 6,400 numbers is known to 1%, so that 10% is ten of its deviations.
    found = float(np.mean(draws)) * one.statistic.lattice / (2 * 2000)
    assert expected_number(plan, "table_error") == pytest.approx(found, rel=0.1)


def test_each_table_has_an_error() -> None:
    """Errors have names of columns, and are less than noise alone: of cliques, or of every pair that may be chosen."""
    three = replace(TABLE, categorical=(*TABLE.categorical, CodedColumn("age", ("young", "old"))))
    for graph in ({"tree": fit_pb2.SelectTree()}, {"auto": fit_pb2.ChooseCliques()}):
        asked = fit_pb2.FitMRFRequest(dataset="people", spend=types_pb2.Spend(rho=0.01), **graph)
        plan = mrf.plan(asked, three, nothing)
        found, worst = errors_of(plan), expected_number(plan, "table_error")
        assert list(found) == ["town, work", "town, age", "work, age"]
        assert found["town, work"] == found["town, age"] > found["work, age"] > 0
        assert worst is not None
        assert found["town, work"] < worst
    assert list(errors_of(mrf.plan(field(), TABLE, nothing))) == ["town, work"]


def test_each_table_has_a_bound_of_its_error() -> None:
    """Tables that will be released, those of all pairs too, are better known than pairs that may be chosen."""
    three = replace(TABLE, categorical=(*TABLE.categorical, CodedColumn("age", ("young", "old"))))
    ratios = {}
    for graph in ({"tree": fit_pb2.SelectTree()}, {"auto": fit_pb2.ChooseCliques()}):
        for rho in (0.003, 10.0):
            asked = fit_pb2.FitMRFRequest(dataset="people", spend=types_pb2.Spend(rho=rho), **graph)
            plan = mrf.plan(asked, three, nothing)
            expected, bounds = errors_of(plan), errors_of(plan, "table_bounds")
            assert list(bounds) == list(expected)
            ratios[*graph, rho] = bounds["work, age"] / expected["work, age"]
    assert ratios.pop(("auto", 0.003)) == pytest.approx(3)
    assert all(ratio == pytest.approx(1.6) for ratio in ratios.values())
    drowned = fit_pb2.FitMRFRequest(dataset="people", spend=types_pb2.Spend(rho=1e-9), auto=fit_pb2.ChooseCliques())
    assert errors_of(mrf.plan(drowned, three, nothing), "table_bounds")["town, work"] == 1.0
    # Pure epsilon has no direct tables: no budget lowers what a model of chosen pairs leaves.
    pure = fit_pb2.FitMRFRequest(dataset="people", spend=types_pb2.Spend(epsilon=1e4), auto=fit_pb2.ChooseCliques())
    assert set(errors_of(mrf.plan(pure, three, nothing), "table_bounds").values()) == {0.03}


def test_chains_and_private_numbers_of_rows_have_no_errors_of_tables() -> None:
    """Their tables are pooled over time; and without a number of rows nothing is a share of them."""
    twins = replace(TABLE, categorical=(CodedColumn("a", ("x", "y")), CodedColumn("b", ("x", "y"))))
    chain = fit_pb2.HomogeneousChain(columns=["a", "b"])
    asked = fit_pb2.FitMRFRequest(dataset="people", spend=types_pb2.Spend(rho=0.1), chain=chain)
    assert not mrf.plan(asked, twins, nothing).expected.keys() & {"table_errors", "table_bounds"}
    hidden = replace(TABLE, adjacency=Adjacency.ADD_REMOVE_ONE, rows=None)
    assert "table_errors" not in mrf.plan(field(), hidden, nothing).expected


def test_an_earlier_table_has_the_error_of_its_noise() -> None:
    """Errors are of its own cells and of their sums; nothing new is released, so there is no worst new table."""
    made = mrf.plan(field(), TABLE, nothing)
    told = errors_of(made)
    model = mrf.run(replace(made, of_entry=1), session(made, np.zeros((2000, 2))))
    part = fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=["work"]), fit_pb2.Clique(columns=["town", "work"])])
    free = mrf.plan(fit_pb2.FitMRFRequest(dataset="people", reuse=[1], cliques=part), TABLE, lambda entry: model)
    assert "table_error" not in free.expected
    assert errors_of(free)["town, work"] == pytest.approx(told["town, work"], rel=0.01)
    assert 0 < errors_of(free)["work"] < told["town, work"]


@pytest.mark.parametrize("graph", [{"auto": fit_pb2.ChooseCliques()}, {"independent": fit_pb2.Independent()}])
def test_errors_of_tables_come_true(graph: dict[str, Any]) -> None:
    """The middle table of several fits is between half and twice as far off as it is expected to be."""
    names, n = "abcdef", 4000
    public = PublicTable(
        "people", (), Adjacency.ADD_REMOVE_ONE, 1, n, tuple(CodedColumn(name, tuple("pqrst")) for name in names)
    )
    rng = np.random.default_rng(0)  # noqa: TID251 - rows of a test
    X = np.minimum(rng.geometric(0.4, (n, 6)) - 1, 4)
    X[:, 1::2] = np.where(rng.random((n, 3)) < 0.5, X[:, ::2], X[:, 1::2])
    asked = fit_pb2.FitMRFRequest(dataset="people", spend=types_pb2.Spend(rho=0.003), **graph)
    plan = mrf.plan(asked, public, nothing)
    models = [field_of(mrf.run(plan, session(plan, X + 0.0, adjacency=public.adjacency))) for _ in range(8)]
    ratios = []
    for columns, said in errors_of(plan).items():
        places = [names.index(name) for name in columns.split(", ")]
        true = np.zeros((5,) * len(places))
        np.add.at(true, tuple(X[:, places].T), 1 / n)
        ratios += [np.abs(one.marginal(columns.split(", ")) - true).sum() / 2 / said for one in models]
    assert 0.5 < np.median(ratios) < 2


def test_memory_grows_with_tables_and_candidates() -> None:
    """Public sizes suffice, without a number of rows, too; a small fit takes what Python and its libraries take."""

    def wide(states: int, **graph: Any) -> int:
        names = tuple(f"{i}" for i in range(states))
        public = replace(
            TABLE,
            rows=None,
            adjacency=Adjacency.ADD_REMOVE_ONE,
            categorical=(CodedColumn("wide", names), *TABLE.categorical),
        )
        asked = fit_pb2.FitMRFRequest(dataset="people", spend=types_pb2.Spend(rho=0.1), **graph)
        return mrf.plan(asked, public, nothing).memory

    pair = fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=["wide", "town"])])
    small = mrf.plan(field(), TABLE, nothing).memory
    assert 200 < small / 2**20 < 300
    for graph in ({"cliques": pair}, {"tree": fit_pb2.SelectTree()}, {"auto": fit_pb2.ChooseCliques()}):
        assert small <= wide(2, **graph) < wide(1000, **graph)
    # 32 MB of steps that the search remembers, as it keeps 200 of two numbers for each of 8,000 cells, and some more.
    assert wide(1000, cliques=pair) - small == pytest.approx(8000 * (200 * 16 + 400 + 120), rel=0.05)
    twins = replace(TABLE, categorical=(CodedColumn("a", tuple("xyz")), CodedColumn("b", tuple("xyz"))))
    chain = fit_pb2.HomogeneousChain(columns=["a", "b"])
    asked = fit_pb2.FitMRFRequest(dataset="people", spend=types_pb2.Spend(rho=0.1), chain=chain)
    assert mrf.plan(asked, twins, nothing).memory >= 200 * 2**20


def test_a_table_is_never_farther_than_one() -> None:
    """Noise that drowns everything is a distance of 1; a tree has the distance of its widest pair."""
    assert expected_number(mrf.plan(field(rho=1e-9), TABLE, nothing), "table_error") == 1.0
    tree = fit_pb2.FitMRFRequest(dataset="people", spend=types_pb2.Spend(rho=0.5), tree=fit_pb2.SelectTree())
    three = replace(TABLE, categorical=(*TABLE.categorical, CodedColumn("age", ("young", "old"))))
    error = expected_number(mrf.plan(tree, three, nothing), "table_error")
    assert error is not None
    assert 0 < error < 1


def test_nothing_is_promised_without_a_public_number_of_rows() -> None:
    """Absent, not zero."""
    hidden = replace(TABLE, adjacency=Adjacency.ADD_REMOVE_ONE, rows=None)
    assert expected_number(mrf.plan(field(), hidden, nothing), "table_error") is None
    plan = gradient_em.plan(lines(noise_std=2.0), hidden, nothing)
    assert (expected_number(plan, "relative_error"), expected_numbers(plan, "coef_error")) == (None, ())


def test_a_coefficients_error_is_in_the_units_of_target_and_feature() -> None:
    """Only with a noise level; it goes with that, with the inverse width of the feature, and with the price."""
    assert expected_numbers(gradient_em.plan(lines(), TABLE, nothing), "coef_error") == ()
    (error,) = expected_numbers(gradient_em.plan(lines(noise_std=2.0), TABLE, nothing), "coef_error")
    (twice,) = expected_numbers(gradient_em.plan(lines(noise_std=4.0), TABLE, nothing), "coef_error")
    wide = replace(TABLE, numeric=(BoundedColumn("x", -10.0, 10.0), TABLE.numeric[1]))
    (tenth,) = expected_numbers(gradient_em.plan(lines(noise_std=2.0), wide, nothing), "coef_error")
    (dear,) = expected_numbers(gradient_em.plan(lines(rho=0.4, noise_std=2.0), TABLE, nothing), "coef_error")
    assert (twice, tenth, dear) == pytest.approx((2 * error, error / 10, error / 2), rel=1e-6)


def test_a_variant_with_a_fixed_bound_promises_nothing_relative() -> None:
    """The moves of its parameters are not in units of the model's noise."""
    fixed = lines(variant=fit_pb2.GRADIENT_VARIANT_CLIPPED, scale=1.0)
    assert expected_number(gradient_em.plan(fixed, TABLE, nothing), "relative_error") is None
    assert (expected_number(gradient_em.plan(lines(), TABLE, nothing), "relative_error") or 0) > 0


def test_sums_of_positions_have_the_units_of_their_columns() -> None:
    """The widest radius along each column; none of regressions and tables."""
    spend = types_pb2.Spend(rho=0.1)
    mixture = fit_pb2.FitDPEMRequest(dataset="people", columns=["x", "y"], n_components=2, spend=spend)
    # The ball that holds the box, in half-widths: sqrt(2).
    assert dpem.plan(mixture, TABLE, nothing).sum_units == pytest.approx((2**0.5, 20 * 2**0.5))
    half = fit_pb2.FitDPEMRequest(
        dataset="people", columns=["x", "y"], n_components=2, spend=spend, clip_radius=2**0.5 / 2
    )
    assert dpem.plan(half, TABLE, nothing).sum_units == pytest.approx((0.5 * 2**0.5, 10 * 2**0.5))
    gaussians = fit_pb2.FitGradientEMRequest(
        dataset="people",
        model=fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE,
        columns=["x", "y"],
        units=fit_pb2.COLUMN_UNITS_BOUNDS,
        spend=spend,
    )
    assert gradient_em.plan(gaussians, TABLE, nothing).sum_units == pytest.approx((1, 20))
    apart = fit_pb2.FitSeparatedGMMRequest(
        dataset="people", columns=["x", "y"], n_components=2, sigma_min=0.1, sigma_max=2, spend=spend
    )
    units = separated_gmm.plan(apart, TABLE, nothing).sum_units
    assert len(units) == 2
    assert min(units) > 0
    assert gradient_em.plan(lines(), TABLE, nothing).sum_units == ()
    assert mrf.plan(field(), TABLE, nothing).sum_units == ()
