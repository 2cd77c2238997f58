"""Intervals and errors of Markov random fields: how often they contain what they should, and what no table knows."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import bursar
from bursar_models import MarkovRandomField, ReleasedTable, Variable
from bursar_models.budget import ReleaseNoise
from bursar_models.mrf import Learning
from bursar_models.mrf._direct import between, between_variances, excess
from bursar_models.mrf._intervals import Evidence, _ratios, column_spread, mean_absolute, missed, unexplained

SIZES = {"a": 3, "b": 4, "c": 2}
VARIABLES = tuple(Variable(name, tuple(f"{name}{i}" for i in range(size))) for name, size in SIZES.items())
ROWS = 20_000


def truth() -> Any:
    """Probabilities of a, b and c: a chain."""
    rng = np.random.default_rng(0)  # noqa: TID251 - a distribution to draw from
    first, second, third = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(4), 3), rng.dirichlet(np.ones(2), 4)
    return first[:, None, None] * second[:, :, None] * third[None]


def summed(table: Any, columns: str) -> Any:
    """A table of a, b and c summed to some of them, in the order of the alphabet."""
    return table.sum(axis=tuple(axis for axis, name in enumerate(SIZES) if name not in columns))


def learnt(counts: Any, noise: float, rng: np.random.Generator, *, claimed: float | None = None) -> MarkovRandomField:  # noqa: TID251
    """A field learnt from the noisy tables of a, b and of b, c; `claimed` is what is said of the noise."""
    tables = tuple(
        ReleasedTable(tuple(columns), table + noise * rng.standard_normal(table.shape), claimed or noise)
        for columns in ("ab", "bc")
        for table in [summed(counts, columns)]
    )
    learning = Learning(tuple(SIZES), tuple(SIZES.values()), ((0, 1), (1, 2)), chain=False, public_rows=ROWS)
    found = learning.learn(tables)
    return MarkovRandomField(
        VARIABLES,
        learning.potentials,
        tuple(found.log_potentials),
        tuple(found.marginals),
        found.log_partition,
        tables,
        found.n_rows,
    )


def fields(times: int, noise: float = 60.0, **said: Any) -> list[tuple[Any, MarkovRandomField]]:
    """Counts of tables that are drawn anew, and fields learnt from them."""
    rng = np.random.default_rng(1)  # noqa: TID251 - rows and noise of the test
    drawn = [rng.multinomial(ROWS, truth().ravel()).reshape(truth().shape) for _ in range(times)]
    return [(counts, learnt(counts, noise, rng, **said)) for counts in drawn]


def share_within(found: list[bursar.Interval], cells: Any) -> list[bool]:
    """Return whether each interval contains its cell."""
    return [row.low <= cell <= row.high for row, cell in zip(found, np.ravel(cells), strict=True)]


def covered(models: list[tuple[Any, MarkovRandomField]]) -> dict[str, float]:
    """Shares of true cells within intervals: single columns, pairs, conditional probabilities."""
    shares: dict[str, list[bool]] = {"single": [], "pair": [], "conditional": []}
    given = summed(truth(), "ab") / summed(truth(), "a")[:, None]
    for _, model in models:
        shares["single"] += share_within(list(model.intervals()), np.concatenate([summed(truth(), v) for v in SIZES]))
        shares["pair"] += share_within(list(model.intervals(columns=["a", "b"])), summed(truth(), "ab"))
        for state, row in enumerate(given):
            rows = list(model.intervals(columns="b", given={"a": f"a{state}"}))
            shares["conditional"] += share_within(rows, row)
    return {name: float(np.mean(found)) for name, found in shares.items()}


def test_intervals_of_measured_cells_contain_the_truth() -> None:
    """95 % of 40 tables' cells; a share below 0.9 of 360 has a chance of 1e-5, and cells of a table are not alike."""
    assert all(share > 0.9 for share in covered(fields(40)).values())


def test_noise_that_is_told_too_small_would_be_seen() -> None:
    """The planted bug: a tenth of the true noise is claimed, and every kind of interval misses the truth too often."""
    assert all(share < 0.85 for share in covered(fields(20, 200.0, claimed=20.0)).values())


