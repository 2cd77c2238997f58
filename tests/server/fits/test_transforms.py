"""A fit with a transform is the same fit of the transformed table, at the same price; what cannot be is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bursar import _convert
from bursar._fits._separated_gmm import separated_gmm_from
from bursar_ledger import Adjacency
from bursar_models import GaussianMixture
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, InvalidFieldsError, Plan, PublicTable, dpem, separated_gmm, sketch
from bursar_server.jobs.limits import judged
from bursar_server.vault import CHUNK, ArrayRows, Log1p, transformed
from tests.server.fits.running import Array, NoNoise, array, nothing_released, plan, request, run, session
from tests.server.vault.doubles import Best

LOG = types_pb2.TRANSFORM_LOG1P
AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE
LN = [float(one) for one in Log1p(0, 0.0, 20_000.0).ends]


def people(adjacency: Adjacency, cap: int = 1, *, own: bool = True, declared: str = "none") -> PublicTable:
    """A table of an age and an income, in its own unit or as its logarithm."""
    income = (0.0, 20_000.0) if own else (LN[0], LN[1])
    columns = (
        BoundedColumn("age", 0.0, 100.0),
        BoundedColumn("income", *income, transform=declared),  # type: ignore[arg-type] # one of the two words
        BoundedColumn("balance", -50.0, 50.0),
    )
    return PublicTable("people", columns, adjacency, cap, 3000)


def asked(**by_column: int) -> list[types_pb2.ColumnTransform]:
    """Transforms by column."""
    return [types_pb2.ColumnTransform(column=name, transform=one) for name, one in by_column.items()]  # type: ignore[arg-type]


def rows() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ages and heavy-tailed incomes in two groups, and what no table should hold."""
    rng = np.random.default_rng(1)  # noqa: TID251 - rows of a test
    group = rng.random(3000) < 0.4
    X = np.stack([rng.normal(np.where(group, 30, 60), 6), np.exp(rng.normal(np.where(group, 5, 8), 0.7))], axis=1)
    X[:7, 1] = [np.nan, np.inf, -np.inf, -0.0, 5e-324, -30.0, 1e300]
    return X


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("cap", [1, 3])
@pytest.mark.parametrize("mode", [fit_pb2.MODE_MIXTURE, fit_pb2.MODE_KMEANS])
def test_it_is_the_fit_of_the_transformed_table(adjacency: Adjacency, cap: int, mode: int) -> None:
    """Every event, every step and every released number but the bounds in own units."""
    fields: dict[str, Any] = {"columns": ["age", "income"], "n_components": 2, "iterations": 5, "mode": mode}
    with_log = plan(people(adjacency, cap), transforms=asked(income=LOG), **fields)
    of_logs = plan(people(adjacency, cap, own=False), **fields)
    assert with_log.events == of_logs.events
    X = rows()
    ours, theirs = (
        run(one, table, source=NoNoise(), adjacency=adjacency, unit_cap=cap)
        for one, table in ((with_log, X), (of_logs, read(with_log, X)))
    )
    if mode == fit_pb2.MODE_MIXTURE:
        np.testing.assert_array_equal(array(ours.bounds), [[0.0, 0.0], [100.0, 20_000.0]])
    assert list(ours.transforms) == [types_pb2.TRANSFORM_NONE, LOG]
    for one in (ours, theirs):
        one.ClearField("bounds")
        one.ClearField("transforms")
    assert ours == theirs


def test_the_owners_transform_is_the_default() -> None:
    """A request may ask for the column itself; the ledger's entry has what was fitted."""
    table, columns = people(RO, declared="log1p"), ["age", "income"]
    default = plan(table, columns=columns)
    asked_for = plan(people(RO), columns=columns, transforms=asked(income=LOG))
    without = plan(table, columns=columns, transforms=asked(income=types_pb2.TRANSFORM_NONE))
    same = plan(table, columns=columns, transforms=asked(income=types_pb2.TRANSFORM_UNSPECIFIED))
    assert default.transforms == asked_for.transforms == same.transforms == (Log1p(1, 0.0, 20_000.0),)
    assert without.transforms == ()
    assert default.parameters["transform"] == {"income": "log1p"}
    assert "transform" not in without.parameters
    assert plan(table, columns=["age"]).transforms == ()


