"""FitMRF end to end: good fields for a good spend, what is released and in which order, and valid models always."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from bursar import _convert
from bursar_ledger import Adjacency, SelectionEvent
from bursar_models.mrf import Graph, Learning, NoisyTable, estimate
from bursar_models.mrf._graph import tree_cells
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import CodedColumn, PublicTable, mrf
from bursar_server.fits.mrf._selection import targets_of
from bursar_server.fits.mrf._statistics import Layout, blocks_of
from bursar_server.vault import Noise, OpenDPNoise, OverspendError, SelectionNoise
from tests.audit.faults import Scaled
from tests.each import each
from tests.server.fits.fielding import AR, RO, cliques, field_of, nothing, people, plan, rows_of, run, variables
from tests.server.fits.running import Array, NoNoise, array, session
from tests.server.vault.goodness import ALPHA, Bins

AMPLE = types_pb2.Spend(rho=5.0)
ROWS = rows_of(4000, seed=1)


def _ring(n: int) -> Array:
    """Rows (n, 4) of four bits, of which neighbours in a ring mostly agree but for the last and the first."""
    generator = np.random.default_rng(5)  # noqa: TID251 - rows of a test
    every = np.array(list(itertools.product((0, 1), repeat=4)))
    signs = np.where(every[:, [0, 1, 2]] == every[:, [1, 2, 3]], 1, -1).sum(axis=1)
    weights = np.exp(0.6 * signs - 0.6 * np.where(every[:, 3] == every[:, 0], 1, -1))
    return every[generator.choice(16, n, p=weights / weights.sum())].astype(np.float64)


RING_ROWS = _ring(8000)
CHAIN_OF_FOUR: dict[str, Any] = {"cliques": cliques("ab", "bc", "cd")}
STEPS = 6


def paths(*, adjacency: Adjacency = RO, unit_cap: int = 1, rows: int | None = None) -> PublicTable:
    """A public table of six columns with the same three categories, the last of which is "nowhere"."""
    states = ("here", "there", "nowhere")
    columns = tuple(CodedColumn(f"t{t}", states) for t in range(STEPS))
    return PublicTable("people", (), adjacency, unit_cap, rows, columns)


def path(**fields: Any) -> fit_pb2.HomogeneousChain:
    """The chain over all of them."""
    return fit_pb2.HomogeneousChain(columns=[f"t{t}" for t in range(STEPS)], **fields)


def walks(n: int, seed: int = 0) -> Array:
    """Paths (n, 6) of a Markov chain that mostly stays where it is."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    columns = [generator.integers(0, 3, n)]
    for _ in range(STEPS - 1):
        columns.append(np.where(generator.random(n) < 0.7, columns[-1], generator.integers(0, 3, n)))
    return np.stack(columns, axis=1).astype(np.float64)


class AnyChoice(NoNoise):
    """No noise, and any of the candidates."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)  # noqa: TID251 - choices of a test

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Return any position."""
        return int(self.generator.integers(len(scores)))


