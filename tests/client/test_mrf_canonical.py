"""Log-potentials of a fit are the smallest that give its model, and a fit ends in bounded time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bursar_models.arrays import FloatArray
from bursar_models.mrf import Graph, NoisyTable, _work, estimate, estimate_chain
from bursar_models.mrf._canonical import canonical, canonical_chain
from bursar_models.mrf._graph import is_forest
from bursar_models.mrf._inference import LoopyBeliefs, chain_marginals, exact, loopy, spread
from bursar_models.mrf._work import check_chain_work, check_work, evaluations, routine
from tests.each import each

GRAPHS = {
    "tree": Graph((3, 4, 2, 5), ((0, 1), (1, 2), (1, 3))),
    "cycle": Graph((3, 4, 2, 3), ((0, 1), (1, 2), (2, 3), (0, 3))),
    "nested": Graph((3, 2, 4), ((0, 1, 2), (0, 1), (1,), (2,))),
    "threes": Graph((2, 3, 2, 3, 2), ((0, 1, 2), (1, 2, 3), (2, 3, 4), (0, 1, 4))),
    "fours": Graph((2, 3, 2, 2, 3, 2), ((0, 1, 2, 3), (1, 2, 3, 4), (0, 2, 3, 5), (2, 5))),
    "alone": Graph((4, 1), ()),
}
FORESTS = {"tree", "alone"}


def table_of(graph: Graph, theta: list[FloatArray]) -> FloatArray:
    """Logarithms of the weights of all states, by enumeration, less their mean."""
    everything = tuple(range(len(graph.sizes)))
    weights = sum((spread(t, c, everything) for c, t in zip(graph.cliques, theta, strict=True)), np.zeros(graph.sizes))
    return np.asarray(weights - weights.mean())


def potentials(graph: Graph, scale: float, seed: int = 0) -> list[FloatArray]:
    """Normal log-potentials."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - test data
    return [scale * rng.normal(size=graph.shape(clique)) for clique in graph.cliques]


def drifted(graph: Graph, theta: list[FloatArray], far: float) -> list[FloatArray]:
    """The same model: functions of common variables are moved from clique to clique, and constants added."""
    rng = np.random.default_rng(5)  # noqa: TID251 - test data
    moved = [table + far * rng.normal() for table in theta]
    for i, one in enumerate(graph.cliques):
        for j, other in enumerate(graph.cliques[:i]):
            if common := tuple(sorted(set(one) & set(other))):
                function = far * rng.normal(size=graph.shape(common))
                moved[i] = moved[i] + spread(function, common, one)
                moved[j] = moved[j] - spread(function, common, other)
    return moved


@pytest.mark.parametrize("name", GRAPHS)
def test_the_model_stays_and_its_numbers_become_those_of_its_dependences(name: str) -> None:
    """Wherever log-potentials had gone, the same ones come back, with the same distribution."""
    graph = GRAPHS[name]
    theta = potentials(graph, 1.0)
    far = drifted(graph, theta, 1e4)
    assert max(np.abs(table).max() for table in far) > 1e3
    found, less = canonical(graph, far)
    for table, own in zip(found, canonical(graph, theta)[0], strict=True):
        np.testing.assert_allclose(table, own, atol=1e-8)
        assert np.abs(table).max() < 10
        assert abs(table.mean()) < 1e-10
    np.testing.assert_allclose(table_of(graph, found), table_of(graph, theta), atol=1e-8)
    (before, log_before), (after, log_after) = exact(graph, far), exact(graph, found)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    assert log_before - less == pytest.approx(log_after, abs=1e-8)


