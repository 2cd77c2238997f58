"""A released Markov random field: probabilities, samples, tables of labels, and how it shows itself."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import bursar
from bursar_models import Graph, MarkovRandomField, NoisyTable, ReleasedTable, Variable, estimate
from bursar_models.mrf._direct import between, fitted_to_pairs
from bursar_models.mrf._graph import MAX_TABLE
from bursar_models.mrf._inference import exact, loopy

mpl.use("Agg")

SEX = Variable("sex", ("f", "m"))
WORK = Variable("work", ("none", "office", "field"))
AGE = Variable("age", ("[0, 20)", "[20, 50)", "[50, 100]"), (0.0, 20.0, 50.0, 100.0))
SMOKES = Variable("smokes", ("False", "True"))
VARIABLES = (SEX, WORK, AGE, SMOKES)
CLIQUES = (("sex", "work"), ("age", "work"), ("smokes", "age"), ("sex", "smokes"))


def make(**change: Any) -> MarkovRandomField:
    """A cycle of four columns; two cliques have their columns in another order than the model."""
    rng = np.random.default_rng(3)  # noqa: TID251 - test data
    sizes = {variable.name: len(variable.states) for variable in VARIABLES}
    theta = [rng.normal(size=[sizes[name] for name in clique]) for clique in CLIQUES]
    index = {variable.name: number for number, variable in enumerate(VARIABLES)}
    graph = Graph(tuple(sizes.values()), tuple(tuple(index[name] for name in clique) for clique in CLIQUES))
    swapped = [t if list(c) == sorted(c, key=index.__getitem__) else t.T for t, c in zip(theta, CLIQUES, strict=True)]
    marginals, log_partition = exact(graph, swapped)
    shaped = [m if m.shape == t.shape else m.T for m, t in zip(marginals, theta, strict=True)]
    good = {
        "variables_": VARIABLES,
        "cliques_": CLIQUES,
        "log_potentials_": theta,
        "marginals_": shaped,
        "log_partition_": log_partition,
        "tables_": [ReleasedTable(("sex", "work"), np.full((2, 3), 7.0), 3.0, entry=4)],
        "n_rows": 100.0,
    }
    return MarkovRandomField(**{**good, **change})


def joint(model: MarkovRandomField) -> np.ndarray[Any, Any]:
    """Probabilities of all states, from log_prob of the labels of each."""
    states = list(product(*(variable.states for variable in model.variables_)))
    table = {name: [state[i] for state in states] for i, name in enumerate(model.columns)}
    shape = [len(variable.states) for variable in model.variables_]
    return np.exp(model.log_prob(table)).reshape(shape)


def test_log_prob_is_a_distribution_and_marginals_are_its_sums() -> None:
    """Every set of columns, in every order of two."""
    model = make()
    everything = joint(model)
    assert everything.sum() == pytest.approx(1)
    for width in (1, 2, 3, 4):
        for kept in combinations(range(4), width):
            away = tuple(axis for axis in range(4) if axis not in kept)
            names = [model.columns[axis] for axis in kept]
            np.testing.assert_allclose(model.marginal(names), everything.sum(axis=away), atol=1e-12)
    np.testing.assert_allclose(model.marginal(["smokes", "sex"]), model.marginal(["sex", "smokes"]).T, atol=1e-12)
    np.testing.assert_allclose(model.marginal("sex"), everything.sum(axis=(1, 2, 3)), atol=1e-12)


def test_conditionals_are_ratios() -> None:
    """Given labels, numbers in bins, and all other columns."""
    model = make()
    everything = joint(model)
    part = everything[:, 1, 2, :]
    expected = part / part.sum()
    np.testing.assert_allclose(
        model.conditional(["sex", "smokes"], {"work": "office", "age": 66}), expected, atol=1e-12
    )
    part = everything[1, 2, 0, :]
    given = {"sex": "m", "work": "field", "age": "[0, 20)"}
    np.testing.assert_allclose(model.conditional("smokes", given), part / part.sum(), atol=1e-12)


@pytest.mark.parametrize("kind", ["mapping", "pandas", "pandas categories", "arrow", "arrow dictionary"])
def test_tables_of_all_kinds_mean_the_same(kind: str) -> None:
    """Labels as text or as what prints like it, numbers in bins, other columns in any order beside them."""
    columns: dict[str, Any] = {
        "other": [1, 2, 3, 4],
        "age": [0, 19.99, 20, 100],
        "smokes": [True, False, True, False],
        "work": ["none", "office", "field", "none"],
        "sex": ["f", "m", "m", "f"],
    }
    table: Any = columns
    if kind.startswith("pandas"):
        table = pd.DataFrame(columns)
        if "categories" in kind:
            table = table.astype({"work": "category", "sex": "category"})
    elif kind.startswith("arrow"):
        table = pa.table(columns)
        if "dictionary" in kind:
            table = table.set_column(3, "work", table["work"].dictionary_encode())
    everything = np.log(joint(make()))
    expected = [everything[0, 0, 0, 1], everything[1, 1, 0, 0], everything[1, 2, 1, 1], everything[0, 0, 2, 0]]
    np.testing.assert_allclose(make().log_prob(table), expected, atol=1e-12)
    assert make().score(table) == pytest.approx(np.mean(expected))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"work": ["none", "sea"]}, "column 'work': a value is none of the model's 3 states"),
        ({"work": ["none", None]}, "column 'work'"),
        ({"age": [1.0, None]}, "column 'age': a value is missing"),
        ({"age": [1.0, float("nan")]}, "column 'age': a value is missing"),
        ({"age": ["[0, 20)", "[20, 60)"]}, "column 'age': a value is none"),
        ({"sex": ["f"]}, "same number of rows"),
        ({"sex": None}, "column 'sex' is missing"),
    ],
)
def test_rows_without_a_state_are_refused(change: dict[str, Any], message: str) -> None:
    """The message names the column and no value."""
    table = {"sex": ["f", "m"], "work": ["none", "field"], "age": [3, 30], "smokes": ["True", "True"], **change}
    with pytest.raises(ValueError, match=message) as refused:
        make().log_prob({name: values for name, values in table.items() if values is not None})
    assert "sea" not in str(refused.value)


def test_what_is_no_table_is_refused() -> None:
    """Columns have to have names; a mean needs a row."""
    with pytest.raises(ValueError, match="columns by name"):
        make().log_prob([["f", "none", 3, True]])
    with pytest.raises(ValueError, match="at least one row"):
        make().score({name: [] for name in make().columns})


def test_numbers_outside_the_bins_go_to_the_nearest() -> None:
    """The server treats values outside the public bounds in the same way."""
    np.testing.assert_array_equal(AGE.encode([-5, 0, 20, 50, 99, 100, 1e9]), [0, 0, 1, 2, 2, 2, 2])


@pytest.mark.parametrize("output", ["pandas", "arrow", "dict"])
def test_samples_are_tables_with_the_original_categories(output: Any) -> None:
    """Numbers lie in their bins; the model reads its own samples; shares are the marginals'."""
    model = make()
    table = model.sample(20_000, 5, output=output)
    back = {name: np.asarray(table[name]) for name in model.columns}
    assert list(table if output == "dict" else table.columns if output == "pandas" else table.column_names) == [
        "sex", "work", "age", "smokes",
    ]  # fmt: skip
    assert set(back["work"]) == set(WORK.states)
    assert back["age"].min() >= 0
    assert back["age"].max() < 100
    assert np.isfinite(model.log_prob(table)).all()
    share = model.marginal("age")
    counts = np.bincount(AGE.encode(list(back["age"])), minlength=3)
    assert (np.abs(counts - 20_000 * share) < 6 * np.sqrt(20_000 * share)).all()
    again = model.sample(20_000, 5, output="dict")
    np.testing.assert_array_equal(back["age"], again["age"])


