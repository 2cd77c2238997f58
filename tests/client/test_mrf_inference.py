"""Inference of Markov random fields is what enumeration of all states gives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from bursar_models.arrays import FloatArray
from bursar_models.mrf import MAX_TABLE, Graph, MarkovRandomField, Variable, check_cliques, check_exact, largest_table
from bursar_models.mrf._candidates import candidate_marginals, joined_cells
from bursar_models.mrf._graph import MAX_CLIQUE, is_exact, junction_tree, tree_cells
from bursar_models.mrf._inference import alone, calibrate, chain_marginals, draw, exact, gibbs, loopy, spread, sum_to
from tests.each import each

Infer = Callable[[Graph, list[FloatArray]], tuple[list[FloatArray], float]]

TREES = {
    "chain": Graph((3, 4, 2, 3), ((0, 1), (1, 2), (2, 3))),
    "chain backwards": Graph((2, 3, 4), ((1, 2), (0, 1))),
    "star": Graph((2, 5, 3, 4), ((0, 1), (1, 2), (1, 3))),
    "tree of wide cliques": Graph((2, 3, 4, 2, 3), ((0, 1, 2), (2, 3), (3, 4))),
    "one clique of three": Graph((2, 3, 4), ((0, 1, 2),)),
    "forest": Graph((2, 3, 2, 4, 3), ((0, 1), (2, 3))),
    "singletons": Graph((4, 1, 2), ()),
    "one variable": Graph((5,), ((0,),)),
    "nested": Graph((3, 2, 3), ((0, 1), (1,), (1, 2), (0,))),
}
CYCLES = {
    "cycle": Graph((3, 2, 4, 3), ((0, 1), (1, 2), (2, 3), (0, 3))),
    "cycle of five": Graph((2, 3, 2, 3, 2), ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4))),
    "third-order chain": Graph((2, 3, 2, 3, 2, 2), tuple((i, j) for i, j in combinations(range(6), 2) if j - i <= 3)),
    "complete": Graph((2,) * 5, tuple(combinations(range(5), 2))),
    "overlapping cliques of three": Graph((2, 3, 2, 3), ((0, 1, 2), (1, 2, 3), (0, 3))),
    "two cycles apart": Graph((2, 2, 2, 3, 3, 3), ((0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5))),
}
STRENGTHS = {"uniform": 0.0, "weak": 0.1, "usual": 1.0, "peaked": 30.0, "very peaked": 2000.0}


def potentials(graph: Graph, strength: float, seed: int = 0) -> list[FloatArray]:
    """Normal log-potentials of the graph's cliques."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - test data
    return [strength * rng.normal(size=graph.shape(clique)) for clique in graph.cliques]


def log_weights(graph: Graph, theta: list[FloatArray]) -> FloatArray:
    """Logarithms of the products of all potentials, for all states."""
    every = range(len(graph.sizes))
    return sum((spread(t, c, every) for c, t in zip(graph.cliques, theta, strict=True)), np.zeros(graph.sizes))


def everything(graph: Graph, theta: list[FloatArray]) -> FloatArray:
    """Probabilities of all states."""
    logs = log_weights(graph, theta)
    joint = np.exp(logs - logs.max())
    return np.asarray(joint / joint.sum())


def enumerate_all(graph: Graph, theta: list[FloatArray]) -> tuple[list[FloatArray], float]:
    """Marginals and log-partition function from the table of all states."""
    logs, joint, every = log_weights(graph, theta), everything(graph, theta), range(len(graph.sizes))
    log_partition = logs.max() + float(np.log(np.exp(logs - logs.max()).sum()))
    return [sum_to(joint, every, clique) for clique in graph.cliques], log_partition


def without_a_tree(graph: Graph, theta: list[FloatArray]) -> tuple[list[FloatArray], float]:
    """Return the model of a graph without interaction."""
    return alone(theta)


@each("strength", STRENGTHS)
@each(
    ("infer", "name"),
    [
        *((exact, name) for name in [*TREES, *CYCLES]),
        *((loopy, name) for name in TREES),
        *((without_a_tree, name) for name in ("singletons", "one variable")),
    ],
)
def test_agrees_with_enumeration(infer: Infer, name: str, strength: str) -> None:
    """Marginals and log-partition: the junction tree on every graph, belief propagation on those without a cycle."""
    graph = {**TREES, **CYCLES}[name]
    theta = potentials(graph, STRENGTHS[strength])
    marginals, log_partition = infer(graph, theta)
    expected, expected_log = enumerate_all(graph, theta)
    for got, want in zip(marginals, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-7)
        assert got.sum() == pytest.approx(1)
    assert log_partition == pytest.approx(expected_log, rel=1e-9, abs=1e-6)