class Kept(NoNoise):
    """No noise; knows what was compared in choices, and the deviation of the noise that was asked for first."""

    def __init__(self) -> None:
        self.choices: list[tuple[NDArray[np.int64], SelectionNoise]] = []
        self.std = 0.0

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return the sums."""
        self.std = self.std or noise.scale
        return super().add(sums, noise)

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """Return the position of the largest score."""
        self.choices.append((scores, noise))
        return int(scores.argmax())


def check_valid(model: fit_pb2.MRFModel, made: mrf.MRFPlan) -> None:
    """A model that any client accepts: finite potentials, probabilities that add up, all tables with their noise."""
    field = field_of(model)
    assert field.columns == tuple(variable.name for variable in made.settings.layout.variables)
    assert np.isfinite([model.n_rows, model.log_partition]).all()
    assert model.n_rows >= 1
    for marginal in field.marginals_:
        assert (marginal >= 0).all()
        assert marginal.sum() == pytest.approx(1.0)
    released = len(made.settings.measurements)
    told = [table.noise_std for table in model.tables][:released]
    assert told == [noise.count_std for noise in made.noise][:released]
    for table in model.tables:
        assert np.isfinite(array(table.counts)).all()
        assert table.noise_std > 0
    assert np.isfinite(field.mutual_information().get(("a", "b"), 0.0))


def records(X: Array, model: fit_pb2.MRFModel) -> dict[str, list[str]]:
    """Rows as a client would score them."""
    return {v.column: [v.states[int(x)] for x in X[:, i]] for i, v in enumerate(model.variables)}


def score(model: fit_pb2.MRFModel, X: Array = ROWS) -> float:
    """Log-likelihood per row."""
    return field_of(model).score(records(X, model))


@cache
def best() -> float:
    """Return the score of the graph from which the rows come, learnt with hardly any noise."""
    return score(run(plan(people(rows=len(ROWS)), spend=types_pb2.Spend(rho=1e5), **CHAIN_OF_FOUR), ROWS))


RING = cliques("ab", "bc", "cd", "ad")


@pytest.mark.parametrize(
    ("adjacency", "spend", "fields", "loss"),
    [
        (RO, AMPLE, CHAIN_OF_FOUR, 0.002),
        (AR, AMPLE, CHAIN_OF_FOUR, 0.002),
        (AR, types_pb2.Spend(epsilon=3.0), CHAIN_OF_FOUR, 0.005),
        (RO, AMPLE, {"tree": {}, "columns": ["a", "b", "c", "d"]}, 0.004),
        (AR, types_pb2.Spend(epsilon=6.0), {"tree": {}, "columns": ["a", "b", "c", "d"]}, 0.005),
        (RO, AMPLE, {"auto": {}, "columns": ["a", "b", "c", "d"]}, 0.004),
        (AR, types_pb2.Spend(epsilon=6.0), {"auto": {}, "columns": ["a", "b", "c", "d"]}, 0.01),
        (RO, AMPLE, {"cliques": cliques("abc", "bcd")}, 0.01),
        (RO, AMPLE, {**CHAIN_OF_FOUR, "estimator": fit_pb2.MRF_ESTIMATOR_NAIVE}, 0.01),
        (RO, AMPLE, {**CHAIN_OF_FOUR, "estimator": fit_pb2.MRF_ESTIMATOR_NLBP}, 0.01),
        (AR, types_pb2.Spend(epsilon=3.0), {**CHAIN_OF_FOUR, "estimator": fit_pb2.MRF_ESTIMATOR_NLBP}, 0.01),
        (RO, AMPLE, {**CHAIN_OF_FOUR, "inference": fit_pb2.MRF_INFERENCE_LOOPY}, 0.01),
        (RO, AMPLE, {"cliques": RING, "inference": fit_pb2.MRF_INFERENCE_LOOPY}, 0.05),
        (RO, AMPLE, {**CHAIN_OF_FOUR, "regularization": 0.5}, 0.01),
    ],
    ids=lambda value: str(value).replace("\n", " ")[:40],
)
def test_an_ample_spend_gives_nearly_the_best_field(
    adjacency: Adjacency, spend: types_pb2.Spend, fields: dict[str, Any], loss: float
) -> None:
    """Every graph, noise and estimator comes near to the likelihood of a field without noise."""
    made = plan(people(adjacency=adjacency, rows=len(ROWS)), spend=spend, **fields)
    model = run(made, ROWS, adjacency=adjacency)
    check_valid(model, made)
    assert score(model) > best() - loss
    assert model.n_rows == pytest.approx(len(ROWS), rel=0.02)
    loopy = fields.get("cliques") == RING  # without a cycle inference is exact, whatever is asked for
    assert model.inference == (fit_pb2.MRF_INFERENCE_LOOPY if loopy else fit_pb2.MRF_INFERENCE_EXACT)
    assert model.estimator == fields.get("estimator", fit_pb2.MRF_ESTIMATOR_CGM)


KINDS: dict[str, dict[str, Any]] = {
    "listed": CHAIN_OF_FOUR,
    "dense": {"cliques": RING, "inference": fit_pb2.MRF_INFERENCE_LOOPY, "estimator": fit_pb2.MRF_ESTIMATOR_NAIVE},
    "penalised": {**CHAIN_OF_FOUR, "regularization": 0.5, "estimator": fit_pb2.MRF_ESTIMATOR_NLBP},
    "tree": {"tree": {}, "columns": ["a", "b", "c", "d"]},
    "independent": {"independent": {}, "columns": ["a", "b", "c", "d"]},
}


@pytest.mark.parametrize("kind", [*KINDS, "chain"])
@pytest.mark.parametrize("adjacency", [RO, AR])
def test_a_client_learns_what_the_server_would_learn(kind: str, adjacency: Adjacency) -> None:
    """Every field of the model is equal with the same noise, from tables alone; a tree is the server's choice."""
    X = walks(3000) if kind == "chain" else ROWS
    fields: dict[str, Any] = {"chain": path(null_category="nowhere")} if kind == "chain" else KINDS[kind]
    table = paths if kind == "chain" else people
    there, here = (
        run(
            plan(table(adjacency=adjacency, rows=len(X)), spend=AMPLE, estimate_on_client=flag, **fields),
            X,
            adjacency=adjacency,
            source=NoNoise(),
        )
        for flag in (False, True)
    )
    assert list(here.tables) == list(there.tables)
    assert not any(p.HasField("log_potential") or p.HasField("marginal") for p in here.potentials)
    assert (here.n_rows, here.log_partition, here.iterations) == (0, 0, 0)
    assert here.unestimated.HasField("public_rows") == (adjacency is RO)
    assert _convert.mrf_from(here, None).to_dict() == _convert.mrf_from(there, None).to_dict()