@pytest.mark.parametrize("output", ["pandas", "polars", "arrow", "dict"])
@pytest.mark.parametrize("bins", ["values", "labels"])
def test_samples_have_nulls_where_the_state_is_null(output: Any, bins: Any) -> None:
    """Each library has its own missing value, as often as the model says; the model reads them as its state of null."""
    shares = np.array([0.3, 0.2, 0.5])
    gap = Variable("gap", ("[0, 1)", "[1, 2]", "null"), (0.0, 1.0, 2.0))
    model = MarkovRandomField((gap,), (("gap",),), (np.log(shares),), (shares,), 0.0)
    table = model.sample(5000, 1, output=output, bins=bins)
    column = table["gap"]
    missing = column.null_count if output in ("polars", "arrow") else pd.isna(pd.Series(column)).sum()
    # 5 standard errors of a share of a half.
    assert int(missing() if callable(missing) else missing) / 5000 == pytest.approx(0.5, abs=5 * 0.5 / 5000**0.5)
    assert np.bincount(gap.encode(list(model.sample(9, 0, output="dict")["gap"])), minlength=3).sum() == 9
    assert model.log_prob(table) == pytest.approx(np.log(shares)[gap.encode(rows_of(column))])


def rows_of(column: Any) -> list[Any]:
    """Return the values of a column of any library."""
    return list(column.to_pylist() if hasattr(column, "to_pylist") else column)