def test_noise_that_other_tables_average_out_does_not_widen_intervals() -> None:
    """Five tables share a column of two states: intervals of their cells are as wide as the errors, not as the noise.

    By the noise of one table they would be 1.3 times as wide, and a planted bug that divides its deviation by 1.4 is
    seen.
    """
    rng = np.random.default_rng(5)  # noqa: TID251 - rows and noise of the test
    names, noise = tuple("abcdef"), 200.0
    first, given = np.array([0.45, 0.55]), rng.uniform(0.3, 0.7, (5, 2))
    pairs = [first[:, None] * np.stack([part, 1 - part], axis=1) for part in given]
    learning = Learning(names, (2,) * 6, tuple((0, i) for i in range(1, 6)), chain=False, public_rows=ROWS)
    inside, errors, widths = [], [], []
    for _ in range(60):
        a = rng.random(ROWS) < first[1]
        tables = []
        for name, part in zip(names[1:], given, strict=True):
            b = rng.random(ROWS) > part[a.astype(int)]
            counts = np.array([[np.sum((a == i) & (b == j)) for j in (0, 1)] for i in (0, 1)])
            tables.append(ReleasedTable(("a", name), counts + noise * rng.standard_normal((2, 2)), noise))
        found = learning.learn(tables)
        model = MarkovRandomField(
            tuple(Variable(name, ("0", "1")) for name in names),
            learning.potentials,
            tuple(found.log_potentials),
            tuple(found.marginals),
            found.log_partition,
            tuple(tables),
            found.n_rows,
        )
        for name, pair in zip(names[1:], pairs, strict=True):
            rows = list(model.intervals(columns=["a", name]))
            inside += share_within(rows, pair)
            errors += [row.estimate - cell for row, cell in zip(rows, pair.ravel(), strict=True)]
            widths += [(row.high - row.low) / 2 for row in rows]
    assert 0.92 < np.mean(inside) < 0.975
    assert np.sqrt(np.square(widths).mean() / np.square(errors).mean()) / 1.96 < 1.15
    assert np.mean(np.abs(errors) < np.array(widths) / 1.4) < 0.9


def test_errors_between_model_and_table_are_those_of_both() -> None:
    """Variances of `between` are those of its errors, from a model that is nearly right to one that says nothing."""
    rng = np.random.default_rng(6)  # noqa: TID251 - errors of the test
    model = np.outer(rng.dirichlet(np.full(5, 5.0)), rng.dirichlet(np.full(5, 5.0)))
    for off in (0.3, 0.6, 1.0, 5.0):
        tables = []
        for _ in range(800):
            change = off * 50 * np.sqrt(25 * model**0.75 / (model**0.75).sum()) * rng.standard_normal((5, 5))
            truth = 50_000 * model + change - change.mean()
            tables.append((truth, truth + 50 * rng.standard_normal((5, 5))))
        typical = float(np.mean([excess(model, counts, 50.0, 50_000.0) for _, counts in tables]))
        variances = np.array([between_variances(model, counts, 50.0, 50_000.0, typical) for _, counts in tables])
        errors = np.array([50_000 * between(model, counts, 50.0, 50_000.0) - truth for truth, counts in tables])
        assert 0.8 < variances.sum() / np.square(errors).sum() < 1.3
        assert 0.9 < np.mean(np.abs(errors) < 1.96 * np.sqrt(variances)) < 0.98
        # A planted bug that forgets the model's own error is seen, and one that takes all of the noise.
        assert typical > 1 or np.mean(np.abs(errors) < 1.96 * np.sqrt(variances) / 2) < 0.8
        assert typical > 1 or np.mean(np.abs(errors) < 1.96 * 50) > 0.99


def test_bounds_of_unmeasured_cells_hold_whatever_the_dependence() -> None:
    """The rows follow another joint distribution of a and c than the model's; a tree cannot know it."""
    rng = np.random.default_rng(2)  # noqa: TID251 - rows and noise of the test
    tied = np.zeros((3, 4, 2))
    tied[:, :, 0], tied[0, :, 1] = rng.dirichlet(np.ones(12)).reshape(3, 4) * 0.7, rng.dirichlet(np.ones(4)) * 0.3
    for _ in range(10):
        counts = rng.multinomial(ROWS, tied.ravel()).reshape(tied.shape)
        model = learnt(counts, 10.0, rng)
        rows = list(model.intervals(level=0.999, columns=["a", "c"]))
        assert all(share_within(rows, summed(counts, "ac") / ROWS))
        assert all("no table has it" in row.about for row in rows)
        far = np.abs(model.marginal(["a", "c"]) - summed(counts, "ac") / ROWS).sum() / 2
        error = model.error(["a", "c"], level=0.999)
        assert (error.measured, error.expected) == (False, None)
        assert far <= error.bound <= 1
        assert model.intervals(columns="c", given={"a": "a0"})["c=c0 | a=a0"].low < 0.7