def test_tables_without_an_estimate_are_used_again() -> None:
    """They serve as a model's do: a request that estimates, one that does not, and one that is free."""
    paid = run(plan(people(rows=len(ROWS)), spend=AMPLE, estimate_on_client=True, **CHAIN_OF_FOUR), ROWS)
    for table in paid.tables:
        table.entry = 7
    for flag in (False, True):
        made = plan(
            people(rows=len(ROWS)),
            lambda entry: paid if entry == 7 else None,
            cliques=cliques("ab", "cd"),
            spend=None,
            reuse=[7],
            estimate_on_client=flag,
        )
        steps: list[tuple[int, int]] = []
        model = run(made, nothing(made), steps=steps)
        assert steps == [(1, 1)]
        assert model.HasField("unestimated") == flag
        assert list(model.tables) == list(paid.tables)


def test_what_a_client_learns_the_server_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are releases alone; of a tree it needs no more than single columns."""
    monkeypatch.delattr(Learning, "learn")
    for fields, expected in ((CHAIN_OF_FOUR, 3), ({"tree": {}, "columns": ["a", "b", "c", "d"]}, 10)):
        made, steps = plan(spend=AMPLE, estimate_on_client=True, **fields), list[tuple[int, int]]()
        run(made, ROWS, steps=steps)
        assert steps == [(step, expected) for step in range(1, expected + 1)]


def test_independent_columns_have_their_own_distributions() -> None:
    """And nothing else."""
    model = run(plan(people(rows=len(ROWS)), spend=AMPLE, independent={}, columns=["d", "a"]), ROWS[:, [3, 0]])
    field = field_of(model)
    assert field.marginal("d") == pytest.approx(np.bincount(ROWS[:, 3].astype(int)) / len(ROWS), abs=0.005)
    assert field.marginal(["d", "a"]) == pytest.approx(np.outer(field.marginal("d"), field.marginal("a")))


def test_a_numeric_column_has_its_bins() -> None:
    """States are bins, with labels and edges; rows outside are in the nearest."""
    made = plan(people(rows=6), cliques=cliques("x", "a"))
    assert made.columns == ("a", "x")
    X = np.array([[0.0, -5.0], [0.0, 0.5], [1.0, 1.0], [1.0, 2.5], [1.0, 10.0], [1.0, 99.0]])
    model = run(made, X, source=NoNoise())
    assert [tuple(v.states) for v in model.variables] == [("a0", "a1"), ("[0, 1)", "[1, 2.5)", "[2.5, 10]")]
    assert list(model.variables[1].edges) == [0.0, 1.0, 2.5, 10.0]
    counts = {tuple(table.columns): array(table.counts).tolist() for table in model.tables}
    assert counts == {("x",): [2.0, 1.0, 3.0], ("a",): [2.0, 4.0]}


def test_bins_that_print_alike_have_labels_of_their_own() -> None:
    """A seventh digit is shown where it makes the difference."""
    public = people()
    close = replace(public.numeric[0], bins=(0.0, 1.0, 1.00000001, 1.00000002, 10.0))
    model = run(plan(replace(public, numeric=(close,)), cliques=cliques("x")), np.zeros((5, 1)))
    assert len(set(model.variables[0].states)) == 4


EDGES = {frozenset(pair) for pair in ("ab", "bc", "cd")}
"""Edges of the tree from which the rows come."""


def test_a_tree_finds_the_edges_that_made_the_rows() -> None:
    """A good spend finds them, under both kinds of noise; its tables are of these pairs."""
    for spend in (AMPLE, types_pb2.Spend(epsilon=8.0)):
        made = plan(people(rows=len(ROWS)), spend=spend, tree={}, columns=["a", "b", "c", "d"])
        model = run(made, ROWS)
        edges = {frozenset(p.columns) for p in model.potentials}
        assert edges == EDGES
        assert [len(table.columns) for table in model.tables] == [1] * 4 + [2] * 3


def test_a_tree_spans_all_columns_whatever_is_chosen() -> None:
    """Every choice joins two parts, be it the first, the last or any of the candidates."""
    for seed in range(10):
        model = run(plan(tree={}), np.zeros((50, 5)), source=AnyChoice(seed))
        parts = {v.column: v.column for v in model.variables}
        assert len(model.potentials) == 4
        for potential in model.potentials:
            a, b = (parts[column] for column in potential.columns)
            assert a != b
            parts = {column: a if part == b else part for column, part in parts.items()}


def test_rounds_find_a_cycle_that_no_tree_has() -> None:
    """The model is close to the rows where the best tree is not, with a good spend, under both kinds of noise."""
    public, X = people(rows=len(RING_ROWS), a=2, b=2, c=2, d=2), RING_ROWS
    for spend in (AMPLE, types_pb2.Spend(epsilon=8.0)):
        fields: dict[str, Any] = {"spend": spend, "columns": ["a", "b", "c", "d"]}
        graphs: tuple[dict[str, Any], ...] = ({"cliques": None}, {"tree": {}})
        free, tree = (run(plan(public, **fields, **graph), X) for graph in graphs)
        given = run(plan(public, spend=types_pb2.Spend(rho=1e5), cliques=RING, columns=["a", "b", "c", "d"]), X)
        assert score(free, X) > score(given, X) - 0.01 > score(tree, X) + 0.01


def test_rounds_say_what_their_models_left_unexplained() -> None:
    """Next to nothing where the budget is ample and pairs are chosen again; a tree has no rounds, and says nothing."""
    names = ["a", "b", "c", "d"]
    public = people(rows=len(RING_ROWS), a=2, b=2, c=2, d=2)
    made = plan(public, auto={}, spend=AMPLE, columns=names)
    ring = run(made, RING_ROWS)
    assert ring.HasField("unexplained")
    assert 0 <= ring.unexplained < 0.02
    assert not run(plan(public, tree={}, cliques=None, columns=names), RING_ROWS).HasField("unexplained")


def test_rounds_choose_within_the_workload() -> None:
    """A set that is chosen twice has one table, of less noise."""
    asked = fit_pb2.ChooseCliques(workload=[fit_pb2.WeightedSet(columns=["a", "b", "c"])])
    for seed in range(5):
        made = plan(auto=asked)
        model = run(made, np.zeros((50, 5)), source=AnyChoice(seed))
        assert made.noise[-2].name == "table of a chosen set of columns"
        direct = made.noise[-1].count_std  # of the table of the whole set
        sets = [tuple(one.columns) for one in model.tables if len(one.columns) > 1 and one.noise_std != direct]
        assert set(sets) <= {("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")}
        assert len(sets) == len(set(sets)) > 1
        assert [tuple(one.columns) for one in model.tables if one.noise_std == direct] == [("a", "b", "c")]
        noise = {one.noise_std for one in model.tables if len(one.columns) > 1} - {direct}
        times = [round((made.noise[-2].count_std / std) ** 2, 6) for std in noise]
        assert all(k == int(k) for k in times)


def test_a_triple_that_no_pairs_explain_is_chosen() -> None:
    """The third column is the parity of two others, so that all pairs are independent; the workload looks further."""
    rows = np.random.default_rng(5).integers(0, 2, (4000, 4)).astype(float)  # noqa: TID251 - rows of a test
    rows[:, 2] = (rows[:, 0] + rows[:, 1]) % 2
    public = people(rows=len(rows), a=2, b=2, c=2, d=2)
    parity = np.bincount(rows[:, :3].astype(np.int64) @ [4, 2, 1], minlength=8).reshape(2, 2, 2) / len(rows)
    errors = []
    for auto in ({}, {"all_sets_of": 3}):
        made = plan(public, auto=auto, spend=AMPLE, columns=["a", "b", "c", "d"])
        model = _convert.mrf_from(run(made, rows), None)
        errors.append(float(np.abs(model.marginal(["a", "b", "c"]) - parity).sum()) / 2)
    assert errors[0] > 0.4
    assert errors[1] < 0.02


@pytest.mark.slow
def test_rounds_stay_within_their_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The junction tree has no more cells than the rounds may reach, or than a forest needs, for every choice."""
    names = [f"v{i}" for i in range(6)]
    sizes: dict[str, Any] = dict.fromkeys(names, 3)
    public = people(rows=1000, **sizes)
    for most in (0, 150, 500):  # all columns at once would have 729
        monkeypatch.setattr("bursar_server.fits.mrf._rounds.MOST_CELLS", max(most, 18 + 5 * 9))
        for seed in range(3):
            made = plan(public, auto={}, columns=names)
            model = run(made, np.zeros((50, 6)), source=AnyChoice(seed))
            chosen = tuple(tuple(names.index(name) for name in p.columns) for p in model.potentials)
            assert tree_cells(Graph((3,) * 6, chosen)) <= max(most, 18 + 5 * 9)