@pytest.mark.parametrize("values", [[0.5, None], [0.5, math.nan], ["[0, 1)", None], ["[0, 1)", "null"], [0.5, pd.NA]])
def test_any_missing_value_is_null(values: list[Any]) -> None:
    """Numbers or labels beside it; where no state is null, it is refused."""
    assert Variable("gap", ("[0, 1)", "null"), (0.0, 1.0)).encode(values).tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"a value is missing|none of the model's"):
        Variable("x", ("[0, 1)",), (0.0, 1.0)).encode(values)


def test_samples_can_have_labels_of_bins_and_no_rows() -> None:
    """Both are tables with all columns; pandas columns keep categories that were not drawn."""
    table = make().sample(1, 0, bins="labels")
    assert table["age"][0] in AGE.states
    assert list(table["work"].cat.categories) == list(WORK.states)
    assert list(make().sample(0).columns) == list(make().columns)


@pytest.mark.parametrize(
    ("change", "message"), [({"n": -1}, "at least 0 rows"), ({"output": "csv"}, "output"), ({"bins": "mid"}, "bins")]
)
def test_samples_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    """Every argument has an error that names it."""
    with pytest.raises(ValueError, match=message):
        make().sample(**{"n": 1, **change})


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        (["sex", "height"], {}, "no column 'height'"),
        ([], {}, "at least one"),
        (["sex", "sex"], {}, "each once"),
        (["sex"], {"sex": "f"}, "'sex' is asked for and given"),
        (["sex"], {"work": "sea"}, "column 'work'"),
        (["sex"], {"height": 3}, "no column 'height'"),
    ],
)
def test_queries_that_cannot_be_are_refused(columns: list[str], given: dict[str, Any], message: str) -> None:
    """Every rule has an error that names the column."""
    with pytest.raises(ValueError, match=message):
        make().conditional(columns, given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_potentials_": []}, "log_potentials_: expected 4 arrays"),
        ({"marginals_": [np.zeros((2, 2))] * 4}, "marginals_: expected shape"),
        ({"log_partition_": np.nan}, "log_partition_"),
        ({"variables_": (*VARIABLES, SEX)}, "every column must be there once"),
        ({"cliques_": (("sex", "height"),)}, "no column 'height'"),
        ({"estimator": "map"}, "estimator"),
        ({"inference": "auto"}, "inference"),
        ({"homogeneous_chain": True}, "homogeneous_chain"),
    ],
)
def test_what_is_no_model_is_refused(change: dict[str, Any], message: str) -> None:
    """Every rule on the fields has an error that names the field."""
    with pytest.raises(ValueError, match=message):
        make(**change)


@pytest.mark.parametrize(
    ("states", "edges", "message"),
    [
        ((), (), "at least one state"),
        (("a", "a"), (), "each once"),
        (("a", "b"), (0.0, 1.0), "3 finite edges"),
        (("a", "b"), (0.0, 1.0, np.inf), "finite"),
        (("a", "b"), (0.0, 1.0, 1.0), "ascend"),
    ],
)
def test_what_is_no_variable_is_refused(states: tuple[str, ...], edges: tuple[float, ...], message: str) -> None:
    """Labels are distinct; edges fit them."""
    with pytest.raises(ValueError, match=message):
        Variable("x", states, edges)


def test_noise_of_a_table_is_a_number() -> None:
    """NaN fails."""
    with pytest.raises(ValueError, match="noise_std"):
        ReleasedTable(("a",), np.zeros(2), np.nan)