def test_accuracy_is_of_the_logarithm_and_says_so() -> None:
    """An expected error is compared with the range of the logarithm, in the warnings, too."""
    spend = types_pb2.Spend(rho=1e-4)
    made = plan(people(AR), columns=["income"], transforms=asked(income=LOG), spend=spend)
    value = made.expected["mean_error"]
    assert value.unit.endswith("of log1p for income")
    assert isinstance(value.value, dict)
    # The ball of one column is its range, so relative errors are alike with and without a transform.
    plain = plan(people(AR), columns=["income"], spend=spend).expected["mean_error"].value
    assert isinstance(plain, dict)
    assert value.value["income"] / (LN[1] - LN[0]) == pytest.approx(plain["income"] / 20_000.0)
    assert (
        judged(made, people(AR)).useless
        == judged(plan(people(AR), columns=["income"], spend=spend), people(AR)).useless
    )


WRONG: list[tuple[str, list[types_pb2.ColumnTransform], str]] = [
    ("transforms", asked(balance=LOG), "bounds of at least 0"),
    ("transforms[0].column", asked(salary=LOG), "no column of this fit"),
    ("transforms[1].column", [*asked(income=LOG), *asked(income=LOG)], "each column once"),
    ("transforms[0].transform", asked(income=77), "expected one of"),
]


@pytest.mark.parametrize(("field", "transforms", "words"), WRONG)
def test_what_cannot_be_is_refused_before_the_debit(
    field: str, transforms: list[types_pb2.ColumnTransform], words: str
) -> None:
    """The plan names the field and says what to do."""
    with pytest.raises(InvalidFieldsError) as caught:
        plan(people(RO), transforms=transforms)
    assert [name for name, _ in caught.value.violations] == [field]
    assert words in caught.value.violations[0][1]


def test_a_start_has_to_be_of_the_same_space() -> None:
    """A released model of the column itself is no start for one of its logarithm."""
    table = people(RO)
    fields: dict[str, Any] = {"columns": ["age", "income"], "n_components": 2, "iterations": 2}
    earlier = run(plan(table, **fields), rows()[7:], source=NoNoise())
    again = request(**fields, released=fit_pb2.StartReleased(entry=1), transforms=asked(income=LOG))
    with pytest.raises(InvalidFieldsError, match="other transforms"):
        dpem.plan(again, table, lambda entry: earlier)
    earlier.transforms.extend([types_pb2.TRANSFORM_NONE, LOG])
    assert dpem.plan(again, table, lambda entry: earlier).transforms
    assert dpem.plan(request(**fields), table, nothing_released).transforms == ()