@pytest.mark.parametrize("name", GRAPHS)
def test_they_are_the_smallest_of_all(name: str) -> None:
    """Least squares finds the least norm among log-potentials with the same weights, up to a constant."""
    graph = GRAPHS[name]
    theta = potentials(graph, 1.0)
    cells = [(i, cell) for i, clique in enumerate(graph.cliques) for cell in np.ndindex(graph.shape(clique))]
    design = np.empty((int(np.prod(graph.sizes)), len(cells)))
    for column, (i, cell) in enumerate(cells):
        unit = [np.zeros(graph.shape(clique)) for clique in graph.cliques]
        unit[i][cell] = 1.0
        design[:, column] = table_of(graph, unit).ravel()
    least = np.linalg.pinv(design) @ table_of(graph, theta).ravel()
    found = np.concatenate([table.ravel() for table in canonical(graph, theta)[0]])
    np.testing.assert_allclose(found, least, atol=1e-10)


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_chains_stay_the_same_too(steps: int) -> None:
    """Constants go; between the first state and the transition something can move only if there is one transition."""
    graph = Graph((3, 3), ((0,), (0, 1)))
    first, transition = drifted(graph, potentials(graph, 1.0), 1e4) if steps == 2 else potentials(graph, 1.0)
    *found, less = canonical_chain(steps, first + 500, transition - 700)
    assert all(np.abs(table).max() < 10 for table in found)
    (before, log_before), (after, log_after) = (
        chain_marginals(steps, *pair) for pair in ((first + 500, transition - 700), found)
    )
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    assert log_before - less == pytest.approx(log_after, abs=1e-7)


def test_numbers_that_overflow_are_left_as_they_are() -> None:
    """Total for all finite numbers."""
    graph = GRAPHS["tree"]
    huge = [np.full(graph.shape(clique), 1.7e308) for clique in graph.cliques]
    found, less = canonical(graph, huge)
    assert less == 0.0
    for a, b in zip(found, huge, strict=True):
        np.testing.assert_array_equal(a, b)


def test_too_many_common_sets_leave_single_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model stays; main effects are still in their place."""
    graph = GRAPHS["fours"]
    monkeypatch.setattr("bursar_models.mrf._canonical._MOST_SHARED", 1)
    theta = potentials(graph, 1.0)
    found = canonical(graph, theta)[0]
    np.testing.assert_allclose(table_of(graph, found), table_of(graph, theta), atol=1e-10)
    assert sum(float(np.square(t).sum()) for t in found) < sum(float(np.square(t).sum()) for t in theta)


def noisy(graph: Graph, rows: float, std: float) -> list[NoisyTable]:
    """Tables of a model of moderate dependence, with noise."""
    rng = np.random.default_rng(3)  # noqa: TID251 - test noise
    marginals = exact(graph, potentials(graph, 0.7))[0]
    return [
        NoisyTable(clique, rows * table + std * rng.normal(size=table.shape), std)
        for clique, table in zip(graph.cliques, marginals, strict=True)
    ]


@pytest.mark.parametrize("estimator", ["cgm", "naive", "nlbp"])
@pytest.mark.parametrize("name", ["tree", "cycle", "nested", "threes", "alone"])
def test_fits_are_small_and_say_the_same_as_inference(name: str, estimator: Any) -> None:
    """Log-potentials are canonical at ample spend, too; marginals and log-partition are theirs."""
    graph = GRAPHS[name]
    for std in (0.01, 30.0) if name in ("tree", "nested") else (30.0,):
        found = estimate(graph, noisy(graph, 1e5, std), 1e5, estimator=estimator)
        assert max(np.abs(table).max() for table in found.log_potentials) < 20
        for table, own in zip(found.log_potentials, canonical(graph, found.log_potentials)[0], strict=True):
            np.testing.assert_allclose(table, own, atol=1e-9)
        marginals, log_partition = exact(graph, found.log_potentials)
        assert found.log_partition == pytest.approx(log_partition, abs=1e-9)
        for a, b in zip(found.marginals, marginals, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("name", GRAPHS)
def test_loopy_fits_are_exact_where_there_is_no_cycle(name: str) -> None:
    """There they cost nothing more, and hold for any noise."""
    graph = GRAPHS[name]
    assert is_forest(graph) == (name in FORESTS)
    assert routine(graph, "loopy") == ("exact" if name in FORESTS else "loopy")
    if name in FORESTS:
        tables = noisy(graph, 1e4, 20.0)
        found, same = (estimate(graph, tables, 1e4, inference=how) for how in ("loopy", "exact"))
        assert found.inference == "exact"
        for a, b in zip(found.marginals, same.marginals, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_loopy_fits_have_the_marginals_of_their_potentials() -> None:
    """A change of potentials that leaves the model leaves fixed points, too."""
    graph = GRAPHS["cycle"]
    found = estimate(graph, noisy(graph, 1e4, 20.0), 1e4, inference="loopy")
    marginals, log_partition = loopy(graph, found.log_potentials)
    assert found.log_partition == pytest.approx(log_partition, abs=1e-5)
    for a, b in zip(found.marginals, marginals, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@each("scale", [1.0, 1e6, 1e12, 1e15, 1e17])
@each("name", GRAPHS)
def test_loopy_marginals_add_up_to_one(name: str, scale: float) -> None:
    """They do for all potentials, converged or not."""
    graph = GRAPHS[name]
    for theta in (potentials(graph, scale), drifted(graph, potentials(graph, 1.0), scale)):
        marginals, log_partition = loopy(graph, theta, sweeps=40)
        assert np.isfinite(log_partition)
        for table in marginals:
            assert table.sum() == pytest.approx(1.0, abs=1e-9)
            assert table.min() >= 0


@pytest.mark.parametrize("estimator", ["cgm", "naive", "nlbp"])
def test_loopy_fits_of_absurd_counts_add_up_to_one(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of the size of the lattice's end, on cycles and trees; nothing converges, so sweeps are cut short."""
    monkeypatch.setattr(_work, "MAX_SWEEPS", 300)
    rng = np.random.default_rng(8)  # noqa: TID251 - test noise
    fill = 2.0**62
    for graph in (GRAPHS["cycle"], GRAPHS["tree"]):
        tables = [NoisyTable(c, np.where(rng.random(graph.shape(c)) < 0.5, fill, -fill), 1.0) for c in graph.cliques]
        found = estimate(graph, tables, None, estimator=estimator, inference="loopy")
        assert all(table.sum() == pytest.approx(1.0, abs=1e-9) for table in found.marginals)