def test_arrays_are_read_only_copies() -> None:
    """A model does not change."""
    model = make()
    for array in (*model.log_potentials_, *model.marginals_, model.tables_[0].counts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_models_show_themselves() -> None:
    """Columns with their modes, the strongest dependence, and names escaped."""
    text = repr(make())
    assert "MarkovRandomField: 4 columns, 4 cliques, cgm, exact inference" in text
    assert "mutual information (nats): " in text
    for name in make().columns:
        assert name in text
    evil = replace(SEX, name="<b>")
    cliques = tuple(tuple("<b>" if name == "sex" else name for name in clique) for clique in CLIQUES)
    assert "<b>" not in make(variables_=(evil, *VARIABLES[1:]), cliques_=cliques)._repr_html_()
    lonely = MarkovRandomField((SEX,), (("sex",),), (np.zeros(2),), (np.full(2, 0.5),), float(np.log(2)))
    assert "no interactions" in repr(lonely)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (
            ReleasedTable(("sex", "work"), np.zeros((2, 3)), 7 / 3, entry=4),
            "ReleasedTable(sex, work: 2 x 3 cells, Gaussian noise of standard deviation 2.333, entry 4)",
        ),
        (
            ReleasedTable(("sex",), np.zeros(2), 5.0, laplace=True, pooled=True),
            "ReleasedTable(sex, pooled over time: 2 cells, Laplace noise of standard deviation 5)",
        ),
    ],
)
def test_tables_show_what_they_are(table: ReleasedTable, text: str) -> None:
    """One line is enough, however many cells they have."""
    assert repr(table) == text


def test_mutual_information_is_that_of_the_pairs() -> None:
    """The definition by entropies agrees; pairs of cliques only, largest first."""
    model = make()
    found = model.mutual_information()
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert {frozenset(pair) for pair in found} == {frozenset(clique) for clique in CLIQUES}

    def entropy(names: list[str]) -> float:
        p = model.marginal(names).ravel()
        return -float(p @ np.log(p))

    for (a, b), value in found.items():
        assert value == pytest.approx(entropy([a]) + entropy([b]) - entropy([a, b]))


def test_plots_the_graph() -> None:
    """A line for each pair of a clique, the strongest the widest; given axes are used."""
    ax = make().plot()
    lines = [line for line in ax.lines if len(line.get_xdata()) == 2]
    assert len(lines) == 4
    assert max(line.get_linewidth() for line in lines) == lines[-1].get_linewidth()
    assert {text.get_text() for text in ax.texts} == set(make().columns)
    assert make().plot(ax) is ax
    plt.close("all")


def of_pairs(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> MarkovRandomField:
    """Columns of two states, all pairs of which depend on each other as much."""
    columns = tuple(Variable(name, ("0", "1")) for name in names)
    graph = Graph((2,) * len(names), tuple((names.index(a), names.index(b)) for a, b in pairs))
    theta = [np.eye(2) if len(clique) == 2 else np.zeros(2) for clique in graph.cliques]
    marginals, log_partition = exact(graph, theta)
    cliques = tuple(tuple(names[number] for number in clique) for clique in graph.cliques)
    return MarkovRandomField(columns, cliques, tuple(theta), tuple(marginals), log_partition)


def crossings(*pairs: str) -> int:
    """Lines of a picture of columns a to g that cross each other."""
    ax = of_pairs("abcdefg", [(pair[0], pair[1]) for pair in pairs]).plot()
    lines = [np.array(line.get_xydata()) for line in ax.lines if len(line.get_xdata()) == 2]
    plt.close("all")

    def side(a: Any, b: Any, c: Any) -> float:
        return round(float((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])), 9)

    def cross(one: Any, other: Any) -> bool:
        (a, b), (c, d) = one, other
        return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0

    return sum(cross(one, other) for one, other in combinations(lines, 2))


def test_lines_of_a_tree_do_not_cross() -> None:
    """Columns are put where that is so; where their own order does as well, they keep it."""
    assert crossings("ad", "be", "cf", "ae", "bg", "df") == 0
    assert crossings("ac", "bd") == 0
    assert crossings("ab", "ac", "ad", "bc", "bd", "cd") == 1
    ax = of_pairs("abcdefg", [("a", "b"), ("b", "c"), ("c", "d"), ("g", "a")]).plot()
    clockwise = sorted(ax.texts, key=lambda text: math.atan2(text.xy[0], text.xy[1]) % (2 * math.pi - 1e-9))
    assert "".join(text.get_text() for text in clockwise) == "abcdefg"
    plt.close("all")


def test_a_picture_has_room_for_its_names() -> None:
    """No name, title or legend is cut off, be they long, many or few."""
    for n, letters in ((2, 1), (5, 24), (20, 12)):
        names = [f"{number:x}".rjust(letters, "x") for number in range(n)]
        ax = of_pairs(names, [*pairwise(names)]).plot()
        ax.figure.canvas.draw()
        frame = ax.figure.bbox
        for part in (*ax.texts, ax.title, ax.get_legend()):
            box = part.get_window_extent()
            assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
            assert frame.y0 <= box.y0 <= box.y1 <= frame.y1
        plt.close("all")