def test_the_bound_of_a_measured_table_holds() -> None:
    """Bounds hold for 40 fits and three sets of columns; expected errors and bounds are of the size of the true ones.

    If 5 % were missed, each fit missing all three or none, more than 6 of 40 fits would miss with a chance of 0.3 %; by
    the law of the noise far fewer are: the model is nearer than its table.
    """
    ratios, held, bounds = [], [], []
    for counts, model in fields(40):
        for columns in ("ab", "bc", "b"):
            error = model.error(list(columns))
            far = np.abs(model.marginal(list(columns)) - summed(counts, columns) / ROWS).sum() / 2
            assert error.measured
            assert error.expected is not None
            held.append(far <= error.bound)
            ratios.append(far / error.expected)
            bounds.append(far / error.bound)
    assert np.mean(held) > 0.85
    assert 0.4 < np.median(ratios) < 1.3
    assert np.median(bounds) > 0.35


def test_what_a_model_missed_is_measured_without_the_noise() -> None:
    """A true model is said to be off by far less than the noise makes; one that is off, by as much as it is."""
    rng = np.random.default_rng(4)  # noqa: TID251 - noise of the test
    cells, rows = np.full((10, 10), 0.01), 1000.0
    other = cells + 0.005 * np.sign(np.arange(100).reshape(10, 10) % 2 - 0.5)
    for laplace in (False, True):
        draw = rng.laplace if laplace else rng.normal
        scale = 10.0 * (np.sqrt(0.5) if laplace else 1.0)
        noise = 10.0 * mean_absolute(laplace=laplace)
        true, wrong = (
            np.mean([missed(model, rows, rows * cells + draw(0, scale, cells.shape), noise) for _ in range(200)])
            * column_spread(cells)
            for model in (cells, other)
        )
        # Noise alone moves 0.4 of the rows; the other model is off by 0.25, partly hidden by it.
        assert true < 0.12
        assert 0.12 < wrong - true < 0.3
    assert unexplained([9.0] * 8 + [1.0] * 4 + [3.0] * 4) == 2
    assert unexplained([1.0, 3.0]) == 2
    assert unexplained([9.0] * 12 + [1.0] * 30 + [4.0] * 15) == 2
    assert unexplained([]) is None


def test_three_columns_are_near_a_model_of_rounds() -> None:
    """Rounds say how far off triples are, in units of their spread; a tree or a given graph does not."""
    _, model = fields(1)[0]
    names = ["a", "b", "c"]
    assert model.error(names).expected is None
    near, far = (dataclasses.replace(model, unexplained=left).error(names) for left in (0.01, 0.02))
    assert near.expected is not None
    assert 0 < near.expected < near.bound < far.bound < model.error(names).bound
    assert far.bound - near.bound == pytest.approx(1.6 * 0.01 * column_spread(model.marginal(names)))


def test_bounds_of_rare_states_fall_with_the_root_of_their_spread() -> None:
    """Two rare states may depend on each other nearly completely, which a bound in proportion would rule out."""
    alone = np.array([0.01, 0.99])
    tables = [((name,), 1e5 * alone, 10.0, False) for name in ("a", "b")]
    joint = np.outer(alone, alone)
    bounds = [
        Evidence(tables, {"a": 2, "b": 2}, 1e5, lambda columns: joint if len(columns) == 2 else alone, unexplained=left)
        .error(("a", "b"), 0.95)
        .bound
        for left in (0.01, 0.02)
    ]
    assert column_spread(joint) < 0.05
    assert bounds[1] - bounds[0] == pytest.approx(1.6 * 0.01 * math.sqrt(column_spread(joint)))


def test_what_the_server_did_not_choose_is_near_the_model() -> None:
    """A pair without a table has a bound from the rounds, or a tree's weakest edge, never above what is certain."""
    _, model = fields(1)[0]
    certain = model.error(["a", "c"])
    assert certain.expected is None
    rounds = [dataclasses.replace(model, unexplained=left).error(["a", "c"]) for left in (0.0, 0.01, 0.02, 1e6)]
    bounds = [one.bound for one in rounds]
    assert bounds == sorted(bounds)
    spread = column_spread(model.marginal(["a", "c"]))
    assert bounds[2] - bounds[1] == pytest.approx(bounds[1] - bounds[0]) == pytest.approx(1.6 * 0.01 * spread)
    assert bounds[3] == certain.bound
    assert all(one.expected is not None and one.expected <= one.bound for one in rounds)
    choice = ReleaseNoise(name="choice of a pair", size=1, count_std=40.0, sum_std=0.0, moment_std=0.0, times=1)
    tree = dataclasses.replace(model, noise=(choice,)).error(["a", "c"])
    edges = []
    for pair in (["a", "b"], ["b", "c"]):
        cells = model.marginal(pair)
        edges.append(np.abs(cells - np.outer(cells.sum(axis=1), cells.sum(axis=0))).sum() / 2)
    assert tree.bound == pytest.approx(min(certain.bound, 0.8 * (min(edges) + 40 / (2 * ROWS)) + bounds[0]))
    surer = dataclasses.replace(model, unexplained=0.01)
    assert surer.error(["a", "c"], level=0.99).bound > bounds[1] > surer.error(["a", "c"], level=0.9).bound