@each("strength", STRENGTHS)
@each("name", [*TREES, *CYCLES])
def test_calibrated_trees_agree_with_enumeration(name: str, strength: str) -> None:
    """Probabilities of every clique of the junction tree, and the factorisation from its roots to its leaves."""
    graph = {**TREES, **CYCLES}[name]
    theta = potentials(graph, STRENGTHS[strength])
    every = range(len(graph.sizes))
    joint = everything(graph, theta)
    calibrated = calibrate(graph, theta, junction_tree(graph))
    product = np.ones(graph.sizes)
    for clique, belief, conditional in zip(
        calibrated.tree.cliques, calibrated.beliefs, calibrated.conditionals, strict=True
    ):
        np.testing.assert_allclose(belief, sum_to(joint, every, clique), atol=1e-9)
        product = product * spread(conditional, clique, every)
    np.testing.assert_allclose(product, joint, atol=1e-9)


@each("strength", ["uniform", "usual", "peaked"])
@each("name", [*TREES, *CYCLES])
def test_queries_agree_with_enumeration(name: str, strength: str) -> None:
    """Marginals of all pairs and of three columns, and what they are given the state of another one."""
    graph = {**TREES, **CYCLES}[name]
    theta = potentials(graph, STRENGTHS[strength])
    joint, count = everything(graph, theta), len(graph.sizes)
    names = [f"x{variable}" for variable in range(count)]
    model = MarkovRandomField(
        variables_=tuple(Variable(n, tuple(map(str, range(s)))) for n, s in zip(names, graph.sizes, strict=True)),
        cliques_=tuple(tuple(names[variable] for variable in clique) for clique in graph.cliques),
        log_potentials_=tuple(theta),
        marginals_=tuple(exact(graph, theta)[0]),
        log_partition_=exact(graph, theta)[1],
    )
    for asked in [*combinations(range(count), 2), *combinations(range(count), 3)][:12]:
        columns = [names[variable] for variable in asked]
        np.testing.assert_allclose(model.marginal(columns), sum_to(joint, range(count), asked), atol=1e-9)
        known = next((variable for variable in range(count) if variable not in asked), None)
        if known is None:
            continue
        part = sum_to(joint, range(count), (*asked, known))[..., 0]
        if part.sum() > 1e-9:
            found = model.conditional(columns, {names[known]: "0"})
            np.testing.assert_allclose(found, part / part.sum(), atol=1e-9)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_homogeneous_chains_agree_with_enumeration(strength: str) -> None:
    """Forward and backward over time, against the table of all paths."""
    steps, states = 4, 3
    first, transition = (STRENGTHS[strength] * t for t in potentials(Graph((3, 3), ((0,), (0, 1))), 1.0, 3))
    graph = Graph((states,) * steps, ((0,), *((t, t + 1) for t in range(steps - 1))))
    expected, expected_log = enumerate_all(graph, [first, *[transition] * (steps - 1)])
    (start, pairs), log_partition = chain_marginals(steps, first, transition)
    np.testing.assert_allclose(start, expected[0], atol=1e-9)
    np.testing.assert_allclose(pairs, sum(expected[1:]) / (steps - 1), atol=1e-9)
    assert log_partition == pytest.approx(expected_log, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", CYCLES)
def test_loopy_is_close_where_dependence_is_weak(name: str) -> None:
    """Log-potentials of 0.1 give probabilities that are off by less than 0.005."""
    graph = CYCLES[name]
    theta = potentials(graph, 0.1)
    expected, expected_log = enumerate_all(graph, theta)
    marginals, log_partition = loopy(graph, theta)
    for got, want in zip(marginals, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=5e-3)
    assert log_partition == pytest.approx(expected_log, abs=2e-3)


@pytest.mark.parametrize("name", CYCLES)
@pytest.mark.parametrize("strength", ["peaked", "very peaked"])
def test_loopy_ends_where_it_does_not_converge(name: str, strength: str) -> None:
    """Strong dependence around cycles: an answer within the limit of sweeps, probabilities all the same."""
    graph = CYCLES[name]
    marginals, log_partition = loopy(graph, potentials(graph, STRENGTHS[strength]), sweeps=50)
    assert np.isfinite(log_partition)
    for table in marginals:
        assert (table >= 0).all()
        assert table.sum() == pytest.approx(1)


@pytest.mark.parametrize(("infer", "name"), [(exact, "cycle"), (exact, "nested"), (loopy, "star"), (loopy, "cycle")])
def test_marginals_are_the_gradient(infer: Infer, name: str) -> None:
    """Finite differences of the log-partition function; of Bethe's, too, which is stationary in the messages."""
    graph = {**TREES, **CYCLES}[name]
    theta = potentials(graph, 0.5)
    marginals, _ = infer(graph, theta)
    step = 1e-4
    for place, table in enumerate(marginals):
        for cell in np.ndindex(table.shape):
            ends = []
            for sign in (1, -1):
                moved = [t.copy() for t in theta]
                moved[place][cell] += sign * step
                ends.append(infer(graph, moved)[1])
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(table[cell], abs=1e-6)


@pytest.mark.parametrize("name", [*TREES, *CYCLES])
def test_junction_trees_have_the_running_intersection_property(name: str) -> None:
    """Parents come first, separators are what is shared with them, and a variable's cliques are connected."""
    graph = {**TREES, **CYCLES}[name]
    tree = junction_tree(graph)
    seen: set[int] = set()
    for index, (clique, parent, separator) in enumerate(zip(tree.cliques, tree.parents, tree.separators, strict=True)):
        assert parent < index
        assert set(separator) == (set(clique) & set(tree.cliques[parent]) if parent >= 0 else set())
        assert clique[len(clique) - len(separator) :] == separator
        # Whatever was seen before must reach this clique through its parent.
        assert set(clique) & seen == set(separator)
        seen |= set(clique)
    assert seen == set(range(len(graph.sizes)))
    for clique, home in zip(graph.cliques, tree.homes, strict=True):
        assert set(clique) <= set(tree.cliques[home])


def test_min_fill_finds_the_width_of_chains_and_cycles() -> None:
    """A third-order chain needs tables of four variables, a long cycle of three."""
    chain = Graph((20,) * 15, tuple((i, j) for i, j in combinations(range(15), 2) if j - i <= 3))
    assert largest_table(chain)[0] == 20**4
    cycle = Graph((5,) * 40, tuple((i, (i + 1) % 40) for i in range(40)))
    assert largest_table(cycle)[0] == 5**3


def test_many_variables_and_graphs_that_fit_nowhere() -> None:
    """Cells are counted as integers of any size, and nothing is allocated."""
    complete = Graph((20,) * 64, tuple(combinations(range(64), 2)))
    cells, variables = largest_table(complete)
    assert cells == 20**64
    assert variables == tuple(range(64))
    assert not is_exact(complete)
    with pytest.raises(ValueError, match=r"1\.8e83 cells after triangulation"):
        check_exact(complete)


def test_exact_inference_above_the_limit_is_refused_with_what_to_remove() -> None:
    """The message has the number of cells, the columns by name, and the cliques among them."""
    graph = Graph((20,) * 7, (*combinations(range(6), 2), (5, 6)))
    assert largest_table(graph)[0] == 20**6 > MAX_TABLE
    with pytest.raises(ValueError, match=r"6\.4e7 cells after triangulation, over \(a, b, c, d, e, f\)") as refused:
        check_exact(graph, "abcdefg")
    assert "(a, b); (a, c)" in str(refused.value)
    assert "(f, g)" not in str(refused.value)
    with pytest.raises(ValueError, match="loopy inference"):
        exact(graph, [np.zeros(graph.shape(clique)) for clique in graph.cliques])


def test_many_tables_that_are_small_one_by_one_are_refused_too() -> None:
    """Memory is bounded for all tables together."""
    graph = Graph((64,) * 20, tuple((i, j) for i, j in combinations(range(20), 2) if j - i <= 3))
    assert largest_table(graph)[0] <= MAX_TABLE < tree_cells(graph)
    with pytest.raises(ValueError, match="cells together after triangulation"):
        check_exact(graph)


def test_cliques_above_the_limits_are_refused() -> None:
    """One table, or all together."""
    check_cliques(Graph((100, 100, 100), ((0, 1), (1, 2))))
    with pytest.raises(ValueError, match=r"table over \(x, y, z\) has 8,000,000 cells"):
        check_cliques(Graph((200, 200, 200), ((0, 1, 2),)), ("x", "y", "z"))
    assert MAX_CLIQUE > 1000**2
    with pytest.raises(ValueError, match="5,000,000 cells together"):
        check_cliques(Graph((1000,) * 6, tuple((i, i + 1) for i in range(5))))


@pytest.mark.parametrize(
    ("sizes", "cliques", "message"),
    [
        ((), (), "1 to 64 variables, got 0"),
        ((2,) * 65, (), "1 to 64 variables, got 65"),
        ((2, 0), (), "at least 1 state"),
        ((2, 2), ((),), "at least one variable"),
        ((2, 2), ((0, 0),), "twice"),
        ((2, 2), ((0, 2),), "does not exist"),
        ((2, 2), ((-1, 0),), "does not exist"),
    ],
)
def test_what_is_no_graph_is_refused(
    sizes: tuple[int, ...], cliques: tuple[tuple[int, ...], ...], message: str
) -> None:
    """Every rule has an error that names the field."""
    with pytest.raises(ValueError, match=message):
        Graph(sizes, cliques)


def test_cliques_are_sets_and_cover_all_variables() -> None:
    """Order within a clique does not matter, repeated ones count once, and lone variables get one of their own."""
    assert Graph((2, 2, 2), ((1, 0), (0, 1))).cliques == ((0, 1), (2,))


@pytest.mark.parametrize(
    "name", ["chain", "star", "forest", "nested", "singletons", "third-order chain", "overlapping cliques of three"]
)
def test_samples_have_the_model_s_marginals(name: str) -> None:
    """Ancestral and Gibbs samples: cell counts within six standard deviations, so false alarms are below 1e-6."""
    graph = {**TREES, **CYCLES}[name]
    theta, n = potentials(graph, 0.7), 20_000
    rng = np.random.default_rng(1)  # noqa: TID251 - a test's draws
    calibrated = calibrate(graph, theta, junction_tree(graph))
    drawn = draw(graph, calibrated, rng.random((n, len(calibrated.tree.cliques))))
    start = np.zeros((n, len(graph.sizes)), dtype=np.intp)
    for rows in (drawn, gibbs(graph, theta, start, rng, 30)):
        for clique, table in zip(graph.cliques, exact(graph, theta)[0], strict=True):
            counts = np.zeros(table.shape)
            np.add.at(counts, tuple(rows[:, variable] for variable in clique), 1)
            assert (np.abs(counts - n * table) <= 6 * np.sqrt(n * table * (1 - table)) + 6).all()


def test_states_without_probability_are_not_drawn() -> None:
    """The ends of the unit interval, too, give states that can be."""
    graph = Graph((3, 2), ((0, 1),))
    theta = [np.array([[-2000.0, -2000.0], [0.0, -2000.0], [-2000.0, 0.0]])]
    calibrated = calibrate(graph, theta, junction_tree(graph))
    edges = np.array([[0.0], [0.5], [np.nextafter(1.0, 0.0)]])
    rows = draw(graph, calibrated, edges)
    assert {tuple(row) for row in rows.tolist()} <= {(1, 0), (2, 1)}


@each("strength", STRENGTHS)
@each("name", [*TREES, *CYCLES])
def test_small_sets_agree_with_enumeration(name: str, strength: str) -> None:
    """Those of one clique, of several cliques on a way, and of parts that nothing joins."""
    graph = {**TREES, **CYCLES}[name]
    theta = potentials(graph, STRENGTHS[strength])
    sets = [one for k in (1, 2, 3, 4) for one in combinations(range(len(graph.sizes)), k)]
    joint, found = everything(graph, theta), candidate_marginals(graph, theta, sets)
    clusters = junction_tree(graph).cliques
    assert set(found) == {one for one in sets if any(len(set(one) - set(cluster)) <= 1 for cluster in clusters)}
    for pair, table in found.items():
        assert table == pytest.approx(sum_to(joint, range(len(graph.sizes)), pair), abs=1e-9)


def test_cells_of_joined_pairs_are_enough() -> None:
    """No set needs more; pairs of one clique, or of parts that nothing joins, need exactly so many."""
    for graph in (*TREES.values(), *CYCLES.values()):
        now, T = tree_cells(graph), range(len(graph.sizes))
        sets = [one for k in (2, 3, 4) for one in combinations(T, k)]
        needed = joined_cells(graph, sets)
        assert set(combinations(T, 2)) <= set(needed)
        for one, cells in needed.items():
            joined = Graph(graph.sizes, (*graph.cliques, one))
            assert now <= cells
            assert tree_cells(joined) <= cells
    forest = joined_cells(TREES["forest"], [(0, 1), (1, 2)])
    assert forest[0, 1] == tree_cells(TREES["forest"]) == 2 * 3 + 2 * 4 + 3
    assert forest[1, 2] == forest[0, 1] + 3 * 2
    path = joined_cells(TREES["chain"], [(0, 2)])
    assert path[0, 2] == tree_cells(TREES["chain"]) + min(2 * 4 * 2, 1 * 3 * 4)