def test_packages_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures and tables are optional."""

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(bursar.MissingDependencyError, match="pip install pandas"):
        make().sample(1)
    with pytest.raises(bursar.MissingDependencyError, match=r"pip install './bursar\[plot\]'"):
        make().plot()
    assert len(make().sample(2, output="dict")["sex"]) == 2


def test_homogeneous_chains_repeat_their_transition() -> None:
    """log_prob is phi(x_1) times the product of psi(x_t, x_t+1), normalised over all paths."""
    rng = np.random.default_rng(0)  # noqa: TID251 - test data
    first, transition = rng.normal(size=3), rng.normal(size=(3, 3))
    names = tuple(f"t{t}" for t in range(4))
    paths = np.array(list(product(range(3), repeat=4)))
    logs = first[paths[:, 0]] + sum(transition[paths[:, t], paths[:, t + 1]] for t in range(3))
    log_partition = float(np.log(np.exp(logs).sum()))
    model = MarkovRandomField(
        tuple(Variable(name, ("a", "b", "c")) for name in names),
        (("t0",), ("t0", "t1")),
        (first, transition),
        (np.full(3, 1 / 3), np.full((3, 3), 1 / 9)),
        log_partition,
        homogeneous_chain=True,
    )
    table = {name: np.array(["a", "b", "c"])[paths[:, t]] for t, name in enumerate(names)}
    np.testing.assert_allclose(model.log_prob(table), logs - log_partition, atol=1e-12)
    np.testing.assert_allclose(
        model.marginal(["t3", "t0"]),
        [
            [np.exp(logs - log_partition)[(paths[:, 3] == i) & (paths[:, 0] == j)].sum() for j in range(3)]
            for i in range(3)
        ],
        atol=1e-12,
    )
    assert set(model.mutual_information()) == {("t0", "t1"), ("t1", "t2"), ("t2", "t3")}
    assert "homogeneous chain of 4 columns" in repr(model)
    assert len(model.sample(5, 0, output="dict")["t3"]) == 5


@pytest.mark.slow
def test_dense_graphs_answer_approximately() -> None:
    """Above the limits of exact inference: samples, marginals of cliques, and a clear error for the rest."""
    size, n = 8, 9
    graph = Graph((size,) * n, tuple(combinations(range(n), 2)))
    rng = np.random.default_rng(0)  # noqa: TID251 - test data
    theta = [0.2 * rng.normal(size=graph.shape(clique)) for clique in graph.cliques]
    marginals, log_partition = loopy(graph, theta)
    names = tuple(f"x{i}" for i in range(n))
    model = MarkovRandomField(
        tuple(Variable(name, tuple("abcdefgh")) for name in names),
        tuple((names[a], names[b]) for a, b in graph.cliques),
        tuple(theta),
        tuple(marginals),
        log_partition,
        inference="loopy",
    )
    np.testing.assert_allclose(model.marginal(["x1", "x0"]), marginals[0].T, atol=1e-6)
    assert model.conditional("x2", {"x0": "a"}).sum() == pytest.approx(1)
    counts = np.unique(model.sample(4000, 0, output="dict")["x3"], return_counts=True)[1]
    np.testing.assert_allclose(counts / 4000, model.marginal("x3"), atol=0.05)
    with pytest.raises(ValueError, match="cells after triangulation"):
        model.marginal(["x0", "x1", "x2"])


def test_columns_whose_table_with_those_between_is_too_large_are_answered_state_by_state() -> None:
    """Three columns around one of 100,000 states: the sum over its states of the products of conditionals."""
    hub, sizes = 100_000, (5, 5, 7)
    graph = Graph((*sizes, hub), tuple((v, 3) for v in range(3)))
    rng = np.random.default_rng(0)  # noqa: TID251 - test data
    theta = [rng.normal(size=graph.shape(clique)) for clique in graph.cliques]
    marginals, log_partition = exact(graph, theta)
    columns = [Variable(name, tuple(map(str, range(size)))) for name, size in zip("abcx", graph.sizes, strict=True)]
    cliques = tuple((name, "x") for name in "abc")
    model = MarkovRandomField(tuple(columns), cliques, tuple(theta), tuple(marginals), log_partition)
    given = [joint / joint.sum(axis=0) for joint in marginals]
    expected = np.einsum("ax,bx,cx,x->cab", *given, marginals[0].sum(axis=0), optimize=True)
    assert math.prod(sizes) * hub > MAX_TABLE
    np.testing.assert_allclose(model.marginal(["c", "a", "b"]), expected, rtol=1e-9)


def test_a_model_can_be_made_of_an_estimate() -> None:
    """Estimates of the graph's cliques are its potentials and marginals."""
    graph = Graph((2, 3), ((0, 1),))
    found = estimate(graph, [NoisyTable((0, 1), np.arange(6.0).reshape(2, 3) * 100, 1.0)], 1500)
    model = MarkovRandomField(
        (SEX, WORK),
        (("sex", "work"),),
        tuple(found.log_potentials),
        tuple(found.marginals),
        found.log_partition,
        n_rows=1500,
    )
    np.testing.assert_allclose(model.marginal(["sex", "work"]), found.marginals[0], atol=1e-12)