def test_rounds_are_scored_against_the_model_of_what_was_released() -> None:
    """Scores and noise of every choice, by hand: from released tables, the plan's noise, and the rows."""
    public, X = people(rows=len(ROWS), adjacency=AR), ROWS
    made = plan(public, auto={}, columns=["a", "b", "c", "d"], spend=AMPLE)
    kept = Kept()
    run(made, X, source=kept, adjacency=AR)
    sizes, pairs = (2, 3, 4, 3), list(itertools.combinations(range(4), 2))
    singles = [np.bincount(X[:, v].astype(int), minlength=size) for v, size in enumerate(sizes)]
    found = estimate(
        Graph(sizes, ()), [NoisyTable((v,), s.astype(np.float64), kept.std) for v, s in enumerate(singles)], None
    )
    cost = 0.4 * next(one.count_std for one in made.noise if one.name == "table of a chosen pair")
    expected = []
    for a, b in pairs:
        table = np.histogram2d(X[:, a], X[:, b], (np.arange(sizes[a] + 1), np.arange(sizes[b] + 1)))[0]
        S = np.abs(table - np.rint(found.n_rows * np.outer(found.marginals[a], found.marginals[b]))).sum()
        expected.append(math.floor(S**2 / (S + math.ceil(cost * table.size))))
    scores = kept.choices[0][0]
    assert scores.tolist() == expected
    events = [event for event in made.events if isinstance(event, SelectionEvent)]
    assert [one.scale for _, one in kept.choices] == [float(event.scale) for event in events]