def test_several_tables_of_the_same_columns_count_together() -> None:
    """A column of two tables has less noise than one of either, and Laplace noise has a bound of its own."""
    one = ReleasedTable(("a",), np.array([9000.0, 6000, 5000]), 50.0, laplace=True)
    base: dict[str, Any] = {
        "variables_": VARIABLES[:1],
        "cliques_": (("a",),),
        "log_potentials_": (np.log([0.45, 0.3, 0.25]),),
        "marginals_": (np.array([0.45, 0.3, 0.25]),),
        "log_partition_": 0.0,
        "n_rows": float(ROWS),
    }
    alone, both = (MarkovRandomField(**base, tables_=tables) for tables in ((one,), (one, one)))
    widths = [[row.high - row.low for row in model.intervals()] for model in (alone, both)]
    assert np.all(np.less(widths[1], widths[0]))
    assert alone.error("a").expected == pytest.approx(3 * 50 / np.sqrt(2) / (2 * ROWS))
    assert both.error("a").expected == pytest.approx(3 * 50 / np.sqrt(2) * np.sqrt(2 / np.pi) / (2 * ROWS))
    assert MarkovRandomField(**base).intervals().left_out == ("all: the model has no tables",)


def test_a_homogeneous_chain_has_intervals_of_its_two_tables() -> None:
    """First states and transitions; questions of other columns are refused."""
    steps = tuple(Variable(name, ("well", "ill")) for name in ("spring", "summer", "autumn"))
    model = MarkovRandomField(
        steps,
        (("spring",), ("spring", "summer")),
        (np.zeros(2), np.zeros((2, 2))),
        (np.full(2, 0.5), np.full((2, 2), 0.25)),
        float(np.log(8)),
        (
            ReleasedTable(("spring",), np.full(2, 500.0), 10.0, pooled=True),
            ReleasedTable(("spring", "summer"), np.full((2, 2), 250.0), 10.0, pooled=True),
        ),
        1000.0,
        homogeneous_chain=True,
    )
    found = model.intervals()
    assert [row.name for row in found][:3] == ["first=well", "first=ill", "from=well, to=well"]
    error = 1.96 * np.sqrt(0.01**2 + 0.25 / 1000)
    assert found["first=ill"].low == pytest.approx(0.5 - error, abs=1e-5)
    for ask in (lambda: model.intervals(columns="summer"), lambda: model.error("summer")):
        with pytest.raises(ValueError, match="a homogeneous chain has intervals of its own two tables only"):
            ask()


def test_wrong_questions_are_refused() -> None:
    """Unknown columns, values without columns, a column asked for and given."""
    model = fields(1)[0][1]
    questions: list[dict[str, Any]] = [
        {"columns": "d"},
        {"given": {"a": "a0"}},
        {"columns": "a", "given": {"a": "a0"}},
        {"columns": []},
    ]
    for wrong in questions:
        with pytest.raises(ValueError, match=r"columns|given"):
            model.intervals(**wrong)
    with pytest.raises(ValueError, match="level"):
        model.error("a", level=2)


def test_parts_of_a_total_without_noise_have_the_score_interval() -> None:
    """Sampling alone gives Wilson's interval; noise makes it wider, and a total that noise hides has 0 to 1."""
    rows, z, total = 1_000.0, 1.96, 0.1
    low, high = _ratios(np.array([0.03, 0.0]), total, 0.0, 0.0, 0.0, rows, z)
    n, p = rows * total, 0.3
    middle, reach = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert [low[0], high[0]] == pytest.approx([(middle + sign * reach) / (1 + z**2 / n) for sign in (-1, 1)])
    assert [low[1], high[1]] == pytest.approx([0.0, z**2 / (n + z**2)])
    noise = 0.02**2
    below, above = _ratios(np.array([0.03]), total, noise, noise, 2 * noise, rows, z)
    assert (below < low[0]).all()
    assert (above > high[0]).all()
    assert (above < 1).all()
    hidden = _ratios(np.array([0.03]), total, noise, noise, 9 * noise, rows, z)
    assert [float(end[0]) for end in hidden] == [0.0, 1.0]