def test_evaluations_are_bounded_by_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every estimator ends sooner with less work allowed, and has a model."""
    graph = GRAPHS["cycle"]
    tables = noisy(graph, 1e5, 1.0)
    monkeypatch.setattr(_work, "MAX_WORK", 6000)
    cells = sum(table.counts.size for table in tables)
    for estimator, inference in (("cgm", "exact"), ("naive", "exact"), ("nlbp", "exact"), ("cgm", "loopy")):
        found = estimate(graph, tables, 1e5, estimator=estimator, inference=inference)  # type: ignore[arg-type]
        assert found.iterations <= max(6000 // (_work.TABLE_CELL * cells), 3)
        assert all(np.isfinite(table).all() for table in found.log_potentials)
    pairs, firsts = NoisyTable((0, 1), np.full((4, 4), 50.0), 5.0), NoisyTable((0,), np.full(4, 200.0), 5.0)
    assert estimate_chain(5, 4, pairs, firsts, 800).iterations <= max(evaluations(64, 20), 3)


def test_sweeps_are_bounded_over_all_calls() -> None:
    """Then there is one for each call."""
    graph = GRAPHS["cycle"]
    sweeps: list[int] = []
    beliefs = LoopyBeliefs(graph, most=7, tolerance=0.0, sweeps=5)
    original = beliefs._sweep

    def counted(stacked: list[FloatArray]) -> FloatArray:
        sweeps[-1] += 1
        return original(stacked)

    beliefs._sweep = counted  # type: ignore[method-assign]
    for _ in range(4):
        sweeps.append(0)
        beliefs(potentials(graph, 1.0))
    assert sweeps == [5, 2, 1, 1]


def test_what_takes_too_long_is_refused_with_what_to_remove() -> None:
    """Small graphs are not; loopy inference bears less than exact inference; chains are bounded in states."""
    check_work(GRAPHS["fours"], "auto")
    wide = Graph((1000,) * 3, ((0, 1), (1, 2)))
    check_work(wide, "exact")
    check_work(wide, "loopy")
    ring = Graph((1000,) * 3, ((0, 1), (1, 2), (0, 2)))
    with pytest.raises(ValueError, match=r"take too long to learn from with loopy inference.*\(a, b\)"):
        check_work(ring, "auto", ["a", "b", "c"])
    check_chain_work(24, 1000)
    with pytest.raises(ValueError, match=r"a chain of 64 steps among 1000 states takes too long.*at most 739 states"):
        check_chain_work(64, 1000)
    check_chain_work(64, 739)