def test_a_workload_of_triples_answers_all_pairs_from_their_tables() -> None:
    """The tables of all pairs are released where those of all triples would have too much noise."""
    public = people(adjacency=AR, rows=1500)
    made = plan(public, auto={"all_sets_of": 3}, estimate_on_client=True)
    model = run(made, np.zeros((50, 5)), adjacency=AR)
    direct, columns = made.noise[-1].count_std, cast("list[str]", made.parameters["columns"])
    tables = [tuple(one.columns) for one in model.tables if one.noise_std == direct]
    assert tables == list(itertools.combinations(columns, 2))


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.7, 1.0, 1.3])
def test_tables_of_all_pairs_have_the_noise_that_is_paid_for(factor: float) -> None:
    """The sum of squares over its variance is chi-squared; noise 30 % too small or too large is rejected."""
    sizes: dict[str, int] = {f"w{i}": 20 for i in range(6)}
    public = people(adjacency=AR, rows=10_000_000, **sizes)
    made = plan(public, auto={}, columns=list(sizes), spend=AMPLE, estimate_on_client=True)
    X = np.remainder(np.arange(500 * 6, dtype=np.float64), 20.0).reshape(500, 6)
    model = run(made, X, source=Scaled(factor), adjacency=AR)
    direct = made.noise[-1].count_std
    tables = [one for one in model.tables if one.noise_std == direct]
    assert [tuple(one.columns) for one in tables] == list(itertools.combinations(sizes, 2))
    squares, names = 0.0, list(sizes)
    for one in tables:
        a, b = (X[:, names.index(name)] for name in one.columns)
        true = np.histogram2d(a, b, (np.arange(21), np.arange(21)))[0]
        squares += float(np.square(np.array(one.counts.values) - true.ravel()).sum()) / direct**2
    cells = 15 * 400
    ends = chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], cells)
    # Discrete noise of a deviation of some units is as good as continuous.
    assert chi2.cdf(ends[0] / 0.7**2, cells) > 1 - 1e-6
    assert chi2.sf(ends[1] / 1.3**2, cells) > 1 - 1e-6
    assert (ends[0] < squares < ends[1]) == (factor == 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.7, 1.0, 1.3])