def read(made: Plan, X: Array) -> Array:
    """Return what a session of the plan gives of stored rows."""
    block, present = np.zeros((X.shape[1], CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
    transformed(ArrayRows(np.ascontiguousarray(X.T)), made.transforms).read(0, block, present)
    return block[:, : len(X)].T.copy()


NAMES = ["age", "income"]


def sketch_request(**new: Any) -> fit_pb2.FitSketchKMeansRequest:
    """A request for a sketch of both columns, and three clusters of it."""
    return fit_pb2.FitSketchKMeansRequest(
        columns=NAMES,
        spend=types_pb2.Spend(rho=1.0),
        n_clusters=2,
        n_init=1,
        decoding=fit_pb2.DECODING_MIXTURE,
        new_sketch=fit_pb2.NewSketch(n_frequencies=60, sigma=0.2, units=fit_pb2.COLUMN_UNITS_BOUNDS, **new),
    )


def test_a_sketch_is_that_of_the_transformed_table() -> None:
    """Its bounds are those in own units; what is decoded knows the space, and its rows are within the bounds."""
    with_log = sketch.plan(sketch_request(transforms=asked(income=LOG)), people(RO), nothing_released)
    of_logs = sketch.plan(sketch_request(), people(RO, own=False), nothing_released)
    X = rows()
    ours, theirs = (
        sketch.run(one, session(one, table, source=NoNoise()))
        for one, table in ((with_log, X), (of_logs, read(with_log, X)))
    )
    assert with_log.parameters["transform"] == {"income": "log1p"}
    for name in ("sums", "centre", "unit", "n_rows"):
        assert getattr(ours.sketch, name) == getattr(theirs.sketch, name)
    assert list(ours.sketch.upper.values) == [100.0, 20_000.0]
    made = _convert.sketch_model_from(ours, None)
    assert made.sketch is not None
    assert _convert.sketch_to(made.sketch, entry=0) == ours.sketch
    assert isinstance(made.decoded, GaussianMixture)
    for model in (made.decoded, made.sketch.gaussian_mixture(2, n_init=1)):
        assert model.transforms == ("none", "log1p")
        drawn = model.sample(2000, random_state=1)[0]
        assert (drawn >= 0.0).all()
        assert (drawn <= [100.0, 20_000.0]).all()
    assert "with log1p(income)" in repr(made.sketch)
    assert made.sketch.kmeans(2, n_init=1).own_centers_[:, 1].max() <= 20_000.0


def test_sketches_of_different_spaces_do_not_go_together() -> None:
    """Neither merged by a client, nor as foreign ones by a server, which names the field."""
    one, other = (
        sketch.run(made, session(made, rows()[7:], source=NoNoise())).sketch
        for made in (
            sketch.plan(sketch_request(transforms=transforms), people(RO), nothing_released)
            for transforms in ([], asked(income=LOG))
        )
    )
    with pytest.raises(ValueError, match=r"centre|transforms"):
        _convert.sketch_from(one, None).merge(_convert.sketch_from(other, None))
    alike = fit_pb2.Sketch()
    alike.CopyFrom(one)
    alike.transforms.extend([types_pb2.TRANSFORM_NONE, LOG])
    alike.centre.CopyFrom(other.centre)
    alike.unit.CopyFrom(other.unit)
    wrongs: list[list[Any]] = [[LOG], [77, LOG]]
    for wrong in wrongs:
        broken = fit_pb2.Sketch()
        broken.CopyFrom(alike)
        del broken.transforms[:]
        broken.transforms.extend(wrong)
        request_ = fit_pb2.FitSketchKMeansRequest(foreign=[broken], n_clusters=2)
        with pytest.raises(InvalidFieldsError, match="transforms"):
            sketch.plan(request_, people(RO), nothing_released)
    assert sketch.plan(both_with(alike, other), people(RO), nothing_released).events == ()
    del alike.transforms[:]
    alike.transforms.extend([LOG, LOG])
    with pytest.raises(InvalidFieldsError, match=r"foreign\[1\].transforms"):
        sketch.plan(both_with(alike, other), people(RO), nothing_released)


def both_with(second: fit_pb2.Sketch, first: fit_pb2.Sketch) -> fit_pb2.FitSketchKMeansRequest:
    """A request that merges two foreign sketches."""
    return fit_pb2.FitSketchKMeansRequest(foreign=[first, second], n_clusters=2, n_init=1)


def test_separated_components_are_those_of_the_transformed_table() -> None:
    """The same numbers as a search in a table of logarithms; rows that are drawn stay within the bounds."""
    fields: dict[str, Any] = {"columns": NAMES, "n_components": 2, "sigma_min": 0.02, "sigma_max": 0.4}
    fields |= {"spend": types_pb2.Spend(rho=2.0), "units": fit_pb2.COLUMN_UNITS_BOUNDS}
    logs = fit_pb2.FitSeparatedGMMRequest(**fields, transforms=asked(income=LOG))
    with_log = separated_gmm.plan(logs, people(RO), nothing_released)
    of_logs = separated_gmm.plan(fit_pb2.FitSeparatedGMMRequest(**fields), people(RO, own=False), nothing_released)
    assert with_log.events == of_logs.events
    X = rows()
    ours, theirs = (
        separated_gmm.run(one, session(one, table, source=NoNoise(), search_source=Best()))
        for one, table in ((with_log, X), (of_logs, read(with_log, X)))
    )
    model = separated_gmm_from(ours, None, sought=2)
    assert model.transforms == ("none", "log1p")
    drawn = model.sample(2000, random_state=1)[0]
    assert (drawn >= 0.0).all()
    assert (drawn <= [100.0, 20_000.0]).all()
    for one in (ours, theirs):
        one.ClearField("bounds")
        one.ClearField("transforms")
    assert ours == theirs