def test_a_pair_outside_of_the_cliques_is_answered_between_model_and_table() -> None:
    """The model's answer where noise explains the distance, nearly the table's where it does not; a distribution."""
    model = np.array([[0.3, 0.2], [0.1, 0.4]])
    table = 1000 * np.array([[0.4, 0.1], [0.1, 0.4]])
    assert np.array_equal(between(model, table, 200.0, 1000.0), model)
    assert between(model, table, 0.1, 1000.0) == pytest.approx(table / 1000, abs=1e-4)
    # The squared distance is 20,000, and half of it is noise, of 2,500 in each cell; the rest is the model's.
    variances = 10_000 * model**0.75 / (model**0.75).sum()
    shares = variances / (variances + 2500)
    moves = shares * np.array([[100.0, -100.0], [0.0, 0.0]])
    halfway = between(model, table, 50.0, 1000.0)
    assert halfway == pytest.approx(model + (moves - shares * moves.sum() / shares.sum()) / 1000)
    # What all cells share is noise of the total.
    assert between(model, np.full((2, 2), -5000.0), 1.0, 1000.0) == pytest.approx(0.25)
    assert between(model, np.array([[9e18, -9e18], [0, 0]]), 1.0, 1000.0).sum() == pytest.approx(1.0)


def test_cells_without_rows_do_not_take_the_noise_of_a_table() -> None:
    """An independent model of two dependent columns, of whose cells nine in ten have hardly any rows: 40 tables."""
    rng = np.random.default_rng(0)  # noqa: TID251 - noise of a test
    alone = np.array([0.49, 0.49, *[0.02 / 8] * 8])
    model = np.outer(alone, alone)
    truth = model.copy()
    truth[:2, :2] += np.array([[0.05, -0.05], [-0.05, 0.05]])
    errors = np.zeros(3)
    for _ in range(40):
        counts = 10_000 * truth + rng.normal(0, 60, truth.shape)
        answers = between(model, counts, 60.0, 10_000.0), model, np.maximum(counts, 0) / np.maximum(counts, 0).sum()
        errors += [np.abs(answer - truth).sum() / 80 for answer in answers]
    assert errors[0] < 0.5 * min(errors[1:])


def test_three_columns_have_the_answers_of_their_pairs() -> None:
    """Pairs outside of the cliques are answered between model and table; three columns agree with all pairs."""
    names = ("a", "b", "c")
    chain = of_pairs(names, [("a", "b"), ("b", "c")])
    apart = ReleasedTable(("a", "c"), np.array([[400.0, 100.0], [100.0, 400.0]]), 1e-3)
    model = replace(chain, tables_=(apart,), n_rows=1000.0)
    together = model.marginal(["c", "a", "b"])
    assert together.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(together.sum(axis=2).T, apart.counts / 1000, atol=2e-3)
    np.testing.assert_allclose(together.sum(axis=0), chain.marginal(["a", "b"]), atol=2e-3)
    np.testing.assert_allclose(together.sum(axis=1).T, chain.marginal(["b", "c"]), atol=2e-3)
    assert np.abs(chain.marginal(["a", "c"]) - apart.counts / 1000).max() > 0.05
    # Without the table it is the model's own.
    assert np.array_equal(chain.marginal(names), replace(model, tables_=()).marginal(names))


def test_a_table_that_is_fitted_keeps_what_is_impossible() -> None:
    """A state without probability keeps none, whatever the pairs say; nothing is divided by 0."""
    table = np.zeros((2, 2, 2))
    table[0, 0, :] = table[1, 1, :] = 0.25
    wanted = np.full((2, 2), 0.25)
    found = fitted_to_pairs(table, [((2,), wanted), ((1,), wanted), ((0,), wanted)])
    assert found.sum() == pytest.approx(1.0)
    assert np.array_equal(found > 0, table > 0)