def test_what_a_round_chooses_has_the_law_that_is_paid_for(factor: float) -> None:
    """Noise 30 % too small or too large is rejected, the plan's own is not; at a spend where chance decides much."""
    made = plan(people(rows=300), auto={}, columns=["a", "b", "c", "d"], spend=types_pb2.Spend(rho=0.3))
    kept = Kept()
    run(made, rows_of(300, seed=3), source=kept)
    event = next(event for event in made.events if isinstance(event, SelectionEvent))
    scores = kept.choices[0][0]
    weights = np.exp((scores - scores.max()) / float(event.scale))
    law = weights / weights.sum()
    noise = OpenDPNoise()
    drawn = [noise.argmax(scores, SelectionNoise(factor * float(event.scale))) for _ in range(4000)]
    bins = Bins(np.arange(len(law) - 1), law)
    actual = weights ** (1 / factor)
    assert factor == 1.0 or bins.power(actual / actual.sum(), len(drawn)) > 1 - 1e-6
    assert (bins.p_value(np.array(drawn)) > ALPHA) == (factor == 1.0)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.3])
def test_the_table_held_out_has_the_noise_that_is_paid_for(factor: float) -> None:
    """The sum of squares over its variance is chi-squared; noise 30 % too small or too large is rejected."""
    sizes = dict.fromkeys(("u", "v", "w"), 40)
    made = plan(people(adjacency=AR, **sizes), independent={}, cliques=None, columns=list(sizes), held_out=0.5)
    X = np.remainder(np.arange(600.0), 40.0).reshape(200, 3)
    one = run(made, X, source=Scaled(factor), adjacency=AR).tables[-1]
    assert one.held_out
    assert one.noise_std == made.noise[-1].count_std
    a, b = (X[:, list(sizes).index(name)] for name in one.columns)
    true = np.histogram2d(a, b, (np.arange(41), np.arange(41)))[0]
    squares = float(np.square(array(one.counts) - true).sum()) / one.noise_std**2
    ends = chi2.ppf([ALPHA / 2, 1 - ALPHA / 2], true.size)
    assert chi2.cdf(ends[0] / 0.7**2, true.size) > 1 - 1e-6
    assert chi2.sf(ends[1] / 1.3**2, true.size) > 1 - 1e-6
    assert (ends[0] < squares < ends[1]) == (factor == 1.0)


@each("spend", [AMPLE, types_pb2.Spend(epsilon=8.0)])
def test_a_table_held_out_tells_a_wrong_graph_from_a_right_one(spend: types_pb2.Spend) -> None:
    """A ring without one side is doubted, for the pair that misses it is chosen; with all sides it is not."""
    public, names = people(rows=len(RING_ROWS), a=2, b=2, c=2, d=2), ["a", "b", "c", "d"]
    for sides, wrong in ((("ab", "bc", "ad"), True), (("ab", "bc", "cd", "ad"), False)):
        made = plan(public, spend=spend, cliques=cliques(*sides), columns=names, held_out=0.3)
        field = _convert.mrf_from(run(made, RING_ROWS), None)
        goodness = field.goodness
        assert goodness is not None
        assert (goodness.doubtful, goodness.p_value < 1e-9) == (wrong, wrong)
        assert field.tables_[-1].held_out
        assert (field.tables_[-1].columns == ("c", "d")) == wrong
        assert (
            any("no released table has are not to be trusted" in note for note in field.intervals().warnings) == wrong
        )
        assert bool(field.intervals(columns=["a", "c"]).warnings) == wrong


def test_a_graph_of_all_pairs_is_not_tested() -> None:
    """Nothing is paid for a test where every pair is within a listed clique, where chosen pairs are all, it is used."""
    public = people(rows=len(RING_ROWS), a=2, b=2, c=2, d=2)
    with_all = plan(public, cliques=cliques("abcd"), held_out=0.3, spend=AMPLE)
    assert with_all.events == plan(public, cliques=cliques("abcd"), spend=AMPLE).events
    model = run(plan(public, auto={}, columns=["a", "b", "c"], held_out=0.3, spend=AMPLE), RING_ROWS)
    assert not any(table.held_out for table in model.tables)
    assert _convert.mrf_from(model, None).goodness is None


def test_a_table_held_out_is_in_no_other_field() -> None:
    """A later field that reuses the release has its other tables only."""
    public = people(rows=len(ROWS))
    first = paid_under(1, plan(public, spend=AMPLE, held_out=0.1, **CHAIN_OF_FOUR), ROWS)
    assert [table.held_out for table in first.tables] == [False, False, False, True]
    free = plan(public, stored(first), reuse=[1], spend=None)
    assert list(run(free, nothing(free)).tables) == list(first.tables[:3])


def test_targets_are_tables_of_independent_columns_and_spared_cells() -> None:
    """They are in lattice units for any noisy number of rows; small tables get what large ones cost."""
    singles = [np.array([0.25, 0.75]), np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.0])]
    layout, pairs = Layout(variables(2, 3, 2), shares=False), [(0, 1), (0, 2)]
    (first, second) = blocks_of(layout, pairs)
    targets = targets_of(layout, pairs, singles, 1000.0, 2.5)
    assert targets[first[0] : first[1]].tolist() == [125, 75, 50, 375, 225, 150, 0]
    assert targets[second[0] : second[1]].tolist() == [250, 0, 750, 0, 5]
    shared = targets_of(Layout(layout.variables, shares=True), pairs, singles, 1000.0, 2.5)
    assert np.array_equal(shared, targets * 2**20)
    for n_rows in (-1e300, 1e300):
        wild = targets_of(Layout(layout.variables, shares=True), pairs, singles, n_rows, 1e300)
        assert np.abs(wild).max() <= 2**47  # 2^20 for each of as many rows as there may be


def test_nothing_is_released_without_its_debit() -> None:
    """A plan of more releases than were paid for is stopped."""
    small, large = plan(people(rows=90)), plan(people(rows=90), spend=AMPLE)
    with pytest.raises(OverspendError):
        mrf.run(large, session(small, ROWS[:90]))


def test_a_chain_has_the_transitions_of_its_paths() -> None:
    """Pooled over time, with a good spend; the homogeneous model that a client has agrees."""
    X = walks(20_000)
    made = plan(paths(rows=len(X)), spend=AMPLE, chain=path())
    model = run(made, X)
    check_valid(model, made)
    assert model.homogeneous_chain
    assert [tuple(table.columns) for table in model.tables] == [("t0",), ("t0", "t1")]
    assert all(table.pooled for table in model.tables)
    field = field_of(model)
    assert field.conditional("t3", {"t2": "there"}) == pytest.approx([0.1, 0.8, 0.1], abs=0.02)
    assert field.marginal("t0") == pytest.approx(np.bincount(X[:, 0].astype(int)) / len(X), abs=0.01)
    assert model.n_rows == len(X)


def test_paths_that_were_never_seen_are_nobodys() -> None:
    """Rows that are null throughout are in no table, and the number of paths is what tables say, not the public one."""
    X = walks(3000)
    X[:1000] = 2.0
    made = plan(paths(rows=len(X)), spend=AMPLE, chain=path(null_category="nowhere"))
    model = run(made, X)
    assert model.null_category == "nowhere"
    assert model.n_rows == pytest.approx((X != 2.0).any(axis=1).sum(), abs=60)


def test_the_number_of_rows_is_public_unless_tables_say_otherwise() -> None:
    """Rows that are null are in the public number only; noise alone does not move it."""
    made, noiseless = plan(people(rows=len(ROWS)), spend=AMPLE), NoNoise()
    assert run(made, ROWS, source=noiseless).n_rows == len(ROWS)
    present = np.arange(len(ROWS)) < 3000
    assert run(made, ROWS, present=present, source=noiseless).n_rows == pytest.approx(3000)
    noisy = plan(people(rows=len(ROWS)), spend=types_pb2.Spend(rho=1e-6))
    assert run(noisy, ROWS, present=present, source=noiseless).n_rows == len(ROWS)
    private = plan(people(rows=len(ROWS), adjacency=AR), spend=AMPLE)
    assert private.settings.public_rows is None
    assert run(private, ROWS, present=present, adjacency=AR).n_rows == pytest.approx(3000, abs=50)


def test_units_with_many_rows_count_once() -> None:
    """A person with five rows of one kind weighs as much as one with a single row of another."""
    X = np.array([[0.0, 5.0]] * 5 * 300 + [[1.0, 1.0]] * 300)
    made = plan(people(unit_cap=5, rows=5000), spend=AMPLE, cliques=cliques("a"))
    model = run(made, X, unit_cap=5)
    assert model.unit_weights == fit_pb2.UNIT_WEIGHTS_SHARES
    assert model.n_rows == pytest.approx(600, abs=30)
    assert array(model.potentials[0].marginal) == pytest.approx([0.5, 0.5], abs=0.03)
    rows = plan(people(unit_cap=5, rows=5000), spend=AMPLE, cliques=cliques("a"), unit_weights=1)
    counted = run(rows, X[:, :1], unit_cap=5)
    assert counted.unit_weights == fit_pb2.UNIT_WEIGHTS_ROWS
    assert array(counted.potentials[0].marginal) == pytest.approx([5 / 6, 1 / 6], abs=0.03)


# Reuse


def stored(*models: fit_pb2.MRFModel) -> Any:
    """Earlier releases under entries 1, 2, ..."""
    return dict(enumerate(models, 1)).get


def paid_under(entry: int, made: mrf.MRFPlan, X: Array, **arguments: Any) -> fit_pb2.MRFModel:
    """A run whose debit has this entry."""
    return run(replace(made, of_entry=entry), X, **arguments)


def test_the_same_tables_give_the_same_field_for_nothing() -> None:
    """Reused, with another estimator, or beside new ones; whoever has no rows to read can do it."""
    public = people(rows=len(ROWS))
    first = paid_under(1, plan(public, spend=AMPLE, **CHAIN_OF_FOUR), ROWS)
    assert [table.entry for table in first.tables] == [1, 1, 1]
    free = plan(public, stored(first), reuse=[1], spend=None)
    steps: list[tuple[int, int]] = []
    again = run(free, nothing(free), steps=steps)
    assert steps == [(1, 1)]
    assert list(again.tables) == list(first.tables)
    assert list(again.potentials) == list(first.potentials)
    naive = plan(public, stored(first), reuse=[1], spend=None, estimator=fit_pb2.MRF_ESTIMATOR_NAIVE)
    assert run(naive, nothing(naive)).estimator == fit_pb2.MRF_ESTIMATOR_NAIVE
    more = plan(public, stored(first), reuse=[1], spend=AMPLE, cliques=cliques("ab", "bc", "cd", "ad"))
    second = paid_under(2, more, ROWS)
    assert [tuple(table.columns) for table in second.tables] == [("a", "d"), ("a", "b"), ("b", "c"), ("c", "d")]
    assert [table.entry for table in second.tables] == [2, 1, 1, 1]
    assert score(second) > best() - 0.005


def test_larger_tables_are_summed_to_the_cliques_that_they_hold() -> None:
    """Columns that the new field lacks are summed over, too."""
    public = people(rows=len(ROWS))
    first = paid_under(1, plan(public, spend=AMPLE, cliques=cliques("abc")), ROWS[:, :3])
    made = plan(public, stored(first), reuse=[1], spend=None, cliques=cliques("ac"))
    field = field_of(run(made, nothing(made)))
    exact = np.histogram2d(ROWS[:, 0], ROWS[:, 2], bins=[np.arange(3), np.arange(5)])[0] / len(ROWS)
    assert field.columns == ("a", "c")
    assert field.marginal(["a", "c"]) == pytest.approx(exact, abs=0.01)


def test_a_tree_uses_what_is_there() -> None:
    """Earlier pairs say what single columns are like, and count in the estimate."""
    public = people(rows=len(ROWS))
    first = paid_under(1, plan(public, spend=AMPLE, **CHAIN_OF_FOUR), ROWS)
    made = plan(public, stored(first), reuse=[1], spend=AMPLE, tree={}, columns=["a", "b", "c", "d"])
    model = paid_under(2, made, ROWS)
    assert {frozenset(p.columns) for p in model.potentials} == EDGES
    assert sorted(table.entry for table in model.tables) == [1, 1, 1, 2, 2, 2]
    assert score(model) > best() - 0.002


def test_a_chain_is_refitted_for_nothing() -> None:
    """The mean of all pooled tables is used."""
    X, public = walks(2000), paths(rows=2000)
    made = plan(public, spend=AMPLE, chain=path())
    first, second = (paid_under(entry, made, X) for entry in (1, 2))
    free = plan(public, stored(first, second), reuse=[1, 2], spend=None, chain=path())
    model = run(free, nothing(free))
    assert [table.entry for table in model.tables] == [1, 1, 2, 2]
    check_valid(model, free)
    again = plan(public, stored(first), reuse=[1], spend=None, chain=path())
    assert list(run(again, nothing(again)).potentials) == list(first.potentials)


def test_releases_and_choices_do_not_depend_on_the_estimator() -> None:
    """The rows are asked the same, whatever is made of the answers."""
    found = []
    for estimator in (fit_pb2.MRF_ESTIMATOR_CGM, fit_pb2.MRF_ESTIMATOR_NAIVE, fit_pb2.MRF_ESTIMATOR_NLBP):
        made = plan(people(rows=len(ROWS)), tree={}, columns=["a", "b", "c", "d"], estimator=estimator)
        found.append(list(run(made, ROWS, source=NoNoise()).tables))
    assert found[0] == found[1] == found[2]
